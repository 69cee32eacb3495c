"""One engine on its disk and clock, what it owes to its clients, and its ends and starts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any, TypeVar

from engine_support import FakeClock

from simulation.disk import CrashError, Disk, audit
from simulation.oracle.groups import Groups
from simulation.oracle.producers import Producers
from simulation.oracle.queues import Queues
from simulation.oracle.routers import Routers
from simulation.oracle.tables import Tables
from simulation.oracle.topics import LogModel, TopicModel, Topics, lose
from support.log_model import LogState, demand
from support.trace import Trace
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.log import Log
from topics_service.engine.topic import Topic
from topics_service.storage.store import Store, StoreError

T = TypeVar("T")
CEILING_STEP = 8
SLACK = 2 * CEILING_STEP + 64
LIMITS = Limits(group_retention_ms=0)


class RefusedError(Exception):
    """The engine refused a call, with this code; nothing has changed."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Owed:
    """An answer that waits for an fsync. `write` is the one that it speaks of, where that must outlive a power cut."""

    ticket: int
    write: int | None
    what: str


class World:
    """Calls go through `call`, or through the models, which check what comes back."""

    def __init__(self, seed: object, trace: Trace) -> None:
        self.trace = trace
        self.random = Random(f"{seed} engine")
        self.disk = Disk()
        self.clock = FakeClock()
        self.latest = self.clock.now
        self.topics = Topics()
        self.queues = Queues(self)
        self.routers = Routers(self)
        self.groups = Groups(self)
        self.producers = Producers(self)
        self.tables = Tables(self)
        self.owed: list[Owed] = []
        self.flights: list[int] = []  # tickets that fsyncs under way will cover
        self.on_start: list[Callable[[], None]] = []
        self._ids = count(1)
        self._boots = count(1)
        self._boot = f"boot-{next(self._boots)}"
        self.base = 0
        self.engine = self._open()
        self._hook()

    # ------------------------------------------------------------- short names

    @property
    def store(self) -> Disk:
        """The disk, as the engine's own tests call it."""
        return self.disk

    @property
    def now(self) -> int:
        """Milliseconds."""
        return self.clock.now

    @property
    def w(self) -> int:
        """The number of the newest write to the disk."""
        return self.disk.writes

    @property
    def synced(self) -> int:
        """The ticket that the engine takes for durable."""
        return self.engine.writer.synced

    @property
    def is_read_only(self) -> bool:
        """After a failure of the disk."""
        return self.engine.writer.failure is not None

    def log(self, topic: TopicModel, partition: int = 0) -> Log:
        """The engine's log."""
        found: Topic = self.engine.catalog.topics[topic.name]
        return found.logs[partition]

    def is_visible(self, topic: TopicModel | None) -> bool:
        """Whether readers know of it."""
        return topic is not None and topic.created <= self.synced

    def visible(self) -> list[TopicModel]:
        """All that readers know of."""
        return [topic for topic in self.topics.by_name.values() if self.is_visible(topic)]

    def hold(self, topic: TopicModel, partition: int) -> int | None:
        """The seq above which retention leaves everything."""
        return self.groups.hold(topic, topic.config.retaining, partition)

    # -------------------------------------------------------------------- calls

    def call(self, what: Callable[[], T], *codes: str) -> T:
        """The outcome of a call that may be refused with these codes, and for a disk that stalls or has failed."""
        refused, breaks = self.disk.refused, self.disk.breaks
        written = self.w if self.is_read_only else None
        try:
            result = what()
            demand(written in (None, self.w), "a write after a failure of the disk")
            return result
        except TopicsError as error:
            code = error.reason.code
            if code == "throttled" and self.disk.refused > refused:
                self.trace.meet("a write refused for a stall")
            elif code == "internal" and self.is_read_only:
                self.trace.meet("a call refused when read-only")
                if breaks >= 0 and self.disk.breaks < 0:
                    self.trace.meet("a write that failed")
            else:
                demand(code in codes, f"refused as {code}: {error.message}")
            raise RefusedError(code) from error
        except StoreError as error:  # from within a call that tells nobody
            demand(self.is_read_only, f"an error of the disk that is not one of the engine: {error}")
            raise RefusedError("internal") from error

    def owe(self, ticket: int, write: int | None, what: str) -> None:
        """A call was answered so; what it tells of `write` is promised once the ticket is durable."""
        demand(ticket <= self.engine.writer.written, "a ticket of a write that was not made")
        self.owed.append(Owed(ticket, write, what))
        self._settle()

    def look(self, only: TopicModel | None = None) -> None:
        """A reader comes to the logs of a topic, or to every log."""
        for topic in self.topics.by_name.values():
            if topic.config.ttl_ms and (only is None or topic is only):
                for partition, log in enumerate(topic.logs):
                    if self._let_expire(topic, partition):
                        log.look(topic.config.ttl_ms, self.now, self.hold(topic, partition), self.w)

    def _let_expire(self, topic: TopicModel, partition: int) -> bool:
        """Let a reader see what is left. Whether what is too old has gone: not where that can't be written."""
        log, refused, writable = self.log(topic, partition), self.disk.refused, not self.is_read_only
        log.visible(topic.config, self.now)
        if self.disk.refused > refused:
            self.trace.meet("nothing expires while the disk stalls")
            refused = self.disk.refused
            log.visible(topic.config, self.now)
        return writable and not self.is_read_only and self.disk.refused == refused

    # ------------------------------------------------------------------- fsyncs

    def begin_sync(self) -> None:
        """An fsync begins; it covers what is written now."""
        self.flights.append(self.engine.writer.written)

    def end_sync(self, which: int) -> None:
        """One that is under way ends."""
        ticket = self.flights.pop(which)
        self.disk.sync_to(max(self.disk.synced, self.base + ticket))
        self.engine.synced(ticket)
        self.published()

    def sync(self) -> None:
        """An fsync from beginning to end."""
        self.begin_sync()
        self.end_sync(-1)

    def published(self) -> None:
        """The engine was told of an fsync."""
        self.topics.published(self.synced)
        self.tables.published(self.synced)
        self._settle()
        for part in (self.topics, self.queues, self.routers, self.groups, self.producers, self.tables):
            part.prune(self.disk.synced)

    def _settle(self) -> None:
        for owed in self.owed:
            if owed.ticket <= self.synced and owed.write is not None:
                demand(owed.write <= self.disk.synced, f"acknowledged, and a power cut would take it: {owed.what}")
                self.trace.meet("a promise that outlives power cuts")
        self.owed = [owed for owed in self.owed if owed.ticket > self.synced]

    # ----------------------------------------------------------- ends and starts

    def close(self) -> None:
        """A clean end, unless the process dies in it."""
        try:
            self.engine.close()
        except CrashError:
            self.trace.meet("a crash while closing")
            self.crash(power=False)
            return
        except (StoreError, TopicsError):
            self.crash(power=False)
            return
        self.disk.mend()
        how = "kill" if self.is_read_only else "close"
        self.topics.prune(self.w)
        self._recover(how, self.w, power=False)

    def crash(self, *, power: bool, fuses: tuple[int, ...] = (), left: int | None = None) -> None:
        """The process dies; with `power` so does the machine. `fuses` are where the next starts die, too; `left` writes
        outlive a power cut, by default the dice say how many."""
        self.disk.mend()
        self.owed.clear()
        left = self._cut(self.w, left) if power else self.w
        lost_power = power
        for fuse in fuses:
            self.disk.fuse = fuse
            try:
                self._open()
            except CrashError:
                self.trace.meet("a crash while recovering")
                self.disk.mend()
                if self.random.random() < 0.5:
                    left, lost_power = min(left, self._cut(self.w)), True
            else:
                self.trace.meet("a crash right after recovery")
                self.disk.mend()
        self._recover("crash", left, power=lost_power)

    def _cut(self, most: int, left: int | None = None) -> int:
        """The power goes: what was not synced is gone from some write on."""
        if left is None:
            left = self.random.choice((self.disk.synced, self.random.randint(self.disk.synced, most)))
        self.trace.meet("writes lost to a power cut", self.w - left)
        self.disk.cut_power(left)
        self._boot = f"boot-{next(self._boots)}"
        self.trace.tell(f"  power cut: {left} writes are left")
        return left

    def _open(self) -> Engine:
        self.clock.now = self.latest  # an older clock would make expired records young again: out of scope
        self.flights.clear()
        return self.make_engine(self.disk, boot_id=self._boot)

    def make_engine(self, store: Store, **options: Any) -> Engine:
        """An engine of this world, on any store."""
        return Engine(
            store, self.clock, cache_bytes=2000, limits=LIMITS,
            new_id=lambda _: f"{next(self._ids):026}", random=self.random.randbytes, **options,
        )  # fmt: skip

    def _recover(self, how: str, left: int, *, power: bool) -> None:
        self.owed.clear()
        self.engine = self._open()
        states = self.topics.back(left)
        names = sorted(self.engine.catalog.topics)
        demand(names == sorted(self.topics.by_name), f"the topics are {names}, not {sorted(self.topics.by_name)}")
        heads = {(t.number, p): self.log(t, p).state.head for t, p, _, _ in states}
        self.groups.back(left, heads)
        for topic, partition, log, old in states:
            self._restore(topic, partition, log, old, how, power=power)
        self.routers.back(left, heads)
        self.queues.back(left)
        self.producers.back(left)
        self.tables.back(left)
        self._hook()
        problems = audit(self.disk)
        demand(not problems, f"an audit finds {[problem.text for problem in problems]}")
        self.trace.meet("a recovery that an audit finds clean")
        for told in self.on_start:
            told()

    def _restore(
        self, topic: TopicModel, partition: int, log: LogModel, old: LogState, how: str, *, power: bool
    ) -> None:
        found = self.engine.catalog.topics[topic.name]
        demand(found.identity.topic_id == topic.topic_id, f'"{topic.name}" is another topic after a start')
        demand(found.config == topic.config, f'"{topic.name}" has another config after a start')
        engine_log, hold = found.logs[partition], self.hold(topic, partition)
        engine_log.visible(found.config, self.now)
        state, lost = lose(
            old, topic.config, engine_log, log.seen, SLACK, how=how, power=power, now=self.now, hold=hold
        )  # fmt: skip
        if lost:
            self.trace.meet(f"a loss that is a {lost}")
        view = engine_log.view
        same = (view.earliest, view.count, view.bytes) == (state.earliest, state.count, state.nbytes)
        what = f"{topic.name}/{partition}: earliest, count and bytes are {view.earliest}, {view.count}, {view.bytes}"
        demand(same, f"{what} after a {how}, not {state.earliest}, {state.count}, {state.nbytes}")
        demand(view.last_ts >= max((rec.ts for rec in state.live.values()), default=0), "the time of a log goes back")
        log.restored(replace(state, last_ts=view.last_ts))

    def _hook(self) -> None:
        """Let the models see what the engine does by itself within its calls."""
        self.base = self.w - self.engine.writer.written
        catalog = self.engine.catalog
        add = catalog.created

        def created(topic: Topic, ticket: int) -> None:
            add(topic, ticket)
            self.topics.created(topic, self.w)
            self.owe(topic.visible_after, self.w, f'the topic "{topic.name}"')

        catalog.created = created  # type: ignore[method-assign]
        self.routers.hook()
        self.queues.hook()
        self.tables.hook()
