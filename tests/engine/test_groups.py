"""Consumer groups: positions that survive, what may be committed, who may be reset or deleted, and what expires."""

import pytest
from engine_support import CrashStore, FaultyStore, code
from group_support import Coordinator, GroupWorld
from msgspec.structs import replace

from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import ConfigInput, DiffRequest
from topics_service.engine.offsets import groups
from topics_service.engine.offsets.positions import (
    MAX_METADATA,
    CommitItem,
    ListGroupsRequest,
    Member,
    Target,
    position_key,
    row_key,
)
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreOpenError


@pytest.fixture
def world() -> GroupWorld:
    world = GroupWorld()
    world.append(b"1", b"2", b"3")
    return world


def limited(**limits: int) -> GroupWorld:
    world = GroupWorld(limits=Limits(**limits))
    world.append(b"1", b"2", b"3")
    return world


# ----------------------------------------------------------------------- commit


def test_a_position_is_kept_and_told_with_its_lag(world: GroupWorld) -> None:
    world.clock.advance(7)
    world.commit("g", 2, metadata="m" * MAX_METADATA)
    (state,) = world.engine.groups.positions("g")
    assert (state.topic, state.partition, state.from_seq, state.commit_ts) == ("t", 0, 2, 1_000_007)
    assert (state.metadata, state.leader_epoch) == ("m" * MAX_METADATA, -1)
    assert (state.head_seq, state.earliest_seq, state.lag) == (3, 1, 1)
    world.commit("g", 1)
    assert world.position("g") == 1, "a position may go back"
    assert world.position("g", "absent") is world.position("other") is None


def test_items_are_judged_one_by_one(world: GroupWorld) -> None:
    world.engine.put_topic("p", ConfigInput(), partition_count=2)
    world.engine.sync()
    items = (
        CommitItem("t", 0, 3), CommitItem("t", 0, 4), CommitItem("t", 0, -1), CommitItem("absent", 0, 0),
        CommitItem("t", 1, 0), CommitItem("p", 1, 0, 5, "x"), CommitItem("p", 0, 0, metadata="é" * 2049),
    )  # fmt: skip
    bad = "invalid_request"
    assert world.outcomes("g", *items) == ["", bad, bad, "topic_not_found", "partition_not_found", "", bad]
    assert world.positions("g") == {("t", 0): 3, ("p", 1): 0}
    found = world.engine.groups.position("g", "p", 1)
    assert found is not None
    assert (found.leader_epoch, found.metadata) == (5, "x")


def test_a_whole_commit_sets_nothing_when_one_is_bad(world: GroupWorld) -> None:
    with pytest.raises(TopicsError) as error:
        world.engine.groups.commit("g", [CommitItem("t", 0, 1), CommitItem("t", 0, 9)], whole=True)
    assert error.value.detail == {"topic": "t", "partition": 0, "from_seq": 9, "head_seq": 3}
    assert world.names() == []
    assert world.outcomes("g", CommitItem("t", 0, 9)) == ["invalid_request"]
    assert world.names() == [], "nothing that could be set makes no group"


@pytest.mark.parametrize("name", ["g", " ", "a/b\n", "ü" * 255, "."])
def test_group_names_are_any_text(world: GroupWorld, name: str) -> None:
    world.commit(name, 1)
    world.restart()
    assert world.positions(name) == {("t", 0): 1}


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_group_names_have_a_length(world: GroupWorld, name: str) -> None:
    with pytest.raises(TopicsError) as error:
        world.commit(name, 1)
    assert code(error) == "invalid_request"


def test_a_commit_is_one_write_and_waits_as_the_topic_does(world: GroupWorld) -> None:
    world.put("f", durability="fsync")
    world.append(b"1", topic="f")
    written = world.engine.writer.written
    assert world.try_commit("g", [CommitItem("t", 0, 1)]) == 0
    assert world.engine.writer.written == written + 1, "with the group itself"
    ticket = world.try_commit("g", [CommitItem("t", 0, 2), CommitItem("f", 0, 1)])
    assert ticket == world.engine.writer.written == written + 2
    assert world.position("g") == 2


def test_what_fsync_topics_do_not_show_can_not_be_committed(world: GroupWorld) -> None:
    world.put("f", durability="fsync")
    world.append(b"1", topic="f", sync=False)
    assert world.outcomes("g", CommitItem("f", 0, 1)) == ["invalid_request"]
    world.engine.sync()
    assert world.outcomes("g", CommitItem("f", 0, 1)) == [""]


