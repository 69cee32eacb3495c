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

from topics_service.engine import reader, retention
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
from topics_service.engine.model import BulkRequest, DiffReply
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.stored_logs import read_state
from topics_service.engine.topic import TopicRow, decode_row
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
        self._numbers: dict[str, int] = {}  # of the topics that were read; a name has one number at a time
        self._views: OrderedDict[tuple[int, int], _View] = OrderedDict()

    def bulk(self, request: BulkRequest) -> tuple[DiffReply, int]:
        """One page of a long read, and the topic's epoch for the next, as `Engine.bulk`.

        The first page finds everything that was acknowledged before the call. Raises `invalid_request` without an
        `end_seq`, unless the rows are durable, and `not_ready` if only the server can answer: the topic is `ephemeral`,
        its head is below `end_seq`, the page has expired records that are still in the store (a loss has to be written
        before it is reported), or the writer can't be followed at the moment.
        """
        if request.end_seq is None and not self._is_durable:
            raise invalid("a bulk reader needs end_seq")
        if not request.epoch or not self._store.whole:
            self.follow()
        number, view = self._view(request)
        config, s, from_seq = view.row.config, view.state, request.from_seq
        if not request.epoch and s.head < (request.end_seq or 0):
            raise _elsewhere(request, f"its head is {s.head} here", head_seq=s.head)
        if request.from_ts is not None or request.last is not None:
            from_seq = reader.start(s, view.blocks, request)
        if config.ttl_ms and not config.retaining:  # retention held for groups is decided by the server's sweep
            aged = copy(s)
            retention.expire(aged, view.blocks, config.ttl_ms, self._clock.now_ms())
            if from_seq + 1 < aged.earliest != s.earliest:
                raise _elsewhere(request, "records have expired, which only the server can write down")
        reply = reader.read(
            request.topic, s, view.blocks, from_seq, request.limit, request.max_batch_bytes,
            frozenset(request.nodes if config.dedupe_node else ()), request.end_seq,
            scan=True, match=request.filter, stores=(self._store,), partition=request.partition,
        )  # fmt: skip
        return reply, number

    def follow(self) -> None:
        """Apply the writer's changes. Raises `not_ready` if that can't be done."""
        try:
            self._store.catch_up()
        except StoreError as error:
            raise TopicsError(Reason.NOT_READY, str(error)) from error

    def _view(self, request: BulkRequest) -> tuple[int, _View]:
        """The topic's number and the partition's rows, as they are now."""
        number, row = self._topic(request.topic)
        if request.topic_id and request.topic_id != row.topic_id:
            raise topic_recreated(request.topic, row.topic_id)
        if request.epoch and request.epoch != number:
            raise topic_not_found(request.topic)
        if not 0 <= request.partition < len(row.log_ids):
            raise partition_not_found(request.topic, request.partition, len(row.log_ids))
        key = number, request.partition
        view = self._views.get(key)
        if view is None or view.generation != self._store.generation:
            view = self._views[key] = self._load(request, row)
            if len(self._views) > _VIEWS:
                self._views.popitem(last=False)
        self._views.move_to_end(key)
        return number, view

    def _topic(self, name: str) -> tuple[int, TopicRow]:
        """The catalog row of a topic. O(topics) for one that was not read before, or is not there."""
        number = self._numbers.get(name)
        if number is not None:
            row = self._store.get(Family.TOPICS, keys.u64(number))
            if row is not None:
                return number, _decoded(number, row)
            del self._numbers[name]
        mark = name.encode()
        for key, value in self._store.scan(Family.TOPICS, *_ALL):
            if mark in value:
                number = keys.read_u64(key)
                found = _decoded(number, value)
                if found.name == name:
                    self._numbers[name] = number
                    return number, found
        raise topic_not_found(name)

    def _load(self, request: BulkRequest, row: TopicRow) -> _View:
        if row.config.durability == "ephemeral":
            raise _elsewhere(request, "its records are in memory only")
        log_id, store = row.log_ids[request.partition], self._store
        with _damage(f'the state of partition {request.partition} of topic "{request.topic}"'):
            s = read_state(store, log_id, row.config.durability)
        if s.volatile_from:
            raise _elsewhere(request, "records of it are in memory only")
        blocks = LogBlocks(log_id, self._cache, store, self._memory)
        blocks.topic_partition = (row.name, request.partition)
        return _View(store.generation, row, s, blocks)


def _decoded(number: int, row: bytes) -> TopicRow:
    with _damage(f"the catalog row {number}"):
        return decode_row(row)


def _elsewhere(request: BulkRequest, why: str, **facts: int) -> TopicsError:
    """Only the server can answer this call."""
    return TopicsError(
        Reason.NOT_READY,
        f'partition {request.partition} of topic "{request.topic}" is to be read at the server: {why}',
        {"topic": request.topic, "partition": request.partition, "end_seq": request.end_seq or 0, **facts},
    )


@contextmanager
def _damage(what: str) -> Iterator[None]:
    """Convert any error of a decoder into an `internal` error that names the damaged row."""
    try:
        yield
    except (ValueError, struct.error, msgspec.MsgspecError) as error:
        raise TopicsError(Reason.INTERNAL, f"{what} is damaged: {error}") from error
