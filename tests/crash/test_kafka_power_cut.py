"""Power cuts under Kafka producers and commits: see test_power_cut.py for how one is made.

A partition keeps a prefix of what was written to it, never other data at an offset that was acknowledged; what it knows
of its producers is exactly that prefix; and positions are as they were after one of the commits.
"""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from crash.kafka_oracle import (
    GROUP,
    LAST_SEQUENCE,
    Found,
    Place,
    Producer,
    Sent,
    answers_of,
    batches_of,
    commit_body,
    produce_body,
)
from crash.test_power_cut import FIRST_BOOT, TrackingStore, cut_copy, wal

from support.http import Api, ok
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_kafka.protocol import ApiKey
from topics_service.engine.batches import BatchRequest
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import ConfigInput
from topics_service.engine.offsets.positions import CommitItem
from topics_service.storage import recordbatch
from topics_service.storage.rocks import RocksStore

sys.path.append(str(Path(__file__).parents[1] / "kafka/data"))

from data_support import Broker

SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
OUT_OF_RANGE, OUT_OF_ORDER = 1, 45
KNOWN_BATCHES = 5  # of each producer

Positions = dict[Place, tuple[int, str]]  # offset and metadata


@dataclass
class LogModel:
    """What was written to one partition, in order, and how durable that is."""

    sent: list[Sent] = field(default_factory=list)
    acked_end: int = 0
    """After the last offset that was acknowledged."""
    durable_end: int = 0
    """After the last offset that a power cut must leave."""


@dataclass
class Model:
    """All that was written, and the positions after each commit; `durable_commits` of those must be left."""

    logs: dict[Place, LogModel]
    positions: list[Positions] = field(default_factory=lambda: [{}])
    durable_commits: int = 0

    def committed(self, offsets: dict[Place, int], metadata: str) -> None:
        """A commit was written."""
        given = {place: (offset, metadata) for place, offset in offsets.items()}
        self.positions.append(self.positions[-1] | given)


@asynccontextmanager
async def booted(data_dir: Path, boot_id: str) -> AsyncIterator[Broker]:
    """The handlers on a directory; it ends without closing, as in a crash."""
    store = RocksStore(data_dir)
    try:
        yield Broker(store, clock=SystemClock(), boot_id=boot_id)  # type: ignore[arg-type]
    finally:
        store.close()


async def check(broker: Broker, model: Model, rng: random.Random) -> int:
    """Compare what a cut left with what was written, retry what it took; returns how many batches survived."""
    survived = 0
    groups = broker.engine.groups
    found = {place: groups.position(GROUP, *place) for place in model.logs}
    positions = {place: (each.from_seq, each.metadata) for place, each in found.items() if each is not None}
    possible = model.positions[model.durable_commits :]
    assert positions in possible, f"committed is {positions}, not one of {possible}"
    for place, log in model.logs.items():
        survivors = await check_log(broker, place, log)
        survived += len(survivors)
        await check_retries(broker, place, survivors, log.sent[len(survivors) :], rng)
    return survived


async def check_log(broker: Broker, place: Place, log: LogModel) -> list[Sent]:
    """A prefix is left, with all that was durable, and the producers are those of the prefix; returns it."""
    found, head = await consume(broker, place)
    survivors, lost = log.sent[: len(found)], log.sent[len(found) :]
    about = f"{place}: {len(found)} of {len(log.sent)} batches, head {head}"
    assert found == [(sent.offset, sent.number, sent.records) for sent in survivors], about
    end = survivors[-1].end if survivors else 0
    assert end >= log.durable_end, f"{about}: durable up to {log.durable_end}"
    assert head >= log.acked_end, f"{about}: acknowledged up to {log.acked_end}"
    for offset in [offset for sent in lost for offset in (sent.offset, sent.end - 1) if offset is not None]:
        answer = await broker.fetch(offset, *place)
        batches = batches_of(answer["records"])
        assert not [batch for batch in batches if batch.records], f"{about}: data at {offset}, which is lost"
        if survivors and offset < head:
            assert answer["error_code"] == 0, about
            assert batches[-1].next_offset == head, f"{about}: a hole from {offset} to {batches}"
        else:
            assert answer["error_code"] == (0 if offset == head else OUT_OF_RANGE), f"{about}: {offset}, {answer}"
    known = {producer.producer_id: producer for producer in producers_of(broker, place)}
    assert known.keys() == {sent.number[0] for sent in survivors}, about
    for producer_id, producer in known.items():
        newest = [(*numbers(sent), (sent.offset or 0) + 1) for sent in newest_of(survivors, producer_id)]
        assert list(producer.batches) == newest, f"{about}: {producer}"
    return survivors


