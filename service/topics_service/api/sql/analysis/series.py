"""Values that depend on no rows, and the series that they make: computed here, before DuckDB is asked."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from topics_service.engine.errors import Reason
from topics_service.engine.tables import calendar, datetimes, relations
from topics_service.engine.tables.compilation import compile_expression
from topics_service.engine.tables.errors import invalid_value, sql_error
from topics_service.engine.tables.expressions import Call, Expression, Literal
from topics_service.engine.tables.outcomes import MAX_ROWS
from topics_service.engine.tables.types import TIMESTAMP, Kind, Type, Value


def known(expression: Expression, parameters: Sequence[Value], now_us: int) -> Value:
    """The value of an expression that depends on no rows."""

    def now(node: Expression) -> Expression | None:
        if isinstance(node, Call) and node.function in ("now", "current_timestamp"):
            return Literal(now_us, TIMESTAMP)
        if isinstance(node, Call) and node.function == "current_date":
            return Literal(now_us // datetimes.DAY, Type(Kind.DATE))
        return None

    return compile_expression(relations.rebuilt(expression, now), {})((), None, parameters)


def series(values: Sequence[Any], kind: Type) -> range | Sequence[int]:
    """The numbers of generate_series. Raises `invalid_value` (22023) for a step of zero."""
    start, stop = values[0], values[1]
    step = values[2] if len(values) > 2 else 1
    months = 0
    if kind.kind is Kind.TIMESTAMP:
        months, step = calendar.parse_interval(str(step))
    if not step and not months:
        raise invalid_value("the step of a series is not zero", sqlstate="22023")
    if not months:
        return range(start, stop + (1 if step > 0 else -1), step)
    found: list[int] = []
    grows = calendar.add(start, str(values[2])) > start
    while start <= stop if grows else start >= stop:
        if len(found) == MAX_ROWS:
            raise sql_error(Reason.QUERY_TOO_LARGE, f"a series by months has at most {MAX_ROWS} values")
        found.append(start)
        start = calendar.add(start, str(values[2]))
    return found or range(0)


def decimal_type(value: Decimal) -> str:
    """The narrowest type that holds a number."""
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    precision = max(len(digits) + max(0, int(exponent)), scale, 1)
    return f"DECIMAL({min(precision, 38)}, {min(scale, 38)})"
