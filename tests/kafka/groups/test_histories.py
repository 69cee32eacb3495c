"""Random histories of groups: correct clients on failing networks and servers.

The oracle: two members that may believe to be valid never work on the same partition; epochs and generations only
grow; every request is answered once; and in the end, without failures, every partition has an owner.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from support.kafka_members import REBALANCE_MS, SESSION_MS, Modern, Topics, World, assignment, subscription
from topics_service.engine.membership.members import (
    GroupError,
    JoinReply,
    JoinRequest,
    Leaving,
    Partition,
    SyncReply,
    SyncRequest,
)
from topics_service.engine.membership.subscriptions import consumer_assignment, consumer_topics

NAMES = ["t", "u", "v"]
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)  # explaining a failure would take minutes
MANY = settings(max_examples=250, deadline=None, phases=PHASES)
Act = tuple[str, int, int]  # an action, a member, and a variation


def histories(**weights: int) -> st.SearchStrategy[list[Act]]:
    """Lists of actions; the weights are their relative frequencies."""
    kinds = [kind for kind, weight in weights.items() for _ in range(weight)]
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 5), st.integers(0, 63)), max_size=90)


def subset(how: int) -> list[str]:
    """Some of the topics, at least one."""
    return [name for i, name in enumerate(NAMES) if how % 7 + 1 & 1 << i]


class ConsumerHistory:
    """A `consumer` group. Members crash, go silent, lose answers or revoke slowly; the server may restart."""

    def __init__(self, how: int) -> None:
        topics = Topics(**{name: how % (i + 3) + 1 for i, name in enumerate(NAMES)})
        self.world = World(topics, session_ms=5_000 if how % 2 else 15_000)
        self.alive: list[Modern] = []
        self.silent: list[Modern] = []
        self.away: list[Modern] = []
        self.epochs: dict[str, int] = {}
        self.group_epoch = 0
        self.made = 0

    def run(self, acts: Sequence[Act]) -> None:
        for _ in range(3):
            self.join(0, self.made)
        for kind, who, how in acts:
            act: Callable[[int, int], None] = getattr(self, kind)
            act(who, how)
            self.check()
        self.calm_down()

    def member(self, who: int) -> Modern | None:
        return self.alive[who % len(self.alive)] if self.alive else None

    def join(self, _who: int, how: int) -> None:
        if len(self.alive) > 4:
            return
        self.made += 1
        member = Modern(
            self.world,
            f"m{self.made}",
            names=subset(how // 3),
            regex=[None, None, None, "[tu]", ".*"][how % 5],
            is_chatty=how % 3 == 0,
            assignor=[None, None, None, "uniform", "range", None, None][how % 7],
            instance_id=f"i{self.made}" if how % 2 else None,
        )
        self.alive.append(member)
        self._beat(member, is_lost=False)

    def _beat(self, member: Modern, *, is_lost: bool) -> None:
        if member.epoch and not member.works_on:
            member.owned = set()  # as far as it knows, its session has ended
        reply = member.beat(is_lost=is_lost)
        assert reply.error in (
            GroupError.NONE,
            GroupError.UNKNOWN_MEMBER_ID,
            GroupError.FENCED_MEMBER_EPOCH,
            GroupError.UNRELEASED_INSTANCE_ID,
        )
        if reply.error is GroupError.NONE:
            assert reply.epoch >= self.epochs.get(reply.member_id, 0)
            self.epochs[reply.member_id] = reply.epoch

    def beat(self, who: int, how: int) -> None:
        member = self.member(who)
        if member is not None:
            self._beat(member, is_lost=how % 5 == 0)

    def apply(self, who: int, _how: int) -> None:
        member = self.member(who)
        if member is not None and member.works_on == member.owned:
            member.apply()

    def step(self, who: int, _how: int) -> None:
        self.beat(who, 1)
        self.apply(who, 1)

    def rejoin(self, who: int, _how: int) -> None:
        """Restart the process of a member, which keeps only its id."""
        member = self.member(who)
        if member is not None:
            member.forget()
            self._beat(member, is_lost=False)

    def subscribe(self, who: int, how: int) -> None:
        member = self.member(who)
        if member is not None and member.epoch:
            member.names = subset(how) if how % 9 else []
            member.told = None
            self._beat(member, is_lost=False)

    def leave(self, who: int, how: int) -> None:
        member = self.member(who)
        if member is not None:
            self.alive.remove(member)
            member.owned = set()
            if how % 2 and member.epoch:
                member.beat(-1)

    def go_silent(self, who: int, _how: int) -> None:
        """Disconnect a member that keeps working."""
        member = self.member(who)
        if member is not None:
            self.alive.remove(member)
            self.silent.append(member)

    def go_away(self, who: int, _how: int) -> None:
        member = self.member(who)
        if member is not None and member.instance_id is not None and member.epoch:
            self.alive.remove(member)
            member.beat(-2)
            member.owned = set()
            self.away.append(member)

    def come_back(self, _who: int, _how: int) -> None:
        if self.away:
            old = self.away.pop()
            self.made += 1
            member = Modern(self.world, f"m{self.made}", names=old.names, regex=old.regex, instance_id=old.instance_id)
            self.alive.append(member)
            self._beat(member, is_lost=False)

    def wait(self, _who: int, how: int) -> None:
        for member in self.alive:  # every member revokes within the rebalance timeout
            if member.works_on:
                member.owned &= member.target
        self.world.advance((100, 1_000, 3_000, 6_000)[how % 4])

    def change_topic(self, who: int, how: int) -> None:
        name, count = NAMES[who % 3], how % 7
        facts = self.world.topics.facts(name)
        if count == 0 or (facts is not None and facts.partition_count > count):
            self.world.topics.remove(name)
        else:
            self.world.topics.put(name, count)
        self.world.change_topics()

    def restart(self, _who: int, _how: int) -> None:
        group = self.world.coordinator._groups.get("g")
        if group is not None:
            for member in group.members.values():
                member.packed = None  # the incrementally stored state equals a new dump
            assert self.world.store["g"] == self.world.coordinator.dump("g")
        self.world.restart()

    def check(self) -> None:
        counts: Counter[Partition] = Counter()
        for member in (*self.alive, *self.silent):
            counts.update(member.works_on)
        assert not [part for part, count in counts.items() if count > 1]
        view = self.world.coordinator.describe("g")
        if view is not None:
            assert view.epoch >= self.group_epoch
            assert view.epoch >= view.assignment_epoch
            self.group_epoch = view.epoch

    def calm_down(self) -> None:
        """In the end the connected members own everything."""
        for _ in range((REBALANCE_MS + self.world.settings.session_ms) // 1_000 + 12):
            for who in range(len(self.alive)):
                self.step(who, 1)
            self.check()
            self.world.advance(1_000)
        wanted: set[Partition] = set()
        for member in self.alive:
            assert member.epoch > 0
            mine = set(member.names or ())
            if member.regex is not None:
                mine |= {name for name in NAMES if member.regex == ".*" or name in "tu"}
            assert member.owned <= self.world.topics.partitions(mine)
            wanted |= self.world.topics.partitions(mine)
        owned = [part for member in self.alive for part in member.owned]
        assert sorted(owned) == sorted(wanted)
        view = self.world.coordinator.describe("g")
        if view is not None:
            assert view.state == ("Stable" if self.alive else "Empty")
            assert len(view.members) == len(self.alive)


@MANY
@given(
    how=st.integers(0, 59),
    acts=histories(
        join=3, beat=10, apply=10, step=10, rejoin=2, subscribe=3, leave=2, go_silent=2, go_away=2, come_back=3, wait=5,
        change_topic=2, restart=2,
    ),
)  # fmt: skip
def test_consumer_groups(how: int, acts: list[Act]) -> None:
    ConsumerHistory(how).run(acts)


class Consumer:
    """A classic consumer with an eager assignor of whole topics, such as range: a join revokes everything."""

    def __init__(self, history: "ClassicHistory", instance_id: str | None, topics: list[str]) -> None:
        self.history = history
        self.instance_id = instance_id
        self.topics = topics
        self.member_id = ""
        self.generation = -1
        self.waits_for: object | None = None
        self.joined: JoinReply | None = None
        self.owned: set[tuple[str, int]] = set()
        self.heard = 0

    @property
    def works_on(self) -> set[tuple[str, int]]:
        return self.owned if self.history.world.time < self.heard + SESSION_MS else set()

    def join(self) -> None:
        """Revoke everything and join."""
        self.owned, self.joined, self.generation = set(), None, -1
        world = self.history.world

        def respond(reply: JoinReply) -> None:
            self.history.answered(respond)
            if self.waits_for is respond:
                self.waits_for = None
                self.hear_join(reply)

        self.history.asked(respond)
        self.waits_for = respond
        request = JoinRequest(
            group="g",
            member_id=self.member_id,
            instance_id=self.instance_id,
            session_ms=SESSION_MS,
            rebalance_ms=SESSION_MS,
            protocols=[("range", subscription(*self.topics))],
        )
        world.coordinator.join(request, respond)

    def hear_join(self, reply: JoinReply) -> None:
        self.heard = self.history.world.time
        if reply.error is GroupError.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
        elif reply.error is GroupError.NONE:
            assert reply.generation > 0
            self.member_id, self.generation, self.joined = reply.member_id, reply.generation, reply
            self.history.saw(reply)
        else:
            self.fail(reply.error)

    def sync(self) -> None:
        """Request the assignment; a leader assigns all partitions round-robin."""
        reply = self.joined
        assert reply is not None
        world = self.history.world

        def respond(answer: SyncReply) -> None:
            self.history.answered(respond)
            if self.waits_for is respond:
                self.waits_for = None
                self.hear_sync(answer)

        self.history.asked(respond)
        self.waits_for = respond
        parts: dict[str, dict[str, list[int]]] = {each.member_id: {} for each in reply.members}
        if reply.leader == self.member_id and not reply.skip_assignment:
            for name in NAMES:
                takers = [each.member_id for each in reply.members if name in (consumer_topics(each.metadata) or ())]
                facts = world.topics.facts(name)
                for p in range(facts.partition_count if facts and takers else 0):
                    parts[takers[p % len(takers)]].setdefault(name, []).append(p)
        request = SyncRequest(
            group="g",
            member_id=self.member_id,
            generation=self.generation,
            instance_id=self.instance_id,
            assignments=[(member_id, assignment(each)) for member_id, each in parts.items()],
        )
        world.coordinator.sync(request, respond)

    def hear_sync(self, answer: SyncReply) -> None:
        self.heard, self.joined = self.history.world.time, None
        if answer.error is GroupError.NONE:
            found = consumer_assignment(answer.assignment) or {}
            self.owned = {(name, p) for name, parts in found.items() for p in parts}
        else:
            self.fail(answer.error)

    def beat(self) -> None:
        """Send a heartbeat."""
        error = self.history.world.coordinator.heartbeat("g", self.member_id, self.generation, self.instance_id)
        if error is GroupError.NONE:
            self.heard = self.history.world.time
        else:  # it may join until the rebalance timeout has passed since the start
            self.fail(error)

    def fail(self, error: GroupError) -> None:
        assert error in (
            GroupError.REBALANCE_IN_PROGRESS,
            GroupError.UNKNOWN_MEMBER_ID,
            GroupError.ILLEGAL_GENERATION,
        ), error
        if error is not GroupError.REBALANCE_IN_PROGRESS:
            self.owned = set()
        if error is GroupError.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.generation = -1

    def disconnect(self) -> None:
        """Break the connection: a pending answer is lost."""
        if self.waits_for is not None:
            respond, self.waits_for = self.waits_for, None
            self.history.world.coordinator.forget(respond)  # type: ignore[arg-type]
            self.history.forgotten(respond)

    def step(self) -> None:
        """Run the next step of the member."""
        if self.waits_for is not None:
            return
        if self.joined is not None:
            self.sync()
        elif self.generation < 0:
            self.join()
        else:
            self.beat()


class ClassicHistory:
    """A classic group. Members crash, go silent, lose connections or are replaced; the server may restart."""

    def __init__(self, how: int) -> None:
        self.world = World(Topics(t=3, u=2, v=1), min_session_ms=1_000, initial_delay_ms=3_000 * (how % 2))
        self.alive: list[Consumer] = []
        self.silent: list[Consumer] = []
        self.open: set[object] = set()
        self.generation = 0
        self.made = 0

    def run(self, acts: Sequence[Act]) -> None:
        for _ in range(3):
            self.come(0, self.made)
        for kind, who, how in acts:
            act: Callable[[int, int], None] = getattr(self, kind)
            act(who, how)
            self.check()
        self.calm_down()

    def asked(self, respond: object) -> None:
        self.open.add(respond)

    def answered(self, respond: object) -> None:
        assert respond in self.open, "answered twice, or after it was taken back"
        self.open.remove(respond)

    def forgotten(self, respond: object) -> None:
        self.open.remove(respond)

    def saw(self, reply: JoinReply) -> None:
        assert reply.generation >= self.generation
        self.generation = reply.generation

    def consumer(self, who: int) -> Consumer | None:
        return self.alive[who % len(self.alive)] if self.alive else None

    def come(self, _who: int, how: int) -> None:
        if len(self.alive) < 5:
            self.made += 1
            consumer = Consumer(self, f"i{self.made}" if how % 2 else None, subset(how // 2))
            self.alive.append(consumer)
            consumer.step()

    def step(self, who: int, how: int) -> None:
        consumer = self.consumer(who)
        if consumer is not None:
            for _ in range(how % 3 + 1):
                consumer.step()

    def step_all(self, _who: int, _how: int) -> None:
        for consumer in self.alive:
            consumer.step()

    def rejoin(self, who: int, how: int) -> None:
        consumer = self.consumer(who)
        if consumer is not None and consumer.waits_for is None and consumer.generation >= 0:
            consumer.topics = subset(how) if how % 2 else consumer.topics
            consumer.join()

    def disconnect(self, who: int, _how: int) -> None:
        consumer = self.consumer(who)
        if consumer is not None:
            consumer.disconnect()

    def leave(self, who: int, how: int) -> None:
        consumer = self.consumer(who)
        if consumer is not None:
            consumer.disconnect()
            self.alive.remove(consumer)
            consumer.owned = set()
            if how % 2 and consumer.member_id:
                self.world.coordinator.leave("g", [Leaving(consumer.member_id)])

    def go_silent(self, who: int, _how: int) -> None:
        consumer = self.consumer(who)
        if consumer is not None:
            self.alive.remove(consumer)
            self.silent.append(consumer)

    def replace(self, who: int, _how: int) -> None:
        """Crash and restart a static member."""
        consumer = self.consumer(who)
        if consumer is not None and consumer.instance_id is not None:
            consumer.disconnect()
            self.alive.remove(consumer)
            new = Consumer(self, consumer.instance_id, consumer.topics)
            self.alive.append(new)
            new.step()

    def wait(self, _who: int, how: int) -> None:
        self.world.advance((100, 1_000, 4_000, 11_000)[how % 4])

    def restart(self, _who: int, _how: int) -> None:
        for consumer in (*self.alive, *self.silent):
            consumer.waits_for = None
        self.open.clear()
        if "g" not in self.world.store:
            self.generation = 0
        self.world.restart()

    def check(self) -> None:
        counts: Counter[tuple[str, int]] = Counter()
        for consumer in (*self.alive, *self.silent):
            counts.update(consumer.works_on)
        assert not [part for part, count in counts.items() if count > 1]
        assert self.open == set(self.world.coordinator._run.held)

    def calm_down(self) -> None:
        """In the end all members are in one generation, which owns everything."""
        for _ in range(60):
            for consumer in self.alive:
                consumer.step()
            self.check()
            self.world.advance(1_000)
        assert all(consumer.generation == self.generation for consumer in self.alive)
        wanted = {
            (name, p)
            for name in {name for consumer in self.alive for name in consumer.topics}
            for p in range(self.world.topics.facts(name).partition_count)  # type: ignore[union-attr]
        }
        owned = [part for consumer in self.alive for part in consumer.owned]
        assert sorted(owned) == sorted(wanted)
        assert not self.open
        view = self.world.coordinator.describe("g")
        if view is not None:
            assert view.state == ("Stable" if self.alive else "Empty")
            assert len(view.members) == len(self.alive)


@MANY
@given(
    how=st.integers(0, 1),
    acts=histories(
        come=3, step=12, step_all=6, rejoin=3, disconnect=3, leave=2, go_silent=1, replace=2, wait=5, restart=1
    ),
)
def test_classic_groups(how: int, acts: list[Act]) -> None:
    ClassicHistory(how).run(acts)
