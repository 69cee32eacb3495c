"""Kafka clients, besides the other load: producers and consumers of a real client, and connections that vanish."""

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Producer

from support.kafka_wire import ClosedError, Wire
from support.server import ServerProcess
from topics_kafka.protocol import ApiKey

GROUPS = (("classic", "workers"), ("consumer", "readers"))


class KafkaLoad:
    """Threads of clients that join and leave while the block runs; all of them have left at its end."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self._server, self._seed = server, seed
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self.counts: Counter[str] = Counter()
        works: list[Callable[[random.Random], None]] = [self._produce, self._vanish]
        works += [lambda rng, facts=facts: self._consume(rng, *facts) for facts in GROUPS for _ in range(2)]
        self._threads = [threading.Thread(target=self._run, args=(work, i)) for i, work in enumerate(works)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def _run(self, work: Callable[[random.Random], None], number: int) -> None:
        rng = random.Random(f"{self._seed} kafka {number}")
        try:
            while not self._over.is_set():
                work(rng)
        except BaseException as error:
            self._failure = error

    @property
    def _config(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"127.0.0.1:{self._server.kafka_port}"}

    def _produce(self, rng: random.Random) -> None:
        """An idempotent producer, for a second or so."""
        failed: list[KafkaError] = []

        def told(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(error)
            else:
                self.counts["Kafka records produced"] += 1

        codec = rng.choice(("none", "gzip", "lz4", "zstd", "snappy"))
        producer = Producer(self._config | {"enable.idempotence": True, "compression.type": codec, "linger.ms": 5})
        for _ in range(rng.randrange(10, 60)):
            for i in range(20):
                producer.produce("kafka", b'{"n":%d}' % i, key=b"%d" % rng.randrange(100), on_delivery=told)
            producer.poll(0)
            if self._over.wait(0.02):
                break
        assert producer.flush(30) == 0
        assert not failed, failed[:3]
        producer.close()

    def _consume(self, rng: random.Random, protocol: str, group: str) -> None:
        """A member of a group, for some seconds."""
        config: dict[str, Any] = {"group.id": group, "group.protocol": protocol, "auto.offset.reset": "earliest"}
        consumer = Consumer(self._config | config)
        consumer.subscribe(["kafka"])
        for _ in range(rng.randrange(5, 40)):
            for message in consumer.consume(200, 0.1):
                # While a group rebalances a client may get that error; it recovers.
                self.counts["Kafka records consumed"] += message.error() is None
            if self._over.is_set():
                break
        consumer.close()
        self.counts[f"members of a {protocol} group"] += 1

    def _vanish(self, rng: random.Random) -> None:
        """A connection that breaks in the middle of a fetch that waits."""
        with contextlib.suppress(ClosedError), Wire(self._server.kafka_port) as wire:
            asked = {"partition": rng.randrange(4), "fetch_offset": 1 << 40, "partition_max_bytes": 1 << 20}
            topics = [{"topic": "kafka", "partitions": [asked]}]
            wire.send(ApiKey.FETCH, 12, {"max_wait": 5000, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics})
            self._over.wait(rng.uniform(0, 0.1))
        self.counts["Kafka connections that vanish"] += 1
