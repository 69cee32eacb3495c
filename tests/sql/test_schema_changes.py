"""Columns that come, go, change their names and become wider: old rows read as if each change had rewritten them."""

import random
from typing import Any

import pytest

from support.sql_world import SqlWorld

WIDER = {
    "SMALLINT": ["INT", "BIGINT"], "INT": ["BIGINT"], "REAL": ["DOUBLE"], "VARCHAR(3)": ["VARCHAR(9)", "TEXT"],
    "VARCHAR(9)": ["TEXT"],
}  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "SMALLINT": [0, -7, 32767], "INT": [1 << 30, -1], "BIGINT": [1 << 62, 5], "REAL": [0.5, -2.25],
    "DOUBLE": [0.1, 1e300],
    "VARCHAR(3)": ["", "abc"], "VARCHAR(9)": ["abcdefghi"], "TEXT": ["x" * 50, "ä"], "BOOLEAN": [True, False],
}  # fmt: skip


class Model:
    """The table as it is to be: columns with their types and defaults in order, rows by key."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = SqlWorld()
        self.columns: dict[str, str] = {}
        self.defaults: dict[str, Any] = {}
        self.rows: dict[int, dict[str, Any]] = {}
        self.names = 0
        self.world.run("CREATE TABLE t (id BIGINT PRIMARY KEY)")

    def fresh(self) -> str:
        self.names += 1
        return f"c{self.names}"

    def value(self, column: str) -> Any:
        return None if self.rng.random() < 0.2 else self.rng.choice(VALUES[self.columns[column]])

    def literal(self, value: Any) -> str:
        return f"'{value}'" if isinstance(value, str) else str(value)

    def insert(self) -> None:
        key = len(self.rows)
        named = [name for name in self.columns if self.rng.random() < 0.7]
        given = {name: self.value(name) for name in named}
        marks = ", ".join(f"${n}" for n in range(1, len(named) + 2))
        self.world.run(f"INSERT INTO t ({', '.join(['id', *named])}) VALUES ({marks})", key, *given.values())
        self.rows[key] = {name: given.get(name, self.defaults.get(name)) for name in self.columns}

    def update(self) -> None:
        if self.rows and self.columns:
            key, name = self.rng.choice(list(self.rows)), self.rng.choice(list(self.columns))
            value = self.value(name)
            self.world.run(f"UPDATE t SET {name} = $1 WHERE id = $2", value, key)
            self.rows[key][name] = value

    def add(self) -> None:
        name, kind = self.fresh(), self.rng.choice(list(VALUES))
        self.columns[name] = kind
        text = ""
        if self.rng.random() < 0.5:
            self.defaults[name] = self.rng.choice(VALUES[kind])
            text = f" DEFAULT {self.literal(self.defaults[name])}"
        self.world.run(f"ALTER TABLE t ADD COLUMN {name} {kind}{text}")
        for row in self.rows.values():
            row[name] = self.defaults.get(name)

    def drop(self) -> None:
        if self.columns:
            name = self.rng.choice(list(self.columns))
            self.world.run(f"ALTER TABLE t DROP COLUMN {name}")
            del self.columns[name]
            self.defaults.pop(name, None)
            for row in self.rows.values():
                del row[name]

    def rename(self) -> None:
        if self.columns:
            old, new = self.rng.choice(list(self.columns)), self.fresh()
            self.world.run(f"ALTER TABLE t RENAME COLUMN {old} TO {new}")
            self.columns = {new if name == old else name: kind for name, kind in self.columns.items()}
            if old in self.defaults:
                self.defaults[new] = self.defaults.pop(old)
            for row in self.rows.values():
                row[new] = row.pop(old)

    def widen(self) -> None:
        names = [name for name, kind in self.columns.items() if kind in WIDER]
        if names:
            name = self.rng.choice(names)
            self.columns[name] = self.rng.choice(WIDER[self.columns[name]])
            self.world.run(f"ALTER TABLE t ALTER COLUMN {name} TYPE {self.columns[name]}")

    def default(self) -> None:
        if self.columns:
            name = self.rng.choice(list(self.columns))
            self.defaults[name] = self.rng.choice(VALUES[self.columns[name]])
            self.world.run(f"ALTER TABLE t ALTER COLUMN {name} SET DEFAULT {self.literal(self.defaults[name])}")

    def restart(self) -> None:
        self.world.restart()

    def check(self) -> None:
        names = ["id", *self.columns]
        assert self.world.rows("SELECT * FROM t") == [
            tuple({"id": key, **row}[name] for name in names) for key, row in self.rows.items()
        ]
        if self.columns:
            name = self.rng.choice(list(self.columns))
            wanted = [(key,) for key, row in self.rows.items() if row[name] is None]
            assert self.world.rows(f"SELECT id FROM t WHERE {name} IS NULL") == wanted


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_all_versions(seed: int) -> None:
    model = Model(seed)
    changes = [model.add, model.add, model.drop, model.rename, model.widen, model.default]
    for _ in range(60):
        model.rng.choice([*[model.insert] * 4, model.update, model.restart, *changes])()
        model.check()
