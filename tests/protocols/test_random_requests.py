"""Random requests on both protocols at once, valid and noise: honest answers, and nothing left behind.

Two servers take the requests: one with default settings, and one with keys and all limits lowered. The strategies are
in `strategies.py`. The short run is the same in every run, but for how its requests interleave; the soak prints its
seed, which `TOPICS_SOAK_SEED` gives again.
"""

import contextlib
import os
import queue
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, given, seed, settings
from protocols.answers import check_http, check_replies, check_status
from protocols.conftest import SMALL
from protocols.strategies import API_KEYS, CALLS, KEYS, POOL, SERVICES, GrpcCall, HttpCall

from support.http import Api, Wire, ok, path, request
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc

SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
EXAMPLES = 1500  # about 6 s of drawing
WORKERS = 6
PATIENCE = 0.05  # of a client whose request may park
STREAM_WINDOW = 1 << 20
BAD_LOG = ("Traceback", " ERROR ", " CRITICAL ", "was never awaited", "Task exception", "Task was destroyed")
MEMORY_BYTES = 64 << 20
# What the soak may gain from its middle to its end. Topics are dropped between volleys, so what may grow by design are
# caches and write buffers, which these small requests fill slowly: MEMORY_BYTES bounds them, half of it is allowed. In
# 10 minutes with 150 requests/s for each server, that finds 1 KiB kept per request.
RSS_GROWTH = 32 << 20


# ------------------------------------------------------------------------------------------------ the clients


