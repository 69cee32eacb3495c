"""Groups of one member: joining, committing, leaving, and administration."""

from collections.abc import Callable

import pytest

from support.kafka_clients import Client, Record, refused
from support.kafka_kinds import KINDS, able

PAIRS = [(name, protocol) for name, kind in KINDS.items() for protocol in kind.protocols]
UNKNOWN_GROUP = 69
Clients = Callable[[str], Client]


def some(count: int, first: int = 0) -> list[Record]:
    """Numbered records over three partitions."""
    return [Record(i % 3, b"k", b"%d" % i) for i in range(first, first + count)]


@pytest.mark.parametrize(("name", "protocol"), PAIRS)
def test_a_group_goes_on_where_it_was(clients: Clients, made: str, name: str, protocol: str) -> None:
    client, admin = clients(name), clients("confluent-kafka")
    group = f"g-{made}"
    admin.produce(made, some(30))
    first = client.consume(made, group, 30, protocol)
    places = [(record.partition, record.offset) for record in first]
    assert sorted(places) == [(p, offset) for p in range(3) for offset in range(10)]
    assert [offset for p, offset in places if p == 1] == list(range(10))  # in order
    assert admin.committed(made, group) == {0: 10, 1: 10, 2: 10}
    admin.produce(made, some(9))
    again = client.consume(made, group, 9, protocol)
    assert sorted((record.partition, record.offset) for record in again) == [
        (p, offset) for p in range(3) for offset in range(10, 13)
    ]
    assert admin.committed(made, group) == {0: 13, 1: 13, 2: 13}
    assert group in admin.call("groups")
    assert admin.call("describe_group", group=group) == {"state": "empty", "members": 0}


FAR = [(name, protocol) for name, protocol in PAIRS if name in able("member")]


@pytest.mark.parametrize(("name", "protocol"), FAR)
def test_a_member_may_commit_beyond_the_end(clients: Clients, made: str, name: str, protocol: str) -> None:
    """Kafka stores any position; a consumer that starts there gets an out-of-range error."""
    client, admin = clients(name), clients("confluent-kafka")
    group = f"g-{made}"
    admin.produce(made, some(6))
    assert len(client.consume(made, group, 6, protocol, offset=500)) == 6
    assert admin.committed(made, group) == {0: 500, 1: 500, 2: 500}
    if name == "confluent-kafka":
        return  # it never commits a position below the existing one
    assert len(client.consume(made, group, 6, protocol)) == 6, "its reset is to the earliest"
    assert admin.committed(made, group) == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("name", [name for name in able("commit") if name in able("admin")])
def test_an_admin_may_set_an_offset_beyond_the_end(clients: Clients, made: str, name: str) -> None:
    clients(name).call("commit", group=f"g-{made}", topic=made, offsets={0: 500, 2: 0})
    assert clients("confluent-kafka").committed(made, f"g-{made}") == {0: 500, 2: 0}


@pytest.mark.parametrize("name", able("static"))
def test_a_static_member(clients: Clients, made: str, name: str) -> None:
    client = clients(name)
    client.produce(made, some(12))
    assert len(client.consume(made, f"g-{made}", 12, "range", instance="one")) == 12
    client.produce(made, some(6))
    assert len(client.consume(made, f"g-{made}", 6, "range", instance="one")) == 6


def test_admins_of_groups(admin: Client, clients: Clients, made: str) -> None:
    kind = KINDS[admin.name]
    group, other = f"g-{made}", clients("confluent-kafka")
    other.produce(made, some(30))
    (admin if "commit" not in kind.lacks else other).call("commit", group=group, topic=made, offsets={0: 4, 2: 10})
    assert admin.committed(made, group) == {0: 4, 2: 10}
    assert group in admin.call("groups")
    rest = other.consume(made, group, 16)
    assert sorted((record.partition, record.offset) for record in rest) == [
        *((0, offset) for offset in range(4, 10)), *((1, offset) for offset in range(10)),
    ]  # fmt: skip
    if "describe_group" not in kind.lacks:
        assert admin.call("describe_group", group=group) == {"state": "empty", "members": 0}
    if "delete_group" not in kind.lacks:
        admin.call("delete_group", group=group)
        assert group not in admin.call("groups")
        assert refused(admin, "delete_group", group=group) == UNKNOWN_GROUP
