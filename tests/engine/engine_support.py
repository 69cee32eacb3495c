"""What the engine's tests share: a clock that they move, stores that fail or crash, and a short way to call."""

from collections.abc import Sequence
from itertools import count, product
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from topics_service.engine import tagruns
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import (
    AppendReply,
    AppendRequest,
    Batch,
    ConfigInput,
    DeleteReply,
    DeleteRequest,
    DiffReply,
    DiffRequest,
    TagMatch,
    TopicState,
)
from topics_service.storage import keys
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family, StoreError, StoreStalledError, WriteBatch
from topics_service.storage.tagchunk import Chunk


def any_of(**fields: Sequence[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A choice for each field, as one draw: a draw costs more than most rules do."""
    combinations = list(product(*fields.values()))
    return st.sampled_from(combinations).map(lambda chosen: dict(zip(fields, chosen, strict=True)))


def run_machine(machine: type[RuleBasedStateMachine], examples: int, steps: int, *, derandomize: bool) -> None:
    """Run a state machine. A derandomized failure is told as it was found, and is not shrunk: that takes minutes, and
    the test's timeout would hide what failed."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            derandomize=derandomize,
            max_examples=examples,
            stateful_step_count=steps,
            phases=[Phase.generate] if derandomize else list(Phase),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


class FakeClock:
    """Time stands still until a test moves it."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        self.now += ms


class FaultyStore(MemoryStore):
    """Fails when told to: `stalled` and `broken` writes, `sync_broken` fsyncs."""

    def __init__(self) -> None:
        super().__init__()
        self.stalled = self.broken = self.sync_broken = False

    def write(self, batch: WriteBatch) -> None:
        if self.stalled:
            raise StoreStalledError("Write stall")
        if self.broken:
            raise StoreError("write failed: no space left")
        super().write(batch)

    def sync(self) -> None:
        if self.sync_broken:
            raise StoreError("fsync failed: input/output error")

    def rows(self) -> list[dict[bytes, bytes]]:
        return [dict(rows) for rows in self._rows]


class CrashStore(MemoryStore):
    """Remembers what a power cut may leave: the state at the last sync and every batch since."""

    def __init__(self) -> None:
        super().__init__()
        self._durable = MemoryStore()
        self._unsynced: list[WriteBatch] = []
        self.synced = 0

    @property
    def writes(self) -> int:
        """How many batches were ever written."""
        return self.synced + len(self._unsynced)

    def write(self, batch: WriteBatch) -> None:
        super().write(batch)
        self._unsynced.append(batch)

    def sync(self) -> None:
        self.sync_to(self.writes)

    def sync_to(self, writes: int) -> None:
        """Batches up to this number are durable."""
        done = writes - self.synced
        for batch in self._unsynced[:done]:
            self._durable.write(batch)
        del self._unsynced[:done]
        self.synced = writes

    def cut_power(self, writes: int) -> None:
        """Only the first `writes` batches, at least the synced ones, made it to the disk."""
        self.sync_to(writes)
        self._unsynced.clear()
        self._rows = [rows.copy() for rows in self._durable._rows]


Record = tuple[int, bytes]


class World:
    """An engine on a store, with the calls that tests make most."""

    def __init__(self, store: MemoryStore | None = None, **engine: Any) -> None:
        self.store = store or FaultyStore()
        self.clock = FakeClock()
        self.boots = count(2)
        self.options = {"boot_id": "boot-1", **engine}
        self.engine = self.start()

    def start(self) -> Engine:
        self.engine = Engine(self.store, self.clock, **self.options)
        return self.engine

    def restart(self) -> None:
        """A clean end and a new start."""
        self.engine.close()
        self.start()

    def kill(self) -> None:
        """SIGKILL: everything that was written is still there."""
        self.start()

    def cut_power(self, writes: int | None = None) -> None:
        """A power cut after this many batches (all that were synced if None), in a new boot of the machine."""
        assert isinstance(self.store, CrashStore)
        self.store.cut_power(self.store.synced if writes is None else writes)
        self.options["boot_id"] = f"boot-{next(self.boots)}"
        self.start()

    def put(self, topic: str = "t", *, sync: bool = True, **config: Any) -> int:
        _, ticket = self.engine.put_topic(topic, ConfigInput(**config))
        if sync:
            self.engine.sync()
        return ticket

    def append(
        self,
        *datas: bytes | int,
        topic: str = "t",
        tags: Sequence[bytes | None] | None = None,
        nodes: Sequence[bytes | None] | None = None,
        metas: Sequence[bytes | None] | None = None,
        sync: bool = True,
        **request: Any,
    ) -> AppendReply:
        """Append these records; an int stands for that many bytes of data."""
        return self.try_append(*datas, topic=topic, tags=tags, nodes=nodes, metas=metas, sync=sync, **request)[0]

    def try_append(
        self,
        *datas: bytes | int,
        topic: str = "t",
        tags: Sequence[bytes | None] | None = None,
        nodes: Sequence[bytes | None] | None = None,
        metas: Sequence[bytes | None] | None = None,
        sync: bool = False,
        **request: Any,
    ) -> tuple[AppendReply, int]:
        """The same, with the ticket."""
        batch = Batch(
            datas=[b"x" * data if isinstance(data, int) else data for data in datas],
            tags=None if tags is None else list(tags),
            nodes=None if nodes is None else list(nodes),
            metas=None if metas is None else list(metas),
        )
        reply, ticket = self.engine.append(AppendRequest(topic=topic, batch=batch, **request))
        if sync:
            self.engine.sync()
        return reply, ticket

    def delete(
        self, before: int | None = None, *, eq: bytes | None = None, glob: bytes | None = None, topic: str = "t"
    ) -> DeleteReply:
        match = TagMatch("Eq", eq) if eq is not None else TagMatch("Glob", glob) if glob is not None else None
        reply, _ = self.engine.delete_records(DeleteRequest(topic=topic, before_seq=before, match=match))
        self.engine.sync()
        return reply

    def diff(self, from_seq: int = 0, *, topic: str = "t", **request: Any) -> DiffReply:
        return self.engine.diff(DiffRequest(topic=topic, from_seq=from_seq, **request))

    def state(self, topic: str = "t") -> TopicState:
        return self.engine.get_topic(topic, touch=False)

    def seqs(self, topic: str = "t") -> list[int]:
        """The seqs that a reader from the beginning gets."""
        return [seq for seq, _ in self.walk(topic)]

    def walk(self, topic: str = "t", limit: int = 1000) -> list[Record]:
        """Every record that a reader from the beginning gets, page by page."""
        found: list[Record] = []
        cursor = 0
        while True:
            page = self.diff(cursor, topic=topic, limit=limit)
            found += records(page)
            assert page.next_from_seq > cursor or page.caught_up, "a reader gets on"
            cursor = page.next_from_seq
            if page.caught_up:
                return found

    def maintain(self) -> None:
        """All background work that is due."""
        for _ in range(100):
            if not self.engine.maintain():
                return
        raise AssertionError("maintenance never ends")

    def seal(self, topic: str = "t") -> None:
        """Seal what is there, whatever the thresholds."""
        self.engine.catalog.topics[topic].log.unsealed_blocks = 1 << 30
        self.engine._touched[self.engine.catalog.topics[topic].log.log_id] = self.engine.catalog.topics[topic].log
        self.maintain()

    def rows(self, family: Family) -> list[tuple[bytes, bytes]]:
        return list(self.store.scan(family, b"", b"\xff" * 40))


def records(page: DiffReply) -> list[Record]:
    """The (seq, data) of a page."""
    return [
        (part.block.base_seq + i, part.block.record_data(i))
        for part in page.slices
        for i in range(part.start, part.stop)
    ]


def seqs(page: DiffReply) -> list[int]:
    """The seqs of a page."""
    return [seq for seq, _ in records(page)]


def gap(page: DiffReply) -> tuple[int, int, str] | None:
    """The range and reason of a page's tombstone."""
    lost = page.tombstone
    return None if lost is None else (lost.gap_from, lost.gap_to, lost.reason)


def code(error: Any) -> str:
    """The error code of a caught TopicsError."""
    assert isinstance(error.value, TopicsError)
    return error.value.reason.code


def runs(world: World, topic: str = "t") -> list[tagruns.Run]:
    """The runs of the tag index on disk, in order."""
    return list(tagruns.runs(world.store, world.engine.catalog.topics[topic].log.log_id))


def tags_of(world: World, topic: str = "t") -> list[bytes]:
    """The tags in the chunks of those runs, in order within each; one with many positions comes more than once."""
    log_id = world.engine.catalog.topics[topic].log.log_id
    found: list[bytes] = []
    for base, level, _ in runs(world, topic):
        for _, value in world.store.scan(Family.TAGS, *keys.chunks(log_id, base, level)):
            chunk = Chunk(value)
            chunk.check()
            found += chunk.entries().tags
    return found
