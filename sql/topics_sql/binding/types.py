"""Types of SQL text, and how they meet in expressions."""

from typing import Final

from topics_service.engine.errors import Reason
from topics_service.engine.tables.types import DOUBLE, REAL, Kind, Type
from topics_sql.syntax import TypeName
from topics_sql.tokens import refuse

MAX_PRECISION: Final = 38
MAX_LENGTH: Final = 10_485_760


NAMES: Final = {
    "boolean": Kind.BOOLEAN, "bool": Kind.BOOLEAN,
    "smallint": Kind.SMALLINT, "int2": Kind.SMALLINT,
    "int": Kind.INTEGER, "integer": Kind.INTEGER, "int4": Kind.INTEGER,
    "bigint": Kind.BIGINT, "int8": Kind.BIGINT,
    "real": Kind.REAL, "float4": Kind.REAL, "float": Kind.DOUBLE,
    "double": Kind.DOUBLE, "double precision": Kind.DOUBLE, "float8": Kind.DOUBLE,
    "decimal": Kind.DECIMAL, "numeric": Kind.DECIMAL, "dec": Kind.DECIMAL,
    "text": Kind.TEXT, "string": Kind.TEXT, "varchar": Kind.TEXT, "character varying": Kind.TEXT,
    "bytes": Kind.BYTES, "bytea": Kind.BYTES, "blob": Kind.BYTES,
    "json": Kind.JSON, "jsonb": Kind.JSON,
    "timestamp": Kind.TIMESTAMP, "timestamptz": Kind.TIMESTAMP, "datetime": Kind.TIMESTAMP,
    "timestamp with time zone": Kind.TIMESTAMP, "timestamp without time zone": Kind.TIMESTAMP,
    "date": Kind.DATE,
    "time": Kind.TIME, "time without time zone": Kind.TIME,
    "uuid": Kind.UUID,
}  # fmt: skip
SERIALS: Final = frozenset({"serial", "bigserial", "serial4", "serial8"})


def resolve(text: str, name: TypeName) -> Type:
    """The type of a name. Raises `unsupported_sql` for one that is not known, `invalid_value` for bad numbers."""
    kind = NAMES.get(name.name)
    if kind is None:
        raise refuse(text, name.at, f"the type {name.name.upper()} is not supported", Reason.UNSUPPORTED_SQL, "42704")
    arguments = name.arguments
    if kind is Kind.DECIMAL and arguments:
        precision, scale = arguments[0], arguments[1] if len(arguments) > 1 else 0
        if len(arguments) > 2 or not 0 < precision <= MAX_PRECISION or scale > precision:
            message = f"DECIMAL takes a precision from 1 to {MAX_PRECISION} and a scale from 0 to the precision"
            raise refuse(text, name.at, message, Reason.INVALID_VALUE, "22023")
        return Type(kind, precision=precision, scale=scale)
    if name.name in ("varchar", "character varying") and arguments:
        if len(arguments) > 1 or not 0 < arguments[0] <= MAX_LENGTH:
            raise refuse(text, name.at, f"VARCHAR takes a length from 1 to {MAX_LENGTH}", Reason.INVALID_VALUE, "22023")
        return Type(kind, length=arguments[0])
    if name.name == "float" and arguments:
        if len(arguments) > 1 or not 0 < arguments[0] <= 53:
            raise refuse(text, name.at, "FLOAT takes a precision from 1 to 53", Reason.INVALID_VALUE, "22023")
        return REAL if arguments[0] <= 24 else DOUBLE
    if arguments and not (kind in (Kind.TIMESTAMP, Kind.TIME) and arguments == (6,)):
        raise refuse(text, name.at, f"{name.name.upper()} takes no such numbers", Reason.UNSUPPORTED_SQL)
    return Type(kind)


def without_bounds(kind: Type) -> Type:
    """The type without length, precision and scale: what a value is compared as."""
    return Type(kind.kind) if kind.length or kind.precision else kind
