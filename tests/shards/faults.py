"""Faults of shards: calls that something happens before, shards that are away, and ones that are killed."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine_support import CrashStore
from shards.world import ShardsWorld

from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_shards.holds import HoldSender
from topics_shards.shards import Shard

Event = Callable[[], Awaitable[None]]


class Faults:
    """Faults of the calls from shard to shard, from its creation on."""

    def __init__(self, world: ShardsWorld) -> None:
        self.world = world
        self._cut_off: set[str] = set()
        self._before: dict[str, Event] = {}
        self._after: dict[str, Event] = {}
        self._call = world.shards.call
        world.shards.call = self._run  # type: ignore[assignment,method-assign]

    @contextmanager
    def before(self, method: str, event: Event) -> Iterator[None]:
        """Have something happen before the next call of a method, which must be made."""
        self._before[method] = event
        yield
        assert method not in self._before, f"{method} was not called"

    @contextmanager
    def after(self, method: str, event: Event) -> Iterator[None]:
        """Have something happen between the next call of a method, which must be made, and its answer."""
        self._after[method] = event
        yield
        assert method not in self._after, f"{method} was not called"

    def cut_off(self, classes: set[str]) -> None:
        """Let no call on these classes reach its shard, until others are given."""
        self._cut_off = classes

    async def kill(self, shard: int, *, power: bool = False) -> None:
        """End a shard as SIGKILL does, or a power cut, and start it again. Not through a socket."""
        world = self.world
        assert world.wire is None
        await world.senders[shard].stop()
        world.apis[shard].parts.stop()
        world.commits[shard].stop()
        old = world.engines[shard]
        store, boot_id = old.writer.store, "boot-1"
        if power:
            assert isinstance(store, CrashStore)
            store.cut_power(store.synced)
            boot_id = f"boot-{store.synced}"
        engine = Engine(store, old._clock, limits=old.limits, place=old.parts.place, boot_id=boot_id)
        world.engines[shard] = engine
        world.commits[shard] = GroupCommit.for_engine(engine)
        api = world.apis[shard] = TopicsApi(engine, world.commits[shard])
        world.all_shards[shard] = Shard(api)
        api.parts.connect(world.shards)
        api.parts.resume()
        world.senders[shard] = HoldSender.serve(shard, engine, api, world.located)

    async def _run(self, shard: int, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        name = method.__qualname__
        if name in self._before:
            await self._before.pop(name)()
        if name.partition(".")[0] in self._cut_off:
            raise TopicsError(Reason.NOT_READY, f"shard {shard} is away")
        result = await self._call(shard, method, *args, **kwargs)
        if name in self._after:
            await self._after.pop(name)()
        return result
