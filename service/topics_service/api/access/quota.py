"""Resource limits of each API key, so that none can exhaust the server. Pure.

A server without keys has no such limits, as all its callers come from one address. There only global limits apply, such
as the memory for all requests (`budget`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakValueDictionary

from topics_service.api.budget import MemoryBudget, Share
from topics_service.engine.errors import Reason, TopicsError

SMALL_BYTES: Final = 64 << 10
"""Requests up to this size are not counted in bytes: their number is bounded, and most requests are small."""

CONNECTIONS: Final = "max_connections_per_key"
STREAMS: Final = "max_sse_connections_per_key"
IN_FLIGHT: Final = "max_inflight_per_key"
BYTES: Final = "max_bytes_in_flight_per_key"
MEMORY: Final = "memory_bytes"
LIMITS: Final = frozenset({CONNECTIONS, STREAMS, IN_FLIGHT, BYTES, MEMORY})
"""Values of `detail.limit` in refusals, and of the label `limit` of their metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """Maximum of each resource; 0 means unlimited.

    `connections` counts those of HTTP, WebSocket and Kafka; `streams` server-sent events, WebSockets and gRPC streams;
    `in_flight` concurrent requests of all protocols, and `nbytes` the memory of the larger ones.
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
"""Limits that the entry of a key may set, with their fields of KeyLimits."""


class Usage:
    """Resources held by one key, and its limits. A key above a lowered limit keeps its slots but gets no new ones."""

    __slots__ = ("__weakref__", "connections", "in_flight", "limits", "nbytes", "streams")

    connections_elsewhere = in_flight_elsewhere = nbytes_elsewhere = streams_elsewhere = 0
    """The part that the key holds of other processes of the same server, which counts too."""

    def __init__(self, limits: KeyLimits) -> None:
        self.limits = limits
        self.connections = 0
        self.in_flight = 0
        self.nbytes = 0
        self.streams = 0

    def take_connection(self) -> None:
        """Add a connection. Raises `throttled`."""
        maximum = self.limits.connections
        if maximum and self.connections + self.connections_elsewhere >= maximum:
            raise exceeded("this API key has reached its connection limit", CONNECTIONS, maximum)
        self.connections += 1

    def leave_connection(self) -> None:
        """Remove a connection."""
        self.connections -= 1

    def has_slot(self) -> bool:
        """True if one more request may start."""
        maximum = self.limits.in_flight
        return not maximum or self.in_flight + self.in_flight_elsewhere < maximum

    def take_request(self) -> None:
        """Add a request in flight. Raises `throttled`."""
        if not self.has_slot():
            raise exceeded("this API key has reached its limit of requests in flight", IN_FLIGHT, self.limits.in_flight)
        self.in_flight += 1


class Held:
    """Memory held by one request, counted against its key, if any, and against the memory for all requests.

    A single request may exceed either limit: the size of requests is limited elsewhere. The oldest request that waits
    for memory gets it regardless (see MemoryBudget), until it is released.
    """

    __slots__ = ("_asked", "_memory", "_nbytes", "_times", "_usage", "_wake")

    def __init__(self, usage: Usage | None, memory: MemoryBudget | None, times: int = 1) -> None:
        """`times` is the memory that a byte of the request takes once decoded."""
        self._usage = usage
        self._memory = memory
        self._times = times
        self._nbytes = 0
        self._asked = 0  # bytes it waits for
        self._wake: Callable[[], None] = _nothing

    @property
    def share(self) -> Share | None:
        """See Waiter. Above the limit of its key, a request is refused instead of waiting."""
        return None

    @property
    def is_short(self) -> bool:
        """True while others wait for memory."""
        return self._memory is not None and self._memory.is_short

    @property
    def is_crowded(self) -> bool:
        """True while the other waiting requests ask for more than the whole memory."""
        memory = self._memory
        return memory is not None and memory.waiting - self._asked * self._times > memory.max_bytes

    @property
    def max_bytes(self) -> int:
        """The memory for all requests."""
        return 0 if self._memory is None else self._memory.max_bytes

    def grow(self, nbytes: int) -> None:
        """Grow to `nbytes` in total. Raises `throttled` when there is no memory for the difference."""
        if not self.ask(nbytes, _nothing):
            self.give_up()

    def ask(self, nbytes: int, wake: Callable[[], None]) -> bool:
        """Grow to `nbytes` in total, or return False: `wake` is called once it did, and `give_up` ends the wait.

        Raises `throttled` when the limit of its key is reached.
        """
        more = nbytes - self._nbytes
        if nbytes <= SMALL_BYTES or more <= 0:
            return True
        usage = self._usage
        if usage is not None:
            maximum = usage.limits.nbytes
            # Bytes of the request itself are no reason to refuse it.
            held = usage.nbytes + usage.nbytes_elsewhere
            if maximum and held + more > maximum and held > self._nbytes:
                raise exceeded("this API key has reached its limit of bytes in flight", BYTES, maximum)
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
        """Stop waiting. Raises `throttled`, unless the bytes were granted in time."""
        if self._asked and self._memory is not None:
            self._leave(self._memory)
            raise exceeded("the server has reached its memory limit for requests", MEMORY, self._memory.max_bytes)

    def release(self) -> None:
        """Release all memory and stop waiting. Idempotent."""
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
    """Limits and usage of all keys, users and subjects of tokens, by `key_id`.

    There may be any number of subjects, so the usage of those is forgotten once nothing refers to it.
    """

    def __init__(
        self,
        common: KeyLimits,
        own: Mapping[str, Mapping[str, int]] | None = None,
        memory: MemoryBudget | None = None,
    ) -> None:
        """`own` are the fields of KeyLimits that a key overrides; `memory` is shared by all requests."""
        self.memory = memory
        self._common = common
        self._own = own or {}
        self._usages: dict[str, Usage] = {}
        self._passing: WeakValueDictionary[str, Usage] = WeakValueDictionary()  # of users and subjects
        self.make: Callable[[str, KeyLimits], Usage] = lambda _key_id, limits: Usage(limits)
        """Makes the usage of a key."""

    def for_key(self, key_id: str) -> Usage:
        """Return the usage of a key, always the same object; that of a user or subject while somebody keeps it."""
        usage = self._usages.get(key_id)
        if usage is None:
            if ":" in key_id:
                usage = self._passing.get(key_id)
                if usage is None:
                    usage = self._passing[key_id] = self.make(key_id, self._common)
            else:
                usage = self._usages[key_id] = self.make(key_id, self._limits(key_id))
        return usage

    def replace_limits(self, own: Mapping[str, Mapping[str, int]]) -> None:
        """Replace the limits of keys. They apply to new requests; nothing running is ended."""
        self._own = own
        for key_id, usage in self._usages.items():
            usage.limits = self._limits(key_id)

    def _limits(self, key_id: str) -> KeyLimits:
        own: Any = self._own.get(key_id)
        return replace(self._common, **own) if own else self._common


def exceeded(message: str, limit: str, maximum: int) -> TopicsError:
    """Return the error of a key that has reached a limit."""
    return TopicsError(Reason.THROTTLED, message, {"limit": limit, "max": maximum})


def count_refusal(refusals: Counter[tuple[str, str]], protocol: str, error: TopicsError) -> None:
    """Count an error of `protocol` if it is for a limit of a key."""
    if error.reason is Reason.THROTTLED and (limit := (error.detail or {}).get("limit")) in LIMITS:
        refusals[protocol, str(limit)] += 1


def _nothing() -> None:
    """Do nothing, for requests that do not wait."""
