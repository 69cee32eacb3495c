"""Clients whose work spans shards: dead letters, retention that waits for a group, a watch of topics of many shards."""

from collections.abc import Sequence
from typing import Any, Final

from cluster.clients import (
    PARTITIONS,
    PAUSE,
    READINGS,
    STREAM,
    Actor,
    Addresses,
    HttpActor,
    KafkaProducer,
    SdkProducer,
    sdk_client,
)
from cluster.everyone import Everyone

from support.http import Api, ok

BROKEN, LETTERS, LEDGER, BOOKING, NOTES = "broken", "broken:dead", "ledger", "booking", "note-"
LEDGER_PARTITIONS: Final = 3
CAP: Final = 100
"""Records that a partition of LEDGER keeps, where the group does not hold more."""
TOPICS: Final = 12
"""Of the prefix NOTES."""


def everyone(others: Everyone) -> list[Actor]:
    """All clients here, with their topics, beside the others."""
    nodes, seconds = others.nodes, others.seconds
    with Api(f"http://{nodes[0].http}") as api:
        ok(api.put(LETTERS, type="queue", durability="fsync"), 201)
        ok(api.put(BROKEN, type="queue", durability="fsync", max_deliveries=2, dead_letter=LETTERS), 201)
        config = {"partition_count": LEDGER_PARTITIONS, "cap_records": CAP, "retain_until_acked_by": [BOOKING]}
        ok(api.put(LEDGER, durability="fsync", **config), 201)
    jobs, ledger, notes = BrokenJobs(nodes, seconds), Ledger(nodes, seconds), Notes(nodes, seconds)
    readers = [Refuser(nodes, seconds, jobs), Bookkeeper(nodes, seconds, ledger)]
    return [jobs, ledger, notes, *readers, SdkWatcher(nodes, notes, others.sdk, others.producer)]


class BrokenJobs(HttpActor):
    """Appends jobs that no worker can do."""

    writes = True

    def __init__(self, nodes: Sequence[Addresses], seconds: float) -> None:
        super().__init__("writer of broken jobs", nodes, 0, seconds)
        self.jobs = 0

    def work(self) -> None:
        while not self.stopping.wait(5 * PAUSE):
            body = {"records": [{"data": {"n": self.jobs}}], "idempotency_key": f"broken {self.jobs}"}
            self.calls.until_done("POST", f"/v0/topics/{BROKEN}", body)
            self.jobs += 1

    @property
    def done(self) -> int:
        return self.jobs


class Refuser(HttpActor):
    """Claims the jobs of BROKEN and gives each back, until it is a dead letter in another shard: once."""

    def __init__(self, nodes: Sequence[Addresses], seconds: float, jobs: BrokenJobs) -> None:
        super().__init__("refuser of jobs", nodes, 1, seconds)
        self._jobs = jobs
        self.refused = 0

    def work(self) -> None:
        while not self.stopping.is_set():
            claim = {"node": self.name, "max": 8, "lease_ms": 3000, "wait_ms": 200}
            reply = self.calls.once("POST", f"/v0/topics/{BROKEN}/claim", claim)
            if reply is not None and reply["claimed"]:
                jobs = reply["claimed"]
                nack = {"node": self.name, "seqs": [job["$seq"] for job in jobs]}
                nack["lease_ids"] = [job["lease_id"] for job in jobs]
                if self.calls.once("POST", f"/v0/topics/{BROKEN}/nack", nack) is not None:
                    self.refused += len(jobs)
            self.stopping.wait(PAUSE)

    @property
    def done(self) -> int:
        return self.refused

    def is_at_end(self, api: Api) -> bool:
        return bool(api.state(BROKEN)["count"] == 0 and api.state(LETTERS)["head_seq"] >= self._jobs.jobs)

    def compare(self, apis: Sequence[Api]) -> None:
        for api in apis:
            numbers = [record["data"]["n"] for record in api.read_all(LETTERS)]
            assert sorted(numbers) == list(range(self._jobs.jobs)), f"dead letters at {api.base}"


class Ledger(HttpActor):
    """Appends to the partitions of LEDGER under keys. A full one is written again once the group has read on."""

    writes = True

    def __init__(self, nodes: Sequence[Addresses], seconds: float) -> None:
        super().__init__("writer of the ledger", nodes, 2, seconds)
        self.calls.retriable |= {422}  # topic_full
        self.sent = [0] * LEDGER_PARTITIONS

    def work(self) -> None:
        while not self.stopping.wait(PAUSE):
            for partition, sent in enumerate(self.sent):
                records = [{"data": {"partition": partition, "n": n}} for n in range(sent, sent + 4)]
                body = {"records": records, "partition": partition, "idempotency_key": f"{partition} {sent}"}
                self.calls.until_done("POST", f"/v0/topics/{LEDGER}", body)
                self.sent[partition] += len(records)

    @property
    def done(self) -> int:
        return sum(self.sent)


