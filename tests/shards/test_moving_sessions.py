"""Watch sessions of nodes, followed through other nodes, and calls of a node whose shards move."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from shards.far import names
from shards.frames import by_topic, until_told
from shards.nodes import Cluster, open_cluster

from support.waiting import until
from support.watching import quiet, seqs, watch
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.watch_journal import is_token, new_id
from topics_service.api.watch_journal import process_of as process_of_token
from topics_service.api.watch_sessions import process_of
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.watch.frames import ErrorFrame

A, B, C = (next(iter(names(shard))) for shard in range(3))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_cluster(3, ("a", "b", "c")) as opened:
        yield opened


async def refused(cluster: Cluster, wid: str) -> Reason:
    with pytest.raises(TopicsError) as caught:
        await cluster.nodes["a"].api.watches.open(wid, {}, principal=UNRESTRICTED)
    return caught.value.reason


async def test_ids_name_their_node(cluster: Cluster) -> None:
    await cluster.put(A)
    for node in cluster.nodes.values():
        session = await node.api.watches.create(watch(A), principal=UNRESTRICTED)
        assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", session.wid)
        assert process_of(session.wid, 4) == node.number


async def test_a_session_is_followed_through_other_nodes_while_shards_move(cluster: Cluster) -> None:
    await cluster.put(A, B)
    await cluster.append(B, 2)
    session = await cluster.nodes["b"].api.watches.create(watch(A, B), principal=UNRESTRICTED)
    with await cluster.nodes["a"].api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
        found = await quiet(stream, 0.1)
        await cluster.hand_over(1, "c")
        await cluster.append(B)
        await cluster.append(A)
        await until_told(stream, found, {A: 1, B: 3})
        await cluster.hand_over(0, "b")
        await cluster.append(A)
        await until_told(stream, found, {A: 2})
        assert (seqs(found, A), seqs(found, B)) == ([1, 2], [1, 2, 3])
        cursor = stream.resume_cursors
    await until(lambda: not cluster.nodes["b"].metrics.watch.streams)
    await cluster.append(B)
    with await cluster.nodes["c"].api.watches.open(session.wid, cursor, principal=UNRESTRICTED) as stream:
        assert seqs(await quiet(stream, 0.1)) == [4]


async def test_a_node_that_dies_takes_its_sessions_with_it(cluster: Cluster) -> None:
    await cluster.put(A, B)
    await cluster.append(B, 2)
    session = await cluster.nodes["b"].api.watches.create(watch(A, B), principal=UNRESTRICTED)
    with await cluster.nodes["a"].api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
        assert by_topic(await quiet(stream, 0.1)) == {A: [("caught up",)], B: [([1, 2],), ("caught up",)]}
        cursor = stream.resume_cursors
        number = cluster.nodes["b"].number
        assert await cluster.kill("b") == [1]
        frames = await quiet(stream, 0.2)
        assert [(frame.code, frame.terminal) for frame in frames if isinstance(frame, ErrorFrame)] == [(410, True)]
        assert stream.over
    assert await refused(cluster, session.wid) is Reason.NOT_FOUND
    cluster.take(1, "c")
    await cluster.append(B)
    again = await cluster.nodes["a"].api.watches.create(watch(A, B, cursor=cursor), principal=UNRESTRICTED)
    with await cluster.nodes["c"].api.watches.open(again.wid, {}, principal=UNRESTRICTED) as stream:
        assert seqs(await quiet(stream, 0.1)) == [3]
    for unknown in (number, 0, 7, 2**31 - 1, 2**32 - 1):
        assert await refused(cluster, f"wid_{new_id(16, unknown.to_bytes(4, 'big'))}") is Reason.NOT_FOUND
    for wid in ("wid_", "wid_" + 22 * "x", "wid_" + 22 * "_", "x"):
        assert await refused(cluster, wid) is Reason.NOT_FOUND


async def test_a_node_that_does_not_know_the_session_any_more(cluster: Cluster) -> None:
    """One that was started again, under the same name."""
    await cluster.put(A)
    number = cluster.nodes["b"].number
    assert await refused(cluster, f"wid_{new_id(16, number.to_bytes(4, 'big'))}") is Reason.NOT_FOUND


async def test_tokens_of_large_sessions_are_known_to_all_nodes(cluster: Cluster) -> None:
    topics = [f"t{number}" for number in range(70)]
    await cluster.put(*topics)
    session = await cluster.nodes["b"].api.watches.create(watch(*topics), principal=UNRESTRICTED)
    await cluster.append("t7", 3)
    with await cluster.nodes["a"].api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
        await quiet(stream, 0.1)
        token = stream.resume_token()
    assert is_token(token)
    assert process_of_token(token, 4) == cluster.nodes["b"].number
    for node in cluster.nodes.values():
        place = await node.api.watches.recall(token, principal=UNRESTRICTED)
        assert place == {name: 3 * (name == "t7") for name in topics}
    await cluster.kill("b")
    assert await cluster.nodes["a"].api.watches.recall(token, principal=UNRESTRICTED) is None


async def test_a_call_that_waits_for_a_dead_node_goes_to_the_new_owner(cluster: Cluster) -> None:
    """Also if that is the node of the call itself."""
    await cluster.put(B)
    node = cluster.nodes["a"]
    channel = node.channels["b"]
    await cluster.kill("b")
    for to in ("c", "a"):
        node.owners[1] = channel  # nobody has told it otherwise yet
        writing = asyncio.create_task(cluster.append(B))
        await asyncio.sleep(0.1)
        assert not writing.done()
        cluster.take(1, to)
        assert (await asyncio.wait_for(writing, 2)).count == 1
        await cluster.lose(1)
