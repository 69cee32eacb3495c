"""Produce: one record batch per partition, appended unchanged, in the order of the requests."""

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final

from topics_kafka.configs import DEFAULT_AFTER_MS, MAX_MESSAGE_BYTES, TIMESTAMP_AFTER_MAX, TIMESTAMP_BEFORE_MAX
from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.handlers.errors import RefusedError, error_of
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_net.loop_budget import BUDGET_SECONDS
from topics_service.api.catalog import TopicView
from topics_service.api.topics import TopicsApi
from topics_service.engine.batches import LOG_APPEND_TIME, TIMESTAMP_TYPE, BatchRequest
from topics_service.engine.clock import Clock, SystemClock
from topics_service.engine.errors import TopicsError, partition_not_found
from topics_service.engine.producers import SequenceError
from topics_service.storage import recordbatch
from topics_service.storage.recordbatch import Header, InvalidBatchError

_ACKS: Final = (-1, 0, 1)
_NO_TIMESTAMP: Final = -1
_MAX_RECORD_ERRORS: Final = 100
_BATCH_CODES: Final[Mapping[str, ErrorCode]] = {
    "corrupt": ErrorCode.CORRUPT_MESSAGE,
    "magic": ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    "invalid": ErrorCode.INVALID_RECORD,
    "too_large": ErrorCode.MESSAGE_TOO_LARGE,
    "codec": ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}
_SEQUENCE_CODES: Final[Mapping[str, ErrorCode]] = {
    "out_of_order": ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    "stale_epoch": ErrorCode.INVALID_PRODUCER_EPOCH,
}

Buffer = bytes | bytearray | memoryview
_Waiting = tuple[dict[str, Any], int]  # the answer of a partition, and its ticket


def handlers(server: ServerContext) -> HandlerTable:
    """Produce. A call appends before it returns or, if that takes long, sets `Context.appending` until it has.

    The answer then waits for durability.
    """
    return {ApiKey.PRODUCE: Produce(server)}


