"""Clients that break off, lie about their bodies or send noise: never a 5xx, never a traceback, never a change."""

import json
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from protocols.conftest import assert_calm

from support.http import Api, Wire, envelope, fresh, ok, path, request
from support.server import ServerProcess
from support.waiting import poll

REC = b'{"records":[{"data":1}]}'


@pytest.fixture(autouse=True)
def calm(server: ServerProcess) -> Any:
    yield
    assert server.alive()
    assert_calm(server)


def picture(api: Api, name: str) -> Any:
    """Everything a client sees of a topic that a refused request must not change."""
    reply = api.get(name, touch="false")
    if reply.status_code == 404:
        return None
    state, page = ok(reply), api.read(name, include_tags=True, limit=1000)
    for volatile in ("performance", "last_read_ts", "effective_priority"):
        state.pop(volatile)
    return state, page["records"], page["tombstone"]


# ------------------------------------------------------------------ broken off


@pytest.mark.parametrize("part", ["line", "head", "blank", "body", "chunk"])
@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
def test_half_a_request(server: ServerProcess, api: Api, part: str, how: str) -> None:
    name = fresh()
    whole = request("POST", path(name), REC)
    chunked = (
        f"POST {path(name)} HTTP/1.1\r\nHost: [::]\r\nContent-Type: application/json\r\n"
        f"Transfer-Encoding: chunked\r\n\r\n5\r\n{REC[:5].decode()}\r\n13\r\n"
    ).encode()
    halves = {
        "line": whole[:9], "head": whole[:40], "blank": whole[: whole.index(b"\r\n\r\n") + 2],
        "body": whole[:-3], "chunk": chunked,
    }  # fmt: skip
    with Wire(server.http_port) as wire:
        wire.send(halves[part])
        getattr(wire, how)()
        if how == "half_close":
            for reply in wire.replies():
                assert 400 <= reply.status < 500
                envelope(reply.json)
    assert api.get(name).status_code == 404


def test_a_writer_that_leaves_before_its_answer(server: ServerProcess, api: Api) -> None:
    """A request that was received whole may take effect, and then as a whole."""
    name = api.make(durability="fsync")
    body = json.dumps({"records": [{"data": i} for i in range(50)]}).encode()
    for _ in range(20):
        wire = Wire(server.http_port).send(request("POST", path(name), body))
        wire.reset()
    api.append(name, "end")
    state = api.state(name)
    assert state["head_seq"] % 50 == 1
    assert state["count"] == state["head_seq"]


def test_readers_that_leave_their_long_poll(server: ServerProcess, api: Api) -> None:
    name = api.make()
    with ExitStack() as opened:
        wires = [opened.enter_context(Wire(server.http_port)) for _ in range(30)]
        for wire in wires:
            wire.send(request("POST", path(name, "/diff"), b'{"wait_ms":30000}'))
        poll(lambda: api.state(name)["last_read_ts"])
        for wire in wires[::2]:
            wire.reset()
    started = time.monotonic()
    assert api.append(name, 1)["seqs"] == [1]
    assert [r["$seq"] for r in api.read(name)["records"]] == [1]
    assert time.monotonic() - started < 5


def test_a_request_behind_a_long_poll_waits_its_turn(server: ServerProcess, api: Api) -> None:
    name = api.make()
    with Wire(server.http_port) as wire:
        wire.send(request("POST", path(name, "/diff"), b'{"wait_ms":200}') + request("GET", path(name)))
        assert wire.reply().json["records"] == []
        assert wire.reply().json["head_seq"] == 0
    with Wire(server.http_port) as wire:  # noise behind it ends the connection after its answer, or at once
        wire.send(request("POST", path(name, "/diff"), b'{"wait_ms":100}') + b"\x00garbage\r\n\r\n")
        for reply in wire.replies():
            assert reply.status in (200, 400)


# ----------------------------------------------------------------------- noise

NOISE = [
    b"\r\n\r\n\r\n", b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n",
    b"get / HTTP/1.1\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: [::]\r\n\r\n", b"GET /v0/topics HTTP/1.1\r\nHost: localhost\r\nBad Header: 1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: [::]\r\nX: \x00\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"POST /v0/topics/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v0/topics/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /v0/topics/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST /v0/topics/x HTTP/1.1\r\nHost: [::]\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    b"POST /v0/topics/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v0/topics/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    b"POST /v0/topics/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: [::]\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100, b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9) * 3,
    b"GET http://evil/v0/topics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v0/topics/%00?touch=%ff&%=%&&&= HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v0/topics?prefix=%ff%00&cursor=%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("noise", NOISE, ids=lambda noise: repr(noise[:30]))
def test_noise(server: ServerProcess, noise: bytes) -> None:
    for before in (b"", request("GET", "/v0/health")):
        with Wire(server.http_port) as wire:
            wire.send(before + noise)
            wire.half_close()
            if b"PRI" in noise and not before:
                while wire.socket.recv(1 << 16):
                    pass
                continue
            replies = list(wire.replies())
        if before:
            assert replies[0].status == 200
        for reply in replies[bool(before) :]:
            assert 400 <= reply.status < 500 or (reply.status, noise[:3]) == (200, b"GET"), reply
            if reply.status != 200:
                envelope(reply.json)


