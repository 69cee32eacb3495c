"""The watch core: the frames of one subscriber, pulled from the state of many logs (docs/contract.md, 8)."""

from collections.abc import Callable, Mapping

from topics_service.engine import reader
from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.log import Log
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.topic import Topic
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    Position,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
    WatchFrame,
    WatchRequest,
)
from topics_service.engine.watch.scope import Scope
from topics_service.engine.watch.topic_partition import parse_topic_partition
from topics_service.engine.watch.topic_scheduler import ScheduledLog, TopicScheduler

_FRAME_BYTES = 1 << 18
_SILENT_RECORDS = 1 << 11  # so much is read without a frame before others get the thread, or
_SILENT_MS = 5  # for so long

FIRST = "\0"

_NO_NODES: frozenset[bytes] = frozenset()


class Watch:
    """The cursors of one subscriber in many logs. It reads on demand and keeps no records: a slow reader costs nothing.

    `next` returns the next due frame. None means that there is none until `wake` is called with the name of a log. That
    can happen within `next` itself, which stops early after skipping many records: discard earlier calls of `wake`
    before calling it, and let other work run before calling it again.

    Each topic's frames have the results of `diff` from its cursor: a tombstone for every loss, then records in seq
    order, and `CaughtUpFrame` whenever the backlog ends. Topics take turns (`TopicScheduler`); a turn is one page. A
    topic that is deleted, or deleted and created again, ends with a `TopicDeletedFrame`; one that can't be read ends
    with an `ErrorFrame` that names it. Nothing is reported twice.

    A log is named by its topic partition: the topic's name, and the partition unless it is 0.

    `positions` are the logs found at the start, in order of their names. `cursors` are those of all logs after the last
    frame; a deleted log keeps its cursor, but if it was followed through a pattern only until the next call of `next`.
    `epochs` are the numbers of the instances that the cursors belong to.
    """

    __slots__ = (
        "_catalog",
        "_clock",
        "_departed",
        "_follows",
        "_leaving",
        "_limit",
        "_match",
        "_max_bytes",
        "_max_topics",
        "_named",
        "_nodes",
        "_patience",
        "_prefixes",
        "_refused",
        "_scheduler",
        "_strong",
        "_turn",
        "_unreported",
        "_wake",
        "cursors",
        "epochs",
        "positions",
    )  # fmt: skip

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        limits: Limits,
        request: WatchRequest,
        wake: Callable[[str], None],
        *,
        epochs: Mapping[str, int] | None = None,
        heads: Mapping[str, int] | None = None,
    ) -> None:
        """Start following. `wake` is called often and must be cheap; all logs are due at first, without a call of it.

        Raises `invalid_request` for no topics, too many or a bad pattern, `topic_not_found` or `partition_not_found`
        for an unknown name or partition unless `request.lenient`; nothing is followed then.

        A resumed session passes the `epochs` and `heads` of its last `Watch`. A topic with another number is another
        instance: it is reported as recreated and read from its earliest record. Of the names in `request.topics` only
        those in `heads` count. A deleted topic in `heads` gives a `TopicDeletedFrame` instead of an error. A topic that
        matches a pattern and is not in `heads` is new: it is read from its first record.
        """
        self._catalog = catalog
        self._clock = clock
        self._wake = wake
        self._limit = min(request.limit or limits.default_limit, limits.max_limit)
        max_bytes = _FRAME_BYTES if request.max_batch_bytes is None else request.max_batch_bytes
        self._max_bytes = min(max_bytes or limits.default_batch_bytes, limits.max_batch_bytes)
        self._max_topics = limits.max_watch_topics
        self._nodes = frozenset(request.nodes)
        self._match = request.filter
        self._strong = request.strong
        self._named = request.topics
        self._patience = min(64, max(2, _SILENT_RECORDS // self._limit))
        self._follows: dict[str, _Follow] = {}
        self._turn: _Follow | None = None  # continues the turn of its last frame
        self._leaving: str | None = None
        now = clock.now_ms()
        scope = Scope(catalog, request, self._max_topics, heads)
        self._prefixes = scope.prefixes
        self._refused = scope.refused  # topics beyond the limit, not reported yet
        self._departed = scope.departed
        self._unreported = sorted(scope.departed.items(), reverse=True)
        self.positions: dict[str, Position] = {}
        self.cursors: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        for name in sorted([*scope.topics, *scope.departed]):
            topic = scope.topics.get(name)
            if topic is None:
                self.cursors[name] = scope.start(name, scope.departed[name])
                if epochs is not None and name in epochs:
                    self.epochs[name] = epochs[name]
                continue
            follow = self._follow(name, topic, now, joined=name not in request.topics)
            s = _look(topic, follow.log, now)
            cursor = self.cursors[name] = scope.start(name, s.head)
            follow.opening = True
            if epochs is not None and epochs.get(name, topic.identity.epoch) != topic.identity.epoch:
                follow.foreign = True
                self.epochs[name] = epochs[name]  # as long as the cursor does
            self.positions[name] = Position(from_seq=cursor, head_seq=s.head, earliest_seq=s.earliest)
        self._scheduler = TopicScheduler(list(self._follows.values()), now)
        if self._prefixes:
            catalog.on_created.append(self._created)

    @property
    def finished(self) -> bool:
        """Return whether nothing is left to follow or report, and nothing can come."""
        return not (self._follows or self._prefixes or self._unreported or self._refused)

    @property
    def heads(self) -> dict[str, int]:
        """Return the highest known visible seq of each topic in `cursors`."""
        return self._departed | {name: follow.log.view.head for name, follow in self._follows.items()}

    @property
    def lag(self) -> int:
        """Return the number of seqs between the cursors and the heads of the followed logs."""
        cursors = self.cursors
        return sum(max(0, follow.log.view.head - cursors[name]) for name, follow in self._follows.items())

    @property
    def upcoming(self) -> str | None:
        """Return the topic that `next` serves in the first round, which is in order of names; None after that round.

        Topics that are reported as deleted come before all others, and begin with `FIRST` here.
        """
        if self._unreported:
            return f"{FIRST}{self._unreported[-1][0]}"
        turn = self._turn or self._scheduler.first
        assert turn is None or isinstance(turn, _Follow), "nothing else takes turns here"
        return None if turn is None else turn.name

    def next(self) -> WatchFrame | ErrorFrame | None:
        """Return the next due frame, after moving `cursors`; None if there is none for now."""
        if self._leaving is not None:
            self._forget(self._leaving)
        if self._unreported:
            name, head = self._unreported.pop()
            if name not in self._named:
                self._leaving = name
            self._succeed(name)
            topic, partition = parse_topic_partition(name)
            return TopicDeletedFrame(topic=topic, partition=partition or None, head_seq=head)
        if self._refused:
            return self._refusal()
        now, patience = self._clock.now_ms(), self._patience
        while True:
            follow, self._turn = self._turn, None
            fresh = follow is None
            if follow is None:
                turn = self._scheduler.next(now)
                if turn is None:
                    return None
                assert isinstance(turn, _Follow), "nothing else takes turns here"
                follow = turn
            try:
                frame = self._step(follow, now, fresh=fresh)
            except TopicsError as error:
                return self._failed(follow, error)
            if frame is not None:
                return frame
            if follow.due and fresh:
                patience -= 1
            if not patience or self._clock.now_ms() - now >= _SILENT_MS:
                self._wake(follow.name)
                return None

    def share(self, cursors: dict[str, int], epochs: dict[str, int]) -> None:
        """Keep the cursors and epochs in these maps from now on, which watches of other topics keep theirs in too."""
        cursors.update(self.cursors)
        epochs.update(self.epochs)
        self.cursors, self.epochs = cursors, epochs

    def drop(self, topic: str) -> bool:
        """Stop following a topic, or a pattern and the topics that only it brought in; False if it was not followed."""
        if topic.endswith("*") and topic[:-1] in self._prefixes:
            self._prefixes = tuple(prefix for prefix in self._prefixes if prefix != topic[:-1])
            if not self._prefixes:
                self._catalog.on_created.remove(self._created)
            dropped = [f for f in self._follows.values() if f.joined and not f.name.startswith(self._prefixes)]
        elif topic in self._follows:
            dropped = [self._follows[topic]]
        else:
            return False
        for follow in dropped:
            self._unfollow(follow)
            self._forget(follow.name)
        return True

    def close(self) -> None:
        """Stop following everything; `heads` keep their values. May be called twice."""
        self._departed = self.heads
        for follow in list(self._follows.values()):
            self._unfollow(follow)
        if self._prefixes:
            self._catalog.on_created.remove(self._created)
        self._prefixes = ()
        self._unreported, self._refused = [], []

    def woken(self, follow: "_Follow") -> None:
        """Wake the watch: a topic without news may have some."""
        follow.due, follow.due_ts = True, self._clock.now_ms()
        self._scheduler.add(follow)
        self._wake(follow.name)

    # -------------------------------------------------------------- one topic

    def _step(self, follow: "_Follow", now: int, *, fresh: bool) -> WatchFrame | None:
        """Serve one topic. If not `fresh`, its last frame was of the same turn."""
        topic, name = follow.topic, follow.name
        if self._catalog.topics.get(topic.name) is not topic:
            return self._deleted(follow)
        topic.touch(now)
        log, config, cursor = follow.log, topic.config, self.cursors[name]
        s = log.visible(config, now)
        if log.expiry_ticket and cursor + 1 < s.earliest:
            follow.due = False
            log.wake_after_expiry()
            return None
        end = s.head
        if self._strong and config.durability != "ephemeral":
            if log.durable_head < end:
                log.ask_sync()
            end = min(end, log.durable_head)
        from_seq = s.head + 1 if follow.foreign else cursor  # another instance: read as a cursor from its future
        if end <= from_seq <= s.head:
            return self._drained(follow, end, s.head)
        if not fresh and follow.stale is None:  # later records wait for the next round
            self._again(follow, now)
            return None
        nodes = self._nodes if config.dedupe_node else _NO_NODES
        end_seq = end if end < s.head else None
        if self._match is None:
            reply = reader.read(topic.name, s, log.blocks, from_seq, self._limit, self._max_bytes, nodes, end_seq)
        else:
            reply = reader.read(
                topic.name, s, log.blocks, from_seq, self._limit, self._max_bytes, nodes, end_seq,
                match=self._match, stores=log.stores(s),
            )  # fmt: skip
        opening, follow.opening = follow.opening, False
        lost = reply.tombstone
        if lost is not None:
            follow.live = follow.foreign = False
            follow.stale = cursor
            self.epochs[name] = topic.identity.epoch
            self.cursors[name] = lost.earliest_seq - 1 if lost.reason == "recreated" else lost.gap_to
            if fresh:
                self._turn = follow
            else:
                self._again(follow, now)
            return TombstoneFrame(topic=topic.name, partition=follow.partition, tombstone=lost, opening=opening)
        start = cursor if follow.stale is None else follow.stale
        follow.stale = None
        at = self.cursors[name] = reply.next_from_seq
        if not reply.slices:
            if at >= end:
                return self._drained(follow, end, s.head)
            self._again(follow, now)
            return None
        follow.live = False
        if at >= end:
            self._turn = follow
        else:
            self._again(follow, now)
        return RecordsFrame(
            topic=topic.name, partition=follow.partition, slices=reply.slices, from_seq=start, to_seq=at,
            head_seq=s.head,
        )  # fmt: skip

    def _drained(self, follow: "_Follow", end: int, head: int) -> CaughtUpFrame | None:
        """Handle a reader that has read up to `end`, behind which records wait for an fsync."""
        follow.due = follow.opening = False
        follow.stale = None
        if end < head or follow.live:
            return None
        follow.live = True
        return CaughtUpFrame(topic=follow.topic.name, partition=follow.partition, head_seq=head)

    def _again(self, follow: "_Follow", now: int) -> None:
        """Schedule another turn: there is more to read."""
        follow.due_ts = now
        self._scheduler.add(follow)

    def _deleted(self, follow: "_Follow") -> TopicDeletedFrame:
        name, head = follow.name, follow.log.view.head
        self._unfollow(follow)
        self._departed[name] = head
        if name not in self._named:
            self._leaving = name
        self._succeed(name)
        return TopicDeletedFrame(topic=follow.topic.name, partition=follow.partition, head_seq=head)

    def _failed(self, follow: "_Follow", error: TopicsError) -> ErrorFrame:
        """Drop a topic that can't be read; the others continue."""
        name = follow.name
        self._unfollow(follow)
        self._departed[name] = follow.log.view.head
        return ErrorFrame(
            reason=error.reason, code=error.reason.value.http_status, message=error.message,
            retry_after_ms=error.retry_after_ms, topics=(name,), terminal=False,
        )  # fmt: skip

    # ------------------------------------------------------- coming and going

    def _created(self, topic: Topic) -> None:
        """Follow a topic that has become visible from its first record, if a pattern matches it."""
        name = topic.name
        if name in self._follows or not name.startswith(self._prefixes):
            return  # if an earlier instance is still followed, its end is reported first
        if any(name == gone for gone, _ in self._unreported):
            return  # so it is here
        if len(self._follows) >= self._max_topics:
            if len(self._refused) < self._max_topics:
                self._refused.append(name)
        else:
            self._scheduler.join(self._follow(name, topic, self._clock.now_ms(), joined=True))
        self._wake(name)

    def _succeed(self, name: str) -> None:
        """Continue after the reported end of a topic with the topic that has its name by now."""
        successor = self._catalog.find(name)
        if successor is not None and not self._catalog.unsynced(successor):
            self._created(successor)

    def _follow(self, name: str, topic: Topic, now: int, *, joined: bool) -> "_Follow":
        """Follow the log of a topic partition, from its first record."""
        follow = self._follows[name] = _Follow(self, name, topic, parse_topic_partition(name)[1], now, joined=joined)
        self.cursors[name], self.epochs[name] = 0, topic.identity.epoch
        if self._leaving == name:
            self._leaving = None
        follow.log.park(follow.woken)
        return follow

    def _unfollow(self, follow: "_Follow") -> None:
        follow.log.leave(follow.woken)
        follow.due, follow.watch = False, None
        del self._follows[follow.name]
        if self._turn is follow:
            self._turn = None

    def _forget(self, name: str) -> None:
        """Remove the cursor of a name that has left the watch."""
        for known in (self.cursors, self.epochs, self._departed):
            known.pop(name, None)
        if self._leaving == name:
            self._leaving = None

    def _refusal(self) -> ErrorFrame:
        refused, self._refused = tuple(self._refused), []
        return refusal(refused, self._max_topics)


class _Follow(ScheduledLog):
    """One log that is followed: `number` is that of its partition, `name` its topic partition."""

    __slots__ = ("foreign", "joined", "live", "name", "number", "opening", "stale", "watch")

    def __init__(self, watch: Watch, name: str, topic: Topic, number: int, now: int, *, joined: bool) -> None:
        super().__init__(topic, topic.partition(number), now)
        self.watch: Watch | None = watch
        self.name = name
        self.number = number
        self.joined = joined  # through a pattern
        self.live = False  # its backlog has ended, and that was reported
        self.foreign = False  # the cursor belongs to an earlier instance of the topic
        self.opening = False  # not read yet since the client gave its cursor
        self.stale: int | None = None  # the cursor before the tombstone that was given last

    @property
    def partition(self) -> int | None:
        """The partition as frames name it: None where the topic has no other."""
        return self.number if self.topic.partition_count > 1 else None

    def woken(self) -> None:
        """Wake the watch: the log has grown, or was deleted."""
        if not self.due and self.watch is not None:
            self.watch.woken(self)


def refusal(topics: tuple[str, ...], max_topics: int) -> ErrorFrame:
    """Return the frame that says that these topics are too many."""
    return ErrorFrame(
        reason=Reason.THROTTLED, code=Reason.THROTTLED.value.http_status, topics=topics, terminal=False,
        message=f"new topics are not followed: the subscription has {max_topics}, which is the most",
    )  # fmt: skip


def _look(topic: Topic, log: Log, now: int) -> Snapshot:
    """Return the readers' view of one of the topic's logs. Damage is found and reported on reading."""
    try:
        return log.visible(topic.config, now)
    except TopicsError:
        return log.view
