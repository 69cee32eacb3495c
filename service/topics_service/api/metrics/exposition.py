"""Conversion of numbers to Prometheus metrics, and of those to text. Every name begins with `topics_`."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from topics_service.statistics import Histogram

Labels = tuple[str, ...]
Values = float | Iterable[tuple[Labels, float]]
"""One value, or one for each set of label values."""

PREFIX: Final = "topics_"
_PROCESS: Final = ProcessCollector(namespace="topics", registry=None)


def gauge(name: str, meaning: str, values: Values, labels: Sequence[str] = ()) -> Metric:
    """A gauge."""
    family = GaugeMetricFamily(_name(name), meaning, labels=labels)
    for series, value in _series(values):
        family.add_metric(series, value)
    return family


def counter(name: str, meaning: str, values: Values, labels: Sequence[str] = ()) -> Metric:
    """A counter, shown as `name`_total."""
    family = CounterMetricFamily(_name(name), meaning, labels=labels)
    for series, value in _series(values):
        family.add_metric(series, value)
    return family


def histogram(
    name: str, meaning: str, values: Iterable[tuple[Labels, Histogram]], labels: Sequence[str] = ()
) -> Metric:
    """A histogram with cumulative buckets."""
    family = HistogramMetricFamily(_name(name), meaning, labels=labels)
    for series, value in values:
        counts = list(value.counts)  # the commit thread may count concurrently
        bounds = [*(f"{bound:g}" for bound in value.bounds), "+Inf"]
        buckets: list[tuple[str, float]] = list(zip(bounds, accumulate(counts), strict=True))
        family.add_metric(series, buckets, value.sum)
    return family


class Table(NamedTuple):
    """Gauges of many series; see `labelled`."""

    names: tuple[str, ...]
    series: list[Labels]
    columns: list[tuple[str, str, list[int]]]

    def text(self) -> bytes:
        """The text of all samples."""
        return labelled(self.names, self.series, self.columns)


def of_process() -> list[Metric]:
    """The families of this process: its CPU time, memory and files."""
    return list(_PROCESS.collect())


def render(families: Iterable[Metric]) -> bytes:
    """The families in the text format 0.0.4; may run on any thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(families))
    return generate_latest(registry)


def labelled(
    names: Sequence[str], series: Iterable[Labels], columns: Iterable[tuple[str, str, Iterable[int]]]
) -> bytes:
    """Gauges (name, meaning, a value for each series) of many series, as the text that `render` would make of them.

    A name that ends in `_total` is that of a counter. An order of magnitude cheaper per sample than the library.
    """
    labels = []
    for texts in series:
        pairs = (f'{name}="{_escape(text)}"' for name, text in zip(names, texts, strict=True))
        labels.append(f"{{{','.join(pairs)}}} ")
    pieces = []
    for name, meaning, values in columns:
        full = _name(name)
        kind = "counter" if name.endswith("_total") else "gauge"
        pieces.append(f"# HELP {full} {meaning}\n# TYPE {full} {kind}\n")
        pieces += [f"{full}{text}{value}\n" for text, value in zip(labels, values, strict=True)]
    return "".join(pieces).encode()


class _Given(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _name(name: str) -> str:
    return PREFIX + name


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _series(values: Values) -> Iterable[tuple[Labels, float]]:
    return [((), values)] if isinstance(values, (int, float)) else values
