"""Reads at followers that name a position in the log, within one event loop."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cluster.test_node_memory import World
from cluster.test_node_memory import client as http
from cluster.test_reads_memory import client as calls
from cluster.test_reads_memory import no_answer, two

from support.held_bucket import HeldBucket
from support.shards import SHARD, Member
from support.waiting import until
from topics_client import AsyncTopicsClient, NotFoundError
from topics_cluster import identity
from topics_cluster.commit import LogCommit
from topics_cluster.follower import Follower
from topics_cluster.log import Tail
from topics_cluster.takeover import new_nonce
from topics_gateway.request import PassedOnError
from topics_proto.v1 import record_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.node import reads
from topics_server.node.local import LocalTopics
from topics_server.node.peers import Standpoint
from topics_server.node.server import NodeServer
from topics_server.server import Server
from topics_server.settings import Settings, load
from topics_service.api.request_context import POSITION
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest
from topics_service.engine.replica import Replica


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await identity.create(world.bucket)
    return world


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let followers wait as long as a busy machine needs: which node answers is counted."""
    monkeypatch.setattr(reads, "_REACH_SECONDS", 20.0)


@contextlib.asynccontextmanager
async def owner_and_follower(
    world: World, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient, NodeServer]]:
    async with two(world, **settings) as (a, b), http(a) as at_a, http(b) as at_b:
        yield at_a, at_b, b


async def write(at: httpx.AsyncClient, topic: str, *records: dict[str, Any], **members: Any) -> str:
    """Append, and return the position of the answer."""
    reply = await at.post(f"/v0/topics/{topic}", json={"records": records, **members})
    assert reply.status_code in (200, 201), reply.text
    return reply.headers[POSITION]


async def read(at: httpx.AsyncClient, topic: str, position: str, **members: Any) -> httpx.Response:
    return await at.post(f"/v0/topics/{topic}/diff", json=members, headers={POSITION: position})


def content(reply: httpx.Response) -> tuple[int, dict[str, Any]]:
    """Status and members, without what differs with each call."""
    members = json.loads(reply.text)
    del members["performance"]
    return reply.status_code, members


def counted(node: NodeServer) -> tuple[int, int]:
    """Reads from its own rows, and requests passed on, of a node."""
    return node.statistics.follower_reads, sum(node.statistics.forwarded.values())


async def test_a_client_reads_its_writes_at_the_follower(world: World) -> None:
    async with owner_and_follower(world) as (at_a, at_b, b):
        for number in range(1, 31):
            position = await write(at_a, "t", {"data": number})
            reply = await read(at_b, "t", position, from_seq=number - 1)
            assert [each["data"] for each in reply.json()["records"]] == [number]
            state = await at_b.get("/v0/topics/t", headers={POSITION: position})
            assert state.json()["head_seq"] == number
            assert state.headers[POSITION] == position
        gone = await at_a.delete("/v0/topics/t")
        after = {POSITION: gone.headers[POSITION]}
        missing = await at_b.get("/v0/topics/t", headers=after)
        assert (missing.status_code, missing.headers[POSITION]) == (404, gone.headers[POSITION])
        again = await write(at_a, "t", {"data": "new"})
        assert (await read(at_b, "t", again)).json()["records"][0]["data"] == "new"
        assert counted(b) == (62, 0)


async def test_calls_of_grpc_are_answered_there_too(world: World) -> None:
    async with two(world) as (a, b), calls(a) as at_a, calls(b) as at_b:
        for number in range(1, 11):
            columns = record_pb2.ColumnBatch(data=[b"%d" % number])
            call = at_a.stub.Append(pb.AppendRequest(topic="t", columns=columns))
            assert (await call).head_seq == number
            position = dict(await call.trailing_metadata())[POSITION]
            mark = ((POSITION, position),)
            diff = at_b.stub.Diff(pb.DiffRequest(topic="t", from_seq=number - 1), metadata=mark)
            assert (await diff).head_seq == number
            assert dict(await diff.trailing_metadata())[POSITION] == position
            assert (await at_b.stub.GetTopic(pb.GetTopicRequest(topic="t"), metadata=mark)).state.head_seq == number
            located = await at_b.stub.LocateTime(pb.LocateTimeRequest(topic="t", ts_ms=1 << 50), metadata=mark)
            assert located.seq == number + 1
            bulk = at_b.stub.BulkDiff(pb.BulkDiffRequest(topic="t"), metadata=mark)
            assert [frame.head_seq async for frame in bulk] == [number]
            assert dict(await bulk.trailing_metadata())[POSITION] == position
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await at_b.stub.GetTopic(pb.GetTopicRequest(topic="none"), metadata=mark)
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
        assert dict(error.value.trailing_metadata() or ())[POSITION] == position
        assert counted(b) == (40, 0)


