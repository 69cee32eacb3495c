"""Batches of Kafka clients that are damaged on disk, or made to be large in memory: the rest of the log goes on."""

from collections.abc import Iterator
from hashlib import sha256
from unittest.mock import patch

import pytest
from batch_support import BatchWorld, make

from topics_service.engine.batches import BatchRequest
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import DeleteRequest, DiffReply, DiffRequest, TagMatch
from topics_service.storage import keys, recordbatch
from topics_service.storage.kafkablock import KafkaBlock
from topics_service.storage.store import Family

MIB = 1 << 20
TAGGED = TagMatch("Eq", b"a")


@pytest.fixture
def world() -> Iterator[BatchWorld]:
    """Six sealed blocks of two records each, tagged `a` and `b`, of which the second is damaged."""
    world = BatchWorld(cache_bytes=0)
    world.put("t")
    with (
        patch("topics_service.engine.maintenance.SEAL_BLOCKS", 3),
        patch("topics_service.engine.maintenance._SMALL_RECORDS", 1),
        patch("topics_service.engine.maintenance._RECLAIM_SEQS", 1),
    ):
        for _ in range(6):
            world.produce((b"a", b"1"), (b"b", b"2"))
        while world.engine.maintain():
            pass
        key = keys.pair(world.engine.catalog.topics["t"].log.log_id, 3)
        row = world.store.get(Family.BLOCKS, key)
        assert row is not None
        batch = world.store.batch()
        batch.put(Family.BLOCKS, key, row[:-5] + bytes([row[-5] ^ 1]) + row[-4:])
        world.store.write(batch)
        world.kill()
        yield world


def index_all(world: BatchWorld) -> None:
    for _ in range(20):
        if not world.engine.index("t"):
            return
    raise AssertionError("indexing never ends")


def seqs(page: DiffReply) -> list[int]:
    return [part.block.base_seq + i for part in page.slices for i in range(part.start, part.stop)]


def tagged(world: BatchWorld, from_seq: int) -> list[int]:
    return seqs(world.engine.diff(DiffRequest(topic="t", from_seq=from_seq, filter=TAGGED)))


def marks(world: BatchWorld) -> list[int]:
    log_id = world.engine.catalog.topics["t"].log.log_id
    return [keys.tag_run(key) for key, _ in world.store.scan(Family.TAGS, *keys.unindexed_range(log_id))]


def test_a_damaged_batch_does_not_keep_others_from_being_indexed(world: BatchWorld) -> None:
    assert marks(world) == [1, 3, 5, 7, 9, 11]
    index_all(world)
    assert marks(world) == [3]
    index_all(world)


def test_readers_by_tag_behind_a_damaged_batch_do_not_meet_it(world: BatchWorld) -> None:
    index_all(world)
    assert tagged(world, 6) == [7, 9, 11]
    with pytest.raises(TopicsError, match="can't be read"):
        tagged(world, 0)


def test_a_delete_by_tag_tells_of_a_damaged_batch_while_it_is_alive_and_no_longer(world: BatchWorld) -> None:
    index_all(world)
    with pytest.raises(TopicsError, match="can't be read"):
        world.engine.delete_records(DeleteRequest(topic="t", match=TAGGED))
    reply, _ = world.engine.delete_records(DeleteRequest(topic="t", before_seq=3, match=TAGGED))
    assert reply.deleted == 1
    world.engine.delete_records(DeleteRequest(topic="t", before_seq=6))
    reply, _ = world.engine.delete_records(DeleteRequest(topic="t", match=TAGGED))
    assert reply.deleted == 3


def test_a_mark_of_a_damaged_batch_that_is_dead_goes(world: BatchWorld) -> None:
    world.engine.delete_records(DeleteRequest(topic="t", before_seq=6))
    index_all(world)
    assert marks(world) == []


