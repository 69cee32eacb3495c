"""Nodes with several shards within one event loop: who owns which, moves one by one, and what is left of a node that
goes."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cluster.world import World, client

from support.waiting import until
from topics_cluster import identity, objects
from topics_cluster.memory import MemoryBucket, MemoryEntries
from topics_proto.v1 import admin_service_pb2 as pb
from topics_proto.v1.admin_service_pb2_grpc import AdminServiceStub
from topics_server.errors import StartError
from topics_server.node import shards as shards_module
from topics_server.node.server import NodeServer
from topics_server.node.shards import Shards
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest
from topics_service.engine.placement import home_of

SHARDS = 3


class WatchedEntries(MemoryEntries):
    """Notes the most moves that were ever under way at once: wishes that are not fulfilled, and owners that come."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def touch(self) -> None:
        nodes = {name for name, (_, lease) in self.nodes.items() if lease.holds}
        owners = {shard: owner for shard, (owner, _) in self.owners.items()}
        moving = {
            shard
            for shard, name in self.wanted.items()
            if name in nodes and shard in owners and owners[shard].node != name
        }
        self.most = max(
            self.most, len(moving | {shard for shard, owner in owners.items() if moving and not owner.epoch})
        )
        super().touch()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(shards_module, "SETTLED_SECONDS", 0.2)
    monkeypatch.setattr(shards_module, "SPARED_SECONDS", 0.2)
    monkeypatch.setattr(shards_module, "_LOOK_SECONDS", 0.1)
    world = World(tmp_path)
    world.entries = WatchedEntries()
    await identity.create(world.bucket, SHARDS)
    return world


def topic_of(shard: int) -> str:
    """A topic whose home is the shard."""
    return next(name for name in map(str, range(100)) if home_of(name, SHARDS) == shard)


def shards_of(node: NodeServer) -> Shards:
    assert node._running is not None
    return node._running.shards


def owners(world: World) -> dict[int, str]:
    """The owners that serve their shards."""
    view = world.entries.view()
    return {shard: owner.node for shard, owner in view.owners.items() if owner.epoch}


def warm(world: World) -> dict[str, set[int]]:
    return {name: set(node.warm) for name, node in world.entries.view().nodes.items()}


def is_even(world: World) -> bool:
    """Return whether each shard has an owner, and each node its share, with nothing under way."""
    loads = Counter(owners(world).values())
    nodes = world.entries.view().nodes
    share = SHARDS / len(nodes)
    is_shared = all(math.floor(share) <= loads[name] <= math.ceil(share) for name in nodes)
    return is_shared and sum(loads.values()) == SHARDS and not world.entries.wanted


def api(node: NodeServer, shard: int) -> Any:
    term = shards_of(node)[shard].place.term
    assert term is not None, f"shard {shard} is not served there"
    return term.core.api


async def until_served(node: NodeServer, shard: int) -> None:
    """Return once the node serves the shard: etcd knows of an owner a moment before."""
    await until(lambda: shards_of(node)[shard].place.term is not None)


async def append(node: NodeServer, shard: int, text: str) -> int:
    """Append one record to the topic of a shard; return its seq."""
    await until_served(node, shard)
    config = ConfigInput(durability="fsync")
    request = AppendRequest(topic=topic_of(shard), batch=Batch([text.encode()]), config=config)
    return int((await api(node, shard).append(request, principal=UNRESTRICTED)).last_seq)


async def texts(node: NodeServer, shard: int) -> list[str]:
    await until_served(node, shard)
    found = await api(node, shard).diff(DiffRequest(topic=topic_of(shard)))
    return [bytes(part.block.record_data(i)).decode() for part in found.slices for i in range(part.start, part.stop)]


@contextlib.asynccontextmanager
async def admin(node: NodeServer) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.grpc_port}") as channel:
        yield AdminServiceStub(channel)  # type: ignore[no-untyped-call]


