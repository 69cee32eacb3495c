"""Topics over HTTP: put, get, list, delete, and the probes."""

from typing import Any

import httpx
import pytest

from topics_gateway import GatewaySettings, create_app
from topics_service.api.topics import TopicsApi
from topics_service.engine.engine import Engine
from topics_service.engine.model import ReadyState

DEFAULT_CONFIG = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old", "durable": False,
    "durability": "disk", "priority": None, "auto_priority": True, "auto_create": True,
    "idempotency_window_ms": 120000, "dedupe_node": True, "lease_ms": 30000, "claim_jitter_ms": 0,
    "max_deliveries": 0, "dead_letter": None, "leases_durable": False,
}  # fmt: skip
IDENTITY = ["topic_id", "slug", "rrl", "epoch"]


async def test_put(client: httpx.AsyncClient) -> None:
    reply = await client.put("/v0/topics/jobs", json={})
    body = reply.json()
    assert (reply.status_code, body["created"]) == (201, True)
    assert list(body) == ["topic", "created", "config", *IDENTITY, "performance"]
    assert list(body["config"].items()) == list(DEFAULT_CONFIG.items())
    assert list(body["performance"]) == ["server_total_ms"]
    assert body["performance"]["server_total_ms"] > 0
    assert b" " not in reply.content
    again = await client.put("/v0/topics/jobs", json={"ttl_ms": 5, "unknown": 1})
    assert (again.status_code, again.json()["created"], again.json()["config"]["ttl_ms"]) == (200, False, 5)
    assert again.json()["topic_id"] == body["topic_id"]


@pytest.mark.parametrize(
    "body",
    ['{"ttl_ms":null}', '{"ttl_ms":-1}', '{"ttl_ms":1.0}', '{"ttl_ms":18446744073709551616}', '{"discard":"nope"}',
     '{"type":"Log"}', '{"priority":2147483648}', '{"durable":null}', '{"ttl_ms":1,"ttl_ms":1}', '{"dead_letter":""}',
     "[]", ""],
)  # fmt: skip
async def test_put_refuses(client: httpx.AsyncClient, body: str) -> None:
    reply = await client.put("/v0/topics/t", content=body or "null", headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")
    assert (await client.get("/v0/topics/t")).status_code == 404


async def test_state_of_a_log_and_a_queue(client: httpx.AsyncClient) -> None:
    await client.put("/v0/topics/t")
    state = (await client.get("/v0/topics/t?touch=false")).json()
    assert list(state) == [
        "topic", "type", "head_seq", "earliest_seq", "next_seq", "count", "bytes", "config", "effective_priority",
        "last_write_ts", "last_read_ts", *IDENTITY, "performance",
    ]  # fmt: skip
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"], state["last_read_ts"]) == (0, 1, 1, None)
    assert (await client.get("/v0/topics/t?touch=nonsense")).json()["last_read_ts"] is not None
    await client.put("/v0/topics/q", json={"type": "queue"})
    state = (await client.get("/v0/topics/q")).json()
    assert (state["type"], state["config"]["type"]) == ("queue", "queue")


async def test_a_state_with_queue_counters(settings: GatewaySettings, api: TopicsApi, engine: Engine) -> None:
    from topics_service.engine.model import QueueCounters, TopicState

    class QueueApi:
        metrics, observers, sql = api.metrics, api.observers, None

        async def get_topic(self, name: str, *, touch: bool, partition: int) -> TopicState:
            state = await api.get_topic(name, touch=touch, partition=partition)
            state.queue = QueueCounters(ready=842, in_flight=288, dead_lettered=4)
            return state

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(api, settings)), base_url="http://localhost"
    ) as client:
        await client.put("/v0/topics/q", json={"type": "queue"})
    transport = httpx.ASGITransport(create_app(QueueApi(), settings))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        state = (await client.get("/v0/topics/q")).json()
    assert list(state)[7:10] == ["config", "queue", "effective_priority"]
    assert list(state["queue"].items()) == [("ready", 842), ("in_flight", 288), ("dead_lettered", 4)]


