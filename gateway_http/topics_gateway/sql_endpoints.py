"""Handlers of SQL, and of consuming and acknowledging messages: JSON in and out."""

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from msgspec import Raw

from topics_gateway.body import read_json, read_object
from topics_gateway.errors import SqlError
from topics_gateway.json_fields import Fields, JsonObject
from topics_gateway.request import Request
from topics_gateway.response import Response, encode, json_response
from topics_gateway.settings import GatewaySettings
from topics_gateway.sql_body import read_sql
from topics_service.api.interfaces import Sql
from topics_service.api.sql.claims import DEFAULT_VISIBILITY
from topics_service.api.sql.requests import AckRequest, ConsumeRequest, Message, SqlReply, SqlResult
from topics_service.engine.errors import invalid
from topics_service.engine.tables.types import Kind, Type
from topics_service.engine.tables.values import json_converter

_U32_MAX: Final = (1 << 32) - 1
_CONSUME: Final = frozenset(
    {"topic", "topic_id", "group_id", "start", "limit", "partition_id", "timeout_seconds", "claim"}
)
_CONSUME_NULLABLE: Final = frozenset({"start", "limit", "partition_id", "timeout_seconds", "claim"})
_CLAIM: Final = frozenset({"visibility_seconds"})
_ACK: Final = frozenset({"topic", "topic_id", "group_id", "partition_id", "upto_offset", "claim_id"})
_ACK_NULLABLE: Final = frozenset({"partition_id", "claim_id"})
_OFFSET: Final = frozenset({"offset"})
_NULL_TYPE: Final = "NULL"


class SqlEndpoints:
    """Requests to the structs of `api.sql`, and replies to JSON, members in the documented order."""

    def __init__(self, api: Sql, settings: GatewaySettings) -> None:
        self._api = api
        self._settings = settings

    async def execute(self, request: Request) -> Response:
        """POST /api/sql. A client that leaves ends what is not committed."""
        sql, as_text = read_sql(await read_json(request, self._settings.max_body_bytes))
        reply = await request.unless_gone(self._api.execute(sql, principal=request.principal))
        return await asyncio.to_thread(_rendered, reply, as_text) if reply.is_large else _rendered(reply, as_text)

    async def consume(self, request: Request) -> Response:
        """POST /api/topics/consume. A client that leaves ends its wait."""
        fields = Fields(await self._object(request), _CONSUME, _CONSUME_NULLABLE)
        consume = ConsumeRequest(
            topic=_topic(fields),
            group=_group(fields),
            start=_start(fields),
            limit=_at_least(1, fields, "limit", 100),
            partition=_partition(fields),
            timeout_seconds=_at_least(0, fields, "timeout_seconds", None),
            visibility_seconds=_visibility(fields),
        )
        reply = await request.unless_gone(self._api.consumers.consume(consume, principal=request.principal))
        members: dict[str, Any] = {
            "messages": [message_members(message) for message in reply.messages],
            "next_offset": reply.next_offset,
            "has_more": reply.has_more,
        }
        if reply.gap is not None:
            members["gap"] = reply.gap
        if reply.claim is not None:
            members["claim"] = reply.claim
        return json_response(200, members)

    async def ack(self, request: Request) -> Response:
        """POST /api/topics/ack."""
        fields = Fields(await self._object(request), _ACK, _ACK_NULLABLE)
        claim_id = fields.text("claim_id")
        upto = fields.integer("upto_offset")
        if upto is None and claim_id is None:
            raise invalid("upto_offset is missing")
        ack = AckRequest(
            topic=_topic(fields),
            group=_group(fields),
            partition=_partition(fields),
            upto_offset=upto,
            claim_id=claim_id,
        )
        acknowledged = await self._api.consumers.ack(ack, principal=request.principal)
        return json_response(200, {"success": True, "acknowledged_offset": None if acknowledged < 0 else acknowledged})

    async def _object(self, request: Request) -> JsonObject:
        return await read_object(request, self._settings.max_body_bytes)


def _rendered(reply: SqlReply, bigint_as_text: bool) -> Response:
    """The results as a response. Raises the error of the statement that failed, with the results before it."""
    results = [result_members(result, bigint_as_text=bigint_as_text) for result in reply.results]
    if reply.error is not None:
        raise SqlError(reply.error, results)
    return Response(200, encode({"status": "success", "results": results, "took": reply.took_ms}))


