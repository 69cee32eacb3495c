"""Commands in aiokafka."""

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import BrokerResponseError, KafkaError, OffsetOutOfRangeError
from commands import Journal, Members, Record, RefusedError, numbered, record, serve, unpacked

Command = dict[str, Any]

_STRATEGY = {"range": RangePartitionAssignor, "sticky": StickyPartitionAssignor}


def _settings(command: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    conn = command["conn"]
    settings: dict[str, Any] = {"bootstrap_servers": conn["bootstrap"]}
    sasl, tls = "user" in conn, "ca" in conn
    settings["security_protocol"] = f"{'SASL_' if sasl else ''}{'SSL' if tls else 'PLAINTEXT'}"
    if sasl:
        settings |= {
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": conn["user"],
            "sasl_plain_password": conn["password"],
        }
    if tls:
        settings["ssl_context"] = ssl.create_default_context(cafile=conn["ca"])
    return settings | more


@contextlib.asynccontextmanager
async def _admin(command: Command) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(**_settings(command))
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


def _checked(code: int, message: object = "") -> None:
    if code:
        raise RefusedError(code, str(message))


async def create_topic(command: Command) -> None:
    topic = NewTopic(command["topic"], command["partitions"], 1, topic_configs=command.get("configs", {}))
    async with _admin(command) as admin:
        reply = await admin.create_topics([topic])
    _checked(reply.topic_errors[0][1], reply)


async def describe_topic(command: Command) -> dict[str, int]:
    async with _admin(command) as admin:
        (found,) = await admin.describe_topics([command["topic"]])
    _checked(found["error_code"], found)
    return {"partitions": len(found["partitions"])}


async def create_partitions(command: Command) -> None:
    async with _admin(command) as admin:
        await admin.create_partitions({command["topic"]: NewPartitions(command["total"])})


async def describe_configs(command: Command) -> dict[str, str]:
    async with _admin(command) as admin:
        (reply,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, command["topic"])])
    code, message, _, _, entries = reply.resources[0]
    _checked(code, message)
    return {entry[0]: entry[1] for entry in entries}


async def alter_configs(command: Command) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, command["topic"], configs=command["configs"])
    async with _admin(command) as admin:
        (reply,) = await admin.alter_configs([resource])
    _checked(*reply.resources[0][:2])


async def delete_records(command: Command) -> None:
    where = TopicPartition(command["topic"], command["partition"])
    async with _admin(command) as admin:
        await admin.delete_records({where: RecordsToDelete(before_offset=command["offset"])})


async def delete_topic(command: Command) -> None:
    async with _admin(command) as admin:
        reply = await admin.delete_topics([command["topic"]])
    _checked(reply.topic_error_codes[0][1], reply)


async def _produce(command: Command, records: list[Record], pause: float = 0.0) -> list[list[int] | None]:
    codec = command.get("codec", "none")
    producer = AIOKafkaProducer(
        **_settings(
            command,
            acks={-1: "all"}.get(command["acks"], command["acks"]),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=command.get("idempotent", False),
            linger_ms=5,
            request_timeout_ms=int(command.get("seconds", 30) * 1000),
        )
    )
    await producer.start()
    try:
        futures = []
        for number, item in enumerate(records):
            futures.append(
                await producer.send(
                    command["topic"],
                    key=unpacked(item["key"]),
                    value=unpacked(item["value"]),
                    partition=item["partition"],
                    headers=[(name, unpacked(data)) for name, data in item.get("headers", [])],
                    timestamp_ms=item.get("timestamp"),
                )
            )
            if pause and number % 20 == 19:
                await asyncio.sleep(pause)
        done = [await future for future in futures]
        return [None if command["acks"] == 0 else [place.partition, place.offset] for place in done]
    finally:
        await producer.stop()


async def produce(command: Command) -> list[list[int] | None]:
    return await _produce(command, command["records"])


async def produce_many(command: Command) -> list[list[int] | None]:
    records = numbered(command["count"], command["partitions"])
    return await _produce(command, records, command.get("pause_ms", 0) / 1000)


def _record(found: Any) -> Record:
    return record(found.partition, found.offset, found.timestamp, found.key, found.value, list(found.headers))


async def read(command: Command) -> dict[str, Any]:
    reset = command.get("reset", "error")
    settings = {"auto_offset_reset": "none" if reset == "error" else reset, "enable_auto_commit": False}
    consumer = AIOKafkaConsumer(**_settings(command, **settings))
    await consumer.start()
    try:
        start = {TopicPartition(command["topic"], int(p)): offset for p, offset in command["start"].items()}
        consumer.assign(list(start))
        for where, offset in start.items():
            if offset == "earliest":
                await consumer.seek_to_beginning(where)
            else:
                consumer.seek(where, offset)
        records: list[Record] = []
        deadline = time.monotonic() + command.get("seconds", 30)
        ends = await consumer.end_offsets(list(start))
        while any([await consumer.position(where) != ends[where] for where in start]):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no end after {len(records)} records; ends: {ends}")
            for found in (await consumer.getmany(timeout_ms=200)).values():
                records += map(_record, found)
        return {"records": records, "ends": {where.partition: await consumer.position(where) for where in start}}
    finally:
        await consumer.stop()


