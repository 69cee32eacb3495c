"""The commit of a cluster with an engine: visible and answered once the object store has it, in every class of
durability; a takeover is a power cut, and a handover loses nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.held_bucket import HeldBucket
from support.shards import SHARD, Member
from support.waiting import until
from topics_cluster.commit import LogCommit
from topics_cluster.takeover import hand_over, new_nonce
from topics_cluster.uploader import FencedError
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest


class Clock:
    """A clock that stands."""

    def now_ms(self) -> int:
        return 1_000_000


class Node:
    """An owner, or a standby, with its engine and its commit."""

    def __init__(self, bucket: HeldBucket, path: Path, **options: object) -> None:
        self.member = Member(bucket, path, **options)
        self.lost: list[BaseException] = []

    async def own(self, nonce: bytes | None = None) -> None:
        await (self.member.resume() if nonce is None else self.member.own(nonce))
        self.engine = Engine(self.member.store, Clock(), recover=False)
        self.commit = LogCommit.for_engine(self.engine, self.member.store, self.lost.append)
        for _ in self.engine.recover(self.member.store.life):
            pass

    async def create(self, topic: str, durability: str = "fsync") -> None:
        self.engine.put_topic(topic, ConfigInput(durability=durability))
        await self.commit.wait(self.engine.creation_ticket(topic))

    def append(self, topic: str, *datas: bytes) -> int:
        ticket = self.engine.append(AppendRequest(topic=topic, batch=Batch(datas=list(datas))))[1]
        if ticket:
            self.commit.want(ticket)
        return ticket

    def read(self, topic: str) -> list[bytes]:
        reply = self.engine.diff(DiffRequest(topic=topic))
        return [part.block.record_data(i) for part in reply.slices for i in range(part.start, part.stop)]

    def gap(self, topic: str, from_seq: int = 0) -> str | None:
        """The reason of the first gap."""
        lost = self.engine.diff(DiffRequest(topic=topic, from_seq=from_seq)).tombstone
        return None if lost is None else lost.reason

    async def end(self) -> None:
        """Close the engine cleanly, and end the epoch."""
        await asyncio.to_thread(self.commit.stop)
        self.engine.close()
        self.member.resign()


@pytest.fixture
def bucket() -> HeldBucket:
    return HeldBucket()


@pytest.fixture
async def nodes(bucket: HeldBucket, tmp_path: Path) -> AsyncIterator[list[Node]]:
    """An owner, and one that can take over."""
    nodes = [Node(bucket, tmp_path / name) for name in "ab"]
    await nodes[0].own()
    yield nodes
    bucket.away = True
    for node in nodes:
        node.member.kill()


async def acknowledged(node: Node, *tickets: int) -> None:
    """Wait until the uploader has told the loop about everything."""
    await node.member.sync()
    for ticket in tickets:
        await node.commit.wait(ticket)


async def test_a_write_is_visible_and_answered_once_the_object_is_there(bucket: HeldBucket, nodes: list[Node]) -> None:
    owner = nodes[0]
    await owner.create("t")
    before = len(bucket.tried)
    bucket.fate = lambda _name: "held"
    ticket = owner.append("t", b"1")
    waiting = asyncio.create_task(owner.commit.wait(ticket))
    await until(lambda: len(bucket.tried) > before)
    assert (waiting.done(), owner.commit.covers(ticket), owner.read("t")) == (False, False, [])
    assert owner.commit.statistics.waiting == 1
    bucket.fate = lambda _name: "made"
    await waiting
    assert owner.commit.covers(ticket)
    assert owner.read("t") == [b"1"]
    statistics = owner.commit.statistics
    assert (statistics.waiting, statistics.waiting_peak) == (0, 1)
    assert statistics.group.sum == owner.engine.writer.written
    assert statistics.latency.count > 0


async def test_writes_of_a_turn_of_the_loop_share_an_object(bucket: HeldBucket, nodes: list[Node]) -> None:
    owner = nodes[0]
    await owner.create("t")
    await acknowledged(owner)
    before = len(bucket.tried)
    tickets = [owner.append("t", b"%d" % number) for number in range(20)]
    await asyncio.gather(*map(owner.commit.wait, tickets))
    assert len(bucket.tried) <= before + 2, "the thread may still be awake from the write before"
    assert owner.read("t") == [b"%d" % number for number in range(20)]


async def test_writes_of_other_classes_are_shipped_without_being_asked_for(
    bucket: HeldBucket, nodes: list[Node]
) -> None:
    owner, standby = nodes
    await owner.create("t", "disk")
    await owner.commit.wait(owner.append("t", b"ceiling"))
    assert owner.append("t", b"1") == 0, "answered at once"
    assert owner.read("t") == [b"ceiling", b"1"]
    position = owner.member.store.position
    await until(lambda: owner.member.store.position != position)
    owner.member.kill()
    await standby.own()
    assert standby.read("t") == [b"ceiling", b"1"]


async def test_writes_of_another_thread_are_shipped_too(nodes: list[Node]) -> None:
    member = nodes[0].member
    await asyncio.to_thread(member.put, b"key", b"value")
    await until(lambda: not member.store.is_ahead)


async def test_maintenance_does_not_acknowledge_too_much(bucket: HeldBucket, nodes: list[Node]) -> None:
    """A write past the engine's writer takes a ticket of the log, and none of the engine."""
    owner = nodes[0]
    await owner.create("t")
    for number in range(5):
        owner.member.put(b"%d" % number, b"")
    first = owner.append("t", b"1")
    await owner.commit.wait(first)
    await acknowledged(owner)
    bucket.fate = lambda _name: "held"
    second = owner.append("t", b"2")
    await asyncio.sleep(0.01)
    assert (owner.commit.covers(first), owner.commit.covers(second)) == (True, False)
    assert owner.read("t") == [b"1"]


