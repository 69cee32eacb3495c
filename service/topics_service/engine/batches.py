"""Record batches of Kafka clients: appended unchanged, and a log's records read back as batches.

Kafka's offset of a record is its seq - 1. So the offset to read next is the `from_seq` of every other protocol.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from topics_service.engine import retention
from topics_service.engine.blocks import LogBlocks
from topics_service.engine.capacity import Capacity
from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import topic_not_found
from topics_service.engine.log import Log
from topics_service.engine.model import Identity
from topics_service.engine.producers import Producers
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import kafkablock, recordbatch
from topics_service.storage.block import Block, StoredBlock
from topics_service.storage.kafkablock import KafkaBlock
from topics_service.storage.recordbatch import Header

TIMESTAMP_TYPE: Final = "message.timestamp.type"
LOG_APPEND_TIME: Final = "LogAppendTime"
_NEWEST_BLOCKS: Final = 1024
_DECODED: Final = 64  # batches that a search by time decodes, before it goes by the time of the append
_RECORD_OVERHEAD: Final = 24  # of a record in a batch, without its bytes


class BatchRequest(Struct, kw_only=True):
    """Append one batch, which `recordbatch.check` has let pass with `header`, to a topic that exists."""

    topic: str
    partition: int
    header: Header
    body: bytes


class BatchReply(Struct, kw_only=True):
    """The position of the batch; with `deduped`, that of the original write.

    `ts` is the time assigned to the records, None if they keep their own.
    """

    first_seq: int
    count: int
    earliest_seq: int
    deduped: bool = False
    ts: int | None = None


class FetchRequest(Struct, kw_only=True):
    """Read the batches with records after `from_seq`: at most `max_bytes`, but always one."""

    topic: str
    partition: int
    from_seq: int
    max_bytes: int


class FetchPart(Struct, frozen=True):
    """The records at positions `start` to `stop` - 1 of a block, one whole batch of a KafkaBlock.

    `dead` are the positions of deleted records.
    """

    block: StoredBlock
    start: int
    stop: int
    dead: tuple[int, ...] = ()

    @property
    def first_seq(self) -> int:
        """The seq of the first position."""
        return self.block.base_seq + self.start


class FetchReply(Struct, kw_only=True):
    """Batches in order. `lost`: the cursor is outside of the log's range.

    `next_from_seq` is behind all that was looked at: with `is_hole` there is nothing left to be read between the last
    part, or the cursor, and the head. `passed_over` counts the seqs before the last part that were lost to a gap.
    """

    identity: Identity
    parts: list[FetchPart]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    lost: bool = False
    is_hole: bool = False
    passed_over: int = 0
    nbytes: int = 0


class Batches:
    """Appends and reads batches. All calls are atomic, synchronous, and on the engine's thread."""

    def __init__(
        self, catalog: Catalog, writer: Writer, clock: Clock, capacity: Capacity, producers: Producers,
        touch: Callable[[Log], None],
    ) -> None:  # fmt: skip
        self._catalog = catalog
        self._writer = writer
        self._clock = clock
        self._capacity = capacity
        self._touch = touch
        self.producers = producers

    def append(self, request: BatchRequest) -> tuple[BatchReply, int]:
        """Append a batch unchanged; return the reply and the ticket that its acknowledgement waits for.

        A batch of an idempotent producer that was appended before is not appended again.

        Raises TopicsError (`topic_not_found`, `partition_not_found`, `topic_full`, `record_too_large`, `throttled`,
        `internal`) and SequenceError.
        """
        self._writer.check()
        topic = self._catalog.find(request.topic)
        if topic is None:
            raise topic_not_found(request.topic)
        now, log, header, body = self._clock.now_ms(), topic.partition(request.partition), request.header, request.body
        known = self.producers.find(log, header.producer_id) if header.producer_id >= 0 else None
        first = None if known is None else known.find(header)
        if first is not None:
            reply = BatchReply(first_seq=first.seq, count=header.count, earliest_seq=log.view.earliest, deduped=True)
            if topic.kafka_configs.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME and log.state.is_live(first.seq):
                block = log.blocks.find(first.seq)
                reply.ts = block.ts_at(first.seq - block.base_seq)
            return reply, max(log.ticket_of(first.seq + header.count - 1), self._catalog.unsynced(topic))
        s = log.begin(topic.config, now)
        if self._capacity.is_checked(topic):
            self._capacity.check(topic, s, header.count, header.size, log=log)
        ts, given = max(now, s.last_ts), None
        if topic.kafka_configs.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME:
            given, body = ts, recordbatch.stamped(body, ts)
            header = recordbatch.headers(body)[0][1]
        appended = kafkablock.build(log.log_id, s.head + 1, ts, body, header, s.cum_bytes)
        with Transaction(self._writer) as tx:
            home = log.append_block(tx, s, appended, topic.config)
            producer = None
            if header.producer_id >= 0:
                producer = self.producers.after(known, header, appended.base_seq, now)
                self.producers.stage(home, log, producer)
            ticket = tx.commit()
        if producer is not None:
            self.producers.written(log, producer)
        self._touch(log)
        reply = BatchReply(first_seq=appended.base_seq, count=header.count, earliest_seq=s.earliest, ts=given)
        return reply, max(ticket, self._catalog.unsynced(topic))

    def fetch(self, request: FetchRequest) -> FetchReply:
        """Read whole batches after a cursor. Deleted and lost records in between are skipped.

        Raises TopicsError `topic_not_found`, `partition_not_found`, or `internal` for damage.
        """
        topic, now = self._catalog.visible(request.topic), self._clock.now_ms()
        log = topic.partition(request.partition)
        reply = read(topic.identity, log.visible(topic.config, now), log.blocks, request)
        if not reply.lost:
            topic.touch(now)
        return reply

    def offset_at(self, name: str, partition: int, ts: int) -> tuple[int, int] | None:
        """Return seq and time of the first live record with a time, as set by its writer, of `ts` (ms) or later.

        The answer is exact unless 1024 blocks or 64 batches that should have such a record have none: if the matching
        ones were deleted, or a producer gave wrong times. Then it is the first record that was appended since.
        """
        _, log, s = self._visible(name, partition)
        found, is_certain = _first_since(s, log.blocks, ts)
        if is_certain:
            return found
        at = s.first_live(retention.first_at_or_after(s, log.blocks, ts))
        if at > s.head:
            return None
        block = log.blocks.find(at)
        return at, block.ts_at(at - block.base_seq)

    def newest_time(self, name: str, partition: int) -> tuple[int, int] | None:
        """Return seq and time of the first live record with the highest time; None if there are no records.

        If the record that had it was deleted, of those in the newest 1024 blocks.
        """
        _, log, s = self._visible(name, partition)
        if not s.count:
            return None
        found, _ = _first_since(s, log.blocks, s.max_ts)
        if found is not None:
            return found
        return _newest(s, log.blocks)

    def _visible(self, name: str, partition: int) -> tuple[Topic, Log, Snapshot]:
        topic = self._catalog.visible(name)
        log = topic.partition(partition)
        return topic, log, log.visible(topic.config, self._clock.now_ms())


