"""SIGKILL under idempotent producers, commits and HTTP appends: every batch once, where it was acknowledged."""

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Self

import httpx
import pytest
from crash.kafka_oracle import Oracle, Place, Producer, answers_of, commit_body, produce_body

from support.http import Api, ok
from support.kafka_wire import ClosedError, Wire
from support.server import ServerProcess
from support.waiting import poll
from topics_kafka.protocol import ApiKey

KILLS = 4
KILLS_OF_A_SERVER = 10  # in the soak: then the next one begins, so that checks stay quick
PRODUCERS = 4
MAX_IN_FLIGHT = 5  # requests of an idempotent producer, as clients have it
SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
PLACES: list[Place] = [(name, partition) for name in ("disk", "fsync") for partition in range(2)]


class Load:
    """Clients of a server that is going to be killed: leaving the block kills it under them."""

    def __init__(self, server: ServerProcess, oracle: Oracle, producers: list[Producer], rng: random.Random) -> None:
        self._server, self._oracle = server, oracle
        self._over = False
        self._killing = False
        self.failure: BaseException | None = None
        seed = rng.random()
        works: list[Callable[[], None]] = [
            *(lambda producer=producer: self._produce(producer) for producer in producers),
            lambda: self._append(random.Random(seed)),
            lambda: self._commit(random.Random(seed)),
        ]
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._killing = True
        self._server.kill()
        self._over = True
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (ClosedError, OSError, httpx.TransportError) as error:
            if not self._killing:
                self.failure = error
        except BaseException as error:
            self.failure = error

    def _produce(self, producer: Producer) -> None:
        """Retry what has no answer, then write, with some requests in flight; what is unanswered stays for later."""
        rng = producer.rng
        with Wire(self._server.kafka_port) as wire:
            retries(wire, self._oracle, producer)
            if rng.random() < 0.2:
                fresh_id(wire, self._oracle, producer)
            while not self._over:
                in_flight = [self._send(wire, producer) for _ in range(rng.randint(1, MAX_IN_FLIGHT))]
                for correlation in in_flight:
                    receive(wire, self._oracle, producer, correlation)
                if rng.random() < 0.1:
                    resend_answered(wire, self._oracle, producer)

    def _send(self, wire: Wire, producer: Producer) -> int:
        rng = producer.rng
        places = rng.sample(PLACES, rng.choice((1, 1, 2, 4)))
        batches = [producer.batch(place, rng.choice((1, 1, 3, 20))) for place in places]
        self._oracle.sending(batches)
        producer.unanswered.append(batches)
        return wire.send(ApiKey.PRODUCE, 9, produce_body(batches, rng.choice((-1, -1, 1))))

    def _append(self, rng: random.Random) -> None:
        with Api(self._server.base) as api:
            while not self._over:
                name, partition = rng.choice(PLACES)
                count = rng.choice((1, 2, 10))
                texts = [b'{"http":%d}' % rng.randrange(1 << 60) for _ in range(count)]
                self._oracle.appending((name, partition), texts)
                body = f'{{"records":[{",".join(f"""{{"data":{text.decode()}}}""" for text in texts)}],'
                reply = ok(api.send("POST", f"/v0/topics/{name}", f'{body}"partition":{partition}}}'), 200)
                self._oracle.appended((name, partition), texts, reply["first_seq"])

    def _commit(self, rng: random.Random) -> None:
        numbers = itertools.count(rng.randrange(1 << 40))
        with Wire(self._server.kafka_port) as wire:
            while not self._over:
                offsets = {place: rng.randint(0, self._oracle.end(place)) for place in PLACES}
                body = commit_body(offsets, f"note {next(numbers)}")
                self._oracle.committing(offsets, body["topics"][0]["partitions"][0]["committed_metadata"])
                response = wire.call(ApiKey.OFFSET_COMMIT, 9, **body)
                codes = {answer["error_code"] for topic in response["topics"] for answer in topic["partitions"]}
                assert codes == {0}, response
                self._oracle.has_committed()


