"""Rows of tables and entries of their indexes: each row is what its table and its key say, and has its entries."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from xxhash import xxh3_128_intdigest

from topics_service.engine.tables import changelog, keycode
from topics_service.engine.tables.model import IndexState
from topics_service.engine.tables.runtime import IndexRuntime, Row, TableRuntime, key_length, key_of_entry
from topics_service.engine.verify.definitions import UNREADABLE, Definitions
from topics_service.engine.verify.findings import Findings
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreError
from topics_service.storage.verify import Damage

NAMED: Final = 20
"""The most problems of one kind of one table or index that are reported one by one."""
_PREFIX: Final = 12  # bytes of an entry's key in front of the values
_SUM: Final = (1 << 128) - 1

Name = tuple[int, int]
"""The numbers of a table and of an index of it."""


class Sum:
    """The number of index entries and a sum of their hashes, which is the same in every order."""

    __slots__ = ("count", "hashes")

    def __init__(self) -> None:
        self.count = self.hashes = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Add an entry."""
        self.count += 1
        self.hashes = self.hashes + xxh3_128_intdigest(key + value) & _SUM

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and (self.count, self.hashes) == (other.count, other.hashes)

    __hash__ = None  # type: ignore[assignment]


class _Few:
    """Reports the first problems of a kind, and the number of the rest."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._counts: dict[tuple[str, str | None], int] = {}

    def report(self, kind: str, of: str, text: str, table: str | None) -> None:
        """Report one, unless there were enough `of` this kind."""
        name = f"{kind} {of}", table
        self._counts[name] = self._counts.get(name, 0) + 1
        if self._counts[name] <= NAMED:
            self._findings.report(kind, text, table=table)  # type: ignore[arg-type]

    def finish(self) -> None:
        """Report the rest."""
        for (name, table), count in self._counts.items():
            if count > NAMED:
                kind, _, of = name.partition(" ")
                self._findings.report(kind, f"{of}: {count - NAMED:,} more", table=table)  # type: ignore[arg-type]


class TablesAudit:
    """The check of all tables. Memory: the definitions, and two sums for each index.

    Rows are read once in the order of their keys, then entries in the order of theirs. Rows and entries belong
    together if there are as many entries, with the same sum of hashes, as the rows should have. Only for tables where
    that is not so, or where something can't be read, each row and each entry is looked up in the other family.
    """

    def __init__(self, findings: Findings, definitions: Definitions) -> None:
        self.rows = 0
        self._findings = findings
        self._definitions = definitions
        self._few = _Few(findings)
        self._due: dict[Name, Sum] = {}
        self._found: dict[Name, Sum] = {}
        self._uncertain: set[int] = set()
        """Tables of which something can't be read."""

    def run(self, count: Callable[[int], None]) -> None:
        """Check everything. `count` is called with the number of further rows read."""
        tables = self._definitions.tables
        for number, runtime in tables.items():
            for index in runtime.table.indexes:
                self._due[number, index.number], self._found[number, index.number] = Sum(), Sum()
        self._rows(count)
        self._entries()
        for number, runtime in tables.items():
            for part in runtime.indexes:
                name = number, part.index.number
                if part.index.state is IndexState.READY:
                    if number in self._uncertain or self._due[name] != self._found[name]:
                        self._look_for_entries(runtime, part)
                        self._look_for_rows(runtime, part)
                elif self._found[name].count:
                    self._look_for_rows(runtime, part)
        self._few.finish()

    # --------------------------------------------------------------------- rows

    def _entry(self, key: bytes, stored: bytes) -> None:
        """An entry of a change log: those of a table have no holes."""
        try:
            entry = changelog.read_entry(key, stored)
            number = keys.read_u64(key, 8)
        except UNREADABLE as error:
            text = f"the entry {key.hex()} of a change log is damaged: {error}"
            self._few.report("damaged", "entries of change logs", text, None)
            return
        logs = self._definitions.logs
        if number not in logs:
            self._strange(number, f"the change log of table {number} belongs to no table")
            return
        if logs[number] not in (0, entry.first):
            text = f"changes {logs[number]} to {entry.first - 1} are missing in the change log"
            self._few.report("missing", "entries of change logs", text, self._definitions.name(number))
        logs[number] = entry.last + 1

    def _rows(self, count: Callable[[int], None]) -> None:
        current, runtime, entries = -1, None, list[tuple[IndexRuntime, Sum]]()
        for found in self._findings.source.rows(Family.ROWS):
            if isinstance(found, Damage):
                self._damaged(Family.ROWS, found)
                continue
            key, stored = found
            if key.startswith(changelog.ENTRIES):
                self._entry(key, stored)
                continue
            number = keys.read_u64(key) if len(key) > 8 else 0
            if number != current:
                current, runtime = number, self._definitions.tables.get(number)
                if runtime is None:
                    self._strange(number, f"the rows of table {number} belong to no table")
                else:
                    entries = [
                        (part, self._due[number, part.index.number])
                        for part in runtime.indexes
                        if part.index.state is IndexState.READY
                    ]
            self.rows += 1
            if not self.rows % 1000:
                count(1000)
            if runtime is None:
                continue
            row = self._row(runtime, key, stored)
            if row is not None:
                value = key_length(key)
                for part, due in entries:
                    due.add(part.head(row) + key[8:], value)
        count(self.rows % 1000)

    def _row(self, runtime: TableRuntime, key: bytes, stored: bytes) -> Row | None:
        """The values of a row, or None after a report."""
        row, fault = read_row(runtime, key, stored)
        if fault is None:
            return row
        kind, text = fault
        self._uncertain.add(runtime.table.number)
        self._few.report(kind, "rows", f"the row {named(runtime, key)} {text}", runtime.table.table_id)
        return None

    def _strange(self, number: int, text: str) -> None:
        """Report what belongs to no table, unless definitions that can't be read explain it."""
        definitions = self._definitions
        if definitions.is_whole and number not in definitions.unread and keys.u64(number) not in definitions.removed:
            self._few.report("orphan", "rows and entries", text, None)

    def _damaged(self, family: Family, damage: Damage) -> None:
        """Report a stretch of rows or entries that can't be read, with the tables that it can be of."""
        touched = touched_tables(self._definitions, damage)
        self._uncertain.update(touched)
        table = self._definitions.name(touched[0]) if len(touched) == 1 else None
        where = ""
        if len(touched) == 1 and family is Family.ROWS:
            where = stretch(self._definitions.tables[touched[0]], damage)
        elif touched:
            where = " of " + ", ".join(str(self._definitions.name(number)) for number in touched[:5])
        self._findings.unreadable(family, damage, table=table, where=where)

    # ------------------------------------------------------------------- entries

    def _entries(self) -> None:
        current: Name = -1, -1
        part: IndexRuntime | None = None
        before = b"", b""
        runtime: TableRuntime | None = None
        for found in self._findings.source.rows(Family.INDEXES):
            if isinstance(found, Damage):
                self._damaged(Family.INDEXES, found)
                continue
            key, value = found
            name = (keys.read_u64(key), int.from_bytes(key[8:_PREFIX])) if len(key) >= _PREFIX else (0, 0)
            if name != current:
                current, runtime, before = name, self._definitions.tables.get(name[0]), (b"", b"")
                part = None if runtime is None else _part(runtime, name[1])
                if runtime is None:
                    self._strange(name[0], f"the entries of table {name[0]} belong to no table")
                elif part is None and key[:_PREFIX] not in self._definitions.removed:
                    text = f"the entries of index {name[1]} belong to no index"
                    self._few.report("orphan", text, text, runtime.table.table_id)
            if runtime is None or part is None:
                continue
            self._found[name].add(key, value)
            if part.unique and len(value) == 2:
                head = key[: len(key) - int.from_bytes(value)]
                if head == before[0] and _holds(part, head):
                    self._twice(runtime, part, before[1], key_of_entry(runtime.prefix, key, value))
                before = head, key_of_entry(runtime.prefix, key, value)

    def _twice(self, runtime: TableRuntime, part: IndexRuntime, first: bytes, second: bytes) -> None:
        what = f'the unique index "{part.index.name}"'
        text = f"{what} has the same values of the rows {named(runtime, first)} and {named(runtime, second)}"
        self._few.report("mismatch", what, text, runtime.table.table_id)

    def _look_for_entries(self, runtime: TableRuntime, part: IndexRuntime) -> None:
        what, get = f'the index "{part.index.name}"', self._findings.source.get
        for key, stored in self._readable(Family.ROWS, runtime.prefix):
            row, fault = read_row(runtime, key, stored)
            if fault is None:
                with suppress(StoreError):  # a stretch that has been reported
                    value = get(Family.INDEXES, part.head(row) + key[8:])
                    if value is None:
                        text = f"{what} has no entry for the row {named(runtime, key)}"
                        self._few.report("missing", f"{what} has no entry", text, runtime.table.table_id)

    def _look_for_rows(self, runtime: TableRuntime, part: IndexRuntime) -> None:
        what, get, table = f'the index "{part.index.name}"', self._findings.source.get, runtime.table.table_id
        for entry, value in self._readable(Family.INDEXES, part.prefix):
            length = int.from_bytes(value)
            if len(value) != 2 or not 0 < length <= len(entry) - _PREFIX:
                self._few.report("damaged", what, f"{what} has an entry whose length of the key is wrong", table)
                continue
            key = key_of_entry(runtime.prefix, entry, value)
            with suppress(StoreError):
                stored = get(Family.ROWS, key)
                if stored is None:
                    text = f"{what} has an entry for the row {named(runtime, key)}, which does not exist"
                    self._few.report("orphan", f"{what} has an entry", text, table)
                    continue
                row, fault = read_row(runtime, key, stored)
                if fault is None and part.head(row) + key[8:] != entry:
                    text = f"{what} has an entry for the row {named(runtime, key)} with other values"
                    self._few.report("mismatch", f"{what} has an entry", text, table)

    def _readable(self, family: Family, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows with a prefix that can be read."""
        for found in self._findings.source.rows(family, prefix):
            if not isinstance(found, Damage):
                if not found[0].startswith(prefix):
                    return
                yield found
            elif found.before is None or not found.before.startswith(prefix):
                return


class _Fault(NamedTuple):
    kind: str
    text: str


def read_row(runtime: TableRuntime, key: bytes, stored: bytes) -> tuple[Row, _Fault | None]:
    """The values of a row, and what is wrong with it, as the kind of a problem and a text that follows its name."""
    try:
        row = runtime.read(stored)
        own = runtime.key(row)
        for part in runtime.indexes:
            part.head(row)
    except UNREADABLE as error:
        return [], _Fault("damaged", f"is damaged: {error}")
    if own != key:
        return [], _Fault("mismatch", f"has the values of another key, {named(runtime, own)}")
    for place in runtime.required:
        if row[place] is None:
            return [], _Fault("mismatch", f'has no value of "{runtime.table.columns[place].name}"')
    return row, None


def named(runtime: TableRuntime, key: bytes) -> str:
    """The key of a row as text: `id=5`; its bytes where it can't be read."""
    try:
        values = keycode.decode(key[8:], runtime.key_types)
    except UNREADABLE:
        return key[8:].hex()
    names = [runtime.table.columns[place].name for place in runtime.key_places]
    return ", ".join(f"{name}={value!r}" for name, value in zip(names, values, strict=True))


def stretch(runtime: TableRuntime, damage: Damage) -> str:
    """The place of damage in the rows of a table: ` behind id=5, before id=90`."""
    ends = [("behind", damage.after), ("before", damage.before)]
    known = [
        f"{word} {named(runtime, key)}" for word, key in ends if key is not None and key.startswith(runtime.prefix)
    ]
    return " " + ", ".join(known) if known else ""


def touched_tables(definitions: Definitions, damage: Damage) -> list[int]:
    """The numbers of the tables that a stretch of rows or entries can be of."""
    first = 0 if damage.after is None else keys.read_u64(damage.after)
    return [
        number
        for number, runtime in sorted(definitions.tables.items())
        if number >= first and (damage.before is None or runtime.prefix <= damage.before)
    ]


def _part(runtime: TableRuntime, number: int) -> IndexRuntime | None:
    return next((part for part in runtime.indexes if part.index.number == number), None)


def _holds(part: IndexRuntime, head: bytes) -> bool:
    """Return whether an entry counts for uniqueness: no value of it is NULL."""
    try:
        return None not in keycode.decode_prefix(head, part.types, _PREFIX)[0]
    except UNREADABLE:
        return False  # not what any row has
