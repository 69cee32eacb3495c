"""The functions of SQL: their arguments, results and volatility, for the binder, and what they compute.

`FUNCTIONS` is the list, and docs/sql-reference.md shows it.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from topics_service.engine.errors import Reason
from topics_service.engine.tables import calendar, scalars
from topics_service.engine.tables.casts import FLOATS, INTEGERS, NUMBERS, common
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.scalars import Environment as Environment  # for importers of both
from topics_service.engine.tables.types import Kind, Type


class Volatility(Enum):
    """The extent to which a result stays the same. CHECK, indexes and routes take IMMUTABLE functions only."""

    IMMUTABLE = "immutable"
    STABLE = "stable"
    """The same within a statement."""
    VOLATILE = "volatile"


class Form(Enum):
    """The way a call is evaluated."""

    STRICT = "strict"
    """NULL if an argument is; else by the implementation."""
    COMMON = "common"
    """Arguments of one common type, which the result has; NULLs are looked at by the evaluator."""
    ENVIRONMENT = "environment"
    """By the implementation, from the environment alone."""
    TEXTS = "texts"
    """Arguments of any type, taken as text; NULLs are empty."""


MAX_ARGUMENTS: Final = 100
"""The most arguments of a call."""
Accepted = frozenset[Kind]


class Signature(NamedTuple):
    """Types of arguments and the result of one form of a function."""

    arguments: tuple[Accepted, ...]
    """The kinds that each argument may have."""
    result: Kind | None
    """None: the kind of the first argument."""
    implementation: Callable[..., Any] | None = None
    converts: Kind | None = None
    """The kind that arguments are converted to before the call, if they may have it."""
    optional: int = 0
    """The number of arguments at the end that may be left out."""
    repeats: bool = False
    """True if the last argument may be repeated."""
    takes_unknown: bool = True
    """True if an argument may be NULL or a parameter without a type."""


class Function(NamedTuple):
    """A function under its name."""

    name: str
    shape: str
    """The call as the reference shows it."""
    summary: str
    signatures: tuple[Signature, ...]
    volatility: Volatility = Volatility.IMMUTABLE
    form: Form = Form.STRICT


class Resolved(NamedTuple):
    """A function for arguments of certain types."""

    function: Function
    signature: Signature
    arguments: tuple[Type | None, ...]
    """The type that each argument is to have: the one it has, or the one that a parameter or NULL gets."""
    result: Type | None


def result(name: str, arguments: Sequence[Type | None]) -> Type | None:
    """The type of a call's result. Raises `function_not_found` (42883), also for arguments that no form takes."""
    return resolve(name, arguments).result


def resolve(name: str, arguments: Sequence[Type | None]) -> Resolved:
    """Find the form of a function for arguments of these types; None is that of NULL and of untyped parameters.

    Raises `function_not_found` (42883), `unsupported_sql` for more than 100 arguments.
    """
    if len(arguments) > MAX_ARGUMENTS:
        message = f"a call has {len(arguments)} arguments, at most {MAX_ARGUMENTS}"
        raise sql_error(Reason.UNSUPPORTED_SQL, message, sqlstate="54023")
    function = FUNCTIONS.get(name)
    for signature in function.signatures if function else ():
        if function and _takes(signature, arguments):
            return _resolved(function, signature, arguments)
    called = f"{name[:100]}({', '.join('unknown' if each is None else each.name for each in arguments[:20])})"
    hint = f"; it is called as {function.shape}" if function else ""
    raise sql_error(Reason.FUNCTION_NOT_FOUND, f"there is no function {called}{hint}", function=name[:100])


def _takes(signature: Signature, arguments: Sequence[Type | None]) -> bool:
    least, most = len(signature.arguments) - signature.optional, len(signature.arguments)
    if len(arguments) < least or (len(arguments) > most and not signature.repeats):
        return False
    return all(each is None or each.kind in signature.arguments[min(at, most - 1)] for at, each in enumerate(arguments))


def _resolved(function: Function, signature: Signature, arguments: Sequence[Type | None]) -> Resolved:
    if function.form is Form.COMMON:
        shared = common(list(arguments))
        return Resolved(function, signature, (shared,) * len(arguments), shared)
    most = len(signature.arguments)
    wanted = [
        _wanted(each, signature.arguments[min(at, most - 1)], signature.converts) for at, each in enumerate(arguments)
    ]
    made = wanted[0] if signature.result is None and wanted else signature.result and Type(signature.result)
    if made is not None and made.kind in (Kind.TEXT, Kind.DECIMAL):
        made = Type(made.kind)  # whatever the length and scale of the argument
    return Resolved(function, signature, tuple(wanted), made)


