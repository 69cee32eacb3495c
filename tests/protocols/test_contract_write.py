"""Writes on a real server over HTTP: types, bytes that are kept as sent, limits, the order of checks, replies."""

import base64
import json
import time
from typing import Any

import grpc
from protocols.cases.steps import U64

from support.http import Api, fresh, ok, path, refused
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import record_pb2, topics_service_pb2, topics_service_pb2_grpc

# ------------------------------------------------------------------ null, types

WRITE_TYPES = [
    *(("records", text) for text in ("null", "{}", '"x"', "5", "[5]", '["x"]', "[[]]", "[null]", "[{}]",
        '[{"tag":"x"}]')),
    *(("node", text) for text in ("5", "true", "[]", '["a"]')),
    *(("idempotency_key", text) for text in ("5", "true", "[]", "{}")),
    *(("create", text) for text in ("0", '"yes"', "[]")),
    *(("disable_backpressure", text) for text in ("0", '"no"', "null")),
    *(("config", text) for text in ("5", "[]", '"x"', "true", '{"discard":"nope"}')),
]  # fmt: skip
RECORD_TYPES = [
    *(("tag", text) for text in ("5", "true", "[]", "{}")),
    *(("node", text) for text in ("5", "true", '["a"]')),
    *(("meta", text) for text in ("5", "true", "[]", '"x"', "[{}]")),
]


def test_write_types(api: Api) -> None:
    name = fresh()
    for field, text in WRITE_TYPES:
        body = {"records": '[{"data":1}]'} | {field: text}
        refused(
            api.send("POST", path(name), "{" + ",".join(f'"{k}":{v}' for k, v in body.items()) + "}"),
            400,
            "invalid_request",
        )
    for field, text in RECORD_TYPES:
        body = f'{{"records":[{{"data":1}},{{"data":1,"{field}":{text}}}]}}'
        refused(api.send("POST", path(name), body), 400, "invalid_request")
    refused(api.send("POST", path(name), {}), 400, "invalid_request")
    refused(api.get(name), 404, "topic_not_found")


def test_write_null_is_absent(api: Api) -> None:
    name = fresh()
    body = {"node": None, "idempotency_key": None, "create": None, "config": None}
    ok(api.write(name, [{"data": None, "tag": None, "node": None, "meta": None}], **body), 201)
    [record] = api.read(name, include_tags=True)["records"]
    assert set(record) == {"$seq", "$ts", "data"}
    assert record["data"] is None
    assert ok(api.write(name, [{"data": 1}], headers={"idempotency-key": "h"}, idempotency_key=None))["seqs"] == [2]
    assert ok(api.write(name, [{"data": 1}], headers={"idempotency-key": "h"}, idempotency_key=None))["deduped"]
    ok(api.write(name, [{"data": 1, "node": None}], node="batch"))
    assert api.read(name, 2)["records"][0]["$node"] == "batch"


# --------------------------------------------------------------- bytes and text

VERBATIM = [
    "null", "-0", "-0.0", "1.0", "1E400", "0.1000", str(2**70), "1" * 4000, "-1e-999",
    "123456789012345678901234567890.125",
    r'"\u00e9\u4e2d\ud83d\ude00\/\b\f\n\r\t\"\\\u0000"', '"\u2028 日本 \U0001f600 \x7f"', '{"k":1,"k":2}',
    '{"z":1,"a":{"y":0,"x":0}}',
    '{"":{"":{}}}', '{ "b" : [ 1 ,\r\n\t2.50 ] , "a" : " two  spaces " }', "[ ]", "{ }", '[[],[[]],{"a":[]}]',
    '{"$seq":1,"records":[{"data":1,"data":2}],"tag":"x","tag":"y"}',
]  # fmt: skip


def raw_records(api: Api, name: str) -> str:
    """The text between the brackets of all records."""
    text = api.diff(name, include_tags=True).text
    return text[text.index('"records":[') + 11 : text.rindex('],"next_from_seq"')]


