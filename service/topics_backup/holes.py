"""Holes in an archived log: missing pieces that were archived or that a backup needs.

Every piece behind the oldest backup of a line has to be there, from the first to the one that was archived last: a
prune removes none of them. Log data that the server removed before it was archived is reported when found out, and is
not damage.
"""

from collections.abc import Iterator, Sequence

from topics_backup.log import Piece, Until, chains, shown
from topics_backup.manifest import LogPoint


def find(line: str, pieces: Sequence[Piece], until: Until | None, points: Sequence[LogPoint]) -> Iterator[str]:
    """Describe each hole. `points` are the positions of the line's backups."""
    oldest = min(points, key=lambda point: (point.number, point.next_seq), default=None)
    needed = [piece for piece in pieces if oldest is None or piece.number >= oldest.number]
    known = set() if until is None else set(until.holes)
    at = None if oldest is None else oldest.next_seq
    last: Piece | None = None
    chained = chains(needed)
    for number in sorted({piece.number for piece in needed}):
        reached = 0
        for piece in chained.get(number, ()):
            if last is not None or at is not None:
                wanted = last.next_seq if last is not None else at
                follows = wanted == piece.seq if last is not None else wanted is not None and wanted >= piece.seq
                if not follows and (wanted, piece.seq) not in known:
                    yield _between(line, last, piece, wanted)
            last, reached = piece, piece.stop
        beyond = [piece for piece in needed if piece.number == number and piece.stop > reached]
        if beyond:
            first = min(beyond, key=lambda piece: piece.start)
            yield f"{_of(line)} is missing from byte {reached} of its file {number} on, before {first.key}"
    stop = last.next_seq if last is not None else at
    if until is not None and stop is not None and stop < until.next_seq:
        behind = "its newest backup" if last is None else last.key
        yield (
            f"{_of(line)} ends with row {stop - 1}, behind {behind}, and had been archived to row {until.next_seq - 1}"
            f" ({shown(until.ms)})"
        )


def _between(line: str, last: Piece | None, piece: Piece, wanted: int | None) -> str:
    before = "its oldest backup" if last is None else last.key
    since = "" if last is None else f"; writes from {shown(last.last_ms)} to {shown(piece.min_ms)} are lost"
    return f"{_of(line)} has row {piece.seq} in place of {wanted} between {before} and {piece.key}{since}"


def _of(line: str) -> str:
    return f"the archived log {line}"
