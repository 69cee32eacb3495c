"""Routers as they are made, changed, listed and removed: every rule of docs/contract.md, 7.1 to 7.3, in order."""

from typing import Any

import pytest
from engine_support import FaultyStore, code
from router_support import RouterWorld

from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import ConfigInput, TagMatch
from topics_service.engine.names import check_router_name
from topics_service.engine.router.router import ListRoutersRequest, RouterConfig
from topics_service.storage.store import Family, StoreOpenError


@pytest.fixture
def world() -> RouterWorld:
    return RouterWorld()


def refused(world: RouterWorld, *ends: str, **put: Any) -> tuple[str, Any]:
    with pytest.raises(TopicsError) as error:
        world.route(*ends, **put)
    return code(error), error.value.detail


def names(world: RouterWorld, allowed: tuple[str, ...] | None = None, **request: Any) -> list[str]:
    page = world.engine.routers.page(ListRoutersRequest(**request), allowed)
    return [state.router for state in page.routers]


# ------------------------------------------------------------------------ put


def test_a_new_router_makes_both_ends_and_starts_at_the_head(world: RouterWorld) -> None:
    reply = world.route("a", "b")
    assert reply.created
    assert reply.config == RouterConfig(source="a", dest="b")
    assert world.state("a").head_seq == world.state("b").head_seq == 0
    state = world.router("a->b")
    assert (state.forwarded_total, state.lag_records, state.last_error) == (0, 0, None)


def test_what_was_there_before_is_not_forwarded(world: RouterWorld) -> None:
    world.append(b"old", topic="a")
    world.route("a", "b")
    world.append(b"new", topic="a")
    world.forward()
    assert world.datas("b") == [b"new"]


def test_backfill_starts_before_the_earliest_record(world: RouterWorld) -> None:
    world.put("a", cap_records=2)
    world.append(b"1", b"2", b"3", topic="a")
    world.route("a", "b", backfill=True)
    world.forward()
    assert world.datas("b") == [b"2", b"3"]
    assert world.gaps("b") == []
    assert world.router("a->b").forwarded_total == 2


def test_backfill_acts_on_creation_only(world: RouterWorld) -> None:
    world.append(b"old", topic="a")
    world.route("a", "b")
    world.route("a", "b", backfill=True, preserve_tag=False)
    world.forward()
    assert world.datas("b") == []


@pytest.mark.parametrize("name", ["", "-a", ">a", "a b", "a/b", "ä", "a" * 256])
def test_bad_router_names(world: RouterWorld, name: str) -> None:
    assert refused(world, "a", "b", name)[0] == "invalid_request"
    assert len(world.engine.catalog) == 0


@pytest.mark.parametrize("name", ["a->b", "A:1_b.c>", "a" * 255, "0"])
def test_good_router_names(name: str) -> None:
    check_router_name(name)


@pytest.mark.parametrize(("source", "dest"), [("a", "a"), (".a", "b"), ("a", "b c"), ("a", "b>c"), ("", "b")])
def test_bad_ends(world: RouterWorld, source: str, dest: str) -> None:
    assert refused(world, source, dest, "r")[0] == "invalid_request"
    assert len(world.engine.catalog) == 0


def test_a_missing_destination_that_must_be_there(world: RouterWorld) -> None:
    assert refused(world, "a", "b", create_dest=False) == ("topic_not_found", {"topic": "b"})
    assert len(world.engine.catalog) == 0
    world.put("b")
    assert world.route("a", "b", create_dest=False).created
    assert world.state("a").head_seq == 0, "the source is made in any case"


def test_a_destination_has_one_source(world: RouterWorld) -> None:
    world.route("a", "b")
    detail = {"topic": "b", "reason": "router_dest_fan_in"}
    assert refused(world, "c", "b") == ("topic_exists_incompatible", detail)
    assert world.route("a", "b", "again").created
    world.unroute("a->b")
    assert refused(world, "c", "b")[0] == "topic_exists_incompatible"
    world.unroute("again")
    assert world.route("c", "b").created


