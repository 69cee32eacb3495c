"""The data of `topics top`, from two readings of a server's metrics (docs/metrics.md). Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from topics_client.units import human_size

_SAMPLE: Final = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_TOPIC: Final = "topics_topic_"
_CALLS: Final = tuple(f"topics_{name}_seconds_count" for name in ("http_request", "grpc_call", "kafka_request"))

Lags = dict[tuple[str, int], int]  # (group, partition) -> records behind


@dataclass(slots=True)
class TopicSample:
    """The state of a topic at one moment. Seqs, records and bytes are sums over its partitions; None if unknown."""

    head_seq: int | None = None
    records: int = 0
    bytes: int = 0
    ready: int | None = None
    in_flight: int | None = None
    lags: Lags = field(default_factory=dict)


@dataclass(slots=True)
class Reading:
    """The metrics of one moment; `at` is of a clock that only goes forward, in seconds."""

    at: float
    ts_ms: int
    topics: dict[str, TopicSample] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    positions: dict[tuple[str, str, int], int] = field(default_factory=dict)  # (group, topic, partition) -> from_seq

    @property
    def truncated(self) -> bool:
        """True if the metrics leave out topics."""
        return bool(self.totals.get("topics_topic_metrics_truncated"))


def read(text: str, at: float, ts_ms: int) -> Reading:
    """A reading out of the text that Prometheus would read. Unknown metrics are skipped."""
    reading = Reading(at, ts_ms)
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        try:
            _read_sample(reading, found[1], _labels(found[2] or ""), float(found[3]))
        except (KeyError, ValueError, OverflowError):  # a missing label, or not a number
            continue
    return reading


def _read_sample(reading: Reading, name: str, labels: Mapping[str, str], value: float) -> None:
    if name.startswith(_TOPIC) and labels:
        _take(reading.topics.setdefault(labels["topic"], TopicSample()), name.removeprefix(_TOPIC), int(value))
    elif name == "topics_group_lag_records":
        lags = reading.topics.setdefault(labels["topic"], TopicSample()).lags
        lags[labels["group"], int(labels["partition"])] = int(value)
    else:
        key = "calls" if name in _CALLS else name
        reading.totals[key] = reading.totals.get(key, 0.0) + value


def _labels(text: str) -> dict[str, str]:
    return {name: _ESCAPE.sub(_unescaped, value) for name, value in _LABEL.findall(text)}


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _take(stand: TopicSample, name: str, value: int) -> None:
    match name:
        case "head_seq":
            stand.head_seq = value
        case "records_live":
            stand.records = value
        case "bytes_live":
            stand.bytes = value
        case "queue_ready":
            stand.ready = value
        case "queue_in_flight":
            stand.in_flight = value


def rows(before: Reading, after: Reading, prefix: str = "") -> list[dict[str, Any]]:
    """A row for each topic of `after` whose name starts so. Rates are per second between the two; reads of groups are
    their commits.
    """
    seconds = max(after.at - before.at, 1e-3)
    committed: dict[str, int] = {}
    for position, from_seq in after.positions.items():
        moved = max(0, from_seq - before.positions.get(position, from_seq))
        committed[position[1]] = committed.get(position[1], 0) + moved
    found = []
    for topic, stand in after.topics.items():
        if not topic.startswith(prefix):
            continue
        appended = _appended(before, topic, stand)
        groups: dict[str, int] = {}
        for (group, _), lag in stand.lags.items():
            groups[group] = groups.get(group, 0) + lag
        found.append(
            {
                "topic": topic,
                "head_seq": stand.head_seq,
                "count": stand.records,
                "bytes": stand.bytes,
                "appends_per_second": round(appended / seconds, 1),
                "reads_per_second": round(committed[topic] / seconds, 1) if topic in committed else None,
                "groups": groups,
                "lag": max(groups.values(), default=None),
                "ready": stand.ready,
                "in_flight": stand.in_flight,
            }
        )
    return found


def _appended(before: Reading, topic: str, stand: TopicSample) -> int:
    old = before.topics.get(topic)
    if old is None or old.head_seq is None or stand.head_seq is None:
        return 0
    return max(0, stand.head_seq - old.head_seq)


SORTS: Final[Mapping[str, str]] = {
    "rate": "appends_per_second",
    "records": "count",
    "size": "bytes",
    "lag": "lag",
    "ready": "ready",
    "name": "topic",
}


def ordered(found: Iterable[dict[str, Any]], sort: str) -> list[dict[str, Any]]:
    """Rows with the largest first, by name where they are equal; `sort` is a key of SORTS."""
    key = SORTS[sort]
    if key == "topic":
        return sorted(found, key=lambda row: str(row["topic"]))
    return sorted(found, key=lambda row: (-(row[key] or 0), row["topic"]))


def alerts(reading: Reading) -> list[str]:
    """The reasons why the server currently refuses writes, one line each."""
    totals, found = reading.totals, []
    if totals.get("topics_wal_read_only"):
        found.append("WRITES ARE REFUSED: the storage has failed, see the server's log")
    if totals.get("topics_disk_short"):
        free = human_size(int(totals.get("topics_disk_free_bytes", 0)))
        minimum = human_size(int(totals.get("topics_disk_min_free_bytes", 0)))
        found.append(f"WRITES ARE REFUSED: the disk has {free} free, TOPICS_MIN_FREE_BYTES is {minimum}")
    return found


def server_line(before: Reading, after: Reading) -> list[tuple[str, Any]]:
    """(name, value) of figures of the whole server."""
    seconds = max(after.at - before.at, 1e-3)

    def rate(name: str) -> float:
        return max(0.0, after.totals.get(name, 0.0) - before.totals.get(name, 0.0)) / seconds

    def now(name: str) -> float:
        return after.totals.get(name, 0.0)

    heads = sum(_appended(before, topic, stand) for topic, stand in after.topics.items())
    return [
        ("topics", int(now("topics_topics"))),
        ("records", int(now("topics_records_live"))),
        ("bytes", now("topics_bytes_live")),
        ("appends_per_second", heads / seconds),
        ("calls_per_second", rate("calls")),
        ("watched_per_second", rate("topics_watch_records_total")),
        ("streams", int(now("topics_sse_connections"))),
        ("loop_lag_ms", now("topics_event_loop_lag_ms")),
        ("memory", now("topics_process_resident_memory_bytes")),
        ("uptime_ms", now("topics_uptime_ms")),
    ]
