"""Topics that become tables: content, typed columns, gaps, and changes of topics and tables during the run."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType, StringType

from support.lake_runs import LocalRunner, follow, settings
from support.lake_truth import Lake
from support.spark import Server, fill, put_topic, rows
from topics_client.connection import Connection
from topics_lakehouse.catalog import GAPS, POSITIONS, TOPIC, identifier, table_state
from topics_lakehouse.config import Config
from topics_lakehouse.follower import ABSENT, FAILED, LIVE, Status
from topics_lakehouse.pipeline import Pipeline
from topics_proto.v1 import topics_service_pb2 as pb


def _failed(config: Config) -> Status:
    """Where a pipeline whose only topic can't be kept ends."""
    pipeline = Pipeline(config, LocalRunner())
    try:
        assert not pipeline.once()
        (status,) = pipeline.statuses
        assert status.state in (FAILED, ABSENT)
        return status
    finally:
        pipeline.close()


def _delete(connection: Connection, topic: str) -> None:
    connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic=topic), repeatable=False)


def test_a_table_is_its_topic_row_for_row(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "all.kinds", partitions=3)
    fill(connection, "all.kinds", 2500, tag=lambda i: None if i % 3 else f"t{i}", meta='{"a": 1}', node="n1")
    fill(connection, "all.kinds", 300, partition=1, data=lambda i: bytes([i % 256, 0, 255]), kind="binary")
    fill(connection, "all.kinds", 20, partition=1, tag="", data=b" null ")
    config = settings(server, tmp_path, "all.kinds")
    follow(config)
    lake = Lake(config)
    assert lake.records("all.kinds") == rows(connection, "all.kinds")
    assert lake.gaps("all.kinds") == []
    table = lake.catalog.load_table("topics.all_kinds")
    assert table_state(table).positions == {0: 2500, 1: 320}
    summary = table.current_snapshot().summary
    assert summary["topics.ranges"] == '{"0": [1, 2500], "1": [1, 320]}'
    follow(config)
    assert lake.catalog.load_table("topics.all_kinds").metadata_location == table.metadata_location


def test_later_records_are_added(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "grows")
    config = settings(server, tmp_path, "grows", max_records_per_round=100, task_records=30)
    pipeline = Pipeline(config, LocalRunner())
    assert pipeline.once()
    for n in (1, 250, 7):
        fill(connection, "grows", n)
        assert pipeline.once()
        assert Lake(config).records("grows") == rows(connection, "grows")
    (status,) = pipeline.statuses
    assert (status.state, status.lag, status.records, status.positions) == (LIVE, 0, 258, {0: 258})
    assert pipeline.metrics.rounds == 5
    assert pipeline.metrics.records == 258
    pipeline.close()


def test_deleted_records_leave_nothing(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "holes")
    fill(connection, "holes", 100, tag=lambda i: "odd" if i % 2 else "even")
    request = pb.DeleteRecordsRequest(topic="holes")
    request.match.eq = "odd"
    connection.unary(connection.topics.DeleteRecords, request, repeatable=True)
    config = settings(server, tmp_path, "holes")
    follow(config)
    assert len(Lake(config).records("holes")) == 50
    assert Lake(config).records("holes") == rows(connection, "holes")
    assert Lake(config).gaps("holes") == []


def test_typed_columns_and_what_does_not_fit(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "typed")
    texts = [b'{"id":1,"at":"2026-01-02T03:04:05Z","items":[{"sku":"a","n":2}],"attrs":{"k":"v"},"price":1.25}']
    texts += [b'{"id":"one"}', b"[1]", b'{"other":true}']
    fill(connection, "typed", 4, data=texts)
    fill(connection, "typed", 1, data=b"\x00", kind="binary")
    declared = "id bigint, at timestamp, items array<struct<sku: string, n: smallint>>, attrs map<string, string>"
    config = settings(server, tmp_path, {"name": "typed", "schema": f"{declared}, price decimal(10, 2)"})
    follow(config)
    lake = Lake(config)
    assert lake.records("typed") == rows(connection, "typed")
    found = lake.rows("typed")
    assert (found[0]["id"], found[0]["at"].isoformat()) == (1, "2026-01-02T03:04:05+00:00")
    assert found[0]["items"] == [{"sku": "a", "n": 2}]
    assert (found[0]["attrs"], str(found[0]["price"])) == ([("k", "v")], "1.25")
    (file,) = lake.catalog.load_table("topics.typed").scan().plan_files()
    stored = pq.read_table(file.file.file_path.removeprefix("file://")).to_pylist()  # PyIceberg reads a null list as []
    assert all(stored[i][name] is None for i in range(1, 5) for name in ("id", "at", "items", "attrs", "price"))
    assert lake.errors("typed") == [(0, 2), (0, 3), (0, 5)]
    errors = {row["seq"]: row for row in lake.rows("typed", "errors")}
    assert "$.id" in errors[2]["reason"]
    assert (errors[2]["data"], errors[5]["reason"]) == (b'{"id":"one"}', "a binary record")