def test_deep_data(api: Api) -> None:
    name = fresh()
    for depth in (100, 127, 128, 300):
        data = '{"a":' * depth + "1" + "}" * depth
        reply = api.send(
            "POST", path(name), f'{{"records":[{{"data":{data},"meta":{{"m":{"[" * 100 + "]" * 100}}}}}]}}'
        )
        if depth <= 128 or reply.status_code < 400:
            assert f'"data":{data}' in raw_records(api, name)
        else:
            refused(reply, 400, "invalid_request")


def test_data_and_meta_are_kept_byte_for_byte(api: Api) -> None:
    name = fresh()
    metas = [f'{{"v" : {text}}}' for text in VERBATIM]
    pairs = list(zip(VERBATIM, metas, strict=True))
    body = ",\n".join(f'{{ "meta" : {meta} , "data":\t{data}\n}}' for data, meta in pairs)
    ok(api.send("POST", path(name), f'{{"records":[{body}]}}'), 201)
    ts = api.read(name)["records"][0]["$ts"]
    shown = [f'{{"$seq":{seq},"$ts":{ts},"data":{data},"meta":{meta}}}' for seq, (data, meta) in enumerate(pairs, 1)]
    assert raw_records(api, name) == ",".join(shown)  # our own keys carry no spaces
    assert api.state(name)["bytes"] == sum(len(data.encode()) + len(meta.encode()) for data, meta in pairs)
    for limit in (1, 2, 3, 7):  # pages of any size are cut from the same bytes
        assert [record["data"] for record in paged(api, name, limit)] == [json.loads(data) for data in VERBATIM]


