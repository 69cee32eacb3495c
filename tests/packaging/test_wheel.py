"""The wheel, built of what the image is built of, and installed: the base, then the server."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from support import server as support_server
from support.http import Api
from support.server import ServerProcess
from topics_client.installation import DISTRIBUTION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [Path(place) for place in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]

pytestmark = pytest.mark.timeout(300)  # downloads dependencies


def _run(*command: str | Path, code: int = 0, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def _copied() -> list[str]:
    """Return what the Dockerfile copies out of the repository."""
    dockerfile = (ROOT / "service" / "deploy" / "Dockerfile").read_text()
    return [
        source for line in re.findall(r"^COPY (?!--)(.+) \S+$", dockerfile, re.MULTILINE) for source in line.split()
    ]


def _source(directory: Path) -> Path:
    """A directory as it lies in the image when the wheel is built."""
    for name in _copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            directory.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, directory)
    return directory


def _build(source: Path, target: Path, code: int = 0) -> str:
    return _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", target, source, code=code)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the image."""
    target = tmp_path_factory.mktemp("wheel")
    _build(_source(tmp_path_factory.mktemp("image") / "src"), target)
    [built] = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the base install."""
    home = tmp_path_factory.mktemp("base") / "venv"
    venv.create(home, with_pip=True)
    _run(home / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    return home / "bin"


def test_holds_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    for place in PACKAGES:
        modules = {str(file.relative_to(ROOT / place.parent)) for file in (ROOT / place).rglob("*.py")}
        assert modules
        assert modules <= held
        assert (ROOT / place / "py.typed").exists() is (f"{place.name}/py.typed" in held)
    licences = {name.rpartition("/")[2] for name in held if "/licenses/" in name}
    assert licences == set(PROJECT["project"]["license-files"])


def test_a_build_without_a_listed_package_fails(tmp_path: Path) -> None:
    source = _source(tmp_path / "src")
    shutil.rmtree(source / "gateway_kafka")
    (source / "NOTICE").unlink()
    said = _build(source, tmp_path / "wheel", code=1)
    assert "not here, but listed in pyproject.toml: gateway_kafka/topics_kafka, NOTICE" in said


def test_the_name_of_the_distribution_is_that_of_the_project() -> None:
    assert PROJECT["project"]["name"] == DISTRIBUTION


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "serve --port 0",
        "verify --data-dir .",
        "repair --data-dir .",
        "backup create --to b",
        "backup list --from b",
    ],
)
def test_the_base_install_says_how_to_add_the_server(base: Path, wheel: Path, command: str, tmp_path: Path) -> None:
    said = _run(base / "topics", *command.split(), code=1, cwd=tmp_path)
    name, _, rest = said.partition(": ")
    assert name == f"topics {command.split()[0]}"
    line = rf"{re.escape(str(base))}/python\S* -m pip install '{re.escape(str(wheel))}\[server\]'"
    assert re.fullmatch(rf"the extra \[server\] is not installed \(\w+ is missing\): {line}\n", rest), said


def test_base_install_then_server(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = base / "topics"
    assert re.fullmatch(r"topics \d+\.\d+\.\d+\n", _run(topics, "version"))
    assert "import" in _run(topics, "--help")
    assert "--kafka-port" in _run(topics, "serve", "--help")

    install = shlex.split(_run(topics, "serve", code=1).rpartition("): ")[2])
    _run(*install, "--quiet", "--constraint", ROOT / "constraints.txt")
    monkeypatch.setattr(support_server, "TOPICS", topics)
    with ServerProcess(tmp_path / "server") as server, Api(server.base) as api:
        assert api.append("t", 1)["seqs"] == [1]
        assert server.stop() == 0

    [kafka] = base.parent.rglob("topics_kafka")
    kafka.rename(kafka.with_name("topics_gone"))
    for command in (("serve",), ("serve", "--help")):
        said = _run(topics, *command, code=1)
        assert "topics_kafka is missing, which is a part of topics-engine itself" in said
        assert "[server]" not in said


def test_deployment_files_run_the_installed_command() -> None:
    dockerfile = (ROOT / "service" / "deploy" / "Dockerfile").read_text()
    unit = (ROOT / "service" / "deploy" / "topics.service").read_text()
    assert "USER topics" in dockerfile
    assert "HEALTHCHECK" in dockerfile
    assert 'ENTRYPOINT ["/opt/topics/bin/topics"]' in dockerfile
    assert "ExecStart=/opt/topics/bin/topics serve" in unit
    assert "StateDirectory=topics" in unit
