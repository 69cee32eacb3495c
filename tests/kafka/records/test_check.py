"""`check`: batches of producers are accepted, everything else is refused with the right code."""

import time
import tracemalloc
from collections.abc import Callable

import pytest

from support.kafka_batches import (
    CODECS,
    LIBRDKAFKA,
    Rec,
    aiokafka_batch,
    batch_of,
    compressed,
    events,
    kafka_python_batch,
    nullable,
    record,
    samples,
    sealed,
    varint,
)
from topics_service.storage import recordbatch
from topics_service.storage.recordbatch import InvalidBatchError

MIB = 1 << 20
CODEC_NAMES = [*CODECS, "xerial"]
ONE = batch_of(record(0), 1)


def refused(batch: bytes, *, max_bytes: int = MIB, max_inflated: int = 64 * MIB) -> str:
    with pytest.raises(InvalidBatchError) as caught:
        recordbatch.check(batch, max_bytes=max_bytes, max_inflated=max_inflated)
    return caught.value.code


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_header_of_a_good_batch(wrap: Callable[[bytes], bytes]) -> None:
    batch = kafka_python_batch(events(5), producer_id=7, producer_epoch=3, base_sequence=11)
    header = recordbatch.check(wrap(batch), max_bytes=len(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert (header.count, header.last_offset_delta, header.size, header.magic) == (5, 4, len(batch), 2)
    assert (header.base_ts, header.max_ts) == (1_700_000_000_000, 1_700_000_000_004)
    assert (header.codec, header.is_control, header.is_transactional, header.is_log_append_time) == (0, *[False] * 3)


@pytest.mark.parametrize("codec", CODECS)
def test_takes_what_aiokafka_writes(codec: str) -> None:
    batch = aiokafka_batch(samples(), codec)
    assert recordbatch.check(batch, max_bytes=MIB).codec == CODECS[codec]


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("count", [1, 20, 30_000])
def test_takes_what_kafka_python_writes(codec: str, count: int) -> None:
    records = samples() if count == 20 else [Rec(None, b'{"number": %d}' % i) for i in range(count)]
    batch = kafka_python_batch(records, codec)
    assert recordbatch.check(batch, max_bytes=2 * MIB).count == count


@pytest.mark.parametrize("codec", CODECS)
def test_takes_what_librdkafka_sends(codec: str) -> None:
    batch = bytes.fromhex(LIBRDKAFKA[codec])
    header = recordbatch.check(batch, max_bytes=MIB)
    assert (header.codec, header.count) == (CODECS[codec], 4)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_a_record_larger_than_the_pieces_that_are_read_at_once(codec: str) -> None:
    body = record(0) + record(1, b"k", b"x" * (3 * MIB)) + record(2)
    batch = batch_of(body, 3, codec)
    assert recordbatch.check(batch, max_bytes=4 * MIB).count == 3


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", "corrupt"),
        (ONE[:60], "corrupt"),
        (ONE[:-1], "corrupt"),
        (ONE[:-1] + b"\x7f", "corrupt"),
        (sealed(ONE, crc=0), "corrupt"),
        (sealed(ONE, length=-1), "corrupt"),
        (sealed(ONE, length=48), "corrupt"),
        (sealed(ONE, length=len(ONE)), "corrupt"),
        (sealed(ONE, magic=1), "magic"),
        (sealed(ONE, magic=0)[:30], "magic"),
        (sealed(ONE, magic=3), "magic"),
        (ONE + ONE, "invalid"),
        (ONE + b"\0", "invalid"),
        (sealed(ONE, attributes=5), "codec"),
        (sealed(ONE, attributes=7), "codec"),
        (sealed(ONE, attributes=0x10), "invalid"),
        (sealed(ONE, attributes=0x20), "invalid"),
        (sealed(ONE, count=0, last_offset_delta=-1), "invalid"),
        (sealed(ONE, count=-1, last_offset_delta=-2), "invalid"),
        (sealed(ONE, count=2), "invalid"),
        (sealed(ONE, count=2, last_offset_delta=1), "invalid"),
        (sealed(ONE, last_offset_delta=1), "invalid"),
        (sealed(ONE, count=2**31 - 1, last_offset_delta=2**31 - 2), "invalid"),
        (batch_of(b"", 1), "invalid"),
        (batch_of(record(0) + b"\0", 1), "invalid"),
        (batch_of(record(0) + record(1), 1), "invalid"),
        (batch_of(record(0) + record(2), 2), "invalid"),
        (batch_of(record(1), 1), "invalid"),
    ],
)
def test_refuses(batch: bytes, code: str) -> None:
    assert refused(batch) == code


