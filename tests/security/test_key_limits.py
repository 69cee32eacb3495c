"""Limits of one key on each protocol: calls beyond are refused, other keys are not affected, and everything is
released.
"""

import gzip
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from hpack import Encoder
from protocols.conftest import with_key
from security.held import bearer
from security.secure_server import reload

from support.http import RawReply, Wire, ok, path, refused, request
from support.http2 import END_HEADERS, END_STREAM, HEADERS, Http2, h2frame
from support.kafka_wire import ClosedError
from support.kafka_wire import Wire as KafkaWire
from support.server import ServerProcess
from support.waiting import poll
from support.ws import TEXT, RefusedError, WebSocket, frame
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1 import topics_service_pb2_grpc
from topics_server.keys import fingerprint, from_text
from topics_server.secret_files import SecretsError
from topics_server.settings import load
from topics_service.api.access.quota import BYTES, CONNECTIONS, IN_FLIGHT, STREAMS, Held, KeyLimits, Quotas
from topics_service.api.budget import MemoryBudget, Share
from topics_service.engine.errors import TopicsError

MOST_BYTES = 300_000
SMALL = f"max_connections=3 max_in_flight=3 max_streams=1 max_bytes_in_flight={MOST_BYTES}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("limits")
    keys = folder / "keys"
    keys.write_text(f"small:rw:t {SMALL}\nfull-key\n")
    with ServerProcess(folder, env={"TOPICS_API_KEYS_FILE": keys}, kafka=True) as server:
        with with_key(server.base, "full-key") as api:
            for name in ("t", "t.fsync"):
                ok(api.put(name, durable=name == "t.fsync"), 201)
        yield server
        assert server.stop() == 0
        assert " ERROR " not in server.log


def refusals(server: ServerProcess) -> dict[tuple[str, str], float]:
    """The metric, by protocol and limit."""
    with with_key(server.base, "full-key") as api:
        lines = [
            line for line in api.send("GET", "/v0/metrics").text.splitlines() if "key_limit_refusals_total{" in line
        ]
    labels = [(line.split('door="')[1].split('"')[0], line.split('limit="')[1].split('"')[0]) for line in lines]
    return {pair: float(line.split()[-1]) for pair, line in zip(labels, lines, strict=True)}


def ask(wire: Wire, key: str = "small") -> RawReply:
    """One request on an open connection."""
    reply = wire.send(request("GET", "/v0/topics/t", authorization=f"Bearer {key}")).reply()
    assert reply is not None
    return reply


