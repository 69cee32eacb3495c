"""Bugs planted into the cluster, to see that the simulation finds them, each as a context in which it has it."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple
from unittest.mock import PropertyMock, patch

from topics_cluster import checkpoint, collect, objects, placement, reuse, takeover
from topics_cluster.bucket import BucketError, ObjectEntry
from topics_cluster.follower import BehindCheckpointError, Newest
from topics_cluster.log import MAX_WINDOW, Appender, Position, Put, Tail
from topics_cluster.objects import Header, Kind, LogObject
from topics_cluster.store import ShardStore
from topics_cluster.uploader import Uploader
from topics_server.node.gate import ReadGate
from topics_service.storage.store import WriteBatch

Planted = Callable[[], AbstractContextManager[Any]]

_name = objects.name
_make, _created, _fence = Uploader._make, Appender.created, Tail.fence
_apply, _write, _durable = ShardStore.apply, ShardStore.write, ShardStore.durable


async def _no_look(_newest: Newest, _tail: Tail) -> None:
    """Look at no checkpoint."""


async def _above_the_fence(newest: Newest, tail: Tail) -> None:
    found = await newest()
    if found is not None and found.number > tail.position.number - MAX_WINDOW:
        raise BehindCheckpointError


def _any_goes(entry: ObjectEntry, below: int, before: float) -> bool:
    return entry.modified < before and objects.number_of(entry.name) < below


def _fence_of_one(self: Tail, nonce: bytes, window: int = MAX_WINDOW, ahead: int = 0) -> Put:
    put = _fence(self, nonce, window, ahead)
    header = objects.decode(self.shard, put.number, b"".join(put.parts)).header
    return put._replace(parts=objects.encode(header._replace(resume=put.number + 1)))


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


def _in_part(self: ShardStore, found: LogObject, position: Position) -> None:
    before = self._position
    for batch in found.batches or [None]:
        self._position = before
        _apply(self, found._replace(batches=[] if batch is None else [batch]), position)


def _no_row(self: ShardStore, batch: WriteBatch) -> None:
    with patch("topics_cluster.store.POSITION_KEY", b"written_ms"):
        _write(self, batch)


def _one_more(self: ShardStore, acknowledged: int) -> int:
    return min(self.engine.written, _durable(self, acknowledged) + 1)


def _same_epoch(self: Appender, number: int, found: bytes | None) -> Literal["ours", "fenced", "again"]:
    return "again" if found is None else "ours"


async def _at_once(_store: object, _ticket: int) -> None:
    """Wait for nothing."""


async def _as_part(_bucket: object, store: ShardStore, *_: object) -> bool:
    store._position = store._position._replace(ticket=store.ticket)
    return True


def _of_shard_0(_shard: int, number: int) -> str:
    return _name(0, number)


class Mutation(NamedTuple):
    """The way to plant a bug, and the seed of a life that finds it; with `topics` of one with engines."""

    planted: Planted
    seed: int
    topics: bool = False


MUTATIONS = {
    "no second look at the checkpoints": Mutation(lambda: patch.object(takeover, "_check_checkpoint", _no_look), 86),
    "only a checkpoint above the fence counts": Mutation(
        lambda: patch.object(takeover, "_check_checkpoint", _above_the_fence), 1
    ),
    "fences collected": Mutation(lambda: patch.object(collect, "is_outdated", _any_goes), 26, True),
    "a fence that resumes at the next number": Mutation(lambda: patch.object(Tail, "fence", _fence_of_one), 1),
    "acknowledged out of order": Mutation(lambda: patch.object(Appender, "created", _out_of_order), 1),
    "acknowledged before the answer": Mutation(lambda: patch.object(Uploader, "_make", _unanswered), 1),
    "other bytes under the same number": Mutation(lambda: patch.object(Uploader, "_make", _other_bytes), 1),
    "an object applied in part": Mutation(lambda: patch.object(ShardStore, "apply", _in_part), 3),
    "the row of the position forgotten": Mutation(lambda: patch.object(ShardStore, "write", _no_row), 1),
    "read after the lease": Mutation(lambda: patch.object(ReadGate, "is_open", PropertyMock(return_value=True)), 13),
    "another owner's object taken for one's own": Mutation(lambda: patch.object(Appender, "exists", _same_epoch), 1),
    "a checkpoint of what is not in the log": Mutation(lambda: patch.object(checkpoint, "in_the_log", _at_once), 1),
    "any directory used again": Mutation(lambda: patch.object(reuse, "is_of_log", _as_part), 5),
    "published one write too early": Mutation(lambda: patch.object(ShardStore, "durable", _one_more), 2, True),
    "a recovery as in the same boot": Mutation(
        lambda: patch("cluster.simulation.clients.boot_of", lambda _ownership: "boot"), 9, True
    ),
    "a look at the oldest number alone": Mutation(
        lambda: patch.object(Uploader, "next", property(lambda self: self.position.number)), 18, True
    ),
}
"""By name."""

MUTATIONS_OF_SHARDS: dict[str, Planted] = {
    "objects under the names of another shard": lambda: patch.object(
        objects, "name", lambda _, number: _name(0, number)
    ),
    "no shard moves": lambda: patch.object(placement, "next_move", lambda *_, **__: None),
}
"""Those that take several shards, by name: any life of these finds them."""