def test_a_failed_write_changes_nothing(world: GroupWorld) -> None:
    world.commit("g", 1)
    assert isinstance(world.store, FaultyStore)
    world.store.stalled = True
    for call in (
        lambda: world.commit("g", 2), lambda: world.commit("new", 2), lambda: world.engine.groups.delete("g"),
        lambda: world.reset("g", to="latest"), lambda: world.engine.groups.delete_positions("g", ()),
        lambda: world.engine.groups.create("new"), lambda: world.engine.groups.put_state("new", b"s"),
    ):  # fmt: skip
        with pytest.raises(TopicsError) as error:
            call()
        assert code(error) == "throttled"
    world.store.stalled = False
    assert (world.names(), world.position("g")) == (["g"], 1)
    world.commit("new", 2)
    world.kill()
    assert (world.position("g"), world.position("new")) == (1, 2)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = limited(max_groups=1)
    world.commit("g", 1)
    world.commit("g", 2)
    for call in (lambda: world.commit("h", 1), lambda: world.engine.groups.create("h")):
        with pytest.raises(TopicsError) as error:
            call()
        assert (code(error), error.value.detail) == ("throttled", {"limit": "max_groups", "max": 1})
    world.engine.groups.delete("g")
    world.commit("h", 1)
    monkeypatch.setattr(groups, "MAX_POSITIONS", 1)
    world.commit("h", 2)
    world.append(b"1", topic="u")
    with pytest.raises(TopicsError) as error:
        world.commit("h", 0, "u")
    assert error.value.detail == {"limit": "max_positions", "max": 1}
    assert world.positions("h") == {("t", 0): 2}


# --------------------------------------------------------------- restart, damage


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_positions_survive(world: GroupWorld, end: str) -> None:
    world.engine.put_topic("p", ConfigInput(), partition_count=3)
    world.engine.sync()
    for partition in range(3):
        world.append(b"x", topic="p", partition=partition)
        world.commit("g", partition % 2, "p", partition)
    world.commit("h", 3, metadata="é")
    getattr(world, end)()
    assert world.positions("g") == {("p", 0): 0, ("p", 1): 1, ("p", 2): 0}
    found = world.engine.groups.position("h", "t", 0)
    assert found is not None
    assert (found.from_seq, found.metadata, found.ts) == (3, "é", 1_000_000)
    world.commit("i", 1)
    numbers = [group.number for group in world.engine.groups.index.by_name.values()]
    assert len(set(numbers)) == 3


def test_a_power_cut_takes_back_what_was_not_synced_and_no_more() -> None:
    world = GroupWorld(CrashStore())
    world.put("f", durability="fsync")
    world.append(b"1", b"2", topic="f")
    world.commit("g", 1, "f")
    world.commit("g", 2, "f", sync=False)
    world.commit("late", 2, "f", sync=False)
    world.cut_power()
    assert world.positions("g") == {("f", 0): 1}
    assert world.names() == ["g"]


def test_a_position_is_never_beyond_a_log_that_lost_its_tail() -> None:
    world = GroupWorld(CrashStore())
    world.put("e", durability="ephemeral")
    world.append(b"1", b"2", topic="e")
    world.commit("g", 2, "e")
    world.kill()
    (state,) = world.engine.groups.positions("g")
    assert 2 <= state.head_seq == state.earliest_seq - 1
    world.commit("g", state.head_seq, "e")


def test_a_position_beyond_the_head_counts_as_the_head(world: GroupWorld) -> None:
    """Until the log has grown past it; the number is kept over a restart."""
    far = CommitItem("t", 0, 7)
    assert world.outcomes("g", far) == ["invalid_request"]
    assert world.outcomes("g", far, kafka=True) == [""]
    assert world.outcomes("h", CommitItem("t", 0, (1 << 63) - 1), kafka=True) == [""]
    world.engine.sync()

    def lags() -> list[tuple[int, int]]:
        (state,) = world.engine.groups.positions("g")
        (other,) = world.engine.groups.positions("h")
        assert (other.from_seq, other.lag) == ((1 << 63) - 1, 0)
        lags = [lag for *_, lag in world.engine.groups.index.lags(9)]
        assert lags == [state.lag, 0]
        assert state == world.engine.groups.position_state("g", "t", 0)
        return [(state.from_seq, state.lag), (state.head_seq, lags[0])]

    def seqs(from_seq: int, *, committed: bool) -> tuple[list[int], str | None]:
        reply = world.engine.diff(DiffRequest(topic="t", from_seq=from_seq, committed=committed))
        found = [each.block.base_seq + i for each in reply.slices for i in range(each.start, each.stop)]
        return found, reply.tombstone and reply.tombstone.reason

    assert lags() == [(7, 0), (3, 0)]
    assert seqs(7, committed=True) == ([], None)
    assert seqs(7, committed=False) == ([1, 2, 3], "recreated")
    for end in (world.restart, world.kill):
        end()
        assert lags() == [(7, 0), (3, 0)]
    world.append(*[b"x"] * 4)
    assert lags() == [(7, 0), (7, 0)]
    world.append(b"x")
    assert lags() == [(7, 1), (8, 1)]
    assert seqs(7, committed=True) == seqs(7, committed=False) == ([8], None)
    world.engine.delete_topic("t")
    world.put("t")
    assert world.positions("g") == world.positions("h") == {}


