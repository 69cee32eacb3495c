"""Commands in confluent-kafka (librdkafka)."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from commands import Journal, Members, Record, RefusedError, Uncommitted, numbered, record, serve, unpacked
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

Command = dict[str, Any]

_STRATEGY = {"range": "range", "cooperative": "cooperative-sticky"}


def _settings(command: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    conn = command["conn"]
    settings: dict[str, Any] = {"bootstrap.servers": conn["bootstrap"], "log_level": 3}
    sasl, tls = "user" in conn, "ca" in conn
    if sasl or tls:
        settings["security.protocol"] = f"{'sasl_' if sasl else ''}{'ssl' if tls else 'plaintext'}"
    if sasl:
        settings |= {
            "sasl.mechanism": "PLAIN",
            "sasl.username": conn["user"],
            "sasl.password": conn["password"],
        }
    if tls:
        settings["ssl.ca.location"] = conn["ca"]
    return settings | more


def _admin(command: Command) -> AdminClient:
    failures: list[KafkaError] = []

    def failed(error: KafkaError) -> None:
        failures.append(error)

    admin = AdminClient(_settings(command, error_cb=failed, **{"socket.timeout.ms": 10000}))
    if "user" in command["conn"]:  # a refused login is reported to the callback only
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            admin.poll(0.05)
            if any(error.code() == KafkaError._AUTHENTICATION for error in failures):
                raise RefusedError(58, str(failures[0]))
            try:
                admin.list_topics(timeout=0.5)
                break
            except KafkaException:
                continue
    return admin


def _ask(command: Command, method: str, *facts: Any, **more: Any) -> Any:
    """Return the value of the only future of an AdminClient method. The client has to live until then."""
    admin = _admin(command)
    future = getattr(admin, method)(*facts, **more)
    if isinstance(future, dict):
        (future,) = future.values()
    return future.result(15)


def create_topic(command: Command) -> None:
    topic = NewTopic(command["topic"], command["partitions"], 1, config=command.get("configs", {}))
    _ask(command, "create_topics", [topic])


def describe_topic(command: Command) -> dict[str, int]:
    found = _ask(command, "describe_topics", TopicCollection([command["topic"]]))
    return {"partitions": len(found.partitions)}


def create_partitions(command: Command) -> None:
    _ask(command, "create_partitions", [NewPartitions(command["topic"], command["total"])])


def _resource(command: Command) -> ConfigResource:
    return ConfigResource(ConfigResource.Type.TOPIC, command["topic"])


def describe_configs(command: Command) -> dict[str, str]:
    return {name: entry.value for name, entry in _ask(command, "describe_configs", [_resource(command)]).items()}


def alter_configs(command: Command) -> None:
    resource = _resource(command)
    for name, value in command["configs"].items():
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    _ask(command, "incremental_alter_configs", [resource])


def delete_records(command: Command) -> None:
    where = TopicPartition(command["topic"], command["partition"], command["offset"])
    _ask(command, "delete_records", [where])


def delete_topic(command: Command) -> None:
    _ask(command, "delete_topics", [command["topic"]])


def _produce(command: Command, records: list[Record], pause: float = 0.0) -> list[list[int] | None]:
    producer = Producer(
        _settings(
            command,
            **{
                "acks": command["acks"],
                "compression.type": command.get("codec", "none"),
                "enable.idempotence": command.get("idempotent", False),
                "linger.ms": 5,
                "message.timeout.ms": int(command.get("seconds", 30) * 1000),
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.max.ms": 200,
            },
        )
    )
    places: list[list[int] | None] = [None] * len(records)
    failed: list[KafkaError] = []

    def delivered(number: int) -> Any:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)
            elif command["acks"] != 0:
                places[number] = [message.partition(), message.offset()]

        return report

    for number, item in enumerate(records):
        extra = {"timestamp": item["timestamp"]} if item.get("timestamp") is not None else {}
        producer.produce(
            command["topic"],
            key=unpacked(item["key"]),
            value=unpacked(item["value"]),
            partition=item["partition"],
            headers=[(name, unpacked(data)) for name, data in item.get("headers", [])],
            on_delivery=delivered(number),
            **extra,
        )
        if pause and number % 20 == 19:
            producer.poll(pause)
    left = producer.flush(command.get("seconds", 30) + 5)
    if failed:
        raise KafkaException(failed[0])
    if left:
        raise RuntimeError(f"{left} records are not delivered")
    return places


def produce(command: Command) -> list[list[int] | None]:
    return _produce(command, command["records"])


def produce_many(command: Command) -> list[list[int] | None]:
    records = numbered(command["count"], command["partitions"])
    return _produce(command, records, command.get("pause_ms", 0) / 1000)


def _record(message: Message) -> Record:
    return record(
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        message.headers() or [],
    )


def read(command: Command) -> dict[str, Any]:
    settings = {
        "group.id": "reads",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
        "fetch.queue.backoff.ms": 10,
        "auto.offset.reset": command.get("reset", "error"),
    }
    consumer = Consumer(_settings(command, **settings))
    try:
        start = {int(partition): offset for partition, offset in command["start"].items()}
        consumer.assign(
            [
                TopicPartition(command["topic"], partition, OFFSET_BEGINNING if offset == "earliest" else offset)
                for partition, offset in start.items()
            ]
        )
        records, ends = [], {}
        deadline = time.monotonic() + command.get("seconds", 30)
        while len(ends) < len(start):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no end after {len(records)} records; ends: {ends}")
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                records.append(_record(message))
                ends.pop(message.partition(), None)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[message.partition()] = message.offset()
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise RefusedError(1, str(error))
            elif not error.retriable() and error.code() > 0:
                raise KafkaException(error)
        return {"records": records, "ends": ends}
    finally:
        consumer.close()


def offsets(command: Command) -> int:
    at = command["at"]
    spec = {"earliest": OffsetSpec.earliest(), "latest": OffsetSpec.latest(), "max": OffsetSpec.max_timestamp()}
    where = TopicPartition(command["topic"], command["partition"])
    asked = spec[at] if isinstance(at, str) else OffsetSpec.for_timestamp(at)
    return int(_ask(command, "list_offsets", {where: asked}).offset)


def _group(command: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "group.id": command["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.max.ms": 200,
        "topic.metadata.refresh.interval.ms": 1000,
    }
    if command["protocol"] == "consumer":
        settings["group.protocol"] = "consumer"
    else:
        settings |= {
            "partition.assignment.strategy": _STRATEGY[command["protocol"]],
            "session.timeout.ms": command.get("session_ms", 10000),
            "heartbeat.interval.ms": 500,
        }
    if "instance" in command:
        settings["group.instance.id"] = command["instance"]
    return settings


def consume(command: Command) -> list[Record]:
    consumer = Consumer(_settings(command, **_group(command)))
    try:
        consumer.subscribe([command["topic"]])
        records: list[Record] = []
        deadline = time.monotonic() + command.get("seconds", 30)
        while len(records) < command["count"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {len(records)} records")
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                records.append(_record(message))
        if "offset" in command:
            places = [TopicPartition(each.topic, each.partition, command["offset"]) for each in consumer.assignment()]
            _checked(consumer.commit(offsets=places, asynchronous=False))
        else:
            consumer.commit(asynchronous=False)
        return records
    finally:
        consumer.close()


def committed(command: Command) -> dict[int, int]:
    asked = ConsumerGroupTopicPartitions(command["group"])
    found = _ask(command, "list_consumer_group_offsets", [asked])
    return {where.partition: where.offset for where in found.topic_partitions if where.topic == command["topic"]}


def commit(command: Command) -> None:
    places = [TopicPartition(command["topic"], int(p), offset) for p, offset in command["offsets"].items()]
    done = _ask(command, "alter_consumer_group_offsets", [ConsumerGroupTopicPartitions(command["group"], places)])
    _checked(done.topic_partitions)


def _checked(places: Iterable[TopicPartition]) -> None:
    for where in places:
        if where.error is not None:
            raise KafkaException(where.error)


def groups(command: Command) -> list[str]:
    return [group.group_id for group in _ask(command, "list_consumer_groups").valid]


def describe_group(command: Command) -> dict[str, Any]:
    found = _ask(command, "describe_consumer_groups", [command["group"]])
    return {"state": found.state.name.lower().replace("_", ""), "members": len(found.members)}


def delete_group(command: Command) -> None:
    _ask(command, "delete_consumer_groups", [command["group"]])


def transaction(command: Command) -> None:
    producer = Producer(_settings(command, **{"transactional.id": command["id"]}))
    producer.init_transactions(10)


def _member(command: Mapping[str, Any], stop: threading.Event, journal: Journal) -> None:
    consumer = Consumer(_settings(command, **_group(command)))

    def commit(after: dict[int, int]) -> None:
        places = [TopicPartition(command["topic"], partition, offset) for partition, offset in after.items()]
        for place in consumer.commit(offsets=places, asynchronous=False):
            if place.error is not None:
                raise KafkaException(place.error)

    def told(event: Callable[[list[int]], None]) -> Any:
        return lambda _, places: event([place.partition for place in places])

    uncommitted = Uncommitted(journal, commit, KafkaException)
    consumer.subscribe(
        [command["topic"]],
        on_assign=told(lambda partitions: journal.write("assigned", partitions)),
        on_revoke=told(uncommitted.revoked),
        on_lost=told(uncommitted.lost),
    )
    for _ in uncommitted.steps(stop):
        messages = [message for message in consumer.consume(50, 0.1) if message.error() is None]
        uncommitted.processed([(message.partition(), message.offset()) for message in messages])
    journal.write("leaving")
    consumer.close()


def _refusal(error: Exception) -> int | None:
    cause = error.args[0] if isinstance(error, KafkaException) and error.args else None
    if not isinstance(cause, KafkaError):
        return None
    return 58 if cause.code() == KafkaError._AUTHENTICATION else cause.code()


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
