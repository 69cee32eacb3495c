"""The tables of one topic: created, opened, kept in step with the declaration, set aside when the topic is deleted."""

from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from topics_lakehouse.catalog import (
    ERRORS,
    GAPS,
    RECORDS,
    Positions,
    TableError,
    archive_table,
    create_table,
    find_table,
    identifier,
    owned_state,
    reachable,
    table_state,
)
from topics_lakehouse.config import Config, TopicRule
from topics_lakehouse.files import Target
from topics_lakehouse.history import RolledBackError, Witness, check_history
from topics_lakehouse.parquet import Layout, layout
from topics_lakehouse.schema import ENVELOPE, Conflict, evolve, typed_columns
from topics_lakehouse.schema import ERRORS as ERRORS_SCHEMA
from topics_lakehouse.schema import GAPS as GAPS_SCHEMA


class RecreatedError(TableError):
    """The table follows an earlier life of the topic."""


@dataclass(slots=True)
class TopicTables:
    """The tables of one life of a topic, as this process knows them. A commit of someone else makes them old, which
    the fence finds out."""

    topic: str
    topic_id: str
    tables: dict[str, Table]  # by role
    columns: pa.Schema  # declared, as the table has them
    conflicts: list[Conflict]
    positions: dict[str, Positions] = field(default_factory=dict)  # by role
    lacking: set[str] = field(default_factory=set)  # roles of tables that were rolled back

    def __post_init__(self) -> None:
        for role, table in self.tables.items():
            self.replace(role, table)

    def replace(self, role: str, table: Table) -> None:
        """Take over a newer state of a table."""
        self.tables[role] = table
        self.positions[role] = table_state(table).positions

    def filled(self, role: str, table: Table) -> None:
        """Take over a table as it is behind a commit: it lacks nothing."""
        self.replace(role, table)
        self.lacking.discard(role)

    def target(self, config: Config) -> Target:
        """The targets of tasks."""

        def of(role: str, names: list[str]) -> Layout:
            table = self.tables[role]
            return layout(table, names, row_group_rows=config.row_group_rows, target_bytes=config.target_file_bytes)

        errors = of(ERRORS, ERRORS_SCHEMA.names) if len(self.columns) else None
        records = of(RECORDS, [*ENVELOPE.names, *self.columns.names])
        return Target(records, self.columns, errors, dict(self.tables[RECORDS].io.properties))


def open_tables(
    catalog: Catalog,
    config: Config,
    rule: TopicRule,
    topic: str,
    topic_id: str,
    *,
    witness: Witness | None = None,
    refill: bool = False,
) -> TopicTables:
    """The topic's tables, made where they are missing. `witness` is where they were before (`progress.witnessed`); with
    `refill` tables that were rolled back are reported as lacking instead of refused.

    Raises RecreatedError where they follow an earlier life of the topic, RolledBackError, TableError where they are
    another topic's or were damaged, SchemaError, CatalogDownError.
    """
    tables: dict[str, Table] = {}
    lacking: set[str] = set()
    conflicts: list[Conflict] = []
    columns = pa.schema([])
    for role, schema in _wanted(rule):
        name = identifier(config, topic, role)
        table = find_table(catalog, name)
        if table is None:
            table = create_table(catalog, config, name, schema, topic=topic, topic_id=topic_id, role=role)
        state = owned_state(table, topic, role)
        if state.topic_id != topic_id:
            raise RecreatedError(
                f"topic {topic} was deleted and recreated: table {'.'.join(name)} follows {state.topic_id}, now the "
                f'topic is {topic_id}; with on_recreate = "archive" the old tables are put aside'
            )
        try:
            check_history(table, {} if witness is None or refill else witness)
        except RolledBackError:
            if not refill:
                raise
            lacking.add(role)
        if role == RECORDS:
            with reachable():
                table, conflicts = evolve(table, rule.columns)
            columns = typed_columns(table, rule.columns)
        tables[role] = table
    return TopicTables(topic, topic_id, tables, columns, conflicts, lacking=lacking)


def _wanted(rule: TopicRule) -> list[tuple[str, pa.Schema]]:
    wanted = [(RECORDS, pa.schema([*ENVELOPE, *rule.columns])), (GAPS, GAPS_SCHEMA)]
    if len(rule.columns):
        wanted.append((ERRORS, ERRORS_SCHEMA))
    return wanted


def archive_tables(catalog: Catalog, config: Config, topic: str, topic_id: str) -> list[str]:
    """Rename the tables that follow an earlier life of the topic than `topic_id`, and tell their new names.

    The main table goes last, so that a crash in between leaves the rest to be done. Raises as open_tables.
    """
    renamed = []
    for role in (ERRORS, GAPS, RECORDS):
        name = identifier(config, topic, role)
        table = find_table(catalog, name)
        if table is None:
            continue
        state = owned_state(table, topic, role)
        new = archive_table(catalog, name, state.topic_id) if state.topic_id != topic_id else None
        if new is not None:
            renamed.append(".".join(new))
    return renamed
