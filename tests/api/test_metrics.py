"""The metrics of an engine on a store in memory: names, types, labels and the JSON object, exactly."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from topics_service.api.metrics.collector import TOPICS_SHOWN, Metrics, MetricsSources
from topics_service.api.metrics.exposition import gauge, labelled, render
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DeleteRequest
from topics_service.statistics import Histogram, NodeStatistics
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import StoreError, StoreStalledError, WriteBatch

DOC = Path(__file__).parents[2] / "docs" / "metrics.md"
FSYNC_BOUNDS = ["50", "100", "250", "500", "1000", "5000", "10000", "50000", "100000", "+Inf"]
JSON_KEYS = [
    "topics", "topics_ephemeral", "topics_memory", "topics_disk", "topics_fsync", "routers", "records_live",
    "bytes_live", "queue_topics", "queue_leases_in_flight", "sse_connections", "watch_sessions", "ready",
    "replay_progress", "uptime_ms", "wal",
]  # fmt: skip
WAL_KEYS = [
    "fsyncs", "frames", "batches", "bytes_written", "rotations", "queue_depth", "queue_depth_peak",
    "submit_full_total", "read_only", "fsync_count", "fsync_micros_total",
]  # fmt: skip
Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Store(MemoryStore):
    """Fails the next write with `refuse`."""

    refuse: Exception | None = None

    def write(self, batch: WriteBatch) -> None:
        if self.refuse is not None:
            raise self.refuse
        super().write(batch)


@pytest.fixture
async def store() -> Store:
    return Store()


@pytest.fixture
async def engine(store: Store) -> Engine:
    return Engine(store, SystemClock())


@pytest.fixture
async def commit(engine: Engine) -> AsyncIterator[GroupCommit]:
    commit = GroupCommit.for_engine(engine)
    yield commit
    commit.stop()


@pytest.fixture
async def metrics(engine: Engine, commit: GroupCommit) -> Metrics:
    return Metrics(engine, commit.statistics, MetricsSources(node=NodeStatistics()))


def put(engine: Engine, name: str, **config: Any) -> None:
    engine.put_topic(name, ConfigInput(**config))
    engine.sync()


def append(engine: Engine, name: str, *datas: bytes) -> int:
    _, ticket = engine.append(AppendRequest(topic=name, batch=Batch(datas=list(datas))))
    engine.sync()
    return ticket


async def families(metrics: Metrics) -> dict[str, Metric]:
    text = (await metrics.text()).decode()
    assert text.endswith("\n")
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


async def values(metrics: Metrics) -> Values:
    found = await families(metrics)
    samples = [sample for family in found.values() for sample in family.samples]
    read = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(read) == len(samples)
    return read


def one(found: Values, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def documented() -> dict[str, tuple[str, list[str]]]:
    rows = re.findall(r"^\| `(topics_\w+)` \| (\w+) \|([^|]*)\|", DOC.read_text(), re.MULTILINE)
    assert len({name for name, _, _ in rows}) == len(rows)
    return {name: (kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels in rows}


async def test_the_documentation_has_every_metric_and_no_other(engine: Engine, metrics: Metrics) -> None:
    put(engine, "t")
    metrics.http.observe("TopicsService.Append", "2xx", 0.001)
    metrics.grpc.observe("TopicsService.Append", "OK", 0.001)
    text = (await metrics.text()).decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert types == {name: kind for name, (kind, _) in documented().items()}
    assert set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)) == set(types)
    found = await families(metrics)
    for name, (kind, labels) in documented().items():
        for sample in found[name.removesuffix("_total") if kind == "counter" else name].samples:
            assert sorted(set(sample.labels) - {"le"}) == sorted(labels), name


async def test_the_json_object(engine: Engine, metrics: Metrics) -> None:
    put(engine, "q", type="queue", durability="fsync")
    append(engine, "t", b"1", b"22")
    read = json.loads(await metrics.json())
    assert list(read) == JSON_KEYS
    assert list(read["wal"]) == WAL_KEYS
    assert (read["topics"], read["topics_disk"], read["topics_fsync"], read["queue_topics"]) == (2, 1, 1, 1)
    assert (read["records_live"], read["bytes_live"]) == (2, 3)
    assert read["ready"] is True
    assert read["replay_progress"] == 1.0
    assert read["wal"]["read_only"] is False
    assert isinstance(read["uptime_ms"], int)
    assert DOC.read_text().count('"fsync_micros_total"') == 1
    example = json.loads(DOC.read_text().partition("```json\n")[2].partition("```")[0])
    assert (list(example), list(example["wal"])) == (JSON_KEYS, WAL_KEYS)


async def test_totals_follow_every_change(engine: Engine, metrics: Metrics) -> None:
    def totals() -> tuple[int, ...]:
        s = metrics.snapshot()
        return tuple(s[key] for key in (*JSON_KEYS[:5], "records_live", "bytes_live", "queue_topics"))

    assert totals() == (0,) * 8
    put(engine, "e", durability="ephemeral")
    put(engine, "m", durability="memory", cap_records=2)
    put(engine, "q", type="queue")
    put(engine, "f", durability="fsync")
    assert totals() == (4, 1, 1, 1, 1, 0, 0, 1)
    append(engine, "e", b"1")
    append(engine, "m", b"1", b"22", b"333")
    append(engine, "f", b"4444")
    assert totals() == (4, 1, 1, 1, 1, 4, 10, 1)
    engine.delete_records(DeleteRequest(topic="m", before_seq=3))
    put(engine, "e", durability="fsync")
    assert totals() == (4, 0, 1, 1, 2, 3, 8, 1)
    for name in ("e", "m", "q", "f"):
        engine.delete_topic(name)
    assert totals() == (0,) * 8


async def test_totals_are_there_after_a_restart(engine: Engine, store: Store, commit: GroupCommit) -> None:
    put(engine, "q", type="queue", durability="fsync")
    append(engine, "t", b"1", b"22")
    again = Metrics(Engine(store, SystemClock()), commit.statistics).snapshot()
    assert [again[key] for key in ("topics", "topics_disk", "topics_fsync", "queue_topics")] == [2, 1, 1, 1]
    assert (again["records_live"], again["bytes_live"]) == (2, 3)


async def test_series_per_topic(engine: Engine, metrics: Metrics) -> None:
    append(engine, "a", b"1", b"22", b"333")
    engine.delete_records(DeleteRequest(topic="a", before_seq=2))
    put(engine, "b")
    found = await values(metrics)
    columns = ("head_seq", "earliest_seq", "records_live", "bytes_live")
    assert [one(found, f"topics_topic_{name}", topic="a") for name in columns] == [3, 2, 2, 5]
    assert [one(found, f"topics_topic_{name}", topic="b") for name in columns] == [0, 1, 0, 0]
    text = (await metrics.text()).decode()
    for name in ("queue_ready", "queue_in_flight"):
        assert re.search(
            rf"^# HELP topics_topic_{name} .+\n# TYPE topics_topic_{name} gauge\n(#|\Z)", text, re.MULTILINE
        )


async def test_series_per_topic_are_bounded(engine: Engine, metrics: Metrics) -> None:
    for i in range(TOPICS_SHOWN):
        engine.put_topic(f"t{i:05}", ConfigInput())
    engine.sync()
    assert one(await values(metrics), "topics_topic_metrics_truncated") == 0
    put(engine, "u")
    found = await values(metrics)
    assert one(found, "topics_topic_metrics_truncated") == 1
    assert one(found, "topics_topics") == TOPICS_SHOWN + 1
    shown = [labels for name, labels in found if name == "topics_topic_head_seq"]
    assert len(shown) == TOPICS_SHOWN
    assert (("topic", "u"),) not in shown


def test_label_values_are_escaped() -> None:
    name = 'a"b\\c\nd'
    text = labelled(("topic",), [(name,)], [("x", "X.", [1])]).decode()
    assert text.endswith('topics_x{topic="a\\"b\\\\c\\nd"} 1\n')
    assert text.replace("} 1\n", "} 1.0\n") in render([gauge("x", "X.", [((name,), 1)], ("topic",))]).decode()
    (family,) = (family for family in text_string_to_metric_families(text) if family.name == "topics_x")
    assert family.samples[0].labels == {"topic": name}


async def test_fsyncs(engine: Engine, commit: GroupCommit, metrics: Metrics) -> None:
    found = await values(metrics)
    buckets = [dict(labels)["le"] for name, labels in found if name == "topics_wal_fsync_latency_us_bucket"]
    assert buckets == FSYNC_BOUNDS
    assert one(found, "topics_wal_fsync_latency_us_count") == 0
    tickets = [engine.put_topic(name, ConfigInput())[1] for name in "abc"]
    await commit.wait(max(tickets))
    found = await values(metrics)
    fsyncs = one(found, "topics_wal_fsyncs_total")
    assert fsyncs >= 1
    assert one(found, "topics_wal_fsync_latency_us_count") == fsyncs
    assert one(found, "topics_wal_fsync_latency_us_bucket", le="+Inf") == fsyncs
    assert one(found, "topics_commit_group_writes_count") == fsyncs
    assert one(found, "topics_commit_group_writes_sum") == engine.writer.written
    assert one(found, "topics_wal_queue_depth") == 0
    assert one(found, "topics_wal_queue_depth_peak") == 1
    assert one(found, "topics_wal_frames_total") == one(found, "topics_wal_batches_total") == engine.writer.written
    assert one(found, "topics_wal_bytes_written_total") > 0


async def test_the_queue_of_waiters(engine: Engine, metrics: Metrics) -> None:
    # A commit thread of its own, whose sync the test holds back.
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    def sync() -> None:
        asyncio.run_coroutine_threadsafe(held.wait(), loop).result()

    slow = GroupCommit.for_engine(engine, sync)
    tickets = [engine.put_topic(name, ConfigInput())[1] for name in "abc"]
    waits = [asyncio.create_task(slow.wait(ticket)) for ticket in tickets]
    while slow.statistics.waiting < 3:
        await asyncio.sleep(0)
    held.set()
    await asyncio.gather(*waits)
    assert (slow.statistics.waiting, slow.statistics.waiting_peak) == (0, 3)
    await asyncio.to_thread(slow.stop)


async def test_refused_and_failed_writes(engine: Engine, store: Store, metrics: Metrics) -> None:
    put(engine, "t")
    frames = metrics.snapshot()["wal"]["frames"]
    store.refuse = StoreStalledError("Write stall")
    with pytest.raises(Exception, match="catching up"):
        append(engine, "t", b"1")
    wal = metrics.snapshot()["wal"]
    assert (wal["submit_full_total"], wal["frames"], wal["read_only"]) == (1, frames, False)
    store.refuse = StoreError("no space left")
    with pytest.raises(Exception, match="read-only"):
        append(engine, "t", b"1")
    found = await values(metrics)
    assert (one(found, "topics_wal_read_only"), one(found, "topics_ready")) == (1, 0)
    assert one(found, "topics_wal_submit_full_total") == 1


async def test_while_recovering_and_draining(
    store: Store, engine: Engine, commit: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics_service.engine.stored_catalog._SLICE", 1)
    for name in "abcd":
        put(engine, name)
    starting = Engine(store, SystemClock(), recover=False)
    metrics = Metrics(starting, commit.statistics)
    assert one(await values(metrics), "topics_recovery_progress") == 0
    slices = starting.recover("")
    while next(slices) < 0.5:
        pass
    found = await values(metrics)
    assert (one(found, "topics_ready"), one(found, "topics_recovery_progress")) == (0, 0.5)
    for _ in slices:
        pass
    assert one(await values(metrics), "topics_ready") == 1
    starting.draining = True
    assert one(await values(metrics), "topics_ready") == 0
    assert json.loads(await metrics.json())["ready"] is False


async def test_requests_lag_and_caches(engine: Engine, commit: GroupCommit) -> None:
    lag = SimpleNamespace(lag_ms=1.5, last_ms=2.5, histogram=Histogram((1, 2)))
    metrics = Metrics(engine, commit.statistics, MetricsSources(lag=lag))
    metrics.http.observe("TopicsService.Diff", "2xx", 0.002)
    metrics.http.observe("TopicsService.Diff", "2xx", 60)
    metrics.http.in_flight = 3
    metrics.grpc.observe("TopicsService.Diff", "NOT_FOUND", 0.5)
    lag.histogram.observe(2)
    metrics.caches["renderings"] = SimpleNamespace(statistics=SimpleNamespace(hits=4, misses=5), size=6)
    found = await values(metrics)
    labels = {"rpc": "TopicsService.Diff", "status": "2xx"}
    buckets = [one(found, "topics_http_request_seconds_bucket", le=le, **labels) for le in ("0.001", "0.0025", "+Inf")]
    assert buckets == [0, 1, 2]
    assert one(found, "topics_http_request_seconds_sum", **labels) == pytest.approx(60.002)
    assert one(found, "topics_grpc_call_seconds_count", rpc="TopicsService.Diff", code="NOT_FOUND") == 1
    assert one(found, "topics_http_requests_in_flight") == 3
    assert (one(found, "topics_event_loop_lag_ms"), one(found, "topics_event_loop_lag_last_ms")) == (1.5, 2.5)
    assert one(found, "topics_event_loop_lag_measured_ms_bucket", le="2") == 1
    cache = [one(found, f"topics_cache_{name}", cache="renderings") for name in ("hits_total", "misses_total", "bytes")]
    assert cache == [4, 5, 6]
    assert one(found, "topics_cache_bytes", cache="blocks") == 0


def test_a_histogram_counts_what_is_at_most_the_bound() -> None:
    histogram = Histogram((1, 2))
    for value in (0, 1, 1.5, 2, 3):
        histogram.observe(value)
    assert (histogram.counts, histogram.count, histogram.sum) == ([2, 2, 1], 5, 7.5)
