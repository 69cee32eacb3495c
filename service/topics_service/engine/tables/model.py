"""The catalog of tables: namespaces, tables with their schema versions, indexes, routes and aliases."""

from enum import Enum
from typing import Final

from msgspec import Struct

from topics_service.engine.placement import SQL_PLACEMENT
from topics_service.engine.tables.expressions import Expression
from topics_service.engine.tables.types import Type

DEFAULT_NAMESPACE: Final = "default"
RESERVED_NAMESPACES: Final = frozenset({"system", "topics", "pg_catalog", "information_schema"})
DEFAULT_PLACEMENT: Final = SQL_PLACEMENT


class TableName(Struct, frozen=True, order=True):
    """A name of a table or an index: its namespace and its name there, both folded already."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


class ColumnSchema(Struct, frozen=True, omit_defaults=True):
    """A column. `id` is never used again in its table; `default` may call functions such as `now()`.

    `initial` is what rows have that were stored before the column was added: the default at that time, as a literal.
    """

    id: int
    name: str
    type: Type
    not_null: bool = False
    default: Expression | None = None
    default_text: str = ""
    initial: Expression | None = None


class Check(Struct, frozen=True, omit_defaults=True):
    """A CHECK of a table: a row passes unless it is FALSE."""

    name: str
    expression: Expression
    text: str


class IndexState(Enum):
    """States of an index: READY has an entry for each row. Writers keep both kinds, readers use READY ones only."""

    BUILDING = "building"
    READY = "ready"


class Index(Struct, frozen=True, omit_defaults=True):
    """A secondary index. `columns` are ids in order.

    `constraint`: made by UNIQUE in the definition of a table, and can't be dropped alone.
    """

    number: int
    name: str
    columns: tuple[int, ...]
    unique: bool = False
    state: IndexState = IndexState.READY
    constraint: bool = False


class Table(Struct, frozen=True):
    """A table as it is now; a change of its schema makes another one with the same `number`.

    `columns` are in the order of `SELECT *`. `versions` has, for each schema version that rows may be stored in, the
    ids of the columns in the order of the stored values; the last one is today's. `primary_key` has column ids.
    """

    number: int
    namespace: str
    name: str
    columns: tuple[ColumnSchema, ...]
    primary_key: tuple[int, ...]
    versions: tuple[tuple[int, ...], ...]
    next_column: int
    next_index: int = 1
    indexes: tuple[Index, ...] = ()
    checks: tuple[Check, ...] = ()
    durability: str = "disk"
    placement: str = DEFAULT_PLACEMENT
    created_ms: int = 0

    @property
    def table_id(self) -> str:
        """The name as events and system tables show it: `chat.messages`."""
        return f"{self.namespace}.{self.name}"


class Op(Enum):
    """Kinds of changes of a row. The value is what an envelope shows."""

    INSERT = "Insert"
    UPDATE = "Update"
    DELETE = "Delete"


class PayloadMode(Enum):
    """The part of a row that its event holds (D9). The value is what an envelope shows."""

    KEY = "Key"
    FULL = "Full"
    DIFF = "Diff"


class Route(Struct, frozen=True, omit_defaults=True):
    """Changes of a table that become records of a topic (D10, D16): one for each topic, table and op.

    `topic` is the topic's number, which a topic made later with the same name does not have. The texts are what was
    written, for system tables. `tombstones`: a Delete is a record with data null.
    """

    topic: int
    table: int
    op: Op
    mode: PayloadMode = PayloadMode.KEY
    filter: Expression | None = None
    filter_text: str = ""
    partition_by: tuple[Expression, ...] = ()
    partition_text: str = ""
    tombstones: bool = False


class View(Struct, frozen=True, omit_defaults=True):
    """A query under a name. `text` is read again where the view is named; names in it without a namespace are those of
    `reading_namespace`, the namespace of the statement that made it.

    `columns` are the names that it shows, each with the name in the query: columns that a table gets later are not
    among them. `reads` are the columns of tables that it reads, by their ids.
    """

    namespace: str
    name: str
    text: str
    reading_namespace: str
    columns: tuple[tuple[str, str], ...]
    tables: tuple[TableName, ...] = ()
    reads: tuple[tuple[TableName, int], ...] = ()
    views: tuple[TableName, ...] = ()
    topics: tuple[str, ...] = ()
    created_ms: int = 0

    @property
    def view_id(self) -> str:
        """The name with its namespace."""
        return f"{self.namespace}.{self.name}"


class Alias(Struct, frozen=True):
    """Another name of a topic in SQL, consume and ack (D20)."""

    name: str
    topic: int


class Namespace(Struct, frozen=True, omit_defaults=True):
    """A namespace. Those of topics and tables are the same."""

    name: str
    placement: str = DEFAULT_PLACEMENT
    created_ms: int = 0
