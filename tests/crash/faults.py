"""Faults of the system under a running server, made by strace; and what a server that has met one must look like."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.http import Api, envelope, refused
from support.server import ServerProcess
from support.waiting import poll

STRACE = shutil.which("strace")
WRITES = "write,pwrite64,writev,pwritev"
SYNCS = "fsync,fdatasync"


def is_traced(pid: int) -> bool:
    """Whether every thread of the process is being traced."""
    try:
        statuses = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError:
        return False
    return all("TracerPid:\t0\n" not in status for status in statuses)


@contextlib.contextmanager
def failing(server: ServerProcess, calls: str, error: str, paths: Sequence[Path] = ()) -> Iterator[None]:
    """These system calls of the server fail with `error` within the block; with `paths` only those on these files."""
    if STRACE is None:
        pytest.skip("strace is not installed")
    only = [part for path in paths for part in ("-P", str(path))]
    how = ["-e", f"trace={calls}", "-e", f"inject={calls}:error={error}"]
    command = [STRACE, "-f", "-qq", "-o", "/dev/null", *only, *how, "-p", str(server.pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        poll(lambda: tracer.poll() is not None or is_traced(server.pid), 20, "strace is attached")
        if tracer.poll() is not None:
            pytest.skip("strace may not trace here")
        yield
    finally:
        tracer.terminate()
        tracer.communicate(timeout=30)


def newest(directory: Path, pattern: str) -> Path:
    """The file of RocksDB's that was made last."""
    return max(directory.glob(pattern), key=lambda path: int(path.stem.rpartition("-")[2]))


def next_tables(directory: Path, count: int = 60) -> list[Path]:
    """Where the next tables are going to be: RocksDB numbers all of its files alike."""
    numbers = [int(path.stem.rpartition("-")[2]) for path in directory.iterdir() if path.stem[-6:].isdigit()]
    return [directory / f"{number:06}.sst" for number in range(max(numbers) + 1, max(numbers) + 1 + count)]


def assert_read_only(api: Api) -> None:
    """Every write is refused, readiness is down, metrics say so, and reads go on."""
    for reply in (api.write("f", [{"data": 3}]), api.write("d", [{"data": 3}]), api.put("new"), api.drop("d")):
        refused(reply, 500, "internal")
    ready = api.send("GET", "/v0/ready")
    assert (ready.status_code, envelope(ready.json())["code"]) == (503, "not_ready")
    metrics = api.send("GET", "/v0/metrics").text
    assert "\ntopics_wal_read_only 1" in metrics
    assert "\ntopics_ready 0" in metrics
    assert api.send("GET", "/v0/health").status_code == 200
    assert api.read("f", limit=1)["head_seq"] >= 1
