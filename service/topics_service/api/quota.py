"""What one API key may hold at a time, so that none takes the server away from the others. Pure.

A server without keys has no such limits: it serves everyone on its machine, who all come from one address. There the
limits of the whole are what holds: the memory for all requests (`budget`) is one.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from topics_service.api.budget import MemoryBudget, Share
from topics_service.engine.errors import Reason, TopicsError

SMALL_BYTES: Final = 64 << 10
"""A request of at most this is not counted in bytes: how many there are is bounded, and most requests are."""

CONNECTIONS: Final = "max_connections_per_key"
STREAMS: Final = "max_sse_connections_per_key"
IN_FLIGHT: Final = "max_inflight_per_key"
BYTES: Final = "max_bytes_in_flight_per_key"
MEMORY: Final = "memory_bytes"
LIMITS: Final = frozenset({CONNECTIONS, STREAMS, IN_FLIGHT, BYTES, MEMORY})
"""What `detail.limit` of a refusal says, and the metric of refusals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """The most of each; 0 is no limit.

    `connections` are those of HTTP, WebSockets among them, and of Kafka; `streams` server-sent events, WebSockets and
    the streams of gRPC; `in_flight` requests under way at any door, `nbytes` what the larger ones of those hold.
    """

    connections: int = 0
    streams: int = 0
    in_flight: int = 0
    nbytes: int = 0


OWN_LIMITS: Final = {
    "max_connections": "connections",
    "max_streams": "streams",
    "max_in_flight": "in_flight",
    "max_bytes_in_flight": "nbytes",
}
"""The limits that the entry of a key may give, and the fields that they are."""


class Usage:
    """What one key holds now, and may. Whoever takes gives back; a key that is over a new limit takes nothing more."""

    __slots__ = ("connections", "in_flight", "limits", "nbytes")

    def __init__(self, limits: KeyLimits) -> None:
        self.limits = limits
        self.connections = 0
        self.in_flight = 0
        self.nbytes = 0

    def take_connection(self) -> None:
        """One more. Raises `throttled`."""
        most = self.limits.connections
        if most and self.connections >= most:
            raise exceeded("this API key has as many connections as it may", CONNECTIONS, most)
        self.connections += 1

    def leave_connection(self) -> None:
        """One less."""
        self.connections -= 1

    def may_start(self) -> bool:
        """Whether there is room for one more request."""
        most = self.limits.in_flight
        return not most or self.in_flight < most

    def take_request(self) -> None:
        """One more under way. Raises `throttled`."""
        if not self.may_start():
            raise exceeded("this API key has as many requests in flight as it may", IN_FLIGHT, self.limits.in_flight)
        self.in_flight += 1


class Held:
    """The bytes of one request: they count against its key, if it has one, and in the memory for all requests.

    One request alone may be larger than either: how large one may be is said elsewhere. Of those that have no room
    the oldest gets it all the same (see MemoryBudget), until it is released.
    """

    __slots__ = ("_asked", "_memory", "_nbytes", "_times", "_usage", "_wake")

    def __init__(self, usage: Usage | None, memory: MemoryBudget | None, times: int = 1) -> None:
        """Each byte takes `times` as many of the memory, once the request is decoded."""
        self._usage = usage
        self._memory = memory
        self._times = times
        self._nbytes = 0
        self._asked = 0  # waits for so much
        self._wake: Callable[[], None] = _nothing

    @property
    def share(self) -> Share | None:
        """See Waiter. What a key may hold is refused here, and not waited for."""
        return None

    @property
    def is_short(self) -> bool:
        """True while others wait for memory."""
        return self._memory is not None and self._memory.is_short

    @property
    def is_crowded(self) -> bool:
        """True while all others that wait for memory want more than there is."""
        memory = self._memory
        return memory is not None and memory.waiting - self._asked * self._times > memory.most

    @property
    def most(self) -> int:
        """The memory for all requests."""
        return 0 if self._memory is None else self._memory.most

    def grow(self, nbytes: int) -> None:
        """The request holds so much by now. Raises `throttled` when there is no room for what came on top."""
        if not self.ask(nbytes, _nothing):
            self.give_up()

    def ask(self, nbytes: int, wake: Callable[[], None]) -> bool:
        """The request is to hold so much. Or False: `wake` is called when it does, and `give_up` ends the wait.

        Raises `throttled` when its key has no room.
        """
        more = nbytes - self._nbytes
        if nbytes <= SMALL_BYTES or more <= 0:
            return True
        usage = self._usage
        if usage is not None:
            most = usage.limits.nbytes
            # Its own bytes are no reason to refuse it more of them.
            if most and usage.nbytes + more > most and usage.nbytes > self._nbytes:
                raise exceeded("requests of this API key hold as many bytes as they may", BYTES, most)
        self._asked, self._wake = more, wake
        if self._memory is None or self._memory.take(self, more * self._times):
            self._take()
            return True
        return False

    def granted(self) -> None:
        """See Waiter."""
        self._take()
        self._wake()

    def give_up(self) -> None:
        """Wait no longer. Raises `throttled`, unless the bytes were granted meanwhile."""
        if self._asked and self._memory is not None:
            self._leave(self._memory)
            raise exceeded("the requests of all clients hold as many bytes as they may", MEMORY, self._memory.most)

    def release(self) -> None:
        """Nothing is held any more, or waited for. Idempotent."""
        nbytes, self._nbytes = self._nbytes, 0
        if self._usage is not None:
            self._usage.nbytes -= nbytes
        if self._memory is not None and (nbytes or self._asked):
            self._memory.release(nbytes * self._times)
            self._leave(self._memory)

    def _take(self) -> None:
        more, self._asked = self._asked, 0
        self._nbytes += more
        if self._usage is not None:
            self._usage.nbytes += more

    def _leave(self, memory: MemoryBudget) -> None:
        self._asked, self._wake = 0, _nothing
        memory.leave(self)


class Quotas:
    """The limits of all keys, by `key_id`, and what each holds."""

    def __init__(
        self,
        common: KeyLimits,
        own: Mapping[str, Mapping[str, int]] | None = None,
        memory: MemoryBudget | None = None,
    ) -> None:
        """`own` are fields of KeyLimits that some keys have in place of the common ones; `memory` is that of all."""
        self.memory = memory
        self._common = common
        self._own = own or {}
        self._usages: dict[str, Usage] = {}

    def of(self, key_id: str) -> Usage:
        """What a key holds; always the same object."""
        usage = self._usages.get(key_id)
        if usage is None:
            usage = self._usages[key_id] = Usage(self._limits(key_id))
        return usage

    def renew(self, own: Mapping[str, Mapping[str, int]]) -> None:
        """Take other limits. They hold for what comes; nothing is ended."""
        self._own = own
        for key_id, usage in self._usages.items():
            usage.limits = self._limits(key_id)

    def _limits(self, key_id: str) -> KeyLimits:
        own: Any = self._own.get(key_id)
        return replace(self._common, **own) if own else self._common


def exceeded(message: str, limit: str, most: int) -> TopicsError:
    """The refusal of a key that holds as much as it may."""
    return TopicsError(Reason.THROTTLED, message, {"limit": limit, "max": most})


def count_refusal(refusals: Counter[tuple[str, str]], door: str, error: TopicsError) -> None:
    """Count what `door` refuses, if it is for a limit of a key."""
    if error.reason is Reason.THROTTLED and (limit := (error.detail or {}).get("limit")) in LIMITS:
        refusals[door, str(limit)] += 1


def _nothing() -> None:
    """For who does not wait."""
