"""Why a job failed: the attempts that are kept with it, bounded, over restarts, and in its dead letter."""

import json
import struct

import pytest
from engine_support import code
from queue_support import LEASE, QueueWorld

from topics_service.engine.errors import TopicsError
from topics_service.engine.queue import attempts, leases
from topics_service.engine.queue.attempts import REASON_BYTES, Attempt, for_letter, remembered
from topics_service.storage.store import Family

OURS = ["$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"]


@pytest.fixture
def world() -> QueueWorld:
    world = QueueWorld()
    world.queue(max_deliveries=3, dead_letter="dlq")
    return world


def kept(world: QueueWorld, state: str = "ready") -> list[tuple[int, int, str, str]]:
    """The attempts of the only job."""
    [view] = world.jobs(state)  # type: ignore[arg-type]
    return [(each.delivery, each.ended_at, each.node, each.reason) for each in view.attempts]


def letter(world: QueueWorld) -> dict[str, object]:
    """The meta of the only dead letter."""
    world.engine.sync()
    [meta] = world.metas("dlq")
    return dict(json.loads(meta or b""))


def test_each_way_to_fail_is_told(world: QueueWorld) -> None:
    world.work()
    start = world.clock.now
    world.claim("a")
    world.nack(1, node="a", reasons=["boom"])
    world.claim("b")
    world.clock.advance(LEASE + 1)
    assert kept(world) == [(1, start, "a", "boom"), (2, start + LEASE, "b", "lease expired")]
    [job] = world.claim("c")
    world.clock.advance(5)
    assert kept(world, "in_flight") == [(1, start, "a", "boom"), (2, start + LEASE, "b", "lease expired")]
    world.engine.queues.settlement.release("q", {1: job.lease_id})
    meta = letter(world)
    assert list(meta) == [*OURS, "$dead_letter_attempts"]
    assert meta["$dead_letter_attempts"] == [
        {"delivery": 1, "ended_at": start, "node": "a", "reason": "boom"},
        {"delivery": 2, "ended_at": start + LEASE, "node": "b", "reason": "lease expired"},
        {"delivery": 3, "ended_at": start + LEASE + 6, "node": "c", "reason": "connection ended"},
    ]


def test_without_a_reason_a_dead_letter_is_what_it_was(world: QueueWorld) -> None:
    world.work()
    for _ in range(2):
        world.claim()
        world.nack(1)
    world.claim()
    world.clock.advance(LEASE + 1)
    world.bury()
    assert list(letter(world)) == OURS


def test_a_reason_for_each_job(world: QueueWorld) -> None:
    world.work(1, 1, 1)
    world.claim(max_jobs=3)
    world.nack(3, 1, 2, 3, reasons=["three", "one", "", "again"])
    found = {view.block.base_seq + view.position: view.attempts for view in world.jobs("ready")}
    assert {seq: [each.reason for each in some] for seq, some in found.items()} == {1: ["one"], 2: [], 3: ["three"]}


def test_a_release_is_no_attempt(world: QueueWorld) -> None:
    world.work()
    world.claim()
    world.nack(1, mode="release", reasons=["not tried"])
    assert kept(world) == []


