"""What is said where a module is missing: the extra that brings it, or that the installation is not whole."""

import importlib
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from topics_client import installation
from topics_client.installation import DISTRIBUTION, MissingError, install_line, needs, require_hooks

ROOT = Path(__file__).parents[2]
TEXT = ("README.md", "docs/**/*.md", "examples/*.py", "service/deploy/*", "sdk/generated/*/README.md")
CODE = ("service", "gateway_http", "gateway_kafka", "gateway_postgres", "sql", "sdk/python", "spark_connector")


def test_a_module_of_another_package_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "install_line", "pip install [{}]".format)
    with pytest.raises(MissingError) as caught, needs("lakehouse"):
        raise ModuleNotFoundError("No module named 'duckdb.thing'", name="duckdb.thing")
    said = "the extra [lakehouse] is not installed (duckdb.thing is missing): pip install [lakehouse]"
    assert (str(caught.value), caught.value.name) == (said, "duckdb.thing")
    inner = needs("backup", "{name}: {install}")
    with pytest.raises(MissingError, match=r"^obstore: pip install \[backup\]$"), needs("server"), inner:
        raise ModuleNotFoundError("No module named 'obstore'", name="obstore")


@pytest.mark.parametrize("name", sorted(installation._OURS))
def test_a_module_of_our_own_is_never_told_as_an_extra(name: str) -> None:
    for module in (name, f"{name}.part"):
        with pytest.raises(MissingError) as caught, needs("server"):
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        said = f"{module} is missing, which is a part of {DISTRIBUTION} itself: the installation is not whole"
        assert str(caught.value) == said


@pytest.mark.parametrize("name", ["_sqlite3", "ctypes.util", None])
def test_a_module_of_python_is_told_by_python(name: str | None) -> None:
    with pytest.raises(ModuleNotFoundError) as caught, needs("server"):
        raise ModuleNotFoundError("as it was", name=name)
    assert type(caught.value) is ModuleNotFoundError


def test_all_that_a_wheel_holds_is_known_as_our_own() -> None:
    [pth] = (file for file in metadata.files(DISTRIBUTION) or () if file.suffix == ".pth")
    places = map(Path, pth.read_text().splitlines())
    packages = {init.parent.name for place in places for init in place.glob("*/__init__.py")}
    assert packages - {"topics_openapi"} == installation._OURS


@pytest.mark.parametrize(
    ("module", "library", "owner", "hook"),
    [
        ("topics_lakehouse.commit", "pyiceberg.table.update.snapshot", "_MergeAppendFiles", "_validate_concurrency"),
        ("topics_lakehouse.rewrite", "pyiceberg.table.update.snapshot", "_OverwriteFiles", "_validate_concurrency"),
        ("topics_gateway.transport.h2rules", "h2.connection", "H2ConnectionStateMachine", "_transitions"),
        ("topics_gateway.transport.h2rules", "h2.frame_buffer", "FrameBuffer", "_validate_frame_length"),
    ],
)
def test_a_renamed_hook_of_a_library_stops_the_import(
    monkeypatch: pytest.MonkeyPatch, module: str, library: str, owner: str, hook: str
) -> None:
    importlib.import_module(module)
    for kind in getattr(importlib.import_module(library), owner).__mro__:
        if hook in vars(kind):
            monkeypatch.delattr(kind, hook)
    monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImportError, match=rf"{owner}\.{hook}: install the version that topics-engine pins"):
        importlib.import_module(module)


def test_hooks_that_a_library_has_are_accepted() -> None:
    require_hooks(Path, "exists", "is_dir")
    require_hooks(Path("."), "exists")


def from_url(monkeypatch: pytest.MonkeyPatch, direct_url: dict[str, object] | None) -> str:
    """The line for the extra `spark` of an installation in /opt/my venv, made of that."""

    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if direct_url is None else json.dumps(direct_url)

    monkeypatch.setattr(metadata, "distribution", lambda name: {DISTRIBUTION: Distribution()}[name])
    monkeypatch.setattr(sys, "executable", "/opt/my venv/bin/python")
    line = install_line("spark")
    start = "'/opt/my venv/bin/python' -m pip install "
    assert line.startswith(start)
    return line.removeprefix(start)


def test_the_line_installs_from_where_the_installation_came(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clone, wheel = tmp_path / "a clone", tmp_path / "topics.whl"
    clone.mkdir()
    wheel.touch()
    editable = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    assert from_url(monkeypatch, editable) == f"-e '{clone}[spark]'"
    assert from_url(monkeypatch, {"url": clone.as_uri(), "dir_info": {}}) == f"'{clone}[spark]'"
    assert from_url(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}}) == f"'{wheel}[spark]'"
    assert from_url(monkeypatch, {"url": (tmp_path / "gone.whl").as_uri()}) == "'WHEEL[spark]'"
    assert from_url(monkeypatch, None) == f"'{DISTRIBUTION}[spark]'"
    git = {"url": "https://host/topics.git", "vcs_info": {"vcs": "git", "commit_id": "1"}}
    assert from_url(monkeypatch, git) == f"'{DISTRIBUTION}[spark] @ git+https://host/topics.git'"
    monkeypatch.chdir(clone)
    assert from_url(monkeypatch, editable) == "-e '.[spark]'"
    monkeypatch.chdir(tmp_path)
    assert from_url(monkeypatch, editable) == "-e './a clone[spark]'"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert install_line("x").startswith("bin/python -m pip ")


def test_what_lies_in_a_folder_of_the_path_names_no_package(tmp_path: Path) -> None:
    """As on the workers of a cluster."""
    site = ROOT / "sdk" / "python" / "topics_client" / "installation.py"
    code = f"import runpy; print(runpy.run_path({str(site)!r})['install_line']('spark'))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith(" -m pip install 'WHEEL[spark]'\n")


def test_a_clone_says_what_to_type_in_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from topics_client.installation import install_line; print(install_line('spark'))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": ""},
    )
    assert done.stdout == f"{os.path.relpath(sys.executable, ROOT)} -m pip install -e '.[spark]'\n"


def test_no_page_and_no_message_names_a_package_of_an_index() -> None:
    files = [file for pattern in TEXT for file in ROOT.glob(pattern)]
    files += [file for place in CODE for file in (ROOT / place).rglob("*.py")]
    assert len(files) > 200
    for file in files:
        found = re.search(rf"pip install[^\n]*{DISTRIBUTION}|{DISTRIBUTION}\[", file.read_text())
        assert found is None, f"{file}: {found}"


def test_the_name_of_the_distribution_stands_in_one_place() -> None:
    holders = {
        str(file.relative_to(ROOT))
        for place in CODE
        for file in (ROOT / place).rglob("*.py")
        if f'"{DISTRIBUTION}"' in file.read_text() and file.name != "java.py"  # whose cache is called so
    }
    assert holders == {"sdk/python/topics_client/installation.py"}


def test_what_the_readme_makes_in_the_clone_is_ignored_by_git() -> None:
    made = ["topics-data/LOCK", "warehouse/catalog.db", ".venv/.installed", "build/site/index.html"]
    done = subprocess.run(["git", "check-ignore", *made], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == made
