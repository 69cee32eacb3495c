"""Body limits, media types, gzip, and clients that stop or leave while they send."""

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from topics_gateway import GatewaySettings
from topics_gateway.body import inflate
from topics_gateway.response import names_gzip
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError

JSON = {"content-type": "application/json"}
RECORD = b'{"records":[{"data":1}]}'
LIMIT = 100_000  # of the settings fixture

Drive = Callable[..., Any]


async def code(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def padded(size: int) -> bytes:
    return RECORD[:-1] + b" " * (size - len(RECORD)) + b"}"


async def test_exactly_the_limit_passes(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v0/topics/t", content=padded(LIMIT), headers=JSON)).status_code == 201
    reply = await client.post("/v0/topics/t", content=padded(LIMIT + 1), headers=JSON)
    assert await code(reply) == (413, "payload_too_large")


async def test_too_large_comes_before_the_media_type_and_that_before_the_json(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v0/topics/t", content=b"x" * (LIMIT + 1))).status_code == 413
    assert (await client.post("/v0/topics/t", content=b"{bad")).status_code == 415
    assert (await client.post("/v0/topics/t", content=b"{bad", headers=JSON)).status_code == 400


async def test_a_body_without_a_length_is_counted(drive: Drive) -> None:
    exchange, run = drive("POST", "/v0/topics/t", b"[" * LIMIT, b"1", headers=JSON)
    await run
    assert exchange.status == 413
    exchange, run = drive("POST", "/v0/topics/t", *[bytes([c]) for c in RECORD], headers=JSON)
    await run
    assert exchange.status == 201


async def test_the_rest_of_a_refused_body_is_dropped_before_the_answer(drive: Drive) -> None:
    chunks = [b"x" * 40_000] * 5
    exchange, run = drive("POST", "/v0/topics/t", *chunks, headers=JSON)
    await run
    assert (exchange.status, exchange.taken) == (413, 5)
    assert b"connection" not in exchange.headers


async def test_after_a_body_beyond_that_the_connection_closes(drive: Drive) -> None:
    chunks = [b"x" * 40_000] * 50
    for path, status in (("/v0/topics/t", 413), ("/v0/nothing", 404), ("/v0/topics", 405)):
        exchange, run = drive("POST", path, *chunks, headers=JSON)
        await run
        assert (exchange.status, exchange.headers[b"connection"]) == (status, b"close")
        assert exchange.taken < 10


async def test_a_declared_length_above_the_limit_is_refused_unread(drive: Drive) -> None:
    exchange, run = drive("POST", "/v0/topics/t", b"x", headers={**JSON, "content-length": str(LIMIT + 1)})
    await run
    assert exchange.status == 413


async def test_a_client_that_leaves_while_it_sends_changes_nothing(drive: Drive, engine: Engine) -> None:
    for path, headers in (("/v0/topics/t", JSON), ("/v0/nothing", JSON)):
        exchange, run = drive("POST", path, RECORD[:5], RECORD[5:], complete=False, headers=headers)
        exchange.leave.set()
        await run
        assert exchange.sent == []
    assert engine.ready().topics == 0


@pytest.mark.parametrize("path", ["/v0/topics/t", "/v0/topics/t/diff", "/v0/topics/t/delete"])
async def test_media_types(client: httpx.AsyncClient, path: str) -> None:
    await client.put("/v0/topics/t")
    for wrong in ("text/plain", "Application/json", "application/x-www-form-urlencoded", "", "x;application/json"):
        assert await code(await client.post(path, content=b"{}", headers={"content-type": wrong})) == (
            415,
            "unsupported_media_type",
        )
    assert (await client.post(path, content=b"{}")).status_code == 415
    for right in ("application/json", "application/json; charset=utf-8", "application/json;charset=UTF-8"):
        assert (await client.post(path, content=b"{}", headers={"content-type": right})).status_code != 415


async def test_empty_bodies(client: httpx.AsyncClient) -> None:
    for headers in ({}, JSON):
        assert (await client.put("/v0/topics/t", headers=headers)).status_code in (200, 201)
        assert (await client.post("/v0/topics/t/diff", headers=headers)).status_code == 200
    for path in ("/v0/topics/t", "/v0/topics/t/delete"):
        assert (await client.post(path)).status_code == 415
        assert (await client.post(path, headers=JSON)).status_code == 400


async def test_gzip_requests(client: httpx.AsyncClient) -> None:
    packed = gzip.compress(RECORD)
    cut = gzip.compress(RECORD[:7]) + gzip.compress(RECORD[7:])  # members are one content
    for encoding, body in (
        ("gzip", packed), ("GZIP", packed), ("x-gzip", packed), ("X-GZip", packed), ("identity", RECORD),
        ("identity, gzip", packed), (" gzip ,", packed), ("gzip", cut), ("gzip", gzip.compress(b"") + cut),
    ):  # fmt: skip
        reply = await client.post("/v0/topics/t", content=body, headers={**JSON, "content-encoding": encoding})
        assert reply.status_code in (200, 201)
    for encoding in ("deflate", "br", "gzip, gzip", "gzip, x-gzip", "gzip, br", "x", "xx-gzip"):
        reply = await client.post("/v0/topics/t", content=packed, headers={**JSON, "content-encoding": encoding})
        assert reply.status_code == 415
    for bad in (
        packed[:-6],
        packed + b"x",
        packed + b"\0",
        cut[:-1],
        cut + RECORD,
        packed + packed,
        b"\x1f\x8b garbage",
        RECORD,
        b"",
    ):
        reply = await client.post("/v0/topics/t", content=bad, headers={**JSON, "content-encoding": "gzip"})
        assert await code(reply) == (400, "invalid_request")
    assert (await client.get("/v0/topics/t")).json()["head_seq"] == 9


async def test_repeated_codings_are_a_list(client: httpx.AsyncClient) -> None:
    packed = gzip.compress(RECORD)
    headers = [*JSON.items(), ("content-encoding", "gzip"), ("content-encoding", "gzip")]
    for body in (packed, gzip.compress(packed)):
        assert (await client.post("/v0/topics/t", content=body, headers=headers)).status_code == 415
    headers[-1] = ("content-encoding", "identity")
    assert (await client.post("/v0/topics/t", content=packed, headers=headers)).status_code == 201


async def test_the_limit_holds_for_the_inflated_body(client: httpx.AsyncClient) -> None:
    for size, status in ((LIMIT, 201), (LIMIT + 1, 413), (50 << 20, 413)):
        body = gzip.compress(padded(size), compresslevel=1)
        reply = await client.post("/v0/topics/t", content=body, headers={**JSON, "content-encoding": "gzip"})
        assert reply.status_code == (413 if len(body) > LIMIT else status)


def test_a_bomb_is_not_inflated() -> None:
    with pytest.raises(TopicsError) as error:
        inflate(gzip.compress(bytes(200 << 20), compresslevel=1), 1000)
    assert error.value.reason is Reason.PAYLOAD_TOO_LARGE
    with pytest.raises(TopicsError):
        inflate(gzip.compress(b"x"), 0)
    assert inflate(gzip.compress(b""), 0) == b""


def test_the_limit_holds_for_the_sum_of_all_members() -> None:
    for sizes in ([500, 500], [1] * 1000, [0, 1000, 0], [999, 0, 1], [1000]):
        body = b"".join(gzip.compress(random.randbytes(size)) for size in sizes)
        assert len(inflate(body, 1000)) == 1000
        with pytest.raises(TopicsError) as error:
            inflate(body, 999)
        assert error.value.reason is Reason.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 100_000, 5_000_000])
def test_members_of_any_size_are_joined(size: int) -> None:
    """Also where what is shown to zlib at a time ends within a member's trailer."""
    parts = [random.randbytes(size), b"a" * size, b"end"]
    assert inflate(b"".join(map(gzip.compress, parts)), 1 << 24) == b"".join(parts)


def test_members_are_bounded() -> None:
    nothing = gzip.compress(b"")
    assert inflate(nothing * 65_536, 10) == b""
    with pytest.raises(TopicsError, match="more than 65536 gzip members"):
        inflate(nothing * 3_000_000, 10)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (b"gzip", True), (b"deflate, GZip", True), (b"gzip;q=1.0", True), (b"gzip; q=0.001", True), (b"br", False),
        (b"gzip;q=0", False), (b"gzip; q=0.000, br", False), (b"*", False), (b"", False), (b"xgzip", False),
        (b"deflate;q=0,gzip", True), (b"x-gzip", True), (b"x-gzip;q=0", False), (b"gzip;q=0, x-gzip", True),
    ],
)  # fmt: skip
def test_accept_encoding(value: bytes, named: bool) -> None:
    assert names_gzip(value) is named


async def test_gzip_replies(client: httpx.AsyncClient, settings: GatewaySettings) -> None:
    records = [{"data": "y" * 500}] * 150
    await client.post("/v0/topics/t", json={"records": records})
    for from_seq in (0, 120):  # compressed on a thread, and here
        plain = await client.post("/v0/topics/t/diff", json={"from_seq": from_seq})
        reply = await client.post(
            "/v0/topics/t/diff", json={"from_seq": from_seq}, headers={"accept-encoding": "gzip, deflate"}
        )
        assert reply.headers["content-encoding"] == "gzip"
        assert plain.headers["vary"] == reply.headers["vary"] == "accept-encoding"
        assert reply.json()["records"] == plain.json()["records"]
        assert int(reply.headers["content-length"]) < len(plain.content)
    small = await client.get("/v0/health", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in small.headers


async def test_binary_rubbish_is_not_a_bug(client: httpx.AsyncClient) -> None:
    for body in (bytes(range(256)), b"\xff" * 50, b"\0", json.dumps("x").encode("utf-16")):
        for path in ("/v0/topics/t", "/v0/topics/t/diff", "/v0/topics/t/delete"):
            assert (await client.post(path, content=body, headers=JSON)).status_code == 400