def framed(body: bytes) -> bytes:
    return varint(len(body)) + body


@pytest.mark.parametrize(
    "body",
    [
        framed(b""),
        framed(b"\0" * 5),
        framed(b"\0\0\0\1\1\0\0"),
        framed(b"\0\0\0\1\1\1"),
        framed(b"\0\0\0\1\1" + varint(1)),
        framed(b"\0\0\0\1\1" + varint(1) + nullable(None) + nullable(b"x")),
        framed(b"\0\0\0\1\1" + varint(2**62)),
        framed(b"\0\0\0" + varint(2**31) + b"\1\0"),
        framed(b"\0\0\0" + varint(2**63 - 1) + b"\1\0"),
        framed(b"\0\0\0" + varint(2**63 - 40) + b"\1\0"),
        framed(b"\0\0\0\1" + varint(2**63 - 80) + b"\0"),
        framed(b"\0\0\0\1\1\2" + varint(2**63 - 70) + b"\0"),
        framed(b"\0" + b"\xff" * 11 + b"\0\1\1\0"),
        framed(b"\xff" * 20),
        b"\xff" * 12,
        varint(-1) + b"\0" * 10,
        varint(2**62) + b"\0" * 10,
        varint(11) + b"\0\0\0\1\1\0\0\0",
        varint(7) + b"\0\0\0\1\1" + b"\x80",
    ],
)
@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("padding", [0, MIB])
def test_refuses_records_that_nobody_can_read(body: bytes, codec: str, padding: int) -> None:
    """If they were accepted, consumers of the partition would be stuck."""
    before = record(0, None, b"x" * padding)
    shifted = body.replace(b"\0\0\0", b"\0\0\2", 1)
    assert refused(batch_of(before + shifted, 2, codec), max_bytes=2 * MIB) == "invalid"


def test_takes_header_names_that_are_not_utf8_but_not_by_the_thousands() -> None:
    odd = [record(i, None, b"1", [(b"\xff", b"v")]) for i in range(10_001)]
    assert recordbatch.check(batch_of(b"".join(odd[:-1]), 10_000), max_bytes=MIB).count == 10_000
    assert refused(batch_of(b"".join(odd), 10_001)) == "invalid"


def test_the_limit_of_bytes_is_exact() -> None:
    assert recordbatch.check(ONE, max_bytes=len(ONE)).count == 1
    assert refused(ONE, max_bytes=len(ONE) - 1) == "too_large"


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_the_limit_of_inflated_bytes_is_exact(codec: str) -> None:
    body = record(0, None, b"x" * 200_000)
    batch = batch_of(body, 1, codec)
    assert recordbatch.check(batch, max_bytes=MIB, max_inflated=len(body)).count == 1
    assert refused(batch, max_inflated=len(body) - 1) == "too_large"


