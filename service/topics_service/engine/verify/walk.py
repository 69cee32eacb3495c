"""The records of a store, log by log, for those that read past damage."""

from collections import deque
from collections.abc import Callable, Collection
from itertools import chain
from typing import Final, Protocol

from topics_service.engine.deletes import CHUNK_BITS
from topics_service.engine.snapshot import Snapshot
from topics_service.storage import keys
from topics_service.storage.block import StoredBlock
from topics_service.storage.store import Family
from topics_service.storage.verify import Damage, Source

END: Final = (1 << 64) - 1  # no log has this id


class LogVisitor(Protocol):
    """Takes the blocks of one log, in order of their seqs."""

    def row(self, key: bytes, value: bytes) -> None:
        """The next block."""

    def damage(self, damage: Damage) -> None:
        """Rows here can't be read; some of them may be of this log."""

    def finish(self) -> None:
        """There are no more."""


def walk(
    source: Source,
    log_ids: Collection[int],
    begin: Callable[[int], LogVisitor | None],
    strange: Callable[[int], None],
) -> list[Damage]:
    """Show the blocks of each log to its visitor, log by log in order of their ids; returns the damage met.

    `begin` is called for each of `log_ids`, also for one without blocks, and returns None to pass over it. A visitor
    also sees damage in front of its first row. `strange` is called once for each log that has blocks and no id here.
    """
    damages: list[Damage] = []
    waiting = deque(sorted(log_ids))
    visitor: LogVisitor | None = None
    current = unknown = -1
    for found in chain(source.rows(Family.BLOCKS), (None,)):
        damage = found if isinstance(found, Damage) else None
        if damage is not None:
            damages.append(damage)
            if visitor is not None:
                visitor.damage(damage)
        key = None if found is None else found[0] if damage is None else damage.before
        log_id = END if key is None else keys.read_u64(key)
        while visitor is None or current != log_id:
            if visitor is not None:
                visitor.finish()
                visitor = None
            if not waiting or waiting[0] > log_id:
                break
            current = waiting.popleft()
            visitor = begin(current)
            if visitor is not None and damage is not None:
                visitor.damage(damage)
        if found is None or isinstance(found, Damage):
            continue
        if visitor is not None:
            visitor.row(*found)
        elif log_id not in log_ids and log_id != unknown:
            unknown = log_id
            strange(log_id)
    return damages


class LiveBytes:
    """Bytes of the live records of a log, and of the deleted ones by bitmap, summed block by block."""

    def __init__(self, s: Snapshot) -> None:
        self.live = 0
        self.dead: dict[int, int] = {}
        self._s = s

    def add(self, block: StoredBlock, stop: int) -> None:
        """Add the records of a block below `stop`."""
        s, base = self._s, block.base_seq
        low, high = max(base, s.earliest), min(block.end_seq, stop)
        if low >= high:
            return
        self.live += block.sizes_upto(high - base) - block.sizes_upto(low - base)
        for seq in s.deletes.between(low, high):
            size = block.size_at(seq - base)
            self.live -= size
            self.dead[seq >> CHUNK_BITS] = self.dead.get(seq >> CHUNK_BITS, 0) + size