async def test_the_first_node_owns_every_shard_each_with_a_directory_and_a_log(world: World) -> None:
    async with world.node("a") as a, client(a) as at_a:
        await until(lambda: owners(world) == dict.fromkeys(range(SHARDS), "a"))
        for shard in range(SHARDS):
            await append(a, shard, f"of {shard}")
            assert await texts(a, shard) == [f"of {shard}"]
            assert (world.folder / "a" / "shards" / str(shard) / "CURRENT").exists()
            assert await world.bucket.list(objects.prefix(shard))
        assert not (world.folder / "a" / "CURRENT").exists()
        metrics = (await at_a.get("/v0/metrics")).text
        for shard in range(SHARDS):
            assert f'topics_cluster_role{{role="owning",shard="{shard}"}} 1.0' in metrics
            assert f'topics_cluster_takeovers_total{{shard="{shard}"}} 1.0' in metrics
        assert (await at_a.get("/v0/ready")).status_code == 200
    async with world.node("a") as a:
        await until(lambda: len(owners(world)) == SHARDS and all(each.place.term for each in shards_of(a)))
        assert [await texts(a, shard) for shard in range(SHARDS)] == [["of 0"], ["of 1"], ["of 2"]]


async def test_a_node_that_joins_follows_first_and_then_gets_its_share_one_by_one(world: World) -> None:
    async with world.node("a") as a:
        await until(lambda: len(owners(world)) == SHARDS)
        for shard in range(SHARDS):
            await append(a, shard, "one")
        async with world.node("b") as b:
            await until(lambda: is_even(world))
            assert Counter(owners(world).values()) == {"a": 2, "b": 1}
            moved = next(shard for shard, name in owners(world).items() if name == "b")
            assert await texts(b, moved) == ["one"]
            assert await append(b, moved, "two") == 2
            assert b.statistics.shards[moved].epoch == 2
            assert a.statistics.shards[moved].handovers == 1
            assert sum(shard.handovers for shard in a.statistics.shards) == 1
            await until(lambda: warm(world) == {"a": set(range(SHARDS)), "b": set(range(SHARDS))})
            async with world.node("c") as c:
                await until(lambda: is_even(world))
                assert set(owners(world).values()) == {"a", "b", "c"}
                assert sum(shard.takeovers for shard in c.statistics.shards) == 1
                await until(lambda: [len(held) for held in warm(world).values()] == [2, 2, 2])
        await until(lambda: set(owners(world).values()) == {"a"} and len(owners(world)) == SHARDS)
        assert world.entries.most == 1  # type: ignore[attr-defined]
        assert await texts(a, moved) == ["one", "two"]


async def test_a_replica_that_is_needed_no_more_goes_with_its_directory(world: World) -> None:
    async with world.node("a") as a, world.node("b"), world.node("c"):
        await until(lambda: is_even(world) and [len(held) for held in warm(world).values()] == [2, 2, 2])
        for name, held in warm(world).items():
            there = {int(path.parent.name) for path in (world.folder / name).glob("shards/*/CURRENT")}
            assert there == held
        absent = next(shard for shard in range(SHARDS) if shard not in warm(world)["a"])
        assert a.statistics.shards[absent].role == "absent"
        place = shards_of(a)[absent].place
        owner = world.entries.view().owners[absent]
        assert place.owner() == owner.addresses, "calls are passed on all the same"
        assert shards_of(a).is_ready


async def test_all_shards_of_a_node_that_is_lost_are_taken_over_at_once(world: World) -> None:
    async with world.node("a") as a, world.node("b") as b, world.node("c") as c:
        await until(lambda: is_even(world) and [len(held) for held in warm(world).values()] == [2, 2, 2])
        nodes = {"a": a, "b": b, "c": c}
        before = owners(world)
        for shard, name in before.items():
            await append(nodes[name], shard, "one")
        world.coordinators["a"].reachable = False
        await until(lambda: len(owners(world)) == SHARDS and "a" not in owners(world).values())
        lost = [shard for shard, name in before.items() if name == "a"]
        for shard, name in owners(world).items():
            assert (name == before[shard]) is (shard not in lost), "the others stay where they are"
            assert await append(nodes[name], shard, "two") == 2
            assert await texts(nodes[name], shard) == ["one", "two"]
        world.coordinators["a"].reachable = True
        await until(lambda: is_even(world))
        assert set(owners(world).values()) == {"a", "b", "c"}, "it gets its share again"


