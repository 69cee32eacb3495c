"""Pages of the system tables that have rows in every shard, for the shard that runs the statement."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from topics_service.api.access.auth import Principal
from topics_service.engine import names
from topics_service.engine.engine import Engine
from topics_service.engine.offsets.group_index import in_order
from topics_service.engine.tables.types import Value
from topics_service.engine.topic import Topic

SPREAD: Final = frozenset({"topics", "topic_partitions", "topic_offsets"})
"""The system tables that have rows in every shard."""
_ROWS: Final = 1000

Row = Sequence[Value]


class TopicPart(Struct, array_like=True):
    """The partitions of a topic that are in a shard; `count` is the number of all at the topic's home, else 0.

    Each has its number, its first and its next offset, and the records and bytes in it.
    """

    topic: str
    topic_id: str
    count: int
    partitions: list[tuple[int, int, int, int, int]]


class GroupOffset(Struct, array_like=True):
    """A position of a group of a shard; `ts` in ms."""

    group: str
    topic: str
    topic_id: str
    partition: int
    from_seq: int
    ts: int


class SystemPage(Struct, kw_only=True):
    """Rows of one kind in order, and what the next page comes behind; None after the last one."""

    topics: list[list[Any]] = []
    parts: list[TopicPart] = []
    offsets: list[GroupOffset] = []
    after: tuple[str, str, int] | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
read_page: Final = msgspec.msgpack.Decoder(SystemPage).decode


class SystemPages:
    """Makes the pages of one shard."""

    def __init__(self, admit: Callable[[], Engine], row: Callable[[Topic, Principal], Row]) -> None:
        """`admit` gives the engine or refuses every call, `row` makes the row of a topic."""
        self._admit = admit
        self._row = row

    async def page(self, table: str, group: str, topic: str, partition: int, *, principal: Principal) -> bytes:
        """A page of a table of `SPREAD`, in the encoding of `SystemPage`, behind a place in its order.

        Topics and their partitions are in the order of their names, positions in that of groups, topics, partitions.
        """
        engine = self._admit()
        if table == "topic_offsets":
            page = self._offsets(engine, (group, topic, partition), principal)
        else:
            page = self._topics(engine, table, topic, principal)
        return _encode(page)

    def _topics(self, engine: Engine, table: str, after: str, principal: Principal) -> SystemPage:
        page, rows = SystemPage(), 0
        parts = table == "topic_partitions"
        for name in engine.catalog.under(names.narrow("", principal.prefixes), after or None, parts=parts):
            topic = engine.catalog.topics[name]
            if rows >= _ROWS:
                return page
            page.after = "", name, 0
            if engine.catalog.unsynced(topic):
                continue
            if parts:
                here = [
                    (number, log.view.earliest - 1, log.view.head, log.view.count, log.view.bytes)
                    for number, log in topic.numbered()
                ]
                count = 0 if topic.is_part else topic.partition_count
                page.parts.append(TopicPart(name, topic.topic_id, count, here))
                rows += 1 + len(here)
            else:
                page.topics.append(list(self._row(topic, principal)))
                rows += 1
        page.after = None
        return page

    def _offsets(self, engine: Engine, after: tuple[str, str, int], principal: Principal) -> SystemPage:
        found = list(islice(self._positions(engine, after, principal), _ROWS))
        last = found[-1] if len(found) == _ROWS else None
        return SystemPage(offsets=found, after=None if last is None else (last.group, last.topic, last.partition))

    def _positions(self, engine: Engine, after: tuple[str, str, int], principal: Principal) -> Iterator[GroupOffset]:
        index = engine.groups.index
        first, *place = after
        started = index.find(first) if first and principal.allows_name(first) else None
        rest = index.under("", principal.prefixes, first or None)
        for name in rest if started is None else _chain(first, rest):
            group = index.find(name)
            for topic, partition, position in () if group is None else in_order(group):
                if name == first and [topic.name, partition] <= place:
                    continue
                if principal.allows_name(topic.name):
                    yield GroupOffset(name, topic.name, topic.topic_id, partition, position.from_seq, position.ts)


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest
