"""The audit log below its lines: a disk that is full, a caller that leaves."""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from support.waiting import poll
from topics_service.api.audit import AuditLog
from topics_service.app.audit import AuditFile


def test_lines_wait_for_a_full_disk_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is bounded; what was dropped is counted in the log once it is written again."""
    monkeypatch.setattr("topics_service.app.audit._MOST_LINES", 3)
    monkeypatch.setattr("topics_service.app.audit._RETRY_SECONDS", 0.01)
    full, real = [True], os.write

    def write(fd: int, data: bytes) -> int:
        if full[0] and data.startswith(b"line"):
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr("topics_service.app.audit.os.write", write)
    log = AuditFile(str(tmp_path / "audit"))
    for n in range(10):
        log.write(b"line %d\n" % n)
    full[0] = False
    poll(lambda: (tmp_path / "audit").read_text().count("\n") == 4, 10, "what is left")
    log.write(b"line 10\n")
    log.close()
    kept = (tmp_path / "audit").read_text().splitlines()
    assert kept[:3] == ["line 0", "line 1", "line 2"]
    assert json.loads(kept[3])["action"] == "audit.lost"
    assert json.loads(kept[3])["lines"] == 7
    assert kept[4] == "line 10"


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
        with log.change("topic.put", topic="t"):
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(change())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    (line,) = map(json.loads, lines)
    assert (line["outcome"], line["door"], line["peer"]) == ("unknown", "server", None)
