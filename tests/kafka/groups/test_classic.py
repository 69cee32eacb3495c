"""Classic groups: rounds, generations, timeouts, static members."""

import pytest

from support.kafka_members import REBALANCE_MS, SESSION_MS, Classic, Modern, World, assignment, settle, subscription
from topics_service.engine.membership.members import MEMBER_BYTES, Beat, GroupError, Leaving, RefusedError, SyncRequest

OK = GroupError.NONE


def stable(world: World, count: int, **fields: object) -> list[Classic]:
    """A Stable group with `count` members."""
    members = [Classic(world, **fields) for _ in range(count)]  # type: ignore[arg-type]
    for member in members:
        member.join()
        for other in members:
            if other is not member and other.member_id and other.beat() is GroupError.REBALANCE_IN_PROGRESS:
                other.join()
    settle(*members)
    return members


def state(world: World) -> str:
    view = world.coordinator.describe("g")
    return view.state if view else "Dead"


def test_a_new_member_is_given_an_id_and_comes_back_with_it() -> None:
    member = Classic(World())
    reply = member.join()
    assert [each.error for each in member.joins] == [GroupError.MEMBER_ID_REQUIRED, OK]
    assert reply is not None
    assert reply.leader == member.member_id == reply.members[0].member_id
    assert (reply.generation, reply.protocol, reply.protocol_type) == (1, "range", "consumer")
    assert reply.members[0].metadata == subscription("t")


def test_old_clients_and_static_members_need_no_second_request() -> None:
    world = World()
    for member in (Classic(world, needs_id=False), Classic(world, group="h", instance_id="i")):
        member.join()
        assert [each.error for each in member.joins] == [OK]


def test_the_leader_brings_the_assignments_of_all() -> None:
    world = World()
    members = stable(world, 3)
    assert [member.syncs[-1].assignment for member in members] == [member.member_id.encode() for member in members]
    assert {member.generation for member in members} == {members[0].generation}
    assert sum(member.is_leader for member in members) == 1
    assert [len(member.joins[-1].members) for member in members if not member.is_leader] == [0, 0]
    assert state(world) == "Stable"
    assert all(member.beat() is OK for member in members)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, GroupError.INVALID_GROUP_ID),
        ({"session_ms": 99}, GroupError.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, GroupError.INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, GroupError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, GroupError.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "m"}, GroupError.UNKNOWN_MEMBER_ID),
        ({"member_id": "m", "instance_id": "i"}, GroupError.UNKNOWN_MEMBER_ID),
        ({"protocols": [("p", bytes(1 << 20))]}, GroupError.INVALID_REQUEST),
        ({"protocols": [(f"p{i}", b"") for i in range(101)]}, GroupError.INVALID_REQUEST),
        ({"protocol_type": "x" * 256}, GroupError.INVALID_REQUEST),
        ({"instance_id": "x" * 256}, GroupError.INVALID_REQUEST),
        ({"instance_id": ""}, GroupError.INVALID_REQUEST),
    ],
)
def test_joins_that_are_refused(fields: dict[str, object], error: GroupError) -> None:
    world = World()
    reply = Classic(world, **fields).join()  # type: ignore[arg-type]
    assert reply is not None
    assert reply.error is error
    assert reply.generation == -1
    assert world.coordinator.summaries() == []


def test_members_must_share_a_protocol_and_its_type() -> None:
    world = World()
    stable(world, 2, protocols=[("a", b""), ("b", b"")])
    for fields in ({"protocols": [("c", b"")]}, {"protocol_type": "connect", "protocols": [("a", b"")]}):
        reply = Classic(world, **fields).join()  # type: ignore[arg-type]
        assert reply is not None
        assert reply.error is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_is_the_one_most_members_prefer_of_those_all_know() -> None:
    world = World(initial_delay_ms=1_000)
    wishes = [["a", "b", "c"], ["b", "a"], ["b", "a", "d"]]
    members = [Classic(world, protocols=[(name, name.encode()) for name in names]) for names in wishes]
    for member in members:
        member.join()
    world.advance(2_000)
    assert {member.joins[-1].protocol for member in members} == {"b"}
    leader = next(member for member in members if member.is_leader)
    assert {each.metadata for each in leader.joins[-1].members} == {b"b"}


