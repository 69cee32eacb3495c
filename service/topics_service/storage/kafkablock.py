"""The block kind of Kafka clients: their record batches, unchanged, one after the other.

Layout: the header of every block (`block`), with version 16; `ts` as in a block of columns; then the batches. Their
own headers say how long each is and how many records it holds; the base offset in them means nothing, since the
block's `base_seq` gives every record its offset. Nothing is decoded until the columns are requested.

Batches that came uncompressed are stored compressed where that pays, with version 17: header and `ts`, then two
sections as in a block of columns (`block`), without ends. The texts are the headers of the batches, the payload is
their records. The batches are put together again, byte for byte, when they are first requested.

A record counts its share of the bytes of its batch, for limits, caps and counters alike. So Kafka defines
retention.bytes, and merging small blocks does not change it.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from topics_service.storage import block as columnar
from topics_service.storage import recordbatch, sections
from topics_service.storage.block import Block, CorruptBlockError, StoredBlock, merge_runs
from topics_service.storage.recordbatch import Header
from topics_service.storage.recordbatch.header import HEADER, Buffer, header_of
from topics_service.storage.sections import DamagedSectionError, Packed
from topics_service.storage.varbinary import Column

_VERSION = 16
_PACKED_VERSION = 17
_KINDS = (bytes([_VERSION]), bytes([_PACKED_VERSION]))


class Part(NamedTuple):
    """One batch: the position of its first record, and where it lies in the body."""

    first: int
    offset: int
    header: Header

    @property
    def stop(self) -> int:
        """One past the position of its last record."""
        return self.first + self.header.count


class KafkaBlock(StoredBlock):
    """Record batches v2, one or more, in `body`; see `StoredBlock`.

    While `payload` is there, `_body` has the headers of the batches only.
    """

    __slots__ = ("_body", "_columns", "_starts", "parts")

    def __init__(
        self,
        log_id: int,
        base_seq: int,
        ts_runs: Sequence[tuple[int, int]],
        body: bytes,
        headers: Sequence[tuple[int, Header]],
        cum_bytes: int,
        payload: Packed | None = None,
    ) -> None:
        """`headers` are those of the batches, each with its place in the body.

        With the packed `payload`, `body` is the headers as stored.
        """
        self.log_id = log_id
        self.base_seq = base_seq
        self.ts_runs = ts_runs
        self.first_ts = ts_runs[0][1]
        self.last_ts = ts_runs[-1][1]
        self._body = body
        self.payload = payload
        if len(headers) == 1:  # as it is appended: 3 us less
            ((at, header),) = headers
            self.parts = [Part(0, at, header)]
            self.count, self.max_ts, self._starts = header.count, header.max_ts, [0]
        else:
            firsts = accumulate((header.count for _, header in headers), initial=0)
            self.parts = [Part(first, at, header) for first, (at, header) in zip(firsts, headers, strict=False)]
            self.count = self.parts[-1].stop
            self.max_ts = max(header.max_ts for _, header in headers)
            self._starts = [part.first for part in self.parts]
        self.cum_bytes = cum_bytes
        self.nbytes = len(body) if payload is None else len(body) + payload.size
        self.weight = 1000 + 300 * len(self.parts) + len(body) + (0 if payload is None else len(payload.stored))
        self._columns: Block | None = None

    @property
    def body(self) -> bytes:
        """The batches, one behind the other."""
        if self.payload is not None:
            self.inflate()
        return self._body

    def _take(self, payload: bytes) -> None:
        """See StoredBlock."""
        pieces: list[bytes] = []
        at = 0
        for i, part in enumerate(self.parts):
            stop = at + part.header.size - HEADER.size
            pieces += (self._body[i * HEADER.size : (i + 1) * HEADER.size], payload[at:stop])
            at = stop
        self._body = b"".join(pieces)

    def part_at(self, i: int) -> Part:
        """The batch that holds the record at position i."""
        return self.parts[bisect_right(self._starts, i) - 1]

    def batch(self, part: Part) -> memoryview:
        """The unchanged bytes of one batch."""
        return memoryview(self.body)[part.offset : part.offset + part.header.size]

    def inflated_size(self, max_bytes: int) -> int | None:
        """The bytes of all batches once they are inflated; None for more than `max_bytes`."""
        total = 0
        for part in self.parts:
            size = recordbatch.inflated_size(self.batch(part), max_bytes - total)
            if size is None:
                return None
            total += size
        return total

    def sizes_upto(self, i: int) -> int:
        """See StoredBlock."""
        if i >= self.count:
            return self.nbytes
        part = self.part_at(i)
        return part.offset + (i - part.first) * part.header.size // part.header.count

    def fit(self, start: int, budget: int) -> int:
        """See StoredBlock."""
        limit = self.sizes_upto(start) + budget
        return start + bisect_right(range(start + 1, self.count + 1), limit, key=self.sizes_upto)

    def columns(self) -> Block:
        """See StoredBlock: decoded when first asked for, which raises `weight`."""
        if self._columns is None:
            self._columns = self._decoded()
            self.weight += self._columns.weight
        return self._columns

    def _decoded(self) -> Block:
        pieces = [recordbatch.columns(self.batch(part)) for part in self.parts]
        counts = [part.header.count for part in self.parts]
        datas = [data for piece in pieces for data in piece.datas]
        kinds = None
        if any(piece.kinds is not None for piece in pieces):
            kinds = b"".join(piece.kinds or bytes(count) for piece, count in zip(pieces, counts, strict=True))
        return Block(
            self.log_id,
            self.base_seq,
            self.ts_runs,
            array("I", accumulate(map(len, datas))),
            b"".join(datas),
            _joined([piece.tags for piece in pieces], counts),
            None,
            _joined([piece.metas for piece in pieces], counts),
            kinds,
            self.cum_bytes,
        )


def _joined(found: Sequence[Column | None], counts: Sequence[int]) -> Column | None:
    if all(column is None for column in found):
        return None
    joined: Column = []
    for column, count in zip(found, counts, strict=True):
        joined += [None] * count if column is None else column
    return joined


def build(log_id: int, base_seq: int, ts: int, body: bytes, header: Header, cum_bytes: int) -> KafkaBlock:
    """The block of one batch, appended at the time `ts`."""
    return KafkaBlock(log_id, base_seq, ((header.count, ts),), body, ((0, header),), cum_bytes)


def merge(blocks: Sequence[KafkaBlock]) -> KafkaBlock:
    """One block with the batches of several that follow each other without a gap."""
    first, headers, at = blocks[0], list[tuple[int, Header]](), 0
    for block in blocks:
        headers += [(at + part.offset, part.header) for part in block.parts]
        at += block.nbytes
    body = b"".join(block.body for block in blocks)
    merged = KafkaBlock(first.log_id, first.base_seq, merge_runs(blocks), body, headers, first.cum_bytes)
    merged.max_ts = blocks[-1].max_ts
    return merged


def encode(block: StoredBlock) -> bytes:
    """The stored form of a block of any kind."""
    if isinstance(block, Block):
        return columnar.encode(block)
    assert isinstance(block, KafkaBlock), "there are two kinds"
    body = block.body
    if len(body) >= sections.WORTH and any(not part.header.codec for part in block.parts):
        parts = columnar.pack(*_split(body, block.parts))
        if parts is not None:
            return columnar.sealed(block, _PACKED_VERSION, 0, len(body), parts)
    return columnar.sealed(block, _VERSION, 0, len(body), [body])


def _split(body: bytes, parts: Sequence[Part]) -> tuple[bytes, Buffer]:
    """The headers of the batches, and their records."""
    whole = memoryview(body)
    if len(parts) == 1:
        return body[: HEADER.size], whole[HEADER.size :]
    heads = b"".join(whole[part.offset : part.offset + HEADER.size] for part in parts)
    return heads, b"".join(whole[part.offset + HEADER.size : part.offset + part.header.size] for part in parts)


def decode(value: bytes, log_id: int, base_seq: int) -> StoredBlock:
    """The block of any kind that is stored as `value`; see `block.decode`."""
    if value[:1] not in _KINDS:
        return columnar.decode(value, log_id, base_seq)
    head, at = columnar.unsealed(value, log_id, base_seq)
    runs, at = columnar.read_runs(head, value, at)
    try:
        if head.version == _VERSION:
            body = value[at:]
            block = KafkaBlock(log_id, base_seq, runs, body, recordbatch.headers(body), head.cum_bytes)
        else:
            block = _decode_packed(head, runs, value, at)
    except (recordbatch.InvalidBatchError, DamagedSectionError) as error:
        raise CorruptBlockError(f"block {log_id}/{base_seq}: {error}") from error
    if block.count != head.records:
        raise CorruptBlockError(
            f"block {log_id}/{base_seq}: its batches hold {block.count} records, not {head.records}"
        )
    block.max_ts = head.max_ts
    return block


def _decode_packed(head: columnar.Head, runs: Sequence[tuple[int, int]], value: bytes, at: int) -> KafkaBlock:
    """The block of two sections. Its payload is inflated only if it is stored as it is."""
    _, heads, codec, stored = columnar.unpack(value, at, 0)
    headers: list[tuple[int, Header]] = []
    position = 0
    for first in range(0, len(heads), HEADER.size):
        header = header_of(heads, first)
        if header.size < HEADER.size:
            raise DamagedSectionError(f"a batch of {header.size} bytes")
        headers.append((position, header))
        position += header.size
    if not headers or position != head.nbytes:
        raise DamagedSectionError(f"its batches have {position} bytes, not {head.nbytes}")
    payload = Packed(codec, stored, head.nbytes - len(heads))
    block = KafkaBlock(head.log_id, head.base_seq, runs, heads, headers, head.cum_bytes, payload)
    if not codec:
        block.inflate()
    return block
