"""Columnar batches on their way in: from the columns of the message to those of a batch, checked a column at a time."""

from collections.abc import Sequence
from typing import Final

from topics_proto.v1 import record_pb2
from topics_service.api.grpc.records import kind_in, normalize_datas, normalize_metas
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.engine.model import BINARY_KIND, JSON_KIND, Batch

_Column = list[bytes | None]

# RecordKind numbers to the kinds of a batch, byte by byte; 0 is unspecified, which means JSON.
_KIND_BYTES: Final = bytes.maketrans(bytes((0, 1, 2)), bytes((JSON_KIND, JSON_KIND, BINARY_KIND)))


def columnar_batch(message: record_pb2.ColumnBatch, node: str | None, limits: Limits) -> Batch:
    """The records of `message`, with JSON freed of outer white space; `node` is that of records that name none.

    Raises `batch_too_large` (before it looks at a record) and `invalid_request`, naming the column and, where it can,
    the index. Sizes of data, tags and nodes are left to the engine.
    """
    count = len(message.data)
    if count > limits.max_batch_records:
        raise TopicsError(
            Reason.BATCH_TOO_LARGE, f"{count} records are more than one append takes ({limits.max_batch_records})"
        )
    datas = list(message.data)
    kinds = _kinds(message, count)
    normalize_datas(datas, kinds or b"", "columns.data[{}]")
    nodes = _text(message, "node", count)
    if node is not None:
        given = node.encode()
        nodes = [given] * count if nodes is None else [given if own is None else own for own in nodes]
    metas = _column(message, "meta", count)
    if metas is not None:
        metas = [meta or None for meta in metas]
        if any(metas):
            normalize_metas(metas, limits, "columns.meta[{}]")
        else:
            metas = None
    return Batch(datas=datas, tags=_text(message, "tag", count), nodes=nodes, metas=metas, kinds=kinds)


def _kinds(message: record_pb2.ColumnBatch, count: int) -> bytes | None:
    """One byte per record, or None when all are JSON."""
    if message.kinds:
        if len(message.kinds) != count:
            raise invalid(f"columns.kinds has {len(message.kinds)} entries for {count} records")
        if max(message.kinds) > 2:
            i = next(i for i, kind in enumerate(message.kinds) if kind > 2)
            raise invalid(f"columns.kinds[{i}]: unknown value {message.kinds[i]}")
        kinds = message.kinds.translate(_KIND_BYTES)
        return kinds if any(kinds) else None
    kind = kind_in(message.kind, "columns.kind")
    return bytes((kind,)) * count if kind != JSON_KIND else None


def _text(message: record_pb2.ColumnBatch, name: str, count: int) -> _Column | None:
    """A column of UTF-8 texts."""
    column = _column(message, name, count)
    if column is None:
        return None
    given: Sequence[bytes] = getattr(message, name).value or [getattr(message, name).shared]
    # One check for all: a character that is cut in two between texts is broken by the line end in between.
    joined = b"\n".join(given)
    if not joined.isascii() and not _is_utf8(joined):
        i = next(i for i, value in enumerate(given) if not _is_utf8(value))
        raise invalid(f"columns.{name}[{i}] is not valid UTF-8")
    return column


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _column(message: record_pb2.ColumnBatch, name: str, count: int) -> _Column | None:
    """A column with None for absent values; None when no record has a value."""
    if not message.HasField(name):  # type: ignore[arg-type]  # the stubs list the names as literals
        return None
    column: record_pb2.Column = getattr(message, name)
    if column.HasField("shared"):
        if column.value or column.absent:
            raise invalid(f"columns.{name}: shared excludes value and absent")
        return [column.shared] * count
    values: _Column = list(column.value)
    if len(values) != count:
        raise invalid(f"columns.{name} has {len(values)} entries for {count} records")
    before = -1
    for i in column.absent:
        if not before < i < count or values[i]:
            raise invalid(f"columns.{name}.absent: {i} is out of order, out of range or has a value")
        values[i] = None
        before = i
    return values if len(column.absent) < count else None
