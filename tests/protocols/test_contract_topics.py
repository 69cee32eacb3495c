"""Topics on a real server over HTTP: their config, names and paths, query parameters, lists, identity."""

import base64
import itertools
import json

import pytest

from support.http import JSON, NOT_INTEGERS, REC, Api, Wire, envelope, fresh, member, ok, path, refused, request
from support.server import ServerProcess

# ----------------------------------------------------------------------- config

CONFIG = {
    "type": "log", "ttl_ms": 1 << 40, "cap_records": 9, "cap_bytes": 900, "discard": "old", "durable": False,
    "durability": "disk", "priority": 1, "auto_priority": True, "auto_create": True, "idempotency_window_ms": 1,
    "dedupe_node": True, "lease_ms": 500, "claim_jitter_ms": 1, "max_deliveries": 1, "dead_letter": "d",
    "leases_durable": True,
}  # fmt: skip
U64_FIELDS = [name for name, value in CONFIG.items() if type(value) is int and name != "priority"]
BOOLS = [name for name, value in CONFIG.items() if type(value) is bool]


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


# ----------------------------------------------------- names, paths and queries


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


# ------------------------------------------------------------------------ lists


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


# --------------------------------------------------------------------- identity


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