def test_the_first_members_of_an_empty_group_wait_for_more() -> None:
    world = World(initial_delay_ms=3_000)
    first, second = Classic(world), Classic(world)
    first.join()
    world.advance(2_500)
    second.join()
    world.advance(2_999)  # the second one has put off the end at 3000 to 6000
    assert [each.generation for each in first.joins[1:]] == []
    world.advance(501)
    assert first.generation == second.generation == 1


def test_gathering_ends_with_the_rebalance_timeout_whoever_comes() -> None:
    world = World(initial_delay_ms=3_000)
    members = [Classic(world, rebalance_ms=7_000) for _ in range(5)]
    for member in members:
        member.join()
        world.advance(2_000)
    assert [member.generation for member in members[:4]] == [1] * 4


def test_one_who_has_its_id_but_has_not_joined_is_waited_for() -> None:
    world = World()
    first = stable(world, 1)[0]
    late = Classic(world)
    late._join()
    assert late.joins[-1].error is GroupError.MEMBER_ID_REQUIRED
    assert first.beat() is OK
    other = Classic(world)
    other.join()
    first.join()
    assert first.generation == 1
    late.join()
    assert first.generation == late.generation == other.generation == 2


def test_ids_nobody_comes_back_with_expire() -> None:
    world = World()
    first, ghost, other = stable(world, 1)[0], Classic(world, session_ms=1_000), Classic(world)
    ghost._join()
    other.join()
    first.join()
    assert first.generation == 1
    world.advance(1_001)
    assert first.generation == other.generation == 2
    reply = ghost.join()
    assert reply is not None
    assert reply.error is GroupError.UNKNOWN_MEMBER_ID


def test_members_that_do_not_rejoin_are_dropped_at_the_rebalance_timeout() -> None:
    world = World()
    slow, first = stable(world, 2, session_ms=60_000)
    new = Classic(world)
    new.join()
    assert slow.beat() is GroupError.REBALANCE_IN_PROGRESS
    first.join()
    world.advance(REBALANCE_MS - 1)
    assert slow.beat() is GroupError.REBALANCE_IN_PROGRESS
    world.advance(1)
    assert first.generation == new.generation == slow.generation + 1
    assert slow.beat() is GroupError.UNKNOWN_MEMBER_ID