def test_evicted_ranges_are_gaps(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "short", cap_records=100, partitions=2)
    fill(connection, "short", 1000)
    config = settings(server, tmp_path, "short")
    follow(config)
    fill(connection, "short", 1000)
    follow(config)
    lake = Lake(config)
    assert lake.gaps("short") == [(0, 1, 900), (0, 1001, 1900)]
    gap = lake.rows("short", GAPS)[0]
    assert (gap["reason"], gap["missed_estimate"]) == ("cap", 900)
    assert [row.seq for row in lake.records("short")] == [*range(901, 1001), *range(1901, 2001)]


def test_a_topic_whose_records_are_all_gone(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "emptied")
    fill(connection, "emptied", 10)
    request = pb.DeleteRecordsRequest(topic="emptied", before_seq=11)
    connection.unary(connection.topics.DeleteRecords, request, repeatable=True)
    config = settings(server, tmp_path, "emptied")
    follow(config)
    lake = Lake(config)
    assert lake.records("emptied") == []
    assert table_state(lake.catalog.load_table("topics.emptied")).positions == {0: 10}


def test_columns_are_added_widened_and_no_longer_declared(
    server: Server, connection: Connection, tmp_path: Path
) -> None:
    put_topic(connection, "evolves")
    fill(connection, "evolves", 10)
    for declared in ("id int", "id bigint, amount double", "amount double", "", "id bigint, text string"):
        config = settings(server, tmp_path, {"name": "evolves", "schema": declared})
        follow(config)
        fill(connection, "evolves", 10)
    follow(config)
    lake = Lake(config)
    assert lake.records("evolves") == rows(connection, "evolves")
    found = lake.rows("evolves")
    assert [row["id"] is None for row in found[::10]] == [False, False, True, True, False, False]
    assert [row["amount"] is None for row in found[::10]] == [True, False, False, True, True, True]
    assert isinstance(lake.catalog.load_table("topics.evolves").schema().find_field("id").field_type, LongType)


def test_a_type_that_can_not_become_another_wedges_nothing(
    server: Server, connection: Connection, tmp_path: Path
) -> None:
    put_topic(connection, "stuck")
    fill(connection, "stuck", 3)
    follow(settings(server, tmp_path, {"name": "stuck", "schema": "id bigint"}))
    fill(connection, "stuck", 2, data=[b'{"id":"text"}', b'{"id":7}'])
    config = settings(server, tmp_path, {"name": "stuck", "schema": "id string"})
    pipeline = Pipeline(config, LocalRunner())
    assert pipeline.once()
    assert pipeline.statuses[0].conflicts == ["column id is declared as string but stays long, which can't become that"]
    pipeline.close()
    lake = Lake(config)
    assert [row["id"] for row in lake.rows("stuck")] == [0, 1, 2, None, 7]
    assert lake.errors("stuck") == [(0, 4)]


def test_columns_that_others_add_stay(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "shared")
    fill(connection, "shared", 5)
    config = settings(server, tmp_path, {"name": "shared", "schema": "id bigint"})
    pipeline = Pipeline(config, LocalRunner())
    assert pipeline.once()
    with Lake(config).catalog.load_table("topics.shared").update_schema() as update:
        update.add_column("note", StringType())
    fill(connection, "shared", 5)
    assert pipeline.once()
    pipeline.close()
    fill(connection, "shared", 5)
    follow(config)
    assert Lake(config).records("shared") == rows(connection, "shared")
    assert {row["note"] for row in Lake(config).rows("shared")} == {None}


def test_a_recreated_topic_is_refused(server: Server, connection: Connection, tmp_path: Path) -> None:
    old = put_topic(connection, "again")
    fill(connection, "again", 5)
    config = settings(server, tmp_path, "again")
    follow(config)
    before = Lake(config).records("again")
    _delete(connection, "again")
    new = put_topic(connection, "again")
    fill(connection, "again", 50)
    reason = _failed(config).reason
    assert all(each in reason for each in ("topics.again", old, new, "on_recreate"))
    assert Lake(config).records("again") == before


