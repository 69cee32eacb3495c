"""Topics that retain records until groups have acked them: what stays, what is refused, and what lets go."""

from typing import Any

import pytest
from engine_support import CrashStore, code, gap
from group_support import GroupWorld

from topics_service.engine.config import resolve
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import ConfigInput, TopicConfig
from topics_service.engine.offsets.positions import CommitItem, Target
from topics_service.engine.router.router import PutRouterRequest, RouterConfig
from topics_service.storage.store import Family


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


def retaining(*groups: str, **config: Any) -> GroupWorld:
    world = GroupWorld()
    world.put(retain_until_acked_by=groups or ("g",), **config)
    return world


# ----------------------------------------------------------------------- config


def test_the_config_is_checked_and_absent_unless_set(world: GroupWorld) -> None:
    assert resolve("t", ConfigInput()) == resolve("t", ConfigInput(retain_until_acked_by=())) == TopicConfig()
    assert resolve("t", ConfigInput(retain_until_acked_by=("b", "a", "b"))).retaining == ("b", "a")
    assert len(resolve("t", ConfigInput(retain_until_acked_by=tuple("abcdefghijklmnop"))).retaining) == 16
    for groups in (tuple("abcdefghijklmnopq"), ("",), ("x" * 256,)):
        with pytest.raises(TopicsError) as error:
            world.put(retain_until_acked_by=groups)
        assert code(error) == "invalid_request"


def test_rows_of_other_topics_are_as_before(world: GroupWorld) -> None:
    world.put("plain")
    world.put("held", retain_until_acked_by=("g",))
    plain, held = (row for _, row in world.rows(Family.TOPICS))
    assert (b"retain" in plain, b"retain" in held) == (False, True)


# -------------------------------------------------------------------------- ttl


def test_age_removes_only_what_every_group_has_acked() -> None:
    world = retaining("g", "h", ttl_ms=100)
    world.append(b"1", b"2", b"3", b"4")
    world.commit("g", 3)
    world.clock.advance(101)
    assert world.seqs() == [1, 2, 3, 4], "h has committed nothing: it counts as 0"
    world.commit("h", 2)
    assert world.seqs() == [3, 4]
    assert gap(world.diff(0)) == (1, 2, "ttl")
    world.commit("h", 4)
    assert world.seqs() == [4]
    world.commit("g", 4)
    assert world.seqs() == []
    assert gap(world.diff(0)) == (1, 4, "ttl")


def test_the_sweep_removes_what_was_acked() -> None:
    world = retaining(ttl_ms=100)
    world.append(b"1", b"2")
    world.clock.advance(101)
    world.engine.sweep()
    assert world.engine.writer.total_records == 2
    world.commit("g", 1)
    world.engine.sweep()
    assert world.engine.writer.total_records == 1


def test_fsync_topics_hold_too() -> None:
    world = retaining(ttl_ms=100, durability="fsync")
    world.append(b"1", b"2")
    world.clock.advance(101)
    world.append(b"3", sync=False)
    assert world.seqs() == [1, 2]
    world.commit("g", 1, sync=False)
    assert world.seqs() == [2]
    world.engine.sync()
    assert world.seqs() == [2, 3]


# ------------------------------------------------------------------------- caps


@pytest.mark.parametrize("caps", [{"cap_records": 3}, {"cap_bytes": 3}])
def test_a_cap_refuses_what_it_could_make_no_room_for(caps: dict[str, int]) -> None:
    world = retaining(**caps)
    world.append(b"1", b"2", b"3")
    with pytest.raises(TopicsError) as error:
        world.append(b"4")
    assert code(error) == "topic_full"
    assert error.value.detail == {
        "topic": "t", "cap_records": caps.get("cap_records", 0), "cap_bytes": caps.get("cap_bytes", 0),
        "head_seq": 3, "earliest_seq": 1,
    }  # fmt: skip
    world.commit("g", 2)
    assert world.seqs() == [1, 2, 3], "nothing goes before its room is needed"
    assert world.is_full(count=3), "and nothing if it is not enough"
    assert world.seqs() == [1, 2, 3]
    assert not world.is_full()
    assert world.seqs() == [2, 3, 4]
    assert gap(world.diff(0)) == (1, 1, "cap")
    assert not world.is_full()
    assert world.is_full()
    assert world.seqs() == [3, 4, 5]


