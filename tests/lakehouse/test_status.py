"""The output of status, and the problems that it finds."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from support.lake_runs import follow, settings
from support.lake_tables import make_table
from support.spark import Server, put_topic
from topics_client.connection import Connection
from topics_client.retry import Retry
from topics_lakehouse.catalog import identifier, open_catalog
from topics_lakehouse.compact import Compaction, compact
from topics_lakehouse.config import Config
from topics_lakehouse.status import TopicStatus, status
from topics_proto.v1 import topics_service_pb2 as pb

Fill = Callable[..., int]


def _status(config: Config, connection: Connection) -> list[TopicStatus]:
    return status(config, open_catalog(config), connection)


def _delete(connection: Connection, topic: str) -> None:
    connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic=topic), repeatable=True)


def test_a_topic_in_order(server: Server, connection: Connection, fill: Fill, tmp_path: Path) -> None:
    topic = {"name": "status-order", "table": "orders", "schema": "id bigint"}
    config = settings(server, tmp_path, topic)
    put_topic(connection, "status-order", partitions=2)
    fill("status-order", 30, data=lambda i: '{"id": "x"}' if i % 10 == 0 else '{"id": 1}')
    follow(config)
    fill("status-order", 10, partition=1)
    follow(config)
    compact(open_catalog(config).load_table(identifier(config, "status-order")), Compaction(thorough=True))
    fill("status-order", 5, partition=1)
    (found,) = _status(config, connection)
    assert found.problems == []
    assert (found.topic, found.table) == ("status-order", "topics.orders")
    assert (found.positions, found.heads, found.lag) == ({0: 30, 1: 10}, {0: 30, 1: 15}, 5)
    assert (found.rows, found.files, found.snapshots, found.errors, found.gaps) == (40, 2, 2, 3, 0)
    assert found.bytes > 0
    assert found.last_commit is not None
    assert abs((datetime.now(UTC) - found.last_commit).total_seconds()) < 60
    told = found.as_json()
    assert told["positions"] == {"0": 30, "1": 10}
    assert datetime.fromisoformat(told["last_commit"]).tzinfo is not None


def test_gaps_are_counted_and_lag_is_what_can_be_read(
    server: Server, connection: Connection, fill: Fill, tmp_path: Path
) -> None:
    put_topic(connection, "status-gaps", cap_records=10)
    fill("status-gaps", 100)
    config = settings(server, tmp_path, "status-gaps")
    assert [(each.lag, each.problems) for each in _status(config, connection)] == [(10, ["there is no table yet"])]
    follow(config)
    (found,) = _status(config, connection)
    assert (found.lag, found.gaps, found.rows, found.problems) == (0, 1, 10, [])


def test_a_topic_that_is_gone_or_was_made_again(
    server: Server, connection: Connection, fill: Fill, tmp_path: Path
) -> None:
    config = settings(server, tmp_path, "status-gone", "status-never")
    fill("status-gone", 3)
    fill("status-never", 3)
    follow(config)
    _delete(connection, "status-gone")
    _delete(connection, "status-never")
    open_catalog(config).drop_table(identifier(config, "status-never"))
    gone, never = _status(config, connection)
    assert gone.problems == ["the topic does not exist, only its table"]
    assert (gone.lag, gone.heads, gone.rows) == (None, None, 3)
    assert never.problems == ["the topic does not exist"]
    fill("status-gone", 7)
    (again,) = _status(settings(server, tmp_path, "status-gone"), connection)
    assert again.problems[0].startswith("the topic was deleted and recreated: the table follows top_")
    assert again.lag == 7


def test_patterns_find_topics_and_tables_that_are_left(
    server: Server, connection: Connection, fill: Fill, tmp_path: Path
) -> None:
    config = settings(server, tmp_path, {"pattern": r"status-pattern\..*"})
    fill("status-pattern.a", 3)
    fill("status-pattern.b", 3)
    follow(config)
    _delete(connection, "status-pattern.a")
    fill("status-pattern.c", 1)
    assert [(each.topic, len(each.problems)) for each in _status(config, connection)] == [
        ("status-pattern.a", 1),
        ("status-pattern.b", 0),
        ("status-pattern.c", 1),
    ]


def test_a_table_that_someone_changed(server: Server, connection: Connection, fill: Fill, tmp_path: Path) -> None:
    config = settings(server, tmp_path, {"name": "status-changed", "schema": "id bigint, kind2 string"})
    fill("status-changed", 3)
    follow(config)
    catalog = open_catalog(config)
    table = catalog.load_table(identifier(config, "status-changed"))
    with table.update_schema() as update:
        update.delete_column("tag")
    wedged = settings(server, tmp_path, {"name": "status-changed", "schema": "id string"})
    (found,) = _status(wedged, connection)
    assert any("column tag is missing" in each for each in found.problems)
    assert any("column id is declared as string" in each for each in found.problems)
    with table.transaction() as transaction:
        transaction.set_properties({"topics.positions": "what"})
    (found,) = _status(config, connection)
    assert any("topics.positions" in each for each in found.problems)
    catalog.drop_table(identifier(config, "status-changed"))
    make_table(catalog, "status_changed")  # type: ignore[arg-type]
    (found,) = _status(config, connection)
    assert any("is not one of the lakehouse's" in each for each in found.problems)


def test_a_table_that_is_ahead_of_its_topic(server: Server, connection: Connection, fill: Fill, tmp_path: Path) -> None:
    config = settings(server, tmp_path, "status-ahead")
    fill("status-ahead", 3)
    follow(config)
    table = open_catalog(config).load_table(identifier(config, "status-ahead"))
    with table.transaction() as transaction:
        transaction.set_properties({"topics.positions": '{"0": 9}'})
    (found,) = _status(config, connection)
    assert found.problems == ["the table is at seq 9 of partition 0, the topic at 3: the server has lost records"]


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    with Server(tmp_path / "server") as server:
        config = settings(server, tmp_path / "lake", "status-away")
        with server.connect() as connection:
            put_topic(connection, "status-away")
        follow(config)
    with Connection(config.address, retry=Retry(seconds=0)) as connection:
        (found,) = _status(config, connection)
    assert len(found.problems) == 1
    assert found.problems[0].startswith("the server does not answer: ")
    assert found.heads is None


def test_what_is_not_known_is_none() -> None:
    told = TopicStatus("a", "topics.a").as_json()
    assert (told["lag"], told["heads"], told["last_commit"]) == (None, None, None)
