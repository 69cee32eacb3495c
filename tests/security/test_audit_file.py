"""The audit log below its lines: a disk that is full, a caller that leaves."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from contextvars import Context
from pathlib import Path

import pytest

from support.http import Api, ok
from support.server import ServerProcess
from support.waiting import poll
from topics_server.audit import AuditFile
from topics_service.api.audit import AuditLog
from topics_service.api.observers import Observers


def test_lines_wait_for_a_full_disk_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is bounded; what was dropped is counted in the log once it is written again."""
    monkeypatch.setattr("topics_server.audit._MAX_LINES", 3)
    monkeypatch.setattr("topics_server.audit._RETRY_SECONDS", 0.01)
    full, tries, real = [True], [0], os.write

    def write(fd: int, data: bytes) -> int:
        if full[0] and data.startswith(b"line"):
            tries[0] += 1
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr("topics_server.audit.os.write", write)
    log = AuditFile(str(tmp_path / "audit"))
    for n in range(10):
        log.write(b"line %d\n" % n)
    begun = tries[0]
    poll(lambda: tries[0] > begun + 1, 20, "a try that knows of all that was dropped")
    full[0] = False
    poll(lambda: (tmp_path / "audit").read_text().count("\n") == 4, 20, "what is left")
    log.write(b"line 10\n")
    log.close()
    kept = (tmp_path / "audit").read_text().splitlines()
    assert kept[:3] == ["line 0", "line 1", "line 2"]
    assert json.loads(kept[3])["action"] == "audit.lost"
    assert json.loads(kept[3])["lines"] == 7
    assert kept[4] == "line 10"


def test_a_full_disk_as_the_kernel_has_it(tmp_path: Path) -> None:
    """A process that may write at most 1000 bytes, then more: a partly written line is completed."""
    script = """
import json, resource, sys, time
from topics_server import audit
audit._RETRY_SECONDS, audit._MAX_LINES = 0.01, 15
path, hard = sys.argv[1], resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
log = audit.AuditFile(path)
for n in range(40):
    log.write(json.dumps({"line": n, "x": "x" * 80}).encode() + b"\\n")
    time.sleep(0.002)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.close()
"""
    file = tmp_path / "audit"
    done = subprocess.run([sys.executable, "-c", script, file], capture_output=True, text=True, timeout=60, check=True)
    assert "can't be written: " in done.stderr
    assert "queue full, dropping lines" in done.stderr
    whole, cut = [], 0
    for line in file.read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except ValueError:
            cut += 1
    numbers = [line["line"] for line in whole if "line" in line]
    assert numbers == list(range(len(numbers)))
    (lost,) = (line for line in whole if line.get("action") == "audit.lost")
    assert (len(numbers) + lost["lines"], cut) == (40, 1)
    assert len(numbers) > 20


@pytest.mark.parametrize("renewed", [False, True])
def test_a_line_that_a_process_died_over_is_ended(tmp_path: Path, renewed: bool) -> None:
    path, torn = tmp_path / "audit.log", b'{"action":"first"}\n{"act'
    if not renewed:
        path.write_bytes(torn)
    file = AuditFile(str(path))
    if renewed:
        other = tmp_path / "another.log"
        other.write_bytes(torn)
        other.replace(path)
        file.reopen()
        poll(lambda: os.fstat(file._fd).st_ino == path.stat().st_ino, 20, "the new file is open")
    file.write(b'{"action":"next"}\n')
    file.close()
    assert path.read_bytes() == torn + b'\n{"action":"next"}\n'


def test_a_server_goes_on_without_its_log(tmp_path: Path) -> None:
    """The policy: what can't be logged is done all the same, and the log of the server says so."""
    with ServerProcess(tmp_path, env={"TOPICS_AUDIT_LOG": "/dev/full"}) as server, Api(server.base) as api:
        for n in range(3):
            ok(api.put(f"t{n}"), 201)
        poll(lambda: "the audit log /dev/full can't be written: No space left on device" in server.log, 20)
        ok(api.drop("t1"))
        assert len(api.listing()["topics"]) == 2
        assert server.stop() == 0
        assert "the audit log /dev/full can't be written, lost 4 lines" in server.log


def test_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    """It may not hang a start, nor an end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="No such device"):
        AuditFile(str(path))
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = AuditFile(str(path))
    for _ in range(100):
        log.write(b"x" * 8000 + b"\n")  # more than a pipe holds
    log.close()
    got = b""
    with suppress(BlockingIOError):
        while data := os.read(reader, 1 << 16):
            got += data
    os.close(reader)
    lines = got.splitlines()
    assert len(lines) > 5
    assert all(line == b"x" * 8000 for line in lines[:-1])


def test_a_change_whose_caller_left_is_of_unknown_outcome() -> None:
    lines: list[bytes] = []
    log = AuditLog(lines.append)

    async def change() -> None:
        with Observers(log.observe)("topic.put", {"topic": "t"}):
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(change())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    Context().run(asyncio.run, main())
    (line,) = map(json.loads, lines)
    assert (line["outcome"], line["door"], line["peer"]) == ("unknown", "server", None)