class Produce:
    """The handler. Timestamps too far from the time of `clock` are refused."""

    def __init__(self, server: ServerContext, clock: Clock | None = None) -> None:
        self._server = server
        self._api = server.api
        self._clock = clock or SystemClock()

    def __call__(self, context: Context, _version: int, body: Message) -> Answer:
        """Append the valid batches. With acks=0 there is no answer, but an error closes the connection."""
        response: Message = {"responses": [], "throttle_time": 0}
        waiting: list[_Waiting] = []
        steps = self._steps(context, body, response, waiting)
        ends = time.perf_counter() + BUDGET_SECONDS
        for _ in steps:
            if time.perf_counter() >= ends:
                context.appending = True
                return self._finish(context, body, response, waiting, steps)
        return self._answer(context, body, response, waiting)

    async def _finish(
        self,
        context: Context,
        body: Message,
        response: Message,
        waiting: list[_Waiting],
        steps: Generator[None, None, None],
    ) -> Message | None:
        """Finish a request of many large batches, in slices."""
        budget, over = self._server.loop_budget, False
        while not over:
            await budget.wait_turn()
            over = True
            for _ in steps:
                if not budget.has_time():
                    over = False
                    break
        context.appending = False
        answer = self._answer(context, body, response, waiting)
        return answer if answer is None or isinstance(answer, dict) else await answer

    def _answer(self, context: Context, body: Message, response: Message, waiting: list[_Waiting]) -> Answer:
        if body["acks"] == 0:
            self._count_unanswered(context, response)
            return None
        return _durable(self._api, response, waiting) if waiting else response

    def _steps(
        self, context: Context, body: Message, response: Message, waiting: list[_Waiting]
    ) -> Generator[None, None, None]:
        """Append the batches and fill in the response. Yields before each batch but the first."""
        refused = _refused(body)
        first = True
        for data in body["topic_data"]:
            name, topic_id = data.get("name"), data.get("topic_id")
            answers: list[dict[str, Any]] = []
            response["responses"].append({"name": name, "topic_id": topic_id, "partition_responses": answers})
            for partition in data["partition_data"]:
                if not first:
                    yield
                first = False
                number = partition["index"]
                ticket = 0
                try:
                    topic = self._server.catalog.find(name, topic_id)  # it may have been deleted during the last pause
                    wrong = refused or _wrong(context, name, topic)
                    if wrong is not None:
                        raise wrong
                    assert topic is not None, "that would be wrong"
                    answer, ticket = self._append(topic, number, partition["records"])
                except RefusedError as error:
                    answer = _failed(number, error.code, str(error), error.records)
                except InvalidBatchError as error:
                    answer = _failed(number, _BATCH_CODES[error.code], str(error))
                except SequenceError as error:
                    answer = _failed(number, _SEQUENCE_CODES[error.kind], str(error))
                except TopicsError as error:
                    answer = _failed(number, error_of(error), error.message)
                    response["throttle_time"] = max(response["throttle_time"], error.retry_after_ms or 0)
                answers.append(answer)
                if ticket and not self._api.is_durable(ticket):
                    waiting.append((answer, ticket))

    def _append(self, topic: TopicView, number: int, records: Buffer | None) -> tuple[dict[str, Any], int]:
        count = topic.identity.partition_count
        if not 0 <= number < count:  # takes precedence over errors of the batch
            raise partition_not_found(topic.name, number, count)
        configs = topic.kafka_configs
        limit = configs.get(MAX_MESSAGE_BYTES)
        if not records:
            raise RefusedError(ErrorCode.INVALID_RECORD, "there is no record batch for the partition")
        max_bytes = self._server.settings.max_batch_bytes if limit is None else int(limit)
        if len(records) > max_bytes:
            raise RefusedError(ErrorCode.MESSAGE_TOO_LARGE, f"{len(records)} bytes exceed the limit of {max_bytes}")
        self._api.check_write()  # before the expensive part
        batch = bytes(records)
        header = recordbatch.check(
            batch, max_bytes=max_bytes, max_inflated=max(recordbatch.MAX_INFLATED, 4 * max_bytes)
        )
        if header.is_log_append_time:
            raise RefusedError(ErrorCode.INVALID_TIMESTAMP, "only the broker may set log append time")
        if configs.get(TIMESTAMP_TYPE) != LOG_APPEND_TIME:
            self._check_times(configs, header, batch)
        request = BatchRequest(topic=topic.name, partition=number, header=header, body=batch)
        reply, ticket = self._api.append_batch(request)
        answer = {
            "index": number,
            "error_code": 0,
            "base_offset": reply.first_seq - 1,
            "log_append_time": -1 if reply.ts is None else reply.ts,
            "log_start_offset": reply.earliest_seq - 1,
        }
        return answer, ticket

    def _check_times(self, configs: Mapping[str, str], header: Header, batch: bytes) -> None:
        """Refuse records whose time differs more from now than the topic allows, as Kafka does for CreateTime."""
        now = self._clock.now_ms()
        newest = now + int(configs.get(TIMESTAMP_AFTER_MAX, DEFAULT_AFTER_MS))
        before = configs.get(TIMESTAMP_BEFORE_MAX)
        if header.max_ts <= newest and before is None:
            return
        oldest = -math.inf if before is None else now - int(before)
        times = recordbatch.times(batch)
        wrong = [i for i, ts in enumerate(times) if ts != _NO_TIMESTAMP and not oldest <= ts <= newest]
        if not wrong and header.max_ts <= newest:
            return
        raise RefusedError(
            ErrorCode.INVALID_TIMESTAMP,
            f"the timestamps of {len(wrong)} records, or of the batch, are outside the range that the topic accepts",
            [(i, f"the timestamp {times[i]} is out of range") for i in wrong[:_MAX_RECORD_ERRORS]],
        )

    def _count_unanswered(self, context: Context, response: Message) -> None:
        """Count errors of a request with acks=0. The only sign for the client is that the connection closes."""
        for code in self._server.apis[ApiKey.PRODUCE].error_codes(response):
            context.closing = True
            self._server.statistics.errors["Produce", ErrorCode(code).name] += 1


def _refused(body: Message) -> RefusedError | None:
    """The error of the request as a whole, if any."""
    if body["transactional_id"] is not None:
        return RefusedError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported")
    if body["acks"] not in _ACKS:
        return RefusedError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {body['acks']}, it must be -1, 0 or 1")
    return None


def _wrong(context: Context, name: str | None, topic: TopicView | None) -> RefusedError | None:
    """The error of the topic, if any. `name` is the one that the client sent; None if it sent an id."""
    known = name or (None if topic is None else topic.name)
    if not context.is_allowed(ApiKey.PRODUCE, known):
        return RefusedError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the API key may not write to the topic")
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name else ErrorCode.UNKNOWN_TOPIC_ID
        return RefusedError(code, "the topic does not exist")
    return None


def _failed(number: int, code: ErrorCode, message: str, records: Sequence[tuple[int, str]] = ()) -> dict[str, Any]:
    return {
        "index": number,
        "error_code": code,
        "base_offset": -1,
        "error_message": message,
        "record_errors": [{"batch_index": i, "batch_index_error_message": why} for i, why in records],
    }


async def _durable(api: TopicsApi, response: Message, waiting: Sequence[_Waiting]) -> Message:
    """Return the response once everything in it is durable. A partition that can't be made durable has an error."""
    try:
        await api.settled(max(ticket for _, ticket in waiting))
    except TopicsError as error:
        for answer in _lost(api, waiting):
            answer.update(_failed(answer["index"], error_of(error), error.message), log_append_time=-1)
    return response


def _lost(api: TopicsApi, waiting: Sequence[_Waiting]) -> Iterator[dict[str, Any]]:
    return (answer for answer, ticket in waiting if not api.is_durable(ticket))
