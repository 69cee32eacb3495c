"""The catalog, and the tables of a topic in it."""

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
)
from pyiceberg.table import Table
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from topics_lakehouse.config import Config
from topics_lakehouse.schema import iceberg_schema

TOPIC: Final = "topics.topic"
TOPIC_ID: Final = "topics.topic-id"
POSITIONS: Final = "topics.positions"
ROLE: Final = "topics.role"
COMMIT: Final = "topics.commit"
SNAPSHOT: Final = "topics.snapshot"  # id of the snapshot of that commit
ROWS: Final = "topics.rows"  # rows of the table right behind that commit
RANGES: Final = "topics.ranges"  # in the summary of a snapshot

RECORDS: Final = "records"
ERRORS: Final = "errors"
GAPS: Final = "gaps"
SUFFIXES: Final[Mapping[str, str]] = {RECORDS: "", ERRORS: "_errors", GAPS: "_gaps"}

Positions = Mapping[int, int]
"""Last seq processed, by partition; a missing partition is at 0."""

Identifier = tuple[str, ...]

_DOWN: Final = (
    CommitStateUnknownException,
    ServiceUnavailableError,
    ServerError,
    TooManyRequestsError,
    OperationalError,
    InterfaceError,
    requests.RequestException,
)

_PROPERTIES: Final[Mapping[str, str]] = {
    "commit.retry.num-retries": "10",
    "commit.retry.min-wait-ms": "20",
    "commit.retry.max-wait-ms": "2000",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
}


class CatalogDownError(Exception):
    """The catalog, or the store behind it, does not answer now; the change may have happened nevertheless."""


class TableError(Exception):
    """A table in a wrong state; the text names it and gives a hint."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The state in the properties of a table of ours."""

    topic: str
    topic_id: str
    role: str  # records, errors, gaps
    positions: Positions
    commit: str  # id of the last commit that moved the positions


def open_catalog(config: Config) -> Catalog:
    """The catalog, with the namespace made where it is missing. Raises CatalogDownError."""
    uri = config.catalog.get("uri", "")
    with reachable():
        if uri.startswith("sqlite:///"):
            Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        catalog = load_catalog(config.catalog_name, **config.catalog)
        with suppress(NamespaceAlreadyExistsError):  # by another process, at the same time
            catalog.create_namespace_if_not_exists(config.namespace)
    return catalog


def identifier(config: Config, topic: str, role: str = RECORDS) -> Identifier:
    """The full name of one of the topic's tables."""
    return (*config.namespace.split("."), config.table(topic) + SUFFIXES[role])


def find_table(catalog: Catalog, name: Identifier) -> Table | None:
    """The table as it is now; None if there is none. Raises CatalogDownError."""
    with reachable():
        try:
            return catalog.load_table(name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None


def create_table(
    catalog: Catalog, config: Config, name: Identifier, columns: pa.Schema, *, topic: str, topic_id: str, role: str
) -> Table:
    """A new, empty table at position 0; the one that is there, if another process was faster.

    Its folder has a unique name, so that no two tables share one, not even with a dropped or renamed table: files of
    the other would pass for orphans.
    """
    location = None
    if config.warehouse:
        location = f"{config.warehouse}/{'/'.join(name)}-{uuid.uuid4().hex[:12]}"
    properties = {
        **_PROPERTIES,
        "write.parquet.row-group-limit": str(config.row_group_rows),
        "write.target-file-size-bytes": str(config.target_file_bytes),
        TOPIC: topic,
        TOPIC_ID: topic_id,
        ROLE: role,
        POSITIONS: positions_text({}),
    }
    with reachable():
        try:
            return catalog.create_table(name, iceberg_schema(columns), location=location, properties=properties)
        except TableAlreadyExistsError:
            return catalog.load_table(name)


def table_state(table: Table) -> TableState:
    """The state of a table. Raises TableError if it is not, or no longer, one of ours."""
    name, properties = ".".join(table.name()), table.properties
    if TOPIC not in properties:
        raise TableError(
            f"table {name} is not one of the lakehouse's (it has no property {TOPIC}): give the topic another table"
        )
    try:
        positions = parse_positions(properties[POSITIONS])
    except (KeyError, ValueError) as error:
        raise TableError(
            f"table {name}: someone changed its property {POSITIONS}, so how far it got is not known: set "
            'it to the last seq of each partition, as {"0": 123}'
        ) from error
    topic_id, role = properties.get(TOPIC_ID, ""), properties.get(ROLE, RECORDS)
    return TableState(properties[TOPIC], topic_id, role, positions, properties.get(COMMIT, ""))


def owned_state(table: Table, topic: str, role: str) -> TableState:
    """The state of a table that has to belong to this topic. Raises TableError."""
    state = table_state(table)
    if (state.topic, state.role) != (topic, role):
        name = ".".join(table.name())
        raise TableError(f"table {name} has the {state.role} of topic {state.topic}: give topic {topic} another one")
    return state


def archive_table(catalog: Catalog, name: Identifier, topic_id: str) -> Identifier | None:
    """Rename the table of an ended life of a topic, and tell its new name; None if another process was faster."""
    new = (*name[:-1], f"{name[-1]}_{topic_id}")
    with reachable():
        try:
            catalog.rename_table(name, new)
        except NoSuchTableError:
            return None
        except TableAlreadyExistsError as error:
            old, taken = ".".join(name), ".".join(new)
            raise TableError(f"table {old} can't be put aside: there is a {taken} already") from error
    return new


def parse_positions(text: str) -> dict[int, int]:
    """Positions from the text of a property. Raises ValueError."""
    found = json.loads(text)
    if not isinstance(found, dict) or not all(type(seq) is int and 0 <= seq < 1 << 63 for seq in found.values()):
        raise ValueError(text)
    positions = {int(partition): seq for partition, seq in found.items()}
    if not all(0 <= partition < 1 << 31 for partition in positions):
        raise ValueError(text)
    return positions


def same_positions(one: Positions, other: Positions) -> bool:
    """Return whether two positions are the same; 0 and absent are."""
    return {p: seq for p, seq in one.items() if seq} == {p: seq for p, seq in other.items() if seq}


def positions_text(positions: Positions) -> str:
    """Positions as the text of a property."""
    return json.dumps({str(partition): positions[partition] for partition in sorted(positions)})


@contextmanager
def reachable() -> Iterator[None]:
    """Turns errors of an absent catalog or store into CatalogDownError."""
    try:
        yield
    except Exception as error:
        if is_down(error):
            raise CatalogDownError(f"{type(error).__name__}: {_first_line(error)}") from error
        raise


def is_down(error: BaseException) -> bool:
    """Return True if a retry may help: there was no response, or only a temporary error."""
    if isinstance(error, _DOWN):
        return True
    if isinstance(error, DBAPIError):
        return bool(error.connection_invalidated)
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
