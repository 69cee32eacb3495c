"""The readiness of all shards together."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from topics_service.api.scheduling.pressure import Shortage
from topics_service.api.topics import TopicsApi
from topics_service.engine.model import ReadyState


class Health(Protocol):
    """The state of all shards, wherever they are."""

    def ready(self) -> ReadyState:
        """The readiness, with the cause if not all are ready."""
        ...

    def shortage(self) -> Shortage | None:
        """The cause for which any ready shard refuses all writes, or None."""
        ...


class LocalHealth:
    """The state of shards of this process."""

    def __init__(self, shards: Iterable[TopicsApi]) -> None:
        self._shards = list(shards)

    def ready(self) -> ReadyState:
        """See Health."""
        return together([shard.ready() for shard in self._shards])

    def shortage(self) -> Shortage | None:
        """See Health."""
        return next((found for shard in self._shards if (found := shard.shortage()) is not None), None)


def together(states: Sequence[ReadyState]) -> ReadyState:
    """The readiness of several shards: that of the first that is not ready, with all topics and the mean progress."""
    worst = next((state for state in states if not state.ready), states[0])
    return ReadyState(
        ready=worst.ready,
        reason=worst.reason,
        topics=sum(state.topics for state in states),
        replay_progress=sum(state.replay_progress for state in states) / len(states),
    )
