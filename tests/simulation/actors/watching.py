"""Watchers, whose sessions go on over crashes: each frame is what the log has at their cursor."""

from dataclasses import dataclass, field

from simulation.actors.base import NAMES, Actor
from simulation.oracle import reading
from simulation.oracle.topics import LogModel
from simulation.world import World
from support.log_model import demand
from topics_service.engine.model import DiffReply
from topics_service.engine.watch.core import Watch
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
    WatchRequest,
    WatchTopic,
)
from topics_service.engine.watch.topic_partition import parse_topic_partition

MOST = 3


@dataclass
class Follower:
    """A watch, and the session that it begins with after a crash."""

    request: WatchRequest
    watch: Watch
    wakes: list[str]
    cursors: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)

    def keep(self) -> None:
        """The session as it is after a frame."""
        self.cursors, self.epochs = dict(self.watch.cursors), dict(self.watch.epochs)
        self.heads = dict(self.watch.heads)


class Watcher(Actor):
    """Opens watches, pulls their frames, and opens them again where they were."""

    weight = 14

    def __init__(self, world: World, seed: object) -> None:
        super().__init__(world, seed)
        self.followers: list[Follower] = []
        world.on_start.append(self._again)

    def act(self) -> None:
        """See Actor."""
        if len(self.followers) < MOST:
            request = WatchRequest(
                topics={
                    self.pick(*NAMES, "p@1", "*", "a*"): WatchTopic(from_seq=0, tail=self.chance(0.2))
                    for _ in range(self.random.randint(1, 3))
                },
                limit=self.random.randint(1, 5), lenient=True, strong=self.chance(0.3),
                nodes=(b"n1",) if self.chance(0.2) else (),
            )  # fmt: skip
            self.tell(f"opens {sorted(request.topics)} strong {request.strong}")
            self.followers.append(self._open(request))
            return
        number = self.random.randrange(len(self.followers))
        follower = self.followers[number]
        if self.chance(0.05) or follower.watch.finished:
            self.tell(f"{number} ends")
            follower.watch.close()
            self.followers.remove(follower)
            return
        if self.chance(0.1):
            self.tell(f"{number} opens again")
            follower.watch.close()
            self.followers[number] = self._open(follower.request, follower)
            self.world.trace.meet("a session that went on")
            return
        self.tell(f"{number} pulls")
        for _ in range(self.random.randint(1, 6)):
            if not self.pull(follower):
                return

    def drain(self) -> None:
        """Everybody gets everything."""
        for follower in self.followers:
            for _ in range(5000):
                if not self.pull(follower) and not follower.wakes:
                    break
            else:
                demand(False, "a watch never comes to rest")

    def pull(self, follower: Follower) -> bool:
        """One frame, checked; False if there was none."""
        world, watch = self.world, follower.watch
        world.look()
        follower.wakes.clear()
        before, epochs = dict(watch.cursors), dict(watch.epochs)
        frame = watch.next()
        named = None if frame is None else getattr(frame, "topic_partition", None)
        for place, cursor in before.items():
            if place != named and place in watch.cursors:
                self._check_silence(follower, place, epochs[place], cursor, watch.cursors[place])
        if frame is None:
            if not follower.wakes:
                self._check_rest(follower)
            return False
        assert named is not None, frame
        cursor = before.get(named, 0)
        if isinstance(frame, TopicDeletedFrame):
            log = self._log(named, epochs.get(named, 0))
            demand(
                log is None or watch.epochs.get(named) != epochs.get(named),
                f"the end of {named} is told, but it is there",
            )
        elif isinstance(frame, TombstoneFrame):
            self._check_tombstone(follower, frame, cursor, epochs.get(named, 0))
        elif isinstance(frame, RecordsFrame):
            log = self._followed(follower, named)
            nodes = follower.request.nodes if world.topics.by_name[frame.topic].config.dedupe_node else ()
            reading.check_records(log.view, cursor, frame.to_seq, frame.slices, nodes=nodes)
            demand(
                frame.to_seq <= self._end(follower, frame.topic, log), "a strong watch gives what a power cut may take"
            )
            world.trace.meet("a frame of records")
        else:
            assert isinstance(frame, CaughtUpFrame), frame
            log = self._followed(follower, named)
            demand(frame.head_seq == log.view.head, "caught up, but not at the head")
            self._check_silence(follower, named, watch.epochs[named], cursor, frame.head_seq)
        follower.keep()
        return True

    def _check_tombstone(self, follower: Follower, frame: TombstoneFrame, cursor: int, epoch: int) -> None:
        log = self._followed(follower, frame.topic_partition)
        lost = frame.tombstone
        at = lost.gap_from - 1
        if epoch != follower.watch.epochs[frame.topic_partition]:
            at = log.view.head + 1
        else:
            self._check_silence(follower, frame.topic_partition, epoch, cursor, at)
        told = DiffReply(
            topic=frame.topic, slices=(), next_from_seq=0, head_seq=0, earliest_seq=0, tombstone=lost, records_scanned=0
        )  # fmt: skip
        to = reading.check_loss(self.world, log.view, at, told, self._end(follower, frame.topic, log))
        demand(follower.watch.cursors[frame.topic_partition] == to, "a watch goes on elsewhere than behind the loss")

    def _end(self, follower: Follower, topic: str, log: LogModel) -> int:
        """What it may see of a log: with `strong` only what a power cut would leave."""
        if not follower.request.strong or self.world.topics.by_name[topic].config.durability == "ephemeral":
            return log.view.head
        return max((state.head for w, state in log.history if w <= self.world.disk.synced), default=0)

    def _check_silence(self, follower: Follower, place: str, epoch: int, cursor: int, to: int) -> None:
        """Between these cursors there is nothing that it should have been told."""
        log = self._log(place, epoch)
        if cursor == to or log is None:
            return
        demand(to > cursor, f"the cursor of {place} goes back from {cursor} to {to}")
        config = self.world.topics.by_name[parse_topic_partition(place)[0]].config
        nodes = follower.request.nodes if config.dedupe_node else ()
        reading.check_records(log.view, cursor, to, (), nodes=nodes)
        demand(log.view.lost_at(cursor) is None, f"the loss in {place} behind {cursor} is not told")

    def _check_rest(self, follower: Follower) -> None:
        for place, cursor in follower.watch.cursors.items():
            log = self._log(place, follower.watch.epochs.get(place, 0))
            followed = follower.watch._follows.get(place)
            if log is not None and followed is not None and not follower.request.strong:
                if followed.log.expiry_ticket:
                    continue  # it is woken when the loss in front of it is durable
                demand(cursor == log.view.head, f"a watch rests at {cursor} of {place}, whose head is {log.view.head}")

    def _log(self, place: str, epoch: int) -> LogModel | None:
        name, partition = parse_topic_partition(place)
        topic = self.world.topics.find(name)
        if topic is None or topic.number != epoch or partition >= len(topic.logs):
            return None
        return topic.logs[partition]

    def _followed(self, follower: Follower, place: str) -> LogModel:
        log = self._log(place, follower.watch.epochs[place])
        assert log is not None, f"{place} is another topic than the one that is followed"
        return log

    def _open(self, request: WatchRequest, session: Follower | None = None) -> Follower:
        wakes: list[str] = []
        self.world.look()
        if session is None:
            watch = self.world.engine.watch(request, wakes.append)
        else:
            given = {name: getattr(request, name) for name in request.__struct_fields__ if name != "cursor"}
            resumed = WatchRequest(**given, cursor=session.cursors)
            watch = self.world.engine.watch(resumed, wakes.append, epochs=session.epochs, heads=session.heads)
        follower = Follower(request, watch, wakes)
        follower.keep()
        return follower

    def _again(self) -> None:
        """The engine is a new one."""
        self.followers = [self._open(follower.request, follower) for follower in self.followers]
        self.world.trace.meet("a session that went on after a crash", len(self.followers))
