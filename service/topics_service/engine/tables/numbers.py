"""Numbers of SQL: ranges of integers, floats of both widths, and decimals with PostgreSQL's rules."""

import math
import re
import struct
from decimal import ROUND_HALF_UP, Context, Decimal, DecimalException, DivisionByZero, InvalidOperation, Overflow
from typing import Final

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.errors import invalid_value, sql_error
from topics_service.engine.tables.types import Kind, Type

RANGES: Final = {
    Kind.SMALLINT: (-(1 << 15), (1 << 15) - 1),
    Kind.INTEGER: (-(1 << 31), (1 << 31) - 1),
    Kind.BIGINT: (-(1 << 63), (1 << 63) - 1),
}
MAX_DIGITS: Final = 38
"""The most digits of a DECIMAL; one without precision has at most as many before its point, and behind it."""
MAX_NUMBER_TEXT: Final = 1000
"""The most characters of a number written as text."""
DECIMALS: Final = Context(
    prec=200, rounding=ROUND_HALF_UP, Emin=-9999, Emax=9999, traps=[InvalidOperation, DivisionByZero, Overflow]
)
_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_NUMBER: Final = re.compile(r"\s*[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*", re.ASCII)
_WORDS: Final = {
    "nan": math.nan,
    "inf": math.inf, "+inf": math.inf, "infinity": math.inf, "+infinity": math.inf,
    "-inf": -math.inf, "-infinity": -math.inf,
}  # fmt: skip
_FLOAT32: Final = struct.Struct("<f")
_LEAST_NORMAL: Final = 2.0**-126
"""The least REAL with all of its digits."""
_DIGITS_OF_BASE: Final = 4  # PostgreSQL holds numbers in digits of base 10000, and its scale of a quotient shows it
_QUOTIENT_DIGITS: Final = 16


def excerpt(given: object) -> str:
    """Quote a value for a message, cut to some 60 characters."""
    if isinstance(given, int) and not isinstance(given, bool) and given.bit_length() > 200:
        return "a number of more than 60 digits"
    text = f'"{given[:60]}"' if isinstance(given, str) else str(given)[:60] if len(repr(given)) <= 2000 else "a value"
    return text if not isinstance(given, str) or len(given) <= 60 else f'{text[:-1]}..."'


def not_a(given: object, sql_type: Type, what: str) -> TopicsError:
    """22P02: a value that is none of the type."""
    return invalid_value(f"{what}: {excerpt(given)} is not a valid {sql_type.name}")


def out_of_range(given: object, sql_type: Type, what: str) -> TopicsError:
    """22003: a number beyond the range of the type."""
    return invalid_value(f"{what}: {excerpt(given)} is out of range for {sql_type.name}", out_of_range=True)


def overflow(kind_name: str) -> TopicsError:
    """22003: the result of a computation beyond the range of its type."""
    return invalid_value(f"the result is out of range for {kind_name}", out_of_range=True)


def division_by_zero() -> TopicsError:
    """22012."""
    return sql_error(Reason.DIVISION_BY_ZERO, "division by zero")


# ---------------------------------------------------------------------- integers


def to_integer(given: object, sql_type: Type, what: str) -> int:
    """Make an integer of the type from a number without a fraction or its text. Raises `invalid_value`."""
    low, high = RANGES[sql_type.kind]
    if isinstance(given, bool):
        raise not_a(given, sql_type, what)
    if isinstance(given, int):
        number = given
    elif isinstance(given, float):
        if math.isinf(given):
            raise out_of_range(given, sql_type, what)
        if not given.is_integer():
            raise not_a(given, sql_type, what)
        number = int(given)
    elif isinstance(given, Decimal):
        if not given.is_finite() or given.adjusted() > MAX_DIGITS:
            raise out_of_range(given, sql_type, what)
        number = int(given)
        if number != given:
            raise not_a(given, sql_type, what)
    elif isinstance(given, str):
        if len(given) > MAX_NUMBER_TEXT:
            raise out_of_range(given, sql_type, what) if _INTEGER.fullmatch(given) else not_a(given, sql_type, what)
        if _INTEGER.fullmatch(given) is None:
            raise not_a(given, sql_type, what)
        number = int(given)
    else:
        raise not_a(given, sql_type, what)
    if not low <= number <= high:
        raise out_of_range(given, sql_type, what)
    return number


# ------------------------------------------------------------------------ floats


def narrow(value: float) -> float:
    """Round to the 32 bits of REAL. Raises OverflowError."""
    return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])


def to_float(given: object, sql_type: Type, what: str) -> float:
    """Make a REAL or DOUBLE from a number or its text. Raises `invalid_value`."""
    number: float
    try:
        if isinstance(given, bool):
            raise not_a(given, sql_type, what)
        if isinstance(given, float):
            number = given
        elif isinstance(given, int):
            number = float(given)
        elif isinstance(given, Decimal):
            number = float(given)
            if math.isinf(number) or (not number and given):
                raise out_of_range(given, sql_type, what)
        elif isinstance(given, str):
            number = _float_of_text(given, sql_type, what)
        else:
            raise not_a(given, sql_type, what)
        if sql_type.kind is Kind.REAL:
            narrowed = narrow(number)
            if not narrowed and number:
                raise out_of_range(given, sql_type, what)
            return narrowed
    except OverflowError:
        raise out_of_range(given, sql_type, what) from None
    return number


