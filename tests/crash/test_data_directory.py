"""The data directory itself: read-only, gone, or another one."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from crash.faults import assert_read_only
from crash.small_disk import SmallDisk

from support.http import Api, ok
from support.server import ServerProcess
from support.waiting import poll


def test_a_read_only_directory_is_refused(make_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    """A new one and one with data alike, in one line; and it serves once it may write."""
    with SmallDisk(tmp_path / "disk", 16) as disk:
        server = make_server(data_dir=disk.inside / "data", prefix=disk.prefix, env={"TOPICS_MIN_FREE_BYTES": 0})
        for records in range(2):
            before = len(server.log)
            remount(disk, "ro")
            server.spawn()
            assert server.wait(20) == 1
            [line] = server.log[before:].strip().splitlines()
            assert line.startswith(f"topics: can't open the data directory {server.data_dir}")
            assert "Read-only file system" in line
            remount(disk, "rw")
            server.start()
            with Api(server.base) as api:
                assert api.append("t", 1)["first_seq"] == records + 1
            assert server.stop() == 0


def remount(disk: SmallDisk, how: str) -> None:
    subprocess.run([*disk.prefix, "mount", "-o", f"remount,{how}", str(disk.inside)], check=True)


@pytest.mark.parametrize("another", [pytest.param(False, marks=[pytest.mark.soak]), True])
def test_a_directory_that_goes_away(make_server: Callable[..., ServerProcess], another: bool) -> None:
    """The files are still open and would take everything, and it would be lost: so the server takes nothing more."""
    server = make_server().start()
    with Api(server.base) as api:
        ok(api.put("f", durability="fsync"), 201)
        ok(api.put("d"), 201)
        api.append("f", 1)
        if another:
            server.data_dir.rename(server.data_dir.with_name("elsewhere"))
            server.data_dir.mkdir()
        else:
            shutil.rmtree(server.data_dir)
        poll(lambda: api.send("GET", "/v0/ready").status_code == 503, 20, "readiness is down")
        assert_read_only(api)
    assert "the data directory was removed or replaced" in server.log
    assert server.stop() in (0, 1)
    if another:
        with make_server(data_dir=server.data_dir.with_name("elsewhere")) as again, Api(again.base) as api:
            assert [record["data"] for record in api.read_all("f")] == [1]
