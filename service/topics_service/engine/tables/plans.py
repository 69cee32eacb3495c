"""Plans: statements that are bound to the catalog and ready to run. `topics_sql` makes them, `execution` runs them.

A plan is immutable and holds for one version of the catalog (`Schema.version`). Parameters stay in it as
`expressions.Parameter`, so one plan serves many calls; `Plan.parameters` has their types.
"""

from typing import TYPE_CHECKING, NamedTuple, Union
from typing import Literal as OneOf

from msgspec import Struct

from topics_service.engine.model import ConfigInput
from topics_service.engine.tables.expressions import Expression, Like
from topics_service.engine.tables.model import ColumnSchema, Index, Op, Route, Table, TableName, View
from topics_service.engine.tables.types import Type

if TYPE_CHECKING:  # it imports this
    from topics_service.engine.tables import relations

# ----------------------------------------------------------------------- reading


class Bound(Struct, frozen=True):
    """One end of a range."""

    value: Expression
    inclusive: bool


class Scan(Struct, frozen=True, omit_defaults=True):
    """Rows in the order of the primary key, or of a READY index (`index` is its number).

    `prefix` are values that the leading columns equal; `lower` and `upper` bound the next column. A NULL among the
    values means no row. `reverse`: in the opposite order.
    """

    index: int | None = None
    prefix: tuple[Expression, ...] = ()
    lower: Bound | None = None
    upper: Bound | None = None
    reverse: bool = False


class Lookup(Struct, frozen=True):
    """Rows by whole primary keys, each once, in the order of the keys in the table."""

    keys: tuple[tuple[Expression, ...], ...]


class TableSource(Struct, frozen=True):
    """Rows of a table. Columns of expressions are column ids."""

    table: Table
    access: Scan | Lookup


class SystemSource(Struct, frozen=True):
    """Rows of a system table. The id of a column is its position from 0."""

    name: str


class TopicFact(Struct, frozen=True):
    """A column of a topic and a value that it is compared with: `op` is `=`, `in` (several values), `<`, `<=`, `>` or
    `>=`."""

    column: int
    op: str
    values: tuple[Expression, ...]


class TopicScan(Struct, frozen=True, omit_defaults=True):
    """Records of a topic that all of `facts` leave to read; `like` is a pattern that their tags match.

    They come by partition and seq; with `order`, columns among `partition`, `seq`, `offset` and `ts`, by these;
    `reverse`: in the opposite order. `columns` are those that are used: others are not read, and NULL.
    """

    facts: tuple[TopicFact, ...] = ()
    like: Like | None = None
    order: tuple[int, ...] = ()
    reverse: bool = False
    columns: tuple[int, ...] = ()


class TopicSource(Struct, frozen=True):
    """Records of a topic. The id of a column is its place in `topic_columns.TOPIC_COLUMNS`."""

    topic: str
    scan: TopicScan


class Join(Struct, frozen=True):
    """Pairs of rows of two system tables whose values are equal; ids of the right columns follow the left ones."""

    left: SystemSource
    right: SystemSource
    equal: tuple[tuple[int, int], ...]
    """Pairs of a column of the left and one of the right, both as ids of the pair."""
    outer: bool = False
    """LEFT JOIN: left rows without a partner are paired with NULLs."""


class Output(Struct, frozen=True):
    """A column of a result."""

    name: str
    expression: Expression
    type: Type | None


class Order(Struct, frozen=True):
    """A key of ORDER BY."""

    expression: Expression
    descending: bool = False
    nulls_first: bool = False


class Select(Struct, frozen=True, omit_defaults=True):
    """Rows of a source, or one row of constants.

    They are sorted in memory by `order`, which is empty if the access gives the order already. `count`: one row with
    the number of rows instead; then there is one output.
    """

    source: TableSource | SystemSource | TopicSource | Join | None
    outputs: tuple[Output, ...]
    filter: Expression | None = None
    order: tuple[Order, ...] = ()
    limit: Expression | None = None
    offset: Expression | None = None
    count: bool = False
    distinct: bool = False


