"""Topics of several partitions: each is a log of its own under one name and one configuration."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from engine_support import CrashStore, World, code, gap, records, seqs
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import (
    BulkRequest,
    ConfigInput,
    DeleteReply,
    DeleteRequest,
    ListTopicsRequest,
    PutTopicReply,
    TagMatch,
)
from topics_service.engine.router.router import PutRouterRequest, RouterConfig
from topics_service.storage.store import Family

PARTS = range(3)


def put(world: World, count: int | None = 3, topic: str = "t", **config: Any) -> PutTopicReply:
    reply, _ = world.engine.put_topic(topic, ConfigInput(**config), count)
    world.engine.sync()
    return reply


def fill(world: World, *datas: bytes | int, topic: str = "t", **request: Any) -> None:
    """The same records to each partition."""
    for partition in range(len(world.engine.catalog.topics[topic].logs)):
        world.append(*datas, topic=topic, partition=partition, **request)


def kept(world: World, partition: int, topic: str = "t") -> list[tuple[int, bytes]]:
    return records(world.diff(topic=topic, partition=partition, limit=1000))


def delete(world: World, partition: int, before: int | None = None, match: TagMatch | None = None) -> DeleteReply:
    request = DeleteRequest(topic="t", partition=partition, before_seq=before, match=match)
    reply, _ = world.engine.delete_records(request)
    world.engine.sync()
    return reply


def heads(world: World, topic: str = "t") -> list[int]:
    return [each.head_seq for each in world.state(topic).partitions]


# -------------------------------------------------------------------------------------------- create and grow


def test_each_partition_counts_its_own_seqs(world: World) -> None:
    reply = put(world)
    assert (reply.created, reply.identity.partition_count) == (True, 3)
    assert world.append(b"a", b"b", partition=2).last_seq == 2
    appended = world.append(b"c", partition=0)
    assert (appended.first_seq, appended.partition, appended.partition_count) == (1, 0, 3)
    assert [kept(world, n) for n in PARTS] == [[(1, b"c")], [], [(1, b"a"), (2, b"b")]]
    page = world.diff(1, partition=2)
    assert (page.partition, page.partition_count, seqs(page), page.caught_up) == (2, 3, [2], True)


def test_a_topic_has_one_partition_unless_more_are_asked_for(world: World) -> None:
    assert put(world, None).identity.partition_count == 1
    assert world.append(b"a", topic="made").created
    for topic in ("t", "made"):
        state = world.state(topic)
        assert (state.identity.partition_count, state.partition, list(state.partitions)) == (1, 0, [])


def test_partitions_are_added_and_never_removed(world: World) -> None:
    put(world, 1, ttl_ms=5)
    world.append(b"a")
    grown = put(world, 3)
    assert (grown.created, grown.identity.partition_count) == (False, 3)
    assert grown.identity.topic_id == world.state().identity.topic_id
    world.append(b"b", partition=2)
    assert heads(world) == [1, 0, 1]
    assert grown.config.ttl_ms == 0, "a PUT replaces the configuration"
    for count in (None, 3):
        assert put(world, count).identity.partition_count == 3
    with pytest.raises(TopicsError) as error:
        put(world, 2, ttl_ms=9)
    assert code(error) == "topic_exists_incompatible"
    assert error.value.detail == {"topic": "t", "partition_count": 3}
    assert world.state().config.ttl_ms == 0, "what was refused changed nothing"


def test_a_put_that_grows_and_configures_does_both(world: World) -> None:
    put(world, 2)
    fill(world, 10, 10, 10)
    reply = put(world, 4, cap_records=2)
    assert (reply.config.cap_records, reply.identity.partition_count) == (2, 4)
    assert [each.count for each in world.state().partitions] == [2, 2, 0, 0]
    world.restart()
    assert (world.state().config.cap_records, len(heads(world))) == (2, 4)


def test_a_put_that_grows_and_configures_is_one_write(world: World) -> None:
    put(world, 2)
    written = world.engine.writer.written
    _, ticket = world.engine.put_topic("t", ConfigInput(cap_records=7), 3)
    assert world.engine.writer.written == ticket == written + 1
    world.kill()
    assert (world.state().config.cap_records, len(heads(world))) == (7, 3)


def test_how_many_there_may_be() -> None:
    world = World(limits=Limits(max_partitions=5))
    for count in (6, 0, -1):
        topic = f"bad{count}"
        if count:  # 0 for a new topic is the default
            with pytest.raises(TopicsError) as error:
                put(world, count, topic=topic)
            assert code(error) == "invalid_request"
        assert not world.engine.has_topic(topic)
    put(world, 5)
    with pytest.raises(TopicsError) as error:
        put(world, 6)
    assert code(error) == "invalid_request"


def test_a_queue_has_one(world: World) -> None:
    with pytest.raises(TopicsError) as error:
        put(world, 2, type="queue")
    assert code(error) == "invalid_request"
    put(world, 1, type="queue")
    with pytest.raises(TopicsError) as error:
        put(world, 2, type="queue")
    assert code(error) == "invalid_request"
    assert world.append(b"job").first_seq == 1


def test_the_ends_of_a_router_have_one(world: World) -> None:
    put(world)
    put(world, 1, topic="one")
    for ends in (("t", "one"), ("one", "t")):
        with pytest.raises(TopicsError) as error:
            world.engine.routers.put(PutRouterRequest(router="r", config=RouterConfig(source=ends[0], dest=ends[1])))
        assert code(error) == "invalid_request"
        assert error.value.detail == {"topic": "t", "partition_count": 3}
    world.engine.routers.put(PutRouterRequest(router="r", config=RouterConfig(source="one", dest="made")))
    world.engine.sync()
    assert world.state("made").identity.partition_count == 1
    for end in ("one", "made"):
        with pytest.raises(TopicsError) as error:
            put(world, 2, topic=end)
        assert code(error) == "invalid_request"


@pytest.mark.parametrize(
    "call",
    [
        lambda world: world.append(b"a", partition=3),
        lambda world: world.diff(partition=3),
        lambda world: world.engine.bulk(BulkRequest(topic="t", partition=3, limit=1, max_batch_bytes=1)),
        lambda world: world.engine.locate("t", 0, 3),
        lambda world: delete(world, 3, 1),
        lambda world: world.engine.get_topic("t", partition=3),
        lambda world: world.engine.park("t", lambda: None, 3),
        lambda world: world.engine.index("t", 3),
        lambda world: world.engine.get_topic("t", partition=-1),
    ],
    ids=["append", "diff", "bulk", "locate", "delete", "state", "park", "index", "negative"],
)
def test_an_unknown_partition(world: World, call: Callable[[World], object]) -> None:
    put(world)
    with pytest.raises(TopicsError) as error:
        call(world)
    assert code(error) == "partition_not_found"
    assert error.value.detail["topic"] == "t"
    assert error.value.detail["partition"] in (3, -1)
    assert error.value.detail["partition_count"] == 3
    assert heads(world) == [0, 0, 0]


def test_a_write_to_another_partition_than_0_makes_no_topic(world: World) -> None:
    with pytest.raises(TopicsError) as error:
        world.append(b"a", topic="new", partition=1)
    assert code(error) == "partition_not_found"
    assert not world.engine.has_topic("new")


# --------------------------------------------------------------------------------------- what each has of its own


def test_caps_are_of_each_partition(world: World) -> None:
    put(world, cap_records=2)
    world.append(*[b"%d" % n for n in range(5)], partition=1)
    world.append(b"a", b"b", partition=0)
    assert [seqs(world.diff(partition=n)) for n in PARTS] == [[1, 2], [4, 5], []]
    assert gap(world.diff(partition=1)) == (1, 3, "cap")
    assert gap(world.diff(partition=0)) is None


def test_a_full_partition_leaves_the_others_open(world: World) -> None:
    put(world, cap_bytes=10, discard="reject")
    world.append(10, partition=1)
    with pytest.raises(TopicsError) as error:
        world.append(1, partition=1)
    assert code(error) == "topic_full"
    assert world.append(10, partition=2).first_seq == 1


def test_records_expire_in_each_partition(world: World) -> None:
    put(world, ttl_ms=100)
    world.append(b"old", partition=2)
    world.clock.advance(60)
    fill(world, b"new")
    world.clock.advance(60)
    world.engine.sweep()
    world.maintain()
    assert [kept(world, n) for n in PARTS] == [[(1, b"new")], [(1, b"new")], [(2, b"new")]]
    assert gap(world.diff(partition=2)) == (1, 1, "ttl")
    assert [each.count for each in world.state().partitions] == [1, 1, 1]


def test_deletes_are_of_one_partition(world: World) -> None:
    put(world)
    fill(world, b"a", b"b", b"c", tags=[b"x", b"y", b"x"])
    deleted = delete(world, 1, match=TagMatch("Eq", b"x"))
    assert (deleted.deleted, deleted.partition, deleted.partition_count, deleted.count) == (2, 1, 3, 1)
    delete(world, 2, before=3)
    assert [seqs(world.diff(partition=n)) for n in PARTS] == [[1, 2, 3], [2], [3]]


def test_an_idempotency_key_is_of_one_partition(world: World) -> None:
    put(world)
    first = world.append(b"a", partition=1, idempotency_key="k")
    other = world.append(b"a", partition=2, idempotency_key="k")
    again = world.append(b"a", partition=1, idempotency_key="k")
    assert (first.deduped, other.deduped, again.deduped) == (False, False, True)
    assert (again.partition, again.partition_count) == (1, 3)
    assert heads(world) == [0, 1, 1]


def test_a_write_wakes_those_who_wait_for_its_partition(world: World) -> None:
    put(world)
    woken: list[int] = []
    for n in PARTS:
        world.engine.park("t", lambda n=n: woken.append(n), n)
    world.append(b"a", partition=1)
    assert woken == [1]
    world.engine.delete_topic("t")
    assert sorted(woken) == [0, 1, 1, 2]


def test_the_state_is_that_of_the_partition_asked_for(world: World) -> None:
    put(world)
    world.append(b"ab", partition=1)
    world.clock.advance(5)
    world.append(b"c", b"d", partition=2)
    state = world.engine.get_topic("t", partition=2)
    assert (state.partition, state.head_seq, state.next_seq, state.count, state.bytes) == (2, 2, 3, 2, 2)
    assert [(each.partition, each.head_seq, each.bytes) for each in state.partitions] == [
        (0, 0, 0),
        (1, 1, 2),
        (2, 2, 2),
    ]
    times = [each.last_write_ts for each in state.partitions]
    assert times == [None, world.clock.now - 5, world.clock.now]
    assert world.state().last_write_ts is None, "the times of partition 0"


# ------------------------------------------------------------------------------------------- resources and lists


def test_live_bytes_are_counted_over_all_partitions() -> None:
    world = World(limits=Limits(max_total_bytes=30))
    put(world)
    world.append(20, partition=0)
    with pytest.raises(TopicsError) as error:
        world.append(20, partition=1)
    assert code(error) == "throttled"
    assert world.engine.writer.total_bytes == 20
    world.engine.delete_topic("t")
    assert (world.engine.writer.total_bytes, world.engine.writer.total_records) == (0, 0)


def test_memory_of_ephemeral_records_is_counted_over_all_partitions() -> None:
    world = World(limits=Limits(max_ephemeral_bytes=4000))
    put(world, durability="ephemeral")
    noise = Random(1).randbytes(1500)  # it is counted as stored, and does not shrink
    fill(world, noise[:500])
    world.append(noise, partition=1)
    with pytest.raises(TopicsError) as error:
        world.append(noise, partition=2)
    assert code(error) == "throttled"
    assert 0 < sum(each.bytes for each in world.state().partitions) < 4000


def test_max_topics_counts_partitions() -> None:
    world = World(limits=Limits(max_topics=4))
    put(world)
    with pytest.raises(TopicsError) as error:
        put(world, 2, topic="other")
    assert (code(error), error.value.detail) == ("throttled", {"limit": "max_topics", "max": 4})
    with pytest.raises(TopicsError) as error:
        put(world, 5)
    assert code(error) == "throttled"
    put(world, 4)
    with pytest.raises(TopicsError) as error:
        world.append(b"a", topic="other")
    assert code(error) == "throttled"
    world.restart()
    with pytest.raises(TopicsError) as error:
        put(world, 1, topic="other")
    assert code(error) == "throttled", "a restart counts them as well"
    world.engine.delete_topic("t")
    assert put(world, 4, topic="other").created


def test_lists_and_metrics_have_sums(world: World) -> None:
    put(world)
    fill(world, 5, 6)
    delete(world, 2, before=2)
    put(world, 1, topic="u")
    world.append(7, topic="u")
    lines = world.engine.list_topics(ListTopicsRequest()).topics
    assert [(line.topic, line.head_seq, line.count, line.bytes) for line in lines] == [
        ("t", 2, 5, 28),
        ("u", 1, 1, 7),
    ]
    sample = dict(world.engine.sample(10))
    assert [(s.head, s.earliest, s.count, s.bytes) for s in sample.values()] == [(6, 4, 5, 28), (1, 1, 1, 7)]


def test_a_page_of_the_list_ends_when_there_are_many_partitions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.engine.engine._LOGS_A_PAGE", 5)
    for name, count in (("a", 9), ("b", 2), ("c", 3), ("d", 1)):
        put(world, count, topic=name)
    pages, after = [], None
    while True:
        reply = world.engine.list_topics(ListTopicsRequest(after=after))
        pages.append([state.topic for state in reply.topics])
        after = reply.next_after
        if after is None:
            break
    assert pages == [["a"], ["b", "c"], ["d"]]


# ----------------------------------------------------------------------------------------- delete and reconfigure


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.usefixtures("small_steps")
def test_a_deleted_topic_leaves_nothing_behind(world: World, durability: str) -> None:
    put(world, durability=durability, cap_records=20)
    for n in range(30):
        fill(world, b"%d" % n, tags=[b"t%d" % (n % 3)], idempotency_key=f"k{n}")
        if n % 10 == 3:
            delete(world, n % 3, match=TagMatch("Eq", b"t0"))
        world.maintain()
    for each in world.state().partitions:
        assert each.head_seq == 30
    with pytest.raises(TopicsError) as error:
        world.engine.delete_topic("t", if_empty=True)
    assert (code(error), error.value.detail["count"]) == (
        "topic_not_empty",
        sum(each.count for each in world.state().partitions),
    )
    world.engine.delete_topic("t")
    world.clock.advance(200_000)
    world.engine.sweep()
    left = {family.name for family in Family if family is not Family.META and world.rows(family)}
    assert left == set()
    again = put(world)
    assert again.created
    assert heads(world) == [0, 0, 0]


def test_if_empty_looks_at_every_partition(world: World) -> None:
    put(world)
    world.append(b"a", partition=2)
    with pytest.raises(TopicsError) as error:
        world.engine.delete_topic("t", if_empty=True)
    assert code(error) == "topic_not_empty"
    delete(world, 2, before=9)
    reply, _ = world.engine.delete_topic("t", if_empty=True)
    assert reply.deleted


def test_tightened_caps_act_on_every_partition(world: World) -> None:
    put(world)
    fill(world, b"a", b"b", b"c")
    world.clock.advance(50)
    world.append(b"d", partition=1)
    put(world, None, cap_records=2, ttl_ms=40)
    assert [kept(world, n) for n in PARTS] == [[], [(4, b"d")], []]
    world.kill()
    assert [kept(world, n) for n in PARTS] == [[], [(4, b"d")], []]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_an_ephemeral_topic_becomes_durable_in_every_partition(durability: str) -> None:
    store = CrashStore()
    world = World(store)
    put(world, durability="ephemeral")
    fill(world, b"a", b"b")
    delete(world, 1, before=2)
    put(world, None, durability=durability)
    world.append(b"c", partition=2)
    world.cut_power()
    assert [kept(world, n) for n in PARTS] == [
        [(1, b"a"), (2, b"b")],
        [(2, b"b")],
        [(1, b"a"), (2, b"b"), (3, b"c")],
    ]


# ------------------------------------------------------------------------------------------------------- restarts


@pytest.mark.parametrize("how", ["restart", "kill", "cut_power"])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.usefixtures("small_steps")
def test_everything_is_there_after_a_start(how: str, durability: str) -> None:
    world = World(CrashStore())
    put(world, durability=durability)
    for n in range(10):
        fill(world, b"%d" % n, tags=[b"even" if n % 2 == 0 else b"odd"])
        world.maintain()
    put(world, 4, durability=durability)
    world.append(b"last", partition=3)
    delete(world, 1, match=TagMatch("Eq", b"odd"))
    before = [kept(world, n) for n in range(4)]
    identity = world.state().identity
    world.engine.sync()
    getattr(world, how)()
    assert world.state().identity == identity
    assert [kept(world, n) for n in range(4)] == before
    assert world.append(b"x", partition=1).first_seq > 10
    again = world.append(b"y", partition=3).first_seq
    assert again > 1
    if how != "cut_power" or durability == "fsync":
        assert again == 2, "nothing was lost, so nothing jumps"


def test_ephemeral_partitions_lose_their_records_and_keep_their_seqs(world: World) -> None:
    put(world, durability="ephemeral")
    fill(world, b"a")
    world.append(b"b", partition=1)
    world.kill()
    assert [kept(world, n) for n in PARTS] == [[], [], []]
    for n, head in enumerate((1, 2, 1)):
        assert world.append(b"new", partition=n).first_seq > head
        lost = gap(world.diff(partition=n))
        assert lost is not None
        assert lost[0] == 1
        assert lost[1] >= head


def test_a_power_cut_at_any_write_leaves_a_prefix() -> None:
    """The number of partitions and what is in them are of the same moment."""
    ends = []
    for cut in range(200):
        world = World(CrashStore())
        store = world.store
        assert isinstance(store, CrashStore)
        base = store.writes
        world.engine.put_topic("t", ConfigInput(durability="fsync"), 2)
        moments = {store.writes: [0, 0]}
        for n in range(3):
            for partition in (0, 1):
                world.append(b"x", partition=partition, sync=False)
                moments[store.writes] = [each.state.head for each in world.engine.catalog.topics["t"].logs]
            world.engine.put_topic("t", ConfigInput(durability="fsync"), 3 + n)
            moments[store.writes] = [each.state.head for each in world.engine.catalog.topics["t"].logs]
            world.append(b"y", partition=2 + n, sync=False)
            moments[store.writes] = [each.state.head for each in world.engine.catalog.topics["t"].logs]
        if base + cut > store.writes:
            break
        world.cut_power(base + cut)
        found = [each.state.head for each in world.engine.catalog.topics["t"].logs] if cut else []
        assert found == moments.get(base + cut, []), cut
        ends.append(found)
    assert ends[-1] == [3, 3, 1, 1, 1]
    assert len(ends) > 10


def test_an_fsync_topic_shows_nothing_before_it_is_durable(world: World) -> None:
    put(world, durability="fsync")
    tickets = [world.try_append(b"a", partition=n)[1] for n in PARTS]
    assert tickets == sorted(set(tickets))
    assert heads(world) == [0, 0, 0]
    world.engine.synced(tickets[1])
    assert heads(world) == [1, 1, 0]
    world.engine.sync()
    assert heads(world) == [1, 1, 1]


# ----------------------------------------------------------------------- a partition is like a topic of its own

CONFIGS = st.fixed_dictionaries(
    {
        "durability": st.sampled_from(("ephemeral", "disk", "fsync")),
        "ttl_ms": st.sampled_from((0, 0, 100)),
        "cap_records": st.sampled_from((0, 0, 3)),
        "discard": st.sampled_from(("old", "reject")),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(PARTS), st.integers(1, 4), st.sampled_from((None, b"a", b"b"))),
        st.tuples(st.just("append"), st.sampled_from(PARTS), st.integers(1, 4), st.sampled_from((None, b"a", b"b"))),
        st.tuples(
            st.just("delete"), st.sampled_from(PARTS), st.none() | st.integers(0, 20), st.sampled_from((b"a", b""))
        ),
        st.tuples(st.just("put"), CONFIGS),
        st.tuples(st.just("wait"), st.sampled_from((10, 101))),
        st.tuples(st.sampled_from(("kill", "restart", "cut_power", "maintain"))),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(config=CONFIGS, steps=STEPS)
@pytest.mark.usefixtures("small_steps")
def test_a_partition_is_like_a_topic_of_its_own(config: dict[str, Any], steps: list[tuple[Any, ...]]) -> None:
    one, many = World(CrashStore()), World(CrashStore())
    put(one, 3, **config)
    for n in PARTS:
        put(many, 1, topic=f"t{n}", **config)
    for step in steps:
        outcomes = [_take(one, step, None), _take(many, step, "t")]
        assert outcomes[0] == outcomes[1]
        for n in PARTS:
            assert _seen(one, "t", n) == _seen(many, f"t{n}", 0), (step, n)


def _take(world: World, step: tuple[Any, ...], prefix: str | None) -> object:
    """One step in the world of one topic, or with a prefix in that of many; its outcome."""
    try:
        match step:
            case ("append", n, count, tag):
                where: dict[str, Any] = {"partition": n} if prefix is None else {"topic": f"{prefix}{n}"}
                reply = world.append(*[b"%d" % n] * count, tags=[tag] * count, **where)
                return reply.first_seq, reply.head_seq
            case ("delete", n, before, tag):
                target = {"topic": "t", "partition": n} if prefix is None else {"topic": f"{prefix}{n}"}
                request = DeleteRequest(**target, before_seq=before, match=TagMatch("Glob", tag))
                gone, _ = world.engine.delete_records(request)
                world.engine.sync()
                return gone.deleted, gone.earliest_seq, gone.head_seq, gone.count, gone.bytes
            case ("put", config):
                for topic in ["t"] if prefix is None else [f"{prefix}{n}" for n in PARTS]:
                    put(world, None, topic=topic, **config)
            case ("wait", ms):
                world.clock.advance(ms)
            case (name,):
                world.engine.sync()
                getattr(world, name)()
    except TopicsError as error:
        return error.reason
    return None


def _seen(world: World, topic: str, partition: int) -> object:
    page = world.diff(topic=topic, partition=partition, limit=1000)
    state = world.engine.get_topic(topic, partition=partition)
    counters = state.head_seq, state.earliest_seq, state.count, state.bytes
    return gap(page), records(page), page.next_from_seq, counters
