"""Logs of changes: they fold to the rows, over restarts and power cuts, within bounds; positions that are of no use."""

from random import Random
from typing import Any

import pytest
from table_support import TableWorld, at_write, finished

from support.audit import audit
from topics_service.engine.errors import TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.changelog import ENTRIES, ChangeLog, Position, read_position
from topics_service.engine.tables.live import LiveQuery
from topics_service.storage import keys
from topics_service.storage.store import Family

CHANGES = (
    "INSERT INTO t VALUES ({row}, {number}, 'x') ON CONFLICT (id) DO UPDATE SET a = excluded.a",
    "UPDATE t SET a = a + 1, b = 'b{row}' WHERE id >= {row}",
    "UPDATE t SET a = a WHERE id = {row}",
    "DELETE FROM t WHERE id = {row}",
    "DELETE FROM t",
)


class Reader:
    """A follower at one position."""

    def __init__(self, world: TableWorld) -> None:
        self.position: Position | None = None
        self.rows: dict[Any, Any] = {}
        self.gaps: list[str] = []
        self.read(world)

    def read(self, world: TableWorld) -> None:
        """Go on behind the position, or begin again."""
        table = world.named()
        log = world.tables.changes.begin(table.number)
        select = world.plan("SELECT * FROM t WHERE a IS NOT NULL")
        assert isinstance(select, plans.Select)
        query = LiveQuery(world.tables, plans.Subscribe(table, select, select.filter), ())
        why = "new" if self.position is None else log.why_not(self.position)
        if why is not None:
            self.gaps.append(why)
            self.rows = {row[0]: tuple(row) for row in query.rows() if row is not None}
            at = log.shown
        else:
            assert self.position is not None
            at = self.position.change
        while (entry := log.read(at)) is not None:
            made = query.changes(log, entry)
            for change in () if made is None else made.changes:
                if change.old is not None:
                    assert self.rows.pop(change.old[0]) == tuple(change.old)
                if change.row is not None:
                    assert change.row[0] not in self.rows
                    self.rows[change.row[0]] = tuple(change.row)
            at = entry.last
        self.position = read_position(log.position(at).text)


def seen(world: TableWorld) -> dict[Any, Any]:
    return {row[0]: tuple(row) for row in world.sql("SELECT * FROM t WHERE a IS NOT NULL")}


def change(world: TableWorld, chance: Random, number: int) -> None:
    transaction = world.tables.begin()
    for _ in range(chance.randint(1, 3)):
        text = chance.choice(CHANGES).format(row=chance.randint(0, 6), number=number)
        finished(transaction.run(world.plan(text)))
    transaction.commit()


def make(world: TableWorld, durability: str = "disk") -> None:
    world.sql(f"CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT) WITH (durability = '{durability}')")


def the_log(world: TableWorld) -> ChangeLog:
    return world.tables.changes.begin(world.named().number)


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("bound", [1 << 20, 700])
def test_changes_fold_to_the_rows_over_restarts(durability: str, bound: int) -> None:
    chance, world = Random(f"{durability}{bound}"), TableWorld()
    make(world, durability)
    readers = [Reader(world) for _ in range(3)]
    for number in range(150):
        world.tables.changes.max_bytes = bound
        change(world, chance, number)
        if chance.random() < 0.4:
            world.sync()
        if chance.random() < 0.1:
            world.sync()
            world.start()
        reader = chance.choice(readers)
        reader.read(world)
        assert reader.rows == seen(world)
        if chance.random() < 0.1:
            readers.append(Reader(world))
    world.sync()
    for reader in readers:
        reader.read(world)
        assert reader.rows == seen(world)
        assert set(reader.gaps[1:]) <= ({"too_old", "unknown"} if bound == 700 else set())
    assert the_log(world).nbytes <= bound + bound // 4
    assert not audit(world.store)