def test_a_write_larger_than_the_cap_is_refused_as_under_reject() -> None:
    world = retaining(cap_records=2)
    with pytest.raises(TopicsError) as error:
        world.append(b"1", b"2", b"3")
    assert code(error) == "record_too_large"
    world.put(cap_records=2)
    world.append(b"1", b"2", b"3")
    assert world.seqs() == [2, 3]


def test_reject_stays_as_it_is() -> None:
    world = retaining(cap_records=2, discard="reject")
    world.append(b"1", b"2")
    world.commit("g", 2)
    assert world.is_full()
    world.delete(2)
    assert not world.is_full()


def test_deleted_records_take_no_room() -> None:
    world = retaining(cap_records=2)
    world.append(b"1", b"2")
    world.delete(2)
    assert not world.is_full()
    assert world.is_full()
    assert world.seqs() == [2, 3]


def test_eviction_ends_at_a_record_that_was_there() -> None:
    world = retaining(cap_records=5)
    world.append(b"1", b"2", b"3", b"4", b"5", tags=[None, b"x", b"x", None, None])
    world.commit("g", 3)
    world.delete(eq=b"x")
    world.put(cap_records=1, retain_until_acked_by=("g",))
    assert world.seqs() == [4, 5]
    assert gap(world.diff(0)) == (1, 3, "cap")
    assert gap(world.diff(1)) is None, "2 and 3 were deleted, not lost"


def test_explicit_deletes_and_queue_acks_are_not_held() -> None:
    world = retaining(cap_records=2)
    world.append(b"1", b"2")
    world.delete(2)
    assert (world.seqs(), world.hold()) == ([2], 0)


def test_partitions_are_held_one_by_one() -> None:
    world = GroupWorld()
    world.engine.put_topic("t", ConfigInput(cap_records=1, retain_until_acked_by=("g",)), partition_count=2)
    world.engine.sync()
    for partition in (0, 1):
        world.append(b"1", partition=partition)
    world.commit("g", 1, partition=1)
    assert (world.hold(), world.hold(partition=1)) == (0, 1)
    world.append(b"2", partition=1)
    assert world.is_full()
    world.engine.put_topic("t", ConfigInput(cap_records=1, retain_until_acked_by=("g",)), partition_count=3)
    assert [world.hold(partition=partition) for partition in range(3)] == [0, 1, 0]
    world.append(b"1", partition=2)
    with pytest.raises(TopicsError) as error:
        world.append(b"2", partition=2)
    assert code(error) == "topic_full"


def test_a_router_waits_for_the_groups_of_its_destination() -> None:
    world = retaining(cap_records=2)
    world.put("s")
    world.engine.routers.put(PutRouterRequest(router="r", config=RouterConfig(source="s", dest="t")))
    world.append(b"1", b"2", b"3", topic="s")
    world.engine.routers.forward()
    world.engine.sync()
    assert world.seqs() == [1, 2]
    world.commit("g", 2)
    world.clock.advance(2000)
    world.engine.routers.poll()
    world.engine.routers.forward()
    world.engine.sync()
    assert world.seqs() == [2, 3]


# ------------------------------------------------------- what moves what is held


def test_a_position_that_goes_back_holds_again() -> None:
    world = retaining(cap_records=2)
    world.append(b"1", b"2")
    world.commit("g", 2)
    for back in (
        lambda: world.commit("g", 0), lambda: world.reset("g", to="earliest"), lambda: world.engine.groups.delete("g"),
        lambda: world.engine.groups.delete_positions("g", [Target("t")]),
    ):  # fmt: skip
        back()
        assert world.hold() == 0
        assert world.is_full()
        world.commit("g", 2)
        assert world.hold() == 2
    assert not world.is_full()