async def test_answers_are_those_of_the_owner(world: World) -> None:
    async with owner_and_follower(world) as (at_a, at_b, b):
        await at_a.put("/v0/topics/t", json={"dedupe_node": True})
        await at_a.put("/v0/topics/many", json={"partition_count": 3})
        await write(at_a, "many", {"data": 1}, partition=2)
        for number in range(10):
            position = await write(
                at_a,
                "t",
                *({"data": {"n": number}, "tag": f"t{n % 3}", "meta": {"k": "v"}} for n in range(20)),
                node=f"n{number % 2}",
            )
        position = (await at_a.post("/v0/topics/t/delete", json={"match": "t2", "before_seq": 50})).headers[POSITION]
        requests: list[dict[str, Any]] = [
            {},
            {"limit": 7, "from_seq": 3, "include_tags": True, "include_meta": False},
            {"last": 5},
            {"from_ts": 1},
            {"filter": "t1", "include_tags": True},
            {"node": "n1"},
            {"max_batch_bytes": 100},
            {"from_seq": 9000},
            {"from_seq": 200, "wait_ms": 0},
            {"partition": 1},
            {"limit": -1},
            {"last": 1, "from_seq": 1},
        ]
        for members in requests:
            here, there = await read(at_b, "t", position, **members), await read(at_a, "t", position, **members)
            assert content(here) == content(there), members
        for partition in (0, 2):
            here, there = [await read(at, "many", position, partition=partition) for at in (at_b, at_a)]
            assert content(here) == content(there)
        for target in ("/v0/topics/t?touch=false", "/v0/topics/many?touch=false&partition=2", "/v0/topics/none"):
            here, there = [await at.get(target, headers={POSITION: position}) for at in (at_b, at_a)]
            recency = {"last_read_ts": None, "effective_priority": 0} if here.status_code == 200 else {}
            assert content(here)[1] | recency == content(there)[1] | recency
            assert here.headers["content-type"] == there.headers["content-type"]
        assert counted(b) == (len(requests) + 2 + 3, 0)


async def test_without_a_position_nothing_changes_and_answers_have_one_in_a_cluster_only(
    world: World, tmp_path: Path
) -> None:
    async with owner_and_follower(world) as (at_a, at_b, b):
        position = await write(at_b, "t", {"data": 1})
        assert (await at_b.post("/v0/topics/t/diff", json={})).headers[POSITION] == position
        assert (await at_a.get("/v0/topics/none")).headers[POSITION] == position
        assert counted(b) == (0, 2)
    settings = Settings(data_dir=str(tmp_path / "alone"), port=0, grpc_port=0)
    async with Server(settings) as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}") as alone:
        reply = await alone.get("/v0/topics/none", headers={POSITION: "nonsense"})
        assert reply.status_code == 404
        assert POSITION not in reply.headers


