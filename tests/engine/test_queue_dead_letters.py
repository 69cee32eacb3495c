"""Dead letters and their way back: atomic moves, provenance in meta, and a dead letter topic that has no room."""

import json
from collections.abc import Callable

import pytest
from engine_support import CrashStore, FaultyStore, code, records
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_support import LEASE, QueueWorld

from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import TagMatch
from topics_service.engine.queue import deadletters, mover, moves
from topics_service.engine.queue.jobs import RedriveRequest, SettleRequest
from topics_service.storage.store import Family


@pytest.fixture
def world() -> QueueWorld:
    world = QueueWorld()
    world.queue(max_deliveries=2, dead_letter="dlq")
    return world


def burn(world: QueueWorld, *seqs: int, times: int = 2, topic: str = "q") -> None:
    """Deliver exactly these jobs so often and give them back."""
    for _ in range(times):
        assert world.take(max_jobs=len(seqs), topic=topic) == list(seqs)
        world.settle("nack", seqs, topic=topic)


# ----------------------------------------------------------------------- the move


def test_the_nack_of_the_last_delivery_moves_the_job(world: QueueWorld) -> None:
    world.work(b"data", tags=[b"t"], nodes=[b"n"], metas=[b'{"a": 1}'])
    world.work(b"next")
    burn(world, 1, times=1)
    assert (world.take(), world.counters()) == ([1], (1, 1, 0))
    reply = world.nack(1)
    assert (reply.done, reply.ready, reply.in_flight) == (1, 1, 0)
    assert (reply.dead_lettered, reply.exhausted) == ([1], [])
    world.engine.sync()
    assert world.counters() == (1, 0, 1)
    assert (world.seqs("q"), world.state("q").head_seq) == ([2], 2)
    [part] = world.diff(topic="dlq").slices
    block = part.block
    assert (block.record_data(0), block.tags, block.nodes) == (b"data", [b"t"], [b"n"])
    assert block.metas == [b'{"a": 1,"$dead_letter_from":"q","$dead_letter_deliveries":"2","$dead_letter_src_seq":"1"}']
    assert block.first_ts == world.clock.now


def test_the_call_that_moves_dead_letters_is_answered_when_readers_see_them(world: QueueWorld) -> None:
    world.work(1, 1)
    burn(world, 1, times=1)
    world.take()
    _, ticket = world.engine.queues.settlement.nack(SettleRequest(topic="q", node="w", seqs=[1]))
    assert world.engine.writer.synced < ticket
    world.engine.synced(ticket)
    assert world.state("dlq").count == 1
    world.put("dlq", durability="fsync")
    world.take()
    world.nack(2)
    world.take()
    world.clock.advance(LEASE + 1)
    reply, ticket = world.try_claim()
    assert (reply.jobs, world.engine.writer.synced < ticket) == ([], True)
    world.engine.synced(ticket)
    assert world.state("dlq").count == 2


def test_a_delay_does_not_hold_up_a_job_that_nobody_gets_any_more(world: QueueWorld) -> None:
    world.work()
    burn(world, 1, times=1)
    world.take()
    assert world.nack(1, delay_ms=60_000).dead_lettered == [1]
    assert world.counters() == (0, 0, 1)


@pytest.mark.parametrize("by", ["claim", "maintenance"])
def test_a_lease_that_ends_counts_like_a_nack(world: QueueWorld, by: str) -> None:
    world.work()
    for _ in range(2):
        world.claim()
        world.clock.advance(LEASE + 1)
    assert (world.counters(), world.exhausted()) == ((0, 0, 0), [1]), "at no moment is it ready"
    if by == "claim":
        assert world.take() == []
    else:
        world.maintain()
    assert (world.counters(), world.exhausted()) == ((0, 0, 1), [])


def test_a_timer_moves_what_nobody_asks_for(world: QueueWorld) -> None:
    world.put("dlq")
    world.work(1, 1)
    burn(world, 1, 2, times=1)
    world.claim(max_jobs=2)
    world.extend(2, lease_ms=3000)
    for ms, moved in ((LEASE, []), (1, [1]), (1999, [1]), (1, [1, 2])):
        world.clock.advance(ms)
        world.maintain()
        world.engine.sync()
        assert [int(json.loads(meta or b"")["$dead_letter_src_seq"]) for meta in world.metas("dlq")] == moved
    assert world.counters() == (0, 0, 2)


