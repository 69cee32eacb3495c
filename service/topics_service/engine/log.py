"""One partition's log: every change of its state, written ahead, then published to readers in commit order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from itertools import islice
from types import MappingProxyType
from typing import Final

from topics_service.engine import idempotency, retention, snapshot, tags
from topics_service.engine.blocks import BlockCache, LogBlocks
from topics_service.engine.errors import TopicsError
from topics_service.engine.lives import Ceiling
from topics_service.engine.model import Batch, TagMatch, TopicConfig
from topics_service.engine.snapshot import Gap, Snapshot
from topics_service.engine.tagruns import Upkeep
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.block import Outline, StoredBlock, build
from topics_service.storage.kafkablock import encode
from topics_service.storage.store import Family, Store, StoreError, WriteBatch

CEILING_STEP = 1 << 14
BLOCK_BYTES = 1 << 20
"""A larger append becomes several blocks, which are encoded, compacted and read one at a time."""
_NO_CHANGES: Final = deque[
    tuple[int, Snapshot]
]()  # never changed: most logs are idle, and an empty deque has 600 bytes
_NOTHING_OWED: Final[Mapping[bytes, bytes | None]] = MappingProxyType({})
_LARGE_APPEND = 1000  # records, beyond which the ceiling is raised further than by a step
_FEW_ROWS = 8
_SMALL_HEAD, _SMALL_BYTES = 1 << 10, 1 << 16  # of logs whose rows are all small
_ROWS_OF_A_LOG = (
    Family.BLOCKS, Family.TAGS, Family.DELETES, Family.GAPS, Family.IDEMPOTENCY,
    Family.ROUTER_COPIES, Family.LEASES, Family.JOBS, Family.PRODUCERS,
)  # fmt: skip
_ROWS_IN_MEMORY = (Family.BLOCKS, Family.TAGS, Family.IDEMPOTENCY, Family.PRODUCERS)  # of an `ephemeral` log


class Log:
    """State of one log. `state` is the last written snapshot, `view` the one that readers see.

    The two differ only while an `fsync`-class write waits for its fsync: a change is durable for its class, then
    visible, then acknowledged. Staged changes take effect when their transaction commits.

    Seqs of the other classes are handed out only below a durable `ceiling`, so that a power cut that takes the tail
    of the write-ahead log can't lead to a seq being used twice.
    """

    __slots__ = (
        "_asked",
        "_durable_head",
        "_is_awaited",
        "_memory",
        "_parked",
        "_pending",
        "_reserved",
        "_reserved_ticket",
        "_writer",
        "blocks",
        "cache",
        "ceiling",
        "expiry_ticket",
        "has_expired",
        "hold",
        "log_id",
        "owed",
        "reclaimable_from",
        "scans",
        "state",
        "tag_upkeep",
        "unsealed_blocks",
        "view",
    )

    def __init__(
        self,
        log_id: int,
        writer: Writer,
        memory: Store,
        cache: BlockCache,
        state: Snapshot,
        ceiling: int,
        owed: Mapping[bytes, bytes | None] = _NOTHING_OWED,
    ) -> None:
        """`owed` are changes of rows of gaps that `state` has and the store has not: the loss that recovery found. They
        are written with the next state row."""
        self.log_id = log_id
        self.owed = owed
        self._writer = writer
        self._memory = memory
        self.cache = cache
        self.blocks = LogBlocks(log_id, cache, writer.store, memory)
        self.state = state
        self.view = state
        self.ceiling = ceiling
        self._reserved = ceiling
        self._reserved_ticket = 0
        self._pending = _NO_CHANGES
        self._parked: set[Callable[[], None]] | None = None
        self._durable_head = state.head
        self._asked: tuple[int, int] | None = None  # the requested ticket, and the head it covers
        self.hold: int | None = None  # retention keeps records above it, for groups that have not acked
        self.unsealed_blocks = 0  # appended since the last seal: a hint, lost on restart
        self.has_expired = False  # records have expired that maintenance has not processed
        self.expiry_ticket = 0  # readers of an `fsync` log wait for it before they learn of expired records
        self._is_awaited = False
        self.tag_upkeep: Upkeep | None = None
        self.scans = 0  # that read a view: no block goes meanwhile
        self.reclaimable_from = 0  # no block is dead before `earliest` is here: a hint for maintenance

    # ------------------------------------------------------------------ reads

    def visible(self, config: TopicConfig, now: int) -> Snapshot:
        """Return the state that a reader sees now: the published one without expired records.

        Each expiry is written before a reader learns of it, so expired records stay gone even if the clock steps back
        and the process is killed. If the write fails, nothing has expired yet. In an `fsync` log the expiry must be
        durable too: the reply to a reader waits for `expiry_ticket`.
        """
        if config.ttl_ms and self.view.count and self._writer.failure is None:
            s = copy(self.view)
            if retention.expire(s, self.blocks, config.ttl_ms, now, self.hold):
                with suppress(TopicsError):
                    self._publish_expiry(s, config, now)
        return self.view

    def _publish_expiry(self, s: Snapshot, config: TopicConfig, now: int) -> None:
        """Publish `s`, which is `view` without expired records, and remove those from every later state too."""
        state = s if self.state is self.view else copy(self.state)
        ticket = self._writer.written
        if state is s or retention.expire(state, self.blocks, config.ttl_ms, now, self.hold):
            batch = self._writer.begin()
            if self._has_durable_row(state):
                ticket = self.commit_state(batch, state)
        if state is not s:
            for _, later in self._pending:
                if later is not self.state:
                    retention.expire(later, self.blocks, config.ttl_ms, now, self.hold)
            self._pending[-1] = (self._pending[-1][0], state)
        self._account(state)
        self.state, self.view = state, s
        self.has_expired = True
        if config.durability == "fsync" and ticket > self._writer.synced:
            self.expiry_ticket = self._writer.expiry_ticket = ticket
            self._writer.promote_with(self.log_id, self._promote)
            self._writer.request_sync(ticket)

    def wake_after_expiry(self) -> None:
        """Wake all parked readers once `expiry_ticket` is durable."""
        self._is_awaited = True

    def park(self, wake: Callable[[], None]) -> None:
        """Call `wake` when records become visible or the log is deleted, until `leave(wake)`."""
        if self._parked is None:
            self._parked = {wake}
        else:
            self._parked.add(wake)

    def leave(self, wake: Callable[[], None]) -> None:
        """Undo `park`."""
        if self._parked is not None:
            self._parked.discard(wake)

    def wake_all(self) -> None:
        """Wake all waiters for a change."""
        for wake in list(self._parked or ()):
            wake()

    # ----------------------------------------------------------------- writes

    def begin(self, config: TopicConfig, now: int) -> Snapshot:
        """Return a private copy of the newest written state without expired records, to change and stage."""
        s = copy(self.state)
        retention.expire(s, self.blocks, config.ttl_ms, now, self.hold)
        return s

    def append(
        self,
        tx: Transaction,
        s: Snapshot,
        records: Batch,
        config: TopicConfig,
        now: int,
        remember: tuple[str, int] | None = None,
    ) -> int:
        """Stage the records on top of `s` (from `begin`) and return the first seq. See `append_block`.

        `remember` is an idempotency key and its expiry.
        """
        first_seq, count = s.head + 1, len(records.datas)
        home = self._append(tx, s, self._built(s, records, max(now, s.last_ts)), config)
        if remember is not None:
            outcome = idempotency.Outcome(first_seq, count, s.head, now, remember[1])
            idempotency.remember(home, self.log_id, remember[0], outcome)
            if home is not tx.batch:  # written in memory: from before the log was `ephemeral` one can be on disk
                idempotency.supersede(self._writer.store, tx.batch, self.log_id, remember[0])
        return first_seq

    def append_block(self, tx: Transaction, s: Snapshot, block: StoredBlock, config: TopicConfig) -> WriteBatch:
        """Stage a block that begins at `s.head + 1`, is not older than `s.last_ts` and counts from `s.cum_bytes`.

        The caller has checked limits and caps; `old` topics evict. Returns the batch that the log's rows belong in.
        """
        return self._append(tx, s, (block,), config)

    def _built(self, s: Snapshot, records: Batch, ts: int) -> Iterator[StoredBlock]:
        """Yield the records as blocks, each built on top of the current `s`."""
        for piece in records.pieces(BLOCK_BYTES):
            yield build(
                self.log_id,
                s.head + 1,
                ts,
                piece.datas,
                piece.tags,
                piece.nodes,
                piece.metas,
                piece.kinds,
                s.cum_bytes,
                piece.sizes,
            )

    def _append(self, tx: Transaction, s: Snapshot, blocks: Iterable[StoredBlock], config: TopicConfig) -> WriteBatch:
        """Stage blocks, see `append_block`. Only one of them at a time is in memory, besides the batch."""
        home = tx.batch
        change = _Change(self, s, config)
        if config.durability == "ephemeral":
            s.volatile_from = s.volatile_from or s.head + 1
            home = change.volatile = self._memory.batch()
        tx.stage_log(change)
        staged = self.blocks.staged = change.blocks
        for block in blocks:
            s.head += block.count
            s.count += block.count
            s.bytes += block.nbytes
            s.cum_bytes += block.nbytes
            s.last_ts = block.last_ts
            s.max_ts = block.max_ts = max(s.max_ts, block.max_ts)
            home.put(Family.BLOCKS, keys.pair(self.log_id, block.base_seq), encode(block))
            if len(staged) == 1:
                staged[0] = Outline(staged[0])
            staged.append(Outline(block) if staged else block)
        if config.discard == "old":
            retention.evict(s, self.blocks, config, self.hold)
        self._stage(tx, change)
        return home

    def skip_seqs(self, tx: Transaction, s: Snapshot, count: int, config: TopicConfig) -> None:
        """Stage `count` seqs after the head that never hold a record: an explicit loss."""
        gap = s.skip_seqs(count)
        if gap is not None and not s.volatile_from:
            tx.batch.put(Family.GAPS, *gap.row(self.log_id))
        self.stage(tx, s, config)

    def mark(self, tx: Transaction, s: Snapshot, seqs: Iterable[int], config: TopicConfig) -> int:
        """Stage the deletion of single seqs; return the number of live ones among them."""
        sizes = retention.sizes_of(self.blocks, s.live_among(seqs))
        s.deletes, chunks = s.deletes.marked(sizes)
        s.count -= len(sizes)
        s.bytes -= sum(size for _, size in sizes)
        s.earliest = s.first_live(s.earliest)
        self.stage(tx, s, config, chunks=chunks)
        return len(sizes)

    def stage(
        self, tx: Transaction, s: Snapshot, config: TopicConfig, *, chunks: Iterable[int] = (), hold: bool = False
    ) -> None:
        """Stage `s` as the log's next state; `chunks` are the delete bitmaps that changed.

        With `hold` the change waits for an fsync in every class.
        """
        change = _Change(self, s, config, hold=hold)
        tx.stage_log(change)
        self._stage(tx, change, chunks)

    def delete(
        self, config: TopicConfig, now: int, before_seq: int | None, match: TagMatch | None
    ) -> tuple[int, Snapshot, int]:
        """Delete visible records that match; return their number, the state after it and the ticket."""
        s = self.begin(config, now)
        bound = self.view.head + 1
        if before_seq is not None:
            bound = min(bound, before_seq)
        prune, matches = False, tags.Matches([], 0)
        with Transaction(self._writer) as tx:
            if match is None:
                deleted = retention.advance(s, self.blocks, bound)
                self.stage(tx, s, config)
            else:
                matches = tags.matching(self.stores(s), self.log_id, s, self.blocks, match, bound)
                deleted = self.mark(tx, s, matches.seqs, config)
                # While readers still see the records they need the index; `maintenance` prunes it with the blocks then.
                prune = before_seq is None and config.durability != "fsync" and not self._pending
                if prune:
                    tags.prune(self._writer.store, tx.batch, self.log_id, match, bound - 1, matches)
            if not deleted:
                return 0, self.visible(config, now), self.expiry_ticket
            ticket = tx.commit()
        if match is not None and prune and s.volatile_from:
            batch = self._memory.batch()
            tags.prune(self._memory, batch, self.log_id, match, bound - 1, matches)
            self._memory.write(batch)
        return deleted, s, ticket

    def ticket_of(self, seq: int) -> int:
        """Return the ticket after which the record `seq` is visible; 0 if it already is."""
        if seq <= self.view.head:
            return 0
        return next((ticket for ticket, s in self._pending if s.head >= seq), 0)

    @property
    def pending_ticket(self) -> int:
        """The ticket of the newest change that readers don't see yet; 0 if there is none."""
        return self._pending[-1][0] if self._pending else 0

    def stores(self, s: Snapshot) -> tuple[Store, ...]:
        """Return the stores that can hold rows of this log."""
        return (self._memory, self._writer.store) if s.volatile_from else (self._writer.store,)

    def remembered(self, key: str, config: TopicConfig, now: int) -> idempotency.Outcome | None:
        """Return the outcome of an earlier append with this idempotency key, from memory or disk."""
        stores = (self._memory, self._writer.store) if config.durability == "ephemeral" else (self._writer.store,)
        for store in stores:
            found = idempotency.find(store, self.log_id, key, now, config.idempotency_window_ms)
            if found is not None:
                return found
        return None

    def materialize(self, disk: WriteBatch, s: Snapshot) -> None:
        """Add the rows in memory to the batch: the log stops being `ephemeral`."""
        self.tag_upkeep = None
        for family in _ROWS_IN_MEMORY:
            for key, value in self._memory.scan(family, *keys.log_range(self.log_id)):
                disk.put(family, key, value)
                if family is Family.IDEMPOTENCY:
                    disk.put(Family.IDEMPOTENCY_EXPIRY, idempotency.expiry_key(key, value), b"")
        s.volatile_from = 0
        for gap in s.gaps:
            disk.put(Family.GAPS, *gap.row(self.log_id))
        for number in s.deletes.numbers():
            disk.put(Family.DELETES, keys.pair(self.log_id, number), s.deletes.encode(number))

    def renew_ceiling(self, disk: WriteBatch) -> None:
        """Add the ceiling as one of this life: what earlier ends took by the rule of another class is in the state."""
        if self._reserved:
            disk.put(Family.CEILINGS, keys.u64(self.log_id), Ceiling(self._reserved, self._writer.life).encode())

    def dematerialize(self) -> None:
        """Drop the rows in memory, once they are on disk or the log is deleted."""
        batch = self._memory.batch()
        for family in _ROWS_IN_MEMORY:
            batch.delete_range(family, *keys.log_range(self.log_id))
        self._memory.write(batch)

    def remove(self, disk: WriteBatch) -> None:
        """Add the removal of every row to the batch."""
        for family in (Family.LOGS, Family.CEILINGS):
            disk.delete(family, keys.u64(self.log_id))
        disk.delete(Family.LEASES, keys.pair(self.log_id, 0))  # the queue's own row: a change of config can write it
        if self.state.head:
            for family in _ROWS_OF_A_LOG:
                self._remove_rows(family, disk)

    def _remove_rows(self, family: Family, disk: WriteBatch) -> None:
        """Add the removal of the log's rows of a family to the batch.

        A deleted range costs each read of the family until it is flushed, so few rows are removed one by one.
        """
        start, stop = keys.log_range(self.log_id)
        if self.state.head <= _SMALL_HEAD and self.state.cum_bytes <= _SMALL_BYTES:
            with suppress(StoreError):  # a damaged log is removed without reading it
                found = [key for key, _ in islice(self._writer.store.scan(family, start, stop), _FEW_ROWS + 1)]
                if len(found) <= _FEW_ROWS:
                    for key in found:
                        disk.delete(family, key)
                    return
        disk.delete_range(family, start, stop)

    def removed(self) -> None:
        """Release memory once the removal is written, and wake all waiters."""
        self._writer.forget(self.log_id)
        self._writer.total_records -= self.state.count
        self._writer.total_bytes -= self.state.bytes
        self._writer.on_freed(self.log_id, None)
        self.cache.drop_log(self.log_id)
        self.dematerialize()
        self.wake_all()

    def snapshots(self) -> Iterator[Snapshot]:
        """The distinct states in use, for updates of their physical fields."""
        yield self.state
        if self.view is not self.state:
            yield self.view
        for _, s in self._pending:
            if s is not self.state:
                yield s

    # ------------------------------------------------- for readers that want fsync

    @property
    def durable_head(self) -> int:
        """The highest visible seq that an fsync is known to cover."""
        return self._durable_head

    def ask_sync(self) -> None:
        """Request an fsync of the visible state, one at a time; parked readers are woken if it brings news."""
        if self._asked is None and self._durable_head < self.view.head:
            if self._writer.synced >= self._writer.written:
                self._durable_head = self.view.head
                return
            self._asked = (self._writer.written, self.view.head)
            self._writer.promote_with(self.log_id, self._promote)
            self._writer.request_sync(self._writer.written)

    # --------------------------------------------------------------- internals

    def _stage(self, tx: Transaction, change: "_Change", chunks: Iterable[int] = ()) -> None:
        """Put the state rows of the change into the batch, and a higher ceiling if the head comes near it.

        An `ephemeral` log without records on disk has no durable row to keep up to date.
        """
        s, disk = change.s, tx.batch
        if change.config.durability != "fsync":
            grown = s.head - self.state.head
            step = CEILING_STEP if grown <= _LARGE_APPEND else grown * 16
            if s.head > self._reserved - step // 2 and grown > 0:
                change.reserve = s.head + step
                ceiling = Ceiling(change.reserve, self._writer.life)
                disk.put(Family.CEILINGS, keys.u64(self.log_id), ceiling.encode())
            change.hold = change.hold or (s.head > self.ceiling and s.head > self.state.head)
        s.deletes, forgotten = s.deletes.forget_below(s.earliest)
        covered: tuple[Gap, ...] = ()
        if s.gaps and s.gaps[0].stop < s.evict_floor:
            covered, s.gaps = s.gaps_around(s.evict_floor)
        if self._has_durable_row(s):
            if self.owed:
                disk.apply(Family.GAPS, self.owed)
            disk.put(Family.LOGS, keys.u64(self.log_id), snapshot.encode(s))
            for number in chunks:
                if number not in forgotten:
                    disk.put(Family.DELETES, keys.pair(self.log_id, number), s.deletes.encode(number))
            for number in forgotten:
                disk.delete(Family.DELETES, keys.pair(self.log_id, number))
            for gap in covered:
                disk.delete(Family.GAPS, keys.pair(self.log_id, gap.start))

    def commit_state(self, batch: WriteBatch, s: Snapshot) -> int:
        """Write the batch with the state row, outside a transaction, and return its ticket."""
        if self.owed:
            batch.apply(Family.GAPS, self.owed)
        batch.put(Family.LOGS, keys.u64(self.log_id), snapshot.encode(s))
        ticket = self._writer.commit(batch)
        self.owed = _NOTHING_OWED
        return ticket

    def _has_durable_row(self, s: Snapshot) -> bool:
        """Return whether the stored row must follow `s`, the next state."""
        return not s.volatile_from or self.state.earliest < s.volatile_from

    def _written(self, change: "_Change", ticket: int) -> int:
        """Make a written change the newest state, and publish it as soon as its class allows."""
        s, blocks = change.s, change.blocks
        if blocks:
            if change.volatile is not None:
                self._memory.write(change.volatile)
            if len(blocks) == 1:
                self.cache.put(blocks[0])
            self.unsealed_blocks += len(blocks)
        if self.owed and self._has_durable_row(s):
            self.owed = _NOTHING_OWED
        self._account(s)
        self.state = s
        if change.reserve:
            self._reserved, self._reserved_ticket = change.reserve, ticket
            self._writer.promote_with(self.log_id, self._promote)
            self._writer.request_sync(ticket)
        if change.waits:
            if self._pending is _NO_CHANGES:
                self._pending = deque()
            self._pending.append((ticket, s))
            self._writer.promote_with(self.log_id, self._promote)
            return ticket
        self._publish(s)
        return 0

    def _publish(self, s: Snapshot) -> None:
        grown = s.head > self.view.head
        self.view = s
        if grown and self._parked:
            self.wake_all()

    def _promote(self, synced: int) -> bool:
        announced = self._durable_head
        while self._pending and self._pending[0][0] <= synced:
            s = self._pending.popleft()[1]
            if s.head > self.view.head:
                announced = s.head  # its waiters are woken now
            self._durable_head = s.head
            self._publish(s)
        if not self._pending:
            self._pending = _NO_CHANGES
        if self._reserved_ticket and self._reserved_ticket <= synced:
            self.ceiling, self._reserved_ticket = self._reserved, 0
        if self._asked is not None and self._asked[0] <= synced:
            head, self._asked = self._asked[1], None
            self._durable_head = max(self._durable_head, head)
            if self.view.head > self._durable_head:
                announced = -1  # requests during the wait were ignored: their callers ask again
        if self.expiry_ticket and (self.expiry_ticket <= synced or self._writer.failure is not None):
            self.expiry_ticket = 0
            if self._is_awaited:
                self._is_awaited, announced = False, -1
        if self._durable_head > announced:
            self.wake_all()
        return not (self._pending or self._reserved_ticket or self.expiry_ticket) and self._asked is None

    def _account(self, s: Snapshot) -> None:
        self._writer.total_records += s.count - self.state.count
        self._writer.total_bytes += s.bytes - self.state.bytes


class _Change:
    """A log's part of a transaction: the state `s` on its way to become `Log.state`."""

    __slots__ = ("blocks", "config", "hold", "log", "reserve", "s", "volatile")

    def __init__(self, log: Log, s: Snapshot, config: TopicConfig, *, hold: bool = False) -> None:
        self.log = log
        self.s = s
        self.config = config
        self.blocks: list[StoredBlock] = []  # appended blocks; outlines if there are several
        self.hold = hold
        self.volatile: WriteBatch | None = None  # rows of blocks kept in memory
        self.reserve = 0  # the new ceiling, if it is raised

    @property
    def waits(self) -> bool:
        """See LogChange."""
        return self.hold or self.config.durability == "fsync" or bool(self.log._pending)

    def publish(self, ticket: int) -> int:
        """See Change."""
        return self.log._written(self, ticket)

    def undo(self) -> None:
        """See Change."""
        self.log.blocks.staged = ()
