"""Lists of topics through each node of a cluster: one call to each other node, also while shards move."""

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from shards.nodes import Cluster, Node, open_cluster

from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, ListTopicsRequest
from topics_shards import reading_ahead
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
    monkeypatch.setattr(reading_ahead, "FRESH_SECONDS", 0.0)
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


async def test_pages_that_are_read_one_after_the_other_take_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_ahead, "FRESH_SECONDS", 60.0)
    async with open_cluster(SHARDS, ("a", "b", "c")) as cluster:
        await filled(cluster)
        found = counted(cluster.nodes["a"], monkeypatch)
        assert await listed(cluster.nodes["a"], 10) == NAMES
        assert found["nodes"] <= 2 * 9, "1, 2, 4, 8 and 16 pages at once, less what the emptiest shard lacks"
        assert found["lines"] <= 1.5 * TOPICS
        assert len(cluster.nodes["a"].api._ahead) == 0, "the last page leaves nothing"


async def test_what_was_read_ahead_is_for_a_short_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_cluster(SHARDS, ("a", "b", "c")) as cluster:
        await filled(cluster)
        node, other = cluster.nodes["a"], cluster.nodes["b"]
        request = ListTopicsRequest(page_size=20)
        for _ in range(3):
            page = await node.api.list_topics(request, principal=UNRESTRICTED)
            request = ListTopicsRequest(page_size=20, after=page.next_after)
        assert len(node.api._ahead) == 1
        for name in NAMES[60:80]:
            await other.api.delete_topic(name)
        await until(lambda: len(node.api._ahead) == 0)
        page = await node.api.list_topics(request, principal=UNRESTRICTED)
        assert [line.topic for line in page.topics] == NAMES[80:100]


async def test_a_topic_that_is_made_or_deleted_here_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_ahead, "FRESH_SECONDS", 60.0)
    async with open_cluster(SHARDS, ("a", "b", "c")) as cluster:
        await filled(cluster)
        api, names, after = cluster.nodes["a"].api, [*NAMES], None
        changes = cycle((0, 1, 2))
        while True:
            page = await api.list_topics(ListTopicsRequest(page_size=10, after=after), principal=UNRESTRICTED)
            assert [line.topic for line in page.topics] == names[: len(page.topics)]
            after = page.next_after
            del names[: len(page.topics)]
            if after is None:
                break
            match next(changes):
                case 0:
                    await api.delete_topic(names.pop(0))
                case 1:
                    names.insert(0, f"{after}-put")
                    await api.put_topic(names[0], ConfigInput(), principal=UNRESTRICTED)
                case 2:
                    names.insert(0, f"{after}-written")
                    request = AppendRequest(topic=names[0], batch=Batch([b"x"]))
                    await api.append(request, principal=UNRESTRICTED)
        assert not names


async def test_lists_beside_others_that_make_and_delete_topics() -> None:
    """Each name that stays is told once, in its place, whatever happens to others, and a shard that moves meanwhile."""
    async with open_cluster(SHARDS, ("a", "b", "c")) as cluster:
        await filled(cluster)
        nodes = cycle(cluster.nodes.values())

        async def change() -> None:
            for number in range(60):
                await next(nodes).api.put_topic(f"topic-{number * 5:03}-x", ConfigInput(), principal=UNRESTRICTED)
                if number % 2:
                    await next(nodes).api.delete_topic(f"topic-{number * 5:03}-x")

        changing = asyncio.create_task(change())
        while not changing.done():
            for size in (7, 20):
                names = await listed(cluster.nodes["a"], size)
                assert names == sorted({*names})
                assert [name for name in names if not name.endswith("-x")] == NAMES
        await changing


async def test_lists_of_others_get_nothing_that_was_read_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_ahead, "FRESH_SECONDS", 60.0)
    async with open_cluster(SHARDS, ("a", "b", "c")) as cluster:
        await filled(cluster)
        api = cluster.nodes["a"].api
        few = replace(UNRESTRICTED, prefixes=("topic-00", "topic-29"))
        both = [name for name in NAMES if name.startswith(few.prefixes)]
        after: dict[str, str | None] = {"all": None, "few": None}
        for number in range(2):
            for who, principal, names in (("all", UNRESTRICTED, NAMES), ("few", few, both)):
                request = ListTopicsRequest(page_size=10, after=after[who])
                page = await api.list_topics(request, principal=principal)
                assert [line.topic for line in page.topics] == names[10 * number : 10 * number + 10]
                after[who] = page.next_after
        for number in range(40):
            await api.list_topics(
                ListTopicsRequest(page_size=1, after=f"topic-{2 * number:03}"), principal=UNRESTRICTED
            )
        assert len(api._ahead) == 16
