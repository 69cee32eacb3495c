"""A block: the records of one or more appends, as immutable columns, and its byte form.

One append becomes one block; sealing merges runs of small blocks into larger ones. A block is found by its first seq
and holds `count` records with contiguous seqs. Layout (little-endian), version 1:

    header   see `_HEADER`; the checksum is xxh3-64 over the header (with a zero checksum) and the body
    ts       if the records differ in time: u32 runs, then per run u32 count, i64 ts
    data     u32 end offsets, then the bytes
    tag, node, meta   each only if a record has one: u32 lengths (2^32-1 = absent), then the bytes
    kinds    only if a record is not JSON: one byte per record

The record size that every limit, cap and counter uses is len(data) + len(meta) (contract.md, Decided, Bytes).
"""

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from msgspec import Raw
from xxhash import xxh3_64

# version, flags, count, log_id, base_seq, first_ts, last_ts, cum_bytes, nbytes, data_len, checksum
_HEADER = struct.Struct("<BBxxIQQqqQQQQ")
_CHECKSUM_AT = _HEADER.size - 8
_U64 = struct.Struct("<Q")
_VERSION = 1
_TS, _TAG, _NODE, _META, _KIND = 1, 2, 4, 8, 16
_TS_RUN = struct.Struct("<Iq")
_ABSENT = (1 << 32) - 1
_ABSENT_BYTES = b"\xff\xff\xff\xff"

Column = list[bytes | None]

if sys.byteorder != "little" or array("I").itemsize != 4 or array("Q").itemsize != 8:  # pragma: no cover
    raise ImportError("topics stores little-endian columns and needs a little-endian machine")


class CorruptBlockError(Exception):
    """The stored bytes are not the block that was asked for."""


