"""The small data directories in `tests/data`: the code that made them, and a way to unpack them.

`data-directory-1.tar.gz` was made by `make` with the code of commit 4c9e2f7, and `data-directory-2.tar.gz`, where
blocks are compressed and tags in runs, by `make` and `fill_large` with that of 72b9148. They stay as they are: later
versions have to open what those versions wrote. `make` still runs, so that tests can compare the names that today's
code writes.
"""

import gzip
import io
import tarfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from topics_service.engine.batches import BatchRequest
from topics_service.engine.cluster import cluster_id
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DeleteRequest, TagMatch
from topics_service.engine.offsets.positions import CommitItem
from topics_service.engine.queue.jobs import ClaimRequest, SettleRequest
from topics_service.engine.router.router import PutRouterRequest, RouterConfig
from topics_service.storage import recordbatch
from topics_service.storage.rocks import RocksStore

KEPT: Final = Path(__file__).parents[1] / "data" / "data-directory-1.tar.gz"
KEPT_2: Final = KEPT.with_name("data-directory-2.tar.gz")
START: Final = 1_700_000_000_000
"""The time of the first write, in ms."""


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now


def make(directory: Path, fill_more: Callable[[Engine], None] = lambda _: None) -> None:
    """Write a data directory with every kind of row, and more, then close it."""
    store = RocksStore(directory, keep_log=True, boot_id="boot-1")
    clock, numbers = Clock(), count(1)
    engine = Engine(
        store,
        clock,
        boot_id="boot-1",
        new_id=lambda _: f"id-{next(numbers)}",
        random=lambda size: bytes(range(size)),
    )
    _fill(engine, clock)
    fill_more(engine)
    cluster_id(engine.writer)
    engine.sync()
    engine.close()
    store.close()


def fill_large(engine: Engine) -> None:
    """Write blocks of 8 KB that do not compress, of which the first ones are dead."""
    append, random = _appender(engine), Random(2)
    engine.put_topic("large", ConfigInput())
    engine.sync()
    for number in range(8):
        append("large", *(random.randbytes(4000) for _ in range(2)), kinds=b"\x01" * 2, tags=[b"t%d" % number] * 2)
    engine.delete_records(DeleteRequest(topic="large", before_seq=5))
    while engine.maintain():
        engine.sync()


def pack(directory: Path, archive: Path) -> None:
    """Pack a directory in a way that depends on its content only, without RocksDB's own log of messages."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in sorted(directory.rglob("*")):
            if file.name in ("LOG", "LOCK"):
                continue
            info = tar.gettarinfo(file, str(file.relative_to(directory)))
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            if file.is_file():
                with file.open("rb") as data:
                    tar.addfile(info, data)
            else:
                tar.addfile(info)
    archive.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


def unpack(directory: Path, kept: Path = KEPT) -> Path:
    """Unpack a kept directory into `directory`."""
    with tarfile.open(kept) as tar:
        tar.extractall(directory, filter="data")
    return directory


def _fill(engine: Engine, clock: Clock) -> None:
    append = _appender(engine)
    engine.put_topic("plain", ConfigInput(ttl_ms=0, cap_records=1000))
    engine.sync()
    append("plain", b'{"n":1}', b'{"n":2}', tags=[b"a", b"b"], nodes=[b"web-1", None], metas=[b'{"m":1}', None])
    append("plain", b'{"n":3}', b'{"n":4}', tags=[b"a", None])
    append("plain", b"\x00\x01", kinds=b"\x01", idempotency_key="once")
    engine.delete_records(DeleteRequest(topic="plain", match=TagMatch("Eq", b"b")))

    engine.put_topic("capped", ConfigInput(cap_records=2))
    engine.sync()
    append("capped", *(b"%d" % i for i in range(5)))

    engine.put_topic("synced", ConfigInput(durability="fsync"))
    engine.sync()
    append("synced", b'"durable"')

    engine.put_topic("parts", ConfigInput(retain_until_acked_by=("readers",)), partition_count=3)
    engine.sync()
    for partition in range(3):
        append("parts", *(b"%d" % i for i in range(partition + 1)), partition=partition)
    outcomes, _ = engine.groups.commit("readers", [CommitItem("parts", 2, 1, leader_epoch=4, metadata="note")])
    assert outcomes == [None], outcomes

    _fill_queue(engine, clock, append)

    engine.put_topic("from", ConfigInput())
    engine.sync()
    router = RouterConfig(source="from", dest="to", filter=TagMatch("Glob", b"x"), guarantee="exactly_once")
    engine.routers.put(PutRouterRequest(router="copier", config=router))
    engine.sync()
    append("from", b"1", b"2", tags=[b"x1", b"y"], metas=[b'{"k":"v"}', None])
    engine.sync()
    while engine.routers.forward():
        engine.sync()

    engine.put_topic("kafka", ConfigInput())
    engine.sync()
    builder = DefaultRecordBatchBuilder(2, 0, 0, engine.batches.producers.new_id()[0], 0, 0, 1 << 20)
    for i, (key, value) in enumerate([(b"key", b'{"v":1}'), (None, None), (b"\xff", b"\xfe")]):
        builder.append(i, START, key, value, [("h", b"1")] if i == 0 else [])
    engine.batches.append(_batch_request(bytes(builder.build())))

    engine.put_topic("small", ConfigInput())
    engine.sync()
    for i in range(300):
        append("small", b"%d" % i, tags=[b"odd" if i % 2 else b"even"])
    while engine.maintain():
        engine.sync()


def _fill_queue(engine: Engine, clock: Clock, append: Callable[..., None]) -> None:
    engine.put_topic(
        "jobs",
        ConfigInput(type="queue", lease_ms=60_000, max_deliveries=1, dead_letter="jobs-dead", leases_durable=True),
    )
    engine.sync()
    append("jobs", b"1", b"2", b"3")
    append("jobs", b"4", delay_ms=1000)
    append("jobs", b"5", priority=9)
    engine.sync()
    engine.queues.claim([ClaimRequest(topic="jobs", node="worker", max=3)])  # the 5th, 1st and 2nd
    engine.queues.settlement.ack(SettleRequest(topic="jobs", node="worker", seqs=[5]))
    engine.queues.settlement.nack(SettleRequest(topic="jobs", node="worker", seqs=[1], reasons=["no luck"]))
    engine.sync()
    clock.now += 10


def _appender(engine: Engine) -> Callable[..., None]:
    def append(
        topic: str,
        *datas: bytes,
        tags: list[bytes | None] | None = None,
        nodes: list[bytes | None] | None = None,
        metas: list[bytes | None] | None = None,
        kinds: bytes | None = None,
        partition: int = 0,
        idempotency_key: str | None = None,
        delay_ms: int = 0,
        priority: int = 0,
    ) -> None:
        batch = Batch(datas=list(datas), tags=tags, nodes=nodes, metas=metas, kinds=kinds)
        engine.append(
            AppendRequest(
                topic=topic,
                batch=batch,
                partition=partition,
                idempotency_key=idempotency_key,
                delay_ms=delay_ms,
                priority=priority,
            )
        )
        engine.sync()

    return append


def _batch_request(body: bytes) -> BatchRequest:
    return BatchRequest(topic="kafka", partition=0, header=recordbatch.check(body, max_bytes=1 << 20), body=body)
