"""Clients of every kind that run while a backup is made, and what must hold of whatever moment it is of."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from backup.states import contents

from topics_client import NotFoundError, Record, RouterConfig, TopicConfig, TopicsClient

TOPICS = ("left", "right", "orders", "jobs", "results", "before", "behind")


class Load:
    """Runs from `with` on. `acked` counts, by topic, the records that were acknowledged, and `sent` those before that.

    A pair writer appends n to `left`, then to `right`. A router copies `orders`, which fsync, to `copies`. A worker
    takes a job of `jobs`, appends its seq to `results`, and acks it. A committer appends n to `before`, commits n as
    the position of a group in `left`, and appends n to `behind`.
    """

    def __init__(self, target: str, durability: str = "disk") -> None:
        """`durability` is that of all topics but `orders`."""
        self._target = target
        self._durability = durability
        self._stop = threading.Event()
        self.acked = dict.fromkeys(TOPICS, 0)
        self.sent = dict.fromkeys(TOPICS, 0)
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        with TopicsClient(self._target) as client:
            for topic in TOPICS:
                kind = "queue" if topic == "jobs" else "log"
                durability = "fsync" if topic == "orders" else self._durability
                client.put_topic(topic, TopicConfig(type=kind, durability=durability, lease_ms=3_600_000))
            client.put_topic("copies", TopicConfig(durability=self._durability))
            client.put_router("copier", RouterConfig("orders", "copies"))
        for step in (self._pair, self._order, self._produce, self._work, self._commit):
            self._threads.append(threading.Thread(target=self._run, args=(step,)))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        assert not self._failures, self._failures

    def _run(self, step: Callable[[TopicsClient, int], None]) -> None:
        number = 0
        try:
            with TopicsClient(self._target) as client:
                while not self._stop.is_set():
                    number += 1
                    step(client, number)
        except BaseException as error:
            self._failures.append(error)

    def _append(self, client: TopicsClient, topic: str, value: int, **options: Any) -> None:
        self.sent[topic] += 1
        client.append(topic, value, **options)
        self.acked[topic] += 1

    def _pair(self, client: TopicsClient, number: int) -> None:
        self._append(client, "left", number)
        self._append(client, "right", number)

    def _order(self, client: TopicsClient, number: int) -> None:
        self._append(client, "orders", number, tag=f"t{number % 3}")

    def _produce(self, client: TopicsClient, number: int) -> None:
        if self.acked["jobs"] < self.acked["results"] + 100:
            self._append(client, "jobs", number)
        else:
            self._stop.wait(0.005)

    def _work(self, client: TopicsClient, _: int) -> None:
        for job in client.claim("jobs", "worker", max=1):
            self._append(client, "results", job.seq)
            client.ack("jobs", "worker", [job])

    def _commit(self, client: TopicsClient, number: int) -> None:
        while number > self.acked["left"]:  # a position is never above the head
            if self._stop.wait(0.005):
                return
        self._append(client, "before", number)
        client.commit_positions("group", {"left": number})
        self._append(client, "behind", number)


def check_moment(
    restored: TopicsClient, source: TopicsClient, at_least: Mapping[str, int], at_most: Mapping[str, int]
) -> dict[str, int]:
    """What was restored is one moment of the source, between what was acknowledged and what was sent; its heads."""
    found = {topic: contents(restored, topic) for topic in (*TOPICS, "copies")}
    heads = {topic: restored.get_topic(topic).head_seq for topic in found}
    for topic in TOPICS:
        assert at_least[topic] <= heads[topic] <= at_most[topic], topic
        if topic != "jobs":
            assert found[topic] == contents(source, topic)[: heads[topic]], topic
    assert heads["left"] - 1 <= heads["right"] <= heads["left"]
    restored.get_router("copier")  # it has gone on to the end
    copies = [(record.seq, record.data, record.tag) for record in records(contents(restored, "copies"))]
    assert copies == [(record.seq, record.data, record.tag) for record in records(found["orders"])]
    done = {record.value for record in records(found["results"])}
    left = {record.seq for record in records(found["jobs"])}
    acked = set(range(1, heads["jobs"] + 1)) - left
    assert acked <= done, "a job was acked, and its result is not there"
    assert len(done - acked) <= 1, "results whose jobs were acked, and came back"
    try:
        (position,) = restored.fetch_positions("group") or (None,)
    except NotFoundError:  # before its first commit
        position = None
    committed = 0 if position is None else position.from_seq
    before, behind = ([0, *(record.value for record in records(found[topic]))] for topic in ("before", "behind"))
    assert behind[-1] <= committed <= before[-1]
    assert len(behind) <= len(before) <= len(behind) + 1
    return heads


def records(found: list[Any]) -> list[Record]:
    """All of it, which must be records."""
    assert all(isinstance(each, Record) for each in found)
    return found
