"""Append dedupe by key."""

import pytest
from engine_support import World, code

from topics_service.engine.errors import TopicsError
from topics_service.storage.store import Family


def test_a_retry_gets_the_first_answer(world: World) -> None:
    first = world.append(1, 1, idempotency_key="k")
    world.append(1)
    again = world.append(5, idempotency_key="k")
    assert (again.first_seq, again.count, again.head_seq) == (first.first_seq, 2, 2)
    assert (again.deduped, again.created, first.deduped, first.created) == (True, False, False, True)
    assert world.state().head_seq == 3


def test_the_edge_of_the_window_is_inside(world: World) -> None:
    world.put(idempotency_window_ms=100)
    world.append(1, idempotency_key="k")
    world.clock.advance(100)
    assert world.append(1, idempotency_key="k").deduped
    world.clock.advance(1)
    assert not world.append(1, idempotency_key="k").deduped


def test_a_reused_key_counts_from_its_new_use(world: World) -> None:
    world.put(idempotency_window_ms=100)
    world.append(1, idempotency_key="k")
    world.clock.advance(101)
    world.append(1, idempotency_key="k")
    world.clock.advance(99)
    world.engine.sweep()
    assert world.append(1, idempotency_key="k").first_seq == 2
    assert len(world.rows(Family.IDEMPOTENCY)) == 1
    world.clock.advance(100)
    world.engine.sweep()
    assert world.rows(Family.IDEMPOTENCY) == world.rows(Family.IDEMPOTENCY_EXPIRY) == []


@pytest.mark.parametrize("swept", [False, True])
def test_a_key_used_again_in_memory_counts_from_that_use(world: World, swept: bool) -> None:
    world.put(durability="disk", idempotency_window_ms=100)
    world.append(1, idempotency_key="k")
    world.clock.advance(1)
    world.put(durability="ephemeral", idempotency_window_ms=0)
    assert world.append(1, idempotency_key="k").first_seq == 2
    assert world.rows(Family.IDEMPOTENCY) == world.rows(Family.IDEMPOTENCY_EXPIRY) == []
    world.clock.advance(51)
    if swept:
        world.engine.sweep()
    world.put(durability="ephemeral", idempotency_window_ms=50)
    assert not world.append(1, idempotency_key="k").deduped, "its newest use is outside of the window"


def test_window_zero_dedupes_within_the_millisecond(world: World) -> None:
    world.put(idempotency_window_ms=0)
    world.append(1, idempotency_key="k")
    assert world.append(1, idempotency_key="k").deduped
    world.clock.advance(1)
    assert not world.append(1, idempotency_key="k").deduped


def test_keys_belong_to_their_topic_and_the_empty_key_is_one(world: World) -> None:
    world.append(1, idempotency_key="")
    assert world.append(1, idempotency_key="").deduped
    assert not world.append(1, idempotency_key="k").deduped
    assert not world.append(1, topic="u", idempotency_key="").deduped
    assert world.append(1, idempotency_key="é" * 256).first_seq == 3
    with pytest.raises(TopicsError) as error:
        world.append(1, idempotency_key="k" * 257)
    assert code(error) == "invalid_request"


def test_purge_takes_only_what_is_past_the_window(world: World) -> None:
    world.put(idempotency_window_ms=100)
    world.append(1, idempotency_key="a")
    world.clock.advance(1)
    world.append(1, idempotency_key="b")
    world.clock.advance(100)
    world.engine.sweep()  # at the edge of b, just past that of a
    assert world.append(1, idempotency_key="b").deduped
    world.clock.advance(1)
    world.engine.sweep()
    assert [key[8:] for key, _ in world.rows(Family.IDEMPOTENCY)] == [b"b"]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_keys_survive_restarts(world: World, durability: str, how: str) -> None:
    world.put(durability=durability)
    world.append(1, idempotency_key="k")
    getattr(world, how)()
    assert world.append(1, idempotency_key="k").deduped
    assert world.state().head_seq == 1


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_an_ephemeral_key_goes_with_its_records(world: World, how: str) -> None:
    world.put(durability="ephemeral")
    world.append(1, idempotency_key="k")
    assert world.append(1, idempotency_key="k").deduped
    getattr(world, how)()
    reply = world.append(1, idempotency_key="k")
    assert (reply.deduped, reply.first_seq > 1) == (False, True)


def test_an_ephemeral_key_becomes_durable_with_the_topic(world: World) -> None:
    world.put(durability="ephemeral", idempotency_window_ms=100)
    world.append(1, idempotency_key="k")
    world.put(idempotency_window_ms=100)
    world.kill()
    assert world.append(1, idempotency_key="k").deduped
    world.clock.advance(102)
    world.engine.sweep()
    assert world.rows(Family.IDEMPOTENCY) == world.rows(Family.IDEMPOTENCY_EXPIRY) == []


def test_a_failed_write_remembers_nothing(world: World) -> None:
    world.put(discard="reject", cap_records=1)
    world.append(1)
    with pytest.raises(TopicsError):
        world.append(1, idempotency_key="k")
    world.delete(2)
    assert not world.append(1, idempotency_key="k").deduped


def test_a_retry_succeeds_on_a_full_topic(world: World) -> None:
    world.put(discard="reject", cap_records=1)
    world.append(1, idempotency_key="k")
    assert world.append(1, idempotency_key="k").deduped


def test_a_recreated_topic_knows_no_old_keys(world: World) -> None:
    world.append(1, idempotency_key="k")
    world.engine.delete_topic("t")
    reply = world.append(1, idempotency_key="k")
    assert (reply.deduped, reply.created, reply.first_seq) == (False, True, 1)


def test_a_retry_waits_for_the_same_fsync(world: World) -> None:
    world.put(durability="fsync")
    _, first = world.try_append(1, idempotency_key="k")
    world.try_append(1)
    reply, again = world.try_append(1, idempotency_key="k")
    assert (reply.deduped, again) == (True, first)
    world.engine.synced(first)
    assert world.try_append(1, idempotency_key="k")[1] == 0
