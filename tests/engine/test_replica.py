"""Long reads from a store that follows the writer's: page for page what the engine has written."""

import pytest
from engine_machine import EngineMachine, filters, names
from engine_support import World, gap, run_machine, seqs
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from msgspec.structs import replace
from router_support import RouterWorld

from topics_service.engine import reader
from topics_service.engine.batches import FetchRequest
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import BulkRequest, ConfigInput, DiffReply, DiffRequest, TagMatch
from topics_service.engine.replica import Replica
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family, StoreError


class FollowingMemory(MemoryStore):
    """What another store held when this one last caught up with it."""

    def __init__(self, followed: MemoryStore) -> None:
        super().__init__()
        self.generation = 0
        self.whole = False
        self.broken = False
        self._followed = followed

    def catch_up(self) -> None:
        self.whole = not self.broken
        if self.broken:
            raise StoreError("the manifest is gone")
        rows = [rows.copy() for rows in self._followed._rows]
        self.generation += rows != self._rows
        self._rows = rows


def told(reply: DiffReply) -> tuple[object, ...]:
    """All that a client sees of a page."""
    records: list[tuple[object, ...]] = []
    for piece in reply.slices:
        block = piece.block
        for i in range(piece.start, piece.stop):
            data = block.data[block.ends[i - 1] if i else 0 : block.ends[i]]
            columns = (column[i] if column else None for column in (block.tags, block.nodes, block.metas))
            records.append((block.base_seq + i, block.ts_at(i), bytes(data), *columns))
    return records, reply.tombstone, reply.next_from_seq, reply.head_seq, reply.earliest_seq


