"""The observable statements about topics, writes, reads and deletes, one by one, on a real server over HTTP.

What both doors have to say alike is in `cases.py`; here is what only JSON over HTTP can be asked.
"""

import base64
import gzip
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest
from doors.conftest import SMALL

from support.http import JSON, Api, Wire, envelope, fresh, ok, path, refused, request
from support.server import ServerProcess
from support.waiting import poll
from topics.v1 import record_pb2, topics_service_pb2, topics_service_pb2_grpc

REC = {"records": [{"data": 1}]}
U64 = (1 << 64) - 1

# Method, path and a valid body of everything that takes one.
BODIED = [
    ("PUT", "/v0/topics/{t}", {}),
    ("POST", "/v0/topics/{t}", REC),
    ("POST", "/v0/topics/{t}/diff", {"from_seq": 0}),
    ("POST", "/v0/topics/{t}/delete", {"before_seq": 0}),
]
bodied = pytest.mark.parametrize(("method", "template", "body"), BODIED, ids=["put", "write", "diff", "delete"])


@pytest.fixture(scope="module")
def topic(api: Api) -> str:
    """A topic that no test changes."""
    return api.make("still")


def raw_records(api: Api, name: str) -> str:
    """The text between the brackets of all records."""
    text = api.diff(name, include_tags=True).text
    return text[text.index('"records":[') + 11 : text.rindex('],"next_from_seq"')]


# ------------------------------------------------------------------ bodies: text


@bodied
@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"{", b"}", b"nope", b"{bad}", b"{}x", b"{} {}", b"'a'", b'{"a":1,}', b"\xff{}", b'{"a":"\xff"}',
        b'{"\xff":1}', b'{"a":"\xc3"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\\ud800"}', b'{"\\udfff":1}', b'{"a":NaN}',
        b'{"a":Infinity}', b'{"a":01}', b'{"a":"\t"}', b'{"a":"\\x"}', b"\xef\xbb\xbf{}", b"\xff\xfe{\0}\0",
        b"[]", b"[{}]", b'"x"', b"5", b"true", b"null", b"[" * 100_000, b'{"a":' * 100_000,
        b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_bad_body(api: Api, topic: str, method: str, template: str, body: Any, text: bytes) -> None:
    reply = api.send(method, template.format(t=topic), text)
    if not text and (method == "PUT" or template.endswith("/diff")):
        ok(reply)  # an empty body is {} here
        return
    refused(reply, 400, "invalid_request")
    assert "detail" not in reply.json()["error"]


@bodied
def test_body_deep_inside(api: Api, topic: str, method: str, template: str, body: Any) -> None:
    """100 levels pass anywhere, unknown members are ignored, and so is white space."""
    unknown = {"unknown": {"x": [None]}, "return_seqs": False, "leases": "?", "topic": 7, "Records": 1}
    deep = '"deep":' + "[" * 100 + "]" * 100
    text = json.dumps(body | unknown, indent=2)
    ok(api.send(method, template.format(t=topic), f" \r\n\t{text[:-1]},{deep}}} \n"), 200)


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