@pytest.mark.parametrize("reasons", [["é" * (REASON_BYTES // 2) + "x"], ["a", "b"]])
def test_a_bad_reason_changes_nothing(world: QueueWorld, reasons: list[str]) -> None:
    world.work()
    world.claim()
    with pytest.raises(TopicsError) as error:
        world.nack(1, reasons=reasons)
    assert (code(error), world.counters()) == ("invalid_request", (0, 1, 0))
    world.nack(1, reasons=["é" * (REASON_BYTES // 2)])
    assert kept(world)[0][3] == "é" * (REASON_BYTES // 2)


def test_a_history_is_bounded() -> None:
    found: attempts.Attempts = ()
    for number in range(1, 21):
        found = remembered(found, Attempt(number, number, "n" * 128, "é" * (REASON_BYTES // 2), True))
        assert [each.delivery for each in found] == list(range(max(1, number - 7), number + 1))
    assert found[-1].reason == "é" * (REASON_BYTES // 2)
    for old in found[:-1]:
        assert len(old.reason.encode()) <= 512
        assert old.reason.startswith("é" * 200)
        assert old.reason.endswith("…")
    assert len(attempts.encode(found)) < 10_000


@pytest.mark.parametrize("text", ["\x01" * REASON_BYTES, "a" * REASON_BYTES, "\n" * REASON_BYTES])
def test_what_a_letter_tells_is_bounded(text: str) -> None:
    found: attempts.Attempts = ()
    for number in range(1, 9):
        found = remembered(found, Attempt(number, number, "\x01" * 128, text, True))
    shown = for_letter(found)
    assert shown is not None
    assert len(shown) <= 8192
    told = json.loads(shown)
    assert told[-1]["delivery"] == 8
    assert told[-1]["reason"].startswith(text[:900])


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_attempts_outlive_a_restart_with_the_leases(how: str) -> None:
    world = QueueWorld()
    world.queue(max_deliveries=4, dead_letter="dlq", leases_durable=True)
    world.work()
    world.claim("a")
    world.nack(1, node="a", reasons=["bööm"])
    world.claim("worker-é")
    start = world.clock.now
    getattr(world, how)()
    assert kept(world, "in_flight") == [(1, start, "a", "bööm")]
    world.clock.advance(LEASE + 1)
    expected = [(1, start, "a", "bööm"), (2, start + LEASE, "worker-é", "lease expired")]
    assert kept(world) == expected
    getattr(world, how)()
    assert kept(world) == expected, "told once"
    world.claim("b")
    world.nack(1, node="b", delay_ms=50)
    getattr(world, how)()
    assert kept(world, "delayed") == [*expected, (3, world.clock.now, "b", "")]
    world.clock.advance(50)
    world.claim("c")
    world.nack(1, node="c", reasons=["the end"])
    told = letter(world)["$dead_letter_attempts"]
    assert isinstance(told, list)
    assert [each["reason"] for each in told] == ["bööm", "lease expired", "", "the end"]


def test_attempts_in_memory_go_with_the_leases(world: QueueWorld) -> None:
    world.work()
    world.claim()
    world.nack(1, reasons=["boom"])
    world.kill()
    assert kept(world) == []


def test_rows_of_before_are_read() -> None:
    token = bytes(range(16))
    held = struct.pack("<BQIB16s", 1, 77, 3, 9, token) + "wörker".encode()
    given = struct.pack("<BQIB16s", 2, 78, 4, 0, bytes(16))
    assert leases.decode(held) == leases.Delivery("wörker", f"lease_{token.hex()}", 77, 3, 9)
    assert leases.decode(given) == leases.Delivery(None, "", 78, 4, 0)
    assert leases.encode(leases.decode(held)) == held, "and written as they were while nothing has failed"
    failed = leases.Delivery("w", f"lease_{token.hex()}", 77, 3, 9, (Attempt(1, 5, "v", "why", True),))
    assert leases.decode(leases.encode(failed)) == failed
    for cut in range(len(leases.encode(failed))):
        assert leases.decode(leases.encode(failed)[:cut]) == leases.Delivery(None, "", 0, 0, 0)


def test_a_power_cut_between_nacks_leaves_whole_histories() -> None:
    from engine_support import CrashStore

    for lost in range(5):
        world = QueueWorld(store := CrashStore())
        world.queue(max_deliveries=2, dead_letter="dlq", leases_durable=True)
        world.put("dlq")
        world.work()
        for number in (1, 2):
            world.claim()
            world.nack(1, reasons=[f"failure {number}"])
        world.cut_power(max(store.synced, store.writes - lost))
        world.engine.sync()
        [rows, letters] = [len(world.seqs("q")), len(world.seqs("dlq"))]
        assert rows + letters == 1
        if letters:
            told = letter(world)["$dead_letter_attempts"]
            assert [each["reason"] for each in told] == ["failure 1", "failure 2"]  # type: ignore[attr-defined]


def test_a_redrive_takes_the_attempts_off(world: QueueWorld) -> None:
    world.work(b"data", metas=[b'{"a": 1}'])
    for number in range(3):
        world.claim()
        world.nack(1, reasons=[f'"{number}"\n'])
    assert "$dead_letter_attempts" in letter(world)
    assert world.redrive().redriven == 1
    [job] = world.claim()
    assert job.block.metas == [b'{"a": 1}']
    assert [view.attempts for view in world.jobs("in_flight")] == [()]


def test_a_change_to_durable_leases_writes_the_attempts(world: QueueWorld) -> None:
    world.work()
    world.claim()
    world.nack(1, reasons=["boom"])
    world.queue(max_deliveries=3, dead_letter="dlq", leases_durable=True)
    assert len(world.rows(Family.LEASES)) == 2
    world.kill()
    assert [reason for *_, reason in kept(world)] == ["boom"]
