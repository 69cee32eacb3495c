"""Counts of topics by durability class and type, updated on each create, change and delete."""

from collections import Counter
from collections.abc import Sequence
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

    def add_all(self, configs: Sequence[TopicConfig]) -> None:
        """As many topics have these configs, which are few objects."""
        by_id = {id(config): config for config in configs}
        for key, count in Counter(map(id, configs)).items():
            self._count(by_id[key], count)

    def remove(self, config: TopicConfig) -> None:
        """A topic no longer has this config."""
        self._count(config, -1)

    def _count(self, config: TopicConfig, by: int) -> None:
        self.by_class[config.durability] += by
        if config.type == "queue":
            self.queues += by