def _float_of_text(text: str, sql_type: Type, what: str) -> float:
    if len(text) > MAX_NUMBER_TEXT:
        raise out_of_range(text, sql_type, what)
    if _NUMBER.fullmatch(text) is None:
        word = _WORDS.get(text.strip().lower())
        if word is None:
            raise not_a(text, sql_type, what)
        return word
    number = float(text)
    if math.isinf(number) or (not number and re.search("[1-9]", re.split("[eE]", text)[0])):
        raise out_of_range(text, sql_type, what)
    return number


def float_text(value: float, kind: Kind) -> str:
    """Write a float as PostgreSQL does: the fewest digits that are read as the same number."""
    if not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if kind is Kind.REAL:
        least = 6 if abs(value) >= _LEAST_NORMAL else 1
        text = next((t for t in (f"{value:.{d}g}" for d in range(least, 9)) if _same(t, value)), f"{value:.9g}")
        return _plain(text, 6)
    return _plain(repr(value), 15)


def _same(text: str, value: float) -> bool:
    try:
        return narrow(float(text)) == value
    except OverflowError:
        return False


def _plain(text: str, limit: int) -> str:
    """Give a float's text an exponent only if that is below -4, or `limit` at least."""
    sign = "-" if text.startswith("-") else ""
    mantissa, _, power = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return f"{sign}0"
    exponent = int(power or 0) + len(whole) - 1 - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if exponent < -4 or exponent >= limit:
        return f"{sign}{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{exponent:+03d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    return f"{sign}{whole}.{digits[exponent + 1 :]}" if digits[exponent + 1 :] else f"{sign}{whole}"


# ---------------------------------------------------------------------- decimals


def to_decimal(given: object, sql_type: Type, what: str) -> Decimal:
    """Make a DECIMAL of the type's scale from a number or its text, rounded half away from zero.

    Raises `invalid_value`: NaN and infinities are none.
    """
    number: Decimal
    if isinstance(given, bool):
        raise not_a(given, sql_type, what)
    if isinstance(given, int):
        if given.bit_length() > 200:
            raise out_of_range(given, sql_type, what)
        number = Decimal(given)
    elif isinstance(given, float):
        if not math.isfinite(given):
            raise not_a(given, sql_type, what)
        number = Decimal(repr(given))
    elif isinstance(given, Decimal):
        number = given
    elif isinstance(given, str):
        if _NUMBER.fullmatch(given) is None:
            raise not_a(given, sql_type, what)
        if len(given) > MAX_NUMBER_TEXT:
            raise out_of_range(given, sql_type, what)
        try:
            number = Decimal(given.strip())
        except DecimalException:  # an exponent beyond those of decimals
            raise out_of_range(given, sql_type, what) from None
    else:
        raise not_a(given, sql_type, what)
    if not number.is_finite():
        raise not_a(given, sql_type, what)
    fitted = fit(number, sql_type)
    if fitted is None:
        raise out_of_range(given, sql_type, what)
    return fitted


def fit(number: Decimal, sql_type: Type) -> Decimal | None:
    """Round to the scale of the type; None if it has too many digits before its point."""
    if sql_type.precision:
        scale, whole = sql_type.scale, sql_type.precision - sql_type.scale
    else:
        exponent = number.as_tuple().exponent
        scale, whole = min(MAX_DIGITS, max(0, -exponent if isinstance(exponent, int) else 0)), MAX_DIGITS
    if not number:
        return _UNITS[scale] * 0
    adjusted = number.adjusted()
    if adjusted > MAX_DIGITS:
        return None
    if adjusted < -scale - 1:
        return _UNITS[scale] * 0
    try:
        rounded = number.quantize(_UNITS[scale], context=DECIMALS)
    except InvalidOperation:
        return None
    if not rounded:
        return _UNITS[scale] * 0  # no negative zero
    return rounded if rounded.adjusted() < whole else None


_UNITS: Final = tuple(Decimal(1).scaleb(-scale, context=DECIMALS) for scale in range(MAX_DIGITS + 1))
_UNBOUNDED: Final = Type(Kind.DECIMAL)


def decimal_result(number: Decimal) -> Decimal:
    """Bound the result of a computation. Raises `invalid_value` 22003."""
    fitted = fit(number, _UNBOUNDED)
    if fitted is None:
        raise overflow("DECIMAL")
    return fitted


def decimal_text(value: Decimal) -> str:
    """Write a decimal in plain digits, all of its scale."""
    return format(value, "f")


def divide_decimals(left: Decimal | int, right: Decimal | int) -> Decimal:
    """Divide as PostgreSQL: 16 significant digits at least, and no fewer decimals than the operands have."""
    left, right = Decimal(left), Decimal(right)
    if not right:
        raise division_by_zero()
    weight_left, first_left = _weight(left)
    weight_right, first_right = _weight(right)
    weight = weight_left - weight_right - (first_left <= first_right)
    scale = max(_QUOTIENT_DIGITS - weight * _DIGITS_OF_BASE, _scale(left), _scale(right), 0)
    quotient = DECIMALS.divide(left, right)
    return decimal_result(quotient.quantize(_UNITS[min(scale, MAX_DIGITS)], context=DECIMALS))


def _scale(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _weight(value: Decimal) -> tuple[int, int]:
    """The position of the first digit of base 10000, and that digit."""
    if not value:
        return 0, 0
    weight, rest = divmod(value.adjusted(), _DIGITS_OF_BASE)
    digits = "".join(map(str, value.as_tuple().digits[: rest + 1]))
    return weight, int(digits.ljust(rest + 1, "0"))