@pytest.mark.parametrize(
    "damage", ["group", "range", "version", "name", "twice", "position", "orphan", "topic", "partition"]
)
def test_damage_is_refused(world: GroupWorld, damage: str) -> None:
    world.commit("g", 1)
    (group_key, group_row), (key, row) = world.rows(Family.GROUPS)[0], world.rows(Family.POSITIONS)[0]
    batch = world.store.batch()
    match damage:
        case "group":
            batch.put(Family.GROUPS, group_key, group_row[:-1])
        case "name":
            batch.put(Family.GROUPS, group_key, b"\x90")
        case "twice":
            batch.put(Family.GROUPS, row_key(7), group_row)
        case "position":
            batch.put(Family.POSITIONS, key, row[:10])
        case "range":
            batch.put(Family.POSITIONS, key, row[:1] + b"\xff" * 8 + row[9:])
        case "version":
            batch.put(Family.POSITIONS, key, b"\x09" + row[1:])
        case "orphan":
            batch.put(Family.POSITIONS, position_key(9, keys.read_u64(key, 8), 0), row)
        case "topic":
            batch.put(Family.POSITIONS, position_key(keys.read_u64(key), 99, 0), row)
        case "partition":
            batch.put(Family.POSITIONS, position_key(keys.read_u64(key), keys.read_u64(key, 8), 1), row)
    world.store.write(batch)
    with pytest.raises(StoreOpenError, match="damaged"):
        world.start()


# ------------------------------------------------------------ topics come and go


def test_positions_go_with_their_topic(world: GroupWorld) -> None:
    world.append(b"1", topic="u")
    world.commit("g", 1)
    world.commit("g", 1, "u")
    world.commit("h", 2)
    world.engine.delete_topic("t")
    assert (world.positions("g"), world.positions("h")) == ({("u", 0): 1}, {})
    assert len(world.rows(Family.POSITIONS)) == 1
    world.append(b"new", b"new")
    world.kill()
    assert world.position("g") is None, "another life of the topic"
    assert (world.positions("g"), world.names()) == ({("u", 0): 1}, ["g", "h"])
    assert world.engine.groups.index.positions == 1


def test_more_partitions_leave_positions_alone(world: GroupWorld) -> None:
    world.commit("g", 2)
    world.engine.put_topic("t", ConfigInput(), partition_count=2)
    world.engine.sync()
    world.commit("g", 0, "t", 1)
    world.restart()
    assert world.positions("g") == {("t", 0): 2, ("t", 1): 0}


# ------------------------------------------------------------- describe and list


def test_a_group_is_described_with_its_members(world: GroupWorld) -> None:
    coordinator = world.engine.groups.coordinator = Coordinator()
    world.commit("g", 1)
    state = world.engine.groups.describe("g")
    assert (state.membership.state, state.membership.members, state.membership.protocol_type) == ("Empty", (), "")
    member = Member(member_id="m-1", client_id="c", client_host="/127.0.0.1", partitions=(("t", 0),))
    coordinator.members["g"] = [member]
    state = world.engine.groups.describe("g")
    assert (state.membership.state, state.membership.members) == ("Stable", [member])
    coordinator.members["g"] = [replace(member, partitions=(("t", 0), ("secret", 1)))]
    assert world.engine.groups.describe("g", ("t",)).membership.members == [member]
    assert (state.created_ts, state.last_commit_ts) == (1_000_000, 1_000_000)
    with pytest.raises(TopicsError) as error:
        world.engine.groups.describe("absent")
    assert (code(error), error.value.detail) == ("group_not_found", {"group": "absent"})


def test_only_topics_of_the_caller_are_told(world: GroupWorld) -> None:
    world.append(b"1", topic="own:a")
    for topic in ("t", "own:a"):
        world.commit("own:g", 1, topic)
    assert [p.topic for p in world.engine.groups.describe("own:g", ("own:",)).positions] == ["own:a"]
    assert list(world.engine.groups.index.lags(9, ("own:",))) == [("own:g", "own:a", 0, 0)]
    assert [p.topic for p in world.engine.groups.positions("own:g", "t")] == ["t"]


