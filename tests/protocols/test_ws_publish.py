"""Publishing on a WebSocket: acks, bytes that are kept as sent, refusals, pipelines (docs/contract.md, 9)."""

import pytest

from support.http import Api, fresh, ok
from support.ws import TEXT, WebSocket, frame


def test_the_ack(ws: WebSocket, api: Api) -> None:
    topic = fresh()
    reply = ws.cmd("publish", request_id="p1", topic=topic, records=[{"data": 1}, {"data": 2}])
    assert list(reply) == [
        "op", "request_id", "topic", "first_seq", "last_seq", "seqs", "head_seq", "count", "created", "deduped",
        "performance",
    ]  # fmt: skip
    assert {k: v for k, v in reply.items() if k != "performance"} == {
        "op": "ack", "request_id": "p1", "topic": topic, "first_seq": 1, "last_seq": 2, "seqs": [1, 2], "head_seq": 2,
        "count": 2, "created": True, "deduped": False,
    }  # fmt: skip
    assert reply["performance"]["fsync_ms"] == 0.0
    assert set(reply["performance"]) == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    reply = ws.publish(topic, 3, return_seqs=False)
    assert "seqs" not in reply
    assert (reply["first_seq"], reply["created"]) == (3, False)
    durable = ws.publish(fresh(), 1, config={"durability": "fsync"})
    assert durable["performance"]["fsync_ms"] > 0


def test_publish_is_verbatim(ws: WebSocket, api: Api) -> None:
    topic, raw = fresh(), '{"z" : 1.0,"a":' + "9" * 30 + ',"u":"\\u00e9 é","z":[ ]}'
    ws.send(f'{{"records":[{{"meta":{{ "m":1e2}},"data": {raw}}}],"topic":"{topic}","op":"publish"}}')
    assert ws.wait("ack")["last_seq"] == 1
    assert f'"data":{raw},"meta":{{ "m":1e2}}}}' in api.diff(topic).text
    ws.subscribe(topic=topic)
    ws.wait("record")
    assert f'"data":{raw},"meta":{{ "m":1e2}}}}' in ws.texts[-1]


def test_publish_members(ws: WebSocket, api: Api) -> None:
    topic = fresh()
    ws.publish(topic, records=[{"data": 1, "tag": "g", "meta": {"k": 1}}, {"data": 2, "node": "own"}], node="batch")
    a, b = api.read(topic, include_tags=True)["records"]
    assert (a["$node"], a["$tag"], a["meta"], b["$node"]) == ("batch", "g", {"k": 1}, "own")
    assert ws.publish(topic, 3, idempotency_key="k")["last_seq"] == 3
    again = ws.publish(topic, 3, idempotency_key="k")
    assert (again["deduped"], again["seqs"], set(again["performance"])) == (True, [3], {"server_total_ms"})
    assert ok(api.write(topic, [{"data": 3}], idempotency_key="k"))["deduped"]
    ws.refused("topic_not_found", "publish", topic="absent", records=[{"data": 1}], create=False)
    ws.publish(topic, 4, disable_backpressure=True, create=None, config=None, node=None)
    new = fresh()
    assert ws.publish(new, 1, create=True, config={"cap_records": 3, "auto_create": False})["created"]
    assert api.state(new)["config"]["cap_records"] == 3


def test_publish_to_a_queue(ws: WebSocket, api: Api) -> None:
    queue = api.make(type="queue")
    ws.publish(queue, "later", delay_ms=60_000)
    ws.publish(queue, "low"), ws.publish(queue, "high", priority=9)
    claimed = ok(api.send("POST", f"/v0/topics/{queue}/claim", {"node": "w", "max": 5}))["claimed"]
    assert sorted(job["data"] for job in claimed) == ["high", "low"]
    ws.refused("invalid_request", "publish", topic=queue, records=[{"data": 1}], priority=10)
    ws.refused("invalid_request", "publish", topic=api.make(), records=[{"data": 1}], delay_ms=5)


def test_publish_refusals(ws: WebSocket, api: Api) -> None:
    plain, full = api.make(), api.make(cap_records=1, discard="reject")
    api.append(full, 1)
    for code, topic, records in (
        ("invalid_request", plain, []),
        ("invalid_request", plain, [{"data": 1, "tag": "t" * 257}]),
        ("invalid_request", plain, [{"data": 1, "meta": {str(i): 0 for i in range(65)}}]),
        ("invalid_request", plain, [{"data": 1, "meta": 5}]),
        ("invalid_request", ".bad", [{"data": 1}]),
        ("invalid_request", "x" * 300, [{"data": 1}]),
        ("record_too_large", plain, [{"data": "x" * (1 << 20)}]),
        ("batch_too_large", plain, [{"data": 0}] * 10_001),
        ("topic_full", full, [{"data": 1}]),
    ):
        ws.refused(code, "publish", topic=topic, records=records)
    ws.send(f'{{"op":"publish","request_id":"x","topic":"{plain}","records":[{{"data":1,"data":2}}]}}')
    message = ws.recv()
    assert (message["code"], message["request_id"]) == ("invalid_request", "x")
    ws.send(f'{{"op":"publish","request_id":"x","topic":"{plain}","topic":"b","records":[{{"data":1}}]}}')
    message = ws.recv()
    assert (message["code"], message["request_id"]) == ("invalid_request", "x")
    assert ws.publish(plain, 1)["last_seq"] == 1
    assert api.state(full)["count"] == 1


def test_publishes_of_a_pipeline_are_acked_in_order(ws: WebSocket, api: Api) -> None:
    topics = [api.make(durability=name) for name in ("fsync", "disk", "ephemeral")]
    count = 3000
    command = '{{"op":"publish","request_id":{i},"topic":"{topic}","records":[{{"data":{i}}}]}}'
    texts = [command.format(i=i, topic=topics[i % 3]) for i in range(count)]
    ws.write(*(frame(TEXT, text.encode()) for text in [*texts, '{"op":"ping","request_id":"last"}']))
    acks = [ws.recv() for _ in range(count)]
    assert [m["request_id"] for m in acks] == list(range(count))
    assert ws.recv() == {"op": "pong", "request_id": "last"}
    for k, topic in enumerate(topics):
        assert [r["data"] for r in api.read_all(topic)] == list(range(k, count, 3))


def test_publish_and_watch_on_one_socket(ws: WebSocket) -> None:
    topic = fresh()
    ws.publish(topic, 0)
    ws.subscribe(topic=topic, tail=True)
    for i in range(1, 50):
        ws.send({"op": "publish", "topic": topic, "records": [{"data": i}]})
    assert [r["data"] for r in ws.records(49)] == list(range(1, 50))


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_what_was_published_is_there_for_the_subscribe_behind_it(ws: WebSocket, durability: str) -> None:
    """Also when its topic is new, which readers know of only after an fsync."""
    topic = fresh()
    ws.send({"op": "publish", "topic": topic, "records": [{"data": 1}], "config": {"durability": durability}})
    ws.send({"op": "subscribe", "topic": topic, "tail": True})
    assert ws.recv()["op"] == "ack"
    assert ws.recv()["topics"] == {topic: {"from_seq": 1, "head_seq": 1, "earliest_seq": 1}}
