"""All clients at once, and the comparison of what each protocol has afterwards."""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import confluent_kafka as kafka
from cluster.clients import (
    COPIES,
    EVENTS,
    JOBS,
    MAILS,
    PARTITIONS,
    PATIENCE,
    READINGS,
    STREAM,
    WORKERS,
    Actor,
    Addresses,
    GroupMember,
    KafkaProducer,
    KeyedWriter,
    SdkProducer,
    TableWriter,
    Watcher,
    Worker,
    silent,
)

from support.http import Api, ok
from support.sql import Sql
from support.waiting import poll
from topics_client import TopicsClient


class Everyone:
    """All clients at once."""

    def __init__(
        self,
        nodes: Sequence[Addresses],
        *,
        seconds: float = 20,
        sdk_nodes: int = 1,
        others: "Callable[[Everyone], Sequence[Actor]]" = lambda everyone: (),
    ) -> None:
        """Make the topics. One node at least must serve.

        An HTTP call that takes longer than `seconds` is given up. The SDK's producer knows `sdk_nodes` of the nodes.
        `others` are further clients.
        """
        self.nodes = nodes
        self.seconds = seconds
        bootstrap = ",".join(node.kafka for node in nodes)
        with Api(f"http://{nodes[0].http}") as api:
            for name in (EVENTS, COPIES, READINGS):
                ok(api.put(name, durability="fsync"), 201)
            ok(api.put(STREAM, durability="fsync", partition_count=PARTITIONS), 201)
            ok(api.put(JOBS, type="queue", durability="fsync"), 201)
            router = {"source": EVENTS, "dest": COPIES, "guarantee": "exactly_once"}
            ok(api.send("PUT", "/v0/routers/copy", router), 201)
            for statement in (
                "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name TEXT) WITH (durability = 'fsync')",
                "CREATE TOPIC shop.changes WITH (durability = 'fsync')",
                "ALTER TOPIC shop.changes ADD SOURCE shop.orders ON INSERT WITH (payload = 'full')",
            ):
                Sql(api).run(statement)
        acked: dict[int, float] = {}
        self.consumed: dict[tuple[int, int], Any] = {}
        self.writers = [KeyedWriter(number, nodes, seconds) for number in range(2)]
        self.workers = [Worker(number, nodes, acked, seconds) for number in range(WORKERS)]
        self.watcher = Watcher(nodes, seconds)
        self.producer = KafkaProducer(bootstrap)
        self.members = [GroupMember(number, bootstrap, self.consumed) for number in range(2)]
        self.table = TableWriter(nodes, seconds)
        self.sdk = SdkProducer(nodes[:sdk_nodes])
        own = [*self.writers, self.producer, self.sdk, self.table, *self.workers, self.watcher, *self.members]
        self.actors: list[Actor] = [*own, *others(self)]

    def start(self) -> None:
        for actor in self.actors:
            actor.start()

    def check(self) -> None:
        """Raise what one of them has met."""
        for actor in self.actors:
            if actor.failure is not None:
                raise AssertionError(f"{actor.name} failed") from actor.failure

    def wait_for_progress(self, seconds: float) -> None:
        """Everyone that writes or reads does something new: AssertionError names those that don't."""
        before = {actor.name: actor.done for actor in self.actors}
        # Members of a group may have no partition, and a worker no job: one of each is enough.
        alike: Callable[[str], str] = lambda name: name.rstrip(" 0123456789")  # noqa: E731
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            moved = {alike(actor.name) for actor in self.actors if actor.done > before[actor.name]}
            stuck = {alike(name) for name in before} - moved
            if not stuck:
                return
            assert time.monotonic() < deadline, f"nothing new in {seconds} s: {sorted(stuck)}"
            time.sleep(0.01)

    def pause_around(self, moment: float) -> float:
        """The longest time of a writer between two acknowledgements that ends behind `moment`, in seconds; waits for
        one of each writer."""
        poll(lambda: all(writer.times[-1:] >= [moment] for writer in self.writers), PATIENCE, "acknowledgements")
        pauses = []
        for writer in self.writers:
            earlier, times = ([t for t in writer.times if (t >= moment) is later] for later in (False, True))
            pauses += [b - a for a, b in zip(earlier[-1:] + times, times, strict=False)]
        return max(pauses)

    def end(self) -> None:
        """Stop those that write, wait until the others have everything, and stop them too."""
        for actor in self.actors:
            if actor.writes:
                actor.finish()
        heads = {EVENTS: self._heads(EVENTS), COPIES: self._heads(EVENTS)}
        late: Callable[[], str] = lambda: f"the readers are not at the end: {self}"  # noqa: E731
        poll(lambda: self._settled(heads), PATIENCE, late, pause=0.1)
        for actor in self.actors:
            if not actor.writes:
                actor.finish()

    def _heads(self, topic: str) -> int:
        with Api(f"http://{self.nodes[0].http}") as api:
            return int(api.state(topic)["head_seq"])

    def _settled(self, heads: dict[str, int]) -> bool:
        self.check()
        with Api(f"http://{self.nodes[0].http}") as api:
            jobs = api.state(JOBS)["count"]
            if not all(actor.is_at_end(api) for actor in self.actors):
                return False
        watched = all(len(self.watcher.seen[name]) == head for name, head in heads.items())
        return jobs == 0 and watched and len(self.consumed) == sum(self.producer.sent)

    def compare(self) -> None:
        """Every record is there once and in order, on every protocol and at every node."""
        written = [self.writers[number].batches * 3 for number in range(len(self.writers))]
        with contextlib.ExitStack() as stack:
            apis = [stack.enter_context(Api(f"http://{node.http}")) for node in self.nodes]
            events = [record["data"] for record in apis[0].read_all(EVENTS)]
            for number, count in enumerate(written):
                assert [data["n"] for data in events if data["writer"] == number] == list(range(count))
            assert len(events) == sum(written)
            stream = [self._partition(apis[0], partition) for partition in range(PARTITIONS)]
            for partition, sent in enumerate(self.producer.sent):
                assert [data["n"] for data in stream[partition]] == list(range(sent))
                assert self.producer.offsets[partition] == list(range(sent))
            for api in apis:
                for name in (EVENTS, COPIES):
                    assert [record["data"] for record in api.read_all(name)] == events, f"{name} at {api.base}"
                assert [self._partition(api, partition) for partition in range(PARTITIONS)] == stream
                self._compare_rows(api)
            for actor in self.actors:
                actor.compare(apis)
        assert self.sdk.stored == list(range(1, self.sdk.sent + 1))
        assert self.watcher.seen == {EVENTS: events, COPIES: events}
        assert self.consumed == {(p, offset): data for p in range(PARTITIONS) for offset, data in enumerate(stream[p])}
        for node in self.nodes:
            with TopicsClient(node.grpc) as client:
                assert [record.value for record in client.read(EVENTS)] == events, f"gRPC at {node.grpc}"
                readings = [record.value["n"] for record in client.read(READINGS)]
                assert readings == list(range(self.sdk.sent)), f"gRPC at {node.grpc}"
            assert self._over_kafka(node.kafka) == stream
        made = Counter((writer.number, n) for writer in self.writers for n in range(writer.jobs))
        assert set(made) == {job for worker in self.workers for job in worker.handled}
        self._compare_positions()

    def _partition(self, api: Api, partition: int) -> list[Any]:
        datas: list[Any] = []
        while True:
            page = api.read(STREAM, len(datas), partition=partition, limit=1000)
            datas += [record["data"] for record in page["records"]]
            if page["caught_up"]:
                return datas

    def _compare_rows(self, api: Api) -> None:
        rows = Sql(api).rows("SELECT id, name FROM shop.orders ORDER BY id")
        assert rows == [{"id": number, "name": f"order {number}"} for number in range(self.table.rows)]
        messages: list[Any] = []
        while page := Sql(api).consume(MAILS, f"all {api.base}", {"Offset": len(messages)})["messages"]:
            messages += page
        assert len(messages) == self.table.rows

    def _over_kafka(self, address: str) -> list[list[Any]]:
        """Everything of STREAM, as a client reads it that knows one node only at first."""
        consumer = kafka.Consumer({"bootstrap.servers": address, "group.id": "whole"}, logger=silent())
        try:
            consumer.assign([kafka.TopicPartition(STREAM, partition, 0) for partition in range(PARTITIONS)])
            found: list[list[Any]] = [[] for _ in range(PARTITIONS)]
            deadline = time.monotonic() + PATIENCE
            while [len(datas) for datas in found] != self.producer.sent:
                assert time.monotonic() < deadline, [len(datas) for datas in found]
                for message in consumer.consume(1000, 0.2):
                    assert message.error() is None, message.error()
                    partition = message.partition()
                    assert partition is not None
                    found[partition].append(json.loads(message.value() or b""))
            return found
        finally:
            consumer.close()

    def _compare_positions(self) -> None:
        """The group has committed everything: positions of all partitions are at the end."""
        with Api(f"http://{self.nodes[-1].http}") as api:
            group = ok(api.send("GET", "/v0/groups/readers"))
        positions = {entry["partition"]: entry["from_seq"] for entry in group["positions"]}
        assert positions == dict(enumerate(self.producer.sent))

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """All clients; the block ends with everything written, read and compared."""
        self.start()
        yield
        self.end()
        self.compare()

    def __str__(self) -> str:
        return ", ".join(f"{actor.name} {actor.done:,}" for actor in self.actors)