def test_space_behind_a_damaged_batch_is_given_back(world: BatchWorld) -> None:
    world.engine.delete_records(DeleteRequest(topic="t", before_seq=10))
    while world.engine.maintain():
        pass
    log_id = world.engine.catalog.topics["t"].log.log_id
    assert [keys.read_u64(key, 8) for key, _ in world.store.scan(Family.BLOCKS, *keys.log_range(log_id))] == [9, 11]
    assert marks(world) == [9, 11]
    world.kill()
    assert seqs(world.engine.diff(DiffRequest(topic="t", from_seq=9))) == [10, 11, 12]


def sealed(world: BatchWorld, body: bytes, times: int) -> list[KafkaBlock]:
    """The blocks after this batch was appended so often and sealed."""
    header = recordbatch.check(body, max_bytes=MIB)
    with patch("topics_service.engine.maintenance.SEAL_BLOCKS", times):
        for _ in range(times):
            world.engine.batches.append(BatchRequest(topic="t", partition=0, header=header, body=body))
        world.engine.sync()
        while world.engine.maintain():
            pass
    found, at, log = list[KafkaBlock](), 1, world.engine.catalog.topics["t"].log
    while at <= log.view.head:
        block = log.blocks.find(at)
        assert isinstance(block, KafkaBlock)
        found.append(block)
        at = block.end_seq
    return found


def test_small_batches_that_inflate_to_much_are_not_merged() -> None:
    """A block is inflated as a whole, so what it inflates to is bounded, too."""
    world = BatchWorld()
    world.put("t")
    body = make([bytes(8 * MIB)], codec=4)
    assert len(body) < 1000
    assert [block.count for block in sealed(world, body, 8)] == [1] * 8


def test_merged_batches_inflate_to_no_more_than_a_merged_block_holds() -> None:
    world = BatchWorld()
    world.put("t")
    body = make([sha256(b"%d" % i).hexdigest().encode() * 16 for i in range(60)], codec=1)
    inflated = recordbatch.inflated_size(body, MIB)
    assert inflated is not None
    assert 10 * len(body) < inflated < 32 * len(body)
    blocks = sealed(world, body, 40)
    assert 1 < len(blocks) < 40
    assert all(block.columns().nbytes <= 256 << 10 for block in blocks)


def test_what_a_batch_inflates_to_is_told_within_a_bound() -> None:
    for codec in range(5):
        body = make([b"x" * 1000] * 10, codec=codec)
        assert recordbatch.inflated_size(body, 10_500) in range(10_000, 10_500)
        assert recordbatch.inflated_size(body, 9_000) is None


def test_the_newest_time_is_told_within_a_bound() -> None:
    """The record that had it is gone, so every block could have another."""
    world = BatchWorld()
    world.put("t")
    world.produce(b"x", ts=[9_000_000])
    for _ in range(40):
        world.produce(b"x", ts=[5])
    world.engine.delete_records(DeleteRequest(topic="t", before_seq=2))
    log = world.engine.catalog.topics["t"].log
    with (
        patch("topics_service.engine.batches._NEWEST_BLOCKS", 10),
        patch.object(type(log.blocks), "find", autospec=True, side_effect=type(log.blocks).find) as find,
    ):
        assert world.engine.batches.newest_time("t", 0) == (32, 5)
    assert find.call_count < 40


def test_what_dies_before_it_is_sealed_is_never_read_for_its_tags() -> None:
    world = BatchWorld()
    world.put("t", cap_records=4)
    for _ in range(100):
        world.produce((b"a", b"1"), (b"b", b"2"))
    with patch.object(KafkaBlock, "columns", side_effect=AssertionError("decoded")):
        while world.engine.maintain():
            pass
    log_id = world.engine.catalog.topics["t"].log.log_id
    assert len(list(world.store.scan(Family.BLOCKS, *keys.log_range(log_id)))) == 2
    assert [part.start for part in world.engine.diff(DiffRequest(topic="t", from_seq=196)).slices] == [0, 0]
