"""A Bucket and a Coordinator in memory, for tests and the simulation: a cluster within one event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from topics_cluster.bucket import ObjectEntry
from topics_cluster.coordinator import CoordinatorError, Node, Owner, View, boottime

Clock = Callable[[], float]


class MemoryBucket:
    """A Bucket of one process. `clock` gives the times of its objects, in seconds."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[bytes, float]] = {}

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        """See Bucket."""
        if name in self._objects:
            return False
        self._objects[name] = b"".join(parts), self._clock()
        return True

    async def get(self, name: str) -> bytes | None:
        """See Bucket."""
        found = self._objects.get(name)
        return found[0] if found else None

    async def list(self, prefix: str, after: str = "", before: str = "") -> Sequence[ObjectEntry]:
        """See Bucket."""
        found = sorted(
            name for name in self._objects if name.startswith(prefix) and name > after and (not before or name < before)
        )
        return [ObjectEntry(name, len(self._objects[name][0]), self._objects[name][1]) for name in found]

    async def delete(self, names: Iterable[str]) -> None:
        """See Bucket."""
        for name in names:
            self._objects.pop(name, None)

    async def put_file(self, name: str, source: Path) -> None:
        """See Bucket."""
        self._objects[name] = await asyncio.to_thread(source.read_bytes), self._clock()

    async def get_file(self, name: str, target: Path) -> bool:
        """See Bucket."""
        found = self._objects.get(name)
        if found is None:
            return False
        with target.open("xb") as file:
            file.write(found[0])
        return True

    async def close(self) -> None:
        """See Bucket."""


class Lease:
    """The lease of a session: renewed at every moment until it is `cut`, and ended when its `seconds` have passed."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._ends: float | None = None

    @property
    def ends(self) -> float:
        """The time at which it ends unless it is renewed after now, by the clock."""
        return self._ends if self._ends is not None else self._clock() + self._seconds

    @property
    def holds(self) -> bool:
        """True unless it has ended."""
        return self._clock() < self.ends

    def cut(self) -> None:
        """Renew it no more."""
        self._ends = self.ends

    def mend(self) -> None:
        """Renew it again, if it holds."""
        if self.holds:
            self._ends = None

    def revoke(self) -> None:
        """End it now."""
        self._ends = -1.0


class MemoryEntries:
    """The entries of all nodes, as an etcd would keep them. `clock` is that of the leases, in seconds."""

    def __init__(self, clock: Clock = boottime) -> None:
        self.clock: Final = clock
        self.nodes: dict[str, tuple[Node, Lease]] = {}
        self.owners: dict[int, tuple[Owner, Lease]] = {}
        self.wanted: dict[int, str] = {}
        self.drained: set[str] = set()
        self.zones: dict[int, str] = {}
        self._revision = 1
        self._changed = asyncio.Event()

    def view(self) -> View:
        """The entries whose leases hold."""
        nodes = {name: entry for name, entry in self.nodes.items() if entry[1].holds}
        owners = {shard: entry for shard, entry in self.owners.items() if entry[1].holds}
        if len(nodes) + len(owners) < len(self.nodes) + len(self.owners):
            self.nodes, self.owners = nodes, owners
            self.touch()
        return View(
            revision=self._revision,
            nodes={name: node for name, (node, _) in nodes.items()},
            owners={shard: owner for shard, (owner, _) in owners.items()},
            wanted=dict(self.wanted),
            drained=frozenset(self.drained),
            zones=dict(self.zones),
        )

    def touch(self) -> None:
        """Note a change, and wake all that wait for one."""
        self._revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def empty(self) -> None:
        """Lose all entries and leases, as an etcd that lost its disk."""
        for _, lease in [*self.nodes.values(), *self.owners.values()]:
            lease.revoke()
        self.wanted.clear()
        self.drained.clear()
        self.zones.clear()
        self.view()
        self._revision = 1

    async def changed(self) -> None:
        """Wait until a change, or until a lease may have ended."""
        ends = min((lease.ends for _, lease in [*self.nodes.values(), *self.owners.values()]), default=None)
        waiting = asyncio.create_task(self._changed.wait())
        await asyncio.wait([waiting], timeout=None if ends is None else max(0.0, ends - self.clock()))
        waiting.cancel()


class MemoryCoordinator:
    """The Coordinator of one node; those of all nodes share `entries`."""

    def __init__(self, entries: MemoryEntries) -> None:
        self._entries = entries
        self._sessions: list[MemorySession] = []
        self._reachable = True

    @property
    def reachable(self) -> bool:
        """True while this node reaches the entries; else its calls fail and its leases are not renewed."""
        return self._reachable

    @reachable.setter
    def reachable(self, reachable: bool) -> None:
        self._reachable = reachable
        self._entries.view()  # without what has ended by now
        for session in self._sessions:
            session.reached(reachable)
        self._entries.touch()

    async def session(self, seconds: float) -> "MemorySession":
        """See Coordinator."""
        self.reach()
        made = MemorySession(self, self._entries, seconds)
        self._sessions.append(made)
        return made

    async def view(self) -> View:
        """See Coordinator."""
        self.reach()
        return self._entries.view()

    async def watch(self) -> AsyncIterator[View]:
        """See Coordinator."""
        seen: View | None = None
        while True:
            if self._reachable and (view := self._entries.view()) != seen:
                yield view
                seen = view
            else:
                await self._entries.changed()

    async def want(self, shard: int, node: str | None) -> None:
        """See Coordinator."""
        self.reach()
        if node is None:
            self._entries.wanted.pop(shard, None)
        else:
            self._entries.wanted[shard] = node
        self._entries.touch()

    async def drain(self, node: str, *, is_drained: bool) -> None:
        """See Coordinator."""
        self.reach()
        (self._entries.drained.add if is_drained else self._entries.drained.discard)(node)
        self._entries.touch()

    async def prefer(self, shard: int, zone: str | None) -> None:
        """See Coordinator."""
        self.reach()
        if zone is None:
            self._entries.zones.pop(shard, None)
        else:
            self._entries.zones[shard] = zone
        self._entries.touch()

    async def close(self) -> None:
        """See Coordinator."""
        for session in self._sessions:
            await session.close()

    def reach(self) -> None:
        """Raise CoordinatorError while the entries can't be reached."""
        if not self._reachable:
            raise CoordinatorError("the coordinator does not answer")


