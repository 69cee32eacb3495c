"""Records as JSON, spliced from the bytes they are stored as; rendered once and shared by all readers."""

from array import array
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from operator import add
from typing import Final, NamedTuple

from topics_gateway.response import encode
from topics_service.engine.model import BINARY_KIND, Slice
from topics_service.statistics import CacheStatistics
from topics_service.storage.block import Block

_MUST_ESCAPE: Final = bytes([*range(0x20), *b'"\\'])
_ENTRY_WEIGHT: Final = 400  # of a cache entry, without its bytes
_SHARE: Final = 4  # a slice below 1/4 of its block is rendered alone


class Parts(NamedTuple):
    """The optional members of rendered records."""

    tags: bool
    metas: bool
    datas: bool = True


class _Page(NamedTuple):
    text: bytes  # all records of a block, with commas between them
    ends: "array[int]"  # where each record ends


_Key = tuple[int, int, int, Parts]


class RenderCache:
    """Renders slices of blocks and keeps whole rendered blocks, the least recently used leave at `max_bytes`.

    Blocks never change and are known by log, first seq and count, so nothing here is ever stale.
    """

    def __init__(self, max_bytes: int) -> None:
        self.statistics = CacheStatistics()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._pages: OrderedDict[_Key, _Page] = OrderedDict()

    @property
    def size(self) -> int:
        """The size of the cached pages in bytes."""
        return self._bytes

    def records(self, slices: Sequence[Slice], parts: Parts) -> list[bytes | memoryview]:
        """The JSON texts of runs of records, each without a comma at its ends."""
        return [self._run(piece, parts) for piece in slices if piece.start < piece.stop]

    def _run(self, piece: Slice, parts: Parts) -> bytes | memoryview:
        block, start, stop = piece.block, piece.start, piece.stop
        parts = Parts(
            parts.tags and block.tags is not None, parts.metas and block.metas is not None, parts.datas
        )  # what makes a difference here
        key = (block.log_id, block.base_seq, block.count, parts)
        page = self._pages.get(key)
        if page is not None:
            self._pages.move_to_end(key)
            self.statistics.hits += 1
        elif (stop - start) * _SHARE < block.count or block.weight > self._max_bytes // 8:
            self.statistics.misses += 1
            return _splice(_columns(block, start, stop, parts), stop - start)
        else:
            self.statistics.misses += 1
            page = self._keep(key, _render(block, parts))
        if start == 0 and stop == block.count:
            return page.text
        return memoryview(page.text)[page.ends[start - 1] + 1 if start else 0 : page.ends[stop - 1]]

    def _keep(self, key: _Key, page: _Page) -> _Page:
        self._pages[key] = page
        self._bytes += _weight(page)
        while self._bytes > self._max_bytes:
            self._bytes -= _weight(self._pages.popitem(last=False)[1])
        return page


def _weight(page: _Page) -> int:
    return _ENTRY_WEIGHT + len(page.text) + page.ends.itemsize * len(page.ends)


def _render(block: Block, parts: Parts) -> _Page:
    columns = _columns(block, 0, block.count, parts)
    return _Page(_splice(columns, block.count), _ends(columns, block.count))


# The members of the records as columns: bytes that all records share, or a list of one piece for each record. The
# first column opens a record and closes the one before it.
_Columns = list[bytes | list[bytes]]
_OPEN: Final = b'},{"$seq":'
_SEQS: Final = 1  # the place of the column of seqs


def _columns(block: Block, start: int, stop: int, parts: Parts) -> _Columns:
    columns: _Columns = [_OPEN]
    columns.append(encode(list(range(block.base_seq + start, block.base_seq + stop)))[1:-1].split(b","))
    columns.append(_timestamps(block, start, stop))
    datas = _datas(block, start, stop) if parts.datas else []
    if parts.datas and block.kinds is not None and any(kinds := block.kinds[start:stop]):
        columns.append([b',"$encoding":"base64"' if kind == BINARY_KIND else b"" for kind in kinds])
        datas = [
            b'"%b"' % b64encode(data) if kind == BINARY_KIND else data for data, kind in zip(datas, kinds, strict=True)
        ]
    if block.nodes is not None:
        columns += _texts(b',"$node":', block.nodes[start:stop])
    if parts.tags and block.tags is not None:
        columns += _texts(b',"$tag":', block.tags[start:stop])
    if parts.datas:
        columns += (b',"data":', datas)
    if parts.metas and block.metas is not None:
        columns.append([b"" if meta is None else b',"meta":%b' % meta for meta in block.metas[start:stop]])
    return columns


def _datas(block: Block, start: int, stop: int) -> list[bytes]:
    ends = block.ends[start:stop]
    begins, whole = [block.ends[start - 1] if start else 0, *ends[:-1]], block.data
    return [whole[begin:end] for begin, end in zip(begins, ends, strict=True)]


def _timestamps(block: Block, start: int, stop: int) -> bytes | list[bytes]:
    if len(block.ts_runs) == 1:
        return b',"$ts":%d' % block.first_ts
    pieces: list[bytes] = []
    for count, ts in block.ts_runs:
        pieces += repeat(b',"$ts":%d' % ts, count)
    return pieces[start:stop]


def _texts(frame: bytes, values: Sequence[bytes | None]) -> _Columns:
    present = [value for value in values if value is not None]
    if len(present) == len(values):
        joined = b"".join(present)
        if len(joined.translate(None, _MUST_ESCAPE)) == len(joined):
            return [frame + b'"', present, b'"']
    return [[b"" if value is None else frame + encode(value.decode()) for value in values]]


def _splice(columns: _Columns, count: int) -> bytes:
    width = len(columns)
    pieces = [b""] * (width * count)
    for at, column in enumerate(columns):
        pieces[at::width] = [column] * count if isinstance(column, bytes) else column
    pieces[0] = _OPEN.removeprefix(b"},")
    pieces.append(b"}")
    return b"".join(pieces)


def _ends(columns: _Columns, count: int) -> "array[int]":
    """The end of each record in the text that `_splice` makes of the columns."""
    shared = 0
    sizes: Iterator[int] = repeat(0, count)
    for at, column in enumerate(columns):
        if isinstance(column, bytes):
            shared += len(column)
        elif at == _SEQS and len(column[0]) == len(column[-1]):  # they grow, so all have as many digits
            shared += len(column[0])
        else:
            sizes = map(add, sizes, map(len, column))
    # Each record but the first has "}," in front, and its own "}" comes with the next: one byte less at every end.
    return array("Q", list(map(add, range(shared - 1, shared * count, shared), accumulate(sizes))))