async def test_two_of_three_nodes_may_go(world: World) -> None:
    async with world.node("a") as a, world.node("b"), world.node("c"):
        await until(lambda: is_even(world) and [len(held) for held in warm(world).values()] == [2, 2, 2])
        world.coordinators["b"].reachable = world.coordinators["c"].reachable = False
        await until(lambda: owners(world) == dict.fromkeys(range(SHARDS), "a"))
        assert [await append(a, shard, "there") for shard in range(SHARDS)] == [1] * SHARDS
        world.coordinators["b"].reachable = world.coordinators["c"].reachable = True
        await until(lambda: is_even(world))


async def test_a_node_that_stops_hands_all_its_shards_over(world: World) -> None:
    async with contextlib.AsyncExitStack() as stack:
        a = await stack.enter_async_context(world.node("a"))
        async with world.node("b") as b:
            await until(lambda: is_even(world) and all(len(held) == SHARDS for held in warm(world).values()))
            owned = [shard for shard, name in owners(world).items() if name == "a"]
            for shard in owned:
                await append(a, shard, "one")
            await stack.aclose()
            assert owners(world) == dict.fromkeys(range(SHARDS), "b")
            assert [a.statistics.shards[shard].handovers for shard in owned] == [1] * len(owned)
            for shard in owned:
                assert await texts(b, shard) == ["one"]


async def test_a_drained_node_owns_nothing_until_that_is_taken_back(world: World) -> None:
    async with world.node("a") as a, world.node("b"):
        await until(lambda: is_even(world) and all(len(held) == SHARDS for held in warm(world).values()))
        drain = a._running._admin.drain  # type: ignore[union-attr]
        owned = sum(name == "b" for name in owners(world).values())
        assert await drain("b", is_drained=True) == owned
        views = a._running._views  # type: ignore[union-attr]
        await until(lambda: {owner.node for owner in views.view.owners.values()} == {"a"})
        assert await drain("b", is_drained=True) == 0
        with pytest.raises(TopicsError, match="no other node can take the shards of a"):
            await drain("a", is_drained=True)
        with pytest.raises(TopicsError, match="no node with the name 'x' lives"):
            await drain("x", is_drained=True)
        with pytest.raises(TopicsError, match="the node b is drained"):
            await a._running._admin.move(0, "b")  # type: ignore[union-attr]
        world.coordinators["a"].reachable = False  # the only other node: it is better than none
        await until(lambda: owners(world) == dict.fromkeys(range(SHARDS), "b"))
        world.coordinators["a"].reachable = True
        await until(lambda: owners(world) == dict.fromkeys(range(SHARDS), "a"))
        await drain("b", is_drained=False)
        await until(lambda: is_even(world))
        with pytest.raises(TopicsError, match="no node with the name 'x' lives, or is drained"):
            await drain("x", is_drained=False)
        assert world.entries.most == 1  # type: ignore[attr-defined]


