"""The archived write-ahead log of a target: pieces of log files, and the runs they form without a hole.

A piece is a file `log/<line>/<fields of Piece>.wal`, so a list of names suffices. It ends behind a batch.
"""

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from topics_backup.errors import AbsentError, LogError
from topics_backup.manifest import LogPoint
from topics_backup.target import Target
from topics_service.storage import checksummed

LOG: Final = "log/"
PIECE_BYTES: Final = 16 << 20
_NAME: Final = re.compile(
    r"log/([A-Za-z0-9-]{1,64})/(\d{12})-(\d{12})-(\d{12})-(\d{18})-(\d{18})-(\d{14})-(\d{14})-([0-9a-f]{64})\.wal",
    re.ASCII,
)
_UNTIL: Final = "until.json"


class Piece(NamedTuple):
    """Bytes `start` to `stop` of the log file `number` of a line: the rows from `seq` on and before `next_seq`.

    `min_ms` is the earliest time of a batch in it, `last_ms` that of the last.
    """

    line: str
    number: int
    start: int
    stop: int
    seq: int
    next_seq: int
    min_ms: int
    last_ms: int
    sha256: str

    @property
    def key(self) -> str:
        """The name in the target."""
        return (
            f"{LOG}{self.line}/{self.number:012}-{self.start:012}-{self.stop:012}-{self.seq:018}-{self.next_seq:018}-"
            f"{self.min_ms:014}-{self.last_ms:014}-{self.sha256}.wal"
        )

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.stop - self.start


class Run(NamedTuple):
    """Consecutive pieces of a line, at least one. `until_ms` is the time up to which nothing is missing."""

    pieces: list[Piece]
    until_ms: int

    @property
    def line(self) -> str:
        """The line that they belong to."""
        return self.pieces[0].line

    def behind(self, point: LogPoint) -> list[Piece] | None:
        """Return the pieces that a database at `point` needs to reach the end of the run, from the beginning of its log
        file on; None if the run does not continue from there."""
        if self.line != point.line or not self.pieces[0].seq <= point.next_seq <= self.pieces[-1].next_seq:
            return None
        needed = [piece for piece in self.pieces if piece.number >= point.number]
        if not needed:
            return []
        return needed if needed[0].start == 0 and needed[0].seq <= point.next_seq else None


class Until(msgspec.Struct):
    """The archived extent of a line: everything written until `ms`, up to the row `next_seq`. `holes` are ranges of
    rows whose log the server had removed before."""

    ms: int
    next_seq: int
    holes: list[tuple[int, int]] = []


def piece_of(name: str) -> Piece | None:
    """Return the piece with this name; None if it is not the name of a piece."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    line, *numbers, sha256 = found.groups()
    number, start, stop, seq, next_seq, min_ms, last_ms = map(int, numbers)
    return Piece(line, number, start, stop, seq, next_seq, min_ms, last_ms, sha256)


def lines(target: Target) -> dict[str, list[Piece]]:
    """Return all pieces by line."""
    found: dict[str, list[Piece]] = {}
    for entry in target.list(LOG):
        piece = piece_of(entry.name)
        if piece is not None:
            found.setdefault(piece.line, []).append(piece)
    return found


def chains(pieces: Iterable[Piece]) -> dict[int, list[Piece]]:
    """For each log file, in order, the pieces that lead from its beginning as far as there are any.

    Concurrent archivers leave pieces that overlap: one path through them is taken.
    """
    by_number: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_number.setdefault(piece.number, []).append(piece)
    return {number: chain for number in sorted(by_number) if (chain := _chain(by_number[number]))}


def _chain(pieces: list[Piece]) -> list[Piece]:
    to: dict[int, Piece | None] = {0: None}
    for piece in sorted(pieces, key=lambda piece: (piece.start, piece.stop)):
        if piece.start in to:
            to.setdefault(piece.stop, piece)
    found, last = [], to[max(to)]
    while last is not None:
        found.append(last)
        last = to[last.start]
    return found[::-1]


def runs(target: Target) -> list[Run]:
    """Return all archived runs, oldest line first."""
    found: list[Run] = []
    for line, pieces in sorted(lines(target).items()):
        mine: list[list[Piece]] = []
        for chain in chains(pieces).values():
            for piece in chain:
                if mine and mine[-1][-1].next_seq == piece.seq:
                    mine[-1].append(piece)
                else:
                    mine.append([piece])
        found += [Run(each, each[-1].last_ms) for each in mine[:-1]]
        found += [Run(each, max(each[-1].last_ms, _until_ms(target, line, each[-1]))) for each in mine[-1:]]
    return found


def content(target: Target, piece: Piece) -> bytes:
    """Return the content of a piece. Raises LogError if it is missing or has changed."""
    parts, size = [], 0
    try:
        for part in target.read(piece.key):
            parts.append(part)
            size += len(part)
            if size > piece.size:
                break
    except AbsentError:
        raise LogError(piece.min_ms, f"{piece.key} is missing") from None
    data = b"".join(parts)
    if hashlib.sha256(data).hexdigest() != piece.sha256:
        raise LogError(piece.min_ms, f"{piece.key} has changed: its hash does not match")
    return data


def record_until(target: Target, line: str, until: Until) -> None:
    """Record how far a line is archived."""
    target.put(f"{LOG}{line}/{_UNTIL}", checksummed.encode(msgspec.json.encode(until)))


def until(target: Target, line: str) -> Until | None:
    """Return the last record of `record_until`; None if it is missing or unreadable."""
    try:
        data = checksummed.decode(b"".join(target.read(f"{LOG}{line}/{_UNTIL}")), _UNTIL)
        return msgspec.json.decode(data, type=Until)
    except (AbsentError, ValueError, RecursionError):
        return None


def _until_ms(target: Target, line: str, last: Piece) -> int:
    """Return the time up to which a line ending with this piece is archived; 0 if unknown, or if more followed."""
    said = until(target, line)
    return said.ms if said is not None and last.next_seq >= said.next_seq else 0


def shown(ms: int) -> str:
    """Format a time as `--at` accepts it."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
