"""Shards of which some count as those of another process, and can go away."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from itertools import count

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.placement import home_of
from topics_shards.shards import LostCallError, Method, P, R, Shard, Shards, StreamMethod
from topics_shards.watches import ShardedWatches


class FarShards(Shards):
    """Calls and streams to the shards that are `away` break off, and new ones are refused."""

    def __init__(self, inner: Shards, local: Mapping[int, Shard]) -> None:
        """`inner` reaches all shards, of which the others count as far."""
        self.count = inner.count
        self.local = local
        self.objects: dict[int, object] = {}
        """Those of other processes, by the number of the process."""
        self.away: set[int] = set()
        self.silent: set[int] = set()
        """Shards that give only the first item of a stream."""
        self.stuck: set[int] = set()
        """Shards that don't even give that."""
        self.items = 0
        self.streams = 0
        self._inner = inner
        self._broken: dict[int, asyncio.Event] = {}

    def break_off(self, shard: int) -> None:
        """Lose every stream of a shard, which answers new ones at once."""
        self._broken.pop(shard, asyncio.Event()).set()

    def leave(self, shard: int) -> None:
        """Lose every stream of a shard, and refuse new ones."""
        self.away.add(shard)
        self.break_off(shard)

    async def call(self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shards."""
        self._check(shard)
        await asyncio.sleep(0)
        if self._is_of_process(method):
            return await method(self.objects[shard], *args, **kwargs)
        return await self._inner.call(shard, method, *args, **kwargs)

    async def stream(
        self, shard: int, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]:
        """See Shards."""
        self._check(shard)
        broken = self._broken.setdefault(shard, asyncio.Event())
        if self._is_of_process(method):
            items = method(self.objects[shard], *args, **kwargs)
        else:
            items = self._inner.stream(shard, method, *args, **kwargs)
        self.streams += 1
        lost = asyncio.create_task(broken.wait())
        try:
            if shard in self.stuck:
                await lost
            while True:
                taking = asyncio.ensure_future(anext(items, None))
                try:
                    await asyncio.wait((taking, lost), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not taking.done():
                        taking.cancel()
                        await asyncio.wait((taking,))
                if broken.is_set():
                    raise LostCallError
                item = taking.result()
                if item is None:
                    return
                self.items += 1
                yield item
                if shard in self.silent:
                    await lost
        finally:
            self.streams -= 1
            lost.cancel()
            await items.aclose()

    def _is_of_process(self, method: Callable[..., object]) -> bool:
        return method.__qualname__.partition(".")[0] == ShardedWatches.__name__

    def _check(self, shard: int) -> None:
        if shard in self.away:
            raise TopicsError(Reason.NOT_READY, "the shard is away")


def names(shard: int, shards: int = 3, prefix: str = "t") -> Iterable[str]:
    """Names of topics whose home is a shard, in order."""
    return (name for number in count() if home_of(name := f"{prefix}{number:04}", shards) == shard)
