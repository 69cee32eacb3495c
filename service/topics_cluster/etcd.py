"""A Coordinator on etcd: entries under leases, claims by transactions, a watch that outlives its connections."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from etcd3aio import EtcdError, prefix_range_end
from etcd3aio._protobuf import Compare, WatchCreateRequest, WatchRequest
from etcd3aio.kv import KVService

from topics_cluster.coordinator import CoordinatorError, CoordinatorRefusedError, Node, Owner, View, boottime
from topics_cluster.etcd_members import Member, Members

T = TypeVar("T")

REQUEST_SECONDS: Final = 3.0
"""The time for one request."""
_LOOK_SECONDS: Final = 5.0  # after which a watch reads the entries in any case: a stream can fall silent
_RETRY_SECONDS: Final = 0.1
_SHORTEST_PAUSE: Final = 0.02
_CLOCK_RATE: Final = 0.99  # by which the clocks of two machines differ at most
_MOST_ENTRIES: Final = 10_000
_CLAIM_TRIES: Final = 3
_log = logging.getLogger("topics.cluster")


class EtcdCoordinator:
    """A Coordinator on the members of an etcd, each as host:port; see Members for TLS and users.

    Its keys, below `/topics/<cluster>/`: `nodes/<node>` and `owner/<shard>`, which end with their node's lease,
    `want/<shard>`, `zone/<shard>` and `drain/<node>`. Values are JSON. An entry that can't be read is as none, and the
    log names it.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        cluster: str,
        *,
        request_seconds: float = REQUEST_SECONDS,
        clock: Callable[[], float] = boottime,
    ) -> None:
        """Raises ValueError without an address. Connects with the first call."""
        self._members = Members(addresses, request_seconds)
        self._prefix = f"/topics/{cluster}/"
        self._clock = clock
        self._sessions: list[EtcdSession] = []

    async def session(self, seconds: float) -> "EtcdSession":
        """See Coordinator. etcd grants whole seconds, and at least 1.5 times its election timeout."""
        session = EtcdSession(self._members, self._prefix, seconds, self._clock)
        await session.begin()
        self._sessions.append(session)
        return session

    async def view(self) -> View:
        """See Coordinator."""

        async def read(member: Member, seconds: float) -> Any:
            end = prefix_range_end(self._prefix)
            return await member.kv.get(self._prefix, end, limit=_MOST_ENTRIES, timeout=seconds)

        found = await self._members.ask(read)
        nodes: dict[str, Node] = {}
        owners: dict[int, Owner] = {}
        wanted: dict[int, str] = {}
        drained: set[str] = set()
        zones: dict[int, str] = {}
        for entry in found.kvs:
            kind, _, name = entry.key.decode(errors="replace")[len(self._prefix) :].partition("/")
            if kind == "nodes":
                if node := _decoded(entry, Node):
                    nodes[name] = node
            elif kind == "drain":
                drained.add(name)
            elif kind in ("owner", "want", "zone") and name.isdecimal():
                if kind != "owner":
                    (wanted if kind == "want" else zones)[int(name)] = entry.value.decode(errors="replace")
                elif owner := _decoded(entry, Owner):
                    owners[int(name)] = owner
        return View(
            revision=found.header.revision,
            nodes=nodes,
            owners=owners,
            wanted=wanted,
            drained=frozenset(drained),
            zones=zones,
        )

    async def watch(self) -> AsyncIterator[View]:
        """See Coordinator.

        What etcd's watch tells is only that something has changed: the entries are read as a whole then. So nothing
        depends on a revision that was compacted, or that an etcd which was emptied does not have yet.
        """
        changed = asyncio.Event()
        following = asyncio.create_task(self._follow(changed))
        seen: View | None = None
        away = False
        try:
            while True:
                changed.clear()
                try:
                    view = await self.view()
                except CoordinatorRefusedError:
                    raise
                except CoordinatorError as error:
                    if not away:
                        _log.warning("can't follow etcd, trying again: %s", error)
                    away = True
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if away:
                    _log.info("etcd answers again")
                away = False
                if seen is None or _entries(view) != _entries(seen):
                    seen = view
                    yield view
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _LOOK_SECONDS)
        finally:
            following.cancel()

    async def _follow(self, changed: asyncio.Event) -> None:
        """Set the event when a watch begins, and at each change after that."""
        create = WatchCreateRequest(key=self._prefix.encode(), range_end=prefix_range_end(self._prefix))

        async def requests() -> AsyncIterator[WatchRequest]:
            yield WatchRequest(create_request=create)
            await asyncio.get_running_loop().create_future()  # the stream ends with its requests

        while True:
            try:
                await self._members.follow(requests(), changed.set)
            except CoordinatorError as error:
                _log.debug("a watch ended: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def want(self, shard: int, node: str | None) -> None:
        """See Coordinator."""
        await self._note(f"want/{shard}", node)

    async def drain(self, node: str, *, is_drained: bool) -> None:
        """See Coordinator."""
        await self._note(f"drain/{node}", "1" if is_drained else None)

    async def prefer(self, shard: int, zone: str | None) -> None:
        """See Coordinator."""
        await self._note(f"zone/{shard}", zone)

    async def _note(self, name: str, value: str | None) -> None:
        """Put an entry without a lease, or remove it (None)."""
        key = self._prefix + name

        async def change(member: Member, seconds: float) -> Any:
            if value is None:
                return await member.kv.delete(key, timeout=seconds)
            return await member.kv.put(key, value, timeout=seconds)

        await self._members.ask(change)

    async def close(self) -> None:
        """See Coordinator."""
        for session in self._sessions:
            await session.close()
        await self._members.close()


class EtcdSession:
    """A Session whose lease is renewed three times in its length, and followed by a new one when etcd has lost it."""

    def __init__(self, members: Members, prefix: str, seconds: float, clock: Callable[[], float]) -> None:
        self._members = members
        self._prefix = prefix
        self._asked = max(1, math.ceil(seconds))
        self._seconds = float(self._asked)  # what etcd granted
        self._clock = clock
        self._lease = 0
        self._until = 0.0
        self._node: Node | None = None
        self._node_lease = 0  # under which its entry is
        self._claims: dict[int, int] = {}  # the lease of each
        self._lost = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def valid_until(self) -> float:
        """See Session."""
        return self._until if all(lease == self._lease for lease in self._claims.values()) else 0.0

    def holds_until(self, shard: int) -> float:
        """See Session."""
        return self._until if self._claims.get(shard, self._lease) == self._lease else 0.0

    async def begin(self) -> None:
        """Begin the lease and its renewal. Raises CoordinatorError."""
        await self._grant()
        self._renewing = asyncio.create_task(self._renew_always())

    async def register(self, node: Node) -> None:
        """See Session."""
        self._node = node
        self._node_lease = 0
        await self._put_node()

    async def claim(self, shard: int, seen: Owner | None, mine: Owner) -> bool:
        """See Session."""
        key = f"{self._prefix}owner/{shard}"
        for _ in range(_CLAIM_TRIES):  # more than once where an answer was lost, or somebody was faster
            lease = self._lease
            owner, revision, holder = await self._owner(key)
            if owner not in (seen, mine):
                return False
            if (owner == mine and holder == lease) or await self._change(
                key, revision, KVService.txn_op_put(key, msgspec.json.encode(mine), lease=lease)
            ):
                self._claims[shard] = lease
                return True
        raise CoordinatorError(f"the entry of shard {shard} changes all the time")

    async def give_up(self, shard: int, mine: Owner) -> None:
        """See Session."""
        self._claims.pop(shard, None)
        key = f"{self._prefix}owner/{shard}"
        owner, revision, _ = await self._owner(key)
        if owner == mine:
            await self._change(key, revision, KVService.txn_op_delete(key))

    async def close(self) -> None:
        """See Session. The lease ends by itself where etcd does not answer."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        self._renewing = None
        lease, self._until = self._lease, 0.0
        with suppress(CoordinatorError):
            await self._members.ask(lambda member, seconds: member.lease.revoke(lease, timeout=seconds))

    async def _renew_always(self) -> None:
        away = False
        while True:
            sent = self._clock()
            pause = self._seconds / 3
            try:
                if not await self._renew():
                    _log.warning("the lease of this node has ended, a new one begins")
                    await self._grant()
                if self._node is not None and self._node_lease != self._lease:
                    await self._put_node()
            except CoordinatorError as error:
                if not away:
                    _log.warning("the lease of this node is not renewed: %s", error)
                away = True
                pause = _RETRY_SECONDS
            else:
                if away:
                    _log.info("the lease of this node is renewed again")
                away = False
            self._lost.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), max(_SHORTEST_PAUSE, sent + pause - self._clock()))

    async def _renew(self) -> bool:
        """Renew the lease. Return whether it was still there."""
        sent = self._clock()
        lease = self._lease

        async def renew(member: Member, seconds: float) -> int:
            stream = member.lease.keep_alive(lease)
            try:
                async for answer in stream:
                    return int(answer.TTL)
            finally:
                stream.cancel()
            raise EtcdError("the stream of renewals ended")

        granted = await self._members.ask(renew, self._seconds / 2)
        if granted > 0:
            self._until = sent + granted * _CLOCK_RATE
        return granted > 0

    async def _grant(self) -> None:
        sent = self._clock()
        granted = await self._members.ask(lambda member, seconds: member.lease.grant(self._asked, timeout=seconds))
        self._lease, self._seconds = granted.ID, float(granted.TTL)
        self._until = sent + granted.TTL * _CLOCK_RATE

    async def _put_node(self) -> None:
        node, lease = self._node, self._lease
        assert node is not None
        key, value = f"{self._prefix}nodes/{node.name}", msgspec.json.encode(node)
        await self._ask(lambda member, seconds: member.kv.put(key, value, lease=lease, timeout=seconds))
        if node is self._node:
            self._node_lease = lease

    async def _owner(self, key: str) -> tuple[Owner | None, int, int]:
        """The entry of an owner, the revision of its last change (0 if it is absent), and its lease."""
        found = (await self._ask(lambda member, seconds: member.kv.get(key, timeout=seconds))).kvs
        return (_decoded(found[0], Owner), found[0].mod_revision, found[0].lease) if found else (None, 0, 0)

    async def _change(self, key: str, revision: int, change: Any) -> bool:
        """Carry the change out if the key has not changed since. Return whether it was carried out."""
        same = Compare(result=Compare.EQUAL, target=Compare.MOD, key=key.encode(), mod_revision=revision)
        done = await self._ask(lambda member, seconds: member.kv.txn([same], [change], timeout=seconds))
        return bool(done.succeeded)

    async def _ask(self, call: Callable[[Member, float], Awaitable[T]]) -> T:
        try:
            return await self._members.ask(call)
        except CoordinatorError:
            self._lost.set()  # perhaps: the next renewal tells
            raise


def _entries(view: View) -> tuple[object, ...]:
    return view.nodes, view.owners, view.wanted, view.drained, view.zones


def _decoded(entry: Any, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(entry.value, type=kind)
    except (ValueError, RecursionError) as error:
        _log.warning("the coordinator's entry %r can't be read: %s", entry.key, error)
        return None