async def test_calls_that_wait_have_no_answer_when_another_node_owns_the_shard(
    bucket: HeldBucket, nodes: list[Node]
) -> None:
    owner, standby = nodes
    await owner.create("t")
    await owner.commit.wait(owner.append("t", b"1"))
    await standby.own()
    ticket = owner.append("t", b"2")
    waiting = [asyncio.create_task(owner.commit.wait(ticket + later)) for later in range(2)]
    await until(lambda: owner.lost)
    await owner.commit.settle(ticket)
    assert not any(each.done() for each in waiting), "nobody knows whether the write is in the log"
    assert [type(error) for error in owner.lost] == [FencedError]
    assert owner.read("t") == [b"1"], "what is not in the log is never seen"
    with pytest.raises(TopicsError) as caught:
        owner.append("t", b"3")
    assert caught.value.reason is Reason.NOT_READY
    owner.commit.abandon()
    for each in (*waiting, owner.commit.wait(ticket)):
        with pytest.raises(TopicsError) as caught:
            await each
        assert caught.value.reason is Reason.NOT_READY
    assert standby.read("t") == [b"1"]
    await standby.commit.wait(standby.append("t", b"2"))
    assert standby.read("t") == [b"1", b"2"]


async def test_a_commit_that_comes_too_late_fails_too(bucket: HeldBucket, nodes: list[Node]) -> None:
    """The node is fenced before its engine is there."""
    owner, standby = nodes
    await standby.own()
    owner.append("t", b"1")
    uploader = owner.member.uploader
    assert uploader is not None
    await until(lambda: uploader.failure is not None)
    late = LogCommit.for_engine(owner.engine, owner.member.store, owner.lost.append)
    assert owner.lost
    late.abandon()
    with pytest.raises(TopicsError):
        await late.wait(1)


