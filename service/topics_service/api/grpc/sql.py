"""Messages of SqlService to the structs of `api.sql`, and its replies to messages."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from topics_proto.v1 import group_pb2, record_pb2, sql_pb2, stream_pb2
from topics_proto.v1 import sql_service_pb2 as pb
from topics_service.api.sql.claims import DEFAULT_VISIBILITY
from topics_service.api.sql.live import LiveCaughtUp, LiveFrame, LiveGap, LiveOpened, LiveRequest, LiveRows
from topics_service.api.sql.requests import (
    AckRequest,
    ConsumeReply,
    ConsumeRequest,
    Gap,
    GrantedClaim,
    Message,
    ResultColumn,
    SqlReply,
    SqlRequest,
)
from topics_service.api.sql.requests import SqlResult as Result
from topics_service.engine.errors import invalid
from topics_service.engine.tables.live import RowChange
from topics_service.engine.tables.model import DEFAULT_NAMESPACE
from topics_service.engine.tables.types import Kind, Type
from topics_service.engine.tables.values import json_converter
from topics_service.engine.watch.frames import HeartbeatFrame

_OPS: Final[dict[str | None, sql_pb2.ChangeOp.ValueType]] = {
    "Insert": sql_pb2.CHANGE_OP_INSERT,
    "Update": sql_pb2.CHANGE_OP_UPDATE,
    "Delete": sql_pb2.CHANGE_OP_DELETE,
}
_MODES: Final[dict[str, sql_pb2.PayloadMode.ValueType]] = {
    "Key": sql_pb2.PAYLOAD_MODE_KEY,
    "Full": sql_pb2.PAYLOAD_MODE_FULL,
    "Diff": sql_pb2.PAYLOAD_MODE_DIFF,
}
_FIELDS: Final = {bool: "bool_value", int: "int_value", float: "double_value", str: "text_value", bytes: "bytes_value"}
_AS_THEY_ARE: Final = frozenset({Kind.BYTES, Kind.JSON})
_ENDS: Final = {group_pb2.LOG_END_EARLIEST: "earliest", group_pb2.LOG_END_LATEST: "latest"}
_I64_MAX: Final = (1 << 63) - 1


def sql_request(request: pb.ExecuteRequest) -> SqlRequest:
    """Statements with their parameters."""
    return SqlRequest(
        sql=request.sql,
        params=_values(request.params) if request.params else None,
        param_rows=[_values(row.values) for row in request.param_rows] if request.param_rows else None,
        namespace=request.namespace_id or DEFAULT_NAMESPACE,
        size=request.ByteSize(),
    )


def sql_response(reply: SqlReply) -> pb.ExecuteResponse:
    """The results of statements. Raises the error of the one that failed."""
    if reply.error is not None:
        raise reply.error
    return pb.ExecuteResponse(results=map(_result, reply.results), took_ms=reply.took_ms)


def consume_request(request: pb.SqlServiceConsumeRequest) -> ConsumeRequest:
    """A read for a group. Raises `invalid_request`."""
    if request.HasField("limit") and not request.limit:
        raise invalid("limit must be an integer of at least 1")
    start: Any = "latest"
    match request.WhichOneof("start"):
        case "start_offset":
            start = request.start_offset
        case "start_at":
            start = _ENDS.get(request.start_at)
            if start is None:
                raise invalid(f"start_at: unknown value {request.start_at}")
    return ConsumeRequest(
        topic=request.topic,
        group=request.group_id,
        start=start,
        limit=request.limit if request.HasField("limit") else 100,
        partition=request.partition_id,
        timeout_seconds=request.timeout_seconds if request.HasField("timeout_seconds") else None,
        visibility_seconds=_visibility(request.claim) if request.HasField("claim") else None,
    )


def consume_response(reply: ConsumeReply) -> pb.SqlServiceConsumeResponse:
    """A page of messages."""
    return pb.SqlServiceConsumeResponse(
        messages=map(_message, reply.messages),
        next_offset=reply.next_offset,
        has_more=reply.has_more,
        gap=None if reply.gap is None else _gap(reply.gap),
        claim=None if reply.claim is None else _claim(reply.claim),
    )


def ack_request(request: pb.SqlServiceAckRequest) -> AckRequest:
    """An acknowledgement."""
    return AckRequest(
        topic=request.topic,
        group=request.group_id,
        partition=request.partition_id,
        upto_offset=request.upto_offset if request.HasField("upto_offset") else None,
        claim_id=request.claim_id if request.HasField("claim_id") else None,
    )


def ack_response(acknowledged: int) -> pb.SqlServiceAckResponse:
    """The outcome of an acknowledgement."""
    return pb.SqlServiceAckResponse(success=True, acknowledged_offset=max(acknowledged, 0), none_yet=acknowledged < 0)


def live_request(request: pb.SubscribeRequest) -> LiveRequest:
    """A live query."""
    return LiveRequest(
        sql=request.sql,
        params=_values(request.params) if request.params else None,
        namespace=request.namespace_id or DEFAULT_NAMESPACE,
        after=request.after if request.HasField("after") else None,
    )


class LiveFrames:
    """Frames of one live query as messages."""

    def __init__(self) -> None:
        self._converters: list[Callable[[Any], Any] | None] = []

    def message(self, frame: LiveFrame) -> pb.SubscribeResponse:
        """A frame. The first has the columns of all others."""
        match frame:
            case LiveOpened(columns=columns):
                self._converters = [_converter(column.type) for column in columns]
                return pb.SubscribeResponse(opened=sql_pb2.LiveOpened(schema=_schema(columns)))
            case LiveRows(rows=rows, position=position):
                snapshot = sql_pb2.LiveSnapshot(rows=map(self._row, rows), position=position)
                return pb.SubscribeResponse(snapshot=snapshot)
            case LiveCaughtUp(position=position):
                return pb.SubscribeResponse(caught_up=sql_pb2.LiveCaughtUp(position=position))
            case LiveGap():
                gap = sql_pb2.LiveGap(
                    from_position=frame.from_position, to_position=frame.to_position, reason=frame.reason
                )
                return pb.SubscribeResponse(gap=gap)
            case HeartbeatFrame(ts=ts):
                return pb.SubscribeResponse(heartbeat=stream_pb2.Heartbeat(ts_ms=ts))
            case changes:
                made = sql_pb2.LiveChanges(changes=map(self._change, changes.changes))
                return pb.SubscribeResponse(changes=made)

    def _change(self, change: RowChange) -> sql_pb2.LiveChange:
        return sql_pb2.LiveChange(
            op=_OPS[change.op],
            row=None if change.row is None else self._row(change.row),
            old=None if change.old is None else self._row(change.old),
            position=change.position,
        )

    def _row(self, row: Sequence[Any]) -> sql_pb2.SqlRow:
        return sql_pb2.SqlRow(values=map(_value, row, self._converters))


def _values(given: Sequence[sql_pb2.SqlValue]) -> list[Any]:
    values = []
    for value in given:
        kind = value.WhichOneof("kind")
        values.append(None if kind is None else getattr(value, kind))
    return values


def _result(result: Result) -> sql_pb2.SqlResult:
    converters = [_converter(column.type) for column in result.columns]
    return sql_pb2.SqlResult(
        schema=_schema(result.columns),
        rows=[
            sql_pb2.SqlRow(values=[_value(value, convert) for value, convert in zip(row, converters, strict=True)])
            for row in result.rows
        ],
        row_count=result.row_count,
        message=result.message,
        gaps=[
            sql_pb2.RecordGap(
                topic=gap.topic, partition=gap.partition, from_seq=gap.from_seq, to_seq=gap.to_seq,
                reason=_reason(gap.reason),
            )
            for gap in result.gaps
        ],
    )  # fmt: skip


def _schema(columns: Sequence[ResultColumn]) -> list[sql_pb2.SqlColumn]:
    return [
        sql_pb2.SqlColumn(name=column.name, data_type="NULL" if column.type is None else column.type.name, index=i)
        for i, column in enumerate(columns)
    ]


def _converter(sql_type: Type | None) -> Callable[[Any], Any] | None:
    return None if sql_type is not None and sql_type.kind in _AS_THEY_ARE else json_converter(sql_type)


def _value(value: Any, convert: Callable[[Any], Any] | None) -> sql_pb2.SqlValue:
    if value is None:
        return sql_pb2.SqlValue()
    if convert is not None:
        value = convert(value)
    if type(value) not in _FIELDS or (type(value) is int and not -_I64_MAX - 1 <= value <= _I64_MAX):
        return sql_pb2.SqlValue(text_value=str(value))
    return sql_pb2.SqlValue(**{_FIELDS[type(value)]: value})


def _message(message: Message) -> sql_pb2.TopicMessage:
    return sql_pb2.TopicMessage(
        topic_id=message.topic_id,
        partition_id=message.partition_id,
        offset=message.offset,
        message_id=message.message_id,
        source_table=message.source_table,
        op=_OPS.get(message.op),
        ts_ms=message.ts,
        payload_mode=_MODES[message.payload_mode],
        payload=message.payload,
        key=message.key,
    )


def _visibility(options: sql_pb2.ClaimOptions) -> int:
    return options.visibility_seconds if options.HasField("visibility_seconds") else DEFAULT_VISIBILITY


def _claim(claim: GrantedClaim) -> sql_pb2.HeldRange:
    return sql_pb2.HeldRange(
        claim_id=claim.claim_id,
        from_offset=claim.from_offset,
        to_offset=claim.to_offset,
        visibility_seconds=claim.visibility_seconds,
    )


def _gap(gap: Gap) -> sql_pb2.TopicGap:
    return sql_pb2.TopicGap(from_offset=gap.from_offset, to_offset=gap.to_offset, reason=_reason(gap.reason))


def _reason(name: str) -> record_pb2.GapReason.ValueType:
    return record_pb2.GapReason.Value(f"GAP_REASON_{name.upper()}")
