"""Compressed blocks in the engine: inflated once, when records are read; counted in the cache; damage has a range."""

import struct
from collections.abc import Iterator

import pytest
from batch_support import BatchWorld
from engine_support import CrashStore
from xxhash import xxh3_64

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import TagMatch
from topics_service.storage import block as columnar
from topics_service.storage.block import Block
from topics_service.storage.kafkablock import KafkaBlock
from topics_service.storage.store import Family

PACKED = (3, 17)


class Inflations:
    """Counts inflated blocks."""

    def __init__(self) -> None:
        self.count = 0

    def taken(self) -> int:
        """Their number since the last call."""
        count, self.count = self.count, 0
        return count


@pytest.fixture
def world() -> BatchWorld:
    world = BatchWorld(CrashStore())
    world.put()
    return world


@pytest.fixture
def inflations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inflations]:
    counted = Inflations()
    for kind in (Block, KafkaBlock):

        def take(self: Block | KafkaBlock, payload: bytes, *, was: object = kind._take) -> None:
            counted.count += 1
            was(self, payload)  # type: ignore[operator]

        monkeypatch.setattr(kind, "_take", take)
    return counted


def events(count: int, start: int = 0) -> list[bytes]:
    return [b'{"n":%d,"kind":"page_view","of":"the same"}' % i for i in range(start, start + count)]


def fill(world: BatchWorld, blocks: int = 4, records: int = 100) -> list[bytes]:
    """Blocks of records that shrink, and have a tag of their block and a meta; returned as they were given."""
    datas = events(blocks * records)
    for i in range(blocks):
        some = datas[i * records : (i + 1) * records]
        world.append(*some, tags=[b"block-%d" % i] * records, metas=[b'{"source":"web"}', *[None] * (records - 1)])
    assert [value[0] for _, value in world.rows(Family.BLOCKS)] == [3] * blocks
    return datas


def test_records_are_inflated_once_and_counted_in_the_cache(world: BatchWorld, inflations: Inflations) -> None:
    datas = fill(world)
    world.restart()
    cache = world.engine.blocks
    assert [data for _, data in world.walk()] == datas
    assert inflations.taken() == 4
    assert cache.size == sum(block.weight for block in cache._blocks.values()) > sum(map(len, datas))
    assert [data for _, data in world.walk()] == datas
    assert inflations.taken() == 0
    assert cache.size == sum(cache._weights.values())


def test_sizes_and_tags_are_read_without_inflating(world: BatchWorld, inflations: Inflations) -> None:
    datas = fill(world)
    size = world.state().bytes
    assert size == sum(map(len, datas)) + 4 * len(b'{"source":"web"}')
    world.restart()
    assert world.delete(eq=b"block-1").deleted == 100
    assert world.delete(before=11).deleted == 10
    world.put(cap_records=250)
    assert world.state().count == 250
    world.put(cap_bytes=sum(map(len, datas[-150:])))
    assert world.state().bytes <= sum(map(len, datas[-150:]))
    assert inflations.taken() == 0
    light = world.engine.blocks.size
    page = world.diff(filter=TagMatch("Eq", b"block-3"))
    assert sum(piece.stop - piece.start for piece in page.slices) == 100
    assert inflations.taken() == 1, "the one that has matches"
    assert world.engine.blocks.size > light


def test_batches_are_inflated_when_they_are_fetched(world: BatchWorld, inflations: Inflations) -> None:
    datas = events(300)
    for i in range(3):
        world.produce(*datas[100 * i : 100 * i + 100])
    assert [value[0] for _, value in world.rows(Family.BLOCKS)] == [17] * 3
    world.restart()
    cache = world.engine.blocks
    world.put(cap_records=200)
    assert world.engine.batches.offset_at("t", 0, 5_000_000) is None
    assert inflations.taken() == 0
    assert world.fetched() == list(range(101, 301))
    assert inflations.taken() == 2
    assert cache.size == sum(block.weight for block in cache._blocks.values())
    assert [data for _, data in world.walk()] == datas[100:]
    assert inflations.taken() == 0
    assert cache.size == sum(block.weight for block in cache._blocks.values())


def forge(world: BatchWorld, number: int) -> None:
    """Change the payload of one stored block, under a checksum that is right."""
    key, value = world.rows(Family.BLOCKS)[number]
    assert value[0] in PACKED
    head = columnar._HEADER.size
    value = value[:-20] + bytes(20)
    digest = xxh3_64(value[: head - 8] + bytes(8) + value[head:]).intdigest()
    batch = world.store.batch()
    batch.put(Family.BLOCKS, key, value[: head - 8] + struct.pack("<Q", digest) + value[head:])
    world.store.write(batch)


@pytest.mark.parametrize("kafka", [False, True])
def test_a_payload_that_does_not_inflate_is_a_named_range(world: BatchWorld, kafka: bool) -> None:
    datas = events(300)
    for i in range(3):
        some = datas[100 * i : 100 * i + 100]
        if kafka:
            world.produce(*some)
        else:
            world.append(*some)
    forge(world, 1)
    world.restart()
    reported: list[tuple[int | None, int | None]] = []
    world.engine.blocks.on_damage = lambda error: reported.append((error.first, error.last))
    with pytest.raises(TopicsError) as found:
        world.diff(from_seq=100)
    assert found.value.reason is Reason.INTERNAL
    assert found.value.detail == {"first_seq": 101, "last_seq": 200, "topic": "t", "partition": 0}
    if kafka:
        with pytest.raises(TopicsError, match=r"damaged: 101\.\.200"):
            world.fetch(100)
    assert reported == [(101, 200)]
    assert sum(piece.stop - piece.start for piece in world.diff(from_seq=200).slices) == 100


def test_a_router_inflates_only_what_it_copies(world: BatchWorld, inflations: Inflations) -> None:
    fill(world)
    world.restart()
    world.route("t", "to", eq=b"block-2", backfill=True)
    world.forward()
    assert world.state("to").count == 100
    assert inflations.taken() == 1
