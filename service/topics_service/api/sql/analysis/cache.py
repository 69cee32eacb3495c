"""Arrow of tables, kept between queries: what was read once, and the rows that changed since.

A table that a query reads for the first time is read as a whole. From then on each commit notes the keys that it
changed, and the next query reads these rows again: they are laid over the rows of before, which stay as they are. When
a tenth of a table has changed, both are merged. The least recently used tables go when all take too much. A table that
is too large to be kept beside the others of its query is streamed, again for each query.
"""

import asyncio
import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

from topics_service.api.sql.analysis import columns
from topics_service.api.sql.analysis.stream import Stream, begun
from topics_service.engine.tables.model import Table
from topics_service.engine.tables.runtime import TableRuntime
from topics_service.engine.tables.tables import Moment, Tables
from topics_service.engine.tables.transaction import TableTransaction
from topics_service.engine.tables.types import Value
from topics_service.statistics import CacheStatistics
from topics_service.storage import keys
from topics_service.storage.store import Family

ROWS_A_SLICE: Final = 128
"""Rows that are read before others have a turn: less than a millisecond."""
MAX_AT_ONCE: Final = 256
"""Changed rows that are read again without a turn for others."""
MAX_SLICES: Final = 64
"""Gaps in the rows of before with which these are not copied."""
MIN_MERGED: Final = 1024
LARGE_SECONDS: Final = 300.0
"""The time for which a table that was too large to be kept is taken to be so."""
_CHANGE_BYTES: Final = 300

Steps = Generator[None, None, Any]
Rows = dict[bytes, Sequence[Value] | None]


