"""The TypeScript package, installed as its README says: scenario, types, snippets, pages."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.guide import with_addresses
from support.missing import without
from support.server import ServerProcess

NODE = Path(__file__).parent / "node"
ROOT = Path(__file__).parents[3]
INSTALLED = NODE / "node_modules" / "topics-sdk"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def toolchain() -> None:
    if shutil.which("node") is None:
        without("node is not installed")
    if not INSTALLED.exists():
        without("the packages for Node are not installed: make test-sdk does it")


def test_what_is_installed_is_what_is_generated() -> None:
    """A copy from before the last `make proto`, or change of a source, would pass every other test here."""
    package = ROOT / "sdk" / "generated" / "ts"
    files = [file for part in ("lib", "client") for file in (package / part).rglob("*.*")]
    assert len(files) > 60
    for file in files:
        copy = INSTALLED / file.relative_to(package)
        assert copy.read_bytes() == file.read_bytes(), f"{copy} is stale: tests/sdk/languages/setup.sh renews it"
    for source in (package / "src").glob("*.ts"):
        compiled = package / "client" / f"{source.stem}.js"
        assert compiled.stat().st_mtime >= source.stat().st_mtime, f"{compiled} is older than its source"


def test_what_it_remembers_of_owners_is_bounded(run: Callable[..., str]) -> None:
    printed = run("node", "--test", "--test-reporter=tap", "routes.test.mjs", cwd=NODE)
    assert len(re.findall(r"^ok \d+ - ", printed, re.MULTILINE)) >= 9


def test_scenario(scenario: dict[str, str], steps: list[str], run: Callable[..., str]) -> None:
    printed = run("node", "--test", "--test-reporter=tap", "scenario.test.mjs", cwd=NODE, env=scenario)
    assert re.findall(r"^    ok \d+ - (\w+)$", printed, re.MULTILINE) == steps


def strict(module: str, resolution: str, types: Sequence[str]) -> str:
    """A tsconfig.json of a user who checks everything, declarations of packages included."""
    options = {
        "strict": True,
        "noUncheckedIndexedAccess": True,
        "skipLibCheck": False,
        "allowJs": True,
        "checkJs": True,
        "target": "es2022",
        "module": module,
        "moduleResolution": resolution,
        "types": types,
        "outDir": "out",
    }
    return json.dumps({"compilerOptions": options, "include": ["*.ts", "*.mts", "*.mjs"]})


def test_readme(snippets: Callable[[str, str], list[str]], run: Callable[..., str], tmp_path: Path) -> None:
    """Installed as the README says, and something else afterwards: then its snippets compile, and print what they
    should."""
    project = tmp_path / "project"
    project.mkdir()
    offline = {"npm_config_prefer_offline": "true", "npm_config_audit": "false", "npm_config_fund": "false"}
    run("npm", "init", "--yes", cwd=project)
    [block] = snippets("ts", "sh")
    compiler, _, install = block.replace("../topics/", f"{ROOT}/").partition("\n")
    assert compiler == f"npm ci --prefix {ROOT}/sdk/generated/ts"  # setup.sh has done it
    for command in (install, "npm install --save-dev @types/node@20.19.0"):
        run("bash", "-euc", command, cwd=project, env=offline)
    assert str(ROOT) not in (project / "package.json").read_text()
    assert not (project / "node_modules/topics-sdk").is_symlink()
    for number, code in enumerate(snippets("ts", "js")):
        (project / f"snippet-{number}.mjs").write_text(code)
    (project / "tsconfig.json").write_text(strict("nodenext", "nodenext", ["node"]))
    assert run(NODE / "node_modules/.bin/tsc", cwd=project) == ""
    append, error, repeatable = (run("node", f"snippet-{number}.mjs", cwd=project) for number in range(3))
    assert append == '1n first {"hello": "typescript"}\n'
    assert re.fullmatch(r"NotFound .+\nTOPIC_NOT_FOUND \{ topic: 'nowhere' \}\n", error)
    assert "Diff may be repeated\n" in repeatable
    assert "Append" not in repeatable


def test_the_page_about_typescript(server: ServerProcess, run: Callable[..., str], tmp_path: Path) -> None:
    """Each block compiles, that for browsers with their types alone, and prints what the block behind it says."""
    page = with_addresses((ROOT / "docs/typescript.md").read_text(), server)
    blocks = re.findall(r"```ts\n(.*?)```\n(?:\n```text\n(.*?)```)?", page, re.DOTALL)
    assert len(blocks) >= 5
    here, browser = tmp_path / "node", tmp_path / "browser"
    for place, config in (
        (here, strict("nodenext", "nodenext", ["node"])),
        (browser, strict("esnext", "bundler", [])),
    ):
        place.mkdir()
        (place / "node_modules").symlink_to(NODE / "node_modules")
        (place / "package.json").write_text('{"type": "module"}')
        (place / "tsconfig.json").write_text(config)
    for number, (code, _) in enumerate(blocks):
        ((browser if "topics-sdk/browser" in code else here) / f"block{number}.ts").write_text(code)
    for place in (here, browser):
        assert run("node_modules/.bin/tsc", cwd=place) == ""
    ran = 0
    for number, (_, expected) in enumerate(blocks):
        if (program := here / f"out/block{number}.js").exists():
            assert run("node", program, cwd=here, env={"TOPICS_API_KEY": "my-key"}) == expected
            ran += 1
    assert ran >= 4
