"""A burst meets a small disk: it is refused before the disk is full, and what is deleted makes room within seconds."""

import base64
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from crash.small_disk import SmallDisk

from support.http import Api, ok
from support.server import ServerProcess
from support.waiting import poll

MEGABYTES = 64
MIN_FREE = 8 << 20
ENV = {"TOPICS_MEMORY_BYTES": 64 << 20, "TOPICS_MIN_FREE_BYTES": MIN_FREE, "TOPICS_MAX_LAG_MS": 0}
WRITERS = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", MEGABYTES) as disk:
        yield disk


@pytest.fixture
def server(make_server: Callable[..., ServerProcess], disk: SmallDisk) -> ServerProcess:
    return make_server(data_dir=disk.inside / "data", prefix=disk.prefix, env=ENV).start()


def text(size: int) -> str:
    """Text that hardly compresses."""
    return base64.b85encode(os.urandom(size * 4 // 5)).decode()


class Burst:
    """Writers that go on until writes are refused for want of space; `least` is the least free space meanwhile."""

    def __init__(self, disk: SmallDisk, write: Callable[[int], Any]) -> None:
        self.errors: list[Any] = []
        self.refused = 0
        self.lowest = disk.free
        self._write = write
        threads = [threading.Thread(target=self._run, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self.lowest = min(self.lowest, disk.free)
            time.sleep(0.0005)

    def _run(self, number: int) -> None:
        ends, refused = time.monotonic() + 30, 0
        while time.monotonic() < ends and refused < 20:
            error = self._write(number)
            if error == "min_free_bytes":
                refused += 1
                self.refused += 1
                time.sleep(0.02)
            elif error is not None:
                self.errors.append(error)
                return


def writer(apis: Sequence[Api]) -> Callable[[int], Any]:
    """Large records for half of the topics, small ones for the other half. Gives the limit that a write met."""
    datas = [text(900_000), text(900_000), text(30_000), text(30_000)]

    def write(number: int) -> Any:
        reply = apis[number].write(f"t{number}", [{"data": datas[number]}])
        if reply.status_code in (200, 201):
            return None
        error = reply.json()["error"]
        detail = error.get("detail") or {}
        if "retry_after_ms" in detail:  # the storage is catching up
            time.sleep(0.05)
            return None
        return detail.get("limit") or error

    return write


def test_a_burst_is_refused_before_the_disk_is_full_and_deletes_make_room(
    server: ServerProcess, disk: SmallDisk
) -> None:
    with ExitStack() as opened:
        api, *apis = (opened.enter_context(Api(server.base)) for _ in range(WRITERS + 1))
        api.append("kept", "first")
        ok(api.put("jobs", type="queue"), 201)
        api.append("jobs", 1)
        ok(api.put("t0"), 201)
        ok(api.send("PUT", "/v0/routers/r", {"source": "t0", "dest": "copies"}), 201)
        burst = Burst(disk, writer(apis))
        assert burst.errors == []
        assert burst.refused
        assert burst.lowest > 0
        assert ok(api.send("GET", "/v0/ready")), "it is not read-only"

        def is_refused() -> bool:
            return api.write("kept", [{"data": text(900_000)}] * 8).status_code == 429

        poll(is_refused, 20, "no room")
        (job,) = ok(api.send("POST", "/v0/topics/jobs/claim", {"node": "w"}))["claimed"]
        assert ok(api.send("POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": [job["$seq"]]}))["acked"] == 1
        ok(api.put("kept", cap_records=10))
        ok(api.put("new"), 201)
        for name in ("t0", "t1", "copies"):
            head = api.state(name)["head_seq"]
            assert api.rm(name, before_seq=head + 1)["deleted"] > 0
        ok(api.send("DELETE", "/v0/topics/t2"))
        poll(lambda: not is_refused(), 20, "room again")
        records = api.read_all("t3")
        assert len(records) == api.state("t3")["count"] > 0
    assert server.stop() == 0
