"""Background work of a shard that comes to a node and leaves it."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from shards.lives import names
from shards.nodes import Cluster, open_cluster
from shards.test_dead_letters import queue

from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest
from topics_service.engine.offsets.positions import CommitItem
from topics_service.engine.placement import home_of
from topics_service.engine.queue.jobs import ClaimRequest, RedriveRequest, SettleRequest
from topics_service.engine.router.router import PutRouterRequest, RouterConfig
from topics_shards.shards import LostCallError

_WORK = ("topics_shards/holds", "topics_shards/pulling", "topics_shards/shipping", "topics_shards/moving", "api/parts")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_cluster(3) as opened:
        yield opened


def tasks_of_work() -> list[str]:
    """The tasks that do work of shards in the background."""
    codes = [task.get_coro().cr_code for task in asyncio.all_tasks()]  # type: ignore[union-attr]
    return [code.co_qualname for code in codes if code.co_filename.removesuffix(".py").endswith(_WORK)]


async def append(cluster: Cluster, topic: str, *datas: bytes, config: ConfigInput | None = None) -> None:
    """Write through any node."""
    request = AppendRequest(topic=topic, batch=Batch(list(datas)), config=config)
    await next(iter(cluster.nodes.values())).api.append(request, principal=UNRESTRICTED)


async def read(cluster: Cluster, topic: str) -> list[bytes]:
    """The data of all records."""
    found: list[bytes] = []
    api, after = next(iter(cluster.nodes.values())).api, 0
    while True:
        reply = await api.diff(DiffRequest(topic=topic, from_seq=after))
        found += [part.block.record_data(i) for part in reply.slices for i in range(part.start, part.stop)]
        if reply.next_from_seq == after:
            return found
        after = reply.next_from_seq


async def route(cluster: Cluster, router: str, source: str, dest: str) -> None:
    config = RouterConfig(source=source, dest=dest, guarantee="exactly_once")
    api = cluster.nodes["a"].api
    await api.routers.put(PutRouterRequest(router=router, config=config), principal=UNRESTRICTED)


async def fail(cluster: Cluster, name: str, count: int = 1) -> None:
    """Claim jobs and give them back."""
    queues = cluster.nodes["a"].api.queues
    claimed = await queues.claim(ClaimRequest(topic=name, node="w", max=count))
    seqs = [job.seq for job in claimed.jobs]
    if seqs:
        await queues.nack(SettleRequest(topic=name, node="w", seqs=seqs, reasons=["no"] * len(seqs)))


def group_of(shard: int) -> str:
    """The name of a group whose positions are in a shard."""
    return next(name for name in map("g{}".format, range(99)) if home_of(name, 3) == shard)


async def test_the_work_of_a_shard_ends_at_once_and_leaves_nothing(cluster: Cluster) -> None:
    """Also while another shard does not answer."""
    source, dest, queue_name, letters, wide = names(3, 1, 0, 0, 1, 0)
    await cluster.put(source, dest, wide)
    await route(cluster, "r", source, dest)
    await append(cluster, queue_name, b"1", b"2", config=queue(letters))
    group = group_of(0)
    api = cluster.nodes["a"].api
    kept = next(iter(names(3, 1, prefix="kept")))
    given = ConfigInput(retain_until_acked_by=(group,), cap_records=2)
    await api.put_topic(kept, given, principal=UNRESTRICTED)
    await append(cluster, kept, b"1", b"2")
    await cluster.lose(1)
    calls = [
        asyncio.create_task(api.groups.commit(group, [CommitItem(kept, 0, 1)], principal=UNRESTRICTED)),
        asyncio.create_task(fail(cluster, queue_name)),
        asyncio.create_task(api.put_topic(wide, ConfigInput(), principal=UNRESTRICTED, partition_count=8)),
    ]
    life = cluster.nodes["a"].lives[0]
    await until(lambda: len(tasks_of_work()) > 8)
    began = asyncio.get_running_loop().time()
    life.api.parts.stop()
    await life.sender.stop()
    await life.work.stop()
    took = asyncio.get_running_loop().time() - began
    await asyncio.sleep(0)
    other = cluster.nodes["a"].lives[2]
    other.api.parts.stop()
    await other.sender.stop()
    await other.work.stop()
    assert tasks_of_work() == []
    assert took < 0.2
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_calls_that_come_after_the_work_are_refused(cluster: Cluster) -> None:
    """Steps that need other shards must not be skipped."""
    source, dest, queue_name, letters, wide = names(3, 1, 0, 0, 1, 0)
    await cluster.put(wide, partition_count=2)
    await cluster.append(wide, partition=1)
    await cluster.put(source, dest)
    await route(cluster, "r", source, dest)
    await append(cluster, queue_name, b"1", config=queue(letters))
    await append(cluster, letters, b"of its own")
    group, kept = group_of(0), next(iter(names(3, 1, prefix="kept")))
    api = cluster.nodes["b"].api
    given = ConfigInput(retain_until_acked_by=(group,), cap_records=3)
    await api.put_topic(kept, given, principal=UNRESTRICTED)
    await append(cluster, kept, b"1", b"2")
    await api.groups.commit(group, [CommitItem(kept, 0, 2)], principal=UNRESTRICTED)
    life = cluster.nodes["a"].lives[0]
    await until(lambda: not life.sender.untold)
    life.api.parts.stop()
    await life.sender.stop()
    await life.work.stop()
    shard = life.api

    async def reason(call: Any) -> Reason:
        with pytest.raises(TopicsError) as caught:
            await asyncio.wait_for(call, 1)
        return caught.value.reason

    assert await reason(shard.diff(DiffRequest(topic=dest))) is Reason.SHUTTING_DOWN
    assert await reason(shard.queues.redrive(RedriveRequest(topic=queue_name), principal=UNRESTRICTED)) is (
        Reason.SHUTTING_DOWN
    )
    ids = {kept: life.engine.catalog.topics[kept].topic_id}
    assert await reason(shard.positions.commit(group, [CommitItem(kept, 0, 0)], ids)) is Reason.NOT_READY
    growing = shard.put_topic(wide, ConfigInput(), principal=UNRESTRICTED, partition_count=8)
    assert await reason(growing) is Reason.SHUTTING_DOWN
    assert shard.parts.pending(), "it continues after the next start"
    assert [name for name in tasks_of_work() if name == "PartsApi._tell"] == []
    await cluster.hand_over(0, "b")
    await until(lambda: not cluster.nodes["b"].lives[0].api.parts.pending())


async def test_positions_are_told_again_from_where_the_groups_come_to(cluster: Cluster) -> None:
    group, kept = group_of(0), next(iter(names(3, 1, prefix="kept")))
    api = cluster.nodes["b"].api
    given = ConfigInput(retain_until_acked_by=(group,), cap_records=3)
    await api.put_topic(kept, given, principal=UNRESTRICTED)
    await append(cluster, kept, b"1", b"2", b"3")
    for number, (shard, to) in enumerate([(0, "b"), (1, "a"), (0, "a"), (1, "b")], start=1):
        await api.groups.commit(group, [CommitItem(kept, 0, number)], principal=UNRESTRICTED)
        if number % 2:
            await cluster.hand_over(shard, to)
        else:
            await cluster.lose(shard)
            cluster.take(shard, to)
        await until(lambda number=number: hold(cluster, kept) == number)
        await append(cluster, kept, b"%d" % number)
        await api.groups.commit(group, [CommitItem(kept, 0, 1)], principal=UNRESTRICTED)
        assert hold(cluster, kept) <= 1, "a move back is told before it is acknowledged"


def hold(cluster: Cluster, topic: str) -> int:
    """The cursor from which on the home of a topic retains records for groups."""
    shard = home_of(topic, 3)
    log = cluster.owner[shard].lives[shard].engine.catalog.topics[topic].find_log(0)
    assert log is not None
    assert log.hold is not None
    return log.hold


async def test_a_former_owner_does_not_tell_positions(cluster: Cluster) -> None:
    group, kept = group_of(0), next(iter(names(3, 1, prefix="kept")))
    api = cluster.nodes["b"].api
    await api.put_topic(kept, ConfigInput(retain_until_acked_by=(group,), cap_records=9), principal=UNRESTRICTED)
    await append(cluster, kept, b"1", b"2", b"3")
    await api.groups.commit(group, [CommitItem(kept, 0, 3)], principal=UNRESTRICTED)
    former = cluster.nodes["a"].lives[0]
    await until(lambda: not former.sender.untold)
    looks = 0

    async def confirm() -> None:
        nonlocal looks
        looks += 1
        raise ConnectionError("another node owns the shard")

    former.sender._confirm = confirm
    cluster.take(0, "b")
    await api.groups.commit(group, [CommitItem(kept, 0, 1)], principal=UNRESTRICTED)
    assert hold(cluster, kept) == 1
    former.sender.renew(1)
    await until(lambda: looks > 1)
    assert hold(cluster, kept) == 1
    await api.groups.commit(group, [CommitItem(kept, 0, 2)], principal=UNRESTRICTED)
    await until(lambda: hold(cluster, kept) == 2)


@pytest.mark.parametrize("seed", range(6))
async def test_copies_and_letters_come_once(seed: int) -> None:
    """Shards move all the time."""
    pick = random.Random(seed)
    source, far, near, queue_name, letters = names(3, 0, 1, 0, 2, 1)
    written: list[bytes] = []
    async with open_cluster(3, ("a", "b", "c")) as cluster:
        await cluster.put(source, far, near)
        await route(cluster, "to-far", source, far)
        await route(cluster, "to-near", far, near)
        await append(cluster, queue_name, *(b"%d" % number for number in range(40)), config=queue(letters))
        for number in range(50):
            step, shard, to = pick.random(), pick.randrange(3), pick.choice("abc")
            if step < 0.15:
                await cluster.hand_over(shard, to)
            elif step < 0.25:
                await cluster.lose(shard)
                await asyncio.sleep(pick.choice([0, 0.03]))
                cluster.take(shard, to)
            elif step < 0.5:
                with suppress(LostCallError):
                    await fail(cluster, queue_name, 2)
            elif step < 0.9:
                written.append(b"%d" % number)
                await append(cluster, source, written[-1])
            else:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(20):
            while await read(cluster, near) != written:
                assert len(await read(cluster, near)) <= len(written)
                await asyncio.sleep(0.02)
        assert await read(cluster, far) == written
        life = cluster.owner[2].lives[2]
        await until(lambda: not list(life.engine.queues.mover.shipments.outbox()))
        dead = Counter(await read(cluster, letters))
        left = Counter(await read(cluster, queue_name))
        assert dead + left == Counter({b"%d" % number: 1 for number in range(40)})
