"""Leases over restarts: kept exactly with `leases_durable`, gone without, and never matched by an old token."""

import os
from collections.abc import Callable

import pytest
from engine_support import CrashStore
from queue_support import LEASE, QueueWorld

from topics_service.engine.queue import leases
from topics_service.engine.queue.jobs import ClaimRequest, SettleRequest
from topics_service.storage.store import Family

RESTARTS: list[Callable[[QueueWorld], None]] = [QueueWorld.restart, QueueWorld.kill]


@pytest.mark.parametrize("restart", RESTARTS)
def test_without_durable_leases_every_job_is_ready_again(restart: Callable[[QueueWorld], None]) -> None:
    world = QueueWorld()
    world.queue()
    world.work(*[1] * 5)
    jobs = world.claim(max_jobs=4)
    world.ack(1)
    world.nack(2, delay_ms=10_000)
    restart(world)
    assert world.counters() == (4, 0, 0)
    assert world.ack(3, 4, tokens=[job.lease_id for job in jobs[2:]]).skipped == [3, 4]
    assert [(job.seq, job.deliveries) for job in world.claim(max_jobs=9)] == [(2, 1), (3, 1), (4, 1), (5, 1)]


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
@pytest.mark.parametrize("restart", RESTARTS)
def test_durable_leases_are_restored_exactly(restart: Callable[[QueueWorld], None], durability: str) -> None:
    world = QueueWorld()
    world.queue(leases_durable=True, durability=durability)
    world.work(*[1] * 8)
    jobs = {job.seq: job for job in world.claim("é", max_jobs=7)}
    world.ack(1, node="é")
    world.nack(2, node="é")
    world.nack(3, node="é", delay_ms=500)
    world.nack(4, node="é", mode="release")
    world.extend(5, node="é", lease_ms=9000)
    world.clock.advance(100)
    restart(world)
    assert world.counters() == (3, 3, 0)
    assert world.listed("in_flight") == [5, 6, 7]
    held = world.jobs("in_flight")
    assert [(view.node, view.deliveries) for view in held] == [("é", 1)] * 3
    assert held[0].deadline == world.clock.now + 8900
    assert world.extend(5, node="é", tokens=[jobs[5].lease_id], lease_ms=9000).done == 1
    assert [(job.seq, job.deliveries) for job in world.claim(max_jobs=9)] == [(2, 2), (4, 1), (8, 1)]
    world.clock.advance(LEASE + 1)
    assert world.counters() == (6, 1, 0), "all but the extended one expired, and a delay is over"
    assert world.ack(6, node="é", tokens=[jobs[6].lease_id]).skipped == [6]
    world.ack(5, node="é")
    restart(world)
    assert sorted(world.take(max_jobs=9)) == [2, 3, 4, 6, 7, 8]


def test_leases_that_expired_while_the_server_was_down() -> None:
    world = QueueWorld()
    world.queue(leases_durable=True, max_deliveries=1, dead_letter="dlq")
    world.work(1, 1)
    world.claim(lease_ms=500)
    world.claim(lease_ms=501)
    world.clock.advance(501)
    world.kill()
    assert (world.counters(), world.exhausted()) == ((0, 1, 0), [1])
    world.bury()
    assert world.counters() == (0, 1, 1)
    world.kill()
    assert world.counters() == (0, 1, 1)


def test_a_token_from_before_never_matches_a_new_lease() -> None:
    for durable in (False, True):
        world = QueueWorld()
        world.queue(leases_durable=durable)
        world.work()
        [old] = world.claim()
        world.kill()
        world.clock.advance(LEASE + 1)
        [new] = world.claim()
        assert (new.lease_id != old.lease_id, world.ack(1, tokens=[old.lease_id]).skipped) == (True, [1])
        assert world.ack(1, tokens=[new.lease_id]).done == 1


def test_random_lease_ids_of_a_real_engine_are_all_different() -> None:
    world = QueueWorld(random=os.urandom)
    world.queue()
    world.work(*[1] * 1000)
    assert len({job.lease_id for job in world.claim(max_jobs=1000)}) == 1000


@pytest.mark.parametrize(("durability", "durable", "waits"), [("fsync", True, True), ("fsync", False, False)])
def test_only_fsync_queues_with_durable_leases_wait(durability: str, durable: bool, waits: bool) -> None:
    world = QueueWorld()
    world.queue(durability=durability, leases_durable=durable)
    world.work(1, 1)
    queues = world.engine.queues
    _, ticket = queues.claim([ClaimRequest(topic="q", node="w", max=2)])
    assert (ticket > world.engine.writer.synced) == waits
    for call in (queues.settlement.extend, queues.settlement.nack):
        _, ticket = call(SettleRequest(topic="q", node="w", seqs=[1], lease_ms=500))
        assert (ticket > world.engine.writer.synced) == waits


