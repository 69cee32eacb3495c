"""The metrics of several shards and processes as those of one server: sums, but for some gauges."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct
from prometheus_client import Metric

from topics_service.api.metrics.exposition import PREFIX, Table

_LARGEST: Final = frozenset(
    PREFIX + name
    for name in (
        "build_info",
        "checkpoint_last_seconds",
        "checkpoint_last_time_seconds",
        "disk_free_bytes",  # all are on one disk
        "disk_min_free_bytes",
        "disk_short",
        "event_loop_lag_last_ms",
        "event_loop_lag_ms",
        "group_metrics_truncated",
        "recovery_seconds",
        "router_metrics_truncated",
        "store_level0_files",
        "store_write_stopped",
        "topic_metrics_truncated",
        "uptime_ms",
        "wal_archive_oldest_time_seconds",
        "wal_queue_depth_peak",
        "wal_read_only",
        "watch_lag_records_max",
        "watch_lag_truncated",
    )
)
_SMALLEST: Final = frozenset(PREFIX + name for name in ("ready", "recovery_progress", "process_start_time_seconds"))
_SNAPSHOT: Final[dict[str, Callable[[Iterable[Any]], Any]]] = {
    "ready": all,
    "read_only": any,
    "replay_progress": min,
    "uptime_ms": max,
    "queue_depth_peak": max,
}
"""Members of the JSON object that are no sums."""


class Family(Struct, frozen=True):
    """A metric family with its samples: name, labels, value."""

    name: str
    help: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]

    @classmethod
    def of(cls, metric: Metric) -> "Family":
        """The family of a metric."""
        samples = [(sample.name, dict(sample.labels), float(sample.value)) for sample in metric.samples]
        return cls(metric.name, metric.documentation, metric.type, samples)

    def metric(self) -> Metric:
        """The family as the library has it."""
        metric = Metric(self.name, self.help, self.kind)
        for name, labels, value in self.samples:
            metric.add_sample(name, labels, value)
        return metric


class Report(Struct, frozen=True):
    """The metrics of a part of a server: the families, the series, and the members of the JSON object."""

    families: list[Family]
    tables: list[Table]
    snapshot: dict[str, Any]


def families(parts: Sequence[Sequence[Family]]) -> list[Family]:
    """The families of all parts, in the order in which they come."""
    known: dict[str, tuple[Family, dict[tuple[str, tuple[tuple[str, str], ...]], float]]] = {}
    for part in parts:
        for family in part:
            _, values = known.setdefault(family.name, (family, {}))
            together = _rule(family.name)
            for name, labels, value in family.samples:
                key = name, tuple(labels.items())
                values[key] = together((values[key], value)) if key in values else value
    merged = []
    for family, values in known.values():
        samples = [(name, dict(labels), value) for (name, labels), value in values.items()]
        merged.append(Family(family.name, family.help, family.kind, samples))
    return merged


def tables(parts: Sequence[Sequence[Table]], shown: int) -> list[Table]:
    """The tables of all parts, each with its first `shown` series in order."""
    return [_table(same, shown) for same in zip(*parts, strict=True)]


def snapshot(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The JSON object of all parts."""
    return {
        name: snapshot([part[name] for part in parts])
        if isinstance(value, dict)
        else _SNAPSHOT.get(name, sum)(part[name] for part in parts)
        for name, value in parts[0].items()
    }


def _table(parts: Sequence[Table], shown: int) -> Table:
    rows: dict[tuple[str, ...], list[int]] = {}
    for part in parts:
        for at, labels in enumerate(part.series):
            row = [values[at] for _, _, values in part.columns]
            known = rows.get(tuple(labels))
            rows[tuple(labels)] = row if known is None else [sum(pair) for pair in zip(known, row, strict=True)]
    series = sorted(rows)[:shown]
    columns = [
        (name, meaning, [rows[labels][at] for labels in series])
        for at, (name, meaning, _) in enumerate(parts[0].columns)
    ]
    return Table(tuple(parts[0].names), series, columns)


def _rule(name: str) -> Callable[[Iterable[Any]], Any]:
    return max if name in _LARGEST else min if name in _SMALLEST else sum
