"""A block: the records of one or more appends, as immutable columns, and its byte form.

One append becomes one block, a large one several; sealing merges runs of small blocks into larger ones. A block is
found by its first seq and holds `count` records with contiguous seqs. Batches of Kafka clients are stored unchanged, in
a separate block kind (`kafkablock`); `StoredBlock` is the common base. Layout (little-endian):

    header   see `_HEADER`; the checksum is xxh3-64 over the header (with a zero checksum) and the body
    ts       if the records differ in time: u32 runs, then per run u32 count, i64 ts
    data     u32 end offsets, then the bytes
    tag, node, meta   each only if a record has one: u32 lengths (2^32-1 = absent), then the bytes
    kinds    only if a record is not JSON: one byte per record

That is version 2. Version 1 had no `max_ts` in its header and is still read. Version 3 is the same block in two
sections (`sections`), and is written where at least one of them shrinks. Behind header and ts:

    lengths  see `SECTIONS`
    ends     u32 end offsets of the data
    texts    a section: tag, node, the lengths of meta, kinds
    payload  a section of `nbytes`: the bytes of data, then those of meta

The checksum is over what is stored, so damage is found without inflating. The payload is inflated when the data or meta
of a record is first requested: tags, sizes and times are known before.

The record size that every limit, cap and counter uses is len(data) + len(meta) (docs/contract.md, 1.3).
"""

import struct
import sys
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from msgspec import Raw
from xxhash import xxh3_64

from topics_service.storage import sections, varbinary
from topics_service.storage.joined import Joined
from topics_service.storage.recordbatch.header import Buffer
from topics_service.storage.sections import DamagedSectionError, Packed
from topics_service.storage.varbinary import Column, Texts, VarBinary, lengths

# version, flags, count, log_id, base_seq, first_ts, last_ts, max_ts, cum_bytes, nbytes, data_len, checksum
_HEADER = struct.Struct("<BBxxIQQqqqQQQQ")
_HEADER_1 = struct.Struct("<BBxxIQQqqQQQQ")
_U64 = struct.Struct("<Q")
SECTIONS = struct.Struct("<BBxxII")
"""The compression of texts and payload, the stored length of the texts, their length."""
_VERSION = 2
_PACKED_VERSION = 3
_MANY = 16  # records, of which texts can be worth it whatever the data
_TS, _TAG, _NODE, _META, _KIND = 1, 2, 4, 8, 16
_TS_RUN = struct.Struct("<Iq")

if sys.byteorder != "little" or array("I").itemsize != 4 or array("Q").itemsize != 8:  # pragma: no cover
    raise ImportError("topics stores little-endian columns and needs a little-endian machine")


class CorruptBlockError(Exception):
    """The stored bytes are not the requested block."""


class StoredBlock(ABC):
    """Records `base_seq .. base_seq + count - 1` of the log `log_id`, and what can be said without looking at them.

    Never changed after it is stored. `sizes_upto(i)` is the bytes of the records before i; `cum_bytes` the total of
    record bytes in the log before this block. `ts_runs` are (count, commit time), ascending. `max_ts` is the highest
    time of any record of the log up to the end of this block; records of Kafka clients have the clients' times.
    `weight` is about the memory of the block. `payload` is the stored form of its records while they are not inflated.
    """

    __slots__ = (
        "base_seq",
        "count",
        "cum_bytes",
        "first_ts",
        "last_ts",
        "log_id",
        "max_ts",
        "nbytes",
        "payload",
        "ts_runs",
        "weight",
    )

    log_id: int
    base_seq: int
    count: int
    ts_runs: Sequence[tuple[int, int]]
    first_ts: int
    last_ts: int
    max_ts: int
    cum_bytes: int
    nbytes: int
    payload: Packed | None
    weight: int

    @property
    def end_seq(self) -> int:
        """One past the last record's seq."""
        return self.base_seq + self.count

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

    @abstractmethod
    def sizes_upto(self, i: int) -> int:
        """The bytes of the records at positions below i."""

    def size_at(self, i: int) -> int:
        """The bytes of the record at position i."""
        return self.sizes_upto(i + 1) - self.sizes_upto(i)

    @abstractmethod
    def fit(self, start: int, budget: int) -> int:
        """The largest stop such that the records start..stop-1 take at most `budget` bytes."""

    @abstractmethod
    def columns(self) -> "Block":
        """The records as columns, inflated: can raise `weight`. Raises CorruptBlockError."""

    def tagged(self) -> "Block":
        """As `columns`, for readers of sizes, tags and nodes: data and meta may not be inflated."""
        return self.columns()

    def inflate(self) -> None:
        """Inflate the records, unless they are, which raises `weight`. Raises CorruptBlockError."""
        payload = self.payload
        if payload is not None:
            try:
                self._take(payload.inflated())
            except DamagedSectionError as error:
                raise CorruptBlockError(f"block {self.log_id}/{self.base_seq}: {error}") from error
            self.weight += payload.size - len(payload.stored)
            self.payload = None

    def _take(self, payload: bytes) -> None:
        """Take the inflated records. Raises DamagedSectionError."""
        raise NotImplementedError("a block that is always inflated")


