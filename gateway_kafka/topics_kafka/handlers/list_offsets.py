"""ListOffsets: the first and last offset of a partition, and the first record since a time."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.handlers.errors import error_of
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_net.loop_budget import run_in_slices
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import TopicsError

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_SINCE: Final[Mapping[int, int]] = {
    LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip
"""Special timestamps, and the first version that has each."""

_NONE: Final = -1


def handlers(server: ServerContext) -> HandlerTable:
    """ListOffsets."""
    return {ApiKey.LIST_OFFSETS: partial(_list_offsets, server.api)}


def _list_offsets(api: TopicsApi, context: Context, version: int, body: Message) -> Answer:
    work = _answer(api, context, version, body)  # each lookup by time may decode a batch
    catalog = context.server.catalog
    behind = {
        name
        for name in (asked["name"] for asked in body["topics"])
        if catalog.is_behind(name) and context.is_allowed(ApiKey.LIST_OFFSETS, name)
    }
    return _once_forwarded(api, behind, work) if behind else run_in_slices(work)


async def _once_forwarded(api: TopicsApi, names: Iterable[str], work: Generator[None, None, Message]) -> Message:
    """Answer once everything that the sources held is forwarded, like every read of a router's destination."""
    with suppress(TopicsError):  # reported for each topic
        for name in names:
            await api.routers.forwarded(name)
    answer = run_in_slices(work)
    return answer if isinstance(answer, dict) else await answer


def _answer(api: TopicsApi, context: Context, version: int, body: Message) -> Generator[None, None, Message]:
    topics: list[dict[str, Any]] = []
    for asked in body["topics"]:
        name = asked["name"]
        allowed = context.is_allowed(ApiKey.LIST_OFFSETS, name)
        partitions: list[dict[str, Any]] = []
        for partition in asked["partitions"]:
            number, ts = partition["partition_index"], partition["timestamp"]
            answer: dict[str, Any] = {"partition_index": number, "error_code": 0}
            partitions.append(answer)
            yield
            if not allowed:
                answer["error_code"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif ts < 0 and version < _SINCE.get(ts, version + 1):
                answer["error_code"] = ErrorCode.UNSUPPORTED_VERSION
            else:
                try:
                    offset, time = _offset(api, name, number, ts)
                except TopicsError as error:
                    answer["error_code"] = error_of(error)
                    continue
                answer["error_code"] = context.server.epoch_error(partition.get("current_leader_epoch", -1))
                if not answer["error_code"]:
                    answer |= {"offset": offset, "timestamp": time}
                    answer["leader_epoch"] = _NONE if offset == _NONE else context.server.leader_epoch
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _offset(api: TopicsApi, topic: str, partition: int, ts: int) -> tuple[int, int]:
    """An offset and the time of its record; -1 if there is none."""
    if ts >= 0:
        found = api.offset_at(topic, partition, ts)
    elif ts == MAX_TIMESTAMP:
        found = api.newest_time(topic, partition)
    else:
        earliest, head = api.extent(topic, partition)
        if ts in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):  # there is no tiered storage
            return _NONE, _NONE
        return (head if ts == LATEST else earliest - 1), _NONE
    if found is None:
        return _NONE, _NONE
    seq, time = found
    return seq - 1, time
