"""Topics as tables: what their partitions hold at one moment, and the records of it that a scan leaves to read."""

from collections.abc import Callable, Generator, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, Final

from topics_service.engine import retention
from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, partition_not_found, topic_not_found
from topics_service.engine.log import Log
from topics_service.engine.model import TagMatch
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.tables import compilation, plans
from topics_service.engine.tables.compilation import Evaluator
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.expressions import Expression
from topics_service.engine.tables.functions import Environment
from topics_service.engine.tables.outcomes import TopicGap
from topics_service.engine.tables.patterns import prefix_of
from topics_service.engine.tables.topic_columns import OFFSET, PARTITION, TAG, TS, Columns, Key, Row, key_of
from topics_service.engine.tables.topic_scan import PartitionScan
from topics_service.engine.tables.types import Value
from topics_service.engine.topic import Topic

_LOGS_A_TURN: Final = 64
_END: Final = 1 << 63
_Rows = Iterator[Row | None]


class TopicMoment:
    """The partitions of a topic that are here, as readers saw them at one moment. `close` lets go of it.

    Until then upkeep removes nothing of them from the disk.
    """

    def __init__(self, reads: "TopicReads", topic: Topic) -> None:
        self.topic = topic
        self._reads = reads
        self._views: dict[int, tuple[Log, Snapshot]] | None = {}
        for partition, log in topic.numbered():
            self._views[partition] = (log, log.view)
            log.scans += 1

    @property
    def partitions(self) -> Sequence[int]:
        """The partitions that are here."""
        return list(self._opened())

    def view(self, partition: int) -> tuple[Log, Snapshot]:
        """A partition. Raises `cross_shard` for one that is in another shard."""
        found = self._opened().get(partition)
        if found is None:
            if not 0 <= partition < self.topic.partition_count:
                raise partition_not_found(self.topic.name, partition, self.topic.partition_count)
            raise _elsewhere(self.topic.name)
        return found

    def check(self) -> None:
        """Raise `topic_not_found` if the topic was deleted since."""
        if not self._reads.is_there(self.topic):
            raise topic_not_found(self.topic.name)

    def close(self) -> None:
        """Let go of it. Idempotent."""
        views, self._views = self._views, None
        for log, _ in (views or {}).values():
            log.scans -= 1
            if not log.scans:
                self._reads.touch(log)

    def _opened(self) -> dict[int, tuple[Log, Snapshot]]:
        assert self._views is not None, "it is closed"
        return self._views


class TopicReads:
    """Reads topics for queries. `touch` makes upkeep look at a log again."""

    def __init__(self, catalog: Catalog, clock: Clock, touch: Callable[[Log], None]) -> None:
        self.touch = touch
        self._catalog = catalog
        self._clock = clock

    def is_there(self, topic: Topic) -> bool:
        """Return whether it is the topic of its name still."""
        return self._catalog.find(topic.name) is topic

    def prepare(self, name: str) -> Generator[None, None, None]:
        """Let what is too old expire, with turns for others. Raises as `moment`."""
        topic = self._find(name)
        for count, (_, log) in enumerate(topic.numbered(), 1):
            log.visible(topic.config, self._clock.now_ms())
            if not count % _LOGS_A_TURN:
                yield

    def moment(self, name: str) -> TopicMoment:
        """The topic as it is visible now. Raises `topic_not_found`, and `not_a_log` for a queue."""
        return TopicMoment(self, self._find(name))

    def _find(self, name: str) -> Topic:
        topic = self._catalog.visible(name)
        if topic.config.type == "queue":
            message = f'topic "{name}" is a queue: its jobs are claimed, not read'
            raise sql_error(Reason.NOT_A_LOG, message, topic=name)
        return topic


