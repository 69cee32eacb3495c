"""The check of `make lint` that no change of the protos breaks the clients of the last release: it bites."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def _check(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["proto/generate.sh", "--check"], cwd=tree, env=os.environ | {"PYTHON": sys.executable},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The protos and what the check needs, in a place where they can be changed."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def _change(tree: Path, file: str, old: str, new: str) -> None:
    path = tree / "proto" / "topics" / "v1" / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_the_contract_of_today_passes(tree: Path) -> None:
    done = _check(tree)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_addition_passes(tree: Path) -> None:
    added = "  // Room.\n  string room = 99;\n}\n\n// Asks for Append."
    _change(tree, "topics_service.proto", "}\n\n// Asks for Append.", added)
    done = _check(tree)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("topics_service.proto", "  bool deduped = 8;", "  // Room.\n  bool room = 80;", '"8" with name "deduped"'),
        ("record.proto", "  int64 ts_ms = 2;", "  uint64 ts_ms = 2;", '"ts_ms" on message "Record" changed type'),
        ("errors.proto", "ERROR_REASON_GROUP_NOT_EMPTY", "ERROR_REASON_GROUP_IN_USE", '"27" on enum "ErrorReason"'),
        ("queue_service.proto", "level = NO_SIDE_EFFECTS", "level = IDEMPOTENT", 'RPC "ListJobs" on service'),
        ("stream.proto", "// Sign of life on", "message Room {}\n\n// Sign of life on", "should have a non-empty"),
    ],
    ids=[
        "a field gone",
        "a field of another type",
        "a reason of another name",
        "a call of another level",
        "no comment",
    ],
)
def test_a_change_that_breaks_is_named(tree: Path, file: str, old: str, new: str, named: str) -> None:
    _change(tree, file, old, new)
    done = _check(tree)
    assert done.returncode != 0
    assert named in done.stdout + done.stderr
