"""A stretch of a log on its way to routers in another shard: its records, and what became of the others."""

from typing import Final

from msgspec import Struct

from topics_service.engine.blocks import LogBlocks, UnreadableError
from topics_service.engine.model import Slice
from topics_service.engine.snapshot import Snapshot

BYTES: Final = 256 << 10  # of the records, but always one of them
_RECORDS: Final = 4096
_PIECES: Final = 256  # blocks and ranges

Range = tuple[int, int]  # first and last seq


class SourceIdentity(Struct, frozen=True, array_like=True):
    """The life of a topic in another shard that a router copies from."""

    topic_id: str
    epoch: int


class SourceEnd(Struct, frozen=True, kw_only=True):
    """A topic in another shard that is to be a source, and what it held a moment ago."""

    identity: SourceIdentity
    earliest: int
    head: int


class PullRequest(Struct, frozen=True, kw_only=True):
    """Ask for the stretches of a topic's log behind the seq `after`."""

    topic: str
    topic_id: str
    after: int


class Stretch(Struct, kw_only=True):
    """All that became of the seqs `after + 1` to `to` of a log whose head was `head`.

    `slices` hold the live records, in order, and no others; `lost` are ranges of records that were lost, `dead` those
    of deleted ones. `hops` are runs of copies: first seq, one past the last, how often they were forwarded. `upstream`
    are the topics that the log's topic gets copies from, directly and indirectly; None if they are those of the stretch
    before.
    """

    after: int
    to: int
    head: int
    slices: list[Slice]
    lost: list[Range]
    dead: list[Range]
    hops: list[tuple[int, int, int]] = []
    upstream: list[str] | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of its records."""
        return sum(each.block.sizes_upto(each.stop) - each.block.sizes_upto(each.start) for each in self.slices)


def read(s: Snapshot, blocks: LogBlocks, after: int) -> Stretch:
    """The stretch behind `after`, up to the size of one. Raises UnreadableError if not even one record can be read."""
    stretch = Stretch(after=after, to=after, head=s.head, slices=[], lost=[], dead=[])
    at, room = after + 1, BYTES
    while at <= s.head and at - after <= _RECORDS and _pieces(stretch) < _PIECES:
        lost_to = loss_behind(s, at - 1, s.head)
        if lost_to >= at:
            stretch.lost.append((at, lost_to))
            at = lost_to + 1
            continue
        gap = s.next_gap(at)
        end = s.head if gap is None else gap.start - 1
        live = min(s.first_live(max(at, s.earliest)), end + 1)
        if live > at:
            stretch.dead.append((at, live - 1))
            at = live
            continue
        try:
            block = blocks.records(at, scan=True)
        except UnreadableError:
            if at == after + 1:
                raise
            break  # what is before it comes first
        start = at - block.base_seq
        stop = s.deletes.first_marked(at, min(block.end_seq, end + 1)) - block.base_seq
        if block.sizes_upto(stop) - block.sizes_upto(start) > room:
            stop = min(stop, max(block.fit(start, room), start if stretch.slices else start + 1))
            if stop == start:
                break
        stretch.slices.append(Slice(block, start, stop))
        room -= block.sizes_upto(stop) - block.sizes_upto(start)
        at = block.base_seq + stop
    stretch.to = at - 1
    return stretch


def loss_behind(s: Snapshot, cursor: int, end: int) -> int:
    """Return the last seq, up to `end`, of the loss that begins right after `cursor`; `cursor` if there is none."""
    at = cursor + 1
    while at <= end:
        gap = s.gap_at(at)
        if at < s.evict_floor:
            at = s.evict_floor
        elif gap is not None:
            at = gap.stop + 1
        else:
            break
    return min(at - 1, end)


def _pieces(stretch: Stretch) -> int:
    return len(stretch.slices) + len(stretch.lost) + len(stretch.dead)
