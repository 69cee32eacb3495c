"""Starts of a diff other than a cursor: `from_ts` and `last`, additive on HTTP."""

import json
from typing import Any

import httpx
import pytest

U64 = 2**64 - 1


async def _diff(client: httpx.AsyncClient, **members: Any) -> dict[str, Any]:
    reply = await client.post("/v0/topics/t/diff", json=members)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


@pytest.fixture
async def times(client: httpx.AsyncClient) -> list[int]:
    """The commit times of five records."""
    for n in range(5):
        await client.post("/v0/topics/t", json={"records": [{"data": n}]})
    return [record["$ts"] for record in (await _diff(client))["records"]]


async def test_from_ts(client: httpx.AsyncClient, times: list[int]) -> None:
    for ts in (0, times[0], times[2], times[4], times[4] + 1, U64):
        body = await _diff(client, from_ts=ts)
        assert [record["$seq"] for record in body["records"]] == [i for i, t in enumerate(times, 1) if t >= ts]
        assert (body["next_from_seq"], body["caught_up"], body["tombstone"]) == (5, True, None)
    assert len((await _diff(client, from_ts=0, limit=2))["records"]) == 2


async def test_last(client: httpx.AsyncClient, times: list[int]) -> None:
    for last in (0, 1, 3, 5, 6, 2**32 - 1, 2**32, U64, 10**30):
        body = await _diff(client, last=last)
        assert [record["$seq"] for record in body["records"]] == [1, 2, 3, 4, 5][max(0, 5 - last) :]
        assert body["next_from_seq"] == 5
    assert [record["$seq"] for record in (await _diff(client, last=3, limit=1))["records"]] == [3]
    await client.post("/v0/topics/t/delete", json={"before_seq": 5})
    assert [record["$seq"] for record in (await _diff(client, last=3))["records"]] == [5]


async def test_a_wait_at_the_tail(client: httpx.AsyncClient, times: list[int]) -> None:
    body = await _diff(client, last=0, wait_ms=1)
    assert (body["records"], body["next_from_seq"]) == ([], 5)


@pytest.mark.parametrize(
    "members",
    [
        '{"from_seq":1,"last":1}',
        '{"from_seq":1,"from_ts":1}',
        '{"from_ts":0,"last":0}',
        '{"from_ts":null}',
        '{"last":null}',
        '{"from_ts":-1}',
        '{"from_ts":1.0}',
        '{"from_ts":1e3}',
        '{"from_ts":"1"}',
        '{"from_ts":true}',
        '{"from_ts":18446744073709551616}',
        '{"last":-1}',
        '{"last":1.0}',
        '{"last":[]}',
        '{"last":1,"last":1}',
        '{"from_ts":1,"from_ts":1}',
    ],
)
async def test_refusals(client: httpx.AsyncClient, times: list[int], members: str) -> None:
    json.loads(members)
    headers = {"content-type": "application/json"}
    reply = await client.post("/v0/topics/t/diff", content=members, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")
