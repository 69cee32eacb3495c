"""Expiry and eviction next to unreadable records: as without damage, but unreadable records stay until all of them have
to go.
"""

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from engine_support import World, records

from support.audit import audit
from topics_service.engine.errors import TopicsError
from topics_service.storage import keys
from topics_service.storage.corruption import DamagedRowsError
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family, StoreError


class DamagedStore(MemoryStore):
    """Some of its blocks can't be read, as when a table of RocksDB is damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[bytes] = set()

    def floor(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """See Store."""
        found = super().floor(family, key)
        if family is not Family.BLOCKS or found is None or found[0] not in self.bad:
            return found
        rows = list(super().scan(family, b"", b"\xff" * 17))
        below = [row for row in rows if row[0] < found[0] and row[0] not in self.bad]
        above = [row for row in rows if row[0] > found[0] and row[0] not in self.bad]
        raise DamagedRowsError("a checksum", below[-1] if below else None, above[0][0] if above else None)

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Store."""
        for key, value in super().scan(family, start, stop):
            if family is Family.BLOCKS and key in self.bad:
                raise StoreError("read failed: a checksum")
            yield key, value


Ranges = list[tuple[int, int]]


def damage(world: World, source: random.Random, *, whole_rows: bool) -> Ranges:
    """Damage some blocks of the topic; returns the seqs of each."""
    assert isinstance(world.store, DamagedStore)
    blocks = [(key, value) for key, value in world.rows(Family.BLOCKS) if keys.read_u64(key, 8) <= 200]
    ends = [keys.read_u64(key, 8) for key, _ in blocks[1:]]
    chosen = sorted({*source.sample(range(len(ends)), min(len(ends), source.randint(1, 4))), 0})
    batch = world.store.batch()
    for number in chosen:
        if whole_rows:
            world.store.bad.add(blocks[number][0])
        else:
            batch.put(Family.BLOCKS, blocks[number][0], blocks[number][1][:-1] + b"!")
    world.store.write(batch)
    world.kill()
    lost: Ranges = []
    for number in chosen:
        first = keys.read_u64(blocks[number][0], 8)
        if lost and lost[-1][1] == first - 1:
            first = lost.pop()[0]
        lost.append((first, ends[number] - 1))
    return lost


def readable(world: World, lost: Ranges) -> list[tuple[int, bytes]]:
    """The records outside the damage."""
    found: list[tuple[int, bytes]] = []
    s = world.engine.catalog.topics["t"].log.view
    starts, stops = [1, *(last + 1 for _, last in lost)], [*(first for first, _ in lost), s.head + 1]
    for first, stop in zip(starts, stops, strict=True):
        count = s.live_between(first, stop)
        if count:
            found += records(world.diff(max(first, s.earliest) - 1, limit=count, max_batch_bytes=1 << 30))
    return found


CONFIGS: list[dict[str, int]] = [
    {"ttl_ms": 50},
    {"cap_records": 60},
    {"cap_bytes": 900},
    {"ttl_ms": 70, "cap_records": 80, "cap_bytes": 1500},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(config))
@pytest.mark.parametrize("whole_rows", [True, False], ids=["table", "row"])
def test_retention_beside_damage(config: dict[str, int], whole_rows: bool) -> None:
    met = {"held": 0, "passed": 0}
    for seed in range(8):
        source = random.Random(seed)
        worlds = intact, damaged = World(MemoryStore()), World(DamagedStore())
        for world in worlds:
            world.put(**config, durability="fsync")
        lost: Ranges = []
        for step in range(60):
            many = [source.randint(1, 30) for _ in range(source.randint(1, 6))]
            tags = [source.choice([b"a", b"b", None]) for _ in many]
            wait, cut = source.randint(0, 6), source.random()
            for world in worlds:
                world.clock.advance(wait)
                world.append(*many, tags=tags)
                if step < 20 and cut < 0.2:
                    world.delete(eq=b"a")
            if cut > 0.9:
                for world in worlds:
                    with suppress(TopicsError):  # it reports the records that it can't decode
                        world.maintain()
            if step == 20:
                lost = damage(damaged, source, whole_rows=whole_rows)
            if step >= 20:
                check(intact, damaged, lost, met)
    assert min(met.values()) > 5, "there was something to see"


def check(intact: World, damaged: World, lost: Ranges, met: dict[str, int]) -> None:
    right, found = (
        world.engine.catalog.topics["t"].log.visible(world.engine.catalog.topics["t"].config, world.clock.now)
        for world in (intact, damaged)
    )
    assert found.head == right.head
    assert found.earliest <= right.earliest
    held = [last for first, last in lost if first <= found.earliest <= last]
    if held and found.earliest != right.earliest:
        met["held"] += 1
        if not any(right.deletes.count(first, last + 1) for first, last in lost):
            assert right.earliest <= right.first_live(held[0] + 1), "it goes when what is behind it has to go"
    else:
        met["passed"] += right.earliest > lost[0][1]
        assert (found.earliest, found.count, found.bytes) == (right.earliest, right.count, right.bytes)
    kept = [record for record in readable(damaged, lost) if record[0] >= right.earliest]
    assert kept == [record for record in intact.walk() if not any(a <= record[0] <= b for a, b in lost)]
    if isinstance(damaged.store, DamagedStore) and not damaged.store.bad:
        assert {problem.kind for problem in audit(damaged.store)} <= {"damaged"}