def test_the_timer_takes_one_queue_at_a_time_and_forgets_those_that_are_gone(world: QueueWorld) -> None:
    for name in "abc":
        world.queue(name, max_deliveries=1, dead_letter="dlq")
        world.work(topic=name)
        world.claim(topic=name)
    world.engine.delete_topic("b")
    world.clock.advance(LEASE + 1)
    assert [world.engine.queues.mover.bury_due() for _ in range(3)] == [True, False, False]
    assert [world.counters(name) for name in "ac"] == [(0, 0, 1), (0, 0, 1)]


def test_a_restart_leaves_the_move_to_the_timer() -> None:
    world = QueueWorld()
    world.queue(max_deliveries=1, dead_letter="dlq", leases_durable=True)
    world.work(1, 1)
    world.claim(max_jobs=2)
    world.clock.advance(LEASE + 1)
    world.kill()
    world.maintain()
    world.engine.sync()
    assert (world.seqs("dlq"), world.counters()) == ([1, 2], (0, 0, 2))


def test_a_worker_that_is_cut_off_has_its_last_deliveries_moved(world: QueueWorld) -> None:
    world.work(1, 1)
    burn(world, 1, times=1)
    jobs = world.claim(max_jobs=2)
    assert world.engine.queues.settlement.release("q", {job.seq: job.lease_id for job in jobs}) == 2
    assert (world.counters(), world.listed("ready")) == ((1, 0, 1), [2])


def test_a_nack_ends_everything_in_one_write() -> None:
    world = QueueWorld()
    world.queue(max_deliveries=2, dead_letter="dlq", leases_durable=True)
    world.put("dlq")
    world.work(1, 1, 1)
    burn(world, 1, times=1)
    world.claim(max_jobs=3)
    before = world.engine.writer.written
    reply = world.nack(2, 1, 3, delay_ms=50)
    assert (reply.done, reply.dead_lettered, reply.exhausted) == (3, [1], [])
    assert world.engine.writer.written == before + 1
    assert world.listed("delayed") == [2, 3]
    world.kill()
    assert (world.counters(), world.listed("delayed")) == ((0, 0, 1), [2, 3])
    world.clock.advance(50)
    assert [job.deliveries for job in world.claim(max_jobs=9)] == [2, 2]


def test_a_release_does_not_bring_a_job_nearer_to_the_dead_letters(world: QueueWorld) -> None:
    world.work()
    for _ in range(9):
        world.claim()
        world.nack(1, mode="release")
    burn(world, 1)
    assert world.take() == []


@pytest.mark.parametrize("config", [{"max_deliveries": 2}, {"dead_letter": "dlq"}])
def test_without_both_settings_jobs_are_delivered_for_ever(config: dict[str, object]) -> None:
    world = QueueWorld()
    world.queue(**config)
    world.work()
    burn(world, 1, times=6)
    assert world.counters() == (1, 0, 0)


def test_many_move_in_one_write(world: QueueWorld) -> None:
    world.work(*range(1, 51))
    burn(world, *range(1, 51), times=1)
    world.put("dlq")
    world.take(max_jobs=50)
    before = world.engine.writer.written
    world.clock.advance(LEASE + 1)
    assert world.take() == []
    assert world.engine.writer.written == before + 1
    world.engine.sync()
    assert [len(data) for _, data in records(world.diff(topic="dlq"))] == list(range(1, 51))


def test_a_move_is_bounded_and_the_next_claim_goes_on(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "MOVE_JOBS", 4)
    monkeypatch.setattr(moves, "MOVE_BYTES", 300)
    world.work(*[100] * 12)
    burn(world, *range(1, 7))
    assert (world.exhausted(), world.counters()) == ([2, 3, 4, 5, 6], (6, 0, 1)), "two of them are more than 300 bytes"
    monkeypatch.setattr(moves, "MOVE_BYTES", 10_000)
    assert world.take() == [7]
    assert (world.exhausted(), world.counters()) == ([6], (5, 1, 5))
    world.maintain()
    assert (world.exhausted(), world.counters()) == ([], (5, 1, 6))


def test_a_dead_letter_queue_is_a_queue(world: QueueWorld) -> None:
    world.queue("dlq")
    world.work()
    burn(world, 1)
    world.bury()
    [job] = world.claim(topic="dlq")
    assert (job.seq, job.deliveries) == (1, 1)


