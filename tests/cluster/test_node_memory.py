"""Nodes within one event loop, on a bucket and a coordinator in memory: roles, doors and readiness."""

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import httpx
import msgspec
import pytest
from cluster.world import SECRET, World, client

from support.held_bucket import HeldBucket
from support.tls_proxy import certificate
from support.waiting import until
from topics_cluster import identity, objects
from topics_cluster.checkpoint import Maker
from topics_cluster.coordinator import Addresses, Owner, boottime
from topics_cluster.follower import Follower
from topics_cluster.log import Tail
from topics_cluster.memory import Lease, MemoryBucket, MemoryEntries, MemorySession
from topics_cluster.store import ShardStore
from topics_cluster.takeover import new_nonce
from topics_cluster.trust import Secret, Signer
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc
from topics_server import collector
from topics_server.errors import StartError
from topics_server.node.directory import Directory
from topics_server.node.links import read_secrets
from topics_server.node.peers import METHOD, Notice, Peers, Standing
from topics_server.node.place import Place
from topics_server.secret_files import SecretsError
from topics_server.server import Server
from topics_server.settings import Settings


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await identity.create(world.bucket)
    return world


async def append(http: httpx.AsyncClient, text: str) -> int:
    body = {"records": [{"data": text}], "config": {"durability": "fsync"}}
    reply = await http.post("/v0/topics/t", json=body)
    assert reply.status_code in (200, 201), reply.text
    return int(reply.json()["last_seq"])


async def texts(http: httpx.AsyncClient) -> list[str]:
    reply = await http.post("/v0/topics/t/diff", json={"from_seq": 0})
    assert reply.status_code == 200, reply.text
    return [record["data"] for record in reply.json()["records"]]


async def test_the_first_node_owns_the_shard_and_the_second_passes_on(world: World) -> None:
    async with world.node("a") as a, client(a) as at_a:
        await until(lambda: a.statistics.shards[0].role == "owning")
        await append(at_a, "one")
        async with world.node("b") as b, client(b) as at_b:
            assert b.statistics.shards[0].role == "following"
            await append(at_b, "two")
            assert await texts(at_a) == await texts(at_b) == ["one", "two"]
            await until(lambda: b.statistics.shards[0].number == a.statistics.shards[0].number)
            assert (await at_b.get("/v0/ready")).status_code == 200
            metrics = (await at_b.get("/v0/metrics")).text
            assert 'topics_cluster_role{role="following"} 1.0' in metrics
            assert 'topics_cluster_role{role="owning"} 1.0' in (await at_a.get("/v0/metrics")).text


async def test_a_stop_hands_the_shard_over_with_everything_in_it(world: World) -> None:
    async with contextlib.AsyncExitStack() as stack:
        a = await stack.enter_async_context(world.node("a"))
        async with world.node("b") as b, client(b) as at_b:
            await append(at_b, "one")
            await until(lambda: a.statistics.shards[0].followers == 1)
            await stack.aclose()
            await append(at_b, "two")
            assert await texts(at_b) == ["one", "two"]
            assert (b.statistics.shards[0].role, b.statistics.shards[0].epoch, b.statistics.shards[0].takeovers) == (
                "owning",
                2,
                1,
            )


async def test_a_move_is_an_order_to_any_node(world: World) -> None:
    async with world.node("a") as a, world.node("b") as b, client(a) as at_a:
        await append(at_a, "one")
        await until(lambda: a.statistics.shards[0].followers == 1)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{b.grpc_port}") as channel:
            admin = admin_service_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
            moved = await admin.MoveShard(admin_service_pb2.MoveShardRequest(node="b"))
            assert moved.epoch == 2
            cluster = await admin.GetCluster(admin_service_pb2.GetClusterRequest())
            assert [(shard.owner, shard.epoch) for shard in cluster.shards] == [("b", 2)]
            assert [node.name for node in cluster.nodes] == ["a", "b"]
        assert await append(at_a, "two") == 2
        assert await texts(at_a) == ["one", "two"]
        await until(lambda: b.statistics.shards[0].followers == 1)
        assert a.statistics.shards[0].handovers == 1


