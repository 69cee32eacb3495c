"""ListOffsets: the first and last offset of a partition, and the first record since a time."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.handlers.elsewhere import Elsewhere, completed
from topics_kafka.handlers.errors import error_of
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_net.loop_budget import run_in_slices
from topics_service.api.kafka_logs import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    NO_OFFSET,
    OffsetOutcome,
    offset_of,
)
from topics_service.engine.errors import TopicsError

_SINCE: Final[Mapping[int, int]] = {
    LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip
"""Special timestamps, and the first version that has each."""

_Queries = Elsewhere[tuple[str, int, int], OffsetOutcome]


def handlers(_server: ServerContext) -> HandlerTable:
    """ListOffsets."""
    return {ApiKey.LIST_OFFSETS: _list_offsets}


def _list_offsets(context: Context, version: int, body: Message) -> Answer:
    server = context.server
    queries = None if server.single is not None else _Queries(server.shards.offsets, lambda error: (None, error))
    work = _answer(queries, context, version, body)  # each lookup by time may decode a batch
    catalog = server.catalog
    behind = {
        name
        for name in (asked["name"] for asked in body["topics"])
        if catalog.is_behind(name) and context.is_allowed(ApiKey.LIST_OFFSETS, name)
    }
    if behind:
        return _once_forwarded(server, behind, queries, work)
    answer = run_in_slices(work)
    return completed(answer, queries)


async def _once_forwarded(
    server: ServerContext, names: Iterable[str], queries: _Queries | None, work: Generator[None, None, Message]
) -> Message:
    """Answer once everything that the sources held is forwarded, like every read of a router's destination."""
    with suppress(TopicsError):  # reported for each topic
        for name in names:
            api = server.here(name, 0)
            if api is not None:  # other processes wait for it themselves
                await api.routers.forwarded(name)
    answer = completed(run_in_slices(work), queries)
    return answer if isinstance(answer, dict) else await answer


def _answer(queries: _Queries | None, context: Context, version: int, body: Message) -> Generator[None, None, Message]:
    server = context.server
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
                continue
            if ts < 0 and version < _SINCE.get(ts, version + 1):
                answer["error_code"] = ErrorCode.UNSUPPORTED_VERSION
                continue
            show = partial(_show, server, answer, name, partition.get("current_leader_epoch", -1))
            api = server.here(name, number)
            if api is None:
                assert queries is not None, "there are several shards"
                queries.add(server.shards.shard(name, number), (name, number, ts), show)
                continue
            try:
                show((offset_of(api, name, number, ts), None))
            except TopicsError as error:
                show((None, error))
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _show(server: ServerContext, answer: dict[str, Any], name: str, epoch: int, outcome: OffsetOutcome) -> None:
    found, error = outcome
    if error is not None:
        answer["error_code"] = error_of(error)
        return
    assert found is not None, "it is one or the other"
    number = answer["partition_index"]
    answer["error_code"] = server.epoch_error(epoch, name, number)
    if not answer["error_code"]:
        offset, time = found
        answer |= {"offset": offset, "timestamp": time}
        answer["leader_epoch"] = NO_OFFSET if offset == NO_OFFSET else server.epoch(name, number)