def test_the_counter_survives_a_restart_and_not_a_new_topic(world: QueueWorld) -> None:
    world.work(1, 1)
    burn(world, 1, 2)
    world.take()
    world.restart()
    assert world.counters() == (0, 0, 2)
    world.engine.delete_topic("q")
    world.queue(max_deliveries=1, dead_letter="dlq")
    assert world.counters() == (0, 0, 0)


@pytest.mark.parametrize("classes", [("disk", "disk"), ("fsync", "disk"), ("disk", "fsync"), ("fsync", "fsync")])
def test_a_power_cut_leaves_the_job_in_one_of_both(classes: tuple[str, str]) -> None:
    for lost in range(4):
        world = QueueWorld(store := CrashStore())
        world.queue(durability=classes[0], max_deliveries=1, dead_letter="dlq")
        world.put("dlq", durability=classes[1])
        world.append(1, topic="dlq")
        world.work()
        burn(world, 1, times=1)
        world.take()
        world.cut_power(max(store.synced, store.writes - lost))
        world.engine.sync()
        assert len(world.seqs("q")) + len(world.seqs("dlq")) == 2
        assert world.counters()[2] == len(world.seqs("dlq")) - 1


def test_a_claim_waits_for_the_fsync_of_letters_in_an_fsync_topic(world: QueueWorld) -> None:
    world.put("dlq", durability="fsync")
    world.work()
    burn(world, 1, times=1)
    world.take()
    world.clock.advance(LEASE + 1)
    asked: list[int] = []
    world.engine.writer.request_sync = asked.append
    assert world.try_claim()[1] == world.engine.writer.written
    assert asked == [world.engine.writer.written], "a push stream without a job does not wait, so it is asked for"
    world.engine.synced(asked[0])
    assert world.seqs("dlq") == [1]


def test_ephemeral_letters_are_as_lasting_as_their_topic() -> None:
    world = QueueWorld()
    world.queue(max_deliveries=1, dead_letter="dlq")
    world.put("dlq", durability="ephemeral")
    world.work()
    burn(world, 1, times=1)
    world.bury()
    assert world.seqs("dlq") == [1]
    world.restart()
    assert (world.seqs("dlq"), world.counters()) == ([], (0, 0, 1))


# -------------------------------------------------------------- when it can't move


def test_a_full_letter_topic_keeps_the_job_and_is_asked_again(world: QueueWorld) -> None:
    world.put("dlq", cap_records=1, discard="reject")
    world.append(1, topic="dlq")
    world.work(1, 1, 1)
    burn(world, 1, 2, times=1)
    world.take(max_jobs=2)
    reply = world.nack(2, 1)
    assert (reply.done, reply.dead_lettered, reply.exhausted) == (2, [], [2, 1])
    assert world.take(max_jobs=5) == [3]
    assert (world.counters(), world.exhausted()) == ((0, 1, 0), [1, 2]), "neither ready nor lost"
    assert world.engine.queues.last_error("q") == 'topic "dlq" is full'
    world.ack(3)
    looks: list[Callable[[], object]] = [world.take, world.maintain]
    for turn, wait in enumerate([1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]):
        failures = world.engine.queues.mover.failures
        world.clock.advance(wait - 1)
        world.take()
        world.maintain()
        assert world.engine.queues.mover.failures == failures, "not before its time"
        world.clock.advance(1)
        looks[turn % 2]()
        assert world.engine.queues.mover.failures == failures + 1
        assert (world.counters(), world.exhausted()) == ((0, 0, 0), [1, 2])
    world.delete(2, topic="dlq")
    world.clock.advance(60_000)
    assert world.take() == []
    assert (world.counters(), world.engine.queues.last_error("q")) == ((0, 0, 1), None), "one had room"
    world.delete(9, topic="dlq")
    world.take()
    assert (world.counters(), world.exhausted()) == ((0, 0, 2), [])
    world.work()
    burn(world, 4)
    world.delete(9, topic="dlq")
    world.clock.advance(1000)
    world.maintain()
    assert world.counters() == (0, 0, 3), "after a success it begins anew"


