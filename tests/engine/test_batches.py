"""Batches of Kafka clients in the engine: kept as they came, read by all protocols, evicted, deleted, found by time."""

import pytest
from batch_support import BASE_TS, BatchWorld, make
from engine_support import CrashStore, code, gap, seqs

from topics_service.engine.batches import BatchRequest
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import ConfigInput, DiffReply, Slice, TagMatch
from topics_service.engine.producers import SequenceError
from topics_service.storage import keys, recordbatch
from topics_service.storage.block import Block
from topics_service.storage.kafkablock import KafkaBlock
from topics_service.storage.store import Family


@pytest.fixture
def world() -> BatchWorld:
    world = BatchWorld()
    world.put()
    return world


def rows(page: DiffReply) -> list[tuple[int, bytes | None, bytes, bytes | None, int]]:
    """Seq, tag, data, meta and kind of every record of a page."""

    def row(piece: Slice, i: int) -> tuple[int, bytes | None, bytes, bytes | None, int]:
        block = piece.block
        tag, meta = (None if column is None else column[i] for column in (block.tags, block.metas))
        return block.base_seq + i, tag, block.record_data(i), meta, 0 if block.kinds is None else block.kinds[i]

    return [row(piece, i) for piece in page.slices for i in range(piece.start, piece.stop)]


def test_what_kafka_wrote_is_read_by_other_protocols(world: BatchWorld) -> None:
    reply = world.produce((b"k1", b'{"a":1}'), (None, b"\xffraw"), (b"\xff", None), headers=[("h", b"v")])
    assert (reply.first_seq, reply.count, reply.deduped) == (1, 3, False)
    assert rows(world.diff()) == [
        (1, b"k1", b'{"a":1}', b'{"h":"v"}', 0),
        (2, None, b"\xffraw", b'{"h":"v"}', 1),
        (3, None, b"null", b'{"$key":{"$base64":"/w=="},"h":"v"}', 0),
    ]
    state = world.state()
    assert (state.head_seq, state.count, state.last_write_ts) == (3, 3, world.clock.now)
    assert state.bytes == len(make([(b"k1", b'{"a":1}'), (None, b"\xffraw"), (b"\xff", None)], headers=[("h", b"v")]))


@pytest.mark.parametrize("codec", range(5))
def test_the_batch_is_kept_as_it_came_over_a_restart(world: BatchWorld, codec: int) -> None:
    values = [b'{"n":%d}' % i for i in range(300)]
    world.produce(*values, codec=codec)
    world.restart()
    reply = world.fetch()
    [part] = reply.parts
    assert isinstance(part.block, KafkaBlock)
    assert (part.block.body, part.start, part.stop, part.dead) == (make(values, codec=codec), 0, 300, ())
    assert (reply.next_from_seq, reply.head_seq, reply.is_hole, reply.lost) == (300, 300, False, False)
    assert [data for _, data in world.walk()] == values


def test_protocols_take_turns_in_one_log(world: BatchWorld) -> None:
    world.produce(b"1", b"2")
    world.append(b"3", b"4")
    world.produce(b"5")
    assert world.walk() == [(i, b"%d" % i) for i in range(1, 6)]
    kinds = [type(part.block) for part in world.fetch().parts]
    assert kinds == [KafkaBlock, Block, KafkaBlock]
    assert world.fetched() == [1, 2, 3, 4, 5]
    assert world.fetched(max_bytes=1) == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("small_steps")
