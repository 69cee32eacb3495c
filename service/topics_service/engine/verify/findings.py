"""Findings of a check."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
from msgspec import Struct

from topics_service.engine.deletes import Deletes
from topics_service.engine.errors import TopicsError
from topics_service.engine.lives import Ceiling, Lives
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.topic import TopicRow
from topics_service.storage.block import CorruptBlockError
from topics_service.storage.store import Family, StoreError
from topics_service.storage.verify import Damage, Source

Kind = Literal["unreadable", "damaged", "missing", "mismatch", "orphan"]
DECODING = (TopicsError, CorruptBlockError, StoreError, ValueError, LookupError, struct.error, msgspec.MsgspecError)
"""Errors of a decoder for an invalid row."""


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong.

    `unreadable`: a file is damaged. `damaged`: a row can be read, and has changed. `missing`: something
    that another row speaks of is not there. `mismatch`: two rows contradict each other. `orphan`: a row belongs to
    nothing. Topic, partition, seqs (inclusive), table and file are given where they are known.
    """

    kind: Kind
    text: str
    topic: str | None = None
    partition: int | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    table: str | None = None
    file: str | None = None


class Part(Struct, kw_only=True):
    """One log, according to the catalog; `s` is None when its state row is not there or damaged."""

    log_id: int
    number: int
    partition: int
    row: TopicRow
    s: Snapshot | None = None
    certain: bool = True
    """Return whether all deletes and gaps of it could be read."""
    lost_to: int = 0
    """The end of the tail that it has lost, whether its state row says so already or not; 0 for none."""

    @property
    def settled(self) -> Snapshot | None:
        """The state, if it was read whole, and the rows on disk are all there is: none is, or was, in memory only."""
        s = self.s
        return (
            None if s is None or not self.certain or s.volatile_from or self.row.config.durability == "ephemeral" else s
        )

    @property
    def head(self) -> int:
        """The head that a start finds; 0 without a state."""
        return 0 if self.s is None else max(self.s.head, self.lost_to)

    def take_ceiling(self, ceiling: Ceiling, counted: Lives) -> None:
        """Note the ceiling of its log."""
        if counted.take(self.row.config.durability, ceiling):
            self.lost_to = ceiling.seq

    def let_go(self) -> None:
        """Forget deletes and gaps, which take memory."""
        if self.s is not None:
            self.s.deletes, self.s.gaps = Deletes(), ()


class Findings:
    """Reports problems as they are found, and reads past unreadable rows."""

    def __init__(self, source: Source, report: Callable[[Problem], None]) -> None:
        self.source = source
        self.reported: set[Damage] = set()
        self._report = report
        self.holes = 0
        """Number of unreadable rows that were passed over."""
        self.topics: dict[int, TopicRow] = {}
        """The topics by number, once the catalog was read: also those that have no log here."""
        self._reported_damage: set[tuple[Family, str]] = set()

    def report(
        self,
        kind: Kind,
        text: str,
        part: Part | None = None,
        first: int | None = None,
        last: int | None = None,
        file: str | None = None,
        table: str | None = None,
    ) -> None:
        """Report one."""
        topic, partition = (None, None) if part is None else (part.row.name, part.partition)
        self._report(
            Problem(
                kind=kind, text=text, topic=topic, partition=partition, first_seq=first, last_seq=last, table=table,
                file=file,
            )
        )  # fmt: skip

    def rows(self, family: Family, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The rows with start <= key < stop that can be read; the others are reported."""
        for found in self.source.rows(family, start):
            if isinstance(found, Damage):
                if stop is None or found.after is None or found.after < stop:
                    self.holes += 1
                    self.unreadable(family, found)
                continue
            if stop is not None and found[0] >= stop:
                return
            yield found

    def unreadable(
        self,
        family: Family,
        damage: Damage,
        part: Part | None = None,
        first: int | None = None,
        last: int | None = None,
        table: str | None = None,
        where: str = "",
    ) -> None:
        """Report a stretch of unreadable rows; `where` follows what they are."""
        if part is None and (family, damage.why) in self._reported_damage:
            return
        self._reported_damage.add((family, damage.why))
        self.reported.add(damage)
        text = f"{_NAMES[family]}{where} can't be read: {damage.why}"
        self.report("unreadable", text, part, first, last, damage.file, table)

    @contextmanager
    def decoding(self, what: str, part: Part | None = None, *, hole: bool = False) -> Iterator[None]:
        """Report errors of a decoder within; with `hole` it counts as one."""
        try:
            yield
        except DECODING as error:
            self.holes += hole
            self.report("damaged", f"{what} is damaged: {error}", part)


_NAMES = {
    Family.META: "facts about the directory",
    Family.TOPICS: "catalog rows",
    Family.LOGS: "states of logs",
    Family.CEILINGS: "ceilings of logs",
    Family.BLOCKS: "records",
    Family.TAGS: "rows of the tag index",
    Family.DELETES: "delete bitmaps",
    Family.GAPS: "gaps",
    Family.IDEMPOTENCY: "idempotency keys",
    Family.IDEMPOTENCY_EXPIRY: "expiries of idempotency keys",
    Family.ROUTERS: "routers",
    Family.ROUTER_COPIES: "evidence of routers' copies",
    Family.LEASES: "leases",
    Family.JOBS: "delays and priorities of jobs",
    Family.PRODUCERS: "Kafka producers",
    Family.GROUPS: "consumer groups",
    Family.POSITIONS: "positions of consumer groups",
    Family.ROWS: "rows of tables",
    Family.INDEXES: "entries of indexes",
    Family.TABLES: "definitions of tables",
}
