"""Watch sessions: a subscription that outlives its streams, found by a `wid` that nobody can guess (SPEC API 7.1)."""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from topics_service.api.auth import Principal
from topics_service.api.watch_stream import WatchStream
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.frames import Position, WatchRequest
from topics_service.engine.watch import Watch
from topics_service.statistics import WatchStatistics

TTL_MS: Final = 300_000


class Session:
    """What a client watches, whose key it is bound to, and how far its streams have come.

    `cursors` are the seqs dealt with: what was handed to the transport, and nothing that is still on its way to it.
    `epochs` and `heads` belong to them (see `engine.watch.Watch`): they tell a topic that was deleted or made again
    while no stream was open.
    """

    __slots__ = ("_foreign", "_newest", "_sent", "_watch", "cursors", "epochs", "heads", "positions", "principal",
                 "request", "streams", "ttl_ms", "wid")  # fmt: skip

    def __init__(self, wid: str, request: WatchRequest, watch: Watch, principal: Principal, ttl_ms: int) -> None:
        """`watch` is one of this request that nobody has read from."""
        self.wid = wid
        self.request = request
        self.principal = principal
        self.ttl_ms = ttl_ms
        self.positions: Mapping[str, Position] = watch.positions
        self.cursors = watch.cursors.copy()
        self.epochs = watch.epochs.copy()
        self.heads = watch.heads
        self.streams: list[WatchStream] = []
        self._sent = self.cursors
        self._foreign: dict[str, tuple[int, int]] = {}
        self._newest: Watch | None = None

    def rewind(self, given: Mapping[str, int]) -> None:
        """Go back to the cursors that a client says it has, topic by topic; never forward past what it was sent.

        A frame whose handing over was not seen to the end counts as received when the client names just its end.
        Topics that are not watched are ignored.
        """
        self.save()
        for topic, seq in given.items():
            known = self.cursors.get(topic)
            if known is not None and (seq < known or seq == self._sent.get(topic)):
                self.cursors[topic] = seq

    def attach(self, watch: Watch) -> None:
        """A new stream's watch has begun at `cursors`. From now on it alone moves them.

        An older stream of the session may be one that the client has lost: it must not move on for the new one.
        """
        self._newest = watch
        self._foreign = {
            name: (number, watch.cursors[name])
            for name, number in self.epochs.items()
            if watch.epochs.get(name, number) != number
        }

    def moved(self, watch: Watch) -> None:
        """All that the watch gave was handed over."""
        if watch is not self._newest:
            return
        self.cursors = watch.cursors.copy()
        self.epochs = watch.epochs.copy()
        for name, (number, start) in list(self._foreign.items()):
            if self.cursors.get(name) == start:
                self.epochs[name] = number  # its new instance was not told yet
            else:
                del self._foreign[name]

    def save(self) -> None:
        """Remember what the newest stream knows, as if it ended now."""
        if self._newest is not None:
            heads = self._newest.heads
            self.heads = {name: heads.get(name, self.heads.get(name, 0)) for name in self.cursors}
            self._sent = self._newest.cursors.copy()

    def detach(self, watch: Watch) -> None:
        """The stream of this watch ends."""
        if watch is self._newest:
            self.save()
            self._newest = None


class Sessions:
    """All sessions. One without a stream is collected `TTL_MS` after it was made or lost its last stream.

    That happens only within `collect`, and never to a session with an open stream.
    """

    def __init__(
        self, statistics: WatchStatistics, now: Callable[[], float], *, most: int, ttl_ms: int = TTL_MS
    ) -> None:
        """`now` gives seconds on a clock that never steps back; `most` 0 is no cap. Counts into `statistics`."""
        self._statistics = statistics
        self._now = now
        self._most = most
        self._ttl_ms = ttl_ms
        self._sessions: dict[str, Session] = {}
        self._idle: OrderedDict[str, float] = OrderedDict()  # since when, the longest first

    def add(self, request: WatchRequest, watch: Watch, principal: Principal) -> Session:
        """A new session. Raises `throttled` when there are too many."""
        if self._most and len(self._sessions) >= self._most:
            raise TopicsError(
                Reason.THROTTLED,
                "there are as many watch sessions as this server allows",
                {"limit": "max_watch_sessions", "max": self._most},
            )
        wid = f"wid_{secrets.token_urlsafe(16)}"
        session = self._sessions[wid] = Session(wid, request, watch, principal, self._ttl_ms)
        self._idle[wid] = self._now()
        self._statistics.sessions = len(self._sessions)
        return session

    def find(self, wid: str) -> Session:
        """The session; `not_found` if it is unknown or was collected."""
        session = self._sessions.get(wid)
        if session is None:
            raise TopicsError(Reason.NOT_FOUND, "there is no such watch session, or no more: create a new one")
        return session

    def collect(self) -> None:
        """Forget the sessions whose time is over."""
        now = self._now()
        while self._idle:
            wid, since = next(iter(self._idle.items()))
            if (now - since) * 1e3 < self._ttl_ms:
                return
            self.remove(wid)

    def enter(self, session: Session, stream: WatchStream) -> None:
        """A stream of the session was opened."""
        session.streams.append(stream)
        self._idle.pop(session.wid, None)

    def leave(self, session: Session, stream: WatchStream) -> None:
        """The stream has ended."""
        session.streams.remove(stream)
        if not session.streams and session.wid in self._sessions:
            self._idle[session.wid] = self._now()

    def of_key(self, key_id: str) -> list[Session]:
        """The sessions that were created with an API key."""
        return [session for session in self._sessions.values() if session.principal.key_id == key_id]

    def remove(self, wid: str) -> None:
        """Forget a session."""
        del self._sessions[wid]
        self._idle.pop(wid, None)
        self._statistics.sessions = len(self._sessions)
