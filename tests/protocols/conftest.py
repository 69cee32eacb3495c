"""Real servers, shared by tests: one with default settings, one with low limits, one with keys and its callers."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.rpc import error_details_pb2
from grpc_status import rpc_status

sys.path.append(str(Path(__file__).parents[1]))
from support.http import Api, ok
from support.server import ServerProcess
from support.ws import WebSocket
from topics_proto.v1 import (
    admin_service_pb2,
    group_service_pb2,
    queue_service_pb2,
    record_pb2,
    router_service_pb2,
    sql_service_pb2,
    topics_service_pb2_grpc,
    watch_service_pb2,
)
from topics_proto.v1 import topics_service_pb2 as pb

SMALL = {
    "TOPICS_MAX_BODY_BYTES": 4096,
    "TOPICS_MAX_BATCH_RECORDS": 3,
    "TOPICS_MAX_RECORD_BYTES": 600,
    "TOPICS_MAX_META_BYTES": 100,
    "TOPICS_MAX_TAG_BYTES": 8,
    "TOPICS_MAX_NODE_BYTES": 6,
    "TOPICS_MAX_LIMIT": 5,
    "TOPICS_MAX_TOPICS": 4,
    "TOPICS_MAX_PARTITIONS": 3,
    "TOPICS_MAX_CLAIM": 2,
    "TOPICS_MAX_TOTAL_BYTES": 2000,
}
KEYS = {
    "full": "sekret-full",
    "read": "sekret-read:read",
    "write": "sekret-write:W",
    "delete": "sekret-delete:del",
    "admin": "sekret-admin:ADMIN",
    "rw": "sekret-rw: rw ",
    "wa": "sekret-wa:write+admin:t42:",
    "t42": "sekret-t42::t42:",
    "t42w": "sekret-t42w:write:t42:",
    "multi": "sekret-multi:read+write:t42:|shared.",
}
SECRETS = {name: entry.partition(":")[0] for name, entry in KEYS.items()} | {"unknown": "sekret-unknown"}
MODULES = (
    pb, queue_service_pb2, router_service_pb2, group_service_pb2, watch_service_pb2, sql_service_pb2, admin_service_pb2,
)  # fmt: skip
RPCS = [
    rpc
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for rpc in service.methods
]  # fmt: skip


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server
        assert_calm(server)
        assert server.stop() == 0


@pytest.fixture(scope="session")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("small"), env=SMALL) as server:
        yield server
        assert_calm(server)


@pytest.fixture(scope="session")
def api(server: ServerProcess) -> Iterator[Api]:
    with Api(server.base) as api:
        yield api


@pytest.fixture(scope="module")
def topic(api: Api) -> str:
    """A topic that no test changes."""
    return api.make("still")


@pytest.fixture
def small(small_server: ServerProcess) -> Iterator[Api]:
    """A client of the small server, which holds nothing at first."""
    with Api(small_server.base) as api:
        for item in api.listing()["topics"]:
            ok(api.drop(item["topic"]))
        yield api


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start a server of the test's own: `start(TOPICS_X=...)`."""
    started: list[ServerProcess] = []

    def start(**env: Any) -> ServerProcess:
        server = ServerProcess(tmp_path / str(len(started)), env=env)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()
        assert_calm(server)


def assert_calm(server: ServerProcess) -> None:
    """No bug was logged."""
    assert server.alive() or "Traceback" not in server.log
    for line in server.log.splitlines():
        assert " ERROR " not in line, server.log[-3000:]
        assert "Traceback" not in line, server.log[-3000:]


# ------------------------------------------------------------------------- keys


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"TOPICS_API_KEYS": ", ,".join(KEYS.values()), "TOPICS_LOG_LEVEL": "debug", "TOPICS_MAX_BODY_BYTES": 100_000}
    with ServerProcess(tmp_path_factory.mktemp("keyed"), env=env) as server:
        yield server
        assert f"with {len(KEYS)} API keys" in server.log
        assert server.stop() == 0
        assert "sekret" not in server.log
        assert " ERROR " not in server.log
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def http(keyed: ServerProcess) -> Iterator[Callable[[str | None], Api]]:
    """`http("read")` calls with that key, `http(None)` without."""
    apis: dict[str | None, Api] = {}

    def api(key: str | None) -> Api:
        if key not in apis:
            apis[key] = with_key(keyed.base, key)
        return apis[key]

    yield api
    for each in apis.values():
        each.close()


