"""GET /v0/ws on a real server: access, and the form of commands (docs/contract.md, 9)."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.http import Api, Wire, envelope, fresh, refused
from support.server import ServerProcess
from support.waiting import poll
from support.ws import BINARY, CONT, PING, PONG, TEXT, RefusedError, WebSocket, frame, upgrade


def test_a_key_is_needed_and_no_scope(keyed: ServerProcess, connect: Callable[..., WebSocket]) -> None:
    for name in ("full", "read", "write", "delete", "admin", "t42"):
        assert connect(keyed.base, key=f"sekret-{name}").cmd("ping")["op"] == "pong"
    for path, kw in (
        ("/v0/ws", {}),
        ("/v0/ws", {"key": "sekret-unknown"}),
        ("/v0/ws?token=sekret-full", {}),
        ("/v0/ws", {"authorization": "Basic x"}),
        ("/v0/nowhere", {}),
    ):
        with pytest.raises(RefusedError) as caught:
            connect(keyed.base, path, **kw)
        assert caught.value.status == 401
        assert caught.value.headers["content-type"] == "application/json"
        envelope(caught.value.body, "unauthorized")


def test_other_paths(server: ServerProcess, keyed: ServerProcess, connect: Callable[..., WebSocket]) -> None:
    for base, kw in ((server.base, {}), (keyed.base, {"key": "sekret-full"})):
        for path in ("/v0/nowhere", "/v0/topics", "/v0/ws/", "/v0/health", "/"):
            with pytest.raises(RefusedError) as caught:
                connect(base, path, **kw)
            assert caught.value.status == 404
            envelope(caught.value.body, "not_found")


def test_plain_requests(api: Api, http: Callable[[str | None], Api]) -> None:
    refused(api.send("GET", "/v0/ws"), 400, "invalid_request")
    refused(api.send("GET", "/v0/ws?x=1"), 400, "invalid_request")
    assert api.send("HEAD", "/v0/ws").status_code == 400
    for method in ("POST", "PUT", "DELETE"):
        refused(api.send(method, "/v0/ws", {}), 405, "method_not_allowed")
    refused(http(None).send("GET", "/v0/ws"), 401, "unauthorized")
    refused(http("read").send("GET", "/v0/ws"), 400, "invalid_request")


def test_malformed_upgrades(server: ServerProcess) -> None:
    for headers, status in (({"sec-websocket-key": "short"}, 400), ({"sec-websocket-version": "8"}, 426)):
        with Wire(server.http_port) as wire:
            reply = wire.send(upgrade("/v0/ws", headers)).reply()
            assert reply is not None
            assert reply.status == status
            assert reply.headers.get("sec-websocket-version") == ("13" if status == 426 else None)
            envelope(reply.json, "invalid_request")


def test_connection_caps(start: Callable[..., ServerProcess], connect: Callable[..., WebSocket]) -> None:
    server = start(TOPICS_MAX_SSE_CONNECTIONS=3, TOPICS_MAX_SSE_CONNECTIONS_PER_KEY=2, TOPICS_API_KEYS="a,b")
    opened = [connect(server.base, key="a"), connect(server.base, key="a")]
    for key, limit, maximum in (("a", "max_sse_connections_per_key", 2), ("b", "max_sse_connections", 3)):
        with pytest.raises(RefusedError) as caught:
            connect(server.base, key=key)
        assert caught.value.status == 429
        assert caught.value.headers["retry-after"] == "1"
        assert envelope(caught.value.body, "throttled")["detail"] == {"limit": limit, "max": maximum}
        opened.append(connect(server.base, key="b")) if key == "a" else None
    opened[0].close()

    def free() -> bool:
        try:
            WebSocket(server.base, key="a").close()
        except RefusedError:
            return False
        return True

    poll(free, what="the slot of a socket that has left")


def test_a_page_of_another_origin(server: ServerProcess, keyed: ServerProcess, connect: Any) -> None:
    port = server.http_port
    for origin in (
        f"http://127.0.0.1:{port}",
        "http://localhost:3000",
        "https://[::1]",
        "http://LOCALHOST",
    ):
        connect(server.base, origin=origin)
    connect(server.base, origin="http://192.0.2.7", host="192.0.2.7:80")
    for origin in (
        "http://evil.example",
        "null",
        "",
        "http://127.0.0.1.evil.example",
        "file://",
        "http://[",
        "http://192.0.2.7",
    ):
        with pytest.raises(RefusedError) as caught:
            connect(server.base, origin=origin)
        assert caught.value.status == 403
        envelope(caught.value.body, "forbidden")
    connect(keyed.base, key="sekret-read", origin="http://evil.example")  # it had a key to send


@pytest.mark.parametrize(
    "text",
    ["1", '"x"', "null", "true", "-1.50e2", "[1, 2]", '{"b" : 1,"a":"\\u00e9"}', "12345678901234567890123", '""'],
)
def test_request_ids_come_back_byte_for_byte(ws: WebSocket, text: str) -> None:
    for op, rest in (
        ("ping", ""),
        ("publish", f',"topic":"{fresh()}","records":[{{"data":1}}]'),
        ("subscribe", ',"topic":"absent"'),
        ("unsubscribe", ',"topic":"absent"'),
    ):
        ws.send(f'{{"op":"{op}","request_id": {text} {rest}}}')
        ws.recv()
        assert f'"request_id":{text},' in ws.texts[-1] or f'"request_id":{text}}}' in ws.texts[-1]


def test_without_a_request_id(ws: WebSocket) -> None:
    for message in (
        {"op": "ping"},
        {"op": "subscribe", "topic": "absent"},
        {"op": "publish", "topic": "absent", "records": []},
    ):
        ws.send(message)
        assert ws.recv()["request_id"] is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{not json",
        "5",
        "null",
        "[]",
        '["ping"]',
        "{}",
        '{"op":null}',
        '{"op":5,"request_id":"x"}',
        '{"op":"PING","request_id":"x"}',
        '{"op":"nope","request_id":"x"}',
        '{"op":"ping"} x',
        '{"op":"ping","request_id":}',
        '{"op":"ping","request_id":"\\ud800"}',
        '{"op":"ping","request_id":1,"request_id":2}',
        '{"op":"ping","request_id":' + "[" * 5000 + "]" * 5000 + "}",
        '{"op":"publish","request_id":"x"}',
        '{"op":"publish","request_id":"x","topic":"t"}',
        '{"op":"publish","request_id":"x","records":[{"data":1}]}',
        '{"op":"publish","request_id":"x","topic":5,"records":[{"data":1}]}',
        '{"op":"publish","request_id":"x","topic":null,"records":[{"data":1}]}',
        '{"op":"publish","request_id":"x","topic":"t","records":{}}',
        '{"op":"publish","request_id":"x","topic":"t","records":[{}]}',
        '{"op":"publish","request_id":"x","topic":"t","records":[5]}',
        '{"op":"publish","request_id":"x","topic":"t","records":[{"data":1,"tag":5}]}',
        '{"op":"publish","request_id":"x","topic":"t","records":[{"data":1}],"return_seqs":null}',
        '{"op":"publish","request_id":"x","topic":"t","records":[{"data":1}],"return_seqs":1}',
        '{"op":"publish","request_id":"x","topic":"t","records":[{"data":1}],"config":5}',
        '{"op":"publish","request_id":"x","topic":"t","records":[{"data":1}],"config":{"ttl_ms":"5"}}',
        '{"op":"publish","request_id":"x","topic":"t","records":[{"data":1}],"create":1}',
        '{"op":"publish","request_id":"x","topic":"t","records":[{"data":1}],"idempotency_key":5}',
        '{"op":"publish","request_id":"x","topic":"t","records":[{"data":1}],"delay_ms":"5"}',
        '{"op":"subscribe","request_id":"x","topic":5}',
        '{"op":"subscribe","request_id":"x","topic":null}',
        '{"op":"subscribe","request_id":"x","topics":["t"]}',
        '{"op":"subscribe","request_id":"x","topics":{"t":5}}',
        '{"op":"subscribe","request_id":"x","topics":{"t":null}}',
        '{"op":"subscribe","request_id":"x","topics":{"t":{"from_seq":"5"}}}',
        '{"op":"subscribe","request_id":"x","topics":{"t":{},"t":{}}}',
        '{"op":"subscribe","request_id":"x","topic":"t","from_seq":-1}',
        '{"op":"subscribe","request_id":"x","topic":"t","from_seq":1.0}',
        '{"op":"subscribe","request_id":"x","topic":"t","from_seq":null}',
        '{"op":"subscribe","request_id":"x","topic":"t","tail":1}',
        '{"op":"subscribe","request_id":"x","topic":"t","limit":"5"}',
        '{"op":"subscribe","request_id":"x","topic":"t","node":5}',
        '{"op":"subscribe","request_id":"x","topic":"t","include_data":"no"}',
        '{"op":"subscribe","request_id":"x","topic":"t","filter":5}',
        '{"op":"subscribe","request_id":"x","topic":"t","filter":["tag","Gt","x"]}',
        '{"op":"subscribe","request_id":"x","topic":"t","consistency":"weak"}',
        '{"op":"subscribe","request_id":"x","topic":"t","topic":"t"}',
        '{"op":"unsubscribe","request_id":"x","topic":5}',
        '{"op":"unsubscribe","request_id":"x","topics":[5]}',
        '{"op":"unsubscribe","request_id":"x","topics":"t"}',
    ],
)
def test_what_is_no_command(ws: WebSocket, api: Api, text: str) -> None:
    ws.send(text)
    message = ws.recv()
    assert message["op"] == "error", message
    assert message["code"] == "invalid_json"
    assert message["request_id"] is None
    assert message["message"]
    assert set(message) == {"op", "request_id", "code", "message"}
    assert ws.cmd("ping") == {"op": "pong", "request_id": message_id(ws)}
    refused(api.get("t"), 404, "topic_not_found")


def message_id(ws: WebSocket) -> Any:
    return json.loads(ws.texts[-1])["request_id"]


def test_binary_messages(ws: WebSocket) -> None:
    ws.write(frame(BINARY, b'{"op":"ping"}'), frame(BINARY), frame(BINARY, b"\xff", fin=False), frame(CONT, b"\0"))
    for _ in range(3):
        message = ws.recv()
        assert {k: message[k] for k in message if k != "message"} == {"op": "error", "code": "unsupported_message"}
        assert message["message"]
    assert ws.cmd("ping")["op"] == "pong"


def test_unknown_members_are_ignored(ws: WebSocket, api: Api) -> None:
    topic = fresh()
    assert ws.publish(topic, records=[{"data": 1, "more": 2}], more=[1])["last_seq"] == 1
    assert ws.subscribe(topic=topic, heartbeat_ms=5, cursor=7) == {
        topic: {"from_seq": 0, "head_seq": 1, "earliest_seq": 1}
    }
    assert ws.cmd("ping", topic=5)["op"] == "pong"


def test_fragments_and_white_space(ws: WebSocket) -> None:
    text = ' {\n"op" : "ping",\r\n\t"request_id" : "é"\n} '.encode()
    at = text.index("é".encode()) + 1  # within a character
    ws.write(frame(TEXT, text[:5], fin=False), frame(CONT, text[5:at], fin=False), frame(PING, b"now"))
    assert ws.frame() == (PONG, b"now")
    ws.write(frame(CONT, fin=False), frame(CONT, text[at:]))
    assert ws.recv() == {"op": "pong", "request_id": "é"}
    ws.write(frame(TEXT, b'{"op":"ping","request_id":"\xc3"}'))
    assert ws.closed()[0] == 1007


def test_messages_are_as_large_as_bodies(keyed: ServerProcess, connect: Callable[..., WebSocket]) -> None:
    ws, limit = connect(keyed.base, key="sekret-full"), 100_000
    start, end = b'{"op":"ping","request_id":"', b'"}'
    ws.write(frame(TEXT, start + b"x" * (limit - len(start + end)) + end))
    assert len(ws.recv()["request_id"]) == limit - len(start + end)
    ws.write(frame(TEXT, start + b"x" * (limit - len(start + end) + 1) + end))
    assert ws.closed()[0] == 1009
    ws = connect(keyed.base, key="sekret-full")
    ws.write(frame(TEXT, b"x" * limit, fin=False), frame(CONT, b"y"))
    assert ws.closed()[0] == 1009


def test_commands_are_authorized_one_by_one(
    keyed: ServerProcess, http: Callable[[str | None], Api], connect: Callable[..., WebSocket]
) -> None:
    full = http("full")
    topic, new = full.make("t42:a"), fresh("t42:n")
    other = full.make("t43:b")
    one = [{"data": 1}]
    for key, subscribes, publishes, configures in (
        ("full", True, True, True), ("read", True, False, False), ("write", False, True, False),
        ("delete", False, False, False), ("admin", False, False, False), ("rw", True, True, False),
        ("wa", False, True, True), ("t42", True, True, True),
    ):  # fmt: skip
        ws = connect(keyed.base, key=f"sekret-{key}")
        for allowed, op, members in (
            (subscribes, "subscribe", {"topic": topic}),
            (publishes, "publish", {"topic": topic, "records": one}),
            (configures, "publish", {"topic": topic, "records": one, "config": {}}),  # although it exists
        ):
            reply = ws.cmd(op, **members)
            assert reply.get("code") == (None if allowed else "forbidden"), (key, op, reply)
    ws = connect(keyed.base, key="sekret-t42")
    ws.refused("forbidden", "subscribe", topic=other)
    ws.refused("forbidden", "subscribe", topic="t43:absent")
    ws.refused("forbidden", "subscribe", topics={topic: {}, other: {}})
    ws.refused("forbidden", "subscribe", topics={"t4*": {}})
    ws.refused("forbidden", "subscribe", topics={"*": {}})
    ws.subscribe(topics={"t42:*": {"tail": True}})
    ws.refused("forbidden", "publish", topic=other, records=one)
    ws.refused("forbidden", "publish", topic=new, records=one, config={"type": "queue", "dead_letter": "t43:dead"})
    refused(full.get(new), 404, "topic_not_found")
    assert full.state(other)["head_seq"] == 0
    ws = connect(keyed.base, key="sekret-wa")
    ws.refused("forbidden", "publish", topic="else", records=one, config={})
    ws.publish(new, 1, config={"cap_records": 5})
