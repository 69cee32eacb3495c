"""The loss of a power cut is told by one row for all logs, and stays told whatever comes next."""

import pytest
from engine_support import CrashStore, World, gap

from topics_service.engine import lives
from topics_service.engine.errors import TopicsError
from topics_service.engine.lives import Ceiling, Lives, decode_ceiling
from topics_service.engine.model import ConfigInput
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreOpenError, StoreStalledError

LOST = (2, 9, "cap")
"""The loss of a topic with one record, whose ceiling is 9."""


@pytest.fixture
def cut(small_steps: None) -> World:
    """Topics `a` and `b` of one record each, of which nobody has used either since a power cut."""
    world = World(CrashStore())
    for topic in ("a", "b"):
        world.append(b"1", topic=topic)
    world.cut_power()
    return world


def lost(world: World, topic: str = "a") -> tuple[int, int, str] | None:
    return gap(world.diff(1, topic=topic))


def test_a_power_cut_writes_no_row_for_a_log(cut: World) -> None:
    assert [len(cut.rows(family)) for family in (Family.TOPICS, Family.LOGS, Family.CEILINGS, Family.GAPS)] == [
        2, 2, 2, 0,
    ]  # fmt: skip
    assert dict(cut.rows(Family.META))[lives.KEY] == Lives(1, 1).encode()
    assert all(decode_ceiling(row) == Ceiling(9, 0) for _, row in cut.rows(Family.CEILINGS))
    assert lost(cut) == LOST


def test_a_loss_is_told_after_any_end_and_only_once(cut: World) -> None:
    for end in (cut.kill, cut.restart, cut.cut_power, cut.cut_power, cut.kill, cut.restart):
        end()
        assert lost(cut) == LOST
    assert cut.append(b"2", topic="a").first_seq == 10
    for end in (cut.kill, cut.restart, cut.kill):
        end()
        assert (lost(cut), cut.seqs("a"), cut.state("a").head_seq) == (LOST, [1, 10], 10)
    assert lost(cut, "b") == LOST


def test_each_write_of_the_state_tells_the_loss(cut: World) -> None:
    cut.engine.put_topic("a", ConfigInput(durability="fsync"))
    cut.append(b"2", topic="b", tags=[b"t"])
    cut.delete(eq=b"t", topic="b")
    cut.cut_power()
    assert cut.state("a").head_seq == 9, "the class of before counts"
    assert [gap for _, gap in cut.rows(Family.GAPS)] == [keys.u64(9) + b"cap"] * 2
    assert lost(cut) == LOST
    assert cut.append(b"2", topic="a").first_seq == 10


def test_a_write_that_fails_leaves_the_loss_to_the_next(cut: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log = cut.engine.catalog.topics["a"].log
    assert log.owed

    def fail(_: object) -> None:
        raise StoreStalledError

    with monkeypatch.context() as patched:
        patched.setattr(cut.store, "write", fail)
        with pytest.raises(TopicsError):
            cut.append(b"2", topic="a")
    assert log.owed
    cut.append(b"2", topic="a")
    assert not log.owed
    cut.kill()
    assert lost(cut) == LOST


def test_an_empty_log_continues_above_its_ceiling(small_steps: None) -> None:
    world = World(CrashStore())
    world.append(b"1", topic="a")
    world.delete(2, topic="a")
    world.cut_power()
    assert (world.state("a").head_seq, world.state("a").earliest_seq) == (9, 10)
    world.kill()
    assert world.append(b"2", topic="a").first_seq == 10


def test_records_in_memory_are_lost_with_the_process(small_steps: None) -> None:
    world = World(CrashStore())
    for topic in ("a", "b"):
        world.put(topic, durability="ephemeral" if topic == "a" else "disk")
        world.append(b"1", topic=topic)
    world.kill()
    assert (world.state("a").head_seq, world.state("a").count) == (9, 0)
    assert (world.state("b").head_seq, world.seqs("b")) == (1, [1])
    world.restart()
    assert world.append(b"2", topic="a").first_seq == 10


def test_an_end_before_another_class_takes_nothing_by_its_rule(small_steps: None) -> None:
    world = World(CrashStore())
    world.append(b"1", topic="a")
    world.kill()
    world.put("a", durability="ephemeral")
    world.restart()
    assert (world.state("a").head_seq, world.seqs("a")) == (1, [1])


def test_a_ceiling_of_an_earlier_version_is_read() -> None:
    assert decode_ceiling(keys.u64(7)) == Ceiling(7, 0)
    assert decode_ceiling(Ceiling(7, 3).encode()) == Ceiling(7, 3)
    with pytest.raises(ValueError, match="a ceiling of 9 bytes"):
        decode_ceiling(bytes(9))


def test_a_damaged_count_is_refused_at_the_start(cut: World) -> None:
    batch = cut.store.batch()
    batch.put(Family.META, lives.KEY, b"short")
    cut.store.write(batch)
    with pytest.raises(StoreOpenError, match="the count of unclean ends is damaged: it has 5 bytes"):
        cut.kill()
