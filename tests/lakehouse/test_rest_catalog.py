"""The pipeline on a real Iceberg REST catalog with tables in S3."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lake_runs import LocalRunner
from support.lake_truth import Lake
from support.spark import Server, fill, put_topic, rows
from support.waiting import poll
from support.weed import Weed
from topics_client.connection import Connection
from topics_lakehouse.catalog import table_state
from topics_lakehouse.config import Config, load
from topics_lakehouse.follower import LIVE, WAITING
from topics_lakehouse.pipeline import Pipeline
from topics_lakehouse.upkeep import MaintenanceSchedule
from topics_proto.v1 import topics_service_pb2 as pb


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    """A catalog of the module's own."""
    with Weed(tmp_path_factory.mktemp("weed")) as running:
        yield running


def _config(server: Server, weed: Weed, topic: str, **given: object) -> Config:
    topics = [{"name": topic, "schema": "id bigint, amount double"}]
    return load(None, {"server": server.url, "catalog": weed.properties, "topics": topics, **given})


def _data(i: int) -> bytes:
    return b"[]" if i % 10 == 0 else b'{"id":%d,"amount":0.5}' % i


def test_a_table_is_its_topic(server: Server, connection: Connection, weed: Weed) -> None:
    put_topic(connection, "rest", partitions=2, cap_records=1500)
    config = _config(server, weed, "rest", max_records_per_round=700)
    pipeline = Pipeline(config, LocalRunner(), after_commit=MaintenanceSchedule(config))
    for first in (0, 1000):
        for partition in (0, 1):
            fill(connection, "rest", 1000, first=first, data=_data, partition=partition, tag="t")
        assert pipeline.once(), pipeline.statuses
    pipeline.close()
    lake = Lake(config)
    live = rows(connection, "rest")
    there = lake.records("rest")
    assert set(live) <= set(there)
    assert len(there) == 4000
    assert lake.errors("rest") == [(row.partition, row.seq) for row in there if row.data == b"[]"]
    table = lake.catalog.load_table("topics.rest")
    assert table.location().startswith("s3://lake/topics/rest-")
    assert table_state(table).positions == {0: 2000, 1: 2000}


def test_the_fence_holds(server: Server, connection: Connection, weed: Weed) -> None:
    put_topic(connection, "fenced")
    config = _config(server, weed, "fenced")
    fill(connection, "fenced", 100)
    taken = []

    def report(step: str, status: object) -> None:
        if step == "written" and not taken:  # another pipeline, between this one's files and its commit
            taken.append(Pipeline(config, LocalRunner()))
            assert taken[0].once()
            taken[0].close()

    pipeline = Pipeline(config, LocalRunner(), report=report)
    assert pipeline.once()
    assert pipeline.metrics.fenced == 1
    pipeline.close()
    assert Lake(config).records("fenced") == rows(connection, "fenced")


def test_a_recreated_topic(server: Server, connection: Connection, weed: Weed) -> None:
    old = put_topic(connection, "anew")
    fill(connection, "anew", 100)
    config = _config(server, weed, "anew", on_recreate="archive")
    pipeline = Pipeline(config, LocalRunner())
    assert pipeline.once()
    connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic="anew"), repeatable=False)
    put_topic(connection, "anew")
    fill(connection, "anew", 50)
    assert pipeline.once()
    pipeline.close()
    lake = Lake(config)
    assert lake.records("anew") == rows(connection, "anew")
    archived = lake.catalog.load_table(f"topics.anew_{old}")
    assert archived.scan().to_arrow().num_rows == 100
    assert archived.location() != lake.catalog.load_table("topics.anew").location()


def test_the_catalog_goes_and_comes_back(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "outage")
    with Weed(tmp_path / "weed") as weed:
        config = _config(server, weed, "outage", trigger=0)
        pipeline = Pipeline(config, LocalRunner())
        thread = threading.Thread(target=pipeline.run)
        thread.start()
        try:
            fill(connection, "outage", 100)
            poll(lambda: [each.positions.get(0) for each in pipeline.statuses] == [100], 30)
            weed.stop()
            fill(connection, "outage", 100)
            poll(lambda: [each.state for each in pipeline.statuses] == [WAITING], 60)
            weed.start()
            fill(connection, "outage", 100)
            poll(lambda: [(s.state, s.positions.get(0)) for s in pipeline.statuses] == [(LIVE, 300)], 90)
        finally:
            pipeline.stop()
            thread.join(60)
            pipeline.close()
        assert Lake(config).records("outage") == rows(connection, "outage")


def test_a_wrong_secret_is_told(server: Server, connection: Connection, weed: Weed) -> None:
    put_topic(connection, "shut")
    config = _config(server, weed, "shut")
    wrong = {**weed.properties, "credential": "admin:wr0ng"}
    pipeline = Pipeline(load(None, {"server": server.url, "catalog": wrong, "topics": ["shut"]}), LocalRunner())
    assert not pipeline.once()
    (status,) = pipeline.statuses
    assert status.state == "failed"
    assert "wr0ng" not in status.reason
    assert "wr0ng" not in repr(config)
    pipeline.close()
