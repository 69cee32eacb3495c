"""The fault that the first version of the protocol had, step by step: two fences jump over the newest checkpoint.

A contender reads to number 17 and falls asleep; the log grows by four objects, checkpoints have them, and 17 and 18 are
collected. A fence that another contender sent long ago lands at 17. Who reads it goes on at 33, where nothing is.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import pytest
from cluster.simulation.mutations import MUTATIONS
from cluster.simulation.store import Disk, ModelStore, Write

from topics_cluster import objects
from topics_cluster.follower import BehindCheckpointError
from topics_cluster.log import Position, Tail
from topics_cluster.memory import MemoryBucket
from topics_cluster.objects import Header, Kind, Op
from topics_cluster.store import ShardStore
from topics_cluster.takeover import Ownership, take_over
from topics_service.storage.store import Family

SHARD = 0
BEFORE, NEWEST = Position(1, 17, 5), Position(1, 21, 9)


async def newest() -> Position:
    return NEWEST


async def contend(planted: Callable[[], AbstractContextManager[Any]]) -> Ownership:
    bucket = MemoryBucket()
    for number in (19, 20):
        ticket = number - 11
        rows = objects.batch_parts(ticket, [(Op.PUT, Family.LOGS, b"%d" % ticket, b"")])
        header = Header(Kind.DATA, SHARD, 1, number, number + 4, ticket, bytes(16))
        await bucket.create(objects.name(SHARD, number), objects.encode(header, rows))
    late = Tail(SHARD, BEFORE).fence(bytes(range(16)))
    assert await bucket.create(late.name, late.parts)
    store = ModelStore(Disk(Write(tuple(b"%d" % ticket for ticket in range(1, 6)), BEFORE, BEFORE.ticket)))
    with planted():
        return await take_over(bucket, cast(ShardStore, store), SHARD, bytes(16), newest=newest)


async def test_the_second_look_at_the_checkpoints_finds_it() -> None:
    with pytest.raises(BehindCheckpointError):
        await contend(nullcontext)


@pytest.mark.parametrize("name", ["no second look at the checkpoints", "only a checkpoint above the fence counts"])
async def test_without_it_the_contender_owns_and_lacks_what_was_acknowledged(name: str) -> None:
    found = await contend(MUTATIONS[name][0])
    assert found.position.ticket < NEWEST.ticket
