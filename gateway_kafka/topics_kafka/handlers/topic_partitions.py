"""DescribeTopicPartitions: topics and their partitions, page by page (KIP-966)."""

from collections.abc import Awaitable, Iterable, Mapping
from itertools import chain
from typing import Any, Final

from topics_kafka.handlers import Context, HandlerTable, ServerContext, operations
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.catalog import uuid_of
from topics_service.engine.names import is_kafka_name

MOST_PARTITIONS: Final = 2000
"""Partitions of a response, as in Kafka (`max.request.partition.size.limit`)."""
_NO_OTHER_LEADERS: Final[Mapping[str, list[int]]] = {"eligible_leader_replicas": [], "last_known_elr": []}
"""Members of a partition without eligible leaders; the Java client takes no null for them."""


def handlers(server: ServerContext) -> HandlerTable:
    """DescribeTopicPartitions."""

    def describe(context: Context, _version: int, request: Message) -> Message | Awaitable[Message]:
        refreshed = server.refresh_unknown(request["topics"])
        if refreshed is None:
            return _described(server, context, request)
        return _once_known(server, context, request, refreshed)

    return {ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe}


async def _once_known(server: ServerContext, context: Context, request: Message, refreshed: Awaitable[None]) -> Message:
    await refreshed
    return _described(server, context, request)


def _described(server: ServerContext, context: Context, request: Message) -> Message:
    """Describe the requested topics, or all that the caller may access, in name order from the cursor on."""
    context.epochs = server.epochs()
    first, at = _begin(request)
    left = min(request["response_partition_limit"], MOST_PARTITIONS)
    asked = request["topics"]
    found: list[Message] = []
    if at < 0 or left < 1:
        names: Iterable[str] = sorted({each["name"] for each in asked})
        return {"topics": [_failed(name, ErrorCode.INVALID_REQUEST) for name in names], "next_cursor": None}
    if asked:
        names = sorted(each for each in {each["name"] for each in asked} if each >= first)
    else:
        begun = server.catalog.find(first)
        own = [first] if begun is not None and context.is_allowed(ApiKey.DESCRIBE_TOPIC_PARTITIONS, first) else []
        names = chain(own, (topic.name for topic in server.catalog.within(context.prefixes, first)))
    for name in names:
        if not left:
            return {"topics": found, "next_cursor": {"topic_name": name, "partition_index": 0}}
        start = at if name == first else 0
        topic, count = _topic(server, context, name, start, left)
        found.append(topic)
        left -= len(topic["partitions"])
        if start + len(topic["partitions"]) < count:
            cursor = {"topic_name": name, "partition_index": start + len(topic["partitions"])}
            return {"topics": found, "next_cursor": cursor}
    return {"topics": found, "next_cursor": None}


def _begin(request: Message) -> tuple[str, int]:
    cursor = request["cursor"]
    return ("", 0) if cursor is None else (cursor["topic_name"], cursor["partition_index"])


def _topic(server: ServerContext, context: Context, name: str, start: int, most: int) -> tuple[dict[str, Any], int]:
    """A topic with some of its partitions, and the number of all."""
    if not context.is_allowed(ApiKey.DESCRIBE_TOPIC_PARTITIONS, name):
        return _failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED), 0
    topic = server.catalog.find(name)
    if topic is None:
        known = is_kafka_name(name)
        return _failed(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.INVALID_TOPIC_EXCEPTION), 0
    partitions = server.partitions(context.view, topic)
    return {
        "error_code": ErrorCode.NONE,
        "name": name,
        "topic_id": uuid_of(topic.identity.topic_id),
        "partitions": [{**each, **_NO_OTHER_LEADERS} for each in partitions[start : start + most]],
        "topic_authorized_operations": operations.on_topics(context),
    }, len(partitions)


def _failed(name: str, code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "name": name, "partitions": []}
