"""Logs of changes: what commits did to the rows of a table, for live queries. Only tables that are followed have one.

A log is entries in front of the rows of all tables, under table number 0, which no table has: the number of the table
and that of the first change; the value is the bytes of all entries before, and the changes as MessagePack: the key of
a row and its stored form before and after. Changes count from 1. An entry is in the batch of its commit, so it is as
durable as the rows, and is shown when they are.

A position is a change together with the *life* of the server that wrote it. A power cut may take the newest changes of
a life, and the next one then gives their numbers to others: a position beyond the end of its life is of no use.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from topics_service.engine.clock import Clock
from topics_service.engine.errors import invalid
from topics_service.engine.tables.pending import Pending
from topics_service.engine.tables.removal import remove_rows
from topics_service.engine.tables.rowcode import CorruptRowError
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreOpenError

CHANGE_ROWS: Final = b"changes\x00"
"""The kind of rows, in `Family.TABLES`, of tables with a log; then the table number."""
ENTRIES: Final = keys.u64(0)
"""The prefix of all entries, in `Family.ROWS`."""

_VERSION: Final = b"\x01"
_ENTRY_CHANGES: Final = 256
_ENTRY_BYTES: Final = 256 << 10
_RECENT_BYTES: Final = 1 << 20
_RECENT: Final = 256
_MAX_LIVES: Final = 1000
_LIFE_BYTES: Final = 8
_HEAD: Final = len(_VERSION) + 8
_SPARE: Final = 4
"""A log is cut down to its bound once it has a quarter more: each cut deletes a range, which costs reads."""

Change = tuple[bytes, bytes | None, bytes | None]
"""The key of a row without the table, and its stored form before and after."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Change]).decode


class Position(NamedTuple):
    """A place behind a change; 0 is before the first."""

    life: bytes
    change: int

    @property
    def text(self) -> str:
        """The form that clients get."""
        return f"{self.life.hex()}-{self.change}"


def read_position(text: str) -> Position:
    """Read what `Position.text` made. Raises `invalid_request`."""
    life, separator, change = text.partition("-")
    if (
        len(life) == 2 * _LIFE_BYTES
        and separator
        and life.isascii()
        and life.isalnum()
        and 0 < len(change) <= 19
        and change.isascii()
        and change.isdigit()
    ):
        try:
            return Position(bytes.fromhex(life), int(change))
        except ValueError:
            pass
    raise invalid("after must be the position of a frame of a live query")


class Entry(NamedTuple):
    """Changes that were written together, or a part of them."""

    first: int
    changes: list[Change]

    @property
    def last(self) -> int:
        """The number of the last change."""
        return self.first + len(self.changes) - 1

    @property
    def nbytes(self) -> int:
        """The bytes of the rows."""
        return sum(len(old or b"") + len(new or b"") for _, old, new in self.changes)


class State(Struct, frozen=True, array_like=True):
    """`is_kept`: the table has the log by its definition, else as long as it is followed. `lives`: the lives of the
    server in which changes were written, each with the number of its first."""

    is_kept: bool
    lives: tuple[tuple[bytes, int], ...]


_encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(State).decode


