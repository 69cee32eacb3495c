"""`consumer` groups (KIP-848): epochs, targets, revocation before grants, static members, patterns, restarts."""

import pytest

from support.kafka_members import REBALANCE_MS, Classic, Modern, Topics, World, until_quiet
from topics_service.engine.membership.members import MEMBER_BYTES, Beat, GroupError, Leaving

OK = GroupError.NONE
SESSION_MS = 45_000


def state(world: World) -> str:
    view = world.coordinator.describe("g")
    return view.state if view else "Dead"


def pair(world: World) -> tuple[Modern, Modern]:
    """Two members that share the topic."""
    members = Modern(world, "a"), Modern(world, "b")
    until_quiet(*members)
    return members


@pytest.mark.parametrize(
    ("epoch", "instance_id", "error"),
    [
        (1, None, GroupError.GROUP_ID_NOT_FOUND),
        (-1, None, GroupError.GROUP_ID_NOT_FOUND),
        (-2, "i", GroupError.GROUP_ID_NOT_FOUND),
        (-2, None, GroupError.INVALID_REQUEST),
        (-3, None, GroupError.INVALID_REQUEST),
    ],
)
def test_a_group_that_is_not_there_has_no_members(epoch: int, instance_id: str | None, error: GroupError) -> None:
    world = World()
    member = Modern(world, "a", instance_id=instance_id)
    assert member.beat(epoch).error is error
    world.groups.add("g")  # a group without members, with positions
    assert member.beat(epoch).error is (error if error is GroupError.INVALID_REQUEST else GroupError.UNKNOWN_MEMBER_ID)
    assert world.store == {}


def test_the_first_member_gets_everything_at_once() -> None:
    world = World()
    member = Modern(world, "a")
    reply = member.beat()
    assert (reply.error, reply.member_id, reply.epoch, reply.heartbeat_ms) == (OK, "a", 1, 1_000)
    assert reply.assignment == {world.topics.facts("t").topic_id: [0, 1, 2, 3]}  # type: ignore[union-attr]
    assert state(world) == "Stable"
    member.apply()
    assert member.beat().assignment is None  # it confirms its assignment
    assert member.beat().assignment is None
    assert member.epoch == 1


def test_a_partition_moves_when_its_owner_has_given_it_up() -> None:
    world = World()
    first, second = Modern(world, "a"), Modern(world, "b")
    first.step()
    first.step()
    reply = second.beat()
    assert (reply.epoch, reply.assignment) == (2, {})
    assert state(world) == "Reconciling"
    reply = first.beat()
    assert reply.epoch == 1  # it stays behind until it has given up its part
    assert len(first.target) == 2
    assert second.beat().assignment is None
    first.beat(owned=None)  # does not report its partitions
    second.beat()
    assert second.target == set()
    first.apply()
    assert first.beat().epoch == 2
    second.step()
    assert first.owned | second.owned == world.topics.partitions("t")
    assert not first.owned & second.owned
    second.step()
    assert state(world) == "Stable"


@pytest.mark.parametrize("is_chatty", [False, True])
def test_members_come_and_go(is_chatty: bool) -> None:
    world = World(Topics(t=7))
    members = [Modern(world, name, is_chatty=is_chatty) for name in "abc"]
    until_quiet(*members)
    assert sorted(len(member.owned) for member in members) == [2, 2, 3]
    assert {member.epoch for member in members} == {members[0].epoch}
    kept = set(members[1].owned)
    members[0].beat(-1)
    until_quiet(*members[1:])
    assert sorted(len(member.owned) for member in members[1:]) == [3, 4]
    assert kept <= members[1].owned
    assert state(world) == "Stable"