def begun(server: ServerProcess, nbytes: int, size: int, key: str = "small") -> Wire:
    """A write of `size` bytes, partly sent."""
    wire = Wire(server.http_port)
    head = (
        f"POST {path('t')} HTTP/1.1\r\nhost: [::]\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    )
    wire.send(f"{head}content-length: {size}\r\n\r\n".encode() + record(size)[:nbytes])
    return wire


def record(size: int) -> bytes:
    """A body of exactly the given number of bytes, with one record."""
    empty = b'{"records":[{"data":""}]}'
    return empty[:-4] + b"x" * (size - len(empty)) + empty[-4:]


def holds(server: ServerProcess, nbytes: int, size: int) -> Wire:
    """As `begun`, once it counts."""
    wire = begun(server, nbytes, size)
    with with_key(server.base, "small") as api:
        poll(lambda: api.send("POST", path("t"), record(MOST_BYTES - 1000)).status_code == 429, 20, "bytes that count")
    return wire


# ----------------------------------------------------------------- connections


def test_connections(server: ServerProcess) -> None:
    before = refusals(server)
    with ExitStack() as held:
        wires = [held.enter_context(Wire(server.http_port)) for _ in range(4)]
        assert [ask(wire).status for wire in wires[:3] * 2] == [200] * 6, "each counts once"
        reply = ask(wires[3])
        assert (reply.status, reply.headers["retry-after"], reply.headers["connection"]) == (429, "1", "close")
        assert reply.json["error"]["detail"] == {"limit": CONNECTIONS, "max": 3}
        assert wires[3].reply() is None, "the connection stays open"
        with pytest.raises(RefusedError) as upgrade:
            WebSocket(server.base, key="small")
        assert (upgrade.value.status, upgrade.value.body["error"]["code"]) == (429, "throttled")
        kafka = held.enter_context(KafkaWire(server.kafka_port))
        answer = kafka.authenticate("small")
        assert (answer["error_code"], "connection limit" in answer["error_message"]) == (58, True)
        with pytest.raises(ClosedError):
            kafka.read_frame()
        http2(server, expect=429)
        with with_key(server.base, "full-key") as other:
            ok(other.get("t"))
        more = {pair: count - before.get(pair, 0) for pair, count in refusals(server).items()}
        assert more == {("http", CONNECTIONS): 2, ("websocket", CONNECTIONS): 1, ("kafka", CONNECTIONS): 1}
    poll(lambda: _answered(server) == 200, 20, "room for a connection")
    with ExitStack() as held:
        for _ in range(3):
            each = held.enter_context(KafkaWire(server.kafka_port))
            assert each.authenticate("small")["error_code"] == 0
        assert _answered(server) == 429, "those of Kafka count too"
    poll(lambda: _answered(server) == 200, 20, "room for a connection")
    http2(server, expect=200)


def _answered(server: ServerProcess) -> int:
    with Wire(server.http_port) as wire:
        return ask(wire).status


def http2(server: ServerProcess, expect: int) -> None:
    """One request over HTTP/2; a refused connection is ended with GOAWAY."""
    fields = [(":method", "GET"), (":path", "/v0/topics/t"), (":scheme", "http"), (":authority", "localhost")]
    block = Encoder().encode([*fields, ("authorization", "Bearer small")], huffman=False)
    with Http2(server.http_port) as attack:
        attack.send(h2frame(HEADERS, END_HEADERS | END_STREAM, 1, block))
        if expect == 200:
            poll(lambda: b"next_seq" in attack.heard or b"head_seq" in attack.heard, 20, "an answer")
        else:
            assert attack.goaway() == 0, attack.heard
            assert b"throttled" in attack.heard


def test_a_connection_of_many_keys_counts_for_each(server: ServerProcess) -> None:
    """As behind a proxy that shares its connections."""
    with ExitStack() as held:
        for _ in range(3):
            wire = held.enter_context(Wire(server.http_port))
            assert [ask(wire, key).status for key in ("full-key", "small", "full-key", "small")] == [200] * 4
        assert _answered(server) == 429
    poll(lambda: _answered(server) == 200, 20, "room for a connection")


def test_streams(server: ServerProcess) -> None:
    with WebSocket(server.base, key="small"):
        with pytest.raises(RefusedError) as upgrade:
            WebSocket(server.base, key="small")
        assert upgrade.value.body["error"]["detail"] == {"limit": STREAMS, "max": 1}
        with WebSocket(server.base, key="full-key"), WebSocket(server.base, key="full-key"):
            pass
    poll(lambda: _opens(server), 20, "room for a stream")


def _opens(server: ServerProcess) -> bool:
    try:
        WebSocket(server.base, key="small").close()
    except RefusedError:
        return False
    return True


# ------------------------------------------------------------------- in flight


def test_a_grpc_call_counts_before_its_message_has_come(server: ServerProcess) -> None:
    """Else the cap would not hold clients that send none."""
    silent = threading.Event()

    def nothing() -> Iterator[Any]:
        silent.wait(60)
        yield from ()

    with grpc.insecure_channel(server.grpc_target) as channel:
        topics = topics_service_pb2_grpc.TopicsServiceStub(channel)
        ask = pb.GetTopicRequest(topic="t")
        open_calls = [
            channel.stream_unary("/topics.v1.TopicsService/GetTopic").future(nothing(), metadata=bearer("small"))
            for _ in range(3)
        ]

        def code() -> str:
            try:
                topics.GetTopic(ask, metadata=bearer("small"), timeout=30)
            except grpc.RpcError as error:
                return str(error.code().name)
            return "OK"

        poll(lambda: code() == "RESOURCE_EXHAUSTED", 20, "calls without a message")
        topics.GetTopic(ask, metadata=bearer("full-key"), timeout=30)
        for call in open_calls:
            call.cancel()
        silent.set()
        poll(lambda: code() == "OK", 20, "room for a call")
    assert refusals(server)["grpc", IN_FLIGHT] >= 1


def test_writes_of_a_websocket_count_until_their_acks(server: ServerProcess) -> None:
    publish = {"op": "publish", "topic": "t.fsync", "records": [{"data": 1}]}
    with WebSocket(server.base, key="small") as ws:
        for _ in range(3):
            texts = [json.dumps(publish | {"request_id": f"r{n}"}) for n in range(16)]
            ws.write(*(frame(TEXT, text.encode()) for text in texts))
            replies = [ws.recv() for _ in texts]
            assert [reply["request_id"] for reply in replies] == [f"r{n}" for n in range(16)]
            told = [reply["op"] if reply["op"] == "ack" else reply["code"] for reply in replies]
            assert set(told) == {"ack", "throttled"}
            assert told[:3] == ["ack"] * 3
        assert ws.publish("t.fsync", 1)["op"] == "ack", "all came back"
        ws.write(*(frame(TEXT, text.encode()) for text in texts[:3]))
    with with_key(server.base, "small") as api:
        poll(lambda: api.get("t").status_code == 200, 20, "what an ended socket held")
    assert refusals(server)["websocket", IN_FLIGHT] >= 3


# ----------------------------------------------------------------------- bytes


def test_bytes_of_http(server: ServerProcess) -> None:
    with holds(server, 280_000, 290_000) as first, with_key(server.base, "small") as api:
        error = refused(api.send("POST", path("t"), record(100_000)), 429, "throttled")
        assert error["detail"] == {"limit": BYTES, "max": MOST_BYTES}
        ok(api.send("POST", path("t"), record(60_000)))
        bomb = gzip.compress(record(100_000))
        assert len(bomb) < 1000
        refused(api.send("POST", path("t"), bomb, headers={"content-encoding": "gzip"}), 429, "throttled")
        with with_key(server.base, "full-key") as other:
            ok(other.send("POST", path("t"), record(900_000)))
        reply = first.send(record(290_000)[280_000:]).reply()
        assert reply is not None
        assert reply.status == 200
        ok(api.send("POST", path("t"), record(100_000)))
        ok(api.send("POST", path("t"), record(900_000)), 200)  # one alone may be larger than the limit
    assert refusals(server)["http", BYTES] >= 2


def test_bytes_of_grpc(server: ServerProcess) -> None:
    data = b'"' + b"x" * 100_000 + b'"'
    rows = pb.AppendRequest(topic="t", records=[{"data": data}])
    with grpc.insecure_channel(server.grpc_target) as channel:
        topics = topics_service_pb2_grpc.TopicsServiceStub(channel)
        with holds(server, 280_000, 290_000):
            with pytest.raises(grpc.RpcError) as error:
                topics.Append(rows, metadata=bearer("small"), timeout=30)
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(grpc.RpcError) as error:
                list(topics.AppendStream(iter([pb.AppendStreamRequest(append=rows)]), metadata=bearer("small")))
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            topics.Append(rows, metadata=bearer("full-key"), timeout=30)

        def written() -> bool:
            try:
                topics.Append(rows, metadata=bearer("small"), timeout=30)
            except grpc.RpcError:
                return False
            return True

        poll(written, 20, "room for the bytes")
        stream = topics.AppendStream(iter([pb.AppendStreamRequest(append=rows)] * 9), metadata=bearer("small"))
        acks = [ack for response in stream for ack in response.acks]
        assert len(acks) == 9, "one message counts, not all of a stream"
        assert not any(ack.HasField("error") for ack in acks)
    assert refusals(server)["grpc", BYTES] >= 2


def test_bytes_of_websockets(server: ServerProcess) -> None:
    text = json.dumps({"op": "publish", "topic": "t", "request_id": "1", "records": [{"data": "x" * 280_000}]}).encode()
    whole = frame(TEXT, text)
    with WebSocket(server.base, key="small") as ws, with_key(server.base, "small") as api:
        ws.write(whole[:270_000])
        poll(lambda: api.send("POST", path("t"), record(100_000)).status_code == 429, 20, "bytes that count")
        ws.write(whole[270_000:])
        assert ws.recv()["op"] == "ack"
        poll(lambda: api.send("POST", path("t"), record(290_000)).status_code == 200, 20, "room for the bytes")
        with holds(server, 280_000, 290_000):
            half = len(text) // 2
            ws.write(frame(TEXT, text[:half], fin=False), frame(0, text[half:], fin=False))
            code, why = ws.closed()
            assert (code, "API key" in why) == (1013, True)
        poll(lambda: api.send("POST", path("t"), record(290_000)).status_code == 200, 20, "what an ended socket held")
    assert refusals(server)["websocket", BYTES] >= 1


def test_bytes_of_kafka(server: ServerProcess) -> None:
    """The request of a key that holds too much waits; those of others do not."""
    topic = {"name": "t", "partition_data": [{"index": 0, "records": bytes(400_000)}]}
    body: dict[str, Any] = {"transactional_id": None, "acks": -1, "timeout_ms": 1000, "topic_data": [topic]}
    with ExitStack() as held:
        wires = [held.enter_context(KafkaWire(server.kafka_port)) for _ in range(3)]
        for wire, key in zip(wires, ("small", "small", "full-key"), strict=True):
            assert wire.authenticate(key)["error_code"] == 0
        first, second, other = wires
        large = b"".join(first.request(ApiKey.PRODUCE, 8, 7, body))
        first.socket.sendall(struct.pack(">i", len(large)) + large[:-1])
        poll(lambda: kafka_bytes(server) >= 400_000, 20, "memory for the first request")
        sender = threading.Thread(target=second.write_frame, args=(large,), daemon=True)
        sender.start()
        other.write_frame(b"".join(other.request(ApiKey.PRODUCE, 8, 7, body)))
        assert other.read_frame()
        second.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            second.read_frame()
        second.socket.settimeout(20)
        first.socket.sendall(large[-1:])
        assert first.read_frame()
        assert second.read_frame()
        sender.join(10)
    poll(lambda: kafka_bytes(server) == 0, 20, "all memory back")


def kafka_bytes(server: ServerProcess) -> float:
    """The memory of Kafka requests."""
    with with_key(server.base, "full-key") as api:
        lines = api.send("GET", "/v0/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("topics_kafka_frame_bytes "))


# ---------------------------------------------------------------------- a change


def test_a_limit_that_changes_ends_nothing(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k max_in_flight=1\n")
    started = ServerProcess(tmp_path / "server", env={"TOPICS_API_KEYS_FILE": keys})
    with started as server, with_key(server.base, "k") as api, WebSocket(server.base, key="k") as ws:
        ok(api.put("t"), 201)
        with Wire(server.http_port) as poller:
            poller.send(
                request("POST", path("t", "/diff"), b'{"from_seq":0,"wait_ms":20000}', authorization="Bearer k")
            )
            poll(lambda: api.get("t").status_code == 429, 20, "a request in flight")
            keys.write_text("k max_in_flight=2\n")
            reload(server, "1 API key")
            ok(api.get("t"))
            assert ws.publish("t", 1)["op"] == "ack"
            reply = poller.reply()
            assert reply is not None
            assert reply.status == 200


# ------------------------------------------------------------------ no server


def test_limits_in_entries() -> None:
    keys = from_text("a:r:x|y max_in_flight=3\tmax_connections=0 ,b max_bytes_in_flight=5,c:w")
    assert keys is not None
    a, b, c = (fingerprint(key) for key in (b"a", b"b", b"c"))
    assert keys.limits == {a: {"in_flight": 3, "connections": 0}, b: {"nbytes": 5}}
    assert {p.key_id: p.prefixes for p in keys.principals} == {a: ("x", "y"), b: None, c: None}
    quotas = Quotas(KeyLimits(connections=9, in_flight=9), keys.limits)
    assert quotas.for_key(a).limits == KeyLimits(connections=0, in_flight=3)
    assert quotas.for_key(c).limits == KeyLimits(connections=9, in_flight=9)


@pytest.mark.parametrize(
    "text",
    [
        "a max_requests=1",
        "a max_in_flight=-1",
        "a max_in_flight=1 max_in_flight=2",
        "a max_in_flight = 3",
        "a max_streams",
    ],
)
def test_a_limit_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(SecretsError) as error:
        from_text(f"first,{text}")
    assert "entry 2" in str(error.value)
    assert "a max" not in str(error.value)


def test_the_settings_are_the_common_limits() -> None:
    assert load({}, {}).key_limits == KeyLimits(connections=1500, streams=1000, in_flight=1000, nbytes=256 << 20)
    names = ("MAX_CONNECTIONS", "MAX_SSE_CONNECTIONS", "MAX_INFLIGHT", "MAX_BYTES_IN_FLIGHT")
    given = load({f"TOPICS_{name}_PER_KEY": str(n) for n, name in enumerate(names, 1)}, {})
    assert given.key_limits == KeyLimits(connections=1, streams=2, in_flight=3, nbytes=4)


def test_one_request_may_be_larger_than_the_limit() -> None:
    usage = Quotas(KeyLimits(nbytes=100_000)).for_key("k")
    first, second = Held(usage, None), Held(usage, None)
    for size in (60_000, 90_000, 200_000, 500_000):
        first.grow(size)
    assert usage.nbytes == 500_000
    second.grow(64 << 10)  # what is small does not count
    with pytest.raises(TopicsError):
        second.grow(70_000)
    first.release()
    second.grow(70_000)
    assert usage.nbytes == 70_000


class _Waiter:
    def __init__(self, share: Share | None) -> None:
        self.share = share
        self.grants = 0

    def granted(self) -> None:
        self.grants += 1


def test_a_key_has_its_share_of_the_budget() -> None:
    budget = MemoryBudget(100)
    share = Share(lambda: 40)
    greedy = [_Waiter(share) for _ in range(4)]
    other = _Waiter(None)
    assert budget.take(greedy[0], 40)
    assert budget.take(greedy[1], 40), "one beyond the share"
    assert not budget.take(greedy[2], 10)
    assert not budget.take(greedy[3], 10)
    assert budget.take(other, 20), "others do not wait for that key"
    budget.leave(greedy[2])
    budget.complete(greedy[1])
    assert [waiter.grants for waiter in greedy] == [0, 0, 0, 1], "the next one may go beyond"
    assert not budget.take(other, 20), "all of it is taken"
    budget.release(40, share)
    assert (other.grants, budget.used) == (1, 90)
    budget.release(40, share)
    budget.release(10, share)
    budget.release(40)
    assert (budget.used, share.used) == (0, 0)


def test_whom_all_wait_for_waits_for_nobody_of_his_key() -> None:
    """Else the two exceptions could wait for each other without end."""
    budget = MemoryBudget(100)
    share = Share(lambda: 60)
    first, second, third = _Waiter(share), _Waiter(share), _Waiter(None)
    assert budget.take(third, 90)
    assert budget.take(first, 30), "beyond what there is"
    assert not budget.take(second, 70), "beyond the share, and in line behind the first"
    assert budget.take(first, 50)
    budget.complete(first)
    assert second.grants == 1
    budget.leave(second)
    budget.release(70, share)
    budget.release(80, share)
    assert share.used == 0