class Following:
    """An engine and a replica of what it writes."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()
        self.store = FollowingMemory(self.world.store)
        self.replica = Replica(self.store, self.world.clock, cache_bytes=2000)

    def read(self, topic: str = "t", **request: object) -> tuple[DiffReply, int]:
        return self.replica.bulk(
            BulkRequest(**{"topic": topic, "limit": 100, "max_batch_bytes": 1 << 20, **request})  # type: ignore[arg-type]
        )

    def refused(self, **request: object) -> tuple[Reason, str]:
        with pytest.raises(TopicsError) as error:
            self.read(**request)
        return error.value.reason, error.value.message


@pytest.fixture
def following() -> Following:
    return Following()


def test_it_finds_what_was_written_before_the_call(following: Following) -> None:
    world = following.world
    world.append(b"1", b"2", sync=True)
    reply, epoch = following.read(end_seq=2)
    assert seqs(reply) == [1, 2]
    world.append(b"3", b"4", sync=True)
    world.delete(3)
    reply, _ = following.read(end_seq=3)
    assert (seqs(reply), reply.earliest_seq, reply.head_seq) == ([3], 3, 4)
    assert epoch


def test_batches_are_those_of_the_engine() -> None:
    world = World()
    store = FollowingMemory(world.store)
    replica = Replica(store, world.clock, cache_bytes=2000, is_durable=True)
    world.append(*[b"%d" % number for number in range(6)], sync=True)
    world.append(*[b"x" * 100] * 6, sync=True)
    world.delete(3)
    world.append(b"last", sync=True)
    replica.follow()

    def asked(from_seq: int, max_bytes: int) -> FetchRequest:
        return FetchRequest(topic="t", partition=0, from_seq=from_seq, max_bytes=max_bytes)

    for from_seq in range(14):
        for max_bytes in (1, 300, 1 << 20):
            request = asked(from_seq, max_bytes)
            ours, theirs = replica.fetch(request), world.engine.batches.fetch(request)
            parts = [
                [(part.block.base_seq, part.start, part.stop, part.dead) for part in reply.parts]
                for reply in (ours, theirs)
            ]
            assert parts[0] == parts[1]
            assert replace(ours, parts=[]) == replace(theirs, parts=[])
    for beyond in (14, 1 << 40):
        with pytest.raises(TopicsError) as error:
            replica.fetch(asked(beyond, 1))
        assert error.value.reason is Reason.NOT_READY, "the engine may have more"
    world.append(b"more", sync=True)
    replica.follow()
    assert replica.fetch(asked(13, 1)).head_seq == 14


def test_it_reads_no_further_than_asked_for(following: Following) -> None:
    following.world.append(*[b"1"] * 9, sync=True)
    reply, _ = following.read(from_seq=2, end_seq=5)
    assert (seqs(reply), reply.next_from_seq) == ([3, 4, 5], 5)
    reply, _ = following.read(end_seq=7, last=2)
    assert seqs(reply) == []
    reply, _ = following.read(end_seq=9, last=2)
    assert seqs(reply) == [8, 9]
    reply, _ = following.read(end_seq=9, filter=TagMatch("Eq", b"none"))
    assert (seqs(reply), reply.next_from_seq) == ([], 9)


def test_a_read_names_its_end(following: Following) -> None:
    following.world.append(b"1", sync=True)
    assert following.refused() == (Reason.INVALID_REQUEST, "a bulk reader needs end_seq")


def test_what_only_the_server_can_answer(following: Following) -> None:
    world = following.world
    world.append(b"1", sync=True)
    reason, message = following.refused(end_seq=2)
    assert reason is Reason.NOT_READY
    assert message == 'partition 0 of topic "t" is to be read at the server: its head is 1 here'
    world.put("e", durability="ephemeral")
    reason, message = following.refused(topic="e", end_seq=0)
    assert reason is Reason.NOT_READY
    assert message.endswith("its records are in memory only")
    following.store.broken = True
    assert following.refused(end_seq=1) == (Reason.NOT_READY, "the manifest is gone")


def test_a_read_under_way_does_not_go_on_with_holes(following: Following) -> None:
    following.world.append(b"1", b"2", sync=True)
    _, epoch = following.read(end_seq=2, limit=1)
    following.store.broken = True
    assert following.refused(end_seq=1)[0] is Reason.NOT_READY
    assert following.refused(from_seq=1, end_seq=2, epoch=epoch)[0] is Reason.NOT_READY
    following.store.broken = False
    assert seqs(following.read(from_seq=1, end_seq=2, epoch=epoch)[0]) == [2]


def test_topics_that_come_and_go(following: Following) -> None:
    world = following.world
    assert following.refused(end_seq=0)[0] is Reason.TOPIC_NOT_FOUND
    world.append(b"1", b"2", sync=True)
    world.append(b"1", topic="tt", sync=True)
    first_id = world.state().identity.topic_id
    _, epoch = following.read(end_seq=2, limit=1, topic_id=first_id)
    world.engine.delete_topic("t")
    assert seqs(following.read(from_seq=1, end_seq=2, epoch=epoch)[0]) == [2], "nothing moves between two catch-ups"
    assert following.refused(end_seq=2)[0] is Reason.TOPIC_NOT_FOUND
    assert following.refused(from_seq=1, end_seq=2, epoch=epoch)[0] is Reason.TOPIC_NOT_FOUND
    world.append(b"3", b"4", sync=True)
    assert seqs(following.read(end_seq=2)[0]) == [1, 2]
    assert following.refused(from_seq=1, end_seq=2, epoch=epoch)[0] is Reason.TOPIC_NOT_FOUND
    assert following.refused(end_seq=2, topic_id=first_id)[0] is Reason.TOPIC_NOT_FOUND
    assert following.refused(end_seq=2, partition=1)[0] is Reason.PARTITION_NOT_FOUND
    assert following.refused(end_seq=2, topic_id=first_id)[1].startswith('topic "t" has been created again')


def test_losses_are_tombstones(following: Following) -> None:
    world = following.world
    world.put(cap_records=3)
    world.append(*[b"1"] * 8, sync=True)
    reply, epoch = following.read(end_seq=8, limit=1)
    assert (seqs(reply), gap(reply)) == ([6], (1, 5, "cap"))
    world.append(b"1", b"1", sync=True)
    world.maintain()
    reply, _ = following.read(from_seq=6, end_seq=8, epoch=epoch)
    assert (seqs(reply), gap(reply)) == ([7, 8], None), "the view stands still"
    following.replica.follow()
    reply, _ = following.read(from_seq=6, end_seq=8, epoch=epoch)
    assert (seqs(reply), gap(reply)) == ([8], (7, 7, "cap"))


def test_records_expire_here_too(following: Following) -> None:
    world = following.world
    world.put(ttl_ms=100)
    world.append(b"1", sync=True)
    world.clock.advance(90)
    world.append(b"2", sync=True)
    assert seqs(following.read(end_seq=2)[0]) == [1, 2]
    world.clock.advance(20)
    reason, message = following.refused(end_seq=2)
    assert (reason, "have expired" in message) == (Reason.NOT_READY, True), "who tells of a loss has to write it first"
    assert seqs(following.read(from_seq=1, end_seq=2)[0]) == [2], "behind it nothing has to be told"
    assert gap(world.diff()) == (1, 1, "ttl")
    reply, _ = following.read(end_seq=2)
    assert (seqs(reply), gap(reply)) == ([2], (1, 1, "ttl"))


def test_deletes_by_tag_in_sealed_blocks(following: Following) -> None:
    world = following.world
    world.append(*[b"1"] * 6, tags=[b"a", b"b"] * 3, sync=True)
    reply, epoch = following.read(end_seq=6, limit=2)
    world.append(*[b"1"] * 6, tags=[b"a", b"b"] * 3, sync=True)
    world.seal()
    world.delete(eq=b"a")
    assert seqs(reply) == [1, 2]
    assert seqs(following.read(from_seq=2, end_seq=6, epoch=epoch)[0]) == [3, 4, 5, 6]
    assert seqs(following.read(end_seq=12)[0]) == [2, 4, 6, 8, 10, 12]
    assert seqs(following.read(end_seq=12, filter=TagMatch("Glob", b"b"))[0]) == [2, 4, 6, 8, 10, 12]


def test_a_damaged_row_is_told(following: Following) -> None:
    world = following.world
    world.append(b"1", sync=True)
    batch = world.store.batch()
    for key, value in world.rows(Family.LOGS):
        batch.put(Family.LOGS, key, value[:-1])
    world.store.write(batch)
    reason, message = following.refused(end_seq=1)
    assert reason is Reason.INTERNAL
    assert message.startswith('the state of partition 0 of topic "t" is damaged: log row of')


def test_pages_states_and_times_are_those_of_the_engine(following: Following) -> None:
    world, replica = following.world, following.replica
    world.put(dedupe_node=True, priority=7)
    world.engine.put_topic("many", ConfigInput(), 3)
    for _ in range(20):
        world.clock.advance(10)
        world.append(*[b"1"] * 5, tags=[b"a", b"b"] * 2 + [None], sync=True)
    world.append(b"2", topic="many", partition=2, sync=True)
    world.delete(30)
    replica.follow()
    for request in (
        DiffRequest(topic="t"),
        DiffRequest(topic="t", from_seq=40, limit=7),
        DiffRequest(topic="t", last=3),
        DiffRequest(topic="t", from_ts=world.clock.now_ms() - 50),
        DiffRequest(topic="t", filter=TagMatch("Eq", b"a"), max_batch_bytes=3),
        DiffRequest(topic="t", from_seq=5000),
        DiffRequest(topic="many", partition=2),
    ):
        expected, found = world.engine.diff(request), replica.diff(request)
        assert told(found) == told(expected)
        assert (found.partition, found.partition_count) == (expected.partition, expected.partition_count)
    for name, partition in (("t", 0), ("many", 2)):
        expected_state = world.engine.get_topic(name, touch=False, partition=partition)
        expected_state.last_read_ts = None
        assert replica.state(name, partition) == replace(
            expected_state, effective_priority=expected_state.config.priority or 0
        )
    for ts in (0, world.clock.now_ms() - 50, world.clock.now_ms() + 1):
        assert replica.locate("t", ts) == world.engine.locate("t", ts)


def test_a_page_that_waits_a_queue_and_expired_records_are_for_the_server(following: Following) -> None:
    world, replica = following.world, following.replica
    world.append(b"1", sync=True)
    world.put("q", type="queue")
    world.put("short", ttl_ms=100)
    world.append(b"1", topic="short", sync=True)
    replica.follow()
    assert seqs(replica.diff(DiffRequest(topic="t", wait_ms=1))) == [1]
    world.clock.advance(200)
    for call in (
        lambda: replica.diff(DiffRequest(topic="t", from_seq=1, wait_ms=1)),
        lambda: replica.state("q"),
        lambda: replica.state("short"),
        lambda: replica.diff(DiffRequest(topic="short")),
        lambda: replica.locate("short", 0),
    ):
        with pytest.raises(TopicsError) as error:
            call()
        assert error.value.reason is Reason.NOT_READY


def test_the_destination_of_a_router_is_for_the_owner() -> None:
    world = RouterWorld()
    store = FollowingMemory(world.store)
    replica = Replica(store, world.clock, is_durable=True)
    world.append(b"1", topic="a", sync=True)
    world.append(b"1", topic="b", sync=True)
    replica.follow()
    assert seqs(replica.diff(DiffRequest(topic="b"))) == [1]
    world.route("a", "b")
    replica.follow()
    assert seqs(replica.diff(DiffRequest(topic="a"))) == [1]
    with pytest.raises(TopicsError, match="a router may have records"):
        replica.diff(DiffRequest(topic="b"))
    with pytest.raises(TopicsError, match="a router may have records"):
        replica.bulk(BulkRequest(topic="b", limit=1, max_batch_bytes=1))


class ReplicaMachine(EngineMachine):
    """The engine's machine, with a replica beside it whose pages are compared with what the engine has written."""

    def _started(self) -> None:
        self.following = Following(self.world)  # a reader ends with its server
        self.begun: tuple[str, BulkRequest] | None = None
        super()._started()

    @rule(
        name=names,
        cursor=st.integers(0, 60),
        short=st.integers(0, 3),
        limit=st.integers(1, 6),
        max_bytes=st.sampled_from((1, 20, 1 << 20)),
        nodes=st.sampled_from(((), (b"n1",))),
        match=filters,
    )
    def begin_to_read(
        self,
        name: str,
        cursor: int,
        short: int,
        limit: int,
        max_bytes: int,
        nodes: tuple[bytes, ...],
        match: TagMatch | None,
    ) -> None:
        topic = self.world.engine.catalog.find(name)
        head = 0 if topic is None else topic.log.state.head
        request = BulkRequest(
            topic=name, from_seq=cursor, limit=limit, max_batch_bytes=max_bytes, nodes=nodes, filter=match,
            end_seq=max(0, head - short),
        )  # fmt: skip
        self._compare(name, request)

    @invariant()
    def all_is_there(self) -> None:
        topic = self.world.engine.catalog.find("a")
        if topic is not None:
            begun, s = self.begun, topic.log.state
            request = BulkRequest(topic="a", limit=1000, max_batch_bytes=1 << 20, end_seq=s.head)
            self._compare("a", replace(request, from_seq=max(s.earliest - 2, 0)))
            self.begun = begun

    @precondition(lambda self: self.begun is not None)
    @rule()
    def read_on(self) -> None:
        assert self.begun is not None
        self.following.replica.follow()
        self._compare(*self.begun)

    def _compare(self, name: str, request: BulkRequest) -> None:
        self.begun = None
        engine, now = self.world.engine, self.now
        topic = engine.catalog.find(name)
        if topic is None or (request.epoch and request.epoch != topic.number):
            with self._refused("topic_not_found"):
                self.following.replica.bulk(request)
            return
        log = topic.log
        s = log.state
        if topic.config.durability == "ephemeral" or s.volatile_from:
            with self._refused("not_ready"):
                self.following.replica.bulk(request)
            return
        earliest = log.begin(topic.config, now).earliest
        if request.from_seq + 1 < earliest != s.earliest:
            with self._refused("not_ready"):
                self.following.replica.bulk(request)
            return
        expected = reader.read(
            name, s, log.blocks, request.from_seq, request.limit, request.max_batch_bytes,
            frozenset(request.nodes if topic.config.dedupe_node else ()), request.end_seq,
            scan=True, match=request.filter, stores=log.stores(s),
        )  # fmt: skip
        reply, epoch = self.following.replica.bulk(request)
        assert told(reply) == told(expected)
        assert epoch == topic.number
        if reply.next_from_seq < (request.end_seq or 0):
            request.from_seq, request.epoch = reply.next_from_seq, epoch
            self.begun = name, request


@pytest.mark.timeout(180)
def test_the_replica_is_the_engine(small_steps: None) -> None:
    run_machine(ReplicaMachine, 200, 60, derandomize=True)