class Block(StoredBlock):
    """Records as columns. `ends[i]` is the end of record i's data in `data`.

    While `payload` is there, `_data` is empty and `_metas` has the lengths only.
    """

    __slots__ = ("_data", "_metas", "_nodes", "_prefix", "_tags", "ends", "kinds")

    def __init__(
        self,
        log_id: int,
        base_seq: int,
        ts_runs: Sequence[tuple[int, int]],
        ends: "array[int]",
        data: bytes | Packed,
        tags: Texts | None,
        nodes: Texts | None,
        metas: Texts | None,
        kinds: bytes | None,
        cum_bytes: int,
    ) -> None:
        """Texts may be in their stored form, which is decoded only on use; most readers need none.

        `data` can be the packed payload; `metas` are the lengths then.
        """
        self.log_id = log_id
        self.base_seq = base_seq
        self.count = len(ends)
        self.ts_runs = ts_runs  # (count, ts), ascending ts
        self.first_ts = ts_runs[0][1]
        self.last_ts = self.max_ts = ts_runs[-1][1]  # `max_ts` is raised when it is appended, or read from its row
        self.ends = ends
        self._tags = tags
        self._nodes = nodes
        self._metas = metas
        self.kinds = kinds
        self.cum_bytes = cum_bytes
        self._prefix: Sequence[int] | None = None
        if isinstance(data, Packed):
            self.payload, self._data = data, b""
            self.nbytes, held = data.size, len(data.stored)
        else:
            self.payload, self._data = None, data
            self.nbytes = len(data)
            if metas is not None:
                self.nbytes += varbinary.total(metas, self.count)
            held = self.nbytes
        columns = sum(column is not None for column in (tags, nodes, metas))
        self.weight = 600 + held + self.count * (4 + 60 * columns)

    def columns(self) -> "Block":
        """See StoredBlock: they are."""
        self.inflate()
        return self

    def tagged(self) -> "Block":
        """See StoredBlock."""
        return self

    def _take(self, payload: bytes) -> None:
        """See StoredBlock."""
        if self._metas is None:
            self._data = payload
            return
        size = self.ends[-1] if self.ends else 0
        assert isinstance(self._metas, bytes), "the lengths as they are stored"
        metas = self._metas + payload[size:]
        if varbinary.stored_end(metas, 0, self.count) != len(metas):
            raise DamagedSectionError("the lengths of its metas are not those of the payload")
        self._data, self._metas = payload[:size], metas

    @property
    def data(self) -> bytes:
        """The data of all records, one behind the other."""
        if self.payload is not None:
            self.inflate()
        return self._data

    @property
    def tags(self) -> Column | None:
        """The tag of each record; None when no record has one."""
        if self._tags is None or isinstance(self._tags, list):
            return self._tags
        self._tags = values = self._values(self._tags)
        return values

    @property
    def nodes(self) -> Column | None:
        """The node of each record; None when no record has one."""
        if self._nodes is None or isinstance(self._nodes, list):
            return self._nodes
        self._nodes = values = self._values(self._nodes)
        return values

    @property
    def metas(self) -> Column | None:
        """The meta of each record; None when no record has one."""
        if self.payload is not None:
            self.inflate()
        if self._metas is None or isinstance(self._metas, list):
            return self._metas
        self._metas = values = self._values(self._metas)
        return values

    def _values(self, column: VarBinary | bytes) -> Column:
        return varbinary.pack(column, self.count).values()

    def packed(self, part: Literal["tag", "node", "meta"]) -> VarBinary | Column | None:
        """The tags, nodes or metas, one behind the other; None when no record has one.

        Without decoding single ones until they are needed; else they are there as a column.
        """
        if part == "meta":
            self.inflate()
        name = f"_{part}s"
        column: Texts | None = getattr(self, name)
        if not isinstance(column, bytes):
            return column
        found = varbinary.pack(column, self.count)
        setattr(self, name, found)
        return found

    def packed_tags(self) -> VarBinary | None:
        """Return the concatenated tags while single ones were not requested; None if a record has no tag."""
        tags = self.packed("tag")
        return tags if isinstance(tags, VarBinary) and not tags.absent else None

    def record_data(self, i: int) -> bytes:
        """The data of the record at position i."""
        return self.data[self.ends[i - 1] if i else 0 : self.ends[i]]

    def sizes_upto(self, i: int) -> int:
        """The bytes (data and meta) of the records at positions below i."""
        return self._prefix_sizes()[i - 1] if i else 0

    def size_at(self, i: int) -> int:
        """The bytes of the record at position i."""
        sizes = self._prefix_sizes()
        return sizes[i] - sizes[i - 1] if i else sizes[0]

    def fit(self, start: int, budget: int) -> int:
        """The largest stop such that the records start..stop-1 take at most `budget` bytes."""
        return bisect_right(self._prefix_sizes(), self.sizes_upto(start) + budget, lo=start)

    def positions_of(self, tag: bytes, *, prefix: bool = False) -> list[int]:
        """Return the positions of records with exactly `tag`, or with `prefix` with a tag that starts with it."""
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
            whole, ends = self.data, self.ends
            pieces = [whole[ends[i - 1] if i else 0 : ends[i]] for i in positions]
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
        self.inflate()
        runs = ((self.count, ts),)
        kept_tags, kept_nodes = self._tags if tags else None, self._nodes if nodes else None
        kept_metas = self._metas if metas is None else metas
        return Block(
            log_id, base_seq, runs, self.ends, self.data, kept_tags, kept_nodes, kept_metas, self.kinds, cum_bytes
        )

    def _prefix_sizes(self) -> Sequence[int]:
        if self._metas is None:
            return self.ends
        if self._prefix is None:
            metas = self._metas
            ends = accumulate(lengths(metas, 0)) if isinstance(metas, list) else varbinary.pack(metas, self.count).ends
            self._prefix = array("Q", map(int.__add__, self.ends, ends))
        return self._prefix


