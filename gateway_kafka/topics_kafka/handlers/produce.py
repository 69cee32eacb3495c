"""Produce: one record batch per partition, appended unchanged, in the order of the requests."""

import math
import time
from collections.abc import Awaitable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from topics_kafka.configs import DEFAULT_AFTER_MS, MAX_MESSAGE_BYTES, TIMESTAMP_AFTER_MAX, TIMESTAMP_BEFORE_MAX
from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.handlers.elsewhere import Elsewhere
from topics_kafka.handlers.errors import RefusedError, error_of
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_net.loop_budget import BUDGET_SECONDS
from topics_service.api.catalog import TopicView
from topics_service.api.kafka_logs import BatchOutcome, NamedBatch
from topics_service.api.topics import TopicsApi
from topics_service.engine.batches import LOG_APPEND_TIME, TIMESTAMP_TYPE, BatchReply, BatchRequest
from topics_service.engine.clock import Clock, SystemClock
from topics_service.engine.errors import Reason, TopicsError, partition_not_found
from topics_service.engine.producers import SequenceError
from topics_service.storage import recordbatch
from topics_service.storage.recordbatch import Header, InvalidBatchError

_ALL: Final = -1
_ACKS: Final = (_ALL, 0, 1)
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
_Waiting = tuple[dict[str, Any], int, TopicsApi]  # the answer of a partition, its ticket and the engine of that
_Elsewhere = Elsewhere[NamedBatch, BatchOutcome]


def handlers(server: ServerContext) -> HandlerTable:
    """Produce. A call appends before it returns or, if that takes long, sets `Context.appending` until it has.

    The answer then waits for durability. Batches of partitions in other processes are on their way by then.
    """
    return {ApiKey.PRODUCE: Produce(server)}


class Produce:
    """The handler. Timestamps too far from the time of `clock` are refused."""

    def __init__(self, server: ServerContext, clock: Clock | None = None) -> None:
        self._server = server
        self._single = server.single
        self._clock = clock or SystemClock()

    def __call__(self, context: Context, _version: int, body: Message) -> Answer:
        """Append the valid batches. With acks=0 there is no answer, but an error closes the connection."""
        response: Message = {"responses": [], "throttle_time": 0}
        waiting: list[_Waiting] = []
        elsewhere = None if self._single is not None else self._elsewhere(settle=body["acks"] != 0)
        steps = self._steps(context, body, response, waiting, elsewhere)
        if self._single is None:
            refreshed = self._server.refresh_unknown(body["topic_data"])
            if refreshed is not None:
                context.appending = True
                return self._finish(context, body, response, waiting, elsewhere, steps, refreshed)
        ends = time.perf_counter() + BUDGET_SECONDS
        for _ in steps:
            if time.perf_counter() >= ends:
                context.appending = True
                return self._finish(context, body, response, waiting, elsewhere, steps)
        return self._answer(context, body, response, waiting, elsewhere)

    async def _finish(
        self,
        context: Context,
        body: Message,
        response: Message,
        waiting: list[_Waiting],
        elsewhere: _Elsewhere | None,
        steps: Generator[None, None, None],
        refreshed: Awaitable[None] | None = None,
    ) -> Message | None:
        """Finish a request of many large batches, in slices, or of topics that have to be asked for."""
        if refreshed is not None:
            await refreshed
        budget, over = self._server.loop_budget, False
        while not over:
            await budget.wait_turn()
            over = True
            for _ in steps:
                if not budget.has_time():
                    over = False
                    break
        answer = self._answer(context, body, response, waiting, elsewhere)
        context.appending = False
        return answer if answer is None or isinstance(answer, dict) else await answer

    def _answer(
        self,
        context: Context,
        body: Message,
        response: Message,
        waiting: list[_Waiting],
        elsewhere: _Elsewhere | None,
    ) -> Answer:
        if elsewhere:
            elsewhere.start()  # at once, before the batches of the next request
            return self._answer_later(context, body, response, waiting, elsewhere)
        if body["acks"] == 0:
            self._count_unanswered(context, response)
            return None
        return _durable(response, waiting) if waiting else response

    async def _answer_later(
        self, context: Context, body: Message, response: Message, waiting: list[_Waiting], elsewhere: _Elsewhere
    ) -> Message | None:
        if body["acks"] != 0 and waiting:
            await _durable(response, waiting)
        await elsewhere.shown()
        if body["acks"] == 0:
            self._count_unanswered(context, response)
            return None
        return response

    def _elsewhere(self, *, settle: bool) -> _Elsewhere:
        return Elsewhere(partial(self._server.shards.append, settle=settle), lambda error: BatchOutcome(error=error))

    def _steps(
        self,
        context: Context,
        body: Message,
        response: Message,
        waiting: list[_Waiting],
        elsewhere: _Elsewhere | None,
    ) -> Generator[None, None, None]:
        """Append the batches and fill in the response. Yields before each batch but the first."""
        refused = _refused(body)
        view = None if self._server.cluster is None else context.view
        acks_all = body["acks"] == _ALL
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
                answer: dict[str, Any] = {"index": number}
                answers.append(answer)
                try:
                    topic = self._server.catalog.find(name, topic_id)  # it may have been deleted during the last pause
                    wrong = refused or _wrong(context, name, topic)
                    if wrong is not None:
                        raise wrong
                    assert topic is not None, "that would be wrong"
                    api = self._single or self._server.shards.here(topic.name, number)
                    request = self._checked(api, topic, number, partition["records"])
                    if api is None:
                        assert elsewhere is not None, "there are several shards"
                        meant = "" if name else topic.identity.topic_id
                        batch = NamedBatch(request=request, topic_id=meant, acks_all=acks_all)
                        shard = self._server.shards.shard(topic.name, number)
                        if view is not None and context.is_outdated(view, shard):
                            view.lead(response, answer, shard)
                            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads the partition")
                        elsewhere.add(shard, batch, partial(_show, context, response, answer, shard))
                        continue
                    reply, ticket = api.append_batch(request, acks_all=acks_all)
                    answer |= _appended(reply)
                    if ticket and not api.is_durable(ticket):
                        waiting.append((answer, ticket, api))
                except (RefusedError, InvalidBatchError, SequenceError, TopicsError) as error:
                    _fail(response, answer, error)

    def _checked(self, api: TopicsApi | None, topic: TopicView, number: int, records: Buffer | None) -> BatchRequest:
        """The request to append a batch that may be appended, as far as that is not up to the log."""
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
        if api is not None:
            api.check_write()  # before the expensive part
        batch = bytes(records)
        header = recordbatch.check(
            batch, max_bytes=max_bytes, max_inflated=max(recordbatch.MAX_INFLATED, 4 * max_bytes)
        )
        if header.is_log_append_time:
            raise RefusedError(ErrorCode.INVALID_TIMESTAMP, "only the broker may set log append time")
        if configs.get(TIMESTAMP_TYPE) != LOG_APPEND_TIME:
            self._check_times(configs, header, batch)
        return BatchRequest(topic=topic.name, partition=number, header=header, body=batch)

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