def test_pages(world: GroupWorld) -> None:
    wanted = sorted(f"{kind}{i}" for kind in ("a", "b:", "é") for i in range(5))
    for name in reversed(wanted):
        world.commit(name, 1)
    found, after = [], None
    while True:
        page = world.engine.groups.page(ListGroupsRequest(after=after, page_size=4))
        found += page.groups
        after = page.next_after
        if after is None:
            break
    assert [line.group for line in found] == wanted
    assert {(line.state, line.members, line.positions) for line in found} == {("Empty", 0, 1)}
    listed = world.engine.groups.page(ListGroupsRequest(prefix="b"), ("b:1", "a", "b:3"))
    assert [line.group for line in listed.groups] == ["b:1", "b:3"]


# ------------------------------------------------------------- reset and delete


def test_reset_to_every_place(world: GroupWorld) -> None:
    for ms in (100, 100):
        world.clock.advance(ms)
        world.append(b"later")
    world.commit("g", 2)
    assert world.reset("g", to="latest") == {("t", 0): 5}
    assert world.reset("g", to="earliest") == {("t", 0): 0}
    assert world.reset("g", to=4) == {("t", 0): 4}
    assert world.reset("g", to=0) == {("t", 0): 0}
    assert world.reset("g", ts=1_000_001) == {("t", 0): 3}
    assert world.reset("g", ts=1_000_201) == {("t", 0): 5}, "nothing yet: what comes"
    world.delete(3)
    assert world.reset("g", to="earliest") == {("t", 0): 2}
    world.kill()
    assert world.position("g") == 2


def test_reset_of_chosen_partitions(world: GroupWorld) -> None:
    world.engine.put_topic("p", ConfigInput(), partition_count=3)
    world.engine.sync()
    for partition in range(3):
        world.append(b"1", b"2", topic="p", partition=partition)
    world.commit("g", 1)
    assert world.reset("g", Target("p", (2, 0)), to="latest") == {("p", 2): 2, ("p", 0): 2}
    assert world.reset("g", Target("p"), to=1) == {("p", 0): 1, ("p", 1): 1, ("p", 2): 1}
    assert world.positions("g")["t", 0] == 1
    assert world.reset("g", to="latest") == {("p", 0): 2, ("p", 1): 2, ("p", 2): 2, ("t", 0): 3}


def test_a_refused_reset_moves_nothing(world: GroupWorld) -> None:
    world.append(b"1", topic="u")
    world.commit("g", 1)
    world.commit("g", 1, "u")
    refusals = [
        ("group_not_found", lambda: world.reset("absent", to="latest")),
        ("invalid_request", lambda: world.reset("g", to=3)),  # beyond the head of u
        ("invalid_request", lambda: world.reset("g")),
        ("invalid_request", lambda: world.reset("g", to="latest", ts=1)),
        ("topic_not_found", lambda: world.reset("g", Target("t"), Target("absent"), to="latest")),
        ("partition_not_found", lambda: world.reset("g", Target("t", (0, 1)), to="latest")),
    ]
    for reason, call in refusals:
        with pytest.raises(TopicsError) as error:
            call()
        assert code(error) == reason
    assert world.positions("g") == {("t", 0): 1, ("u", 0): 1}


def test_a_group_with_members_is_left_alone(world: GroupWorld) -> None:
    coordinator = world.engine.groups.coordinator = Coordinator()
    world.commit("g", 1)
    coordinator.members["g"] = [Member(member_id="m")]
    for call in (
        lambda: world.reset("g", to="latest"),
        lambda: world.engine.groups.delete("g"),
        lambda: world.engine.groups.delete_positions("g", [Target("t")]),
    ):
        with pytest.raises(TopicsError) as error:
            call()
        assert (code(error), error.value.detail) == ("group_not_empty", {"group": "g"})
    world.commit("g", 2)
    gone, _ = world.engine.groups.delete_positions("g", [Target("t")], in_use=True)
    assert gone == [("t", 0)]
    coordinator.members.clear()
    assert world.engine.groups.delete("g")[0].deleted


