"""Keys from a file: what a running server does when it changes."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from protocols.conftest import Grpc, with_key
from security.held import Held, bearer
from security.secure_server import audit_lines, reload

from support.bulk import START_SECONDS
from support.grpc_watch import subscription
from support.http import Api, ok, refused
from support.kafka_wire import Wire
from support.missing import without
from support.server import ServerProcess
from support.waiting import poll
from support.ws import RefusedError, WebSocket
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    queue_service_pb2,
    queue_service_pb2_grpc,
    record_pb2,
    topics_service_pb2_grpc,
    watch_service_pb2,
    watch_service_pb2_grpc,
)
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.keys import fingerprint

OPS, SHOP = "ops-sekret", "shop-sekret"
FIRST = f"# operators\n{OPS}\n\n  {SHOP}:read+write:orders.|carts.  \n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(FIRST)
    return file


@pytest.fixture
def server(tmp_path: Path, file: Path) -> Iterator[ServerProcess]:
    env = {"TOPICS_API_KEYS_FILE": file, "TOPICS_AUDIT_LOG": tmp_path / "audit", "TOPICS_LOG_LEVEL": "debug"}
    with ServerProcess(tmp_path / "server", env=env, kafka=True) as server:
        yield server
        server.kill()
        assert "sekret" not in server.log
        assert "sekret" not in (tmp_path / "audit").read_text()
        assert "Traceback" not in server.log


# ------------------------------------------------------------------- a reload


def test_keys_come_and_go(server: ServerProcess, file: Path, tmp_path: Path) -> None:
    with with_key(server.base, OPS) as ops, with_key(server.base, SHOP) as shop, with_key(server.base, "new") as new:
        ok(ops.put("orders.a"), 201)
        ok(shop.get("orders.a"))
        refused(new.get("orders.a"), 401, "unauthorized")
        file.write_text(f"new:read\n{OPS}\n")
        reload(server, "2 API keys, 1 of them new, 1 removed, 0 changed")
        refused(shop.get("orders.a"), 401, "unauthorized")
        assert (
            Grpc(server.grpc_target, SHOP).refused("GetTopic", pb.GetTopicRequest(topic="x")).code == "UNAUTHENTICATED"
        )
        ok(new.get("orders.a"))
        ok(ops.get("orders.a"))
        file.write_text(f"new:read:carts.\n{OPS}\n")
        reload(server, "2 API keys, 0 of them new, 0 removed, 1 changed")
        refused(new.get("orders.a"), 403, "forbidden")
    poll(lambda: (tmp_path / "audit").read_text().count("keys.reload") == 2, 20, "lines of the audit log")
    lines = [line for line in audit_lines(tmp_path / "audit") if line["action"] == "keys.reload"]
    assert [(line["outcome"], line["keys"]) for line in lines] == [("done", 2), ("done", 2)]
    assert lines[0]["added"] == [fingerprint(b"new")]
    assert lines[0]["removed"] == [fingerprint(SHOP.encode())]
    assert lines[1]["changed"] == [fingerprint(b"new")]


@pytest.mark.parametrize("broken", ["", "x:raed:\n", None])
def test_a_file_that_cannot_be_read_changes_nothing(
    server: ServerProcess, file: Path, tmp_path: Path, broken: str | None
) -> None:
    with with_key(server.base, SHOP) as shop:
        if broken is None:
            file.unlink()
        else:
            file.write_text(broken)
        reload(server, "SIGHUP: the API keys stay as they were: TOPICS_API_KEYS_FILE")
        ok(shop.send("GET", "/v0/topics"))
    poll(lambda: '"outcome":"failed"' in (tmp_path / "audit").read_text(), 20, "a line of the audit log")
    file.write_text(FIRST)
    reload(server, "2 API keys, 0 of them new, 0 removed, 0 changed")


@pytest.mark.parametrize("left", ["", f"{SHOP}:read+write:carts.\n"], ids=["gone", "less"])
def test_streams_of_a_key_that_goes_or_may_less_end(server: ServerProcess, file: Path, left: str) -> None:
    with with_key(server.base, OPS) as ops:
        ok(ops.put("orders.a"), 201)
        with Held(server, SHOP, "orders.a") as held, Held(server, OPS, "orders.a") as kept:
            file.write_text(f"{OPS}\n{left}")
            reload(server, "1 changed" if left else "1 removed")
            assert held.ends() == {"sse": "RemoteProtocolError", "grpc": "UNAUTHENTICATED", "websocket": "cut"}
            ok(ops.append("orders.a", 7) and ops.get("orders.a"))
            assert kept.goes_on()
            assert held.got == {"sse": 0, "grpc": 0}
            poll(lambda: "\ntopics_sse_connections 3.0" in ops.send("GET", "/v0/metrics").text, 20, "only what is kept")


def test_running_calls_of_a_key_that_goes_end(server: ServerProcess, file: Path) -> None:
    with with_key(server.base, OPS) as ops, with_key(server.base, SHOP) as shop, ThreadPoolExecutor() as threads:
        ok(ops.put("orders.a"), 201)
        poll_http = threads.submit(shop.diff, "orders.a", from_seq=0, wait_ms=30_000)
        caller = Grpc(server.grpc_target, SHOP)
        poll_grpc = threads.submit(caller.refused, "Diff", pb.DiffRequest(topic="orders.a", wait_ms=30_000))
        http2 = threads.submit(long_poll_by_http2, server.base)
        poll(lambda: waiting(ops) == 3, 20, "all long polls")
        file.write_text(f"{OPS}\n")
        reload(server, "1 removed")
        assert poll_grpc.result(5).code == "UNAUTHENTICATED"
        with pytest.raises(httpx.RemoteProtocolError):
            poll_http.result(5)
        with pytest.raises(httpx.RemoteProtocolError):
            http2.result(5)
        poll(lambda: waiting(ops) == 0, 20, "the ends of all calls")
        caller.channel.close()


def test_idle_streams_of_a_key_that_goes_end(server: ServerProcess, file: Path) -> None:
    with (
        with_key(server.base, OPS) as ops,
        grpc.insecure_channel(server.grpc_target) as channel,
        ThreadPoolExecutor() as threads,
    ):
        ok(ops.put("orders.jobs", type="queue"), 201)
        stop = threading.Event()

        def batches() -> Iterator[pb.AppendStreamRequest]:
            append = pb.AppendRequest(topic="orders.b", records=[record_pb2.AppendRecord(data=b"1")])
            yield pb.AppendStreamRequest(append=append)
            stop.wait(30)

        def end(call: grpc.RpcError) -> str:  # what a stream's call is, too
            with suppress(grpc.RpcError):
                for _ in call:
                    pass
            return str(call.code().name)

        shop: Any = {"metadata": bearer(SHOP), "timeout": 30}
        work = queue_service_pb2.WorkRequest(topic="orders.jobs", node="w")
        ends = [
            threads.submit(end, topics_service_pb2_grpc.TopicsServiceStub(channel).AppendStream(batches(), **shop)),
            threads.submit(end, queue_service_pb2_grpc.QueueServiceStub(channel).Work(work, **shop)),
        ]
        poll(lambda: waiting(ops) == len(ends), 20, "all streams")
        file.write_text(f"{OPS}\n")
        reload(server, "1 removed")
        assert [each.result(10) for each in ends] == ["UNAUTHENTICATED"] * len(ends)
        poll(lambda: waiting(ops) == 0, 20, "the ends of all calls")
        stop.set()


def test_a_stream_whose_client_reads_late_ends_with_its_key(server: ServerProcess, file: Path) -> None:
    with with_key(server.base, OPS) as ops, grpc.insecure_channel(server.grpc_target) as channel:
        ok(ops.put("orders.a"), 201)
        for _ in range(10):
            ops.append("orders.a", "x" * 500_000)
        request = watch_service_pb2.WatchRequest(subscription=subscription("orders.a"))
        call = watch_service_pb2_grpc.WatchServiceStub(channel).Watch(request, metadata=bearer(SHOP), timeout=30)
        next(call)
        poll(lambda: "\ntopics_watch_streams_behind 1" in ops.send("GET", "/v0/metrics").text, 20, "a message to send")
        file.write_text(f"{OPS}\n")
        reload(server, "1 removed")
        with pytest.raises(grpc.RpcError) as error:
            list(call)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_watch_session_goes_with_its_key(server: ServerProcess, file: Path) -> None:
    with with_key(server.base, OPS) as ops, with_key(server.base, SHOP) as shop:
        ok(ops.put("orders.a"), 201)
        watch = ok(shop.send("POST", "/v0/watch", {"topics": {"orders.a": {}}}), 200, 201)
        file.write_text(f"{OPS}\n{SHOP}:read:carts.\n")
        reload(server, "1 changed")
        refused(shop.send("GET", watch["stream_url"]), 404, "not_found")  # or it would show what the key may not see


def test_kafka_connections_of_a_key_that_goes_end(server: ServerProcess, file: Path) -> None:
    with Wire(server.kafka_port) as gone, Wire(server.kafka_port) as kept:
        assert gone.authenticate(SHOP)["error_code"] == 0
        assert kept.authenticate(OPS)["error_code"] == 0
        with with_key(server.base, OPS) as ops:
            ok(ops.put("orders.a"), 201)
        assert gone.call(ApiKey.METADATA, topics=[{"name": "orders.a"}])["topics"][0]["error_code"] == 0
        file.write_text(f"{OPS}\n")
        reload(server, "1 removed")
        assert gone.call(ApiKey.METADATA, topics=[{"name": "orders.a"}])["topics"][0]["error_code"] == 29
        assert gone.is_closed()
        assert kept.call(ApiKey.METADATA, topics=[{"name": "orders.a"}])["topics"][0]["error_code"] == 0
    with Wire(server.kafka_port) as again:
        assert again.authenticate(SHOP)["error_code"] == 58


def test_a_fetch_that_waits_ends_with_its_key(server: ServerProcess, file: Path) -> None:
    """What is written after the key went is not for it."""
    with with_key(server.base, OPS) as ops, Wire(server.kafka_port) as gone:
        assert gone.authenticate(SHOP)["error_code"] == 0
        ok(ops.put("orders.a"), 201)
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{"topic": "orders.a", "partitions": [partition]}]
        gone.send(ApiKey.FETCH, 12, {"max_wait": 30_000, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics})
        poll(lambda: "topics_kafka_requests_in_flight 1.0" in ops.send("GET", "/v0/metrics").text, 20, "the fetch")
        file.write_text(f"{OPS}\n")
        reload(server, "1 removed")
        ops.append("orders.a", "late")
        assert gone.is_closed()


def test_hangups_while_it_starts_and_in_a_storm(server: ServerProcess, file: Path) -> None:
    assert server.stop() == 0
    starting = server.spawn()
    poll(lambda: b"topics" in Path(f"/proc/{server.pid}/cmdline").read_bytes(), 20, "the command")
    poll(lambda: has_handler(server.pid), 20, "a handler of SIGHUP")
    poll(lambda: hang_up(server) and all(each.exists() for each in starting), 30, "the port files")
    server.http_port = int(starting[0].read_text().rpartition(":")[2])
    for number in range(300):
        file.write_text(f"{OPS}\nkey-{number}-sekret\n")
        os.kill(server.pid, signal.SIGHUP)
    with with_key(server.base, "key-299-sekret") as last:
        poll(lambda: last.send("GET", "/v0/topics").status_code == 200, 20, "the last keys")
    server.signal(signal.SIGTERM)
    poll(lambda: not hang_up(server), 30, "the end")
    assert server.wait(10) == 0


def hang_up(server: ServerProcess) -> bool:
    """SIGHUP, if it runs."""
    if server.alive():
        os.kill(server.pid, signal.SIGHUP)
    return server.alive()


def has_handler(pid: int) -> bool:
    """Whether the process catches SIGHUP."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)[1], 16)  # type: ignore[index]
    return bool(caught >> signal.SIGHUP - 1 & 1)


