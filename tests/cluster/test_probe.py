"""The probe of an object store accepts those that a cluster can trust, and tells what is wrong with others."""

import asyncio
from collections.abc import Sequence

import pytest

from topics_cluster.bucket import Bucket, ObjectEntry
from topics_cluster.memory import MemoryBucket
from topics_cluster.probe import UnfitStoreError, probe, race
from topics_cluster.s3 import S3Bucket


class Overwriting(MemoryBucket):
    """It ignores the condition."""

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        await self.delete([name])
        return await super().create(name, parts)


class Lying(MemoryBucket):
    """It refuses, and overwrites all the same."""

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        there = await self.get(name) is not None
        await self.delete([name])
        return await super().create(name, parts) and not there


class Checking(MemoryBucket):
    """It looks first and writes then, so that two can pass the look."""

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        there = await self.get(name) is not None
        await asyncio.sleep(0)
        if not there:
            await self.delete([name])
            await super().create(name, parts)
        return not there


class Refusing(MemoryBucket):
    """It creates nothing."""

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        return False


class Late(MemoryBucket):
    """Its lists don't have what is new."""

    async def list(self, prefix: str, after: str = "", before: str = "") -> Sequence[ObjectEntry]:
        return []


@pytest.mark.parametrize("kind", ["memory", "s3"])
async def test_a_store_that_gives_a_name_once(kind: str, request: pytest.FixtureRequest) -> None:
    bucket: Bucket = MemoryBucket() if kind == "memory" else S3Bucket(request.getfixturevalue("bucket_url"))
    await probe(bucket)
    await race(bucket, 3)
    assert await bucket.list("") == []


@pytest.mark.parametrize(
    ("bucket", "told"),
    [
        (Overwriting(), "overwrites an object that is there"),
        (Lying(), "overwrites an object that is there"),
        (Refusing(), "refuses to create an object whose name is free"),
        (Late(), "does not list an object"),
    ],
)
async def test_a_store_that_does_not(bucket: MemoryBucket, told: str) -> None:
    with pytest.raises(UnfitStoreError, match=told):
        await probe(bucket)
    assert await MemoryBucket.list(bucket, "") == []


async def test_a_store_that_only_seems_to() -> None:
    bucket = Checking()
    await probe(bucket)
    with pytest.raises(UnfitStoreError, match="of 8 that created one object in race 1, 8 succeeded"):
        await race(bucket, 3)
    assert await bucket.list("") == []
