"""Lists of topics through each node of a cluster: one call to each other node, also while shards move."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from shards.nodes import Cluster, Node, open_cluster

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ListTopicsRequest
from topics_shards.process import ProcessApi
from topics_shards.wire.methods import RemoteMethod

SHARDS, TOPICS = 8, 300
NAMES = [f"topic-{number:03}" for number in range(TOPICS)]


async def listed(node: Node, size: int = 50) -> list[str]:
    """The names of all topics, page by page."""
    names: list[str] = []
    after = None
    while True:
        request = ListTopicsRequest(after=after, page_size=size)
        page = await node.api.list_topics(request, principal=UNRESTRICTED)
        names += [line.topic for line in page.topics]
        after = page.next_after
        if after is None:
            return names
        assert len(page.topics) == size


def counted(node: Node, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The calls that a node begins and makes from now on, by method, with the lines and bytes of their pages."""
    found, begin, call = Counter[str](), node.shards.begin, node.shards.call
    method = RemoteMethod(ProcessApi.list_topics, is_read=True)

    def note(pages: Any) -> None:
        found["lines"] += sum(len(page.topics) for page in pages)
        found["bytes"] += len(method.encode_result(pages))

    async def begun(shard: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        found["nodes"] += 1
        done = await begin(shard, method, *args, **kwargs)
        done.add_done_callback(lambda each: note(each.result()))
        return done

    async def called(shard: int, method: Any, *args: Any, **kwargs: Any) -> Any:
        found["here" if shard in node.local else "shards"] += 1
        page = await call(shard, method, *args, **kwargs)
        note([page])
        return page

    monkeypatch.setattr(node.shards, "begin", begun)
    monkeypatch.setattr(node.shards, "call", called)
    return found


async def filled(cluster: Cluster) -> None:
    await cluster.put(*NAMES)


async def test_a_page_costs_one_call_to_each_other_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_cluster(SHARDS, ("a", "b", "c")) as cluster:
        await filled(cluster)
        for node in cluster.nodes.values():
            found = counted(node, monkeypatch)
            assert await listed(node) == NAMES
            pages = TOPICS // 50
            assert found["nodes"] == 2 * pages
            assert found["here"] + found["shards"] <= pages * len(node.local) + pages // 2, "few shards run dry"
            assert found["lines"] <= 1.8 * TOPICS, "little more than the shares of a page"
            assert found["bytes"] <= 120 * found["lines"]


@pytest.mark.parametrize("size", [1, 7, 299, 1000])
async def test_pages_of_every_size_are_whole(size: int) -> None:
    async with open_cluster(SHARDS, ("a", "b", "c")) as cluster:
        await filled(cluster)
        assert await listed(cluster.nodes["b"], size) == NAMES


async def test_a_shard_that_moved_and_whose_new_owner_is_not_known_yet_is_asked_there() -> None:
    async with open_cluster(SHARDS, ("a", "b", "c")) as cluster:
        await filled(cluster)
        number = next(iter(cluster.nodes["b"].lives))
        await cluster.hand_over(number, "c", tells=False)
        listing = asyncio.create_task(listed(cluster.nodes["a"]))
        await asyncio.sleep(0)
        cluster.tell(number)
        assert await listing == NAMES


async def test_shards_of_a_node_that_dies_are_listed_once_they_have_owners() -> None:
    async with open_cluster(SHARDS, ("a", "b", "c")) as cluster:
        await filled(cluster)
        listing = asyncio.create_task(listed(cluster.nodes["a"]))
        await asyncio.sleep(0)
        for number in await cluster.kill("c"):
            cluster.take(number, "b")
        assert await listing == NAMES


async def test_a_refusal_of_one_shard_is_that_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_cluster(SHARDS, ("a", "b")) as cluster:
        await filled(cluster)
        shard = next(iter(cluster.nodes["b"].lives.values())).shard
        run = shard.run

        async def refused(method: Any, /, *args: Any, **kwargs: Any) -> Any:
            if method is TopicsApi.list_topics:
                raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
            return await run(method, *args, **kwargs)

        monkeypatch.setattr(shard, "run", refused)
        with pytest.raises(TopicsError) as error:
            await listed(cluster.nodes["a"])
        assert error.value.reason is Reason.SHUTTING_DOWN
