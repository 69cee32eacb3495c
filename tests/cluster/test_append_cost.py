"""CPU time of an append of an owner, beside that of a single process, in turns. The rows of a batch become bytes of the
log as well; the object store is no part of it."""

import asyncio
import gc
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.held_bucket import HeldBucket
from support.shards import Member
from topics_cluster.commit import LogCommit
from topics_service.api.scheduling.commit import Commit, GroupCommit
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, ConfigInput
from topics_service.storage.rocks import RocksStore

_ROUNDS = 12


class ForgetfulBucket(HeldBucket):
    """Keeps the objects of takeovers alone: copies of the others would cost what the test measures."""

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        return len(parts) > 1 or await super().create(name, parts)


async def append(engine: Engine, commit: Commit, batches: Sequence[Batch], at_once: int) -> float:
    """Append all; the CPU time of the whole process for each, in us."""
    gc.collect()
    began = time.process_time()
    for start in range(0, len(batches), at_once):
        for batch in batches[start : start + at_once]:
            ticket = engine.append(AppendRequest(topic="t", batch=batch))[1]
        await commit.wait(ticket)
    return (time.process_time() - began) / len(batches) * 1e6


@pytest.mark.parametrize(("records", "batches", "at_once", "bar"), [(1, 256, 64, 1.4), (1000, 8, 4, 1.2)])
async def test_an_append_costs_little_more_than_in_a_single_process(
    tmp_path: Path, records: int, batches: int, at_once: int, bar: float
) -> None:
    bucket = ForgetfulBucket()
    rocks = RocksStore(tmp_path / "single")
    with Member(bucket, tmp_path / "owner") as member:
        await member.own()
        single = Engine(rocks, SystemClock())
        owner = Engine(member.store, SystemClock(), recover=False)
        commits = [GroupCommit.for_engine(single), LogCommit.for_engine(owner, member.store)]
        for _ in owner.recover(member.store.life):
            pass
        chance = random.Random(1)
        made = [Batch(datas=[chance.randbytes(75).hex().encode() for _ in range(records)]) for _ in range(batches)]
        for engine in (single, owner):
            engine.put_topic("t", ConfigInput(durability="fsync"))
        took: list[list[float]] = [[], []]
        turns = [(single, commits[0], took[0]), (owner, commits[1], took[1])]
        for _ in range(_ROUNDS):
            for engine, commit, each in turns:
                each.append(await append(engine, commit, made, at_once))
            turns.reverse()
        for commit in commits:
            await asyncio.to_thread(commit.stop)
    rocks.close()
    least = [min(each) for each in took]
    print(f"{records} records: {least[0]:.1f} us alone, {least[1]:.1f} us in a cluster: {least[1] / least[0]:.3f}")
    assert least[1] < bar * least[0]
