"""Rules for every call on a real server over HTTP: envelopes, routes, `performance`, probes, settings.

The answers that HTTP and gRPC share are in `cases/`. The modules `test_contract_*.py` hold what only JSON over HTTP can
be asked, one by one: this one what cuts across the calls; the others topics, writes, reads, deletes, retention, bodies
and transfer.
"""

import json
import time
from collections.abc import Callable

import pytest
from protocols.conftest import SMALL

from support.http import REC, Api, Wire, envelope, fresh, ok, path, refused, request
from support.server import ServerProcess

# -------------------------------------------------------------------- envelopes


def test_every_error_has_the_envelope_and_performance(api: Api, topic: str) -> None:
    absent = fresh()
    for reply, status, code in (
        (api.get(absent), 404, "topic_not_found"),
        (api.send("GET", "/v0/nothing"), 404, "not_found"),
        (api.send("PATCH", path(topic)), 405, "method_not_allowed"),
        (api.client.post(path(topic), content="x"), 415, "unsupported_media_type"),
        (api.send("PUT", path(".bad"), "{}"), 400, "invalid_request"),
    ):
        refused(reply, status, code)
        assert reply.json()["performance"]["server_total_ms"] > 0
        assert not {"allow", "www-authenticate", "access-control-allow-origin"} & set(reply.headers)


