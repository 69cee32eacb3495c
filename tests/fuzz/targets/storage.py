"""Blocks of records, of both kinds, and what they are made of."""

import struct
from array import array
from typing import Any, Final

import google_crc32c
from fuzz.target import Target
from xxhash import xxh3_64

from support.kafka_batches import CODECS, Rec, aiokafka_batch, recompressed, samples
from topics_service.engine import tagruns
from topics_service.storage import block as columnar
from topics_service.storage import kafkablock, keys, recordbatch, segments
from topics_service.storage.block import Block, CorruptBlockError
from topics_service.storage.recordbatch import InvalidBatchError
from topics_service.storage.recordbatch.inflate import inflated
from topics_service.storage.recordbatch.records import parsed
from topics_service.storage.recordbatch.varint import MalformedRecordError, read_varint, varint
from topics_service.storage.store import StoreError
from topics_service.storage.tagchunk import Chunk, CorruptChunkError, Entries, encode
from topics_service.storage.wal import batches

LOG, BASE = 7, 1000
_BUILTIN: Final = (ValueError, IndexError, OverflowError)
_RECORDBATCH: Final = "topics_service.storage.recordbatch"


def _blocks() -> list[bytes]:
    plain = columnar.build(LOG, BASE, 5, [b"1", b'"two"', b"null"], None, None, None, None, 40)
    full = columnar.build(
        LOG,
        BASE,
        5,
        [b"1", b"\x00\xff", b""],
        [b"t", None, b""],
        [b"n", b"n", None],
        [None, b'{"a":1}', None],
        b"\0\1\1",
        9,
    )
    later = columnar.build(LOG, BASE + 3, 9, [b"[]"] * 20, [b"x" * 50] * 20, None, None, None, 60)
    packed = columnar.build(
        LOG,
        BASE,
        5,
        [b'{"n":%d,"of":"the same"}' % i for i in range(30)],
        [b"tag"] * 30,
        None,
        [b'{"a":1}', *[None] * 29],
        bytes(30),
        9,
    )
    kafka = [_batch_block(recompressed(aiokafka_batch(samples(6)), codec)) for codec in ("zstd", "none")]
    return [*map(kafkablock.encode, (plain, full, columnar.merge([plain, later]), packed, *kafka))]


def _batch_block(batch: bytes) -> kafkablock.KafkaBlock:
    return kafkablock.build(LOG, BASE, 5, batch, recordbatch.headers(batch)[0][1], 0)


def _read(value: bytes) -> Any:
    """A block, and everything that can be asked of it."""
    found = kafkablock.decode(value, LOG, BASE)
    found.sizes_upto(found.count)
    columns = found.columns()
    if isinstance(columns, Block):
        return found, columns.tags, columns.nodes, columns.metas, columns.kinds
    return found


def _chunk(value: bytes) -> Any:
    """A chunk, and everything that can be asked of it."""
    chunk = Chunk(value)
    found = [(chunk.tag(i), chunk.positions(i)) for i in (0, chunk.count - 1)]
    found += [(b"", chunk.positions(i)) for i in chunk.matching(b"a", prefix=True)]
    chunk.check()
    return found, chunk.entries()


def _forged(value: bytes) -> Any:
    """The same of a block whose checksum is right whatever else is wrong with it."""
    if len(value) > columnar._HEADER.size:
        head = value[: columnar._HEADER.size - 8]
        digest = xxh3_64(head + bytes(8) + value[columnar._HEADER.size :]).intdigest()
        value = head + struct.pack("<Q", digest) + value[columnar._HEADER.size :]
    return _read(value)


def _inflated(data: bytes) -> Any:
    codec = data[0] if data else 0
    return inflated(codec, memoryview(data[1:]), 1 << 20)


def _batch(seq: int, key: bytes, value: bytes) -> bytes:
    """A batch of RocksDB that sets one row of the default family."""
    row = b"\1" + bytes([len(key)]) + key + _length(len(value)) + value
    return struct.pack("<QI", seq, 1) + row


def _length(size: int) -> bytes:
    return bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])


def log_of(*payloads: bytes) -> bytes:
    """A write-ahead log of RocksDB with these records."""
    made = b""
    for payload in payloads:
        crc = google_crc32c.value(b"\1" + payload)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        made += struct.pack("<IHB", masked, len(payload), 1) + payload
    return made


def _batches(data: bytes) -> Any:
    return [_of_batch(batch) for batch in batches.batches(data)]


def _of_batch(batch: batches.Batch) -> Any:
    return list(batches.rows(batch)), batches.written_ms(batch)


_PLAIN = aiokafka_batch([Rec(b"k", b'{"a":1}', (("h", b"v"),)), Rec(None, None)])[61:]
_BATCHES = [recompressed(aiokafka_batch(samples(4)), codec) for codec in (*CODECS, "xerial")]

