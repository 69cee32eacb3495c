"""Watches whose shards come to their node, and leave it."""

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import islice, pairwise

import pytest
from shards.far import names
from shards.frames import by_topic, read, read_of_last_instance, until_told
from shards.nodes import Cluster, Node, open_cluster

from support.waiting import until
from support.watching import quiet, seqs, watch
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.watch_stream import SessionStream, WatchStream
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput
from topics_service.engine.watch.frames import CaughtUpFrame, ErrorFrame, Frame, TombstoneFrame, WatchRequest
from topics_shards import remote_watch

A, B, C = (next(iter(names(shard))) for shard in range(3))
"""One topic of each shard; shard 0 and 2 begin at node a, shard 1 at node b."""


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_cluster(3) as opened:
        yield opened


@pytest.fixture(params=["a", "b"])
def node(cluster: Cluster, request: pytest.FixtureRequest) -> Node:
    return cluster.nodes[request.param]


async def stream(node: Node, request: WatchRequest) -> WatchStream:
    return await node.api.watches.stream(request, principal=UNRESTRICTED)


async def next_seq(stream: SessionStream, topic: str) -> list[int]:
    """The seqs of the next records of a topic; no other records come before."""
    async with asyncio.timeout(10):
        while not (found := seqs([frame := await anext(stream)], topic)):
            assert not seqs([frame])
    return found


def feeds(cluster: Cluster) -> int:
    """The number of watches that the shards have, of either kind."""
    apis = [life.api.watches for node in cluster.nodes.values() for life in node.lives.values()]
    return sum(len(api._feeds) + len(api._attached) for api in apis)


async def test_a_shard_moves_to_and_fro(cluster: Cluster, node: Node) -> None:
    await cluster.put(A, B, C)
    await cluster.append(B, 3)
    with await stream(node, watch(A, B, C)) as opened:
        found = await quiet(opened, 0.1)
        assert by_topic(found) == {A: [("caught up",)], B: [([1, 2, 3],), ("caught up",)], C: [("caught up",)]}
        for number in range(6):
            await cluster.hand_over(1, "ab"[number % 2])
            await cluster.append(B)
            await cluster.append(A)
            await until_told(opened, found, {A: number + 1, B: number + 4})
        assert seqs(found, A) == list(range(1, 7))
        assert seqs(found, B) == list(range(1, 10))
        told = by_topic(found)
        assert len(told[B]) == 14, "no mark of the end of the backlog without a record before it"
        assert told[C] == [("caught up",)]
        assert feeds(cluster) == 3
    await until(lambda: not feeds(cluster))


async def test_a_shard_is_lost_and_comes_to_another_node(cluster: Cluster, node: Node) -> None:
    await cluster.put(A, B)
    with await stream(node, watch(A, B, heartbeat_ms=1000)) as opened:
        found = await quiet(opened, 0.1)
        for number, to in enumerate("abba"):
            await cluster.append(B)
            await cluster.lose(1)
            await cluster.append(A)
            assert await next_seq_of(opened, found, A) == number + 1, "other shards are not held up"
            cluster.take(1, to)
            await cluster.append(B)
            await until_told(opened, found, {B: 2 * number + 2})
        assert seqs(found, A) == [1, 2, 3, 4]
        assert seqs(found, B) == list(range(1, 9))
    await until(lambda: not feeds(cluster))


async def next_seq_of(stream: SessionStream, found: list[Frame], topic: str) -> int:
    """Read until a record of a topic has come; return its seq."""
    async with asyncio.timeout(10):
        while True:
            found.append(await anext(stream))
            if told := seqs(found[-1:], topic):
                return told[-1]


async def test_a_watch_goes_on_at_once_when_the_shard_has_moved(cluster: Cluster, node: Node) -> None:
    await cluster.put(B)
    loop = asyncio.get_running_loop()
    with await stream(node, watch(B)) as opened:
        await quiet(opened, 1.1)
        for to in ("a", "b"):
            await cluster.hand_over(1, to, tells=False)
            await asyncio.sleep(1.1)  # it has asked in vain many times
            began = loop.time()
            cluster.tell(1)
            await cluster.append(B)
            await next_seq(opened, B)
            assert loop.time() - began < 0.5