def _appended(reply: BatchReply) -> dict[str, Any]:
    return {
        "error_code": 0,
        "base_offset": reply.first_seq - 1,
        "log_append_time": -1 if reply.ts is None else reply.ts,
        "log_start_offset": reply.earliest_seq - 1,
    }


def _show(context: Context, response: Message, answer: dict[str, Any], shard: int, outcome: BatchOutcome) -> None:
    """Fill in the outcome of a batch in another process."""
    try:
        answer |= _appended(outcome.result())
    except (SequenceError, TopicsError) as error:
        _fail(response, answer, error)
        if context.server.cluster is not None:
            if answer["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                context.view.lead(response, answer, shard)
            elif answer["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR:
                # The node has lost the shard: whether the batch is in the log, the next owner finds.
                answer["error_code"] = ErrorCode.REQUEST_TIMED_OUT


def _fail(
    response: Message, answer: dict[str, Any], error: RefusedError | InvalidBatchError | SequenceError | TopicsError
) -> None:
    """Fill in the error of a batch."""
    if isinstance(error, TopicsError):
        answer |= _failed(error_of(error), error.message)
        if error.reason is not Reason.NOT_READY:  # which is of one shard, and a client would hold back all
            response["throttle_time"] = max(response["throttle_time"], error.retry_after_ms or 0)
    elif isinstance(error, RefusedError):
        answer |= _failed(error.code, str(error), error.records)
    elif isinstance(error, InvalidBatchError):
        answer |= _failed(_BATCH_CODES[error.code], str(error))
    else:
        answer |= _failed(_SEQUENCE_CODES[error.kind], str(error))


def _failed(code: ErrorCode, message: str, records: Sequence[tuple[int, str]] = ()) -> dict[str, Any]:
    return {
        "error_code": code,
        "base_offset": -1,
        "error_message": message,
        "record_errors": [{"batch_index": i, "batch_index_error_message": why} for i, why in records],
    }


async def _durable(response: Message, waiting: Sequence[_Waiting]) -> Message:
    """Return the response once everything in it is durable. A partition that can't be made durable has an error."""
    for api in {id(each): each for _, _, each in waiting}.values():
        own = [(answer, ticket) for answer, ticket, each in waiting if each is api]
        try:
            await api.settled(max(ticket for _, ticket in own))
        except TopicsError as error:
            for answer, ticket in own:
                if not api.is_durable(ticket):
                    answer.update(_failed(error_of(error), error.message), log_append_time=-1)
    return response
