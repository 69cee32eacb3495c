"""Tests of an object store: whether it gives a name once, even to many that ask at the same moment."""

import asyncio
import secrets
from contextlib import suppress
from typing import Final

from topics_cluster.bucket import Bucket, BucketError

PREFIX: Final = "probe/"
WRITERS: Final = 8
_OBJECT_BYTES: Final = 1000


class UnfitStoreError(Exception):
    """The object store doesn't do what a cluster depends on; the message says what."""


async def probe(bucket: Bucket) -> None:
    """Test that a second create of a name is refused, and that a new object is read and listed at once.

    For the start of a node: a few requests. Raises UnfitStoreError, BucketError.
    """
    name = _name()
    first, second = _content(), _content()
    try:
        if not await bucket.create(name, [first]):
            raise UnfitStoreError("the object store refuses to create an object whose name is free")
        if await bucket.create(name, [second]) or await bucket.get(name) != first:
            raise UnfitStoreError(
                "the object store overwrites an object that is there: it ignores If-None-Match, which clusters need"
            )
        if name not in [entry.name for entry in await bucket.list(PREFIX)]:
            raise UnfitStoreError("the object store does not list an object that it has just created")
    finally:
        await _remove(bucket, name)


async def race(bucket: Bucket, rounds: int) -> None:
    """Race several creates of the same name, `rounds` times; one of each race must win.

    Raises UnfitStoreError, BucketError.
    """
    for number in range(1, rounds + 1):
        name = _name()
        contents = [_content() for _ in range(WRITERS)]
        try:
            created = await asyncio.gather(*(bucket.create(name, [content]) for content in contents))
            if sum(created) != 1:
                raise UnfitStoreError(
                    f"of {WRITERS} that created one object in race {number}, {sum(created)} succeeded"
                )
            if await bucket.get(name) != contents[created.index(True)]:
                raise UnfitStoreError(f"in race {number}, the object is not of the one whose create succeeded")
        finally:
            await _remove(bucket, name)


async def _remove(bucket: Bucket, name: str) -> None:
    with suppress(BucketError):  # one that is left does no harm, and another error tells more
        await bucket.delete([name])


def _name() -> str:
    return f"{PREFIX}{secrets.token_hex(8)}"


def _content() -> bytes:
    return secrets.token_bytes(_OBJECT_BYTES)
