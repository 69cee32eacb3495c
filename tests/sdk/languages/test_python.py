"""The generated Python code: the scenario, and the snippets of its README as they are printed."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from topics_proto.v1 import (
    admin_service_pb2,
    group_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    topics_service_pb2,
    watch_service_pb2,
)

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[3]
PYTHON = [sys.executable, "-W", "error"]


def _declared(method: MethodDescriptor) -> bool:
    return method.GetOptions().idempotency_level != MethodOptions.IDEMPOTENCY_UNKNOWN


def test_scenario(scenario: dict[str, str], steps: list[str], run: Callable[..., str]) -> None:
    printed = run(*PYTHON, HERE / "python" / "scenario.py", env=scenario)
    assert printed.splitlines() == [f"ok {step}" for step in steps]


def test_readme(snippets: Callable[[str, str], list[str]], run: Callable[..., str]) -> None:
    append, error, repeatable = (
        run(sys.executable, "-W", "error", "-c", code) for code in snippets("python", "python")
    )
    assert append == '1 first b\'{"hello": "python"}\'\n'
    assert re.fullmatch(r"StatusCode.NOT_FOUND .+\nTOPIC_NOT_FOUND \{'topic': 'nowhere'\}\n", error)
    methods = topics_service_pb2.DESCRIPTOR.services_by_name["TopicsService"].methods
    assert repeatable.splitlines() == [f"{method.name} may be repeated" for method in methods if _declared(method)]


@pytest.mark.parametrize("language", ["python", "go", "ts"])
def test_readmes_name_the_calls_that_may_not_be_repeated(language: str) -> None:
    readme = (ROOT / "sdk" / "generated" / language / "README.md").read_text()
    [named] = re.findall(r"Every call is declared so but (.*?)\.", readme, re.DOTALL)
    modules = [
        topics_service_pb2,
        queue_service_pb2,
        watch_service_pb2,
        router_service_pb2,
        group_service_pb2,
        admin_service_pb2,
    ]
    services = [service for module in modules for service in module.DESCRIPTOR.services_by_name.values()]
    methods = [method for service in services for method in service.methods]
    assert re.findall(r"`(\w+)`", named) == [method.name for method in methods if not _declared(method)]


def test_types(snippets: Callable[[str, str], list[str]], run: Callable[..., str], tmp_path: Path) -> None:
    """Scenario and snippets hold under `mypy --strict` of someone who has the package; googleapis ships no types."""
    for number, code in enumerate(snippets("python", "python")):
        (tmp_path / f"snippet_{number}.py").write_text(code)
    shutil.copy(HERE / "python" / "scenario.py", tmp_path)
    options = ["--strict", "--config-file=", "--ignore-missing-imports"]
    run(sys.executable, "-m", "mypy", *options, ".", cwd=tmp_path, env={"MYPYPATH": str(ROOT / "sdk/generated/python")})