def read(identity: Identity, s: Snapshot, blocks: LogBlocks, request: FetchRequest) -> FetchReply:
    """Read whole batches of a partition after a cursor; see `Batches.fetch`."""
    reply = FetchReply(
        identity=identity, parts=[], next_from_seq=request.from_seq, head_seq=s.head, earliest_seq=s.earliest
    )
    if not s.evict_floor - 1 <= request.from_seq <= s.head:
        reply.lost = True
        return reply
    at = s.first_live(max(request.from_seq + 1, s.earliest))
    while at <= s.head and (not reply.parts or reply.nbytes < request.max_bytes):
        part, nbytes = _part(s, blocks.find(at, whole=True), at, request.max_bytes - reply.nbytes)
        if reply.parts and reply.nbytes + nbytes > request.max_bytes:
            break
        reply.parts.append(part)
        reply.nbytes += nbytes
        reply.next_from_seq = part.block.base_seq + part.stop - 1
        at = s.first_live(reply.next_from_seq + 1)
    if at > s.head:
        reply.is_hole, reply.next_from_seq = reply.next_from_seq < s.head, s.head
    reply.passed_over = s.lost_between(request.from_seq + 1, reply.next_from_seq + 1)
    return reply


def _part(s: Snapshot, block: StoredBlock, at: int, budget: int) -> tuple[FetchPart, int]:
    """Return the part to send of the block with the live seq `at`, and its approximate size in bytes."""
    start = at - block.base_seq
    if isinstance(block, KafkaBlock):
        part = block.part_at(start)
        start, stop, nbytes = part.first, part.stop, part.header.size
    else:
        stop = min(block.end_seq, s.head + 1) - block.base_seq
        stop = max(start + 1, min(stop, block.fit(start, budget), start + max(1, budget // _RECORD_OVERHEAD)))
        nbytes = block.sizes_upto(stop) - block.sizes_upto(start) + _RECORD_OVERHEAD * (stop - start)
    return FetchPart(block, start, stop, _dead(s, block, start, stop)), nbytes


def _dead(s: Snapshot, block: StoredBlock, start: int, stop: int) -> tuple[int, ...]:
    first, end = block.base_seq + start, block.base_seq + stop
    if first >= s.earliest and not s.deletes and not s.gaps:
        return ()
    if s.live_between(first, end) == end - first:
        return ()
    return tuple(i for i in range(start, stop) if not s.is_live(block.base_seq + i))


def _first_since(s: Snapshot, blocks: LogBlocks, ts: int) -> tuple[tuple[int, int] | None, bool]:
    """Seq and time of the first live record of the time `ts` or later, None if there is none; and whether that is so.

    The search gives up after some blocks, or batches that it had to decode.
    """
    at = retention.first_block_reaching(s, blocks, ts)
    decoded = 0
    for _ in range(_NEWEST_BLOCKS):
        at = s.first_live(at)
        if at > s.head:
            return None, True
        block = blocks.find(at)
        for part, times in _batches_since(blocks, block, ts):
            decoded += 1
            if decoded > _DECODED:
                return None, False
            for i, time in enumerate(times, part.start):
                seq = block.base_seq + i
                if time >= ts and seq >= at and s.is_live(seq):
                    return (seq, time), True
        at = block.end_seq
    return None, False


def _newest(s: Snapshot, blocks: LogBlocks) -> tuple[int, int] | None:
    """Seq and time of the first live record with the highest time in the newest blocks."""
    newest: tuple[int, int] | None = None
    end = s.head + 1
    for _ in range(_NEWEST_BLOCKS):
        if not s.live_between(s.earliest, end):
            break
        block = blocks.find(s.last_live_below(end))
        for part, times in _batches_since(blocks, block, 0 if newest is None else newest[1]):
            for i, time in enumerate(times, part.start):
                if s.is_live(block.base_seq + i) and (
                    newest is None or (-time, block.base_seq + i) < (-newest[1], newest[0])
                ):
                    newest = block.base_seq + i, time
        end = block.base_seq
    return newest


def _batches_since(blocks: LogBlocks, block: StoredBlock, ts: int) -> Iterator[tuple[range, Sequence[int]]]:
    """The parts of a block that can have a record of the time `ts` or later, with the times of their records."""
    if isinstance(block, KafkaBlock):
        for part in block.parts:
            if part.header.max_ts >= ts:
                blocks.inflate(block)
                yield range(part.first, part.stop), recordbatch.times(block.batch(part))
    elif isinstance(block, Block) and block.last_ts >= ts:
        start = block.first_at_or_after(ts)
        yield range(start, block.count), [block.ts_at(i) for i in range(start, block.count)]
