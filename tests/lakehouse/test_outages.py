"""Pipelines whose server or catalog is away for a while, and two pipelines for one topic."""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.catalog.sql import SqlCatalog

from pyspark_topics.inventory import TopicInfo
from support.lake_runs import LocalRunner, follow, settings
from support.lake_truth import Lake
from support.spark import Server, fill, put_topic, rows
from support.waiting import poll
from topics_client.address import Address
from topics_client.connection import Connection
from topics_client.errors import AuthError, TopicsError
from topics_lakehouse import follower, local_io
from topics_lakehouse import pipeline as pipeline_module
from topics_lakehouse.config import Config
from topics_lakehouse.files import FileTask, TaskResult
from topics_lakehouse.follower import FAILED, LIVE, WAITING, Status
from topics_lakehouse.pipeline import Pipeline
from topics_lakehouse.runner import RunnerLostError
from topics_proto.v1 import topics_service_pb2 as pb


@contextmanager
def _running(config: Config, runner: Any = None, **given: Any) -> Iterator[Pipeline]:
    """A pipeline that runs in a thread."""
    pipeline = Pipeline(config, runner or LocalRunner(), **given)
    thread = threading.Thread(target=pipeline.run)
    thread.start()
    try:
        yield pipeline
    finally:
        pipeline.stop()
        thread.join(30)
        pipeline.close()
        assert not thread.is_alive()


def _status(pipeline: Pipeline, topic: str) -> Status | None:
    return next((each for each in pipeline.statuses if each.topic == topic), None)


def _state(pipeline: Pipeline, topic: str) -> str:
    status = _status(pipeline, topic)
    return status.state if status is not None else ""


def _done(pipeline: Pipeline, topic: str, seq: int) -> bool:
    status = _status(pipeline, topic)
    return status is not None and status.state == LIVE and status.positions.get(0) == seq


