"""Hop counts of forwarded records, in memory only: they end a cycle of routers (docs/contract.md, 7.5)."""

from bisect import bisect_right
from typing import Final

MAX_HOPS: Final = 8
MAX_RUNS: Final = 1 << 13
_MAX_RECENT_RUNS: Final = 1 << 10


class Hops:
    """The hop counts of one log's copies, as runs of seqs. A record in no run was written by a client: 0 hops."""

    __slots__ = ("_runs", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._runs: list[tuple[int, int]] = []  # (stop, hops) of each

    @property
    def is_full(self) -> bool:
        """Return whether records of clients should not join the cycle for now (see Forwarding.step).

        Copies on the cycle still advance, up to `MAX_HOPS` times as many runs.
        """
        return len(self._starts) >= MAX_RUNS

    def at(self, seq: int) -> tuple[int, int | None]:
        """Return the hops of `seq`, and the first seq above it that may have others; None if none is known."""
        i = bisect_right(self._starts, seq) - 1
        if i >= 0 and seq < self._runs[i][0]:
            stop, hops = self._runs[i]
            return hops, stop
        following = self._starts[i + 1] if i + 1 < len(self._starts) else None
        return 0, following

    def add(self, start: int, count: int, hops: int) -> None:
        """Note that `count` seqs from `start` on, above all known ones, are copies with this number of hops."""
        stop = start + count
        if self._runs and self._runs[-1] == (start, hops):
            self._runs[-1] = (stop, hops)
            return
        self._starts.append(start)
        self._runs.append((stop, hops))

    def runs(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """The runs within `first` to `last`: first seq, one past the last, hops."""
        found: list[tuple[int, int, int]] = []
        at = max(0, bisect_right(self._starts, first) - 1)
        for start, (stop, hops) in zip(self._starts[at:], self._runs[at:], strict=True):
            if start > last:
                break
            if stop > first:
                found.append((max(start, first), min(stop, last + 1), hops))
        return found

    def forget_below(self, seq: int) -> None:
        """Forget seqs below this one."""
        i = bisect_right(self._starts, seq) - 1
        if i >= 0 and self._runs[i][0] <= seq:
            i += 1
        if i > 0:
            del self._starts[:i]
            del self._runs[:i]


class RecentHops(Hops):
    """The hops of a log that may be on a cycle over several shards, which no shard sees as a whole.

    It keeps the newest runs only, so that it never makes records wait. The counts of a cycle that is behind by
    more than these begin again.
    """

    __slots__ = ()

    @property
    def is_full(self) -> bool:
        """See Hops."""
        return False

    def add(self, start: int, count: int, hops: int) -> None:
        """See Hops."""
        super().add(start, count, hops)
        if len(self._starts) > _MAX_RECENT_RUNS:
            del self._starts[: _MAX_RECENT_RUNS // 2]
            del self._runs[: _MAX_RECENT_RUNS // 2]