async def offsets(command: Command) -> int:
    where, at = TopicPartition(command["topic"], command["partition"]), command["at"]
    consumer = AIOKafkaConsumer(**_settings(command))
    await consumer.start()
    try:
        if at == "earliest":
            return int((await consumer.beginning_offsets([where]))[where])
        if at == "latest":
            return int((await consumer.end_offsets([where]))[where])
        found = (await consumer.offsets_for_times({where: at}))[where]
        return -1 if found is None else int(found.offset)
    finally:
        await consumer.stop()


def _group(command: Mapping[str, Any]) -> AIOKafkaConsumer:
    settings: dict[str, Any] = {
        "group_id": command["group"],
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "partition_assignment_strategy": [_STRATEGY[command["protocol"]]],
        "session_timeout_ms": command.get("session_ms", 10000),
        "heartbeat_interval_ms": 500,
        "fetch_max_wait_ms": 100,
    }
    if "instance" in command:
        settings["group_instance_id"] = command["instance"]
    return AIOKafkaConsumer(**_settings(command, **settings))


async def consume(command: Command) -> list[Record]:
    consumer = _group(command)
    consumer.subscribe([command["topic"]])
    await consumer.start()
    try:
        records: list[Record] = []
        deadline = time.monotonic() + command.get("seconds", 30)
        while len(records) < command["count"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {len(records)} records")
            for found in (await consumer.getmany(timeout_ms=200)).values():
                records += map(_record, found)
        offset = command.get("offset")
        await consumer.commit(None if offset is None else dict.fromkeys(consumer.assignment(), offset))
        return records
    finally:
        await consumer.stop()


async def committed(command: Command) -> dict[int, int]:
    async with _admin(command) as admin:
        found = await admin.list_consumer_group_offsets(command["group"])
    return {where.partition: place.offset for where, place in found.items() if where.topic == command["topic"]}


async def groups(command: Command) -> list[str]:
    async with _admin(command) as admin:
        return [name for name, *_ in await admin.list_consumer_groups()]


async def transaction(command: Command) -> None:
    producer = AIOKafkaProducer(**_settings(command, transactional_id=command["id"]))
    try:
        await producer.start()
    finally:
        await producer.stop()


class _Listener(ConsumerRebalanceListener):
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self._journal.write("revoked", [where.partition for where in revoked])

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._journal.write("assigned", [where.partition for where in assigned])


async def _follow(command: Mapping[str, Any], stop: threading.Event, journal: Journal) -> None:
    consumer = _group(command)
    consumer.subscribe([command["topic"]], listener=_Listener(journal))
    await consumer.start()
    while not stop.is_set():
        found = await consumer.getmany(timeout_ms=100, max_records=50)
        after = {where: records[-1].offset + 1 for where, records in found.items() if records}
        if not after:
            continue
        journal.write("records", [[item.partition, item.offset] for records in found.values() for item in records])
        journal.write("committing", {where.partition: offset for where, offset in after.items()})
        try:
            await consumer.commit(after)
            journal.write("committed", {where.partition: offset for where, offset in after.items()})
        except KafkaError as error:
            journal.write("refused", repr(error))
    journal.write("leaving")
    await consumer.stop()


def _member(command: Mapping[str, Any], stop: threading.Event, journal: Journal) -> None:
    asyncio.run(_follow(command, stop, journal))


def _refusal(error: Exception) -> int | None:
    if isinstance(error, OffsetOutOfRangeError):
        return 1
    return error.errno if isinstance(error, BrokerResponseError) else None


def _run(command: Callable[[Command], Awaitable[Any]]) -> Callable[[Command], Any]:
    async def bounded(facts: Command) -> Any:
        try:
            async with asyncio.timeout(facts.get("seconds", 30) + 15):
                return await command(facts)
        except asyncio.CancelledError:  # stop() raises it for a task that it has cancelled itself
            raise RuntimeError("cancelled") from None

    return lambda facts: asyncio.run(bounded(facts))


_MEMBERS = Members(_member)

if __name__ == "__main__":
    serve(
        {
            "alter_configs": _run(alter_configs),
            "committed": _run(committed),
            "consume": _run(consume),
            "create_partitions": _run(create_partitions),
            "create_topic": _run(create_topic),
            "delete_records": _run(delete_records),
            "delete_topic": _run(delete_topic),
            "describe_configs": _run(describe_configs),
            "describe_topic": _run(describe_topic),
            "groups": _run(groups),
            "member_start": _MEMBERS.start,
            "member_stop": _MEMBERS.stop,
            "offsets": _run(offsets),
            "produce": _run(produce),
            "produce_many": _run(produce_many),
            "read": _run(read),
            "transaction": _run(transaction),
        },
        _refusal,
    )
