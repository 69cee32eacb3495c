"""The topics: what was written last, what readers see of it, and what a crash would bring back."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from support.log_model import LogState, demand
from topics_service.engine.log import Log
from topics_service.engine.model import TopicConfig
from topics_service.engine.topic import Topic

T = TypeVar("T")
History = list[tuple[int, T]]


def keep(history: History[T], w: int, state: T) -> None:
    """`state` is what a crash after write `w` brings back."""
    if history and history[-1][0] == w:
        history[-1] = (w, state)
    else:
        history.append((w, state))


def back(history: History[T], w: int) -> T:
    """What a crash that leaves `w` writes brings back; that is all there is then."""
    while history[-1][0] > w:
        history.pop()
    state = history[-1][1]
    history[:] = [(0, state)]
    return state


def prune(history: History[T], synced: int) -> None:
    """No crash leaves less than that any more."""
    while len(history) > 1 and history[1][0] <= synced:
        history.pop(0)


@dataclass
class LogModel:
    """One partition. `pending` waits for fsyncs; `seen` is the highest seq that anybody knows of."""

    written: LogState = field(default_factory=LogState)
    view: LogState = field(default_factory=LogState)
    pending: list[tuple[int, LogState]] = field(default_factory=list)
    history: History[LogState] = field(default_factory=lambda: [(0, LogState())])
    seen: int = 0

    def commit(self, state: LogState, w: int, log: Log, config: TopicConfig) -> int:
        """The state is written, by write `w`; returns the ticket that it waits for, which is for the engine to say."""
        ticket = log.pending_ticket
        self.written = state
        keep(self.history, w, state)
        if ticket:
            self.pending.append((ticket, state))
        else:
            demand(config.durability != "fsync", "a change in a topic of the class fsync is shown before its fsync")
            demand(not self.pending, "a change overtakes one that waits for its fsync")
            self._show(state)
        return ticket

    def published(self, synced: int) -> None:
        """An fsync covers the writes up to this ticket."""
        while self.pending and self.pending[0][0] <= synced:
            self._show(self.pending.pop(0)[1])

    def look(self, ttl_ms: int, now: int, hold: int | None, w: int) -> None:
        """A reader comes: what has expired never comes back."""
        view = self.view.expired(ttl_ms, now, hold)
        if view is not self.view:
            self.view = view
            self.pending = [(ticket, state.expired(ttl_ms, now, hold)) for ticket, state in self.pending]
            self.written = self.pending[-1][1] if self.pending else view
            keep(self.history, w, self.written)

    def forget_keys(self, names: list[str], w: int) -> None:
        """These idempotency keys were swept away."""
        kept = [
            replace(s, keys={name: key for name, key in s.keys.items() if name not in names})
            for s in (self.view, *(state for _, state in self.pending))
        ]
        self.view, self.written = kept[0], kept[-1]
        self.pending = [(ticket, state) for (ticket, _), state in zip(self.pending, kept[1:], strict=True)]
        keep(self.history, w, self.written)

    def restored(self, state: LogState) -> None:
        """A start found this."""
        self.written = self.view = state
        self.pending = []
        self.history = [(0, state)]
        self.seen = max(self.seen, state.head)

    def _show(self, state: LogState) -> None:
        self.view = state
        self.seen = max(self.seen, state.head)


@dataclass
class TopicModel:
    """One life of a topic, under the `number` that no other one has."""

    name: str
    number: int
    topic_id: str
    config: TopicConfig
    logs: list[LogModel]
    created: int
    """The ticket of its creation: readers see it then."""

    @property
    def log(self) -> LogModel:
        """The only one of a queue, or of an end of a router."""
        return self.logs[0]


Catalog = dict[str, tuple[TopicModel, TopicConfig, int]]


class Topics:
    """All topics by name, as written last."""

    def __init__(self) -> None:
        self.by_name: dict[str, TopicModel] = {}
        self.history: History[Catalog] = [(0, {})]

    def find(self, name: str) -> TopicModel | None:
        """The topic, whether readers see it or not."""
        return self.by_name.get(name)

    def by_number(self, number: int) -> TopicModel | None:
        """The topic of this life, if it is there."""
        return next((topic for topic in self.by_name.values() if topic.number == number), None)

    def logs(self) -> Iterator[tuple[TopicModel, int, LogModel]]:
        """Every log with its topic and partition."""
        for topic in self.by_name.values():
            for partition, log in enumerate(topic.logs):
                yield topic, partition, log

    def created(self, topic: Topic, w: int) -> None:
        """The engine made it, by write `w`."""
        demand(topic.name not in self.by_name, f'"{topic.name}" is made twice')
        logs = [LogModel() for _ in topic.logs]
        self.by_name[topic.name] = TopicModel(
            topic.name, topic.number, topic.identity.topic_id, topic.config, logs, topic.visible_after
        )
        self.remember(w)

    def removed(self, name: str, w: int) -> None:
        """It was deleted."""
        del self.by_name[name]
        self.remember(w)

    def remember(self, w: int) -> None:
        """Names, configs and numbers of partitions changed."""
        keep(self.history, w, {name: (t, t.config, len(t.logs)) for name, t in self.by_name.items()})

    def published(self, synced: int) -> None:
        """See LogModel."""
        for _, _, log in self.logs():
            if log.pending:
                log.published(synced)

    def prune(self, synced: int) -> None:
        """Forget what no crash brings back."""
        prune(self.history, synced)
        for _, _, log in self.logs():
            prune(log.history, synced)

    def back(self, w: int) -> list[tuple[TopicModel, int, LogModel, LogState]]:
        """The catalog after a crash that left `w` writes, and the states of the logs before it lost anything."""
        self.by_name = {}
        for name, (topic, config, count) in back(self.history, w).items():
            topic.config, topic.logs, topic.created = config, topic.logs[:count], 0
            self.by_name[name] = topic
        self.remember(0)
        return [(topic, partition, log, back(log.history, w)) for topic, partition, log in self.logs()]


def lose(
    old: LogState, config: TopicConfig, log: Log, seen: int, slack: int, *, how: str, power: bool, now: int,
    hold: int | None,
) -> tuple[LogState, str]:  # fmt: skip
    """The state of a log after a crash that brought back `old`, checked against the one that the engine has; and what
    was lost, "" for nothing. Where more than one outcome is right, the engine's is taken."""
    s = log.view
    volatile = config.durability == "ephemeral" or old.volatile_from
    start = 0
    if volatile:
        start = old.volatile_from or old.head + 1
    elif power and config.durability != "fsync":
        start = old.head + 1
    if not start or (how == "close" and not old.volatile_from):
        demand(s.head == old.head, f"nothing is lost, but the head is {s.head} and not {old.head}")
        return old.expired(config.ttl_ms, now, hold), ""
    demand(s.head >= seen, f"seq {seen} was given out, and the log goes on above {s.head}")
    demand(s.head <= max(old.head, seen) + slack, f"the head jumps from {max(old.head, seen)} to {s.head}")
    demand(how != "close" or s.head == old.head, "a clean end jumps over seqs")
    if start > s.head:
        return old.cut(start, s.head, as_floor=False).expired(config.ttl_ms, now, hold), ""
    as_floor = s.gap_at(s.head) is None
    state = old.cut(start, s.head, as_floor=as_floor).expired(config.ttl_ms, now, hold)
    if state.live:
        demand(not as_floor, "records survived, but the loss behind them is no gap")
    elif not config.ttl_ms and not old.ttl:  # else what has expired may not have been written
        before = any(seq < start for seq in old.live)
        demand(as_floor != before, "a loss behind records is a gap, and one behind none is a floor")
    found = s.evict_cap, s.evict_ttl, s.evict_trim
    # What had left the lost range before may count in the reason, or be forgotten; so may what had expired by now.
    possible = set()
    for each in (old, old.expired(config.ttl_ms, now, hold)):
        for cap, ttl, trim in (*each.forgettable, each.floors):
            left = replace(each, cap=cap, ttl=ttl, trim=trim).cut(start, s.head, as_floor=as_floor)
            possible.add(left.expired(config.ttl_ms, now, hold).floors)
    demand(found in possible, f"the floors are {found}, not one of {possible}")
    return replace(state, cap=s.evict_cap, ttl=s.evict_ttl, trim=s.evict_trim), "floor" if as_floor else "gap"
