"""Directories that the server makes are for their owner alone, whatever the umask; existing ones stay as they are."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.server import TOPICS, ServerProcess
from topics_backup.restoring import restore
from topics_backup.target import Folder
from topics_service.storage.private import make_private, open_to


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277])
def test_a_private_directory(tmp_path: Path, mask: int) -> None:
    with umask(0o022):
        (tmp_path / "there").mkdir()
    with umask(mask):
        make_private(tmp_path / "new")
        make_private(tmp_path / "there")
    with umask(mask & 0o077):
        make_private(tmp_path / "above" / "new")
    assert [mode(tmp_path / name) for name in ("new", "there", "above/new")] == [0o700, 0o755, 0o700]
    assert mode(tmp_path / "above") == 0o777 & ~(mask & 0o077)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")


def test_who_may_read(tmp_path: Path) -> None:
    for bits, who in (
        (0o700, ""),
        (0o750, "its group"),
        (0o755, "everyone"),
        (0o701, "everyone"),
        (0o710, "its group"),
    ):
        tmp_path.chmod(bits)
        assert open_to(tmp_path) == who
    tmp_path.chmod(0o700)
    assert open_to(tmp_path / "absent") == ""


def test_the_directories_of_a_server(tmp_path: Path) -> None:
    """Its data, checkpoints in it, a backup of it, and what is restored of that."""
    backup, restored = tmp_path / "backups" / "topics", tmp_path / "restored"
    given = tmp_path / "given"
    given.mkdir(0o750)
    given.chmod(0o750)
    with umask(0o000), ServerProcess(tmp_path / "work", data_dir=tmp_path / "above" / "data") as server:
        assert mode(server.data_dir) == 0o700
        assert mode(server.data_dir.parent) == 0o777
        subprocess.run(
            [TOPICS, "backup", "create", "--to", backup, "--server", f"topics://{server.grpc_target}"],
            check=True,
            timeout=60,
            capture_output=True,
        )
        assert mode(server.data_dir / "checkpoints") == 0o700
        assert "is open to" not in server.log
        assert server.stop() == 0
        assert (mode(backup), mode(backup.parent)) == (0o700, 0o777)
        restore(Folder(backup), restored)
        restore(Folder(backup), given)
    assert (mode(restored), mode(given)) == (0o700, 0o750)


def test_what_others_may_read_is_told(tmp_path: Path) -> None:
    data, keys, audit = tmp_path / "data", tmp_path / "keys", tmp_path / "audit.log"
    data.mkdir()
    keys.write_text("k\n")
    audit.touch()
    for path, bits in ((data, 0o755), (keys, 0o644), (audit, 0o640)):
        path.chmod(bits)
    env = {"TOPICS_API_KEYS_FILE": keys, "TOPICS_AUDIT_LOG": audit}
    with ServerProcess(tmp_path / "work", data_dir=data, env=env) as server:
        assert f"the data directory {data} is open to everyone: chmod 700 closes it" in server.log
        assert f"{keys} may be read by everyone on this machine: chmod 600 closes it" in server.log
        assert str(audit) not in server.log
        assert server.stop() == 0
    assert [mode(path) for path in (data, keys, audit)] == [0o755, 0o644, 0o640]
