"""Actions of a repair, which can be shown before they are applied."""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol

from msgspec import Struct

from topics_service.engine.verify.findings import Part
from topics_service.storage import keys
from topics_service.storage.store import Family
from topics_service.storage.verify import Damage, Source

Kind = Literal["gap", "derived", "dropped", "lost"]


class Action(Struct, frozen=True, kw_only=True):
    """One change of the written data.

    `gap`: seqs (inclusive) become an explicit loss, reason `cap`. `derived`: a row is rebuilt from others.
    `dropped`: rows are left out; their content no longer counts. `lost`: can't be repaired here.
    """

    kind: Kind
    text: str
    topic: str | None = None
    partition: int | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    table: str | None = None


class Uncertain(Struct, frozen=True, kw_only=True):
    """Uncertainty about the last writes: nothing is missing by default.

    `jump`: number of seqs after a head that lost writes may have used. `heads`: the heads of these logs, known from a
    later write. `one_table`: all that is lost is one table, so that of a log's state and its blocks one is as it was.
    `revived`: in these families rows can be back that were removed by their range.
    """

    jump: int = 0
    heads: Mapping[int, int] = {}
    one_table: bool = False
    revived: frozenset[Family] = frozenset()


class Sink(Protocol):
    """The destination of saved rows."""

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Take one row; those of a family come in any order, and each once."""
        ...


class Rows:
    """Reads rows past damage, and reports actions."""

    def __init__(self, source: Source, sink: Sink, report: Callable[[Action], None]) -> None:
        self.source = source
        self.put = sink.put
        self.batch = sink
        self.holes: dict[Family, list[Damage]] = {}
        """The stretches that could not be read, by family."""
        self._report = report

    def family(self, family: Family) -> Iterator[tuple[bytes, bytes]]:
        """Every row that can be read."""
        holes = self.holes[family] = []
        for found in self.source.rows(family):
            if isinstance(found, Damage):
                holes.append(found)
            else:
                yield found

    def report(
        self,
        kind: Kind,
        text: str,
        part: Part | None = None,
        first: int | None = None,
        last: int | None = None,
        table: str | None = None,
    ) -> None:
        """Report one."""
        topic, partition = (None, None) if part is None else (part.row.name, part.partition)
        self._report(
            Action(
                kind=kind, text=text, topic=topic, partition=partition, first_seq=first, last_seq=last, table=table
            )
        )  # fmt: skip


def log_of(key: bytes) -> int:
    """The log id that the key of a row begins with; 0 if it is too short."""
    return keys.read_u64(key) if len(key) >= 8 else 0
