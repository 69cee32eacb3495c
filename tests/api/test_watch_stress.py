"""Many streams on one topic, on a real loop: every stream sees every record once, whatever happens around it."""

import asyncio
import random

import pytest

from support.watching import Watching, seqs
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.watch.frames import Frame, RecordsFrame

STREAMS = 500
RECORDS = 200


class Reader:
    """Follows the topic until it has seen the last record. It pauses, and is cancelled and comes back, at random."""

    def __init__(self, world: Watching, seed: int, wid: str) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.wid = wid
        self.seen: list[int] = []
        self.frames = 0

    async def run(self) -> None:
        cursor: dict[str, int] = {}
        while not self.done:
            with await self.world.api.open(self.wid, cursor, principal=UNRESTRICTED) as stream:
                for _ in range(self.rng.randrange(40)):
                    if self.done:
                        return
                    try:
                        async with asyncio.timeout(self.rng.choice((0, 0.001, 30, 30, 30))):
                            self.take(await anext(stream))
                    except TimeoutError:
                        continue
                    if self.rng.random() < 0.1:
                        await asyncio.sleep(self.rng.choice((0, 0, 0.02)))
            cursor = {"t": self.seen[-1]} if self.seen else {}

    def take(self, frame: Frame) -> None:
        if isinstance(frame, RecordsFrame):
            assert frame.from_seq == (self.seen[-1] if self.seen else 0)
            self.seen += seqs([frame])
            self.frames += 1

    @property
    def done(self) -> bool:
        return bool(self.seen) and self.seen[-1] == RECORDS


@pytest.mark.parametrize("overload", [False, True])
async def test_every_stream_sees_every_record_once(overload: bool) -> None:
    world = Watching()
    world.put("t")
    readers = [Reader(world, seed, await world.session("t")) for seed in range(STREAMS)]
    tasks = [asyncio.create_task(reader.run()) for reader in readers]
    for _ in range(RECORDS // 4):
        world.append("t", 1)
        world.append("t", 3)
        world.overload_ms = 20 if overload and random.random() < 0.3 else 0
        await asyncio.sleep(0.001)
    world.overload_ms = 0
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
    for reader in readers:
        assert reader.seen == list(range(1, RECORDS + 1))
    assert min(reader.frames for reader in readers) > 1
    assert world.statistics.streams == 0
    assert world.api._dispatcher.is_idle
