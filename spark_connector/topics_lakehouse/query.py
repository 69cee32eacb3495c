"""SQL over the tables of the lakehouse, fresh to the last acknowledged record.

A table is its pinned snapshot plus the hot tail: newer records of the topic, read from the server at the time of the
query. No record is doubled or missing, because the snapshot has its positions. A record deleted in the topic disappears
from the hot tail at once, from the table with `sync_deletes`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self

import duckdb
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from pyspark_topics.fetch import Fetcher
from pyspark_topics.inventory import find_topic, find_topics
from topics_client.connection import Connection
from topics_client.errors import NotFoundError
from topics_client.retry import Retry
from topics_lakehouse.catalog import RECORDS, TOPIC, TableError, find_table, open_catalog, reachable, table_state
from topics_lakehouse.config import Config
from topics_lakehouse.duck import Scans, quoted
from topics_lakehouse.history import RolledBackError, check_history
from topics_lakehouse.hot import hot_tail
from topics_lakehouse.progress import witnessed
from topics_lakehouse.schema import ENVELOPE, typed_columns

HOT_RECORDS: Final = 1_000_000
HOT_BYTES: Final = 512 << 20

_PATIENCE: Final = Retry(seconds=10)  # someone waits for the answer


class QueryError(Exception):
    """DuckDB refuses the SQL, or fails at it."""


class Lakehouse:
    """A session. The first query of a table reads its manifests and files, later ones only new ones.

    Every table of the namespace is a view of its name, also `<table>_errors` and `<table>_gaps`, which are without a
    hot tail. A configured topic that has no table yet is all hot tail. For one thread at a time.
    """

    def __init__(
        self,
        config: Config,
        *,
        catalog: Catalog | None = None,
        hot_records: int = HOT_RECORDS,
        hot_bytes: int = HOT_BYTES,
        threads: int | None = None,
    ) -> None:
        """`hot_records` and `hot_bytes` bound the memory of one topic's hot tail."""
        self._config = config
        self._catalog = open_catalog(config) if catalog is None else catalog
        self._hot_records = hot_records
        self._hot_bytes = hot_bytes
        self._server = Connection(config.address, retry=_PATIENCE)
        self._fetcher = Fetcher(config.address, retry=_PATIENCE)
        self._duck = duckdb.connect(config={"python_enable_replacements": False})
        self._duck.execute("SET TimeZone = 'UTC'")
        if threads is not None:
            self._duck.execute(f"SET threads = {threads:d}")
        self._scans = Scans(self._duck)
        self._made: list[str] = []
        self._new: dict[str, str] = {}  # topics without a table that the query may be about, by its name

    def query(self, sql: str, *, fresh: bool = True) -> pa.Table:
        """The result, in memory; see `stream`."""
        with self.stream(sql, fresh=fresh) as reader:
            return reader.read_all()

    @contextmanager
    def stream(self, sql: str, *, fresh: bool = True) -> Iterator[pa.RecordBatchReader]:
        """The result batch by batch, within the context. Without `fresh` the tables alone are asked, and no server.

        Raises QueryError, HotTailError, TableError, CatalogDownError, and TopicsError where the server does not answer.
        """
        reader: pa.RecordBatchReader | None = None
        try:
            for name, rows in self._wanted(sql, fresh=fresh):
                if rows:
                    self._view(name, fresh=fresh)
                else:
                    self._name(name)
            relation = self._duck.sql(sql)
            reader = relation.to_arrow_reader() if relation is not None else pa.table({}).to_reader()
            yield reader
        except (duckdb.Error, pa.ArrowException) as error:
            raise QueryError(str(error)) from error
        finally:
            if reader is not None:
                reader.close()
            with suppress(duckdb.Error):  # there seldom is one
                self._duck.rollback()
            self._scans.release()
            while self._made:  # nothing may ever meet a view of an earlier query
                self._duck.execute(f"DROP {self._made.pop()}")  # the SQL may have dropped it

    def tables(self) -> list[str]:
        """Names of the tables that there are."""
        with reachable():
            return sorted(name[-1] for name in self._catalog.list_tables(self._config.namespace))

    def _wanted(self, sql: str, *, fresh: bool) -> list[tuple[str, bool]]:
        """The tables that the SQL may be about, and whether it is about their rows: those that it names, all for a list
        of tables, or, where DuckDB does not tell, those whose name is somewhere in it."""
        ((text,),) = self._duck.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
        parsed = json.loads(text)
        self._new = {}
        known = list(dict.fromkeys([*self._topics(), *self.tables()]))
        if parsed.get("error", True):
            if fresh:
                known = self._with_new(known)
            found = [name for name in known if name.lower() in sql.lower()]
            return [(name, True) for name in _spelled(found, lambda name: name in sql)]
        if any(node.get("show_type") == "SHOW_SPECIAL" for node in _nodes(parsed, "SHOW_REF")):
            return [(name, False) for name in {name.lower(): name for name in known}.values()]
        nodes = list(_nodes(parsed, "BASE_TABLE"))
        named = {node["table_name"] for node in nodes}
        plain = {node["table_name"] for node in nodes if not node.get("schema_name")} - set(_ctes(parsed))
        if fresh and {name.lower() for name in plain} - {name.lower() for name in known}:
            known = self._with_new(known)
        folded = {name.lower() for name in named}
        found = [name for name in known if name.lower() in folded]
        return [(name, True) for name in _spelled(found, lambda name: name in named)]

    def _topics(self) -> dict[str, str]:
        """Configured topics by the names of their tables."""
        return {self._config.table(rule.name): rule.name for rule in self._config.topics if rule.name} | self._new

    def _with_new(self, known: Sequence[str]) -> list[str]:
        """The names, and those of all topics that match a pattern: they may be too new to have a table."""
        patterns = [rule.pattern for rule in self._config.topics if rule.pattern]
        found = (info.topic for pattern in patterns for info in find_topics(self._server, pattern=pattern))
        self._new = {self._config.table(topic): topic for topic in found}
        return list(dict.fromkeys([*known, *self._new]))

    def _view(self, name: str, *, fresh: bool) -> None:
        table = find_table(self._catalog, (*self._config.namespace.split("."), name))  # first the snapshot, then heads
        if table is not None and TOPIC in table.properties:
            self._check(table, fresh=fresh)
        selects = list(self._scans.selects(table)) if table is not None else []
        topic = self._topics().get(name) if table is None else table.properties.get(TOPIC)
        if topic is None and table is None:
            return
        if table is None:
            selects.append(self._scans.register(pa.schema([*ENVELOPE, *self._declared(topic)]).empty_table()))
        if fresh and topic is not None and self._config.table(topic) == name:
            hot = self._hot(topic, table)
            if hot is not None:
                selects.append(self._scans.register(hot))
        body = " UNION ALL BY NAME ".join(selects)
        self._duck.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS {body}")
        self._made.append(f"VIEW IF EXISTS temp.main.{quoted(name)}")

    def _check(self, table: Table, *, fresh: bool) -> None:
        """Raises RolledBackError."""
        witness = witnessed(self._server, self._config.group, table.properties[TOPIC]) if fresh else {}
        try:
            check_history(table, witness)
        except RolledBackError:  # or only older than the group's newer commits
            with reachable():
                check_history(table.refresh(), witness)

    def _name(self, name: str) -> None:
        """Something empty of that name, for a list of tables."""
        self._duck.execute(f"CREATE TEMP TABLE {quoted(name)} (partition INTEGER)")
        self._made.append(f"TABLE IF EXISTS temp.main.{quoted(name)}")

    def _declared(self, topic: str | None) -> pa.Schema:
        rule = self._config.rule(topic) if topic is not None else None
        return rule.columns if rule is not None else pa.schema([])

    def _hot(self, topic: str, table: Table | None) -> pa.Table | None:
        try:
            info = find_topic(self._server, topic)
        except NotFoundError:
            if table is None:
                raise
            return None  # all records of the topic are in the table
        positions: Mapping[int, int] = {}
        columns = self._declared(topic)
        if table is not None:
            state = table_state(table)
            if state.role != RECORDS:
                return None
            if state.topic_id != info.topic_id:
                raise TableError(
                    f"topic {topic} was deleted and recreated since table {'.'.join(table.name())} followed it: ask "
                    "the table alone, or see to it that the pipeline puts it aside"
                )
            positions, columns = state.positions, typed_columns(table, columns)
        return hot_tail(
            self._fetcher,
            info,
            positions,
            columns,
            max_records=self._hot_records,
            max_bytes=self._hot_bytes,
        )

    def close(self) -> None:
        """End the session."""
        self._fetcher.close()
        self._server.close()
        self._duck.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _spelled(names: Sequence[str], said: Callable[[str], bool]) -> list[str]:
    """The names, and of those that differ in capitals only, which DuckDB takes for one, that which the SQL has."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.lower(), []).append(name)
    for same in found.values():
        if len(same) > 1:
            same[:] = list(filter(said, same)) or same
        if len(same) > 1:
            raise QueryError(
                f"tables {' and '.join(same)} differ in capitals only: ask for one of them, as it is spelled"
            )
    return [name for (name,) in found.values()]


def _ctes(node: Any) -> Iterator[str]:
    """Names of the common table expressions in a parsed statement."""
    if isinstance(node, dict):
        yield from (each["key"] for each in node.get("cte_map", {}).get("map", ()))
        for each in node.values():
            yield from _ctes(each)
    elif isinstance(node, list):
        for each in node:
            yield from _ctes(each)


def _nodes(node: Any, kind: str) -> Iterator[dict[str, Any]]:
    """Every node of this type in a parsed statement."""
    if isinstance(node, dict):
        if node.get("type") == kind:
            yield node
        for each in node.values():
            yield from _nodes(each, kind)
    elif isinstance(node, list):
        for each in node:
            yield from _nodes(each, kind)