class Analysis(Struct, frozen=True):
    """A query for the analytical engine. `why` says what in it the engine is needed for."""

    query: "relations.Query"
    outputs: tuple[Output, ...]
    inner: "tuple[relations.Inner, ...]"
    """The queries in it that stand in the place of values."""
    tables: tuple[Table, ...]
    system: tuple[str, ...]
    why: str
    topics: tuple[TopicSource, ...] = ()
    """Each time that the query names one: `relations.TopicRows` refer to them by their places."""
    read: tuple[int, ...] = ()
    """Of a query that finds the rows of a change: the tables that it reads beside them, by their numbers."""


class Subscribe(Struct, frozen=True):
    """A live query: the rows of `select`, which is of one table, and then what changes of them.

    `filter` is the whole condition, of which the access of `select` may have a part. With `last_rows` they come in the
    order of the primary key from the end.
    """

    table: Table
    select: Select
    filter: Expression | None = None
    last_rows: int | None = None
    snapshot: bool = True


def system_tables(query: "Query") -> tuple[str, ...]:
    """The names of the system tables that a query reads, without `system.`."""
    if isinstance(query, Analysis):
        return query.system
    match query.source:
        case SystemSource(name=name):
            return (name,)
        case Join(left=left, right=right):
            return left.name, right.name
    return ()


# ----------------------------------------------------------------------- writing
#
# A change with a `query` runs once for each row of it: the values of the row are the first parameters, and those of
# the statement follow.


class OnConflict(Struct, frozen=True, omit_defaults=True):
    """The fate of a row whose key exists.

    `index` None is the primary key; `any` means any unique key, and DO NOTHING.
    """

    index: int | None = None
    any: bool = False
    assignments: tuple[tuple[int, Expression], ...] | None = None
    """None: DO NOTHING. Expressions see the row that exists (NEW) and the one that was refused (EXCLUDED)."""
    filter: Expression | None = None


class Insert(Struct, frozen=True, omit_defaults=True):
    """Rows of expressions, or those of `select`; a None stands for the default of its column. `columns` are ids."""

    table: Table
    columns: tuple[int, ...]
    rows: tuple[tuple[Expression | None, ...], ...] = ()
    select: Select | None = None
    conflict: OnConflict | None = None
    returning: tuple[Output, ...] = ()
    query: Analysis | None = None


class Update(Struct, frozen=True, omit_defaults=True):
    """Assignments (column id, expression; None is the default) to the rows that pass."""

    table: Table
    access: Scan | Lookup
    assignments: tuple[tuple[int, Expression | None], ...]
    filter: Expression | None = None
    returning: tuple[Output, ...] = ()
    query: Analysis | None = None


class Delete(Struct, frozen=True, omit_defaults=True):
    """Removal of the rows that pass."""

    table: Table
    access: Scan | Lookup
    filter: Expression | None = None
    returning: tuple[Output, ...] = ()
    query: Analysis | None = None


# ------------------------------------------------------------------- definitions


class CreateNamespace(Struct, frozen=True):
    name: str
    placement: str
    if_not_exists: bool = False


class DropNamespace(Struct, frozen=True):
    name: str
    cascade: bool = False


class CreateTable(Struct, frozen=True):
    """`table` has column ids and checks; its number, its index numbers and `created_ms` are still 0."""

    table: Table
    if_not_exists: bool = False
    changes: bool = False
    """The table has a log of changes, also without followers."""


class AddColumn(Struct, frozen=True):
    """The id of `column` is the table's `next_column`."""

    table: Table
    column: ColumnSchema
    if_not_exists: bool = False


class DropColumn(Struct, frozen=True):
    table: Table
    column: int
    cascade: bool = False


class RenameColumn(Struct, frozen=True):
    table: Table
    column: int
    name: str


class ChangeType(Struct, frozen=True):
    table: Table
    column: int
    type: Type


class SetDefault(Struct, frozen=True):
    table: Table
    column: int
    default: Expression | None
    text: str


