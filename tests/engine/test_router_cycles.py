"""Cycles of routers: which there are, and that every record stops going round."""

import random
from itertools import pairwise

import pytest
from engine_support import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from router_support import RouterWorld

from topics_service.engine.router import hops
from topics_service.engine.router.graph import RouterGraph
from topics_service.engine.router.hops import MAX_HOPS, Hops

edges = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")).filter(lambda e: e[0] != e[1])).map(
    lambda found: [edge for edge in found if edge[0] == {b: a for a, b in reversed(found)}[edge[1]]]
)


def reachable(graph: list[tuple[str, str]], start: str) -> set[str]:
    found: set[str] = set()
    frontier = [start]
    while frontier:
        at = frontier.pop()
        for source, dest in graph:
            if source == at and dest not in found:
                found.add(dest)
                frontier.append(dest)
    return found


@given(edges, edges)
def test_rings_are_the_topics_that_reach_themselves(
    added: list[tuple[str, str]], removed: list[tuple[str, str]]
) -> None:
    graph = RouterGraph()
    left = list(added)
    for edge in added:
        graph.add(*edge)
    for edge in removed:
        if edge in left:
            left.remove(edge)
            graph.remove(*edge)
    rings = graph.rings()
    assert rings == {node for node in "abcdef" if node in reachable(left, node)}


@given(edges, st.sampled_from("abc"), st.sampled_from("def"))
def test_a_cycle_is_found_when_there_is_one(given: list[tuple[str, str]], source: str, dest: str) -> None:
    graph = RouterGraph()
    for edge in given:
        graph.add(*edge)
    cycle = graph.cycle(source, dest)
    if source not in reachable(given, dest):
        assert cycle is None
        return
    assert cycle is not None
    assert (cycle[0], cycle[1], cycle[-1]) == (source, dest, source)
    assert all(edge in given for edge in list(pairwise(cycle))[1:])
    assert len(set(cycle)) == len(cycle) - 1


def test_an_old_edge_is_left_out_once() -> None:
    graph = RouterGraph()
    graph.add("b", "a")
    assert graph.cycle("a", "b", without=("b", "a")) is None
    graph.add("b", "a")
    assert graph.cycle("a", "b", without=("b", "a")) == ["a", "b", "a"]


def test_a_long_chain_is_no_recursion() -> None:
    graph = RouterGraph()
    for i in range(5000):
        graph.add(str(i), str(i + 1))
    assert graph.rings() == set()
    assert len(graph.cycle("5000", "0") or ()) == 5002
    graph.add("5000", "0")
    assert len(graph.rings()) == 5001


# ------------------------------------------------------------------------- hops


def test_runs_of_hops() -> None:
    found = Hops()
    assert found.at(1) == (0, None)
    found.add(5, 2, 1)
    found.add(7, 3, 1)
    found.add(12, 1, 2)
    assert [found.at(seq) for seq in (1, 5, 9, 10, 11, 12, 13)] == [
        (0, 5), (1, 10), (1, 10), (0, 12), (0, 12), (2, 13), (0, None),
    ]  # fmt: skip
    found.forget_below(6)
    assert found.at(6) == (1, 10)
    found.forget_below(10)
    assert found.at(10) == (0, 12)
    found.forget_below(13)
    assert found.at(12) == (0, None)


def test_one_write_goes_round_eight_times() -> None:
    """docs/contract.md, 7.5: one write to A settles at five records in A and four in B."""
    world = RouterWorld()
    world.route("a", "b", allow_cycle=True)
    world.route("b", "a", allow_cycle=True)
    world.append(b"x", topic="a", nodes=[b"A"])
    world.forward()
    assert (world.datas("a"), world.datas("b")) == ([b"x"] * 5, [b"x"] * 4)
    assert world.column("b", "nodes") == [b"A"] * 4
    assert world.router("b->a").forwarded_total == world.router("a->b").forwarded_total == 4
    world.append(b"y", topic="b")
    world.forward()
    assert (world.state("a").head_seq, world.state("b").head_seq) == (9, 9)
    assert all(not runs._runs for runs in world.engine.routers.rings._hops.values()), "nothing is kept of what is done"


