"""SQL, and messages of topics, through both clients."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from topics_client import (
    ConflictError,
    InvalidRequestError,
    LiveCaughtUp,
    LiveChange,
    LiveGap,
    LiveSnapshot,
    NotFoundError,
    TopicsClient,
)


@dataclass
class City:
    name: str
    people: int | None
    founded: date | None = None


@pytest.fixture
def space(name: str) -> str:
    """A namespace that no other test has."""
    return name.partition(".")[0]


def test_rows_are_dicts_or_values_of_a_type(client: TopicsClient, space: str) -> None:
    made = client.sql(f"CREATE TABLE {space}.cities (name TEXT PRIMARY KEY, people BIGINT, founded DATE)")
    assert (len(made), made.message) == (0, "CREATE TABLE")
    cities = [("Riga", 605_802, date(1201, 1, 1)), ("Atlantis", None, None)]
    assert client.sql_many(f"INSERT INTO {space}.cities VALUES ($1, $2, $3)", cities).row_count == 2
    assert client.sql_many("INSERT INTO x VALUES ($1)", []).row_count == 0
    query = "SELECT * FROM cities ORDER BY name DESC"
    found = client.sql(query, namespace=space, repeatable=True)
    assert next(iter(found)) == {"name": "Riga", "people": 605_802, "founded": date(1201, 1, 1)}
    assert found.tuples[1] == ("Atlantis", None, None)
    assert [column.data_type for column in found.columns] == ["TEXT", "BIGINT", "DATE"]
    typed = client.sql(query, namespace=space, of=City)
    assert typed.rows == [City("Riga", 605_802, date(1201, 1, 1)), City("Atlantis", None)]
    assert client.sql("SELECT people FROM cities WHERE name = $1", ["Riga"], namespace=space).scalar() == 605_802
    assert client.sql("SELECT * FROM cities WHERE people > 0", namespace=space, of=City).one().name == "Riga"
    with pytest.raises(NotFoundError):
        client.sql("SELECT * FROM cities WHERE people < 0", namespace=space).one()
    with pytest.raises(InvalidRequestError):
        client.sql("SELECT * FROM cities", namespace=space).scalar()


def test_values_come_back_as_they_went(client: TopicsClient, space: str) -> None:
    client.sql(
        f"CREATE TABLE {space}.v (id INT PRIMARY KEY, a DECIMAL(10,2), b TIMESTAMP, c UUID, d BYTES, e JSON, f DOUBLE)"
    )
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    values = (Decimal("1.50"), moment, UUID(int=7), b"\0\xff", {"a": [1, None]}, 2.0)
    client.sql(f"INSERT INTO {space}.v VALUES (1, $1, $2, $3, $4, $5, $6)", values)
    assert client.sql(f"SELECT a, b, c, d, e, f FROM {space}.v").tuples == [values]
    with pytest.raises(InvalidRequestError, match="no type"):
        client.sql("SELECT $1", [object()])


def test_scripts_and_errors(client: TopicsClient, space: str) -> None:
    table = f"CREATE TABLE {space}.t (id INT PRIMARY KEY)"
    script = f"{table}; BEGIN; INSERT INTO {space}.t VALUES (1); COMMIT; SELECT id FROM {space}.t"
    assert [result.row_count for result in client.sql_script(script)] == [0, 0, 1, 0, 1]
    with pytest.raises(ConflictError) as error:
        client.sql(f"SELECT 1;\n INSERT INTO {space}.t VALUES (1)")
    assert (error.value.reason, error.value.sqlstate) == ("unique_violation", "23505")
    assert (error.value.line, error.value.statement) == (2, 1)
    with pytest.raises(InvalidRequestError) as refused:
        client.sql("SELECT 1;\nSELEC 2")
    assert (refused.value.reason, refused.value.line, refused.value.column) == ("syntax_error", 2, 1)


def test_messages(client: TopicsClient, space: str) -> None:
    client.sql_script(
        f"CREATE TABLE {space}.t (id INT PRIMARY KEY, name TEXT); CREATE TOPIC {space}.events;"
        f"ALTER TOPIC {space}.events ADD SOURCE {space}.t ON INSERT WITH (payload = 'full')"
    )
    topic = f"{space}.events"
    assert len(client.consume(topic, group="new")) == 0, "the group begins here"
    client.sql_many(f"INSERT INTO {space}.t VALUES ($1, $2)", [(1, "a"), (2, "b"), (3, "c")])
    page = client.consume(topic, group="g", start="earliest", limit=2)
    assert [(message.offset, message.op, message.value) for message in page] == [
        (0, "Insert", {"id": 1, "name": "a"}),
        (1, "Insert", {"id": 2, "name": "b"}),
    ]
    assert (page.next_offset, page.has_more, page.gap) == (2, True, None)
    first = page[0]
    assert (first.source_table, first.payload_mode, first.key) == (f"{space}.t", "Full", "1")
    assert client.acknowledge(topic, 1, group="g") == 1
    assert client.acknowledge(topic, 0, group="g") == 1
    assert [message.offset for message in client.consume(topic, group="g")] == [2]
    assert [message.offset for message in client.consume(topic, group="g", start=0)] == [0, 1, 2]
    assert len(client.consume(topic, group="new", wait=5)) == 3
    with pytest.raises(InvalidRequestError):
        client.acknowledge(topic, 99, group="g")
    with pytest.raises(NotFoundError):
        client.consume(f"{space}.nothing", group="g")
    first, second = [client.consume(topic, group="w", start="earliest", limit=2, claim_seconds=60) for _ in range(2)]
    assert first.claim is not None
    assert second.claim is not None
    assert (first.claim.from_offset, first.claim.to_offset, first.claim.visibility_seconds) == (0, 1, 60)
    assert client.acknowledge(topic, group="w", claim=second.claim) == -1
    assert client.acknowledge(topic, 0, group="w", claim=first.claim.claim_id) == 0
    assert client.acknowledge(topic, group="w", claim=first.claim) == 2
    assert client.consume(topic, group="w", claim_seconds=60).claim is None
    with pytest.raises(InvalidRequestError):
        client.consume(topic, group="g", start="middle")  # type: ignore[arg-type]


def test_a_live_query_is_a_snapshot_and_changes(client: TopicsClient, space: str) -> None:
    client.sql(f"CREATE TABLE {space}.t (id INT PRIMARY KEY, price DECIMAL(10, 2))")
    client.sql(f"INSERT INTO {space}.t VALUES (1, 1.5)")
    text = "SELECT id, price FROM t WHERE id < $1"
    with client.subscribe(text, [10], namespace=space) as live:
        events = iter(live)
        first = next(events)
        assert isinstance(first, LiveSnapshot)
        assert first.rows == [{"id": 1, "price": Decimal("1.50")}]
        assert isinstance(next(events), LiveCaughtUp)
        client.sql(f"INSERT INTO {space}.t VALUES (2, 2), (20, 3)")
        change = next(events)
        assert isinstance(change, LiveChange)
        assert (change.op, change.row, change.old) == ("Insert", {"id": 2, "price": Decimal(2)}, None)
        position = live.position
    client.sql(f"DELETE FROM {space}.t")
    with client.subscribe(text, [10], namespace=space, after=position) as live:
        events = iter(live)
        ops = [next(events) for _ in range(2)]
        assert [event.op for event in ops if isinstance(event, LiveChange)] == ["Delete", "Delete"]
    with client.subscribe(text, [10], namespace=space, after="0" * 16 + "-7") as live:
        events = iter(live)
        gap = next(events)
        assert isinstance(gap, LiveGap)
        assert (gap.reason, live.position) == ("unknown", None)
        assert next(events) == LiveSnapshot([], True, gap.to_position)
        client.sql(f"ALTER TABLE {space}.t ADD COLUMN c INT")
        with pytest.raises(ConflictError):
            list(events)