class ChangeLog:
    """The log of one table."""

    def __init__(self, writer: Writer, clock: Clock, table: int, state: State) -> None:
        self.table = table
        self.prefix = ENTRIES + keys.u64(table)
        self.state = state
        self.first = 1
        """The number of the oldest change that is there."""
        self.last = 0
        """The number of the newest change that is written."""
        self.shown = 0
        """The number of the newest change that is visible."""
        self.begin = 0
        """The bytes of all entries before those that are there."""
        self.end = 0
        self.followers: set[Callable[[], None]] = set()
        """Called when more is visible, or the table or the log is another one."""
        self.idle_since = 0
        self.since = 0
        """The ticket of the newest commit before the log that readers may not see yet: snapshots wait for it."""
        self.is_written = False
        """Changes were written in this life of the server."""
        self._store = writer.store
        self._clock = clock
        self._recent: deque[tuple[Entry, int]] = deque()
        self._recent_bytes = 0

    def load(self) -> None:
        """Find the ends in the store."""
        start, stop = keys.prefix_range(self.prefix)
        oldest = next(iter(self._store.scan(Family.ROWS, start, stop)), None)
        newest = next(iter(self._store.scan_back(Family.ROWS, start, stop)), None)
        if oldest is None or newest is None:
            self.last = self.shown = self.state.lives[-1][1] - 1
            self.first = self.last + 1
            return
        self.first, self.begin = keys.read_u64(oldest[0], 16), _before(oldest[1])
        entry = read_entry(*newest)
        self.last = self.shown = entry.last
        self.end = _before(newest[1]) + len(newest[1])

    @property
    def nbytes(self) -> int:
        """The bytes of the entries."""
        return self.end - self.begin

    def position(self, change: int) -> Position:
        """The position behind a change that was written."""
        for life, first in reversed(self.state.lives):
            if change >= first:
                return Position(life, change)
        return Position(self.state.lives[0][0], change)

    def why_not(self, position: Position) -> str | None:
        """The reason why reading can't continue behind a position; None if it can."""
        lives = self.state.lives
        for at, (life, first) in enumerate(lives):
            if life == position.life:
                end = lives[at + 1][1] - 1 if at + 1 < len(lives) else self.last
                if position.change > end:
                    return "lost"
                if position.change + 1 < (first if at else 1):
                    return "unknown"
                return "too_old" if position.change + 1 < self.first else None
        return "unknown"

    def read(self, change: int) -> Entry | None:
        """The visible changes behind one, some of them; None for none. Raises CorruptRowError, and LookupError if
        they are not there any more."""
        if change >= self.shown:
            return None
        wanted = change + 1
        for entry, _ in reversed(self._recent):
            if entry.first <= wanted:
                if wanted <= entry.last:
                    return self._part(entry, wanted)
                break
        if wanted < self.first:
            raise LookupError
        found = self._store.floor(Family.ROWS, self.prefix + keys.u64(wanted))
        if found is None or not found[0].startswith(self.prefix):
            raise CorruptRowError(f"change {wanted} of table {self.table} is missing")
        entry = read_entry(*found)
        if entry.last < wanted:
            raise CorruptRowError(f"change {wanted} of table {self.table} is missing")
        return self._part(entry, wanted)

    def remember(self, entries: Sequence[tuple[Entry, int]]) -> None:
        """Keep new entries in memory, within bounds: those who follow closely read them there."""
        for entry, nbytes in entries[-_RECENT:]:
            self._recent.append((entry, nbytes))
            self._recent_bytes += nbytes
        while len(self._recent) > _RECENT or self._recent_bytes > _RECENT_BYTES:
            self._recent_bytes -= self._recent.popleft()[1]

    def cut(self, most: int) -> int:
        """The number of the first change to keep, of `most` bytes, and what is before it."""
        low, high = self.first, self.last
        while low < high:
            middle = (low + high) // 2
            found = self._store.floor(Family.ROWS, self.prefix + keys.u64(middle))
            assert found is not None, "the oldest entry is before it"
            if self.end - _before(found[1]) > most:
                low = read_entry(*found).last + 1
            else:
                high = min(middle, keys.read_u64(found[0], 16))
        return min(low, self.last + 1)

    def unfollow(self, call: Callable[[], None]) -> None:
        """Call a follower no longer."""
        self.followers.discard(call)
        if not self.followers:
            self.idle_since = self._clock.now_ms()

    def wake(self) -> None:
        """Call all followers."""
        for call in tuple(self.followers):
            call()

    def _part(self, entry: Entry, wanted: int) -> Entry:
        if entry.first == wanted:
            return entry
        return Entry(wanted, entry.changes[wanted - entry.first :])


