"""A server's history of known moments: random changes of every kind, and the server's state after each."""

import random
import time
from typing import Any, NamedTuple

from backup.states import everything, fill

from support.waiting import poll
from topics_client import NewRecord, RouterConfig, TopicConfig, TopicsClient

TABLES = """
CREATE NAMESPACE shop;
CREATE TABLE shop.stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL, label TEXT UNIQUE);
CREATE TABLE shop.passing (id BIGINT PRIMARY KEY, n BIGINT);
CREATE INDEX passing_n ON shop.passing (n);
CREATE TOPIC shop.events WITH (partitions = 2);
ALTER TOPIC shop.events ADD SOURCE shop.stock ON INSERT WITH (payload = 'full');
ALTER TOPIC shop.events ADD SOURCE shop.stock ON UPDATE WITH (payload = 'diff');
ALTER TOPIC shop.events ADD SOURCE shop.stock ON DELETE;
INSERT INTO shop.stock (id, n) VALUES """ + ", ".join(f"({number}, {number})" for number in range(50))


class Moment(NamedTuple):
    """A time by the server's clock, the server's state at that time, and the last seq of `events` if nothing else
    happened since the moment before.
    """

    ms: int
    state: dict[str, Any]
    seq: tuple[str, int] | None


def now_ms() -> int:
    """The clock of this machine."""
    return time.time_ns() // 1_000_000


class History:
    """Makes changes by a seeded chance, and notes the moments between them."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.moments: list[Moment] = []
        self._number = 0

    def begin(self, client: TopicsClient) -> None:
        """Topics of every kind."""
        fill(client)
        client.sql_script(TABLES)
        self.note(client)

    def note(self, client: TopicsClient, seq: tuple[str, int] | None = None) -> None:
        """This is a moment; what comes next is in a later millisecond."""
        state = everything(client)
        ms = now_ms()
        self.moments.append(Moment(ms, state, seq))
        poll(lambda: now_ms() > ms, 5)

    def go_on(self, client: TopicsClient, changes: int) -> None:
        """Make the given number of changes."""
        for _ in range(changes):
            self._number += 1
            change = self._chance.choice(
                [
                    self._append,
                    self._append,
                    self._delete,
                    self._work,
                    self._commit,
                    self._recreate,
                    self._configure,
                    self._transact,
                    self._transact,
                    self._define,
                ]
            )
            self.note(client, change(client))

    def _append(self, client: TopicsClient) -> tuple[str, int]:
        partition = self._chance.randrange(3)
        records = [
            NewRecord({"n": self._number, "i": i}, tag=f"kind:{i % 5}") for i in range(self._chance.choice([1, 3, 200]))
        ]
        last = client.append_many("events", records, partition=partition).last_seq
        return ("events" if partition == 0 else f"events@{partition}"), last

    def _delete(self, client: TopicsClient) -> None:
        partition = self._chance.randrange(3)
        if self._chance.random() < 0.5:
            client.delete_records("events", tag=f"kind:{self._chance.randrange(5)}", partition=partition)
        else:
            head = client.get_topic("events", partition=partition, touch=False).head_seq
            client.delete_records("events", before_seq=self._chance.randrange(1, head), partition=partition)

    def _work(self, client: TopicsClient) -> None:
        client.append_many("jobs", range(self._chance.randrange(1, 9)), delay_ms=self._chance.choice([0, 3_600_000]))
        claimed = client.claim("jobs", "worker", max=6)
        client.ack("jobs", "worker", claimed[::2])
        client.nack("jobs", "worker", claimed[1::2], release=True)

    def _commit(self, client: TopicsClient) -> None:
        client.append("orders", {"order": self._number}, tag=f"eu:{self._number}")  # a router copies it
        client.commit_positions("billing", {"orders": client.get_topic("orders", touch=False).head_seq - 3})

    def _transact(self, client: TopicsClient) -> None:
        """Rows and their events, in one commit."""
        number = self._number
        client.sql_script(
            f"BEGIN; INSERT INTO shop.stock (id, n, label) VALUES ({1000 + number}, {number}, 'label {number}');"
            f"UPDATE shop.stock SET n = n + 1 WHERE id % 7 = {number % 7};"
            f"DELETE FROM shop.stock WHERE id = {self._chance.randrange(60)}; COMMIT"
        )

    def _define(self, client: TopicsClient) -> None:
        number = self._number
        client.sql_script(
            self._chance.choice(
                [
                    f"CREATE INDEX by_n_{number} ON shop.stock (n)",
                    f"ALTER TABLE shop.stock ADD COLUMN c{number} BIGINT DEFAULT {number}",
                    f"CREATE TABLE shop.t{number} (id BIGINT PRIMARY KEY); INSERT INTO shop.t{number} VALUES (1), (2)",
                    "TRUNCATE TABLE shop.passing; INSERT INTO shop.passing SELECT id, n FROM shop.stock",
                    "DROP TABLE shop.passing; CREATE TABLE shop.passing (id BIGINT PRIMARY KEY, n BIGINT)",
                ]
            )
        )

    def _recreate(self, client: TopicsClient) -> None:
        client.delete_topic("passing")
        client.put_topic("passing", TopicConfig(cap_records=10 + self._number))
        client.append_many("passing", range(self._chance.randrange(50)))
        if self._chance.random() < 0.5:
            client.put_router(f"router-{self._number}", RouterConfig("orders", f"copies-{self._number}"))

    def _configure(self, client: TopicsClient) -> None:
        client.put_topic("capped", TopicConfig(cap_records=self._chance.randrange(5, 60)))
        client.append_many("capped", range(20))  # evicts
