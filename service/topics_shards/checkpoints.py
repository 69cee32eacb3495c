"""Checkpoints of all shards of a server, of one moment: all processes pause in front of it.

Process 0 makes and keeps them; any process answers the calls of clients. Each process first writes out its memtables,
beside its calls. Then it stops its event loop until all have done so (`meet`), and captures its shards before it serves
again. So what a shard has written because of a write of another one is in the checkpoint only together with that write.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from topics_service.api.checkpoints import Checkpoints, Held
from topics_service.api.observers import Facts, Observers
from topics_service.api.running import LostCallError
from topics_service.engine.errors import Reason, TopicsError
from topics_service.storage import checkpoint, shardfiles
from topics_service.storage.rocks import RocksStore
from topics_shards.shards import Shards

MEET_SECONDS: Final = 2.0
"""The longest pause for the others; after it there is no checkpoint."""
KEEPER: Final = 0
"""The process that makes and keeps them."""


_ATTEMPTS: Final = 3  # to meet: a busy machine may keep a process from coming in time


class HeldCheckpoint(Struct, frozen=True):
    """See `Held`, for another process."""

    checkpoint_id: str
    path: str
    created_ms: int
    expires_ms: int
    topics: int
    bytes: int


class CheckpointsApi:
    """The part of one process: its shards, and where it is the keeper, all checkpoints.

    `meet` stops the event loop until all processes are in it with the same number; False if some did not come.
    """

    def __init__(self, stores: Mapping[int, RocksStore], meet: Callable[[int], bool]) -> None:
        self._stores = stores
        self._meet = meet
        self.kept: Checkpoints | None = None

    async def prepare(self, folder: str) -> None:
        """Write out the memtables of all shards of this process."""
        for store in self._stores.values():
            await asyncio.to_thread(checkpoint.prepare, store, Path(folder))

    async def capture(self, folder: str, number: int) -> None:
        """Make this process's part of the checkpoint in `folder` at the moment at which all processes meet."""
        if not self._meet(number):
            raise TopicsError(
                Reason.NOT_READY, "the processes of the server did not pause together for a checkpoint: try again"
            )
        for shard, store in self._stores.items():
            checkpoint.capture(store, shardfiles.directory(Path(folder), shard))
        for shard in self._stores:
            await asyncio.to_thread(checkpoint.finish, shardfiles.directory(Path(folder), shard))

    async def create(self, ttl_ms: int) -> HeldCheckpoint:
        """Make a checkpoint, at the keeper; see `Checkpoints.create`."""
        held = await self._of_keeper.create(ttl_ms)
        return HeldCheckpoint(
            held.checkpoint_id, str(held.path), held.created_ms, held.expires_ms, held.topics, held.bytes
        )

    async def release(self, checkpoint_id: str) -> bool:
        """Remove one, at the keeper."""
        return await self._of_keeper.release(checkpoint_id)

    @property
    def _of_keeper(self) -> Checkpoints:
        assert self.kept is not None, "the keeper is asked"
        return self.kept


class ShardedCheckpoints:
    """See `CheckpointCalls`: the calls of clients at any process."""

    def __init__(self, shards: Shards, own: CheckpointsApi, observers: Observers) -> None:
        self._shards = shards
        self._own = own
        self._observers = observers

    async def create(self, ttl_ms: int = 0) -> Held:
        """See Checkpoints."""
        facts: Facts = {}
        with self._observers("checkpoint.create", facts):
            made: HeldCheckpoint = await self._on(KEEPER, CheckpointsApi.create, ttl_ms)
            facts |= {"checkpoint": made.checkpoint_id, "expires_ms": made.expires_ms}
        return Held(
            checkpoint_id=made.checkpoint_id,
            path=Path(made.path),
            created_ms=made.created_ms,
            expires_ms=made.expires_ms,
            topics=made.topics,
            bytes=made.bytes,
        )

    async def release(self, checkpoint_id: str) -> bool:
        """See Checkpoints."""
        facts: Facts = {"checkpoint": checkpoint_id}
        with self._observers("checkpoint.release", facts):
            released: bool = await self._on(KEEPER, CheckpointsApi.release, checkpoint_id)
            facts["released"] = released
        return released

    def maker(self) -> Callable[[Path], None]:
        """Return what makes a checkpoint of all shards at a path, from a thread beside the running event loop."""
        loop = asyncio.get_running_loop()
        return lambda path: asyncio.run_coroutine_threadsafe(self._make(path), loop).result()

    async def _make(self, path: Path) -> None:
        attempts = _ATTEMPTS
        while True:
            try:
                await asyncio.to_thread(shardfiles.create, path, self._shards.count)
                if attempts == _ATTEMPTS:
                    await self._all(CheckpointsApi.prepare, str(path))
                attempts -= 1
                return await self._all(CheckpointsApi.capture, str(path), secrets.randbits(62) + 1)
            except BaseException as error:
                await asyncio.to_thread(checkpoint.remove, path)
                if not _is_not_ready(error) or attempts in (0, _ATTEMPTS):
                    raise

    async def _all(self, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Call all processes, and wait until none of them works on it any more. Raises the first error."""
        calls = (self._on(process, method, *args) for process in range(self._shards.processes))
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, LostCallError):
                raise TopicsError(Reason.NOT_READY, "a process of the server ended meanwhile: try again")
            if isinstance(outcome, BaseException):
                raise outcome

    async def _on(self, process: int, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        if process == self._shards.process:
            return await method(self._own, *args)
        return await self._shards.call(self._shards.number_of(process), method, *args)


def _is_not_ready(error: BaseException) -> bool:
    return isinstance(error, TopicsError) and error.reason is Reason.NOT_READY
