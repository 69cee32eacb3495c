"""Clients of every protocol that work while owners die: each knows what it was acknowledged, or has read.

Everything is in topics of the `fsync` class, so nothing acknowledged may be missing. A client whose call got no clear
answer repeats it as its protocol allows: with its key, as the same idempotent producer, from its last position.
"""

import contextlib
import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import confluent_kafka as kafka
import httpx

from support.cluster import Cluster
from support.http import JSON, Api, ok
from topics_client import Delivery, TopicsClient, TopicsError

PATIENCE: Final = 60.0
"""Seconds for which a client repeats one call."""
EVENTS, COPIES, JOBS, STREAM, MAILS, READINGS = "events", "copies", "jobs", "stream", "shop.changes", "readings"
PARTITIONS: Final = 2
"""Of STREAM, which the Kafka clients write and read."""
PAUSE: Final = 0.01
"""Seconds between two calls of a client."""
WORKERS: Final = 2
"""Of JOBS."""
_MOST_UNSENT: Final = 500
"""Records that wait for their acknowledgement in the Kafka producer."""


class Addresses(NamedTuple):
    """The ports of one node, each as host:port."""

    http: str
    grpc: str
    kafka: str


def addresses(cluster: Cluster) -> list[Addresses]:
    """Those of all nodes, in their order."""
    return [Addresses(f"{node.host}:{node.http_port}", node.grpc_target, node.kafka_target) for node in cluster.nodes]


class Calls:
    """HTTP calls to one node, and to the next one when it does not answer."""

    def __init__(self, nodes: Sequence[Addresses], first: int, seconds: float = 20) -> None:
        """Begin with the node of index `first`. A call that takes longer than `seconds` got no answer."""
        self._nodes, self._at, self._seconds = nodes, first, seconds
        self.avoided, self.patience = "", PATIENCE
        """The HTTP address of a node that new calls are not sent to, and the seconds for which a call is repeated."""
        self.retriable = {429, 503}
        """The statuses of refusals after which a call is repeated."""
        self._client: httpx.Client | None = None

    @property
    def base(self) -> str:
        return f"http://{self._nodes[self._at % len(self._nodes)].http}"

    def next_node(self) -> None:
        self.close()
        self._at += 1

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def once(self, method: str, path: str, body: Any) -> dict[str, Any] | None:
        """The answer; None if it is unclear whether anything was done, and for what may be tried again. AssertionError
        for a refusal."""
        if self.avoided and self.base.endswith(self.avoided):
            self.next_node()
        if self._client is None:
            self._client = httpx.Client(base_url=self.base, timeout=self._seconds, trust_env=False, verify=False)
        try:
            response = self._client.request(method, path, content=json.dumps(body), headers=JSON)
        except httpx.TransportError:
            self.next_node()
            return None
        if response.status_code in self.retriable:
            self.next_node()
            return None
        return ok(response, 200, 201)

    def until_done(self, method: str, path: str, body: Any) -> dict[str, Any]:
        """The first clear answer to a call that may be repeated."""
        deadline = time.monotonic() + self.patience
        while (answer := self.once(method, path, body)) is None:
            assert time.monotonic() < deadline, f"no answer to {method} {path} in {self.patience} s"
            time.sleep(PAUSE)
        return answer


class Actor(ABC):
    """A thread that works until it is asked to stop; `failure` is what ended it before that."""

    writes = False
    """True for one whose work the others read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self.on_finish: Callable[[], object] = lambda: None
        """Called once it is asked to stop."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, seconds: float = PATIENCE) -> None:
        """Have it end after what it does now, and raise its failure."""
        self.stopping.set()
        self.on_finish()
        self._thread.join(seconds)
        if self.failure is not None:
            raise AssertionError(f"{self.name} failed") from self.failure
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error
        finally:
            self.close()

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """Close what it holds, in its thread at its end."""

    @abstractmethod
    def work(self) -> None:
        """Everything that it does, until `stopping` is set."""

    @property
    @abstractmethod
    def done(self) -> int:
        """Things done for certain."""

    def is_at_end(self, api: Api) -> bool:
        """Return whether it has read everything, when nothing more is written."""
        return True

    def compare(self, apis: Sequence[Api]) -> None:  # noqa: B027  # Everyone compares what most have
        """Compare what it has with what is at each node."""


class HttpActor(Actor):
    """One whose calls are HTTP; see Calls."""

    def __init__(self, name: str, nodes: Sequence[Addresses], first: int, seconds: float = 20) -> None:
        super().__init__(name)
        self.calls = Calls(nodes, first, seconds)

    def close(self) -> None:
        self.calls.close()