def test_sealing_merges_small_batches_and_keeps_every_byte(world: BatchWorld) -> None:
    for i in range(0, 40, 2):
        world.produce((b"k%d" % (i % 4), b"%d" % i), (None, b"%d" % (i + 1)))
        if i == 20:
            world.append(b'"other protocol"', tags=[b"k0"])
    before, bytes_before = world.walk(), world.state().bytes
    world.seal()
    assert len(world.rows(Family.BLOCKS)) == 3, "Kafka, columns, Kafka"
    world.restart()
    assert (world.walk(), world.state().bytes) == (before, bytes_before)
    assert len(world.fetch().parts) == 21, "merged or not, a batch is a batch"
    assert world.fetched() == [seq for seq, _ in before]
    offsets = [
        recordbatch.headers(part.block.body) for part in world.fetch().parts if isinstance(part.block, KafkaBlock)
    ]
    assert {len(found) for found in offsets} == {11, 9}


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_tag_is_found_in_batches(world: BatchWorld, *, sealed: bool, indexed: bool) -> None:
    for i in range(30):
        world.produce((b"k:%d" % (i % 3), b"%d" % i), (None, b"-"))
        world.append(b'"x"', tags=[b"k:1"])
    if sealed:
        world.seal()
    wanted = [seq for seq, tag, *_ in rows(world.diff(limit=1000)) if tag == b"k:1"]
    assert len(wanted) == 40
    for match in (TagMatch("Eq", b"k:1"), TagMatch("Glob", b"k:1")):
        found: list[int] = []
        cursor = 0
        while cursor < 90:
            page = world.diff(cursor, filter=match, limit=7)
            found += seqs(page)
            cursor = page.next_from_seq
        assert found == wanted
    everything = world.diff(filter=TagMatch("Glob", b""), limit=1000)
    assert len(seqs(everything)) == 60
    if indexed:
        while world.engine.index("t"):
            pass
        log_id = world.engine.catalog.topics["t"].log.log_id
        assert list(world.store.scan(Family.TAGS, *keys.unindexed_range(log_id))) == []
    assert seqs(world.diff(filter=TagMatch("Eq", b"k:1"), limit=1000)) == wanted
    assert world.delete(eq=b"k:1").deleted == 40
    assert world.delete(glob=b"k:").deleted == 20
    assert [tag for _, tag, *_ in rows(world.diff(limit=1000))] == [None] * 30
    world.restart()
    assert len(world.fetched()) == world.state().count == 30


@pytest.mark.usefixtures("small_steps")
def test_dead_batches_are_reclaimed_with_their_marks_and_index_rows(world: BatchWorld) -> None:
    for i in range(12):
        world.produce((b"k%d" % i, b"x" * 20_000))
    world.seal()
    assert len([key for key, _ in world.rows(Family.TAGS)]) == 12
    while world.engine.index("t"):
        pass
    for i in range(12):
        world.produce((b"l%d" % i, b"x" * 20_000))
    world.seal()
    world.delete(before=21)
    world.maintain()
    assert len(world.rows(Family.BLOCKS)) == 4
    assert len(world.rows(Family.TAGS)) == 4
    assert world.fetched() == [21, 22, 23, 24]


def test_records_that_are_gone_are_dead_positions_or_passed_over(world: BatchWorld) -> None:
    world.produce(*((b"k%d" % (i % 2), b"%d" % i) for i in range(6)))
    world.produce((b"k1", b"6"), (b"k1", b"7"))
    world.produce((b"k0", b"8"), (b"k1", b"9"))
    world.delete(eq=b"k1")
    reply = world.fetch()
    assert [(part.first_seq, part.dead) for part in reply.parts] == [(1, (1, 3, 5)), (9, (1,))]
    assert (reply.next_from_seq, reply.is_hole) == (10, False), "the batch reaches to the head"
    world.delete(eq=b"k0")
    reply = world.fetch()
    assert (reply.parts, reply.next_from_seq, reply.is_hole, reply.lost) == ([], 10, True, False)
    assert not world.fetch(10).is_hole, "nothing is behind the head"


def test_a_deleted_beginning_is_passed_over_but_an_evicted_one_is_lost(world: BatchWorld) -> None:
    world.produce(b"1", b"2", b"3")
    world.produce(b"4", b"5")
    world.delete(before=3)
    reply = world.fetch()
    assert [(part.start, part.stop, part.dead) for part in reply.parts] == [(0, 3, (0, 1)), (0, 2, ())]
    world.put(cap_records=1)
    assert (world.fetch(3).lost, world.fetch(4).lost, world.fetch(5).lost, world.fetch(6).lost) == (
        True, False, False, True,
    )  # fmt: skip
    assert gap(world.diff()) == (1, 4, "cap")