class ChangeLogs:
    """The logs of all tables that have one."""

    def __init__(self, writer: Writer, clock: Clock, pending: Pending, random: Callable[[int], bytes]) -> None:
        self.max_bytes = 64 << 20
        """Of the entries of a log; a commit of more begins a new one. Set by the composition root, as the next is."""
        self.idle_ms = 3_600_000
        """The time after which a log without followers is dropped, unless its table is defined to have one."""
        self.logs: dict[int, ChangeLog] = {}
        self._writer = writer
        self._clock = clock
        self._pending = pending
        self._random = random

    @cached_property
    def _life(self) -> bytes:
        """That of this server, for all logs that it has found."""
        return self._random(_LIFE_BYTES)

    def load(self, tables: Iterable[int]) -> None:
        """Take over the rows in the store, of these tables. Raises StoreOpenError for a damaged one."""
        known = frozenset(tables)
        for key, value in self._writer.store.scan(Family.TABLES, *keys.prefix_range(CHANGE_ROWS)):
            try:
                number = keys.read_u64(key, len(CHANGE_ROWS))
                log = ChangeLog(self._writer, self._clock, number, read_state(value))
                if log.table in known:
                    log.load()
                    log.idle_since = self._clock.now_ms()
                    self.logs[log.table] = log
            except (ValueError, IndexError, CorruptRowError, msgspec.MsgspecError) as error:
                raise StoreOpenError(f"the change log {key!r} is damaged: {error}") from error

    @property
    def nbytes(self) -> int:
        """The bytes of all logs."""
        return sum(log.nbytes for log in self.logs.values())

    # ------------------------------------------------------------------ commits

    def stage(
        self, tx: Transaction, rows: Mapping[bytes, bytes | None], before: Mapping[bytes, bytes | None]
    ) -> "Staged":
        """Stage the changes of a commit, by the keys of rows: `before` has what is in the store of those."""
        staged = Staged()
        changes: dict[int, list[Change]] = {}
        for key, new in rows.items():
            old = before.get(key)
            if old != new:
                number = keys.read_u64(key)
                if number in self.logs:
                    changes.setdefault(number, []).append((key[8:], old, new))
        for number, found in changes.items():
            self._stage(tx, self.logs[number], found, staged)
        return staged

    def _stage(self, tx: Transaction, log: ChangeLog, changes: list[Change], staged: "Staged") -> None:
        first, end = log.last + 1, log.end
        entries: list[tuple[Entry, int]] = []
        values: list[tuple[bytes, bytes]] = []
        for part in _parts(changes):
            value = b"%b%b%b" % (_VERSION, keys.u64(end), _encode(part))
            entries.append((Entry(first, part), len(value)))
            values.append((log.prefix + keys.u64(first), value))
            first, end = first + len(part), end + len(value)
        state, oldest, begin = log.state, log.first, log.begin
        if end - log.end > self.max_bytes:  # readers get a gap
            entries, values, oldest, begin = [], [], first, end
            state = State(state.is_kept, ((self._random(_LIFE_BYTES), first),))
        elif end - log.begin > self.max_bytes + self.max_bytes // _SPARE:
            oldest = log.cut(self.max_bytes - (end - log.end))
            found = self._writer.store.get(Family.ROWS, log.prefix + keys.u64(oldest))
            begin = log.end if found is None else _before(found)
        if oldest > log.first:
            stop = log.prefix + keys.u64(min(oldest, log.last + 1))
            tx.batch.delete_range(Family.ROWS, log.prefix, stop)
        if not log.is_written and entries:
            state = State(state.is_kept, _pruned((*state.lives, (self._life, log.last + 1)), oldest))
        if state is not log.state:
            tx.batch.put(Family.TABLES, CHANGE_ROWS + keys.u64(log.table), write_state(state))
        for key, value in values:
            tx.batch.put(Family.ROWS, key, value)
        staged.logs.append(_StagedLog(log, state, oldest, begin, first - 1, end, entries))

    # -------------------------------------------------------------------- logs

    def begin(self, table: int) -> ChangeLog:
        """The log of a table, made if there is none. Raises `internal` and `throttled`, as writes do."""
        if table not in self.logs:
            with Transaction(self._writer) as tx:
                self.stage_begin(tx, table, is_kept=False)
                tx.commit()
        return self.logs[table]

    def stage_begin(self, tx: Transaction, table: int, *, is_kept: bool) -> None:
        """Stage the log of a table, or whether it is kept without followers."""
        log = self.logs.get(table)
        if log is None:
            state = new_state(self._random, is_kept=is_kept)
            log = ChangeLog(self._writer, self._clock, table, state)
            log.is_written = True
        else:
            state = State(is_kept, log.state.lives)
        tx.batch.put(Family.TABLES, CHANGE_ROWS + keys.u64(table), write_state(state))
        tx.stage(_Begun(self, log, state))

    def stage_end(self, tx: Transaction, table: int) -> None:
        """Stage the end of a table's log, if it has one; its followers learn of it once that is written."""
        log = self.logs.get(table)
        if log is not None:
            remove_rows(self._writer.store, tx.batch, Family.ROWS, log.prefix)
            tx.batch.delete(Family.TABLES, CHANGE_ROWS + keys.u64(table))
            tx.stage(_End(self, log))

    def begun(self, log: ChangeLog, state: State) -> None:
        """Note that a log is there."""
        log.state = state
        if log.table not in self.logs:
            log.idle_since = self._clock.now_ms()
            log.since = self._pending.ticket((log.table,))
            self.logs[log.table] = log

    def ended(self, log: ChangeLog) -> None:
        """Note that a log is gone."""
        self.logs.pop(log.table, None)
        log.wake()

    def changed(self, tables: Iterable[int]) -> None:
        """Tell those who follow tables that these are others now."""
        for number in tables:
            if number in self.logs:
                self.logs[number].wake()

    def upkeep(self) -> bool:
        """Drop a log that has had no followers for long enough; return True if there may be more."""
        due = self._clock.now_ms() - self.idle_ms
        for log in self.logs.values():
            if not log.followers and not log.state.is_kept and log.idle_since <= due:
                with Transaction(self._writer) as tx:
                    self.stage_end(tx, log.table)
                    tx.commit()
                return True
        return False


