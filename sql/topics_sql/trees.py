"""Expressions and queries as they are written: the parts of `syntax` that most statements have."""

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


class Interval(Struct, frozen=True):
    """A length of time, as text."""

    at: int
    operand: "Tree"


class JsonGet(Struct, frozen=True):
    at: int
    operand: "Tree"
    key: "Tree"
    as_text: bool


class Call(Struct, frozen=True):
    """A function. `star`: `count(*)`. `order` is that of an aggregate, also of WITHIN GROUP (`within`)."""

    at: int
    function: str
    arguments: tuple["Tree", ...] = ()
    star: bool = False
    distinct: bool = False
    filter: "Tree | None" = None
    order: "tuple[OrderItem, ...]" = ()
    within: bool = False
    over: "Window | None" = None

    @property
    def is_plain(self) -> bool:
        """True for a call that nothing but its arguments belongs to."""
        return self.filter is None and not self.order and self.over is None


class Frame(Struct, frozen=True):
    """The frame of a window. Ends are words, `preceding` and `following` with a number of rows."""

    at: int
    unit: str
    start: str
    end: str
    start_rows: "Tree | None" = None
    end_rows: "Tree | None" = None
    exclude: str = ""


class Window(Struct, frozen=True):
    """The window of a call, or one of the WINDOW clause; `base` names another one that it adds to."""

    at: int
    base: str | None = None
    partition: tuple["Tree", ...] = ()
    order: "tuple[OrderItem, ...]" = ()
    frame: Frame | None = None


class Subquery(Struct, frozen=True):
    """A query in parentheses in the place of a value."""

    at: int
    query: "Query"


class Exists(Struct, frozen=True):
    at: int
    query: "Query"


class InQuery(Struct, frozen=True):
    """`operand [NOT] IN (query)`."""

    at: int
    operand: "Tree"
    query: "Query"
    negated: bool


class Quantified(Struct, frozen=True):
    """`left op ANY (query)`, `left op ALL (query)`."""

    at: int
    op: str
    left: "Tree"
    query: "Query"
    all: bool


Tree = (
    Constant | Parameter | Name | Prefix | Infix | Is | In | Like | Case | Cast | JsonGet | Call | Subquery | Exists
    | InQuery | Quantified | Interval
)  # fmt: skip


class ObjectName(Struct, frozen=True):
    """A name of a table, index or topic: one part or two."""

    at: int
    parts: Names


# ------------------------------------------------------------------------ queries


class Item(Struct, frozen=True):
    """A column of a select list; `*` and `t.*` have `star`, with the table in `table`."""

    at: int
    tree: Tree | None
    alias: str | None = None
    star: bool = False
    table: str | None = None


class From(Struct, frozen=True):
    """A table in FROM, with other names for its columns."""

    name: ObjectName
    alias: str | None = None
    columns: Names = ()


class Derived(Struct, frozen=True):
    """A query in FROM. `lateral`: it sees what stands before it."""

    at: int
    query: "Query"
    alias: str | None = None
    columns: Names = ()
    lateral: bool = False


class Series(Struct, frozen=True):
    """generate_series in FROM."""

    at: int
    arguments: tuple[Tree, ...]
    alias: str | None = None
    columns: Names = ()


class Join(Struct, frozen=True):
    """A join: `inner`, `left`, `right`, `full` or `cross`, which a comma is too."""

    at: int
    kind: str
    left: "FromItem"
    right: "FromItem"
    on: Tree | None = None
    using: Names = ()
    natural: bool = False


FromItem = From | Derived | Series | Join


class OrderItem(Struct, frozen=True):
    at: int
    tree: Tree
    descending: bool
    nulls_first: bool


class With(Struct, frozen=True):
    """A query of WITH under its name."""

    at: int
    name: str
    columns: Names
    query: "Query"


class Select(Struct, frozen=True, kw_only=True):
    """SELECT. `group` None: no GROUP BY. `sets` are those of GROUPING SETS, ROLLUP and CUBE, of the same trees."""

    at: int
    items: tuple[Item, ...]
    source: FromItem | None = None
    where: Tree | None = None
    group: tuple[Tree, ...] | None = None
    sets: tuple[tuple[Tree, ...], ...] = ()
    having: Tree | None = None
    windows: tuple[tuple[str, Window], ...] = ()
    order: tuple[OrderItem, ...] = ()
    limit: Tree | None = None
    offset: Tree | None = None
    distinct: bool = False
    distinct_on: tuple[Tree, ...] = ()
    ctes: tuple[With, ...] = ()
    recursive: bool = False


class Compound(Struct, frozen=True, kw_only=True):
    """`left UNION right`, INTERSECT and EXCEPT, with or without ALL."""

    at: int
    op: str
    all: bool
    left: "Query"
    right: "Query"
    order: tuple[OrderItem, ...] = ()
    limit: Tree | None = None
    offset: Tree | None = None
    ctes: tuple[With, ...] = ()
    recursive: bool = False


class Values(Struct, frozen=True, kw_only=True):
    """VALUES as a query."""

    at: int
    rows: tuple[tuple[Tree, ...], ...]
    order: tuple[OrderItem, ...] = ()
    limit: Tree | None = None
    offset: Tree | None = None
    ctes: tuple[With, ...] = ()
    recursive: bool = False


Query = Select | Compound | Values