def with_key(base: str, key: str | None) -> Api:
    api = Api(base)
    if key:
        api.client.headers["authorization"] = f"Bearer {SECRETS.get(key, key)}"
    return api


class Refusal(NamedTuple):
    """The failure of a gRPC call."""

    code: str
    reason: str
    detail: dict[str, str]
    retry_after_ms: int | None
    message: str


class Grpc:
    """gRPC calls with a key, or any value of the authorization metadata."""

    def __init__(self, target: str, key: str | None, *, header: str | None = None) -> None:
        self.channel = grpc.insecure_channel(target)
        if key:
            header = f"Bearer {SECRETS.get(key, key)}"
        self.metadata = (("authorization", header),) if header is not None else ()
        self.topics = topics_service_pb2_grpc.TopicsServiceStub(self.channel)

    def call(self, name: str, request: Any, seconds: float = 30) -> Any:
        return getattr(self.topics, name)(request, metadata=self.metadata, timeout=seconds)

    def refused(self, name: str, request: Any) -> Refusal:
        with pytest.raises(grpc.RpcError) as error:
            self.call(name, request)
        return refusal(error.value)

    def any(self, rpc: MethodDescriptor) -> Refusal | None:
        """One call of any RPC, on absent topics; None if it succeeds."""
        message = message_factory.GetMessageClass(rpc.input_type)()
        for field in ("topic", "router", "group"):
            if field in rpc.input_type.fields_by_name:
                setattr(message, field, "absent")
        method = f"/{rpc.containing_service.full_name}/{rpc.name}"
        encode = type(message).SerializeToString
        try:
            if rpc.client_streaming:
                list(self.channel.stream_stream(method, encode)(iter([message]), metadata=self.metadata, timeout=30))
            elif rpc.server_streaming:
                list(self.channel.unary_stream(method, encode)(message, metadata=self.metadata, timeout=30))
            else:
                self.channel.unary_unary(method, encode)(message, metadata=self.metadata, timeout=30)
        except grpc.RpcError as error:
            return refusal(error)
        return None


def refusal(error: grpc.RpcError) -> Refusal:
    code, info, retry = error.code().name, error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    status = rpc_status.from_call(error)
    if status is None:
        return Refusal(code, "", {}, None, error.details())
    assert status.details[0].Unpack(info)
    retries = any(detail.Unpack(retry) for detail in status.details)
    after = retry.retry_delay.ToMilliseconds() if retries else None
    return Refusal(code, info.reason, dict(info.metadata), after, status.message)


@pytest.fixture(scope="module")
def rpc(keyed: ServerProcess) -> Iterator[Callable[..., Grpc]]:
    """`rpc("read")` calls with that key, `rpc(None, header=...)` with this metadata."""
    made: list[Grpc] = []

    def caller(key: str | None, *, header: str | None = None) -> Grpc:
        made.append(Grpc(keyed.grpc_target, key, header=header))
        return made[-1]

    yield caller
    for each in made:
        each.channel.close()


def columns(*datas: bytes) -> Any:
    return [record_pb2.AppendRecord(data=data) for data in datas]


# -------------------------------------------------------------------- WebSockets


@pytest.fixture
def connect() -> Iterator[Callable[..., WebSocket]]:
    """`connect(base, ...)` opens a socket that is closed after the test."""
    opened: list[WebSocket] = []

    def connect(base: str, *args: Any, **kw: Any) -> WebSocket:
        opened.append(WebSocket(base, *args, **kw))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


@pytest.fixture
def ws(connect: Callable[..., WebSocket], server: ServerProcess) -> WebSocket:
    return connect(server.base)
