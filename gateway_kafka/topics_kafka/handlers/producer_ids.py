"""InitProducerId, DescribeProducers and OffsetForLeaderEpoch, for idempotent producers and truncation detection."""

from collections.abc import Awaitable, Generator
from functools import partial
from typing import Any

from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.handlers.answers import answered
from topics_kafka.handlers.elsewhere import Elsewhere, completed
from topics_kafka.handlers.errors import error_of, id_error_of
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_net.loop_budget import run_in_slices
from topics_service.api.kafka_logs import LATEST, OffsetOutcome, ProducersOutcome, offset_of
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import TopicsError

_Queries = Elsewhere[tuple[str, int], ProducersOutcome]
_Heads = Elsewhere[tuple[str, int, int], OffsetOutcome]


def handlers(server: ServerContext) -> HandlerTable:
    """The APIs of producer ids and leader epochs."""
    return {
        ApiKey.INIT_PRODUCER_ID: partial(_init_producer_id, server),
        ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: _offset_for_leader_epoch,
    }


def _init_producer_id(server: ServerContext, context: Context, _version: int, body: Message) -> Answer:
    """Allocate a new id with epoch 0, whatever id the client had before."""
    transactional_id = body["transactional_id"]
    if transactional_id is not None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if transactional_id else ErrorCode.INVALID_REQUEST
        return _no_id(code)
    if not context.is_allowed(ApiKey.INIT_PRODUCER_ID):
        return _no_id(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return answered(partial(_new_id, server), _given, lambda error: _no_id(id_error_of(error)))


def _new_id(server: ServerContext) -> int | Awaitable[int]:
    api = server.single
    if api is None:
        return server.shards.new_producer_id()
    producer_id, ticket = api.new_producer_id()
    return producer_id if api.is_durable(ticket) else _durable_id(api, producer_id, ticket)


async def _durable_id(api: TopicsApi, producer_id: int, ticket: int) -> int:
    await api.settled(ticket)
    return producer_id


def _given(producer_id: int) -> Message:
    return {"error_code": 0, "producer_id": producer_id, "producer_epoch": 0}


def _no_id(code: ErrorCode) -> Message:
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


def _describe_producers(context: Context, _version: int, body: Message) -> Answer:
    server = context.server
    queries = None if server.single is not None else _Queries(server.shards.producers, lambda error: (None, error))
    answer = run_in_slices(_described(queries, context, body))
    return completed(answer, queries)


def _described(queries: _Queries | None, context: Context, body: Message) -> Generator[None, None, Message]:
    """Describe the producers of each partition. One that is named repeatedly is described once."""
    server = context.server
    topics: list[dict[str, Any]] = []
    seen: set[tuple[str, int]] = set()
    for asked in body["topics"]:
        name = asked["name"]
        partitions: list[dict[str, Any]] = []
        for number in asked["partition_indexes"]:
            yield
            if (name, number) in seen:
                continue
            seen.add((name, number))
            answer: dict[str, Any] = {"partition_index": number, "error_code": 0, "active_producers": []}
            partitions.append(answer)
            if not context.is_allowed(ApiKey.DESCRIBE_PRODUCERS, name):
                answer["error_code"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                answer["error_message"] = "the API key may not read the topic"
                continue
            api = server.here(name, number)
            if api is None:
                assert queries is not None, "there are several shards"
                queries.add(server.shards.shard(name, number), (name, number), partial(_show, answer))
                continue
            try:
                _show(answer, (list(api.producers(name, number)), None))
            except TopicsError as error:
                _show(answer, (None, error))
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _show(answer: dict[str, Any], outcome: ProducersOutcome) -> None:
    producers, error = outcome
    if error is not None:
        answer["error_code"], answer["error_message"] = error_of(error), error.message
        return
    answer["active_producers"] = [
        {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "last_sequence": producer.batches[-1].last,
            "last_timestamp": producer.ts,
            "coordinator_epoch": -1,
            "current_txn_start_offset": -1,
        }
        for producer in producers or ()
    ]


def _offset_for_leader_epoch(context: Context, _version: int, body: Message) -> Answer:
    """Return the end of an epoch. No offset is ever used again, so an earlier one has no other end than the head."""
    server = context.server
    queries = None if server.single is not None else _Heads(server.shards.offsets, lambda error: (None, error))
    topics: list[dict[str, Any]] = []
    for asked in body["topics"]:
        name = asked["topic"]
        partitions = []
        for partition in asked["partitions"]:
            number = partition["partition"]
            answer = {"partition": number, "error_code": 0}
            partitions.append(answer)
            if not context.is_allowed(ApiKey.OFFSET_FOR_LEADER_EPOCH, name):
                answer["error_code"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            show = partial(_show_end, server, answer, name, partition)
            api = server.here(name, number)
            if api is None:
                assert queries is not None, "there are several shards"
                queries.add(server.shards.shard(name, number), (name, number, LATEST), show)
                continue
            try:
                show((offset_of(api, name, number, LATEST), None))
            except TopicsError as error:
                show((None, error))
        topics.append({"topic": name, "partitions": partitions})
    response = {"topics": topics}
    return completed(response, queries)


def _show_end(
    server: ServerContext, answer: dict[str, Any], name: str, partition: Message, outcome: OffsetOutcome
) -> None:
    found, error = outcome
    if error is not None:
        answer["error_code"] = error_of(error)
        return
    assert found is not None, "it is one or the other"
    epoch, number = partition["leader_epoch"], partition["partition"]
    answer["error_code"] = server.epoch_error(partition["current_leader_epoch"], name, number)
    if not answer["error_code"] and 0 <= epoch <= server.epoch(name, number):
        answer |= {"leader_epoch": epoch, "end_offset": found[0]}
