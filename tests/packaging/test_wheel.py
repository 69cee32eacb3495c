"""The wheel, built and installed into clean environments: the base install, then the server."""

import re
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

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(300)  # downloads dependencies


def _run(*command: str | Path, code: int = 0) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", target, ROOT)
    [built] = target.glob("topics_engine-*.whl")
    return built


def test_holds_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    places = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for place in map(Path, places["packages"]):
        modules = {str(file.relative_to(ROOT / place.parent)) for file in (ROOT / place).rglob("*.py")}
        assert modules
        assert modules <= held
        assert (ROOT / place / "py.typed").exists() is (f"{place.name}/py.typed" in held)


def test_base_install_then_server(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--constraint", ROOT / "constraints.txt"]
    topics = home / "bin" / "topics"

    _run(*pip, wheel)
    assert re.fullmatch(r"topics \d+\.\d+\.\d+\n", _run(topics, "version"))
    assert "import" in _run(topics, "--help")
    refusal = _run(topics, "serve", code=1)
    assert "topics-engine[server]" in refusal

    _run(*pip, f"{wheel}[server]")
    monkeypatch.setattr(support_server, "TOPICS", topics)
    with ServerProcess(tmp_path / "server") as server, Api(server.base) as api:
        assert api.append("t", 1)["seqs"] == [1]
        assert server.stop() == 0


def test_deployment_files_run_the_installed_command() -> None:
    dockerfile = (ROOT / "service" / "deploy" / "Dockerfile").read_text()
    unit = (ROOT / "service" / "deploy" / "topics.service").read_text()
    assert "USER topics" in dockerfile
    assert "HEALTHCHECK" in dockerfile
    assert 'ENTRYPOINT ["/opt/topics/bin/topics"]' in dockerfile
    for copied in re.findall(r"^COPY (?!--)(.+) \S+$", dockerfile, re.MULTILINE):
        for source in copied.split():
            assert (ROOT / source).exists(), source
    assert "ExecStart=/opt/topics/bin/topics serve" in unit
    assert "StateDirectory=topics" in unit