def test_caps_count_the_bytes_of_the_stored_batches(world: BatchWorld) -> None:
    one = len(make([b"x" * 100] * 10))
    world.put(cap_bytes=2 * one)
    for _ in range(5):
        world.produce(*([b"x" * 100] * 10))
    state = world.state()
    assert (state.count, state.bytes, state.earliest_seq) == (20, 2 * one, 31)
    world.put(cap_bytes=one + one // 2 + 1)
    state = world.state()
    assert state.count == 15
    assert one < state.bytes <= one + one // 2 + 1
    world.restart()
    assert (world.state().count, world.state().bytes) == (state.count, state.bytes)
    world.delete(before=36)
    world.delete(before=51)
    assert (world.state().count, world.state().bytes) == (0, 0)


def test_ttl_goes_by_the_commit_time(world: BatchWorld) -> None:
    world.put(ttl_ms=1000)
    world.produce(b"1", b"2", ts=[5, 10_000_000])
    world.clock.advance(600)
    world.produce(b"3")
    world.clock.advance(600)
    assert world.seqs() == [3]
    assert (world.fetch(1).lost, world.fetched()) == (True, [3])


def test_a_full_topic_refuses_and_nothing_is_changed(world: BatchWorld) -> None:
    world.put(cap_records=3, discard="reject")
    world.produce(b"1", b"2", producer=(7, 0, 0))
    with pytest.raises(TopicsError) as refused:
        world.produce(b"3", b"4", producer=(7, 0, 2))
    assert code(refused) == "topic_full"
    world.delete(before=2)
    assert world.produce(b"3", b"4", producer=(7, 0, 2)).first_seq == 3
    assert world.seqs() == [2, 3, 4]


def test_unknown_topics_and_partitions(world: BatchWorld) -> None:
    for topic, partition, wanted in (("no", 0, "topic_not_found"), ("t", 1, "partition_not_found")):
        with pytest.raises(TopicsError) as refused:
            world.produce(b"1", topic=topic, partition=partition)
        assert code(refused) == wanted
        with pytest.raises(TopicsError) as refused:
            world.fetch(topic=topic, partition=partition)
        assert code(refused) == wanted


# ------------------------------------------------------------------ producers


@pytest.mark.parametrize("durability", ["fsync", "disk", "ephemeral"])
@pytest.mark.parametrize("between", ["nothing", "kill", "restart"])
def test_a_retry_is_appended_once(world: BatchWorld, durability: str, between: str) -> None:
    world.put(durability=durability)
    firsts = [world.produce(b"a", b"b", producer=(7, 0, 2 * i)).first_seq for i in range(6)]
    if between == "nothing":
        world.engine.batches.producers._cache.clear()
    elif durability == "ephemeral":
        return  # the records are gone, and so is what was known of them
    elif between == "kill":
        world.kill()
    else:
        world.restart()
    for i in range(1, 6):
        again = world.produce(b"a", b"b", producer=(7, 0, 2 * i))
        assert (again.deduped, again.first_seq, again.count) == (True, firsts[i], 2)
    with pytest.raises(SequenceError) as refused:
        world.produce(b"a", b"b", producer=(7, 0, 0))
    assert refused.value.kind == "out_of_order", "five batches are known"
    assert world.state().count == 12
    assert world.produce(b"c", producer=(7, 0, 12)).first_seq == 13


def test_numbers_and_epochs_of_a_producer(world: BatchWorld) -> None:
    world.produce(b"a", producer=(7, 1, 100))  # nobody knows it: any number may come first
    for producer, wanted in (
        ((7, 1, 102), "out_of_order"),
        ((7, 1, 99), "out_of_order"),
        ((7, 0, 101), "stale_epoch"),
        ((7, 2, 101), "out_of_order"),
    ):
        with pytest.raises(SequenceError) as refused:
            world.produce(b"b", producer=producer)
        assert refused.value.kind == wanted
    world.produce(b"b", producer=(7, 2, 0))
    with pytest.raises(SequenceError):
        world.produce(b"a", producer=(7, 1, 100))
    world.produce(b"a", producer=(8, 0, 5))
    assert world.state().count == 3
    found = world.engine.batches.producers.for_log(world.engine.catalog.visible("t").log)
    assert [(known.producer_id, known.epoch, known.batches[-1].last) for known in found] == [(7, 2, 0), (8, 0, 5)]


def test_sequence_numbers_go_round(world: BatchWorld) -> None:
    last = (1 << 31) - 1
    world.produce(b"a", b"b", b"c", producer=(7, 0, last - 1))
    assert world.produce(b"a", b"b", b"c", producer=(7, 0, last - 1)).deduped
    assert world.produce(b"d", producer=(7, 0, 1)).first_seq == 4


def test_a_retry_waits_for_the_fsync_of_the_original() -> None:
    world = BatchWorld(CrashStore())
    world.put(durability="fsync")
    body = make([b"a"], producer=(7, 0, 0))
    request = BatchRequest(topic="t", partition=0, header=recordbatch.check(body, max_bytes=1 << 20), body=body)
    _, ticket = world.engine.batches.append(request)
    reply, again = world.engine.batches.append(request)
    assert (reply.deduped, again) == (True, ticket)
    assert ticket
    assert world.fetch().head_seq == 0, "not visible before it is durable"
    world.engine.sync()
    assert world.engine.batches.append(request)[1] == 0


def test_idle_producers_are_forgotten_after_a_day(world: BatchWorld) -> None:
    world.produce(b"a", producer=(7, 0, 0))
    world.clock.advance(86_400_000 - 1)
    world.produce(b"a", producer=(8, 0, 0))
    world.engine.sweep()
    assert len(world.rows(Family.PRODUCERS)) == 2
    world.clock.advance(2)
    world.engine.sweep()
    assert len(world.rows(Family.PRODUCERS)) == 1
    assert world.produce(b"b", producer=(7, 0, 9)).first_seq == 3
    world.engine.delete_topic("t")
    assert world.rows(Family.PRODUCERS) == []


def test_idle_producers_of_ephemeral_topics_are_forgotten_too(world: BatchWorld) -> None:
    world.engine.put_topic("mem", ConfigInput(durability="ephemeral"))
    memory = world.engine._memory
    world.produce(b"a", producer=(7, 0, 0), topic="mem")
    assert len(list(memory.scan(Family.PRODUCERS, b"", b"\xff" * 17))) == 1
    world.clock.advance(86_400_001)
    world.engine.sweep()
    assert list(memory.scan(Family.PRODUCERS, b"", b"\xff" * 17)) == []
    assert world.produce(b"b", producer=(7, 0, 9), topic="mem").first_seq == 2


def test_producer_ids_are_never_given_twice() -> None:
    world = BatchWorld(CrashStore())
    first, ticket = world.engine.batches.producers.new_id()
    assert ticket, "the first one waits for the reservation"
    world.engine.sync()
    second, waits = world.engine.batches.producers.new_id()
    assert (second, waits) == (first + 1, 0)
    world.cut_power()
    assert world.engine.batches.producers.new_id()[0] > second


# ------------------------------------------------------------------- by time


def test_the_first_record_of_a_time(world: BatchWorld) -> None:
    world.clock.now = 1000
    world.produce(b"1", b"2", b"3", ts=[500, 900, 700])
    world.append(b"4")  # at 1000
    world.produce(b"5", b"6", ts=[800, 5000])
    world.clock.now = 2000
    world.append(b"7")

    def at(topic: str, partition: int, ts: int) -> tuple[int, int] | None:
        return world.engine.batches.offset_at(topic, partition, ts)

    wanted = {0: (1, 500), 501: (2, 900), 800: (2, 900), 901: (4, 1000), 1001: (6, 5000), 5000: (6, 5000), 5001: None}
    assert {ts: at("t", 0, ts) for ts in wanted} == wanted
    assert world.engine.batches.newest_time("t", 0) == (6, 5000)
    world.restart()
    assert {ts: at("t", 0, ts) for ts in wanted} == wanted
    world.delete(before=3)
    assert at("t", 0, 501) == (3, 700)
    world.delete(before=7)
    assert (at("t", 0, 1001), world.engine.batches.newest_time("t", 0)) == ((7, 2000), (7, 2000))
    world.delete(before=8)
    assert (at("t", 0, 0), world.engine.batches.newest_time("t", 0)) == (None, None)


def test_times_are_found_in_a_long_log_with_few_looks(world: BatchWorld) -> None:
    for i in range(400):
        world.clock.now = 10_000 + 10 * i
        if i % 3:
            world.produce(b"x", b"y", ts=[world.clock.now - 5, world.clock.now])
        else:
            world.append(b"1", b"2")
    for i in (0, 1, 100, 233, 399):
        ts = 10_000 + 10 * i
        first = 2 * i + 1 if i % 3 == 0 else 2 * i + 2
        assert world.engine.batches.offset_at("t", 0, ts) == (first, ts)


def test_log_append_time(world: BatchWorld) -> None:
    world.engine.put_topic("t", ConfigInput(), kafka_configs={"message.timestamp.type": "LogAppendTime"})
    assert world.produce(b"1", b"2", ts=[1, 2]).ts == world.clock.now
    [part] = world.fetch().parts
    assert isinstance(part.block, KafkaBlock)
    assert list(recordbatch.times(part.block.body)) == [world.clock.now] * 2
    recordbatch.check(part.block.body, max_bytes=1 << 20)
    world.restart()
    assert world.produce(b"3").ts is not None, "it is kept over a restart"
    world.put()
    assert world.produce(b"3").ts is not None, "a PUT of the other protocols leaves what only Kafka knows"
    assert world.engine.batches.offset_at("t", 0, BASE_TS + 1) == (1, world.clock.now)


# --------------------------------------------------------- routers and queues


def test_a_router_forwards_what_kafka_wrote(world: BatchWorld) -> None:
    world.route("t", "copy")
    world.route("t", "some", eq=b"k1")
    world.produce((b"k1", b'"a"'), (b"k2", b"\xff"), headers=[("h", None)])
    world.append(b'"c"', tags=[b"k1"])
    world.forward()
    assert rows(world.diff(topic="copy")) == [
        (1, b"k1", b'"a"', b'{"h":null}', 0), (2, b"k2", b"\xff", b'{"h":null}', 1), (3, b"k1", b'"c"', None, 0),
    ]  # fmt: skip
    assert world.datas("some") == [b'"a"', b'"c"']


def test_jobs_that_kafka_made(world: BatchWorld) -> None:
    world.queue(max_deliveries=1, dead_letter="dead")
    world.produce(b"1", b"2", b"3", topic="q")
    jobs = world.claim(max_jobs=2)
    assert [job.block.record_data(job.position) for job in jobs] == [b"1", b"2"]
    world.settle("ack", [1])
    assert world.fetched("q") == [2, 3]
    world.clock.advance(5000)
    assert world.take(max_jobs=5) == [3]
    world.engine.sync()
    assert world.datas("dead") == [b"2"]


def test_an_ephemeral_log_of_batches_moves_to_disk(world: BatchWorld) -> None:
    world.put(durability="ephemeral")
    world.produce((b"k", b"1"), b"2", producer=(7, 0, 0))
    world.put(durability="disk")
    world.restart()
    assert world.walk() == [(1, b"1"), (2, b"2")]
    assert world.produce((b"k", b"1"), b"2", producer=(7, 0, 0)).deduped


def test_a_damaged_batch_names_its_range_and_nothing_else_suffers(world: BatchWorld) -> None:
    world.produce(b"1")
    world.produce(b"2")
    [(key, value), _] = world.rows(Family.BLOCKS)
    world.engine.close()
    batch = world.store.batch()
    batch.put(Family.BLOCKS, key, value[:-1] + bytes([value[-1] ^ 1]))
    world.store.write(batch)
    world.start()
    with pytest.raises(TopicsError) as damaged:
        world.fetch()
    assert code(damaged) == "internal"
    assert [part.first_seq for part in world.fetch(1).parts] == [2]


def test_a_search_by_time_has_an_end(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.engine.batches._NEWEST_BLOCKS", 5)
    world.clock.now = 10_000
    world.produce(b"ahead", ts=[13_000])
    for i in range(20):
        world.clock.now += 200
        world.append(b"%d" % i)  # seq 2 at 10200 and so on
    assert world.engine.batches.offset_at("t", 0, 12_900) == (1, 13_000)
    world.delete(before=2)
    assert world.engine.batches.offset_at("t", 0, 12_900) == (16, 13_000), "what was appended since"
    assert world.engine.batches.offset_at("t", 0, 13_001) == (17, 13_200)


@pytest.mark.usefixtures("small_steps")
def test_damage_in_one_log_does_not_keep_others_from_upkeep(world: BatchWorld) -> None:
    world.put("u")
    for topic in ("t", "u"):
        for i in range(4):
            world.append(b"%d" % i, topic=topic)
    key, value = world.rows(Family.BLOCKS)[1]
    batch = world.store.batch()
    batch.put(Family.BLOCKS, key, value[:-1] + bytes([value[-1] ^ 1]))
    world.store.write(batch)
    world.engine.blocks.drop_log(1)
    with pytest.raises(TopicsError) as damaged:
        world.engine.maintain()
    assert code(damaged) == "internal"
    assert not world.engine.maintain(), "it is left alone now"
    assert len([key for key, _ in world.rows(Family.BLOCKS) if key[7] == 2]) == 1, "the other one is sealed"
