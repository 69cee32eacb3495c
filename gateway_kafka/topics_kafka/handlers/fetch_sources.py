"""Partitions of a fetch that other processes have: for each shard one call at a time, which may wait."""

import asyncio
from collections.abc import Callable, Iterable

from topics_kafka.handlers.fetch_targets import Target
from topics_service.api.kafka import KafkaShards
from topics_service.api.kafka_logs import FetchOutcome
from topics_service.engine.batches import FetchPart, FetchReply, FetchRequest
from topics_service.engine.errors import Reason, TopicsError


class Source:
    """The partitions of a fetch that one shard has. `arrived` is called when the outcomes of a call are there."""

    def __init__(self, shards: KafkaShards, shard: int, max_bytes: int, arrived: Callable[["Source"], None]) -> None:
        self.targets: list[Target] = []
        self.nbytes = 0
        """Bytes that the targets have found."""
        self.is_old = False
        """True if what was found may have been deleted meanwhile."""
        self._shards = shards
        self._shard = shard
        self._max_bytes = max_bytes
        self._arrived = arrived
        self._call: asyncio.Future[list[FetchOutcome]] | None = None

    @property
    def is_asked(self) -> bool:
        """Return whether the outcomes of a call are to come, or not taken yet."""
        return self._call is not None

    def ask(self, *, more_bytes: int = 0, wait_seconds: float = 0) -> None:
        """Read all targets; wait for that many bytes more than were found, if there are any."""
        requests = [
            FetchRequest(
                topic=target.name, partition=target.number, from_seq=target.offset, max_bytes=max(target.limit, 0)
            )
            for target in self.targets
        ]
        self._call = asyncio.ensure_future(
            self._shards.fetch(
                self._shard,
                requests,
                max_bytes=self._max_bytes,
                min_bytes=self.nbytes + more_bytes,
                wait_ms=int(wait_seconds * 1000),
            )
        )
        self._call.add_done_callback(self._done)

    def take(self) -> list[FetchOutcome]:
        """The outcomes of the last call, one for each target. Raises TopicsError if it failed."""
        call, self._call = self._call, None
        assert call is not None, "it has arrived"
        return call.result()

    def leave(self) -> None:
        """End the call that is under way."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _done(self, call: "asyncio.Future[list[FetchOutcome]]") -> None:
        if call is self._call:
            self._arrived(self)


def fit(targets: Iterable[Target], max_bytes: int) -> None:
    """Leave out what is more than fits into a response, in the order of the request. The first batch always fits."""
    total = 0
    for target in targets:
        reply = target.reply
        if reply is None or not reply.parts:
            continue
        if total + reply.nbytes > max_bytes and (total or len(reply.parts) > 1):
            _shorten(reply, max_bytes - total, keep_first=not total)
        total += reply.nbytes


def _shorten(reply: FetchReply, max_bytes: int, *, keep_first: bool) -> None:
    kept: list[FetchPart] = []
    nbytes = 0
    for part in reply.parts:
        size = part.block.sizes_upto(part.stop) - part.block.sizes_upto(part.start)
        if nbytes + size > max_bytes and (kept or not keep_first):
            break
        kept.append(part)
        nbytes += size
    if len(kept) < len(reply.parts):
        reply.parts, reply.nbytes, reply.is_hole, reply.passed_over = kept, nbytes, False, 0


def outcomes_of(source: Source) -> list[FetchOutcome]:
    """The outcomes for the targets of a source, also of a call that failed as a whole."""
    try:
        return source.take()
    except TopicsError as error:
        return [FetchOutcome(error=error)] * len(source.targets)
    except asyncio.CancelledError:  # of the call, which has lost its shard
        lost = TopicsError(Reason.NOT_READY, "the shard was lost")
        return [FetchOutcome(error=lost)] * len(source.targets)
