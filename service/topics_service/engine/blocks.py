"""Look-up of a log's records: a byte-bounded cache of blocks in front of the stores."""

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from operator import attrgetter

from topics_service.engine.errors import Reason, TopicsError
from topics_service.statistics import CacheStatistics
from topics_service.storage import keys
from topics_service.storage.block import Block, CorruptBlockError, StoredBlock
from topics_service.storage.corruption import DamagedRowsError
from topics_service.storage.kafkablock import decode
from topics_service.storage.store import Family, Store, StoreError

_LARGE = 1 << 20
_MAX_REPORTED = 1000
_REMEMBERED = 64
_base_seq = attrgetter("base_seq")


class UnreadableError(TopicsError):
    """Records are damaged or missing: `internal`, with the topic and the seqs `first..last` around the one asked for.

    `first` is None when nothing of the log can be read below them, `last` when nothing above. Records between two
    nearby damaged stretches can be counted with them.
    """

    def __init__(self, blocks: "LogBlocks", seq: int, first: int | None, last: int | None, why: str) -> None:
        """The record `seq` of the log of `blocks`, for the reason `why`."""
        self.first = first
        self.last = last
        facts: dict[str, object] = {"first_seq": first, "last_seq": last}
        if blocks.topic_partition is not None:
            facts |= {"topic": blocks.topic_partition[0], "partition": blocks.topic_partition[1]}
        stretch = f"{'the first one' if first is None else first}..{'the last one' if last is None else last}"
        super().__init__(
            Reason.INTERNAL,
            f"record {seq} of {blocks.where} can't be read (damaged: {stretch}): {why}",
            {name: value for name, value in facts.items() if value is not None},
        )


class BlockCache:
    """An LRU cache of the blocks of all logs, up to `max_bytes` of memory."""

    def __init__(self, max_bytes: int) -> None:
        self.statistics = CacheStatistics()
        self.on_damage: Callable[[UnreadableError], None] = lambda _error: None
        """Called once for each unreadable stretch of records, when it is met."""
        self._reported: set[tuple[int, int | None, int | None]] = set()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._blocks: OrderedDict[tuple[int, int], StoredBlock] = OrderedDict()
        self._weights: dict[tuple[int, int], int] = {}  # as they are counted: a block grows while it is cached
        self._bases: dict[int, list[int]] = {}  # per log, ascending: to find a block by a seq inside it

    @property
    def size(self) -> int:
        """Return the total size of the cached blocks."""
        return self._bytes

    def find(self, log_id: int, seq: int, *, scan: bool = False) -> StoredBlock | None:
        """The cached block that holds `seq`. A `scan` does not count as a use."""
        bases = self._bases.get(log_id)
        if not bases:
            return None
        at = bisect_right(bases, seq) - 1
        if at < 0:
            return None
        key = (log_id, bases[at])
        block = self._blocks[key]
        if seq >= block.end_seq:
            return None
        if not scan:
            self._blocks.move_to_end(key)
        self.statistics.hits += 1
        return block

    def put(self, block: StoredBlock, *, scan: bool = False) -> None:
        """Keep a block, in place of any with the same base. Blocks of a `scan` are evicted first.

        Large blocks are kept in any case: a scan comes back to them page after page.
        """
        key = (block.log_id, block.base_seq)
        old = self._blocks.pop(key, None)
        if old is not None:
            self._bytes -= self._weights[key]
        else:
            bases = self._bases.setdefault(block.log_id, [])
            if not bases or block.base_seq > bases[-1]:
                bases.append(block.base_seq)
            else:
                insort(bases, block.base_seq)
        self._blocks[key] = block
        self._weights[key] = block.weight
        self._bytes += block.weight
        if scan and block.weight <= _LARGE:
            while self._bytes > self._max_bytes and len(self._blocks) > 1:
                self._remove(next(iter(self._blocks)))
            self._blocks.move_to_end(key, last=False)
            return
        while self._bytes > self._max_bytes and len(self._blocks) > 1:
            self._remove(next(iter(self._blocks)))

    def grown(self, block: StoredBlock) -> None:
        """Account for the growth of a block, if it is cached."""
        key = (block.log_id, block.base_seq)
        if self._blocks.get(key) is block:
            self._bytes += block.weight - self._weights[key]
            self._weights[key] = block.weight
            while self._bytes > self._max_bytes and len(self._blocks) > 1:
                self._remove(next(iter(self._blocks)))

    def drop(self, log_id: int, base_seq: int) -> None:
        """Forget one block."""
        if (log_id, base_seq) in self._blocks:
            self._remove((log_id, base_seq))

    def drop_log(self, log_id: int) -> None:
        """Forget all blocks of a log."""
        for base in self._bases.pop(log_id, []):
            del self._blocks[log_id, base]
            self._bytes -= self._weights.pop((log_id, base))

    def damaged(self, log_id: int, error: UnreadableError) -> None:
        """Report damage, if it is new."""
        known = (log_id, error.first, error.last)
        if known not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(known)
            self.on_damage(error)

    def _remove(self, key: tuple[int, int]) -> None:
        del self._blocks[key]
        self._bytes -= self._weights.pop(key)
        bases = self._bases[key[0]]
        del bases[bisect_right(bases, key[1]) - 1]
        if not bases:
            del self._bases[key[0]]