async def test_no_shard_leaves_its_owner_while_the_coordinator_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody could claim it: a move that falls due waits."""
    monkeypatch.setattr(shards_module, "SETTLED_SECONDS", 60)
    async with world.node("a") as a, world.node("b"):
        views = shards_of(a)._parts.views
        await until(lambda: "b" in views.view.nodes and len(views.view.nodes["b"].warm) == SHARDS)
        for coordinator in world.coordinators.values():
            coordinator.reachable = False
        monkeypatch.setattr(shards_module, "SETTLED_SECONDS", 0)
        await until(lambda: "can't name the next owner of shard" in caplog.text)
        assert {each.statistics.role for each in shards_of(a)} == {"owning"}
        assert all(each.statistics.handovers == 0 for each in shards_of(a))
        for coordinator in world.coordinators.values():
            coordinator.reachable = True
        await until(lambda: is_even(world))


async def test_an_operator_moves_a_shard(world: World) -> None:
    async with world.node("a") as a, world.node("b"), admin(a) as stub:
        await until(lambda: is_even(world) and all(len(held) == SHARDS for held in warm(world).values()))
        shard = next(shard for shard, name in owners(world).items() if name == "a")
        moved = await stub.MoveShard(pb.MoveShardRequest(shard=shard, node="b"))
        assert moved.epoch == world.entries.view().owners[shard].epoch
        for wrong, told in (
            (pb.MoveShardRequest(shard=SHARDS, node="b"), "there is no shard 3"),
            (pb.MoveShardRequest(shard=1, node="x"), "no node with the name 'x' lives"),
        ):
            before = owners(world), dict(world.entries.wanted)
            with pytest.raises(grpc.aio.AioRpcError, match=told):
                await stub.MoveShard(wrong)
            assert (owners(world), world.entries.wanted) == before
        found = await stub.GetCluster(pb.GetClusterRequest())
        assert [each.shard for each in found.shards] == list(range(SHARDS))
        assert all(each.owner and each.epoch for each in found.shards)


async def test_moves_that_operators_ask_for_at_once_happen_one_by_one(world: World) -> None:
    async with world.node("a") as a, world.node("b"):
        await until(lambda: is_even(world) and all(len(held) == SHARDS for held in warm(world).values()))
        there = owners(world)
        other = {"a": "b", "b": "a"}
        move = a._running._admin.move  # type: ignore[union-attr]
        at_once = 0

        async def watch() -> None:
            nonlocal at_once
            while True:
                busy = [s for s in shards_of(a) if s.statistics.role in ("handing_over", "taking_over")]
                at_once = max(at_once, len(busy))
                await asyncio.sleep(0.001)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(move(shard, other[name]) for shard, name in there.items()))
        watching.cancel()
        assert at_once == 1


async def test_shards_prefer_a_zone(world: World) -> None:
    async with world.node("a", cluster_zone="x") as a, admin(a) as stub:
        async with world.node("b", cluster_zone="y"):
            await until(lambda: is_even(world) and all(len(held) == SHARDS for held in warm(world).values()))
            reply = await stub.SetShardZone(pb.SetShardZoneRequest(shards=range(SHARDS), zone="y"))
            assert reply.elsewhere == sum(name == "a" for name in owners(world).values())
            await until(lambda: owners(world) == dict.fromkeys(range(SHARDS), "b"))
            assert world.entries.most == 1  # type: ignore[attr-defined]
            found = await stub.GetCluster(pb.GetClusterRequest())
            assert [each.zone for each in found.shards] == ["y"] * SHARDS
            assert (await stub.SetShardZone(pb.SetShardZoneRequest(shards=[2], zone="y"))).elsewhere == 0
            for wrong, told in (
                (pb.SetShardZoneRequest(shards=[SHARDS], zone="y"), "there is no shard 3"),
                (pb.SetShardZoneRequest(zone="y"), "shards must name 1 to 3 shards"),
                (pb.SetShardZoneRequest(shards=[0, 0, 0, 0], zone="y"), "shards must name 1 to 3 shards"),
                (pb.SetShardZoneRequest(shards=[0], zone="y,x"), "a zone is named by"),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match=told):
                    await stub.SetShardZone(wrong)
            assert world.entries.zones == dict.fromkeys(range(SHARDS), "y")
        await until(lambda: owners(world) == dict.fromkeys(range(SHARDS), "a"))
        async with world.node("b", cluster_zone="y"):
            await until(lambda: owners(world) == dict.fromkeys(range(SHARDS), "b"))
            await stub.SetShardZone(pb.SetShardZoneRequest(shards=range(SHARDS)))
            await until(lambda: is_even(world))
            assert not world.entries.zones


async def test_nodes_of_twice_the_capacity_have_twice_the_shards(world: World) -> None:
    async with world.node("a", cluster_capacity=2), world.node("b"):
        await until(lambda: Counter(owners(world).values()) == {"a": 2, "b": 1} and not world.entries.wanted)


async def test_followers_are_in_another_zone(world: World) -> None:
    async with (
        world.node("a", cluster_zone="x"),
        world.node("b", cluster_zone="x"),
        world.node("c", cluster_zone="y"),
    ):
        zones = {"a": "x", "b": "x", "c": "y"}

        def is_spread() -> bool:
            held = {shard: {name for name, each in warm(world).items() if shard in each} for shard in range(SHARDS)}
            return is_even(world) and all(
                len(names) == 2 and len({zones[name] for name in names}) == 2 for names in held.values()
            )

        await until(is_spread)


async def test_idle_shards_put_nothing_and_look_once_a_second_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.node("a"), world.node("b"):
        await until(lambda: is_even(world) and all(len(held) == SHARDS for held in warm(world).values()))
        await asyncio.sleep(1)  # for what was under way
        calls: Counter[str] = Counter()

        def counted(name: str, call: Any) -> Any:
            def counting(*args: Any) -> Any:
                calls[name] += 1
                return call(*args)

            return counting

        for name in ("create", "get", "list", "put_file"):
            monkeypatch.setattr(MemoryBucket, name, counted(name, getattr(MemoryBucket, name)))
        await asyncio.sleep(3)
        assert calls["create"] == calls["put_file"] == calls["list"] == 0
        assert calls["get"] <= 2 * 4, "each of two nodes looks once a second"


async def test_a_node_with_another_number_of_shards_is_refused(world: World) -> None:
    async with world.node("a"):
        kept, world.bucket = world.bucket, MemoryBucket()
        found = await identity.load(kept)
        made = identity.Identity(format=found.format, shards=2, id=found.id)
        await world.bucket.create(identity.NAME, [identity.encode(made)])
        with pytest.raises(StartError, match=r"knows the cluster to have 3 shards, and cluster\.json says 2"):
            async with world.node("b"):
                pass


async def test_a_directory_of_another_number_of_shards_is_refused(world: World) -> None:
    many = world.bucket
    one = MemoryBucket()
    await identity.create(one)
    world.bucket = one
    async with world.node("a"):
        pass
    world.entries, world.bucket = WatchedEntries(), many
    with pytest.raises(StartError, match="one shard, and this one has 3"):
        async with world.node("a"):
            pass
    async with world.node("b"):
        pass
    world.entries, world.bucket = WatchedEntries(), one
    with pytest.raises(StartError, match="is laid out for 3 shards, and the cluster has 1"):
        async with world.node("b"):
            pass


async def test_the_directory_of_another_shard_is_refused(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with world.node("a"):
        await until(lambda: len(owners(world)) == SHARDS)
    folder = world.folder / "a" / "shards"
    (folder / "0").rename(folder / "x")
    (folder / "1").rename(folder / "0")
    (folder / "x").rename(folder / "1")
    node = world.node("a")
    await asyncio.to_thread(node.open)
    try:
        await node.startup()
        await until(lambda: caplog.text.count("it has the data of another shard") >= 2)
        await until(lambda: list(owners(world)) == [2])
    finally:
        node.stop()
        await node.shutdown()
        await asyncio.to_thread(node.close)


async def test_users_of_the_first_shard_stay_when_another_one_is_taken_over(world: World) -> None:
    """Users are rows of one shard: the engines of others know none."""
    async with world.node("a") as a:
        await until(lambda: len(owners(world)) == SHARDS)
        users = shards_of(a)._parts.authorizer.users
        loaded: list[object] = []
        users.load = loaded.append  # type: ignore[method-assign]
        async with world.node("b"):
            await until(lambda: is_even(world))
        await until(lambda: len(owners(world)) == SHARDS and set(owners(world).values()) == {"a"})
        assert all(engine is not api(a, shard)._engine for engine in loaded for shard in (1, 2))
