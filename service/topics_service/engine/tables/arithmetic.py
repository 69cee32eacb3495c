"""Operators of SQL on values that are not NULL, with the errors of PostgreSQL: overflow and division by zero."""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from topics_service.engine.tables import datetimes
from topics_service.engine.tables.errors import invalid_value
from topics_service.engine.tables.numbers import (
    DECIMALS,
    RANGES,
    decimal_result,
    divide_decimals,
    division_by_zero,
    narrow,
    overflow,
)
from topics_service.engine.tables.types import Kind
from topics_service.engine.tables.values import check_size

Operator = Callable[[Any, Any], Any]


def refuse_overflow(kind: Kind) -> Callable[[], Any]:
    """The function that raises what a result beyond the range of a type is."""

    def refuse() -> Any:
        raise overflow(kind.value)

    return refuse


# ---------------------------------------------------------------------- integers


def integer_divider(kind: Kind) -> Operator:
    """Division that truncates towards zero."""
    _, high = RANGES[kind]

    def divide(left: int, right: int) -> int:
        if not right:
            raise division_by_zero()
        quotient = left // right if (left >= 0) == (right > 0) else -(-left // right)
        if quotient > high:
            raise overflow(kind.value)
        return quotient

    return divide


def integer_remainder(left: int, right: int) -> int:
    """The remainder of the division that truncates: it has the sign of the dividend."""
    if not right:
        raise division_by_zero()
    return abs(left) % abs(right) if left >= 0 else -(abs(left) % abs(right))


# ------------------------------------------------------------------------ floats


def checked(operate: Operator, kind: Kind) -> Operator:
    """An operation on floats whose results don't leave their range unless an operand has."""
    double = kind is Kind.DOUBLE

    def run(left: float, right: float) -> float:
        try:
            result = operate(left, right)
            if not double:
                result = narrow(result)
        except OverflowError:
            raise overflow(kind.value) from None
        if result - result != 0 and math.isfinite(left) and math.isfinite(right):
            raise overflow(kind.value)
        return float(result)

    return run


def _multiply(left: float, right: float) -> float:
    result = left * right
    if not result and left and right:
        raise OverflowError
    return result


def _divide(left: float, right: float) -> float:
    if not right and left == left:
        raise division_by_zero()
    result = left / right if right else left
    if not result and left and not math.isinf(right):
        raise OverflowError
    return result


_FLOATS: Final[dict[str, Operator]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": _multiply,
    "/": _divide,
}


# ---------------------------------------------------------------------- decimals


def _decimal_remainder(left: Decimal | int, right: Decimal | int) -> Decimal:
    if not right:
        raise division_by_zero()
    return decimal_result(DECIMALS.remainder(left, right))


_DECIMALS: Final[dict[str, Operator]] = {
    "+": lambda left, right: decimal_result(DECIMALS.add(left, right)),
    "-": lambda left, right: decimal_result(DECIMALS.subtract(left, right)),
    "*": lambda left, right: decimal_result(DECIMALS.multiply(left, right)),
    "/": divide_decimals,
    "%": _decimal_remainder,
}


# --------------------------------------------------------------- dates, text, bytes


def date_result(days: int) -> int:
    """Bound a date to years 1 to 9999. Raises `invalid_value` 22003."""
    if not datetimes.FIRST_DAY <= days <= datetimes.LAST_DAY:
        raise overflow("DATE")
    return days


def _concatenate(left: Any, right: Any) -> Any:
    check_size(len(left) + len(right))
    return left + right


def operator(op: str, kind: Kind) -> Operator | None:
    """The function of an operator with a result of this kind; None for `+ - *` of integers, quicker in place."""
    match kind:
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            return {"/": integer_divider(kind), "%": integer_remainder}.get(op)
        case Kind.REAL | Kind.DOUBLE:
            return checked(_FLOATS[op], kind) if op in _FLOATS else None
        case Kind.DECIMAL:
            return _DECIMALS.get(op)
        case Kind.DATE:
            return {"+": lambda a, b: date_result(a + b), "-": lambda a, b: date_result(a - b)}.get(op)
        case Kind.TEXT | Kind.BYTES:
            return _concatenate if op == "||" else None
        case _:
            return None


def negation(kind: Kind) -> Callable[[Any], Any] | None:
    """The function of a minus before a value."""
    match kind:
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            low, _ = RANGES[kind]

            def negate(value: int) -> int:
                if value == low:
                    raise overflow(kind.value)
                return -value

            return negate
        case Kind.REAL | Kind.DOUBLE:
            return lambda value: -value
        case Kind.DECIMAL:
            return lambda value: DECIMALS.minus(value)
        case _:
            return None


# --------------------------------------------------------------------- comparison


def same(left: Any, right: Any) -> bool:
    """IS NOT DISTINCT FROM: NULL is NULL, and NaN is NaN."""
    return bool(left == right) or (left != left and right != right)


def contains(value: Any, items: Sequence[Any]) -> bool | None:
    """IN: NULL if the value is NULL, or not among the items while one of them is NULL."""
    if value is None:
        return None
    if any(each is not None and same(value, each) for each in items):
        return True
    return None if None in items else False


def lacks(value: Any, items: Sequence[Any]) -> bool | None:
    """NOT IN."""
    found = contains(value, items)
    return None if found is None else not found


def _rank(value: Any) -> tuple[bool, Any]:
    return (True, 0) if value != value else (False, value)


def greatest(*values: Any) -> Any:
    """The greatest value that is not NULL."""
    return max([each for each in values if each is not None], key=_rank, default=None)


def least(*values: Any) -> Any:
    """The least value that is not NULL."""
    return min([each for each in values if each is not None], key=_rank, default=None)


def comparison(op: str) -> Callable[[Any, Any], bool]:
    """A comparison of values whose types are not known before they are there."""
    compare = _COMPARISONS[op]

    def run(left: Any, right: Any) -> bool:
        try:
            return bool(compare(left, right))
        except TypeError:
            raise invalid_value("values of these types can't be compared") from None

    return run


_COMPARISONS: Final[dict[str, Operator]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