async def test_a_takeover_is_a_power_cut(bucket: HeldBucket, nodes: list[Node]) -> None:
    owner, standby = nodes
    await owner.create("durable")
    await owner.create("fast", "disk")
    for topic in ("durable", "fast"):
        await owner.commit.wait(owner.append(topic, b"kept"))
    await acknowledged(owner)
    bucket.fate = lambda _name: "held"
    owner.append("durable", b"not acknowledged")
    owner.append("fast", b"answered, and lost with the node")
    owner.member.kill()
    bucket.fate = lambda _name: "made"
    await standby.own()
    assert standby.read("durable") == [b"kept"]
    await standby.commit.wait(standby.append("durable", b"next"))
    assert standby.read("durable") == [b"kept", b"next"]
    assert standby.read("fast") == [b"kept"]
    await standby.commit.wait(standby.append("fast", b"next"))
    assert standby.read("fast") == [b"kept"], "the gap comes first"
    reply = standby.engine.diff(DiffRequest(topic="fast", from_seq=1))
    assert reply.tombstone is not None
    assert (reply.tombstone.gap_from, reply.tombstone.reason) == (2, "cap")


async def test_a_handover_loses_nothing(bucket: HeldBucket, nodes: list[Node]) -> None:
    owner, standby = nodes
    await owner.create("fast", "disk")
    await owner.commit.wait(owner.append("fast", b"1"))
    owner.append("fast", b"2")
    nonce = new_nonce()
    await owner.end()
    assert await hand_over(bucket, owner.member.store, SHARD, nonce)
    before = len(bucket.tried)
    await standby.own(nonce)
    ours = standby.member.store.position
    standby.append("fast", b"3")
    await acknowledged(standby)
    assert standby.read("fast") == [b"1", b"2", b"3"]
    assert not [name for name in bucket.tried[before:] if name < f"s0/log/{ours.number - 1:020}"], "no second fence"
    await owner.own()
    assert owner.member.store.position.epoch == 3
    assert owner.read("fast") == [b"1", b"2", b"3"]


async def test_stop_waits_for_what_is_under_way(bucket: HeldBucket, nodes: list[Node]) -> None:
    owner = nodes[0]
    await owner.create("t")
    owner.append("t", b"1")
    await asyncio.to_thread(owner.commit.stop)
    assert not owner.member.store.is_ahead


async def test_at_the_end_a_bucket_that_does_not_answer_is_not_waited_for_long(
    bucket: HeldBucket, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics_cluster.commit._SETTLE_SECONDS", 0.05)
    owner = nodes[0]
    await owner.create("t")
    bucket.fate = lambda _name: "held"
    waiting = asyncio.create_task(owner.commit.wait(owner.append("t", b"1")))
    async with asyncio.timeout(5):
        await owner.commit.settle(owner.engine.writer.written)
        await asyncio.to_thread(owner.commit.stop)
    assert not waiting.done()
    owner.commit.abandon()
    with pytest.raises(TopicsError):
        await waiting
    assert owner.engine.writer.failure is not None
    assert len(owner.lost) == 1
    assert owner.read("t") == []


@pytest.mark.parametrize("boot", ["of before", "another"])
@pytest.mark.parametrize("had", [0, 3])
async def test_a_killed_owner_goes_on_with_what_only_it_had(
    bucket: HeldBucket, tmp_path: Path, boot: str, had: int
) -> None:
    """Its records are as durable as those of a single process: only another boot of the machine makes a gap of more."""
    owner = Node(bucket, tmp_path / "owner", boot_id="of before")
    await owner.own()
    for topic in ("disk", "ephemeral"):
        await owner.create(topic, topic)
        owner.append(topic, b"ceiling")
    await acknowledged(owner)
    bucket.fate = lambda _name: "held"
    for number in range(had):
        assert owner.append("disk", b"%d" % number) == 0
    owner.member.kill()
    bucket.fate = lambda _name: "made"
    again = Node(bucket, tmp_path / "owner", boot_id=boot)
    try:
        await again.own()
        kept = [b"ceiling", *(b"%d" % number for number in range(had))]
        assert again.read("disk") == kept
        last = len(kept)
        assert (again.gap("disk", last), again.gap("ephemeral")) == (None if boot == "of before" else "cap", "cap")
        await again.commit.wait(again.append("disk", b"next"))
        head = again.engine.diff(DiffRequest(topic="disk")).head_seq
        assert (head == last + 1) == (boot == "of before")
        assert again.read("ephemeral") == []
    finally:
        again.member.kill()