def receive(wire: Wire, oracle: Oracle, producer: Producer, correlation: int) -> None:
    """The answer to the oldest unanswered request."""
    answers = answers_of(wire.receive(ApiKey.PRODUCE, 9, correlation))
    for sent in producer.unanswered.pop(0):
        code, offset = answers[sent.place]
        assert code == 0, f"{sent} is refused with {code}"
        oracle.acked(sent, offset)
        producer.answered.setdefault(sent.place, []).append(sent)


def retries(wire: Wire, oracle: Oracle, producer: Producer) -> None:
    """Send everything again that has no answer, as it was and in order, all at once as clients do."""
    in_flight = [wire.send(ApiKey.PRODUCE, 9, produce_body(batches)) for batches in producer.unanswered]
    for correlation in in_flight:
        receive(wire, oracle, producer, correlation)
    resend_answered(wire, oracle, producer)


def resend_answered(wire: Wire, oracle: Oracle, producer: Producer) -> None:
    """Send one of the last five answered batches of a partition once more: it is where it was."""
    for place, batches in producer.answered.items():
        del batches[:-MAX_IN_FLIGHT]
        sent = producer.rng.choice(batches)
        code, offset = answers_of(wire.call(ApiKey.PRODUCE, 9, **produce_body([sent])))[place]
        assert (code, offset) == (0, sent.offset), sent


def fresh_id(wire: Wire, oracle: Oracle, producer: Producer) -> None:
    """Begin anew with an id that nobody has had."""
    body = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    response = wire.call(ApiKey.INIT_PRODUCER_ID, 4, **body)
    assert response["error_code"] == 0, response
    oracle.new_producer(response["producer_id"])
    producer.producer_id, producer.epoch = response["producer_id"], response["producer_epoch"]
    producer.sequences, producer.answered = {}, {}


def kill_and_check(server: ServerProcess, seed: int, until: Callable[[int], bool]) -> int:
    """Load, kill, start and check as long as `until(kills)` says no; returns the kills."""
    rng = random.Random(seed)
    oracle = Oracle(PLACES)
    producers = [Producer(-1, -1, random.Random(rng.random())) for _ in range(PRODUCERS)]
    kills = 0
    server.start()
    with Api(server.base) as api, Wire(server.kafka_port) as wire:
        for name in ("disk", "fsync"):
            ok(api.send("PUT", f"/v0/topics/{name}", {"durability": name, "partition_count": 2}), 201)
        for producer in producers:
            fresh_id(wire, oracle, producer)
    while not until(kills):
        with Load(server, oracle, producers, rng) as load:
            target = oracle.acks + rng.choice((5, 50, 200, 600)) + rng.randrange(20)
            poll(lambda load=load, target=target: oracle.acks >= target or load.failure, 30, f"{target} acks")
        kills += 1
        server.start()
        with Wire(server.kafka_port) as wire:
            oracle.check(wire)
            if rng.random() < 0.5:  # else the next load does, beside others
                for producer in producers:
                    retries(wire, oracle, producer)
                oracle.check(wire)
    with Wire(server.kafka_port) as wire:
        for producer in producers:
            retries(wire, oracle, producer)
        oracle.check(wire)
    assert server.stop() == 0
    server.start()
    with Api(server.base) as api, Wire(server.kafka_port) as wire:
        oracle.check(wire)
        for name, partition in PLACES:  # and the other protocols count alike
            assert api.read(name, partition=partition, limit=1)["head_seq"] == oracle.end((name, partition))
    return kills


@pytest.mark.timeout(120)
def test_sigkill_under_kafka_load(make_server: Callable[..., ServerProcess]) -> None:
    assert kill_and_check(make_server(kafka=True), 1, lambda kills: kills == KILLS) == KILLS


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="TOPICS_SOAK_SECONDS says for how long")
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_kafka_sigkill_soak(make_server: Callable[..., ServerProcess]) -> None:
    end = time.monotonic() + SOAK_SECONDS
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    total = 0
    while time.monotonic() < end:
        print(f"{total} kills before TOPICS_SOAK_SEED={seed}")
        total += kill_and_check(
            make_server(kafka=True), seed, lambda kills: kills == KILLS_OF_A_SERVER or time.monotonic() > end
        )
        seed += 1
    print(f"{total} kills")