def test_nothing_is_tried_for_a_nack_while_the_letter_topic_refuses(world: QueueWorld) -> None:
    world.put("dlq", cap_records=1, discard="reject")
    world.append(1, topic="dlq")
    world.work(1, 1)
    burn(world, 1)
    world.put("dlq")
    burn(world, 2)
    assert (world.engine.queues.mover.failures, world.exhausted()) == (1, [1, 2])
    world.clock.advance(1000)
    world.maintain()
    assert world.counters() == (0, 0, 2)


def test_what_has_room_goes(world: QueueWorld) -> None:
    world.put("dlq", cap_records=5, discard="reject")
    world.append(1, topic="dlq")
    world.work(*[1] * 8)
    burn(world, *range(1, 9))
    assert (world.counters(), world.exhausted()) == ((0, 0, 4), [5, 6, 7, 8]), "eight, then four"


def test_a_letter_that_never_fits_lets_others_pass(world: QueueWorld) -> None:
    world.put("dlq", cap_bytes=400, discard="reject")
    world.work(500, 1)
    burn(world, 1, 2)
    assert world.exhausted() == [1, 2]
    world.clock.advance(1000)
    world.take()
    assert (world.counters()[2], world.seqs("q"), world.exhausted()) == (1, [1], [1])
    world.put("dlq")
    world.clock.advance(60_000)
    world.take()
    assert world.counters() == (0, 0, 2)


def test_a_letter_that_can_not_be_read_lets_others_pass() -> None:
    world = QueueWorld(cache_bytes=1)
    world.queue(max_deliveries=1, dead_letter="dlq")
    for _ in range(3):
        world.work()
    world.take(max_jobs=3)
    key, row = world.rows(Family.BLOCKS)[0]
    batch = world.store.batch()
    batch.put(Family.BLOCKS, key, row[:-1] + b"?")
    world.store.write(batch)
    world.append(1, topic="other")  # drops what was cached
    assert world.nack(1, 2, 3).exhausted == [1, 2, 3]
    assert (world.counters(), world.engine.queues.mover.failures) == ((0, 0, 0), 1)
    world.clock.advance(1000)
    world.bury()
    assert (world.counters(), world.engine.queues.counters("q").exhausted) == ((0, 0, 2), 1)


def test_no_letter_topic_and_none_is_made(world: QueueWorld) -> None:
    world.queue(max_deliveries=1, dead_letter="dlq", auto_create=False)
    world.work()
    burn(world, 1, times=1)
    assert (world.take(), world.counters()) == ([], (0, 0, 0))
    assert not world.engine.has_topic("dlq")
    world.put("dlq")
    world.clock.advance(1000)
    world.take()
    assert world.counters() == (0, 0, 1)


def test_no_room_for_another_topic() -> None:
    world = QueueWorld(limits=Limits(max_topics=1))
    world.queue(max_deliveries=1, dead_letter="dlq")
    world.work()
    burn(world, 1, times=1)
    assert world.take() == []
    assert world.engine.queues.mover.failures == 1


@pytest.mark.parametrize(("quota", "moved"), [(141, 0), (142, 1)])
def test_the_total_quota_counts_what_a_move_adds(quota: int, moved: int) -> None:
    world = QueueWorld(limits=Limits(max_total_bytes=quota))
    world.queue(max_deliveries=1, dead_letter="dlq")
    world.work(60)
    burn(world, 1, times=1)
    assert (world.take(), world.counters()) == ([], (0, 0, moved)), "with 82 bytes of provenance it may be too large"
    world.engine.sync()
    if moved:
        assert (world.redrive().redriven, world.engine.writer.total_bytes) == (1, 60)


def test_a_stalled_store_is_no_reason_to_lose_a_letter(world: QueueWorld) -> None:
    world.put("dlq")
    world.work(1, 1, 1)
    burn(world, 1, 2, times=1)
    world.take(max_jobs=2)
    assert isinstance(world.store, FaultyStore)
    world.store.stalled = True
    assert world.nack(1, 2).exhausted == [1, 2], "a nack needs to write nothing"
    assert world.take() == [3], "nor does a claim"
    world.store.stalled = False
    world.extend(3, lease_ms=9000)
    world.clock.advance(1000)
    world.bury()
    assert world.counters() == (0, 1, 2)


