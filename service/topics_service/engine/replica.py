"""Long reads from a store that follows the writer's, for a separate process. Pure; writes nothing.

The rows of the one topic that is asked for are read when a read begins and again whenever the store has moved on, so
that each page is of one moment, as at the server. Cached blocks stay valid: records never change, and the id of a log
is never used again.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Protocol

import msgspec
from msgspec import Struct

from topics_service.engine import batches, reader, retention
from topics_service.engine.batches import FetchReply, FetchRequest
from topics_service.engine.blocks import BlockCache, LogBlocks
from topics_service.engine.clock import Clock
from topics_service.engine.errors import (
    Reason,
    TopicsError,
    invalid,
    partition_not_found,
    topic_not_found,
    topic_recreated,
)
from topics_service.engine.limits import Limits
from topics_service.engine.model import BulkRequest, DiffReply, DiffRequest, TopicState
from topics_service.engine.router.router import config_key
from topics_service.engine.router.router import decode_row as decode_router
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.stored_logs import read_state
from topics_service.engine.topic import Topic, TopicRow, decode_row, partition_state
from topics_service.storage import keys
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family, Store, StoreError

_VIEWS = 64
_ALL = (b"", b"\xff" * 16)


class FollowingStore(Store, Protocol):
    """A store whose rows another process writes. They do not change between two calls of `catch_up`."""

    @property
    def generation(self) -> int:
        """Return which state of the rows it is: the same number, the same rows."""
        ...

    @property
    def whole(self) -> bool:
        """Return whether the rows are those of one moment of the writer."""
        ...

    def catch_up(self) -> None:
        """Take in whatever had been written before the call. Raises StoreError; `whole` is False then."""
        ...


class _View(Struct):
    """One partition as `generation` of the store has it."""

    generation: int
    row: TopicRow
    state: Snapshot
    blocks: LogBlocks


class Replica:
    """Topics as the store has them."""

    def __init__(
        self,
        store: FollowingStore,
        clock: Clock,
        *,
        limits: Limits | None = None,
        cache_bytes: int = 32 << 20,
        is_durable: bool = False,
    ) -> None:
        """`is_durable` says that all rows of the store are: without it a read needs the end that the server knows."""
        self._is_durable = is_durable
        self.limits = limits or Limits()
        self._store = store
        self._clock = clock
        self._memory = MemoryStore()  # stays empty
        self._cache = BlockCache(cache_bytes)
        self._numbers: dict[str, int] = {}  # a name has one number at a time, and a new topic a larger one
        self._numbered = b""  # the key below which all are in it
        self._views: OrderedDict[tuple[int, int], _View] = OrderedDict()

    def bulk(self, request: BulkRequest) -> tuple[DiffReply, int]:
        """One page of a long read, and the topic's epoch for the next, as `Engine.bulk`.

        The first page finds everything that was acknowledged before the call. Raises `invalid_request` without an
        `end_seq`, unless the rows are durable, and `not_ready` if only the server can answer: the topic is `ephemeral`,
        its head is below `end_seq`, the page has expired records that are still in the store (a loss has to be written
        before it is reported), a router may have copies to make, or the writer can't be followed at the moment.
        """
        if request.end_seq is None and not self._is_durable:
            raise invalid("a bulk reader needs end_seq")
        if not request.epoch or not self._store.whole:
            self.follow()
        number, view = self._view(request.topic, request.partition, request.topic_id, request.epoch)
        config, s, from_seq = view.row.config, view.state, request.from_seq
        if not request.epoch and s.head < (request.end_seq or 0):
            raise _elsewhere(
                request.topic, request.partition, f"its head is {s.head} here", end_seq=request.end_seq, head_seq=s.head
            )
        if request.from_ts is not None or request.last is not None:
            from_seq = reader.start(s, view.blocks, request)
        self._check_expired(view, request.partition, from_seq)
        reply = reader.read(
            request.topic, s, view.blocks, from_seq, request.limit, request.max_batch_bytes,
            frozenset(request.nodes if config.dedupe_node else ()), request.end_seq,
            scan=True, match=request.filter, stores=(self._store,), partition=request.partition,
        )  # fmt: skip
        return reply, view.row.epoch(number)

    def diff(self, request: DiffRequest) -> DiffReply:
        """One page, as `Engine.diff`. Raises `not_ready` as `bulk`, and if there is nothing to return and the request
        has a `wait_ms`."""
        _, view = self._view(request.topic, request.partition)
        self._check_expired(view, request.partition, request.from_seq)
        reply = reader.page(
            request, view.row.config, view.state, view.blocks, (self._store,), self.limits, view.row.partition_count
        )
        if request.wait_ms > 0 and not reply.slices and reply.tombstone is None and reply.caught_up:
            raise _elsewhere(request.topic, request.partition, "records are waited for")
        return reply

    def state(self, name: str, partition: int = 0) -> TopicState:
        """A topic's state, as `Engine.get_topic`, but for its recency, which the owner has in memory only.

        Raises `not_ready` as `bulk`, for a queue, whose jobs only the owner knows, and for more than 64 partitions.
        """
        number, view = self._view(name, partition)
        row = view.row
        if row.config.type == "queue" or row.partition_count > _VIEWS:
            raise _elsewhere(name, partition, "it is a queue, or has many partitions")
        if row.spread is not None:
            raise _elsewhere(name, partition, "other shards may have partitions of it")
        self._check_expired(view, partition)
        state = Topic(number, row, []).state(view.state, self._clock.now_ms(), partition)
        if row.partition_count > 1:
            views = [self._view(name, each)[1] for each in range(len(row.log_ids))]
            for each, other in enumerate(views):
                self._check_expired(other, each)
            state.partitions = [partition_state(each, other.state) for each, other in enumerate(views)]
        return state

    def locate(self, name: str, ts: int, partition: int = 0) -> tuple[int, int]:
        """See `Engine.locate`. Raises `not_ready` as `bulk`."""
        _, view = self._view(name, partition)
        self._check_expired(view, partition)
        return reader.locate(view.state, view.blocks, ts)

    def fetch(self, request: FetchRequest) -> FetchReply:
        """Whole batches, as `Batches.fetch`. Raises `not_ready` as `bulk`, and for a cursor outside of the rows."""
        number, view = self._view(request.topic, request.partition)
        self._check_expired(view, request.partition, request.from_seq)
        reply = batches.read(Topic(number, view.row, []).identity, view.state, view.blocks, request)
        if reply.lost:
            raise _elsewhere(request.topic, request.partition, "its records here are others", head_seq=reply.head_seq)
        return reply

    def follow(self) -> None:
        """Apply the writer's changes. Raises `not_ready` if that can't be done."""
        try:
            self._store.catch_up()
        except StoreError as error:
            raise TopicsError(Reason.NOT_READY, str(error)) from error

    def _check_expired(self, view: _View, partition: int, from_seq: int = 0) -> None:
        """Raise `not_ready` if a read from there meets records that have expired and are still in the store."""
        config = view.row.config
        if config.ttl_ms and not config.retaining:  # retention held for groups is decided by the server's sweep
            aged = copy(view.state)
            retention.expire(aged, view.blocks, config.ttl_ms, self._clock.now_ms())
            if from_seq + 1 < aged.earliest != view.state.earliest:
                raise _elsewhere(view.row.name, partition, "records have expired, which only the server can write down")

    def _view(self, name: str, partition: int, topic_id: str = "", epoch: int = 0) -> tuple[int, _View]:
        """The topic's number and the partition's rows, as they are now."""
        number, row = self._topic(name)
        if topic_id and topic_id != row.topic_id:
            raise topic_recreated(name, row.topic_id)
        if epoch and epoch != row.epoch(number):
            raise topic_not_found(name)
        if not 0 <= partition < row.partition_count:
            raise partition_not_found(name, partition, row.partition_count)
        if partition not in row.numbers:
            raise _elsewhere(name, partition, "it is in another shard")
        key = number, partition
        view = self._views.get(key)
        if view is None or view.generation != self._store.generation:
            view = self._views[key] = self._load(row, partition)
            if len(self._views) > _VIEWS:
                self._views.popitem(last=False)
        self._views.move_to_end(key)
        return number, view

    def _topic(self, name: str) -> tuple[int, TopicRow]:
        """The catalog row of a topic. O(topics) at first, then O(those created since)."""
        number = self._numbers.get(name)
        if number is not None:
            row = self._store.get(Family.TOPICS, keys.u64(number))
            if row is not None:
                return number, _decoded(number, row)
            del self._numbers[name]
        for key, value in self._store.scan(Family.TOPICS, self._numbered, _ALL[1]):
            found = keys.read_u64(key)
            self._numbers[_decoded(found, value).name] = found
            self._numbered = keys.u64(found + 1)
        number = self._numbers.get(name)
        row = None if number is None else self._store.get(Family.TOPICS, keys.u64(number))
        if number is None or row is None:
            raise topic_not_found(name)
        return number, _decoded(number, row)

    def _is_destination(self, name: str) -> bool:
        """Return whether a router copies records to the topic. O(routers)."""
        mark = name.encode()
        for key, value in self._store.scan(Family.ROUTERS, *_ALL):
            number = keys.read_u64(key)
            if mark in value and key == config_key(number):
                with _damage(f"the router {number}"):
                    if decode_router(value).config.dest == name:
                        return True
        return False

    def _load(self, row: TopicRow, partition: int) -> _View:
        if row.config.durability == "ephemeral":
            raise _elsewhere(row.name, partition, "its records are in memory only")
        log_id, store = row.log_ids[row.numbers.index(partition)], self._store
        with _damage(f'the state of partition {partition} of topic "{row.name}"'):
            s = read_state(store, log_id, row.config.durability)
        if s.volatile_from:
            raise _elsewhere(row.name, partition, "records of it are in memory only")
        if self._is_durable and self._is_destination(row.name):  # without, the server has made the copies before
            raise _elsewhere(row.name, partition, "a router may have records to copy to it")
        blocks = LogBlocks(log_id, self._cache, store, self._memory)
        blocks.topic_partition = (row.name, partition)
        return _View(store.generation, row, s, blocks)


def _decoded(number: int, row: bytes) -> TopicRow:
    with _damage(f"the catalog row {number}"):
        return decode_row(row)


def _elsewhere(topic: str, partition: int, why: str, **facts: int | None) -> TopicsError:
    """Only the server can answer this call."""
    return TopicsError(
        Reason.NOT_READY,
        f'partition {partition} of topic "{topic}" is to be read at the server: {why}',
        {"topic": topic, "partition": partition, **facts},
    )


@contextmanager
def _damage(what: str) -> Iterator[None]:
    """Convert any error of a decoder into an `internal` error that names the damaged row."""
    try:
        yield
    except (ValueError, struct.error, msgspec.MsgspecError) as error:
        raise TopicsError(Reason.INTERNAL, f"{what} is damaged: {error}") from error
