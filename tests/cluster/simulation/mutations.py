"""Bugs planted into the cluster, to see that the simulation finds them, each as a context in which it has it."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal
from unittest.mock import PropertyMock, patch

from cluster.simulation.store import ModelStore, Write

from topics_cluster import checkpoint, collect, objects, takeover
from topics_cluster.bucket import BucketError, ObjectEntry
from topics_cluster.follower import BehindCheckpointError, Newest
from topics_cluster.log import MAX_WINDOW, Appender, Position, Put, Tail
from topics_cluster.objects import Header, Kind, LogObject
from topics_cluster.uploader import Uploader
from topics_server.node.gate import ReadGate

Planted = Callable[[], AbstractContextManager[Any]]

_make, _created = Uploader._make, Appender.created


async def _no_look(_newest: Newest, _tail: Tail) -> None:
    """Look at no checkpoint."""


async def _above_the_fence(newest: Newest, tail: Tail) -> None:
    found = await newest()
    if found is not None and found.number > tail.position.number - MAX_WINDOW:
        raise BehindCheckpointError


def _any_goes(entry: ObjectEntry, below: int, before: float) -> bool:
    return entry.modified < before and objects.number_of(entry.name) < below


def _fence_of_one(self: Tail, nonce: bytes, window: int = MAX_WINDOW) -> Put:
    epoch, number, ticket = self.position
    header = Header(Kind.FENCE, self.shard, epoch + 1, number, number + 1, ticket, nonce)
    return Put(number, objects.name(self.shard, number), objects.encode(header), ticket, 0)


def _out_of_order(self: Appender, number: int, now: float) -> int | None:
    oldest = self.next - len(self._under_way)
    made = self._under_way[number - oldest].put.ticket if oldest <= number < self.next else 0
    ticket = _created(self, number, now)
    return max(ticket or 0, made) or None


async def _unanswered(self: Uploader, put: Put) -> None:
    task = asyncio.get_running_loop().create_task(_make(self, put))
    self._tasks.add(task)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.sleep(0)


async def _other_bytes(self: Uploader, put: Put) -> None:
    appender = self._appender
    while True:
        try:
            if await self._bucket.create(put.name, put.parts):
                return
            found = await self._bucket.get(put.name)
        except BucketError:
            oldest = appender.next - len(appender._under_way)
            while appender._pending and put.number == appender.next - 1:  # what has come meanwhile joins it
                more = appender._pending.popleft()
                appender.pending_bytes -= more.nbytes
                header = Header(
                    Kind.DATA, appender.shard, appender.epoch, put.number, put.number + appender.window, more.ticket,
                    appender.nonce,
                )  # fmt: skip
                parts = objects.encode(header, [*put.parts[1:], *more.parts])
                put = put._replace(parts=parts, ticket=more.ticket, nbytes=put.nbytes + more.nbytes)
                appender._under_way[put.number - oldest].put = put
            continue
        if found is None:
            continue
        if objects.decode(appender.shard, put.number, found).header.nonce == appender.nonce:
            return
        await _make(self, put)
        return


def _in_part(self: ModelStore, found: LogObject, position: Position) -> None:
    for batch in found.batches:
        self.disk.write(Write(self._keys([batch]), position, position.ticket))
    self.disk.write(Write((), position, position.ticket))
    self._position, self.ticket = position, position.ticket


def _old_row(self: ModelStore, keys: tuple[bytes, ...], position: Position, ticket: int) -> Write:
    row = self.disk.row
    return Write(keys, row.position, row.ticket) if self.uploader is not None else Write(keys, position, ticket)


def _same_epoch(self: Appender, number: int, found: bytes | None) -> Literal["ours", "fenced", "again"]:
    return "again" if found is None else "ours"


async def _at_once(_store: object, _ticket: int) -> None:
    """Wait for nothing."""


MUTATIONS: dict[str, tuple[Planted, int]] = {
    "no second look at the checkpoints": (lambda: patch.object(takeover, "_check_checkpoint", _no_look), 39),
    "only a checkpoint above the fence counts": (
        lambda: patch.object(takeover, "_check_checkpoint", _above_the_fence), 1,
    ),
    "fences collected": (lambda: patch.object(collect, "is_outdated", _any_goes), 197),
    "a fence that resumes at the next number": (lambda: patch.object(Tail, "fence", _fence_of_one), 1),
    "acknowledged out of order": (lambda: patch.object(Appender, "created", _out_of_order), 1),
    "acknowledged before the answer": (lambda: patch.object(Uploader, "_make", _unanswered), 1),
    "other bytes under the same number": (lambda: patch.object(Uploader, "_make", _other_bytes), 37),
    "an object applied in part": (lambda: patch.object(ModelStore, "apply", _in_part), 12),
    "the row of the position forgotten": (lambda: patch.object(ModelStore, "_row", _old_row), 1),
    "read after the lease": (lambda: patch.object(ReadGate, "is_open", PropertyMock(return_value=True)), 4),
    "another owner's object taken for one's own": (lambda: patch.object(Appender, "exists", _same_epoch), 1),
    "a checkpoint of what is not in the log": (lambda: patch.object(checkpoint, "in_the_log", _at_once), 1),
}  # fmt: skip
"""By name: how it is planted, and the seed of a life that finds it."""
