"""The fault that the first version of the protocol had, step by step: two fences jump over the newest checkpoint.

A contender reads to number 17 and falls asleep; the log grows by four objects, checkpoints have them, and 17 and 18 are
collected. A fence that another contender sent long ago lands at 17. Who reads it goes on at 33, where nothing is.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from cluster.simulation.life import small_cluster
from cluster.simulation.mutations import MUTATIONS
from cluster.simulation.store import NodeDisk, NodeStore

from topics_cluster import objects
from topics_cluster.follower import BehindCheckpointError
from topics_cluster.log import Position, Tail
from topics_cluster.memory import MemoryBucket
from topics_cluster.objects import Header, Kind, Op
from topics_cluster.store import POSITION_KEY
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
    position = BEFORE.pack() + BEFORE.ticket.to_bytes(8, "big")
    store = NodeStore(NodeDisk([(Family.META, POSITION_KEY, position)]))
    with small_cluster(), planted():
        return await take_over(bucket, store, SHARD, bytes(16), newest=newest)


async def test_the_second_look_at_the_checkpoints_finds_it() -> None:
    with pytest.raises(BehindCheckpointError):
        await contend(nullcontext)


@pytest.mark.parametrize("name", ["no second look at the checkpoints", "only a checkpoint above the fence counts"])
async def test_without_it_the_contender_owns_and_lacks_what_was_acknowledged(name: str) -> None:
    found = await contend(MUTATIONS[name].planted)
    assert found.position.ticket < NEWEST.ticket
