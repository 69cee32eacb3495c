"""The metrics of a server with shards: those of all shards and processes together, whichever process is asked."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from prometheus_client import Metric

from topics_service.api.metrics import merging
from topics_service.api.metrics.collector import POSITIONS_SHOWN, Counters, Metrics, MetricsSources
from topics_service.api.metrics.exposition import gauge, of_process, render
from topics_service.api.metrics.families import cluster
from topics_service.api.metrics.merging import Family, Report
from topics_service.api.running import LostCallError
from topics_service.engine.errors import TopicsError
from topics_service.statistics import NodeStatistics, WatchLag

Allowed = tuple[str, ...] | None
Lag = tuple[str, str, int, int]
"""Group, topic, partition and the seqs behind the position."""
Lags = Callable[[int, Allowed], Awaitable[Sequence[Lag]]]
"""Gives the lags of the first positions in partitions of other shards than their groups."""
Others = Callable[[Allowed], Awaitable[Sequence[Report]]]
"""Gives the reports of the other processes."""

_SHOWN: Final = POSITIONS_SHOWN  # the same for all series
_LAGS_SECONDS: Final = 5.0


async def no_lags(_limit: int, _allowed: Allowed) -> Sequence[Lag]:
    """The lags in other shards where there are none."""
    return ()


async def no_others(_: Allowed) -> Sequence[Report]:
    """The reports of the other processes where there are none."""
    return ()


class ProcessMetrics(Counters):
    """The counters of the protocols of this process, shown together with all shards and processes."""

    def __init__(
        self, shards: Callable[[], Sequence[Metrics]], sources: MetricsSources, node: NodeStatistics | None = None
    ) -> None:
        """`shards` gives those of this process; `sources` are of the process, not of its shards. A `node` of a cluster
        shows the sums over all shards beside what is of itself."""
        super().__init__()
        self._node = node
        self._shards = shards
        self._sources = sources
        self.others: Others = no_others
        self.watch_lag: Callable[[], WatchLag] = WatchLag
        self.lags: Lags = no_lags

    def report(self, allowed: Allowed = None) -> Report:
        """The metrics for another process: those of this one with its shards; of a node of a cluster those of the
        shards alone, since each node is asked for its own."""
        return self._report(allowed, () if self._node is not None else self._edge())

    def _report(self, allowed: Allowed, edge: Iterable[Metric]) -> Report:
        shards = self._shards()
        tables = merging.tables([shard.tables(allowed) for shard in shards], _SHOWN)  # the first expires records
        parts = [[Family.of(each) for each in part] for part in (edge, *(shard.of_engine() for shard in shards))]
        return Report(merging.families(parts), tables, self._snapshot())

    def _edge(self) -> Iterator[Metric]:
        """The families of this process."""
        yield from self._streams()
        yield from self.families(self._sources, self.watch_lag())
        yield from of_process()
        if self._node is not None:
            yield from cluster(self._node)

    def _streams(self) -> Iterator[Metric]:
        yield gauge("sse_connections", "Open streams: SSE, WebSocket and gRPC.", self.watch.connections)
        yield gauge("watch_sessions", "Watch sessions that exist.", self.watch.sessions)

    async def text(self, allowed: Allowed = None) -> bytes:
        """See Counters."""
        reports = [self._report(allowed, self._edge()), *await self.others(allowed)]
        return await asyncio.to_thread(_text, reports, await self._far_lags(allowed))

    async def _far_lags(self, allowed: Allowed) -> Sequence[Lag]:
        """The lags that no shard knows by itself; none if a shard does not answer."""
        try:
            async with asyncio.timeout(_LAGS_SECONDS):
                return await self.lags(_SHOWN, allowed)
        except (TopicsError, LostCallError, TimeoutError):
            return ()

    async def json(self) -> bytes:
        """See Counters."""
        reports = await self.others(())
        parts = [each for each in (self._snapshot(), *(report.snapshot for report in reports)) if each]
        return msgspec.json.encode(merging.snapshot(parts) if parts else {"ready": False})

    def _snapshot(self) -> dict[str, Any]:
        """The members of the JSON object; none for a process without shards."""
        shards = self._shards()
        if not shards:
            return {}
        found = merging.snapshot([shard.snapshot() for shard in shards])
        found["sse_connections"] += self.watch.connections
        found["watch_sessions"] += self.watch.sessions
        return found


def _text(reports: Sequence[Report], lags: Sequence[Lag]) -> bytes:
    families = [each.metric() for each in merging.families([report.families for report in reports])]
    found = merging.tables([report.tables for report in reports if report.tables], _SHOWN)
    if not found:
        return render(families)
    *tables, positions = found
    far = positions._replace(
        series=[(group, topic, str(partition)) for group, topic, partition, _ in lags],
        columns=[(name, meaning, [lag for *_, lag in lags]) for name, meaning, _ in positions.columns],
    )
    (positions,) = merging.tables([[positions], [far]], _SHOWN)
    return render(families) + b"".join(table.text() for table in (*tables, positions))
