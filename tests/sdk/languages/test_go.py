"""The generated Go module: the scenario under `go test`, and the snippets of its README as they are printed."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.missing import without

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(300)  # whoever comes first builds grpc


@pytest.fixture(autouse=True)
def toolchain() -> None:
    if shutil.which("go") is None:
        without("go is not installed")


def test_the_module_builds_by_itself(run: Callable[..., str]) -> None:
    assert run("go", "build", "./...", cwd=ROOT / "sdk" / "generated" / "go") == ""


def test_scenario(scenario: dict[str, str], steps: list[str], run: Callable[..., str]) -> None:
    printed = run("go", "test", "-count=1", "-v", "./...", cwd=HERE / "go", env=scenario)
    assert re.findall(r"^    --- PASS: TestScenario/(\w+) ", printed, re.MULTILINE) == steps


def test_readme(snippets: Callable[[str, str], list[str]], run: Callable[..., str], tmp_path: Path) -> None:
    """In a module of its own, made to depend on the SDK by the commands that the README gives."""
    printed = []
    [depend] = snippets("go", "sh")
    for number, code in enumerate(snippets("go", "go")):
        module = tmp_path / f"snippet-{number}"
        module.mkdir()
        (module / "main.go").write_text(code)
        assert not run("gofmt", "-l", ".", cwd=module)
        run("go", "mod", "init", "hello", cwd=module)
        run("bash", "-euc", depend.replace("../topics/", f"{ROOT}/"), cwd=module)
        printed.append(run("go", "run", ".", cwd=module))
    append, error, repeatable = printed
    assert append == '1 first {"hello": "go"}\n'
    assert re.fullmatch(r"NotFound .+\nTOPIC_NOT_FOUND map\[topic:nowhere\]\n", error)
    assert "Diff may be repeated\n" in repeatable
    assert "Append" not in repeatable