def test_bulk_readers_learn_of_it(tmp_path: Path, file: Path) -> None:
    with ServerProcess(tmp_path / "s", env={"TOPICS_API_KEYS_FILE": file, "TOPICS_BULK_READERS": 1}) as server:

        def asked(key: str) -> str | None:
            """How a bulk reader takes the key; None while there is none."""
            found = bulk_ports(server)
            if not found:
                return None
            with grpc.insecure_channel(f"127.0.0.1:{found[0]}") as channel:
                call = channel.unary_stream("/topics.v1.TopicsService/BulkDiff", pb.BulkDiffRequest.SerializeToString)
                try:
                    list(call(pb.BulkDiffRequest(topic="absent"), metadata=bearer(key), timeout=5))
                except grpc.RpcError as error:
                    return str(error.code().name)
            return "OK"

        poll(lambda: asked(OPS) == "INVALID_ARGUMENT", START_SECONDS, "a bulk reader")
        assert asked("new") == "UNAUTHENTICATED"
        file.write_text(f"{OPS}\nnew\n")
        reload(server, "1 of them new")
        poll(lambda: asked("new") == "INVALID_ARGUMENT", START_SECONDS, "a bulk reader with the new keys")
        assert server.stop() == 0


def test_without_anything_to_read_again_a_hangup_is_the_end(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "s") as server:
        server.signal(signal.SIGHUP)
        assert server.wait(10) == -signal.SIGHUP


