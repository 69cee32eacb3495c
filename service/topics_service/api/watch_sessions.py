"""Watch sessions: subscriptions that outlive their streams, found by an unguessable `wid` (docs/contract.md, 8.1)."""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from topics_service.api.auth import Principal
from topics_service.api.watch_journal import Journals
from topics_service.api.watch_stream import INSTANCE, WatchStream
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.names import is_topic_name
from topics_service.engine.watch.core import Watch
from topics_service.engine.watch.frames import Position, WatchRequest
from topics_service.statistics import WatchStatistics

TTL_MS: Final = 300_000
_MOST_TOPICS: Final = 256
_MOST_FIRSTS: Final = 4096


class Session:
    """What a client watches, whose key it is bound to, and how far its streams have come.

    `cursors` are the seqs dealt with: what was handed to the transport, and nothing that is still on its way to it.
    `epochs` and `heads` belong to them (see `engine.watch.Watch`): they tell a topic that was deleted or made again
    while no stream was open. Topics with a number above `born` were made after the session.
    """

    __slots__ = ("_firsts", "_newest", "_prefixes", "_sent", "born", "cursors", "epochs", "heads", "positions",
                 "principal", "request", "streams", "ttl_ms", "wid")  # fmt: skip

    def __init__(self, wid: str, request: WatchRequest, watch: Watch, principal: Principal, ttl_ms: int) -> None:
        """`watch` is one of this request that nobody has read from."""
        self.wid = wid
        topics = {key: start for key, start in request.topics.items() if key in watch.positions or key.endswith("*")}
        self.request = replace(request, topics=topics, cursor={})  # without what was only for the start, however much
        self.principal = principal
        self.ttl_ms = ttl_ms
        self.positions: Mapping[str, Position] = watch.positions
        self.cursors = watch.cursors.copy()
        self.epochs = watch.epochs.copy()
        self.heads = watch.heads
        self.streams: list[WatchStream] = []
        self.born = max(self.epochs.values(), default=0)
        self._prefixes = tuple(key[:-1] for key in topics if key.endswith("*"))
        self._sent = self.cursors
        self._newest: Watch | None = None
        self._firsts = self.epochs.copy()  # the first instance of each name that a client was told of

    def marks(self, epochs: Mapping[str, int]) -> dict[str, int]:
        """Return the instances of topics made again, by name and INSTANCE, as places have them beside cursors.

        Without that a client could not say that it has not heard yet of a topic's end and new beginning. The first
        instance of a name goes without saying; of very many names every one is told.
        """
        born, firsts = self.born, self._firsts
        marks = {}
        for name, number in epochs.items():
            if number > born and firsts.get(name) != number:
                if name not in firsts and len(firsts) < _MOST_FIRSTS:
                    firsts[name] = number
                else:
                    marks[name + INSTANCE] = number
        return marks

    def rewind(self, given: Mapping[str, int]) -> None:
        """Go back to the place that a client says it has come to, topic by topic; never forward past what it was sent.

        Frames whose handing over was not seen to the end count as received when the client names the end of one. A
        place in another instance of a topic counts too: the client has not heard yet that the topic was made again. A
        topic that a pattern has brought in since and that the place lacks is new to the client. Topics that are not
        watched are ignored.
        """
        self.save()
        for topic, seq in given.items():
            cursor, instance = self.cursors.get(topic), given.get(topic + INSTANCE)
            if cursor is None:
                if topic.startswith(self._prefixes) and len(self.cursors) < _MOST_TOPICS and is_topic_name(topic):
                    self.cursors[topic], self.heads[topic] = seq, seq
                    self.epochs[topic] = instance or self._firsts.get(topic, 0)
            elif self._is_another(topic, instance):
                self.cursors[topic], self.epochs[topic] = seq, instance or self._firsts.get(topic, 0)
            elif seq <= max(cursor, self._sent.get(topic, 0)):
                self.cursors[topic] = seq
            elif topic in self.positions and seq == self.positions[topic].from_seq:
                self.cursors[topic], self.epochs[topic] = seq, 0  # ahead of the log, which the client has not heard yet
        if given:
            newer = (topic for topic, number in self.epochs.items() if number > self.born)
            for topic in [topic for topic in newer if topic not in given and topic not in self.request.topics]:
                for known in (self.cursors, self.epochs, self.heads):
                    known.pop(topic, None)

    def _is_another(self, topic: str, instance: int | None) -> bool:
        """Whether a place is in another instance of the topic than the session stands in."""
        if instance is None and topic not in self._firsts:
            return False  # a place that somebody made up: no client was told of the topic
        number = self.epochs.get(topic, 0)
        return instance != (number if number > self.born and number != self._firsts.get(topic) else None)

    def attach(self, watch: Watch) -> None:
        """A new stream's watch has begun at `cursors`. From now on it alone moves them.

        An older stream of the session may be one that the client has lost: it must not move on for the new one.
        """
        self._newest = watch

    def moved(self, watch: Watch) -> None:
        """All that the watch gave was handed over."""
        if watch is self._newest:
            self.cursors = watch.cursors.copy()
            self.epochs = watch.epochs.copy()

    def save(self) -> None:
        """Remember what the newest stream knows, as if it ended now."""
        if self._newest is not None:
            heads = self._newest.heads
            self.heads = {name: heads.get(name, at) for name, at in self.cursors.items()}
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
        self,
        statistics: WatchStatistics,
        now: Callable[[], float],
        *,
        most: int,
        ttl_ms: int = TTL_MS,
        journal_bytes: int = 64 << 20,
    ) -> None:
        """`now` gives seconds on a clock that never steps back; `most` 0 is no cap. Counts into `statistics`.

        `journals` keep in `journal_bytes` what the tokens of all sessions stand for.
        """
        self._statistics = statistics
        self._now = now
        self._most = most
        self._ttl_ms = ttl_ms
        self.journals = Journals(journal_bytes)
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

    def recall(self, token: str, principal: Principal) -> dict[str, int] | None:
        """The place that a token stands for; None if it is forgotten, or of a session of another key."""
        found = self.journals.recall(token)
        if found is None or self._sessions[found[0]].principal.key_id != principal.key_id:
            return None
        return found[1]

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
        self.journals.forget(wid)
        self._statistics.sessions = len(self._sessions)