async def check_retries(
    broker: Broker, place: Place, survivors: Sequence[Sent], lost: Sequence[Sent], rng: random.Random
) -> None:
    """What survived is found again by its number; what is lost can be sent again in order, and goes behind the gap."""
    _, head = await consume(broker, place)
    for producer_id in {sent.number[0] for sent in survivors}:
        for sent in newest_of(survivors, producer_id):
            assert await produce(broker, sent) == (0, sent.offset), sent
    ids = list(dict.fromkeys(sent.number[0] for sent in lost))
    rng.shuffle(ids)
    again: list[Sent] = []
    for producer_id in ids:
        own = [sent for sent in lost if sent.number[0] == producer_id]
        if len(own) > 1 and own[1].number[2] and newest_of(survivors, producer_id):
            assert (await produce(broker, own[1]))[0] == OUT_OF_ORDER, own[1]
        for sent in own:
            code, offset = await produce(broker, sent)
            assert code == 0, sent
            assert offset == (again[-1].end if again else head), sent
            again.append(Sent(place, sent.number, sent.records, sent.body, offset))
        assert await produce(broker, own[-1]) == (0, again[-1].offset)
    found, end = await consume(broker, place)
    assert found == [(sent.offset, sent.number, sent.records) for sent in [*survivors, *again]]
    assert end == (again[-1].end if again else head)
    for sent in lost[:3]:  # a consumer that was told of it goes on behind the gap, with what is new there
        assert sent.offset is not None
        answer = await broker.fetch(sent.offset, *place)
        assert all(batch.offset >= head for batch in batches_of(answer["records"]) if batch.records), sent


async def consume(broker: Broker, place: Place) -> tuple[list[tuple[int, tuple[int, int, int], list[object]]], int]:
    """The batches that a consumer gets from the start, holes passed over, and the high watermark."""
    found: list[Found] = []
    name, partition = place
    position = (await broker.offsets(-2, name, partition))["offset"]
    while True:
        answer = await broker.fetch(position, *place)
        assert answer["error_code"] == 0, answer
        if position == answer["high_watermark"]:
            return [(batch.offset, batch.number, list(batch.records)) for batch in found], position
        start = position
        for batch in batches_of(answer["records"]):
            assert batch.offset >= position
            found += [batch] if batch.records else []
            position = batch.next_offset
        assert position > start, f"{place}: a consumer at {start} gets on"


async def produce(broker: Broker, sent: Sent) -> tuple[int, int]:
    """Error code and base offset."""
    answer = await broker.produce(sent.body, *sent.place)
    return answer["error_code"], answer["base_offset"]


def producers_of(broker: Broker, place: Place):
    name, partition = place
    return broker.engine.batches.producers.for_log(broker.engine.catalog.topics[name].partition(partition))


def newest_of(batches: Sequence[Sent], producer_id: int) -> list[Sent]:
    """The last five batches of the producer's newest epoch: those that a broker knows."""
    own = [sent for sent in batches if sent.number[0] == producer_id]
    return [sent for sent in own if sent.number[1] == own[-1].number[1]][-KNOWN_BATCHES:]


def numbers(sent: Sent) -> tuple[int, int]:
    """The first and last sequence number."""
    return sent.number[2], (sent.number[2] + len(sent.records) - 1) & LAST_SEQUENCE


# ------------------------------------------------------------------ the real process


