"""Deleted, evicted and lost records: consumers get the remaining ones, reach the end, and learn of losses."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from support.http import Api
from support.kafka_clients import Client, Record, refused
from support.kafka_journal import Journal
from support.kafka_kinds import KINDS, able
from support.waiting import poll

Clients = Callable[[str], Client]
OUT_OF_RANGE, UNKNOWN_TOPIC = 1, 3


def write(clients: Clients, topic: str, values: range, tag: Callable[[int], bytes]) -> None:
    """Write numbered records to partition 0, in batches of ten."""
    records = [Record(0, tag(i), b"%d" % i) for i in values]
    for start in range(0, len(records), 10):
        clients("confluent-kafka").produce(topic, records[start : start + 10])


def offsets(client: Client, topic: str, start: int | str = "earliest", **facts: object) -> list[int | None]:
    """Return the offsets that the client reads. It must reach the end."""
    found = client.read(topic, {0: start}, **facts)
    assert found.ends == {0: client.call("offsets", topic=topic, partition=0, at="latest")}
    return [record.offset for record in found.records]


def test_holes_in_the_middle(client: Client, clients: Clients, api: Api, made: str) -> None:
    write(clients, made, range(40), lambda i: b"odd" if i % 2 else b"whole" if 20 <= i < 30 else b"even")
    api.rm(made, match="odd", partition=0)
    api.rm(made, match="whole", partition=0)
    left = [i for i in range(40) if not i % 2 and not 20 <= i < 30]
    assert offsets(client, made) == left
    assert offsets(client, made, 7) == [i for i in left if i >= 7]
    assert offsets(client, made, 21) == [i for i in left if i >= 21]


def test_a_hole_at_the_end(client: Client, clients: Clients, api: Api, made: str) -> None:
    write(clients, made, range(30), lambda i: b"gone" if i >= 15 else b"kept")
    api.rm(made, match="gone", partition=0)
    assert offsets(client, made) == list(range(15))
    assert offsets(client, made, 20) == []
    write(clients, made, range(5), lambda _: b"new")
    assert offsets(client, made, 20) == [30, 31, 32, 33, 34]
    api.rm(made, match="new", partition=0)
    api.rm(made, match="kept", partition=0)
    assert offsets(client, made) == []  # only a hole


@pytest.mark.parametrize("name", [name for name in KINDS if name != "kcat"])
def test_a_group_has_no_lag_behind_a_hole(clients: Clients, api: Api, made: str, name: str) -> None:
    client, group = clients(name), f"g-{made}"
    write(clients, made, range(20), lambda i: b"gone" if i >= 10 else b"kept")
    api.rm(made, match="gone", partition=0)
    assert [record.offset for record in client.consume(made, group, 10)] == list(range(10))
    write(clients, made, range(1), lambda _: b"next")
    assert [record.offset for record in client.consume(made, group, 1)] == [20]
    assert clients("confluent-kafka").committed(made, group)[0] == 21


def fetches(api: Api) -> int:
    """The number of answered Fetch requests."""
    metrics = api.send("GET", "/v0/metrics").text
    found = re.findall(r'^topics_kafka_request_seconds_count\{api="Fetch",.*\} (\S+)$', metrics, re.MULTILINE)
    return int(sum(map(float, found)))


@pytest.mark.parametrize("name", KINDS)
def test_nobody_spins_behind_a_hole(clients: Clients, api: Api, made: str, name: str) -> None:
    client = clients(name)
    write(clients, made, range(20), lambda i: b"gone" if i >= 10 else b"kept")
    api.rm(made, match="gone", partition=0)
    before = fetches(api)
    facts = {"group": f"g-{made}", "count": 11, "protocol": "range", "seconds": 3}
    assert refused(client, "consume", topic=made, **facts) is None  # there is no eleventh record
    assert fetches(api) - before in range(1, 150)


@pytest.mark.parametrize("name", able("out of range"))
def test_evicted_records(clients: Clients, api: Api, topic: str, name: str) -> None:
    client = clients(name)
    api.put(topic, cap_records=20).raise_for_status()
    write(clients, topic, range(100), lambda _: b"k")
    start = client.call("offsets", topic=topic, partition=0, at="earliest")
    assert 60 <= start <= 80
    facts = {"start": {0: 3}}
    assert refused(client, "read", topic=topic, **facts) == OUT_OF_RANGE
    assert offsets(client, topic, 3, reset="earliest") == list(range(start, 100))
    assert offsets(client, topic) == list(range(start, 100))


def test_evicted_under_a_group(clients: Clients, api: Api, topic: str) -> None:
    client, group = clients("confluent-kafka"), f"g-{topic}"
    api.put(topic, cap_records=20).raise_for_status()
    write(clients, topic, range(10), lambda _: b"k")
    assert len(client.consume(topic, group, 10)) == 10
    write(clients, topic, range(200), lambda _: b"k")
    start = client.call("offsets", topic=topic, partition=0, at="earliest")
    found = client.consume(topic, group, 210 - start)
    assert [record.offset for record in found] == list(range(start, 210))


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("kcat", "kafkajs", "platformatic")])
def test_deleted_and_created_again(clients: Clients, made: str, name: str) -> None:
    client, admin = clients(name), clients("confluent-kafka")
    write(clients, made, range(30), lambda _: b"old")
    admin.call("delete_topic", topic=made)
    assert refused(admin, "describe_topic", topic=made) == UNKNOWN_TOPIC
    admin.call("create_topic", topic=made, partitions=1)
    write(clients, made, range(7), lambda _: b"new")
    found = client.read(made, {0: 25}, reset="earliest")
    assert [(record.offset, record.key) for record in found.records] == [(i, b"new") for i in range(7)]


# franz-go does not follow a recreated topic, with a Kafka broker neither.
@pytest.mark.parametrize("name", ["confluent-kafka", "java"])
def test_deleted_and_created_again_under_a_member(clients: Clients, made: str, tmp_path: Path, name: str) -> None:
    client, admin, journal = clients(name), clients("confluent-kafka"), Journal(tmp_path / "journal")

    def seen() -> list[int]:
        return [offset for event in journal.events() if event.what == "records" for _, offset in event.fact]

    write(clients, made, range(30), lambda _: b"old")
    facts = {"group": f"g-{made}", "topic": made, "protocol": "range", "journal": str(journal.path)}
    client.call("member_start", member=made, **facts)
    poll(lambda: seen() == list(range(30)), 20, "the first topic is read")
    admin.call("delete_topic", topic=made)
    admin.call("create_topic", topic=made, partitions=1)
    write(clients, made, range(7), lambda _: b"new")
    poll(lambda: seen()[30:] == list(range(7)), 30, f"the second topic is read from its start: {seen()[30:]}")
    client.call("member_stop", member=made)
    assert not journal.failure()
