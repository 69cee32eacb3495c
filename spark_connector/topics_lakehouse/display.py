"""Display of a running pipeline: bars on a terminal, lines elsewhere, or JSON."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from topics_lakehouse.follower import Status

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_SECONDS: Final = 5.0  # between lines about one topic whose state stays
_RATE_SECONDS: Final = 5.0  # that a rate is the mean of
_STATES: Final = ("live", "waiting", "failed", "absent", "fenced", "archived")


class Display(Protocol):
    """The receiver of a pipeline's reports."""

    def begin(self) -> None:
        """The pipeline starts now: rates count from here."""

    def __call__(self, step: str, status: Status) -> None:
        """A step of a topic."""


@contextmanager
def shown(*, as_json: bool = False, out: TextIO | None = None) -> Iterator[Display]:
    """Create the `report` of a pipeline. On a terminal (standard error, without `as_json`) it draws a bar for each
    topic, from the initial position to the head; otherwise it writes lines to `out` (default: standard output)."""
    target = sys.stdout if out is None else out
    if as_json:
        yield _Lines(target, as_json=True)
    elif out is None and sys.stderr.isatty():
        with _bars() as report:
            yield report
    else:
        yield _Lines(target, as_json=False)


class _Rates:
    """Records per second of each topic, over the last few seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, list[tuple[float, int]]] = {}
        self.began = time.monotonic()

    def of(self, status: Status) -> float:
        now = time.monotonic()
        seen = self._seen.setdefault(status.topic, [(self.began, 0)])
        seen.append((now, status.records))
        while len(seen) > 2 and seen[1][0] < now - _RATE_SECONDS:
            del seen[0]
        (begin, first), (end, last) = seen[0], seen[-1]
        return (last - first) / (end - begin) if end > begin else 0.0


class _Lines:
    """One line for each change of state, and for the progress every few seconds."""

    def __init__(self, out: TextIO, *, as_json: bool) -> None:
        self._out = out
        self._as_json = as_json
        self._rates = _Rates()
        self._shown: dict[str, tuple[float, int, int]] = {}  # time, records and lag

    def begin(self) -> None:
        self._rates.began = time.monotonic()

    def __call__(self, step: str, status: Status) -> None:
        if step == "round":
            rate, now = self._rates.of(status), time.monotonic()
            when, records, lag = self._shown.get(status.topic, (0.0, 0, 1))
            caught_up = bool(lag) and not status.lag
            if status.records == records or not (caught_up or now - when >= _LINE_SECONDS):
                return
            self._shown[status.topic] = (now, status.records, status.lag)
            self._write("written", status, rate)
        elif step in _STATES:
            self._write(step, status, self._rates.of(status))

    def _write(self, event: str, status: Status, rate: float) -> None:
        if self._as_json:
            self._out.write(json.dumps({"event": event, **_facts(status), "records_per_second": round(rate)}) + "\n")
        elif event == "written":
            self._out.write(f"{status.topic}: {status.records:,} records written, {rate:,.0f}/s, lag {status.lag:,}\n")
        else:
            reason = f": {status.reason}" if status.reason else ""
            self._out.write(f"{status.topic}: {event}{reason}\n")
        self._out.flush()


def _facts(status: Status) -> dict[str, Any]:
    return {
        "topic": status.topic,
        "table": status.table,
        "state": status.state,
        "reason": status.reason,
        "records": status.records,
        "errors": status.errors,
        "gaps": status.gaps,
        "files": status.files,
        "bytes": status.bytes,
        "lag": status.lag,
        "positions": {str(partition): seq for partition, seq in status.positions.items()},
        "heads": {str(partition): seq for partition, seq in status.heads.items()},
    }


@contextmanager
def _bars() -> Iterator[Display]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("lag {task.fields[lag]:>12,}"),
        TextColumn("{task.fields[rate]:>11,.0f} rec/s"),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=5) as progress:
        yield _Bars(progress)


class _Bars:
    """A bar for each topic."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._rates = _Rates()
        self._bars: dict[str, tuple[TaskID, int]] = {}  # and the seqs that were in the table at first

    def begin(self) -> None:
        self._rates.began = time.monotonic()

    def __call__(self, step: str, status: Status) -> None:
        done = sum(min(seq, status.heads.get(partition, seq)) for partition, seq in status.positions.items())
        if status.topic not in self._bars:
            bar = self._progress.add_task(status.topic, total=None, lag=status.lag, rate=0.0, state=status.state)
            self._bars[status.topic] = (bar, done)
        bar, first = self._bars[status.topic]
        state = status.state if not status.reason else f"{status.state}: {status.reason}"
        total = max(sum(status.heads.values()) - first, 0)
        self._progress.update(
            bar,
            total=total or 1,
            completed=done - first if total else 1,
            lag=status.lag,
            rate=self._rates.of(status),
            state=state,
        )
