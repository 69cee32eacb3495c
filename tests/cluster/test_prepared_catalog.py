"""The catalog that a follower keeps: a takeover decodes what has changed alone, and writes no row for a topic."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.held_bucket import HeldBucket
from support.shards import SHARD, Member
from support.waiting import until
from topics_cluster import objects
from topics_cluster.follower import Follower
from topics_cluster.objects import Kind
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest
from topics_service.engine.stored_catalog import StoredCatalog
from topics_service.storage.store import Family

TOPICS = 1000


def engine_of(member: Member, boot: str, stored: StoredCatalog | None = None) -> Engine:
    engine = Engine(member.store, SystemClock(), recover=False)
    member.store.engine = engine.writer
    for _ in engine.recover(boot, stored):
        pass
    return engine


def append(engine: Engine, topic: str) -> None:
    engine.append(AppendRequest(topic=topic, batch=Batch(datas=[b"x"])))


def name(number: int) -> str:
    return f"t{number:05}"


async def fill(owner: Member) -> Engine:
    """Topics of one record each; every other one is of the class `fsync`."""
    engine = engine_of(owner, f"epoch {(await owner.own()).epoch}")
    for number in range(TOPICS):
        engine.put_topic(name(number), ConfigInput(durability="fsync" if number % 2 else "disk"))
        append(engine, name(number))
    await owner.sync()
    return engine


class Ready(NamedTuple):
    """An owner with topics, and a follower that has made them ready for a takeover."""

    bucket: HeldBucket
    owner: Member
    engine: Engine
    standby: Member
    follower: Follower
    catalog: StoredCatalog


@pytest.fixture
async def ready(tmp_path: Path) -> AsyncIterator[Ready]:
    bucket = HeldBucket()
    with Member(bucket, tmp_path / "owner") as owner, Member(bucket, tmp_path / "standby") as standby:
        engine = await fill(owner)
        follower = Follower(bucket, standby.store, SHARD)
        await follower.catch_up()
        following = asyncio.create_task(follower.run())
        try:
            await until(lambda: standby.store.catalog is not None and len(standby.store.catalog.topics) == TOPICS)
        finally:
            following.cancel()
            await asyncio.wait((following,))
        assert standby.store.catalog is not None
        yield Ready(bucket, owner, engine, standby, follower, standby.store.catalog)


@pytest.mark.timeout(120)
async def test_a_takeover_decodes_what_has_changed_alone(ready: Ready) -> None:
    bucket, owner, engine, standby, _, catalog = ready
    rows = catalog.rows
    append(engine, name(0))
    append(engine, name(1))
    await owner.sync()
    owner.kill()
    ownership = await standby.own()
    began = time.process_time()
    taken = engine_of(standby, f"epoch {ownership.epoch}", standby.store.take_catalog())
    took = time.process_time() - began
    print(f"{took * 1e3:.1f} ms of CPU with {TOPICS} topics")
    assert catalog.rows - rows == 2, "the states of the two logs"
    assert took < 1
    data = await bucket.get(objects.name(SHARD, ownership.position.number))
    assert data is not None
    found = objects.decode(SHARD, ownership.position.number, data)
    assert found.header.kind is Kind.DATA
    assert {family for batch in found.batches for _, family, _, _ in batch.rows} == {Family.META}
    assert (taken.ready().topics, taken.writer.total_records) == (TOPICS, TOPICS + 2)
    lost = taken.diff(DiffRequest(topic=name(2), from_seq=1)).tombstone
    assert lost is not None
    assert (lost.gap_from, lost.reason) == (2, "cap")
    assert taken.get_topic(name(3)).head_seq == 1


@pytest.mark.timeout(120)
async def test_a_large_object_is_taken_over_in_slices(ready: Ready) -> None:
    """The loop of a follower goes on beside many changes at once."""
    bucket, owner, engine, _, follower, catalog = ready
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += catalog.is_behind
            await asyncio.sleep(0)

    bucket.fate = lambda _name: "held"
    for number in range(TOPICS):
        append(engine, name(number))
    bucket.fate = lambda _name: "made"
    await owner.sync()
    other = asyncio.create_task(beside())
    await follower.catch_up()
    other.cancel()
    assert not catalog.is_behind
    assert turns > TOPICS / 512
    assert catalog.logs.records == 2 * TOPICS
