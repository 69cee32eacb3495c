"""Rows of tables: made, read, changed, removed."""

import pytest
from table_support import TableWorld, by_key, delete, insert, update

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables import plans


@pytest.fixture
def world() -> TableWorld:
    return TableWorld()


def test_rows_come_change_and_go(world: TableWorld) -> None:
    t = world.create()
    assert world.run(insert(t, (1, 10, "x"), (2, None, "y"))).row_count == 2
    assert world.rows(t) == [(1, 10, "x"), (2, None, "y")]
    assert world.rows(t, by_key(2, 3)) == [(2, None, "y")]
    assert world.run(update(t, by_key(1), b="z")).row_count == 1
    assert world.run(delete(t, by_key(2))).row_count == 1
    assert world.rows(t) == [(1, 10, "z")]
    world.kill()
    assert world.rows(world.named()) == [(1, 10, "z")]


def test_index(world: TableWorld) -> None:
    t = world.create()
    world.run(insert(t, *((n, n % 5, f"b{n}") for n in range(50))))
    t = world.index(t, "by_a", "a")
    from table_support import literal

    access = plans.Scan(index=1, prefix=(literal(3),))
    assert [row[0] for row in world.rows(t, access)] == list(range(3, 50, 5))
    access = plans.Scan(index=1, prefix=(literal(3),), reverse=True)
    assert [row[0] for row in world.rows(t, access)] == list(range(3, 50, 5))[::-1]
    world.run(update(t, by_key(3), a=4))
    assert [row[0] for row in world.rows(t, access)] == list(range(8, 50, 5))[::-1]
    with pytest.raises(TopicsError):
        world.index(t, "one", "a", unique=True)
    t = world.index(world.named(), "by_b", "b", unique=True)
    with pytest.raises(TopicsError):
        world.run(insert(t, (100, 1, "b7")))
