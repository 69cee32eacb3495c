"""State shared by the groups of one coordinator: clock, alarms, settings, topics, and the output of decisions."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from topics_service.engine.membership.members import GroupError, GroupSettings, RefusedError, TopicsView
from topics_service.engine.membership.subscriptions import Matches
from topics_service.engine.membership.timers import Alarm, Timers


class Weighed(Protocol):
    """A member: how many bytes of its own we keep, and how many of them are counted."""

    weight: int

    @property
    def size(self) -> int:
        """The bytes that we keep."""
        ...


class Runtime:
    """Groups put answers and changes here; the coordinator hands them out when a request is done with.

    `held` knows the member that waits for an answer, `touched` the groups whose stored state is out of date,
    `idle` those that may have lost their last member.
    """

    def __init__(
        self, topics: TopicsView, now: Callable[[], int], new_id: Callable[[], str], settings: GroupSettings
    ) -> None:
        self.topics = topics
        self.now = now
        self.new_id = new_id
        self.settings = settings
        self.timers = Timers()
        self.topics_version = 0
        self.matches = Matches(topics.names)
        self.weight = 0  # bytes that clients have us keep
        self.held: dict[Any, tuple[str, str]] = {}
        self.outbox: deque[tuple[Any, Any]] = deque()
        self.touched: set[str] = set()
        self.idle: set[str] = set()

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        """A new alarm, not set."""
        return Alarm(self.timers, ring)

    def hold(self, respond: Any, group: str, member_id: str) -> None:
        """The member of the group waits for an answer."""
        self.held[respond] = (group, member_id)

    def answer(self, respond: Any, reply: Any) -> None:
        """Answer a request, held before or not."""
        self.held.pop(respond, None)
        self.outbox.append((respond, reply))

    def check_size(self, size: int, members: Iterable[Weighed], member: Weighed | None) -> None:
        """Raise RefusedError if there is no room for a subscription of `size` in a group with these members.

        `member` is the one whose subscription it replaces, if any.
        """
        settings = self.settings
        if size > settings.max_metadata_bytes:
            raise RefusedError(
                GroupError.INVALID_REQUEST, f"a subscription has at most {settings.max_metadata_bytes} bytes"
            )
        more = size - (0 if member is None else member.weight)
        if more <= 0:
            return
        if sum(each.weight for each in members) + more > settings.max_group_bytes:
            raise RefusedError(
                GroupError.GROUP_MAX_SIZE_REACHED, f"a group subscribes with at most {settings.max_group_bytes} bytes"
            )
        if self.weight + more > settings.max_bytes:
            raise RefusedError(GroupError.GROUP_MAX_SIZE_REACHED, "all groups together take too much memory")

    def weigh(self, member: Weighed, *, is_gone: bool = False) -> None:
        """Update the member's counted size, after a change."""
        size = 0 if is_gone else member.size
        self.weight += size - member.weight
        member.weight = size

    def take_back(self, respond: Any) -> None:
        """Do not answer a request after all."""
        self.outbox = deque(entry for entry in self.outbox if entry[0] != respond)