async def test_a_successor_does_not_wait_until_the_owner_has_given_up_its_claim(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = asyncio.Event()
    give_up = MemorySession.give_up

    async def late(session: MemorySession, shard: int, mine: Owner) -> None:
        await given_up.wait()
        await give_up(session, shard, mine)

    async with world.node("a") as a, world.node("b") as b, client(a) as at_a:
        await append(at_a, "one")
        await until(lambda: a.statistics.shards[0].followers == 1)
        monkeypatch.setattr(MemorySession, "give_up", late)
        await world.coordinators["b"].want(0, "b")
        await until(lambda: b.statistics.shards[0].role == "owning")
        assert (b.statistics.shards[0].epoch, a.statistics.shards[0].handovers) == (2, 0)
        given_up.set()
        assert await append(at_a, "two") == 2
        await until(lambda: a.statistics.shards[0].handovers == 1 and b.statistics.shards[0].followers == 1)


async def test_a_node_passes_calls_on_while_it_opens_its_database(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.node("a") as a, client(a) as at_a:
        await append(at_a, "one")

        tried = asyncio.Event()

        async def slow(_: Directory) -> ShardStore:
            await tried.wait()
            raise OSError("it can't be opened")

        monkeypatch.setattr(Directory, "open", slow)
        b = world.node("b")
        await asyncio.to_thread(b.open)
        try:
            await b.startup()
            async with client(b) as at_b:
                assert await append(at_b, "two") == 2
        finally:
            tried.set()
            await b.shutdown()
            b.close()


async def test_a_call_waits_at_a_node_that_is_about_to_own_the_shard() -> None:
    place, addresses = Place(), Addresses(http="a:1", grpc="a:2")
    assert await place.arrived() is None, "it is not"
    for end in ("here", "elsewhere"):
        place.coming()
        waiting = [asyncio.create_task(place.arrived()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting.pop().cancel()
        assert not waiting[0].done()
        term: Any = object() if end == "here" else None
        if term is not None:
            place.here(term, addresses)
        else:
            place.elsewhere(addresses)
        assert await waiting[0] is term
        assert await place.arrived() is term
        place.elsewhere(None)


async def test_an_owner_that_etcd_can_not_reach_is_replaced_and_shows_nothing_old(world: World) -> None:
    async with world.node("a") as a, world.node("b") as b, client(a) as at_a, client(b) as at_b:
        await append(at_a, "one")
        await until(lambda: a.statistics.shards[0].followers == 1)
        world.coordinators["a"].reachable = False
        await until(lambda: b.statistics.shards[0].role == "owning")
        await append(at_b, "two")
        world.coordinators["a"].reachable = True
        assert await texts(at_a) == ["one", "two"]
        await until(lambda: a.statistics.shards[0].role == "following" and b.statistics.shards[0].followers == 1)
        assert (a.statistics.shards[0].fenced, b.statistics.shards[0].epoch) == (1, 2)


async def test_an_owner_that_is_replaced_does_not_wait_for_an_object_under_way(world: World) -> None:
    world.bucket = bucket = HeldBucket()
    await identity.create(bucket)
    async with world.node("a") as a, world.node("b") as b, client(a) as at_a, client(b) as at_b:
        await append(at_a, "one")
        await until(lambda: a.statistics.shards[0].followers == 1)
        held = objects.name(0, a.statistics.shards[0].number + 1)
        bucket.fate = lambda name: "held" if name == held and is_uploader() else "made"
        writing = asyncio.create_task(at_a.post("/v0/topics/t", json={"records": [{"data": "two"}]}))
        await until(lambda: bucket.tried[-1] == held)
        world.coordinators["a"].reachable = False
        await until(lambda: b.statistics.shards[0].role == "owning")
        world.coordinators["a"].reachable = True
        await until(lambda: a.statistics.shards[0].role == "following" and b.statistics.shards[0].followers == 1)
        with contextlib.suppress(httpx.TransportError):  # an answer that says no, or none
            assert (await writing).status_code >= 500
        assert await texts(at_a) == await texts(at_b) == ["one"]


async def test_a_node_whose_claim_ended_before_its_fence_does_not_serve(world: World) -> None:
    """Another one had the claim in between: it shows what it has by its lease, and must not miss anything."""
    world.bucket = bucket = HeldBucket()
    await identity.create(bucket)
    async with world.node("a") as a, world.node("b") as b, client(a) as at_a:
        await append(at_a, "one")
        await until(lambda: a.statistics.shards[0].followers == 1)
        fence = objects.name(0, a.statistics.shards[0].number + 1)
        bucket.fate = lambda name: "held" if name == fence and not is_uploader() else "made"
        world.coordinators["a"].reachable = False
        await until(lambda: bucket.tried[-1] == fence)
        world.coordinators["b"].reachable = False
        await until(lambda: not world.entries.view().owners)
        world.coordinators["a"].reachable = True
        await until(lambda: a.statistics.lease_seconds > 1)
        there = len(bucket.objects())
        bucket.fate = lambda _name: "made"
        await until(lambda: len(bucket.objects()) > there)
        world.coordinators["b"].reachable = True
        # It may see the other claim before it has read its own fence: then it does not even begin.
        await until(lambda: b.statistics.shards[0].fenced == 1 or b.statistics.shards[0].role == "following")
        assert b.statistics.shards[0].takeovers == 0


async def test_a_fence_in_a_deleted_stretch_does_not_keep_a_node_from_taking_over(world: World) -> None:
    """A node that read it knows of an epoch that the log never came to."""
    async with world.node("b") as b:
        await until(lambda: b.statistics.shards[0].role == "owning")
        async with world.node("a") as a:
            await until(lambda: b.statistics.shards[0].followers == 1)
            a.statistics.shards[0].epoch = 9
            world.coordinators["b"].reachable = False
            await until(lambda: a.statistics.shards[0].role == "owning")
            assert a.statistics.shards[0].epoch == 2


async def test_the_engine_of_a_former_owner_is_freed_soon(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topics may have hundreds of megabytes, and the collector of a server seldom looks at what is old."""
    monkeypatch.setattr(collector, "QUIET_SECONDS", 0.2)
    async with world.node("a") as a, world.node("b") as b, client(a) as at_a:
        await append(at_a, "one")
        await until(lambda: a.statistics.shards[0].followers == 1)
        running: Any = a._running
        engine = weakref.ref(running.shards[0].place.term.core.engine)
        gc.freeze()
        gc.disable()
        try:
            await world.coordinators["a"].want(0, "b")
            await until(lambda: b.statistics.shards[0].role == "owning" and a.statistics.shards[0].role == "following")
            await until(lambda: engine() is None)
        finally:
            gc.unfreeze()
            gc.enable()


def is_uploader() -> bool:
    return threading.current_thread().name == "log-uploader"


async def test_without_a_coordinator_the_owner_continues_and_looks_before_it_reads(world: World) -> None:
    async with world.node("a") as a, client(a) as at_a:
        await append(at_a, "one")
        world.coordinators["a"].reachable = False
        await until(lambda: a.statistics.lease_seconds < 0)
        await append(at_a, "two")
        assert await texts(at_a) == ["one", "two"]
        await until(lambda: a.statistics.shards[0].probes >= 2)
        world.coordinators["a"].reachable = True
        await until(lambda: a.statistics.lease_seconds > 1)
        assert await append(at_a, "three") == 3
        assert (a.statistics.shards[0].role, a.statistics.shards[0].epoch) == ("owning", 1)


async def test_only_nodes_that_have_the_secret_can_follow(world: World) -> None:
    standing = Standing(shard=0, node="x", number=0, caught_up=True, reaches_store=True, nonce=b"x" * 16)
    async with world.node("a") as a:
        address = f"127.0.0.1:{a.grpc_port}"
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream(METHOD)(iter([msgspec.msgpack.encode(standing)]))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call.read()
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        refused: list[str] = []
        stranger = Peers(Signer(Secret([b"another secret " * 4])), "x", lambda: None, refused.append)
        heard: list[Notice] = []
        await stranger.follow(address, lambda: standing, asyncio.Event(), heard.append)
        assert not heard
        assert refused == ["its signature is not one of this cluster for this request"]
        node = Peers(Signer(Secret([SECRET.encode()])), "x", lambda: None, refused.append)
        following = asyncio.create_task(node.follow(address, lambda: standing, asyncio.Event(), heard.append))
        await until(lambda: heard and a.statistics.shards[0].followers == 1)
        following.cancel()
        await asyncio.wait((following,))
        await until(lambda: a.statistics.shards[0].followers == 0)


async def test_nodes_with_certificates_reach_each_other(world: World, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    tls = {"tls_cert_file": str(cert), "tls_key_file": str(key), "cluster_advertised": "localhost"}
    async with world.node("a", **tls) as a, world.node("b", **tls) as b:
        await until(lambda: a.statistics.shards[0].followers == 1)
        url = f"https://localhost:{b.http_port}"
        async with httpx.AsyncClient(base_url=url, verify=ssl.create_default_context(cafile=str(cert))) as at_b:
            assert await append(at_b, "one") == 1
        assert b.statistics.forwarded["http"] == 1


def test_a_secret_is_long_enough_and_may_be_two(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"# new\n{SECRET}\n{SECRET[::-1]}\n")
    assert read_secrets(str(file)) == [SECRET.encode(), SECRET[::-1].encode()]
    file.write_text("short\n")
    with pytest.raises(SecretsError, match="a secret of at least 32 bytes"):
        read_secrets(str(file))


async def test_a_directory_that_is_older_than_the_log_is_replaced(world: World) -> None:
    async with world.node("a") as a, client(a) as at_a:
        await append(at_a, "one")
        async with world.node("b"):
            await until(lambda: a.statistics.shards[0].followers == 1)
        await append(at_a, "two")
        await append(at_a, "three")
        term = a._running.shards[0].place.term  # type: ignore[union-attr]
        assert term is not None
        made = await Maker(world.bucket, 0, world.folder / "made", "test").make(term._store)
        assert made is not None
        for entry in await world.bucket.list(objects.prefix(0)):
            if objects.number_of(entry.name) < made.number:
                await world.bucket.delete([entry.name])
        async with world.node("b") as b, client(b) as at_b:
            await until(lambda: a.statistics.shards[0].followers == 1)
            assert b.statistics.shards[0].number == a.statistics.shards[0].number
            assert await texts(at_b) == ["one", "two", "three"]
        async with world.node("c") as c:
            await until(lambda: c.statistics.shards[0].number == a.statistics.shards[0].number)


async def test_a_bucket_that_gives_a_name_twice_is_refused(world: World) -> None:
    class Careless(MemoryBucket):
        async def create(self, name: str, parts: Sequence[bytes]) -> bool:
            await self.delete([name])
            return await super().create(name, parts)

    world.bucket = Careless()
    with pytest.raises(StartError, match="TOPICS_CLUSTER_STORE s3://memory/test: the object store overwrites"):
        async with world.node("a"):
            pass


async def test_a_name_is_of_one_node(world: World, tmp_path: Path) -> None:
    async with world.node("a"):
        with pytest.raises(StartError, match="another node with the name a lives at 127"):
            async with world.node("a", data_dir=str(tmp_path / "other")):
                pass


async def test_a_directory_of_another_cluster_is_refused_and_stays(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.node("a") as a, client(a) as at_a:
        await append(at_a, "one")
    former, world.bucket = world.bucket, MemoryBucket()
    await identity.create(world.bucket)
    ids = [(await identity.load(bucket)).id for bucket in (former, world.bucket)]
    world.entries = MemoryEntries()
    node = world.node("a")
    await asyncio.to_thread(node.open)
    try:
        await node.startup()
        told = f"{world.folder / 'a'} can't be used: it has the data of another cluster, {ids[0]}, and this is {ids[1]}"
        await until(lambda: told in caplog.text)
        assert node.statistics.shards[0].role == "starting"
    finally:
        node.stop()
        await node.shutdown()
        await asyncio.to_thread(node.close)
    assert await world.bucket.list(objects.prefix(0)) == []
    world.bucket, world.entries = former, MemoryEntries()
    async with world.node("a") as a, client(a) as at_a:
        assert await texts(at_a) == ["one"]


async def test_a_directory_that_a_single_server_wrote_to_is_of_no_node_any_more(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Its writes are in no log."""
    async with world.node("a") as a, client(a) as at_a:
        await append(at_a, "one")
    folder = world.folder / "a"
    async with (
        Server(Settings(data_dir=str(folder), port=0, grpc_port=0, max_lag_ms=0)) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}") as alone,
    ):
        await append(alone, "alone")
        assert await texts(alone) == ["one", "alone"]
    node = world.node("a")
    await asyncio.to_thread(node.open)
    try:
        await node.startup()
        await until(lambda: f"{folder} has the topics of a single server" in caplog.text)
        assert node.statistics.shards[0].role == "starting"
    finally:
        node.stop()
        await node.shutdown()
        await asyncio.to_thread(node.close)
    shutil.rmtree(folder)
    async with world.node("a") as a, client(a) as at_a:
        assert await texts(at_a) == ["one"]


async def test_two_clusters_do_not_share_a_name_in_etcd(world: World) -> None:
    async with world.node("a"):
        world.bucket = MemoryBucket()
        await identity.create(world.bucket)
        with pytest.raises(StartError, match=r"the node a at 127.* is of another cluster with the name test"):
            async with world.node("b"):
                pass


@pytest.mark.parametrize(("format", "shards"), [(2, 1), (1, 65), (1, 0)])
async def test_a_cluster_of_a_later_version_is_refused(world: World, format: int, shards: int) -> None:  # noqa: A002
    world.bucket = MemoryBucket()
    made = identity.Identity(format=format, shards=shards, id="x")
    await world.bucket.create(identity.NAME, [identity.encode(made)])
    with pytest.raises(StartError, match=f"the format {format} and {shards} shards"):
        async with world.node("a"):
            pass


async def test_a_fence_of_its_own_that_lands_while_a_node_follows_is_none_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had put it in the life before, to own the shard with what only its directory has."""
    monkeypatch.setattr("topics_cluster.commit._SETTLE_SECONDS", 0.05)
    world.bucket = bucket = HeldBucket()
    await identity.create(bucket)
    async with world.node("a") as a, client(a) as at_a:
        assert (await at_a.put("/v0/topics/t", json={"durability": "disk"})).status_code == 201
        await append(at_a, "in the store")
        bucket.fate = lambda name: "held" if is_uploader() else "made"
        for text in ("only", "here"):
            reply = await at_a.post("/v0/topics/t", json={"records": [{"data": text}]})
            assert reply.status_code == 200
    bucket.fate = lambda _name: "made"
    store = ShardStore(world.folder / "a")
    await Follower(bucket, store, 0).catch_up()
    assert store.is_ahead
    fence = Tail(0, store.position).fence(store.will_fence(new_nonce()))
    store.close()
    async with contextlib.AsyncExitStack() as stack:
        host, port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()
        addresses = Addresses(http="", grpc=f"{host}:{port}", kafka="")
        lease = Lease(boottime, 1e9)
        world.entries.owners[0] = Owner(node="x", addresses=addresses, epoch=1), lease
        a = await stack.enter_async_context(world.node("a"))
        assert a.statistics.shards[0].role == "following"
        await bucket.create(fence.name, fence.parts)
        await until(lambda: a.statistics.shards[0].epoch == 2)
        lease.revoke()
        world.entries.touch()
        await until(lambda: a.statistics.shards[0].role == "owning")
        at_a = await stack.enter_async_context(client(a))
        assert await texts(at_a) == ["in the store", "only", "here"]
        assert a.statistics.shards[0].epoch == 3
