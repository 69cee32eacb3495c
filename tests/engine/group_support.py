"""A world with consumer groups, and short ways to make and look at them."""

from collections.abc import Sequence

from engine_support import World

from topics_service.engine.errors import TopicsError
from topics_service.engine.offsets.positions import CommitItem, Member, Membership, ResetRequest, Target


class Coordinator:
    """Knows the members that a test says there are."""

    def __init__(self) -> None:
        self.members: dict[str, list[Member]] = {}

    def is_empty(self, group: str) -> bool:
        return not self.members.get(group)

    def membership(self, group: str) -> Membership:
        if self.is_empty(group):
            return Membership()
        return Membership(state="Stable", protocol_type="consumer", members=self.members[group])


class GroupWorld(World):
    """A World that commits positions."""

    def commit(
        self, group: str, from_seq: int, topic: str = "t", partition: int = 0, *, sync: bool = True, metadata: str = ""
    ) -> int:
        """Commit one position, which must be allowed; returns the ticket."""
        ticket = self.try_commit(group, [CommitItem(topic, partition, from_seq, metadata=metadata)])
        if sync:
            self.engine.sync()
        return ticket

    def try_commit(self, group: str, items: Sequence[CommitItem]) -> int:
        outcomes, ticket = self.engine.groups.commit(group, items)
        assert outcomes == [None] * len(items)
        return ticket

    def outcomes(self, group: str, *items: CommitItem, kafka: bool = False) -> list[str]:
        """The error codes of a commit, empty for none."""
        outcomes, _ = self.engine.groups.commit(group, items, kafka=kafka)
        return ["" if error is None else error.reason.code for error in outcomes]

    def position(self, group: str, topic: str = "t", partition: int = 0) -> int | None:
        found = self.engine.groups.position(group, topic, partition)
        return None if found is None else found.from_seq

    def positions(self, group: str) -> dict[tuple[str, int], int]:
        return {(state.topic, state.partition): state.from_seq for state in self.engine.groups.positions(group)}

    def reset(self, group: str, *targets: Target, **to: object) -> dict[tuple[str, int], int]:
        moved, _ = self.engine.groups.reset(ResetRequest(group=group, targets=targets, **to))  # type: ignore[arg-type]
        self.engine.sync()
        return {(state.topic, state.partition): state.from_seq for state in moved}

    def names(self) -> list[str]:
        return list(self.engine.groups.index.by_name)

    def hold(self, topic: str = "t", partition: int = 0) -> int | None:
        return self.engine.catalog.topics[topic].logs[partition].hold

    def is_full(self, topic: str = "t", count: int = 1) -> bool:
        """Write, and return whether that is refused for room."""
        try:
            self.append(*(b"x" for _ in range(count)), topic=topic)
        except TopicsError as error:
            if error.reason.code != "topic_full":
                raise
            return True
        return False
