"""The data plane of a real server: sockets, restarts, kills, and the other protocols."""

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from data_support import Rec, Remote, batch, position_after, read_batches, read_records, with_fields

from support.http import Api, ok
from support.server import ServerProcess
from support.waiting import poll
from topics_kafka.protocol import ApiKey, ErrorCode
from topics_proto.v1 import topics_service_pb2, topics_service_pb2_grpc


def now() -> int:
    return time.time_ns() // 1_000_000


def records_of(page: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "$ts"} for record in page["records"]]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("durability", ["fsync", "disk", "ephemeral"])
def test_codecs_and_classes(api: Api, remote: Remote, codec: int, durability: str) -> None:
    name = api.make("codec", durability=durability)
    ts = now()
    sent = batch(*[b"value %d" % i for i in range(100)], ts=ts, codec=codec)
    for acks, base in ((-1, 0), (1, 100)):
        answer = remote.produce(sent, name, acks=acks)
        assert (answer["error_code"], answer["base_offset"]) == (0, base)
    assert remote.consume(name) == [Rec(i, None, b"value %d" % (i % 100), ts) for i in range(200)]
    assert api.state(name)["head_seq"] == 200


def test_kafka_records_over_http(api: Api, remote: Remote) -> None:
    name = api.make("shown")
    sent = batch(
        b'{"a": 1}', b"text", None, b"\xff", keys=[b"tag", None, b"", b"\xfe"], ts=now(), codec=4,
        headers=[("h", b"v"), ("n", None)],
    )  # fmt: skip
    assert remote.produce(sent, name)["error_code"] == 0
    meta = {"h": "v", "n": None}

    def binary(data: bytes) -> dict[str, Any]:
        return {"$encoding": "base64", "data": base64.b64encode(data).decode()}

    assert records_of(api.read(name, include_tags=True, include_meta=True)) == [
        {"$seq": 1, "$tag": "tag", "data": {"a": 1}, "meta": meta},
        {"$seq": 2, **binary(b"text"), "meta": meta},
        {"$seq": 3, "$tag": "", "data": None, "meta": meta},
        {"$seq": 4, **binary(b"\xff"), "meta": {**meta, "$key": {"$base64": "/g=="}}},
    ]


async def test_records_of_all_protocols_for_a_client(server: ServerProcess) -> None:
    """Written over HTTP, gRPC and Kafka in turn, read by aiokafka."""
    wanted: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = []
    began = now()
    with Api(server.base) as api, Remote(server.kafka_port) as remote:
        name = api.make("mixed")
        async with grpc.aio.insecure_channel(server.grpc_target) as channel:
            stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
            for i in range(0, 40, 4):
                body = [{"data": {"i": i}, "tag": f"tag-{i}", "meta": {"source": "http"}}, {"data": None}]
                ok(api.write(name, body))
                wanted += [(i, b"tag-%d" % i, b'{"i": %d}' % i, (("source", b"http"),)), (i + 1, None, None, ())]
                request = topics_service_pb2.AppendRequest(topic=name)
                request.records.add(data=b'"grpc-%d"' % i)
                await stub.Append(request, timeout=20)
                wanted.append((i + 2, None, b'"grpc-%d"' % i, ()))
                answer = remote.produce(batch(b"kafka-%d" % i, keys=[b"k"], ts=now(), codec=i % 5), name)
                assert answer["base_offset"] == i + 3
                wanted.append((i + 3, b"k", b"kafka-%d" % i, ()))
        ended = now()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=f"127.0.0.1:{server.kafka_port}", auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        try:
            where = TopicPartition(name, 0)
            consumer.assign([where])
            await consumer.seek_to_beginning(where)
            found = [await asyncio.wait_for(consumer.getone(), 20) for _ in wanted]
        finally:
            await consumer.stop()
    assert [(each.offset, each.key, each.value, tuple(each.headers)) for each in found] == wanted
    assert all(began <= each.timestamp <= ended for each in found)


def test_times(api: Api, remote: Remote) -> None:
    name, base = api.make("times"), now() - 100_000
    times = [base + 50, base + 10, base + 90, base + 20]
    assert remote.produce(batch(*[b"x"] * 4, ts=times, codec=1), name)["error_code"] == 0
    for ts in range(base, base + 95):
        wanted = next(((i, at) for i, at in enumerate(times) if at >= ts), (-1, -1))
        assert remote.offset(ts, name) == wanted
    assert remote.offset(-3, name) == (2, base + 90)
    assert remote.produce(batch(b"x", ts=now() + 3_700_000), name)["error_code"] == ErrorCode.INVALID_TIMESTAMP