def test_a_power_cut_is_a_gap_for_those_who_saw_what_it_took() -> None:
    chance, world = Random(7), TableWorld()
    make(world)
    world.sync()
    reader = Reader(world)
    marks, lost = [], 0
    for number in range(30):
        change(world, chance, number)
        reader.read(world)
        marks.append((world.store.writes, reader.position, dict(reader.rows)))
    for writes, position, _ in marks[::3]:
        left = TableWorld(at_write(world.store, writes))
        for at, behind, rows in marks:
            for others in range(3):  # what others write gets the numbers of what is lost
                again = Reader(left)
                again.position, again.rows, again.gaps = behind, dict(rows), []
                again.read(left)
                assert again.rows == seen(left), (writes, at, others)
                assert again.gaps in ([], ["lost"])
                lost += len(again.gaps)
                if behind == position:
                    assert not again.gaps
                change(left, chance, others)
    assert lost > 100


def test_a_log_lives_as_long_as_it_is_wanted() -> None:
    world = TableWorld()
    make(world)
    world.sql("INSERT INTO t VALUES (1, 1, 'x')")
    assert not world.tables.changes.logs
    log = the_log(world)
    call = print
    log.followers.add(call)
    world.clock.advance(10_000_000)
    world.tables.upkeep()
    assert world.tables.changes.logs
    log.unfollow(call)
    world.sql("INSERT INTO t VALUES (2, 1, 'x')")
    world.tables.upkeep()
    assert log.last == 1
    world.clock.advance(world.tables.changes.idle_ms)
    world.tables.upkeep()
    assert not world.tables.changes.logs
    assert not list(world.store.scan(Family.ROWS, *keys.prefix_range(ENTRIES)))
    assert Reader(world).rows == seen(world)
    world.sql("ALTER TABLE t SET (changes = on)")
    world.clock.advance(world.tables.changes.idle_ms)
    world.tables.upkeep()
    world.sql("TRUNCATE t")
    assert the_log(world).state.is_kept
    world.sql("DROP TABLE t")
    assert not world.tables.changes.logs
    assert not audit(world.store)


def test_a_commit_above_the_bound_is_a_gap() -> None:
    world = TableWorld()
    make(world)
    world.tables.changes.max_bytes = 1000
    reader = Reader(world)
    world.sql("INSERT INTO t VALUES (1, 1, 'x')")
    reader.read(world)
    values = ", ".join(f"({number}, 1, 'x')" for number in range(10, 400))
    world.sql(f"INSERT INTO t VALUES {values}")
    assert the_log(world).nbytes == 0
    world.start()
    world.sql("INSERT INTO t VALUES (2, 1, 'x')")
    reader.read(world)
    assert reader.gaps == ["new", "unknown"]
    assert reader.rows == seen(world)
    world.start()
    world.sql("INSERT INTO t VALUES (3, 1, 'x')")
    reader.read(world)
    assert reader.gaps == ["new", "unknown"]
    assert reader.rows == seen(world)
    assert not audit(world.store)


def test_damage_of_a_log_is_found() -> None:
    world = TableWorld()
    make(world)
    log = the_log(world)
    for number in range(4):
        world.sql(f"INSERT INTO t VALUES ({number}, 1, 'x')")
    key = log.prefix + keys.u64(2)
    batch = world.store.batch()
    batch.delete(Family.ROWS, key)
    world.store.write(batch)
    assert ["changes 2 to 2 are missing" in problem.text for problem in audit(world.store)] == [True]
    batch = world.store.batch()
    batch.put(Family.ROWS, key, b"\x01")
    world.store.write(batch)
    assert any("is damaged" in problem.text for problem in audit(world.store))


@pytest.mark.parametrize(
    "text", ["", "-", "0-1", "z" * 16 + "-1", "0" * 16 + "-", "0" * 16 + "-1x", "0" * 16 + "1", "0" * 9]
)
def test_texts_that_are_no_positions(text: str) -> None:
    with pytest.raises(TopicsError):
        read_position(text)
