"""Index of all groups in memory: by name, by topics with positions, and the seqs they hold back from retention."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from sortedcontainers import SortedDict

from topics_service.engine import names
from topics_service.engine.model import TopicConfig
from topics_service.engine.offsets.positions import Group, Position, lag_of
from topics_service.engine.topic import Topic

TopicPartition = tuple[Topic, int]
"""A partition of a topic."""


class GroupIndex:
    """An index of the rows of groups and positions, updated after each change of those.

    It keeps `Log.hold` in step: the lowest position of the groups that the topic retains records for. A group of
    another shard has a mirror here, which is no group to anyone but retention.
    """

    def __init__(self) -> None:
        self.by_name: SortedDict[str, Group] = SortedDict()
        self.mirrors: dict[str, Group] = {}
        self.next_number = 1
        self.positions = 0  # of all groups, without mirrors
        self.on_moved: Callable[[Group, Topic, int, bool], None] | None = None
        """Called when a position has moved in a partition that is in another shard and retains records for the group;
        with True if it went back."""
        self._of_topic: dict[Topic, dict[int, Group]] = {}

    def find(self, name: str) -> Group | None:
        """The group, if it exists."""
        group: Group | None = self.by_name.get(name)
        return group

    def add(self, group: Group) -> None:
        """Add a new group, or a mirror of one."""
        if group.is_mirror:
            self.mirrors[group.name] = group
        else:
            self.by_name[group.name] = group
        self.next_number = max(self.next_number, group.number + 1)

    def remove(self, group: Group) -> None:
        """Remove the group and its positions."""
        del (self.mirrors if group.is_mirror else self.by_name)[group.name]
        for topic, partition in topic_partitions(group):
            self.drop(group, topic, partition)

    def put(self, group: Group, topic: Topic, partition: int, position: Position) -> None:
        """Set a position of the group."""
        former = group.position(topic, partition)
        self.positions += former is None and not group.is_mirror
        group.put(topic, partition, position)
        self._of_topic.setdefault(topic, {})[group.number] = group
        self._hold_back(group, topic, partition, is_back=former is not None and position.from_seq < former.from_seq)

    def drop(self, group: Group, topic: Topic, partition: int) -> None:
        """Remove a position of the group."""
        group.drop(topic, partition)
        self.positions -= not group.is_mirror
        if topic not in group.positions:
            others = self._of_topic[topic]
            del others[group.number]
            if not others:
                del self._of_topic[topic]
        self._hold_back(group, topic, partition, is_back=True)

    def reading(self, topic: Topic) -> Iterable[Group]:
        """The groups with positions in the topic, and mirrors."""
        return self._of_topic.get(topic, {}).values()

    def drop_topic(self, topic: Topic) -> None:
        """Remove all positions in the topic."""
        for group in self._of_topic.pop(topic, {}).values():
            if group.is_mirror:
                group.drop_topic(topic)
                if not group.positions:
                    del self.mirrors[group.name]
            else:
                self.positions -= len(group.positions[topic])
                group.drop_topic(topic)

    def under(self, prefix: str, allowed: tuple[str, ...] | None, after: str | None = None) -> Iterator[str]:
        """The names that start with `prefix` and one of `allowed` (None: any), in order, behind the name `after`."""
        for each in names.narrow(prefix, allowed):
            start = each if after is None else max(each, after)
            for name in self.by_name.irange(minimum=start, inclusive=(start != after, True)):
                if not name.startswith(each):
                    break
                yield name

    def lags(self, limit: int, allowed: tuple[str, ...] | None = None) -> Iterator[tuple[str, str, int, int]]:
        """Group, topic, partition and lag of the first positions by name, at most `limit`, for metrics."""
        return islice(self._lags(allowed), limit)

    def elsewhere(
        self, limit: int, allowed: tuple[str, ...] | None = None
    ) -> Iterator[tuple[str, Topic, int, Position]]:
        """As `lags`, the positions in partitions of other shards, whose lags are not known here."""
        found = (
            (name, topic, partition, position)
            for name in self.under("", allowed)
            for topic, partition, position in in_order(self.by_name[name])
            if topic.find_log(partition) is None and (allowed is None or topic.name.startswith(allowed))
        )
        return islice(found, limit)

    # ---------------------------------------------------------------- retention

    def holds(self, topic: Topic, config: TopicConfig) -> list[int | None]:
        """For each log that is here the seq above which retention must leave everything under this config; None:
        nothing."""
        return [self._hold(topic, partition, config.retaining) for partition, _ in topic.numbered()]

    def configured(self, topic: Topic) -> None:
        """The topic is new, or has another config or more partitions: apply its retention holds."""
        for log, hold in zip(topic.logs, self.holds(topic, topic.config), strict=True):
            log.hold = hold
        if self.on_moved is not None:
            for group in filter(None, map(self.find, topic.config.retaining)):
                for partition in group.positions.get(topic, ()):
                    if topic.find_log(partition) is None:
                        self.on_moved(group, topic, partition, False)

    def retained_elsewhere(self) -> Iterator[tuple[Group, Topic, int]]:
        """The positions that partitions in other shards retain records for."""
        for topic, groups in self._of_topic.items():
            for group in groups.values():
                if not group.is_mirror and group.name in topic.config.retaining:
                    for partition in group.positions[topic]:
                        if topic.find_log(partition) is None:
                            yield group, topic, partition

    def is_retained_for(self, group: Group) -> bool:
        """Return whether one of the topics that the group reads retains records for it."""
        return any(group.name in topic.config.retaining for topic in group.positions)

    # ---------------------------------------------------------------- internals

    def _hold_back(self, group: Group, topic: Topic, partition: int, *, is_back: bool) -> None:
        retaining = topic.config.retaining
        if group.name in retaining:
            log = topic.find_log(partition)
            if log is not None:
                log.hold = self._hold(topic, partition, retaining)
            elif self.on_moved is not None:
                self.on_moved(group, topic, partition, is_back)

    def _hold(self, topic: Topic, partition: int, retaining: Sequence[str]) -> int | None:
        return min((self._committed(name, topic, partition) for name in retaining), default=None)

    def _committed(self, name: str, topic: Topic, partition: int) -> int:
        group = self.find(name) or self.mirrors.get(name)
        position = None if group is None else group.position(topic, partition)
        return 0 if position is None else position.from_seq

    def _lags(self, allowed: tuple[str, ...] | None) -> Iterator[tuple[str, str, int, int]]:
        for name in self.under("", allowed):
            for topic, partition, position in in_order(self.by_name[name]):
                log = topic.find_log(partition)  # the head of one in another shard is not known here
                if log is not None and (allowed is None or topic.name.startswith(allowed)):
                    yield name, topic.name, partition, lag_of(position.from_seq, log.view.head)


def in_order(group: Group) -> Iterator[tuple[Topic, int, Position]]:
    """The positions of a group by topic and partition."""
    for topic in sorted(group.positions, key=lambda each: each.name):
        for partition, position in sorted(group.positions[topic].items()):
            yield topic, partition, position


def topic_partitions(group: Group) -> list[TopicPartition]:
    """Return the partitions in which the group has positions, ordered by topic and partition."""
    return [(topic, partition) for topic, partition, _ in in_order(group)]
