"""Counts of topics by durability class and type, updated on each create, change and delete."""

from typing import Final, get_args

from topics_service.engine.model import Durability, TopicConfig

CLASSES: Final[tuple[Durability, ...]] = get_args(Durability)


class TopicCounts:
    """Counts of existing topics. A change of a topic's config removes the old one and adds the new one."""

    def __init__(self) -> None:
        self.by_class: dict[Durability, int] = dict.fromkeys(CLASSES, 0)
        self.queues = 0

    def add(self, config: TopicConfig) -> None:
        """A topic has this config now."""
        self._count(config, 1)

    def remove(self, config: TopicConfig) -> None:
        """A topic no longer has this config."""
        self._count(config, -1)

    def _count(self, config: TopicConfig, by: int) -> None:
        self.by_class[config.durability] += by
        if config.type == "queue":
            self.queues += by
