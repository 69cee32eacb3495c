"""Functions over rows together: aggregates, and functions of windows. Types are those of PostgreSQL but for sums."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from topics_service.engine.errors import Reason
from topics_service.engine.tables.casts import FLOATS, INTEGERS, NUMBERS
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.types import BIGINT, BOOLEAN, DECIMAL, DOUBLE, INTEGER, JSON, TEXT, Kind, Type

Types = Sequence[Type | None]

_ORDERED: Final = frozenset(Kind) - {Kind.JSON, Kind.BOOLEAN}
_ANY: Final = frozenset(Kind)


class Function(NamedTuple):
    """A function under its name. `accepted` are the kinds of its arguments, of which `optional` may be left out."""

    name: str
    shape: str
    summary: str
    accepted: tuple[frozenset[Kind], ...]
    result: Callable[[Types], Type | None]
    optional: int = 0
    wanted: tuple[Type | None, ...] = ()
    """Types that strings, NULLs and parameters get."""
    only_window: bool = False
    within: bool = False
    """True for one that takes WITHIN GROUP (ORDER BY ...)."""


def _always(kind: Type) -> Callable[[Types], Type | None]:
    return lambda _types: kind


def _same(types: Types) -> Type | None:
    return types[0]


def _sum(types: Types) -> Type | None:
    kind = types[0].kind if types[0] else Kind.BIGINT
    if kind in INTEGERS:
        return BIGINT
    return Type(kind) if kind in FLOATS else DECIMAL


def _average(types: Types) -> Type | None:
    return DOUBLE if types[0] and types[0].kind in FLOATS else DECIMAL


def _spread(name: str, summary: str) -> Function:
    return Function(name, f"{name}(number)", summary, (NUMBERS,), _always(DOUBLE), wanted=(DOUBLE,))


def _truth(name: str, summary: str) -> Function:
    kinds = (frozenset({Kind.BOOLEAN}),)
    return Function(name, f"{name}(condition)", summary, kinds, _always(BOOLEAN), wanted=(BOOLEAN,))


def _bits(name: str, summary: str) -> Function:
    return Function(name, f"{name}(integer)", summary, (INTEGERS,), _same, wanted=(BIGINT,))


def _rank(name: str, summary: str, kind: Type) -> Function:
    return Function(name, f"{name}()", summary, (), _always(kind), only_window=True)


def _shifted(name: str, summary: str) -> Function:
    return Function(
        name, f"{name}(value [, rows [, default]])", summary, (_ANY, INTEGERS, _ANY), _same, 2, (TEXT, INTEGER, None),
        only_window=True,
    )  # fmt: skip


_LIST: Final = (
    Function("count", "count(* or value)", "the number of rows, or of values that are not NULL", (_ANY,),
             _always(BIGINT), wanted=(TEXT,)),
    Function("sum", "sum(number)", "the sum; BIGINT of integers", (NUMBERS,), _sum,
             wanted=(BIGINT,)),
    Function("avg", "avg(number)", "the mean; DECIMAL with 16 decimals of integers and DECIMAL", (NUMBERS,), _average,
             wanted=(DOUBLE,)),
    Function("min", "min(value)", "the least value", (_ORDERED,), _same, wanted=(TEXT,)),
    Function("max", "max(value)", "the greatest value", (_ORDERED,), _same, wanted=(TEXT,)),
    Function("any_value", "any_value(value)", "one of the values that are not NULL", (_ANY,), _same, wanted=(TEXT,)),
    Function("string_agg", "string_agg(text, separator)", "the texts, one after the other",
             (frozenset({Kind.TEXT}),) * 2, _always(TEXT), wanted=(TEXT, TEXT)),
    Function("json_agg", "json_agg(value)", "the values as a JSON array, NULLs too", (_ANY,), _always(JSON),
             wanted=(TEXT,)),
    Function("jsonb_agg", "jsonb_agg(value)", "the same", (_ANY,), _always(JSON), wanted=(TEXT,)),
    _truth("bool_and", "true if all are true"),
    _truth("bool_or", "true if one is true"),
    _truth("every", "the same as bool_and"),
    _bits("bit_and", "the bits that all have"),
    _bits("bit_or", "the bits that one has"),
    _bits("bit_xor", "the bits that an odd number of them has"),
    _spread("stddev", "the standard deviation of a sample"),
    _spread("stddev_samp", "the same"),
    _spread("stddev_pop", "that of all values"),
    _spread("variance", "the variance of a sample"),
    _spread("var_samp", "the same"),
    _spread("var_pop", "that of all values"),
    Function("percentile_cont", "percentile_cont(fraction) WITHIN GROUP (ORDER BY number)",
             "the value at a fraction of the order, between two values if need be", (NUMBERS,), _always(DOUBLE),
             wanted=(DOUBLE,), within=True),
    Function("percentile_disc", "percentile_disc(fraction) WITHIN GROUP (ORDER BY value)",
             "the first value at or behind a fraction of the order", (NUMBERS,), _same, wanted=(DOUBLE,), within=True),
    Function("mode", "mode() WITHIN GROUP (ORDER BY value)", "the most frequent value", (), _same, within=True),
    _rank("row_number", "the number of the row in its partition, from 1", BIGINT),
    _rank("rank", "the rank with gaps", BIGINT),
    _rank("dense_rank", "the rank without gaps", BIGINT),
    _rank("percent_rank", "the rank between 0 and 1", DOUBLE),
    _rank("cume_dist", "the part of the rows up to this one and its equals", DOUBLE),
    Function("ntile", "ntile(count)", "the number of the part, of as many equal parts", (INTEGERS,),
             _always(INTEGER), wanted=(INTEGER,), only_window=True),
    _shifted("lag", "the value some rows before, 1 if it is not said"),
    _shifted("lead", "the value some rows behind"),
    Function("first_value", "first_value(value)", "the value in the first row of the frame", (_ANY,), _same,
             wanted=(TEXT,), only_window=True),
    Function("last_value", "last_value(value)", "the value in the last row of the frame", (_ANY,), _same,
             wanted=(TEXT,), only_window=True),
    Function("nth_value", "nth_value(value, row)", "the value in a row of the frame, from 1", (_ANY, INTEGERS), _same,
             wanted=(TEXT, INTEGER), only_window=True),
)  # fmt: skip

AGGREGATES: Final[Mapping[str, Function]] = {each.name: each for each in _LIST}


def resolve(name: str, types: Types) -> Function:
    """Find the function for arguments of these types. Raises `function_not_found` (42883)."""
    function = AGGREGATES[name]
    most = len(function.accepted)
    if most - function.optional <= len(types) <= most and all(
        each is None or each.kind in kinds for each, kinds in zip(types, function.accepted, strict=False)
    ):
        return function
    called = ", ".join("unknown" if each is None else each.name for each in types[:20])
    message = f"there is no function {name}({called}); it is called as {function.shape}"
    raise sql_error(Reason.FUNCTION_NOT_FOUND, message, function=name)