@pytest.mark.parametrize("when", ["before", "landed"])
def test_the_catalog_goes_and_comes_back(
    server: Server, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    topic = f"outage-{when}"
    put_topic(connection, topic)
    config = settings(server, tmp_path, topic, trigger=0)
    down = threading.Event()
    landing, loading = SqlCatalog.commit_table, SqlCatalog.load_table

    def commit_table(*given: Any) -> Any:
        if down.is_set():
            if when == "landed":
                landing(*given)
            raise requests.ConnectionError("no catalog")
        return landing(*given)

    def load_table(*given: Any) -> Any:
        if down.is_set() and when == "before":
            raise requests.ConnectionError("no catalog")
        return loading(*given)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    monkeypatch.setattr(SqlCatalog, "load_table", load_table)
    with _running(config) as pipeline:
        fill(connection, topic, 100)
        poll(lambda: _done(pipeline, topic, 100), 20)
        down.set()
        fill(connection, topic, 100)
        if when == "before":
            poll(lambda: _state(pipeline, topic) == WAITING, 20)
            status = _status(pipeline, topic)
            assert status is not None
            assert status.reason.startswith("catalog: ")
            assert "no catalog" in status.reason
            assert pipeline.metrics.waits == 1
        else:
            poll(lambda: pipeline.metrics.waits >= 1, 20)
        down.clear()
        fill(connection, topic, 100)
        poll(lambda: _done(pipeline, topic, 300), 30)
    monkeypatch.undo()
    assert Lake(config).records(topic) == rows(connection, topic)


def test_the_files_of_a_commit_that_waits_are_used(
    server: Server, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_topic(connection, "patient")
    fill(connection, "patient", 100)
    config = settings(server, tmp_path, "patient")
    landing = SqlCatalog.commit_table
    calls = []

    def commit_table(*given: Any) -> Any:
        calls.append(1)
        if len(calls) < 3:
            raise requests.ConnectionError("no catalog")
        return landing(*given)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    pipeline = Pipeline(config, LocalRunner())
    assert pipeline.once()
    pipeline.close()
    assert (pipeline.metrics.records, pipeline.metrics.files, pipeline.statuses[0].records) == (100, 1, 100)
    assert len(list((tmp_path / "topics").glob("patient-*/data/*.parquet"))) == 1
    assert Lake(config).records("patient") == rows(connection, "patient")


def test_a_catalog_that_is_not_there_at_the_start(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "early")
    fill(connection, "early", 10)
    place = tmp_path / "lake"
    place.write_text("in the way")
    config = settings(server, place, "early", trigger=0)
    with _running(config) as pipeline:
        poll(lambda: _state(pipeline, "early") == WAITING, 20)
        place.unlink()
        poll(lambda: _done(pipeline, "early", 10), 20)
    assert Lake(config).records("early") == rows(connection, "early")


@pytest.mark.parametrize("room", [100, 100_000])
def test_a_full_disk_leaves_no_files_and_is_waited_for(
    server: Server, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    topic = f"full-{room}"
    put_topic(connection, topic)
    fill(connection, topic, 3000, data=lambda i: b'"%s"' % random.randbytes(100).hex().encode())
    config = settings(server, tmp_path, topic)
    writing = local_io._SyncedFile.write

    def write(self: Any, data: Any) -> int:
        if str(self.name).endswith(".parquet") and self.tell() + len(data) > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return writing(self, data)

    pipeline = Pipeline(config, LocalRunner())
    with monkeypatch.context() as patch:
        patch.setattr(local_io._SyncedFile, "write", write, raising=False)
        pipeline.round()
    (status,) = pipeline.statuses
    assert (status.state, "No space left" in status.reason) == (WAITING, True)
    assert not list(tmp_path.rglob("*.parquet"))
    assert not [each for each in os.listdir("/proc/self/fd") if _opens(each, ".parquet")]
    assert pipeline.once()
    pipeline.close()
    assert Lake(config).records(topic) == rows(connection, topic)


def _opens(number: str, suffix: str) -> bool:
    try:
        return suffix in os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return False


def test_the_server_restarts(tmp_path: Path) -> None:
    with Server(tmp_path / "server", same_ports=True) as server:
        with server.connect() as connection:
            put_topic(connection, "steady")
            fill(connection, "steady", 1000)
        config = settings(server, tmp_path / "lake", "steady", trigger=0)
        with _running(config) as pipeline:
            poll(lambda: _done(pipeline, "steady", 1000), 20)
            server.stop()
            poll(lambda: _state(pipeline, "steady") == WAITING, 20)
            status = _status(pipeline, "steady")
            assert status is not None
            assert status.reason.startswith("server: ")
            server.start()
            with server.connect() as connection:
                fill(connection, "steady", 1000)
                poll(lambda: _done(pipeline, "steady", 2000), 30)
                assert Lake(config).records("steady") == rows(connection, "steady")


def test_a_wrong_key_is_told(tmp_path: Path) -> None:
    with Server(tmp_path / "server", env={"TOPICS_API_KEYS": "k3y"}) as server:
        config = settings(server, tmp_path / "lake", "secret", key="wr0ng")
        pipeline = Pipeline(config, LocalRunner())
        assert not pipeline.once()
        (status,) = pipeline.statuses
        assert status.state == FAILED
        assert "wr0ng" not in status.reason
        pipeline.close()


def test_two_pipelines_for_one_topic(server: Server, connection: Connection, tmp_path: Path) -> None:
    """A waste, but nothing else: each range lands once."""
    put_topic(connection, "contested", partitions=2, cap_records=3000)
    declared = {"name": "contested", "schema": "id bigint"}
    config = settings(server, tmp_path, declared, trigger=0, max_records_per_round=500)
    with _running(config) as one, _running(config) as other:
        for first in range(0, 4000, 400):
            for partition in (0, 1):
                data = lambda i: b"[]" if i % 50 == 0 else b'{"id":%d}' % i  # noqa: E731
                fill(connection, "contested", 400, first=first, data=data, partition=partition)
        for pipeline in (one, other):
            poll(lambda pipeline=pipeline: _done(pipeline, "contested", 4000), 60)
    follow(config)
    lake = Lake(config)
    there = [(row.partition, row.seq) for row in lake.records("contested")]
    lost = [(p, seq) for p, first, last in lake.gaps("contested") for seq in range(first, last + 1)]
    assert sorted(there + lost) == [(p, seq) for p in (0, 1) for seq in range(1, 4001)]
    errors = lake.errors("contested")
    assert len(errors) == len(set(errors))
    assert {(row.partition, row.seq) for row in lake.records("contested") if row.data == b"[]"} <= set(errors)


class _Flaky(LocalRunner):
    """Fails the whole job whenever one of the topics is in it."""

    def __init__(self, topic: str, error: Callable[[], Exception]) -> None:
        self._topic = topic
        self._error = error

    def __call__(self, address: Address, tasks: Sequence[FileTask]) -> list[TaskResult]:
        if any(task.wanted.topic == self._topic for task in tasks):
            raise self._error()
        return super().__call__(address, tasks)


def test_one_topic_that_fails_does_not_stop_the_others(server: Server, connection: Connection, tmp_path: Path) -> None:
    for topic in ("good-1", "bad", "good-2"):
        put_topic(connection, topic)
        fill(connection, topic, 20)
    config = settings(server, tmp_path, "good-1", "bad", "good-2")
    pipeline = Pipeline(config, _Flaky("bad", lambda: MemoryError("too much")))
    assert not pipeline.once()
    states = {status.topic: status for status in pipeline.statuses}
    assert (states["good-1"].state, states["bad"].state, states["good-2"].state) == (LIVE, FAILED, LIVE)
    assert "topic bad, seq 1 to 20: MemoryError: too much" in states["bad"].reason
    pipeline.close()
    assert Lake(config).records("good-2") == rows(connection, "good-2")
    follow(config)
    assert Lake(config).records("bad") == rows(connection, "bad")


def test_a_topic_that_can_not_be_looked_at_does_not_stop_the_others(
    server: Server, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_topic(connection, "seen")
    fill(connection, "seen", 20)
    real_one, real_all = pipeline_module.find_topic, pipeline_module.find_topics

    def find_topic(server: Connection, topic: str) -> TopicInfo:
        if topic == "unseen":
            raise TopicsError("internal", "broken block")
        return real_one(server, topic)

    def find_topics(server: Connection, *, pattern: str) -> list[TopicInfo]:
        if pattern == "hidden-.*":
            raise AuthError("not_allowed", "only your own")
        return real_all(server, pattern=pattern)

    monkeypatch.setattr(pipeline_module, "find_topic", find_topic)
    monkeypatch.setattr(pipeline_module, "find_topics", find_topics)
    config = settings(server, tmp_path, "unseen", {"pattern": "hidden-.*"}, {"pattern": "seen"})
    pipeline = Pipeline(config, LocalRunner())
    assert not pipeline.once()
    seen, unseen = pipeline.statuses
    assert (seen.state, seen.lag, unseen.state) == (LIVE, 0, FAILED)
    assert "topic unseen: internal: broken block" in unseen.reason
    pipeline.close()
    assert Lake(config).records("seen") == rows(connection, "seen")
    alone = Pipeline(settings(server, tmp_path, {"pattern": "hidden-.*"}), LocalRunner())
    with pytest.raises(AuthError):
        alone.once()
    alone.close()


def test_a_session_that_ended_ends_the_pipeline(server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "over")
    fill(connection, "over", 20)
    pipeline = Pipeline(settings(server, tmp_path, "over"), _Flaky("over", lambda: RunnerLostError("ended")))
    with pytest.raises(RunnerLostError):
        pipeline.once()
    pipeline.close()


class _Meanwhile(LocalRunner):
    """Does something in front of the first job."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act: Callable[[], object] | None = act

    def __call__(self, address: Address, tasks: Sequence[FileTask]) -> list[TaskResult]:
        if self._act is not None:
            self._act()
            self._act = None
        return super().__call__(address, tasks)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_deleted_between_plan_and_read(
    server: Server, connection: Connection, tmp_path: Path, again: bool
) -> None:
    topic = f"gone-{again}".lower()
    put_topic(connection, topic)
    fill(connection, topic, 20)

    def act() -> None:
        connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic=topic), repeatable=False)
        if again:
            put_topic(connection, topic)
            fill(connection, topic, 5)

    config = settings(server, tmp_path, topic, on_recreate="archive")
    pipeline = Pipeline(config, _Meanwhile(act))
    assert pipeline.once() is again
    pipeline.close()
    if again:
        assert Lake(config).records(topic) == rows(connection, topic)


def test_what_maintenance_raises_stops_nothing(
    server: Server, connection: Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_topic(connection, "kept")
    fill(connection, "kept", 20)
    seen = []

    def after_commit(table: Any, topic: str) -> None:
        seen.append((".".join(table.name()), topic))
        raise ValueError("broom broken")

    pipeline = Pipeline(settings(server, tmp_path, "kept"), LocalRunner(), after_commit=after_commit)
    assert pipeline.once()
    pipeline.close()
    assert seen == [("topics.kept", "kept")]
    assert "maintenance of table topics.kept failed" in caplog.text


def test_a_commit_that_waited_too_long_is_made_anew(
    server: Server, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files might have been taken for orphans."""
    put_topic(connection, "overdue")
    fill(connection, "overdue", 100)
    config = settings(server, tmp_path, "overdue")
    monkeypatch.setattr(follower, "MIN_GRACE", 0.0)
    landing = SqlCatalog.commit_table
    calls = []

    def commit_table(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise requests.ConnectionError("no catalog")
        return landing(*given)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    pipeline = Pipeline(config, LocalRunner())
    assert pipeline.once()
    pipeline.close()
    assert len(list((tmp_path / "topics").glob("overdue-*/data/*.parquet"))) == 2
    assert Lake(config).records("overdue") == rows(connection, "overdue")
