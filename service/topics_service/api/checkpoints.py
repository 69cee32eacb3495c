"""Checkpoints of a running server, created for backups and removed after them."""

import asyncio
import contextlib
import logging
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from topics_net import background
from topics_service.api.observers import NO_OBSERVERS, Facts, Observers
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.model import ReadyState

log = logging.getLogger("topics.checkpoints")

MAX_CHECKPOINTS: Final = 4
DEFAULT_TTL_MS: Final = 3_600_000
MAX_TTL_MS: Final = 7 * 86_400_000


class Held(Struct, frozen=True, kw_only=True):
    """A checkpoint: its name, where it is, when it was begun and when the server removes it (ms). `bytes` is the size
    of its files, most of which are the database's own, and `topics` how many topics there were."""

    checkpoint_id: str
    path: Path
    created_ms: int
    expires_ms: int
    topics: int
    bytes: int


class CheckpointCalls(Protocol):
    """Makes checkpoints for clients."""

    async def create(self, ttl_ms: int = 0) -> Held:
        """See Checkpoints, as for the other one."""
        ...

    async def release(self, checkpoint_id: str) -> bool: ...


class Checkpoints:
    """Those below one directory, at most `MAX_CHECKPOINTS` at a time. All methods belong on one event loop.

    `make` makes a checkpoint at a path; it blocks and is called on another thread. `discard` removes one.
    """

    def __init__(
        self,
        directory: Path,
        make: Callable[[Path], None],
        discard: Callable[[Path], None],
        ready: Callable[[], ReadyState],
        observers: Observers = NO_OBSERVERS,
    ) -> None:
        self._directory = directory.absolute()
        self._make = make
        self._discard = discard
        self._ready = ready
        self._observers = observers
        self._held: dict[str, Held] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._making = 0
        self._turn = asyncio.Lock()

    def clear(self) -> None:
        """Remove checkpoints of an earlier run of the server: no client can use them. Blocks for a moment."""
        if self._directory.is_symlink():  # its target is not ours
            log.warning("removing the link %s, where checkpoints are made", self._directory)
            self._directory.unlink(missing_ok=True)
        left = sorted(self._directory.iterdir()) if self._directory.is_dir() else []
        for path in left:
            log.warning("removing the checkpoint %s that an earlier run of the server left", path)
            if path.is_dir() and not path.is_symlink():
                self._discard(path)
            else:
                path.unlink(missing_ok=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def create(self, ttl_ms: int = 0) -> Held:
        """Make one that holds everything acknowledged before the call, but for `ephemeral` records.

        It is removed after `ttl_ms` (0: an hour) unless it is released before. Raises `not_ready`, `shutting_down`,
        `throttled` when there are `MAX_CHECKPOINTS`, `invalid_request` and `internal`. A cancelled call leaves none.
        """
        facts: Facts = {}
        with self._observers("checkpoint.create", facts):
            held = await self._start(ttl_ms or DEFAULT_TTL_MS)
            facts |= {"checkpoint": held.checkpoint_id, "expires_ms": held.expires_ms}
        return held

    async def _start(self, ttl_ms: int) -> Held:
        if ttl_ms > MAX_TTL_MS:
            raise invalid(f"ttl_ms must be at most {MAX_TTL_MS}", {"ttl_ms": ttl_ms})
        self._check()
        if len(self._held) + self._making >= MAX_CHECKPOINTS:
            held = ", ".join(self._held) or "which are just being made"
            raise TopicsError(
                Reason.THROTTLED,
                f"there are {MAX_CHECKPOINTS} checkpoints already ({held}): release one",
                {"limit": "checkpoints", "max": MAX_CHECKPOINTS},
            )
        self._making += 1
        # A separate task: a thread can't be stopped, and its result has to be removed if the caller has left.
        task = asyncio.create_task(self._create(ttl_ms))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._abandon)
            raise

    async def release(self, checkpoint_id: str) -> bool:
        """Remove one; False if there is none of that name."""
        facts: Facts = {"checkpoint": checkpoint_id}
        with self._observers("checkpoint.release", facts):
            held = self._held.pop(checkpoint_id, None)
            if held is not None:
                self._timers.pop(checkpoint_id).cancel()
                await asyncio.to_thread(self._discard, held.path)
            facts["released"] = held is not None
        return held is not None

    def _check(self) -> None:
        state = self._ready()
        if not state.ready:
            reason = Reason.SHUTTING_DOWN if state.reason == Reason.SHUTTING_DOWN.code else Reason.NOT_READY
            raise TopicsError(reason, f"there is no checkpoint of a server that is {state.reason}")

    async def _create(self, ttl_ms: int) -> Held:
        try:
            async with self._turn:
                self._check()  # it may have waited for its turn
                now = time.time_ns() // 1_000_000
                name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now / 1000))}-{secrets.token_hex(3)}"
                path = self._directory / name
                topics = self._ready().topics
                try:
                    size = await asyncio.to_thread(self._made, path)
                except TopicsError:
                    raise
                except Exception as error:
                    log.exception("no checkpoint")
                    raise TopicsError(Reason.INTERNAL, "the checkpoint failed; the server's log says why") from error
            held = Held(
                checkpoint_id=name, path=path, created_ms=now, expires_ms=now + ttl_ms, topics=topics, bytes=size
            )
            self._held[name] = held
            self._timers[name] = background.call_later(ttl_ms / 1000, self._expire, name)
            log.info("checkpoint %s", path)
            return held
        finally:
            self._making -= 1

    def _made(self, path: Path) -> int:
        with self._observers("topics.checkpoint.create", {"topics.checkpoint": path.name}):
            self._make(path)
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

    def _abandon(self, task: "asyncio.Task[Held]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._expire(task.result().checkpoint_id)

    def _expire(self, checkpoint_id: str) -> None:
        held = self._held.pop(checkpoint_id, None)
        if held is not None:
            self._timers.pop(checkpoint_id).cancel()
            log.info("removing the checkpoint %s, which was not released in time", held.path)
            with contextlib.suppress(RuntimeError):  # the executor has ended: the next start removes it
                asyncio.get_running_loop().run_in_executor(None, self._discard, held.path)
