"""The positions of the tables, as those of a consumer group of the server."""

from pathlib import Path

import pytest

from support.lake_runs import LocalRunner, follow, settings
from support.lake_truth import Lake
from support.spark import Server, fill, put_topic, rows
from topics_client.connection import Connection
from topics_client.errors import ConflictError, NotFoundError, TopicsError
from topics_lakehouse.pipeline import Pipeline
from topics_proto.v1 import group_service_pb2 as pb


def _positions(connection: Connection, group: str) -> dict[tuple[str, int], int]:
    reply = connection.unary(connection.groups.FetchPositions, pb.FetchPositionsRequest(group=group), repeatable=True)
    return {(each.topic, each.partition): each.from_seq for each in reply.positions}


def test_the_group_follows_the_tables(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "followed", partitions=2)
    fill(connection, "followed", 30)
    fill(connection, "followed", 20, partition=1)
    config = settings(server, tmp_path, "followed", group="follows")
    follow(config)
    assert _positions(connection, "follows") == {("followed", 0): 30, ("followed", 1): 20}
    connection.unary(connection.groups.DeleteGroup, pb.DeleteGroupRequest(group="follows"), repeatable=False)
    follow(config)  # no new records, but a new pipeline reports its position
    assert _positions(connection, "follows") == {("followed", 0): 30, ("followed", 1): 20}


def test_without_a_group_nothing_is_told(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "untold")
    fill(connection, "untold", 30)
    follow(settings(server, tmp_path, "untold", group=""))
    with pytest.raises(NotFoundError):
        _positions(connection, "lakehouse")


def test_a_topic_keeps_what_its_table_does_not_have(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "waited-for", cap_records=100, retain_until_acked_by=["lake"])
    config = settings(server, tmp_path, "waited-for", group="lake")
    fill(connection, "waited-for", 60)
    follow(config)
    fill(connection, "waited-for", 100, first=60)  # the pipeline is away: the first 60 may go, the others stay
    with pytest.raises(ConflictError, match="topic_full"):
        fill(connection, "waited-for", 100, first=160)
    follow(config)
    fill(connection, "waited-for", 100, first=160)
    follow(config)
    lake = Lake(config)
    assert [row.seq for row in lake.records("waited-for")] == list(range(1, 261))
    assert set(rows(connection, "waited-for")) <= set(lake.records("waited-for"))
    assert lake.gaps("waited-for") == []


def test_what_the_group_fails_with_stops_nothing(
    server: Server,
    connection: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put_topic(connection, "unheard")
    fill(connection, "unheard", 30)
    unary = Connection.unary

    def refused(self: Connection, method: object, request: object, **given: object) -> object:
        if isinstance(request, pb.CommitPositionsRequest):
            raise TopicsError("throttled", "too many groups")
        return unary(self, method, request, **given)  # type: ignore[arg-type]

    pipeline = Pipeline(settings(server, tmp_path, "unheard", group="deaf"), LocalRunner())
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "unary", refused)
        assert pipeline.once()
        fill(connection, "unheard", 30)
        assert pipeline.once()
    assert caplog.text.count("can't commit progress to group deaf: throttled") == 1
    pipeline.round()
    assert _positions(connection, "deaf") == {("unheard", 0): 60}
    pipeline.close()
