"""A server in a control group with little memory: writes that it has no room for are refused, it is never killed."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from support.server import ServerProcess
from support.waiting import poll
from topics_server.memory import Plan, limit, plan

_LIMIT = 160 << 20
_HIERARCHIES = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.oom_control"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.events"),
)


@pytest.fixture
def group() -> Iterator[tuple[Path, str]]:
    """A control group of 160 MiB, and the file that counts killed processes."""
    for root, file, events in _HIERARCHIES:
        made = root / f"topics-test-{uuid4().hex[:8]}"
        try:
            made.mkdir()
            (made / file).write_text(str(_LIMIT))
        except OSError:
            if made.exists():
                made.rmdir()
            continue
        yield made, events
        poll(lambda made=made: not (made / "cgroup.procs").read_text(), 20, "an empty group")
        made.rmdir()
        return
    pytest.skip("no control group with a limit of memory can be made here")


def test_six_large_writes_at_once(group: tuple[Path, str], tmp_path: Path) -> None:
    """Of 54 MB they are refused by their size; those that the server offers to take are whole."""
    place, events = group
    enter = ("sh", "-c", f'echo $$ > {place}/cgroup.procs; exec "$@"', "sh")
    with ServerProcess(tmp_path / "server", prefix=enter) as server:
        assert "TOPICS_MAX_BODY_BYTES 6.4MiB" in server.log
        pid = (place / "cgroup.procs").read_text()

        def write(size: int, topic: str) -> httpx.Response:
            records = b",".join([b'{"data":"%s"}' % (b"x" * 900_000)] * (size // 900_000))
            body = b'{"records":[' + records + b"]}"
            with httpx.Client(timeout=60, verify=False) as client:
                return client.post(
                    f"{server.base}/v0/topics/{topic}",
                    content=body,
                    headers={"content-type": "application/json"},
                )

        with ThreadPoolExecutor(6) as pool:
            for answer in pool.map(write, [54_000_000] * 6, ["large"] * 6):
                assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
            for answer in pool.map(write, [6_300_000] * 24, ["small"] * 24):
                assert answer.is_success, answer.text
        with httpx.Client(verify=False) as client:
            assert client.get(f"{server.base}/v0/topics/small").json()["count"] == 24 * 7
            assert client.get(f"{server.base}/v0/topics/large").status_code == 404
        assert (place / "cgroup.procs").read_text() == pid
        killed = [line.split()[1] for line in (place / events).read_text().splitlines() if line.startswith("oom_kill ")]
        assert killed == ["0"]


_WANTED = Plan(1 << 30, 64 << 20)


@pytest.mark.parametrize(
    ("available", "memory", "body"),
    [(1 << 40, 1024, 64), (2 << 30, 1024, 64), (1 << 30, 405, 64), (512 << 20, 138, 41), (64 << 20, 16, 2)],
)
def test_defaults_fit_what_there_is(available: int, memory: int, body: int) -> None:
    fitting = plan(available, _WANTED)
    assert (fitting.memory >> 20, fitting.body >> 20) == (memory, body)


def test_the_least_limit_counts(tmp_path: Path) -> None:
    """Of both versions of control groups, of the groups above, and inside a container that sees only its own."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    files = {
        "proc/self/cgroup": "5:cpu:/a\n4:memory:/a/b\n0::/c/d\n",
        "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "70000\n",
        "sys/fs/cgroup/c/d/memory.max": "max\n",
    }
    assert limit(tmp_path) == whole
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert limit(tmp_path) == 70000
    (tmp_path / "sys/fs/cgroup/c/memory.max").write_text("60000\n")
    assert limit(tmp_path) == 60000
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("50000\n")
    assert limit(tmp_path) == 50000