@pytest.mark.parametrize("target", [
    "/", "/v0", "/v0/", "/v0/topics/", "/v0/topics/x/", "/v0/topics/x/xyz", "/v0/topics/x/diff/", "/v0/topics//diff",
    "/v0/topics/x/diff/y", "/metrics", "/v1/topics", "/V0/topics", "//v0/topics", "/v0//topics", "/v0/Topics",
    "/v0/nonexistent/route",
])  # fmt: skip
def test_unknown_path(api: Api, target: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        reply = api.client.request(method, api.base + target)
        assert reply.status_code == 404, (method, target)
        if method != "HEAD":
            envelope(reply.json(), "not_found")


@pytest.mark.parametrize(("methods", "tail"), [
    (["POST", "PATCH", "OPTIONS"], ""), (["GET", "HEAD", "PUT", "DELETE", "PATCH"], "/diff"),
    (["GET", "HEAD", "PUT", "DELETE"], "/delete"),
])  # fmt: skip
def test_wrong_method(api: Api, topic: str, methods: list[str], tail: str) -> None:
    for method in methods:
        target = "/v0/topics" if (method, tail) == ("POST", "") else path(topic, tail)
        reply = api.client.request(method, target, content=b"{}" if method == "PUT" else None)
        assert reply.status_code == 405, (method, target)
        assert "allow" not in reply.headers
        if method != "HEAD":
            envelope(reply.json(), "method_not_allowed")


def test_head_is_get_without_the_body(server: ServerProcess, api: Api, topic: str) -> None:
    with Wire(server.http_port) as wire:
        for target, status in (
            ("/v0/health", 200), ("/healthz", 200), ("/v0/ready", 200), ("/readyz", 200), ("/v0/topics", 200),
            (f"/v0/topics/{topic}", 200), ("/v0/topics/no-such", 404), ("/v0/topics?cursor=!", 400), ("/nope", 404),
        ):  # fmt: skip
            head = wire.send(request("HEAD", target)).reply(head=True)
            got = wire.send(request("GET", target)).reply()
            assert head.status == got.status == status, target
            assert head.headers["content-type"] == got.headers["content-type"] == "application/json"
            assert abs(int(head.headers["content-length"]) - int(got.headers["content-length"])) <= 8


def test_probes_have_no_performance(api: Api) -> None:
    for target in ("/v0/health", "/healthz"):
        body = ok(api.send("GET", target))
        assert set(body) == {"status", "version", "uptime_ms"}
        assert (body["status"], body["version"]) == ("ok", "0.1.0")
    for target in ("/v0/ready", "/readyz"):
        body = ok(api.send("GET", target))
        assert set(body) == {"status", "wal_replay_complete", "topics"}
        assert (body["status"], body["wal_replay_complete"]) == ("ready", True)


def test_performance_by_endpoint(api: Api) -> None:
    name = fresh()
    total = {"server_total_ms"}
    for _ in range(2):
        assert set(ok(api.put(name), 200, 201)["performance"]) == total
    write = api.append(name, 1, idempotency_key="k")["performance"]
    assert set(write) == total | {"wal_append_ms", "fsync_ms"}
    assert (write["fsync_ms"], type(write["fsync_ms"])) == (0.0, float)
    assert set(api.append(name, 1, idempotency_key="k")["performance"]) == total
    scanned = api.read(name)["performance"]
    assert set(scanned) == total | {"records_scanned"}
    assert scanned["records_scanned"] == 1
    assert set(api.rm(name, before_seq=1)["performance"]) == total
    assert set(api.state(name)["performance"]) == total
    assert set(api.listing(prefix=name)["performance"]) == total
    assert set(ok(api.drop(name))["performance"]) == total
    durable = api.append(api.make(durability="fsync"), 1)["performance"]
    assert 0 < durable["fsync_ms"] <= durable["server_total_ms"]
    for durability in ("ephemeral", "memory", "disk"):
        assert api.append(api.make(durability=durability), 1)["performance"]["fsync_ms"] == 0.0


def test_server_total_is_real(api: Api, topic: str) -> None:
    head = api.state(topic)["head_seq"]
    asked = time.monotonic()
    took = ok(api.diff(topic, from_seq=head, wait_ms=60))["performance"]["server_total_ms"]
    assert 55 <= took < (time.monotonic() - asked) * 1e3


def test_details(api: Api) -> None:
    """No detail where the contract names none."""
    name = api.make()
    for reply in (
        api.write(name, []), api.write(name, [{"data": 1}] * 10_001), api.write(name, [{"data": "x" * (1 << 20)}]),
        api.put(".bad"), api.send("POST", path(name), "{bad"), api.send("GET", "/v0/topics?cursor=!"),
    ):  # fmt: skip
        assert "detail" not in envelope(reply.json())
    assert refused(api.put(name, type="queue"), 409, "topic_exists_incompatible")["detail"] == {
        "topic": name, "existing_type": "log", "requested_type": "queue"
    }  # fmt: skip


# --------------------------------------------------------------------- settings


def test_quota_counts_live_bytes(small: Api) -> None:
    quota = SMALL["TOPICS_MAX_TOTAL_BYTES"]
    name, other = fresh("qa"), fresh("qb")
    ok(small.put(name, cap_records=3), 201)
    for _ in range(9):
        small.append(name, "x" * 480)  # eviction gives back
    ok(small.put(other), 201)
    left = quota - small.state(name)["bytes"]
    small.append(other, "y" * (left - 2))  # equality passes
    reply = small.write(other, [{"data": 1}])
    assert refused(reply, 429, "throttled")["detail"] == {"limit": "max_total_bytes", "max": quota}
    assert reply.headers["retry-after"] == "1"
    assert small.state(other)["head_seq"] == 1
    small.rm(name, before_seq=8)
    small.append(other, 1)
    created = small.write(fresh("qc"), [{"data": "z" * 595}])
    assert created.status_code in (201, 429)
    for item in small.listing()["topics"]:
        ok(small.drop(item["topic"]))


def test_odd_settings(start: Callable[..., ServerProcess]) -> None:
    """Empty means the default; what can't be read refuses the start (tests/app)."""
    server = start(
        TOPICS_MAX_RECORD_BYTES="", TOPICS_MAX_LIMIT="", TOPICS_ORG="acme", TOPICS_ENV="prod", TOPICS_CLUSTER="eu-1"
    )
    with Api(server.base) as api:
        name = fresh("My.Topic")
        reply = ok(api.put(name), 201)
        assert reply["rrl"] == f"acme/prod/eu-1/topics/{name.lower().replace('.', '-')}"
        ok(api.write(name, [{"data": "x" * 100_000}] * 10))
        ok(api.write(name, [{"data": 1}] * 2000))
        assert len(api.read(name, limit=5000, max_batch_bytes=8 << 20)["records"]) == 1000


def test_zero_settings(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_MAX_BODY_BYTES=0, TOPICS_MAX_TOPICS=0, TOPICS_MAX_TOTAL_BYTES=0)
    with Api(server.base) as api:
        name = fresh()
        ok(api.client.put(path(name)), 201)
        ok(api.client.post(path(name, "/diff")))
        refused(api.send("PUT", path(name), b" "), 413, "payload_too_large")
        refused(api.send("POST", path(name), json.dumps(REC)), 413, "payload_too_large")
        refused(api.client.post(path(name)), 415, "unsupported_media_type")