def test_a_nack_that_has_to_be_durable_is_refused_by_a_stalled_store_and_changes_nothing() -> None:
    world = QueueWorld()
    world.queue(max_deliveries=1, dead_letter="dlq", leases_durable=True)
    world.put("dlq")
    world.work()
    world.take()
    assert isinstance(world.store, FaultyStore)
    world.store.stalled = True
    with pytest.raises(TopicsError) as error:
        world.nack(1)
    assert (code(error), world.counters(), world.engine.queues.mover.failures) == ("throttled", (0, 1, 0), 0)
    world.store.stalled = False
    assert world.nack(1).dead_lettered == [1]


def test_a_clock_set_back_does_not_prolong_the_wait(world: QueueWorld) -> None:
    world.put("dlq", cap_records=1, discard="reject")
    world.append(1, topic="dlq")
    world.work()
    burn(world, 1)
    world.put("dlq")
    world.clock.advance(-10_000_000)
    assert (world.counters(), world.exhausted()) == ((0, 0, 0), [1])
    world.maintain()
    assert world.counters() == (0, 0, 1)


def test_the_letter_topic_goes_away_meanwhile(world: QueueWorld) -> None:
    world.work()
    burn(world, 1)
    world.bury()
    world.engine.delete_topic("dlq")
    world.work()
    burn(world, 2)
    world.bury()
    assert (world.counters(), world.seqs("dlq")) == ((0, 0, 2), [1]), "made anew"


# --------------------------------------------------------------- config in mid-life


def test_a_lower_limit_counts_for_jobs_given_back_before(world: QueueWorld) -> None:
    world.queue(max_deliveries=9, dead_letter="dlq")
    world.work(1, 1)
    burn(world, 1, 2, times=3)
    world.queue(max_deliveries=3, dead_letter="dlq")
    assert (world.counters(), world.exhausted()) == ((0, 0, 0), [1, 2])
    world.maintain()
    world.engine.sync()
    assert world.counters() == (0, 0, 2)
    assert json.loads(world.metas("dlq")[0] or b"")["$dead_letter_deliveries"] == "3"


@pytest.mark.parametrize("config", [{"max_deliveries": 9, "dead_letter": "dlq"}, {"max_deliveries": 2}, {}])
def test_a_higher_limit_sets_stuck_jobs_free(world: QueueWorld, config: dict[str, object]) -> None:
    world.put("dlq", cap_records=1, discard="reject")
    world.append(1, topic="dlq")
    world.work()
    burn(world, 1)
    assert world.take() == []
    world.queue(**config)
    [job] = world.claim()
    assert job.deliveries == 3


def test_a_lower_limit_takes_hold_of_jobs_once_they_have_rested(world: QueueWorld) -> None:
    world.queue(max_deliveries=9, dead_letter="dlq")
    world.work()
    world.take()
    world.nack(1, delay_ms=60_000)
    world.queue(max_deliveries=1, dead_letter="dlq")
    world.clock.advance(59_999)
    world.maintain()
    assert (world.counters(), world.listed("delayed")) == ((0, 0, 0), [1])
    world.clock.advance(1)
    assert (world.counters(), world.exhausted()) == ((0, 0, 0), [1])
    world.maintain()
    assert world.counters() == (0, 0, 1)


def test_a_job_set_free_and_given_back_rests_as_long_as_it_should(world: QueueWorld) -> None:
    world.put("dlq", cap_bytes=400, discard="reject")
    world.work(500)
    burn(world, 1)
    assert world.exhausted() == [1]
    world.queue(max_deliveries=9, dead_letter="dlq")
    world.take()
    world.nack(1, delay_ms=3_600_000)
    world.clock.advance(60_000)
    assert world.listed("delayed") == [1], "and not as long as it was set aside for"


def test_letters_go_where_the_config_points_now(world: QueueWorld) -> None:
    world.work()
    burn(world, 1, times=1)
    world.take()
    world.clock.advance(LEASE + 1)
    world.queue(max_deliveries=2, dead_letter="elsewhere")
    world.take()
    world.engine.sync()
    assert (world.engine.has_topic("dlq"), world.seqs("elsewhere")) == (False, [1])


# ------------------------------------------------------------------------- redrive