async def test_tombstones_and_deletions_while_a_shard_is_away(cluster: Cluster, node: Node) -> None:
    await cluster.put(A, C)
    await cluster.put(B, cap_records=2)
    other, late = islice(names(1), 1, 3)
    await cluster.put(other)
    await cluster.append(other, 2)
    with await stream(node, watch("t*")) as opened:
        found = await quiet(opened, 0.1)
        await cluster.hand_over(1, "a", tells=False)
        api = cluster.nodes["a"].lives[1].api
        await cluster.append(B, 10)
        await api.delete_topic(other)
        await api.put_topic(late, ConfigInput(), principal=UNRESTRICTED)
        cluster.tell(1)
        await cluster.append(late)
        await until_told(opened, found, {late: 1, B: 10})
        told = by_topic(found)
        assert told[other] == [([1, 2],), ("caught up",), ("deleted", 2)]
        assert told[late] == [([1],), ("caught up",)]
        gaps = [frame.tombstone for frame in found if isinstance(frame, TombstoneFrame)]
        lost = {seq for gap in gaps for seq in range(gap.gap_from, gap.gap_to + 1)}
        assert sorted([*lost, *seqs(found, B)]) == list(range(1, 11))
        assert opened.cursors.keys() == {A, B, C, late}


async def test_a_new_watch_waits_for_a_takeover(cluster: Cluster, node: Node) -> None:
    await cluster.put(A, B)
    await cluster.append(B)
    await cluster.lose(1)
    for request in (watch(A, B), watch("t*")):
        opening = asyncio.create_task(stream(node, request))
        creating = asyncio.create_task(node.api.watches.create(request, principal=UNRESTRICTED))
        await asyncio.sleep(0.3)
        assert not opening.done()
        assert not creating.done()
        cluster.take(1, "a")
        with await asyncio.wait_for(opening, 5) as opened:
            assert opened.positions[B].head_seq == 1
            assert seqs(await quiet(opened, 0.1)) == [1]
        assert (await asyncio.wait_for(creating, 5)).positions.keys() == {A, B}
        await cluster.lose(1)
    with await stream(node, watch(A)) as opened:
        assert opened.positions.keys() == {A}, "shards that have no topic of the watch are not waited for"


async def test_a_new_watch_is_refused_when_nobody_takes_over(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_watch, "_PATIENCE_SECONDS", 0.2)
    await cluster.put(A, B)
    await cluster.lose(1)
    for call in (node.api.watches.stream, node.api.watches.create):
        with pytest.raises(TopicsError) as caught:
            await call(watch(A, B), principal=UNRESTRICTED)
        assert caught.value.reason is Reason.NOT_READY
    await until(lambda: not feeds(cluster))


async def test_a_watch_opens_while_its_shard_moves(cluster: Cluster, node: Node) -> None:
    """The move may come at any moment of the opening."""
    await cluster.put(A, B, C)
    await cluster.append(B, 5)
    for number in range(30):
        moving = asyncio.create_task(cluster.hand_over(1, "ab"[number % 2]))
        for _ in range(number):
            await asyncio.sleep(0)
        with await stream(node, watch(A, B, "t*")) as opened:
            assert opened.positions.keys() == {A, B, C}
            assert await next_seq(opened, B) == [1, 2, 3, 4, 5]
        await moving
    await until(lambda: not feeds(cluster))


async def test_a_session_opens_while_a_shard_has_no_owner(cluster: Cluster, node: Node) -> None:
    await cluster.put(A, B)
    session = await node.api.watches.create(watch(A, B), principal=UNRESTRICTED)
    await cluster.append(A)
    await cluster.append(B)
    await cluster.lose(1)
    with await node.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as opened:
        assert by_topic(await quiet(opened, 0.1)) == {A: [([1],), ("caught up",)]}
        assert opened.resume_cursors == {A: 1, B: 0}
        cluster.take(1, "a")
        found: list[Frame] = []
        await until_told(opened, found, {B: 1})
        assert by_topic(found) == {B: [([1],), ("caught up",)]}


