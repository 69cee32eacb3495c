"""Routers and dead letters between shards that call each other through a socket, as well as directly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shards.lives import names
from shards.world import ShardsWorld, open_shards

from topics_server.forwarder import Forwarder
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest, TagMatch
from topics_service.engine.queue.jobs import ClaimRequest, RedriveRequest, SettleRequest
from topics_service.engine.router.router import PutRouterRequest, RouterConfig
from topics_shards.shard_work import ShardWork


@asynccontextmanager
async def open_world() -> AsyncIterator[ShardsWorld]:
    """Shards with all that they do in the background for routers and dead letters."""
    async with open_shards(3) as world:
        work = [
            ShardWork(world.located, api, engine, world.clock)
            for api, engine in zip(world.apis, world.engines, strict=True)
        ]
        for each in work:
            each.start()
        forwarder = asyncio.create_task(Forwarder(*(engine.routers for engine in world.engines)).run())
        try:
            yield world
        finally:
            forwarder.cancel()
            for each in work:
                await each.stop()


async def read(world: ShardsWorld, topic: str) -> list[tuple[bytes, bytes | None, bytes | None]]:
    """Data, tag and meta of the records of a topic."""
    found: list[tuple[bytes, bytes | None, bytes | None]] = []
    after, head = 0, 1
    while after < head:
        reply = await world.api.diff(DiffRequest(topic=topic, from_seq=after))
        after, head = reply.next_from_seq, reply.head_seq
        for part in reply.slices:
            tags, metas = part.block.tags, part.block.metas
            found += [
                (part.block.record_data(i), tags[i] if tags else None, metas[i] if metas else None)
                for i in range(part.start, part.stop)
            ]
    return found


async def test_copies() -> None:
    for homes in ((1, 0, 2), (0, 1, 0), (2, 0, 1)):
        source, every, some = names(3, *homes)
        async with open_world() as world:
            for dest, match in ((every, None), (some, TagMatch(op="Glob", value=b"x"))):
                config = RouterConfig(source=source, dest=dest, filter=match, guarantee="exactly_once")
                request = PutRouterRequest(router=f"to-{dest}", config=config)
                assert (await world.api.routers.put(request, principal=UNRESTRICTED)).created
            written: list[tuple[bytes, bytes | None]] = []
            for number in range(30):
                tags: list[bytes | None] = [b"x%d" % number, None, b"y"]
                datas = [b"%d.%d" % (number, i) + b"." * 3000 * (number % 3) for i in range(3)]
                written += zip(datas, tags, strict=True)
                batch = Batch(datas, tags=tags, metas=[b'{"n":1}', None, None])
                await world.api.append(AppendRequest(topic=source, batch=batch), principal=UNRESTRICTED)
            copies = await read(world, every)
            assert [(data, tag) for data, tag, _ in copies] == written
            assert [meta.count(b"source_seq") for _, _, meta in copies if meta is not None] == [1] * 90
            assert [data for data, _, _ in await read(world, some)] == [
                data for data, tag in written if tag and tag < b"y"
            ]
            assert (await world.api.delete_topic(source)).routers_removed == sorted([f"to-{every}", f"to-{some}"])


async def test_a_router_moves() -> None:
    for homes in ((1, 0, 2), (0, 1, 2), (2, 1, 0)):
        source, *dests = names(3, *homes)
        async with open_world() as world:
            for number in range(6):
                config = RouterConfig(source=source, dest=dests[number % 2], guarantee="exactly_once")
                reply = await world.api.routers.put(PutRouterRequest(router="r", config=config), principal=UNRESTRICTED)
                assert (reply.created, reply.config) == (not number, config)
                assert (await world.api.routers.get("r", principal=UNRESTRICTED)).config == config
                batch = Batch([b"%d" % number], tags=[b"x"])
                await world.api.append(AppendRequest(topic=source, batch=batch), principal=UNRESTRICTED)
            copies = [[data for data, _, _ in await read(world, dest)] for dest in dests]
            assert copies == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]
            assert sum(len(engine.routers) for engine in world.engines) == 1


async def test_dead_letters() -> None:
    for homes in ((1, 0), (0, 1), (2, 1)):
        queue, letters = names(3, *homes)
        config = ConfigInput(type="queue", dead_letter=letters, max_deliveries=1)
        async with open_world() as world:
            batch = Batch([b"%d" % number for number in range(20)], tags=[b"t"] * 20)
            request = AppendRequest(topic=queue, batch=batch, config=config)
            await world.api.append(request, principal=UNRESTRICTED)
            jobs = (await world.api.queues.claim(ClaimRequest(topic=queue, node="w", max=20))).jobs
            seqs = [job.seq for job in jobs]
            reply = await world.api.queues.nack(SettleRequest(topic=queue, node="w", seqs=seqs))
            assert (sorted(reply.dead_lettered), reply.exhausted) == (seqs, [])
            assert [(data, tag) for data, tag, _ in await read(world, letters)] == [
                (each, b"t") for each in batch.datas
            ]
            back = await world.api.queues.redrive(RedriveRequest(topic=queue), principal=UNRESTRICTED)
            assert back.redriven == 20
            assert [(data, tag) for data, tag, _ in await read(world, queue)] == [(each, b"t") for each in batch.datas]