def test_what_has_expired_stays_so_when_the_position_goes_back() -> None:
    for back in ("commit", "reset", "delete", "delete_positions"):
        world = retaining(ttl_ms=100)
        world.append(b"1", b"2", b"3")
        world.commit("g", 2)
        world.clock.advance(101)
        assert world.seqs() == [3]
        match back:
            case "commit":
                world.commit("g", 0)
            case "reset":
                world.reset("g", to=0)
            case "delete":
                world.engine.groups.delete("g")
            case _:
                world.engine.groups.delete_positions("g", ())
        assert world.hold() == 0
        world.kill()
        assert world.seqs() == [3], back


@pytest.mark.parametrize("config", [{"cap_records": 2}, {"cap_bytes": 2}, {"ttl_ms": 100}])
def test_a_position_beyond_the_head_holds_nothing_back_until_the_log_has_grown_past_it(config: dict[str, int]) -> None:
    world = retaining("g", **config)
    world.append(b"1", b"2")
    assert world.outcomes("g", CommitItem("t", 0, 5), kafka=True) == [""]
    world.engine.sync()
    assert world.hold() == 5
    for seq in (3, 4, 5):
        world.append(b"x")
        world.clock.advance(101)
        assert world.seqs() == ([] if "ttl_ms" in config else [seq - 1, seq])
    world.kill()
    assert world.hold() == 5
    world.append(b"6", b"7")
    world.clock.advance(101)
    assert world.seqs() == [6, 7]
    assert world.is_full() is ("ttl_ms" not in config)
    world.commit("g", 6)
    assert not world.is_full()


def test_the_config_can_change_at_any_time(world: GroupWorld) -> None:
    world.append(*(b"%d" % i for i in range(6)))
    world.commit("g", 2)
    world.put(cap_records=3, retain_until_acked_by=("g",))
    assert (world.seqs(), world.hold()) == ([3, 4, 5, 6], 2), "as far as it may"
    assert world.is_full()
    world.put(cap_records=3, retain_until_acked_by=("g", "h"))
    assert world.hold() == 0
    world.commit("h", 4)
    assert world.hold() == 2
    world.put(cap_records=3, retain_until_acked_by=("h",))
    assert (world.seqs(), world.hold()) == ([4, 5, 6], 4)
    world.put(cap_records=2)
    assert (world.seqs(), world.hold()) == ([5, 6], None)
    assert not world.is_full()


def test_a_topic_made_by_a_write_holds_from_the_first_record(world: GroupWorld) -> None:
    world.append(b"1", config=ConfigInput(cap_records=1, retain_until_acked_by=("g",)))
    assert world.is_full()


@pytest.mark.parametrize("end", ["restart", "kill", "cut_power"])
def test_it_holds_over_a_restart(end: str) -> None:
    world = GroupWorld(CrashStore())
    world.put(cap_records=2, ttl_ms=100, retain_until_acked_by=("g",))
    world.append(b"1", b"2")
    world.commit("g", 1)
    getattr(world, end)()
    assert world.hold() == 1
    world.clock.advance(101)
    assert world.seqs() == [2]
    assert not world.is_full()
    assert world.is_full()


def test_a_group_that_is_waited_for_does_not_expire() -> None:
    world = GroupWorld(limits=Limits(group_retention_ms=10))
    world.put(cap_records=1, retain_until_acked_by=("g",))
    world.append(b"1")
    world.commit("g", 1)
    world.commit("other", 1)
    world.clock.advance(11)
    world.engine.sweep()
    assert world.names() == ["g"]
    world.put(cap_records=1)
    world.engine.sweep()
    assert world.names() == []


def test_a_topic_made_again_begins_at_nothing() -> None:
    world = retaining(cap_records=1)
    world.append(b"1")
    world.commit("g", 1)
    world.engine.delete_topic("t")
    world.put(cap_records=1, retain_until_acked_by=("g",))
    world.append(b"1")
    assert (world.hold(), world.is_full()) == (0, True)
