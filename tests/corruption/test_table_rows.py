"""Rows, index entries and definitions of tables that contradict each other or can't be read: an audit reports each, and
a repair makes a sound database of what is left.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from corruption.repairs import Repaired, copy_of, repaired
from table_support import TableWorld

from support.audit import MemorySource, audit
from topics_server.repair import RepairObserver, repair
from topics_server.verify import verify
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ConfigInput
from topics_service.engine.repair import Action
from topics_service.engine.tables.catalog import NAMESPACE_ROWS, NEXT_TABLE, TABLE_ROWS
from topics_service.engine.tables.indexing import BUILD_ROWS
from topics_service.engine.tables.messages import LAST_ID
from topics_service.engine.tables.removal import REMOVED_ROWS
from topics_service.engine.tables.topic_catalog import ALIAS_ROWS, COUNT_ROWS, ROUTE_ROWS, encode_counts
from topics_service.engine.verify import Audit, Problem
from topics_service.storage import keys
from topics_service.storage.memory import MemoryStore
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, StoreError, WriteBatch
from topics_service.storage.verify import Damage

PEOPLE, ORDERS = keys.u64(1), keys.u64(2)


@pytest.fixture(scope="module")
def sound() -> MemoryStore:
    """A table with a unique index, an ordinary one and two versions of rows; one with a key of two columns; routes."""
    world = TableWorld()
    world.sql(
        """
        CREATE NAMESPACE app;
        CREATE TABLE people (id BIGINT PRIMARY KEY, mail TEXT UNIQUE, age INTEGER NOT NULL);
        CREATE TABLE orders (person BIGINT, number BIGINT, total DECIMAL(10, 2), PRIMARY KEY (person, number));
        INSERT INTO people VALUES (1, 'a@x', 30), (2, 'b@x', 40), (3, NULL, 50), (4, NULL, 50), (5, 'e@x', 60);
        CREATE INDEX by_age ON people (age);
        ALTER TABLE people ADD COLUMN name TEXT DEFAULT 'nobody';
        INSERT INTO people VALUES (6, 'f@x', 30, 'Fay');
        INSERT INTO orders VALUES (1, 1, 9.50), (1, 2, 10), (5, 1, 0.25);
        CREATE TOPIC "app.changes" ALIAS feed;
        """
    )
    world.sql("ALTER TOPIC \"app.changes\" ADD SOURCE people ON INSERT WHERE age > 20 WITH (payload = 'full')")
    world.engine.put_topic("plain", ConfigInput())
    world.sync()
    assert audit(world.store) == []
    return world.store


class Rows:
    """Rows to change."""

    def __init__(self, store: MemoryStore, batch: WriteBatch) -> None:
        self.store = store
        self.batch = batch

    def of(self, family: Family, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """The rows with a prefix, in order."""
        return [row for row in self.store.scan(family, prefix, prefix + b"\xff" * 40) if row[0].startswith(prefix)]


def changed(store: MemoryStore, *changes: Callable[[Rows], None]) -> MemoryStore:
    """A copy with these changes."""
    copy = copy_of(store)
    for change in changes:
        batch = copy.batch()
        change(Rows(copy, batch))
        copy.write(batch)
    return copy


def lose_row(rows: Rows) -> None:
    rows.batch.delete(Family.ROWS, rows.of(Family.ROWS, PEOPLE)[1][0])


def damage_row(rows: Rows) -> None:
    key, value = rows.of(Family.ROWS, PEOPLE)[1]
    rows.batch.put(Family.ROWS, key, value[:2] + b"\xc1" + value[3:])


def swap_rows(rows: Rows) -> None:
    (_, value), (key, _) = rows.of(Family.ROWS, ORDERS)[:2]
    rows.batch.put(Family.ROWS, key, value)


def unknown_version(rows: Rows) -> None:
    key, value = rows.of(Family.ROWS, PEOPLE)[0]
    rows.batch.put(Family.ROWS, key, b"\x00\x09" + value[2:])


def no_age(rows: Rows) -> None:
    key, value = rows.of(Family.ROWS, PEOPLE)[0]
    rows.batch.put(Family.ROWS, key, value.replace(b"\x1e", b"\xc0"))


def lose_entry(rows: Rows) -> None:
    rows.batch.delete(Family.INDEXES, rows.of(Family.INDEXES, keys.index_prefix(1, 2))[0][0])


def stray_entry(rows: Rows) -> None:
    key, value = rows.of(Family.INDEXES, keys.index_prefix(1, 2))[0]
    rows.batch.put(Family.INDEXES, key[:-1] + b"\x77", value)


def moved_entry(rows: Rows) -> None:
    """An entry of a row under other values, in place of its own."""
    first, last = (rows.of(Family.INDEXES, keys.index_prefix(1, 2))[at] for at in (0, -1))
    rows.batch.delete(Family.INDEXES, first[0])
    rows.batch.put(Family.INDEXES, last[0][:-9] + first[0][-9:], first[1])


def wrong_length(rows: Rows) -> None:
    key, _ = rows.of(Family.INDEXES, keys.index_prefix(1, 2))[0]
    rows.batch.put(Family.INDEXES, key, b"\x00\x00")


def revive_mail(rows: Rows) -> None:
    """As when the removal of a row is lost that made room for another one with the same unique value."""
    key, value = rows.of(Family.ROWS, PEOPLE)[0]
    rows.batch.put(
        Family.ROWS, key[:-1] + b"\x09", value.replace(b"\x94\x01", b"\x94\x09").replace(b"\x93\x01", b"\x93\x09")
    )
    entry, length = rows.of(Family.INDEXES, keys.index_prefix(1, 1))[2]
    rows.batch.put(Family.INDEXES, entry[:-1] + b"\x09", length)
    entry, length = rows.of(Family.INDEXES, keys.index_prefix(1, 2))[0]
    rows.batch.put(Family.INDEXES, entry[:-1] + b"\x09", length)


def lose_table(rows: Rows) -> None:
    rows.batch.delete(Family.TABLES, TABLE_ROWS + ORDERS)


def damage_table(rows: Rows) -> None:
    key, value = rows.of(Family.TABLES, TABLE_ROWS + PEOPLE)[0]
    rows.batch.put(Family.TABLES, key, value[:-3])


def lose_index_column(rows: Rows) -> None:
    """The definition says that an index has a column which the table does not have."""
    key, value = rows.of(Family.TABLES, TABLE_ROWS + PEOPLE)[0]
    assert value.count(b"\xa7columns\x91\x02") == 1
    rows.batch.put(Family.TABLES, key, value.replace(b"\xa7columns\x91\x02", b"\xa7columns\x91\x08"))


def lose_namespace(rows: Rows) -> None:
    rows.batch.delete(Family.TABLES, NAMESPACE_ROWS + b"app")


def turn_back_counter(rows: Rows) -> None:
    rows.batch.put(Family.META, NEXT_TABLE, keys.u64(2))


def stray_route(rows: Rows) -> None:
    key, value = rows.of(Family.TABLES, ROUTE_ROWS)[0]
    start = len(ROUTE_ROWS) + 8
    topic = keys.read_u64(key, start)
    value = value.replace(b"\xa5topic" + bytes([topic]), b"\xa5topic\x4d")
    rows.batch.put(Family.TABLES, key[:start] + keys.u64(77) + key[start + 8 :], value)


def damage_route(rows: Rows) -> None:
    key, value = rows.of(Family.TABLES, ROUTE_ROWS)[0]
    rows.batch.put(Family.TABLES, key, value[:-3])


def stray_alias(rows: Rows) -> None:
    key, value = rows.of(Family.TABLES, ALIAS_ROWS)[0]
    topic = keys.read_u64(key, len(ALIAS_ROWS))
    rows.batch.put(
        Family.TABLES, ALIAS_ROWS + keys.u64(77), value.replace(b"\xa5topic" + bytes([topic]), b"\xa5topic\x4d")
    )


def stray_build(rows: Rows) -> None:
    rows.batch.put(Family.TABLES, BUILD_ROWS + PEOPLE + b"\x00\x00\x00\x02", PEOPLE + b"\x01")


def damage_last_id(rows: Rows) -> None:
    rows.batch.put(Family.META, LAST_ID, b"\x01")


def stray_counters(rows: Rows) -> None:
    key, _ = rows.of(Family.TABLES, ROUTE_ROWS)[0]
    rows.batch.put(Family.TABLES, COUNT_ROWS + key[len(ROUTE_ROWS) : -1] + b"\x02", encode_counts(5, 1))


def unknown_kind(rows: Rows) -> None:
    rows.batch.put(Family.TABLES, b"sequence\x00x", b"\x01")


class Case(NamedTuple):
    """A change, what is said of it (kind, table and a part of the text), and what a repair says."""

    change: Callable[[Rows], None]
    kind: str
    table: str | None
    text: str
    repair: str


CASES = [
    Case(lose_row, "orphan", "app.people", "the row id=2, which", 'derived: the index "by_age"'),
    Case(damage_row, "damaged", "app.people", "the row id=2 is damaged", "lost: the row id=2 is damaged"),
    Case(swap_rows, "mismatch", "app.orders", "the row person=1, number=2 has the values", "lost: the row"),
    Case(unknown_version, "damaged", "app.people", "schema version 9", "lost: the row id=1"),
    Case(no_age, "mismatch", "app.people", 'the row id=1 has no value of "age"', "lost: the row id=1"),
    Case(lose_entry, "missing", "app.people", '"by_age" has no entry for the row id=1', 'derived: the index "by_age"'),
    Case(stray_entry, "orphan", "app.people", "the row id=119", 'derived: the index "by_age"'),
    Case(moved_entry, "mismatch", "app.people", "the row id=1 with other values", 'derived: the index "by_age"'),
    Case(wrong_length, "damaged", "app.people", "whose length of the key is wrong", 'derived: the index "by_age"'),
    Case(revive_mail, "mismatch", "app.people", "the rows id=1 and id=9", "the rows id=1 and id=9"),
    Case(lose_table, "orphan", None, "the rows of table 2 belong to no table", "dropped: the rows of table 2"),
    Case(damage_table, "damaged", None, "1 of a table is damaged", "lost: the definition"),
    Case(lose_index_column, "damaged", None, 'the index "by_age" has columns that', "lost: the definition"),
    Case(lose_namespace, "missing", "app.people", 'there is no namespace "app"', "derived: there is no"),
    Case(turn_back_counter, "mismatch", None, "the counter of tables is not above 2", "derived: the counter of tables"),
    Case(stray_route, "orphan", "app.people", "Insert into topic 77 is of a topic", "dropped: the route"),
    Case(damage_route, "damaged", None, "of a route is damaged", "lost: the definition"),
    Case(stray_alias, "orphan", None, 'the alias "app.feed" is of topic 77', 'dropped: the alias "app.feed"'),
    Case(stray_build, "orphan", "app.people", "an index that is not being built", "dropped: the progress of building"),
    Case(damage_last_id, "damaged", None, "the last message id has 1 bytes", "derived: the last message id"),
    Case(stray_counters, "orphan", None, "a route that does not exist", "dropped: the counters"),
    Case(unknown_kind, "damaged", None, "is of no known kind", "lost: the definition"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.change.__name__)
def test_a_contradiction_is_told_and_repaired(case: Case, sound: MemoryStore) -> None:
    store = changed(sound, case.change)
    found = audit(store)
    assert any((each.kind, each.table) == (case.kind, case.table) and case.text in each.text for each in found), found
    done = repaired(store)
    told = [f"{action.kind}: {action.text}" for action in done.actions]
    assert any(case.repair in text for text in told), told
    untouched(done, case)


def untouched(done: Repaired, case: Case) -> None:
    """A server starts on the result, and has every row but those that the case is about."""
    world = started(done)
    if case.change not in (damage_table, lose_index_column):
        people = [row[0] for row in world.sql("SELECT id FROM people ORDER BY id")]
        gone = {lose_row: [2], damage_row: [2], unknown_version: [1], no_age: [1]}.get(case.change, [])
        more = [9] if case.change is revive_mail else []
        assert people == [number for number in (1, 2, 3, 4, 5, 6) if number not in gone] + more
        assert sorted(row[0] for row in world.sql("SELECT id FROM people WHERE age >= 0")) == people
    if case.change is not lose_table:
        assert len(world.sql("SELECT * FROM orders")) == 3 - (case.change is swap_rows)
    world.sql("CREATE TABLE more (id BIGINT PRIMARY KEY)")
    assert audit(world.store) == []


def started(done: Repaired) -> TableWorld:
    """An engine on repaired rows."""
    store = TableWorld().store
    store._rows = copy_of(done.store)._rows
    return TableWorld(store)


def test_a_sound_store_is_left_as_it_is(sound: MemoryStore) -> None:
    done = repaired(sound)
    assert done.actions == []
    for family in (Family.TABLES, Family.ROWS, Family.INDEXES):
        assert list(done.store.scan(family, b"", b"\xff" * 40)) == list(sound.scan(family, b"", b"\xff" * 40))


def test_rows_of_a_lost_table_are_kept_under_another_name(sound: MemoryStore) -> None:
    world = started(repaired(changed(sound, damage_table)))
    rows = world.sql("SELECT row_key, version, row_values FROM recovered.table_1 ORDER BY row_key")
    assert len(rows) == 6
    assert rows[0][1:] == (0, '[1,"a@x",30]')
    assert rows[5][1:] == (1, '[6,"f@x",30,"Fay"]')


def test_a_unique_index_with_two_rows_becomes_an_ordinary_one(sound: MemoryStore) -> None:
    world = started(repaired(changed(sound, revive_mail)))
    (index,) = (each for each in world.named("people").indexes if each.number == 1)
    assert not index.unique
    assert not index.constraint
    world.sql("DELETE FROM people WHERE id = 9")
    world.sql(f'DROP INDEX app."{index.name}"')


def test_only_the_first_of_many_are_named(sound: MemoryStore) -> None:
    world = TableWorld()
    world.sql("CREATE NAMESPACE app; CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT)")
    for first in range(0, 100, 10):
        world.sql("INSERT INTO t VALUES " + ", ".join(f"({n}, {n})" for n in range(first, first + 10)))

    def damage(rows: Rows) -> None:
        for key, value in rows.of(Family.ROWS, keys.u64(1)):
            rows.batch.put(Family.ROWS, key, value[:-1])

    store = changed(world.store, damage)
    found = audit(store)
    assert len(found) == 21
    assert found[-1].text == "rows: 80 more"
    assert [action.text for action in repaired(store).actions][-1] == "80 more rows that are damaged"


@pytest.mark.parametrize("finished", [False, True])
def test_an_index_that_is_being_built(finished: bool) -> None:
    world = TableWorld()
    world.sql("CREATE NAMESPACE app; CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT)")
    for first in range(0, 600, 100):
        world.sql("INSERT INTO t VALUES " + ", ".join(f"({n}, {n})" for n in range(first, first + 100)))
    definition = world.plan("CREATE UNIQUE INDEX i ON t (a)")
    assert list(world.tables.define(definition)) == []
    world.tables.upkeep()
    world.sync()
    assert audit(world.store) == []

    def stray(rows: Rows) -> None:
        key, value = rows.of(Family.INDEXES, keys.index_prefix(1, 1))[0]
        rows.batch.put(Family.INDEXES, key[:-1] + b"\x77\x77"[-1:], value)

    assert any(each.kind in ("orphan", "mismatch") for each in audit(changed(world.store, stray)))
    done = repaired(changed(world.store, stray) if finished else world.store)
    assert [action.text for action in done.actions] == ['the index "i" is built from its start again']
    again = started(done)
    while again.tables.upkeep():
        pass
    assert audit(again.store) == []
    assert again.sql("SELECT id FROM t WHERE a = 577") == [(577,)]


def test_what_a_definition_has_dropped_may_still_be_there(sound: MemoryStore) -> None:
    """Until the server has removed it; a repair leaves it out."""
    world = TableWorld()
    world.store._rows = copy_of(sound)._rows
    world.start()
    world.sql("DROP INDEX by_age; TRUNCATE orders; INSERT INTO orders VALUES (7, 7, 7)")
    removals = world.store.scan(Family.TABLES, *keys.prefix_range(REMOVED_ROWS))
    assert [key[len(REMOVED_ROWS) :] for key, _ in removals] == [keys.index_prefix(1, 2), ORDERS]
    assert audit(world.store) == []
    done = repaired(world.store)
    assert done.actions == []
    assert len(list(done.store.scan(Family.ROWS, *keys.prefix_range(ORDERS)))) == 0
    assert started(done).sql("SELECT person FROM orders") == [(7,)]
    world.upkeep()
    assert audit(world.store) == []

    def stray(rows: Rows) -> None:
        rows.batch.put(Family.TABLES, REMOVED_ROWS + PEOPLE, b"")

    assert [each.kind for each in audit(changed(world.store, stray))] == ["damaged"]


def test_a_damaged_block_of_rows_is_named_by_its_keys(tmp_path: Path) -> None:
    """Four bytes of the largest file are overwritten: of rows, which are larger than entries."""
    directory = tmp_path / "data"
    world = TableWorld(RocksStore(directory))
    world.sql("CREATE NAMESPACE app; CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT UNIQUE, b TEXT)")
    random = Random(7)
    for first in range(0, 3000, 100):
        values = (f"({n}, {n}, '{random.randbytes(100).hex()}')" for n in range(first, first + 100))
        world.sql("INSERT INTO t VALUES " + ", ".join(values))
    world.engine.close()
    world.store.close()
    largest = max(directory.glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4] = b"XXXX"
    largest.write_bytes(data)
    found: list[Problem] = []
    report = verify(directory, found.append)
    (problem,) = (each for each in found if each.kind == "unreadable" and each.table is not None)
    place = re.match(r"rows of tables behind id=(\d+), before id=(\d+) can't be read", problem.text)
    assert problem.table == "app.t"
    assert problem.file == largest.name
    assert place is not None
    first, last = int(place[1]) + 1, int(place[2]) - 1
    assert report.tables == 1
    assert report.rows == 3000 - (last - first + 1)
    assert len(found) == 1, found
    refuses_only_what_is_damaged(directory, first)
    actions: list[Action] = []
    observer = RepairObserver(note=str, problem=lambda _: None, action=actions.append)
    done = repair(directory, observer, apply=True)
    assert done.applied
    assert [(action.kind, action.table) for action in actions] == [("lost", "app.t"), ("derived", "app.t")]
    assert f"rows behind id={first - 1}, before id={last + 1} can't be read" in actions[0].text
    found.clear()
    assert verify(directory, found.append, deep=True).rows == report.rows
    assert found == []
    world = TableWorld(RocksStore(directory))
    gone = range(first, last + 1)
    assert [row[0] for row in world.sql("SELECT id FROM t ORDER BY a")] == [n for n in range(3000) if n not in gone]
    world.store.close()


def refuses_only_what_is_damaged(directory: Path, gone: int) -> None:
    """A server on a copy starts, and serves the other rows."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    world = TableWorld(RocksStore(copy))
    for text in ("SELECT * FROM t", f"SELECT * FROM t WHERE id = {gone}", f"DELETE FROM t WHERE a = {gone}"):
        with pytest.raises(TopicsError, match="can't be read") as refused:
            world.sql(text)
        assert refused.value.reason is Reason.INTERNAL
    assert world.sql("SELECT a FROM t WHERE id = 5") == [(5,)]
    with suppress(StoreError):  # a compaction may have met the damage meanwhile
        world.store.close()