def test_delete(world: GroupWorld) -> None:
    told: list[str] = []
    world.engine.groups.on_deleted.append(told.append)
    world.commit("g", 1)
    world.commit("h", 1)
    world.engine.groups.put_state("g", b"state")
    reply, ticket = world.engine.groups.delete("g")
    assert (reply.deleted, ticket, told) == (True, world.engine.writer.written, ["g"])
    reply, ticket = world.engine.groups.delete("g")
    assert (reply.deleted, ticket) == (False, 0)
    assert (len(world.rows(Family.GROUPS)), len(world.rows(Family.POSITIONS))) == (1, 1)
    world.kill()
    assert (world.names(), world.position("g"), world.engine.groups.state("g")) == (["h"], None, None)
    world.commit("g", 2)
    assert world.engine.groups.state("g") is None


def test_delete_positions(world: GroupWorld) -> None:
    world.append(b"1", topic="u")
    for topic in ("t", "u"):
        world.commit("g", 1, topic)
    delete = world.engine.groups.delete_positions
    assert delete("g", [Target("t"), Target("t", (0,))])[0] == [("t", 0)]
    assert delete("g", [Target("t")]) == ([], 0)
    assert delete("g", ())[0] == [("u", 0)]
    world.kill()
    assert (world.names(), world.positions("g")) == (["g"], {})
    for reason, name, target in (
        ("group_not_found", "absent", Target("t")), ("topic_not_found", "g", Target("absent")),
        ("partition_not_found", "g", Target("t", (1,))),
    ):  # fmt: skip
        with pytest.raises(TopicsError) as error:
            delete(name, [target])
        assert code(error) == reason


# ----------------------------------------------------------------- coordinator


def test_the_coordinators_state_is_kept_with_the_group(world: GroupWorld) -> None:
    keep = world.engine.groups
    assert keep.put_state("g", None) == 0
    assert keep.put_state("g", b"one") == world.engine.writer.written
    keep.put_state("g", b"two")
    world.commit("h", 1)
    group, ticket = keep.create("i")
    assert (group.name, keep.create("i")) == ("i", (group, 0))
    assert ticket == world.engine.writer.written
    world.kill()
    keep = world.engine.groups
    assert (world.names(), list(keep.states())) == (["g", "h", "i"], [("g", b"two")])
    keep.put_state("g", None)
    assert (keep.state("g"), keep.state("absent"), list(keep.states())) == (None, None, [])
    world.kill()
    assert (world.names(), list(world.engine.groups.states())) == (["g", "h", "i"], [])


# ----------------------------------------------------------------------- expiry


def test_groups_that_nobody_uses_expire() -> None:
    world = limited(group_retention_ms=1000)
    coordinator = world.engine.groups.coordinator = Coordinator()
    told: list[str] = []
    world.engine.groups.on_deleted.append(told.append)
    for name in ("idle", "joined", "read", "committed"):
        world.commit(name, 1)
    coordinator.members["joined"] = [Member(member_id="m")]
    for _ in range(4):
        world.clock.advance(300)
        world.engine.groups.touch("read")
        world.commit("committed", 1)
        world.engine.sweep()
    assert (world.names(), told) == (["committed", "joined", "read"], ["idle"])
    coordinator.members.clear()
    world.clock.advance(1000)
    world.engine.sweep()
    assert world.names() == ["committed", "joined", "read"], "exactly as long"
    world.clock.advance(1)
    world.engine.sweep()
    assert world.names() == []
    assert world.rows(Family.GROUPS) == world.rows(Family.POSITIONS) == []


def test_use_is_remembered_over_a_restart() -> None:
    world = limited(group_retention_ms=80_000)
    world.engine.groups.coordinator = coordinator = Coordinator()
    for name in ("joined", "read", "moved"):
        world.commit(name, 1)
    coordinator.members["joined"] = [Member(member_id="m")]
    for _ in range(10):
        world.clock.advance(15_000)
        world.engine.groups.touch("read")
        world.commit("moved", 1)
        world.engine.sweep()
    world.engine.groups.delete_positions("moved", ())
    writes = world.engine.writer.written
    world.clock.advance(9000)
    world.engine.groups.touch("read")
    world.engine.sweep()
    assert world.engine.writer.written == writes, "an eighth of the retention is near enough"
    world.kill()
    world.engine.sweep()
    assert world.names() == ["joined", "moved", "read"]


def test_expiry_can_be_off_and_goes_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    world = limited(group_retention_ms=0)
    world.commit("g", 1)
    world.clock.advance(1 << 40)
    world.engine.sweep()
    assert world.names() == ["g"]
    world = limited(group_retention_ms=10)
    monkeypatch.setattr(groups, "_GROUPS_A_SWEEP", 2)
    for name in "abcde":
        world.commit(name, 1)
    world.clock.advance(11)
    left = []
    for _ in range(4):
        world.engine.sweep()
        left.append(len(world.names()))
    assert left == [3, 1, 0, 0]
