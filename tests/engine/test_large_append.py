"""An append that is larger than a block: several rows, one write."""

import tracemalloc

import pytest
from engine_support import FakeClock

from topics_service.engine import maintenance
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.log import BLOCK_BYTES
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest, TagMatch
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family

KIB = 1 << 10
META = b'{"m":"%b"}' % (b"m" * KIB)


def _engine(store: MemoryStore, **config: object) -> Engine:
    engine = Engine(store, FakeClock())
    engine.put_topic("t", ConfigInput(**config))  # type: ignore[arg-type]
    engine.sync()
    return engine


def _batch(count: int, size: int = KIB) -> Batch:
    datas = [b'"%06d%b"' % (i, b"x" * (size - 8)) for i in range(count)]
    return Batch(
        datas=datas,
        tags=[b"odd" if i % 2 else None for i in range(count)],
        nodes=[b"n"] * count,
        metas=[None if i % 3 else META for i in range(count)],
        kinds=bytes(i % 5 == 4 for i in range(count)),
    )


def _records(engine: Engine) -> list[tuple[object, ...]]:
    """All that can be read: seq, data, tag, node, meta and kind."""
    found: list[tuple[object, ...]] = []
    seq = 0
    while True:
        page = engine.diff(DiffRequest(topic="t", from_seq=seq, limit=1000, max_batch_bytes=8 << 20))
        for piece in page.slices:
            b = piece.block
            for i in range(piece.start, piece.stop):
                parts = (None if column is None else column[i] for column in (b.tags, b.nodes, b.metas, b.kinds))
                found.append((b.base_seq + i, b.record_data(i), *parts))
        if page.caught_up:
            return found
        seq = page.next_from_seq


def _sizes(store: MemoryStore) -> list[int]:
    return [len(value) for _, value in store.scan(Family.BLOCKS, b"", b"\xff" * 17)]


def test_a_large_append_is_several_rows_and_reads_as_one() -> None:
    store, batch = MemoryStore(), _batch(5000)
    engine = _engine(store)
    reply, _ = engine.append(AppendRequest(topic="t", batch=batch, idempotency_key="k"))
    assert (reply.first_seq, reply.last_seq, reply.count, reply.head_seq) == (1, 5000, 5000, 5000)
    engine.sync()
    sizes = _sizes(store)
    assert len(sizes) >= 7
    assert max(sizes) < BLOCK_BYTES + 64 * KIB
    tags, nodes, metas, kinds = batch.tags or [], batch.nodes or [], batch.metas or [], batch.kinds or b""
    columns = zip(batch.datas, tags, nodes, metas, kinds, strict=True)
    expected = [(seq, *parts) for seq, parts in enumerate(columns, start=1)]
    assert _records(engine) == expected
    again = Engine(store, FakeClock())
    assert _records(again) == expected
    repeated, _ = again.append(AppendRequest(topic="t", batch=batch, idempotency_key="k"))
    assert (repeated.deduped, repeated.first_seq, repeated.count) == (True, 1, 5000)
    state = again.get_topic("t")
    assert state.bytes == sum(map(len, batch.datas)) + sum(len(meta or b"") for meta in metas)


@pytest.mark.parametrize("durability", ["disk", "ephemeral", "fsync"])
@pytest.mark.parametrize(("cap", "kept"), [({"cap_records": 777}, 777), ({"cap_bytes": 3000 * KIB}, 3000)])
def test_a_large_append_can_evict_a_part_of_itself(cap: dict[str, int], kept: int, durability: str) -> None:
    engine = _engine(MemoryStore(), durability=durability, **cap)
    datas = [b'"%06d%b"' % (i, b"x" * (KIB - 8)) for i in range(5000)]
    engine.append(AppendRequest(topic="t", batch=Batch(datas=[b"1"] * 10)))
    engine.append(AppendRequest(topic="t", batch=Batch(datas=datas)))
    engine.sync()
    assert [data for _, data, *_ in _records(engine)] == datas[-kept:]
    state = engine.get_topic("t")
    assert (state.count, state.bytes, state.earliest_seq) == (kept, kept * KIB, 5011 - kept)


def test_a_record_larger_than_a_block_has_one_of_its_own() -> None:
    store = MemoryStore()
    engine = Engine(store, FakeClock())
    engine.put_topic("t", ConfigInput())
    datas = [b"1", b'"%b"' % (b"x" * (BLOCK_BYTES - 2)), b"2", b'"%b"' % (b"y" * (BLOCK_BYTES - 2)), b"3"]
    engine.append(AppendRequest(topic="t", batch=Batch(datas=datas)))
    engine.sync()
    assert len(_sizes(store)) == 5
    assert [data for _, data, *_ in _records(engine)] == datas


def test_a_large_append_that_is_refused_changes_nothing() -> None:
    engine = _engine(MemoryStore(), cap_records=4000, discard="reject")
    with pytest.raises(TopicsError) as caught:
        engine.append(AppendRequest(topic="t", batch=_batch(4001)))
    assert caught.value.reason is Reason.RECORD_TOO_LARGE
    assert engine.get_topic("t").head_seq == 0


def test_sealing_has_a_bound_of_bytes_in_memory() -> None:
    """It had up to 16,384 records at a time, of whatever size."""
    engine = Engine(MemoryStore(), FakeClock(), cache_bytes=1 << 20)
    engine.put_topic("t", ConfigInput())
    data = b'"%b"' % (b"x" * (200 * KIB))
    for i in range(maintenance.SEAL_BLOCKS):
        engine.append(AppendRequest(topic="t", batch=Batch(datas=[data], tags=[b"tag%d" % (i % 4)])))
    engine.sync()
    tracemalloc.start()
    while engine.maintain():
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20, peak
    found = engine.diff(DiffRequest(topic="t", limit=1000, max_batch_bytes=1, filter=TagMatch("Eq", b"tag3")))
    assert found.slices[0].block.base_seq + found.slices[0].start == 4
