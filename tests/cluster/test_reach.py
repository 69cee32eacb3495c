"""The decision that a node does not reach the store: it gives the shard up where another node can do better."""

import asyncio
from collections.abc import Callable

from support.fake_time import in_fake_time
from topics_cluster import identity
from topics_cluster.bucket import BucketError
from topics_cluster.memory import MemoryBucket
from topics_server.node.reach import StoreReach


class Reads(MemoryBucket):
    """A bucket whose reads fail, or take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.seconds = 0.01

    async def get(self, name: str) -> bytes | None:
        assert name == identity.NAME
        await asyncio.sleep(self.seconds)
        if self.fails:
            raise BucketError("no answer")
        return b""


async def stuck_after(bucket: Reads, *, others: Callable[[float], bool] = lambda _seconds: True) -> float:
    """Seconds after which an object is taken for stuck, where other nodes reach the store at the times of `others`."""
    loop = asyncio.get_running_loop()
    reach, began = StoreReach(bucket, loop.time), loop.time()
    while not reach.is_stuck(loop.time() - began, others=others(loop.time() - began)):
        await asyncio.sleep(0.25)
        assert loop.time() - began < 100
    return loop.time() - began


@in_fake_time
async def test_an_object_is_stuck_where_the_store_answers_no_reads_either() -> None:
    bucket = Reads()
    bucket.fails = True
    assert 3 < await stuck_after(bucket) <= 3.25
    bucket.fails, bucket.seconds = False, 60
    assert 3 < await stuck_after(bucket) <= 3.25


@in_fake_time
async def test_a_store_that_answers_reads_has_half_a_minute() -> None:
    assert 30 < await stuck_after(Reads()) <= 32  # from the first answer


@in_fake_time
async def test_a_store_that_answers_again_answers_all_nodes() -> None:
    bucket = Reads()
    bucket.fails = True
    assert 61.5 < await stuck_after(bucket, others=lambda seconds: seconds > 60) <= 62


@in_fake_time
async def test_an_object_that_the_store_has_delayed_has_half_a_minute_from_its_return() -> None:
    bucket = Reads()
    bucket.fails = True
    asyncio.get_running_loop().call_later(60, setattr, bucket, "fails", False)
    assert 90 < await stuck_after(bucket, others=lambda seconds: seconds > 60) <= 91
