"""Random statements on random tables, against SQLite: same rows, same counts, same refusals.

Besides: index entries are those of the rows, and rows are the fold of the events of a full route.
"""

import sqlite3
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import msgspec
import pytest
from table_support import TableWorld, finished

from topics_service.engine.errors import TopicsError
from topics_service.engine.model import DiffRequest
from topics_service.engine.tables import plans
from topics_service.engine.tables.indexing import BUILD_ROWS
from topics_service.engine.tables.removal import REMOVED_ROWS
from topics_service.engine.tables.runtime import TableRuntime, key_length
from topics_service.storage import keys
from topics_service.storage.store import Family

_REFUSALS: Final = {"unique_violation", "not_null_violation", "check_violation"}
_LAST: Final = b"\xff" * 40
_DECODE: Final = msgspec.json.decode


class Life:
    """One table, in both."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.world = TableWorld()
        self.lite = sqlite3.connect(":memory:", isolation_level=None)
        self.columns = ["a", "b", "c", "d"]
        self.key = chance.choice([["a"], ["c"], ["a", "c"], ["c", "a"]])
        self.others = [name for name in self.columns if name not in self.key]
        self.unique = chance.choice([None, None, ("b",), ("d",), ("b", "d")])
        index = chance.choice([None, ("b",), ("d", "b"), ("a", "d")])
        items = ["a INTEGER", "b INTEGER DEFAULT 3", "c TEXT", "d TEXT"]
        if chance.random() < 0.5:
            items[3] += " NOT NULL DEFAULT 'x'"
        if chance.random() < 0.5:
            items.append("CHECK (b < 6)")
        items.append(f"PRIMARY KEY ({', '.join(self.key)})")
        if self.unique is not None:
            items.append(f"UNIQUE ({', '.join(self.unique)})")
        self.world.sql(f"CREATE TABLE app.t ({', '.join(items)})")
        self.lite.execute(f"CREATE TABLE t ({', '.join(items)}) WITHOUT ROWID")
        self.indexed = index
        if index is not None:
            text = f"CREATE INDEX i ON t ({', '.join(index)})"
            self.world.sql(text)
            self.lite.execute(text)
        self.world.sql("CREATE TOPIC app.events")
        for op in ("INSERT", "UPDATE", "DELETE"):
            self.world.sql(f"ALTER TOPIC app.events ADD SOURCE app.t ON {op} WITH (payload = 'full')")

    # ---------------------------------------------------------------- statements

    def value(self, name: str) -> str:
        chance = self.chance
        if name in ("a", "b"):
            return chance.choice(["NULL", *"01234567"]) if name not in self.key else chance.choice("01234567")
        return chance.choice(["NULL", *(f"'{c}'" for c in "uvwx"), "''"][name in self.key :])

    def condition(self) -> str:
        chance = self.chance
        pick = chance.random()
        if pick < 0.35:
            return " AND ".join(f"{name} = {self.value(name)}" for name in self.key)
        if pick < 0.5 and self.indexed is not None:
            first = self.indexed[0]
            return f"{first} {chance.choice(['=', '<', '<=', '>', '>='])} {self.value(first)}"
        name = chance.choice(self.columns)
        return chance.choice(
            [
                f"{name} IS NULL",
                f"{name} IS NOT NULL",
                f"{name} {chance.choice(['=', '<>', '<', '>='])} {self.value(name)}",
                f"a > {self.value('a')} AND a <= 6",
                f"({name} = {self.value(name)} OR c = {self.value('c')})",
                f"NOT (b > {self.value('b')})",
                f"a IN (1, 3, {self.value('a')})",
                f"coalesce(b, a, 0) % 2 = {chance.choice('01')}",
            ]
        )

    def where(self) -> str:
        return f" WHERE {self.condition()}" if self.chance.random() < 0.8 else ""

    def assignments(self, names: Sequence[str], excluded: bool = False) -> str:
        chance = self.chance
        made = []
        for name in names:
            choices = [self.value(name), name]
            if name in ("a", "b"):
                choices += ["a + 1" if name == "b" else "b", "CASE WHEN b > 2 THEN 1 ELSE b END"]
            else:
                choices += [f"{chance.choice('cd')} || 'u'", "c"]
            if excluded:
                choices += [f"excluded.{name}"] * 3
            made.append(f"{name} = {chance.choice(choices)}")
        return ", ".join(made)

    def insert(self) -> str:
        chance = self.chance
        names = [name for name in self.columns if name in self.key or chance.random() < 0.8]
        rows = [f"({', '.join(self.value(name) for name in names)})" for _ in range(chance.randint(1, 4))]
        text = f"INSERT INTO t ({', '.join(names)}) VALUES {', '.join(rows)}"
        pick = chance.random()
        targets = [f"({', '.join(self.key)})"]
        if self.unique is not None:
            targets.append(f"({', '.join(self.unique)})")
        if pick < 0.15:
            text += " ON CONFLICT DO NOTHING"
        elif pick < 0.3:
            text += f" ON CONFLICT {chance.choice(targets)} DO NOTHING"
        elif pick < 0.6:
            names = chance.sample(self.others, chance.randint(1, len(self.others)))
            text += f" ON CONFLICT {chance.choice(targets)} DO UPDATE SET {self.assignments(names, excluded=True)}"
            if chance.random() < 0.4:
                text += " WHERE t.b IS NOT NULL"
        return text

    def update(self) -> str:
        names = self.chance.sample(self.others, self.chance.randint(1, len(self.others)))
        if self.unique is not None and set(names) & set(self.unique):  # else it depends on the order of the rows
            where = f" WHERE {' AND '.join(f'{name} = {self.value(name)}' for name in self.key)}"
        else:
            where = self.where()
        return f"UPDATE t SET {self.assignments(names)}{where}"

    def change(self) -> str:
        pick = self.chance.random()
        text = self.insert() if pick < 0.55 else self.update() if pick < 0.85 else f"DELETE FROM t{self.where()}"
        return text + (" RETURNING *" if self.chance.random() < 0.3 else "")

    def query(self) -> str:
        chance = self.chance
        pick = chance.random()
        if pick < 0.2:
            return f"SELECT count(*) FROM t{self.where()}"
        order = [f"{name} {chance.choice(['ASC', 'DESC'])}" for name in chance.sample(self.columns, 2)]
        whole = [*(f"{each} NULLS {chance.choice(['FIRST', 'LAST'])}" for each in order), *self.key]
        text = f"SELECT a, b, c, d, coalesce(b, -1) + 1 FROM t{self.where()} ORDER BY {', '.join(whole)}"
        if pick < 0.5:
            text = f"SELECT * FROM t{self.where()} ORDER BY {', '.join(f'{name} DESC' for name in self.key)}"
        if chance.random() < 0.5:
            text += f" LIMIT {chance.randint(0, 5)} OFFSET {chance.randint(0, 3)}"
        return text

    # ------------------------------------------------------------------- running

    def lite_rows(self, text: str) -> tuple[str, Any, int]:
        before = self.lite.total_changes
        try:
            rows = self.lite.execute(text).fetchall()
        except sqlite3.IntegrityError as error:
            kind = str(error).split()[0]
            return {"UNIQUE": "unique_violation", "NOT": "not_null_violation", "CHECK": "check_violation"}[kind], (), 0
        return "", rows, self.lite.total_changes - before

    def run(self, transaction: Any, text: str) -> tuple[str, Any, int]:
        plan = self.world.plan(text)
        try:
            outcome = finished(transaction.run(plan))
        except TopicsError as error:
            return error.reason.code, (), 0
        return "", [tuple(row) for row in outcome.rows], outcome.row_count

    def compare(self, text: str, ours: tuple[str, Any, int], lite: tuple[str, Any, int]) -> None:
        assert (ours[0], ours[2]) == (lite[0], lite[2]), (text, ours, lite)
        assert sorted(map(repr, ours[1])) == sorted(map(repr, lite[1])), text

    def single(self) -> None:
        """One statement, a commit of its own."""
        text = self.change()
        transaction = self.world.tables.begin()
        ours = self.run(transaction, text)
        if not ours[0]:
            transaction.commit()
        transaction.rollback()
        self.compare(text, ours, self.lite_rows(text))

    def several(self) -> None:
        """A transaction with savepoints; one whose statement fails is rolled back, at least to the savepoint."""
        transaction, lite = self.world.tables.begin(), self.lite
        lite.execute("BEGIN")
        saved = 0
        for _ in range(self.chance.randint(1, 6)):
            pick = self.chance.random()
            if pick < 0.2:
                saved += 1
                transaction.savepoint(f"s{saved}")
                lite.execute(f"SAVEPOINT s{saved}")
                continue
            if pick < 0.3 and saved:
                transaction.rollback_to(f"s{saved}")
                lite.execute(f"ROLLBACK TO s{saved}")
                continue
            if pick < 0.35 and saved:
                transaction.release(f"s{saved}")
                lite.execute(f"RELEASE s{saved}")
                saved -= 1
                continue
            text = self.query() if pick < 0.5 else self.change()
            ours, theirs = self.run(transaction, text), self.lite_rows(text)
            if text.startswith("SELECT"):
                assert ours[1] == theirs[1], text
                continue
            self.compare(text, ours, theirs)
            if ours[0]:
                assert ours[0] in _REFUSALS
                if not saved:
                    transaction.rollback()
                    lite.execute("ROLLBACK")
                    return
                transaction.rollback_to(f"s{saved}")
                lite.execute(f"ROLLBACK TO s{saved}")
        if self.chance.random() < 0.2:
            transaction.rollback()
            lite.execute("ROLLBACK")
        else:
            transaction.commit()
            lite.execute("COMMIT")

    def step(self) -> None:
        pick = self.chance.random()
        if pick < 0.4:
            self.single()
        elif pick < 0.65:
            self.several()
        elif pick < 0.95:
            text = self.query()
            self.world.sync()
            assert self.world.sql(text) == self.lite.execute(text).fetchall(), text
        else:
            self.world.sync()
            self.world.kill()

    def check(self) -> None:
        """The whole table, its indexes, its events."""
        self.world.sync()
        order = ", ".join(self.key)
        rows = self.world.sql(f"SELECT * FROM t ORDER BY {order}")
        assert rows == self.lite.execute(f"SELECT * FROM t ORDER BY {order}").fetchall()
        check_entries(self.world)
        fold: dict[Any, tuple[Any, ...]] = {}
        for op, data in events(self.world, "app.events"):
            row = tuple(data[name] for name in self.columns)
            key = tuple(data[name] for name in self.key)
            assert (key in fold) == (op != "Insert")
            if op == "Delete":
                assert fold.pop(key) == row
            else:
                assert fold.get(key) != row, "an event without a change"
                fold[key] = row
        assert sorted(fold.values(), key=repr) == sorted(rows, key=repr)


def events(world: TableWorld, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """Ops and payloads of the events of a topic."""
    found: list[tuple[str, dict[str, Any]]] = []
    cursor, head = 0, world.engine.get_topic(topic).head_seq
    while cursor < head:
        page = world.engine.diff(DiffRequest(topic=topic, from_seq=cursor, limit=1000))
        for part in page.slices:
            metas = part.block.metas
            assert metas is not None
            for i in range(part.start, part.stop):
                meta = metas[i]
                assert meta is not None
                found.append((_DECODE(meta)["op"], _DECODE(part.block.record_data(i))))
        cursor = page.next_from_seq
    return found


def check_entries(world: TableWorld) -> None:
    """Every index has the entries of the rows of its table, and no others are there."""
    world.upkeep()
    expected: dict[bytes, bytes] = {}
    for table in world.tables.newest.tables.values():
        runtime = TableRuntime(table, world.tables.environment)
        for key, stored in world.store.scan(Family.ROWS, *keys.prefix_range(runtime.prefix)):
            row = runtime.read(stored)
            assert runtime.key(row) == key
            expected |= {index.head(row) + key[8:]: key_length(key) for index in runtime.indexes}
    assert dict(world.store.scan(Family.INDEXES, b"", _LAST)) == expected
    for kind in (BUILD_ROWS, REMOVED_ROWS):
        assert not list(world.store.scan(Family.TABLES, *keys.prefix_range(kind)))
    numbers = {keys.read_u64(key) for key, _ in world.store.scan(Family.ROWS, b"", _LAST)}
    assert numbers <= world.tables.newest.tables.keys()


@pytest.mark.parametrize("seed", range(60))
def test_statements_do_what_sqlite_does(seed: int) -> None:
    life = Life(Random(seed))
    for _ in range(25):
        life.step()
    life.check()
    life.world.kill()
    life.check()


def test_the_plans_of_the_model_use_keys_and_indexes() -> None:
    accesses = set()
    for seed in range(30):
        life = Life(Random(seed))
        for _ in range(10):
            source = life.world.plan(life.query()).source
            access = source.access
            accesses.add("lookup" if isinstance(access, plans.Lookup) else f"{access.index}{access.reverse}")
            if isinstance(access, plans.Scan) and access.lower is not None:
                accesses.add("range")
    assert {"lookup", "NoneTrue", "NoneFalse", "range"} <= accesses
    assert any(each[:1] in "12" for each in accesses)
