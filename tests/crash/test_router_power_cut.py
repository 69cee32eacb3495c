"""Power cuts under routers, on the real store: copies and cursors survive together or not at all."""

import random
import signal
from pathlib import Path

import pytest
from crash.test_power_cut import cut_copy, opened, read_all, wal

from support.http import Api, ok
from support.server import ServerProcess
from topics_service.engine.engine import Engine
from topics_service.storage.wal import end_mark

ROUTERS = {"d-disk": "s", "d-fsync": "s", "d-ephemeral": "s", "d-chain": "d-disk"}


def forward(engine: Engine) -> None:
    for _ in range(1000):
        more = engine.routers.forward()
        engine.sync()
        if not more and not engine.routers.forward():
            return
    raise AssertionError("forwarding never ends")


@pytest.mark.timeout(120)
def test_every_cut_leaves_an_image(server: ServerProcess, tmp_path: Path) -> None:
    with Api(server.base) as api:
        for dest, source in ROUTERS.items():
            ok(api.put(dest, durability=dest.partition("-")[2].replace("chain", "disk")), 201)
            ok(api.send("PUT", f"/v0/routers/{dest}", {"source": source, "dest": dest}), 201)
        api.append("s", *range(5))
        assert [record["data"] for record in api.read_all("d-fsync")] == list(range(5))
        api.append("sync", 0, config={"durability": "fsync"})
        start = wal(server.data_dir).stat().st_size
        for i in range(5, 60):
            api.append("s", *[i] * (i % 3 + 1))
            if i % 4 == 0:
                api.read("d-disk", 0)
        server.signal(signal.SIGSTOP)
    end = wal(server.data_dir).stat().st_size
    rng = random.Random(11)
    for cut in [start, start + 1, end - 1, end, *(rng.randrange(start, end) for _ in range(12))]:
        image = cut_copy(server.data_dir, tmp_path / "cut", cut)
        (image / end_mark.NAME).unlink()  # it knows of syncs for d-fsync behind the cut
        with opened(image, "second boot") as engine:
            left = list(read_all(engine, "s").records.values())
            copied = list(read_all(engine, "d-disk").records.values())
            assert copied == left[: len(copied)], "a copy of what the source lost"
            forward(engine)
            for dest in ("d-disk", "d-fsync", "d-chain"):
                assert list(read_all(engine, dest).records.values()) == left, (dest, cut)
            state = engine.routers.get("d-disk")
            assert (state.lag_records, state.last_error) == (0, None)
            gaps = read_all(engine, "d-disk").tombstones
            if engine.get_topic("s").head_seq > len(left):
                assert any(gap.reason == "source_trim" for gap in gaps), "the source's own loss is told"