def test_random_noise(server: ServerProcess) -> None:
    rng = random.Random(5)
    seeds = [
        request("POST", path("x"), REC),
        request("GET", "/v0/topics"),
        b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]
    for _ in range(150):
        data = bytearray(b"".join(rng.choice(seeds) for _ in range(rng.randrange(1, 4))))
        for _ in range(rng.randrange(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with Wire(server.http_port, seconds=5) as wire:
            wire.send(bytes(data))
            wire.half_close()
            try:
                while wire.socket.recv(1 << 16):
                    pass
            except ConnectionResetError:
                pass
    with Wire(server.http_port) as wire:
        assert wire.send(request("GET", "/v0/health")).reply().status == 200


def test_noise_on_the_grpc_port(server: ServerProcess) -> None:
    host, _, port = server.grpc_target.rpartition(":")
    for noise in (b"\0" * 500, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 200):
        with socket.create_connection((host, int(port)), timeout=5) as sock:
            sock.sendall(noise)
            sock.shutdown(socket.SHUT_WR)
            try:
                while sock.recv(1 << 16):
                    pass
            except ConnectionResetError:
                pass


def test_many_connections_at_once(server: ServerProcess, api: Api) -> None:
    name = api.make()
    with ExitStack() as opened:
        wires = [opened.enter_context(Wire(server.http_port)) for _ in range(200)]
        for wire in wires:
            wire.send(request("POST", path(name), REC)[:-1])
        for wire in wires:
            wire.send(REC[-1:])
        seqs = sorted(wire.reply().json["first_seq"] for wire in wires)
        assert seqs == list(range(1, 201))


def test_a_slow_reader_does_not_stop_the_others(server: ServerProcess, api: Api) -> None:
    name = api.make()
    for _ in range(8):
        api.append(name, "x" * (1 << 20 - 1))
    body = b'{"max_batch_bytes":8388608}'
    with ExitStack() as stuck:
        for _ in range(4):
            wire = Wire(server.http_port)
            stuck.callback(wire.reset)
            wire.send(request("POST", path(name, "/diff"), body) * 8)  # never read
        started = time.monotonic()
        for i in range(20):
            api.append(name, i)
        assert time.monotonic() - started < 10


def test_huge_numbers_cost_nothing(server: ServerProcess, api: Api) -> None:
    name = api.make()
    before = server.cpu_seconds()
    digits = "9" * 1_000_000
    for text in (digits, f"-{digits}", f"{digits}.5", f"1e{digits}", f"0.{digits}e-{digits}"):
        assert api.send("POST", path(name, "/diff"), f'{{"from_seq":{text}}}').status_code == 400
        assert api.send("PUT", path(name), f'{{"ttl_ms":{text}}}').status_code == 400
        assert api.send("PUT", path(name), f'{{"unknown":{text}}}').status_code in (200, 400)
        assert api.send("POST", path(name), f'{{"records":[{{"data":{text}}}]}}').status_code in (200, 400)
        assert api.send("POST", path(name, "/delete"), f'{{"before_seq":{text}}}').status_code == 400
    assert server.cpu_seconds() - before < 5


def test_many_keys_and_deep_nests_cost_nothing(server: ServerProcess, api: Api) -> None:
    name = api.make()
    before = server.cpu_seconds()
    keys = ",".join(f'"k{i}":{i}' for i in range(100_000))
    assert api.send("PUT", path(name), f"{{{keys}}}").status_code == 200
    assert api.send("POST", path(name, "/diff"), f"{{{keys}}}").status_code == 200
    assert api.send("POST", path(name), f'{{{keys},"records":[{{"data":1,{keys}}}]}}').status_code == 200
    assert api.send("POST", path(name), f'{{"records":[{{"data":1,"meta":{{{keys}}}}}]}}').status_code == 400
    for opening in ("[", '{"a":', '[{"a":'):
        nest = opening * 300_000
        for body in (
            nest,
            f'{{"records":[{{"data":{nest}',
            f'{{"records":[{{"data":1,"meta":{nest}',
            f'{{"match":{nest}',
            f'{{"node":{nest}',
        ):
            for method, tail in (("PUT", ""), ("POST", ""), ("POST", "/diff"), ("POST", "/delete")):
                assert api.send(method, path(name, tail), body).status_code == 400
    assert server.cpu_seconds() - before < 20


# ------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    [
        "\0",
        "a\0",
        "a\x00b",
        "..",
        ".",
        "a/../b",
        "%",
        "%00",
        "\x7f",
        "\u202e",
        "💥",
        "a" * 10_000,
        "-",
        "a;b",
        "a?b",
        "a#b",
    ],
)
def test_strange_names(api: Api, name: str) -> None:
    for reply, statuses in (
        (api.put(name), {400}), (api.write(name, [{"data": 1}]), {400}), (api.get(name), {404}),
        (api.diff(name), {404}),
        (api.delete(name, before_seq=1), {404}), (api.drop(name), {200}),
        (api.listing and api.send("GET", "/v0/topics", params={"prefix": name}), {200}),
    ):  # fmt: skip
        if name in ("..", "."):  # the client takes these out of the path
            assert reply.status_code < 500
        else:
            assert reply.status_code in statuses, reply.text
            assert reply.status_code == 200 or envelope(reply.json())


