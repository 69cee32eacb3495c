"""What the server really answers is what `docs/openapi.yaml` says: a day in the life of every route, and the cases of
both protocols. The strange requests are in `test_http_api.py`."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fuzz.contract import METHODS, answers, check_answer, check_event, find, operations
from protocols.cases import CASES
from protocols.conftest import SMALL
from protocols.test_both_protocols import HttpClient
from protocols.test_both_protocols import _run as run_case

from support.http import JSON, Api, ok
from support.push import EventStream
from support.server import ServerProcess
from topics_gateway.websocket import PATHS

KEYS = {"TOPICS_API_KEYS": "sekret-all,sekret-read:read,sekret-none:read:nothing"}
STREAMS = {
    ("GET", "/v0/watch/{wid}"),
    ("GET", "/v0/topics/{topic}/work"),
    *(("GET", path.decode()) for path in PATHS),
    ("POST", "/api/sql/subscribe"),
    ("POST", "/v1/api/sql/subscribe"),
}


class Seen(set[tuple[str, str, int]]):
    """Checks each answer that a client gets, and remembers (method, path template, status)."""

    def hook(self, response: httpx.Response) -> None:
        response.read()
        request = response.request
        target = request.url.raw_path.decode()
        if response.headers["content-type"].startswith("text/event-stream"):
            return
        check_answer(request.method, target, response.status_code, response.headers, response.content)
        found = find(request.method, target)
        if found is not None:
            self.add((request.method, found[0], response.status_code))


def checked(base: str, seen: Seen, key: str = "") -> Api:
    api = Api(base)
    api.client.event_hooks["response"].append(seen.hook)
    if key:
        api.client.headers["authorization"] = f"Bearer {key}"
    return api


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("keyed"), env={**SMALL, **KEYS}) as running:
        yield running


def test_every_route_answers_as_described(server: ServerProcess) -> None:
    seen = Seen()
    with checked(server.base, seen) as api:
        live_with_topics(api)
        live_with_queues(api)
        live_with_routers(api)
        live_with_groups(api)
        live_with_watches(api, server)
        live_with_probes(api)
        live_with_sql(api, "/api", "shop")
        live_with_sql(api, "/v1/api", "shop_v1")
    wanted = {(method, path) for method, path, _ in operations()} - STREAMS
    assert wanted - {(method, path) for method, path, status in seen if status < 300} == set()
    created = {(method, path) for method, path, operation in operations() if 201 in answers(operation)}
    assert created <= {(method, path) for method, path, status in seen if status == 201}


def live_with_topics(api: Api) -> None:
    name = api.make(cap_records=4, retain_until_acked_by=[], priority=5, dead_letter="x")
    api.append(name, 1, "two", None, {"a": [1.5e300, 12345678901234567890123]})
    ok(
        api.write(
            name, [{"data": 1, "tag": "t", "node": "n", "meta": {"k": {"l": 1}}}], params={"return_seqs": "false"}
        )
    )
    ok(api.write(name, [{"data": 1}], headers={"Idempotency-Key": "k"}))
    assert ok(api.write(name, [{"data": 1}], idempotency_key="k"))["deduped"] is True
    assert api.read(name, include_tags=True, limit=3)["tombstone"] is not None
    api.read(name, 99)  # recreated
    api.read(name, last=1, filter=["tag", "Eq", "t"])
    api.rm(name, match=["tag", "Glob", "t*"], before_seq=100)
    api.state(name)
    parted = api.make(partition_count=3, type="log", retain_until_acked_by=["readers"])
    api.append(parted, 1, partition=2)
    api.read(parted, partition=2)
    api.rm(parted, before_seq=2, partition=2)
    api.state(parted)
    fresh = f"{name}-new"
    assert api.write(fresh, [{"data": 1}], config={"type": "queue"}).status_code == 201
    api.listing(page_size=1, cursor=api.listing(page_size=1)["next_cursor"])
    for status, response in (
        (404, api.get("missing")),
        (404, api.diff("missing")),
        (404, api.diff(parted, partition=7)),
        (409, api.put(parted, type="queue")),
        (409, api.drop(fresh, if_empty="true")),
        (400, api.write(fresh, [])),
        (400, api.write(fresh, [{"data": "x" * (1 << 20)}])),
        (422, full(api)),
        (415, api.client.post(f"/v0/topics/{fresh}", content=b"{}")),
    ):
        assert response.status_code == status, response.text
    ok(api.drop(fresh))


def full(api: Api) -> httpx.Response:
    name = api.make(cap_records=1, discard="reject")
    api.append(name, 1)
    return api.write(name, [{"data": 2}])


def live_with_queues(api: Api) -> None:
    dead = api.make("dead")
    queue = api.make("queue", type="queue", max_deliveries=1, dead_letter=dead, durability="fsync")

    def post(tail: str, **body: Any) -> httpx.Response:
        return api.send("POST", f"/v0/topics/{queue}{tail}", body)

    ok(api.write(queue, [{"data": i, "tag": "t", "meta": {}} for i in range(6)]))
    ok(api.write(queue, [{"data": 1}], priority=3))
    ok(api.write(queue, [{"data": 1}], delay_ms=60_000))
    first = ok(post("/claim", node="w", max=4))
    seqs = [job["$seq"] for job in first["claimed"]]
    ok(post("/extend", node="w", seqs=seqs[:2], lease_ms=60_000, lease_ids=[first["claimed"][0]["lease_id"], ""]))
    ok(post("/nack", node="w", seqs=seqs[2:3], mode="release"))
    ok(post("/nack", node="w", seqs=seqs[3:], delay_ms=0))
    ok(post("/claim", node="w", max=2, ack={"seqs": seqs[:1]}))
    ok(post("/claim", node="w", max=9))  # one of them goes to the dead letters
    ok(post("/ack", node="w", seqs=[*seqs[1:2], 999]))
    for state in ("ready", "in_flight", "delayed"):
        ok(api.send("GET", f"/v0/topics/{queue}/jobs?state={state}&limit=1"))
    ok(post("/redrive", max=10))
    api.state(queue)
    for tail, body in (("/claim", {}), ("/claim", {"node": ""}), ("/ack", {"node": "w", "seqs": []})):
        assert post(tail, **body).status_code == 400
    assert api.send("POST", f"/v0/topics/{dead}/claim", {"node": "w"}).status_code == 409


def live_with_sql(api: Api, root: str, space: str) -> None:
    def run(sql: str, **body: Any) -> httpx.Response:
        return api.send("POST", f"{root}/sql", {"sql": sql, **body})

    ok(
        run(
            f"CREATE TABLE {space}.things (id BIGINT PRIMARY KEY, at TIMESTAMP, price DECIMAL(9, 2), doc JSON,"
            " raw BYTES, ok BOOLEAN);"
            f"CREATE TOPIC {space}.changes ALIAS {space}.news;"
            f"ALTER TOPIC {space}.changes ADD SOURCE {space}.things ON INSERT WITH (payload = 'full')"
        )
    )
    rows = [[1, "2026-11-30T10:00:00Z", "1.50", {"a": [1]}, "AAE=", True], [2, None, None, None, None, None]]
    ok(run(f"INSERT INTO {space}.things VALUES ($1, $2, $3, $4, $5, $6)", param_rows=rows))
    ok(run("SELECT * FROM things WHERE id = $1", params=[1], namespace_id=space, bigint="string"))
    ok(run("SELECT NULL AS nothing, 1.5 AS number; SHOW TABLES"))
    message = {"topic": f"{space}.news", "group_id": "readers"}
    page = ok(api.send("POST", f"{root}/topics/consume", {**message, "start": "Earliest", "limit": 1}))
    assert (len(page["messages"]), page["has_more"]) == (1, True)
    ok(api.send("POST", f"{root}/topics/consume", {**message, "start": {"Offset": 1}, "timeout_seconds": 0}))
    ok(api.send("POST", f"{root}/topics/ack", {**message, "partition_id": 0, "upto_offset": 1}))
    shared = {"topic": f"{space}.news", "group_id": "workers", "start": "Earliest", "limit": 1, "timeout_seconds": 0}
    claims = [
        ok(api.send("POST", f"{root}/topics/consume", {**shared, "claim": options}))["claim"]["claim_id"]
        for options in ({"visibility_seconds": 9}, {})
    ]
    worker = {"topic": f"{space}.news", "group_id": "workers"}
    assert ok(api.send("POST", f"{root}/topics/ack", {**worker, "claim_id": claims[1]}))["acknowledged_offset"] is None
    ok(api.send("POST", f"{root}/topics/ack", {**worker, "claim_id": claims[0], "upto_offset": 0}))
    for status, response in (
        (400, run("SELEC 1")),
        (400, run("SELECT 1; SELECT 1 / 0")),
        (400, run(f"INSERT INTO {space}.things (id) VALUES (NULL)")),
        (404, run("SELECT * FROM nowhere.things")),
        (409, run(f"INSERT INTO {space}.things (id) VALUES (1)")),
        (409, run(f"DROP NAMESPACE {space}")),
        (400, run("SELECT $1", params=3)),
        (400, api.send("POST", f"{root}/topics/consume", {**message, "limit": 0})),
        (404, api.send("POST", f"{root}/topics/consume", {"topic": "nowhere.news", "group_id": "g"})),
        (400, api.send("POST", f"{root}/topics/ack", {**message, "upto_offset": 9})),
        (400, api.send("POST", f"{root}/topics/ack", {**message, "claim_id": claims[0]})),
        (400, api.send("POST", f"{root}/topics/consume", {**message, "claim": {"visibility_seconds": 0}})),
    ):
        assert response.status_code == status, response.text


def live_with_routers(api: Api) -> None:
    source, dest = api.make("source"), api.make("dest")
    body = {"source": source, "dest": dest, "filter": ["tag", "Glob", "a*"], "guarantee": "exactly_once"}
    name = f"/v0/routers/{source}-%3E{dest}"
    assert api.send("PUT", name, body).status_code == 201
    ok(api.write(source, [{"data": 1, "tag": "ab"}]))
    assert len(api.read(dest, include_tags=True)["records"]) == 1
    ok(api.send("PUT", name, body | {"filter": "just-this"}))
    ok(api.send("PUT", name, body | {"filter": None}))
    ok(api.send("GET", name))
    ok(api.send("GET", "/v0/routers", params={"source": source, "page_size": 1}))
    assert api.send("PUT", f"/v0/routers/{dest}-back", {"source": dest, "dest": source}).status_code == 409
    assert api.send("GET", "/v0/routers/missing").status_code == 404
    ok(api.send("DELETE", name))


def live_with_groups(api: Api) -> None:
    topic = api.make("read", partition_count=2)
    api.append(topic, 1, 2, 3)
    group = "/v0/groups/the%20readers"
    ok(api.send("POST", f"{group}/consume", {"topic": topic, "start": "earliest", "include_tags": True}))
    ok(api.send("POST", f"{group}/commit", {"topic": topic, "from_seq": 2, "metadata": "m"}))
    ok(api.send("POST", f"{group}/commit", {"positions": [{"topic": topic, "partition": 1, "from_seq": 0}]}))
    ok(api.send("POST", f"{group}/consume", {"topic": topic, "start": 1}))
    ok(api.send("GET", group))
    ok(api.send("GET", "/v0/groups", params={"page_size": 1}))
    ok(api.send("GET", f"{group}/positions", params={"topic": topic}))
    ok(api.send("POST", f"{group}/reset", {"to": "latest", "topics": [{"topic": topic, "partitions": [0, 1]}]}))
    ok(api.send("POST", f"{group}/reset", {"to_ts": 0}))
    ok(api.send("POST", f"{group}/positions/delete", {"topic": topic, "partition": 1}))
    assert api.send("POST", f"{group}/commit", {"topic": topic, "from_seq": 99}).status_code == 400
    assert api.send("POST", "/v0/groups/none/reset", {"to": 1}).status_code == 404
    ok(api.send("DELETE", group))


def live_with_watches(api: Api, server: ServerProcess) -> None:
    """Each kind of event of both streams."""
    topic, doomed = api.make("watched", cap_records=2), api.make("doomed")
    api.append(topic, 1, 2, 3)
    body = {"topics": {topic: {}, doomed: {"tail": True}, f"{topic}-*": {}}, "include_tags": True, "heartbeat_ms": 1000}
    session = ok(api.send("POST", "/v0/watch?lenient=true", body))
    watch = find("GET", session["stream_url"])
    assert watch is not None
    with EventStream(server.http_port, session["stream_url"]) as stream:
        names = set[str]()
        while names < {"tombstone", "record", "caught-up"}:
            names.add(checked_event(stream, watch[1]))
        ok(api.drop(doomed))
        while "topic-deleted" not in names:
            names.add(checked_event(stream, watch[1]))
    queue = api.make("pushed", type="queue")
    api.append(queue, {"job": 1})
    work = find("GET", f"/v0/topics/{queue}/work")
    assert work is not None
    with EventStream(server.http_port, f"/v0/topics/{queue}/work?node=w&max=1") as stream:
        assert checked_event(stream, work[1]) == "job"
        ok(api.drop(queue))
        assert checked_event(stream, work[1]) == "error"
    for target in (
        "/v0/watch/wid_AAAAAAAAAAAAAAAAAAAAAA",
        f"/v0/topics/{topic}/work?node=w",
        "/v0/ws",
        "/v0/topics/x/work",
    ):
        assert 400 <= api.client.get(target).status_code < 500
    assert api.client.get(session["stream_url"], headers={"accept": "text/plain"}).status_code == 406


def checked_event(stream: EventStream, operation: dict[str, Any]) -> str:
    """The name of the next event that is no sign of life."""
    while not (event := stream.next()).event:
        pass
    check_event(operation, event.event, event.data)
    return event.event


def live_with_probes(api: Api) -> None:
    for target in ("/v0/health", "/healthz", "/v0/ready", "/readyz", "/v0/metrics"):
        assert api.client.get(target).status_code == 200
        assert api.client.head(target).status_code == 200
    assert ok(api.client.get("/v0/metrics", headers={"accept": "application/json"}))["ready"] is True


def test_only_the_methods_of_the_file_are_taken(server: ServerProcess) -> None:
    seen = Seen()
    with checked(server.base, seen) as api:
        for path in {path for _, path, _ in operations()}:
            known = {method for method, other, _ in operations() if other == path}
            for method in set(METHODS) - known - ({"HEAD"} if "GET" in known else set()):
                target = (
                    path.replace("{topic}", "t").replace("{router}", "r").replace("{group}", "g").replace("{wid}", "w")
                )
                assert api.client.request(method, target).status_code == 405, (method, path)
                assert api.client.request(method, f"{target}/a/b/c").status_code == 404, (method, path)


def test_whoever_has_no_key_is_answered_as_described(keyed: ServerProcess) -> None:
    """Every operation without a key, with a wrong one, with one for something else, and with too little a limit."""
    seen = Seen()
    open_to_all = {"/v0/health", "/healthz", "/v0/ready", "/readyz"}
    for key, statuses in (("", {401}), ("wrong", {401}), ("sekret-none", {403, 404, 200, 400})):
        with checked(keyed.base, seen, key) as api:
            for method, path, operation in operations():
                target = (
                    path.replace("{topic}", "t").replace("{router}", "r").replace("{group}", "g").replace("{wid}", "w")
                )
                with_body: dict[str, Any] = {"content": b"{}", "headers": JSON} if "requestBody" in operation else {}
                status = api.client.request(method, target, **with_body).status_code
                if path == "/v0/watch/{wid}":
                    assert status == 404  # a missing session is reported first
                else:
                    assert status in ({200} if path in open_to_all else statuses), (method, path, key, status)
    assert {status for _, _, status in seen} >= {401, 403}
    with checked(keyed.base, seen, "sekret-all") as api:
        for name in ("a", "b", "c", "d"):
            assert api.put(name).status_code == 201
        assert api.put("e").status_code == 429
        assert api.client.put("/v0/topics/a", content=b"{" + b" " * 5000 + b"}", headers=JSON).status_code == 413


@pytest.mark.parametrize("small", [False, True])
def test_the_cases_of_both_protocols_are_answered_as_described(
    small: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    seen = Seen()
    with ServerProcess(tmp_path_factory.mktemp("cases"), env=SMALL if small else {}) as running:
        client = HttpClient(running.base)
        client._api.client.event_hooks["response"].append(seen.hook)
        try:
            for i, case in enumerate(case for case in CASES if case.small == small):
                run_case(case, client, i)
        finally:
            client.close()
    assert {status for _, _, status in seen} >= {200, 201, 400, 404}