@pytest.mark.parametrize("codec", CODEC_NAMES[1:])
def test_damaged_compression_is_refused(codec: str) -> None:
    good = compressed(record(0, None, bytes(range(256)) * 20), codec)
    for bad in (b"", good[:-1], good[: len(good) // 2], b"garbage" * 10, good + b"garbage", bytes(200)):
        batch = sealed(ONE[:61] + bad, attributes=CODECS.get(codec, 2))
        assert refused(batch) == "invalid"


def test_compression_in_parts() -> None:
    """A few gzip members are accepted, but thousands of them, or of snappy-java chunks, are not."""
    halves = [compressed(half, "gzip") for half in (record(0), record(1))]
    two = sealed(ONE[:61] + b"".join(halves), attributes=1, count=2, last_offset_delta=1)
    assert recordbatch.check(two, max_bytes=MIB).count == 2
    many = halves[0] + compressed(b"", "gzip") * 40_000
    assert refused(sealed(ONE[:61] + many, attributes=1)) == "invalid"
    xerial = compressed(record(0), "xerial") + b"\0\0\0\1\0" * 100_000
    begin = time.process_time()
    assert refused(sealed(ONE[:61] + xerial, attributes=2)) == "invalid"
    assert time.process_time() - begin < 0.3


@pytest.mark.parametrize("codec", CODEC_NAMES[1:])
def test_a_decompression_bomb_costs_no_more_than_the_limit(codec: str) -> None:
    """100 MB, refused after 16 MiB."""
    bomb = batch_of(bytes(100_000_000), 1, codec)
    limit = 16 * MIB
    tracemalloc.start()
    begin = time.process_time()
    try:
        assert refused(bomb, max_bytes=64 * MIB, max_inflated=limit) == "too_large"
        spent = time.process_time() - begin
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(bomb) + 3 * limit
    assert spent < 1.0


@pytest.mark.parametrize("codec", CODEC_NAMES[1:])
def test_a_small_batch_takes_little_memory(codec: str) -> None:
    batch = kafka_python_batch(events(5), codec)
    tracemalloc.start()
    try:
        recordbatch.check(batch, max_bytes=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 256 << 10


def test_a_size_that_is_only_claimed_is_not_allocated() -> None:
    """A snappy block declares its size, and a zstd frame may."""
    snappy = bytes([0xFF, 0xFF, 0xFF, 0x1F]) + bytes(20)
    zstd = bytes.fromhex("28b52ffda0ffffff03") + bytes(20)
    tracemalloc.start()
    try:
        assert refused(sealed(ONE[:61] + snappy, attributes=2)) == "invalid"
        _, of_snappy = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        assert refused(sealed(ONE[:61] + zstd, attributes=4), max_inflated=MIB) == "invalid"
        _, of_zstd = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert of_snappy < MIB
    assert of_zstd < 3 * MIB


def test_many_tiny_records_take_bounded_memory() -> None:
    """The maximum number of the smallest records, compressed with zstd to a hundredth."""
    count = recordbatch.MAX_RECORDS
    batch = batch_of(b"".join(record(i, None, None) for i in range(count)), count, "zstd")
    tracemalloc.start()
    try:
        recordbatch.check(batch, max_bytes=4 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB


def test_too_many_records() -> None:
    count = recordbatch.MAX_RECORDS + 1
    batch = batch_of(b"".join(record(i, None, None) for i in range(count)), count, "zstd")
    with pytest.raises(recordbatch.InvalidBatchError) as refused:
        recordbatch.check(batch, max_bytes=4 * MIB)
    assert refused.value.code == "too_large"


@pytest.mark.parametrize("claims", ["what it has", "more than it has"])
def test_many_tiny_headers_take_bounded_memory(claims: str) -> None:
    """Headers of two bytes each in one record, or a small record that claims the bytes after it as headers."""
    headers = 4 * MIB
    if claims == "what it has":
        body, count = framed(b"\0\0\0\1\1" + varint(headers) + bytes(2 * headers)), 1
    else:
        small = framed(b"\0\0\0\1\1" + varint(headers) + b"\0" * 200)
        body, count = small * (2 * headers // len(small)), 2 * headers // len(small)
    batch = batch_of(body, count, "zstd")
    tracemalloc.start()
    try:
        assert refused(batch) == "invalid"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 * MIB
