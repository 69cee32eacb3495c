"""Rows of tables as Arrow: column `f3` has the values of the column with id 3, as `text.duck_type` says."""

from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from typing import Any, Final

from topics_service.engine.errors import Reason
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.types import Kind, Type, Value

KEY: Final = "k"
ROWS_A_CHUNK: Final = 1024
"""Rows that become Arrow at once: a millisecond or two."""
MAX_DIGITS: Final = 38
STREAMED_SCALE: Final = 16
"""Decimals of a DECIMAL without a scale in a table that is streamed, whose values are not known before."""

Columns = Sequence[tuple[int, Type | None]]
"""Ids of columns and their types."""


@cache
def _types() -> dict[Kind, Any]:
    import pyarrow as pa

    return {
        Kind.BOOLEAN: pa.bool_(), Kind.SMALLINT: pa.int16(), Kind.INTEGER: pa.int32(), Kind.BIGINT: pa.int64(),
        Kind.REAL: pa.float32(), Kind.DOUBLE: pa.float64(), Kind.TEXT: pa.string(), Kind.BYTES: pa.binary(),
        Kind.JSON: pa.string(), Kind.TIMESTAMP: pa.int64(), Kind.DATE: pa.int32(), Kind.TIME: pa.int64(),
        Kind.UUID: pa.string(),
    }  # fmt: skip


def chunk(columns: Columns, rows: Sequence[Sequence[Value]], keys: Sequence[bytes] | None = None) -> Any:
    """The Arrow table of some rows; with `keys` also these, as the column `k`."""
    import pyarrow as pa

    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    names = [f"f{number}" for number, _ in columns]
    arrays = [_array(kind, each) for (_, kind), each in zip(columns, values, strict=True)]
    if keys is not None:
        names.append(KEY)
        arrays.append(pa.array(keys, pa.binary()))
    return pa.table(dict(zip(names, arrays, strict=True)))


def _array(kind: Type | None, values: Sequence[Any]) -> Any:
    import pyarrow as pa

    if kind is None:
        return pa.array([None if each is None else str(each) for each in values], pa.string())
    if kind.kind is not Kind.DECIMAL:
        return pa.array(values, _types()[kind.kind])
    if kind.precision:
        return pa.array(values, pa.decimal128(kind.precision, kind.scale))
    digits = [each for each in values if each is not None]
    scale = max((-int(each.as_tuple().exponent) for each in digits), default=0)
    whole = max((each.adjusted() + 1 for each in digits if each), default=1)
    return _scaled(pa.array([None if each is None else _plain(each) for each in values]), max(scale, 0), whole)


def _plain(value: Decimal) -> Decimal:
    return value.quantize(Decimal(1)) if int(value.as_tuple().exponent) > 0 else value


def _scaled(array: Any, scale: int, whole: int) -> Any:
    import pyarrow as pa

    if scale + max(whole, 1) > MAX_DIGITS:
        raise too_many_digits()
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.decimal128(MAX_DIGITS, scale))
    return array.cast(pa.decimal128(MAX_DIGITS, scale))


def too_many_digits() -> Exception:
    """The error of a column without a scale whose values have no scale in common."""
    message = "a DECIMAL column without a scale has values of more than 38 digits together: give it DECIMAL(p, s)"
    return sql_error(Reason.INVALID_VALUE, message, sqlstate="22003")


def joined(columns: Columns, parts: Sequence[Any]) -> Any:
    """One table of several, whose DECIMALs without a scale get that which all of them need."""
    import pyarrow as pa

    free = [f"f{number}" for number, kind in columns if kind and kind.kind is Kind.DECIMAL and not kind.precision]
    for name in free:
        scale = max(part.schema.field(name).type.scale for part in parts)
        wanted = pa.decimal128(MAX_DIGITS, scale)
        again = []
        for part in parts:
            if part.schema.field(name).type != wanted:
                try:
                    column = part.column(name).cast(wanted)
                except pa.ArrowInvalid:
                    raise too_many_digits() from None
                part = part.set_column(part.schema.get_field_index(name), name, column)
            again.append(part)
        parts = again
    return pa.concat_tables(parts)


def schema(columns: Columns) -> Any:
    """The columns of `batch`: DECIMALs without a scale have `STREAMED_SCALE` decimals."""
    import pyarrow as pa

    kinds = [
        pa.string()
        if kind is None
        else _types()[kind.kind]
        if kind.kind is not Kind.DECIMAL
        else pa.decimal128(kind.precision or MAX_DIGITS, kind.scale if kind.precision else STREAMED_SCALE)
        for _, kind in columns
    ]
    return pa.schema([(f"f{number}", kind) for (number, _), kind in zip(columns, kinds, strict=True)])


def batch(columns: Columns, rows: Sequence[Sequence[Value]], wanted: Any) -> Any:
    """The rows as a batch of a schema, which is that of the columns."""
    import pyarrow as pa

    try:
        table = chunk(columns, rows).cast(wanted)
    except pa.ArrowInvalid:
        raise too_many_digits() from None
    return table.combine_chunks().to_batches()[0]