async def test_errors_carry_their_detail(client: httpx.AsyncClient) -> None:
    reply = await client.get("/v0/topics/no%22thing")
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["detail"]) == (404, "topic_not_found", {"topic": 'no"thing'})


async def test_list_pages(client: httpx.AsyncClient) -> None:
    names = [f"p:{i:03}" for i in range(101)]
    for name in names:
        await client.put(f"/v0/topics/{name}")
    await client.put("/v0/topics/x", json={"durable": True})
    page = (await client.get("/v0/topics", params={"prefix": "p:"})).json()
    assert list(page) == ["topics", "next_cursor", "performance"]
    assert [topic["topic"] for topic in page["topics"]] == names[:100]
    rest = (await client.get("/v0/topics", params={"prefix": "p:", "cursor": page["next_cursor"]})).json()
    assert list(rest) == ["topics", "performance"]
    assert [topic["topic"] for topic in rest["topics"]] == names[100:]
    [summary] = (await client.get("/v0/topics?prefix=p:&prefix=x&page_size=0")).json()["topics"]
    want = {"topic": "x", "head_seq": 0, "earliest_seq": 1, "count": 0, "bytes": 0, "durable": True}
    assert list(summary.items()) == [*want.items(), ("effective_priority", 0)]
    corrupt = await client.get("/v0/topics?cursor=***")
    assert (corrupt.status_code, corrupt.json()["error"]["code"]) == (400, "invalid_request")


async def test_delete_topic(client: httpx.AsyncClient) -> None:
    await client.post("/v0/topics/t", json={"records": [{"data": 1}]})
    refused = await client.delete("/v0/topics/t?if_empty=1")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "topic_not_empty")
    gone = (await client.delete("/v0/topics/t?if_empty=maybe")).json()
    assert list(gone) == ["topic", "deleted", "routers_removed", "performance"]
    assert (gone["topic"], gone["deleted"], gone["routers_removed"]) == ("t", True, [])
    again = await client.delete("/v0/topics/t")
    assert (again.status_code, again.json()["deleted"]) == (200, False)
    assert (await client.delete("/v0/topics/bad%20name")).json()["topic"] == "bad name"


async def test_a_cap_on_topics_is_a_429_with_retry_after(client: httpx.AsyncClient) -> None:
    for i in range(150):
        await client.put(f"/v0/topics/t{i}")
    reply = await client.put("/v0/topics/more")
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert reply.json()["error"]["detail"] == {"limit": "max_topics", "max": 150}


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
async def test_health(client: httpx.AsyncClient, settings: GatewaySettings, path: str) -> None:
    body = (await client.get(path)).json()
    assert list(body) == ["status", "version", "uptime_ms"]
    assert (body["status"], body["version"], type(body["uptime_ms"])) == ("ok", settings.version, int)


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
async def test_ready(client: httpx.AsyncClient, path: str) -> None:
    await client.put("/v0/topics/t")
    assert (await client.get(path)).json() == {"status": "ready", "wal_replay_complete": True, "topics": 1}


@pytest.mark.parametrize(
    ("reason", "code", "detail"),
    [
        ("not_ready", "not_ready", {"replay_progress": 0.5}),
        ("read_only", "not_ready", {"replay_progress": 0.5}),
        ("shutting_down", "shutting_down", None),
    ],
)
async def test_not_ready(
    api: TopicsApi, settings: GatewaySettings, reason: str, code: str, detail: dict[str, Any] | None
) -> None:
    class Unready:
        metrics, observers, sql = api.metrics, api.observers, None

        def ready(self) -> ReadyState:
            return ReadyState(ready=False, reason=reason, topics=0, replay_progress=0.5)

    transport = httpx.ASGITransport(create_app(Unready(), settings))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        reply = await client.get("/v0/ready")
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error.get("detail")) == (503, code, detail)
    assert reply.headers["retry-after"] == "1"