@bodied
@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 0), ("application/json; charset=utf-8", 0), ("application/json;charset=latin-1", 0),
        ("application/jsonx", 0), ("text/plain", 415), ("Application/JSON", 415), ("text/json", 415), ("", 415),
        ("x application/json", 415), (None, 415), ("application/x-www-form-urlencoded", 415),
    ],
)  # fmt: skip
def test_content_type(
    api: Api, topic: str, method: str, template: str, body: Any, content_type: str | None, status: int
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    target = template.format(t=topic)
    if not status:
        ok(api.client.request(method, target, content=json.dumps(body), headers=headers), 200)
        return
    for content in (json.dumps(body), "{bad", b"\xff"):  # decided before the JSON is read
        reply = api.client.request(method, target, content=content, headers=headers)
        refused(reply, 415, "unsupported_media_type")


def test_content_type_is_left_trimmed(server: ServerProcess, topic: str) -> None:
    with Wire(server.http_port) as wire:
        wire.send(request("POST", f"/v0/topics/{topic}/diff", b"{}", Content_Type="\t  application/json"))
        assert wire.reply().status == 200


def test_empty_body(api: Api, topic: str) -> None:
    for method, tail, without, with_type in (
        ("PUT", "", 200, 200), ("POST", "/diff", 200, 200), ("POST", "", 415, 400), ("POST", "/delete", 415, 400),
    ):  # fmt: skip
        assert api.client.request(method, path(topic, tail)).status_code == without
        assert api.client.request(method, path(topic, tail), headers=JSON).status_code == with_type
    name = fresh()
    assert ok(api.client.put(path(name)), 201)["config"]["durability"] == "disk"
    refused(api.client.post(path(fresh(), "/diff")), 404, "topic_not_found")


DUPLICATES = [
    ("PUT", "", '{"ttl_ms":1,"ttl_ms":1}'),
    ("PUT", "", '{"priority":null,"priority":null}'),
    ("PUT", "", '{"ttl_ms":1,"ttl\\u005fms":1}'),
    ("POST", "/diff", '{"from_seq":0,"from_seq":0}'),
    ("POST", "/diff", '{"node":null,"x":1,"node":"a"}'),
    ("POST", "/delete", '{"before_seq":0,"before_seq":0}'),
    ("POST", "/delete", '{"match":null,"before_seq":0,"match":null}'),
    ("POST", "", '{"records":[{"data":1}],"records":[{"data":2}]}'),
    ("POST", "", '{"records":[{"data":1}],"node":"a","node":"a"}'),
    ("POST", "", '{"create":true,"records":[{"data":1}],"create":true}'),
    ("POST", "", '{"idempotency_key":"a","records":[{"data":1}],"idempotency_key":"b"}'),
    ("POST", "", '{"records":[{"data":1}],"config":{},"config":{}}'),
    ("POST", "", '{"records":[{"data":1}],"config":{"ttl_ms":1,"ttl_ms":2}}'),
    ("POST", "", '{"records":[{"data":1,"data":2}]}'),
    ("POST", "", '{"records":[{"tag":"a","data":1,"tag":"a"}]}'),
    ("POST", "", '{"records":[{"data":1},{"data":1,"tag":"","tag":""}]}'),
    ("POST", "", '{"records":[{"data":1,"meta":{},"meta":{}}]}'),
    ("POST", "", '{"records":[{"data":1,"node":null,"node":null}]}'),
    ("POST", "", '{"records":[{"data":1,"x":1,"d\\u0061ta":2}]}'),
    ("POST", "", '{ "records" : [ {"data":1} , { "data" : 1 , "node" : "n" , "node" : "m" } ] }'),
]


@pytest.mark.parametrize(("method", "tail", "text"), DUPLICATES)
def test_duplicate_known_key(api: Api, method: str, tail: str, text: str) -> None:
    name = api.make()
    refused(api.send(method, path(name, tail), text), 400, "invalid_request")
    assert api.state(name)["head_seq"] == 0


@pytest.mark.parametrize(
    ("method", "tail", "text"),
    [
        ("PUT", "", '{"x":1,"x":2,"y":{"ttl_ms":1,"ttl_ms":2}}'),
        ("POST", "/diff", '{"x":1,"x":2}'),
        ("POST", "/delete", '{"before_seq":0,"x":1,"x":2}'),
        ("POST", "", '{"x":1,"records":[{"data":1,"y":2,"y":2}],"x":[{"data":1,"data":2}]}'),
        ("POST", "", '{"records":[{"data":{"data":1,"data":2},"meta":{"tag":1,"tag":2}}]}'),
    ],
)
def test_duplicate_elsewhere(api: Api, method: str, tail: str, text: str) -> None:
    ok(api.send(method, path(api.make(), tail), text))


# ------------------------------------------------------------- bodies: null, types

CONFIG = {
    "type": "log", "ttl_ms": 1 << 40, "cap_records": 9, "cap_bytes": 900, "discard": "old", "durable": False,
    "durability": "disk", "priority": 1, "auto_priority": True, "auto_create": True, "idempotency_window_ms": 1,
    "dedupe_node": True, "lease_ms": 500, "claim_jitter_ms": 1, "max_deliveries": 1, "dead_letter": "d",
    "leases_durable": True,
}  # fmt: skip
U64_FIELDS = [name for name, value in CONFIG.items() if type(value) is int and name != "priority"]
BOOLS = [name for name, value in CONFIG.items() if type(value) is bool]
NOT_INTEGERS = ["1.0", "1e2", '"5"', "true", "null", "[]", "{}", "-1", "1.5", str(1 << 64)]


def member(name: str, text: str) -> str:
    return f'{{"{name}":{text}}}'


@pytest.mark.parametrize("name", CONFIG)
def test_config_null(api: Api, topic: str, name: str) -> None:
    reply, write = (
        api.send("PUT", path(fresh()), member(name, "null")),
        api.send("POST", path(fresh()), f'{{"records":[{{"data":1}}],"config":{member(name, "null")}}}'),
    )
    if name in ("priority", "dead_letter", "durability"):
        assert ok(reply, 201)["config"][name] == ("disk" if name == "durability" else None)
        ok(write, 201)
    else:
        refused(reply, 400, "invalid_request")
        refused(write, 400, "invalid_request")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *itertools.product(U64_FIELDS, NOT_INTEGERS),
        *itertools.product(["priority"], ["1.0", '"5"', "true", "[]", str(1 << 31), str(-(1 << 31) - 1), "9" * 5000]),
        *itertools.product(BOOLS, ["0", "1", '"true"', "null", "[]"]),
        *itertools.product(["type"], ['"LOG"', '"Log"', '""', "1", "null", '"stream"', "[]", '" log"']),
        *itertools.product(["discard"], ['"OLD"', '"new"', '""', "1", "null"]),
        *itertools.product(["durability"], ['"DISK"', '"none"', '""', "1", "true"]),
        *itertools.product(["dead_letter"],
            ['""', '".a"', '"a b"', "5", "false", '"%s"' % ("x" * 256), '"a>b"', '"a/b"']),
    ],
)  # fmt: skip
def test_config_type(api: Api, topic: str, name: str, text: str) -> None:
    absent = fresh()
    refused(api.send("PUT", path(topic), member(name, text)), 400, "invalid_request")
    refused(api.send("PUT", path(absent), member(name, text)), 400, "invalid_request")
    refused(
        api.send("POST", path(absent), f'{{"records":[{{"data":1}}],"config":{member(name, text)}}}'),
        400,
        "invalid_request",
    )
    refused(api.get(absent), 404, "topic_not_found")


def test_config_is_one_object_in_order(api: Api) -> None:
    name = fresh()
    reply = ok(api.put(name, **CONFIG), 201)
    assert list(reply)[:3] == ["topic", "created", "config"]
    assert list(reply["config"].items()) == list(CONFIG.items())
    assert api.state(name)["config"] == CONFIG
    assert list(reply)[-1] == "performance"


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


def test_diff_types(api: Api, topic: str) -> None:
    for field, text in (
        *itertools.product(["from_seq"], NOT_INTEGERS),
        *itertools.product(["limit", "wait_ms", "max_batch_bytes"], [t for t in NOT_INTEGERS if t != str(1 << 64)]),
        *itertools.product(["include_tags", "include_meta"], ["0", '"true"', "null", "[]"]),
        *itertools.product(["node"], ["5", "true", "{}", "[5]", '["a",null]', '[["a"]]']),
    ):
        refused(api.send("POST", path(topic, "/diff"), member(field, text)), 400, "invalid_request")
        refused(api.send("POST", path(fresh(), "/diff"), member(field, text)), 400, "invalid_request")
    for text in ("null", "[]", '""', '"a"', '["a","a"]', '["%s"]' % ("n" * 500)):
        ok(api.send("POST", path(topic, "/diff"), member("node", text)))


def test_diff_clamps_at_any_size(api: Api) -> None:
    name = api.make()
    api.append(name, *range(3))
    for huge in ("1001", str(1 << 32), str(1 << 63), str(U64), str(1 << 64), "9" * 40, "9" * 41, "9" * 6000):
        body = f'{{"limit":{huge},"wait_ms":{huge},"max_batch_bytes":{huge}}}'
        assert len(ok(api.send("POST", path(name, "/diff"), body))["records"]) == 3
    refused(api.send("POST", path(name, "/diff"), '{"limit":-%s}' % ("9" * 6000)), 400, "invalid_request")
    assert ok(api.send("POST", path(name, "/diff"), f'{{"from_seq":{U64}}}'))["tombstone"]["reason"] == "recreated"