def test_the_order_of_the_checks() -> None:
    """docs/contract.md, 7.2: each request has every fault from its own on; the first one is told."""
    world = RouterWorld(limits=Limits(max_routers=2, max_topics=3))
    world.route("a", "b")
    world.route("b", "c")
    assert refused(world, "x", "x", "bad name")[0] == "invalid_request"
    assert refused(world, "x", "b", create_dest=False)[0] == "topic_exists_incompatible"
    assert refused(world, "x", "new", create_dest=False)[0] == "topic_not_found"
    assert refused(world, "c", "b")[0] == "topic_exists_incompatible", "fan-in comes before the cycle"
    assert refused(world, "c", "a") == ("throttled", {"limit": "max_routers", "max": 2})
    world.unroute("a->b")
    assert refused(world, "c", "b")[0] == "router_cycle"
    assert refused(world, "x", "a") == ("throttled", {"limit": "max_topics", "max": 3})
    assert sorted(world.engine.catalog.topics) == ["a", "b", "c"]


def test_a_router_too_many_leaves_no_topics_behind() -> None:
    world = RouterWorld(limits=Limits(max_routers=1))
    world.route("a", "b")
    assert refused(world, "c", "d")[0] == "throttled"
    assert sorted(world.engine.catalog.topics) == ["a", "b"]
    assert not world.route("a", "b", preserve_node=False).created, "changing one is never too many"
    world.unroute("a->b")
    assert world.route("c", "d").created


def test_two_topics_need_room_for_two() -> None:
    world = RouterWorld(limits=Limits(max_topics=1))
    assert refused(world, "a", "b") == ("throttled", {"limit": "max_topics", "max": 1})
    assert len(world.engine.catalog) == 0
    assert len(world.engine.routers) == 0


def test_put_replaces_the_config(world: RouterWorld) -> None:
    world.route("a", "b", preserve_node=False, preserve_tag=False, eq=b"x", allow_cycle=True, guarantee="exactly_once")
    given = world.router("a->b").config
    assert given.filter == TagMatch("Eq", b"x")
    reply = world.route("a", "b")
    assert not reply.created
    assert world.router("a->b").config == RouterConfig(source="a", dest="b")


# --------------------------------------------------------------------- cycles


def test_the_cycle_closes_on_the_new_source(world: RouterWorld) -> None:
    world.route("a", "b")
    world.route("b", "c")
    assert refused(world, "c", "a") == ("router_cycle", {"cycle": ["c", "a", "b", "c"]})
    assert refused(world, "b", "a") == ("router_cycle", {"cycle": ["b", "a", "b"]})
    world.route("a", "d")
    world.route("d", "e")
    assert world.route("c", "f").created


def test_edges_that_allow_cycles_count_too(world: RouterWorld) -> None:
    world.route("a", "b", allow_cycle=True)
    assert refused(world, "b", "a")[0] == "router_cycle"
    assert world.route("b", "a", allow_cycle=True).created
    assert not world.route("a", "b", allow_cycle=True, preserve_tag=False).created


def test_a_router_does_not_stand_in_its_own_way(world: RouterWorld) -> None:
    world.route("a", "b", "r")
    assert not world.route("b", "a", "r").created, "its old edge is gone then"
    world.route("b", "a", "twin")
    assert refused(world, "a", "b", "r")[0] == "router_cycle", "the edge of its twin is not"


def test_putting_the_same_again_is_no_new_cycle(world: RouterWorld) -> None:
    world.route("a", "b")
    world.route("b", "a", allow_cycle=True)
    assert not world.route("a", "b").created
    assert not world.route("a", "b", preserve_node=False).created
    assert refused(world, "b", "a")[0] == "router_cycle", "it would have none that allows it"


# -------------------------------------------------------------- list, get, delete


def test_list_pages_and_filters(world: RouterWorld) -> None:
    for name, source, dest in (("a", "s1", "d1"), ("b", "s1", "d2"), ("c>", "s2", "d3"), ("x", "s2", "d3")):
        world.route(source, dest, name)
    assert names(world) == ["a", "b", "c>", "x"]
    assert names(world, prefix="c") == ["c>"]
    assert names(world, source="s1") == ["a", "b"]
    assert names(world, dest="d3") == ["c>", "x"]
    assert names(world, source="s1", dest="d2") == ["b"]
    assert names(world, source="s1", dest="d3") == []
    assert names(world, source="s1", prefix="b") == ["b"]
    assert names(world, source="none") == []
    page = world.engine.routers.page(ListRoutersRequest(page_size=2))
    assert ([state.router for state in page.routers], page.next_after) == (["a", "b"], "b")
    page = world.engine.routers.page(ListRoutersRequest(page_size=2, after="b"))
    assert ([state.router for state in page.routers], page.next_after) == (["c>", "x"], None)
    assert names(world, source="s1", after="a") == ["b"]