def result_members(result: SqlResult, *, bigint_as_text: bool = False) -> dict[str, Any]:
    """A result as the members of its JSON object."""
    members: dict[str, Any] = {
        "schema": [
            {"name": column.name, "data_type": _NULL_TYPE if column.type is None else column.type.name, "index": index}
            for index, column in enumerate(result.columns)
        ],
        "rows": _rows(result, bigint_as_text=bigint_as_text),
        "row_count": result.row_count,
    }
    if result.message is not None:
        members["message"] = result.message
    if result.gaps:
        members["gaps"] = [gap._asdict() for gap in result.gaps]
    return members


def message_members(message: Message) -> dict[str, Any]:
    """A message as the members of its JSON object, in the order of the envelope."""
    payload = message.payload
    members = {
        "topic_id": message.topic_id,
        "partition_id": message.partition_id,
        "offset": message.offset,
        "message_id": message.message_id,
        "source_table": message.source_table,
        "op": message.op,
        "ts": message.ts,
        "payload_mode": message.payload_mode,
        "payload": None if payload is None else base64.b64encode(payload).decode(),
    }
    if message.key is not None:
        members["key"] = message.key
    return members


def _rows(result: SqlResult, *, bigint_as_text: bool) -> Sequence[Sequence[Any]]:
    """The rows ready for JSON, converted a column at a time; those of plain types are as they are."""
    converters = [_converter(column.type, bigint_as_text=bigint_as_text) for column in result.columns]
    if not result.rows or not any(converters):
        return result.rows
    columns = [
        values if convert is None else [None if value is None else convert(value) for value in values]
        for values, convert in zip(zip(*result.rows, strict=True), converters, strict=True)
    ]
    return list(zip(*columns, strict=True))


def _converter(sql_type: Type | None, *, bigint_as_text: bool) -> Callable[[Any], Any] | None:
    if sql_type is not None and sql_type.kind is Kind.JSON:
        return _document
    if bigint_as_text and sql_type is not None and sql_type.kind is Kind.BIGINT:
        return str
    return json_converter(sql_type)


def _document(text: str) -> Raw:
    return Raw(text.encode())


def _topic(fields: Fields) -> str:
    topic, other = fields.text("topic"), fields.text("topic_id")
    if topic is not None and other is not None and topic != other:
        raise invalid("topic and topic_id are not the same")
    name = topic if topic is not None else other
    if name is None:
        raise invalid("topic is missing")
    return name


def _group(fields: Fields) -> str:
    group = fields.text("group_id")
    if group is None:
        raise invalid("group_id is missing")
    return group


def _partition(fields: Fields) -> int:
    return fields.integer("partition_id", high=_U32_MAX) or 0


def _visibility(fields: Fields) -> int | None:
    """The seconds for which the messages are claimed, None for a read without a claim."""
    found = fields.value("claim")
    if found is None:
        return None
    if not isinstance(found, JsonObject):
        raise invalid('claim must be an object: {"visibility_seconds": n}')
    seconds: int = _at_least(1, Fields(found, _CLAIM, _CLAIM), "visibility_seconds", DEFAULT_VISIBILITY)
    return seconds


def _at_least(low: int, fields: Fields, name: str, default: Any) -> Any:
    """A number that is clamped above, and refused below `low`."""
    value = fields.value(name)
    if not fields.has(name):
        return default
    if type(value) is not int or value < low:
        raise invalid(f"{name} must be an integer of at least {low}")
    return value


def _start(fields: Fields) -> Literal["earliest", "latest"] | int:
    match fields.value("start"):
        case None:
            return "latest"
        case str() as word if word.lower() == "earliest":
            return "earliest"
        case str() as word if word.lower() == "latest":
            return "latest"
        case JsonObject() as found:
            named = JsonObject([(name.lower(), value) for name, value in found.members])
            offset = Fields(named, _OFFSET).integer("offset")
            if offset is not None:
                return offset
    raise invalid('start must be "Latest", "Earliest" or {"Offset": n}')