class Block:
    """Records `base_seq .. base_seq + count - 1` of the log `log_id`. Never changed after it is made.

    `ends[i]` is the end of record i's data in `data`; `sizes_upto(i)` the bytes of the records before i.
    `cum_bytes` is the total of record bytes in the log before this block. `weight` is about what it costs in memory.
    """

    __slots__ = (
        "_prefix",
        "_tags",
        "base_seq",
        "count",
        "cum_bytes",
        "data",
        "ends",
        "first_ts",
        "kinds",
        "last_ts",
        "log_id",
        "metas",
        "nbytes",
        "nodes",
        "ts_runs",
        "weight",
    )

    def __init__(
        self,
        log_id: int,
        base_seq: int,
        ts_runs: Sequence[tuple[int, int]],
        ends: "array[int]",
        data: bytes,
        tags: Column | bytes | None,
        nodes: Column | None,
        metas: Column | None,
        kinds: bytes | None,
        cum_bytes: int,
    ) -> None:
        """`tags` may be in their stored form: they are decoded when somebody asks, which most readers don't."""
        self.log_id = log_id
        self.base_seq = base_seq
        self.count = len(ends)
        self.ts_runs = ts_runs  # (count, ts), ascending ts
        self.first_ts = ts_runs[0][1]
        self.last_ts = ts_runs[-1][1]
        self.ends = ends
        self.data = data
        self._tags = tags
        self.nodes = nodes
        self.metas = metas
        self.kinds = kinds
        self.cum_bytes = cum_bytes
        self._prefix: Sequence[int] | None = None
        self.nbytes = len(data) if metas is None else len(data) + sum(lengths(metas, 0))
        columns = sum(column is not None for column in (tags, nodes, metas))
        self.weight = 600 + self.nbytes + self.count * (4 + 60 * columns)

    @property
    def end_seq(self) -> int:
        """One past the last record's seq."""
        return self.base_seq + self.count

    @property
    def tags(self) -> Column | None:
        """The tag of each record; None when no record has one."""
        if isinstance(self._tags, bytes):
            self._tags, _ = _decode_column(self._tags, 0, self.count)
        return self._tags

    def packed_tags(self, start: int, stop: int) -> tuple["array[int]", bytes] | None:
        """Lengths and joined bytes of the tags at positions start..stop-1, while they are in their stored form.

        None if they are not, or if a record of the block has no tag.
        """
        stored = self._tags
        if not isinstance(stored, bytes) or _ABSENT_BYTES in stored[: 4 * self.count]:
            return None
        sizes = array("I", stored[: 4 * self.count])
        begin = 4 * self.count + sum(sizes[:start])
        sizes = sizes[start:stop]
        return sizes, stored[begin : begin + sum(sizes)]

    def record_data(self, i: int) -> bytes:
        """The data of the record at position i."""
        return self.data[self.ends[i - 1] if i else 0 : self.ends[i]]

    def ts_at(self, i: int) -> int:
        """The commit time of the record at position i."""
        for count, ts in self.ts_runs:
            if i < count:
                return ts
            i -= count
        raise IndexError(i)

    def first_at_or_after(self, ts: int) -> int:
        """The position of the first record whose ts is at least `ts`; `count` if there is none."""
        position = 0
        for count, run_ts in self.ts_runs:
            if run_ts >= ts:
                return position
            position += count
        return position

    def sizes_upto(self, i: int) -> int:
        """The bytes (data and meta) of the records at positions below i."""
        return self._prefix_sizes()[i - 1] if i else 0

    def fit(self, start: int, budget: int) -> int:
        """The largest stop such that the records start..stop-1 take at most `budget` bytes."""
        return bisect_right(self._prefix_sizes(), self.sizes_upto(start) + budget, lo=start)

    def positions_of(self, tag: bytes, *, prefix: bool = False) -> list[int]:
        """Where records carry exactly `tag`, or with `prefix` a tag that starts with it."""
        if self.tags is None:
            return []
        if prefix:
            return [i for i, t in enumerate(self.tags) if t is not None and t.startswith(tag)]
        return [i for i, t in enumerate(self.tags) if t == tag]

    def picked(self, positions: Sequence[int]) -> "Block":
        """A block of the records at these ascending positions, to be merged or moved: its seqs mean nothing."""
        if len(positions) == self.count:
            return self
        columns = (self.tags, self.nodes, self.metas)
        if isinstance(positions, range):
            start, stop = positions.start, positions.stop
            begin = self.ends[start - 1] if start else 0
            data = self.data[begin : self.ends[stop - 1]]
            ends = array("I", [end - begin for end in self.ends[start:stop]] if begin else self.ends[start:stop])
            tags, nodes, metas = (None if column is None else column[start:stop] for column in columns)
            kinds = None if self.kinds is None else self.kinds[start:stop]
        else:
            pieces = [self.record_data(i) for i in positions]
            data, ends = b"".join(pieces), array("I", accumulate(map(len, pieces)))
            tags, nodes, metas = (None if column is None else [column[i] for i in positions] for column in columns)
            kinds = None if self.kinds is None else bytes(self.kinds[i] for i in positions)
        runs = ((len(ends), self.last_ts),)
        return Block(self.log_id, self.base_seq, runs, ends, data, tags, nodes, metas, kinds, self.cum_bytes)

    def moved(
        self,
        log_id: int,
        base_seq: int,
        ts: int,
        cum_bytes: int,
        *,
        tags: bool = True,
        nodes: bool = True,
        metas: Column | None = None,
    ) -> "Block":
        """The records as an append of the time `ts` to another log. The columns are shared, not copied.

        Without `tags` or `nodes` the records lose them; `metas` replaces theirs.
        """
        runs = ((self.count, ts),)
        metas = self.metas if metas is None else metas
        kept_tags, kept_nodes = self._tags if tags else None, self.nodes if nodes else None
        return Block(log_id, base_seq, runs, self.ends, self.data, kept_tags, kept_nodes, metas, self.kinds, cum_bytes)

    def _prefix_sizes(self) -> Sequence[int]:
        if self.metas is None:
            return self.ends
        if self._prefix is None:
            self._prefix = array("Q", map(int.__add__, self.ends, accumulate(lengths(self.metas, 0))))
        return self._prefix


def lengths(column: Column, absent: int) -> list[int]:
    """The lengths of a column's values, `absent` where there is none; three times faster for a full column."""
    try:
        return list(map(len, column))  # type: ignore[arg-type]  # None has no length: then the slow way
    except TypeError:
        return [absent if value is None else len(value) for value in column]


def build(
    log_id: int,
    base_seq: int,
    ts: int,
    datas: Sequence[bytes | Raw],
    tags: Column | None,
    nodes: Column | None,
    metas: Column | None,
    kinds: bytes | None,
    cum_bytes: int,
    sizes: Sequence[int] | None = None,
) -> Block:
    """The block of one append: all records share `ts`. Give the lengths of the datas as `sizes` if you know them."""
    ends = array("I", accumulate(map(len, datas) if sizes is None else sizes))
    return Block(log_id, base_seq, ((len(ends), ts),), ends, b"".join(datas), tags, nodes, metas, kinds, cum_bytes)