def paged(api: Api, name: str, limit: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    while True:
        page = api.read(name, records[-1]["$seq"] if records else 0, limit=limit)
        records += page["records"]
        assert page["lag"] == page["head_seq"] - page["next_from_seq"]
        if page["caught_up"]:
            return records
        assert len(page["records"]) == limit


def test_tags_nodes_and_keys_are_any_text(api: Api) -> None:
    name = fresh()
    texts = ["", " ", "é", "\x00\x1f\x7f", '"\\/', "\u2028\U0001f600", "a\tb\n", "]}", "null"]
    ok(api.write(name, [{"data": 0, "tag": text, "node": text} for text in texts]), 201)
    page = api.read(name, include_tags=True)
    assert [record["$tag"] for record in page["records"]] == texts
    assert [record["$node"] for record in page["records"]] == texts
    for seq, text in enumerate(texts, 1):
        assert seq not in [record["$seq"] for record in api.read(name, node=text)["records"]]
        first, again = (ok(api.write(name, [{"data": 0}], idempotency_key=text)) for _ in range(2))
        assert not first["deduped"]
        assert again["deduped"]
        assert first["seqs"] == again["seqs"]
        assert api.rm(name, match=text)["deleted"] == 1


def test_bytes_of_a_record(api: Api) -> None:
    """data as stored + meta as stored; nothing else counts."""
    for record, size in (
        ('{"data":null}', 4), ('{"data":{"a":1}}', 7), ('{"data":"x"}', 3), ('{"data": { "a": 1 } }', 10),
        ('{"data":"é"}', 4), ('{"data":"\\u00e9"}', 8), ('{"data":1,"meta":{}}', 3), ('{"data":1,"meta":null}', 1),
        ('{"data":1,"meta":{"a": 1}}', 9), ('{"data":1,"tag":"ttt","node":"nnnn"}', 1),
    ):  # fmt: skip
        name = fresh()
        ok(api.send("POST", path(name), f'{{"records":[{record}]}}'), 201)
        assert api.state(name)["bytes"] == size, record
        assert api.listing(prefix=name)["topics"][0]["bytes"] == size
        assert api.rm(name, before_seq=2)["bytes"] == 0


def test_record_limit_counts_stored_bytes(api: Api) -> None:
    name = fresh()
    space = " " * ((1 << 20) - 3)
    ok(api.send("POST", path(name), f'{{"records":[{{"data":[1{space}]}}]}}'), 201)
    refused(api.send("POST", path(name), f'{{"records":[{{"data":[1 {space}]}}]}}'), 400, "record_too_large")
    ok(api.send("POST", path(name), f'{{"records":[{{"data":{space}1{space}}}]}}'))  # outer white space is not data
    meta = '{"k":"%s"}'
    ok(api.send("POST", path(name), '{"records":[{"data":1,"meta":%s}]}' % (meta % ("v" * 16376))))
    refused(
        api.send("POST", path(name), '{"records":[{"data":1,"meta":%s}]}' % (meta % ("v" * 16377))),
        400,
        "invalid_request",
    )


def test_binary_data_shows_as_base64(server: ServerProcess, api: Api) -> None:
    name = fresh()
    blobs = [b"", b"\x00\xff\xfe", b'{"not":"json"', bytes(range(256)) * 5]
    with grpc.insecure_channel(server.grpc_target) as channel:
        stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
        records = [
            topics_service_pb2.AppendRequest.DESCRIPTOR.fields_by_name["records"].message_type._concrete_class(
                data=blob, kind=record_pb2.RECORD_KIND_BINARY, meta=b'{"a" : 1}', tag="t", node="n"
            )
            for blob in blobs
        ]
        stub.Append(topics_service_pb2.AppendRequest(topic=name, records=records), timeout=30)
    api.append(name, "json")
    page = api.read(name, include_tags=True)
    assert [base64.b64decode(r["data"], validate=True) for r in page["records"][:-1]] == blobs
    for record in page["records"][:-1]:
        assert list(record) == ["$seq", "$ts", "$encoding", "$node", "$tag", "data", "meta"]
        assert record["$encoding"] == "base64"
        assert record["meta"] == {"a": 1}
    assert "$encoding" not in page["records"][-1]
    assert '"meta":{"a" : 1}' in api.diff(name).text
    assert api.state(name)["bytes"] == sum(map(len, blobs)) + 9 * len(blobs) + 6


# ------------------------------------------------------------------ check order


def test_check_order_of_a_write(small: Api) -> None:
    """Each body has one more fault than the next, and the earliest check answers."""
    full = fresh("full")
    ok(small.put(full, cap_records=1, discard="reject"), 201)
    small.append(full, 1, idempotency_key="k")
    made = [fresh("m") for _ in range(3)]
    for name in made:
        ok(small.put(name), 201)
    absent, big, long_key = "absent", {"data": "x" * 700}, "k" * 257
    refused(small.client.post(path(".bad"), content=b" " * 5000), 413, "payload_too_large")
    refused(small.client.post(path(".bad"), content=b"{"), 415, "unsupported_media_type")
    refused(small.send("POST", path(".bad"), b"{"), 400, "invalid_request")
    refused(small.write(".bad", [], idempotency_key=long_key), 400, "invalid_request")
    refused(small.write(".bad", [big] * 4, idempotency_key=long_key), 400, "batch_too_large")
    message = refused(small.write(".bad", [big], idempotency_key=long_key), 400, "invalid_request")["message"]
    assert "idempotency_key" in message
    refused(small.write(".bad", [big], create=False), 400, "record_too_large")
    refused(small.write(".bad", [{"data": 1, "tag": "t" * 9}, big], create=False), 400, "invalid_request")
    refused(small.write(".bad", [big, {"data": 1, "tag": "t" * 9}], create=False), 400, "record_too_large")
    refused(small.write(".bad", [{"data": 1}], create=False), 404, "topic_not_found")
    message = refused(small.write(".bad", [{"data": 1}], config={"dead_letter": "?"}), 400, "invalid_request")[
        "message"
    ]
    assert "dead_letter" not in message
    refused(small.write(absent, [{"data": 1}], config={"dead_letter": "?"}), 400, "invalid_request")
    refused(small.write(absent, [{"data": 1}]), 429, "throttled")
    assert ok(small.write(full, [{"data": 1}] * 3, idempotency_key="k"))["deduped"]
    refused(small.write(full, [{"data": 1}] * 2, idempotency_key="l"), 400, "record_too_large")
    refused(small.write(full, [{"data": 1}], idempotency_key="l"), 422, "topic_full")
    for _ in range(3):
        small.append(made[0], "x" * 590)
    refused(small.write(full, [{"data": "x" * 590}]), 422, "topic_full")
    refused(small.write(made[1], [{"data": "x" * 590}]), 429, "throttled")
    for name in (full, *made):
        ok(small.drop(name))


def test_config_of_an_existing_topic_is_ignored_but_must_be_valid_json(api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": 1}], config={"type": "queue", "ttl_ms": 1}))
    refused(api.write(name, [{"data": 1}], config={"ttl_ms": -1}), 400, "invalid_request")
    assert api.state(name)["config"]["ttl_ms"] == 0


# ---------------------------------------------------------------------- replies


def test_a_write_has_one_timestamp(api: Api) -> None:
    name = fresh()
    before = int(time.time() * 1000)
    for _ in range(5):
        api.append(name, *range(50))
    after = int(time.time() * 1000)
    records = api.read(name)["records"]
    times = [record["$ts"] for record in records]
    assert times == sorted(times)
    assert all(len(set(times[i : i + 50])) == 1 for i in range(0, 250, 50))
    assert before <= times[0]
    assert times[-1] <= after + 1
    assert api.state(name)["last_write_ts"] == times[-1]
    assert len({json.dumps(record) for record in records}) == 250


def test_dedupe_reply(api: Api) -> None:
    name = fresh()
    first = api.append(name, 1, 2, idempotency_key="k")
    api.append(name, 3, 4, 5)
    again = ok(api.write(name, [{"data": "other"}], idempotency_key="k", config={"type": "queue"}, create=False))
    assert again == first | {"deduped": True, "created": False, "performance": again["performance"]}
    assert again["head_seq"] == 2
    api.append(name, 6, idempotency_key="k2")
    assert ok(api.write(name, [{"data": 1}], headers={"Idempotency-Key": "k2"}, idempotency_key="k"))["seqs"] == [1, 2]
    assert ok(api.write(name, [{"data": 1}], headers={"Idempotency-Key": ""}))["seqs"] == [7]
    assert ok(api.write(name, [{"data": 1}], idempotency_key=""))["deduped"]
    refused(api.write(name, [{"data": 1}], headers={"Idempotency-Key": "k" * 257}), 400, "invalid_request")
    ok(api.write(name, [{"data": 1}], headers={"Idempotency-Key": "é".encode() * 256}))
    refused(api.write(name, [{"data": 1}], headers={"Idempotency-Key": b"\xff"}), 400, "invalid_request")
    refused(api.write(name, [{"bad": 1}], idempotency_key="k"), 400, "invalid_request")
    other = fresh()
    assert not api.append(other, 1, idempotency_key="k")["deduped"]  # scoped to the topic


def test_window_zero_and_failed_writes(api: Api) -> None:
    name = api.make(idempotency_window_ms=0)
    api.append(name, 1, idempotency_key="k")
    poll(lambda: not api.append(name, 1, idempotency_key="k")["deduped"])
    refused(api.write("none", [{"data": 1}], create=False, idempotency_key="k"), 404, "topic_not_found")
    huge = api.make(ttl_ms=1 << 63, idempotency_window_ms=U64)
    api.append(huge, 1, idempotency_key="k")
    assert api.append(huge, 1, idempotency_key="k")["deduped"]
    assert api.state(huge)["count"] == 1
    assert api.read(huge)["tombstone"] is None


def test_create_reply_codes(api: Api) -> None:
    name = fresh()
    reply = ok(api.write(name, [{"data": 1}], config={"durable": True}), 201)
    assert reply["created"]
    assert api.state(name)["config"]["durability"] == "fsync"
    ok(api.write(name, [{"data": 1}]), 200)
    assert list(reply) == [
        "topic", "first_seq", "last_seq", "seqs", "head_seq", "count", "created", "deduped", "performance"
    ]  # fmt: skip