def _wanted(given: Type | None, accepted: Accepted, converts: Kind | None) -> Type | None:
    if converts in accepted and (given is None or given.kind is not converts):
        return Type(converts)
    if given is None:
        return Type(next(kind for kind in _PREFERRED if kind in accepted)) if len(accepted) < len(Kind) else None
    return given


_PREFERRED: Final = (Kind.TEXT, Kind.BIGINT, Kind.DOUBLE, Kind.TIMESTAMP, *Kind)
"""The kind of a parameter without a type, where an argument may be of several: the first of these."""


# ---------------------------------------------------------------------- the list

_TEXT: Final = frozenset({Kind.TEXT})
_BYTES: Final = frozenset({Kind.BYTES})
_JSON: Final = frozenset({Kind.JSON})
_INTEGER: Final = INTEGERS
_ANY: Final = frozenset(Kind)
_TO_DOUBLE: Final = FLOATS | INTEGERS
_TO_DECIMAL: Final = INTEGERS | {Kind.DECIMAL}
_MOMENT: Final = frozenset({Kind.TIMESTAMP, Kind.DATE})


def _each(kinds: Sequence[Kind], make: Callable[[Kind], Callable[..., Any]], count: int = 1) -> tuple[Signature, ...]:
    """A form for each kind, which is that of the result too; narrower arguments are widened."""
    return tuple(
        Signature((frozenset(kinds[: at + 1]),) * count, kind, make(kind), kind, takes_unknown=at == len(kinds) - 1)
        for at, kind in enumerate(kinds)
    )


def _rounding(name: str, summary: str, whole: Callable[..., Any], exact: Callable[..., Any]) -> Function:
    return Function(
        name, f"{name}(number)", summary,
        (
            Signature((_TO_DOUBLE,), Kind.DOUBLE, whole, converts=Kind.DOUBLE),
            Signature((frozenset({Kind.DECIMAL}),), Kind.DECIMAL, exact),
        ),
    )  # fmt: skip


def _trimming(name: str, summary: str, trim: Callable[..., str]) -> Function:
    return Function(
        name, f"{name}(text [, characters])", summary, (Signature((_TEXT, _TEXT), Kind.TEXT, trim, optional=1),)
    )


def _common(name: str, shape: str, summary: str, count: int = 1, repeats: bool = True) -> Function:
    return Function(name, shape, summary, (Signature((_ANY,) * count, None, repeats=repeats),), form=Form.COMMON)


def _now(name: str, shape: str, summary: str, kind: Kind, make: Callable[[Environment], Any]) -> Function:
    return Function(name, shape, summary, (Signature((), kind, make),), Volatility.STABLE, Form.ENVIRONMENT)


def _made(name: str, summary: str, kind: Kind, make: Callable[[Environment], Any]) -> Function:
    return Function(name, f"{name}()", summary, (Signature((), kind, make),), Volatility.VOLATILE, Form.ENVIRONMENT)


