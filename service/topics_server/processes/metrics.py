"""The metrics of a server with shards: those of all shards and processes together, whichever process is asked."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
from prometheus_client import Metric

from topics_service.api.metrics import merging
from topics_service.api.metrics.collector import POSITIONS_SHOWN, Counters, Metrics, MetricsSources
from topics_service.api.metrics.exposition import gauge, of_process, render
from topics_service.api.metrics.merging import Family, Report
from topics_service.statistics import WatchLag

Allowed = tuple[str, ...] | None
Others = Callable[[Allowed], Awaitable[Sequence[Report]]]
"""Gives the reports of the other processes."""

_SHOWN: Final = POSITIONS_SHOWN  # the same for all series


async def no_others(_: Allowed) -> Sequence[Report]:
    """The reports of the other processes where there are none."""
    return ()


class ProcessMetrics(Counters):
    """The counters of the protocols of this process, shown together with all shards and processes."""

    def __init__(self, shards: Sequence[Metrics], sources: MetricsSources, others: Others = no_others) -> None:
        """`shards` are those of this process; `sources` are of the process, not of its shards."""
        super().__init__()
        self._shards = list(shards)
        self._sources = sources
        self._others = others
        self.watch_lag: Callable[[], WatchLag] = WatchLag

    def report(self, allowed: Allowed = None) -> Report:
        """The metrics of this process with its shards."""
        tables = merging.tables([shard.tables(allowed) for shard in self._shards], _SHOWN)  # the first expires records
        edge = (*self._streams(), *self.families(self._sources, self.watch_lag()), *of_process())
        parts = [[Family.of(each) for each in part] for part in (edge, *(shard.of_engine() for shard in self._shards))]
        return Report(merging.families(parts), tables, self._snapshot())

    def _streams(self) -> Iterator[Metric]:
        yield gauge("sse_connections", "Open streams: SSE, WebSocket and gRPC.", self.watch.connections)
        yield gauge("watch_sessions", "Watch sessions that exist.", self.watch.sessions)

    async def text(self, allowed: Allowed = None) -> bytes:
        """See Counters."""
        reports = [self.report(allowed), *await self._others(allowed)]
        return await asyncio.to_thread(_text, reports)

    async def json(self) -> bytes:
        """See Counters."""
        reports = await self._others(())
        return msgspec.json.encode(merging.snapshot([self._snapshot(), *(report.snapshot for report in reports)]))

    def _snapshot(self) -> dict[str, Any]:
        found = merging.snapshot([shard.snapshot() for shard in self._shards])
        found["sse_connections"] += self.watch.connections
        found["watch_sessions"] += self.watch.sessions
        return found


def _text(reports: Sequence[Report]) -> bytes:
    families = [each.metric() for each in merging.families([report.families for report in reports])]
    tables = merging.tables([report.tables for report in reports], _SHOWN)
    return render(families) + b"".join(table.text() for table in tables)