def test_letters_come_back_as_fresh_jobs(world: QueueWorld) -> None:
    world.work(b"one", b"two", tags=[b"a", b"b"], nodes=[None, b"n"], metas=[None, b'{ "k" : [1] }'])
    burn(world, 1, 2)
    world.bury()
    world.append(b"not ours", topic="dlq")
    reply = world.redrive()
    assert (reply.topic, reply.dead_letter, reply.redriven, reply.resume) == ("q", "dlq", 2, 0)
    assert (world.counters(), world.seqs("dlq")) == ((2, 0, 2), [3])
    jobs = world.claim(max_jobs=5)
    assert [(job.seq, job.deliveries) for job in jobs] == [(3, 1), (4, 1)]
    block = jobs[0].block
    assert [block.record_data(i) for i in (0, 1)] == [b"one", b"two"]
    assert (block.tags, block.nodes, block.metas) == ([b"a", b"b"], [None, b"n"], [None, b'{ "k" : [1] }'])
    assert world.redrive().redriven == 0


def test_a_redrive_by_tag_and_number(world: QueueWorld) -> None:
    world.work(*[1] * 6, tags=[b"a", b"ab", b"b", b"a", None, b"a"])
    burn(world, *range(1, 7))
    world.bury()
    assert world.redrive(TagMatch("Eq", b"a"), max_jobs=2).redriven == 2
    assert world.seqs("dlq") == [2, 3, 5, 6]
    assert world.redrive(TagMatch("Glob", b"a")).redriven == 2
    assert world.seqs("dlq") == [3, 5]


def test_letters_of_another_queue_stay(world: QueueWorld) -> None:
    world.queue("p", max_deliveries=1, dead_letter="dlq")
    world.work(topic="p")
    world.work()
    burn(world, 1, times=1, topic="p")
    world.bury("p")
    burn(world, 1)
    world.bury()
    assert (world.redrive().redriven, world.seqs("dlq")) == (1, [1])
    assert world.redrive(topic="p").redriven == 1


def test_letters_that_somebody_works_on_stay(world: QueueWorld) -> None:
    world.queue("dlq")
    world.work(1, 1)
    burn(world, 1, 2)
    world.bury()
    world.claim(topic="dlq")
    assert (world.redrive().redriven, world.seqs("dlq")) == (1, [1])
    world.ack(1, topic="dlq")
    assert world.counters("dlq") == (0, 0, 0)


def test_a_letter_that_was_held_comes_with_the_next_redrive(world: QueueWorld) -> None:
    world.queue("dlq")
    world.work(1, 1, 1)
    burn(world, 1, 2, 3)
    world.bury()
    world.claim(topic="dlq")
    assert (world.redrive(max_jobs=1).redriven, world.seqs("dlq")) == (1, [1, 3])
    world.settle("nack", [1], topic="dlq")
    assert (world.redrive().redriven, world.seqs("dlq")) == (2, [])


def test_a_redrive_is_done_in_bounded_slices(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "MOVE_JOBS", 3)
    monkeypatch.setattr(mover, "_REDRIVE_LOOKS", 4)
    world.append(*[1] * 10, topic="dlq")
    world.work(*[1] * 7)
    burn(world, *range(1, 8))
    for _ in range(3):
        world.bury()
    found = []
    start = 1
    while start:
        reply = world.redrive(start=start)
        found.append(reply.redriven)
        start = reply.resume
    assert (sum(found), max(found)) == (7, 3)
    assert found[:2] == [0, 0], "what is not ours is looked at in slices too, and not again"
    assert world.seqs("dlq") == list(range(1, 11))


def test_a_redrive_of_a_full_queue(world: QueueWorld) -> None:
    world.work(*[1] * 4)
    burn(world, *range(1, 5))
    world.bury()
    world.queue(max_deliveries=2, dead_letter="dlq", cap_records=3, discard="reject")
    reply = world.redrive()
    assert (reply.redriven, reply.resume) == (2, 3), "the half that fits"
    world.redrive()
    with pytest.raises(TopicsError) as error:
        world.redrive()
    assert code(error) == "topic_full"
    assert (len(world.seqs("q")), len(world.seqs("dlq"))) == (3, 1)


def test_redrive_needs_a_letter_topic() -> None:
    world = QueueWorld()
    world.queue()
    world.put("log")
    for topic, expected in (("q", "invalid_request"), ("log", "not_a_queue"), ("absent", "topic_not_found")):
        with pytest.raises(TopicsError) as error:
            world.engine.queues.mover.redrive(RedriveRequest(topic=topic))
        assert code(error) == expected
    world.queue(dead_letter="dlq")
    assert world.redrive().redriven == 0
    assert not world.engine.has_topic("dlq")