def test_sessions_end_without_heartbeats() -> None:
    world = World()
    silent, alive = stable(world, 2)
    for _ in range(3):
        world.advance(SESSION_MS // 3)
        alive.beat()
    world.advance(SESSION_MS // 3)
    assert silent.beat() is GroupError.UNKNOWN_MEMBER_ID
    assert alive.beat() is GroupError.REBALANCE_IN_PROGRESS
    alive.join()
    assert alive.generation == 3


def test_sessions_do_not_run_while_an_answer_is_owed() -> None:
    world = World()
    leader, follower = stable(world, 2, session_ms=1_000)
    new = Classic(world, session_ms=1_000)
    new.join()
    leader.join()
    for _ in range(4):  # two wait for the third, which only sends heartbeats
        world.advance(900)
        assert follower.beat() is GroupError.REBALANCE_IN_PROGRESS
    follower.join()
    assert leader.generation == follower.generation == new.generation
    waiting = [member for member in (leader, follower, new) if not member.is_leader]
    for member in waiting:
        member.sync()
    chief = next(member for member in (leader, follower, new) if member.is_leader)
    for _ in range(4):
        world.advance(900)
        assert chief.beat() is OK
    chief.sync_with([])
    assert [member.syncs[-1].error for member in waiting] == [OK, OK]
    world.advance(999)
    assert all(member.beat() is OK for member in (leader, follower, new))


def test_a_leader_that_rejoins_or_metadata_that_change_begin_a_rebalance() -> None:
    world = World()
    members = stable(world, 2)
    leader = next(member for member in members if member.is_leader)
    follower = next(member for member in members if not member.is_leader)
    reply = follower.join()
    assert reply is not None
    assert (reply.error, reply.generation) == (OK, leader.generation)
    assert state(world) == "Stable"
    assert leader.join() is None
    assert follower.beat() is GroupError.REBALANCE_IN_PROGRESS
    follower.join()
    settle(*members)
    follower = next(member for member in members if not member.is_leader)
    follower.protocols = [("range", subscription("t", "u"))]
    assert follower.join() is None
    assert state(world) == "PreparingRebalance"


def test_while_syncs_are_awaited() -> None:
    world = World()
    members = stable(world, 2)
    for member in members:
        member.protocols = [("range", subscription("u"))]
    assert members[0].join() is None
    members[1].join()
    assert state(world) == "CompletingRebalance"
    leader = next(member for member in members if member.is_leader)
    follower = next(member for member in members if not member.is_leader)
    assert follower.beat() is OK
    assert follower.commit() is GroupError.REBALANCE_IN_PROGRESS
    assert follower.sync() is None
    again = follower.join()  # its answer was lost
    assert again is not None
    assert again.generation == leader.generation
    Classic(world).join()
    assert follower.syncs[-1].error is GroupError.REBALANCE_IN_PROGRESS
    assert leader.sync_with([(follower.member_id, b"x")]) is not None
    assert leader.syncs[-1].error is GroupError.REBALANCE_IN_PROGRESS


def test_who_does_not_sync_is_dropped_at_the_rebalance_timeout() -> None:
    world = World()
    members = stable(world, 3, session_ms=60_000)
    members[0].protocols = [("range", subscription("u"))]
    for member in members:
        member.join()
    leader = next(member for member in members if member.is_leader)
    lazy = next(member for member in members if not member.is_leader)
    for member in members:
        if member is not lazy:
            member.sync_with([])
    assert state(world) == "Stable"
    world.advance(REBALANCE_MS)
    assert lazy.beat() is GroupError.UNKNOWN_MEMBER_ID
    assert leader.beat() is GroupError.REBALANCE_IN_PROGRESS


def test_a_leader_that_never_syncs_is_dropped_and_the_others_go_on() -> None:
    world = World()
    members = stable(world, 2, session_ms=60_000)
    members[0].protocols = [("range", subscription("u"))]
    for member in members:
        member.join()
    follower = next(member for member in members if not member.is_leader)
    assert follower.sync() is None
    world.advance(REBALANCE_MS)
    assert follower.syncs[-1].error is GroupError.REBALANCE_IN_PROGRESS
    follower.join()
    assert follower.is_leader


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"member_id": "?"}, GroupError.UNKNOWN_MEMBER_ID),
        ({"generation": 1}, GroupError.ILLEGAL_GENERATION),
        ({"generation": 3}, GroupError.ILLEGAL_GENERATION),
        ({"group": "?"}, GroupError.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_is_not_of_this_generation_is_refused(change: dict[str, object], error: GroupError) -> None:
    world = World()
    member = stable(world, 2)[1]
    for name, value in change.items():
        setattr(member, name, value)
    assert member.beat() is error
    reply = member.sync()
    assert reply is not None
    assert reply.error is error
    if "group" not in change:
        assert member.commit() is error


def test_a_sync_of_another_protocol_is_refused() -> None:
    world = World()
    member = stable(world, 1)[0]
    request = SyncRequest(group="g", member_id=member.member_id, generation=member.generation, protocol="roundrobin")
    world.coordinator.sync(request, member.syncs.append)
    assert member.syncs[-1].error is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_leaving_gives_a_result_for_each_and_one_rebalance() -> None:
    world = World()
    members = stable(world, 4)
    ghost = Classic(world)
    ghost._join()
    errors = world.coordinator.leave(
        "g", [Leaving(members[0].member_id), Leaving("?"), Leaving(members[1].member_id), Leaving(ghost.member_id)]
    )
    assert errors == [OK, GroupError.UNKNOWN_MEMBER_ID, OK, OK]
    assert world.coordinator.leave("?", [Leaving("m")]) == [GroupError.UNKNOWN_MEMBER_ID]
    generation = members[2].generation
    members[2].join()
    members[3].join()
    assert members[2].generation == members[3].generation == generation + 1


def test_the_last_one_to_leave_empties_the_group() -> None:
    world = World()
    member = stable(world, 1)[0]
    world.coordinator.leave("g", [Leaving(member.member_id)])
    assert state(world) == "Empty"
    assert world.coordinator.is_empty("g")
    assert Classic(world).join().generation == 3  # type: ignore[union-attr]


def test_a_member_that_leaves_gets_the_answers_that_it_is_owed() -> None:
    world = World()
    members = stable(world, 2)
    new = Classic(world)
    new.join()
    world.coordinator.leave("g", [Leaving(new.member_id)])
    assert new.joins[-1].error is GroupError.UNKNOWN_MEMBER_ID
    for member in members:
        member.join()
    follower = next(member for member in members if not member.is_leader)
    follower.sync()
    world.coordinator.leave("g", [Leaving(follower.member_id)])
    assert follower.syncs[-1].error is GroupError.UNKNOWN_MEMBER_ID


def test_a_second_request_ends_the_first() -> None:
    world = World()
    members = stable(world, 2)
    new = Classic(world)
    new.join()
    new._join()
    assert new.joins[-1].error is GroupError.REBALANCE_IN_PROGRESS
    for member in members:
        member.join()
    assert new.joins[-1].error is OK
    follower = next(member for member in (*members, new) if not member.is_leader)
    follower.sync()
    follower.sync()
    assert [each.error for each in follower.syncs[-1:]] == [GroupError.REBALANCE_IN_PROGRESS]


def test_a_lost_connection_cancels_the_answer_and_lets_the_session_run() -> None:
    world = World()
    members = stable(world, 2, session_ms=5_000)
    new = Classic(world)
    new.join()
    first, second = members
    first.join()
    world.coordinator.forget(first.respond)
    count = len(first.joins)
    second.join()
    assert len(first.joins) == count  # it took part, but its connection was gone
    assert second.generation == new.generation == first.generation + 1
    assert first.member_id not in (second.joins[-1].leader, new.joins[-1].leader)
    reply = first.join()
    assert reply is not None
    assert reply.generation == second.generation
    world.coordinator.forget(first.respond)  # already answered: nothing happens


def test_a_member_whose_session_ran_out_with_its_connection_is_not_waited_for() -> None:
    world = World()
    first, second = stable(world, 2, session_ms=5_000)
    new = Classic(world)
    new.join()
    first.join()
    world.coordinator.forget(first.respond)
    for _ in range(3):
        world.advance(2_000)
        second.beat()
    second.join()
    assert len(new.joins[-1].members or second.joins[-1].members) == 2


def test_a_member_nobody_can_come_back_as_goes_with_its_connection() -> None:
    world = World(initial_delay_ms=3_000)
    ghost = Classic(world, needs_id=False)
    ghost.join()
    world.coordinator.forget(ghost.respond)
    assert world.coordinator.is_empty("g")
    assert world.coordinator.describe("g").state == "Empty"  # type: ignore[union-attr]


def test_a_lost_connection_during_the_syncs() -> None:
    world = World()
    members = stable(world, 2)
    members[0].protocols = [("range", subscription("u"))]
    for member in members:
        member.join()
    follower = next(member for member in members if not member.is_leader)
    leader = next(member for member in members if member.is_leader)
    follower.sync()
    world.coordinator.forget(follower.sync_respond)
    count = len(follower.syncs)
    leader.sync_with([(follower.member_id, b"x")])
    assert len(follower.syncs) == count
    reply = follower.sync()
    assert reply is not None
    assert reply.assignment == b"x"


def test_groups_are_bounded() -> None:
    world = World(max_members=2)
    stable(world, 2)
    reply = Classic(world).join()
    assert reply is not None
    assert reply.error is GroupError.GROUP_MAX_SIZE_REACHED
    ghosts = [Classic(world, group="h") for _ in range(3)]
    for ghost in ghosts:
        ghost._join()
    expected = [GroupError.MEMBER_ID_REQUIRED, GroupError.MEMBER_ID_REQUIRED, GroupError.GROUP_MAX_SIZE_REACHED]
    assert [ghost.joins[-1].error for ghost in ghosts] == expected


def test_what_members_make_us_keep_is_bounded() -> None:
    world = World(max_group_bytes=2 * MEMBER_BYTES + 2_000, max_bytes=3 * MEMBER_BYTES + 3_000)

    def join(member: Classic, size: int) -> GroupError:
        member.protocols = [("p", bytes(size - 1))]
        reply = member.join()
        return OK if reply is None else reply.error

    first, second, elsewhere = Classic(world), Classic(world, needs_id=False), Classic(world, group="h")
    assert join(first, 1_500) is OK
    assert join(second, 501) is GroupError.GROUP_MAX_SIZE_REACHED
    assert join(elsewhere, MEMBER_BYTES + 1_501) is GroupError.GROUP_MAX_SIZE_REACHED
    assert join(elsewhere, MEMBER_BYTES + 1_500) is OK
    first.sync_with([])
    assert join(first, 1_501) is GroupError.GROUP_MAX_SIZE_REACHED
    assert join(first, 999) is OK
    first.sync_with([])
    elsewhere.sync_with([])
    assert join(elsewhere, 1) is OK
    assert join(second, 501) is OK
    world.restart()
    assert world.coordinator._run.weight > 0
    world.advance(2 * SESSION_MS + 2 * REBALANCE_MS)
    assert world.coordinator._run.weight == 0


def test_assignments_are_bounded() -> None:
    world = World(max_assignment_bytes=10)
    member = Classic(world)
    member.join()
    reply = member.sync_with([(member.member_id, bytes(11))])
    assert reply is not None
    assert reply.error is GroupError.INVALID_REQUEST
    reply = member.sync_with([(member.member_id, bytes(10))])
    assert reply is not None
    assert reply.assignment == bytes(10)


class TestStaticMembers:
    def test_one_that_comes_back_takes_over_without_a_rebalance(self) -> None:
        world = World()
        old, other = Classic(world, instance_id="a"), Classic(world, instance_id="b")
        old.join()
        other.join()
        old.join()
        settle(old, other)
        assert old.is_leader
        new = Classic(world, instance_id="a", protocols=[("range", subscription("t", userdata=b"fresh"))])
        reply = new.join()
        assert reply is not None
        assert (reply.error, reply.generation, reply.leader) == (OK, old.generation, new.member_id)
        assert reply.skip_assignment
        assert {each.instance_id for each in reply.members} == {"a", "b"}
        sync = new.sync()
        assert sync is not None
        assert sync.assignment == old.member_id.encode()
        assert other.beat() is OK
        assert old.beat() is GroupError.FENCED_INSTANCE_ID
        assert old.commit() is GroupError.FENCED_INSTANCE_ID
        assert old.sync().error is GroupError.FENCED_INSTANCE_ID  # type: ignore[union-attr]
        assert old.join().error is GroupError.FENCED_INSTANCE_ID  # type: ignore[union-attr]
        assert new.commit() is OK

    def test_an_old_client_is_not_made_to_assign(self) -> None:
        world = World()
        old = Classic(world, instance_id="a")
        old.join()
        settle(old)
        new = Classic(world, instance_id="a", can_skip=False)
        reply = new.join()
        assert reply is not None
        assert (reply.leader, list(reply.members), reply.skip_assignment) == (old.member_id, [], False)

    def test_another_subscription_begins_a_rebalance(self) -> None:
        world = World()
        old, other = Classic(world, instance_id="a"), Classic(world, instance_id="b")
        old.join()
        other.join()
        old.join()
        settle(old, other)
        new = Classic(world, instance_id="a", protocols=[("range", subscription("u"))])
        assert new.join() is None
        assert other.beat() is GroupError.REBALANCE_IN_PROGRESS

    def test_one_that_waits_is_fenced_when_another_takes_its_place(self) -> None:
        world = World()
        other = stable(world, 1)[0]
        old = Classic(world, instance_id="a")
        old.join()
        new = Classic(world, instance_id="a")
        new.join()
        assert old.joins[-1].error is GroupError.FENCED_INSTANCE_ID
        other.join()
        assert new.generation == other.generation == 2

    def test_one_that_waits_for_a_sync_is_fenced_too(self) -> None:
        world = World()
        other, old = stable(world, 1)[0], Classic(world, instance_id="a")
        old.join()
        other.join()
        assert other.is_leader
        old.sync()
        new = Classic(world, instance_id="a")
        assert new.join() is None
        assert old.syncs[-1].error is GroupError.FENCED_INSTANCE_ID
        assert other.beat() is GroupError.REBALANCE_IN_PROGRESS

    def test_they_stay_in_a_generation_that_they_missed(self) -> None:
        world = World()
        away, here = Classic(world, instance_id="a", session_ms=100_000), Classic(world, session_ms=100_000)
        away.join()
        here.join()
        away.join()
        settle(away, here)
        here.protocols = [("range", subscription("u", "t"))]
        here.join()
        world.advance(REBALANCE_MS)
        assert here.is_leader
        assert {each.instance_id for each in here.joins[-1].members} == {"a", None}
        here.sync_with([(away.member_id, b"kept")])
        world.advance(REBALANCE_MS)
        assert away.beat() is GroupError.ILLEGAL_GENERATION
        reply = away.join()
        assert reply is not None
        assert away.sync().assignment == b"kept"  # type: ignore[union-attr]

    def test_a_group_of_members_that_are_all_away_waits_for_their_sessions(self) -> None:
        world = World()
        members = [Classic(world, instance_id=name, session_ms=50_000) for name in "ab"]
        members[0].join()
        members[1].join()
        members[0].join()
        settle(*members)
        gone = [member for member in members if member.is_leader] + [m for m in members if not m.is_leader]
        world.coordinator.leave("g", [Leaving("", gone[0].instance_id)])
        world.advance(REBALANCE_MS + 1)
        assert state(world) == "PreparingRebalance"
        world.advance(50_000)
        assert state(world) == "Empty"

    def test_leaving_by_the_instance_id(self) -> None:
        world = World()
        member = Classic(world, instance_id="a")
        member.join()
        settle(member)
        errors = world.coordinator.leave("g", [Leaving("?", "a"), Leaving("", "?"), Leaving("", "a")])
        assert errors == [GroupError.FENCED_INSTANCE_ID, GroupError.UNKNOWN_MEMBER_ID, OK]
        assert world.coordinator.is_empty("g")


class TestRestarts:
    @pytest.mark.parametrize("instance_ids", [("a", "b"), (None, None), ("a", None)])
    def test_members_keep_their_assignments(self, instance_ids: tuple[str | None, str | None]) -> None:
        world = World()
        members = [Classic(world, instance_id=instance_id) for instance_id in instance_ids]
        members[0].join()
        members[1].join()
        members[0].join()
        settle(*members)
        before = world.coordinator.describe("g")
        world.restart()
        assert world.coordinator.describe("g") == before
        assert [member.beat() for member in members] == [OK, OK]
        assert [member.commit() for member in members] == [OK, OK]
        assert members[1].sync().assignment == members[1].member_id.encode()  # type: ignore[union-attr]
        world.advance(SESSION_MS)
        assert state(world) == "Empty"

    def test_static_members_can_be_replaced(self) -> None:
        world = World()
        old = Classic(world, instance_id="a")
        old.join()
        settle(old)
        world.restart()
        new = Classic(world, instance_id="a")
        assert new.join().generation == old.generation  # type: ignore[union-attr]
        assert new.sync().assignment == old.member_id.encode()  # type: ignore[union-attr]
        world.restart()
        assert old.beat() is GroupError.FENCED_INSTANCE_ID
        assert new.beat() is OK

    def test_a_generation_without_assignments_is_void(self) -> None:
        world = World()
        members = stable(world, 2)
        members[0].protocols = [("range", subscription("u"))]
        for member in members:
            member.join()
        world.restart()
        assert [member.beat() for member in members] == [GroupError.ILLEGAL_GENERATION] * 2
        for member in members:
            member.join()
            member.join()
        assert members[0].generation == members[1].generation == 1_003

    def test_who_never_had_an_assignment_joins_anew(self) -> None:
        world = World()
        member = Classic(world)
        member.join()
        world.restart()
        assert member.beat() is GroupError.UNKNOWN_MEMBER_ID
        assert member.commit() is GroupError.UNKNOWN_MEMBER_ID

    def test_a_rebalance_that_was_stored_begins_anew(self) -> None:
        world = World()
        first, second = Classic(world, instance_id="a"), Classic(world)
        first.join()
        second.join()
        first.join()
        settle(first, second)
        world.coordinator.leave("g", [Leaving("", "a")])
        world.restart()
        assert second.beat() is GroupError.REBALANCE_IN_PROGRESS
        second.join()
        assert second.generation == 1_003

    def test_generations_go_on_when_everybody_has_left(self) -> None:
        world = World(empty_retention_ms=5_000)
        member = stable(world, 1)[0]
        world.coordinator.leave("g", [Leaving(member.member_id)])
        world.restart()
        assert state(world) == "Empty"
        assert Classic(world).join().generation > 2  # type: ignore[union-attr]
        world.restart()
        world.advance(5_000)
        assert not world.store

    def test_what_answers_rest_on_is_stored_before(self) -> None:
        world = World()
        fixed = Classic(world)
        fixed.join()
        writes = world.writes
        seen: list[int] = []
        fixed.sync_respond = lambda _reply: seen.append(world.writes)
        request = SyncRequest(group="g", member_id=fixed.member_id, generation=1)
        world.coordinator.sync(request, fixed.sync_respond)
        assert seen == [writes + 1]
        assert list(world.store) == ["g"]
        for _ in range(3):
            fixed.beat()
        assert world.writes == writes + 1


def test_who_may_commit() -> None:
    world = World()
    check = world.coordinator.check_commit
    assert check("new") is OK
    for member in ("", "m"):
        assert check("new", member) is OK
        assert check("new", member, 0) is GroupError.GROUP_ID_NOT_FOUND
        assert check("new", member, 0, knows_epochs=False) is GroupError.ILLEGAL_GENERATION
    first, second = stable(world, 2, session_ms=1_000)
    assert check("g") is GroupError.UNKNOWN_MEMBER_ID
    assert first.commit() is OK
    assert check("g", first.member_id, first.generation, "i") is GroupError.UNKNOWN_MEMBER_ID
    for _ in range(3):  # a commit is a sign of life
        world.advance(600)
        assert first.commit() is OK
        second.beat()
    second.protocols = [("range", subscription("u"))]
    second.join()
    assert first.commit() is OK  # before it rejoins
    world.coordinator.leave("g", [Leaving(first.member_id), Leaving(second.member_id)])
    assert check("g") is OK
    assert check("g", "m", 0) is GroupError.UNKNOWN_MEMBER_ID
    assert check("g", "", 0) is GroupError.UNKNOWN_MEMBER_ID
    world.restart()
    assert world.coordinator.check_commit("g", "m", 0) is GroupError.UNKNOWN_MEMBER_ID, "the group is there"


def test_what_is_wrong_with_a_join_comes_before_who_joins() -> None:
    world = World()
    Modern(world, "a", group="modern").step()
    for group in ("g", "modern"):
        stranger = Classic(world, group=group, member_id="x", session_ms=1)
        stranger.join()
        stranger.session_ms, stranger.protocols = SESSION_MS, []
        stranger.join()
        assert [each.error for each in stranger.joins] == [
            GroupError.INVALID_SESSION_TIMEOUT,
            GroupError.INCONSISTENT_GROUP_PROTOCOL,
        ]
    (member,) = stable(world, 1)
    member.protocol_type = "connect"
    member.join()
    assert member.joins[-1].error is GroupError.INCONSISTENT_GROUP_PROTOCOL, "its group is one of consumers"
    assert member.beat() is OK


def test_nobody_leaves_a_group_without_a_name() -> None:
    with pytest.raises(RefusedError) as refusal:
        World().coordinator.leave("", [Leaving("m")])
    assert refusal.value.error is GroupError.INVALID_GROUP_ID


def test_positions_of_topics_in_use_may_not_be_deleted() -> None:
    world = World()
    check = world.coordinator.check_delete
    assert check("g", "t") is OK
    member = stable(world, 1)[0]
    assert check("g", "t") is GroupError.GROUP_SUBSCRIBED_TO_TOPIC
    assert check("g", "u") is OK
    assert world.coordinator.delete("g") is GroupError.NON_EMPTY_GROUP
    stable(world, 1, group="connect", protocol_type="connect")
    assert check("connect", "t") is GroupError.NON_EMPTY_GROUP
    world.coordinator.leave("g", [Leaving(member.member_id)])
    assert check("g", "t") is OK
    assert world.coordinator.delete("g") is OK
    assert world.coordinator.delete("g") is GroupError.GROUP_ID_NOT_FOUND


def test_what_is_told_of_a_group() -> None:
    world = World()
    member = Classic(world)
    member.join()
    member.sync_with([(member.member_id, assignment({"t": [0, 2]}))])
    view = world.coordinator.describe("g")
    assert view is not None
    assert (view.type, view.state, view.protocol_type, view.protocol, view.epoch) == (
        "classic",
        "Stable",
        "consumer",
        "range",
        1,
    )
    assert view.members[0].partitions == {"t": [0, 2]}
    assert view.members[0].metadata == subscription("t")
    assert world.coordinator.summaries() == [("g", "classic", "Stable", "consumer")]
    assert world.coordinator.membership("g").members[0].partitions == (("t", 0), ("t", 2))
    assert world.coordinator.membership("?").state == "Empty"


@pytest.mark.parametrize("junk", [b"", b"\0", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\1", b"\0\0\xff\xff\xff\xff"])
def test_assignments_that_cannot_be_read(junk: bytes) -> None:
    world = World()
    member = Classic(world, protocols=[("range", junk)])
    member.join()
    member.sync_with([(member.member_id, junk)])
    assert world.coordinator.describe("g").members[0].partitions == ({} if not junk else None)  # type: ignore[union-attr]
    assert world.coordinator.check_delete("g", "t") is OK


def test_a_group_changes_its_type_only_when_it_is_empty() -> None:
    world = World()
    member = stable(world, 1)[0]
    beat = Beat(group="g", member_id="m", epoch=0, rebalance_ms=1_000, names=["t"], owned=[])
    assert world.coordinator.consumer_heartbeat(beat).error is GroupError.GROUP_ID_NOT_FOUND
    world.coordinator.leave("g", [Leaving(member.member_id)])
    assert world.coordinator.consumer_heartbeat(beat).error is OK
    reply = Classic(world).join()
    assert reply is not None
    assert reply.error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert member.beat() is GroupError.UNKNOWN_MEMBER_ID
    leave = Beat(group="g", member_id="m", epoch=-1)
    assert world.coordinator.consumer_heartbeat(leave).error is OK
    assert Classic(world).join().error is OK  # type: ignore[union-attr]
    world.restart()
    assert world.coordinator.describe("g").type == "classic"  # type: ignore[union-attr]


def test_groups_without_members_are_forgotten_in_time() -> None:
    world = World(empty_retention_ms=5_000)
    ghost = Classic(world, session_ms=1_000)
    ghost._join()
    assert len(world.coordinator.summaries()) == 1
    world.advance(6_001)
    assert world.coordinator.summaries() == []
    member = stable(world, 1)[0]
    for _ in range(5):
        world.advance(3_000)
        member.beat()
    assert state(world) == "Stable"
    assert len(world.coordinator._run.timers) < 5
