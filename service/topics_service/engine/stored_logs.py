"""Logs as their rows have them, from which dormant topics open theirs."""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from topics_service.engine import lives, snapshot
from topics_service.engine.blocks import BlockCache
from topics_service.engine.deletes import Chunk, Deletes, decode_chunk
from topics_service.engine.errors import TopicsError
from topics_service.engine.lives import Ceiling, Lives, decode_ceiling
from topics_service.engine.log import Log
from topics_service.engine.model import Durability
from topics_service.engine.snapshot import Gap, Snapshot
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, Reader, Store, StoreOpenError

DAMAGE: Final = (TopicsError, ValueError, struct.error, msgspec.MsgspecError)
"""Errors of decoders."""

_NO_CEILING: Final = Ceiling()
_KNOWN_CEILINGS: Final = 4096  # most logs have the same few


class StoredLogs:
    """Rows of LOGS, CEILINGS, DELETES and GAPS, by log id, and the totals over all logs.

    A row that can't be decoded is noted in `damaged`, under family and key, until another takes its place.
    """

    def __init__(self) -> None:
        self.records = self.bytes = 0
        self.volatile: set[int] = set()
        """Logs that had records in memory only."""
        self.damaged: dict[tuple[Family, bytes], Exception] = {}
        self._states: dict[int, bytes] = {}
        self._ceilings: dict[int, Ceiling] = {}
        self._deletes: dict[int, dict[int, Chunk]] = {}
        self._gaps: dict[int, dict[int, Gap]] = {}
        self._recovered: dict[int, Snapshot] = {}
        self._known: dict[bytes, Ceiling] = {}
        self._puts: Final[Mapping[Family, Callable[[int, bytes, bytes], None]]] = {
            Family.LOGS: self._put_state,
            Family.CEILINGS: self._put_ceiling,
            Family.DELETES: self._put_deletes,
            Family.GAPS: self._put_gap,
        }
        self._writer: Writer
        self._memory: Store
        self._cache: BlockCache
        self._lives = Lives()

    def __contains__(self, log_id: int) -> bool:
        return log_id in self._states

    def __len__(self) -> int:
        return len(self._states)

    # --------------------------------------------------------------------- rows

    def put(self, family: Family, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take over rows that are new or have another value."""
        damaged, put, read_u64 = self.damaged, self._puts[family], keys.read_u64
        for key, value in rows:
            if damaged:
                damaged.pop((family, key), None)
            try:
                put(read_u64(key), key, value)
            except DAMAGE as error:
                damaged[family, key] = error

    def delete(self, family: Family, key: bytes) -> None:
        """Forget a row, if it is there."""
        self.damaged.pop((family, key), None)
        log_id = keys.read_u64(key)
        if family is Family.LOGS:
            self._drop_state(log_id)
        elif family is Family.CEILINGS:
            self._ceilings.pop(log_id, None)
        else:
            rows = self._of(family)
            of_log = rows.get(log_id, {})
            of_log.pop(keys.read_u64(key, 8), None)
            if not of_log:
                rows.pop(log_id, None)

    def delete_range(self, family: Family, start: bytes, stop: bytes) -> None:
        """Forget the rows of DELETES or GAPS from `start` up to `stop`, as Store.delete_range."""
        rows = self._of(family)
        first, last = keys.read_u64(start), keys.read_u64(stop)
        found = [keys.pair(log_id, number) for log_id in range(first, last + 1) for number in rows.get(log_id, ())]
        found += [key for damaged_family, key in self.damaged if damaged_family is family]
        for key in found:
            if start <= key < stop:
                self.delete(family, key)

    def _of(self, family: Family) -> "dict[int, dict[int, Chunk]] | dict[int, dict[int, Gap]]":
        return self._deletes if family is Family.DELETES else self._gaps

    def _put_state(self, log_id: int, _key: bytes, row: bytes) -> None:
        if log_id in self._states:
            self._drop_state(log_id)
        self._states[log_id] = row
        _, count, nbytes, volatile_from = snapshot.figures(row)
        self.records += count
        self.bytes += nbytes
        if volatile_from:
            self.volatile.add(log_id)

    def _drop_state(self, log_id: int) -> None:
        row = self._states.pop(log_id, None)
        if row is not None:
            with suppress(ValueError):  # nothing was counted of a damaged one
                _, count, nbytes, _ = snapshot.figures(row)
                self.records -= count
                self.bytes -= nbytes
            self.volatile.discard(log_id)

    def _put_ceiling(self, log_id: int, _key: bytes, row: bytes) -> None:
        found = self._known.get(row)
        if found is None:
            if len(self._known) == _KNOWN_CEILINGS:
                self._known.clear()
            found = self._known[row] = decode_ceiling(row)
        self._ceilings[log_id] = found

    def _put_deletes(self, log_id: int, key: bytes, row: bytes) -> None:
        self._deletes.setdefault(log_id, {})[keys.read_u64(key, 8)] = decode_chunk(row)

    def _put_gap(self, log_id: int, key: bytes, row: bytes) -> None:
        start = keys.read_u64(key, 8)
        self._gaps.setdefault(log_id, {})[start] = Gap.of_row(start, row)

    # --------------------------------------------------------------------- logs

    def begin(self, writer: Writer, memory: Store, cache: BlockCache, counted: Lives) -> None:
        """Allow `open`, after the ends that are counted. No row is taken over any more."""
        self._writer, self._memory, self._cache, self._lives = writer, memory, cache, counted
        self._known.clear()

    def volatile_states(self) -> Iterator[tuple[int, Snapshot, int]]:
        """Yield each log that had records in memory only: its id, its state and its ceiling, 0 for none.

        What is changed in the state is what `open` uses.
        """
        for log_id in sorted(self.volatile):
            s = self._recovered[log_id] = snapshot.decode(self._states[log_id])
            self._complete(log_id, s)
            yield log_id, s, self._ceilings.get(log_id, _NO_CEILING).seq

    def open(self, log_id: int, durability: Durability) -> Log:
        """The log as it was recovered, once."""
        row, ceiling = self._states.pop(log_id), self._ceilings.pop(log_id, _NO_CEILING)
        s = self._recovered.pop(log_id, None)
        if s is None:
            s = snapshot.decode(row)
            self._complete(log_id, s)
        owed = lives.lose_tail(s, log_id, ceiling.seq) if self._lives.take(durability, ceiling) else {}
        return Log(log_id, self._writer, self._memory, self._cache, s, ceiling.seq, owed)

    def _complete(self, log_id: int, s: Snapshot) -> None:
        """Give the state the deletes and the gaps, which have rows of their own."""
        if log_id in self._deletes:
            s.deletes = Deletes(self._deletes.pop(log_id))
        if log_id in self._gaps:
            gaps = self._gaps.pop(log_id)
            s.gaps = tuple(gaps[start] for start in sorted(gaps))


def read_state(store: Reader, log_id: int, durability: Durability) -> Snapshot:
    """The state of one log as `StoredLogs.open` finds it; the store doesn't change meanwhile.

    Raises ValueError and struct.error for rows that are damaged or missing, StoreOpenError for the count of ends.
    """
    key = keys.u64(log_id)
    row, ceiling = store.get(Family.LOGS, key), store.get(Family.CEILINGS, key)
    if row is None:
        raise ValueError("there is no state row")
    s = snapshot.decode(row)
    s.deletes = Deletes(
        {
            keys.read_u64(each, 8): decode_chunk(value)
            for each, value in store.scan(Family.DELETES, *keys.log_range(log_id))
        }
    )
    s.gaps = tuple(
        Gap.of_row(keys.read_u64(each, 8), value) for each, value in store.scan(Family.GAPS, *keys.log_range(log_id))
    )
    if ceiling is not None:
        found = decode_ceiling(ceiling)
        if found.seq > s.head and lives.read(store).take(durability, found):
            lives.lose_tail(s, log_id, found.seq)
    return s


def damaged(what: str, error: Exception) -> StoreOpenError:
    """The error of a start that meets a damaged row."""
    return StoreOpenError(f"{what} is damaged: {error}")
