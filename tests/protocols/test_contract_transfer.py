"""Transfer of requests and responses on a real server over HTTP: lengths, pieces, pipelines, gzip, versions of HTTP."""

import gzip
import json

import httpx
import pytest

from support.http import REC, Api, Wire, fresh, ok, path, refused, request
from support.server import ServerProcess


def padded(size: int) -> bytes:
    """A valid write of exactly `size` bytes."""
    return b'{"records":[{"data":1}]' + b" " * (size - 24) + b"}"


def chunked(target: str, *chunks: bytes) -> bytes:
    head = (
        f"POST {target} HTTP/1.1\r\nHost: [::]\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
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
        assert wire.send(request("GET", target)).reply().status == 200  # the connection continues
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


# ------------------------------------------------------------------------- gzip


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


# ------------------------------------------------------------- versions of HTTP


def test_http2_with_prior_knowledge(api: Api) -> None:
    name = fresh()
    with httpx.Client(base_url=api.base, http1=False, http2=True, trust_env=False, verify=False, timeout=30) as client:
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
