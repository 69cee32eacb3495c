"""Statements as they are written, before the catalog is asked: trees with the position of each part in the text."""

from msgspec import Struct

Names = tuple[str, ...]


class TypeName(Struct, frozen=True):
    """A type as written: its words in lower case and its numbers."""

    at: int
    name: str
    arguments: tuple[int, ...] = ()


# -------------------------------------------------------------------- expressions


class Constant(Struct, frozen=True):
    """A literal. `kind`: number (as written), string, boolean, null."""

    at: int
    kind: str
    value: str | bool | None = None


class Parameter(Struct, frozen=True):
    at: int
    number: int


class Name(Struct, frozen=True):
    """A column: one to three parts."""

    at: int
    parts: Names


class Prefix(Struct, frozen=True):
    """`not`, `-` or `+`."""

    at: int
    op: str
    operand: "Tree"


class Infix(Struct, frozen=True):
    at: int
    op: str
    left: "Tree"
    right: "Tree"


class Is(Struct, frozen=True):
    """IS [NOT] null, true, false, unknown."""

    at: int
    operand: "Tree"
    what: str
    negated: bool


class In(Struct, frozen=True):
    at: int
    operand: "Tree"
    items: tuple["Tree", ...]
    negated: bool


class Like(Struct, frozen=True):
    at: int
    operand: "Tree"
    pattern: "Tree"
    ignore_case: bool
    negated: bool
    escape: str


class Case(Struct, frozen=True):
    at: int
    operand: "Tree | None"
    branches: tuple[tuple["Tree", "Tree"], ...]
    otherwise: "Tree | None"


class Cast(Struct, frozen=True):
    at: int
    operand: "Tree"
    type: TypeName


class JsonGet(Struct, frozen=True):
    at: int
    operand: "Tree"
    key: "Tree"
    as_text: bool


class Call(Struct, frozen=True):
    """A function. `star`: `count(*)`."""

    at: int
    function: str
    arguments: tuple["Tree", ...] = ()
    star: bool = False
    distinct: bool = False


class Default(Struct, frozen=True):
    """DEFAULT among values and assignments."""

    at: int


Tree = Constant | Parameter | Name | Prefix | Infix | Is | In | Like | Case | Cast | JsonGet | Call


class ObjectName(Struct, frozen=True):
    """A name of a table, index or topic: one part or two."""

    at: int
    parts: Names


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


# ------------------------------------------------------------------------ queries


class Item(Struct, frozen=True):
    """A column of a select list; `*` and `t.*` have `star`, with the table in `table`."""

    at: int
    tree: Tree | None
    alias: str | None = None
    star: bool = False
    table: str | None = None


class From(Struct, frozen=True):
    """A table in FROM."""

    name: ObjectName
    alias: str | None = None


class Joined(Struct, frozen=True):
    """The second table of FROM: `on` None is a comma or CROSS JOIN."""

    at: int
    right: From
    on: Tree | None = None
    outer: bool = False
    using: Names = ()


class OrderItem(Struct, frozen=True):
    at: int
    tree: Tree
    descending: bool
    nulls_first: bool


class Select(Struct, frozen=True, kw_only=True):
    at: int
    items: tuple[Item, ...]
    source: From | None = None
    joined: Joined | None = None
    where: Tree | None = None
    order: tuple[OrderItem, ...] = ()
    limit: Tree | None = None
    offset: Tree | None = None
    distinct: bool = False


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
    select: Select | None
    conflict: Conflict | None
    returning: tuple[Item, ...]


class Update(Struct, frozen=True):
    at: int
    table: From
    assignments: tuple[Assignment, ...]
    where: Tree | None
    returning: tuple[Item, ...]


class Delete(Struct, frozen=True):
    at: int
    table: From
    where: Tree | None
    returning: tuple[Item, ...]


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
    statement: Select | Insert | Update | Delete


Statement = (
    Select | Insert | Update | Delete | CreateTable | AlterTable | DropTable | Truncate | CreateIndex | DropIndex
    | CreateNamespace | DropNamespace | CreateTopic | DropTopic | ClearTopic | AddSource | DropSource | SetAlias
    | SetTopic | Consume | Ack | Subscribe | CreateUser | AlterUser | DropUser | Transaction | Use | Show | Describe
    | Explain
)  # fmt: skip
