"""Dead letters in another shard than their queue: none is lost and none comes twice, whatever ends in between."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace
from shards.lives import World, names, open_world

from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ConfigInput, DiffRequest, QueueCounters, TagMatch
from topics_service.engine.queue.jobs import ClaimRequest, RedriveRequest, SettleReply, SettleRequest
from topics_shards.shards import LostCallError


def queue(dead_letter: str, deliveries: int = 1, *, durable: bool = False, auto_create: bool = True) -> ConfigInput:
    """The config of a queue."""
    return ConfigInput(
        type="queue",
        dead_letter=dead_letter,
        max_deliveries=deliveries,
        leases_durable=durable,
        auto_create=auto_create,
    )


async def fail(world: World, name: str, count: int = 1) -> SettleReply:
    """Claim jobs and give them back."""
    claimed = await world.api.queues.claim(ClaimRequest(topic=name, node="w", max=count))
    seqs = [job.seq for job in claimed.jobs]
    return await world.api.queues.nack(SettleRequest(topic=name, node="w", seqs=seqs, reasons=["no"] * len(seqs)))


def counters(world: World, name: str) -> QueueCounters:
    """The counts of a queue."""
    return world.engine_of(name).queues.counters(name)


def outbox(world: World) -> int:
    """The number of shipments that are not known to have come."""
    return sum(
        len(list(life.engine.queues.mover.shipments.outbox())) for life in world.shards.lives.values()
    )  # fmt: skip


async def metas(world: World, name: str) -> list[bytes | None]:
    """The metas of a topic."""
    reply = await world.api.diff(DiffRequest(topic=name))
    found: list[bytes | None] = []
    for part in reply.slices:
        found += (part.block.metas or [None] * part.block.count)[part.start : part.stop]
    return found


async def test_a_job_moves_to_another_shard_when_it_fails() -> None:
    q, d = names(3, 0, 1)
    async with open_world() as world:
        await world.append(q, b"1", b"2", config=queue(d), tag=b"x")
        reply = await fail(world, q)
        assert (reply.done, reply.dead_lettered, reply.exhausted) == (1, [1], []), "as within one engine"
        assert await world.read(d) == [b"1"]
        (meta,) = await metas(world, d)
        assert meta is not None
        assert meta.startswith(
            b'{"$dead_letter_from":"%b","$dead_letter_deliveries":"1","$dead_letter_src_seq":"1","$dead_letter_attempts":['
            % q.encode()
        )
        state = counters(world, q)
        assert (state.ready, state.exhausted, state.dead_lettered) == (1, 0, 1)
        await until(lambda: not outbox(world))
        back = await world.api.queues.redrive(RedriveRequest(topic=q), principal=UNRESTRICTED)
        assert (back.redriven, back.dead_letter) == (1, d)
        assert (await world.read(q), await world.read(d)) == ([b"2", b"1"], [])
        assert await metas(world, q) == [None, None]
        await until(lambda: not outbox(world))


async def test_a_lease_that_ends() -> None:
    q, d = names(3, 2, 0)
    async with open_world() as world:
        await world.append(q, b"1", config=queue(d))
        await world.api.queues.claim(ClaimRequest(topic=q, node="w", lease_ms=100))
        await until(lambda: counters(world, q).dead_lettered)
        await until(lambda: not outbox(world))
        assert await world.read(d) == [b"1"]


async def test_a_refused_job_stays_exhausted() -> None:
    q, d = names(3, 0, 1)
    async with open_world() as world:
        await world.api.put_topic(d, ConfigInput(discard="reject", cap_records=2), principal=UNRESTRICTED)
        await world.append(q, *(b"%d" % number for number in range(5)), config=queue(d))
        reply = await fail(world, q, 5)
        assert (len(reply.dead_lettered), len(reply.exhausted)) == (2, 3)
        state = counters(world, q)
        assert (state.ready, state.exhausted, state.dead_lettered) == (0, 3, 2)
        assert "full" in (world.engine_of(q).queues.last_error(q) or "")
        await world.api.put_topic(d, ConfigInput(discard="reject"), principal=UNRESTRICTED)
        await until(lambda: counters(world, q).dead_lettered == 5)
        await until(lambda: not outbox(world))
        assert sorted(await world.read(d)) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_topic_that_may_not_be_made() -> None:
    q, d = names(3, 0, 1)
    async with open_world() as world:
        await world.api.put_topic(q, queue(d, auto_create=False), principal=UNRESTRICTED)
        await world.append(q, b"1")
        assert (await fail(world, q)).exhausted == [1]
        assert not world.engine_of(d).has_topic(d)
        await world.append(d, b"of its own")
        await until(lambda: counters(world, q).dead_lettered == 1)
        await until(lambda: not outbox(world))
        assert await world.read(d) == [b"of its own", b"1"]


async def test_a_shard_that_is_away() -> None:
    q, d = names(3, 0, 1)
    async with open_world() as world:
        await world.append(q, b"1", b"2", config=queue(d))
        await world.end(1)
        assert (await fail(world, q)).exhausted == [1]
        assert counters(world, q).ready == 1
        world.begin(1)
        await until(lambda: counters(world, q).dead_lettered == 1)
        await until(lambda: not outbox(world))
        assert await world.read(d) == [b"1"]


async def test_letters_in_the_outbox_outlive_their_queue() -> None:
    q, d = names(3, 0, 1)
    async with open_world() as world:
        await world.append(q, b"1", config=queue(d))
        mover = world.engine_of(q).queues.mover
        await world.shards.lives[0].work.sender.stop()
        assert (await fail(world, q)).exhausted == [1]
        offer = mover.due_elsewhere(q)
        assert offer is not None
        assert mover.ship(q, offer, 1) is not None
        assert counters(world, q).exhausted == 1, "it is still on its way"
        assert (await world.api.delete_topic(q)).deleted
        await world.crash(0)
        await until(lambda: not outbox(world))
        assert await world.read(d) == [b"1"]


async def test_a_nack_does_not_wait_for_a_shipment_that_is_stuck() -> None:
    q, d = names(3, 0, 1)
    async with open_world() as world:
        await world.append(q, b"1", b"2", b"3", config=queue(d))
        mover = world.engine_of(q).queues.mover
        await world.shards.lives[0].work.sender.stop()
        await fail(world, q)
        offer = mover.due_elsewhere(q)
        assert offer is not None
        assert mover.ship(q, offer, 1) is not None
        await world.end(1)
        await world.crash(0)
        sender = world.shards.lives[0].work.sender
        await until(lambda: q in sender._stuck)
        async with asyncio.timeout(1):
            assert (await fail(world, q)).exhausted == [2]
        world.begin(1)
        await until(lambda: counters(world, q).dead_lettered == 2 and not outbox(world))
        assert await world.read(d) == [b"1", b"2"]
        assert not sender._stuck


async def test_a_shipment_that_comes_again_is_the_same() -> None:
    q, d = names(3, 0, 1)
    async with open_world() as world:
        await world.api.put_topic(d, ConfigInput(discard="reject", cap_records=2), principal=UNRESTRICTED)
        await world.append(q, b"1", b"2", b"3", config=queue(d))
        mover = world.engine_of(q).queues.mover
        await world.shards.lives[0].work.sender.stop()
        await fail(world, q, 3)
        offer = mover.due_elsewhere(q)
        assert offer is not None
        shipment = mover.ship(q, offer, 3)
        assert shipment is not None
        receive = world.shards.lives[1].api.queues.receive
        assert await receive(shipment) == 2, "as far as there is room"
        with pytest.raises(TopicsError) as refused:
            await receive(shipment)
        assert refused.value.reason is Reason.TOPIC_FULL
        await world.api.put_topic(d, ConfigInput(discard="reject"), principal=UNRESTRICTED)
        assert [await receive(shipment) for _ in range(2)] == [3, 3]
        assert await world.read(d) == [b"1", b"2", b"3"]


async def test_arrivals_are_remembered_while_they_are_in_an_outbox() -> None:
    q, d = names(3, 0, 1)
    async with open_world() as world:
        await world.append(q, b"1", config=queue(d))
        await fail(world, q)
        await until(lambda: not outbox(world))
        sender, shipments = world.shards.lives[1].work.sender, world.engine(1).queues.mover.shipments
        ((key, arrival),) = shipments.arrivals(b"", 9)
        assert (arrival.letters, arrival.shard) == (1, 0)
        await sender.sweep_once()
        assert shipments.arrivals(b"", 9), "a call that was given up may be on its way"
        sender._clock = Late(arrival.ts)
        await sender.sweep_once()
        assert not shipments.arrivals(b"", 9)
        assert key.endswith((1).to_bytes(8, "big"))


class Late:
    """A clock that is an hour after a time."""

    def __init__(self, ts: int) -> None:
        self.ts = ts

    def now_ms(self) -> int:
        """See Clock."""
        return self.ts + 3_600_000


async def test_a_redrive_in_slices_by_tag() -> None:
    q, d, other = names(3, 0, 1, 2)
    async with open_world() as world:
        await world.append(q, *(b"a%d" % number for number in range(700)), config=queue(d), tag=b"a")
        await world.append(q, *(b"b%d" % number for number in range(30)), tag=b"b")
        await world.append(other, b"other", config=queue(d))
        assert len((await fail(world, q, 1000)).dead_lettered) == 730
        await fail(world, other)
        back = await world.api.queues.redrive(
            RedriveRequest(topic=q, match=TagMatch(op="Eq", value=b"b"), max=20), principal=UNRESTRICTED
        )
        assert back.redriven == 20
        assert await world.read(q) == [b"b%d" % number for number in range(20)]
        back = await world.api.queues.redrive(RedriveRequest(topic=q), principal=UNRESTRICTED)
        assert back.redriven == 710
        assert await world.read(d) == [b"other"]
        assert len(await world.read(q)) == 730


async def test_a_full_queue_takes_no_letters_back() -> None:
    q, d = names(3, 0, 1)
    async with open_world() as world:
        await world.append(q, b"1", b"2", config=queue(d))
        await fail(world, q, 2)
        config = replace(queue(d), discard="reject", cap_records=1)
        await world.api.put_topic(q, config, principal=UNRESTRICTED)
        with pytest.raises(TopicsError) as refused:
            await world.api.queues.redrive(RedriveRequest(topic=q), principal=UNRESTRICTED)
        assert refused.value.reason is Reason.TOPIC_FULL
        assert (await world.read(q), await world.read(d)) == ([b"1"], [b"2"])


async def test_jobs_of_a_redrive_whose_queue_is_gone_are_dead_letters_again() -> None:
    q, d = names(3, 0, 1)
    async with open_world() as world:
        await world.append(q, b"1", config=queue(d))
        await fail(world, q)
        await until(lambda: not outbox(world))
        mover = world.engine_of(d).queues.mover
        offer, _ = mover.due_back(d, RedriveRequest(topic=q), mover.end_of(d), 10)
        assert offer is not None
        assert mover.ship_back(d, offer, 1) is not None
        await world.api.delete_topic(q)
        await world.crash(1)
        await until(lambda: not outbox(world))
        assert await world.read(d) == [b"1"]


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_ends_each_job_is_in_one_place(seed: int) -> None:
    """Jobs fail and are redriven while shards end: each is in its queue or a dead letter, once."""
    rng = random.Random(seed)
    q, d = names(3, 0, 1)
    async with open_world() as world:
        durable = rng.random() < 0.5
        await world.append(q, b"first", config=queue(d, rng.choice((1, 2)), durable=durable))
        written, lost = [b"first"], list[bytes]()

        async def act() -> None:
            action = rng.random()
            if action < 0.3:
                datas = [b"%d" % (len(written) + len(lost) + i) for i in range(rng.choice((1, 3, 20)))]
                lost.extend(datas)
                await world.append(q, *datas)
                del lost[-len(datas) :]
                written.extend(datas)
            elif action < 0.7:
                await fail(world, q, rng.choice((1, 5, 50)))
            elif action < 0.85:
                await world.api.queues.redrive(RedriveRequest(topic=q, max=rng.choice((0, 3))), principal=UNRESTRICTED)
            else:
                await world.crash(rng.choice((0, 1)))

        for _ in range(40):
            task = asyncio.create_task(act())
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                await world.crash(rng.choice((0, 1)))
            with suppress(TopicsError, LostCallError):
                await task
        await until(lambda: not outbox(world))
        await until(lambda: not counters(world, q).exhausted)
        left, dead = await world.read(q), await world.read(d) if world.engine_of(d).has_topic(d) else []
        found = Counter(left + dead)
        assert {job for job, count in found.items() if count > 1} == set(), "twice"
        assert set(written) <= set(found) <= set(written) | set(lost), "lost"


@pytest.mark.parametrize("dying", [0, 1])
async def test_a_shard_ends_at_each_step(dying: int) -> None:
    """Of a move and of a redrive: after each turn of the loop that they take."""
    q, d = names(3, 0, 1)
    for turns in range(45):
        async with open_world() as world:
            await world.append(q, b"1", b"2", config=queue(d, durable=True))
            await ends(world, dying, turns, fail(world, q, 2))
            await until(lambda: counters(world, q).dead_lettered == 2 or counters(world, q).ready == 2)
            if not counters(world, q).dead_lettered:  # it died before the jobs were claimed or given back
                assert len((await fail(world, q, 2)).dead_lettered) == 2
            await until(lambda: not outbox(world))
            assert await world.read(d) == [b"1", b"2"], turns
            redrive = world.api.queues.redrive(RedriveRequest(topic=q), principal=UNRESTRICTED)
            await ends(world, dying, turns, redrive)
            await until(lambda: not outbox(world))
            assert sorted(await world.read(q) + await world.read(d)) == [b"1", b"2"], turns


async def ends(world: World, dying: int, turns: int, work: Coroutine[Any, Any, object]) -> None:
    """End a shard when a call has had so many turns of the loop."""
    call = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    await world.crash(dying)
    with suppress(TopicsError, LostCallError):
        await call
