"""Results of SQL statements, and messages of topics."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final, Generic, Literal, NamedTuple, cast
from uuid import UUID

from topics_client.codecs import JsonCodec
from topics_client.enums import text_of
from topics_client.errors import InvalidRequestError, NotFoundError
from topics_client.models import GapReason, Value_co
from topics_proto.v1 import sql_pb2, sql_service_pb2

Row = Mapping[str, Any]


class RecordGap(NamedTuple):
    """Records of a topic that were lost: seqs of a partition, both included."""

    topic: str
    partition: int
    from_seq: int
    to_seq: int
    reason: GapReason


class SqlColumn(NamedTuple):
    """A column of a result: its name, and its type as SQL writes it, such as `BIGINT` or `DECIMAL(10, 2)`."""

    name: str
    data_type: str


@dataclass(frozen=True, slots=True)
class SqlResult(Generic[Value_co]):
    """The result of one statement. Iterating gives its rows: dicts by column name, or values of the type `of`.

    Values are Python's own: Decimal, datetime (in UTC), date, time, UUID, bytes; JSON is decoded.
    """

    columns: tuple[SqlColumn, ...]
    tuples: Sequence[tuple[Any, ...]]
    """The rows as tuples, in the order of `columns`."""
    row_count: int
    """Rows that were read, or changed."""
    message: str | None = None
    gaps: tuple[RecordGap, ...] = ()
    """Records of topics that the statement would have read, had they not been lost."""
    of: type[Value_co] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.tuples)

    def __iter__(self) -> Iterator[Value_co]:
        names = [column.name for column in self.columns]
        if self.of is None:
            return iter([dict(zip(names, row, strict=True)) for row in self.tuples])  # type: ignore[misc]
        decode = JsonCodec(self.of).decode
        return (decode(_json(dict(zip(names, row, strict=True))), False) for row in self.tuples)

    @property
    def rows(self) -> list[Value_co]:
        """The rows as a list."""
        return list(self)

    def one(self) -> Value_co:
        """The only row. Raises NotFoundError if there is none, InvalidRequestError if there are several."""
        if len(self.tuples) == 1:
            return next(iter(self))
        if not self.tuples:
            raise NotFoundError("no_row", "the statement gave no row")
        raise InvalidRequestError("several_rows", f"the statement gave {len(self.tuples)} rows, not one")

    def scalar(self) -> Any:
        """The value of a result of one row and one column. Raises as `one`."""
        self.one()
        if len(self.columns) != 1:
            raise InvalidRequestError("several_columns", f"the statement gave {len(self.columns)} columns, not one")
        return self.tuples[0][0]


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a topic: a change of a row, or a record that was written by another call.

    `source_table`, `op` and `message_id` are None for a record that is no change of a row. `payload` is JSON text of
    the row, or the bytes of the record; None for a tombstone.
    """

    topic_id: str
    partition_id: int
    offset: int
    message_id: str | None
    source_table: str | None
    op: Literal["Insert", "Update", "Delete"] | None
    ts_ms: int
    payload_mode: Literal["Key", "Full", "Diff"]
    payload: bytes | None
    key: str | None

    @property
    def value(self) -> Any:
        """The payload decoded from JSON; None for a tombstone. Raises ValueError for bytes that are not JSON."""
        return None if self.payload is None else json.loads(self.payload)

    def as_type(self, of: type[Value_co]) -> Value_co:
        """The payload decoded as a value of a type; see JsonCodec."""
        decoded: Value_co = JsonCodec(of).decode(self.payload or b"null", False)
        return decoded


@dataclass(frozen=True, slots=True)
class MessageGap:
    """Offsets, both included, that retention removed before the group came."""

    from_offset: int
    to_offset: int
    reason: GapReason


@dataclass(frozen=True, slots=True)
class MessageClaim:
    """A range of offsets, both included, that the caller holds for `visibility_seconds` from the answer on.

    It is handed out again if it is not acknowledged by then. Offsets in it without a message were deleted, or are in
    the gap of the answer.
    """

    claim_id: str
    from_offset: int
    to_offset: int
    visibility_seconds: int


@dataclass(frozen=True, slots=True)
class Messages(Sequence[Message]):
    """The messages of a call of `consume`, in order. `next_offset` is the offset to continue from.

    `has_more`: a message follows already. `gap`: messages that are gone; None if none are missing. `claim`: what the
    call has claimed, None unless it asked for a claim and there was something.
    """

    messages: Sequence[Message]
    next_offset: int
    has_more: bool
    gap: MessageGap | None = None
    claim: MessageClaim | None = None

    def __len__(self) -> int:
        return len(self.messages)

    def __getitem__(self, index: Any) -> Any:
        return self.messages[index]


# ------------------------------------------------------------------------------------------- to and from protobuf


def values_of(parameters: Sequence[Any]) -> list[sql_pb2.SqlValue]:
    """Parameters as messages. Raises InvalidRequestError for a value that SQL has no type for."""
    return [_value(value) for value in parameters]