class KeyedWriter(HttpActor):
    """Appends over HTTP under a key of its own for each call: batches to EVENTS, and single jobs to JOBS."""

    writes = True

    def __init__(self, number: int, nodes: Sequence[Addresses], seconds: float = 20) -> None:
        super().__init__(f"HTTP writer {number}", nodes, number, seconds)
        self.number = number
        self.batches = self.jobs = 0
        self.times: list[float] = []
        """Of each acknowledgement, by the monotonic clock."""

    def work(self) -> None:
        while not self.stopping.wait(PAUSE):
            n = self.batches
            datas = [{"writer": self.number, "n": 3 * n + i} for i in range(3)]
            reply = self._write(EVENTS, datas, f"events {self.number} {n}")
            assert reply["last_seq"] - reply["first_seq"] == 2, reply
            self.batches += 1
            self.times.append(time.monotonic())
            if n % 2 == 0:
                self._write(JOBS, [{"writer": self.number, "n": self.jobs}], f"jobs {self.number} {self.jobs}")
                self.jobs += 1

    def _write(self, topic: str, datas: list[Any], key: str) -> dict[str, Any]:
        body = {"records": [{"data": data} for data in datas], "idempotency_key": key}
        return self.calls.until_done("POST", f"/v0/topics/{topic}", body)

    @property
    def done(self) -> int:
        return self.batches + self.jobs


class Worker(HttpActor):
    """Claims and acks jobs. A job that it has acked for certain must never be delivered again, to any worker."""

    acked: dict[int, float]
    """Seq and time of each certain ack, shared by all workers."""

    def __init__(self, number: int, nodes: Sequence[Addresses], acked: dict[int, float], seconds: float) -> None:
        super().__init__(f"worker {number}", nodes, number + 1, seconds)
        self.acked = acked
        self.handled: set[tuple[int, int]] = set()
        self.deliveries = 0
        self.empty = False
        """The last claim, of a clear answer, had nothing."""

    def work(self) -> None:
        while not self.stopping.is_set():
            asked = time.monotonic()
            claim = {"node": self.name, "max": 8, "lease_ms": 3000, "wait_ms": 200}
            reply = self.calls.once("POST", f"/v0/topics/{JOBS}/claim", claim)
            if reply is None:
                self.stopping.wait(PAUSE)
                continue
            jobs = reply["claimed"]
            self.empty = not jobs
            for job in jobs:
                before = self.acked.get(job["$seq"])
                assert before is None or before > asked, f"job {job['$seq']} came back {asked - before} s after its ack"
                self.handled.add((job["data"]["writer"], job["data"]["n"]))
            self.deliveries += len(jobs)
            if jobs:
                self._ack(jobs)
            else:
                self.stopping.wait(PAUSE)

    def _ack(self, jobs: list[dict[str, Any]]) -> None:
        seqs = [job["$seq"] for job in jobs]
        body = {"node": self.name, "seqs": seqs, "lease_ids": [job["lease_id"] for job in jobs]}
        reply = self.calls.once("POST", f"/v0/topics/{JOBS}/ack", body)
        if reply is not None:
            self.acked.update(dict.fromkeys(set(seqs) - set(reply["skipped"]), time.monotonic()))

    @property
    def done(self) -> int:
        return len(self.handled)


class Watcher(HttpActor):
    """Follows EVENTS and COPIES over server-sent events, node after node; each record must come once and in order."""

    def __init__(self, nodes: Sequence[Addresses], seconds: float) -> None:
        super().__init__("SSE watcher", nodes, 1, seconds)
        self.seen: dict[str, list[Any]] = {EVENTS: [], COPIES: []}
        self.streams = 0
        self._last_id = ""

    def work(self) -> None:
        while not self.stopping.is_set():
            body = {"topics": {name: {} for name in self.seen}, "heartbeat_ms": 1000}
            session = self.calls.once("POST", "/v0/watch", body | ({"cursor": self._last_id} if self._last_id else {}))
            if session is None:
                self.stopping.wait(PAUSE)
                continue
            self.streams += 1
            with contextlib.suppress(httpx.TransportError):
                self._follow(self.calls.base + session["stream_url"])
            self.calls.next_node()
            self.stopping.wait(PAUSE)

    def _follow(self, url: str) -> None:
        with httpx.stream("GET", url, timeout=httpx.Timeout(5), trust_env=False, verify=False) as response:
            if response.status_code in (404, 503):
                return
            assert response.status_code == 200, response.read()
            event: dict[str, str] = {}
            for line in response.iter_lines():
                if self.stopping.is_set():
                    return
                if line:
                    name, _, value = line.partition(": ")
                    event[name] = value
                    continue
                if "event" in event and not self._take(event["event"], json.loads(event["data"])):
                    return
                self._last_id = event.get("id", self._last_id)
                event = {}

    def _take(self, kind: str, data: dict[str, Any]) -> bool:
        """Return whether the stream continues behind this event."""
        if kind == "error":
            return bool(data["code"] == 429)
        assert kind in ("record", "caught-up"), f"{kind}: {data}"
        if kind == "record":
            seen = self.seen[data["topic"]]
            seqs = [record["$seq"] for record in data["records"]]
            expected = list(range(len(seen) + 1, len(seen) + 1 + len(seqs)))
            assert seqs == expected, f"{data['topic']}: {seqs} where {expected} is next"
            seen += [record["data"] for record in data["records"]]
        return True

    @property
    def done(self) -> int:
        return sum(map(len, self.seen.values()))