def test_delete_types(api: Api, topic: str) -> None:
    matches = (
        "[]", '["tag"]', '["tag","Eq"]', '["tag","Eq","x","y"]', '["node","Eq","x"]', '["Tag","Eq","x"]',
        '["tag","eq","x"]',
        '["tag","GLOB","x*"]', '["tag","Regex","x"]', '["tag","Glob","x"]', '["tag","Glob","*x"]', '["tag","Glob",""]',
        '["tag","Glob",5]', '["tag","Eq",null]', '["tag","Eq",["x"]]', "5", "true", '{"tag":"x"}', '[["tag","Eq","x"]]',
    )  # fmt: skip
    absent = fresh()
    bodies = [*(f'{{"before_seq":{text}}}' for text in NOT_INTEGERS), *(f'{{"match":{text}}}' for text in matches)]
    bodies += [f'{{"before_seq":0,"match":{text}}}' for text in matches]
    bodies += ["{}", '{"before_seq":null}', '{"match":null}', '{"before_seq":null,"match":null}', '{"Match":"x"}']
    for body in bodies:
        refused(api.send("POST", path(topic, "/delete"), body), 400, "invalid_request")
        refused(api.send("POST", path(absent, "/delete"), body), 400, "invalid_request")  # before existence
    for body in ('{"before_seq":0,"match":null}', '{"before_seq":null,"match":"x"}', '{"match":["tag","Glob","*"]}'):
        assert ok(api.send("POST", path(topic, "/delete"), body))["deleted"] == 0
        assert refused(api.send("POST", path(absent, "/delete"), body), 404, "topic_not_found")["detail"] == {
            "topic": absent
        }


