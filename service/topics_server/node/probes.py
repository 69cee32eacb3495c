"""Probes of a node that serves no shard itself."""

from collections.abc import Callable

from topics_service.api.metrics.collector import NodeMetrics
from topics_service.api.observers import Observers
from topics_service.api.scheduling.pressure import Shortage
from topics_service.engine.model import ReadyState
from topics_service.statistics import NodeStatistics


class NodeProbes:
    """The probes of a node that does not serve the shard itself. It is ready while it could: what it passes on is
    served then."""

    def __init__(self, statistics: NodeStatistics, observers: Observers, is_ready: Callable[[], bool]) -> None:
        self.observers = observers
        self.metrics = NodeMetrics(statistics, is_ready)
        self.draining = False
        self._is_ready = is_ready

    def ready(self) -> ReadyState:
        """See Probed."""
        is_ready = self._is_ready() and not self.draining
        reason = "" if is_ready else "shutting_down" if self.draining else "not_ready"
        return ReadyState(ready=is_ready, reason=reason, topics=0, replay_progress=float(is_ready))

    def shortage(self) -> Shortage | None:
        """See Probed."""
        return None