class Hole(MemorySource):
    """Rows of which those from one place up to another of a family can't be read."""

    def __init__(self, store: MemoryStore, family: Family, start: bytes, stop: bytes) -> None:
        super().__init__(store)
        self._family, self._start, self._stop = family, start, stop
        self.get = self._get  # type: ignore[assignment]

    def _get(self, family: Family, key: bytes) -> bytes | None:
        if family is self._family and self._start <= key < self._stop:
            raise StoreError("Corruption: block checksum mismatch")
        return self._store.get(family, key)

    def rows(self, family: Family, start: bytes = b"") -> Iterator[tuple[bytes, bytes] | Damage]:  # type: ignore[override]
        """See Source."""
        every = list(super().rows(family, start))
        if family is not self._family:
            yield from every
            return
        before = [row for row in every if row[0] < self._start]
        behind = [row for row in every if row[0] >= self._stop]
        yield from before
        if len(before) + len(behind) < len(every):
            yield Damage(
                before[-1][0] if before else None, behind[0][0] if behind else None, "checksum mismatch", "000007.sst"
            )
        yield from behind


def audited(source: Hole) -> list[Problem]:
    """The findings of an audit."""
    found: list[Problem] = []
    each = Audit(source, found.append, deep=True)
    each.begin()
    each.run()
    return found