# -------------------------------------------------------------------------- fuzz

JSONISH = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([2**64, -1, "", "*"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
BODIES = {
    ("PUT", ""): {
        "type": "log", "ttl_ms": 1 << 40, "cap_records": 50, "cap_bytes": 1 << 30, "discard": "old", "durable": False,
        "durability": "disk", "priority": 3, "auto_priority": True, "auto_create": True, "idempotency_window_ms": 5,
        "dedupe_node": True, "lease_ms": 500, "claim_jitter_ms": 5, "max_deliveries": 2, "dead_letter": "d",
        "leases_durable": True,
    },
    ("POST", ""): {
        "records": [{"data": {"a": [1, "x"]}, "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": None}],
        "node": "b",
        "idempotency_key": "key", "create": True, "config": {"ttl_ms": 0}, "disable_backpressure": True,
    },
    ("POST", "/diff"): {
        "from_seq": 1, "limit": 5, "node": ["a", "b"], "include_tags": True, "include_meta": False, "wait_ms": 0,
        "max_batch_bytes": 100,
    },
    ("POST", "/delete"): {"before_seq": 1, "match": ["tag", "Glob", "t*"]},
}  # fmt: skip


@st.composite
def requests(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[str, str, bytes]:
    """A valid request with a few things wrong with its values or its bytes."""
    method, tail = draw(st.sampled_from(sorted(BODIES)))
    body = json.loads(json.dumps(BODIES[method, tail]))
    for _ in range(draw(st.integers(0, 2))):
        target = body
        if "records" in body and draw(st.booleans()) and isinstance(body["records"], list) and body["records"]:
            record = body["records"][0]
            target = record if isinstance(record, dict) else body
        if not target:
            break
        field = draw(st.sampled_from(sorted(target)))
        if draw(st.booleans()):
            target[field] = draw(JSONISH)
        else:
            del target[field]
    body.pop("wait_ms", None)
    text = bytearray(json.dumps(body).encode())
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        how = draw(st.sampled_from(["insert", "delete", "replace", "repeat"]))
        if how == "insert":
            text[at:at] = draw(
                st.binary(min_size=1, max_size=3)
                | st.sampled_from([b'"', b"{", b"]", b",", b"\\u", b"1e9", b"\xed\xa0\x80"])
            )
        elif how == "delete":
            del text[at : at + 3]
        elif how == "replace" and at < len(text):
            text[at] = draw(st.integers(0, 255))
        else:
            text[at:at] = text[max(0, at - 12) : at]
    return method, tail, bytes(text)


@pytest.fixture(scope="module")
def fuzzed(api: Api) -> str:
    name = api.make("fuzz")
    ok(
        api.write(
            name, [{"data": i, "tag": f"t{i}", "node": "a" if i % 2 else "c", "meta": {"i": i}} for i in range(10)]
        )
    )
    return name


@settings(
    max_examples=400, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(made=requests())
def test_mutated_bodies(api: Api, server: ServerProcess, fuzzed: str, made: tuple[str, str, bytes]) -> None:
    method, tail, text = made
    absent = "fuzz-absent"
    for name in (fuzzed, absent):
        before = picture(api, name)
        reply = api.send(method, path(name, tail), text)
        assert reply.status_code < 500, reply.text
        assert b"Traceback" not in reply.content
        if reply.status_code >= 400:
            envelope(reply.json())
            if name == absent and reply.status_code == 400 and (after := picture(api, name)) is not None:
                # a write that is refused for its size leaves the topic that it created
                assert before is not None or (
                    after[0]["head_seq"] == 0 and reply.json()["error"]["code"] == "record_too_large"
                )
            else:
                assert picture(api, name) == before
        else:
            json.loads(reply.content)
    api.drop(absent)


def test_fuzz_from_many_clients_leaves_the_server_well(server: ServerProcess, api: Api) -> None:
    """Good writes between noise: each gets its own answer."""
    name = api.make()
    failures: list[BaseException] = []

    def bad(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(30):
                with Wire(server.http_port) as wire:
                    text = request("POST", path(name), REC)
                    wire.send(text[: rng.randrange(len(text))])
                    rng.choice((wire.reset, wire.close))()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=bad, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for i in range(60):
        assert api.append(name, i)["seqs"] == [i + 1]
    for thread in threads:
        thread.join(20)
    assert not failures
    assert [record["data"] for record in api.read_all(name)] == list(range(60))
