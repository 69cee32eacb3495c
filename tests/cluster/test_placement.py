"""Placement is even by capacity, moves only what a change asks for, and leads every node to the same end."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from topics_cluster.coordinator import Addresses, Node, Owner, View
from topics_cluster.placement import Layout, Move, eligible, lay_out, moves, next_move, score, shares

ADDRESSES = Addresses(http="h:1", grpc="h:2")
SHARDS = st.integers(1, 24)
CAPACITIES = st.lists(st.integers(1, 4), min_size=1, max_size=7)


def node(name: str, capacity: int = 1, zone: str = "", warm: Iterable[int] = ()) -> Node:
    return Node(name=name, addresses=ADDRESSES, capacity=capacity, zone=zone, warm=tuple(warm))


def view(
    nodes: Iterable[Node],
    owners: Mapping[int, str | None] | None = None,
    *,
    wanted: Mapping[int, str] | None = None,
    drained: Iterable[str] = (),
    zones: Mapping[int, str] | None = None,
) -> View:
    claims = {
        shard: Owner(node=name, addresses=ADDRESSES, epoch=1)
        for shard, name in (owners or {}).items()
        if name is not None
    }
    by_name = {each.name: each for each in nodes}
    return View(
        revision=1, nodes=by_name, owners=claims, wanted=wanted or {}, drained=frozenset(drained), zones=zones or {}
    )


def owned(layout: Layout) -> dict[int, str | None]:
    return dict(enumerate(layout.owners))


def named(capacities: Iterable[int]) -> list[Node]:
    return [node(f"node-{index}", capacity) for index, capacity in enumerate(capacities)]


def is_even(shards: int, nodes: list[Node], layout: Layout) -> bool:
    loads = Counter(layout.owners)
    return all(
        math.floor(share + 1e-9) <= loads[name] <= math.ceil(share - 1e-9)
        for name, share in shares(shards, nodes).items()
    )


@given(SHARDS, CAPACITIES, st.data())
def test_each_node_has_its_share_whatever_was_before(shards: int, capacities: list[int], data: st.DataObject) -> None:
    nodes = named(capacities)
    names = st.sampled_from([*(each.name for each in nodes), "dead", None])
    before = view(nodes, {shard: data.draw(names) for shard in range(shards)})
    found = lay_out(shards, before, 1)
    assert is_even(shards, nodes, found)
    assert owned(lay_out(shards, view(nodes, owned(found)), 1)) == owned(found), "and there it stays"


@given(SHARDS, CAPACITIES, st.integers(1, 4))
def test_a_node_that_joins_gets_its_share_and_no_other_shard_moves(
    shards: int, capacities: list[int], capacity: int
) -> None:
    nodes = named(capacities)
    before = owned(lay_out(shards, view(nodes), 1))
    joined = node("new", capacity)
    after = owned(lay_out(shards, view([*nodes, joined], before), 1))
    moved = {shard for shard in before if before[shard] != after[shard]}
    assert len(moved) <= math.ceil(shares(shards, [*nodes, joined])["new"] - 1e-9) + len(nodes) * (
        len({*capacities, capacity}) > 1
    )
    if len({*capacities, capacity}) == 1:
        assert {after[shard] for shard in moved} <= {"new"}


@given(SHARDS, CAPACITIES.filter(lambda found: len(found) > 1), st.data())
def test_a_node_that_leaves_gives_its_shards_and_no_other_shard_moves(
    shards: int, capacities: list[int], data: st.DataObject
) -> None:
    nodes = named(capacities)
    before = owned(lay_out(shards, view(nodes), 1))
    gone = data.draw(st.sampled_from(nodes))
    rest = [each for each in nodes if each is not gone]
    for left in (view(rest, before), view(nodes, before, drained=[gone.name])):
        after = owned(lay_out(shards, left, 1))
        moved = {shard for shard in before if before[shard] != after[shard]}
        lost = {shard for shard in before if before[shard] == gone.name}
        assert lost <= moved
        if len(set(capacities)) == 1:
            assert lost == moved


def test_scores_follow_the_capacity() -> None:
    small, large = node("a", 1), node("b", 3)
    wins = sum(score(shard, large) > score(shard, small) for shard in range(4000))
    assert 0.72 < wins / 4000 < 0.78


@given(SHARDS, st.lists(st.sampled_from("xyz"), min_size=2, max_size=7), st.integers(1, 3))
def test_followers_are_others_and_in_other_zones_where_there_are_such(
    shards: int, zones: list[str], count: int
) -> None:
    nodes = [node(f"node-{index}", zone=zone) for index, zone in enumerate(zones)]
    zone_of = {each.name: each.zone for each in nodes}
    found = lay_out(shards, view(nodes), count)
    for owner, followers in zip(found.owners, found.followers, strict=True):
        assert owner is not None
        assert len(set(followers)) == len(followers) == min(count, len(nodes) - 1)
        assert owner not in followers
        assert len({zone_of[name] for name in (owner, *followers)}) == min(len(set(zones)), 1 + len(followers))


@given(SHARDS, CAPACITIES, st.integers(0, 3), st.data())
def test_replicas_come_to_rest(shards: int, capacities: list[int], count: int, data: st.DataObject) -> None:
    """Nodes that catch up with what they are to hold, and moves one by one, end in a layout that changes no more."""
    nodes = {each.name: each for each in named(capacities)}
    some = st.sets(st.integers(0, shards - 1))
    warm = {name: data.draw(some) for name in nodes}
    owners = {shard: data.draw(st.sampled_from(sorted(nodes))) for shard in range(shards)}
    before = None
    for _ in range(3 * shards + 10):
        members = [node(name, each.capacity, warm=sorted(warm[name])) for name, each in nodes.items()]
        now = view(members, owners)
        layout = lay_out(shards, now, count)
        state = dict(owners), {name: frozenset(held) for name, held in warm.items()}
        if state == before:
            break
        before = state
        for name, held in warm.items():
            held |= {shard for shard in range(shards) if name in layout.holders(shard) or owners[shard] == name}
        move = next_move(shards, now, layout, is_settled=True)
        if move is not None:
            assert owners[move.shard] != move.node
            owners[move.shard] = move.node
        for name, held in warm.items():  # what is not needed any more, once those that are have it
            for shard in list(held):
                wanted = layout.holders(shard)
                if name not in wanted and owners[shard] != name and all(shard in warm[each] for each in wanted):
                    held.remove(shard)
    else:
        raise AssertionError("it does not come to rest")
    assert is_even(shards, list(nodes.values()), layout)
    assert moves(shards, now, layout) == []
    assert all(len(each) == min(count, len(nodes) - 1) for each in layout.followers)


def test_moves_have_their_order() -> None:
    nodes = [node("a", warm=range(6)), node("b", warm=range(6)), node("c")]
    owners = dict.fromkeys(range(6), "a")

    def due(*, is_settled: bool = True, **given: object) -> Move | None:
        now = view(nodes, owners, **given)  # type: ignore[arg-type]
        return next_move(6, now, lay_out(6, now, 1), is_settled=is_settled)

    first = due()
    assert first is not None
    assert first.node == "b", "c has not caught up with any"
    assert due(is_settled=False) is None
    assert due(wanted={4: "b"}) == Move(4, "b")
    assert due(wanted={4: "c", 5: "b"}, is_settled=False) == Move(5, "b"), (
        "a wish for what can't be yet holds up no other"
    )
    assert due(wanted={4: "a"}, is_settled=False) is None, "it is there"
    assert due(wanted={9: "b", 3: "x"}, is_settled=False) is None, "there is no such shard, or node"
    away = due(drained=["a"], is_settled=False)
    assert away is not None
    assert away.node == "b"
    assert due(drained=["a", "b", "c"], is_settled=False) is None, "somebody has to own them"


def test_no_shard_moves_while_another_one_is_between_two_owners() -> None:
    nodes = [node("a", warm=range(2)), node("b", warm=range(2))]
    now = view(nodes, {0: "a"}, wanted={0: "b"})
    assert next_move(2, now, lay_out(2, now, 1), is_settled=True) == Move(0, "b")
    between = Owner(node="b", addresses=ADDRESSES, epoch=0)
    now = View(revision=2, nodes=now.nodes, owners={**now.owners, 1: between}, wanted=now.wanted)
    assert next_move(2, now, lay_out(2, now, 1), is_settled=True) is None


def test_a_move_waits_while_one_of_its_nodes_loads_a_replica() -> None:
    everything = range(3)
    for nodes, expected in (
        ([node("a", warm=everything), node("b", warm=everything)], Move(0, "b")),
        ([node("a", warm=everything), node("b", warm=[0, 1])], None),
        ([node("a", warm=[0, 1]), node("b", warm=everything)], None),
    ):
        now = view(nodes, dict.fromkeys(everything, "a"), wanted={0: "b"})
        layout = lay_out(3, now, 1)
        assert next_move(3, now, layout, is_settled=False) == expected
        assert next_move(3, now, layout, is_settled=True) == Move(0, "b"), "it does not wait for ever"


def test_drained_nodes_get_nothing_unless_all_are() -> None:
    nodes = [node("a"), node("b")]
    assert [each.name for each in eligible(view(nodes, drained=["b", "gone"]))] == ["a"]
    assert [each.name for each in eligible(view(nodes, drained=["a", "b"]))] == ["a", "b"]
    assert lay_out(3, view([]), 1) == Layout([None] * 3, [()] * 3)
    found = lay_out(3, view(nodes, dict.fromkeys(range(3), "b"), drained=["b"]), 1)
    assert found.owners == ["a"] * 3
    assert found.followers == [[]] * 3


@given(SHARDS, st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 4)), min_size=1, max_size=7), st.data())
def test_shards_that_prefer_a_zone_are_owned_there_and_all_others_make_up_for_it(
    shards: int, made: list[tuple[str, int]], data: st.DataObject
) -> None:
    nodes = [node(f"node-{index}", capacity, zone=zone) for index, (zone, capacity) in enumerate(made)]
    zone_of = {each.name: each.zone for each in nodes}
    preferred = data.draw(st.dictionaries(st.integers(0, shards), st.sampled_from("xyzw")))  # w has no node
    names = st.sampled_from([*zone_of, "dead", None])
    before = {shard: data.draw(names) for shard in range(shards)}
    found = lay_out(shards, view(nodes, before, zones=preferred), 1)
    pinned = {s: zone for s, zone in preferred.items() if zone in zone_of.values() and s < shards}
    for shard, zone in pinned.items():
        assert zone_of[found.owners[shard] or ""] == zone
    for zone in set(pinned.values()):
        there = [each for each in nodes if each.zone == zone]
        held = [shard for shard, each in pinned.items() if each == zone]
        loads = Counter(found.owners[shard] for shard in held)
        for name, share in shares(len(held), there).items():
            assert math.floor(share + 1e-9) <= loads[name] <= math.ceil(share - 1e-9)
    if not pinned:
        assert is_even(shards, nodes, found), "zones without a node change nothing"
    fair = {name: math.ceil(share - 1e-9) for name, share in shares(shards, nodes).items()}
    bound = Counter(found.owners[shard] for shard in pinned)
    loads = Counter(found.owners)
    assert all(loads[name] <= max(fair[name], bound[name]) for name in zone_of), "a full node gets no free shard"
    assert owned(lay_out(shards, view(nodes, owned(found), zones=preferred), 1)) == owned(found), "and there it stays"


def test_a_shard_leaves_its_zone_with_the_last_node_and_comes_back() -> None:
    there, other = node("a", zone="x", warm=range(2)), node("b", zone="y", warm=range(2))
    zones = {0: "x", 1: "y"}
    first = lay_out(2, view([there, other], zones=zones), 1)
    assert first.owners == ["a", "b"]
    assert first.followers == [["b"], ["a"]]
    for gone in (view([other], zones=zones), view([there, other], drained=["a"], zones=zones)):
        assert lay_out(2, gone, 1).owners == ["b", "b"], "drained is as gone"
    back = view([there, other], {0: "b", 1: "b"}, zones=zones)
    assert next_move(2, back, lay_out(2, back, 1), is_settled=True) == Move(0, "a")
    cold = view([node("a", zone="x"), other], {0: "b", 1: "b"}, zones=zones)
    assert next_move(2, cold, lay_out(2, cold, 1), is_settled=True) is None, "it has to catch up first"