def test_only_the_last_star_is_special(api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": 0, "tag": tag} for tag in ("a*b", "a*bc", "aXb", "a*", "*", "")]))
    assert api.rm(name, match="a*")["deleted"] == 1
    assert api.rm(name, match=["tag", "Eq", "*"])["deleted"] == 1
    assert api.rm(name, match=["tag", "Glob", "a*b*"])["deleted"] == 2
    assert api.rm(name, match="")["deleted"] == 1
    assert [r["$seq"] for r in api.read(name)["records"]] == [3]


# ------------------------------------------------------------------ bytes and text

VERBATIM = [
    "null", "-0", "-0.0", "1.0", "1E400", "0.1000", str(2**70), "1" * 4000, "-1e-999",
    "123456789012345678901234567890.125",
    r'"\u00e9\u4e2d\ud83d\ude00\/\b\f\n\r\t\"\\\u0000"', '"\u2028 日本 \U0001f600 \x7f"', '{"k":1,"k":2}',
    '{"z":1,"a":{"y":0,"x":0}}',
    '{"":{"":{}}}', '{ "b" : [ 1 ,\r\n\t2.50 ] , "a" : " two  spaces " }', "[ ]", "{ }", '[[],[[]],{"a":[]}]',
    '{"$seq":1,"records":[{"data":1,"data":2}],"tag":"x","tag":"y"}',
]  # fmt: skip


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
        stub.Append(topics_service_pb2.AppendRequest(topic=name, records=records), timeout=10)
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


# ---------------------------------------------------------------------- envelopes


def test_every_error_has_the_envelope_and_performance(api: Api, topic: str) -> None:
    absent = fresh()
    for reply, status, code in (
        (api.get(absent), 404, "topic_not_found"),
        (api.send("GET", "/v0/nothing"), 404, "not_found"),
        (api.send("PATCH", path(topic)), 405, "method_not_allowed"),
        (api.client.post(path(topic), content="x"), 415, "unsupported_media_type"),
        (api.send("PUT", path(".bad"), "{}"), 400, "invalid_request"),
    ):
        refused(reply, status, code)
        assert reply.json()["performance"]["server_total_ms"] > 0
        assert not {"allow", "www-authenticate", "access-control-allow-origin"} & set(reply.headers)


@pytest.mark.parametrize("target", [
    "/", "/v0", "/v0/", "/v0/topics/", "/v0/topics/x/", "/v0/topics/x/xyz", "/v0/topics/x/diff/", "/v0/topics//diff",
    "/v0/topics/x/diff/y", "/metrics", "/v1/topics", "/V0/topics", "//v0/topics", "/v0//topics", "/v0/Topics",
    "/v0/nonexistent/route",
])  # fmt: skip
def test_unknown_path(api: Api, target: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        reply = api.client.request(method, api.base + target)
        assert reply.status_code == 404, (method, target)
        if method != "HEAD":
            envelope(reply.json(), "not_found")


@pytest.mark.parametrize(("methods", "tail"), [
    (["POST", "PATCH", "OPTIONS"], ""), (["GET", "HEAD", "PUT", "DELETE", "PATCH"], "/diff"),
    (["GET", "HEAD", "PUT", "DELETE"], "/delete"),
])  # fmt: skip
def test_wrong_method(api: Api, topic: str, methods: list[str], tail: str) -> None:
    for method in methods:
        target = "/v0/topics" if (method, tail) == ("POST", "") else path(topic, tail)
        reply = api.client.request(method, target, content=b"{}" if method == "PUT" else None)
        assert reply.status_code == 405, (method, target)
        assert "allow" not in reply.headers
        if method != "HEAD":
            envelope(reply.json(), "method_not_allowed")


def test_head_is_get_without_the_body(server: ServerProcess, api: Api, topic: str) -> None:
    with Wire(server.http_port) as wire:
        for target, status in (
            ("/v0/health", 200), ("/healthz", 200), ("/v0/ready", 200), ("/readyz", 200), ("/v0/topics", 200),
            (f"/v0/topics/{topic}", 200), ("/v0/topics/no-such", 404), ("/v0/topics?cursor=!", 400), ("/nope", 404),
        ):  # fmt: skip
            head = wire.send(request("HEAD", target)).reply(head=True)
            got = wire.send(request("GET", target)).reply()
            assert head.status == got.status == status, target
            assert head.headers["content-type"] == got.headers["content-type"] == "application/json"
            assert abs(int(head.headers["content-length"]) - int(got.headers["content-length"])) <= 8


def test_probes_have_no_performance(api: Api) -> None:
    for target in ("/v0/health", "/healthz"):
        body = ok(api.send("GET", target))
        assert set(body) == {"status", "version", "uptime_ms"}
        assert (body["status"], body["version"]) == ("ok", "0.1.0")
    for target in ("/v0/ready", "/readyz"):
        body = ok(api.send("GET", target))
        assert set(body) == {"status", "wal_replay_complete", "topics"}
        assert (body["status"], body["wal_replay_complete"]) == ("ready", True)


def test_performance_by_endpoint(api: Api) -> None:
    name = fresh()
    total = {"server_total_ms"}
    for _ in range(2):
        assert set(ok(api.put(name), 200, 201)["performance"]) == total
    write = api.append(name, 1, idempotency_key="k")["performance"]
    assert set(write) == total | {"wal_append_ms", "fsync_ms"}
    assert (write["fsync_ms"], type(write["fsync_ms"])) == (0.0, float)
    assert set(api.append(name, 1, idempotency_key="k")["performance"]) == total
    scanned = api.read(name)["performance"]
    assert set(scanned) == total | {"records_scanned"}
    assert scanned["records_scanned"] == 1
    assert set(api.rm(name, before_seq=1)["performance"]) == total
    assert set(api.state(name)["performance"]) == total
    assert set(api.listing(prefix=name)["performance"]) == total
    assert set(ok(api.drop(name))["performance"]) == total
    durable = api.append(api.make(durability="fsync"), 1)["performance"]
    assert 0 < durable["fsync_ms"] <= durable["server_total_ms"]
    for durability in ("ephemeral", "memory", "disk"):
        assert api.append(api.make(durability=durability), 1)["performance"]["fsync_ms"] == 0.0


def test_server_total_is_real(api: Api, topic: str) -> None:
    head = api.state(topic)["head_seq"]
    took = ok(api.diff(topic, from_seq=head, wait_ms=60))["performance"]["server_total_ms"]
    assert 55 <= took < 2000


def test_details(api: Api) -> None:
    """No detail where the contract names none."""
    name = api.make()
    for reply in (
        api.write(name, []), api.write(name, [{"data": 1}] * 10_001), api.write(name, [{"data": "x" * (1 << 20)}]),
        api.put(".bad"), api.send("POST", path(name), "{bad"), api.send("GET", "/v0/topics?cursor=!"),
    ):  # fmt: skip
        assert "detail" not in envelope(reply.json())
    assert refused(api.put(name, type="queue"), 409, "topic_exists_incompatible")["detail"] == {
        "topic": name, "existing_type": "log", "requested_type": "queue"
    }  # fmt: skip


# ------------------------------------------------------------------ paths and queries


def test_path_is_percent_decoded(server: ServerProcess, api: Api) -> None:
    name = api.make("a:b.c_d")
    api.append(name, 1)
    encoded = "".join(f"%{byte:02x}" for byte in name.encode())
    assert ok(api.client.get(f"/v0/topics/{encoded}"))["topic"] == name
    assert ok(api.client.get(f"/v0/%74opics/{encoded.upper().replace('%3A', '%3a')}"))["topic"] == name
    for target, status in (
        ("/v0/topics/%ff", 400), ("/v0/topics/%c3/diff", 400), ("/v0/topics/%ed%a0%80", 400), ("/%ff", 400),
        ("/v0/topics/%zz", 404), ("/v0/topics/%", 404), ("/v0/topics/a%2Fb", 404), ("/v0/topics/a%00b", 404),
    ):  # fmt: skip
        with Wire(server.http_port) as wire:
            reply = wire.send(request("GET", target)).reply()
            assert reply.status == status, target
            envelope(reply.json)
    for bad in (
        "a%2Fb",
        "%2e",
        "%2e%2e",
        "a%20b",
        "a+b",
        "a%3Eb",
        "%C3%A9",
        "a%00",
        "%F0%9F%98%80",
        "a%0A",
        "~a",
        "a~",
    ):
        with Wire(server.http_port) as wire:
            reply = wire.send(request("PUT", f"/v0/topics/{bad}", b"{}")).reply()
            assert reply.status == 400, bad
            envelope(reply.json, "invalid_request")
    refused(api.client.put("/v0/topics/a%2Fdiff", content="{}", headers=JSON), 400, "invalid_request")


def test_good_names(api: Api) -> None:
    for name in ("a", "Z", "0", "0.", "a..b", "a::b", "a_-", "x" * 255, "diff", "delete", "topics"):
        ok(api.put(name), 200, 201)
        assert api.state(name)["topic"] == name
        assert ok(api.drop(name))["deleted"]


def test_query_booleans(api: Api) -> None:
    """Only true, 1, false and 0; anything else is the default. The last of a repeated key counts."""
    for query, touched in (
        ("", True), ("touch=true", True), ("touch=1", True), ("touch=false", False), ("touch=0", False),
        ("touch=no", True),
        ("touch=False", True), ("touch=", True), ("touch", True), ("touch=true&touch=false", False),
        ("touch=0&touch=1", True),
        ("touch=false&touch=maybe", True), ("Touch=false", True), ("x=1&touch=%66alse", False),
    ):  # fmt: skip
        name = api.make()
        state = ok(api.client.get(f"{path(name)}?{query}"))
        assert (state["last_read_ts"] is not None, state["effective_priority"] > 0) == (touched, touched), query
    for query, shown in (("return_seqs=false", False), ("return_seqs=0", False), ("return_seqs=f", True), ("", True)):
        reply = ok(api.send("POST", f"{path(fresh())}?{query}", REC), 201)
        assert ("seqs" in reply) is shown
        assert (reply["first_seq"], reply["last_seq"]) == (1, 1)
    for query, deleted in (("if_empty=yes", True), ("if_empty=1", False), ("if_empty=true&if_empty=0", True)):
        name = api.make()
        api.append(name, 1)
        assert (api.client.delete(f"{path(name)}?{query}").status_code == 200) is deleted


def test_page_size(api: Api) -> None:
    stem = fresh("pg")
    for i in range(103):
        ok(api.put(f"{stem}:{i:03}"), 201)
    for text, size in (
        ("", 100), ("0", 1), ("1", 1), ("2", 2), ("100", 100), ("1000", 103), ("1001", 103), ("4294967296", 103),
        ("-1", 100), ("x", 100), ("1.5", 100), ("1e2", 100), ("%D9%A1", 100), ("5&page_size=3", 3),
    ):  # fmt: skip
        page = ok(api.client.get(f"/v0/topics?prefix={stem}&page_size={text}"))
        assert len(page["topics"]) == size, text
        assert ("next_cursor" in page) is (size < 103), text


def test_list_cursor(api: Api) -> None:
    stem = fresh("cur")
    names = sorted(f"{stem}{tail}" for tail in ("", "-", ".", "0", ":", ":a", "A", "_", "a", "aa"))
    for name in reversed(names):
        ok(api.put(name), 201)
    seen, cursor = [], ""
    while True:
        page = api.listing(prefix=stem, page_size=3, cursor=cursor)
        seen += [item["topic"] for item in page["topics"]]
        if "next_cursor" not in page:
            break
        cursor = page["next_cursor"]
        assert base64.b64decode(cursor, validate=True) == b'{"after":"%b"}' % seen[-1].encode()
    assert seen == names  # in byte order
    cursor = api.listing(prefix=stem, page_size=4)["next_cursor"]
    ok(api.drop(names[3]))  # the named topic may be gone
    assert api.listing(prefix=stem, cursor=cursor)["topics"][0]["topic"] == names[4]
    for value in ({"after": names[4]}, {"x": 1, "after": names[4]}):
        text = base64.b64encode(json.dumps(value).encode()).decode()
        assert api.listing(prefix=stem, cursor=text)["topics"][0]["topic"] == names[5]
    for value in ({}, {"after": 5}, {"after": None}, [], 5, None, "x"):
        text = base64.b64encode(json.dumps(value).encode()).decode()
        assert api.listing(prefix=stem, cursor=text)["topics"][0]["topic"] == names[0]
    plus = base64.b64encode(b'{"after":"a>"}').decode()
    assert "+" in plus
    assert ok(api.client.get(f"/v0/topics?prefix={stem}&cursor={plus}"))["topics"]  # unescaped: arrives as a space
    for corrupt in ("!", "e30", "eyJhZnRlciI6ImEifQ", "e30==", "bm9wZQ==", "eyJhZnRlciI6", "{}", "-_-_", "é", "/w=="):
        refused(api.client.get("/v0/topics", params={"cursor": corrupt}), 400, "invalid_request")


def test_list_item(api: Api) -> None:
    name = api.make(durable=True, type="queue")
    [item] = api.listing(prefix=name)["topics"]
    assert list(item.items()) == list(
        {"topic": name, "head_seq": 0, "earliest_seq": 1, "count": 0, "bytes": 0, "durable": True,
            "effective_priority": 0}.items()
    )  # fmt: skip
    assert api.listing(prefix=name.upper())["topics"] == []
    assert api.listing(prefix=name + "%")["topics"] == []


# ---------------------------------------------------------------------- identity


def test_topic_id_is_the_identity(api: Api) -> None:
    stem = fresh("Same.Slug")
    first, other = ok(api.put(stem), 201), ok(api.put(stem.replace(".", ":")), 201)
    assert first["slug"] == other["slug"] == stem.lower().replace(".", "-")
    assert first["rrl"] == f"topics/dev/local/topics/{first['slug']}"
    assert first["topic_id"] != other["topic_id"]
    state = api.state(stem)
    assert all(state[name] == first[name] for name in ("topic_id", "slug", "rrl", "epoch"))
    ok(api.drop(stem))
    again = ok(api.put(stem), 201)
    assert again["topic_id"] != first["topic_id"]
    assert again["epoch"] > first["epoch"]


# ---------------------------------------------------------------------- check order


def test_check_order_of_a_put(small: Api) -> None:
    queue = fresh("q")
    ok(small.put(queue, type="queue"), 201)
    others = [fresh("o") for _ in range(3)]
    for name in others:
        ok(small.put(name), 201)
    bad_name = path(".bad")
    huge = b"{" + b" " * 5000
    refused(small.client.put(bad_name, content=huge), 413, "payload_too_large")
    refused(small.client.put(bad_name, content=b"{"), 415, "unsupported_media_type")
    assert "name" not in refused(small.send("PUT", bad_name, b"{"), 400, "invalid_request")["message"]
    message = refused(small.send("PUT", bad_name, {"dead_letter": ""}), 400, "invalid_request")["message"]
    assert "topic name" in message
    assert "dead_letter" not in message
    refused(small.send("PUT", path(queue), {"type": "log", "dead_letter": "a b"}), 400, "invalid_request")
    refused(small.send("PUT", path(queue), {"type": "log", "dead_letter": "dlq"}), 409, "topic_exists_incompatible")
    refused(small.send("PUT", path("fifth"), {"dead_letter": "a b"}), 400, "invalid_request")
    throttled = small.send("PUT", path("fifth"), {})
    assert refused(throttled, 429, "throttled")["detail"] == {"limit": "max_topics", "max": 4}
    assert throttled.headers["retry-after"] == "1"
    for name in (queue, *others):
        ok(small.drop(name))


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


# ------------------------------------------------------------------------- writes


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


# -------------------------------------------------------------------------- reads


def test_diff_reply_and_record_keys(api: Api) -> None:
    name = fresh()
    ok(api.write(name, [{"data": None}, {"data": 1, "tag": "t", "node": "n", "meta": {}}]), 201)
    page = api.read(name)
    assert list(page) == [
        "topic", "records", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "tombstone", "lag", "performance"
    ]  # fmt: skip
    assert [set(record) for record in page["records"]] == [
        {"$seq", "$ts", "data"}, {"$seq", "$ts", "$node", "data", "meta"}
    ]  # fmt: skip
    bare = api.read(name, include_tags=True, include_meta=False)["records"]
    assert [set(record) for record in bare] == [{"$seq", "$ts", "data"}, {"$seq", "$ts", "$node", "$tag", "data"}]


def test_tombstone_has_exactly_its_fields(api: Api) -> None:
    name = api.make(cap_records=1)
    api.append(name, 1, 2)
    tombstone = api.read(name)["tombstone"]
    assert list(tombstone) == ["gap_from", "gap_to", "reason", "missed_estimate", "earliest_seq", "head_seq"]


def test_records_scanned(api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": i, "node": "me" if i % 2 else "you", "tag": "x"} for i in range(10)]))
    api.rm(name, before_seq=3)
    for body, scanned, got in (
        ({}, 8, 8),
        ({"node": "me"}, 8, 4),
        ({"node": "me", "limit": 4}, 4, 2),
        ({"limit": 3}, 3, 3),
    ):
        page = api.read(name, **body)
        assert (page["performance"]["records_scanned"], len(page["records"])) == (scanned, got)


def test_node_filter_examines_at_most_limit(api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": i, "node": "me"} for i in range(300)]))
    page = api.read(name, node="me")
    assert (page["next_from_seq"], page["caught_up"], page["records"]) == (256, False, [])
    page = api.read(name, 256, node="me")
    assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (300, True, 0)


def test_byte_budget_defaults_to_a_mebibyte(api: Api) -> None:
    name = api.make()
    size = (1 << 20) // 4
    ok(api.write(name, [{"data": "x" * (size - 2)} for _ in range(6)]))
    for budget, count in ((None, 4), (0, 4), ((1 << 20) - 1, 3), (1 << 20, 4), (8 << 20, 6), (1 << 60, 6)):
        page = api.read(name, limit=1000, **({} if budget is None else {"max_batch_bytes": budget}))
        assert (len(page["records"]), page["next_from_seq"], page["caught_up"]) == (count, count, count == 6)
    big = api.make()
    for _ in range(9):
        api.append(big, "x" * ((1 << 20) - 2))
    assert len(api.read(big, max_batch_bytes=1 << 40)["records"]) == 8  # clamped to 8 MiB


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


@pytest.fixture
def long_poll(api: Api) -> Iterator[Callable[..., Callable[[], tuple[httpx.Response, float]]]]:
    """Start a diff that waits; the result is a function that gives its response and how long it took."""
    threads: list[threading.Thread] = []

    def start(name: str, **body: Any) -> Callable[[], tuple[httpx.Response, float]]:
        def read() -> tuple[httpx.Response, float]:
            started = time.monotonic()
            with Api(api.base) as own:
                return own.diff(name, **{"wait_ms": 20_000, **body}), time.monotonic() - started

        touched = api.state(name)["last_read_ts"]
        poll(lambda: int(time.time() * 1000) > (touched or 0))
        thread, results = in_background(read)
        threads.append(thread)
        poll(lambda: api.state(name)["last_read_ts"] != touched)  # it is parked: its first read has been made

        def finish() -> tuple[httpx.Response, float]:
            thread.join(15)
            return results[0]

        return finish

    yield start
    for thread in threads:
        thread.join(25)


def test_long_poll(api: Api, long_poll: Callable[..., Callable[[], tuple[httpx.Response, float]]]) -> None:
    name = api.make()
    waiting = [long_poll(name), long_poll(name, node="me")]
    ok(api.write(name, [{"data": 1, "node": "me"}]))
    (woken, took), (filtered, filtered_took) = (finish() for finish in waiting)
    assert took < 5
    assert [r["$seq"] for r in ok(woken)["records"]] == [1]
    assert filtered_took < 5  # any append wakes it, and it answers although nothing passed its filter
    body = ok(filtered)
    assert (body["records"], body["next_from_seq"], body["caught_up"]) == ([], 1, True)
    started = time.monotonic()
    page = api.read(name, 1, wait_ms=80)
    assert time.monotonic() - started >= 0.075
    assert (page["records"], page["caught_up"], page["tombstone"]) == ([], True, None)
    for body in ({"from_seq": 0}, {"from_seq": 9}, {"from_seq": 0, "limit": 1, "node": "me"}):
        started = time.monotonic()
        ok(api.diff(name, wait_ms=15_000, **body)) if body.get("node") is None else None
        assert time.monotonic() - started < 5


def test_long_poll_ends_with_its_topic(
    api: Api, long_poll: Callable[..., Callable[[], tuple[httpx.Response, float]]]
) -> None:
    name = api.make()
    finish = long_poll(name)
    ok(api.drop(name))
    reply, took = finish()
    assert took < 5
    assert refused(reply, 404, "topic_not_found")["detail"] == {"topic": name}


def test_a_delete_does_not_wake_readers_for_nothing(api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": 1, "tag": "x"}, {"data": 2}]))
    api.rm(name, match="x")
    page = api.read(name)
    assert ([r["$seq"] for r in page["records"]], page["tombstone"], page["earliest_seq"]) == ([2], None, 2)
    api.rm(name, before_seq=U64)
    page = api.read(name)
    assert (page["records"], page["next_from_seq"], page["earliest_seq"], page["tombstone"]) == ([], 2, 3, None)
    assert api.append(name, 3)["seqs"] == [3]


# --------------------------------------------------------------------- retention


def test_ttl(api: Api) -> None:
    name = api.make(ttl_ms=400)
    api.append(name, 1, 2)
    written = api.state(name)["last_write_ts"]
    while (state := api.state(name))["count"]:
        assert state["count"] == 2  # what came together goes together
        assert int(time.time() * 1000) - written < 5000
    assert int(time.time() * 1000) - written > 400  # strictly older
    assert (state["bytes"], state["earliest_seq"], state["next_seq"], state["last_write_ts"]) == (0, 3, 3, written)
    assert api.listing(prefix=name)["topics"][0]["count"] == 0
    api.append(name, 3)
    page = api.read(name)
    assert [r["$seq"] for r in page["records"]] == [3]
    assert page["tombstone"] == {
        "gap_from": 1, "gap_to": 2, "reason": "ttl", "missed_estimate": 2, "earliest_seq": 3, "head_seq": 3
    }  # fmt: skip
    assert api.rm(name, before_seq=9)["deleted"] == 1  # the expired are not counted
    loosened = api.make(ttl_ms=20)
    api.append(loosened, 1)
    poll(lambda: api.state(loosened)["count"] == 0)
    ok(api.put(loosened, ttl_ms=1 << 40))  # what has expired does not come back
    assert api.state(loosened)["count"] == 0
    assert api.read(loosened)["tombstone"]["reason"] == "ttl"


def test_tightened_ttl_acts_at_once(api: Api) -> None:
    name = api.make()
    api.append(name, 1)
    ts = api.state(name)["last_write_ts"]
    poll(lambda: int(time.time() * 1000) - ts > 5)
    ok(api.put(name, ttl_ms=1))
    assert api.state(name)["count"] == 0


def test_expired_records_make_room_and_are_empty(api: Api) -> None:
    name = api.make(ttl_ms=60, cap_records=1, discard="reject")
    api.append(name, 1)
    poll(lambda: api.write(name, [{"data": 2}]).status_code == 200)
    assert api.state(name)["head_seq"] == 2
    poll(lambda: api.drop(name, if_empty="true").status_code == 200)
    assert ok(api.drop(name, if_empty="true"))["deleted"] is False


def test_mixed_and_deleted_in_one_gap(api: Api) -> None:
    name = api.make(cap_records=3)
    ok(api.write(name, [{"data": i, "tag": "x" if i in (4, 5) else "y"} for i in range(1, 7)]))
    api.rm(name, match="x")
    page = api.read(name)
    assert (page["tombstone"]["gap_to"], page["tombstone"]["reason"], page["earliest_seq"]) == (5, "cap", 6)
    assert api.read(name, 3)["tombstone"] is None  # above the floor: only deleted ones between
    ok(api.put(name, cap_records=3, ttl_ms=1))
    poll(lambda: api.state(name)["count"] == 0)
    page = api.read(name)
    assert (page["tombstone"]["reason"], page["tombstone"]["gap_to"]) == ("mixed", 6)
    assert api.read(name, 3)["tombstone"]["reason"] == "ttl"


def test_cap_is_exact_and_keeps_all_seqs_in_the_reply(api: Api) -> None:
    name = api.make(cap_records=2)
    assert api.append(name, *range(5))["seqs"] == [1, 2, 3, 4, 5]
    state = api.state(name)
    assert (state["count"], state["earliest_seq"]) == (2, 4)
    alone = api.make(cap_bytes=5)
    assert api.append(alone, "too long")["seqs"] == [1]
    state = api.state(alone)
    assert (state["count"], state["bytes"], state["earliest_seq"], state["head_seq"]) == (0, 0, 2, 1)


def test_reject_never_drops(api: Api) -> None:
    name = api.make(cap_records=3, discard="reject")
    ok(api.write(name, [{"data": i, "tag": str(i)} for i in (1, 2, 3)]))
    api.rm(name, match="2")
    api.rm(name, match="3")
    api.append(name, 4)
    assert [r["$seq"] for r in api.read(name)["records"]] == [1, 4]
    ok(api.put(name, cap_records=1, discard="reject"))  # tighter than what is there
    assert api.state(name)["count"] == 2
    refused(api.write(name, [{"data": 1}]), 422, "topic_full")
    ok(api.put(name, cap_records=1, discard="old"))
    assert api.state(name)["count"] == 1


# ---------------------------------------------------------------------- transfer


def padded(size: int) -> bytes:
    """A valid write of exactly `size` bytes."""
    return b'{"records":[{"data":1}]' + b" " * (size - 24) + b"}"


def chunked(target: str, *chunks: bytes) -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def test_body_limit_is_exact(small_server: ServerProcess, small: Api) -> None:
    name = fresh("limit")
    target = path(name)
    ok(small.send("POST", target, padded(4096)), 201)
    refused(small.send("POST", target, padded(4097)), 413, "payload_too_large")
    ok(small.send("POST", target, gzip.compress(padded(4096)), headers={"content-encoding": "gzip"}))
    refused(
        small.send("POST", target, gzip.compress(padded(4097)), headers={"content-encoding": "gzip"}),
        413,
        "payload_too_large",
    )
    bomb = gzip.compress(b" " * (64 << 20), 9)[:4000]
    refused(small.send("POST", target, bomb, headers={"content-encoding": "gzip"}), 413, "payload_too_large")
    with Wire(small_server.http_port) as wire:
        half = padded(4096)
        assert wire.send(chunked(target, half[:1], half[1:4000], half[4000:])).reply().status == 200
        assert wire.send(chunked(target, half, b" ")).reply().status == 413
        assert wire.send(request("GET", target)).reply().status == 200  # the connection goes on
        assert wire.send(request("POST", target, padded(8000))).reply().status == 413
        assert wire.send(request("POST", target, padded(6000), Content_Type="text/plain")).reply().status == 413
        assert wire.send(request("POST", target, padded(4000), Content_Type="text/plain")).reply().status == 415
        assert wire.send(request("PUT", path(".bad"), padded(4096))).reply().status == 400
        assert wire.send(request("DELETE", "/nope", padded(4096))).reply().status == 404
        assert wire.send(request("GET", target, padded(100))).reply().status == 200
        reply = wire.send(request("POST", target, padded(1 << 20))).reply()  # beyond limit: answered, then closed
        assert reply.status == 413
        assert reply.headers["connection"] == "close"
        assert wire.reply() is None
    assert small.state(name)["head_seq"] == 3
    ok(small.drop(name))


@pytest.mark.parametrize("split", [1, 7, 100])
def test_body_in_pieces(server: ServerProcess, api: Api, split: int) -> None:
    name = fresh()
    message = request("POST", path(name), json.dumps(REC).encode())
    with Wire(server.http_port) as wire:
        for at in range(0, len(message), split):
            wire.send(message[at : at + split])
        assert wire.reply().status == 201
        body = json.dumps(REC).encode()
        wire.send(chunked(path(name), *(body[at : at + split] for at in range(0, len(body), split))))
        assert wire.reply().json["seqs"] == [2]


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    name = fresh()
    parts = [
        request("POST", path(name), json.dumps(REC).encode()), request("POST", path(name), b"{bad"),
        request("GET", "/nope"),
        request("POST", path(name), b"x" * 100, Content_Type="text/plain"),
        request("POST", path(name), json.dumps(REC).encode()),
        request("GET", path(name)), request("DELETE", path(name), Connection="close"),
    ]  # fmt: skip
    with Wire(server.http_port) as wire:
        wire.send(b"".join(parts))
        replies = list(wire.replies())
    assert [reply.status for reply in replies] == [201, 400, 404, 415, 200, 200, 200]
    assert replies[-2].json["head_seq"] == 2


def test_expect_continue(server: ServerProcess) -> None:
    body = json.dumps(REC).encode()
    with Wire(server.http_port) as wire:
        message = request("POST", path(fresh()), body, Expect="100-continue")
        wire.send(message[: -len(body)])
        assert wire.reply().status == 100
        assert wire.send(body).reply().status == 201


def test_gzip_request(api: Api) -> None:
    name = fresh()
    text = json.dumps(REC).encode()
    good = gzip.compress(text)
    for encoding in ("gzip", "GZIP"):
        ok(api.send("POST", path(name), good, headers={"content-encoding": encoding}), 200, 201)
    ok(api.send("POST", path(name), text, headers={"content-encoding": "identity"}))
    ok(api.send("POST", path(name, "/diff"), gzip.compress(b'{"limit":1}'), headers={"content-encoding": "gzip"}))
    ok(api.send("PUT", path(name), gzip.compress(b"{}"), headers={"content-encoding": "gzip"}))
    head = api.state(name)["head_seq"]
    for bad in (
        good[:-1],
        good[:-9],
        good + b"x",
        good + good,
        text,
        b"\x1f\x8b",
        good[:10] + b"\xff" * 20,
        good[:-8] + b"\0" * 8,
    ):
        refused(api.send("POST", path(name), bad, headers={"content-encoding": "gzip"}), 400, "invalid_request")
    for encoding in ("br", "deflate", "gzip, gzip", "zstd", "x"):
        refused(
            api.send("POST", path(name), good, headers={"content-encoding": encoding}), 415, "unsupported_media_type"
        )
    assert api.state(name)["head_seq"] == head


def test_gzip_reply(api: Api) -> None:
    name = api.make()
    api.append(name, *["y" * 500] * 50)
    plain = api.diff(name)
    assert "content-encoding" not in plain.headers
    for accept, zipped in (
        ("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=0", False), ("gzip;q=0.0, br", False), ("br", False),
        ("identity", False),
    ):  # fmt: skip
        reply = (
            api.diff(name)
            if accept is None
            else api.send("POST", path(name, "/diff"), {}, headers={"accept-encoding": accept})
        )
        assert ("content-encoding" in reply.headers) is zipped, accept
        assert reply.json()["records"] == plain.json()["records"]
        assert (int(reply.headers["content-length"]) < len(reply.content)) is zipped
    ok(api.send("GET", path(name), headers={"accept-encoding": "gzip"}))


def test_http2_with_prior_knowledge(api: Api) -> None:
    name = fresh()
    with httpx.Client(base_url=api.base, http1=False, http2=True, trust_env=False, timeout=10) as client:
        assert client.post(path(name), json=REC).json()["seqs"] == [1]
        reply = client.post(path(name, "/diff"), json={})
        assert reply.http_version == "HTTP/2"
        assert len(reply.json()["records"]) == 1
        refused(client.post(path(name), content=b"{}"), 415, "unsupported_media_type")
        refused(client.get(path("no-such")), 404, "topic_not_found")
        assert client.head(path(name)).content == b""
        refused(client.get("/nope"), 404, "not_found")


def test_http_1_0(server: ServerProcess) -> None:
    with Wire(server.http_port) as wire:
        wire.send(b"GET /v0/health HTTP/1.0\r\n\r\n")
        assert [reply.status for reply in wire.replies()] == [200]


# -------------------------------------------------------------------------- settings


def test_quota_counts_live_bytes(small: Api) -> None:
    quota = SMALL["TOPICS_MAX_TOTAL_BYTES"]
    name, other = fresh("qa"), fresh("qb")
    ok(small.put(name, cap_records=3), 201)
    for _ in range(9):
        small.append(name, "x" * 480)  # eviction gives back
    ok(small.put(other), 201)
    left = quota - small.state(name)["bytes"]
    small.append(other, "y" * (left - 2))  # equality passes
    reply = small.write(other, [{"data": 1}])
    assert refused(reply, 429, "throttled")["detail"] == {"limit": "max_total_bytes", "max": quota}
    assert reply.headers["retry-after"] == "1"
    assert small.state(other)["head_seq"] == 1
    small.rm(name, before_seq=8)
    small.append(other, 1)
    created = small.write(fresh("qc"), [{"data": "z" * 595}])
    assert created.status_code in (201, 429)
    for item in small.listing()["topics"]:
        ok(small.drop(item["topic"]))


def test_odd_settings(start: Callable[..., ServerProcess]) -> None:
    """Unreadable numbers mean the default, 0 means no limit for counts and bytes, and an empty body for the body."""
    server = start(
        TOPICS_MAX_TOPICS="many", TOPICS_MAX_TOTAL_BYTES="-5", TOPICS_MAX_LIMIT="1e3", TOPICS_MAX_RECORD_BYTES="",
        TOPICS_ORG="acme", TOPICS_ENV="prod", TOPICS_CLUSTER="eu-1",
    )  # fmt: skip
    with Api(server.base) as api:
        name = fresh("My.Topic")
        reply = ok(api.put(name), 201)
        assert reply["rrl"] == f"acme/prod/eu-1/topics/{name.lower().replace('.', '-')}"
        ok(api.write(name, [{"data": "x" * 100_000}] * 10))
        ok(api.write(name, [{"data": 1}] * 2000))
        assert len(api.read(name, limit=5000, max_batch_bytes=8 << 20)["records"]) == 1000


def test_zero_settings(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_MAX_BODY_BYTES=0, TOPICS_MAX_TOPICS=0, TOPICS_MAX_TOTAL_BYTES=0)
    with Api(server.base) as api:
        name = fresh()
        ok(api.client.put(path(name)), 201)
        ok(api.client.post(path(name, "/diff")))
        refused(api.send("PUT", path(name), b" "), 413, "payload_too_large")
        refused(api.send("POST", path(name), json.dumps(REC)), 413, "payload_too_large")
        refused(api.client.post(path(name)), 415, "unsupported_media_type")


def test_a_websocket_upgrade_is_answered_like_any_unbuilt_route(server: ServerProcess) -> None:
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    for headers in (upgrade, {k: v for k, v in upgrade.items() if k != "sec-websocket-key"}):
        reply = httpx.get(f"{server.base}/v0/ws", headers=headers, timeout=10, trust_env=False)
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "not_found"


def test_a_page_that_is_full_ends_at_its_last_record_even_before_deleted_ones(api: Api) -> None:
    name = api.make()
    api.write(name, [{"data": 1}, {"data": 2, "tag": "x"}, {"data": 3, "tag": "x"}])
    api.send("POST", f"/v0/topics/{name}/delete", {"match": "x"})
    page = api.diff(name, from_seq=0, limit=1).json()
    assert (page["next_from_seq"], page["caught_up"], page["lag"]) == (1, False, 2)
    page = api.diff(name, from_seq=1, limit=1).json()
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 3, True)