class Worker:
    """A client of both servers over both protocols, with connections of its own."""

    def __init__(self, servers: list[ServerProcess]) -> None:
        self.seen: Counter[str] = Counter()
        self._servers = servers
        self._wires: dict[bool, Wire] = {}
        self._http2: dict[bool, httpx.Client] = {}
        self._channels: dict[bool, grpc.Channel] = {}

    def close(self) -> None:
        for connection in (*self._wires.values(), *self._http2.values(), *self._channels.values()):
            connection.close()
        self._wires.clear()
        self._http2.clear()
        self._channels.clear()

    def run(self, call: HttpCall | GrpcCall) -> None:
        """Make the call and check what comes back."""
        if isinstance(call, GrpcCall):
            self.seen["gRPC " + self._grpc(call)] += 1
        elif call.manner == "http2":
            self.seen["HTTP/2 " + self._over_http2(call)] += 1
        else:
            for outcome in self._over_wire(call):
                self.seen["HTTP/1 " + outcome] += 1

    # HTTP/1

    def _over_wire(self, call: HttpCall) -> Iterator[str]:
        manner = call.manner  # a reply to a request that may be no HTTP must not be the next one's
        lonely = manner not in ("whole", "pieces", "chunked") or call.parks or not call.target.startswith("/v0")
        wire = None if lonely else self._wires.pop(call.keyed, None)
        if wire is None:
            wire = Wire(self._servers[call.keyed].http_port, 20)
        try:
            outcomes = list(self._converse(call, wire))
            yield from (outcome for outcome, _ in outcomes)
            _, reusable = outcomes[-1]
            assert manner == "pipelined" or not wire._buffer, "more than one answer"
            if reusable and not lonely and call.keyed not in self._wires:
                self._wires[call.keyed] = wire
                wire = None
        finally:
            if wire is not None:
                wire.reset() if manner.endswith("reset") else wire.close()

    def _converse(self, call: HttpCall, wire: Wire) -> Iterator[tuple[str, bool]]:
        """Send and read; each outcome, and whether the connection can be used again."""
        data, manner = http_bytes(call), call.manner
        cut = int(call.cut * (len(data) - 1))
        if manner in ("abort", "reset"):
            wire.send(data[:cut])
            yield manner, False
            return
        if manner == "pieces":
            wire.send(data[:cut]).send(data[cut:])
        else:
            wire.send(data + (b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n" if manner == "pipelined" else b""))
        if manner.startswith("leave"):
            yield manner, False
            return
        if manner == "half_close":
            with contextlib.suppress(OSError):  # it has answered and closed
                wire.half_close()
        if call.parks:
            wire.socket.settimeout(PATIENCE)
        try:
            reply = wire.reply(head=call.method == "HEAD")
            if reply is not None and reply.status == 100:
                reply = wire.reply(head=call.method == "HEAD")
        except TimeoutError:
            assert call.parks, "no answer in time"
            yield "gave up", False
            return
        if reply is None:
            assert manner == "half_close", "closed without an answer"
            yield "closed", False
            return
        yield check_http(call, *reply), reply.headers.get("connection") != "close"
        if manner == "pipelined" and reply.headers.get("connection") != "close":
            second = wire.reply()
            if second is not None and second.status == 200:
                assert b'"status":"ok"' in second.body
            else:  # what the first one held was not its end
                assert second is None or second.status == 400

    # HTTP/2

    def _over_http2(self, call: HttpCall) -> str:
        client = self._http2.get(call.keyed)
        if client is None:
            base = self._servers[call.keyed].base
            client = httpx.Client(base_url=base, http1=False, http2=True, timeout=20, trust_env=False, verify=False)
            self._http2[call.keyed] = client
        kept = [(name, value) for name, value in call.headers if name.lower() not in HOP_BY_HOP]
        content = b"" if call.body is None else call.body
        headers = [(name.encode(), value.encode("latin-1")) for name, value in kept]
        built = client.build_request(call.method, "/", headers=headers, content=content)
        # httpx sees no early answer while it waits for the window of its stream.
        may_stick = len(content) > STREAM_WINDOW and not call.parks
        seconds = PATIENCE if call.parks else 5 if may_stick else 20
        built.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
        built.extensions["target"] = call.target.encode("latin-1")
        try:
            response = client.send(built, stream=True)
            try:
                raw = b"".join(response.iter_raw())
            finally:
                response.close()
        except httpx.TimeoutException:
            assert call.parks or may_stick, "no answer in time"
            self._http2.pop(call.keyed).close()
            return "gave up"
        except httpx.LocalProtocolError:
            self._http2.pop(call.keyed).close()
            return "not sent"
        except httpx.RemoteProtocolError as error:
            if "error_code:11" not in str(error) or sum(len(value) for _, value in kept) < 60_000:
                raise  # only too large a head gets ENHANCE_YOUR_CALM
            self._http2.pop(call.keyed).close()
            return "head too large"
        return check_http(call, response.status_code, dict(response.headers), raw)

    # gRPC

    def _grpc(self, call: GrpcCall) -> str:
        channel = self._channels.get(call.keyed)
        if channel is None:
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
            channel = self._channels[call.keyed] = grpc.insecure_channel(self._servers[call.keyed].grpc_target, options)
        over = threading.Event()
        raw: list[bytes] = []
        try:
            started, streaming = self._start(channel, call, over)
            if call.manner == "hang_up":
                self._channels.pop(call.keyed).close()
            if not streaming:
                if call.manner == "cancel":
                    with contextlib.suppress(grpc.FutureTimeoutError):
                        started.exception(call.seconds)
                    started.cancel()
                raw.append(started.result())
            else:
                for reply in started:
                    raw.append(reply)
                    if call.manner == "cancel":
                        started.cancel()
        except grpc.FutureCancelledError:
            outcome = "CANCELLED"
            assert call.manner in ("cancel", "hang_up")
        except grpc.RpcError as error:
            outcome = check_status(call, error)
        else:
            outcome = "OK"
        finally:
            over.set()
        check_replies(call, [decode(call, reply) for reply in raw], complete=outcome == "OK")
        return outcome

    def _start(self, channel: grpc.Channel, call: GrpcCall, over: threading.Event) -> tuple[Any, bool]:
        """The call under way, and whether its replies are a stream."""
        _, service, method = call.path.split("/") if call.path.count("/") == 2 else ("", "", "")
        known = SERVICES[service].methods_by_name.get(method) if service in SERVICES else None
        streams = known is not None and known.client_streaming, known is not None and known.server_streaming
        kind = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
            (True, True): channel.stream_stream,
        }[streams]
        seconds: float = 20
        if call.manner == "deadline":
            seconds = call.seconds
        elif call.parks or (call.manner == "cancel" and streams[0]):
            seconds = PATIENCE
        given: Any = self._stream(call, over) if streams[0] else (call.messages or (b"",))[0]
        options = {
            "metadata": call.metadata,
            "timeout": seconds,
            "compression": grpc.Compression.Gzip if call.compressed else None,
        }
        callable_ = kind(call.path)
        if streams[1]:
            return callable_(given, **options), True
        return callable_.future(given, **options), False

    def _stream(self, call: GrpcCall, over: threading.Event) -> Iterator[bytes]:
        """The messages; a client that will not finish its call leaves it open."""
        yield from call.messages
        if call.manner in ("deadline", "cancel", "hang_up"):
            over.wait(20)


HOP_BY_HOP = ("connection", "upgrade", "te", "host", "expect", "http2-settings", "date", "content-length")


def http_bytes(call: HttpCall) -> bytes:
    """The request as it goes over the wire."""
    lines = [f"{call.method} {call.target} HTTP/{call.version}"]
    if not any(name == "Host" for name, _ in call.headers):
        lines.append("Host: localhost")
    lines += [f"{name}: {value}" for name, value in call.headers]
    body = call.body or b""
    if call.body is not None and call.manner == "chunked":
        lines.append("Transfer-Encoding: chunked")
        cut = int(call.cut * len(body))
        parts = [part for part in (body[:cut], body[cut:]) if part]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    elif call.body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def decode(call: GrpcCall, raw: bytes) -> Message:
    _, service, method = call.path.split("/")
    return message_factory.GetMessageClass(SERVICES[service].methods_by_name[method].output_type).FromString(raw)


class Clients:
    """Workers that take calls from a queue. The first failure ends it all."""

    def __init__(self, servers: list[ServerProcess], copies: int) -> None:
        self.failure: BaseException | None = None
        self._copies = copies
        self._calls: queue.Queue[HttpCall | GrpcCall | None] = queue.Queue(maxsize=4 * WORKERS)
        self._workers = [Worker(servers) for _ in range(WORKERS)]
        self._threads = [threading.Thread(target=self._run, args=(worker,)) for worker in self._workers]
        for thread in self._threads:
            thread.start()

    def send(self, call: HttpCall | GrpcCall) -> None:
        """Have the call made, once for each copy."""
        if self.failure is None:
            for _ in range(self._copies):
                self._calls.put(call)

    def finish(self) -> Counter[str]:
        """Wait for the last answers; how often each outcome was seen."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        if self.failure is not None:
            raise self.failure
        return sum((worker.seen for worker in self._workers), Counter())

    def _run(self, worker: Worker) -> None:
        try:
            while (call := self._calls.get()) is not None:
                if self.failure is None:
                    try:
                        worker.run(call)
                    except BaseException as error:
                        error.add_note(f"on {call}")
                        self.failure = error
        finally:
            worker.close()


def volley(servers: list[ServerProcess], examples: int, number: int | None, copies: int = 1) -> Counter[str]:
    """Send the given number of random calls; from a fixed source without a number."""
    for server, count in zip(servers, (len(POOL), SMALL["TOPICS_MAX_TOPICS"]), strict=True):
        make_all(server, count)
    clients = Clients(servers, copies)

    @settings(
        max_examples=examples, derandomize=number is None, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(CALLS)
    def shoot(call: HttpCall | GrpcCall) -> None:
        clients.send(call)

    try:
        (shoot if number is None else seed(number)(shoot))()
    finally:
        seen = clients.finish()
    return seen


# ------------------------------------------------------------------------------------------------ the servers


class Descriptors:
    """The open files of a process by kind."""

    def __init__(self, pid: int) -> None:
        self.kinds: Counter[str] = Counter()
        self.deleted: list[str] = []
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                target = str(link.readlink())
                self.kinds[target.partition(":")[0] if not target.startswith("/") else "file"] += 1
                if target.endswith(" (deleted)"):
                    self.deleted.append(target)


def rss(server: ServerProcess) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@contextlib.contextmanager
def api_of(server: ServerProcess) -> Iterator[Api]:
    """A client that may do everything."""
    with Api(server.base) as api:
        api.client.headers["authorization"] = f"Bearer {next(iter(KEYS))}"
        yield api


def gauges(api: Api) -> dict[str, float]:
    """The gauges that must be zero without clients; this scrape not counted. (Leases may outlive their workers.)"""
    text = api.send("GET", "/v0/metrics").text
    names = "http_requests_in_flight|grpc_calls_in_flight|wal_queue_depth|sse_connections"
    found = {name: float(value) for name, value in re.findall(rf"^topics_({names}) (\S+)$", text, re.MULTILINE)}
    assert len(found) == 4
    found["http_requests_in_flight"] -= 1
    return found


def make_all(server: ServerProcess, count: int) -> None:
    """Make topics of every durability class, with a record in each, for the calls to meet."""
    classes = ("disk", "fsync", "memory", "ephemeral")
    with api_of(server) as api:
        for name, durability in zip(POOL[:count], classes * 2, strict=False):
            ok(api.put(name, durability=durability), 200, 201)
            api.append(name, 1)


def drop_all(server: ServerProcess) -> None:
    """Delete every topic."""
    with api_of(server) as api:
        while topics := api.listing(page_size=1000)["topics"]:
            for topic in topics:
                ok(api.drop(topic["topic"]))


def assert_idle(server: ServerProcess, before: Descriptors) -> None:
    """No connection, no call and no wait is left."""
    with api_of(server) as api:
        poll(lambda: not any(gauges(api).values()), 20, "gauges at zero")
    poll(lambda: Descriptors(server.pid).kinds["socket"] <= before.kinds["socket"], 20, "sockets closed")
    now = Descriptors(server.pid)
    assert not now.deleted
    assert now.kinds["pipe"] <= before.kinds["pipe"]
    assert now.kinds["anon_inode"] <= before.kinds["anon_inode"] + 4, (before.kinds, now.kinds)


def assert_works(server: ServerProcess) -> None:
    """Every kind of call does its work, and a stop is quick and clean."""
    with api_of(server) as api:
        name = api.make("fresh", durability="fsync")
        assert api.append(name, 1, 2)["seqs"] == [1, 2]
        assert [record["data"] for record in api.read(name)["records"]] == [1, 2]
        assert api.rm(name, before_seq=2)["deleted"] == 1
        with grpc.insecure_channel(server.grpc_target) as channel:
            metadata = [("authorization", f"Bearer {next(iter(KEYS))}")]
            ready = admin_service_pb2_grpc.AdminServiceStub(channel).GetReady(
                admin_service_pb2.GetReadyRequest(), metadata=metadata, timeout=30
            )
        assert ready.topics == ok(api.send("GET", "/v0/ready"))["topics"] == 1
        assert ok(api.drop(name))["deleted"]
        assert api.send("GET", path(name)).status_code == 404
    started = time.monotonic()
    assert server.stop(12) == 0
    assert time.monotonic() - started < 8
    assert_log(server)


def assert_log(server: ServerProcess) -> None:
    for line in server.log.splitlines():
        assert not any(bad in line for bad in BAD_LOG), server.log[-4000:]


@pytest.fixture
def servers(start: Callable[..., ServerProcess]) -> list[ServerProcess]:
    """One server that is open to everyone, and one that asks for keys and has every limit turned down."""
    small = SMALL | {"TOPICS_API_KEYS": API_KEYS, "TOPICS_MAX_INFLIGHT_PER_KEY": 3}
    return [start(TOPICS_MEMORY_BYTES=MEMORY_BYTES), start(TOPICS_MEMORY_BYTES=MEMORY_BYTES, **small)]


def test_random_requests(servers: list[ServerProcess]) -> None:
    idle = [Descriptors(server.pid) for server in servers]
    seen = volley(servers, EXAMPLES, None)
    for outcome in ("HTTP/1 200", "HTTP/1 400 invalid_request", "HTTP/2 200", "gRPC OK", "gRPC CANCELLED"):
        assert seen[outcome], (outcome, seen)
    for server, before in zip(servers, idle, strict=True):
        assert_idle(server, before)
        drop_all(server)
        assert_works(server)


def test_connect_is_answered_once(server: ServerProcess) -> None:
    """Also behind another request; what follows it is not taken for HTTP."""
    health = request("GET", "/v0/health")
    for before in (b"", health):
        with Wire(server.http_port) as wire:
            replies = list(wire.send(before + request("CONNECT", "/v0", b"{}") + health).replies())
        assert [reply.status for reply in replies] == [200, 404][not before :]
        assert replies[-1].headers["connection"] == "close"


@pytest.mark.parametrize("service", ["grpc.reflection.v1alpha.ServerReflection", "grpc.health.v1.Health"])
def test_noise_for_the_standard_services(server: ServerProcess, service: str) -> None:
    with grpc.insecure_channel(server.grpc_target) as channel:
        for method in SERVICES[service].methods:
            if method.name == "List":  # takes anything for an empty message
                continue
            call = GrpcCall(False, f"/{service}/{method.name}", (b"\xff",), (), "whole", 0, False, False)
            with pytest.raises(grpc.RpcError) as raised:
                list(channel.stream_stream(call.path)(iter(call.messages), timeout=30))
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert_log(server)


def test_a_client_that_leaves_a_call_which_is_refused(server: ServerProcess) -> None:
    """Each at another moment; the server is not to complain."""
    with grpc.insecure_channel(server.grpc_target) as channel:
        for path_ in ("/topics.v1.QueueService/Ack", "/topics.v1.TopicsService/GetTopic"):
            call = channel.unary_unary(path_)
            for i in range(300):
                started = call.future(b"", timeout=30)
                with contextlib.suppress(grpc.FutureTimeoutError):
                    started.exception(i * 5e-6)
                started.cancel()
    with Api(server.base) as api:
        poll(lambda: not any(gauges(api).values()), 20, "gauges at zero")
    assert_log(server)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="TOPICS_SOAK_SECONDS says for how long")
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_random_requests_soak(servers: list[ServerProcess]) -> None:
    number = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    print(f"TOPICS_SOAK_SEED={number}")
    idle = [Descriptors(server.pid) for server in servers]
    seen: Counter[str] = Counter()
    samples: list[list[int]] = [[rss(server)] for server in servers]
    started = time.monotonic()
    try:
        while time.monotonic() < started + SOAK_SECONDS:
            seen += volley(servers, 400, number, copies=3)
            number += 1
            for server, before, sizes in zip(servers, idle, samples, strict=True):
                assert_idle(server, before)
                drop_all(server)
                assert_log(server)
                sizes.append(rss(server))
    finally:
        report(seen, idle, servers, samples)
    for server, sizes in zip(servers, samples, strict=True):
        if len(sizes) >= 15:
            fifth = len(sizes) // 5
            middle, last = statistics.median(sizes[2 * fifth : 3 * fifth]), statistics.median(sizes[-fifth:])
            assert last - middle < RSS_GROWTH, sizes
        assert_works(server)


def report(seen: Counter[str], idle: list[Descriptors], servers: list[ServerProcess], samples: list[list[int]]) -> None:
    """Print what a soak did."""
    for protocol in ("HTTP/1", "HTTP/2", "gRPC"):
        outcomes = {name: count for name, count in seen.most_common() if name.startswith(protocol)}
        print(f"{protocol}: {sum(outcomes.values())} calls")
        for name, count in outcomes.items():
            print(f"  {count:8} {name}")
    for server, before, sizes in zip(servers, idle, samples, strict=True):
        mib = [size >> 20 for size in sizes]
        print(f"RSS in MiB: start {mib[0]}, middle {mib[len(mib) // 2]}, end {mib[-1]}, most {max(mib)}")
        print(f"descriptors: {dict(before.kinds)} before, {dict(Descriptors(server.pid).kinds)} after")