class Bookkeeper(HttpActor):
    """Reads all of LEDGER in the group for which it is retained: nothing may be missing."""

    def __init__(self, nodes: Sequence[Addresses], seconds: float, ledger: Ledger) -> None:
        super().__init__("reader of the ledger", nodes, 0, seconds)
        self._ledger = ledger
        self.read = [0] * LEDGER_PARTITIONS

    def work(self) -> None:
        while not self.stopping.wait(PAUSE):
            for partition in range(LEDGER_PARTITIONS):
                self._turn(partition)

    def _turn(self, partition: int) -> None:
        ask = {"topic": LEDGER, "partition": partition, "limit": CAP}
        page = self.calls.once("POST", f"/v0/groups/{BOOKING}/consume", ask)
        if page is None or not page["records"]:
            return
        assert page["tombstone"] is None, f"retained, and lost: {page['tombstone']}"
        start = page["records"][0]["data"]["n"]
        numbers = [record["data"]["n"] for record in page["records"]]
        assert numbers == list(range(start, start + len(numbers)))
        assert start <= self.read[partition], f"partition {partition}: {start} where {self.read[partition]} is next"
        self.read[partition] = max(self.read[partition], start + len(numbers))
        commit = {"topic": LEDGER, "partition": partition, "from_seq": page["next_from_seq"]}
        self.calls.once("POST", f"/v0/groups/{BOOKING}/commit", commit)

    @property
    def done(self) -> int:
        return sum(self.read)

    def is_at_end(self, api: Api) -> bool:
        return self.read == self._ledger.sent

    def compare(self, apis: Sequence[Api]) -> None:
        for api in apis:
            for partition, sent in enumerate(self._ledger.sent):
                assert api.read(LEDGER, max(0, sent - 1), partition=partition)["head_seq"] == sent, api.base


class Notes(HttpActor):
    """Makes the topics of the prefix NOTES one after the other, in all shards, and appends to them in turns."""

    writes = True

    def __init__(self, nodes: Sequence[Addresses], seconds: float) -> None:
        super().__init__("writer of notes", nodes, 1, seconds)
        self.sent = 0

    def work(self) -> None:
        while not self.stopping.wait(3 * PAUSE):
            body = {"records": [{"data": {"n": self.sent}}], "idempotency_key": f"note {self.sent}"}
            body["config"] = {"durability": "fsync"}
            self.calls.until_done("POST", f"/v0/topics/{NOTES}{self.sent % TOPICS}", body)
            self.sent += 1

    @property
    def done(self) -> int:
        return self.sent


class SdkWatcher(Actor):
    """Follows topics of all shards on one stream of the Python SDK, some by prefix, each partition in order."""

    def __init__(
        self, nodes: Sequence[Addresses], notes: Notes, readings: SdkProducer, producer: KafkaProducer
    ) -> None:
        super().__init__("gRPC watcher")
        self._notes, self._readings, self._producer = notes, readings, producer
        self.seen: dict[tuple[str, int], list[Any]] = {}
        self._client = sdk_client(nodes)

    def work(self) -> None:
        with self._client:
            stream = self._client.watch([f"{NOTES}*", READINGS, *(f"{STREAM}@{n}" for n in range(PARTITIONS))])
            self.on_finish = stream.close
            for record in stream:
                seen = self.seen.setdefault((record.topic, record.partition), [])
                # Offsets of Kafka begin at 0, and seqs at 1.
                assert record.seq == len(seen) + 1, f"{record.topic} {record.partition}: {record.seq} after {len(seen)}"
                seen.append(record.value["n"])

    @property
    def done(self) -> int:
        return sum(map(len, self.seen.values()))

    def _expected(self) -> dict[tuple[str, int], list[Any]]:
        notes = {(f"{NOTES}{n}", 0): list(range(n, self._notes.sent, TOPICS)) for n in range(TOPICS)}
        stream = {(STREAM, partition): list(range(sent)) for partition, sent in enumerate(self._producer.sent)}
        return notes | stream | {(READINGS, 0): list(range(self._readings.sent))}

    def is_at_end(self, api: Api) -> bool:
        return self.done >= sum(map(len, self._expected().values()))

    def compare(self, apis: Sequence[Api]) -> None:
        assert self.seen == {key: datas for key, datas in self._expected().items() if datas}
        for api in apis:
            listed = {each["topic"] for each in api.listing(prefix=NOTES, limit=100)["topics"]}
            assert listed == {topic for topic, _ in self.seen if topic.startswith(NOTES)}, api.base
