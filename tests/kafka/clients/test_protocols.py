"""One topic, every protocol: records of Kafka clients are read over HTTP and gRPC and the other way, one by one."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import pytest

from support.http import Api, ok
from support.kafka_clients import Client, Record
from support.kafka_kinds import KINDS
from support.kafka_samples import by_partition, mixed
from support.server import ServerProcess
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1 import topics_service_pb2_grpc
from topics_proto.v1.record_pb2 import RECORD_KIND_BINARY, RECORD_KIND_JSON, AppendRecord

Clients = Callable[[str], Client]


class Event(NamedTuple):
    """A record of HTTP and gRPC; `meta` is None if there is none."""

    seq: int
    tag: str | None
    data: bytes
    binary: bool
    meta: dict[str, Any] | None


@pytest.fixture(scope="module")
def stub(kafka: ServerProcess) -> Iterator[Any]:
    with grpc.insecure_channel(kafka.grpc_target) as channel:
        yield topics_service_pb2_grpc.TopicsServiceStub(channel)


def based(data: bytes) -> dict[str, str]:
    """Bytes that are no text, within JSON."""
    return {"$base64": base64.b64encode(data).decode()}


def shown(data: bytes | None) -> Any:
    """A header's value as a member of meta."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return based(data)


def event(seq: int, record: Record) -> Event:
    """The record that other protocols must show for a Kafka record."""
    meta: dict[str, Any] = {}
    tag = None
    if record.key is not None:
        try:
            tag = record.key.decode()
        except UnicodeDecodeError:
            tag = None
        if tag is None or len(record.key) > 256:
            tag, meta["$key"] = None, based(record.key)
    names = [name for name, _ in record.headers]
    for name, data in record.headers:
        if names.count(name) > 1:
            meta.setdefault(name, []).append(shown(data))
        else:
            meta[name] = shown(data)
    data = b"null" if record.value is None else record.value
    try:
        json.loads(data)
        binary = False
    except ValueError:
        binary = True
    return Event(seq, tag, data, binary, meta or None)


def over_http(api: Api, topic: str, partition: int) -> list[Event]:
    """A partition read over HTTP. JSON data is compared by value, which `event` never formats differently."""
    found = []
    for record in api.read(topic, partition=partition, include_tags=True, limit=1000)["records"]:
        binary = record.get("$encoding") == "base64"
        data = base64.b64decode(record["data"]) if binary else json.dumps(record["data"]).encode()
        found.append(Event(record["$seq"], record.get("$tag"), data, binary, record.get("meta")))
    return found


def over_grpc(stub: Any, topic: str, partition: int) -> list[Event]:
    """A partition read over gRPC."""
    reply = stub.Diff(pb.DiffRequest(topic=topic, partition=partition, include_tags=True, limit=1000))
    return [
        Event(
            record.seq,
            record.tag if record.HasField("tag") else None,
            record.data,
            record.kind == RECORD_KIND_BINARY,
            json.loads(record.meta) if record.meta else None,
        )
        for record in reply.records
    ]


def test_kafka_to_other_protocols(client: Client, api: Api, stub: Any, made: str) -> None:
    kind = KINDS[client.name]
    records = mixed(kind)
    client.produce(made, records, codec=kind.codecs[-1])
    for partition, some in by_partition(records).items():
        expected = [event(number, record) for number, record in enumerate(some, 1)]
        assert over_grpc(stub, made, partition) == expected
        assert over_http(api, made, partition) == expected
        tagged = api.read(made, partition=partition, filter=["tag", "Eq", "key"], include_tags=True)["records"]
        assert [found["$seq"] for found in tagged] == [one.seq for one in expected if one.tag == "key"]


def test_other_protocols_to_kafka(client: Client, api: Api, stub: Any, made: str) -> None:
    meta = {"h": "v", "n": 3, "raw": based(b"\xff\x00"), "r": ["1", based(b"\xfe"), "3"], "z": None, "e": ""}
    written = [{"data": {"a": [1, 2.50]}, "tag": "k", "meta": meta}, {"data": None, "tag": "gone"}, {"data": "text"}]
    ok(api.write(made, written, partition=1, node="n1"), 200)
    more = [
        AppendRecord(data=b"\x00\xff", kind=RECORD_KIND_BINARY, tag="b"),
        AppendRecord(data=b'{"b":  1}', kind=RECORD_KIND_JSON, meta=b'{"$key":{"$base64":"//4="},"x":"y"}'),
    ]
    stub.Append(pb.AppendRequest(topic=made, partition=1, records=more))
    client.produce(made, [Record(1, b"last", b"by kafka")])
    node = ("topics_node", b"n1")
    repeated = (("r", b"1"), ("r", b"\xfe"), ("r", b"3"))
    headers = (("h", b"v"), ("n", b"3"), ("raw", b"\xff\x00"), *repeated, ("z", None), ("e", b""), node)
    expected = [
        Record(1, b"k", b'{"a": [1, 2.5]}', headers),
        Record(1, b"gone", None, (node,)),
        Record(1, None, b'"text"', (node,)),
        Record(1, b"b", b"\x00\xff"),
        Record(1, b"\xff\xfe", b'{"b":  1}', (("x", b"y"),)),
        Record(1, b"last", b"by kafka"),
    ]
    if client.name == "kcat":  # prints headers as text
        expected = [record._replace(headers=()) for record in expected]
    found = client.read(made, {1: "earliest"})
    assert found.ends == {1: 6}
    times = [record["$ts"] for record in api.read(made, partition=1)["records"]]
    assert [record.timestamp for record in found.records][:5] == times[:5]
    read = [record._replace(timestamp=None, offset=None) for record in found.records]
    if client.name == "kcat":
        read = [record._replace(headers=()) for record in read]
    assert read == expected
    assert [record.offset for record in found.records] == list(range(6))


def test_a_topic_of_http_has_one_partition(clients: Clients, api: Api, topic: str) -> None:
    api.put(topic).raise_for_status()
    api.append(topic, *range(10))
    client = clients("confluent-kafka")
    assert client.call("describe_topic", topic=topic) == {"partitions": 1}
    assert [record.value for record in client.read(topic, {0: 4}).records] == [b"%d" % i for i in range(4, 10)]
    assert api.state(topic)["head_seq"] == 10


def test_a_deletion_over_http_is_gone_for_kafka_and_the_other_way_round(clients: Clients, api: Api, made: str) -> None:
    client = clients("java")
    client.produce(made, [Record(0, b"a" if i % 2 else b"b", b"%d" % i) for i in range(10)])
    assert api.rm(made, match="a", partition=0)["deleted"] == 5
    assert [record.offset for record in client.read(made, {0: 0}).records] == [0, 2, 4, 6, 8]
    client.call("delete_records", topic=made, partition=0, offset=5)
    assert [record["$seq"] for record in api.read(made, partition=0)["records"]] == [7, 9]
