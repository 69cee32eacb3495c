"""The names that a statement may use: of tables, of their columns, and its parameters."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct, field

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.casts import NUMBERS
from topics_service.engine.tables.expressions import Column, Side
from topics_service.engine.tables.model import RESERVED_NAMESPACES, Table, TableName
from topics_service.engine.tables.schema import Schema
from topics_service.engine.tables.types import Type
from topics_sql.syntax import ObjectName
from topics_sql.tokens import place_of, refuse

SYSTEM: Final = "system"
TOPICS: Final = "topics"


class Relation(Struct, frozen=True):
    """Rows whose columns an expression may name. `bare`: also without the name of the relation."""

    name: str
    columns: Mapping[str, Column]
    namespace: str | None = None
    bare: bool = True


def relation(table: Table, alias: str | None = None, side: Side = Side.NEW) -> Relation:
    """The rows of a table, under its own name or an alias."""
    columns = {column.name: Column(column.id, column.type, side) for column in table.columns}
    if alias is not None:
        return Relation(alias, columns, bare=side is Side.NEW)
    return Relation(table.name, columns, table.namespace)


class Context(Struct):
    """One statement that is being bound: its text, the catalog, its parameters."""

    text: str
    schema: Schema
    namespace: str
    parameters: dict[int, Type | None] = field(default_factory=dict)
    given: Sequence[Type | None] = ()
    """Types of parameters in order, as the caller gives them."""

    def refuse(self, at: int, message: str, reason: Reason = Reason.SYNTAX_ERROR, sqlstate: str = "") -> TopicsError:
        """Make an error with its place."""
        return refuse(self.text, at, message, reason, sqlstate)

    @contextmanager
    def placed(self, at: int) -> Iterator[None]:
        """Give a place to the errors of what runs inside."""
        try:
            yield
        except TopicsError as error:
            self.place(error, at)
            raise

    def place(self, error: TopicsError, at: int) -> None:
        """Note a place in an error that has none."""
        if isinstance(error.detail, dict) and "line" not in error.detail:
            error.detail["line"], error.detail["column"] = place_of(self.text, at)

    # --------------------------------------------------------------- parameters

    def use_parameter(self, number: int) -> Type | None:
        """Note that the text names a parameter; return the type that the caller gives it."""
        given = self.given[number - 1] if number <= len(self.given) else None
        if self.parameters.get(number) is None:
            self.parameters[number] = given
        return given

    def type_parameter(self, number: int, kind: Type, at: int) -> Type:
        """The type of a parameter: that of its first use which has one. Raises `invalid_value` if this one differs.

        Numbers of several types may meet, and texts of several lengths.
        """
        known = self.parameters.get(number)
        if known is None:
            self.parameters[number] = kind
            return kind
        if known.kind is not kind.kind and not {known.kind, kind.kind} <= NUMBERS:
            message = f"${number} is {known.name} in one place and {kind.name} here: cast it"
            raise self.refuse(at, message, Reason.INVALID_VALUE, "42P08")
        return known

    def parameter_types(self) -> tuple[Type | None, ...]:
        """The types of all parameters; None for a number that is left out, which another statement of the text uses."""
        return tuple(self.parameters.get(number) for number in range(1, max(self.parameters, default=0) + 1))

    # ------------------------------------------------------------------- tables

    def table_name(self, name: ObjectName) -> TableName:
        """The full name of a table or an index."""
        if len(name.parts) == 1:
            return TableName(self.namespace, name.parts[0])
        return TableName(name.parts[0], name.parts[1])

    def find_table(self, name: ObjectName) -> Table:
        """The table of a name. Raises `table_not_found`, and `forbidden` for those of the system."""
        full = self.table_name(name)
        if full.namespace in RESERVED_NAMESPACES:
            self.refuse_reserved(full.namespace, name.at)
        table = self.schema.table(full)
        if table is None:
            if self.schema.view(full) is not None:
                raise self.refuse(name.at, f"{full} is a view, not a table", Reason.UNSUPPORTED_SQL, "42809")
            raise self.table_not_found(full, name.at)
        return table

    def table_not_found(self, full: TableName, at: int) -> TopicsError:
        """Make the error of a table that is not there."""
        error = self.refuse(at, f"table {full} does not exist", Reason.TABLE_NOT_FOUND)
        assert isinstance(error.detail, dict)
        error.detail["table"] = str(full)
        return error

    def refuse_reserved(self, namespace: str, at: int) -> None:
        """Raise for a change of what the server keeps itself."""
        if namespace == TOPICS:
            raise self.refuse(at, "topics are read-only as tables", Reason.FORBIDDEN)
        if namespace == SYSTEM:
            raise self.refuse(at, "system tables are read-only", Reason.FORBIDDEN)
        raise self.refuse(at, f"the namespace {namespace} is not supported", Reason.UNSUPPORTED_SQL)

    def column_not_found(self, at: int, name: str, where: str) -> TopicsError:
        """Make the error of a column that is not there."""
        error = self.refuse(at, f"column {name} does not exist in {where}", Reason.COLUMN_NOT_FOUND)
        assert isinstance(error.detail, dict)
        error.detail["column_name"] = name
        return error


def find_column(context: Context, relations: Sequence[Relation], parts: tuple[str, ...], at: int) -> Column:
    """The column of a name. Raises `column_not_found`, also if it may be several."""
    *qualifier, name = parts
    found: list[Column] = []
    known = False
    for each in relations:
        if not _is_meant(each, qualifier):
            continue
        known = True
        if (column := each.columns.get(name)) is not None:
            found.append(column)
    if len(found) == 1:
        return found[0]
    shown = ".".join(parts)
    if found:
        raise context.refuse(at, f"column {shown} is in several tables", Reason.COLUMN_NOT_FOUND, "42702")
    if not known and qualifier:
        raise context.refuse(at, f"no table {'.'.join(qualifier)} to take {shown} from", Reason.COLUMN_NOT_FOUND)
    if not relations:
        raise context.refuse(at, f"column {shown}, but no table is read", Reason.COLUMN_NOT_FOUND)
    raise context.column_not_found(
        at, shown, " or ".join(each.name for each in relations if _is_meant(each, qualifier))
    )


def _is_meant(each: Relation, qualifier: Sequence[str]) -> bool:
    if not qualifier:
        return each.bare
    if each.name != qualifier[-1]:
        return False
    return len(qualifier) == 1 or each.namespace == qualifier[0]
