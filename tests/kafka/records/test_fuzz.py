"""Mutated batches: `check` raises InvalidBatchError and nothing else, `columns` and the others never raise."""

import random
from contextlib import suppress

import pytest

from support.kafka_batches import CODECS, batch_of, kafka_python_batch, record, samples, sealed, varint
from topics_service.storage import recordbatch
from topics_service.storage.recordbatch import Columns, InvalidBatchError

MIB = 1 << 20
NASTY = [
    *(b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\xff" * 5, b"\xff" * 9 + b"\1", b"\x80" * 9, b"\xfe" * 9 + b"\1"),
    *(varint(n) for n in (2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 2**63 - 64, 63, 64, 8191, 8192)),
]


def mutated(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(5):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                nasty = rng.choice(NASTY)
                out[at : at + len(nasty)] = nasty
            case 2:
                out[at:at] = rng.choice(NASTY)
            case 3:
                del out[at : at + rng.randrange(4)]
            case _:
                start = rng.randrange(len(out) + 1)
                out[at:at] = out[start : start + rng.randrange(20)]
    return bytes(out)


def look(batch: bytes) -> bool:
    """Return whether `check` accepts the batch. An accepted batch must be readable in every way."""
    try:
        header = recordbatch.check(batch, max_bytes=MIB, max_inflated=4 * MIB)
    except InvalidBatchError:
        return False
    count = header.count
    columns = recordbatch.columns(batch)
    assert len(columns.datas) == len(recordbatch.times(batch)) == count
    assert all(column is None or len(column) == count for column in columns[1:])
    rebuilt = recordbatch.rebuilt(batch, 0, range(count))
    assert recordbatch.columns(rebuilt) == columns
    assert recordbatch.check(rebuilt, max_bytes=8 * MIB).count == count
    assert len(recordbatch.encoded(0, [0] * count, columns, None)) > 61
    return True


def fuzz(seed: int, rounds: int) -> tuple[int, int]:
    rng = random.Random(seed)
    taken = 0
    for i in range(rounds):
        plain = kafka_python_batch(samples(rng.randrange(1, 8), rng.randrange(1 << 30)))
        body = plain[61:]
        codec = rng.choice([*CODECS, "xerial"])
        match i % 4:
            case 0:  # corrupted in transit: the checksum is wrong
                batch = mutated(kafka_python_batch(samples(3), codec), rng)
            case 1:  # hostile header or compression with a valid checksum
                broken = mutated(batch_of(body, 1, codec), rng)
                batch = sealed(broken, magic=2) if len(broken) > 61 else broken
            case _:  # hostile records
                count = plain[60]
                batch = batch_of(mutated(body, rng), count, codec)
        taken += look(batch)
    return taken, rounds


@pytest.mark.parametrize("seed", range(4))
def test_mutated_batches(seed: int) -> None:
    taken, rounds = fuzz(seed, 1500)
    assert 0 < taken < rounds


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_mutated_batches_for_long() -> None:
    for seed in range(100, 300):
        fuzz(seed, 5000)


def columns_never_raise(seed: int, rounds: int) -> int:
    """Records of random bytes with lengths that fill the body. `check` may refuse them, `columns` must read them."""
    rng = random.Random(seed)
    raw = 0
    for _ in range(rounds):
        frames = []
        for i in range(rng.randrange(1, 6)):
            good = record(i, b"k", b'{"a":1}', [(b"h", b"v")] * rng.randrange(3))[1:]
            frames.append(good if rng.random() < 0.3 else mutated(good, rng))
        body = b"".join(varint(len(frame)) + frame for frame in frames)
        batch = batch_of(body, len(frames), rng.choice(list(CODECS)))
        columns: Columns = recordbatch.columns(batch)
        assert len(columns.datas) == len(frames) == len(recordbatch.times(batch))
        refused = True
        with suppress(InvalidBatchError):
            recordbatch.check(batch, max_bytes=MIB)
            refused = False
        unread = [data == frame for data, frame in zip(columns.datas, frames, strict=True)]
        assert any(unread) == refused
        raw += any(unread)
    return raw


@pytest.mark.parametrize("seed", range(2))
def test_columns_of_hostile_records(seed: int) -> None:
    assert 0 < columns_never_raise(seed, 3000) < 3000


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_columns_of_hostile_records_for_long() -> None:
    for seed in range(100, 200):
        columns_never_raise(seed, 10_000)
