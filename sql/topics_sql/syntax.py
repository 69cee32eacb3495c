"""Statements as they are written, before the catalog is asked: trees with the position of each part in the text."""

from msgspec import Struct

from topics_sql.trees import (
    Call as Call,
)
from topics_sql.trees import (
    Case as Case,
)
from topics_sql.trees import (
    Cast as Cast,
)
from topics_sql.trees import (
    Compound as Compound,
)
from topics_sql.trees import (
    Constant as Constant,
)
from topics_sql.trees import (
    Derived as Derived,
)
from topics_sql.trees import (
    Exists as Exists,
)
from topics_sql.trees import (
    Frame as Frame,
)
from topics_sql.trees import (
    From as From,
)
from topics_sql.trees import (
    FromItem as FromItem,
)
from topics_sql.trees import (
    In as In,
)
from topics_sql.trees import (
    Infix as Infix,
)
from topics_sql.trees import (
    InQuery as InQuery,
)
from topics_sql.trees import (
    Interval as Interval,
)
from topics_sql.trees import (
    Is as Is,
)
from topics_sql.trees import (
    Item as Item,
)
from topics_sql.trees import (
    Join as Join,
)
from topics_sql.trees import (
    JsonGet as JsonGet,
)
from topics_sql.trees import (
    Like as Like,
)
from topics_sql.trees import (
    Name as Name,
)
from topics_sql.trees import (
    Names as Names,
)
from topics_sql.trees import (
    ObjectName as ObjectName,
)
from topics_sql.trees import (
    OrderItem as OrderItem,
)
from topics_sql.trees import (
    Parameter as Parameter,
)
from topics_sql.trees import (
    Prefix as Prefix,
)
from topics_sql.trees import (
    Quantified as Quantified,
)
from topics_sql.trees import (
    Query as Query,
)
from topics_sql.trees import (
    Select as Select,
)
from topics_sql.trees import (
    Series as Series,
)
from topics_sql.trees import (
    Subquery as Subquery,
)
from topics_sql.trees import (
    Tree as Tree,
)
from topics_sql.trees import (
    TypeName as TypeName,
)
from topics_sql.trees import (
    Values as Values,
)
from topics_sql.trees import (
    Window as Window,
)
from topics_sql.trees import (
    With as With,
)


class Default(Struct, frozen=True):
    """DEFAULT among values and assignments."""

    at: int


class Option(Struct, frozen=True):
    """`name = value` in WITH. A word is a string, and so is a number with `number`."""

    at: int
    name: str
    value: str | bool | None
    value_at: int
    number: bool = False


class Span(Struct, frozen=True):
    """An expression with its text."""

    tree: Tree
    text: str


# ------------------------------------------------------------------------ changes


class ColumnName(Struct, frozen=True):
    at: int
    name: str


class Assignment(Struct, frozen=True):
    column: ColumnName
    value: Tree | Default


class Conflict(Struct, frozen=True):
    """`columns` None: any. `assignments` None: DO NOTHING."""

    at: int
    columns: tuple[ColumnName, ...] | None
    constraint: str | None = None
    assignments: tuple[Assignment, ...] | None = None
    where: Tree | None = None


class Insert(Struct, frozen=True):
    at: int
    table: ObjectName
    alias: str | None
    columns: tuple[ColumnName, ...] | None
    rows: tuple[tuple[Tree | Default, ...], ...] | None
    select: Query | None
    conflict: Conflict | None
    returning: tuple[Item, ...]
    ctes: tuple[With, ...] = ()
    recursive: bool = False


class Update(Struct, frozen=True):
    at: int
    table: From
    assignments: tuple[Assignment, ...]
    where: Tree | None
    returning: tuple[Item, ...]
    source: FromItem | None = None
    """The rows of FROM."""
    ctes: tuple[With, ...] = ()
    recursive: bool = False


class Delete(Struct, frozen=True):
    at: int
    table: From
    where: Tree | None
    returning: tuple[Item, ...]
    source: FromItem | None = None
    """The rows of USING."""
    ctes: tuple[With, ...] = ()
    recursive: bool = False


# ------------------------------------------------------------- tables and namespaces


class ColumnDefinition(Struct, frozen=True, kw_only=True):
    at: int
    name: str
    type: TypeName
    not_null: bool = False
    default: Span | None = None
    primary_key: bool = False
    unique: bool = False
    identity: bool = False
    checks: "tuple[CheckDefinition, ...]" = ()


class CheckDefinition(Struct, frozen=True):
    at: int
    name: str | None
    span: Span


class Key(Struct, frozen=True):
    """PRIMARY KEY or UNIQUE over columns."""

    at: int
    name: str | None
    columns: tuple[ColumnName, ...]


class CreateTable(Struct, frozen=True, kw_only=True):
    at: int
    name: ObjectName
    columns: tuple[ColumnDefinition, ...]
    primary_keys: tuple[Key, ...]
    uniques: tuple[Key, ...]
    checks: tuple[CheckDefinition, ...]
    options: tuple[Option, ...]
    if_not_exists: bool


