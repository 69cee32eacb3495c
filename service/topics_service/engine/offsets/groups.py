"""Consumer groups: committed positions for all protocols, and the records that they hold back from retention."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from topics_service.engine import names, retention
from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import (
    Reason,
    TopicsError,
    group_not_found,
    partition_not_found,
    topic_not_found,
)
from topics_service.engine.limits import Limits
from topics_service.engine.offsets.group_index import GroupIndex, TopicPartition, in_order, topic_partitions
from topics_service.engine.offsets.mirrors import Mirrors
from topics_service.engine.offsets.positions import (
    CommitItem,
    Coordinator,
    DeleteGroupReply,
    Group,
    GroupState,
    GroupSummary,
    HeldPosition,
    ListGroupsReply,
    ListGroupsRequest,
    Membership,
    NoCoordinator,
    Place,
    Position,
    PositionState,
    ResetRequest,
    Target,
    beyond_head,
    check_item,
    check_reset,
    position_key,
    state_key,
    state_of,
    topic_range,
)
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family

MAX_POSITIONS = 100_000
_GROUPS_A_SWEEP = 1000
_HOUR_MS = 3_600_000


class Groups:
    """All groups of one data directory. Methods that write return their reply and the ticket that it waits for.

    A commit waits as long as the topics' class asks; creating, resetting and deleting always wait for an fsync.
    """

    def __init__(self, catalog: Catalog, writer: Writer, clock: Clock, limits: Limits) -> None:
        self.coordinator: Coordinator = NoCoordinator()  # replaced by the protocol that has members
        self.on_deleted: list[Callable[[str], None]] = []
        """Called with the name of a group that was deleted or has expired."""
        self._catalog = catalog
        self._writer = writer
        self._clock = clock
        self._limits = limits
        self.index = GroupIndex()
        self.mirrors = Mirrors(catalog, writer, clock, self.index)
        self._sweep_cursor = ""
        catalog.on_configured = self._configured

    def __len__(self) -> int:
        return len(self.index.by_name)

    def load(self, found: Iterable[tuple[Group, Mapping[TopicPartition, Position]]]) -> None:
        """Take over the groups and mirrors that recovery found, with their positions; and apply their retention
        holds."""
        for group, positions in found:
            self.index.add(group)
            for (topic, partition), position in positions.items():
                self.index.put(group, topic, partition, position)
        for topic in self._catalog.each():
            if topic.config.retaining:
                self.index.configured(topic)
        self.mirrors.loaded()

    # ------------------------------------------------------------------- groups

    def find(self, name: str) -> Group | None:
        """The group, if it exists."""
        return self.index.find(name)

    def get(self, name: str) -> Group:
        """The group. Raises `group_not_found`."""
        group = self.find(name)
        if group is None:
            raise group_not_found(name)
        return group

    def without_members(self, name: str) -> Group:
        """The group. Raises `group_not_found`, and `group_not_empty` while it has members."""
        group = self.get(name)
        self._check_empty(name)
        return group

    def create(self, name: str) -> tuple[Group, int]:
        """The group, made if there is none. Raises `invalid_request` for a bad name, `throttled` for too many."""
        group = self.find(name)
        if group is not None:
            return group, 0
        group = self._new(name)
        with Transaction(self._writer) as tx:
            tx.batch.put(Family.GROUPS, *group.row())
            tx.commit()
        self.index.add(group)
        return group, tx.ticket

    def page(self, request: ListGroupsRequest, allowed: tuple[str, ...] | None = None) -> ListGroupsReply:
        """One page in name order, only names that start with one of `allowed`."""
        page: list[GroupSummary] = []
        for name in self.index.under(request.prefix, allowed, request.after):
            if len(page) == request.page_size:
                return ListGroupsReply(groups=page, next_after=page[-1].group)
            group, membership = self.index.by_name[name], self.coordinator.membership(name)
            page.append(
                GroupSummary(
                    group=name,
                    state=membership.state,
                    protocol_type=membership.protocol_type,
                    members=len(membership.members),
                    positions=group.size,
                    last_commit_ts=group.last_commit_ts,
                )
            )
        return ListGroupsReply(groups=page, next_after=None)

    def describe(self, name: str, allowed: tuple[str, ...] | None = None) -> GroupState:
        """All about a group, but only of topics that start with one of `allowed`. Raises `group_not_found`."""
        group = self.get(name)
        return GroupState(
            group=name,
            created_ts=group.created_ts,
            last_commit_ts=group.last_commit_ts,
            membership=self.membership(name, allowed),
            positions=self.positions(name, allowed=allowed),
        )

    def membership(self, name: str, allowed: tuple[str, ...] | None = None) -> Membership:
        """The members of a group, with their partitions of topics that start with one of `allowed`."""
        return _seen(self.coordinator.membership(name), allowed)

    def delete(self, name: str) -> tuple[DeleteGroupReply, int]:
        """Remove the group with its positions. Raises `group_not_empty` while it has members."""
        group = self.find(name)
        if group is None:
            return DeleteGroupReply(group=name, deleted=False), 0
        self._check_empty(name)
        ticket = self._delete([group])
        return DeleteGroupReply(group=name, deleted=True), ticket

    def put_state(self, name: str, state: bytes | None) -> int:
        """Store the coordinator's state of a group, or remove it; returns the ticket of the write.

        Makes the group if there is none.
        """
        group, created = self.find(name), None
        if group is None:
            if state is None:
                return 0
            group = created = self._new(name)
        with Transaction(self._writer) as tx:
            if created is not None:
                tx.batch.put(Family.GROUPS, *created.row())
            if state is None:
                tx.batch.delete(Family.GROUPS, state_key(group.number))
            else:
                tx.batch.put(Family.GROUPS, state_key(group.number), state)
            tx.commit()
        if created is not None:
            self.index.add(created)
        return tx.ticket

    def state(self, name: str) -> bytes | None:
        """Return the coordinator's row of a group."""
        group = self.find(name)
        return None if group is None else self._writer.store.get(Family.GROUPS, state_key(group.number))

    def states(self) -> Iterator[tuple[str, bytes]]:
        """All that the coordinator keeps, by the names of the groups: for its start."""
        for name, group in self.index.by_name.items():
            state = self._writer.store.get(Family.GROUPS, state_key(group.number))
            if state is not None:
                yield name, state

    def touch(self, name: str) -> None:
        """The group is in use, though it commits nothing."""
        group = self.find(name)
        if group is not None:
            group.active_ts = max(group.active_ts, self._clock.now_ms())

    # ---------------------------------------------------------------- positions

    def commit(
        self, name: str, items: Sequence[CommitItem], *, whole: bool = False, kafka: bool = False
    ) -> tuple[list[TopicsError | None], int]:
        """Set positions, in one write; returns the error of each item (None: it is set).

        The first commit creates the group. With `whole` nothing is set unless all is well: raises the first error.
        Raises for faults of the whole call: `invalid_request` (name), `throttled`, `internal`.

        Commits of Kafka clients (`kafka`) follow Kafka's rules: a position may be beyond the head, and metadata is
        measured in UTF-16 units.
        """
        self._writer.check()
        names.check_group_name(name)
        now = self._clock.now_ms()
        outcomes: list[TopicsError | None] = []
        given: dict[TopicPartition, Position] = {}
        for item in items:
            try:
                topic = self._checked(item, kafka=kafka)
            except TopicsError as error:
                if whole:
                    raise
                outcomes.append(error)
            else:
                outcomes.append(None)
                given[topic, item.partition] = Position(item.from_seq, item.leader_epoch, item.metadata, now)
        return outcomes, self._commit(name, given)

    def commit_checked(self, name: str, items: Sequence[CommitItem], topic_ids: Mapping[str, str]) -> tuple[int, int]:
        """As `commit` of the whole, for items that were checked where their logs are (`check_item`), in topics of these
        ids. A topic that has another id by now has no such partition.

        Returns the time of the positions, and the ticket.
        """
        self._writer.check()
        names.check_group_name(name)
        now = self._clock.now_ms()
        given = {
            self._found(Place(item.topic, topic_ids[item.topic], item.partition)): Position(
                item.from_seq, item.leader_epoch, item.metadata, now
            )
            for item in items
        }
        return now, self._commit(name, given)

    def advance(self, name: str, place: Place, from_seq: int) -> tuple[int, int]:
        """Move a position forward, never back; returns where it is now, and the ticket to wait for.

        The first call creates the group. The caller has checked that it is not beyond the head.
        """
        self._writer.check()
        names.check_group_name(name)
        topic, partition = self._found(place)
        synced = topic.config.durability == "fsync"
        position = self.position(name, topic.name, partition)
        if position is not None and position.from_seq >= from_seq:
            return position.from_seq, self._writer.written if synced else 0  # it may have been set a moment ago
        group = self.find(name) or self._new(name)
        ticket = self._put(group, {(topic, partition): Position(from_seq, ts=self._clock.now_ms())})
        return from_seq, ticket if synced else 0

    def move(self, name: str, place: Place, expected: int | None, from_seq: int) -> tuple[int | None, int]:
        """Move a position forward if it is still `expected` (None: there is none); returns where it is now, and the
        ticket to wait for.

        The first call creates the group. The caller has checked that it is not beyond the head.
        """
        self._writer.check()
        names.check_group_name(name)
        topic, partition = self._found(place)
        position = self.position(name, topic.name, partition)
        found = None if position is None else position.from_seq
        if found == expected and (found is None or found < from_seq):
            return self.advance(name, place, from_seq)
        return found, self._writer.written if topic.config.durability == "fsync" else 0

    def pin(self, name: str, place: Place, head: int) -> tuple[int, int]:
        """Set the position of a group that has none to the head; returns it, and the ticket to wait for in any class.

        The first call creates the group.
        """
        self._writer.check()
        names.check_group_name(name)
        topic, partition = self._found(place)
        group = self.find(name) or self._new(name)
        position = group.position(topic, partition)
        if position is not None:
            return position.from_seq, self._writer.written
        return head, self._put(group, {(topic, partition): Position(head, ts=self._clock.now_ms())})

    def position(self, name: str, topic: str, partition: int) -> Position | None:
        """Return the group's position in a partition; None if it has committed nothing there. Raises nothing."""
        group, found = self.find(name), self._catalog.find(topic)
        return None if group is None or found is None else group.position(found, partition)

    def positions(
        self, name: str, topic: str | None = None, allowed: tuple[str, ...] | None = None
    ) -> list[PositionState]:
        """The group's positions by topic and partition, all or those in one topic. Raises `group_not_found`."""
        group, now = self.get(name), self._clock.now_ms()
        return [
            _state(found, partition, position, now)
            for found, partition, position in in_order(group)
            if topic in (None, found.name) and (allowed is None or found.name.startswith(allowed))
        ]

    def held(self, name: str, topic: str | None = None, allowed: tuple[str, ...] | None = None) -> list[HeldPosition]:
        """As `positions`, without the state of the partitions, which may be elsewhere."""
        return [
            HeldPosition(Place(found.name, found.topic_id, partition), position)
            for found, partition, position in in_order(self.get(name))
            if topic in (None, found.name) and (allowed is None or found.name.startswith(allowed))
        ]

    def position_state(self, name: str, topic: str, partition: int) -> PositionState:
        """One position that is there, with the state of its partition."""
        found = self._catalog.topics[topic]
        return _state(found, partition, self.index.by_name[name].positions[found][partition], self._clock.now_ms())

    def topics(self, name: str) -> list[str]:
        """The topics that the group has positions in."""
        group = self.find(name)
        return [] if group is None else [topic.name for topic in group.positions]

    def reset(self, request: ResetRequest) -> tuple[list[PositionState], int]:
        """Move positions, in one write; returns those that were moved, as they are now.

        Raises `group_not_found`, `group_not_empty` while it has members, `topic_not_found`, and `invalid_request` for
        a cursor beyond the head of one of the logs.
        """
        self._writer.check()
        check_reset(request)
        group, now = self.without_members(request.group), self._clock.now_ms()
        given = {
            (topic, partition): Position(self._start(topic, partition, request, now), ts=now)
            for topic, partition in self._partitions(group, request.targets)
        }
        if not given:
            return [], 0
        ticket = self._put(group, given)
        return [_state(topic, partition, position, now) for (topic, partition), position in given.items()], ticket

    def reset_checked(self, name: str, starts: Sequence[tuple[Place, int]]) -> tuple[list[HeldPosition], int]:
        """As `reset`, to cursors that were found where the logs are."""
        self._writer.check()
        group, now = self.without_members(name), self._clock.now_ms()
        given = {self._found(place): Position(from_seq, ts=now) for place, from_seq in starts}
        if not given:
            return [], 0
        ticket = self._put(group, given)
        return [HeldPosition(place, Position(from_seq, ts=now)) for place, from_seq in starts], ticket

    def delete_positions(
        self, name: str, targets: Sequence[Target], *, in_use: bool = False
    ) -> tuple[list[tuple[str, int]], int]:
        """Forget positions; returns those that were there, as topic and partition.

        Raises `group_not_found`, and `group_not_empty` while the group has members unless `in_use`: then the caller
        knows that no member reads there.
        """
        group = self.get(name) if in_use else self.without_members(name)
        return self._forget(group, self._partitions(group, targets))

    def delete_checked(
        self, name: str, places: Sequence[Place], *, in_use: bool = False
    ) -> tuple[list[tuple[str, int]], int]:
        """As `delete_positions`, in partitions that were found to exist, of which this shard need not know."""
        group = self.get(name) if in_use else self.without_members(name)
        found = {place: self._catalog.find(place.topic) for place in places}
        return self._forget(
            group,
            [
                (topic, place.partition)
                for place, topic in found.items()
                if topic is not None and topic.topic_id == place.topic_id
            ],
        )

    def _forget(self, group: Group, partitions: Sequence[TopicPartition]) -> tuple[list[tuple[str, int]], int]:
        gone = [each for each in partitions if group.position(*each) is not None]
        if not gone:
            return [], 0
        with Transaction(self._writer) as tx:
            for topic, partition in gone:
                tx.batch.delete(Family.POSITIONS, position_key(group.number, topic.number, partition))
            tx.batch.put(Family.GROUPS, *group.row())  # the removed rows had the time of its last use
            tx.commit()
        for topic, partition in gone:
            self.index.drop(group, topic, partition)
        return [(topic.name, partition) for topic, partition in gone], tx.ticket

    # ---------------------------------------------------------------- retention

    def remove_topic(self, topic: Topic, tx: Transaction) -> None:
        """Stage the removal of every position in the topic; `removed_topic` must follow the commit."""
        for group in self.index.reading(topic):
            tx.batch.delete_range(Family.POSITIONS, *topic_range(group.number, topic.number))
            if not group.is_mirror:
                tx.batch.put(Family.GROUPS, *group.row())
            elif len(group.positions) == 1:
                tx.batch.delete(Family.GROUPS, group.row()[0])

    def removed_topic(self, topic: Topic) -> None:
        """The removal was written: forget the positions."""
        self.index.drop_topic(topic)

    def sweep(self) -> None:
        """Remove groups that were idle for too long, and note which are in use; a slice of them per call.

        Those without a position go after an hour: joining makes a group, and names are easily made up.
        A group that a topic retains records for stays: losing its position would hold back everything.
        """
        retention_ms = self._limits.group_retention_ms
        if not retention_ms:
            return
        now, gone, used = self._clock.now_ms(), [], []
        grain = min(_HOUR_MS, retention_ms // 8)
        names_left = self.index.by_name.irange(minimum=self._sweep_cursor, inclusive=(False, True))
        examined = list(islice(names_left, _GROUPS_A_SWEEP))
        for name in examined:
            group = self.index.by_name[name]
            if not self.coordinator.is_empty(name):
                group.active_ts = max(group.active_ts, now)
            elif now - group.active_ts > (retention_ms if group.size else grain) and not self.index.is_retained_for(
                group
            ):
                gone.append(group)
            if group.active_ts - group.stored_ts > grain:
                used.append(group)
        if used:
            with Transaction(self._writer) as tx:
                for group in used:
                    tx.batch.put(Family.GROUPS, *group.row())
                tx.commit()
            for group in used:
                group.stored_ts = group.active_ts
        if gone:
            self._delete(gone)
        self._sweep_cursor = examined[-1] if len(examined) == _GROUPS_A_SWEEP else ""

    # ---------------------------------------------------------------- internals

    def _configured(self, topic: Topic) -> None:
        self.index.configured(topic)
        if self.index.mirrors:
            self.mirrors.configured(topic)

    def _checked(self, item: CommitItem, *, kafka: bool) -> Topic:
        """The topic of an item that can be committed."""
        topic = self._catalog.visible(item.topic)
        if kafka and self._is_elsewhere(topic, item.partition):
            head = item.from_seq  # whatever it is: the position may be beyond it
        else:
            head = topic.partition(item.partition).view.head
        check_item(item, head, kafka=kafka)
        return topic

    def _is_elsewhere(self, topic: Topic, partition: int) -> bool:
        """Return whether the partition is in another shard."""
        return topic.spread is not None and 0 <= partition < topic.partition_count and topic.find_log(partition) is None

    def _found(self, place: Place) -> TopicPartition:
        """The partition of a topic that may be here or elsewhere. Raises unless it is of that life."""
        topic = self._catalog.visible(place.topic)
        if topic.topic_id != place.topic_id:
            raise topic_not_found(place.topic)
        if not 0 <= place.partition < topic.partition_count:
            raise partition_not_found(place.topic, place.partition, topic.partition_count)
        return topic, place.partition

    def _commit(self, name: str, given: Mapping[TopicPartition, Position]) -> int:
        """Write committed positions, if there are any; returns the ticket to wait for."""
        if not given:
            return 0
        synced = any(topic.config.durability == "fsync" for topic, _ in given)
        ticket = self._put(self.find(name) or self._new(name), given)
        return ticket if synced else 0

    def _partitions(self, group: Group, targets: Sequence[Target]) -> list[TopicPartition]:
        """The partitions that are meant, by topic and partition. Raises for one that does not exist."""
        if not targets:
            return topic_partitions(group)
        meant: dict[TopicPartition, None] = {}
        for target in targets:
            topic = self._catalog.visible(target.topic)
            for partition in target.partitions or range(topic.partition_count):
                if not 0 <= partition < topic.partition_count:
                    raise partition_not_found(topic.name, partition, topic.partition_count)
                meant[topic, partition] = None
        return list(meant)

    def _start(self, topic: Topic, partition: int, request: ResetRequest, now: int) -> int:
        """The cursor that a reset means in a partition."""
        log = topic.partition(partition)
        s = log.visible(topic.config, now)
        if request.ts is not None:
            return s.first_live(retention.first_at_or_after(s, log.blocks, request.ts)) - 1
        if request.to == "earliest":
            return s.earliest - 1
        if request.to == "latest":
            return s.head
        assert isinstance(request.to, int)
        if not 0 <= request.to <= s.head:
            raise beyond_head(topic.name, partition, request.to, s.head)
        return request.to

    def _put(self, group: Group, given: Mapping[TopicPartition, Position]) -> int:
        """Write positions, and the group if it is new; returns the ticket of the write."""
        fresh = sum(group.position(*each) is None for each in given)
        if group.size + fresh > MAX_POSITIONS:
            raise TopicsError(
                Reason.THROTTLED, "the group has too many positions",
                {"limit": "max_positions", "max": MAX_POSITIONS},
            )  # fmt: skip
        with Transaction(self._writer) as tx:
            if group.name not in self.index.by_name:
                tx.batch.put(Family.GROUPS, *group.row())
            for (topic, partition), position in given.items():
                key = position_key(group.number, topic.number, partition)
                tx.batch.put(Family.POSITIONS, key, position.encode())
            tx.commit()
        if group.name not in self.index.by_name:
            self.index.add(group)
        for (topic, partition), position in given.items():
            self.index.put(group, topic, partition, position)
        return tx.ticket

    def _delete(self, gone: Sequence[Group]) -> int:
        with Transaction(self._writer) as tx:
            for group in gone:
                rows = keys.u64(group.number), keys.u64(group.number + 1)
                tx.batch.delete_range(Family.GROUPS, *rows)
                tx.batch.delete_range(Family.POSITIONS, *rows)
            tx.commit()
        for group in gone:
            self.index.remove(group)
            for callback in self.on_deleted:
                callback(group.name)
        return tx.ticket

    def _new(self, name: str) -> Group:
        names.check_group_name(name)
        max_groups = self._limits.max_groups
        if max_groups and len(self) + self._limits.elsewhere.groups >= max_groups:
            raise TopicsError(
                Reason.THROTTLED,
                "the server has reached its limit of groups",
                {"limit": "max_groups", "max": max_groups},
            )
        now = self._clock.now_ms()
        return Group(self.index.next_number, name, now, now)

    def _check_empty(self, name: str) -> None:
        if not self.coordinator.is_empty(name):
            raise TopicsError(Reason.GROUP_NOT_EMPTY, f'group "{name}" has members', {"group": name})


def _seen(membership: Membership, allowed: tuple[str, ...] | None) -> Membership:
    """The membership without partitions of topics that do not start with one of `allowed`."""
    if allowed is None:
        return membership
    members = [
        replace(member, partitions=tuple(part for part in member.partitions if part[0].startswith(allowed)))
        for member in membership.members
    ]
    return replace(membership, members=members)


def _state(topic: Topic, partition: int, position: Position, now: int) -> PositionState:
    s = topic.partition(partition).visible(topic.config, now)
    return state_of(Place(topic.name, topic.topic_id, partition), position, s.earliest, s.head)