def merge(blocks: Sequence[Block]) -> Block:
    """One block with the records of several that follow each other without a gap."""
    first = blocks[0]
    ends = array("I")
    for offset, block in zip(accumulate((len(b.data) for b in blocks), initial=0), blocks, strict=False):
        ends.extend(block.ends if not offset else array("I", [offset + end for end in block.ends]))
    runs: list[tuple[int, int]] = []
    for block in blocks:
        for count, ts in block.ts_runs:
            if runs and runs[-1][1] == ts:
                runs[-1] = (runs[-1][0] + count, ts)
            else:
                runs.append((count, ts))
    kinds = None
    if any(b.kinds is not None for b in blocks):
        kinds = b"".join(bytes(b.count) if b.kinds is None else b.kinds for b in blocks)
    return Block(
        first.log_id,
        first.base_seq,
        runs,
        ends,
        b"".join(b.data for b in blocks),
        _merge_column([b.tags for b in blocks], blocks),
        _merge_column([b.nodes for b in blocks], blocks),
        _merge_column([b.metas for b in blocks], blocks),
        kinds,
        first.cum_bytes,
    )


def _merge_column(columns: list[Column | None], blocks: Sequence[Block]) -> Column | None:
    if all(column is None for column in columns):
        return None
    merged: Column = []
    for column, block in zip(columns, blocks, strict=True):
        merged += [None] * block.count if column is None else column
    return merged


def encode(block: Block) -> bytes:
    """The stored form of a block."""
    flags = 0
    parts: list[bytes] = []
    if len(block.ts_runs) > 1:
        flags |= _TS
        parts.append(struct.pack("<I", len(block.ts_runs)))
        parts += [_TS_RUN.pack(count, ts) for count, ts in block.ts_runs]
    parts += [block.ends.tobytes(), block.data]
    for flag, column in ((_TAG, block.tags), (_NODE, block.nodes), (_META, block.metas)):
        if column is not None:
            flags |= flag
            parts += (array("I", lengths(column, _ABSENT)).tobytes(), b"".join(filter(None, column)))
    if block.kinds is not None:
        flags |= _KIND
        parts.append(block.kinds)
    header = _HEADER.pack(
        _VERSION,
        flags,
        block.count,
        block.log_id,
        block.base_seq,
        block.first_ts,
        block.last_ts,
        block.cum_bytes,
        block.nbytes,
        len(block.data),
        0,
    )
    digest = xxh3_64(header)
    for part in parts:
        digest.update(part)
    return b"".join((header[:_CHECKSUM_AT], _U64.pack(digest.intdigest()), *parts))


def decode(value: bytes, log_id: int, base_seq: int) -> Block:
    """The block stored as `value` under (log_id, base_seq).

    Raises CorruptBlockError when a byte differs from what was written, or the block belongs elsewhere.
    """
    if len(value) < _HEADER.size:
        raise CorruptBlockError(f"block {log_id}/{base_seq}: {len(value)} bytes are too few for a header")
    version, flags, count, stored_log, stored_base, first_ts, _, cum_bytes, _, data_len, checksum = _HEADER.unpack_from(
        value
    )
    digest = xxh3_64(value[:_CHECKSUM_AT] + bytes(8))
    digest.update(memoryview(value)[_HEADER.size :])
    if version != _VERSION or (stored_log, stored_base) != (log_id, base_seq) or digest.intdigest() != checksum:
        raise CorruptBlockError(f"block {log_id}/{base_seq}: checksum or identity mismatch (version {version})")
    at = _HEADER.size
    runs: list[tuple[int, int]] = [(count, first_ts)]
    if flags & _TS:
        (n,) = struct.unpack_from("<I", value, at)
        at += 4
        runs = [_TS_RUN.unpack_from(value, at + i * _TS_RUN.size) for i in range(n)]
        at += n * _TS_RUN.size
    ends = array("I", value[at : at + 4 * count])
    at += 4 * count
    data = value[at : at + data_len]
    at += data_len
    tags = None
    if flags & _TAG:
        stop = _column_end(value, at, count) if flags & (_NODE | _META | _KIND) else len(value)
        tags, at = value[at:stop], stop
    columns: list[Column | None] = []
    for flag in (_NODE, _META):
        column, at = _decode_column(value, at, count) if flags & flag else (None, at)
        columns.append(column)
    kinds = value[at : at + count] if flags & _KIND else None
    return Block(log_id, base_seq, runs, ends, data, tags, columns[0], columns[1], kinds, cum_bytes)


def _column_end(value: bytes, at: int, count: int) -> int:
    stored = array("I", value[at : at + 4 * count])
    absent = stored.count(_ABSENT) if _ABSENT_BYTES in stored.tobytes() else 0
    return at + 4 * count + sum(stored) - absent * _ABSENT


def _decode_column(value: bytes, at: int, count: int) -> tuple[Column, int]:
    stored = array("I", value[at : at + 4 * count])
    at += 4 * count
    if _ABSENT_BYTES not in stored.tobytes():
        column: Column = [value[start:stop] for start, stop in pairwise(accumulate(stored, initial=at))]
        return column, at + sum(stored)
    column = []
    for length in stored:
        if length == _ABSENT:
            column.append(None)
        else:
            column.append(value[at : at + length])
            at += length
    return column, at