@pytest.mark.parametrize(
    ("family", "prefix", "lost", "said", "repairs"),
    [
        (Family.ROWS, PEOPLE, [2], "rows of tables behind id=2, before id=4", "rows behind id=2, before id=4"),
        (
            Family.ROWS,
            ORDERS,
            [0, 1],
            "rows of tables of app.people, app.orders",
            "rows of tables (app.people",
        ),
        (Family.INDEXES, PEOPLE, [1, 2, 3, 4], "entries of indexes of app.people", "entries of indexes, which can't"),
        (Family.TABLES, TABLE_ROWS, [0], "definitions of tables", "definitions of tables, routes or users"),
    ],
)
def test_what_can_not_be_read_is_all_that_is_told(
    family: Family, prefix: bytes, lost: list[int], said: str, repairs: str, sound: MemoryStore
) -> None:
    """Rows whose entries can't be read, and entries whose rows can't, are no contradictions."""
    there = [key for key, _ in sound.scan(family, prefix, prefix + b"\xff" * 40)]
    source = Hole(sound, family, there[lost[0]], there[lost[-1] + 1])
    found = audited(source)
    assert [each.kind for each in found] == ["unreadable"], found
    assert found[0].text.startswith(said)
    assert found[0].file == "000007.sst"
    done = repaired(source)
    assert any(repairs in action.text for action in done.actions), done.actions
    world = started(done)
    if family is Family.TABLES:
        assert len(world.sql("SELECT * FROM recovered.table_1")) == 6
    else:
        gone = 3 if (family, prefix) == (Family.ROWS, PEOPLE) else None
        people = [row[0] for row in world.sql("SELECT id FROM people ORDER BY id")]
        assert people == [number for number in range(1, 7) if number != gone]
