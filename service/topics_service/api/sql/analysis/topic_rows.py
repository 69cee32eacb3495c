"""Records of the topics of one query as Arrow: of one moment, and of each only what the query needs."""

from collections.abc import Generator, Sequence
from operator import itemgetter
from typing import Any, Final

from topics_service.api.sql.analysis import columns
from topics_service.api.sql.analysis.cache import ROWS_A_SLICE
from topics_service.engine.errors import Reason
from topics_service.engine.tables import plans
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.outcomes import TopicGap
from topics_service.engine.tables.tables import Tables
from topics_service.engine.tables.topic_columns import DATA, META, PARTITION, TOPIC_COLUMNS
from topics_service.engine.tables.topic_reads import TopicMoment, TopicScanner
from topics_service.engine.tables.types import Value

CHUNK_BYTES: Final = 1 << 20
"""The characters of documents that become Arrow at once."""

Steps = Generator[None, None, Any]


class Held:
    """The bytes of topics that all queries hold together, within a bound."""

    def __init__(self, max_bytes: int) -> None:
        self.nbytes = 0
        self.max_bytes = max_bytes

    def grow(self, by: int) -> None:
        """Count more bytes. Raises `query_too_large`."""
        if self.nbytes + by > self.max_bytes:
            message = f"the topics of the query take more than {self.max_bytes} bytes (TOPICS_SQL_CACHE_BYTES)"
            raise sql_error(Reason.QUERY_TOO_LARGE, message, max_bytes=self.max_bytes)
        self.nbytes += by


class TopicRows:
    """Topics as one query reads them. `close` lets go of their rows."""

    def __init__(self, tables: Tables, sources: Sequence[plans.TopicSource], held: Held) -> None:
        self.gaps: list[TopicGap] = []
        self._tables = tables
        self._sources = sources
        self._held = held
        self._nbytes = 0
        self._moments: list[TopicMoment] = []

    def prepare(self) -> Steps:
        """Let what is too old expire. Raises `topic_not_found`, `not_a_log`."""
        for source in self._sources:
            yield from self._reads.prepare(source.topic)

    def take(self) -> None:
        """Hold the topics as they are now, in place of what was held before."""
        self.close()
        self._moments.clear()
        self.gaps.clear()
        for source in self._sources:
            self._moments.append(self._reads.moment(source.topic))

    def read(self, parameters: Sequence[Value], into: dict[str, Any]) -> Steps:
        """Read what is needed, in slices. Raises `query_too_large`."""
        for number, (source, moment) in enumerate(zip(self._sources, self._moments, strict=True)):
            into[f"p{number}"] = yield from self._table(source, moment, parameters)

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        for moment in self._moments:
            moment.close()
        self._held.nbytes -= self._nbytes
        self._nbytes = 0

    @property
    def _reads(self) -> Any:
        assert self._tables.topics is not None, "the engine has topics"
        return self._tables.topics

    def _table(self, source: plans.TopicSource, moment: TopicMoment, parameters: Sequence[Value]) -> Steps:
        wanted = source.scan.columns or (PARTITION,)
        kinds = [(place, TOPIC_COLUMNS[place][1]) for place in wanted]
        pick = itemgetter(*wanted) if len(wanted) > 1 else lambda row: (row[wanted[0]],)
        documents = [place for place in (DATA, META) if place in wanted]
        parts: list[Any] = []
        rows: list[Sequence[Value]] = []
        length = count = 0
        for row in TopicScanner(source, self._tables.environment).rows(moment, parameters, self.gaps):
            if row is None:
                yield
                continue
            rows.append(pick(row))
            for place in documents:
                text = row[place]
                length += len(text) if isinstance(text, str) else 0
            count += 1
            if not count % ROWS_A_SLICE:
                yield
            if len(rows) == columns.ROWS_A_CHUNK or length > CHUNK_BYTES:
                parts.append(self._chunk(kinds, rows))
                rows, length = [], 0
                yield
        parts.append(self._chunk(kinds, rows))
        return columns.joined(kinds, parts)

    def _chunk(self, kinds: columns.Columns, rows: Sequence[Sequence[Value]]) -> Any:
        made = columns.chunk(kinds, rows)
        self._held.grow(made.nbytes)
        self._nbytes += made.nbytes
        return made
