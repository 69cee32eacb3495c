"""Watch sessions: subscriptions that outlive their streams, found by an unguessable `wid` (docs/contract.md, 8.1)."""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.watch_journal import Journals, new_id, process_in
from topics_service.api.watch_stream import INSTANCE, Watch, WatchStream
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.names import is_name_of_any
from topics_service.engine.watch.frames import Position, WatchRequest
from topics_service.statistics import WatchStatistics

TTL_MS: Final = 300_000
_MAX_TOPICS: Final = 256
_MAX_FIRSTS: Final = 4096


_WID: Final = re.compile(r"wid_([A-Za-z0-9_-]{22})")


def process_of(wid: str, size: int) -> int | None:
    """Return the number of the process that a session of one of several is in; None for what is no id.

    `size` is the number of its bytes.
    """
    found = _WID.fullmatch(wid)
    return None if found is None else process_in(found[1], size)


def unknown_session() -> TopicsError:
    """The error of a session that does not exist, or not any more."""
    return TopicsError(Reason.NOT_FOUND, "the watch session does not exist or has ended: create a new one")


class Session:
    """A client's subscription, the key it is bound to, and the progress of its streams.

    `cursors` cover the records that were handed to the transport. `epochs` and `heads` belong to them (see
    `engine.watch.Watch`): they reveal topics that were deleted or recreated while no stream was open.
    """

    __slots__ = ("_born", "_counter", "_firsts", "_newest", "_prefixes", "_sent", "cursors", "epochs", "heads",
                 "positions", "principal", "request", "streams", "ttl_ms", "wid")  # fmt: skip

    def __init__(
        self,
        wid: str,
        request: WatchRequest,
        watch: Watch,
        principal: Principal,
        ttl_ms: int,
        counter: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """`watch` is an unread watch of this request; `counter` says which epochs of topics grow together."""
        self.wid = wid
        topics = {key: start for key, start in request.topics.items() if key in watch.positions or key.endswith("*")}
        self.request = replace(request, topics=topics, cursor={})  # `cursor` is needed only for the start
        self.principal = principal
        self.ttl_ms = ttl_ms
        self.positions: Mapping[str, Position] = watch.positions
        self.cursors = watch.cursors.copy()
        self.epochs = watch.epochs.copy()
        self.heads = watch.heads
        self.streams: list[WatchStream] = []
        self._counter = counter
        self._born: dict[int, int] = {}  # of each counter, the newest instance that the session began with
        for name, number in self.epochs.items():
            self._born[counter(name)] = max(number, self._born.get(counter(name), 0))
        self._prefixes = tuple(key[:-1] for key in topics if key.endswith("*"))
        self._sent = self.cursors
        self._newest: Watch | None = None
        self._firsts = self.epochs.copy()  # first instance of each name that was reported to the client

    def marks(self, epochs: Mapping[str, int]) -> dict[str, int]:
        """Return the instances of recreated topics, by name and INSTANCE, for the resume cursors.

        They show if a client has already been informed that a topic was deleted and recreated. The first instance of a
        name is implied; beyond a limit of names, every instance is listed.
        """
        firsts = self._firsts
        marks = {}
        for name, number in epochs.items():
            if firsts.get(name) != number and self._is_new(name, number):
                if name not in firsts and len(firsts) < _MAX_FIRSTS:
                    firsts[name] = number
                else:
                    marks[name + INSTANCE] = number
        return marks

    def rewind(self, given: Mapping[str, int]) -> None:
        """Rewind to the client's resume cursors, topic by topic; never past the records sent to it.

        A frame whose delivery was not confirmed counts as received if the client names its end. A cursor in another
        instance of a topic is valid too: the client was not informed yet that the topic was recreated. A topic matched
        by a pattern since then, without a cursor, is new to the client. Topics that are not watched are ignored.
        """
        self.save()
        for topic, seq in given.items():
            cursor, instance = self.cursors.get(topic), given.get(topic + INSTANCE)
            if cursor is None:
                if topic.startswith(self._prefixes) and len(self.cursors) < _MAX_TOPICS and is_name_of_any(topic):
                    self.cursors[topic], self.heads[topic] = seq, seq
                    self.epochs[topic] = instance or self._firsts.get(topic, 0)
            elif self._is_another(topic, instance):
                self.cursors[topic], self.epochs[topic] = seq, instance or self._firsts.get(topic, 0)
            elif seq <= max(cursor, self._sent.get(topic, 0)):
                self.cursors[topic] = seq
            elif topic in self.positions and seq == self.positions[topic].from_seq:
                self.cursors[topic], self.epochs[topic] = (
                    seq,
                    0,
                )  # ahead of the log, unknown to the client
        if given:
            newer = (topic for topic, number in self.epochs.items() if self._is_new(topic, number))
            for topic in [topic for topic in newer if topic not in given and topic not in self.request.topics]:
                for known in (self.cursors, self.epochs, self.heads):
                    known.pop(topic, None)

    def _is_another(self, topic: str, instance: int | None) -> bool:
        """True if a cursor is in another instance of the topic than the session."""
        if instance is None and topic not in self._firsts:
            return False  # an invented cursor: the topic was never reported to a client
        number = self.epochs.get(topic, 0)
        return instance != (number if number != self._firsts.get(topic) and self._is_new(topic, number) else None)

    def _is_new(self, topic: str, number: int) -> bool:
        """True if an instance of the topic was created after the session."""
        return number > self._born.get(self._counter(topic), 0)

    def attach(self, watch: Watch) -> None:
        """Let only this watch, of a new stream that began at `cursors`, move them from now on.

        The client may have lost an older stream of the session, which must not move them for the new one.
        """
        self._newest = watch

    def moved(self, watch: Watch) -> None:
        """Note that all frames of the watch were handed over."""
        if watch is self._newest:
            self.cursors = watch.cursors.copy()
            self.epochs = watch.epochs.copy()

    def save(self) -> None:
        """Save the state of the newest stream, as if it ended now."""
        if self._newest is not None:
            heads = self._newest.heads
            self.heads = {name: heads.get(name, at) for name, at in self.cursors.items()}
            self._sent = self._newest.cursors.copy()

    def detach(self, watch: Watch) -> None:
        """End the stream of this watch."""
        if watch is self._newest:
            self.save()
            self._newest = None


class Sessions:
    """All sessions. One without a stream expires `TTL_MS` after its creation or the end of its last stream.

    Expired sessions are removed only by `collect`.
    """

    def __init__(
        self,
        statistics: WatchStatistics,
        now: Callable[[], float],
        *,
        max_sessions: int,
        ttl_ms: int = TTL_MS,
        journal_bytes: int = 64 << 20,
        counter: Callable[[str], int] = lambda _: 0,
        id_prefix: bytes = b"",
    ) -> None:
        """`now` returns seconds on a monotonic clock; `max_sessions` 0 means unlimited. Updates `statistics`.

        `counter` is that of Session. `journal_bytes` is the memory for the resume cursors behind the tokens of all
        sessions. `id_prefix` is the number of this one of several processes, which ids and tokens begin with.
        """
        self._statistics = statistics
        self._now = now
        self._max_sessions = max_sessions
        self._ttl_ms = ttl_ms
        self._counter = counter
        self._id_prefix = id_prefix
        self.journals = Journals(journal_bytes, id_prefix)
        self._sessions: dict[str, Session] = {}
        self._idle: OrderedDict[str, float] = OrderedDict()  # idle since, the longest first

    def add(self, request: WatchRequest, watch: Watch, principal: Principal) -> Session:
        """Create a session. Raises `throttled` when there are too many."""
        if self._max_sessions and len(self._sessions) + self._statistics.sessions_elsewhere >= self._max_sessions:
            raise TopicsError(
                Reason.THROTTLED,
                "there are as many watch sessions as this server allows",
                {"limit": "max_watch_sessions", "max": self._max_sessions},
            )
        wid = f"wid_{new_id(16, self._id_prefix)}"
        session = self._sessions[wid] = Session(wid, request, watch, principal, self._ttl_ms, self._counter)
        self._idle[wid] = self._now()
        self._statistics.sessions = len(self._sessions)
        return session

    def find(self, wid: str) -> Session:
        """Find a session. Raises `not_found` if it is unknown or has expired."""
        session = self._sessions.get(wid)
        if session is None:
            raise unknown_session()
        return session

    def recall(self, token: str, principal: Principal) -> dict[str, int] | None:
        """Look up the resume cursors of a token; None if it has expired or belongs to another key."""
        found = self.journals.recall(token)
        if found is None or self._sessions[found[0]].principal != principal:
            return None
        return found[1]

    def collect(self) -> None:
        """Remove the expired sessions."""
        now = self._now()
        while self._idle:
            wid, since = next(iter(self._idle.items()))
            if (now - since) * 1e3 < self._ttl_ms:
                return
            self.remove(wid)

    def enter(self, session: Session, stream: WatchStream) -> None:
        """Add an open stream to the session."""
        session.streams.append(stream)
        self._idle.pop(session.wid, None)

    def leave(self, session: Session, stream: WatchStream) -> None:
        """Remove a stream from the session."""
        session.streams.remove(stream)
        if not session.streams and session.wid in self._sessions:
            self._idle[session.wid] = self._now()

    def for_key(self, key_id: str) -> list[Session]:
        """Return the sessions that were created with an API key."""
        return [session for session in self._sessions.values() if session.principal.key_id == key_id]

    def remove(self, wid: str) -> None:
        """Remove a session."""
        del self._sessions[wid]
        self._idle.pop(wid, None)
        self.journals.forget(wid)
        self._statistics.sessions = len(self._sessions)