class Kept:
    """One table."""

    def __init__(self, runtime: TableRuntime) -> None:
        self.runtime = runtime
        self.columns = [(column.id, column.type) for column in runtime.table.columns]
        self.base: Any = None
        self.changed: Rows = {}
        """The rows that differ from those of `base`; None for one that is gone."""
        self.unread: set[bytes] = set()
        """Keys that were written since they were read."""
        self.current: Any = None
        """The rows as the last query had them; None after a change."""
        self.is_busy = True
        self.is_dropped = False

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        base = 0 if self.base is None else self.base.nbytes
        if self.current is not None and len(self.changed) > MAX_SLICES:
            base += self.current.nbytes
        return int(base) + _CHANGE_BYTES * (len(self.changed) + len(self.unread))

    @property
    def most(self) -> int:
        """Changes beyond which rows are merged."""
        return max(MIN_MERGED, 0 if self.base is None else self.base.num_rows // 10)


class _TooLargeError(Exception):
    """A table turned out too large to be kept beside the others of its query."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ArrowCache:
    """The Arrow of the tables of one engine. All calls are on the event loop; big copies happen in threads."""

    def __init__(self, tables: Tables, max_bytes: int, statistics: CacheStatistics) -> None:
        self.tables = tables
        self.max_bytes = max_bytes
        self.statistics = statistics
        self._kept: OrderedDict[int, Kept] = OrderedDict()
        self._large: dict[int, float] = {}
        """Tables too large to be kept, and when to try again."""
        self._held: Counter[int] = Counter()
        self._holding: dict[int, Any] = {}
        """The Arrow that running queries hold, by its id."""
        self._preparing = asyncio.Lock()
        tables.catalog.on_changed.append(self._forget)

    @property
    def nbytes(self) -> int:
        """The bytes of all tables, and of those that were dropped since while queries hold them."""
        known = {id(kept.base) for kept in self._kept.values()}
        held = sum(table.nbytes for at, table in self._holding.items() if at not in known)
        return int(held) + sum(kept.nbytes for kept in self._kept.values())

    @contextmanager
    def holding(self, taken: Mapping[int, Any]) -> Iterator[None]:
        """Count tables that were taken just now, until their query is done."""
        held = []
        for number, table in taken.items():
            kept = self._kept.get(number)
            held.append(kept.base if kept is not None and kept.current is table else table)
        for each in held:
            self._held[id(each)] += 1
            self._holding[id(each)] = each
        try:
            yield
        finally:
            for each in held:
                self._held[id(each)] -= 1
                if not self._held[id(each)]:
                    del self._held[id(each)], self._holding[id(each)]

    def large(self) -> list[str]:
        """The tables that are known to be too large to be kept."""
        names = (self.tables.table_by_number(number) for number in self._large if self._is_large(number))
        return [table.table_id for table in names if table is not None]

    def _is_large(self, number: int) -> bool:
        return self._large.get(number, 0.0) > time.monotonic()

    def kept(self) -> Iterator[Kept]:
        """The tables."""
        return iter(self._kept.values())

    def close(self) -> None:
        """Forget everything, and take part in commits no more."""
        self.tables.catalog.on_changed.remove(self._forget)
        self._forget([*self._kept, *self._large])

    async def take(
        self,
        wanted: Sequence[Table],
        run: Callable[[Steps], Any],
        others: Callable[[], Steps],
        transaction: TableTransaction | None = None,
    ) -> dict[int, Any]:
        """The rows of tables, all of one moment, by the numbers of the tables; as a transaction sees them, if given,
        which is pinned to the moment.

        `run` runs steps with turns for others between; `others` are steps that belong to the same moment.
        Raises `transaction_error` (40001) for tables of before a definition.
        """
        if transaction is not None:
            return await self._in_turn(wanted, run, others, transaction)
        runtimes = [self.tables.for_reading(table) for table in wanted]
        ready = [self._ready(runtime) for runtime in runtimes]
        unread = sum(len(kept.unread) for kept in ready if kept is not None)
        if None not in ready and unread <= MAX_AT_ONCE:
            moment = self.tables.moment(wanted) if unread else None
            taken = {runtime.table.number: self._at_once(runtime, moment) for runtime in runtimes}
            if all(each is not None for each in taken.values()):
                await run(others())
                return taken
        return await self._in_turn(wanted, run, others, None)

    async def _in_turn(
        self,
        wanted: Sequence[Table],
        run: Callable[[Steps], Any],
        others: Callable[[], Steps],
        transaction: TableTransaction | None,
    ) -> dict[int, Any]:
        streamed: set[int] = set()
        async with self._preparing:
            while True:
                find = self.tables.for_reading if transaction is None else self.tables.runtime
                runtimes = [find(table) for table in wanted]
                try:
                    return await self._prepared(runtimes, run, others, transaction, streamed)
                except _TooLargeError as error:  # a table less is kept each time
                    streamed.add(error.number)

    # ------------------------------------------------------------------------------------------ at one moment

    def _ready(self, runtime: TableRuntime) -> Kept | None:
        kept = self._kept.get(runtime.table.number)
        return None if kept is None or kept.is_busy or kept.runtime is not runtime else kept

    def _at_once(self, runtime: TableRuntime, moment: Moment | None) -> Any:
        """The rows of a table of which few changed; None if it takes too long."""
        kept = self._ready(runtime)
        assert kept is not None, "it was ready"
        self._kept.move_to_end(runtime.table.number)
        if kept.unread and moment is not None:
            again = self._again(kept, moment)
            reader = moment.reader(runtime.table)
            for key in again:
                self._read(kept, key, reader.get(Family.ROWS, key))
        if kept.current is None:
            if len(kept.changed) > MAX_SLICES:
                return None
            kept.current = _overlaid(kept, kept.changed)
        self.statistics.hits += 1
        return kept.current

    def _again(self, kept: Kept, moment: Moment) -> set[bytes]:
        """The keys to read now; those whose commit is not visible yet have to be read later as well."""
        again, kept.unread = kept.unread, set(moment.waiting(kept.runtime.table))
        return again

    def _read(self, kept: Kept, key: bytes, stored: bytes | None) -> None:
        kept.changed[key] = None if stored is None else kept.runtime.read(stored)
        kept.current = None

    async def _prepared(
        self,
        runtimes: Sequence[TableRuntime],
        run: Callable[[Steps], Any],
        others: Callable[[], Steps],
        transaction: TableTransaction | None,
        streamed: set[int],
    ) -> dict[int, Any]:
        moment = self.tables.moment([runtime.table for runtime in runtimes])
        if transaction is not None:
            transaction.pin()
        work: list[tuple[Kept, set[bytes]]] = []
        scans: dict[int, Iterator[tuple[bytes, bytes]]] = {}
        taken: dict[int, Any] = {}
        for runtime in runtimes:
            if runtime.table.number in streamed or self._is_large(runtime.table.number):
                reader = moment.reader(runtime.table) if transaction is None else transaction.reader(runtime.table)
                taken[runtime.table.number] = Stream(runtime, reader)
                continue
            kept = self._ready(runtime)
            again: set[bytes] = set()
            if kept is None:
                self._drop(runtime.table.number)
                kept = Kept(runtime)
                self._keep(kept)
                kept.unread.update(moment.waiting(runtime.table))
                reader = moment.reader(runtime.table)
                scans[runtime.table.number] = begun(reader.scan(Family.ROWS, *keys.prefix_range(runtime.prefix)))
                self.statistics.misses += 1
            else:
                again = self._again(kept, moment)
                self.statistics.hits += 1
            kept.is_busy = True
            work.append((kept, again))
        done = False
        try:
            await run(others())
            for kept, again in work:
                if kept.base is None:
                    parts = await run(self._whole(kept, scans[kept.runtime.table.number], work))
                    kept.base = await asyncio.to_thread(_one, kept.columns, parts)
                else:
                    await run(self._rows(kept, moment, again))
                if len(kept.changed) > kept.most:
                    kept.base = await asyncio.to_thread(_merged, kept.columns, kept.base, dict(kept.changed))
                    kept.changed = {}
                own = {} if transaction is None else await run(_own(kept, moment, transaction))
                if own:
                    changed = {**kept.changed, **own}
                    taken[kept.runtime.table.number] = await asyncio.to_thread(_overlaid, kept, changed)
                    continue
                if kept.current is None:
                    kept.current = await asyncio.to_thread(_overlaid, kept, kept.changed)
                taken[kept.runtime.table.number] = kept.current
            done = True
            return taken
        finally:
            for kept, again in work:
                kept.is_busy = False
                number = kept.runtime.table.number
                if done or self._kept.get(number) is not kept:
                    continue
                if kept.base is None:
                    self._drop(number)
                else:
                    kept.unread.update(again)  # some may have been read: once more does no harm
            self._evict({kept.runtime.table.number for kept, _ in work})

    def _whole(self, kept: Kept, scan: Iterator[tuple[bytes, bytes]], work: Sequence[tuple[Kept, set[bytes]]]) -> Steps:
        """Read all rows of a table."""
        read = kept.runtime.read
        others = sum(each.nbytes for each, _ in work if each is not kept)
        parts: list[Any] = []
        rows: list[Sequence[Value]] = []
        found: list[bytes] = []
        nbytes = 0
        for count, (key, stored) in enumerate(scan, 1):
            rows.append(read(stored))
            found.append(key)
            if not count % ROWS_A_SLICE:
                yield
            if len(rows) == columns.ROWS_A_CHUNK:
                parts.append(columns.chunk(kept.columns, rows, found))
                nbytes += parts[-1].nbytes
                if nbytes + others > self.max_bytes:
                    number = kept.runtime.table.number
                    if nbytes > self.max_bytes:
                        self._large[number] = time.monotonic() + LARGE_SECONDS
                    raise _TooLargeError(number)
                rows, found = [], []
                yield
        parts.append(columns.chunk(kept.columns, rows, found))
        return parts

    def _rows(self, kept: Kept, moment: Moment, again: Iterable[bytes]) -> Steps:
        """Read some rows of a table again."""
        reader = moment.reader(kept.runtime.table)
        for count, key in enumerate(again, 1):
            self._read(kept, key, reader.get(Family.ROWS, key))
            if not count % ROWS_A_SLICE:
                yield

    # ---------------------------------------------------------------------------------------------- upkeep

    def _keep(self, kept: Kept) -> None:
        self._kept[kept.runtime.table.number] = kept
        self.tables.on_rows = self._changed

    def _drop(self, number: int) -> None:
        if self._kept.pop(number, None) is not None and not self._kept:
            self.tables.on_rows = None

    def _changed(self, numbers: Iterable[int], rows: Mapping[bytes, Any]) -> None:
        """Note the keys of a commit."""
        met = [kept for number in numbers if (kept := self._kept.get(number)) is not None]
        for kept in met:
            prefix = kept.runtime.prefix
            kept.unread.update(key for key in rows if key.startswith(prefix))
            if len(kept.unread) > 10 * kept.most:
                self._drop(kept.runtime.table.number)

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._large.pop(number, None)
            self._drop(number)

    def _evict(self, used: set[int]) -> None:
        """Drop tables until the rest fits, those of the last query at the end."""
        total = self.nbytes
        for number in sorted(self._kept, key=used.__contains__):
            kept = self._kept[number]
            if total <= self.max_bytes:
                return
            if not kept.is_busy:
                total -= kept.nbytes
                self._drop(number)


def _one(given: columns.Columns, parts: Sequence[Any]) -> Any:
    return columns.joined(given, parts).combine_chunks()


def _own(kept: Kept, moment: Moment, transaction: TableTransaction) -> Steps:
    """The rows that a transaction sees otherwise: those that it changed, and those whose commit is not visible yet."""
    table = kept.runtime.table
    reader = transaction.reader(table)
    found: Rows = {}
    for count, key in enumerate(chain(moment.waiting(table), transaction.own_keys(table)), 1):
        stored = reader.get(Family.ROWS, key)
        found[key] = None if stored is None else kept.runtime.read(stored)
        if not count % ROWS_A_SLICE:
            yield
    return found


def _overlaid(kept: Kept, changed: Rows) -> Any:
    """The rows of before without those that changed, and behind them these."""
    base = kept.base
    without = base.drop_columns([columns.KEY])
    if not changed:
        return without
    places = sorted(_places(base.column(columns.KEY), changed))
    parts = []
    start = 0
    for place in places:
        if place > start:
            parts.append(without.slice(start, place - start))
        start = place + 1
    if start < base.num_rows:
        parts.append(without.slice(start))
    parts.append(columns.chunk(kept.columns, [row for row in changed.values() if row is not None]))
    whole = columns.joined(kept.columns, parts)
    return whole.combine_chunks() if len(places) > MAX_SLICES else whole


def _places(known: Any, changed: Iterable[bytes]) -> Iterable[int]:
    """The places of keys among those of the rows of before, which are in order."""
    count = len(known)
    for key in changed:
        place = bisect_left(range(count), key, key=lambda at: known[at].as_py())
        if place < count and known[place].as_py() == key:
            yield place


def _merged(given: columns.Columns, base: Any, changed: Rows) -> Any:
    """The rows of before and those that changed as one, in the order of their keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    gone = pa.array(list(changed), pa.binary())
    left = base.filter(pc.invert(pc.is_in(base.column(columns.KEY), value_set=gone)))
    rows = {key: row for key, row in changed.items() if row is not None}
    whole = columns.joined(given, [left, columns.chunk(given, list(rows.values()), list(rows))])
    return whole.sort_by(columns.KEY).combine_chunks()