@pytest.mark.parametrize("position", ["", "1", "1-", "-1", "1-2-3", "1-x", "١-1", "1 - 2", f"1-{10**19}", "0, 0"])
async def test_a_malformed_position_is_refused_by_every_node(world: World, position: str) -> None:
    async with two(world) as (a, b):
        for node in (a, b):
            async with http(node) as at, calls(node) as stubs:
                mark = position.encode()
                reply = await at.post("/v0/topics/t/diff", json={}, headers={POSITION.encode(): mark})
                assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")
                if position.isascii():
                    with pytest.raises(grpc.aio.AioRpcError) as error:
                        await stubs.stub.Diff(pb.DiffRequest(topic="t"), metadata=((POSITION, position),))
                    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_follower_that_is_behind_passes_the_read_on_and_its_stale_rows_are_there_for_0(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(world) as (a, b), http(a) as at_a, http(b) as at_b:
        first = await write(at_a, "t", {"data": 1})
        assert len((await read(at_b, "t", first)).json()["records"]) == 1
        with monkeypatch.context() as away:
            away.setattr(world.bucket, "get", no_answer)
            away.setattr(reads, "_REACH_SECONDS", 0.1)
            position = await write(at_a, "t", {"data": 2})
            began = time.monotonic()
            reply = await read(at_b, "t", position)
            assert time.monotonic() - began >= 0.1
            assert len(reply.json()["records"]) == 2
            assert reply.headers[POSITION] == position
            large = await read(at_b, "t", position, node=["n" * 100] * 400)  # its body comes in parts
            assert len(large.json()["records"]) == 2
            assert counted(b) == (1, 2)
            stale = await read(at_b, "t", "0")
            assert (len(stale.json()["records"]), stale.headers[POSITION]) == (1, first)
        await until(lambda: b.statistics.shards[0].number == a.statistics.shards[0].number)
        assert len((await read(at_b, "t", position)).json()["records"]) == 2
        assert counted(b) == (3, 2)


@pytest.mark.parametrize("http2", [False, True])
async def test_requests_of_every_framing_are_answered_here_or_by_the_owner(
    world: World, monkeypatch: pytest.MonkeyPatch, *, http2: bool
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b'{"from_'
        yield b'seq": 0}'

    async with two(world) as (a, b), http(a) as at_a:
        position = await write(at_a, "t", {"data": 1})
        base = f"http://127.0.0.1:{b.http_port}"
        async with httpx.AsyncClient(base_url=base, http1=not http2, http2=http2, timeout=20) as at_b:
            headers = {POSITION: position, "content-type": "application/json"}
            for served in (1, 0):
                if not served:
                    monkeypatch.setattr(LocalTopics, "_check", refuse)
                before = counted(b)
                for content in ('{"from_seq": 0}', " " * 60_000 + "{}", b"", parts()):
                    reply = await at_b.post("/v0/topics/t/diff", content=content, headers=headers)
                    assert [each["data"] for each in reply.json()["records"]] == [1]
                assert (await at_b.get("/v0/topics/t", headers=headers)).json()["head_seq"] == 1
                assert (await at_b.head("/v0/topics/t", headers=headers)).status_code == 200
                local = 5 * served  # a body without a length is the owner's
                assert counted(b) == (before[0] + local, before[1] + 6 - local)


def refuse(_: object, **__: object) -> None:
    raise TopicsError(Reason.NOT_READY, "as the test wants")


async def test_a_read_waits_until_the_rows_are_there(world: World) -> None:
    """The position of a write is named before the write has come to the follower."""
    async with owner_and_follower(world) as (at_a, at_b, b):
        position = await write(at_a, "t", {"data": 1})
        epoch, _, ticket = position.partition("-")
        waiting = asyncio.create_task(read(at_b, "t", f"{epoch}-{int(ticket) + 1}"))
        await asyncio.sleep(0)
        await write(at_a, "t", {"data": 2})
        assert len((await waiting).json()["records"]) == 2
        assert counted(b)[1] == 0


async def test_what_only_the_owner_knows_is_answered_by_it(world: World) -> None:
    async with owner_and_follower(world) as (at_a, at_b, b):
        for name, config in (
            ("memory", {"durability": "ephemeral"}),
            ("queue", {"type": "queue"}),
            ("source", {}),
            ("copy", {}),
            ("short", {"ttl_ms": 1}),
        ):
            assert (await at_a.put(f"/v0/topics/{name}", json=config)).status_code == 201
        await at_a.put("/v0/routers/r", json={"source": "source", "dest": "copy"})
        for name in ("memory", "queue", "source", "short"):
            position = await write(at_a, name, {"data": 1})
        for name in ("memory", "copy"):
            assert len((await read(at_b, name, position)).json()["records"]) == 1
        state = await at_b.get("/v0/topics/queue", headers={POSITION: position})
        assert state.json()["queue"]["ready"] == 1
        assert (await read(at_b, "short", position)).json()["records"] == []
        waiting = asyncio.create_task(read(at_b, "source", position, from_seq=1, wait_ms=20_000))
        await until(lambda: counted(b) == (0, 5))
        await write(at_a, "source", {"data": 2})
        assert len((await waiting).json()["records"]) == 1
        assert len((await read(at_b, "source", position, wait_ms=20_000)).json()["records"]) == 2
        assert counted(b) == (1, 5)


async def test_reads_at_a_follower_are_authorized_counted_and_logged_like_those_at_the_owner(world: World) -> None:
    keys = load({"TOPICS_API_KEYS": "sekret-all, sekret-write:write, sekret-t42:read:t42:"}, {}).api_keys
    async with owner_and_follower(world, api_keys=keys, cors_origins="http://page") as (at_a, at_b, b):
        full = {"authorization": "Bearer sekret-all"}
        reply = await at_a.post("/v0/topics/other", json={"records": [{"data": 1}]}, headers=full)
        mark = {POSITION: reply.headers[POSITION], "origin": "http://page", "x-request-id": "mine"}
        answers = {}
        for key in ("wrong", "sekret-write", "sekret-t42", "sekret-all"):
            headers = {"authorization": f"Bearer {key}", **mark}
            answer = await at_b.get("/v0/topics/other", headers=headers)
            assert answer.headers["x-request-id"] == "mine"
            assert answer.headers["access-control-allow-origin"] == "http://page"
            assert POSITION in answer.headers["access-control-expose-headers"]
            answers[key] = answer.status_code
        assert answers == {"wrong": 401, "sekret-write": 403, "sekret-t42": 403, "sekret-all": 200}
        assert counted(b) == (3, 1)
        metrics = (await at_b.get("/v0/metrics", headers=full)).text
        for status, count in (("2xx", 1), ("4xx", 2)):
            assert f'_seconds_count{{rpc="TopicsService.GetTopic",status="{status}"}} {count}.0' in metrics
        assert 'topics_http_errors_total{code="forbidden"} 2.0' in metrics


async def test_the_client_reads_its_writes_at_the_node_that_it_is_given(world: World) -> None:
    async with two(world) as (_, b):
        url = f"127.0.0.1:{b.grpc_port}"
        async with AsyncTopicsClient(url, read_from="followers") as client, AsyncTopicsClient(url) as plain:
            with pytest.raises(NotFoundError):
                await client.get_topic("t")  # the first read is the owner's: no position is known
            assert counted(b) == (0, 1)
            for number in range(1, 21):
                await client.append("t", number)
                assert (await client.diff("t", number - 1)).records[0].value == number
                assert (await client.get_topic("t")).head_seq == number
            assert [record.value async for record in client.read("t", last=2)] == [19, 20]
            assert counted(b)[0] == 41
            async with client.producer(linger_ms=0) as producer:
                await producer.append("t", 21)
                await producer.flush()
            assert (await client.diff("t", 20)).records[0].value == 21
            assert counted(b)[0] == 42
            await plain.append("t", 22)
            async with client.read("t", 21, follow=True) as following:
                assert (await anext(aiter(following))).seq == 22
                assert (await client.diff("t", 21)).records[0].value == 22  # the owner's again: it saw more
                assert counted(b)[0] == 42
            assert (await client.diff("t", 21)).records[0].value == 22
            assert counted(b)[0] == 43
            await plain.get_topic("t")
            assert counted(b)[0] == 43
        with pytest.raises(ValueError, match="read_from is owner or followers"):
            AsyncTopicsClient(url, read_from="nearest")  # type: ignore[arg-type]


async def test_reads_go_on_at_a_follower_while_there_is_no_owner(world: World) -> None:
    async with world.node("a") as a, http(a) as at_a:
        position = await write(at_a, "t", {"data": 1})
        async with world.node("b") as b, http(b) as at_b:
            await until(lambda: a.statistics.shards[0].followers == 1)
            assert len((await read(at_b, "t", position)).json()["records"]) == 1
            running: Any = b._running
            running.shards[0].place.elsewhere(None)
            reply = await asyncio.wait_for(read(at_b, "t", position), 5)
            assert len(reply.json()["records"]) == 1


async def test_rows_that_are_not_in_the_log_are_not_read(tmp_path: Path) -> None:
    bucket = HeldBucket()
    with Member(bucket, tmp_path / "owner") as member:
        ownership = await member.own()
        store = member.store
        engine = Engine(store, SystemClock(), recover=False)
        commit = LogCommit.for_engine(engine, store)
        for _ in engine.recover(f"epoch {ownership.epoch}"):
            pass
        ticket = engine.put_topic("t", ConfigInput(durability="fsync"))[1]
        await commit.wait(ticket)
        topics = LocalTopics(store, Replica(store, SystemClock(), is_durable=True))
        engine.append(AppendRequest(topic="t", batch=Batch(datas=[b"1"])))
        assert store.is_ahead
        with pytest.raises(PassedOnError):
            await topics.diff(DiffRequest(topic="t"))
        await asyncio.to_thread(commit.stop)


async def test_the_fence_of_a_node_that_slept_hides_no_writes(tmp_path: Path) -> None:
    """It may be in a deleted stretch: its epoch is a later one than the owner's, and what came behind is not here."""
    bucket = HeldBucket()
    with Member(bucket, tmp_path / "owner") as owner, Member(bucket, tmp_path / "slept") as slept:
        await owner.own()
        owner.put(b"1", b"value")
        await owner.sync()
        await Follower(bucket, slept.store, SHARD).catch_up()
        owner.put(b"2", b"value")
        await owner.sync()
        wanted = Standpoint(epoch=owner.store.position.epoch, ticket=owner.store.ticket)
        for entry in await bucket.list(""):
            bucket.drop(entry.name)
        fence = Tail(SHARD, slept.store.position).fence(new_nonce())
        assert await bucket.create(fence.name, fence.parts)
        await Follower(bucket, slept.store, SHARD).catch_up()
        assert slept.store.position.epoch > wanted.epoch
        topics = LocalTopics(slept.store, Replica(slept.store, SystemClock(), is_durable=True))
        with pytest.raises(PassedOnError, match="the node is behind"):
            await topics.reach(wanted, 0.01)
