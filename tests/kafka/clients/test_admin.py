"""Topics, partitions, configs and deletions by the admin clients."""

from support.kafka_clients import Client, Record, refused
from support.kafka_kinds import KINDS

UNKNOWN_TOPIC, EXISTS, INVALID_PARTITIONS, INVALID_CONFIG = 3, 36, 37, 40


def test_the_life_of_a_topic(admin: Client, topic: str) -> None:
    admin.call("create_topic", topic=topic, partitions=2, configs={"retention.ms": "3600000"})
    assert refused(admin, "create_topic", topic=topic, partitions=2) == EXISTS
    assert admin.call("describe_topic", topic=topic) == {"partitions": 2}
    admin.call("create_partitions", topic=topic, total=4)
    assert admin.call("describe_topic", topic=topic) == {"partitions": 4}
    assert refused(admin, "create_partitions", topic=topic, total=3) == INVALID_PARTITIONS
    admin.produce(topic, [Record(3, b"k", b"in a new partition")])
    admin.call("delete_topic", topic=topic)
    assert refused(admin, "delete_topic", topic=topic) == UNKNOWN_TOPIC


def test_configs(admin: Client, topic: str) -> None:
    admin.call("create_topic", topic=topic, partitions=1, configs={"retention.ms": "3600000"})
    found = admin.call("describe_configs", topic=topic)
    assert (found["retention.ms"], found["cleanup.policy"]) == ("3600000", "delete")
    admin.call("alter_configs", topic=topic, configs={"retention.ms": "7200000", "retention.bytes": "1000000"})
    found = admin.call("describe_configs", topic=topic)
    assert (found["retention.ms"], found["retention.bytes"]) == ("7200000", "1000000")
    for wrong in ({"retention.ms": "soon"}, {"cleanup.policy": "shred"}, {"no.such.config": "1"}):
        assert refused(admin, "alter_configs", topic=topic, configs=wrong) == INVALID_CONFIG
    assert admin.call("describe_configs", topic=topic) == found


def test_a_topic_that_is_not_there(admin: Client, topic: str) -> None:
    kind = KINDS[admin.name]
    if "describe_configs unknown" not in kind.lacks:
        assert refused(admin, "describe_configs", topic=topic) == UNKNOWN_TOPIC
    assert refused(admin, "create_partitions", topic=topic, total=3) == UNKNOWN_TOPIC
    if "describe unknown" not in kind.lacks:
        assert refused(admin, "describe_topic", topic=topic) == UNKNOWN_TOPIC


def test_delete_records(admin: Client, made: str) -> None:
    admin.produce(made, [Record(1, b"k", b"%d" % i) for i in range(10)])
    admin.call("delete_records", topic=made, partition=1, offset=4)
    assert admin.call("offsets", topic=made, partition=1, at="earliest") == 4
    found = admin.read(made, {1: "earliest"})
    assert ([record.offset for record in found.records], found.ends) == ([4, 5, 6, 7, 8, 9], {1: 10})
    admin.call("delete_records", topic=made, partition=1, offset=10)
    assert admin.read(made, {1: "earliest"}) == ([], {1: 10})