class KafkaProducer(Actor):
    """An idempotent producer of STREAM."""

    writes = True

    def __init__(self, bootstrap: str) -> None:
        super().__init__("Kafka producer")
        self.sent = [0] * PARTITIONS
        self.offsets: list[list[int]] = [[] for _ in range(PARTITIONS)]
        """Of each partition, the acknowledged offsets in the order of acknowledgement."""
        settings = _connection(bootstrap) | {
            "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120_000, "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 300,
        }  # fmt: skip
        self._producer = kafka.Producer(settings, logger=silent())

    def work(self) -> None:
        while not self.stopping.wait(PAUSE):
            self._producer.poll(0)
            if sum(self.sent) - self.done > _MOST_UNSENT:
                continue
            for partition in range(PARTITIONS):
                value = json.dumps({"partition": partition, "n": self.sent[partition]})
                self._producer.produce(STREAM, value, partition=partition, on_delivery=self._delivered)
                self.sent[partition] += 1
        assert self._producer.flush(PATIENCE) == 0
        assert [len(offsets) for offsets in self.offsets] == self.sent

    def _delivered(self, error: kafka.KafkaError | None, message: kafka.Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.offsets[partition].append(offset)

    @property
    def done(self) -> int:
        return sum(map(len, self.offsets))


class SdkProducer(Actor):
    """A producer of READINGS of the Python SDK, over gRPC."""

    writes = True

    def __init__(self, nodes: Sequence[Addresses]) -> None:
        """With one node, it is one that dies and comes back too."""
        super().__init__("gRPC producer")
        self.sent = 0
        self.stored: list[int] = []
        """The seqs of what was delivered, in the order of delivery."""
        self._client = sdk_client(nodes)

    def work(self) -> None:
        with self._client, self._client.producer() as producer:
            while not self.stopping.wait(PAUSE):
                if self.sent - self.done > _MOST_UNSENT:
                    continue
                producer.append(READINGS, {"n": self.sent}).add_done_callback(self._delivered)
                self.sent += 1

    def _delivered(self, delivery: Delivery) -> None:
        try:
            self.stored.append(delivery.result())
        except TopicsError as error:
            self.failure = error

    @property
    def done(self) -> int:
        return len(self.stored)


class GroupMember(Actor):
    """A consumer of STREAM in a group. A record may come again where a commit was lost, and is the same one then."""

    def __init__(self, number: int, bootstrap: str, seen: dict[tuple[int, int], Any]) -> None:
        super().__init__(f"Kafka consumer {number}")
        self.seen = seen
        self.read = 0
        settings = _connection(bootstrap) | {
            "group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": False,
            "session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "allow.auto.create.topics": False,
            "topic.metadata.refresh.interval.ms": 2000,
        }  # fmt: skip
        self._consumer = kafka.Consumer(settings, logger=silent())

    def work(self) -> None:
        self._consumer.subscribe([STREAM])
        last: dict[int, int] = {}
        try:
            while not self.stopping.is_set():
                messages = self._consumer.consume(100, 0.1)
                good = [message for message in messages if message.error() is None]
                for message in good:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    value = json.loads(message.value() or b"")
                    assert self.seen.setdefault((partition, offset), value) == value, "an offset has two records"
                    assert value["partition"] == partition
                    last[partition] = offset
                for message in messages:
                    error = message.error()
                    assert error is None or not error.fatal(), error
                self.read += len(good)
                if good:
                    with contextlib.suppress(kafka.KafkaException):  # the next commit, or the next member, repeats it
                        self._consumer.commit(asynchronous=False)
        finally:
            self._consumer.close()

    @property
    def done(self) -> int:
        return self.read


class TableWriter(HttpActor):
    """Inserts rows by SQL. A row and its message are one write, and a repeated insert finds the row."""

    writes = True

    def __init__(self, nodes: Sequence[Addresses], seconds: float) -> None:
        super().__init__("SQL writer", nodes, 2, seconds)
        self.rows = 0

    def work(self) -> None:
        while not self.stopping.wait(2 * PAUSE):
            insert = "INSERT INTO shop.orders VALUES ($1, $2) ON CONFLICT (id) DO NOTHING"
            self.calls.until_done("POST", "/api/sql", {"sql": insert, "params": [self.rows, f"order {self.rows}"]})
            self.rows += 1

    @property
    def done(self) -> int:
        return self.rows


def sdk_client(nodes: Sequence[Addresses]) -> TopicsClient:
    """A client of the Python SDK that knows these nodes. A call that takes 5 s gets no answer."""
    return TopicsClient([node.grpc for node in nodes], timeout=5.0)


def _connection(bootstrap: str) -> dict[str, Any]:
    """Settings of a client that comes back quickly."""
    return {
        "bootstrap.servers": bootstrap, "socket.timeout.ms": 5000, "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 300,
    }  # fmt: skip


def silent() -> logging.Logger:
    """A logger for clients whose brokers die as a matter of course."""
    (logger := logging.getLogger("tests.kafka-clients")).setLevel(logging.CRITICAL)
    return logger
