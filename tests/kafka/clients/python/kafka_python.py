"""Commands in kafka-python."""

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import kafka.errors
from commands import Journal, Members, Record, RefusedError, Uncommitted, numbered, record, serve, unpacked
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import BrokerResponseError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

Command = dict[str, Any]

_STRATEGY = {"range": RangePartitionAssignor, "cooperative": CooperativeStickyAssignor}


def _settings(command: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    conn = command["conn"]
    settings: dict[str, Any] = {"bootstrap_servers": conn["bootstrap"], "bootstrap_timeout_ms": 5000}
    sasl, tls = "user" in conn, "ca" in conn
    settings["security_protocol"] = f"{'SASL_' if sasl else ''}{'SSL' if tls else 'PLAINTEXT'}"
    if sasl:
        settings |= {
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": conn["user"],
            "sasl_plain_password": conn["password"],
        }
    if tls:
        settings["ssl_cafile"] = conn["ca"]
    return settings | more


@contextlib.contextmanager
def _admin(command: Command) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(**_settings(command))
    try:
        yield admin
    finally:
        admin.close()


def _checked(code: int, message: object = "") -> None:
    if code:
        raise RefusedError(code, str(message))


def _spelled(outcome: str) -> None:
    """Raise errors that some calls return as text: `[Error 40] ...`."""
    found = re.match(r"\[Error (\d+)\]", outcome)
    if found:
        raise RefusedError(int(found[1]), outcome)


def create_topic(command: Command) -> None:
    with _admin(command) as admin:
        admin.create_topics(
            {command["topic"]: {"num_partitions": command["partitions"], "configs": command.get("configs", {})}}
        )


def describe_topic(command: Command) -> dict[str, int]:
    with _admin(command) as admin:
        (found,) = admin.describe_topics([command["topic"]])
    _checked(found.get("error_code", 0), found)
    return {"partitions": len(found["partitions"])}


def create_partitions(command: Command) -> None:
    with _admin(command) as admin:
        admin.create_partitions({command["topic"]: command["total"]})


def describe_configs(command: Command) -> dict[str, str]:
    with _admin(command) as admin:
        found = admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, command["topic"])], config_filter="all"
        )
    return {name: entry["value"] for name, entry in found["topic"][command["topic"]].items()}


def alter_configs(command: Command) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, command["topic"], configs=command["configs"])
    with _admin(command) as admin:
        found = admin.alter_configs([resource], raise_on_unknown=False)
    _spelled(found["topic"][command["topic"]])


def delete_records(command: Command) -> None:
    with _admin(command) as admin:
        admin.delete_records({TopicPartition(command["topic"], command["partition"]): command["offset"]})


def delete_topic(command: Command) -> None:
    with _admin(command) as admin:
        admin.delete_topics([command["topic"]])


def _produce(command: Command, records: list[Record], pause: float = 0.0) -> list[list[int] | None]:
    codec = command.get("codec", "none")
    producer = KafkaProducer(
        **_settings(
            command,
            acks={-1: "all"}.get(command["acks"], command["acks"]),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=command.get("idempotent", False),
            linger_ms=5,
            delivery_timeout_ms=int(command.get("seconds", 30) * 1000),
            request_timeout_ms=10000,
            reconnect_backoff_max_ms=200,
        )
    )
    try:
        futures = []
        for number, item in enumerate(records):
            futures.append(
                producer.send(
                    command["topic"],
                    key=unpacked(item["key"]),
                    value=unpacked(item["value"]),
                    partition=item["partition"],
                    headers=[(name, unpacked(data)) for name, data in item.get("headers", [])],
                    timestamp_ms=item.get("timestamp"),
                )
            )
            if pause and number % 20 == 19:
                time.sleep(pause)
        producer.flush(command.get("seconds", 30))
        done = [future.get(command.get("seconds", 30)) for future in futures]
        return [None if command["acks"] == 0 else [place.partition, place.offset] for place in done]
    finally:
        producer.close(5)


def produce(command: Command) -> list[list[int] | None]:
    return _produce(command, command["records"])


def produce_many(command: Command) -> list[list[int] | None]:
    records = numbered(command["count"], command["partitions"])
    return _produce(command, records, command.get("pause_ms", 0) / 1000)


def _record(found: Any) -> Record:
    return record(found.partition, found.offset, found.timestamp, found.key, found.value, list(found.headers))


def read(command: Command) -> dict[str, Any]:
    reset = command.get("reset", "error")
    consumer = KafkaConsumer(**_settings(command, auto_offset_reset="none" if reset == "error" else reset))
    try:
        start = {TopicPartition(command["topic"], int(p)): offset for p, offset in command["start"].items()}
        consumer.assign(list(start))
        for where, offset in start.items():
            if offset == "earliest":
                consumer.seek_to_beginning(where)
            else:
                consumer.seek(where, offset)
        records: list[Record] = []
        deadline = time.monotonic() + command.get("seconds", 30)
        ends = consumer.end_offsets(list(start))
        while any(consumer.position(where) != ends[where] for where in start):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no end after {len(records)} records; ends: {ends}")
            for found in consumer.poll(200).values():
                records += map(_record, found)
        return {"records": records, "ends": {where.partition: consumer.position(where) for where in start}}
    finally:
        consumer.close(autocommit=False)


