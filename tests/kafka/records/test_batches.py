"""Operations on stored batches: iteration, patching, stamping, rebuilding, control batches, times."""

import pytest

from support.kafka_batches import (
    CODECS,
    START_TS,
    Rec,
    aiokafka_batch,
    batch_of,
    events,
    kafka_python_batch,
    read_by_aiokafka,
    read_by_kafka_python,
    record,
    samples,
    sealed,
)
from topics_service.storage import recordbatch
from topics_service.storage.recordbatch import InvalidBatchError

CODEC_NAMES = [*CODECS, "xerial"]


def test_headers_of_a_row_of_batches() -> None:
    batches = [kafka_python_batch(events(n), codec) for n, codec in ((1, "none"), (7, "zstd"), (3, "gzip"))]
    found = recordbatch.headers(memoryview(b"".join(batches)))
    assert [position for position, _ in found] == [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    assert [header.count for _, header in found] == [1, 7, 3]
    assert [header.size for _, header in found] == list(map(len, batches))
    assert recordbatch.headers(b"") == []


@pytest.mark.parametrize("cut", [1, 20, 61, 62])
def test_headers_of_a_cut_row(cut: int) -> None:
    body = kafka_python_batch(events(2)) * 2
    with pytest.raises(InvalidBatchError) as caught:
        recordbatch.headers(body[:-cut])
    assert caught.value.code == "corrupt"
    with pytest.raises(InvalidBatchError):
        recordbatch.headers(sealed(body, length=-12))


@pytest.mark.parametrize("codec", CODECS)
def test_patched_batch_is_at_its_new_offset(codec: str) -> None:
    records = samples()
    batch = aiokafka_batch(records, codec)
    pieces = recordbatch.patched(memoryview(batch), 1 << 40, 9)
    patched = b"".join(pieces)
    assert isinstance(pieces[-1], memoryview)
    assert pieces[-1].obj is batch
    assert read_by_aiokafka(patched) == [(i + (1 << 40), r) for i, r in enumerate(records)]
    header = recordbatch.headers(patched)[0][1]
    assert (header.base_offset, header.leader_epoch, header.size) == (1 << 40, 9, len(batch))
    assert recordbatch.headers(b"".join(recordbatch.patched(memoryview(batch), 0)))[0][1].leader_epoch == 0


@pytest.mark.parametrize("codec", CODECS)
def test_stamped_batch_has_the_time_of_the_broker(codec: str) -> None:
    records = samples()
    batch = aiokafka_batch(records, codec)
    stamped = recordbatch.stamped(memoryview(batch), 1_800_000_000_000)
    header = recordbatch.check(stamped, max_bytes=len(batch))
    assert header.is_log_append_time
    assert header.codec == CODECS[codec]
    assert (header.max_ts, header.base_ts) == (1_800_000_000_000, recordbatch.headers(batch)[0][1].base_ts)
    assert [r for _, r in read_by_aiokafka(stamped)] == [r._replace(ts=1_800_000_000_000) for r in records]
    assert list(recordbatch.times(stamped)) == [1_800_000_000_000] * len(records)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_times(codec: str) -> None:
    records = samples()
    assert list(recordbatch.times(kafka_python_batch(records, codec))) == [r.ts for r in records]
    big = batch_of(record(0, ts_delta=-3) + record(1, None, b"x" * (2 << 20), ts_delta=5) + record(2), 3, codec)
    assert list(recordbatch.times(big)) == [START_TS - 3, START_TS + 5, START_TS]


def test_times_that_are_none_or_out_of_range() -> None:
    body = record(0, ts_delta=-1 - START_TS) + record(1, ts_delta=2**63 - 1)
    none, huge = recordbatch.times(batch_of(body, 2))
    assert none == -1
    assert -(2**63) <= huge < 2**63
    odd = [record(0, None, b"1", [(b"\xff", b"")], ts_delta=4), record(1, ts_delta=2**63 - 1)]
    assert list(recordbatch.times(batch_of(b"".join(odd), 2))) == [START_TS + 4, 2**63 - 1]


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("keep", [[0], [19], [1, 3, 18], list(range(20)), range(5, 15)])
def test_rebuilt_batch_keeps_what_is_alive(codec: str, keep: list[int]) -> None:
    records = samples()
    batch = kafka_python_batch(records, codec, producer_id=5, producer_epoch=2, base_sequence=77)
    rebuilt = recordbatch.rebuilt(memoryview(batch), 1000, keep)
    expected = [(1000 + i, records[i]) for i in keep]
    assert read_by_aiokafka(rebuilt) == expected
    assert read_by_kafka_python(rebuilt) == expected
    header, before = recordbatch.headers(rebuilt)[0][1], recordbatch.headers(batch)[0][1]
    assert header.codec == 0
    assert (header.size, header.count, header.base_offset) == (len(rebuilt), len(keep), 1000)
    kept = ("last_offset_delta", "base_ts", "max_ts", "producer_id", "producer_epoch", "base_sequence")
    assert {name: getattr(header, name) for name in kept} == {name: getattr(before, name) for name in kept}


def test_rebuilt_batch_keeps_the_type_of_its_times() -> None:
    stamped = recordbatch.stamped(aiokafka_batch(events(5), "zstd"), 42)
    rebuilt = recordbatch.rebuilt(stamped, 0, [1, 4])
    assert recordbatch.headers(rebuilt)[0][1].is_log_append_time
    assert [(offset, r.ts) for offset, r in read_by_aiokafka(rebuilt)] == [(1, 42), (4, 42)]


def test_control_batch() -> None:
    """Byte for byte the COMMIT marker that seven clients step over."""
    batch = recordbatch.control(9, 1_700_000_000_009)
    assert batch.hex() == (
        "0000000000000009"  # base offset
        "00000042"  # length
        "00000000"  # leader epoch
        "02"  # magic
        "49232741"  # CRC-32C
        "0030"  # transactional and control
        "00000000"  # last offset delta
        "0000018bcfe56809"
        "0000018bcfe56809"  # base and max timestamp
        "0000000000000000"  # producer id
        "0000"  # producer epoch
        "ffffffff"  # base sequence
        "00000001"  # count
        "20"
        "00"
        "00"
        "00"
        "08"
        "00000001"
        "0c"
        "000000000000"
        "00"
    )
    ((offset, marker),) = read_by_aiokafka(batch)
    assert offset == 9
    assert marker == Rec(b"\0\0\0\1", bytes(6), (), 1_700_000_000_009)
    header = recordbatch.headers(batch)[0][1]
    assert (header.is_control, header.is_transactional, header.size) == (True, True, len(batch))
