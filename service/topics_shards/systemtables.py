"""The system tables that have rows in every shard, as one: read by the shard that runs the statement.

Each shard is asked for its rows page by page, all shards at once; one that does not answer fails the statement. The
whole is not of one moment.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final

from topics_service.api.access.auth import Principal
from topics_service.api.sql.systempages import GroupOffset, Row, SystemPages, TopicPart, read_page
from topics_service.engine.errors import Reason
from topics_service.engine.offsets.positions import lag_of
from topics_service.engine.tables.errors import sql_error
from topics_shards.ends import ends_of
from topics_shards.locating import Located
from topics_shards.shards import at_once

MAX_ROWS: Final = 500_000


class MergedSystemTables:
    """See MergedTables."""

    def __init__(self, located: Located, *, max_rows: int = MAX_ROWS) -> None:
        self._located = located
        self._max_rows = max_rows

    async def read(self, table: str, principal: Principal) -> Callable[[], Iterable[Row]]:
        """See MergedTables. Raises `result_too_large` beyond the bound on rows."""
        reading = _Reading(self._located, table, principal, self._max_rows)
        await at_once(reading.shard(number) for number in range(self._located.shards.count))
        return reading.merged


class _Reading:
    """The pages of all shards, within a bound on their rows."""

    def __init__(self, located: Located, table: str, principal: Principal, left: int) -> None:
        self._topics: list[list[Row]] = []
        self._parts: list[list[TopicPart]] = []
        self._offsets: list[list[Row]] = []
        self._located = located
        self._table = table
        self._principal = principal
        self._left = left

    def merged(self) -> Iterator[Row]:
        """The rows of the table in its order."""
        match self._table:
            case "topics":
                return merge(*self._topics, key=itemgetter(1))
            case "topic_partitions":
                return _partitions(merge(*self._parts, key=attrgetter("topic")))
        return merge(*self._offsets, key=itemgetter(2, 1, 3))

    async def shard(self, number: int) -> None:
        """Read all pages of a shard."""
        topics: list[Row] = []
        parts: list[TopicPart] = []
        offsets: list[Row] = []
        self._topics.append(topics)
        self._parts.append(parts)
        self._offsets.append(offsets)
        call = self._located.shards.call
        after: tuple[str, str, int] | None = ("", "", 0)
        while after is not None:
            page = read_page(await call(number, SystemPages.page, self._table, *after, principal=self._principal))
            self._left -= len(page.topics) + len(page.offsets)
            self._left -= sum(max(1, len(part.partitions), part.count) for part in page.parts)
            if self._left < 0:
                message = f"system.{self._table} has too many rows over all shards to be read"
                raise sql_error(Reason.RESULT_TOO_LARGE, message)
            topics += page.topics
            parts += page.parts
            if page.offsets:
                offsets += await self._positions(page.offsets)
            after = page.after

    async def _positions(self, offsets: Sequence[GroupOffset]) -> list[Row]:
        """Rows of positions, with what their partitions have behind them, but for those of topics that are gone."""
        found = await ends_of(self._located, ((each.topic, each.partition) for each in offsets))
        rows: list[Row] = []
        for each in offsets:
            ends = found[each.topic, each.partition]
            if isinstance(ends, Exception) or ends.topic_id != each.topic_id:
                continue
            upto = min(each.from_seq, ends.head_seq)
            rows.append(
                (
                    each.topic_id, each.topic, each.group, each.partition, upto - 1 if upto else None,
                    lag_of(upto, ends.head_seq), each.ts * 1000,
                )
            )  # fmt: skip
        return rows


def _partitions(parts: Iterable[TopicPart]) -> Iterator[Row]:
    """The rows of partitions, of which each shard has some; one that its shard does not know yet is empty."""
    for name, group in groupby(parts, key=attrgetter("topic")):
        of_topic = list(group)
        home = next((part for part in of_topic if part.count), None)
        if home is None:
            continue  # deleted while the shards were read
        known = {each[0]: each for part in of_topic if part.topic_id == home.topic_id for each in part.partitions}
        for number in range(home.count):
            yield name, *known.get(number, (number, 0, 0, 0, 0))