def test_list_shows_only_what_lies_within_the_prefixes(world: RouterWorld) -> None:
    world.route("p:a", "p:b", "p:ok")
    world.route("p:a", "q:b", "p:dest")
    world.route("q:a", "p:c", "p:source")
    world.route("p:a", "p:d", "q:name")
    assert names(world, ("p:",)) == ["p:ok"]
    assert names(world, ("p:",), source="p:a") == ["p:ok"]
    assert names(world, ("p:", "q:")) == ["p:dest", "p:ok", "p:source", "q:name"]
    assert [router.name for router in world.engine.routers.sample(10, ("p:",))] == ["p:ok"]
    assert [router.name for router in world.engine.routers.sample(2)] == ["p:dest", "p:ok"]


def test_delete_is_idempotent_and_keeps_the_copies(world: RouterWorld) -> None:
    world.route("a", "b")
    world.append(b"1", topic="a")
    world.forward()
    assert world.unroute("a->b")
    assert not world.unroute("a->b")
    world.append(b"2", topic="a")
    world.forward()
    assert world.datas("b") == [b"1"]
    with pytest.raises(TopicsError) as error:
        world.router("a->b")
    assert (code(error), error.value.detail) == ("router_not_found", {"router": "a->b"})
    world.route("a", "b")
    world.append(b"3", topic="a")
    world.forward()
    assert world.datas("b") == [b"1", b"3"], "a new one starts at the head again"
    assert world.router("a->b").forwarded_total == 1


@pytest.mark.parametrize("end", ["a", "b"])
def test_deleting_an_end_deletes_the_routers(world: RouterWorld, end: str) -> None:
    world.route("a", "b", "z")
    world.route("a", "b", "y")
    world.route("b", "c", "x") if end == "b" else world.route("0", "a", "x")
    world.route("d", "e")
    reply, ticket = world.engine.delete_topic(end)
    assert reply.routers_removed == ["x", "y", "z"]
    assert ticket > 0
    assert names(world) == ["d->e"]
    world.engine.sync()
    world.kill()
    assert names(world) == ["d->e"]
    world.put(end)
    world.append(b"1", topic="a")
    world.forward()
    assert world.state("b").head_seq == 0


def test_deleting_other_topics_removes_no_router(world: RouterWorld) -> None:
    world.route("a", "b")
    world.put("c")
    assert world.engine.delete_topic("c")[0].routers_removed == []
    assert world.engine.delete_topic("none")[0].routers_removed == []
    assert names(world) == ["a->b"]


# ---------------------------------------------------------------------- durability


def test_a_router_is_told_of_once_it_is_durable(world: RouterWorld) -> None:
    world.route("a", "b", sync=False)
    with pytest.raises(TopicsError):
        world.router("a->b")
    assert names(world) == []
    assert not world.route("a", "b", sync=False).created
    world.engine.sync()
    assert names(world) == ["a->b"]


def test_acks_wait_for_the_write_that_they_repeat(world: RouterWorld) -> None:
    reply, ticket = world.engine.routers.put(request := _request("a", "b"))
    assert reply.created
    assert ticket > world.engine.writer.synced
    assert world.engine.routers.put(request)[1] == ticket
    world.engine.sync()
    changed, later = world.engine.routers.put(_request("a", "b", preserve_node=False))
    assert not changed.created
    assert later > ticket


def _request(source: str, dest: str, **config: Any) -> Any:
    from topics_service.engine.router.router import PutRouterRequest

    return PutRouterRequest(router=f"{source}->{dest}", config=RouterConfig(source=source, dest=dest, **config))


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_routers_survive(world: RouterWorld, end: str) -> None:
    world.route("a", "b", eq=b"x", guarantee="exactly_once", preserve_node=False)
    world.route("a", "c")
    world.append(b"1", b"2", topic="a", tags=[b"x", None])
    world.forward()
    world.append(b"3", topic="a", tags=[b"x"])
    before = world.router("a->b"), world.router("a->c")
    getattr(world, end)()
    assert (world.router("a->b"), world.router("a->c")) == before
    world.forward()
    assert (world.datas("b"), world.datas("c")) == ([b"1", b"3"], [b"1", b"2", b"3"])
    world.unroute("a->b")
    getattr(world, end)()
    assert names(world) == ["a->c"]
    world.route("a", "b")
    getattr(world, end)()
    assert names(world) == ["a->b", "a->c"]