def test_a_ring_of_three_and_what_hangs_on_it() -> None:
    world = RouterWorld()
    for source, dest in (("a", "b"), ("b", "c"), ("c", "a"), ("b", "out")):
        world.route(source, dest, allow_cycle=True)
    world.append(b"x", topic="a")
    world.forward()
    # a 0, b 1, c 2, a 3, b 4, c 5, a 6, b 7, c 8
    assert [world.state(topic).head_seq for topic in ("a", "b", "c", "out")] == [3, 3, 3, 3], "out has all of b"


def test_a_long_chain_has_no_end() -> None:
    world = RouterWorld()
    for i in range(12):
        world.route(f"t{i}", f"t{i + 1}")
    world.append(b"x", topic="t0")
    world.forward()
    assert world.datas("t12") == [b"x"]


def test_losses_go_round_no_longer_than_records() -> None:
    world = RouterWorld()
    world.put("a", cap_records=2)
    world.route("a", "b", allow_cycle=True)
    world.route("b", "a", allow_cycle=True)
    world.append(*[b"%d" % i for i in range(6)], topic="a")
    world.forward()
    heads = (world.state("a").head_seq, world.state("b").head_seq)
    world.forward()
    assert heads == (world.state("a").head_seq, world.state("b").head_seq)
    assert heads[1] <= 6 * MAX_HOPS


def test_a_restart_in_the_middle_comes_to_an_end_too() -> None:
    world = RouterWorld()
    world.route("a", "b", allow_cycle=True)
    world.route("b", "a", allow_cycle=True)
    world.append(b"x", topic="a")
    for _ in range(5):
        world.engine.routers.forward()
        world.engine.sync()
    world.kill()
    world.forward()
    assert world.state("a").head_seq + world.state("b").head_seq <= 2 * 9


def test_breaking_the_cycle_ends_the_counting() -> None:
    world = RouterWorld()
    world.route("a", "b", allow_cycle=True)
    world.route("b", "a", allow_cycle=True)
    assert set(world.engine.routers.rings._hops) == {"a", "b"}
    world.unroute("b->a")
    assert world.engine.routers.rings._hops == {}
    world.append(b"x", topic="a")
    world.forward()
    assert world.datas("b") == [b"x"]


def test_filters_and_stamps_in_a_cycle() -> None:
    world = RouterWorld()
    world.route("a", "b", allow_cycle=True, guarantee="exactly_once")
    world.route("b", "a", allow_cycle=True, guarantee="exactly_once", eq=b"round")
    world.append(b"x", b"y", topic="a", tags=[b"round", b"once"])
    world.forward()
    assert world.datas("a") == [b"x", b"y", *[b"x"] * 4]
    assert world.datas("b") == [b"x", b"y", *[b"x"] * 3]
    assert all(meta is None or meta.count(b"_topics_router") == 1 for meta in world.metas("a"))


@pytest.mark.parametrize("seed", range(6))
def test_memory_for_hops_is_bounded(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when every record has other hops than its neighbours, and everything comes to an end nevertheless."""
    monkeypatch.setattr(hops, "MAX_RUNS", 6)
    monkeypatch.setattr("topics_service.engine.router.copies.RECORDS", 3)
    rng = random.Random(seed)
    world = RouterWorld()
    world.clock = FakeClock()
    world.start()
    world.route("a", "b", "ab", allow_cycle=True)
    world.route("b", "a", "ba", allow_cycle=True)
    for _ in range(60):
        world.append(b"x", topic=rng.choice("ab"))
        for _ in range(rng.randrange(4)):
            world.engine.routers.forward()
            world.engine.sync()
        assert all(len(runs._runs) <= 6 * (MAX_HOPS + 1) for runs in world.engine.routers.rings._hops.values())
    for _ in range(200):
        world.clock.advance(2000)
        world.engine.maintain()
        world.forward()
    assert not world.engine.routers._blocked
    assert world.router("ab").lag_records == world.router("ba").lag_records == 0
    assert world.state("a").head_seq + world.state("b").head_seq == 60 * 9