class Outline(StoredBlock):
    """A block that is written but not kept in memory: all of it but the records."""

    __slots__ = ("_sizes",)

    def __init__(self, block: StoredBlock) -> None:
        """Of a block that is whole."""
        for name in StoredBlock.__slots__:
            setattr(self, name, getattr(block, name))
        self._sizes = array("Q", map(block.sizes_upto, range(block.count + 1)))

    def sizes_upto(self, i: int) -> int:
        """See StoredBlock."""
        return self._sizes[i]

    def fit(self, start: int, budget: int) -> int:
        """See StoredBlock."""
        return bisect_right(self._sizes, self._sizes[start] + budget, lo=start + 1) - 1

    def columns(self) -> Block:
        """See StoredBlock. They are in the store only."""
        raise LookupError("an outline has no records")


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
    data = datas.data if type(datas) is Joined else b"".join(datas)
    return Block(log_id, base_seq, ((len(ends), ts),), ends, data, tags, nodes, metas, kinds, cum_bytes)


def merge(blocks: Sequence[Block]) -> Block:
    """One block with the records of several that follow each other without a gap."""
    first = blocks[0]
    ends = array("I")
    for offset, block in zip(accumulate((len(b.data) for b in blocks), initial=0), blocks, strict=False):
        ends.extend(block.ends if not offset else array("I", [offset + end for end in block.ends]))
    runs = merge_runs(blocks)
    kinds = None
    if any(b.kinds is not None for b in blocks):
        kinds = b"".join(bytes(b.count) if b.kinds is None else b.kinds for b in blocks)
    merged = Block(
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
    merged.max_ts = blocks[-1].max_ts
    return merged


def merge_runs(blocks: Sequence[StoredBlock]) -> list[tuple[int, int]]:
    """The `ts_runs` of several blocks that follow each other."""
    runs: list[tuple[int, int]] = []
    for block in blocks:
        for count, ts in block.ts_runs:
            if runs and runs[-1][1] == ts:
                runs[-1] = (runs[-1][0] + count, ts)
            else:
                runs.append((count, ts))
    return runs


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
    payload = [block._data if block.payload is None else block.data]
    texts: list[bytes] = []
    tail: list[bytes] = []
    for flag, column in ((_TAG, block.tags), (_NODE, block.nodes), (_META, block.metas)):
        if column is not None:
            flags |= flag
            stored = varbinary.stored(column)
            tail += stored
            texts += stored[: 1 if flag == _META else 2]
            payload += stored[1:] if flag == _META else ()
    if block.kinds is not None:
        flags |= _KIND
        tail.append(block.kinds)
        texts.append(block.kinds)
    ends, data = block.ends.tobytes(), payload[0]
    if block.nbytes >= sections.WORTH or block.count >= _MANY:
        parts = pack(b"".join(texts), b"".join(payload) if len(payload) > 1 else data, ends)
        if parts is not None:
            return sealed(block, _PACKED_VERSION, flags, len(data), parts)
    return sealed(block, _VERSION, flags, len(data), [ends, data, *tail])


def pack(texts: bytes, payload: Buffer, ends: bytes = b"") -> list[Buffer] | None:
    """The parts of a body of two sections, behind its ts; None where neither shrinks."""
    first, second = sections.compressed(texts), sections.compressed(payload)
    if first is None and second is None:
        return None
    codecs = (sections.NONE if stored is None else sections.LZ4 for stored in (first, second))
    stored = texts if first is None else first
    return [SECTIONS.pack(*codecs, len(stored), len(texts)), ends, stored, payload if second is None else second]


def unpack(value: bytes, at: int, count: int) -> tuple[bytes, bytes, int, bytes]:
    """Take the body of two sections, from byte `at` on, apart. Raises DamagedSectionError.

    Returns the end offsets of `count` records, the texts, and compression and stored form of the payload.
    """
    if len(value) < at + SECTIONS.size + 4 * count:
        raise DamagedSectionError(f"{len(value)} bytes are too few for its sections")
    first, second, stored, size = SECTIONS.unpack_from(value, at)
    at += SECTIONS.size
    behind = at + 4 * count
    texts = Packed(first, value[behind : behind + stored], size).inflated()
    return value[at:behind], texts, second, value[behind + stored :]


def read_runs(head: "Head", value: bytes, at: int) -> tuple[list[tuple[int, int]], int]:
    """The times of a block whose body begins at byte `at`, and where the rest of the body begins."""
    if not head.flags & _TS:
        return [(head.records, head.first_ts)], at
    (n,) = struct.unpack_from("<I", value, at)
    at += 4
    return [_TS_RUN.unpack_from(value, at + i * _TS_RUN.size) for i in range(n)], at + n * _TS_RUN.size


class Head(NamedTuple):
    """The fields of a stored block's header."""

    version: int
    flags: int
    records: int
    log_id: int
    base_seq: int
    first_ts: int
    last_ts: int
    max_ts: int
    cum_bytes: int
    nbytes: int
    data_len: int
    checksum: int


def sealed(block: StoredBlock, version: int, flags: int, data_len: int, parts: Sequence[Buffer]) -> bytes:
    """Header, checksum, times where the records differ in them, and the parts of the body."""
    if len(block.ts_runs) > 1:
        flags |= _TS
        times = (_TS_RUN.pack(count, ts) for count, ts in block.ts_runs)
        parts = [struct.pack("<I", len(block.ts_runs)), *times, *parts]
    header = _HEADER.pack(
        version,
        flags,
        block.count,
        block.log_id,
        block.base_seq,
        block.first_ts,
        block.last_ts,
        block.max_ts,
        block.cum_bytes,
        block.nbytes,
        data_len,
        0,
    )
    digest = xxh3_64(header)
    for part in parts:
        digest.update(part)
    return b"".join((header[:-8], _U64.pack(digest.intdigest()), *parts))


def unsealed(value: bytes, log_id: int, base_seq: int) -> tuple[Head, int]:
    """The header of a stored block and where its body begins. Raises CorruptBlockError, see `decode`."""
    layout = _HEADER_1 if value[:1] == b"\x01" else _HEADER
    if len(value) < layout.size:
        raise CorruptBlockError(f"block {log_id}/{base_seq}: {len(value)} bytes are too few for a header")
    fields = layout.unpack_from(value)
    if layout is _HEADER_1:
        fields = (*fields[:7], fields[6], *fields[7:])
    head = Head(*fields)
    digest = xxh3_64(value[: layout.size - 8] + bytes(8))
    digest.update(memoryview(value)[layout.size :])
    if (head.log_id, head.base_seq) != (log_id, base_seq) or digest.intdigest() != head.checksum:
        raise CorruptBlockError(f"block {log_id}/{base_seq}: checksum or identity mismatch (version {head.version})")
    return head, layout.size


def decode(value: bytes, log_id: int, base_seq: int) -> Block:
    """The block of columns stored as `value` under (log_id, base_seq); `kafkablock.decode` reads every kind.

    Raises CorruptBlockError if a byte has changed, or the block belongs elsewhere.
    """
    head, at = unsealed(value, log_id, base_seq)
    if head.version < _PACKED_VERSION:
        return decode_body(head, value, at)
    if head.version > _PACKED_VERSION:
        raise CorruptBlockError(f"block {log_id}/{base_seq}: version {head.version} is unknown")
    try:
        return _decode_packed(head, value, at)
    except DamagedSectionError as error:
        raise CorruptBlockError(f"block {log_id}/{base_seq}: {error}") from error


def decode_body(head: Head, value: bytes, at: int) -> Block:
    """The block whose body begins at byte `at`."""
    flags, count, data_len = head.flags, head.records, head.data_len
    runs, at = read_runs(head, value, at)
    ends = array("I", value[at : at + 4 * count])
    at += 4 * count
    data = value[at : at + data_len]
    at += data_len
    columns: list[bytes | None] = []
    for flag in (_TAG, _NODE, _META):
        if flags & flag:
            stop = varbinary.stored_end(value, at, count) if flags >= 2 * flag else len(value)  # more follows
            columns.append(value[at:stop])
            at = stop
        else:
            columns.append(None)
    kinds = value[at : at + count] if flags & _KIND else None
    return _decoded(head, runs, ends, data, columns, kinds)


def _decode_packed(head: Head, value: bytes, at: int) -> Block:
    """The block of two sections. Its texts are inflated, its payload only if it is stored as it is."""
    flags, count = head.flags, head.records
    runs, at = read_runs(head, value, at)
    stored_ends, texts, codec, payload = unpack(value, at, count)
    ends = array("I", stored_ends)
    if (ends[-1] if ends else 0) != head.data_len:
        raise DamagedSectionError(f"its records end at {ends[-1] if ends else 0}, not {head.data_len}")
    columns: list[bytes | None] = []
    at = 0
    for flag in (_TAG, _NODE):
        if flags & flag:
            stop = varbinary.stored_end(texts, at, count) if flags >= 2 * flag else len(texts)
            columns.append(texts[at:stop])
            at = stop
        else:
            columns.append(None)
    columns.append(texts[at : at + 4 * count] if flags & _META else None)
    at += 4 * count if flags & _META else 0
    kinds = texts[at : at + count] if flags & _KIND else None
    block = _decoded(head, runs, ends, Packed(codec, payload, head.nbytes), columns, kinds)
    if not codec:
        block.inflate()
    return block


def _decoded(
    head: Head,
    runs: Sequence[tuple[int, int]],
    ends: "array[int]",
    data: bytes | Packed,
    columns: Sequence[bytes | None],
    kinds: bytes | None,
) -> Block:
    tags, nodes, metas = columns
    block = Block(head.log_id, head.base_seq, runs, ends, data, tags, nodes, metas, kinds, head.cum_bytes)
    block.max_ts = head.max_ts
    return block