_SCALES: Final = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.DECIMAL, Kind.REAL, Kind.DOUBLE)
_LIST: Final = (
    Function("lower", "lower(text)", "in lower case", (Signature((_TEXT,), Kind.TEXT, str.lower),)),
    Function("upper", "upper(text)", "in upper case", (Signature((_TEXT,), Kind.TEXT, str.upper),)),
    Function(
        "length", "length(text or bytes)", "the number of characters, or of bytes",
        (Signature((_TEXT,), Kind.INTEGER, len), Signature((_BYTES,), Kind.INTEGER, len)),
    ),
    Function(
        "octet_length", "octet_length(text or bytes)", "the number of bytes, of text in UTF-8",
        (
            Signature((_TEXT,), Kind.INTEGER, lambda text: len(text.encode())),
            Signature((_BYTES,), Kind.INTEGER, len),
        ),
    ),
    _trimming("trim", "without spaces, or these characters, at both ends", scalars.trim),
    _trimming("ltrim", "the same at the beginning", scalars.trim_left),
    _trimming("rtrim", "the same at the end", scalars.trim_right),
    Function(
        "substring", "substring(text, from [, count])", "the part that begins at a character, from 1",
        (
            Signature((_TEXT, _INTEGER, _INTEGER), Kind.TEXT, scalars.substring, optional=1),
            Signature((_BYTES, _INTEGER, _INTEGER), Kind.BYTES, scalars.substring, optional=1),
        ),
    ),
    Function(
        "left", "left(text, count)", "the first characters, or all but the last if the count is negative",
        (Signature((_TEXT, _INTEGER), Kind.TEXT, scalars.left),),
    ),
    Function(
        "right", "right(text, count)", "the last characters, or all but the first if the count is negative",
        (Signature((_TEXT, _INTEGER), Kind.TEXT, scalars.right),),
    ),
    Function(
        "replace", "replace(text, from, to)", "with every `from` replaced",
        (Signature((_TEXT, _TEXT, _TEXT), Kind.TEXT, scalars.replace),),
    ),
    Function(
        "strpos", "strpos(text, part)", "the position of the first occurrence, from 1; 0 if there is none",
        (Signature((_TEXT, _TEXT), Kind.INTEGER, lambda text, part: text.find(part) + 1),),
    ),
    Function(
        "starts_with", "starts_with(text, prefix)", "true if the text begins with the prefix",
        (Signature((_TEXT, _TEXT), Kind.BOOLEAN, str.startswith),),
    ),
    Function(
        "concat", "concat(value, ...)", "the values as text, one after the other; NULLs are left out",
        (Signature((_ANY,), Kind.TEXT, scalars.concatenate, repeats=True),), form=Form.TEXTS,
    ),
    Function("abs", "abs(number)", "without its sign", _each(_SCALES, scalars.absolute)),
    Function(
        "mod", "mod(dividend, divisor)", "the remainder, with the sign of the dividend",
        _each(_SCALES[:4], scalars.remainder, 2),
    ),
    Function(
        "round", "round(number [, decimals])", "rounded; DECIMAL half away from zero, DOUBLE half to even",
        (
            Signature((_TO_DOUBLE,), Kind.DOUBLE, scalars.round_float, converts=Kind.DOUBLE),
            Signature((frozenset({Kind.DECIMAL}),), Kind.DECIMAL, scalars.round_decimal),
            Signature((_TO_DECIMAL, _INTEGER), Kind.DECIMAL, scalars.round_decimal),
        ),
    ),
    _rounding("floor", "the next integer below", scalars.floor_float, scalars.floor_decimal),
    _rounding("ceil", "the next integer above", scalars.ceil_float, scalars.ceil_decimal),
    _common("coalesce", "coalesce(value, ...)", "the first value that is not NULL"),
    _common("nullif", "nullif(value, other)", "NULL if both are equal, else the value", 2, repeats=False),
    _common("greatest", "greatest(value, ...)", "the greatest value; NULLs are left out"),
    _common("least", "least(value, ...)", "the least value; NULLs are left out"),
    _now("now", "now()", "the time of the statement", Kind.TIMESTAMP, lambda of: of.now_us()),
    _now(
        "current_timestamp", "current_timestamp", "the time of the statement", Kind.TIMESTAMP, lambda of: of.now_us()
    ),
    _now("current_date", "current_date", "its date, in UTC", Kind.DATE, scalars.today),
    Function(
        "extract", "extract(field FROM time)", f"a field of a time: {', '.join(calendar.FIELDS)}",
        tuple(
            Signature((_TEXT, frozenset({kind})), Kind.DECIMAL, partial(calendar.extract, kind=kind))
            for kind in (Kind.TIMESTAMP, Kind.DATE, Kind.TIME)
        ),
    ),
    Function(
        "date_trunc", "date_trunc(unit, time)", f"the beginning of its unit: {', '.join(calendar.UNITS)}",
        (Signature((_TEXT, _MOMENT), Kind.TIMESTAMP, calendar.truncate, converts=Kind.TIMESTAMP),),
    ),
    Function(
        "date_add", "date_add(time, interval)", "the time an interval later, given as text: `1 month -2 days 03:30:00`",
        (Signature((_MOMENT, _TEXT), Kind.TIMESTAMP, calendar.add, converts=Kind.TIMESTAMP),),
    ),
    Function(
        "date_subtract", "date_subtract(time, interval)", "the time an interval earlier",
        (Signature((_MOMENT, _TEXT), Kind.TIMESTAMP, calendar.subtract, converts=Kind.TIMESTAMP),),
    ),
    Function(
        "date_bin", "date_bin(interval, time, origin)", "the beginning of its interval, of those that follow an origin",
        (Signature((_TEXT, _MOMENT, _MOMENT), Kind.TIMESTAMP, calendar.binned, converts=Kind.TIMESTAMP),),
    ),
    Function(
        "to_timestamp", "to_timestamp(seconds)", "the timestamp that is a number of seconds after 1970",
        (Signature((NUMBERS,), Kind.TIMESTAMP, calendar.from_seconds, converts=Kind.DOUBLE),),
    ),
    Function(
        "to_json", "to_json(value)", "the value as JSON; a time is text, and so are bytes, as base64",
        tuple(
            Signature((frozenset({kind}),), Kind.JSON, partial(scalars.json_of, kind=Type(kind))) for kind in Kind
        ),
    ),
    Function(
        "json_array_length", "json_array_length(array)", "the number of elements",
        (Signature((_JSON,), Kind.INTEGER, scalars.array_length),),
    ),
    Function(
        "json_typeof", "json_typeof(value)", "object, array, string, number, boolean or null",
        (Signature((_JSON,), Kind.TEXT, scalars.json_type),),
    ),
    _made("snowflake_id", "an id of the server that grows with time", Kind.BIGINT, lambda of: of.message_id()),
    _made("uuid_v7", "a UUID that begins with the time", Kind.UUID, scalars.uuid_v7),
    _made("gen_random_uuid", "a random UUID (version 4)", Kind.UUID, scalars.uuid_v4),
    _made("ulid", "a ULID: 26 characters that begin with the time", Kind.TEXT, scalars.ulid),
)  # fmt: skip

