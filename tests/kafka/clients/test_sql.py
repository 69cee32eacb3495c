"""Changes of tables in a topic: Kafka clients, HTTP, gRPC and SQL consumers show each once, and share positions."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import grpc

from support.http import Api
from support.kafka_clients import Client
from support.server import ServerProcess
from support.sql import Sql, error_of, payload
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1 import topics_service_pb2_grpc
from topics_service.engine.placement import SQL_SHARD, home_of

Clients = Callable[[str], Client]
SHARDS = 8
"""Of the cluster of TOPICS_KAFKA_NODES."""
CLIENT = "confluent-kafka"


def test_every_protocol_shows_each_change_once(kafka: ServerProcess, api: Api, clients: Clients) -> None:
    sql, name = Sql(api), f"k{uuid.uuid4().hex[:8]}"
    topic = f"{name}.events"
    sql.results(
        f"""
        CREATE TABLE {name}.t (id INT PRIMARY KEY, body TEXT);
        CREATE TOPIC {topic} PARTITIONS 2;
        ALTER TOPIC {topic} ADD SOURCE {name}.t ON INSERT WITH (payload = 'full');
        ALTER TOPIC {topic} ADD SOURCE {name}.t ON DELETE WITH (payload = 'full', tombstones = on);
        """
    )
    sql.run(f"INSERT INTO {name}.t VALUES " + ", ".join(f"({n}, 'b{n}')" for n in range(20)))
    sql.run(f"DELETE FROM {name}.t WHERE id = 3")
    client = clients(CLIENT)
    for partition in (0, 1):
        messages = sql.consume(topic, "all", partition_id=partition)["messages"]
        expected = [
            (
                message["offset"],
                message["key"],
                None if message["payload"] is None else payload(message),
                {key: message[key] for key in ("message_id", "source_table", "op", "payload_mode")},
            )
            for message in messages
        ]
        records = api.read(topic, partition=partition, include_tags=True, limit=1000)["records"]
        assert [(r["$seq"] - 1, r["$tag"], r["data"], r["meta"]) for r in records] == expected
        with grpc.insecure_channel(kafka.grpc_target) as channel:
            stub: Any = topics_service_pb2_grpc.TopicsServiceStub(channel)
            reply = stub.Diff(pb.DiffRequest(topic=topic, partition=partition, include_tags=True, limit=1000))
        assert [(r.seq - 1, r.tag, json.loads(r.data), json.loads(r.meta)) for r in reply.records] == expected
        found = client.read(topic, {partition: "earliest"})
        assert [
            (
                None if record.key is None else record.key.decode(),
                None if record.value is None else json.loads(record.value),
                {key: (value or b"").decode() for key, value in record.headers},
            )
            for record in found.records
        ] == [each[1:] for each in expected]
    total = [len(sql.consume(topic, "all", partition_id=partition)["messages"]) for partition in (0, 1)]
    assert (sum(total), min(total) > 0) == (21, True)


def test_positions_are_those_of_kafka_groups(api: Api, clients: Clients) -> None:
    sql, name = Sql(api), f"k{uuid.uuid4().hex[:8]}"
    topic = f"{name}.events"
    # With several shards the system table has the groups of the shard of SQL.
    group = next(each for n in range(1000) if home_of(each := f"g{n}-{name}", SHARDS) == SQL_SHARD)
    sql.results(
        f"""
        CREATE TABLE {name}.t (id INT PRIMARY KEY);
        CREATE TOPIC {topic};
        ALTER TOPIC {topic} ADD SOURCE {name}.t ON INSERT;
        INSERT INTO {name}.t VALUES (0), (1), (2), (3), (4);
        """
    )
    client = clients(CLIENT)
    assert sql.ack(topic, group, 1) == 1
    assert client.committed(topic, group) == {0: 2}
    read = client.consume(topic, group, 3)
    assert [json.loads(record.value or b"") for record in read] == [{"id": 2}, {"id": 3}, {"id": 4}]
    assert client.committed(topic, group) == {0: 5}
    assert sql.consume(topic, group)["messages"] == []
    error_of(sql.post("ack", topic=topic, group_id=group, upto_offset=5), "invalid_request", 400)
    row = sql.rows("SELECT last_acked_offset, lag FROM system.topic_offsets WHERE group_id = $1", group)
    assert row == [{"last_acked_offset": 4, "lag": 0}]