class LogBlocks:
    """The blocks of one log: cached, staged by a write in progress, on disk, or (`ephemeral`) only in memory."""

    __slots__ = ("_bad", "_cache", "_disk", "_memory", "log_id", "marked", "marks_from", "staged", "topic_partition")

    def __init__(self, log_id: int, cache: BlockCache, disk: Store, memory: Store) -> None:
        self.log_id = log_id
        self._cache = cache
        self._disk = disk
        self._memory = memory
        self._bad: dict[int, tuple[int | None, int | None, str]] = {}
        self.topic_partition: tuple[str, int] | None = None  # named in reports of damage
        self.staged: Sequence[StoredBlock] = ()  # ascending
        self.marked: bool | None = None  # whether sealed blocks are marked as not indexed; None: not looked yet
        self.marks_from = 0  # marks below are those of blocks that can't be indexed

    @property
    def where(self) -> str:
        """The topic partition in words; the id of the log if it is unknown."""
        if self.topic_partition is None:
            return f"log {self.log_id}"
        topic, partition = self.topic_partition
        return f'topic "{topic}" partition {partition}' if partition else f'topic "{topic}"'

    def records(self, seq: int, *, scan: bool = False) -> Block:
        """As `find`, with the records as columns, inflated."""
        block = self.find(seq, scan=scan, whole=True)
        return block if isinstance(block, Block) else self._columns(block)

    def tagged(self, seq: int, *, scan: bool = False) -> Block:
        """As `records`, for readers of sizes, tags and nodes: data and meta may not be inflated."""
        block = self.find(seq, scan=scan)
        return block if isinstance(block, Block) else self._columns(block)

    def find(self, seq: int, *, scan: bool = False, whole: bool = False) -> StoredBlock:
        """The block that holds `seq`, which must be between the first kept seq and the head, outside gaps.

        A `scan` reads much and only once: it evicts at most one other block from the cache. The records are inflated
        for sure only if the `whole` is asked for.

        Raises UnreadableError, naming the range, when it is damaged or missing: never a wrong record.
        """
        staged = self.staged
        if staged and staged[0].base_seq <= seq:
            return staged[bisect_right(staged, seq, key=_base_seq) - 1]
        block = self._cache.find(self.log_id, seq, scan=scan)
        if block is None:
            return self._load(seq, scan=scan, whole=whole)
        if whole and block.payload is not None:
            self.inflate(block)
        return block

    def inflate(self, block: StoredBlock) -> None:
        """Inflate the records of a block, unless they are. Raises UnreadableError."""
        if block.payload is not None:
            try:
                block.inflate()
            except CorruptBlockError as error:
                first, last = block.base_seq, block.end_seq - 1
                raise self._unreadable(first, first, last, str(error)) from error
            self._cache.grown(block)

    def _columns(self, block: StoredBlock) -> Block:
        self.inflate(block)
        before = block.weight
        columns = block.columns()
        if block.weight != before:
            self._cache.grown(block)
        return columns

    def is_below(self, base: int, seq: int) -> bool:
        """Return whether the block at `base` ends below `seq`. A damaged one does if another block begins by then.

        Raises StoreError when the store can't be read.
        """
        try:
            return self.find(base).end_seq <= seq
        except TopicsError:
            rows = (store.floor(Family.BLOCKS, keys.pair(self.log_id, seq)) for store in (self._memory, self._disk))
            return any(row is not None and row[0] > keys.pair(self.log_id, base) for row in rows)

    def cum_bytes_below(self, seq: int) -> int:
        """The bytes of all records ever appended up to the last block on disk that begins below `seq`."""
        row = self._disk.floor(Family.BLOCKS, keys.pair(self.log_id, seq - 1))
        if row is None or keys.read_u64(row[0]) != self.log_id:
            return 0
        block = self.find(keys.read_u64(row[0], 8))
        return block.cum_bytes + block.nbytes

    def _load(self, seq: int, *, scan: bool, whole: bool) -> StoredBlock:
        self._cache.statistics.misses += 1
        if seq in self._bad:  # retention asks again and again, and it takes RocksDB 10 ms to find out
            raise UnreadableError(self, seq, *self._bad[seq])
        first, last, why = None, None, "no block holds it"
        for store in (self._memory, self._disk):
            try:
                row = store.floor(Family.BLOCKS, keys.pair(self.log_id, seq))
            except DamagedRowsError as error:  # the row below will do, if it reaches so far
                row, why = error.below, str(error)
                if error.above is not None and keys.read_u64(error.above) == self.log_id:
                    last = keys.read_u64(error.above, 8) - 1
                if error.at is not None and keys.read_u64(error.at) == self.log_id:
                    raise self._unreadable(seq, keys.read_u64(error.at, 8), last, why) from error
            except StoreError as error:
                raise self._unreadable(seq, None, None, str(error)) from error
            if row is None or keys.read_u64(row[0]) != self.log_id:
                continue
            base = keys.read_u64(row[0], 8)
            try:
                block = decode(row[1], self.log_id, base)
                if whole:
                    block.inflate()
            except CorruptBlockError as error:
                raise self._unreadable(seq, base, last, str(error)) from error
            if seq < block.end_seq:
                self._cache.put(block, scan=scan)
                return block
            first = max(first or 0, block.end_seq)
        raise self._unreadable(seq, first, last, why)

    def _unreadable(self, seq: int, first: int | None, last: int | None, why: str) -> UnreadableError:
        if last is None:
            with suppress(StoreError):  # those behind can't be read either
                start, stop = keys.pair(self.log_id, seq + 1), keys.u64(self.log_id + 1)
                behind = [
                    keys.read_u64(key, 8)
                    for store in (self._memory, self._disk)
                    for key, _ in islice(store.scan(Family.BLOCKS, start, stop), 1)
                ]
                last = min(behind) - 1 if behind else None
        if "Corruption" in why or "mismatch" in why:  # it stays so
            if len(self._bad) >= _REMEMBERED:
                self._bad.clear()
            self._bad[seq] = first, last, why
        error = UnreadableError(self, seq, first, last, why)
        self._cache.damaged(self.log_id, error)
        return error