def rows_of(rows: Sequence[Sequence[Any]]) -> list[sql_pb2.SqlRow]:
    """Rows of parameters as messages."""
    return [sql_pb2.SqlRow(values=values_of(row)) for row in rows]


def results_of(reply: sql_service_pb2.ExecuteResponse, of: Any = None) -> list[SqlResult[Any]]:
    """The results of a call."""
    return [_result(each, of) for each in reply.results]


def messages_of(reply: sql_service_pb2.SqlServiceConsumeResponse) -> Messages:
    """The messages of a call."""
    gap = None
    if reply.HasField("gap"):
        reason = cast(GapReason, text_of("reason", reply.gap.reason))
        gap = MessageGap(reply.gap.from_offset, reply.gap.to_offset, reason)
    claim = None
    if reply.HasField("claim"):
        held = reply.claim
        claim = MessageClaim(held.claim_id, held.from_offset, held.to_offset, held.visibility_seconds)
    return Messages([_message(each) for each in reply.messages], reply.next_offset, reply.has_more, gap, claim)


def columns_of(schema: Iterable[sql_pb2.SqlColumn]) -> tuple[SqlColumn, ...]:
    """The columns of a result."""
    return tuple(SqlColumn(column.name, column.data_type) for column in schema)


def readers_of(columns: Iterable[SqlColumn]) -> list[Callable[[Any], Any] | None]:
    """The functions that make Python's values of those of columns; None where they are the same."""
    return [_READERS.get(column.data_type.partition("(")[0]) for column in columns]


def read_row(row: sql_pb2.SqlRow, readers: Sequence[Callable[[Any], Any] | None]) -> tuple[Any, ...]:
    """The values of a row."""
    return tuple(_read(value, reader) for value, reader in zip(row.values, readers, strict=True))


def _value(value: Any) -> sql_pb2.SqlValue:
    match value:
        case None:
            return sql_pb2.SqlValue()
        case bool():
            return sql_pb2.SqlValue(bool_value=value)
        case int() if -(1 << 63) <= value < 1 << 63:
            return sql_pb2.SqlValue(int_value=value)
        case float():
            return sql_pb2.SqlValue(double_value=value)
        case str():
            return sql_pb2.SqlValue(text_value=value)
        case bytes() | bytearray() | memoryview():
            return sql_pb2.SqlValue(bytes_value=bytes(value))
        case datetime() | date() | time():
            return sql_pb2.SqlValue(text_value=value.isoformat())
        case int() | Decimal() | UUID():
            return sql_pb2.SqlValue(text_value=str(value))
        case dict() | list() | tuple():
            return sql_pb2.SqlValue(text_value=json.dumps(value, separators=(",", ":")))
    raise InvalidRequestError("invalid_request", f"SQL has no type for a value of {type(value).__name__}")


def _result(result: sql_pb2.SqlResult, of: Any) -> SqlResult[Any]:
    columns = columns_of(result.schema)
    readers = readers_of(columns)
    rows = [read_row(row, readers) for row in result.rows]
    message = result.message if result.HasField("message") else None
    gaps = tuple(
        RecordGap(gap.topic, gap.partition, gap.from_seq, gap.to_seq, cast(GapReason, text_of("reason", gap.reason)))
        for gap in result.gaps
    )
    return SqlResult(columns, rows, result.row_count, message, gaps, of)


def _read(value: sql_pb2.SqlValue, reader: Callable[[Any], Any] | None) -> Any:
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    found = getattr(value, kind)
    return found if reader is None else reader(found)


def _message(message: sql_pb2.TopicMessage) -> Message:
    return Message(
        topic_id=message.topic_id,
        partition_id=message.partition_id,
        offset=message.offset,
        message_id=message.message_id if message.HasField("message_id") else None,
        source_table=message.source_table if message.HasField("source_table") else None,
        op=OPS[message.op] if message.HasField("op") else None,
        ts_ms=message.ts_ms,
        payload_mode=_MODES[message.payload_mode],
        payload=message.payload if message.HasField("payload") else None,
        key=message.key if message.HasField("key") else None,
    )


def _timestamp(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _json(row: Row) -> bytes:
    return json.dumps(row, default=plain).encode()


def plain(value: Any) -> Any:
    """A value as JSON has it: bytes as base64, times in ISO 8601, others as text."""
    if isinstance(value, bytes):
        import base64

        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)


def _float(value: Any) -> float:
    return float(value)


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "DECIMAL": lambda value: Decimal(str(value)),
    "TIMESTAMP": _timestamp,
    "DATE": date.fromisoformat,
    "TIME": time.fromisoformat,
    "UUID": UUID,
    "JSON": json.loads,
    "DOUBLE": _float,
    "REAL": _float,
}
OPS: Final[Mapping[int, Literal["Insert", "Update", "Delete"]]] = {1: "Insert", 2: "Update", 3: "Delete"}
_MODES: Final[Mapping[int, Literal["Key", "Full", "Diff"]]] = {1: "Key", 2: "Full", 3: "Diff"}
