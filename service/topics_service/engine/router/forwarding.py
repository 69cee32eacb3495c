"""One slice of forwarding: copies, the destination's state and the router's cursor in one atomic write."""

from collections.abc import Callable
from typing import Any

from topics_service.engine.capacity import Capacity
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.log import Log
from topics_service.engine.router.copies import Copies, LastCopies
from topics_service.engine.router.hops import MAX_HOPS
from topics_service.engine.router.provenance import DedupMap, Provenance, Run, joined
from topics_service.engine.router.rings import EndHops
from topics_service.engine.router.router import Router
from topics_service.engine.router.stretch import loss_behind
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage.block import Block
from topics_service.storage.store import Family

_PRUNE_SEQS = 256  # rows of the dedup map are examined after this many records have left the destination


class Forwarding:
    """Advances routers. Off the ack path: a slice is a separate write, and requests an fsync only for a destination of
    the class `fsync`.

    A record that was deleted before its turn is skipped. For evicted, expired or lost records the destination skips as
    many seqs, as one gap (`Snapshot.skip_seqs`), which count as forwarded.
    """

    def __init__(self, writer: Writer, capacity: Capacity, clock: Clock, touched: Callable[[Log], None]) -> None:
        """`touched` is called with logs that have maintenance due."""
        self._writer = writer
        self._capacity = capacity
        self._clock = clock
        self._touched = touched
        self._last = LastCopies()

    def step(self, router: Router, ends: EndHops | None = None) -> bool:
        """Forward the next slice of the source. Returns True if there is more.

        A router that may be part of a cycle comes with the hop counts of its `ends`: on a cycle no record is forwarded
        more than `MAX_HOPS` times. While there are too many copies on the cycle, records of clients wait for them.

        Raises TopicsError when the router can't continue, for lack of capacity for one record or otherwise, after
        advancing as far as possible.
        """
        source = router.source
        s = source.log.visible(source.config, self._clock.now_ms())
        if router.cursor >= s.head:
            return False
        span = self._writer.span
        if span is None:
            return self._advance(router, s, ends)
        config, before = router.config, router.forwarded
        facts: dict[str, Any] = {
            "topics.router": router.name,
            "topics.router.source": config.source,
            "messaging.destination.name": config.dest,
        }
        with span("topics.router.forward", facts):
            try:
                return self._advance(router, s, ends)
            finally:
                facts["messaging.batch.message_count"] = router.forwarded - before

    def forget_copies(self, tx: Transaction, router: Router, last: int) -> None:
        """Stage the removal of what is known of copies of the seqs above `last`, which were put back."""
        self._dedup_map(router).cut(tx.batch, last)

    # --------------------------------------------------------------- internals

    def _advance(self, router: Router, s: Snapshot, ends: EndHops | None) -> bool:
        hops, end = 0, s.head
        if ends is not None:
            hops, stop = ends.source.at(router.cursor + 1)
            end = end if stop is None else min(end, stop - 1)
            if hops >= MAX_HOPS and ends.is_cycle():
                self._pass_over(router, end)
                return end < s.head
            if not hops and ends.dest.is_full and not ends.source.is_full:
                raise TopicsError(Reason.THROTTLED, f'too many copies in "{router.dest.name}" wait to go round a cycle')
        lost_to = loss_behind(s, router.cursor, end)
        if lost_to > router.cursor:
            first, count = self._skip_lost(router, lost_to)
        else:
            gap = s.next_gap(router.cursor + 1)
            first, count = self._copy(router, s, end if gap is None else min(end, gap.start - 1))
        if count and ends is not None:
            ends.dest.add(first, count, hops + 1)
        return router.cursor < s.head

    def _pass_over(self, router: Router, cursor: int) -> None:
        with Transaction(self._writer) as tx:
            tx.batch.put(Family.ROUTERS, *router.cursor_row(cursor, router.forwarded))
            tx.commit()
        router.cursor = cursor

    def _skip_lost(self, router: Router, lost_to: int) -> tuple[int, int]:
        dest, count = router.dest, lost_to - router.cursor
        d = dest.log.begin(dest.config, self._clock.now_ms())
        first = d.head + 1
        with Transaction(self._writer) as tx:
            dest.log.skip_seqs(tx, d, count, dest.config)
            self._commit(tx, router, lost_to, count)
        return first, count

    def _copy(self, router: Router, s: Snapshot, end: int) -> tuple[int, int]:
        """Copy records up to `end`; return the first seq in the destination and the number of copies."""
        dest = router.dest
        copies = self._last.gather(s, router.source.log.blocks, router.cursor, end, router.config.filter)
        d = dest.log.begin(dest.config, self._clock.now_ms())
        first = d.head + 1
        old_rows: list[tuple[bytes, list[Run]]] = []
        if router.config.guarantee == "exactly_once":
            old_rows = self._old_rows(router, copies.cursor)
            made = {
                seq + i for _, runs in old_rows for seq, at, count in runs for i in range(count) if d.is_live(at + i)
            }
            if made:
                copies.keep(lambda seq: seq not in made)
        if not copies.count:
            self._pass_over(router, copies.cursor)
            return first, 0
        block = self._block(router, copies, d)
        if self._capacity.is_checked(dest):
            fits, refused = self._fitting(dest, d, block)
            if refused is not None:
                copies.cut(fits)
                if not fits:
                    if copies.cursor > router.cursor:
                        self._pass_over(router, copies.cursor)
                    raise refused
                block = block.picked(range(fits))
        with Transaction(self._writer) as tx:
            dest.log.append_block(tx, d, block, dest.config)
            if router.config.guarantee == "exactly_once":
                self._remember(tx, router, copies.runs(first), old_rows, d)
            self._commit(tx, router, copies.cursor, copies.count)
        return first, copies.count

    def _commit(self, tx: Transaction, router: Router, cursor: int, count: int) -> None:
        forwarded = router.forwarded + count
        tx.batch.put(Family.ROUTERS, *router.cursor_row(cursor, forwarded))
        router.ticket = tx.commit()
        router.cursor, router.forwarded = cursor, forwarded
        if router.ticket:
            self._writer.request_sync(router.ticket)
        self._touched(router.dest.log)

    def _block(self, router: Router, copies: Copies, d: Snapshot) -> Block:
        """Return the copies as the destination's next block."""
        config, source, log = router.config, router.source, router.dest.log
        block, metas = copies.block(), None
        if config.guarantee == "exactly_once":
            provenance = Provenance(router.name, source.name, source.identity.topic_id, source.identity.epoch)
            metas = provenance.column(block.metas, copies.seqs())
        ts = max(self._clock.now_ms(), d.last_ts)
        return block.moved(
            log.log_id, d.head + 1, ts, d.cum_bytes, tags=config.preserve_tag, nodes=config.preserve_node, metas=metas
        )

    def _fitting(self, dest: Topic, d: Snapshot, block: Block) -> tuple[int, TopicsError | None]:
        """Return the number of the block's leading records that fit, and the error if not all do."""
        fits, too_many, refused = 0, block.count + 1, None
        count = block.count
        while too_many - fits > 1:
            try:
                self._capacity.check(dest, d, count, block.sizes_upto(count))
                fits = count
            except TopicsError as error:
                too_many, refused = count, error
            count = (fits + too_many) // 2
        return fits, refused

    def _dedup_map(self, router: Router) -> DedupMap:
        return DedupMap(self._writer.store, router.dest.log.log_id, router.name, router.source.identity.epoch)

    def _old_rows(self, router: Router, last: int) -> list[tuple[bytes, list[Run]]]:
        """The dedup map rows for copies of the next records, up to `last`."""
        if router.dedup_to is None:
            router.dedup_to = self._dedup_map(router).end()
        return self._dedup_map(router).overlapping(router.cursor + 1, last) if router.cursor < router.dedup_to else []

    def _remember(
        self, tx: Transaction, router: Router, runs: list[Run], old_rows: list[tuple[bytes, list[Run]]], d: Snapshot
    ) -> None:
        """Add the copies to the dedup map, merged with the live parts of the rows they replace."""
        dedup_map = self._dedup_map(router)
        if old_rows:
            for key, old in old_rows:
                tx.batch.delete(Family.ROUTER_COPIES, key)
                runs += [(seq + i, at + i, 1) for seq, at, count in old for i in range(count) if d.is_live(at + i)]
            runs = joined(sorted(runs))
        dedup_map.put(tx.batch, runs)
        if d.earliest >= router.pruned_at + _PRUNE_SEQS:
            router.dedup_from = dedup_map.prune(tx.batch, router.dedup_from, d.earliest)
            router.pruned_at = d.earliest
