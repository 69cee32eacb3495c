"""A long read of cold records leaves the cache to those who read what is hot."""

import pytest
from engine_support import FakeClock

from topics_service.engine import reader
from topics_service.engine.engine import Engine
from topics_service.engine.model import (
    AppendRequest,
    Batch,
    BulkRequest,
    ConfigInput,
    DeleteRequest,
    DiffRequest,
    TagMatch,
)
from topics_service.storage.memory import MemoryStore

DATA = b'"%b"' % (b"x" * 1000)


def _read(engine: Engine, topic: str) -> int:
    request, records = BulkRequest(topic=topic, limit=64, max_batch_bytes=1 << 20), 0
    while True:
        reply, request.epoch = engine.bulk(request)
        records += sum(piece.stop - piece.start for piece in reply.slices)
        if reply.caught_up:
            return records
        request.from_seq = reply.next_from_seq


def _misses(engine: Engine, topic: str) -> int:
    before = engine.blocks.statistics.misses
    assert engine.diff(DiffRequest(topic=topic, limit=1000)).records_scanned == 400
    return engine.blocks.statistics.misses - before


def _filled(records: int) -> Engine:
    engine = Engine(MemoryStore(), FakeClock(), cache_bytes=1 << 20)
    for topic in ("cold", "hot"):
        engine.put_topic(topic, ConfigInput())
        engine.sync()
        for _ in range(40 if topic == "cold" else 4):
            engine.append(AppendRequest(topic=topic, batch=Batch(datas=[DATA] * records)))
    engine.sync()
    return engine


def test_a_scan_does_not_push_out_what_is_hot() -> None:
    engine = _filled(100)
    assert _misses(engine, "hot") == 0
    for _ in range(2):
        assert _read(engine, "cold") == 4000
        assert _misses(engine, "hot") == 0
    assert engine.blocks.size <= 1 << 20
    assert engine.blocks.statistics.misses > 60, "the cold ones are not kept"


def test_a_scan_reads_a_large_block_once() -> None:
    engine = Engine(MemoryStore(), FakeClock(), cache_bytes=4 << 20)
    engine.put_topic("t", ConfigInput())
    engine.sync()
    engine.append(AppendRequest(topic="t", batch=Batch(datas=[DATA] * 2000)))
    engine.append(AppendRequest(topic="t", batch=Batch(datas=[DATA] * 2000)))
    engine.append(AppendRequest(topic="t", batch=Batch(datas=[DATA] * 2000)))
    engine.sync()
    before = engine.blocks.statistics.misses
    assert _read(engine, "t") == 6000
    assert engine.blocks.statistics.misses - before <= 6, "each append is two blocks"


@pytest.mark.parametrize("match", [None, TagMatch("Glob", b"a")])
def test_a_page_is_of_few_slices(match: TagMatch | None) -> None:
    """However much was deleted in between: each slice takes time."""
    engine = Engine(MemoryStore(), FakeClock())
    tags = [b"a", b"b"] * 1300
    engine.append(AppendRequest(topic="t", batch=Batch(datas=[b"1"] * 2600, tags=tags)))
    engine.sync()
    engine.delete_records(DeleteRequest(topic="t", match=TagMatch("Eq", b"b")))
    engine.sync()
    request = BulkRequest(topic="t", limit=16_000, max_batch_bytes=1 << 20, filter=match)
    sizes, seqs = list[int](), list[int]()
    while request.from_seq < 2600:
        reply, request.epoch = engine.bulk(request)
        sizes.append(len(reply.slices))
        seqs += [piece.block.base_seq + i for piece in reply.slices for i in range(piece.start, piece.stop)]
        request.from_seq = reply.next_from_seq
    assert seqs == list(range(1, 2600, 2))
    assert sizes == [reader.SLICES, reader.SLICES, 1300 - 2 * reader.SLICES]