async def test_cuts_after_a_synced_batch(tmp_path: Path) -> None:
    """Cuts of a server's log behind its last fsync: all of the `fsync` topic is there, a prefix of the other."""
    rng = random.Random(5)
    places = [(name, partition) for name in ("disk", "fsync") for partition in range(2)]
    model = Model({place: LogModel() for place in places})
    producers = [Producer(i, 0, rng) for i in range(1, 4)]
    with (
        ServerProcess(tmp_path / "server", kafka=True) as server,
        Api(server.base) as api,
        Wire(server.kafka_port) as wire,
    ):
        for name in ("disk", "fsync"):
            ok(api.send("PUT", f"/v0/topics/{name}", {"durability": name, "partition_count": 2}), 201)

        def write(among: Sequence[Place]) -> None:
            batches = [rng.choice(producers).batch(place, rng.choice((1, 3, 20))) for place in among]
            answers = answers_of(wire.call(ApiKey.PRODUCE, 9, **produce_body(batches)))
            for sent in batches:
                code, sent.offset = answers[sent.place]
                assert code == 0
                model.logs[sent.place].sent.append(sent)
                model.logs[sent.place].acked_end = sent.end

        def commit(among: Sequence[Place]) -> None:
            offsets = {place: rng.randint(0, model.logs[place].acked_end) for place in among}
            model.committed(offsets, f"note {len(model.positions)}")
            response = wire.call(ApiKey.OFFSET_COMMIT, 9, **commit_body(offsets, model.positions[-1][among[0]][1]))
            assert {each["error_code"] for topic in response["topics"] for each in topic["partitions"]} == {0}

        for _ in range(20):
            write(places)
        commit(places)
        synced_size = wal(server.data_dir).stat().st_size
        model.durable_commits = len(model.positions) - 1
        for log in model.logs.values():
            log.durable_end = log.acked_end
        torn = []  # within the last thing that a request wrote: that is all there or not at all
        for _ in range(30):
            write(places[:2])
            torn.append(wal(server.data_dir).stat().st_size - 1)
            commit(places[:2])
        server.signal(signal.SIGSTOP)
        end = wal(server.data_dir).stat().st_size
        assert end > synced_size
        survived = []
        anywhere = [rng.randrange(synced_size, end) for _ in range(4)]
        for cut in [synced_size, synced_size + 1, *rng.sample(torn, 4), *anywhere, end - 1, end]:
            copy = cut_copy(server.data_dir, tmp_path / "copy", cut)
            async with booted(copy, "another boot") as broker:
                survived.append(await check(broker, model, rng))
        assert (survived[0], survived[-1]) == (80, 140)
        assert any(80 < count < 140 for count in survived)
        server.signal(signal.SIGCONT)
        assert server.stop() == 0


# --------------------------------------------------------------------- random histories


