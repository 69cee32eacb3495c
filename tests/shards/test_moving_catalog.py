"""The copy that a node has of all topics, while shards move."""

import asyncio
from collections.abc import AsyncIterator
from itertools import islice

import pytest
from shards.far import names
from shards.nodes import Cluster, Node, open_cluster

from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ConfigInput
from topics_shards.catalog import TopicCopy

NAMES = [name for shard in range(3) for name in islice(names(shard), 30)]
OF_ONE = list(islice(names(1), 30))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_cluster(3) as opened:
        await opened.put(*NAMES)
        for node in opened.nodes.values():
            node.catalog.start()
            await asyncio.wait_for(node.catalog.whole(), 10)
        yield opened


@pytest.fixture(params=["a", "b"])
def node(cluster: Cluster, request: pytest.FixtureRequest) -> Node:
    return cluster.nodes[request.param]


def known(node: Node) -> dict[str, TopicCopy]:
    found = {topic.name: topic for topic in node.catalog.within(None)}
    assert all(isinstance(topic, TopicCopy) for topic in found.values())
    return found  # type: ignore[return-value]


async def test_all_shards_are_followed_also_those_that_are_here(node: Node) -> None:
    assert sorted(NAMES) == list(known(node))
    assert {topic.shard for topic in known(node).values()} == {0, 1, 2}


async def test_a_shard_that_moves_is_followed_again_and_nothing_changes(cluster: Cluster, node: Node) -> None:
    changes: list[list[str]] = []
    node.catalog.on_changed.append(lambda: changes.append(list(known(node))))
    before = known(node)
    for to in "abaa":
        last = {name: before[name].told for name in OF_ONE}
        await cluster.hand_over(1, to)
        await until(lambda last=last: all(before[name].told > told for name, told in last.items()))
    assert changes == []
    assert known(node) == before, "they are the same objects"
    await cluster.put(late := next(islice(names(1), 30, 31)))
    await until(lambda: late in known(node))
    assert len(changes) == 1


async def test_changes_while_a_shard_has_no_owner_are_seen_after(cluster: Cluster, node: Node) -> None:
    deleted, again, grown, kept = OF_ONE[:4]
    late = next(islice(names(1), 30, 31))
    ids = {name: topic.identity.topic_id for name, topic in known(node).items()}
    await cluster.hand_over(1, "a", tells=False)
    api = cluster.nodes["a"].lives[1].api
    for name in (deleted, again):
        await api.delete_topic(name)
    for name in (again, late):
        await api.put_topic(name, ConfigInput(), principal=UNRESTRICTED)
    assert node is cluster.nodes["a"] or known(node).keys() == set(NAMES), "what is known stays"
    cluster.tell(1)
    await until(lambda: deleted not in known(node) and late in known(node))
    await until(lambda: known(node)[again].identity.topic_id != ids[again])
    assert known(node)[kept].identity.topic_id == ids[kept]
    await cluster.nodes["a"].api.put_topic(grown, ConfigInput(), principal=UNRESTRICTED, partition_count=3)
    await until(lambda: known(node)[grown].identity.partition_count == 3)
    assert set(known(node)) == {*NAMES, late} - {deleted}


async def test_a_shard_that_was_lost_is_asked_again(cluster: Cluster, node: Node) -> None:
    await cluster.lose(1)
    await asyncio.sleep(0.1)
    assert list(known(node)) == sorted(NAMES)
    cluster.take(1, "a")
    await cluster.nodes["a"].api.delete_topic(OF_ONE[0])
    await until(lambda: OF_ONE[0] not in known(node))


async def test_many_topics_do_not_hold_the_loop_up() -> None:
    """Those of a shard of this process would come without a pause."""
    async with open_cluster(1, ("a",)) as cluster:
        node = cluster.nodes["a"]
        engine = node.lives[0].engine
        for number in range(2000):
            engine.put_topic(f"t{number}", ConfigInput())
        engine.sync()
        node.catalog.start()
        turns = set()
        while not node.catalog._whole[0].is_set():
            turns.add(len(known(node)))
            await asyncio.sleep(0)
        assert len(known(node)) == 2000
        assert len(turns) >= 10, "others have their turns between the slices"


async def test_the_end_of_a_shard_ends_what_follows_it(cluster: Cluster) -> None:
    """At once: nothing of a handover waits for it."""
    api = cluster.nodes["b"].lives[1].api
    following = api.copied.follow()
    while not (await anext(following)).is_whole:
        pass
    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    assert not waiting.done()
    await cluster.hand_over(1, "a")
    with pytest.raises(TopicsError) as caught:
        await asyncio.wait_for(waiting, 1)
    assert caught.value.reason is Reason.SHUTTING_DOWN
    assert not api.copied._followers
