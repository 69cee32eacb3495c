"""Status and problems of each topic's tables."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from pyspark_topics.inventory import TopicInfo, find_topic, find_topics
from topics_client.connection import Connection
from topics_client.errors import NotFoundError, TopicsError, UnavailableError
from topics_lakehouse.catalog import (
    ERRORS,
    GAPS,
    RANGES,
    RECORDS,
    TOPIC,
    TableError,
    find_table,
    identifier,
    owned_state,
    reachable,
)
from topics_lakehouse.config import Config
from topics_lakehouse.history import Witness, check_history
from topics_lakehouse.progress import witnessed
from topics_lakehouse.schema import SchemaError, check_envelope, differences
from topics_lakehouse.shares import lags


@dataclass(slots=True)
class TopicStatus:
    """One topic. Unknown values are None; a topic that is in order has no problems."""

    topic: str
    table: str
    positions: Mapping[int, int] = field(default_factory=dict)
    heads: Mapping[int, int] | None = None
    lag: int | None = None  # records that are not in the table yet, at most
    last_commit: datetime | None = None  # of records; as far as snapshots are kept
    rows: int = 0
    files: int = 0
    bytes: int = 0
    snapshots: int = 0
    errors: int = 0  # records that do not fit the declared columns
    gaps: int = 0  # ranges that retention took before they were read
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For JSON: the time as ISO 8601, partitions as texts."""
        found = asdict(self)
        found["positions"] = {str(partition): seq for partition, seq in self.positions.items()}
        found["heads"] = None if self.heads is None else {str(p): seq for p, seq in self.heads.items()}
        found["last_commit"] = None if self.last_commit is None else self.last_commit.isoformat(timespec="milliseconds")
        return found


def status(config: Config, catalog: Catalog, connection: Connection) -> list[TopicStatus]:
    """Every configured topic, and every one whose table is left, by name.

    An unavailable server is a problem of each topic, and does not prevent reporting the rest. Raises
    CatalogDownError.
    """
    found = []
    try:
        topics, failure = _topics(config, connection), ""
    except TopicsError as error:
        topics, failure = {rule.name: None for rule in config.topics if rule.name}, str(error)
    for topic in sorted(topics.keys() | _followed(config, catalog)):
        known = topics.get(topic)
        try:
            witness = {} if known is None else witnessed(connection, config.group, topic)
        except UnavailableError:
            witness = {}
        each = TopicStatus(topic, ".".join(identifier(config, topic)))
        table = find_table(catalog, identifier(config, topic))
        if failure:
            each.problems.append(f"the server does not answer: {failure}")
        elif known is None:
            each.problems.append("the topic does not exist" + ("" if table is None else ", only its table"))
        _check(each, config, catalog, table, known, witness)
        found.append(each)
    return found


def _topics(config: Config, connection: Connection) -> dict[str, TopicInfo | None]:
    found: dict[str, TopicInfo | None] = {}
    for rule in config.topics:
        if rule.name:
            try:
                found[rule.name] = find_topic(connection, rule.name)
            except NotFoundError:
                found[rule.name] = None
        else:
            for info in find_topics(connection, pattern=rule.pattern):
                found.setdefault(info.topic, info)
    return found


def _followed(config: Config, catalog: Catalog) -> set[str]:
    """Topics that a rule is about and that have a table."""
    if all(rule.name for rule in config.topics):
        return set()
    with reachable():
        names = list(catalog.list_tables(config.namespace))
    tables = filter(None, (find_table(catalog, name) for name in names))
    topics = {(table.properties.get(TOPIC, ""), table.name()) for table in tables}
    return {topic for topic, name in topics if config.rule(topic) is not None and identifier(config, topic) == name}


def _check(
    each: TopicStatus,
    config: Config,
    catalog: Catalog,
    table: Table | None,
    info: TopicInfo | None,
    witness: Witness,
) -> None:
    if info is not None:
        each.heads = {partition.partition: partition.head_seq for partition in info.partitions}
        each.lag = sum(lag.records for lag in lags(info, {}))
    if table is None:
        if info is not None:
            each.problems.append("there is no table yet")
        return
    _count(each, table)
    for role in (ERRORS, GAPS):
        other = find_table(catalog, identifier(config, each.topic, role))
        if other is not None and other.properties.get(TOPIC) == each.topic:
            rows = _total(other, "total-records")
            each.errors, each.gaps = (rows, each.gaps) if role == ERRORS else (each.errors, rows)
            each.problems += _rolled_back(other)
    try:
        state = owned_state(table, each.topic, RECORDS)
    except TableError as error:
        each.problems.append(str(error))
        return
    each.positions = state.positions
    each.problems += _schema_problems(config, each.topic, table)
    if info is None:
        each.problems += _rolled_back(table)
        return
    if state.topic_id != info.topic_id:
        each.problems.append(
            f"the topic was deleted and recreated: the table follows {state.topic_id}, now it is {info.topic_id}"
        )
        return
    each.problems += _rolled_back(table, witness)
    each.lag = sum(lag.records for lag in lags(info, state.positions))
    for partition in info.partitions:
        position = state.positions.get(partition.partition, 0)
        if position > partition.head_seq:
            each.problems.append(
                f"the table is at seq {position} of partition {partition.partition}, the topic at "
                f"{partition.head_seq}: the server has lost records"
            )


def _rolled_back(table: Table, witness: Witness | None = None) -> Iterator[str]:
    try:
        check_history(table, witness or {})
    except TableError as error:
        yield str(error)


def _count(each: TopicStatus, table: Table) -> None:
    each.rows = _total(table, "total-records")
    each.files = _total(table, "total-data-files")
    each.bytes = _total(table, "total-files-size")
    each.snapshots = len(table.metadata.snapshots)
    times = [
        snapshot.timestamp_ms
        for snapshot in table.metadata.snapshots
        if snapshot.summary is not None and snapshot.summary.get(RANGES) is not None
    ]
    if times:
        each.last_commit = datetime.fromtimestamp(max(times) / 1000, UTC)


def _total(table: Table, name: str) -> int:
    snapshot = table.current_snapshot()
    summary = snapshot.summary if snapshot is not None else None
    return int(summary.get(name) or 0) if summary is not None else 0


def _schema_problems(config: Config, topic: str, table: Table) -> Iterator[str]:
    try:
        check_envelope(table)
    except SchemaError as error:
        yield str(error)
    rule = config.rule(topic)
    if rule is not None:
        yield from map(str, differences(table.schema(), rule.columns).conflicts)