def test_a_recreated_topic_gets_new_tables(server: Server, connection: Connection, tmp_path: Path) -> None:
    old = put_topic(connection, "reborn")
    fill(connection, "reborn", 5)
    config = settings(server, tmp_path, {"name": "reborn", "schema": "id bigint"}, on_recreate="archive")
    pipeline = Pipeline(config, LocalRunner())
    assert pipeline.once()
    before = Lake(config).records("reborn")
    _delete(connection, "reborn")
    put_topic(connection, "reborn")
    fill(connection, "reborn", 3)
    assert pipeline.once()
    pipeline.close()
    lake = Lake(config)
    assert lake.records("reborn") == rows(connection, "reborn")
    put_aside = lake.catalog.load_table(f"topics.reborn_{old}")
    assert put_aside.scan().to_arrow().num_rows == len(before)
    assert put_aside.location() != lake.catalog.load_table("topics.reborn").location()
    names = {name for _, name in lake.catalog.list_tables("topics")}
    assert {f"reborn_errors_{old}", f"reborn_gaps_{old}", "reborn_errors", "reborn_gaps"} <= names


@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_putting_tables_aside_may_end_anywhere(
    server: Server, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    topic = f"halfway-{renames}"
    old = put_topic(connection, topic)
    fill(connection, topic, 5)
    config = settings(server, tmp_path, {"name": topic, "schema": "id bigint"}, on_recreate="archive")
    follow(config)
    before = Lake(config).records(topic)
    _delete(connection, topic)
    put_topic(connection, topic)
    fill(connection, topic, 3, data=lambda i: b"[]" if i else b"{}")
    renaming, left = SqlCatalog.rename_table, [renames]

    def rename_table(self: SqlCatalog, *given: object) -> object:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return renaming(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "rename_table", rename_table)
        pipeline = Pipeline(config, LocalRunner())
        if renames < 3:
            with pytest.raises(KeyboardInterrupt):
                pipeline.once()
        else:
            assert pipeline.once()
        pipeline.close()
    follow(config)
    lake = Lake(config)
    assert lake.records(topic) == rows(connection, topic)
    assert lake.errors(topic) == [(0, 2), (0, 3)]
    assert len(lake.catalog.load_table(f"topics.{config.table(topic)}_{old}").scan().to_arrow()) == len(before)
    assert len(lake.catalog.list_tables("topics")) == 6


def test_putting_tables_aside_beside_another_pipeline(
    server: Server, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_topic(connection, "both")
    fill(connection, "both", 5)
    config = settings(server, tmp_path, "both", on_recreate="archive")
    follow(config)
    _delete(connection, "both")
    put_topic(connection, "both")
    fill(connection, "both", 3)
    renaming, first = SqlCatalog.rename_table, [True]

    def rename_table(self: SqlCatalog, *given: object) -> object:
        if first:
            first.clear()
            follow(config)
        return renaming(self, *given)

    monkeypatch.setattr(SqlCatalog, "rename_table", rename_table)
    pipeline = Pipeline(config, LocalRunner())
    pipeline.once()
    assert pipeline.once()
    pipeline.close()
    assert Lake(config).records("both") == rows(connection, "both")


def test_an_absent_topic_is_told_and_others_go_on(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "present")
    fill(connection, "present", 5)
    config = settings(server, tmp_path, "missing", "present")
    pipeline = Pipeline(config, LocalRunner())
    assert not pipeline.once()
    missing, present = pipeline.statuses
    assert (missing.state, missing.reason) == (ABSENT, "topic missing does not exist")
    assert (present.state, present.lag) == (LIVE, 0)
    _delete(connection, "present")
    put_topic(connection, "missing")
    fill(connection, "missing", 5)
    pipeline.once()
    assert Lake(config).records("missing") == rows(connection, "missing")
    assert pipeline.statuses[1].state == ABSENT
    assert len(Lake(config).records("present")) == 5
    pipeline.close()


def test_topics_appear_by_pattern(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "web.a")
    fill(connection, "web.a", 5)
    config = settings(server, tmp_path, {"pattern": r"web\..*"})
    pipeline = Pipeline(config, LocalRunner())
    assert pipeline.once()
    put_topic(connection, "web.b")
    put_topic(connection, "web-c")
    fill(connection, "web.b", 7)
    assert pipeline.once()
    assert [status.topic for status in pipeline.statuses] == ["web.a", "web.b"]
    assert Lake(config).records("web.b") == rows(connection, "web.b")
    pipeline.close()


def test_two_topics_do_not_share_a_table(server: Server, connection: Connection, tmp_path: Path) -> None:
    for topic in ("x.y", "x-y"):
        put_topic(connection, topic)
        fill(connection, topic, 5)
    config = settings(server, tmp_path, {"pattern": "x.y"})
    pipeline = Pipeline(config, LocalRunner())
    assert not pipeline.once()
    states = {status.topic: status for status in pipeline.statuses}
    (failed,) = [each for each in states.values() if each.state == FAILED]
    assert "topics.x_y has the records of topic" in failed.reason
    assert sum(each.state == LIVE for each in states.values()) == 1
    pipeline.close()


def test_a_table_of_someone_else_is_left_alone(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "taken")
    fill(connection, "taken", 5)
    config = settings(server, tmp_path, "taken")
    lake = Lake(config)
    from topics_lakehouse.schema import ENVELOPE

    lake.catalog.create_table("topics.taken", ENVELOPE)
    assert f"it has no property {TOPIC}" in _failed(config).reason


def test_a_table_whose_positions_were_removed_is_not_guessed_at(
    server: Server, connection: Connection, tmp_path: Path
) -> None:
    put_topic(connection, "lost")
    fill(connection, "lost", 5)
    config = settings(server, tmp_path, "lost")
    follow(config)
    table = Lake(config).catalog.load_table("topics.lost")
    with table.transaction() as change:
        change.remove_properties(POSITIONS)
    fill(connection, "lost", 5)
    assert POSITIONS in _failed(config).reason
    for wrong in ('{"0": true}', '{"0": 99999999999999999999}', '{"-1": 5}', '{"0": "5"}', "5", "nonsense"):
        with table.refresh().transaction() as change:
            change.set_properties({POSITIONS: wrong})
        assert POSITIONS in _failed(config).reason
    with table.refresh().transaction() as change:
        change.set_properties({POSITIONS: '{"0": 5}'})
    follow(config)
    assert Lake(config).records("lost") == rows(connection, "lost")


def test_a_table_dropped_under_a_running_pipeline(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "dropped")
    fill(connection, "dropped", 5)
    config = settings(server, tmp_path, "dropped")
    pipeline = Pipeline(config, LocalRunner())
    assert pipeline.once()
    Lake(config).catalog.drop_table(identifier(config, "dropped"))
    fill(connection, "dropped", 5)
    assert not pipeline.once()
    assert "someone dropped the table" in pipeline.statuses[0].reason
    pipeline.close()
    follow(config)  # as for a topic that never had a table
    assert Lake(config).records("dropped") == rows(connection, "dropped")


def test_a_column_changed_under_a_running_pipeline(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "meddled")
    fill(connection, "meddled", 5)
    config = settings(server, tmp_path, {"name": "meddled", "schema": "id int"})
    pipeline = Pipeline(config, LocalRunner())
    assert pipeline.once()
    with Lake(config).catalog.load_table("topics.meddled").update_schema() as update:
        update.rename_column("id", "number")
    fill(connection, "meddled", 5)
    assert pipeline.once()  # with a new column, as is declared
    assert pipeline.metrics.fenced == 1
    assert [row["id"] for row in Lake(config).rows("meddled")] == [None] * 5 + list(range(5))
    with Lake(config).catalog.load_table("topics.meddled").update_spec() as spec:
        spec.add_identity("tag")
    fill(connection, "meddled", 5)
    assert not pipeline.once()
    assert "it has been given partitions" in pipeline.statuses[0].reason
    pipeline.close()
    assert len(Lake(config).records("meddled")) == 10


@pytest.mark.parametrize("column", ["data", "seq"])
def test_a_column_of_the_envelope_that_is_gone(
    server: Server, connection: Connection, tmp_path: Path, column: str
) -> None:
    topic = f"maimed-{column}"
    put_topic(connection, topic)
    fill(connection, topic, 5)
    config = settings(server, tmp_path, topic)
    follow(config)
    with Lake(config).catalog.load_table(identifier(config, topic)).update_schema() as update:
        update.rename_column(column, "renamed")
    fill(connection, topic, 5)
    assert f"column {column} is missing" in _failed(config).reason
