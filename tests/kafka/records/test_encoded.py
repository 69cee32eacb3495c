"""Column records as batches: offsets, times, holes."""

import pytest

from support.kafka_batches import Rec, aiokafka_batch, read_by_aiokafka, read_by_kafka_python, sealed
from topics_service.storage import recordbatch
from topics_service.storage.recordbatch import Columns

TS = [1_700_000_000_000 + i // 2 for i in range(300)]
COLUMNS = Columns(
    [b"%d" % i for i in range(300)],
    [None if i % 3 else b"k%d" % i for i in range(300)],
    [None if i % 5 else b'{"h":"%d"}' % i for i in range(300)],
    bytes(i % 2 for i in range(300)),
)
NODES: list[bytes | None] = [None if i % 7 else b"n%d" % i for i in range(300)]


def expected(i: int) -> Rec:
    headers: list[tuple[str, bytes | None]] = [] if i % 5 else [("h", b"%d" % i)]
    if i % 7 == 0:
        headers.append(("topics_node", b"n%d" % i))
    return Rec(None if i % 3 else b"k%d" % i, b"%d" % i, tuple(headers), TS[i])


@pytest.mark.parametrize("keep", [None, [0], [299], [5, 6, 70, 130, 298], range(100, 200)])
def test_records_keep_their_offsets(keep: list[int] | None) -> None:
    batch = recordbatch.encoded(1000, TS, COLUMNS, NODES, keep)
    positions = range(300) if keep is None else keep
    read = [(1000 + i, expected(i)) for i in positions]
    assert read_by_aiokafka(batch) == read
    assert read_by_kafka_python(batch) == read
    ((at, header),) = recordbatch.headers(batch)
    assert (at, header.size, header.count, header.base_offset) == (0, len(batch), len(positions), 1000)
    assert header.last_offset_delta == positions[-1]
    assert (header.base_ts, header.max_ts) == (TS[positions[0]], TS[positions[-1]])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.attributes, header.leader_epoch) == (0, 0)


def test_a_batch_may_reach_past_its_last_record() -> None:
    batch = recordbatch.encoded(10, TS, COLUMNS, None, [1, 3], last_offset_delta=299)
    assert recordbatch.headers(batch)[0][1].last_offset_delta == 299
    assert [offset for offset, _ in read_by_aiokafka(batch)] == [11, 13]


def test_is_what_aiokafka_writes() -> None:
    plain = COLUMNS._replace(metas=None)
    records = [expected(i)._replace(headers=()) for i in range(300)]
    assert recordbatch.encoded(0, TS, plain, None) == sealed(aiokafka_batch(records), leader_epoch=0)


def test_columns_come_back() -> None:
    batch = recordbatch.encoded(0, TS, COLUMNS, None)
    header = recordbatch.check(batch, max_bytes=1 << 20)
    assert header.count == 300
    # digits are JSON, whatever their original type
    assert recordbatch.columns(batch) == COLUMNS._replace(kinds=None)
    assert list(recordbatch.times(batch)) == TS


def test_a_record_of_many_megabytes() -> None:
    data = b'"%b"' % (b"x" * (20 << 20))
    batch = recordbatch.encoded(0, [7], Columns([data], None, None, None), None)
    assert recordbatch.check(batch, max_bytes=32 << 20, max_inflated=32 << 20).count == 1
    assert recordbatch.columns(batch).datas == [data]
