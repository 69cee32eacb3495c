"""The directory of a server that was killed under mixed load, with several write-ahead logs that are needed; and what
it had acknowledged."""

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from support.server import ServerProcess
from topics_client import TopicConfig, TopicsClient
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, DiffRequest
from topics_service.storage import manifest
from topics_service.storage.boot import boot_id
from topics_service.storage.rocks import RocksStore
from topics_service.storage.wal.archive import numbered

MEMORY = 32 << 20  # write buffers of 8 MiB: a new log every few hundred writes
SMALL = "disk", "fsync", "memory", "quiet"


class Killed(NamedTuple):
    """The directory, and by topic the data of its acknowledged records, from seq 1 on."""

    path: Path
    acked: Mapping[str, list[bytes]]

    @property
    def logs(self) -> list[Path]:
        """The logs that a start needs, oldest first."""
        first = manifest.read(self.path).first_log
        return [path for number, path in sorted(numbered(self.path)) if number >= first]


def make_killed(work_dir: Path, *, classes: Mapping[str, str] | None = None) -> Killed:
    """Make one: appends to topics of all classes that keep their records over a kill, and large ones besides."""
    server = ServerProcess(work_dir, env={"TOPICS_MEMORY_BYTES": MEMORY}).start()
    source = random.Random(5)
    acked: dict[str, list[bytes]] = {name: [] for name in (*SMALL, "large")}

    def append(client: TopicsClient, topic: str, *datas: bytes) -> None:
        client.append_many(topic, datas)
        acked[topic] += datas

    with TopicsClient(server.grpc_target) as client:
        for name in acked:
            durability = (classes or {}).get(name, name if name in ("fsync", "memory") else "disk")
            client.put_topic(name, TopicConfig(durability=durability))
        append(client, "quiet", *(b"quiet %d" % number for number in range(20)))
        for number in range(900):
            name = source.choice(("disk", "memory", "fsync")) if number % 10 else "fsync"
            append(client, name, *(source.randbytes(source.randrange(1, 60)) for _ in range(source.randrange(1, 4))))
            if number % 3 == 0:
                append(client, "large", source.randbytes(source.choice((9000, 33_000))))
        for number in range(20):  # not synced
            append(client, "disk", b"last %d" % number)
        server.kill()
    return Killed(server.data_dir, acked)


def started(directory: Path, boot: str | None = None) -> tuple[RocksStore, Engine]:
    """As a server starts on it. Raises StoreOpenError."""
    boot = boot_id() if boot is None else boot
    store = RocksStore(directory, write_buffer_bytes=MEMORY, boot_id=boot)
    try:
        return store, Engine(store, SystemClock(), boot_id=boot)
    except BaseException:
        store.close()
        raise


def check(engine: Engine, acked: Mapping[str, list[bytes]], *, lost: bool) -> dict[str, int]:
    """Every acknowledged record is there, or (if some may be `lost`) in a reported gap; no seq is given again.
    Returns how many are lost by topic."""
    missing = {}
    for topic, datas in acked.items():
        if topic not in engine.catalog.topics:
            assert lost, f"{topic} is gone"
            continue
        found, gaps, cursor = {}, [], 0
        while True:
            page = engine.diff(DiffRequest(topic=topic, from_seq=cursor, limit=1000))
            for part in page.slices:
                for i in range(part.start, part.stop):
                    found[part.block.base_seq + i] = bytes(part.block.record_data(i))
            if page.tombstone is not None:
                gaps.append((page.tombstone.gap_from, page.tombstone.gap_to))
            cursor = page.next_from_seq
            if page.caught_up:
                break
        for seq, data in enumerate(datas, 1):
            if seq in found:
                assert found[seq] == data, f"{topic} {seq} is another"
            else:
                assert lost, f"{topic} {seq} is gone"
                assert any(first <= seq <= last for first, last in gaps), f"{topic} {seq} is gone without a gap"
        assert max(found, default=0) <= len(datas) + 4, topic  # one that was under way
        reply, _ = engine.append(AppendRequest(topic=topic, batch=Batch(datas=[b"more"])))
        assert reply.first_seq > len(datas), f"{topic} {reply.first_seq} is given again"
        missing[topic] = len(datas) - len(found.keys() & set(range(1, len(datas) + 1)))
    return missing


def copied(killed: Killed, to: Path, harm: Callable[[list[Path]], object]) -> Path:
    """A copy with something done to the logs that are needed."""
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(killed.path, to, ignore=shutil.ignore_patterns("LOCK", "checkpoints"))
    harm([to / path.name for path in killed.logs])
    return to