def test_only_what_has_to_move_moves() -> None:
    world = World(Topics(t=12))
    members = [Modern(world, name) for name in "abc"]
    until_quiet(*members)
    before = {member.member_id: set(member.owned) for member in members}
    members.append(Modern(world, "d"))
    until_quiet(*members)
    assert [len(member.owned) for member in members] == [3, 3, 3, 3]
    assert sum(len(before[member.member_id] - member.owned) for member in members[:3]) == 3


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, GroupError.INVALID_REQUEST),
        ({"member_id": "", "makes_id": False}, GroupError.INVALID_REQUEST),
        ({"member_id": "x" * 256}, GroupError.INVALID_REQUEST),
        ({"instance_id": ""}, GroupError.INVALID_REQUEST),
        ({"rack": ""}, GroupError.INVALID_REQUEST),
        ({"rack": "x" * 256}, GroupError.INVALID_REQUEST),
        ({"rebalance_ms": -1}, GroupError.INVALID_REQUEST),
        ({"owned": None}, GroupError.INVALID_REQUEST),
        ({"owned": [(bytes(16), 0)]}, GroupError.INVALID_REQUEST),
        ({"names": None}, GroupError.INVALID_REQUEST),
        ({"names": ["t"] * 10_001}, GroupError.INVALID_REQUEST),
        ({"names": ["t" * 2_000] * 1_000}, GroupError.INVALID_REQUEST),
        ({"epoch": -3}, GroupError.INVALID_REQUEST),
        ({"epoch": -2}, GroupError.INVALID_REQUEST),
        ({"epoch": 1}, GroupError.UNKNOWN_MEMBER_ID),
        ({"epoch": -1}, GroupError.UNKNOWN_MEMBER_ID),
        ({"assignor": "sticky"}, GroupError.UNSUPPORTED_ASSIGNOR),
        ({"regex": "("}, GroupError.INVALID_REGULAR_EXPRESSION),
        ({"regex": r"(a)\1"}, GroupError.INVALID_REGULAR_EXPRESSION),
        ({"regex": "a" * 1_025}, GroupError.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_beats_that_are_refused_change_nothing(fields: dict[str, object], error: GroupError) -> None:
    world = World()
    known = Modern(world, "known")
    known.step()
    stored, epoch = dict(world.store), known.epoch
    beat = Beat(group="g", member_id="m", epoch=0, rebalance_ms=1_000, names=["t"], owned=[])
    for name, value in fields.items():
        setattr(beat, name, value)
    reply = world.coordinator.consumer_heartbeat(beat)
    assert reply.error is error
    assert reply.message
    assert world.store == stored
    known.step()
    assert known.epoch == epoch
    if beat.group:
        beat.group = "new"
        assert world.coordinator.consumer_heartbeat(beat).error
        assert [name for name, *_ in world.coordinator.summaries()] == ["g"]


def test_what_members_make_us_keep_is_bounded() -> None:
    world = World(max_group_bytes=2 * MEMBER_BYTES + 2_000, max_bytes=2 * MEMBER_BYTES + 3_000)
    first, second = Modern(world, "a", names=["x" * 1_436]), Modern(world, "b", names=["y" * 437])
    elsewhere = Modern(world, "c", group="h", names=["z" * 1_437])
    assert first.step().error is OK
    assert second.step().error is GroupError.GROUP_MAX_SIZE_REACHED
    assert elsewhere.step().error is GroupError.GROUP_MAX_SIZE_REACHED
    first.beat(names=["x" * 1_435])
    first.beat(names=["x" * 1_435])
    assert second.step().error is OK
    world.restart()
    assert world.coordinator._run.weight == 2 * MEMBER_BYTES + 2_000
    second.beat(epoch=-1)
    assert world.coordinator._run.weight == MEMBER_BYTES + 1_499
    world.advance(SESSION_MS)
    assert world.coordinator._run.weight == 0


def test_a_member_without_an_id_is_given_one() -> None:
    world = World()
    member = Modern(world, "")
    assert member.beat().member_id == "id1"
    assert member.beat().member_id == "id1"


def test_groups_are_bounded() -> None:
    world = World(max_members=2)
    pair(world)
    assert Modern(world, "c").beat().error is GroupError.GROUP_MAX_SIZE_REACHED
    assert Modern(world, "a").beat().error is OK


class TestEpochs:
    def test_one_from_the_future_or_the_past_is_fenced(self) -> None:
        world = World()
        first, second = pair(world)
        third = Modern(world, "c")
        until_quiet(first, second, third)
        assert first.epoch == 3
        for epoch in (4, 1):
            assert first.beat(epoch, is_lost=True, owned=[]).error is GroupError.FENCED_MEMBER_EPOCH
        assert first.beat(is_lost=True).error is OK

    def test_the_previous_one_is_taken_from_who_missed_the_answer(self) -> None:
        world = World()
        first, second = pair(world)
        second.beat(-1)
        lost = first.beat(is_lost=True)
        assert lost.epoch == first.epoch + 1
        reply = first.beat()
        assert (reply.error, reply.epoch) == (OK, lost.epoch)
        assert reply.assignment == lost.assignment  # sent again

    def test_the_previous_one_is_not_taken_from_who_works_on_more_or_does_not_say(self) -> None:
        world = World()
        first, second = pair(world)
        foreign = sorted(second.owned)
        third = Modern(world, "c")
        third.step()
        first.step()
        first.step()
        old = first.epoch - 1
        assert old > 0
        assert first.beat(old, is_lost=True, owned=foreign).error is GroupError.FENCED_MEMBER_EPOCH
        assert first.beat(old, is_lost=True, owned=None).error is GroupError.FENCED_MEMBER_EPOCH
        assert first.beat(old, is_lost=True, owned=sorted(first.owned)).error is OK

    def test_a_member_may_join_again_and_gets_all_it_had(self) -> None:
        world = World()
        first, second = pair(world)
        epoch, had = first.epoch, set(first.owned)
        first.forget()
        reply = first.beat()
        assert (reply.error, reply.epoch) == (OK, epoch)
        assert first.target == had
        assert second.beat().epoch == epoch

    def test_one_that_joins_again_works_on_nothing_so_that_the_others_need_not_wait(self) -> None:
        world = World()
        first, second = Modern(world, "a"), Modern(world, "b")
        first.step()
        second.step()
        first.beat()
        first.forget()
        first.step()
        second.step()
        assert len(first.owned) == len(second.owned) == 2

    def test_a_lost_answer_to_the_join(self) -> None:
        world = World()
        first = Modern(world, "a")
        lost = first.beat(is_lost=True)
        assert lost.epoch == 1
        reply = first.beat()
        assert (reply.epoch, reply.assignment) == (lost.epoch, lost.assignment)


class TestRevocation:
    def test_who_does_not_give_up_in_time_is_removed(self) -> None:
        world = World()
        first, second = Modern(world, "a"), Modern(world, "b")
        first.step()
        first.step()
        second.step()
        first.beat()
        for _ in range(REBALANCE_MS // 5_000 - 1):
            world.advance(5_000)
            assert first.beat().error is OK
            second.step()
            assert not second.owned
        world.advance(5_000)
        assert first.beat().error is GroupError.UNKNOWN_MEMBER_ID
        second.step()
        assert len(second.owned) == 4

    def test_a_silent_owner_keeps_its_partitions_until_its_session_ends(self) -> None:
        world = World()
        first, second = pair(world)
        for _ in range(8):
            world.advance(5_000)
            second.step()
            assert len(second.owned) == 2
        world.advance(5_000)
        second.step()
        assert len(second.owned) == 4
        assert first.beat().error is GroupError.UNKNOWN_MEMBER_ID

    def test_a_partition_that_comes_back_before_it_was_given_up_is_nobody_elses(self) -> None:
        """KAFKA-16147: a partition that is being revoked returns to its owner, then leaves again."""
        world = World()
        first, second = Modern(world, "a"), Modern(world, "b")
        first.step()
        first.step()
        second.step()
        first.beat()  # must give up two
        second.beat(-1)  # now it may keep them
        first.beat(owned=None)
        third = Modern(world, "c")
        third.step()
        third.step()
        assert not third.owned  # the first one has confirmed nothing yet
        first.apply()
        first.step()
        until_quiet(first, third)
        assert len(first.owned) == len(third.owned) == 2
        assert not first.owned & third.owned

    def test_what_is_given_back_before_the_others_come_is_granted_again(self) -> None:
        world = World()
        first, second = Modern(world, "a"), Modern(world, "b")
        first.step()
        first.step()
        second.step()
        first.beat()
        second.beat(-1)
        first.apply()
        reply = first.beat()
        assert len(first.target) == 4
        assert reply.epoch == 3

    def test_a_removed_member_frees_only_what_is_its_own(self) -> None:
        world = World()
        first, second = pair(world)
        third = Modern(world, "c")
        third.step()
        first.beat(-1)
        until_quiet(second, third)
        assert second.owned | third.owned == world.topics.partitions("t")
        assert not second.owned & third.owned


class TestTopics:
    def test_they_grow_appear_and_vanish(self) -> None:
        world = World(Topics(t=2))
        member = Modern(world, "a", names=["t", "u"])
        member.step()
        epoch = member.epoch
        world.topics.put("t", 3)
        world.change_topics()
        member.step()
        assert (member.epoch, len(member.owned)) == (epoch + 1, 3)
        world.topics.put("u", 1)
        world.change_topics()
        member.step()
        assert len(member.owned) == 4
        world.topics.remove("t")
        world.change_topics()
        member.step()
        assert member.owned == world.topics.partitions("u")
        world.topics.put("other", 1)
        world.change_topics()
        epoch = member.beat().epoch
        assert member.beat().epoch == epoch == 4

    def test_one_that_is_made_again_is_another(self) -> None:
        world = World()
        member = Modern(world, "a")
        member.step()
        world.topics.remove("t")
        world.topics.put("t", 4)
        world.change_topics()
        until_quiet(member, rounds=3)
        assert member.owned == world.topics.partitions("t")

    def test_a_subscription_changes(self) -> None:
        world = World(Topics(t=2, u=2))
        first, second = Modern(world, "a", names=["t"]), Modern(world, "b", names=["t", "u"])
        until_quiet(first, second)
        assert second.owned == world.topics.partitions("u")
        first.beat(names=["t", "u"])
        until_quiet(first, second)
        assert len(first.owned) == len(second.owned) == 2
        first.beat(names=[])
        until_quiet(first, second)
        assert (first.owned, second.owned) == (set(), world.topics.partitions("tu"))

    def test_fields_left_out_are_unchanged(self) -> None:
        world = World()
        member = Modern(world, "a", assignor="range")
        member.step()
        for _ in range(3):
            member.step()
        assert member.epoch == 1
        assert world.coordinator.describe("g").protocol == "range"  # type: ignore[union-attr]


class TestPatterns:
    def test_they_match_whole_names_that_the_member_may_see(self) -> None:
        world = World(Topics(alpha=1, alphabet=1, beta=1, alps=1))
        member = Modern(world, "a", names=["beta"], regex="al.*(a|t|s)")
        member.beat(allowed=lambda name: name != "alps")
        assert member.target == world.topics.partitions(["alpha", "alphabet", "beta"])
        other = Modern(world, "b", names=None, regex="alpha")
        until_quiet(member, other)
        assert other.owned == world.topics.partitions(["alpha"])

    def test_they_see_topics_that_come_and_go_but_not_all_the_time(self) -> None:
        world = World(Topics(a1=1))
        member = Modern(world, "m", names=None, regex="a.")
        member.step()
        world.advance(500)
        world.topics.put("a2", 1)
        world.change_topics()
        member.step()
        assert len(member.owned) == 1
        world.advance(500)
        member.step()
        assert len(member.owned) == 2
        epoch = member.epoch
        world.topics.put("b2", 1)
        world.change_topics()
        world.advance(1_000)
        assert member.beat().epoch == epoch

    def test_one_can_be_changed_and_given_up(self) -> None:
        world = World(Topics(a=1, b=1))
        member = Modern(world, "m", names=None, regex="a")
        member.step()
        member.beat(regex="b")
        member.apply()
        until_quiet(member, rounds=2)
        assert member.owned == world.topics.partitions("b")
        member.beat(regex="")
        member.apply()
        until_quiet(member, rounds=2)
        assert member.owned == set()

    def test_one_that_would_take_others_for_ever_takes_no_time(self) -> None:
        world = World(Topics(**{"a" * 200: 1}))
        member = Modern(world, "m", names=None, regex="(a*)*b")
        assert member.beat().assignment == {}

    def test_they_are_matched_once_for_all_who_have_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        topics = Topics(a=1, b=1, c=1)
        world, names, reads = World(topics), topics.names, []
        monkeypatch.setattr(topics, "names", lambda: reads.append(1) or names())
        world.restart()
        members = [Modern(world, f"m{i}", names=None, regex="[a-z]") for i in range(20)]
        until_quiet(*members)
        assert len(reads) == 1
        secret = Modern(world, "limited", group="h", names=None, regex="[a-z]")
        secret.beat(allowed=lambda name: name == "a")
        assert secret.target == world.topics.partitions("a")
        topics.put("d", 1)
        world.change_topics()
        until_quiet(*members)
        assert len(reads) == 3
        assert set().union(*[member.owned for member in members]) == world.topics.partitions("abcd")

    def test_a_restart_keeps_what_they_found_until_the_member_is_heard_of(self) -> None:
        world = World(Topics(a=1, secret=1))
        member = Modern(world, "m", names=None, regex=".*")
        member.beat(allowed=lambda name: name != "secret")
        member.apply()
        world.restart()
        world.topics.put("b", 1)
        world.change_topics()
        other = Modern(world, "n", names=["x"])
        other.step()
        assert member.owned == world.topics.partitions("a")
        world.advance(1_000)
        member.beat(allowed=lambda name: name != "secret")
        assert member.target == world.topics.partitions("ab")


class TestStaticMembers:
    def test_one_that_is_away_for_a_while_keeps_its_partitions(self) -> None:
        world = World()
        old, other = Modern(world, "a", instance_id="i"), Modern(world, "b")
        until_quiet(old, other)
        had, epoch = set(old.owned), old.epoch
        assert old.beat(-2).epoch == -2
        until_quiet(other, rounds=3)
        assert len(other.owned) == 2
        new = Modern(world, "c", instance_id="i")
        assert new.beat().epoch == epoch
        assert new.target == had
        assert old.beat(epoch).error is GroupError.FENCED_INSTANCE_ID
        assert other.beat().epoch == epoch

    def test_what_it_took_over_can_move_on(self) -> None:
        world = World()
        old = Modern(world, "a", instance_id="i")
        old.step()
        old.beat(-2)
        new, other = Modern(world, "b", instance_id="i"), Modern(world, "c")
        until_quiet(new, other)
        assert len(new.owned) == len(other.owned) == 2
        new.beat(-1)
        until_quiet(other)
        assert len(other.owned) == 4

    def test_the_same_process_may_come_back_too(self) -> None:
        world = World()
        member = Modern(world, "a", instance_id="i")
        member.step()
        member.beat(-2)
        assert member.beat(1).error is GroupError.FENCED_MEMBER_EPOCH
        assert member.beat().error is OK
        assert member.epoch == 1

    def test_one_that_does_not_come_back_loses_them(self) -> None:
        world = World()
        old, other = Modern(world, "a", instance_id="i"), Modern(world, "b")
        until_quiet(old, other)
        old.beat(-2)
        until_quiet(other, rounds=SESSION_MS // 1_000 + 1)
        assert len(other.owned) == 4

    def test_an_instance_in_use_is_not_given_away(self) -> None:
        world = World()
        Modern(world, "a", instance_id="i").step()
        assert Modern(world, "b", instance_id="i").beat().error is GroupError.UNRELEASED_INSTANCE_ID
        assert Modern(world, "b", instance_id="i").beat(1).error is GroupError.FENCED_INSTANCE_ID
        assert Modern(world, "b", instance_id="j").beat(1).error is GroupError.UNKNOWN_MEMBER_ID
        assert Modern(world, "a", instance_id="j").beat().error is GroupError.INVALID_REQUEST
        assert Modern(world, "a").beat().error is GroupError.INVALID_REQUEST

    def test_one_that_leaves_for_good_frees_its_instance(self) -> None:
        world = World()
        member = Modern(world, "a", instance_id="i")
        member.step()
        assert member.beat(-1).error is OK
        assert state(world) == "Empty"
        assert Modern(world, "b", instance_id="i").beat().error is OK

    def test_one_that_leaves_while_it_gives_up_has_given_up(self) -> None:
        world = World()
        first, second = Modern(world, "a", instance_id="i"), Modern(world, "b")
        first.step()
        first.step()
        second.step()
        first.beat()
        first.beat(-2)
        second.step()
        assert len(second.owned) == 2

    def test_an_operator_removes_them_by_their_instance_ids(self) -> None:
        world = World()
        Modern(world, "a", instance_id="i").step()
        errors = world.coordinator.leave("g", [Leaving("", "j"), Leaving("b", "i"), Leaving("a"), Leaving("", "i")])
        assert errors == [
            GroupError.UNKNOWN_MEMBER_ID,
            GroupError.FENCED_INSTANCE_ID,
            GroupError.UNKNOWN_MEMBER_ID,
            OK,
        ]
        assert state(world) == "Empty"


class TestPositions:
    def test_who_may_commit(self) -> None:
        world = World()
        first, second = pair(world)
        check = world.coordinator.check_commit
        assert check("g") is GroupError.UNKNOWN_MEMBER_ID
        assert check("g", "a", first.epoch) is OK
        assert check("g", "z", first.epoch) is GroupError.UNKNOWN_MEMBER_ID
        assert check("g", "a", first.epoch, knows_epochs=False) is GroupError.UNSUPPORTED_VERSION
        assert check("g", "z", first.epoch, knows_epochs=False) is GroupError.UNKNOWN_MEMBER_ID
        assert check("g", "a", first.epoch, "i") is OK, "its instance is not asked"
        assert check("g", "a", first.epoch + 1) is GroupError.STALE_MEMBER_EPOCH
        assert check("g", "a", first.epoch - 1) is GroupError.STALE_MEMBER_EPOCH
        assert check("g", "a", first.epoch - 1, partitions=[]) is GroupError.STALE_MEMBER_EPOCH
        second.beat(-1)
        first.beat()
        kept, new = sorted(first.owned), sorted(first.target - first.owned)
        assert check("g", "a", first.epoch - 1, partitions=kept) is OK
        assert check("g", "a", first.epoch - 1, partitions=[*kept, new[0]]) is GroupError.STALE_MEMBER_EPOCH
        first.beat(-1)
        assert check("g") is OK
        assert check("g", "a", 3) is GroupError.UNKNOWN_MEMBER_ID

    def test_a_commit_is_a_sign_of_life(self) -> None:
        world = World()
        member = Modern(world, "a")
        member.step()
        for _ in range(3):
            world.advance(SESSION_MS - 1_000)
            assert world.coordinator.check_commit("g", "a", 1) is OK
        assert member.beat().error is OK

    def test_who_may_fetch(self) -> None:
        world = World()
        first, _ = pair(world)
        check = world.coordinator.check_fetch
        assert check("g") is OK
        assert check("g", "a", first.epoch) is OK
        assert check("g", "a", first.epoch - 1) is GroupError.STALE_MEMBER_EPOCH
        assert check("g", "z", 1) is GroupError.UNKNOWN_MEMBER_ID
        assert check("g", "", -1) is GroupError.UNKNOWN_MEMBER_ID
        assert check("?", "z", 1) is OK
        Classic(world, group="classic").join()
        assert check("classic", "z", 1) is OK, "classic members don't say that they are"

    def test_positions_of_topics_in_use_may_not_be_deleted(self) -> None:
        world = World(Topics(t=1, x=1))
        Modern(world, "a", regex="x.*").step()
        check = world.coordinator.check_delete
        expected = [GroupError.GROUP_SUBSCRIBED_TO_TOPIC] * 2 + [OK]
        assert [check("g", name) for name in "txu"] == expected


class TestRestarts:
    def test_nothing_is_lost(self) -> None:
        world = World()
        first, second = Modern(world, "a"), Modern(world, "b", instance_id="i", assignor="range")
        first.step()
        first.step()
        second.step()
        first.beat()  # must give up
        before = world.coordinator.describe("g")
        world.restart()
        after = world.coordinator.describe("g")
        assert after == before
        assert second.beat().assignment is None
        assert not second.target
        first.apply()
        until_quiet(first, second)
        assert len(first.owned) == len(second.owned) == 2

    def test_owners_that_do_not_come_back_are_removed(self) -> None:
        world = World()
        _, second = pair(world)
        world.restart()
        until_quiet(second, rounds=SESSION_MS // 1_000 + 1)
        assert len(second.owned) == 4

    def test_the_time_to_give_up_begins_anew(self) -> None:
        world = World()
        first, second = Modern(world, "a"), Modern(world, "b")
        first.step()
        first.step()
        second.step()
        first.beat()
        world.restart()
        world.advance(REBALANCE_MS - 1)
        assert first.beat().error is OK
        world.advance(1)
        assert first.beat().error is GroupError.UNKNOWN_MEMBER_ID

    def test_epochs_go_on_when_everybody_has_left(self) -> None:
        world = World()
        first, _ = pair(world)
        epoch = first.epoch
        first.beat(-1)
        Modern(world, "b").beat(-1)
        world.restart()
        assert state(world) == "Empty"
        assert Modern(world, "c").beat().epoch > epoch

    def test_only_what_changes_is_stored(self) -> None:
        world = World()
        first = Modern(world, "a")
        first.step()
        assert world.writes == 1
        for _ in range(5):
            first.beat()
            world.advance(1_000)
        assert world.writes == 1
        first.beat(-1)
        assert world.writes == 2

    def test_what_is_stored_of_groups_nobody_belongs_to_is_dropped_in_time(self) -> None:
        world = World(empty_retention_ms=5_000)
        Modern(world, "a").step()
        world.advance(SESSION_MS)
        assert state(world) == "Empty"
        assert world.store
        world.restart()
        world.advance(5_000)
        assert not world.store
        assert world.coordinator.describe("g") is None

    @pytest.mark.parametrize("row", [b"", b"\xc1", b"\x93\x01\x02\x03"])
    def test_rows_that_cannot_be_read(self, row: bytes) -> None:
        with pytest.raises(ValueError, match="stored state of group g"):
            World().coordinator.load("g", row)


def test_the_assignor_is_the_one_most_members_prefer() -> None:
    world = World(Topics(t=3, u=3))
    members = [
        Modern(world, name, names=["t", "u"], assignor=assignor)
        for name, assignor in zip("abc", ["range", "range", "uniform"], strict=True)
    ]
    until_quiet(*members)
    view = world.coordinator.describe("g")
    assert view is not None
    assert (view.protocol, view.state, view.protocol_type, view.type) == ("range", "Stable", "consumer", "consumer")
    assert view.epoch == view.assignment_epoch == members[0].epoch
    assert view.members[0].partitions == view.members[0].target == {"t": [0], "u": [0]}
    assert list(view.members[0].names) == ["t", "u"]
    assert world.coordinator.summaries() == [("g", "consumer", "Stable", "consumer")]


def test_many_members_do_not_need_many_alarms() -> None:
    world = World()
    member = Modern(world, "a")
    for _ in range(500):
        member.step()
        world.advance(1_000)
    for i in range(300):
        Modern(world, f"m{i}").beat()
        Modern(world, f"m{i}").beat(-1)
    assert len(world.coordinator._run.timers) < 100
