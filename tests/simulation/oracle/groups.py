"""The committed positions of consumer groups, and what they hold back."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simulation.oracle.topics import History, TopicModel, back, keep, prune
from support.log_model import demand
from topics_service.engine.offsets.positions import CommitItem, ResetRequest, Target

if TYPE_CHECKING:
    from simulation.world import World

Place = tuple[int, int]  # number of the topic, partition
Positions = Mapping[str, Mapping[Place, int]]


class Groups:
    """Every call of groups, checked. Positions are as written last, by group."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.positions: Positions = {}
        self.history: History[Positions] = [(0, {})]
        self._beyond: set[tuple[str, Place, int]] = set()  # what was ever committed beyond a head

    def hold(self, topic: TopicModel, names: Sequence[str], partition: int) -> int | None:
        """The lowest position of these groups in a partition; None for no groups."""
        return min((self.positions.get(name, {}).get((topic.number, partition), 0) for name in names), default=None)

    # -------------------------------------------------------------------- calls

    def commit(self, group: str, topic: TopicModel, partition: int, seq: int) -> None:
        """Commit a position that is allowed; one beyond the head as a Kafka client."""
        world = self._world
        world.look()
        item = CommitItem(topic.name, partition, seq)
        beyond = seq > topic.logs[partition].view.head
        if beyond:
            self._beyond.add((group, (topic.number, partition), seq))
        outcomes, ticket = world.call(lambda: world.engine.groups.commit(group, [item], kafka=beyond))
        demand(outcomes == [None], f"a commit of {seq} in {topic.name}/{partition} is refused")
        self._set(group, {(topic.number, partition): seq})
        durable = topic.config.durability == "fsync"
        demand(not durable or ticket > world.synced, "a commit in a topic of the class fsync waits for no fsync")
        world.owe(ticket, world.w if durable else None, f"a commit of {group}")
        world.trace.meet("a commit beyond the head" if beyond else "a commit")

    def reset(self, group: str, topic: TopicModel, to: int | str) -> None:
        """Move a group to an end of a topic, or to a seq that it may not have."""
        world = self._world
        world.look()
        expected = {
            (topic.number, p): {"earliest": log.view.earliest - 1, "latest": log.view.head}.get(str(to), to)
            for p, log in enumerate(topic.logs)
        }
        request = ResetRequest(group=group, targets=[Target(topic.name)], to=to)  # type: ignore[arg-type]
        moved, ticket = world.call(lambda: world.engine.groups.reset(request), "group_not_found", "invalid_request")
        found = {(topic.number, each.partition): each.from_seq for each in moved}
        demand(found == expected, f"a reset to {to} gives {found}, not {expected}")
        self._set(group, found)
        world.owe(ticket, world.w, f"a reset of {group}")
        world.trace.meet("a reset of a group")

    def forget(self, group: str, topic: TopicModel) -> None:
        """Delete a group's positions in a topic."""
        world = self._world
        world.look()
        gone, ticket = world.call(
            lambda: world.engine.groups.delete_positions(group, [Target(topic.name)]), "group_not_found"
        )
        was = self.positions.get(group, {})
        demand(
            {(topic.number, p) for _, p in gone} == {at for at in was if at[0] == topic.number}, "other positions go"
        )
        if gone:
            self._replace(group, {at: seq for at, seq in was.items() if at[0] != topic.number})
            world.owe(ticket, world.w, f"positions of {group} are forgotten")
            world.trace.meet("positions that were deleted")

    def delete(self, group: str) -> None:
        """Delete a group."""
        world = self._world
        world.look()
        reply, ticket = world.call(lambda: world.engine.groups.delete(group))
        demand(reply.deleted == (group in self.positions), f"the group {group} is there, or is not")
        if reply.deleted:
            self.positions = {name: each for name, each in self.positions.items() if name != group}
            keep(self.history, world.w, self.positions)
            world.owe(ticket, world.w, f"the group {group} is deleted")

    def topic_removed(self, number: int) -> None:
        """A topic was deleted: so are the positions in it."""
        self.positions = {
            name: {at: seq for at, seq in each.items() if at[0] != number} for name, each in self.positions.items()
        }
        keep(self.history, self._world.w, self.positions)

    # ------------------------------------------------------------------ crashes

    def prune(self, synced: int) -> None:
        """See Topics."""
        prune(self.history, synced)

    def back(self, w: int, heads: Mapping[Place, int]) -> None:
        """After a crash: what was committed then; nothing else is beyond a head."""
        self.positions = back(self.history, w)
        ahead = {
            (name, at, seq) for name, each in self.positions.items() for at, seq in each.items() if seq > heads[at]
        }
        demand(ahead <= self._beyond, f"positions are beyond heads that were not: {ahead - self._beyond}")
        self.history = [(0, self.positions)]
        self.check()

    def check(self) -> None:
        """The engine has these groups and positions, and holds back what they ask for."""
        world = self._world
        groups = world.engine.groups
        states = {name: groups.positions(name) for name in groups.index.by_name}
        found = {
            name: {(world.engine.catalog.topics[each.topic].number, each.partition): each.from_seq for each in some}
            for name, some in states.items()
        }
        demand(
            all(each.lag == max(0, each.head_seq - each.from_seq) for some in states.values() for each in some), "lags"
        )
        demand(found == self.positions, f"the positions are {found}, not {self.positions}")
        for topic, partition, _ in world.topics.logs():
            hold = self.hold(topic, topic.config.retaining, partition)
            demand(world.log(topic, partition).hold == hold, f"{topic.name}/{partition} does not hold back from {hold}")

    # ---------------------------------------------------------------- internals

    def _set(self, group: str, given: Mapping[Place, int]) -> None:
        self._replace(group, {**self.positions.get(group, {}), **given})

    def _replace(self, group: str, positions: Mapping[Place, int]) -> None:
        self.positions = {**self.positions, group: positions}
        keep(self.history, self._world.w, self.positions)
