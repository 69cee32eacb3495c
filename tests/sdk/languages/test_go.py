"""The Go module: the scenario under `go test`, and the code of its README and its page as it is printed."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.guide import with_addresses
from support.missing import without
from support.server import ServerProcess

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(300)  # the first one builds grpc


@pytest.fixture(autouse=True)
def toolchain() -> None:
    if shutil.which("go") is None:
        without("go is not installed")


def test_the_module_builds_by_itself(run: Callable[..., str]) -> None:
    assert run("go", "build", "./...", cwd=ROOT / "sdk" / "generated" / "go") == ""


def test_the_tests_within_the_module_pass(run: Callable[..., str]) -> None:
    printed = run("go", "test", "-count=1", "-v", "./client", cwd=ROOT / "sdk" / "generated" / "go")
    assert len(re.findall(r"^--- PASS: Test", printed, re.MULTILINE)) >= 7


def test_scenario(scenario: dict[str, str], steps: list[str], run: Callable[..., str]) -> None:
    printed = run("go", "test", "-count=1", "-v", "./...", cwd=HERE / "go", env=scenario)
    assert re.findall(r"^    --- PASS: TestScenario/(\w+) ", printed, re.MULTILINE) == steps


def test_readme(snippets: Callable[[str, str], list[str]], run: Callable[..., str], tmp_path: Path) -> None:
    """In a module of its own, made to depend on the SDK by the commands that the README gives; those outlive another
    `go mod tidy`, and a dependency that comes later."""
    printed = []
    [depend] = snippets("go", "sh")
    for number, code in enumerate(snippets("go", "go")):
        module = tmp_path / f"snippet-{number}"
        module.mkdir()
        (module / "main.go").write_text(code)
        assert not run("gofmt", "-l", ".", cwd=module)
        run("go", "mod", "init", "hello", cwd=module)
        run("bash", "-euc", depend.replace("../topics/", f"{ROOT}/"), cwd=module)
        run("go", "get", "golang.org/x/text@v0.42.0", cwd=module)
        run("go", "mod", "tidy", cwd=module)
        printed.append(run("go", "run", ".", cwd=module))
    append, error, repeatable = printed
    assert append == '1 first {"hello": "go"}\n'
    assert re.fullmatch(r"NotFound .+\nTOPIC_NOT_FOUND map\[topic:nowhere\]\n", error)
    assert "Diff may be repeated\n" in repeatable
    assert "Append" not in repeatable


def test_the_page_about_go(server: ServerProcess, run: Callable[..., str], tmp_path: Path) -> None:
    """Each block is a program of its own, formatted, and prints what the block behind it says."""
    page = with_addresses((ROOT / "docs/go.md").read_text(), server)
    programs = re.findall(r"```go\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert len(programs) == page.count("```go")
    module = "module page\n\nrequire topics.test/sdk v0.0.0\n\nreplace topics.test/sdk => "
    sdk = ROOT / "sdk" / "generated" / "go"
    (tmp_path / "go.mod").write_text(f"{module}{sdk}\n" + (sdk / "go.mod").read_text().partition("\n")[2])
    shutil.copy(sdk / "go.sum", tmp_path)
    for number, (code, expected) in enumerate(programs):
        place = tmp_path / f"program{number}"
        place.mkdir()
        (place / "main.go").write_text(code)
        assert not run("gofmt", "-l", ".", cwd=place)
        assert run("go", "run", f"./{place.name}", cwd=tmp_path) == expected
