"""Figures of the shards of other nodes, asked for once a second: limits of a cluster count all shards."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from topics_server.core import Core
from topics_service.api.scheduling.pressure import Shortage
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Elsewhere
from topics_service.engine.model import ReadyState
from topics_shards.process import ProcessApi, ShardFigures
from topics_shards.shards import LostCallError, Shards

_ASK_SECONDS: Final = 1.0
_MEASURE_SECONDS: Final = 0.1


class NodeFigures:
    """The figures of all shards: those of this node as they are, of others as they were a second ago."""

    def __init__(
        self,
        count: int,
        cores: Mapping[int, Core],
        *,
        is_ready: Callable[[], bool],
        is_draining: Callable[[], bool],
    ) -> None:
        """`cores` are those of the shards that are here now; `is_ready` says whether the node can serve all shards."""
        self._count = count
        self._cores = cores
        self._is_ready = is_ready
        self._is_draining = is_draining
        self._known: dict[int, ShardFigures] = {}
        self._taken: dict[int, int] = {}

    def here(self) -> dict[int, ShardFigures]:
        """The figures of the shards of this node."""
        return {shard: _figures(core) for shard, core in self._cores.items()}

    async def follow(self, shards: Shards, others: Callable[[], Iterable[int]]) -> None:
        """Ask the other nodes, until cancelled. `others` gives their numbers."""
        while True:
            await asyncio.gather(*(self._ask(shards, number) for number in others()))
            await asyncio.sleep(_ASK_SECONDS)

    async def _ask(self, shards: Shards, number: int) -> None:
        with contextlib.suppress(TopicsError, LostCallError, TimeoutError):
            async with asyncio.timeout(_ASK_SECONDS):
                self._known |= await shards.call(number, ProcessApi.figures)

    def sum(self, field: str, without: int = -1) -> int:
        """The sum of a field over all shards but one."""
        total = 0
        for shard in range(self._count):
            if shard != without:
                core = self._cores.get(shard)
                figures = self._known.get(shard) if core is None else _figures(core)
                total += 0 if figures is None else getattr(figures, field)
        return total

    def taken(self, shard: int) -> int:
        """The bytes that the other shards of this node were still to write to its disk a moment ago: it is asked for
        with every write."""
        return sum(self._taken.values()) - self._taken.get(shard, 0)

    async def measure(self) -> None:
        """Keep what the shards of this node are still to write, until cancelled."""
        while True:
            self._taken = {shard: core.taken() for shard, core in self._cores.items()}
            await asyncio.sleep(_MEASURE_SECONDS)

    # ------------------------------------------------------------- see Health

    def ready(self) -> ReadyState:
        """See Health."""
        is_ready = self._is_ready() and not self._is_draining()
        reason = "" if is_ready else "shutting_down" if self._is_draining() else "not_ready"
        topics = self.sum("topics")
        return ReadyState(ready=is_ready, reason=reason, topics=topics, replay_progress=float(is_ready))

    def shortage(self) -> Shortage | None:
        """See Health; other nodes refuse writes themselves."""
        return next((found for core in self._cores.values() if (found := core.api.shortage()) is not None), None)


class NodeElsewhere(Elsewhere):
    """The figures of all shards but one."""

    def __init__(self, figures: NodeFigures, shard: int) -> None:
        self._figures = figures
        self._shard = shard

    @property
    def partitions(self) -> int:  # type: ignore[override]  # a number that is counted now
        """See Elsewhere, as for the others."""
        return self._figures.sum("partitions", self._shard)

    @property
    def routers(self) -> int:  # type: ignore[override]
        return self._figures.sum("routers", self._shard)

    @property
    def groups(self) -> int:  # type: ignore[override]
        return self._figures.sum("groups", self._shard)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self._figures.sum("nbytes", self._shard)

    @property
    def taken(self) -> int:  # type: ignore[override]
        return self._figures.taken(self._shard)


def _figures(core: Core) -> ShardFigures:
    engine = core.engine
    catalog = engine.catalog
    return ShardFigures(
        topics=len(catalog),
        partitions=catalog.partitions,
        routers=len(engine.routers),
        groups=len(engine.groups),
        nbytes=engine.writer.total_bytes,
    )
