"""Clients read the records that they wrote, with every codec, at the offsets that were acknowledged."""

from collections.abc import Callable

import pytest

from support.kafka_clients import Client, Record, refused
from support.kafka_kinds import KINDS, WITH_ADMIN, able
from support.kafka_samples import by_partition, mixed, placed, without_times
from support.waiting import poll

PAIRS = [(name, codec) for name, kind in KINDS.items() for codec in kind.codecs]


def check(client: Client, topic: str, written: list[list[Record]]) -> None:
    """Check that the topic holds exactly these batches of records."""
    kind = KINDS[client.name]
    expected = placed([record for records in written for record in records])
    found = client.read(topic, dict.fromkeys(expected, "earliest"))
    read: dict[int, list[Record]] = {partition: [] for partition in expected}
    for record in found.records:
        read[record.partition].append(record)
    if "timestamp" in kind.lacks:
        read = without_times(read)
    assert read == expected
    assert found.ends == {partition: len(records) for partition, records in expected.items()}


def arrived(client: Client, topic: str, records: list[Record]) -> None:
    """Wait for records written with acks=0, which are not acknowledged and may be overtaken by other connections."""
    counts = {partition: len(some) for partition, some in by_partition(records).items()}
    asked = {"topic": topic, "at": "latest"}
    poll(lambda: all(client.call("offsets", partition=p, **asked) >= count for p, count in counts.items()), 20)


@pytest.mark.parametrize(("name", "codec"), PAIRS)
def test_codecs(clients: Callable[[str], Client], made: str, name: str, codec: str) -> None:
    client, kind = clients(name), KINDS[name]
    records = mixed(kind)
    places = client.produce(made, records, codec=codec)
    if "places" not in kind.lacks:
        counts = dict.fromkeys(range(3), 0)
        for record, place in zip(records, places, strict=True):
            assert place == [record.partition, counts[record.partition]]
            counts[record.partition] += 1
    check(client, made, [records])


def test_acks_and_idempotence(client: Client, made: str) -> None:
    records = mixed(KINDS[client.name])
    client.produce(made, records, acks=0)
    arrived(client, made, records)
    client.produce(made, records, acks=1)
    client.produce(made, records, acks=-1)
    client.produce(made, records, acks=-1, idempotent=True)
    check(client, made, [records] * 4)


def test_large_and_many(admin: Client, made: str) -> None:
    records = [Record(i % 3, b"k", b"%d" % i * 100) for i in range(2000)]
    big = Record(1, b"big", b"x" * 900_000)
    admin.produce(made, records, acks=-1, idempotent=True)
    admin.produce(made, [big], acks=-1, idempotent=True)
    found = admin.read(made, {0: "earliest", 1: "earliest", 2: "earliest"})
    read = sorted(found.records, key=lambda record: (record.partition, record.offset or 0))
    expected = sorted([*records, big], key=lambda record: record.partition)
    assert [(r.partition, r.value) for r in read] == [(r.partition, r.value) for r in expected]


@pytest.mark.parametrize("name", able("transaction"))
def test_a_transactional_producer_is_refused(clients: Callable[[str], Client], name: str) -> None:
    assert refused(clients(name), "transaction", id="t") == 53


@pytest.mark.soak
@pytest.mark.parametrize("size", [10, 1000, 20_000])
@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize(("name", "codec"), [pair for pair in PAIRS if pair[0] in WITH_ADMIN])
def test_matrix(clients: Callable[[str], Client], made: str, name: str, codec: str, acks: int, size: int) -> None:
    client = clients(name)
    batches = [[Record(i % 3, b"%d" % i, b"%d," % i * (size // 5), (), 1_700_000_000_000) for i in range(200)]] * 3
    for number, records in enumerate(batches, 1):
        client.produce(made, records, codec=codec, acks=acks)
        arrived(client, made, records * number)
    check(client, made, batches)