class TopicScanner:
    """A scan, compiled. Its rows are those that its facts leave, of one moment."""

    def __init__(self, source: plans.TopicSource, environment: Environment) -> None:
        scan = source.scan
        self.topic = source.topic
        self._facts = [
            (fact.column, fact.op, [_compiled(value, environment) for value in fact.values]) for fact in scan.facts
        ]
        self._like = None if scan.like is None else (_compiled(scan.like.pattern, environment), scan.like.escape)
        self._order = scan.order
        self._reverse = scan.reverse
        self._columns = Columns(scan.columns)

    def rows(self, moment: TopicMoment, parameters: Sequence[Value], gaps: list[TopicGap]) -> _Rows:
        """The rows, and None where others should have a turn."""
        scans = self._scans(moment, parameters, gaps)
        if not self._order or self._order[0] == PARTITION:
            for scan in scans:
                if scan is None:
                    yield None
                else:
                    yield from scan.rows(reverse=self._reverse)
                    yield None
            return
        opened: list[PartitionScan] = []
        for scan in scans:
            if scan is None:
                yield None
            else:
                opened.append(scan)
        if len(opened) == 1:
            yield from opened[0].rows(reverse=self._reverse)
        else:
            yield from _merged(
                [scan.rows(reverse=self._reverse) for scan in opened], key_of(self._order), self._reverse
            )

    def count(self, moment: TopicMoment, parameters: Sequence[Value], gaps: list[TopicGap]) -> Iterator[int | None]:
        """Numbers of records, which together are all that the facts leave, and None for turns."""
        for scan in self._scans(moment, parameters, gaps):
            if scan is None:
                yield None
            else:
                yield from scan.count()

    def _scans(
        self, moment: TopicMoment, parameters: Sequence[Value], gaps: list[TopicGap]
    ) -> Iterator[PartitionScan | None]:
        partitions: set[int] | None = None
        points: set[int] | None = None
        tags: set[str] | None = None
        low, high, from_us, to_us = 1, _END, -_END, _END  # both ends included
        for column, op, evaluators in self._facts:
            values: list[Any] = [evaluate((), None, parameters) for evaluate in evaluators]
            if op in ("=", "in"):
                known = {value for value in values if value is not None}
                if column == PARTITION:
                    partitions = known if partitions is None else partitions & known
                elif column == TAG:
                    tags = known if tags is None else tags & known
                elif column == TS:
                    if not known:
                        return
                    from_us, to_us = max(from_us, *known), min(to_us, *known)
                else:
                    known = {value + (column == OFFSET) for value in known}
                    points = known if points is None else points & known
                continue
            (value,) = values
            if value is None:
                return
            if column == TS:
                if op in (">", ">="):
                    from_us = max(from_us, value + (op == ">"))
                else:
                    to_us = min(to_us, value - (op == "<"))
            else:
                seq = value + (column == OFFSET)
                if op in (">", ">="):
                    low = max(low, seq + (op == ">"))
                else:
                    high = min(high, seq - (op == "<"))
        matches = self._matches(tags, parameters)
        there = moment.partitions
        if partitions is None:
            if len(there) != moment.topic.partition_count:
                raise _elsewhere(moment.topic.name)
            wanted: Sequence[int] = there
        else:
            wanted = [each for each in sorted(partitions) if 0 <= each < moment.topic.partition_count]
        if self._reverse:
            wanted = list(reversed(wanted))
        for count, partition in enumerate(wanted, 1):
            log, view = moment.view(partition)
            first, last = low, min(high, view.head)
            if from_us > -_END:
                moment.check()
                start = retention.first_at_or_after(view, log.blocks, -(-from_us // 1000))
                if start > view.earliest:  # else what was lost may have been as new
                    first = max(first, start)
            if to_us < _END:
                moment.check()
                last = min(last, retention.first_at_or_after(view, log.blocks, to_us // 1000 + 1) - 1)
            if not count % _LOGS_A_TURN or from_us > -_END or to_us < _END:
                yield None
            yield PartitionScan(
                moment.topic.name, partition, log, view, self._columns, moment.check, gaps, low=first, high=last,
                points=None if points is None else list(points), tags=matches,
            )  # fmt: skip

    def _matches(self, tags: set[str] | None, parameters: Sequence[Value]) -> list[TagMatch] | None:
        if tags is not None:
            return [TagMatch(op="Eq", value=each.encode()) for each in sorted(tags)]
        if self._like is None:
            return None
        pattern, escape = self._like
        value = pattern((), None, parameters)
        if not isinstance(value, str):
            return []
        prefix = prefix_of(value, escape)
        return [TagMatch(op="Glob", value=prefix.encode())] if prefix else None


def _compiled(expression: Expression, environment: Environment) -> Evaluator:
    return compilation.compile_expression(expression, {}, environment)


def _merged(ways: Sequence[_Rows], key: Key, reverse: bool) -> _Rows:
    """The rows of several partitions, each in order, as one in order."""
    heads: list[Any] = []
    for number, way in enumerate(ways):
        for row in way:
            if row is not None:
                heads.append(_Head(key(row), number, row, way, reverse))
                break
            yield None
        yield None
    heapify(heads)
    while heads:
        head = heads[0]
        yield head.row
        for row in head.way:
            if row is None:
                yield None
                continue
            heapreplace(heads, _Head(key(row), head.number, row, head.way, reverse))
            break
        else:
            heappop(heads)


class _Head:
    """The next row of a partition."""

    __slots__ = ("key", "number", "reverse", "row", "way")

    def __init__(self, key: tuple[Any, ...], number: int, row: Row, way: _Rows, reverse: bool) -> None:
        self.key = key
        self.number = number
        self.row = row
        self.way = way
        self.reverse = reverse

    def __lt__(self, other: "_Head") -> bool:
        if self.key != other.key:
            return (other.key < self.key) if self.reverse else (self.key < other.key)
        return self.number < other.number


def _elsewhere(name: str) -> Exception:
    message = f'partitions of topic "{name}" are in other shards than tables: name some that are here in the WHERE'
    return sql_error(Reason.CROSS_SHARD, message, topic=name)
