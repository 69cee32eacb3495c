"""Signals, timers and work for several clients are logged and audited without a client."""

import ast
import asyncio
import json
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from support.kafka_wire import Wire
from support.server import ServerProcess
from support.waiting import poll
from topics_kafka.protocol import ApiKey
from topics_net import background
from topics_service.api.request_context import begin, current_request
from topics_service.api.scheduling.batcher import WriteBatcher

ROOT = Path(__file__).parents[2]
PLANS = {"call_soon", "call_later", "call_at", "call_soon_threadsafe", "create_task", "ensure_future"}
OWN = {
    # Part of the request that starts it, and ended with it.
    "gateway_http/topics_gateway/live_socket.py": 2,
    "gateway_http/topics_gateway/request.py": 2,
    "gateway_http/topics_gateway/socket_session.py": 3,
    "gateway_kafka/topics_kafka/handlers/elsewhere.py": 1,
    "gateway_kafka/topics_kafka/handlers/fetch_sources.py": 1,
    "gateway_kafka/topics_kafka/session.py": 1,
    "gateway_postgres/topics_postgres/connection.py": 1,
    "service/topics_service/api/checkpoints.py": 1,
    "service/topics_service/api/grpc/append_stream.py": 1,
    "service/topics_server/interceptors.py": 1,
    "service/topics_server/node/peers.py": 1,
    "service/topics_cluster/forward_http.py": 1,
    "service/topics_cluster/forward_websocket.py": 2,
    "service/topics_shards/ends.py": 1,
    "service/topics_shards/queues.py": 1,
    "service/topics_shards/remote.py": 1,
    "service/topics_shards/session_forwarding.py": 1,
    "service/topics_shards/shards.py": 2,
    "service/topics_shards/watches.py": 1,
    "service/topics_shards/wire/server.py": 1,
    # Started by the server itself, or by a thread that has no request.
    "gateway_http/topics_gateway/transport/server.py": 1,
    "service/topics_service/api/scheduling/commit.py": 1,
    "service/topics_service/api/sql/claims.py": 1,
    "service/topics_net/tls_listener.py": 1,
    "service/topics_server/bulk_reader.py": 1,
    "service/topics_server/bulk_readers.py": 3,
    "service/topics_server/processes/serving.py": 4,
    "service/topics_server/server.py": 1,
    "service/topics_cluster/etcd.py": 2,
    "service/topics_cluster/follower.py": 1,
    "service/topics_cluster/memory.py": 1,
    "service/topics_cluster/parallel.py": 1,
    "service/topics_cluster/uploader.py": 3,
}
SIGNALS = 40


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("background")
    (folder / "keys").write_text("k\n")
    env = {"TOPICS_API_KEYS_FILE": folder / "keys", "TOPICS_AUDIT_LOG": folder / "audit.log"}
    with ServerProcess(folder, env=env, kafka=True) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def test_a_signal_is_no_request(audited: ServerProcess) -> None:
    """Whatever the server was doing when it came: Python runs its handler in between."""
    over = threading.Event()

    def write(number: int) -> None:
        key = {"authorization": "Bearer k", "x-request-id": f"client-{number}"}
        with httpx.Client(base_url=audited.base, headers=key, timeout=20, trust_env=False, verify=False) as client:
            while not over.is_set():
                client.post("/v0/topics/t", json={"records": [{"data": "x" * 500}] * 200})

    def reloads() -> list[dict[str, object]]:
        lines = (audited.work_dir / "audit.log").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["action"] == "keys.reload"]

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        poll(lambda: "topic.put" in (audited.work_dir / "audit.log").read_text(), 20, "the first write")
        for count in range(1, SIGNALS + 1):
            audited.signal(signal.SIGHUP)
            poll(lambda count=count: len(reloads()) >= count, 20, "the line of a reload")  # type: ignore[misc]
    finally:
        over.set()
        for writer in writers:
            writer.join(20)
    assert {(line["door"], line["peer"], line["key"]) for line in reloads()} == {("server", None, None)}
    told = [line for line in audited.log.splitlines() if "SIGHUP" in line]
    assert len(told) >= SIGNALS
    assert not [line for line in told if "request=" in line]


def test_a_kafka_connection_is_not_its_last_request(audited: ServerProcess) -> None:
    with Wire(audited.kafka_port) as other, Wire(audited.kafka_port) as wire:
        assert not other.call(ApiKey.API_VERSIONS, 3, client_software_name="a", client_software_version="1")[
            "error_code"
        ]
        wire.socket.sendall(b"\xff" * 8)
        poll(lambda: "invalid frame length" in audited.log, 20, "the line")
    (told,) = [line for line in audited.log.splitlines() if "invalid frame length" in line]
    assert "request=" not in told


async def test_what_is_set_within_a_request_is_not_of_it() -> None:
    found: list[object] = []
    done = asyncio.Event()

    def look(last: bool = False) -> None:
        found.append(current_request.get())
        if last:
            done.set()

    async def work() -> None:
        look()

    begin("mine")
    background.call_soon(look)
    background.call_at(asyncio.get_running_loop().time(), look)
    await background.start(work())
    background.call_later(0.01, look, True)
    await done.wait()
    assert found == [None] * 4
    assert current_request.get() is not None


async def test_what_serves_several_is_nobodys() -> None:
    """Work for one request is its own, whoever makes it go."""
    found: list[tuple[list[str], str | None]] = []

    def serve(_: str, requests: Sequence[str]) -> list[str]:
        request = current_request.get()
        found.append((list(requests), None if request is None else request.text))
        return list(requests)

    batcher = WriteBatcher(serve, 2)

    async def ask(name: str) -> None:
        begin(name)
        if (answer := batcher.join("k", name)) is not None:
            await answer

    await asyncio.gather(*map(ask, "abcdef"))
    assert found == [(["b", "c"], None), (["d", "e"], None), (["f"], "f")]


def test_nothing_else_plans_work() -> None:
    """A call of the loop's own methods is counted above with its reason, or passes a context."""
    found: dict[str, int] = {}
    for folder in ("service", "gateway_http/topics_gateway", "gateway_kafka/topics_kafka", "gateway_postgres"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if path.name == "background.py" or not any(name in text for name in PLANS):
                continue
            for node in ast.walk(ast.parse(text)):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in PLANS
                    and not (isinstance(node.func.value, ast.Name) and node.func.value.id == "background")
                    and not any(keyword.arg == "context" for keyword in node.keywords)
                ):
                    name = str(path.relative_to(ROOT))
                    found[name] = found.get(name, 0) + 1
    assert found == OWN