@pytest.mark.parametrize("seed", range(8))
async def test_a_watch_is_what_diff_gives(seed: int) -> None:
    """Under writes, deletes, recreations and moves, every live topic is read whole, once and in order."""
    pick = random.Random(seed)
    pool = [name for shard in range(3) for name in islice(names(shard), 3)]
    async with open_cluster(3, ("a", "b", "c")) as cluster:
        alive: dict[str, int] = {}  # heads
        wanted = watch("t*", *pool[:3:2], limit=3, lenient=True)
        streams = [await stream(node, wanted) for node in cluster.nodes.values()]
        founds: list[list[Frame]] = [[] for _ in streams]
        readers = [asyncio.create_task(read(*each)) for each in zip(streams, founds, strict=True)]
        for _ in range(80):
            name, step = pick.choice(pool), pick.random()
            shard, to = pick.randrange(3), pick.choice("abc")
            if step < 0.1 and name in alive:
                await cluster.nodes["a"].api.delete_topic(name)
                del alive[name]
            elif step < 0.2:
                await cluster.hand_over(shard, to)
            elif step < 0.25:
                await cluster.lose(shard)
                await asyncio.sleep(pick.choice([0, 0.02, 0.1]))
                cluster.take(shard, to)
            elif step < 0.3:
                await asyncio.sleep(0.01)
            elif name in alive:
                count = pick.randrange(1, 6)
                await cluster.append(name, count)
                alive[name] += count
            else:
                await cluster.put(name)
                alive[name] = 0
        for each, found, reader in zip(streams, founds, readers, strict=True):
            await until(lambda each=each: all(each.cursors.get(name) == head for name, head in alive.items()))  # type: ignore[misc]
            await asyncio.sleep(0.05)
            assert not reader.done()
            reader.cancel()
            each.close()
            for name, head in alive.items():
                assert read_of_last_instance(found, name) == list(range(1, head + 1)), name
            assert not any(isinstance(frame, ErrorFrame) for frame in found)
            for before, after in pairwise(found):
                if isinstance(before, CaughtUpFrame) and isinstance(after, CaughtUpFrame):
                    assert (before.topic, before.head_seq) != (after.topic, after.head_seq)
        await until(lambda: not feeds(cluster))


async def test_a_deletion_is_told_once(cluster: Cluster, node: Node) -> None:
    """Also of a topic that was named; one that is made later has only its name in common with it."""
    await cluster.put(A, B)
    other = next(islice(names(1), 1, 2))
    await cluster.put(other)
    api = node.api
    with await stream(node, watch(A, B, other)) as opened:
        found = await quiet(opened, 0.1)
        await api.delete_topic(B)
        found += await quiet(opened, 0.1)
        for number, to in enumerate("abab"):
            await cluster.hand_over(1, to)
            if number == 1:
                await cluster.put(B)
            await cluster.append(other)
            await until_told(opened, found, {other: number + 1})
        await cluster.append(B)
        found += await quiet(opened, 0.2)
        told = by_topic(found)
        assert told[B] == [("caught up",), ("deleted", 0)]
        assert seqs(found, other) == [1, 2, 3, 4]
    with await stream(node, watch(B, "t*")) as opened:
        found = await quiet(opened, 0.1)
        await api.delete_topic(B)
        found += await quiet(opened, 0.1)
        await cluster.hand_over(1, "a")
        await cluster.put(B)
        await cluster.append(B)
        await until_told(opened, found, {B: 1})
        await cluster.hand_over(1, "b")
        await cluster.append(B)
        await until_told(opened, found, {B: 2})
        assert by_topic(found)[B] == [
            ([1],), ("caught up",), ("deleted", 1), ([1],), ("caught up",), ([2],), ("caught up",)
        ]  # fmt: skip


async def test_a_watch_leaves_a_former_owner_that_does_not_know_of_the_next_one() -> None:
    """One that is cut off from the rest, but not from this node, and would keep its watches open."""
    async with open_cluster(3, ("a", "b", "c")) as cluster:
        await cluster.put(A, B)
        with await stream(cluster.nodes["c"], watch(A, B)) as opened:
            found = await quiet(opened, 0.1)
            assert cluster.nodes["b"].lives[1].api.watches._feeds
            cluster.take(1, "a")
            await cluster.append(B)
            await until_told(opened, found, {B: 1})
            assert by_topic(found) == {A: [("caught up",)], B: [("caught up",), ([1],), ("caught up",)]}
            await until(lambda: not cluster.nodes["b"].lives[1].api.watches._feeds)
            cluster.take(1, "c")  # it comes here, and a does not know
            request = AppendRequest(topic=B, batch=Batch(datas=[b"1"]))
            await cluster.nodes["c"].api.append(request, principal=UNRESTRICTED)
            await until_told(opened, found, {B: 2})
            assert seqs(found, B) == [1, 2]
