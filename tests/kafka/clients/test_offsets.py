"""Start positions: earliest, latest, a time, an offset, and offsets out of range."""

from collections.abc import Callable

import pytest

from support.kafka_clients import Client, Record, RefusedError
from support.kafka_kinds import KINDS, able
from support.kafka_samples import T0

Clients = Callable[[str], Client]

RECORDS = [Record(0, b"k", b"%d" % i, (), T0 + at) for i, at in enumerate((0, 100, 300, 200, 400))]


def offset(client: Client, topic: str, at: int | str) -> int:
    """The offset that the client finds for a time or an end."""
    found: int = client.call("offsets", topic=topic, partition=0, at=at)
    return found


def test_offsets_by_time(client: Client, clients: Clients, made: str) -> None:
    kind = KINDS[client.name]
    writer = client if "timestamp" not in kind.lacks else clients("confluent-kafka")
    assert (offset(client, made, "earliest"), offset(client, made, "latest")) == (0, 0)
    writer.produce(made, RECORDS)
    assert (offset(client, made, "earliest"), offset(client, made, "latest")) == (0, 5)
    # The first record at that time or later, inside the batch.
    assert [offset(client, made, T0 + at) for at in (-5, 0, 1, 100, 150, 300, 350)] == [0, 0, 1, 1, 2, 2, 4]
    if "at nothing" not in kind.lacks and client.name != "kcat":
        assert offset(client, made, T0 + 401) == -1
    if "at max" not in kind.lacks:
        assert offset(client, made, "max") == 4


def test_seek(client: Client, clients: Clients, made: str) -> None:
    clients("confluent-kafka").produce(made, RECORDS)
    for start in (0, 2, 4):
        found = client.read(made, {0: start})
        assert ([record.offset for record in found.records], found.ends) == (list(range(start, 5)), {0: 5})
    assert client.read(made, {0: 5}) == ([], {0: 5})


@pytest.mark.parametrize("name", able("out of range"))
def test_out_of_range(clients: Clients, made: str, name: str) -> None:
    client = clients(name)
    clients("confluent-kafka").produce(made, RECORDS)
    with pytest.raises(RefusedError) as error:
        client.read(made, {0: 99})
    assert error.value.code == 1
    assert [record.offset for record in client.read(made, {0: 99}, reset="earliest").records] == [0, 1, 2, 3, 4]
