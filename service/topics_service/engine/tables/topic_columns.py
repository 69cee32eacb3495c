"""Columns of a topic that is read as a table, and the values of its records in them."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Final

from topics_service.engine.model import BINARY_KIND
from topics_service.engine.tables.types import BIGINT, INTEGER, JSON, TEXT, TIMESTAMP, Type, Value
from topics_service.storage.block import Block, StoredBlock

PARTITION: Final = 0
SEQ: Final = 1
OFFSET: Final = 2
TS: Final = 3
TAG: Final = 4
NODE: Final = 5
DATA: Final = 6
META: Final = 7
TOPIC_COLUMNS: Final[tuple[tuple[str, Type], ...]] = (
    ("partition", INTEGER), ("seq", BIGINT), ("offset", BIGINT), ("ts", TIMESTAMP), ("tag", TEXT), ("node", TEXT),
    ("data", JSON), ("meta", JSON),
)  # fmt: skip
"""Columns in the order of `SELECT *`."""
_RECORDS: Final = frozenset({DATA, META})
_TEXTS: Final = frozenset({TAG, NODE})
_NULL: Final = b"null"
_SPACES: Final = b" \t\r\n"

Row = Sequence[Value]


class Columns:
    """The columns that a scan reads. What they need of a block is read, and nothing else is inflated or decoded."""

    def __init__(self, wanted: Iterable[int]) -> None:
        self.wanted = frozenset(wanted)
        self.needs_records = bool(self.wanted & _RECORDS)
        self.needs_texts = bool(self.wanted & _TEXTS)

    def rows(self, partition: int, block: StoredBlock, start: int, stop: int) -> Iterator[Row]:
        """The rows of the records at positions `start` to `stop` - 1 of a block, which has what is needed."""
        wanted, base = self.wanted, block.base_seq
        nothing: Iterable[Value] = repeat(None)
        tags = nodes = datas = metas = nothing
        if isinstance(block, Block):
            if TAG in wanted:
                tags = _texts(block.tags, start, stop)
            if NODE in wanted:
                nodes = _texts(block.nodes, start, stop)
            if DATA in wanted:
                datas = _datas(block, start, stop)
            if META in wanted:
                metas = _texts(block.metas, start, stop)
        return zip(
            repeat(partition, stop - start),
            range(base + start, base + stop),
            range(base + start - 1, base + stop - 1),
            islice(_times(block), start, stop) if TS in wanted else nothing,
            tags,
            nodes,
            datas,
            metas,
            strict=False,
        )


def _times(block: StoredBlock) -> Iterator[int]:
    """The times of all records of a block, in microseconds."""
    for count, ts in block.ts_runs:
        yield from repeat(ts * 1000, count)


def _texts(column: Sequence[bytes | None] | None, start: int, stop: int) -> Iterable[str | None]:
    if column is None:
        return repeat(None)
    return (None if each is None else each.decode() for each in column[start:stop])


def _datas(block: Block, start: int, stop: int) -> Iterator[str | None]:
    data, kinds, ends = block.data, block.kinds, block.ends
    begin = ends[start - 1] if start else 0
    for place in range(start, stop):
        end = ends[place]
        yield document_of(data[begin:end], 0 if kinds is None else kinds[place])
        begin = end


def document_of(data: bytes, kind: int) -> str | None:
    """The data of a record as JSON text: null is NULL, and bytes that are no JSON are `{"$base64": "..."}`."""
    if kind == BINARY_KIND:
        return f'{{"$base64":"{b64encode(data).decode()}"}}'
    if data == _NULL:
        return None
    if data[:1] in _SPACES or data[-1:] in _SPACES:
        data = data.strip(_SPACES)
    return data.decode()


Key = Callable[[Row], tuple[Value, ...]]


def key_of(order: Sequence[int]) -> Key:
    """The function that makes the key of a row by which rows of several partitions are merged."""
    return lambda row: tuple([row[place] for place in order])