class AlterTable(Struct, frozen=True):
    """One change of a table."""

    at: int
    name: ObjectName
    if_exists: bool
    change: "AlterAction"


class AddColumn(Struct, frozen=True):
    column: ColumnDefinition
    if_not_exists: bool


class DropColumn(Struct, frozen=True):
    column: ColumnName
    if_exists: bool
    cascade: bool


class RenameColumn(Struct, frozen=True):
    column: ColumnName
    name: ColumnName


class RenameTable(Struct, frozen=True):
    name: ColumnName


class ChangeType(Struct, frozen=True):
    column: ColumnName
    type: TypeName


class SetDefault(Struct, frozen=True):
    column: ColumnName
    default: Span | None


class SetOptions(Struct, frozen=True):
    options: tuple[Option, ...]


AlterAction = AddColumn | DropColumn | RenameColumn | RenameTable | ChangeType | SetDefault | SetOptions


class CreateView(Struct, frozen=True):
    """`text` is that of the query, which begins at `query.at` or before."""

    at: int
    name: ObjectName
    columns: tuple[str, ...]
    query: Query
    text: str
    replace: bool


class DropView(Struct, frozen=True):
    at: int
    name: ObjectName
    if_exists: bool
    cascade: bool


class DropTable(Struct, frozen=True):
    at: int
    name: ObjectName
    if_exists: bool
    cascade: bool


class Truncate(Struct, frozen=True):
    at: int
    name: ObjectName


class CreateIndex(Struct, frozen=True):
    at: int
    name: ColumnName | None
    table: ObjectName
    columns: tuple[ColumnName, ...]
    unique: bool
    if_not_exists: bool


class DropIndex(Struct, frozen=True):
    at: int
    name: ObjectName
    if_exists: bool


class CreateNamespace(Struct, frozen=True):
    at: int
    name: str
    options: tuple[Option, ...]
    if_not_exists: bool


class DropNamespace(Struct, frozen=True):
    at: int
    name: str
    if_exists: bool
    cascade: bool


# ------------------------------------------------------------------------- topics


class CreateTopic(Struct, frozen=True):
    at: int
    name: ObjectName
    partitions: int | None
    alias: ObjectName | None
    options: tuple[Option, ...]
    if_not_exists: bool


class DropTopic(Struct, frozen=True):
    at: int
    name: ObjectName
    if_exists: bool


class ClearTopic(Struct, frozen=True):
    at: int
    name: ObjectName


class AddSource(Struct, frozen=True):
    at: int
    topic: ObjectName
    table: ObjectName
    op: str
    where: Span | None
    partition_by: tuple[Span, ...]
    options: tuple[Option, ...]


class DropSource(Struct, frozen=True):
    at: int
    topic: ObjectName
    table: ObjectName
    op: str | None


class SetAlias(Struct, frozen=True):
    at: int
    topic: ObjectName
    alias: ObjectName | None


class SetTopic(Struct, frozen=True):
    at: int
    topic: ObjectName
    options: tuple[Option, ...]


class Consume(Struct, frozen=True):
    at: int
    topic: ObjectName
    group: str | None
    partition: int
    start: str | int
    limit: int | None


class Ack(Struct, frozen=True):
    at: int
    topic: ObjectName
    group: str
    partition: int
    upto: int


class Subscribe(Struct, frozen=True):
    at: int


# ------------------------------------------------------------------------- others


class CreateUser(Struct, frozen=True):
    at: int
    name: str
    password: str
    role: str
    role_at: int
    if_not_exists: bool


class AlterUser(Struct, frozen=True):
    at: int
    name: str
    password: str | None
    role: str | None
    role_at: int


class DropUser(Struct, frozen=True):
    at: int
    name: str
    if_exists: bool


class Transaction(Struct, frozen=True):
    """`begin`, `commit`, `rollback`; with a name: `savepoint`, `rollback to`, `release`."""

    at: int
    what: str
    name: str = ""


class Use(Struct, frozen=True):
    at: int
    namespace: str


class Show(Struct, frozen=True):
    at: int
    what: str


class Describe(Struct, frozen=True):
    at: int
    name: ObjectName


class Explain(Struct, frozen=True):
    at: int
    statement: Query | Insert | Update | Delete


Statement = (
    Select | Compound | Values | Insert | Update | Delete | CreateTable | AlterTable | DropTable | Truncate
    | CreateIndex | DropIndex | CreateNamespace | DropNamespace | CreateTopic | DropTopic | ClearTopic | AddSource
    | DropSource | SetAlias | SetTopic | Consume | Ack | Subscribe | CreateUser | AlterUser | DropUser | Transaction
    | Use | Show | Describe | Explain | CreateView | DropView
)  # fmt: skip