def test_claims_without_durable_leases_write_nothing() -> None:
    world = QueueWorld()
    world.queue()
    world.work(1, 1)
    before = world.engine.writer.written
    world.claim(max_jobs=2)
    world.nack(1)
    world.extend(2)
    assert world.engine.writer.written == before


def test_one_write_for_a_cohort() -> None:
    world = QueueWorld()
    world.queue(leases_durable=True)
    world.work(*[1] * 9)
    before = world.engine.writer.written
    world.cohort(*(ClaimRequest(topic="q", node="w", max=3) for _ in range(3)))
    assert world.engine.writer.written == before + 1
    world.claim()
    assert world.engine.writer.written == before + 1, "nothing was claimed"


def test_rows_go_with_their_jobs() -> None:
    world = QueueWorld()
    world.queue(leases_durable=True, max_deliveries=1, dead_letter="dlq")
    world.work(*[1] * 6)
    world.claim(max_jobs=5)
    world.ack(1)
    world.delete(4, topic="q")
    world.nack(4)
    assert world.take() == [6]
    assert [leases.keys.read_u64(key, 8) for key, _ in world.rows(Family.LEASES)] == [0, 5, 6]
    world.ack(5, 6)
    assert len(world.rows(Family.LEASES)) == 1


def test_rows_of_lost_jobs_go_at_the_next_write_after_a_restart_too() -> None:
    world = QueueWorld()
    world.queue(leases_durable=True)
    world.work(1, 1, 1)
    world.claim(max_jobs=2)
    world.delete(3, topic="q")
    world.kill()
    assert len(world.rows(Family.LEASES)) == 3
    assert world.take() == [3]
    assert [leases.keys.read_u64(key, 8) for key, _ in world.rows(Family.LEASES)] == [0, 3]


def test_leases_can_be_made_durable_in_mid_life() -> None:
    world = QueueWorld()
    world.queue()
    world.work(1, 1, 1, 1)
    world.claim(max_jobs=3)
    world.nack(1)
    world.nack(2, delay_ms=500)
    world.queue(leases_durable=True)
    world.kill()
    assert (world.listed("ready"), world.listed("in_flight"), world.listed("delayed")) == ([1, 4], [3], [2])
    assert [(job.seq, job.deliveries) for job in world.claim(max_jobs=9)] == [(1, 2), (4, 1)]
    world.queue(leases_durable=False)
    assert (world.listed("in_flight"), world.listed("delayed")) == ([1, 3, 4], [2])
    world.kill()
    assert world.counters() == (4, 0, 0)
    assert len(world.rows(Family.LEASES)) == 1


def test_a_clean_restart_of_an_ephemeral_queue_forgets_its_leases() -> None:
    world = QueueWorld()
    world.queue(leases_durable=True, durability="ephemeral")
    world.work(1, 1)
    world.claim()
    world.restart()
    assert world.counters() == (0, 0, 0)
    world.work()
    assert len(world.take(max_jobs=9)) == 1


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_power_cut_never_loses_a_job_to_a_lost_lease(durability: str) -> None:
    """The cursor and the leases below it are in one write: a job is held, given back or still ahead of the cursor."""
    for lost in range(8):
        world = QueueWorld(store := CrashStore())
        world.queue(leases_durable=True, durability=durability)
        world.work(*[1] * 6)
        world.claim(max_jobs=2)
        world.settle("nack", [1])
        world.claim(max_jobs=3)
        world.settle("ack", [2])
        world.cut_power(max(store.synced, store.writes - lost))
        world.engine.sync()
        live = world.seqs("q")
        world.clock.advance(LEASE + 1)
        assert sorted(world.take(max_jobs=9)) == live


def test_rows_that_can_not_be_read_are_jobs_given_back() -> None:
    world = QueueWorld()
    world.queue(leases_durable=True)
    world.work(1, 1)
    world.claim(max_jobs=2)
    batch = world.store.batch()
    for (key, _), row in zip(world.rows(Family.LEASES)[1:], (b"", b"\x01" * 30 + b"\xff"), strict=True):
        batch.put(Family.LEASES, key, row)
    world.store.write(batch)
    world.kill()
    assert world.take(max_jobs=9) == [1, 2]


@pytest.mark.parametrize("row", [b"", b"\x01" * 16, b"\x02" * 17])
def test_a_queue_row_of_another_version_is_refused(row: bytes) -> None:
    with pytest.raises(ValueError, match="queue row"):
        leases.decode_queue(row)