TARGETS = (
    Target(
        name="block",
        decode=_read,
        errors=(CorruptBlockError,),
        samples=_blocks(),
        covers=(
            "topics_service.storage.kafkablock:decode",
            "topics_service.storage.kafkablock:_decoded",
            "topics_service.storage.block:decode",
            "topics_service.storage.block:decode_body",
            "topics_service.storage.block:read_runs",
            "topics_service.storage.block:unsealed",
            "topics_service.storage.block:unpack",
            "topics_service.storage.block:inflate",
            "topics_service.storage.block:_decode_packed",
            "topics_service.storage.block:_decoded",
            "topics_service.storage.kafkablock:_decode_packed",
            "topics_service.storage.sections:inflated",
            "topics_service.storage.varbinary:_read_lengths",
            "topics_service.storage.varbinary:stored_end",
        ),
        again=lambda made: kafkablock.encode(made[0]),
    ),
    Target(  # an attacker with this access can do anything, but it must not take the machine down
        name="block with a forged checksum",
        decode=_forged,
        errors=(CorruptBlockError, InvalidBatchError, MalformedRecordError, struct.error, StoreError, *_BUILTIN),
        samples=_blocks(),
        covers=(),
        growth=600,
    ),
    Target(
        name="record batch",
        decode=lambda data: recordbatch.check(data, max_bytes=1 << 20, max_inflated=1 << 20),
        errors=(InvalidBatchError,),
        samples=_BATCHES,
        covers=(
            f"{_RECORDBATCH}.header:header_of",
            f"{_RECORDBATCH}.header:headers",
            f"{_RECORDBATCH}.header:checked_header",
            f"{_RECORDBATCH}.records:_reader",
        ),
    ),
    Target(
        name="inflated records",
        decode=_inflated,
        errors=(InvalidBatchError,),
        samples=[bytes([batch[22] & 7]) + batch[61:] for batch in _BATCHES],
        growth=2000,
        covers=(
            f"{_RECORDBATCH}.inflate:inflated",
            f"{_RECORDBATCH}.inflate:_gzip",
            f"{_RECORDBATCH}.inflate:_snappy",
            f"{_RECORDBATCH}.inflate:_snappy_block",
            f"{_RECORDBATCH}.inflate:_grown",
            f"{_RECORDBATCH}.inflate:_zstd_size",
        ),
    ),
    Target(
        name="record",
        decode=parsed,
        errors=(MalformedRecordError,),
        samples=[_PLAIN[1 : 1 + (_PLAIN[0] >> 1)], b"\0\0\0\1\1\0"],
        covers=(f"{_RECORDBATCH}.records:parsed", f"{_RECORDBATCH}.records:_nullable"),
    ),
    Target(
        name="varint",
        decode=lambda data: read_varint(data, 0)[0],
        errors=(MalformedRecordError,),
        samples=[varint(number) for number in (0, -1, 63, 64, 1 << 31, (1 << 63) - 1, -(1 << 63))],
        covers=(f"{_RECORDBATCH}.varint:read_varint",),
        again=varint,
    ),
    Target(
        name="batches of a write-ahead log",
        decode=_batches,
        errors=(ValueError,),
        samples=[
            log_of(_batch(3, b"k", b"v")),
            log_of(_batch(1, batches.MOMENT_KEY, bytes(8)), _batch(2, b"", b"x" * 300)),
        ],
        covers=(
            "topics_service.storage.wal.batches:batches",
            "topics_service.storage.wal.batches:written_ms",
            "topics_service.storage.wal.batches",
        ),
    ),
    Target(  # a checksum does not authenticate: archived pieces come from a backup
        name="rows of a batch",
        decode=lambda rows: _of_batch(batches.Batch(0, 1, 2, rows)),
        errors=(ValueError,),
        samples=[
            _batch(3, b"k", b"v")[12:],
            _batch(3, batches.MOMENT_KEY, bytes(8))[12:] + b"\x05\x03\2ab\1c\x0e\1\1a\1b",
            _batch(3, batches.MOMENT_KEY, bytes(8))[12:] + _batch(3, batches.MOMENT_KEY, b"x")[12:],
            b"\5" + b"\xff" * 300_000,
        ],
        covers=(),
    ),
    Target(
        name="key of a row",
        decode=lambda key: (keys.read_u64(key), keys.tag_run(key)),
        errors=(struct.error,),
        samples=[keys.u64(1), keys.tag(3, b"a\0b", 77)],
        covers=("topics_service.storage.keys:read_u64", "topics_service.storage.keys:tag_run"),
    ),
    Target(
        name="reference to a large block",
        decode=lambda value: (segments.reference(value), segments.position_of(value)),
        errors=(struct.error,),
        samples=[segments.encode(segments.Reference(1 << 40, 5000)), segments.key(7, keys.pair(1, 2))],
        covers=("topics_service.storage.segments:reference", "topics_service.storage.segments:position_of"),
    ),
    Target(
        name="chunk of the tag index",
        decode=_chunk,
        errors=(CorruptChunkError,),
        samples=[
            encode(Entries([b"a"], [1], array("I", [7]))),
            encode(Entries([b"", b"a\0", b"a\0"], [1, 3, 1], array("I", [7, 0, 1, 2, 9]))),
            encode(Entries([b"%d" % i for i in range(500)], [1] * 500, array("I", range(500)))),
        ],
        covers=("topics_service.storage.tagchunk:__init__", "topics_service.engine.tagruns:_decode"),
    ),
    Target(
        name="run of the tag index",
        decode=lambda value: tagruns.read_stop(LOG, value),
        errors=(StoreError,),
        samples=[b"\x01" + bytes(7) + (77).to_bytes(8, "little")],
        covers=("topics_service.engine.tagruns:read_stop",),
    ),
)
