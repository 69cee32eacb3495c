"""What the targets of the Makefile install, and that they trust nothing which a set-up before left half made.

The interpreter and its pip are played by a shell script, which writes down what it is asked.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

# $1: -c CODE, -m venv DIRECTORY or -m pip ARGUMENTS. `import pip` fails where the environment has got none.
_PYTHON = """\
#!/bin/sh
folder=$(dirname "$0")
case "$1 $2" in
"-c import pip"*) test -e "$folder/has-pip" && exec {python} -c "${{2#import pip; }}";;
"-c "*) exec {python} -c "$2";;
"-m venv")
  echo "venv $3" >>"$LOG"
  mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
  test "$FAIL" != venv || exit 1
  touch "$3/bin/has-pip";;
"-m pip")
  shift 2; echo "pip $*" >>"$LOG"
  case "$FAIL" in pip) exit 1;; killed) exit 137;; cut) kill -TERM $PPID; exit 1;; esac;;
esac
"""


class Made(NamedTuple):
    """What `make` did: its exit code, what was asked of Python, and what it printed."""

    code: int
    asked: list[str]
    text: str


class Clone:
    """A folder with the Makefile, and a Python that is no real one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.bin = folder / "usr"
        self.bin.mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)
        for name in ("sh", "make", "rm", "mkdir", "touch", "dirname", "cp", "test"):
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.python("python3", sys.executable)

    def python(self, name: str, real: str) -> None:
        """Put an interpreter on the PATH that answers about its version as the `real` one does."""
        script = self.bin / name
        script.write_text(_PYTHON.format(python=real))
        script.chmod(0o755)

    def make(self, *arguments: str, fail: str = "") -> Made:
        """`fail`: what goes wrong: venv, pip, killed (pip is), cut (make's shell is)."""
        self.log.write_text("")
        env = {"PATH": str(self.bin), "LOG": str(self.log), "FAIL": fail}
        done = subprocess.run(
            ["make", *arguments], cwd=self.folder, env=env, capture_output=True, text=True, timeout=100, check=False
        )
        asked = [line.partition(" --quiet")[0] for line in self.log.read_text().splitlines()]
        extras = [line.rpartition(" --editable ")[2] for line in self.log.read_text().splitlines()]
        asked = [f"pip {extra}" if line.startswith("pip") else line for line, extra in zip(asked, extras, strict=True)]
        return Made(done.returncode, asked, done.stdout + done.stderr)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


BASE = "pip .[server,cli,analytics]"
DEV = "pip .[dev]"
CLUSTER = "pip .[cluster,cli,analytics]"


def test_setup_installs_the_server_and_setup_dev_the_rest(clone: Clone) -> None:
    assert clone.make("setup").asked == ["venv .venv", BASE]
    assert clone.make("setup").asked == []
    assert clone.make("setup-dev").asked == [DEV]
    assert clone.make("setup", "setup-dev").asked == []
    later = (clone.folder / ".venv" / ".installed-dev").stat().st_mtime + 5
    os.utime(clone.folder / "constraints.txt", (later, later))
    assert clone.make("setup").asked == [BASE], "brought up to date, in the environment that is there"
    assert clone.make("setup-dev").asked == [DEV]


def test_setup_dev_is_enough_for_both(clone: Clone) -> None:
    assert clone.make("setup-dev").asked == ["venv .venv", DEV]
    assert clone.make("setup").asked == []


@pytest.mark.parametrize(
    ("target", "extras"),
    [("run", BASE), ("conformance", BASE), ("run-cluster", CLUSTER)]
    + [(each, DEV) for each in ("lint", "format", "proto", "docs", "bench", "soak", "test", "test-crash")]
    + [(each, DEV) for each in ("test-sdk", "test-kafka", "test-spark", "build/spark-4.2/.installed")],
)
def test_each_target_asks_for_what_it_needs(clone: Clone, target: str, extras: str) -> None:
    for needed in ("tests/spark/matrix/setup.sh", "tests/clients/package.json", "tests/clients/package-lock.json"):
        (clone.folder / needed).parent.mkdir(parents=True, exist_ok=True)
        (clone.folder / needed).touch()
    text = clone.make("--dry-run", target).text
    assert [each for each in (BASE, CLUSTER, DEV) if f"'{each.removeprefix('pip ')}'" in text] == [extras], text


def test_an_environment_that_was_not_finished_is_made_anew(clone: Clone) -> None:
    for fail, asked in (("venv", []), ("killed", [BASE]), ("cut", [BASE])):
        broken = clone.make("setup", fail=fail)
        assert broken.code != 0
        assert broken.asked == ["venv .venv", *asked], fail
        assert not (clone.folder / ".venv" / ".installed").exists()
    assert clone.make("setup").asked == ["venv .venv", BASE]
    (clone.folder / ".venv" / "bin" / "has-pip").unlink()
    (clone.folder / ".venv" / ".installed").unlink()
    assert clone.make("setup").asked == ["venv .venv", BASE], "one that was left without pip before there were marks"


def test_pip_that_gives_up_by_itself_is_tried_again_in_the_same_environment(clone: Clone) -> None:
    assert clone.make("setup", fail="pip").code != 0
    assert clone.make("setup", fail="pip").asked == [BASE]
    assert clone.make("setup").asked == [BASE]
    assert clone.make("setup").asked == []


def test_it_takes_the_first_python_that_is_new_enough(clone: Clone) -> None:
    old = clone.folder / "old"
    old.write_text("#!/bin/sh\nexit 1\n")  # to whatever asks for its version
    old.chmod(0o755)
    clone.python("python3", str(old))
    refused = clone.make("setup")
    assert (refused.code, refused.asked) == (2, [])
    assert "make setup: Python 3.11 or newer is needed, and python3 is not: name one" in refused.text
    refused = clone.make("setup", "PYTHON3=python9")
    assert "and python9 is not" in refused.text
    assert not (clone.folder / ".venv").exists()
    clone.python("python3.13", sys.executable)
    assert clone.make("setup").asked == ["venv .venv", BASE]
    assert f"exec {sys.executable}" in (clone.folder / ".venv" / "bin" / "python").read_text()
