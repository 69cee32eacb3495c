"""Record batches for tests, made and read by others than the code under test."""

import random
import struct
import warnings
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import aiokafka.record.default_records as aiokafka_records
import cramjam
import google_crc32c

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the way it reads its resources
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

HEADER = struct.Struct(">qiibIhiqqqhii")
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
START_TS = 1_700_000_000_000


class Rec(NamedTuple):
    """A Kafka record. Its place in the batch is its offset."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    ts: int = START_TS


def samples(count: int = 20, seed: int = 1) -> list[Rec]:
    """Records of many shapes: JSON, binary, null and empty values, keys that fit into a tag and keys that don't."""
    rng = random.Random(seed)
    keys = [None, b"", b"user-1", "zw\u00f6lf".encode(), b"\xff\xfe", b"k" * 256, b"k" * 257]
    values = [None, b"", b'{"a": [1, 2.5, null]}', b"17", b"null", b"\x00\x01\x02", b"not json", b"x" * 5000, b' "y"\n']
    headers = [(), (("h", b"v"),), (("h", b"1"), ("h", None), ("g", b"\x80")), (("$key", b"odd"), ("", b""))]
    return [
        Rec(rng.choice(keys), rng.choice(values), rng.choice(headers), START_TS + rng.randrange(-50, 50))
        for _ in range(count)
    ]


