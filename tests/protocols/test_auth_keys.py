"""Keys on a real server, over HTTP and gRPC: the share of one key, servers without keys, probes, unreadable keys."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from protocols.conftest import RPCS, SECRETS, Grpc, with_key

from support.http import Api, Wire, ok, path, refused, request
from support.server import ServerProcess, StartFailedError
from support.waiting import poll
from topics_proto.v1 import topics_service_pb2 as pb

# -------------------------------------------------------------- one key's share


@pytest.fixture
def capped(start: Callable[..., ServerProcess]) -> ServerProcess:
    return start(TOPICS_API_KEYS="sekret-full,sekret-read:read,other", TOPICS_MAX_INFLIGHT_PER_KEY=1)


def test_the_cap_of_a_key(capped: ServerProcess) -> None:
    full, other = Grpc(capped.grpc_target, "full"), Grpc(capped.grpc_target, "other")
    with with_key(capped.base, "full") as a, with_key(capped.base, "other") as b, with_key(capped.base, "read") as r:
        name = a.make()
        for park, wake in ((http_park, True), (grpc_park, True), (http_park, False), (grpc_park, False)):
            with ThreadPoolExecutor(1) as pool:
                waiting = park(pool, capped, name, a.state(name)["head_seq"])
                busy = poll(lambda: (reply := a.get(name)).status_code == 429 and reply)
                error = refused(busy, 429, "throttled")
                assert error["detail"] == {"limit": "max_inflight_per_key", "max": 1}
                assert busy.headers["retry-after"] == "1"
                again = full.refused("GetTopic", pb.GetTopicRequest(topic=name))
                assert again[:4] == (
                    "RESOURCE_EXHAUSTED", "THROTTLED", {"limit": "max_inflight_per_key", "max": "1"}, 1000,
                )  # fmt: skip
                refused(a.send("GET", "/nothing"), 429, "throttled")
                for probe in ("/v0/health", "/v0/ready"):
                    ok(a.send("GET", probe))
                ok(b.get(name))
                ok(r.get(name))
                other.call("GetTopic", pb.GetTopicRequest(topic=name))
                if wake:
                    ok(b.write(name, [{"data": 1}]))
                    waiting.result(10)
                else:
                    waiting.leave()
            poll(lambda: a.get(name).status_code == 200)
    full.channel.close()
    other.channel.close()


def test_the_cap_comes_between_key_and_scope(capped: ServerProcess) -> None:
    with with_key(capped.base, "full") as a, with_key(capped.base, "read") as r, Api(capped.base) as nobody:
        name = a.make()
        with ThreadPoolExecutor(1) as pool:
            waiting = http_park(pool, capped, name, 0, key="read")
            poll(lambda: r.get(name).status_code == 429)
            refused(r.put("x"), 429, "throttled")
            refused(nobody.put("x"), 401, "unauthorized")
            ok(a.write(name, [{"data": 1}]))
            waiting.result(10)
        refused(r.put("x"), 403, "forbidden")


def test_a_stream_holds_a_slot_until_it_ends(capped: ServerProcess) -> None:
    caller = Grpc(capped.grpc_target, "full")
    with with_key(capped.base, "full") as a, with_key(capped.base, "other") as b:
        name = a.make()
        a.append(name, 1)
        follow = pb.BulkDiffRequest(topic=name, follow=True)
        frames = caller.topics.BulkDiff(follow, metadata=caller.metadata, timeout=30)
        assert next(frames).next_from_seq == 1
        refused(a.get(name), 429, "throttled")
        ok(b.get(name))
        frames.cancel()
        poll(lambda: a.get(name).status_code == 200)
        end = threading.Event()
        requests = (pb.AppendStreamRequest() for _ in iter(end.wait, True))
        acks = caller.topics.AppendStream(requests, metadata=caller.metadata, timeout=30)
        poll(lambda: a.get(name).status_code == 429)
        end.set()
        assert list(acks) == []
        poll(lambda: a.get(name).status_code == 200)
    caller.channel.close()


class Parked:
    """A long poll under way."""

    def __init__(self, result: Callable[[float], Any], leave: Callable[[], None]) -> None:
        self.result = result
        self.leave = leave


def http_park(pool: ThreadPoolExecutor, server: ServerProcess, name: str, seq: int, key: str = "full") -> Parked:
    wire = Wire(server.http_port, 30)
    body = json.dumps({"from_seq": seq, "wait_ms": 30_000}).encode()
    wire.send(request("POST", path(name, "/diff"), body, Authorization=f"Bearer {SECRETS[key]}"))

    def result() -> None:
        reply = wire.reply()
        assert reply is not None
        assert (reply.status, len(reply.json["records"])) == (200, 1)
        wire.close()

    return Parked(lambda seconds: pool.submit(result).result(seconds), wire.reset)


def grpc_park(pool: ThreadPoolExecutor, server: ServerProcess, name: str, seq: int) -> Parked:
    caller = Grpc(server.grpc_target, "full")
    waiting = pb.DiffRequest(topic=name, from_seq=seq, wait_ms=30_000)
    # The slot may still be held for a moment by the request before.
    call = caller.topics.Diff.future(waiting, metadata=caller.metadata, timeout=30)

    def result(seconds: float) -> None:
        assert len(call.result(seconds).records) == 1
        caller.channel.close()

    return Parked(result, caller.channel.close)


# --------------------------------------------- no keys, probes, unreadable keys


def test_there_is_no_cap_without_keys(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_MAX_INFLIGHT_PER_KEY=1)
    with Api(server.base) as api:
        name = api.make()
        began = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda _: api.diff(name, wait_ms=1000), range(4)))
        assert [reply.status_code for reply in replies] == [200] * 4
        assert time.monotonic() - began < 3.5
    assert "authentication is disabled" in server.log


def test_without_keys_the_header_is_ignored(api: Api) -> None:
    for header in ("Bearer whatever", "Basic x", ""):
        ok(api.send("GET", "/v0/topics", headers={"authorization": header}))


def test_probe_auth(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_API_KEYS="sekret-write:write,:read", TOPICS_PROBE_AUTH="true")
    nobody, caller = Grpc(server.grpc_target, None), Grpc(server.grpc_target, "write")
    with Api(server.base) as without, with_key(server.base, "write") as api:
        for probe in ("/v0/health", "/v0/ready", "/healthz", "/readyz"):
            refused(without.send("GET", probe), 401, "unauthorized")
            ok(poll(lambda: (reply := api.send("GET", probe)).status_code == 200 and reply))  # noqa: B023
        refused(without.send("GET", "/v0/metrics"), 401, "unauthorized")
        refused(api.send("GET", "/v0/metrics"), 403, "forbidden")
    for method in RPCS:
        if method.name in ("GetHealth", "GetReady"):
            assert nobody.any(method)[0] == "UNAUTHENTICATED"
            assert caller.any(method) is None
    check = health_pb2_grpc.HealthStub(nobody.channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert check.status == health_pb2.HealthCheckResponse.SERVING
    nobody.channel.close()
    caller.channel.close()


def test_only_unusable_entries_let_nobody_in(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_API_KEYS=" :read ,")
    with Wire(server.http_port) as wire:
        for header in ("Bearer ", "Bearer  ", "Bearer read", "Bearer :read"):
            reply = wire.send(request("GET", "/v0/topics", Authorization=header)).reply()
            assert reply is not None
            assert reply.status == 401
    with Api(server.base) as api:
        ok(api.send("GET", "/v0/health"))


@pytest.mark.parametrize("keys", ["sekret:foo", "sekret-a,sekret-b:+", "sekret:sekret2:x", "sekret::|"])
def test_keys_that_cannot_be_read_are_a_refusal(tmp_path: Path, keys: str) -> None:
    server = ServerProcess(tmp_path, env={"TOPICS_API_KEYS": keys})
    with pytest.raises(StartFailedError, match="exited with 1"):
        server.start()
    assert "TOPICS_API_KEYS: entry" in server.log
    assert "sekret" not in server.log
    assert not server.data_dir.exists()