def test_a_power_cut_leaves_a_letter_in_one_of_both() -> None:
    for lost in range(3):
        world = QueueWorld(store := CrashStore())
        world.queue(max_deliveries=1, dead_letter="dlq")
        world.work()
        burn(world, 1, times=1)
        world.take()
        world.engine.sync()
        world.engine.queues.mover.redrive(RedriveRequest(topic="q"))
        world.cut_power(max(store.synced, store.writes - lost))
        assert len(world.seqs("q")) + len(world.seqs("dlq")) == 1


# ---------------------------------------------------------------------------- meta


@pytest.mark.parametrize(
    ("meta", "stamped"),
    [
        (None, '{"$dead_letter_from":"q",X}'),
        ("{}", '{"$dead_letter_from":"q",X}'),
        ("{ \n}", '{"$dead_letter_from":"q",X}'),
        ('{"a": {"b":[]} }', '{"a": {"b":[]} ,"$dead_letter_from":"q",X}'),
        ('{"a":1,"$dead_letter_from":"old", "b":2}', '{"a":1, "b":2,"$dead_letter_from":"q",X}'),
        ('{"\\u0024dead_letter_from":"old"}', '{"$dead_letter_from":"q",X}'),
        ('{"$dead_letter_note":1}', '{"$dead_letter_note":1,"$dead_letter_from":"q",X}'),
    ],
)
def test_stamps(meta: str | None, stamped: str) -> None:
    rest = '"$dead_letter_deliveries":"5","$dead_letter_src_seq":"9"'
    found = deadletters.stamp(None if meta is None else meta.encode(), "q", 5, 9)
    assert found.decode() == stamped.replace("X", rest)
    assert deadletters.origin(found) == "q"


texts = st.text(st.sampled_from('a"\\{}[],: é$\n'), max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
spaces = st.sampled_from(("", " ", "\n\t"))


@st.composite
def objects(draw: st.DrawFn, keys: st.SearchStrategy[str]) -> str:
    """JSON objects with white space and escapes in odd places, keys unique."""
    members = draw(st.dictionaries(keys, values, max_size=5))
    ascii_ = draw(st.booleans())
    text = ",".join(
        draw(spaces) + json.dumps(key, ensure_ascii=ascii_) + draw(spaces) + ":" + draw(spaces)
        + json.dumps(value, ensure_ascii=ascii_, indent=draw(st.sampled_from((None, 1)))) + draw(spaces)
        for key, value in members.items()
    )  # fmt: skip
    return "{" + (text or draw(spaces)) + "}"


@given(meta=objects(texts))
@settings(deadline=None, derandomize=True, max_examples=500)
def test_a_stamp_comes_off_again(meta: str) -> None:
    stamped = deadletters.stamp(meta.encode(), "q", 3, 7)
    expected = json.loads(meta)
    ours = {"$dead_letter_from": "q", "$dead_letter_deliveries": "3", "$dead_letter_src_seq": "7"}
    assert list(json.loads(stamped).items()) == list({**expected, **ours}.items())
    assert deadletters.strip(stamped) == (meta.encode() if expected else None), "byte for byte"
    again = deadletters.stamp(stamped, "p", 3, 8)
    assert json.loads(again) == {**expected, **ours, "$dead_letter_from": "p", "$dead_letter_src_seq": "8"}


OURS = ("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq")


@given(meta=objects(texts | st.sampled_from(OURS)))
@settings(deadline=None, derandomize=True, max_examples=500)
def test_stripping_takes_ours_and_only_ours(meta: str) -> None:
    kept = {key: value for key, value in json.loads(meta).items() if key not in OURS}
    found = deadletters.strip(meta.encode())
    assert (found is None) == (not kept)
    assert found is None or list(json.loads(found).items()) == list(kept.items())
    origin = json.loads(meta).get("$dead_letter_from")
    assert deadletters.origin(meta.encode()) == (origin if isinstance(origin, str) else None)


@pytest.mark.parametrize("meta", [b"", b"{", b'{"dead_letter_', b"[dead_letter_]", b'{"dead_letter_":', b"\\"])
def test_what_is_no_object_is_left_alone(meta: bytes) -> None:
    assert deadletters.strip(meta) in (meta, None)
    assert deadletters.origin(meta) is None