class RenameTable(Struct, frozen=True):
    table: Table
    name: str


class SetTableOptions(Struct, frozen=True):
    table: Table
    durability: str
    changes: bool | None = None


class DropTable(Struct, frozen=True):
    table: Table
    cascade: bool = False


class Truncate(Struct, frozen=True):
    table: Table


class CreateView(Struct, frozen=True):
    """`created_ms` of `view` is still 0. `replace`: in place of the view of this name, if there is one."""

    view: View
    replace: bool = False


class DropView(Struct, frozen=True):
    name: TableName
    cascade: bool = False


class CreateIndex(Struct, frozen=True):
    """The number of `index` is still 0."""

    table: Table
    index: Index
    if_not_exists: bool = False


class DropIndex(Struct, frozen=True):
    table: Table
    index: int


# ------------------------------------------------------------------------ topics


class CreateTopic(Struct, frozen=True):
    name: str
    config: ConfigInput
    partitions: int | None = None
    alias: str | None = None
    if_not_exists: bool = False


class DropTopic(Struct, frozen=True):
    name: str


class ClearTopic(Struct, frozen=True):
    name: str


class AddSource(Struct, frozen=True):
    topic: str
    route: Route


class DropSource(Struct, frozen=True):
    """`op` None: each source of the table."""

    topic: str
    table: Table
    op: Op | None


class SetAlias(Struct, frozen=True):
    """`alias` None removes it."""

    topic: str
    alias: str | None


class SetTopicOptions(Struct, frozen=True):
    topic: str
    config: ConfigInput
    partitions: int | None = None
    alias: str | None = None


class Consume(Struct, frozen=True):
    """`start` is the word or an offset. `group` None: a plain read."""

    topic: str
    group: str | None
    partition: int
    start: OneOf["earliest", "latest"] | int
    limit: int | None


class Ack(Struct, frozen=True):
    topic: str
    group: str
    partition: int
    upto_offset: int


# ------------------------------------------------------------------ users and others


class CreateUser(Struct, frozen=True):
    name: str
    password: str
    role: str
    if_not_exists: bool = False


class AlterUser(Struct, frozen=True):
    name: str
    password: str | None = None
    role: str | None = None


class DropUser(Struct, frozen=True):
    name: str
    if_exists: bool = False


class Begin(Struct, frozen=True):
    pass


class Commit(Struct, frozen=True):
    pass


class Rollback(Struct, frozen=True):
    pass


class Savepoint(Struct, frozen=True):
    name: str


class RollbackTo(Struct, frozen=True):
    name: str


class Release(Struct, frozen=True):
    name: str


class Use(Struct, frozen=True):
    namespace: str


class Nothing(Struct, frozen=True):
    """A statement that is done already, such as DROP TABLE IF EXISTS of a table that is not there."""

    message: str


class Explain(Struct, frozen=True):
    """The lines that tell how a statement would run, and the ids of tables that DuckDB reads for it."""

    lines: tuple[str, ...]
    analyzed: tuple[str, ...] = ()


Query = Select | Analysis
QUERIES = (Select, Analysis)
Change = Insert | Update | Delete
Definition = Union[  # noqa: UP007 - a long list
    CreateNamespace, DropNamespace, CreateTable, AddColumn, DropColumn, RenameColumn, ChangeType, SetDefault,
    RenameTable, SetTableOptions, DropTable, Truncate, CreateIndex, DropIndex, CreateTopic, DropTopic, ClearTopic,
    AddSource, DropSource, SetAlias, SetTopicOptions, CreateView, DropView,
]  # fmt: skip
Action = Union[  # noqa: UP007 - a long list
    Query, Change, Definition, Subscribe, Consume, Ack, CreateUser, AlterUser, DropUser, Begin, Commit, Rollback,
    Savepoint, RollbackTo, Release, Use, Nothing, Explain,
]  # fmt: skip


class Plan(NamedTuple):
    """An action, and the types of its parameters in order: None where the text gives none."""

    action: Action
    parameters: tuple[Type | None, ...]
