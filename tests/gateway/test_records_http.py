"""Records over HTTP: append, diff with its long poll, delete."""

# ruff: noqa: UP031 - JSON has enough braces without those of str.format

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.topics import TopicsApi
from topics_service.engine.engine import Parked
from topics_service.engine.model import AppendRequest, Batch

JSON = {"content-type": "application/json"}


async def write(client: httpx.AsyncClient, *datas: Any, topic: str = "t", **members: Any) -> dict[str, Any]:
    reply = await client.post(f"/v0/topics/{topic}", json={"records": [{"data": d} for d in datas], **members})
    assert reply.status_code in (200, 201), reply.text
    body: dict[str, Any] = reply.json()
    return body


async def diff(client: httpx.AsyncClient, topic: str = "t", **members: Any) -> dict[str, Any]:
    reply = await client.post(f"/v0/topics/{topic}/diff", json=members)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


async def test_append(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v0/topics/t", json={"records": [{"data": "a"}, {"data": "b"}]})
    body = reply.json()
    assert reply.status_code == 201
    assert list(body.items())[:-1] == [
        ("topic", "t"), ("first_seq", 1), ("last_seq", 2), ("seqs", [1, 2]), ("head_seq", 2), ("count", 2),
        ("created", True), ("deduped", False),
    ]  # fmt: skip
    assert list(body["performance"]) == ["server_total_ms", "wal_append_ms", "fsync_ms"]
    assert body["performance"]["fsync_ms"] == 0
    again = await client.post("/v0/topics/t?return_seqs=false", json={"records": [{"data": 1}], "return_seqs": True})
    assert (again.status_code, "seqs" in again.json(), again.json()["first_seq"]) == (200, False, 3)


async def test_an_fsync_topic_says_what_it_cost(client: httpx.AsyncClient) -> None:
    body = await write(client, 1, config={"durability": "fsync"})
    assert body["performance"]["fsync_ms"] > 0


async def test_idempotency_key_of_the_body_wins_over_the_header(client: httpx.AsyncClient) -> None:
    async def keyed(header: str | bytes | None, **members: Any) -> dict[str, Any]:
        headers = (
            {} if header is None else {b"idempotency-key": header if isinstance(header, bytes) else header.encode()}
        )
        reply = await client.post("/v0/topics/t", json={"records": [{"data": 1}], **members}, headers=headers)
        body: dict[str, Any] = reply.json()
        return body

    assert (await keyed("h"))["seqs"] == [1]
    deduped = await keyed("h", idempotency_key=None)
    assert (deduped["deduped"], deduped["seqs"], list(deduped["performance"])) == (True, [1], ["server_total_ms"])
    assert (await keyed(None, idempotency_key="h"))["deduped"] is True
    assert (await keyed("h", idempotency_key="b"))["seqs"] == [2]
    assert (await keyed("", idempotency_key=None))["seqs"] == [3]
    assert (await keyed("", idempotency_key=None))["deduped"] is True
    assert (await keyed("é"))["seqs"] == [4]
    assert (await keyed(None, idempotency_key="é"))["deduped"] is True
    assert (await keyed(b"\xff"))["error"]["code"] == "invalid_request"
    assert (await keyed("k" * 257))["error"]["code"] == "invalid_request"


async def test_what_was_written_is_read_byte_for_byte(client: httpx.AsyncClient) -> None:
    data = r'{ "z":1.0, "a" : [ -0.0,1e3 ,' + str(2**70) + r'], "k":1,"k":2, "s":"\u00e9\/é" }'
    meta = r'{"b":{"y":1,"b":1.0} ,"a":"\n"}'
    body = '{"records":[{"data":%s,"meta":%s,"tag":"t\\"é"}]}' % (data, meta)
    assert (await client.post("/v0/topics/t", content=body.encode(), headers=JSON)).status_code == 201
    reply = await client.post("/v0/topics/t/diff", json={"include_tags": True})
    assert ('"$tag":"t\\"é","data":%s,"meta":%s}' % (data, meta)).encode() in reply.content


async def test_diff_shape(client: httpx.AsyncClient) -> None:
    await write(client, 1, None, node="n")
    reply = await client.post("/v0/topics/t/diff", json={})
    body = reply.json()
    assert list(body) == [
        "topic", "records", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "tombstone", "lag", "performance",
    ]  # fmt: skip
    assert [list(record) for record in body["records"]] == [["$seq", "$ts", "$node", "data"]] * 2
    assert (body["caught_up"], body["tombstone"], body["lag"], body["next_from_seq"]) == (True, None, 0, 2)
    assert list(body["performance"]) == ["server_total_ms", "records_scanned"]
    assert body["performance"]["records_scanned"] == 2
    assert int(reply.headers["content-length"]) == len(reply.content)


async def test_diff_across_many_blocks_and_pages(client: httpx.AsyncClient) -> None:
    for i in range(20):
        await write(client, *range(i * 10, i * 10 + 10))
    got: list[int] = []
    page: dict[str, Any] = {"next_from_seq": 0, "caught_up": False}
    while not page["caught_up"]:
        page = await diff(client, from_seq=page["next_from_seq"], limit=7)
        got += [record["data"] for record in page["records"]]
    assert got == list(range(200))


async def test_diff_of_an_empty_topic_and_a_tombstone(client: httpx.AsyncClient) -> None:
    await client.put("/v0/topics/t", json={"cap_records": 2})
    assert (await diff(client))["records"] == []
    await write(client, 1, 2, 3)
    body = await diff(client)
    assert list(body["tombstone"].items()) == [
        ("gap_from", 1), ("gap_to", 1), ("reason", "cap"), ("missed_estimate", 1), ("earliest_seq", 2), ("head_seq", 3),
    ]  # fmt: skip


async def test_diff_node_filter(client: httpx.AsyncClient) -> None:
    records = [{"data": 1, "node": "a"}, {"data": 2, "node": "é"}, {"data": 3}]
    await client.post("/v0/topics/t", json={"records": records})
    for node, left in (("a", [2, 3]), (["a", "é"], [3]), ([], [1, 2, 3]), (None, [1, 2, 3]), ("", [1, 2, 3])):
        assert [record["data"] for record in (await diff(client, node=node))["records"]] == left


@pytest.mark.parametrize(
    "body",
    [
        {"from_seq": -1}, {"from_seq": "1"}, {"from_seq": None}, {"from_seq": 2**64}, {"limit": -1}, {"limit": None},
        {"limit": 1.5}, {"wait_ms": -1}, {"wait_ms": "5"}, {"node": 5}, {"node": [1]}, {"node": [None]}, {"node": {}},
        {"include_tags": None}, {"include_meta": 1}, {"max_batch_bytes": -1}, {"max_batch_bytes": True},
    ],
)  # fmt: skip
async def test_diff_refuses(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    await write(client, 1)
    reply = await client.post("/v0/topics/t/diff", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")


async def test_diff_clamps(client: httpx.AsyncClient) -> None:
    await write(client, *range(1001))
    for huge in (2**20, 2**40, 10**60):
        assert len((await diff(client, limit=huge, wait_ms=huge, max_batch_bytes=huge))["records"]) == 1000


async def test_a_long_poll_wakes_for_an_append(
    drive: Callable[..., Any], api: TopicsApi, client: httpx.AsyncClient
) -> None:
    await write(client, 1)
    exchange, run = drive("POST", "/v0/topics/t/diff", b'{"from_seq":1,"wait_ms":30000}', headers=JSON)
    poll = asyncio.ensure_future(run)
    await exchange.waiting.wait()
    await api.append(AppendRequest(topic="t", batch=Batch(datas=[b'"late"'])), principal=UNRESTRICTED)
    await poll
    assert [record["data"] for record in json.loads(exchange.body)["records"]] == ["late"]


async def test_a_long_poll_ends_when_the_client_leaves(
    drive: Callable[..., Any], client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(client, 1)
    left = []
    leave = Parked.leave

    def noted(parked: Parked) -> None:
        left.append(parked)
        leave(parked)

    monkeypatch.setattr(Parked, "leave", noted)
    before = asyncio.all_tasks()
    exchange, run = drive("POST", "/v0/topics/t/diff", b'{"from_seq":1,"wait_ms":30000}', headers=JSON)
    poll = asyncio.ensure_future(run)
    await exchange.waiting.wait()
    exchange.leave.set()
    await poll
    assert (exchange.sent, len(left)) == ([], 1)
    assert asyncio.all_tasks() == before


async def test_a_long_poll_that_is_cancelled_leaves_nothing(
    drive: Callable[..., Any], client: httpx.AsyncClient
) -> None:
    await write(client, 1)
    before = asyncio.all_tasks()
    exchange, run = drive("POST", "/v0/topics/t/diff", b'{"from_seq":1,"wait_ms":30000}', headers=JSON)
    poll = asyncio.ensure_future(run)
    await exchange.waiting.wait()
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    assert asyncio.all_tasks() == before


async def test_a_long_poll_on_a_topic_that_goes_is_a_404(
    drive: Callable[..., Any], api: TopicsApi, client: httpx.AsyncClient
) -> None:
    await write(client, 1)
    exchange, run = drive("POST", "/v0/topics/t/diff", b'{"from_seq":1,"wait_ms":30000}', headers=JSON)
    poll = asyncio.ensure_future(run)
    await exchange.waiting.wait()
    await api.delete_topic("t")
    await poll
    assert (exchange.status, json.loads(exchange.body)["error"]["code"]) == (404, "topic_not_found")


async def test_delete(client: httpx.AsyncClient) -> None:
    records = [{"data": i, "tag": tag} for i, tag in enumerate(["a:1", "a:2", "b", "a:*"])]
    await client.post("/v0/topics/t", json={"records": records})
    reply = await client.post("/v0/topics/t/delete", json={"match": ["tag", "Glob", "a:*"], "before_seq": 3})
    assert list(reply.json().items())[:-1] == [
        ("topic", "t"), ("deleted", 2), ("earliest_seq", 3), ("head_seq", 4), ("count", 2), ("bytes", 2),
    ]  # fmt: skip
    assert list(reply.json()["performance"]) == ["server_total_ms"]
    assert (await client.post("/v0/topics/t/delete", json={"match": "a:*"})).json()["deleted"] == 1
    by_seq = await client.post("/v0/topics/t/delete", json={"before_seq": 2**64 - 1, "match": None})
    assert by_seq.json()["deleted"] == 1


@pytest.mark.parametrize(
    "body",
    [{}, {"match": None}, {"before_seq": None}, {"match": []}, {"match": {}}, {"match": 5}, {"before_seq": -1},
     {"before_seq": 1.5}, {"before_seq": "3"}, {"before_seq": 2**64}, {"before_seq": 3, "match": ["tag", "Glob", "x"]}],
)  # fmt: skip
async def test_delete_refuses(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    await write(client, 1)
    reply = await client.post("/v0/topics/t/delete", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")
    assert (await client.get("/v0/topics/t")).json()["count"] == 1
