"""Request bodies on a real server over HTTP: what is JSON, what is its content type, which keys may come twice."""

import json
from typing import Any

import pytest

from support.http import JSON, REC, Api, Wire, fresh, ok, path, refused, request
from support.server import ServerProcess

# Method, path and a valid body of everything that takes one.
BODIED = [
    ("PUT", "/v0/topics/{t}", {}),
    ("POST", "/v0/topics/{t}", REC),
    ("POST", "/v0/topics/{t}/diff", {"from_seq": 0}),
    ("POST", "/v0/topics/{t}/delete", {"before_seq": 0}),
]
bodied = pytest.mark.parametrize(("method", "template", "body"), BODIED, ids=["put", "write", "diff", "delete"])


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


# ----------------------------------------------------------------- content type


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


# --------------------------------------------------------- keys that come twice

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
