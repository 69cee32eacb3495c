"""Mirrors: what groups of other shards have let go of in the partitions of this one, for retention.

The shard of a group tells it, after it is durable there and before it acknowledges a move back. So a mirror is never
above what its group has acknowledged, and retention keeps rather too much.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import TopicsError
from topics_service.engine.offsets.group_index import GroupIndex, TopicPartition
from topics_service.engine.offsets.positions import Group, Place, Position, position_key, topic_range
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage.store import Family


class Told(NamedTuple):
    """The position of a group of another shard in a partition of this one; None if it has none (any more).

    `revision` is that of the topic's config as the group's shard knows it.
    """

    group: str
    place: Place
    revision: int
    from_seq: int | None


class Mirrors:
    """The mirrors of one shard. A mirror has positions only in topics that retain records for its group."""

    def __init__(self, catalog: Catalog, writer: Writer, clock: Clock, index: GroupIndex) -> None:
        self._catalog = catalog
        self._writer = writer
        self._clock = clock
        self._index = index
        self._unremoved: list[tuple[Group, Topic]] = []
        """Those whose rows a failed write has left, until the next one."""

    def tell(self, told: Sequence[Told]) -> tuple[list[Told], int]:
        """Take over what groups have let go of, in one write; returns what can't be taken now, and the ticket to wait
        for.

        That is what is of a topic that is not known here, or in another revision of its config: it could be from before
        the config named the group, last or at all. What moves back is taken in any case.
        """
        now, refused = self._clock.now_ms(), []
        moved: dict[tuple[str, TopicPartition], int | None] = {}
        for each in told:
            found, is_known = self._found(each)
            if each.from_seq is not None and not is_known:
                refused.append(each)
            if found is not None:
                moved[each.group, found] = each.from_seq
        fresh: dict[str, Group] = {}
        with Transaction(self._writer) as tx:
            self._stage_removals(tx)
            for (name, (topic, partition)), from_seq in moved.items():
                group = self._index.mirrors.get(name) or fresh.get(name)
                if group is None:
                    if from_seq is None:
                        continue
                    group = fresh[name] = Group(self._index.next_number + len(fresh), name, now, now, is_mirror=True)
                    tx.batch.put(Family.GROUPS, *group.row())
                key = position_key(group.number, topic.number, partition)
                if from_seq is None:
                    tx.batch.delete(Family.POSITIONS, key)
                else:
                    tx.batch.put(Family.POSITIONS, key, Position(from_seq, ts=now).encode())
            tx.commit()
        self._unremoved.clear()
        for group in fresh.values():
            self._index.add(group)
        for (name, (topic, partition)), from_seq in moved.items():
            group = self._index.mirrors.get(name)
            if group is None:
                continue
            if from_seq is not None:
                self._index.put(group, topic, partition, Position(from_seq, ts=now))
            elif group.position(topic, partition) is not None:
                self._index.drop(group, topic, partition)
        return refused, tx.ticket

    def keep(self, kept: Iterable[tuple[str, Place]], is_theirs: Callable[[str], bool]) -> int:
        """Remove, of the groups that `is_theirs` names, what is not among `kept`; returns the ticket to wait for."""
        found = {(name, place.topic_id, place.partition) for name, place in kept}
        gone = [
            Told(group.name, Place(topic.name, topic.topic_id, partition), 0, None)
            for group in self._index.mirrors.values()
            if is_theirs(group.name)
            for topic, positions in group.positions.items()
            for partition in positions
            if (group.name, topic.topic_id, partition) not in found
        ]
        ticket = self.tell(gone)[1] if gone else 0
        empty = [group for group in self._index.mirrors.values() if not group.positions and is_theirs(group.name)]
        if empty:
            with Transaction(self._writer) as tx:
                for group in empty:
                    tx.batch.delete(Family.GROUPS, group.row()[0])
                tx.commit()
            for group in empty:
                self._index.remove(group)
            ticket = tx.ticket
        return ticket

    def configured(self, topic: Topic) -> None:
        """The topic has another config: forget the mirrors in it that it does not ask for, or they would be old when it
        asks again."""
        gone = [group for group in self._index.reading(topic) if group.is_mirror and not _is_asked(group, topic)]
        if not gone:
            return
        for group in gone:
            for partition in list(group.positions[topic]):
                self._index.drop(group, topic, partition)
        self._unremoved += [(group, topic) for group in gone]
        with suppress(TopicsError), Transaction(self._writer) as tx:
            self._stage_removals(tx)
            tx.commit()
            self._unremoved.clear()

    def loaded(self) -> None:
        """Forget, after a start, what a write that failed before it has left."""
        topics = {topic for group in self._index.mirrors.values() for topic in group.positions}
        for topic in topics:
            self.configured(topic)

    def _found(self, told: Told) -> tuple[TopicPartition | None, bool]:
        """The partition of which to take the position over, and whether it is known with the same config."""
        place, mirror = told.place, self._index.mirrors.get(told.group)
        topic = self._catalog.find(place.topic)
        if topic is None or topic.topic_id != place.topic_id or topic.find_log(place.partition) is None:
            return None, False
        found = topic, place.partition
        if told.revision == revision_of(topic) and told.group in topic.config.retaining:
            return found, True
        former = None if mirror is None else mirror.position(*found)
        is_back = former is not None and (told.from_seq is None or told.from_seq < former.from_seq)
        return found if is_back else None, False

    def _stage_removals(self, tx: Transaction) -> None:
        for group, topic in self._unremoved:
            tx.batch.delete_range(Family.POSITIONS, *topic_range(group.number, topic.number))


def revision_of(topic: Topic) -> int:
    """The revision of the topic's config that its home has counted, for the shards that have a part."""
    return 0 if topic.spread is None else topic.spread.revision


def _is_asked(group: Group, topic: Topic) -> bool:
    return group.name in topic.config.retaining