def test_no_protocol_logs_a_key_even_when_it_debugs(server: ServerProcess) -> None:
    for key in (OPS, "sekret-nobody"):
        for http2 in (False, True):  # hpack would log each header
            headers = {"authorization": f"Bearer {key}"}
            with httpx.Client(base_url=server.base, http1=not http2, http2=http2, headers=headers) as client:
                assert client.get("/v0/topics", params={"token": key}).status_code == (200 if key == OPS else 401)
        with grpc.insecure_channel(server.grpc_target) as channel:
            call = channel.unary_unary("/topics.v1.TopicsService/ListTopics")
            with suppress(grpc.RpcError):
                call(b"", metadata=bearer(key), timeout=30)
        with suppress(RefusedError):
            WebSocket(server.base, key=key).close()
        with Wire(server.kafka_port) as wire:
            wire.authenticate(key, user=key)
    assert " DEBUG " in server.log
    assert "sekret" not in server.log


def test_secrets_do_not_show_in_ps(server: ServerProcess) -> None:
    proc = Path(f"/proc/{server.pid}")
    if not proc.exists():
        without("no /proc here")
    for name in ("cmdline", "environ"):
        assert b"sekret" not in (proc / name).read_bytes()


# --------------------------------------------------------------------- helpers


def long_poll_by_http2(base: str) -> int:
    headers = {"authorization": f"Bearer {SHOP}"}
    with httpx.Client(base_url=base, http1=False, http2=True, headers=headers, timeout=60) as client:
        return client.post("/v0/topics/orders.a/diff", json={"from_seq": 0, "wait_ms": 30_000}).status_code


def waiting(ops: Api) -> int:
    """Requests of others that are in flight."""
    text = ops.send("GET", "/v0/metrics").text
    found = re.findall(r"^topics_(?:http_requests|grpc_calls)_in_flight (\d+)", text, re.MULTILINE)
    return sum(map(int, found)) - 1  # this one


def bulk_ports(server: ServerProcess) -> list[int]:
    with grpc.insecure_channel(server.grpc_target) as channel:
        stub = admin_service_pb2_grpc.AdminServiceStub(channel)
        reply = stub.ListBulkReaders(admin_service_pb2.ListBulkReadersRequest(), metadata=bearer(OPS), timeout=30)
    return [reader.port for reader in reply.readers]
