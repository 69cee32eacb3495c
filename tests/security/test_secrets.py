"""A key that comes by every way is nowhere to be read: logs (at level debug), errors, metrics, audit log, `ps`."""

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from protocols.conftest import with_key
from security.held import bearer
from security.secure_server import TlsServer, reload

from support.bulk import START_SECONDS
from support.http import Wire, ok
from support.kafka_wire import Wire as KafkaWire
from support.server import ServerProcess
from support.waiting import poll
from support.ws import RefusedError, WebSocket
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1 import topics_service_pb2_grpc
from topics_server.keys import fingerprint

KEY, WRONG = "sekret-right-zqvx", "sekret-wrong-wjkz"
BASIC = base64.b64encode(f"user:{KEY}".encode()).decode()
SHOWS = ("sekret", "zqvx", "wjkz", BASIC)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    env = {"TOPICS_API_KEYS": f"{KEY},other", "TOPICS_LOG_LEVEL": "debug", "TOPICS_AUDIT_LOG": tmp_path / "audit",
           "TOPICS_BULK_READERS": 1}  # fmt: skip
    with ServerProcess(tmp_path / "server", env=env, kafka=True) as server:
        yield server


def http(server: ServerProcess, said: list[str]) -> None:
    """Right and wrong, where they belong and where not."""
    with httpx.Client(base_url=server.base) as client:
        for key in (KEY, WRONG):
            for headers in (
                {"authorization": f"Bearer {key}"},
                {"authorization": f"bearer {key}"},
                {"authorization": f"Basic {BASIC}"},
                {"referer": f"{server.base}/v0/watch/x?token={key}", "cookie": f"token={key}"},
                {"x-request-id": key, "traceparent": f"00-{key}", "idempotency-key": key, "last-event-id": key},
            ):
                for target in ("/v0/topics", "/v0/metrics", "/v0/nothing", "/v0/watch/w_1", "/v0/topics/q/work?node=n"):
                    for url in (target, f"{target}{'&' if '?' in target else '?'}token={key}"):
                        with client.stream("GET", url, headers=headers, timeout=30) as reply:
                            text = "" if "event-stream" in reply.headers["content-type"] else reply.read().decode()
                            told = {name: value for name, value in reply.headers.items() if name != "x-request-id"}
                            said.append(text + repr(told))
            reply = client.post("/v0/topics/t", content=b"{", headers={"authorization": f"Bearer {key}"})
            said.append(reply.text)
    for raw in (
        f"GET /v0/x?token={KEY}\x01 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        f"GET /v0/x HTTP/1.1\r\nauthorization : Bearer {KEY}\r\n\r\n",
        f"GET /v0/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: {KEY}\r\n\r\n",
        f"BREW /v0/x?token={KEY} HTTP/1.1\r\nauthorization: Bearer {KEY}\r\n\r\n",
        f"GET /v0/topics?token={KEY} HTTP/3.0\r\nauthorization: Bearer {KEY}\r\n\r\n",
    ):
        with Wire(server.http_port) as wire:
            reply_ = wire.send(raw.encode()).reply()
            said.append(repr(reply_))


def others(server: ServerProcess, said: list[str]) -> None:
    for key in (KEY, WRONG):
        for path in ("/v0/ws", f"/v0/ws?token={key}"):
            for given in (key, None):
                try:
                    with WebSocket(server.base, path, key=given) as ws:
                        ws.send(f'{{"op":"ping","request_id":"1","{key}":1}}')
                        ws.send(f'{{"op":"publish","topic":"{key}","records":')
                        said += [repr(ws.recv()["op"]), repr(ws.recv()["op"])]  # it may get its own input back
                except RefusedError as error:
                    said.append(repr(error.body) + repr(error.headers))
        with grpc.insecure_channel(server.grpc_target) as channel:
            stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
            for metadata in (
                bearer(key),
                (("authorization", f"bearer {key}"),),
                (("token", key), ("x-bin", key.encode())),
            ):
                try:
                    stub.GetTopic(pb.GetTopicRequest(topic="none"), metadata=metadata, timeout=30)
                except grpc.RpcError as error:
                    said.append(repr(error))
        with KafkaWire(server.kafka_port) as kafka:
            said.append(repr(kafka.authenticate(key)))
            if key == KEY:
                said.append(repr(kafka.call(ApiKey.METADATA, 8, topics=None, allow_auto_topic_creation=False)))


def ps(server: ServerProcess) -> dict[str, str]:
    """Command lines and environments of the server and what it has started."""
    pids = [server.pid, *map(int, subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, text=True,
                                                  check=True).stdout.split())]  # fmt: skip
    assert len(pids) == 2, "the bulk reader"
    return {f"{pid} {name}": Path(f"/proc/{pid}/{name}").read_text(errors="replace")
            for pid in pids for name in ("cmdline", "environ")}  # fmt: skip


def test_a_key_is_nowhere_to_be_read(server: ServerProcess, tmp_path: Path) -> None:
    said: list[str] = []
    with with_key(server.base, KEY) as api:
        ok(api.put("q", type="queue"), 201)
    http(server, said)
    others(server, said)
    with with_key(server.base, KEY) as api:
        metrics = api.send("GET", "/v0/metrics").text
    shown = ps(server)
    first = shown.pop(f"{server.pid} environ")
    assert KEY in first, "what the system keeps of a process's first environment; see docs/security.md"
    assert server.stop() == 0
    audit = (tmp_path / "audit").read_text()
    for where, text in {
        "answers": "\n".join(said),
        "log": server.log,
        "metrics": metrics,
        "audit": audit,
        **shown,
    }.items():
        found = [word for word in SHOWS if word in text]
        at = text.find(found[0]) if found else 0
        assert not found, f"{where}: {text[max(0, at - 200) : at + 100]}"
    assert fingerprint(KEY.encode()) in audit
    assert " DEBUG " in server.log


def test_the_key_of_tls_is_nowhere_to_be_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    env: dict[str, object] = {"TOPICS_LOG_LEVEL": "debug", "TOPICS_API_KEYS_FILE": keys, "TOPICS_BULK_READERS": 1}
    with TlsServer(tmp_path, env=env) as server:
        good = server.key.read_text()
        lines = good.splitlines()
        for broken in ("\n".join(lines[:5]), good.replace("PRIVATE", "PUBLIC"), "\n".join([lines[0], *lines[3:]])):
            server.key.write_text(broken)
            reload(server, "SIGHUP: the certificate stays as it was")
        server.key.write_text(good)  # a reader that starts reads it too
        keys.write_text(f"{KEY}:nonsense\n")
        reload(server, "SIGHUP: the API keys stay as they were")
        poll(lambda: server.log.count("bulk reader 0: gRPC port") == 1, START_SECONDS, "the bulk reader")
        shown = ps(server)
    for where, text in {"log": server.log, **shown}.items():
        assert not any(line in text for line in lines[1:-1]), where
        assert not any(word in text for word in SHOWS), where