def events(count: int, size: int = 150) -> list[Rec]:
    """Records as applications send them: a key, and about `size` bytes of JSON that compress by half."""
    rng = random.Random(count)
    return [
        Rec(b"k%d" % i, b'{"id":%d,"pad":"%s"}' % (i, rng.randbytes(size // 2 - 10).hex().encode()), (), START_TS + i)
        for i in range(count)
    ]


def aiokafka_batch(records: Iterable[Rec], codec: str = "none") -> bytes:
    """The batch as aiokafka writes it, in C."""
    builder = aiokafka_records.DefaultRecordBatchBuilder(2, CODECS[codec], 0, -1, -1, -1, 1 << 30)
    for i, record in enumerate(records):
        builder.append(i, record.ts, record.key, record.value, list(record.headers))
    return bytes(builder.build())


def kafka_python_batch(records: Iterable[Rec], codec: str = "none", **producer: int) -> bytes:
    """The batch as kafka-python writes it, in Python; what it has no codec for is compressed here."""
    builder = KafkaPythonBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=producer.get("producer_id", -1),
        producer_epoch=producer.get("producer_epoch", -1),
        base_sequence=producer.get("base_sequence", -1),
        batch_size=1 << 30,
    )
    for i, record in enumerate(records):
        builder.append(i, record.ts, record.key, record.value, list(record.headers))
    return recompressed(bytes(builder.build()), codec)


def compressed(data: bytes, codec: str) -> bytes:
    """`data` in this codec; "xerial" is snappy in the framing of Java."""
    match codec:
        case "none":
            return data
        case "gzip":
            gzip = zlib.compressobj(wbits=31)
            return gzip.compress(data) + gzip.flush()
        case "snappy":
            return bytes(cramjam.snappy.compress_raw(data))
        case "xerial":
            blocks = [bytes(cramjam.snappy.compress_raw(data[i : i + 32768])) for i in range(0, len(data), 32768)]
            chunks = [struct.pack(">i", len(block)) + block for block in blocks]
            return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(chunks)
        case "lz4":
            return bytes(cramjam.lz4.compress(data))
        case "zstd":
            return bytes(cramjam.zstd.compress(data))
    raise AssertionError(codec)


def recompressed(batch: bytes, codec: str) -> bytes:
    """An uncompressed batch in this codec."""
    number = CODECS.get(codec, CODECS["snappy"])
    return sealed(batch[: HEADER.size] + compressed(batch[HEADER.size :], codec), attributes=number)


FIELDS = (
    *("base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta"),
    *("base_ts", "max_ts", "producer_id", "producer_epoch", "base_sequence", "count"),
)


def sealed(batch: bytes, **fields: int) -> bytes:
    """The batch with these header fields, and the length and checksum that belong to it unless they are given."""
    values = dict(zip(FIELDS, HEADER.unpack_from(batch), strict=True)) | {"length": len(batch) - 12} | fields
    out = bytearray(HEADER.pack(*values.values()) + batch[HEADER.size :])
    if "crc" not in fields:
        struct.pack_into(">I", out, 17, google_crc32c.value(bytes(out[21:])))
    return bytes(out)


def batch_of(body: bytes, count: int, codec: str = "none", **fields: int) -> bytes:
    """A batch of hand-made record bytes."""
    plain = HEADER.pack(0, 0, 0, 2, 0, 0, count - 1, START_TS, START_TS, -1, -1, -1, count) + body
    return sealed(recompressed(plain, codec), **fields)


def varint(value: int) -> bytes:
    """A zigzag varint."""
    rest = (value << 1 ^ value >> 63) & (1 << 64) - 1
    out = b""
    while rest > 127:
        out += bytes([rest & 127 | 128])
        rest >>= 7
    return out + bytes([rest])


def nullable(content: bytes | None) -> bytes:
    """A length and the bytes."""
    return varint(-1) if content is None else varint(len(content)) + content


def record(
    position: int,
    key: bytes | None = None,
    value: bytes | None = b"{}",
    headers: Sequence[tuple[bytes, bytes | None]] = (),
    ts_delta: int = 0,
) -> bytes:
    """A record with its length."""
    body = b"\0" + varint(ts_delta) + varint(position) + nullable(key) + nullable(value) + varint(len(headers))
    for name, content in headers:
        body += nullable(name) + nullable(content)
    return varint(len(body)) + body


def read_by_aiokafka(batch: bytes) -> list[tuple[int, Rec]]:
    """Offsets and records, read in C; the checksum is checked."""
    parsed = aiokafka_records.DefaultRecordBatch(batch)
    assert parsed.validate_crc()
    return [(r.offset, Rec(r.key, r.value, tuple(r.headers), r.timestamp)) for r in parsed]


def read_by_kafka_python(batch: bytes) -> list[tuple[int, Rec]]:
    """Offsets and records of an uncompressed batch, read in Python; the checksum is checked."""
    parsed = KafkaPythonBatch(batch)
    assert parsed.validate_crc()
    return [(r.offset, Rec(r.key, r.value, tuple(r.headers), r.timestamp)) for r in parsed]


LIBRDKAFKA_RECORDS = [
    Rec(b"k1", b'{"a": 1, "pad": "%s"}' % (b"x" * 200), (("h", b"v"), ("h", b"w"), ("n", None)), START_TS + 1),
    Rec(None, b"", (), START_TS),
    Rec(b"\xff\xfe", None, (("b", b"\x80"),), START_TS + 5),
    Rec(b"k4", "zw\u00f6lf".encode(), (), START_TS + 9),
]

# The records above as librdkafka 2.16 sent them to its mock broker.
LIBRDKAFKA = {
    "none": (
        "00000000000000000000014500000000023d37776b0000000000030000018bcfe568010000018bcfe56809ffffffffff"
        "ffffffffffffffffff00000004de03000000046b31b6037b2261223a20312c2022706164223a20227878787878787878"
        "787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878"
        "787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878"
        "787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878"
        "787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878"
        "227d060268027602680277026e010c0001020100001800080404fffe0102026202801c001006046b340c7a77c3b66c66"
        "00"
    ),
    "gzip": (
        "000000000000000000000092000000000236bcfd540001000000030000018bcfe568010000018bcfe56809ffffffffff"
        "ffffffffffffffffff000000041f8b0800000000000003bbc7ccc0c0c0926db88db95a2951c94ac1504741a9203105c8"
        "52aa182640a9968d2983a90c88cb99f218791818991819182418385858feff6364624a626a9061106063c936e1a92a3f"
        "bc2d278d0100d385026214010000"
    ),
    "snappy": (
        "00000000000000000000008d000000000225e471d50002000000030000018bcfe568010000018bcfe56809ffffffffff"
        "ffffffffffffffffff0000000494026cde03000000046b31b6037b2261223a20312c2022706164223a202278fe0100fe"
        "0100fe01000d01c0227d060268027602680277026e010c0001020100001800080404fffe0102026202801c001006046b"
        "340c7a77c3b66c6600"
    ),
    "lz4": (
        "00000000000000000000009400000000027ed64cb70003000000030000018bcfe568010000018bcfe56809ffffffffff"
        "ffffffffffffffffff0000000404224d1860408254000000ff0dde03000000046b31b6037b2261223a20312c20227061"
        "64223a2022780100b4f022227d060268027602680277026e010c0001020100001800080404fffe0102026202801c0010"
        "06046b340c7a77c3b66c660000000000"
    ),
    "zstd": (
        "00000000000000000000008f0000000002f8cfb3f90004000000030000018bcfe568010000018bcfe56809ffffffffff"
        "ffffffffffffffffff0000000428b52ffd0058ad0200d404de03000000046b31b6037b2261223a20312c202270616422"
        "3a202278227d060268027602680277026e010c0001020100001800080404fffe0102026202801c001006046b340c7a77"
        "c3b66c660001001029e004"
    ),
}
