"""Fetch: batches of many partitions from given offsets, at once or by long polling.

Kafka's fetch sessions are not supported: every request names all its partitions, and every response has all of them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack
from contextvars import copy_context
from enum import Enum, auto
from functools import partial
from typing import Any, Final

from topics_kafka.brokers import NOBODY
from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.handlers.errors import LED, error_of
from topics_kafka.handlers.fetch_sources import Source, fit, outcomes_of
from topics_kafka.handlers.fetch_targets import Target
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_kafka.rendered import BatchCache, aligned
from topics_net import background
from topics_net.loop_budget import SLICE_SECONDS
from topics_service.api.kafka import KafkaShards
from topics_service.api.topics import TopicsApi
from topics_service.engine.batches import FetchReply, FetchRequest
from topics_service.engine.errors import TopicsError
from topics_service.storage import recordbatch
from topics_service.storage.kafkablock import KafkaBlock

MAX_RENDERED_BYTES: Final = 8 << 20
"""Limit of the batches rendered for one response: their memory is not shared with other responses."""
WAITING_WEIGHT: Final = 1 << 10
"""Bytes that a partition costs while a fetch waits for it."""
ANSWER_SECONDS: Final = 1.0
"""Time for another process to answer, unless the client waits longer anyway."""
_ENDPOINTS_SINCE: Final = 16
"""The first version whose response has the addresses of leaders. kafka-python ends at one that it does not know."""
FEW: Final = 100
"""Number of partitions for which a fetch may always wait."""


def handlers(server: ServerContext) -> HandlerTable:
    """Fetch. Batches rendered from records of other protocols are cached for all readers."""
    cache = BatchCache(server.settings.render_cache_bytes)
    server.api.metrics.caches["kafka_batches"] = cache
    return {ApiKey.FETCH: partial(_fetch, cache)}


def _fetch(cache: BatchCache, context: Context, version: int, body: Message) -> Answer:
    if body.get("session_id") and body["session_epoch"] > 0:
        # An incremental request of a session that another broker created: it names only changed partitions.
        return {"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "session_id": 0, "responses": []}
    if context.server.single is None:
        refreshed = context.server.refresh_unknown(body["topics"], "topic")
        if refreshed is not None:
            return _once_known(cache, context, version, body, refreshed)
    return Fetch(cache, context, version, body).serve()


async def _once_known(
    cache: BatchCache, context: Context, version: int, body: Message, refreshed: Awaitable[None]
) -> Message | None:
    await refreshed
    answer = Fetch(cache, context, version, body).serve()
    return answer if answer is None or isinstance(answer, dict) else await answer


class _Pause(Enum):
    """Reasons for which a fetch pauses."""

    SLICE = auto()  # continue at once, unless the slice is over
    NEWS = auto()  # there is nothing to do until a partition has news


class Fetch:
    """One request, as a state machine on callbacks of the event loop: a waiting fetch needs no task.

    `serve` returns the response or a future; cancelling the future ends the wait.
    """

    def __init__(self, cache: BatchCache, context: Context, version: int, body: Message) -> None:
        cluster = context.server.cluster
        self._names_leaders = cluster is not None and version >= _ENDPOINTS_SINCE
        self._rack: str = "" if cluster is None or context.zone else body.get("rack_id") or ""
        server = self._server = context.server
        self._api = server.api
        self._cache = cache
        self._context = context
        self._statistics = server.statistics
        self._max_bytes = min(body["max_bytes"], server.settings.fetch_max_bytes)
        self._wanted = min(body["min_bytes"], self._max_bytes)
        self._wait_seconds = body["max_wait"] / 1000
        self._nbytes = 0  # bytes found so far
        self._due = False  # the response must not be delayed
        self._targets: list[Target] = []
        self._sources: dict[int, Source] = {}  # of other processes, by shard
        self._response: Message = {"error_code": 0, "session_id": 0}
        self._response["responses"] = self._topics(body)
        self._steps = self._run()
        self._future: asyncio.Future[Message | None] | None = None
        self._sleeping = False
        self._over = False  # the wait has timed out, or the server is draining
        self._late = False  # some process does not answer
        self._holds = 0  # its part of `ServerContext.waiting`
        self._woken: dict[Target, None] = {}
        self._arrived: list[Source] = []
        self._parked: list[Callable[[], None]] = []  # each ends the wait for a partition
        self._drain: ExitStack | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._within = copy_context()  # callbacks would otherwise run in the context of the writer

    def serve(self) -> Answer:
        """Return the response or a future of it."""
        try:
            if self._advance():
                return self._response
        except BaseException:
            self._leave()
            raise
        self._future = asyncio.get_running_loop().create_future()
        self._future.add_done_callback(self._ended)
        return self._future

    # ---------------------------------------------------------------- driving

    def _advance(self) -> bool:
        """Run for one slice. Return True once the response is complete."""
        slice_ends = time.perf_counter() + SLICE_SECONDS
        for pause in self._steps:
            if pause is _Pause.NEWS:
                self._sleeping = True
                return False
            if time.perf_counter() >= slice_ends:
                asyncio.get_running_loop().call_soon(self._go_on, context=self._within)
                return False
        return True

    def _go_on(self) -> None:
        future = self._future
        assert future is not None, "it has had its first slice"
        if future.done():
            return
        try:
            if self._advance():
                future.set_result(self._response)
        except Exception as error:  # the connection logs it
            future.set_exception(error)

    def _ended(self, _: "asyncio.Future[Message | None]") -> None:
        self._leave()
        self._steps.close()

    def _wake(self, target: Target | None) -> None:
        """Continue: the target has news or, if None, the wait is over."""
        if target is None:
            self._over = True
        else:
            self._woken[target] = None
        self._continue()

    def _take_note(self, source: Source) -> None:
        """Continue: another process has answered."""
        self._arrived.append(source)
        self._continue()

    def _continue(self) -> None:
        if self._sleeping:
            self._sleeping = False
            asyncio.get_running_loop().call_soon(self._go_on, context=self._within)

    def _give_up(self) -> None:
        """Continue: some process does not answer."""
        self._late = True
        self._continue()

    def set(self) -> None:
        """End the wait: the server is draining."""
        self._wake(None)

    # ------------------------------------------------------------------ steps

    def _run(self) -> Generator[_Pause, None, None]:
        if self._wait_seconds > 0:
            self._hold()
        for source in self._sources.values():
            source.ask()
        for target in self._targets:
            if target.api is None:
                continue
            if self._wait_seconds > 0 and not self._is_enough():
                self._park(target.api, target)  # before it is read: no news is missed if others run in between
            self._read(target.api, target)
            yield _Pause.SLICE
        if self._sources:
            yield from self._answers()
        if self._targets and not self._is_enough() and self._wait_seconds > 0:
            yield from self._wait()
        self._leave()
        if self._sources:
            fit(self._targets, self._max_bytes)
        yield from self._render()

    def _topics(self, body: Message) -> list[dict[str, Any]]:
        """Create the responses of all topics, to be filled in, and the targets of those that can be read."""
        responses: list[dict[str, Any]] = []
        for asked in body["topics"]:
            name, topic_id = asked.get("topic"), asked.get("topic_id")
            topic = self._server.catalog.find(name, topic_id)
            known = name or (None if topic is None else topic.name)
            code = ErrorCode.NONE
            if not self._context.is_allowed(ApiKey.FETCH, known):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name else ErrorCode.UNKNOWN_TOPIC_ID
            identity = "" if topic is None else topic.identity.topic_id
            answers: list[dict[str, Any]] = []
            single = self._server.single
            for partition in asked["partitions"]:
                target = Target(known or "", identity, partition, single, by_id=not name)
                answers.append(target.answer)
                wrong = code or self._server.epoch_error(
                    partition.get("current_leader_epoch", -1), known or "", partition["partition"]
                )
                if wrong:
                    self._fail(target, wrong)
                    continue
                if single is None and not self._locate(self._server.shards, target, partition):
                    continue
                self._targets.append(target)
            responses.append({"topic": name, "topic_id": topic_id, "partitions": answers})
        return responses

    def _locate(self, shards: KafkaShards, target: Target, partition: Message) -> bool:
        """Note the engine of the target, or the shard to ask for it; return False if its client asks elsewhere."""
        target.api = shards.here(target.name, target.number)
        if target.api is None:
            shard = shards.shard(target.name, target.number)
            knows_epoch = shards.brokers is None or partition.get("current_leader_epoch", -1) >= 0
            if self._rack:
                reader = self._context.view.reader(shard, self._rack)
                if reader == self._server.me.node_id:
                    knows_epoch = True  # the leader may have sent the client here
                elif reader != NOBODY and not self._context.view.leads_elsewhere(shard):
                    target.reader, self._due = reader, True
            if not knows_epoch and self._context.is_outdated(self._context.view, shard):
                self._fail(target, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                return False
            source = self._sources.get(shard)
            if source is None:
                source = self._sources[shard] = Source(shards, shard, self._max_bytes, self._take_note)
            source.targets.append(target)
        return True

    def _is_enough(self) -> bool:
        return self._due or self._nbytes >= self._wanted

    def _read(self, api: TopicsApi, target: Target) -> None:
        """Read the available records, and fill in the answer except for the records."""
        budget = min(target.limit, self._max_bytes - self._nbytes)
        if self._nbytes and budget <= 0:
            self._look(api, target)
            return
        try:
            reply = api.fetch(
                FetchRequest(topic=target.name, partition=target.number, from_seq=target.offset, max_bytes=budget)
            )
        except TopicsError as error:
            self._fail(target, self._code(target, error))
            return
        self._found(target, reply, budget)

    def _found(self, target: Target, reply: FetchReply, budget: int) -> None:
        """Take over what was read, unless the response is too full for it."""
        if reply.identity.topic_id != target.topic_id:
            self._fail(target, ErrorCode.UNKNOWN_TOPIC_ID if target.by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        if reply.lost:
            self._statistics.out_of_range += 1
            self._fail(target, ErrorCode.OFFSET_OUT_OF_RANGE)
            return
        self._describe(target, reply.head_seq, reply.earliest_seq)
        if target.reader != NOBODY:
            target.answer["preferred_read_replica"] = target.reader
            return
        if self._nbytes and reply.nbytes > budget:  # only the first batch of a response may exceed the limit
            self._due = True
            return
        target.reply = reply
        target.cursor = reply.next_from_seq
        self._nbytes += reply.nbytes
        # Waiting does not help: there is more than fits, or nothing is left before the head.
        if reply.is_hole or reply.next_from_seq < reply.head_seq:
            self._due = True

    def _look(self, api: TopicsApi, target: Target) -> None:
        """Describe the partition without records: the response is full."""
        target.reply = None
        try:
            earliest, head = api.extent(target.name, target.number)
        except TopicsError as error:
            self._fail(target, self._code(target, error))
            return
        if target.offset > head:
            self._statistics.out_of_range += 1
            self._fail(target, ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            self._describe(target, head, earliest)

    def _describe(self, target: Target, head: int, earliest: int) -> None:
        target.answer |= {
            "error_code": 0,
            "high_watermark": head,
            "last_stable_offset": head,
            "log_start_offset": earliest - 1,
            "aborted_transactions": None,
            "records": b"",
        }

    def _fail(self, target: Target, code: ErrorCode) -> None:
        self._due = True
        target.reply = None
        target.answer |= {
            "error_code": code,
            "high_watermark": -1,
            "last_stable_offset": -1,
            "log_start_offset": -1,
            "aborted_transactions": None,
            "records": b"",
        }
        if self._names_leaders and code in LED:
            shard = self._server.shard(target.name, target.number)
            self._context.view.lead(self._response, target.answer, shard)

    def _code(self, target: Target, error: TopicsError) -> ErrorCode:
        code = error_of(error)
        if target.by_id and code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and error.reason.code == "topic_not_found":
            return ErrorCode.UNKNOWN_TOPIC_ID
        return code

    # ---------------------------------------------------------------- waiting

    def _wait(self) -> Iterator[_Pause]:
        """Wait until there is enough, the time is up or the server drains. Only partitions with news are read."""
        self._timer = background.call_later(self._wait_seconds, self._wake, None)
        self._drain = ExitStack()
        self._drain.enter_context(self._api.notify_on_drain(self))
        old = False
        ends = time.monotonic() + self._wait_seconds
        for source in self._sources.values():
            self._ask_on(source, ends)
        while not self._is_enough():
            if not self._woken and not self._arrived:
                old = self._nbytes > 0
                yield _Pause.NEWS
            if self._over:
                break
            woken, self._woken = self._woken, {}
            for target in woken:
                assert target.api is not None, "it was parked"
                self._read_on(target.api, target)
                yield _Pause.SLICE
            for source in self._taken():
                if not self._is_enough():
                    self._ask_on(source, ends)
                yield _Pause.SLICE
        self._taken()
        self._leave()
        if old and not self._api.draining:
            # Records found before the wait may have been deleted.
            found = [target for target in self._targets if target.reply is not None and target.reply.parts]
            self._nbytes = sum(source.nbytes for source in self._sources.values())
            for target in found:
                if target.api is not None:
                    self._read(target.api, target)
                    yield _Pause.SLICE
            for source in self._sources.values():
                if source.is_old and source.nbytes:
                    source.ask()
            yield from self._answers()

    def _answers(self) -> Iterator[_Pause]:
        """Wait for the calls of other processes that are under way. One that takes long holds up no other partition."""
        self._late = False
        timer = background.call_later(max(self._wait_seconds, ANSWER_SECONDS), self._give_up)
        try:
            while not self._late and (self._arrived or any(source.is_asked for source in self._sources.values())):
                if not self._arrived:
                    yield _Pause.NEWS
                self._taken()
        finally:
            timer.cancel()
        self._taken()
        for source in self._sources.values():
            if source.is_asked:
                source.leave()
                for target in source.targets:
                    self._fail(target, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _taken(self) -> list[Source]:
        """Take over what other processes have read; returns the sources of that."""
        arrived, self._arrived = self._arrived, []
        for source in arrived:
            self._nbytes -= source.nbytes
            before = self._nbytes
            for target, outcome in zip(source.targets, outcomes_of(source), strict=True):
                if outcome.reply is None:
                    assert outcome.error is not None, "it is one or the other"
                    self._fail(target, self._code(target, outcome.error))
                else:
                    target.reply = None
                    self._found(target, outcome.reply, outcome.reply.nbytes)  # `fit` decides
            source.nbytes = self._nbytes - before
            source.is_old = False
        return arrived

    def _ask_on(self, source: Source, ends: float) -> None:
        """Wait for news of another process: for its share of what is missing."""
        missing = max(self._wanted - self._nbytes, 1)
        shares = len(self._sources) + bool(self._parked)
        source.is_old = True
        source.ask(more_bytes=max(missing // shares, 1), wait_seconds=max(ends - time.monotonic(), 0))

    def _park(self, api: TopicsApi, target: Target) -> None:
        try:
            self._parked.append(api.park(target.name, partial(self._wake, target), target.number).leave)
        except TopicsError as error:
            self._fail(target, self._code(target, error))

    def _hold(self) -> None:
        """Wait only if there is memory for it: a partition can be named many times, and each of them costs memory."""
        server, count = self._server, len(self._targets)
        if count <= FEW or (server.waiting + count) * WAITING_WEIGHT <= server.settings.frame_bytes:
            self._holds = count
            server.waiting += count
        else:
            self._wait_seconds = 0

    def _leave(self) -> None:
        """Stop waiting."""
        self._server.waiting -= self._holds
        self._holds = 0
        for leave in self._parked:
            leave()
        self._parked.clear()
        for source in self._sources.values():
            source.leave()
        if self._timer is not None:
            self._timer.cancel()
        if self._drain is not None:
            self._drain.close()

    def _read_on(self, api: TopicsApi, target: Target) -> None:
        """Read a partition that has news. If records were found before, only count the new ones."""
        found = target.reply
        if found is None or not found.parts or self._api.draining:
            self._read(api, target)
            return
        try:
            reply = api.fetch(
                FetchRequest(
                    topic=target.name,
                    partition=target.number,
                    from_seq=target.cursor,
                    max_bytes=min(target.limit, self._max_bytes) - found.nbytes,
                )
            )
        except TopicsError:
            self._due = True
            return
        target.cursor = reply.next_from_seq
        self._nbytes += reply.nbytes
        if reply.lost or reply.is_hole or reply.next_from_seq < reply.head_seq:
            self._due = True

    # -------------------------------------------------------------- rendering

    def _render(self) -> Iterator[_Pause]:
        """Fill in the records."""
        max_rendered = self._cache.rendered_bytes + MAX_RENDERED_BYTES
        parts = 0
        for target in self._targets:
            reply = target.reply
            if reply is None or not (reply.parts or reply.is_hole):
                continue
            self._statistics.gap_records += reply.passed_over
            pieces: list[bytes | memoryview] = []
            target.answer["records"] = pieces
            whole = True
            for part in reply.parts:
                if isinstance(part.block, KafkaBlock):
                    pieces += self._cache.stored(part.block, part)
                else:
                    cut = aligned(part)
                    whole = cut is part
                    for batch in self._cache.render(cut):
                        pieces.append(batch)
                        yield _Pause.SLICE
                        if self._cache.rendered_bytes > max_rendered:
                            break
                if self._cache.rendered_bytes > max_rendered:
                    whole = False
                if not whole:
                    break
                if not (parts := parts + 1) % 16:
                    yield _Pause.SLICE
            if reply.is_hole and whole:
                last_ts = reply.parts[-1].block.last_ts if reply.parts else 0
                pieces.append(recordbatch.control(reply.head_seq - 1, last_ts))
            if self._cache.rendered_bytes > max_rendered:
                return