def offsets(command: Command) -> int:
    where, at = TopicPartition(command["topic"], command["partition"]), command["at"]
    consumer = KafkaConsumer(**_settings(command))
    try:
        if at == "earliest":
            return int(consumer.beginning_offsets([where])[where])
        if at == "latest":
            return int(consumer.end_offsets([where])[where])
        found = consumer.offsets_for_times({where: -3 if at == "max" else at})[where]
        return -1 if found is None else int(found.offset)
    finally:
        consumer.close(autocommit=False)


def _group(command: Mapping[str, Any]) -> KafkaConsumer:
    settings: dict[str, Any] = {
        "group_id": command["group"],
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "partition_assignment_strategy": [_STRATEGY[command["protocol"]]],
        "session_timeout_ms": command.get("session_ms", 10000),
        "heartbeat_interval_ms": 500,
        "reconnect_backoff_max_ms": 200,
        "fetch_max_wait_ms": 100,
    }
    if "instance" in command:
        settings["group_instance_id"] = command["instance"]
    return KafkaConsumer(**_settings(command, **settings))


def consume(command: Command) -> list[Record]:
    consumer = _group(command)
    try:
        consumer.subscribe([command["topic"]])
        records: list[Record] = []
        deadline = time.monotonic() + command.get("seconds", 30)
        while len(records) < command["count"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {len(records)} records")
            for found in consumer.poll(200).values():
                records += map(_record, found)
        offset = command.get("offset")
        places = None if offset is None else dict.fromkeys(consumer.assignment(), OffsetAndMetadata(offset, "", -1))
        consumer.commit(places)
        return records
    finally:
        consumer.close(autocommit=False)


def committed(command: Command) -> dict[int, int]:
    with _admin(command) as admin:
        found = admin.list_group_offsets({command["group"]: None})[command["group"]]
    return {where.partition: place.offset for where, place in found.items() if where.topic == command["topic"]}


def commit(command: Command) -> None:
    places = {
        TopicPartition(command["topic"], int(p)): OffsetAndMetadata(offset, "", -1)
        for p, offset in command["offsets"].items()
    }
    with _admin(command) as admin:
        done = admin.alter_group_offsets(command["group"], places)
    for outcome in done.values():
        _checked(outcome.errno, outcome)


def groups(command: Command) -> list[str]:
    with _admin(command) as admin:
        return [group["group_id"] for group in admin.list_groups()]


def describe_group(command: Command) -> dict[str, Any]:
    with _admin(command) as admin:
        found = admin.describe_groups([command["group"]])[command["group"]]
    return {"state": found["group_state"].lower(), "members": len(found["members"])}


def delete_group(command: Command) -> None:
    with _admin(command) as admin:
        done = admin.delete_groups([command["group"]])
    outcome = done[command["group"]]  # "OK" or the name of an error
    if outcome != "OK":
        raise RefusedError(getattr(kafka.errors, outcome).errno, outcome)


def transaction(command: Command) -> None:
    producer = KafkaProducer(**_settings(command, transactional_id=command["id"]))
    try:
        producer.init_transactions()
    finally:
        producer.close(1)


class _Listener(ConsumerRebalanceListener):
    def __init__(self, journal: Journal, uncommitted: Uncommitted) -> None:
        self._journal = journal
        self._uncommitted = uncommitted

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._uncommitted.revoked([where.partition for where in revoked])

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._journal.write("assigned", [where.partition for where in assigned])

    def on_partitions_lost(self, lost: Any) -> None:
        self._uncommitted.lost([where.partition for where in lost])


def _member(command: Mapping[str, Any], stop: threading.Event, journal: Journal) -> None:
    consumer, topic = _group(command), command["topic"]

    def commit(after: dict[int, int]) -> None:
        consumer.commit({TopicPartition(topic, p): OffsetAndMetadata(offset, "", -1) for p, offset in after.items()})

    uncommitted = Uncommitted(journal, commit, Exception)
    consumer.subscribe([topic], listener=_Listener(journal, uncommitted))
    for _ in uncommitted.steps(stop):
        found = consumer.poll(100, max_records=50)
        uncommitted.processed([(item.partition, item.offset) for records in found.values() for item in records])
    journal.write("leaving")
    consumer.close(autocommit=False)


def _refusal(error: Exception) -> int | None:
    if isinstance(error, OffsetOutOfRangeError):
        return 1
    return error.errno if isinstance(error, BrokerResponseError) else None


_MEMBERS = Members(_member)

if __name__ == "__main__":
    serve(
        {
            "alter_configs": alter_configs,
            "commit": commit,
            "committed": committed,
            "consume": consume,
            "create_partitions": create_partitions,
            "create_topic": create_topic,
            "delete_group": delete_group,
            "delete_records": delete_records,
            "delete_topic": delete_topic,
            "describe_configs": describe_configs,
            "describe_group": describe_group,
            "describe_topic": describe_topic,
            "groups": groups,
            "member_start": _MEMBERS.start,
            "member_stop": _MEMBERS.stop,
            "offsets": offsets,
            "produce": produce,
            "produce_many": produce_many,
            "read": read,
            "transaction": transaction,
        },
        _refusal,
    )
