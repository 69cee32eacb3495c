"""A bucket in memory whose answers a test holds back, loses or turns into errors, by the name of the object."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from topics_cluster.bucket import BucketError
from topics_cluster.memory import MemoryBucket

Fate = Literal["made", "held", "error", "lost"]
"""Fate of a `create`: as it should be; waiting until it is none of this any more; an error before anything is done;
done, and the answer lost."""


class HeldBucket(MemoryBucket):
    """A bucket for several threads. `fate` is asked for each `create`; `away` makes every call an error."""

    def __init__(self) -> None:
        super().__init__()
        self.fate: Callable[[str], Fate] = lambda _name: "made"
        self.away = False
        self.tried: list[str] = []

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        """See Bucket."""
        self.tried.append(name)
        while (fate := self.fate(name)) == "held":
            await asyncio.sleep(0.001)
        self._reach()
        if fate == "error":
            raise BucketError("the store said 500")
        made = await super().create(name, parts)
        if fate == "lost":
            raise BucketError("the answer was lost")
        return made

    async def get(self, name: str) -> bytes | None:
        """See Bucket."""
        self._reach()
        return await super().get(name)

    def objects(self) -> list[bytes]:
        """All objects, by name."""
        return [content for _, (content, _) in sorted(self._objects.items())]

    def put(self, name: str, content: bytes) -> None:
        """Set an object."""
        self._objects[name] = content, 0.0

    def drop(self, name: str) -> None:
        """Remove an object."""
        del self._objects[name]

    def _reach(self) -> None:
        if self.away:
            raise BucketError("the store is away")