BAD = {
    "two batches": (lambda: batch(b"a") * 2, ErrorCode.INVALID_RECORD),
    "checksum": (lambda: with_fields(batch(b"a"), crc=False, max_ts=5), ErrorCode.CORRUPT_MESSAGE),
    "magic": (lambda: with_fields(batch(b"a"), magic=1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "size": (lambda: batch(b"x" * 1_048_600), ErrorCode.MESSAGE_TOO_LARGE),
    "bomb": (lambda: batch(b"\0" * (65 << 20), codec=4), ErrorCode.MESSAGE_TOO_LARGE),
    "gap": (lambda: batch(b"x", producer=(77, 0, 9)), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_leaves_the_connection(api: Api, remote: Remote, case: str) -> None:
    name = api.make("bad")
    assert remote.produce(batch(b"ok", producer=(77, 0, 0)), name)["error_code"] == 0
    make, code = BAD[case]
    assert remote.produce(make(), name)["error_code"] == code
    assert remote.produce(batch(b"ok"), name)["base_offset"] == 1


def test_acks_0(api: Api, remote: Remote, server: ServerProcess) -> None:
    name = api.make("silent")
    for i in range(20):
        remote.wire.send(ApiKey.PRODUCE, 9, remote.produce_body(batch(b"%d" % i), name, acks=0))
    poll(lambda: remote.offset(-1, name) == (20, -1), 10, "they become durable, and no frame comes for them")
    assert [record.value for record in remote.consume(name)] == [b"%d" % i for i in range(20)]
    with Remote(server.kafka_port) as other:
        other.wire.send(ApiKey.PRODUCE, 9, other.produce_body(batch(b"x") * 2, name, acks=0))
        assert other.wire.is_closed()


def test_who_wants_no_answer_may_leave_at_once(api: Api, remote: Remote, server: ServerProcess) -> None:
    """Regression: a long request was cut short if its client closed the connection right after it."""
    partitions = 30
    name = api.make("left", partition_count=partitions)
    large = batch(*[b"value %d %s" % (i, b"y" * 100) for i in range(3500)], ts=now(), codec=1)
    with Remote(server.kafka_port) as other:
        body = other.produce_body(large, name, acks=0)
        (topic,) = body["topic_data"]
        topic["partition_data"] = [topic["partition_data"][0] | {"index": i} for i in range(partitions)]
        other.wire.send(ApiKey.PRODUCE, 9, body)
    heads = [3500] * partitions
    poll(
        lambda: [api.read(name, partition=i, limit=1)["head_seq"] for i in range(partitions)] == heads, 20, "all of it"
    )


def test_pipelined_appends_keep_their_order(api: Api, remote: Remote) -> None:
    name = api.make("piped", durability="fsync")
    sent = [
        remote.wire.send(ApiKey.PRODUCE, 9, remote.produce_body(batch(b"%d" % i, producer=(5, 0, i)), name))
        for i in range(50)
    ]
    for i, correlation in enumerate(sent):
        answer = remote.wire.receive(ApiKey.PRODUCE, 9, correlation)
        assert answer["responses"][0]["partition_responses"][0]["base_offset"] == i


def test_long_polls(api: Api, remote: Remote, server: ServerProcess) -> None:
    name = api.make("polled")
    began = time.monotonic()
    assert not remote.fetch(0, name, max_wait=300)["records"]
    assert 0.29 <= time.monotonic() - began < 5
    body = {
        "max_wait": 20_000, "min_bytes": 1, "max_bytes": 1 << 20,
        "topics": [{"topic": name, "partitions": [
            {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}],
    }  # fmt: skip
    correlation = remote.wire.send(ApiKey.FETCH, 12, body)
    began = time.monotonic()
    api.append(name, 1)
    answer = remote.wire.receive(ApiKey.FETCH, 12, correlation)
    assert time.monotonic() - began < 5
    assert read_records(answer["responses"][0]["partitions"][0]["records"])[0].value == b"1"
    with Remote(server.kafka_port) as other:
        body["topics"][0]["partitions"][0]["fetch_offset"] = 1
        other.wire.send(ApiKey.FETCH, 12, body)
    assert remote.produce(batch(b"2"), name)["base_offset"] == 1


def test_the_first_batch_comes_whatever_its_size(api: Api, remote: Remote) -> None:
    name = api.make("large")
    sent = [batch(b"x" * 100_000), batch(b"y" * 100_000)]
    for records in sent:
        remote.produce(records, name)
    assert len(remote.fetch(0, name, partition_max=10)["records"]) == len(sent[0])
    assert len(remote.fetch(1, name, partition_max=10)["records"]) == len(sent[1])


def test_holes(api: Api, remote: Remote) -> None:
    name = api.make("holes")
    keys = [b"a", b"b", b"a", b"b", b"a"]
    for codec in (0, 4):
        remote.produce(batch(b"1", b"2", b"3", b"4", b"5", keys=keys, codec=codec), name)
    ok(api.write(name, [{"data": 1, "tag": "c"}, {"data": 2, "tag": "c"}]))
    assert api.rm(name, match=["tag", "Eq", "b"])["deleted"] == 4
    assert [record.offset for record in remote.consume(name)] == [0, 2, 4, 5, 7, 9, 10, 11]
    assert api.rm(name, match=["tag", "Eq", "c"])["deleted"] == 2
    answer = remote.fetch(10, name)
    (control,) = read_batches(answer["records"])
    assert (control.is_control_batch, position_after(answer["records"], 10)) == (True, 12)
    assert api.rm(name, before_seq=6)["deleted"] == 3
    assert [record.offset for record in remote.consume(name)] == [5, 7, 9]
    api.rm(name, before_seq=13)
    assert remote.consume(name) == []
    assert remote.offset(-2, name) == remote.offset(-1, name) == (12, -1)


def test_evicted(api: Api, remote: Remote) -> None:
    name = api.make("small", cap_records=2)
    for i in range(5):
        remote.produce(batch(b"%d" % i), name)
    assert remote.fetch(0, name)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert [record.value for record in remote.consume(name, 3)] == [b"3", b"4"]
    assert remote.fetch(6, name)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


def test_expired(api: Api, remote: Remote) -> None:
    name = api.make("short", ttl_ms=200)
    remote.produce(batch(b"a"), name)
    poll(lambda: remote.fetch(0, name)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE, 10, "it expires")
    assert remote.consume(name, 1) == []


@pytest.mark.timeout(120)
def test_duplicates_over_restarts(tmp_path: Path) -> None:
    """A producer that got no answer sends again: after a reconnect, a restart, and a kill."""
    server = ServerProcess(tmp_path, kafka=True)
    sent = [batch(b"%d" % i, b"+", producer=(7, 0, 2 * i), codec=i % 5) for i in range(12)]
    number = 0
    try:
        for end in ("reconnect", "stop", "kill"):
            server.start()
            with Api(server.base) as api, Remote(server.kafka_port) as remote:
                if not number:
                    ok(api.put("t", durability="fsync"), 201)
                for _ in range(4):
                    if number:
                        assert remote.produce(sent[number - 1], "t")["base_offset"] == 2 * (number - 1)
                    assert remote.produce(sent[number], "t")["base_offset"] == 2 * number
                    number += 1
                    with Remote(server.kafka_port) as other:
                        assert other.produce(sent[number - 1], "t")["base_offset"] == 2 * (number - 1)
            if end == "kill":
                server.kill()
            else:
                assert server.stop() == 0
        server.start()
        with Remote(server.kafka_port) as remote:
            assert remote.produce(sent[-1], "t")["base_offset"] == 22
            found = remote.consume("t")
            assert [record.value for record in found[::2]] == [b"%d" % i for i in range(12)]
            assert len(found) == 24
            answer = remote.produce(batch(b"x", producer=(7, 0, 99)), "t")
            assert answer["error_code"] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            ids = {remote.wire.call(ApiKey.INIT_PRODUCER_ID)["producer_id"] for _ in range(3)}
            assert len(ids) == 3
    finally:
        server.kill()


def test_jobs_and_copies(api: Api, remote: Remote) -> None:
    """A record of a Kafka client is a job in a queue, and a router copies it, for Kafka clients too."""
    queue = api.make("queue", type="queue")
    assert remote.produce(batch(b'{"job":1}', b'{"job":2}', codec=1), queue)["error_code"] == 0
    claimed = ok(api.send("POST", f"/v0/topics/{queue}/claim", {"node": "w", "max": 5}))
    assert [job["data"] for job in claimed["claimed"]] == [{"job": 1}, {"job": 2}]
    source, destination = api.make("from"), api.make("to")
    ok(api.send("PUT", f"/v0/routers/{source}-router", {"source": source, "dest": destination}), 201)
    assert remote.produce(batch(b"a", None, keys=[b"k", None], codec=4), source)["error_code"] == 0
    assert remote.offset(-1, destination)[0] == 2, "who reads a destination reads their own writes"
    assert [(record.key, record.value) for record in remote.consume(destination)] == [(b"k", b"a"), (None, None)]


def test_metrics_tell_of_what_was_missed(api: Api, remote: Remote) -> None:
    name = api.make("missed", cap_records=1)
    for i in range(3):
        remote.produce(batch(b"%d" % i), name)

    def value() -> int:
        text = api.send("GET", "/v0/metrics").text
        return int(float(text.partition("\ntopics_kafka_out_of_range_total ")[2].partition("\n")[0]))

    before = value()
    remote.fetch(0, name)
    assert value() == before + 1


def test_json_is_kept_to_the_byte(api: Api, remote: Remote) -> None:
    name = api.make("bytes")
    text = b' { "b" : 1.50, "a": [ ] } '
    remote.produce(batch(text), name)
    assert remote.consume(name)[0].value == text
    assert json.loads(api.diff(name, from_seq=0).text)["records"][0]["data"] == {"b": 1.5, "a": []}
