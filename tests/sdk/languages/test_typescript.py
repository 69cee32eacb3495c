"""The generated TypeScript package, installed as its README says: scenario, types, snippets."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.missing import without

NODE = Path(__file__).parent / "node"
ROOT = Path(__file__).parents[3]
INSTALLED = NODE / "node_modules" / "topics-sdk"


@pytest.fixture(autouse=True)
def toolchain() -> None:
    if shutil.which("node") is None:
        without("node is not installed")
    if not INSTALLED.exists():
        without("the packages for Node are not installed: make test-sdk does it")


def test_what_is_installed_is_what_is_generated() -> None:
    """A copy from before the last `make proto` would pass every other test here."""
    for file in (ROOT / "sdk" / "generated" / "ts" / "lib").rglob("*.*"):
        copy = INSTALLED / file.relative_to(ROOT / "sdk" / "generated" / "ts")
        assert copy.read_bytes() == file.read_bytes(), f"{copy} is stale: tests/sdk/languages/setup.sh renews it"


def test_scenario(scenario: dict[str, str], steps: list[str], run: Callable[..., str]) -> None:
    printed = run("node", "--test", "--test-reporter=tap", "scenario.test.mjs", cwd=NODE, env=scenario)
    assert re.findall(r"^    ok \d+ - (\w+)$", printed, re.MULTILINE) == steps


def test_readme(snippets: Callable[[str, str], list[str]], run: Callable[..., str], tmp_path: Path) -> None:
    """The types hold for the snippets and the scenario, and the snippets print what they should."""
    [depend] = snippets("ts", "sh")
    assert depend.startswith("npm install --install-links ../topics/sdk/generated/ts\n")
    assert "install-links=true" in (NODE / ".npmrc").read_text()  # how it came to be in node_modules here
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    shutil.copy(NODE / "tsconfig.json", tmp_path)
    shutil.copy(NODE / "scenario.test.mjs", tmp_path)
    for number, code in enumerate(snippets("ts", "js")):
        (tmp_path / f"snippet-{number}.mjs").write_text(code)
    assert run("node_modules/.bin/tsc", cwd=tmp_path) == ""
    append, error, repeatable = (run("node", f"snippet-{number}.mjs", cwd=tmp_path) for number in range(3))
    assert append == '1n first {"hello": "typescript"}\n'
    assert re.fullmatch(r"NotFound .+\nTOPIC_NOT_FOUND \{ topic: 'nowhere' \}\n", error)
    assert "Diff may be repeated\n" in repeatable
    assert "Append" not in repeatable