class History:
    """Random calls of producers and groups on an engine whose log is synced at times."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.store = TrackingStore(path)
        self.engine = Engine(self.store, SystemClock(), boot_id=FIRST_BOOT)
        self.classes = {"disk": "disk", "fsync": "fsync", "changing": "disk"}
        self.model = Model({(name, partition): LogModel() for name in self.classes for partition in range(2)})
        self.places = list(self.model.logs)
        for name, durability in self.classes.items():
            self.engine.put_topic(name, ConfigInput(durability=durability), 2)
        self.engine.sync()
        self.producers = [Producer(self.engine.batches.producers.new_id()[0], 0, self.rng) for _ in range(4)]
        self.pending: list[tuple[int, LogModel, int]] = []
        self.commits: list[tuple[int, int]] = []
        self.torn = 0  # a size that cuts off the end of the last batch

    def step(self) -> None:
        self.rng.choice([*[self.write] * 10, self.retry, self.commit, self.commit, self.renew, self.sync, self.maintain,
                         self.configure])()  # fmt: skip

    def write(self) -> None:
        place = self.rng.choice(self.places)
        sent = self.rng.choice(self.producers).batch(place, self.rng.choice((1, 1, 3, 10, 70)))
        sent.offset = self._append(sent, deduped=False)
        self.torn = wal(self.path).stat().st_size - 1
        self.model.logs[place].sent.append(sent)

    def retry(self) -> None:
        place = self.rng.choice(self.places)
        sent = self.model.logs[place].sent
        for producer_id in {each.number[0] for each in sent[-20:]}:
            again = self.rng.choice(newest_of(sent, producer_id))
            if any(again.number[:2] == (each.producer_id, each.epoch) for each in self.producers):
                assert self._append(again, deduped=True) == again.offset

    def _append(self, sent: Sent, *, deduped: bool) -> int:
        header = recordbatch.check(sent.body, max_bytes=1 << 20)
        name, partition = sent.place
        request = BatchRequest(topic=name, partition=partition, header=header, body=sent.body)
        reply, ticket = self.engine.batches.append(request)
        assert reply.deduped == deduped
        log, end = self.model.logs[sent.place], reply.first_seq - 1 + len(sent.records)
        if ticket > self.engine.writer.synced:
            self.pending.append((ticket, log, end))
        else:
            log.acked_end = max(log.acked_end, end)
        return reply.first_seq - 1

    def renew(self) -> None:
        """A new epoch, as after an error that a client can't tell the outcome of."""
        producer = self.rng.choice(self.producers)
        producer.epoch, producer.sequences = producer.epoch + 1, {}

    def commit(self) -> None:
        places = self.rng.sample(self.places, self.rng.choice((1, 2, 6)))
        offsets = {place: self.rng.randint(0, self.model.logs[place].acked_end) for place in places}
        self.model.committed(offsets, f"note {len(self.model.positions)}")
        items = [
            CommitItem(*place, offset, metadata=self.model.positions[-1][place][1]) for place, offset in offsets.items()
        ]
        outcomes, ticket = self.engine.groups.commit(GROUP, items)
        assert not any(outcomes)
        if any(self.classes[name] == "fsync" for name, _ in places):
            assert ticket > self.engine.writer.synced
            self.commits.append((ticket, len(self.model.positions) - 1))

    def configure(self) -> None:
        self.classes["changing"] = durability = self.rng.choice(("disk", "fsync", "ephemeral"))
        self.engine.put_topic("changing", ConfigInput(durability=durability))
        self.sync()

    def sync(self) -> None:
        self.engine.sync()
        for ticket, log, end in self.pending:
            assert ticket <= self.engine.writer.synced
            log.acked_end = max(log.acked_end, end)
        assert all(ticket <= self.engine.writer.synced for ticket, _ in self.commits)
        self.pending, self.commits = [], []
        self.model.durable_commits = len(self.model.positions) - 1
        for (name, _), log in self.model.logs.items():
            if self.classes[name] != "ephemeral" and log.sent:
                log.durable_end = log.sent[-1].end

    def maintain(self) -> None:
        while self.engine.maintain():
            pass
        self.engine.sweep()

    def cut(self, to: Path) -> Path:
        """A copy after a power cut, of what was synced and perhaps more."""
        size, synced = wal(self.path).stat().st_size, self.store.synced_size
        anywhere = self.rng.randint(synced, size)
        torn = self.torn if synced <= self.torn < size else anywhere
        return cut_copy(self.path, to, self.rng.choice((synced, anywhere, torn, size)))


@pytest.mark.parametrize("seed", range(2))
async def test_random_kafka_histories(tmp_path: Path, seed: int) -> None:
    await run_history(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="TOPICS_SOAK_SECONDS says for how long")
@pytest.mark.timeout(SOAK_SECONDS + 120)
async def test_random_kafka_histories_soak(tmp_path: Path) -> None:
    end = time.monotonic() + SOAK_SECONDS
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    while time.monotonic() < end:
        print(f"TOPICS_SOAK_SEED={seed}")
        await run_history(tmp_path / str(seed), seed)
        shutil.rmtree(tmp_path / str(seed))
        seed += 1


async def run_history(path: Path, seed: int) -> None:
    """Calls and cuts, in an order that the seed decides."""
    history = History(path / "data", seed)
    for _ in range(4):
        for _ in range(history.rng.randrange(5, 80)):
            history.step()
        async with booted(history.cut(path / "copy"), "second boot") as broker:
            await check(broker, history.model, history.rng)
        async with booted(path / "copy", "third boot") as broker:  # and that state is a good one to go on from
            for place in history.places:
                assert await consume(broker, place)
    history.store.close()
