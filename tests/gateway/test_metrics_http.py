"""/v0/metrics answers in every state of the server."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from topics_service.api.topics import TopicsApi
from topics_service.engine.engine import Engine


async def test_while_recovering_read_only_and_draining(
    client: httpx.AsyncClient, engine: Engine, api: TopicsApi
) -> None:
    async def ready() -> tuple[int, bool]:
        text = await client.get("/v0/metrics")
        reply = await client.get("/v0/metrics", headers={"accept": "application/json"})
        assert f"\ntopics_ready {int(reply.json()['ready'])}.0\n" in text.text
        return text.status_code, reply.json()["ready"]

    assert await ready() == (200, True)
    engine.recovered = 0.5
    assert await ready() == (200, False)
    assert (await client.get("/v0/topics")).status_code == 503
    engine.recovered = 1.0
    engine.sync_failed(OSError("no"))
    assert await ready() == (200, False)
    api.drain()
    assert await ready() == (200, False)


async def test_a_request_that_a_stop_cuts_off_counts_as_gone(drive: Callable[..., Any], api: TopicsApi) -> None:
    exchange, run = drive("POST", "/v0/topics/t", b"{", complete=False)
    task = asyncio.ensure_future(run)
    await exchange.waiting.wait()
    assert api.metrics.http.in_flight == 1
    task.cancel()
    await asyncio.wait([task])
    assert api.metrics.http.in_flight == 0
    assert list(api.metrics.http.finished) == [("TopicsService.Append", "gone")]