class Staged:
    """The changes of a commit that is on its way, by log."""

    __slots__ = ("logs",)

    def __init__(self) -> None:
        self.logs: list[_StagedLog] = []

    def written(self) -> None:
        """Take over what is written."""
        for each in self.logs:
            log = each.log
            log.state, log.first, log.begin = each.state, each.oldest, each.begin
            log.last, log.end, log.is_written = each.last, each.end, True
            log.remember(each.entries)

    def show(self) -> None:
        """Show what is as durable as its commit."""
        for each in self.logs:
            each.log.shown = each.last
            each.log.wake()


class _StagedLog(NamedTuple):
    log: ChangeLog
    state: State
    oldest: int
    begin: int
    last: int
    end: int
    entries: list[tuple[Entry, int]]


class _Begun(NamedTuple):
    """Implements Change of transactions."""

    logs: ChangeLogs
    log: ChangeLog
    state: State

    def publish(self, ticket: int) -> int:
        """See Change."""
        self.logs.begun(self.log, self.state)
        return 0

    def undo(self) -> None:
        """See Change."""


class _End(NamedTuple):
    """Implements Change of transactions."""

    logs: ChangeLogs
    log: ChangeLog

    def publish(self, ticket: int) -> int:
        """See Change."""
        self.logs.ended(self.log)
        return ticket

    def undo(self) -> None:
        """See Change."""


def new_state(random: Callable[[int], bytes], *, is_kept: bool) -> State:
    """The state of a log without changes."""
    return State(is_kept, ((random(_LIFE_BYTES), 1),))


def write_state(state: State) -> bytes:
    """The row of a log."""
    return _VERSION + _encode_state(state)


def read_state(value: bytes) -> State:
    """Read the row of a log. Raises ValueError and others for a damaged one."""
    if value[:1] != _VERSION:
        raise ValueError(f"it is of version {value[:1].hex()}")
    state = _decode_state(value[1:])
    if not state.lives or any(len(life) != _LIFE_BYTES or first < 1 for life, first in state.lives):
        raise ValueError("its lives are none")
    return state


def _parts(changes: list[Change]) -> Iterator[list[Change]]:
    start = nbytes = 0
    for at, (key, old, new) in enumerate(changes):
        size = len(key) + len(old or b"") + len(new or b"")
        if at > start and (at - start == _ENTRY_CHANGES or nbytes + size > _ENTRY_BYTES):
            yield changes[start:at]
            start, nbytes = at, 0
        nbytes += size
    yield changes[start:]


def _pruned(lives: tuple[tuple[bytes, int], ...], oldest: int) -> tuple[tuple[bytes, int], ...]:
    """Drop the lives of which no change is left, and the oldest of too many."""
    at = 0
    while at + 1 < len(lives) and (lives[at + 1][1] < oldest or len(lives) - at > _MAX_LIVES):
        at += 1
    return lives[at:]


def _before(value: bytes) -> int:
    if len(value) < _HEAD or value[:1] != _VERSION:
        raise CorruptRowError(f"{len(value)} bytes are no entry of a change log")
    return keys.read_u64(value, 1)


def read_entry(key: bytes, value: bytes) -> Entry:
    """Read an entry. Raises CorruptRowError."""
    _before(value)
    try:
        changes = _decode(value[_HEAD:])
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptRowError(f"an entry of a change log is damaged: {error}") from error
    if len(key) != 24 or not changes:
        raise CorruptRowError("an entry of a change log is damaged")
    return Entry(keys.read_u64(key, 16), changes)
