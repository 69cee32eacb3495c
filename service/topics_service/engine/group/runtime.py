"""What the groups of one coordinator share: time, alarms, settings, topics, and the way out for what they decide."""

from collections import deque
from collections.abc import Callable
from typing import Any

from topics_service.engine.group.members import GroupSettings, TopicsView
from topics_service.engine.group.timers import Alarm, Timers


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

    def take_back(self, respond: Any) -> None:
        """Do not answer a request after all."""
        self.outbox = deque(entry for entry in self.outbox if entry[0] != respond)