ALIASES: Final = {
    "char_length": "length", "character_length": "length", "btrim": "trim", "substr": "substring", "ceiling": "ceil",
    "position": "strpos", "date_part": "extract", "jsonb_array_length": "json_array_length",
    "jsonb_typeof": "json_typeof", "uuidv7": "uuid_v7",
    "to_jsonb": "to_json",
}  # fmt: skip
"""Other names; `position` as a function has the arguments of strpos."""

FUNCTIONS: Final[Mapping[str, Function]] = {
    **{each.name: each for each in _LIST},
    **{alias: next(each for each in _LIST if each.name == name) for alias, name in ALIASES.items()},
}


def operator(op: str, left: Type | None, right: Type | None) -> Type | None:
    """The type of `left op right`, None if no operand has one. Raises `function_not_found` (42883).

    A parameter or NULL takes the type of the other operand. Comparisons are BOOLEAN.
    """
    if op in COMPARISONS:
        if left is None or right is None or comparable(left, right):
            return Type(Kind.BOOLEAN)
    elif op == "||":
        if left is None and right is None:
            return Type(Kind.TEXT)
        kinds = {each.kind for each in (left, right) if each is not None}
        if kinds == {Kind.BYTES}:
            return Type(Kind.BYTES)
        if Kind.TEXT in kinds:
            return Type(Kind.TEXT)
    elif op in ("+", "-", "*", "/", "%"):
        if left is None and right is None:
            return None
        made = _arithmetic(op, left or right, right or left)
        if made is not None:
            return Type(made)
    shown = ["unknown" if each is None else each.name for each in (left, right)]
    raise sql_error(Reason.FUNCTION_NOT_FOUND, f"there is no operator {shown[0]} {op} {shown[1]}")


COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=", "is distinct", "is not distinct")


def comparable(left: Type, right: Type) -> bool:
    """Tell whether values of these types can be compared. JSON has neither order nor equality."""
    kinds = {left.kind, right.kind}
    if len(kinds) == 1:
        return left.kind is not Kind.JSON
    return kinds <= NUMBERS or kinds == {Kind.DATE, Kind.TIMESTAMP}


def _arithmetic(op: str, left: Type | None, right: Type | None) -> Kind | None:
    assert left is not None
    assert right is not None
    kinds = {left.kind, right.kind}
    if kinds <= NUMBERS:
        if kinds <= INTEGERS:
            return max(kinds, key=_SCALES.index)
        if kinds & FLOATS:
            return None if op == "%" else Kind.REAL if kinds == {Kind.REAL} else Kind.DOUBLE
        return Kind.DECIMAL
    if op == "-" and kinds == {Kind.DATE}:
        return Kind.INTEGER
    if left.kind is Kind.DATE and right.kind in INTEGERS and op in "+-":
        return Kind.DATE
    return Kind.DATE if right.kind is Kind.DATE and left.kind in INTEGERS and op == "+" else None


def is_immutable(name: str) -> bool:
    """Tell whether the results of a function depend on its arguments alone."""
    function = FUNCTIONS.get(name)
    return function is not None and function.volatility is Volatility.IMMUTABLE