class MemorySession:
    """A Session of a MemoryCoordinator."""

    def __init__(self, coordinator: MemoryCoordinator, entries: MemoryEntries, seconds: float) -> None:
        self._coordinator = coordinator
        self._entries = entries
        self._seconds = seconds
        self._lease = Lease(entries.clock, seconds)
        self._node: Node | None = None
        self._claims: dict[int, Lease] = {}

    @property
    def valid_until(self) -> float:
        """See Session."""
        self._renew()
        return min((lease.ends for lease in self._claims.values()), default=self._lease.ends)

    def holds_until(self, shard: int) -> float:
        """See Session."""
        self._renew()
        return self._claims.get(shard, self._lease).ends

    async def register(self, node: Node) -> None:
        """See Session."""
        self._coordinator.reach()
        self._renew()
        self._node = node
        self._entries.nodes[node.name] = node, self._lease
        self._entries.touch()

    async def claim(self, shard: int, seen: Owner | None, mine: Owner) -> bool:
        """See Session."""
        self._coordinator.reach()
        self._renew()
        found = self._entries.view().owners.get(shard)
        if found != seen and found != mine:
            return False
        self._entries.owners[shard] = mine, self._lease
        self._claims[shard] = self._lease
        self._entries.touch()
        return True

    async def give_up(self, shard: int, mine: Owner) -> None:
        """See Session."""
        self._claims.pop(shard, None)
        self._coordinator.reach()
        if self._entries.view().owners.get(shard) == mine:
            del self._entries.owners[shard]
            self._entries.touch()

    async def close(self) -> None:
        """See Session."""
        self._lease.revoke()
        self._entries.view()

    def reached(self, reachable: bool) -> None:
        """Take note of whether the node reaches the entries."""
        if reachable:
            self._lease.mend()
            self._renew()
        else:
            self._lease.cut()

    def _renew(self) -> None:
        if not self._lease.holds and self._coordinator.reachable:
            self._lease = Lease(self._entries.clock, self._seconds)
            if self._node is not None:
                self._entries.nodes[self._node.name] = self._node, self._lease
                self._entries.touch()
