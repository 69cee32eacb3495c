"""InitProducerId, DescribeProducers and OffsetForLeaderEpoch, for idempotent producers and truncation detection."""

from collections.abc import Generator
from functools import partial
from typing import Any

from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.handlers.errors import error_of
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_net.loop_budget import run_in_slices
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import TopicsError


def handlers(server: ServerContext) -> HandlerTable:
    """The APIs of producer ids and leader epochs."""
    return {
        ApiKey.INIT_PRODUCER_ID: partial(_init_producer_id, server.api),
        ApiKey.DESCRIBE_PRODUCERS: partial(_describe_producers, server.api),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: partial(_offset_for_leader_epoch, server),
    }


def _init_producer_id(api: TopicsApi, context: Context, _version: int, body: Message) -> Answer:
    """Allocate a new id with epoch 0, whatever id the client had before."""
    transactional_id = body["transactional_id"]
    if transactional_id is not None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if transactional_id else ErrorCode.INVALID_REQUEST
        return _no_id(code)
    if not context.is_allowed(ApiKey.INIT_PRODUCER_ID):
        return _no_id(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        producer_id, ticket = api.new_producer_id()
    except TopicsError as error:
        return _no_id(error_of(error))
    response = {"error_code": 0, "producer_id": producer_id, "producer_epoch": 0}
    return response if api.is_durable(ticket) else _durable_id(api, response, ticket)


async def _durable_id(api: TopicsApi, response: Message, ticket: int) -> Message:
    try:
        await api.settled(ticket)
    except TopicsError as error:
        return _no_id(error_of(error))
    return response


def _no_id(code: ErrorCode) -> Message:
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


def _describe_producers(api: TopicsApi, context: Context, _version: int, body: Message) -> Answer:
    return run_in_slices(_described(api, context, body))


def _described(api: TopicsApi, context: Context, body: Message) -> Generator[None, None, Message]:
    """Describe the producers of each partition. One that is named repeatedly is described once."""
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
            try:
                producers = api.producers(name, number)
            except TopicsError as error:
                answer["error_code"], answer["error_message"] = error_of(error), error.message
                continue
            answer["active_producers"] = [
                {
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.epoch,
                    "last_sequence": producer.batches[-1].last,
                    "last_timestamp": producer.ts,
                    "coordinator_epoch": -1,
                    "current_txn_start_offset": -1,
                }
                for producer in producers
            ]
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _offset_for_leader_epoch(server: ServerContext, context: Context, _version: int, body: Message) -> Answer:
    """Return the end of an epoch. No offset is ever used again, so an earlier one has no other end than the head."""
    topics: list[dict[str, Any]] = []
    for asked in body["topics"]:
        name = asked["topic"]
        partitions = []
        for partition in asked["partitions"]:
            answer = {"partition": partition["partition"], "error_code": 0}
            partitions.append(answer)
            if not context.is_allowed(ApiKey.OFFSET_FOR_LEADER_EPOCH, name):
                answer["error_code"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            try:
                _, head = server.api.extent(name, partition["partition"])
            except TopicsError as error:
                answer["error_code"] = error_of(error)
                continue
            epoch = partition["leader_epoch"]
            answer["error_code"] = server.epoch_error(partition["current_leader_epoch"])
            if not answer["error_code"] and 0 <= epoch <= server.leader_epoch:
                answer |= {"leader_epoch": epoch, "end_offset": head}
        topics.append({"topic": name, "partitions": partitions})
    return {"topics": topics}