@pytest.mark.parametrize("row", [b"\x00", b"\x01"])
@pytest.mark.parametrize("value", [b"", b"junk", None])
def test_a_damaged_row_keeps_the_server_from_starting(world: RouterWorld, row: bytes, value: bytes | None) -> None:
    world.route("a", "b")
    key = next(key for key, _ in world.rows(Family.ROUTERS) if key.endswith(row))
    batch = world.store.batch()
    if value is not None:
        batch.put(Family.ROUTERS, key, value)
    elif row == b"\x01":
        batch.delete(Family.ROUTERS, key)
    else:
        batch.delete_range(Family.TOPICS, b"", b"\xff" * 9)
    world.store.write(batch)
    with pytest.raises(StoreOpenError, match="router 1 is damaged"):
        world.start()


def test_a_read_only_server_changes_no_routers() -> None:
    store = FaultyStore()
    world = RouterWorld(store)
    world.route("a", "b")
    world.append(b"1", topic="a")
    store.broken = True
    with pytest.raises(TopicsError) as error:
        world.engine.routers.delete("a->b")
    assert code(error) == "internal"
    assert refused(world, "a", "c")[0] == "internal"
    assert not world.engine.routers.forward()
    assert world.router("a->b").lag_records == 1


def test_a_stalled_store_loses_nothing() -> None:
    store = FaultyStore()
    world = RouterWorld(store)
    world.route("a", "b")
    world.append(b"1", topic="a")
    store.stalled = True
    assert refused(world, "a", "c")[0] == "throttled"
    world.engine.routers.forward()
    assert world.router("a->b").last_error == "the storage is catching up"
    store.stalled = False
    world.clock.advance(50)
    world.engine.maintain()
    world.forward()
    assert world.datas("b") == [b"1"]
    assert world.router("a->b").last_error is None
    assert world.route("a", "c").created


def test_no_rows_are_left_of_what_is_gone(world: RouterWorld) -> None:
    world.route("a", "b", guarantee="exactly_once")
    world.append(b"1", topic="a")
    world.forward()
    assert len(world.rows(Family.ROUTERS)) == 2
    assert len(world.rows(Family.ROUTER_COPIES)) == 1
    world.engine.delete_topic("a")
    assert world.rows(Family.ROUTERS) == []
    world.engine.delete_topic("b")
    assert world.rows(Family.ROUTER_COPIES) == []


# -------------------------------------------------------------------- other ends


def test_with_another_destination_the_cursor_goes_on(world: RouterWorld) -> None:
    world.route("a", "b", "r")
    world.append(b"1", b"2", topic="a")
    world.route("a", "c", "r")
    assert world.datas("b") == [b"1", b"2"], "what the source acknowledged is first forwarded to the old one"
    world.append(b"3", topic="a")
    world.forward()
    assert (world.datas("b"), world.datas("c")) == ([b"1", b"2"], [b"3"])
    assert world.router("r").forwarded_total == 3
    world.kill()
    assert world.router("r").config.dest == "c"
    assert world.router("r").forwarded_total == 3


def test_with_another_source_it_starts_at_that_head(world: RouterWorld) -> None:
    world.append(b"x", topic="c")
    world.route("a", "b", "r")
    world.append(b"1", b"2", topic="a")
    world.route("c", "b", "r")
    world.append(b"3", topic="a")
    world.append(b"y", topic="c")
    world.forward()
    assert world.datas("b") == [b"1", b"2", b"y"]
    assert world.router("r").forwarded_total == 3


def test_a_full_old_destination_keeps_the_source(world: RouterWorld) -> None:
    """Nothing that was acknowledged is skipped: either it is delivered or the change is refused."""
    world.put("b", cap_records=1, discard="reject")
    world.route("a", "b", "r")
    world.append(b"1", b"2", topic="a")
    assert refused(world, "c", "b", "r")[0] == "topic_full"
    assert world.router("r").config.source == "a"
    assert world.route("a", "d", "r").config.dest == "d"
    world.forward()
    assert (world.datas("b"), world.datas("d")) == ([b"1"], [b"2"])


def test_a_changed_filter_holds_for_what_comes_after(world: RouterWorld) -> None:
    world.route("a", "b")
    world.append(b"1", topic="a")
    world.route("a", "b", eq=b"x")
    world.append(b"2", b"3", topic="a", tags=[None, b"x"])
    world.forward()
    assert world.datas("b") == [b"1", b"3"]


def test_a_bad_config_of_the_topics_stays_theirs(world: RouterWorld) -> None:
    world.engine.put_topic("q", ConfigInput(type="queue"))
    world.engine.sync()
    assert world.route("a", "q").created
    world.append(b"1", topic="a")
    world.forward()
    assert world.datas("q") == [b"1"]
