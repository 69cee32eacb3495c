"""Client certificates: no listener accepts a client without one, or with one of another authority."""

import shutil
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import grpc
import pytest
from security.authority import Authority
from security.secure_server import TlsServer, reload

from support.bulk import START_SECONDS
from support.grpc_on_engine import rows
from support.kafka_wire import Wire
from support.waiting import poll
from topics_client import Retry, TopicsClient
from topics_client.errors import ConnectError
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import admin_service_pb2 as admin_pb
from topics_proto.v1 import admin_service_pb2_grpc, topics_service_pb2_grpc
from topics_proto.v1 import topics_service_pb2 as pb


class MutualServer(TlsServer):
    """A server that asks for certificates of `authority`, and shows its own to itself for the start."""

    def __init__(self, folder: Path, authority: Authority, own: Path, **more: object) -> None:
        self.own = own
        self.ca_file = folder / "ca.pem"
        shutil.copy(authority.ca, self.ca_file)
        super().__init__(folder, env={"TOPICS_TLS_CLIENT_CA_FILE": self.ca_file} | more, kafka=True)

    @property
    def trust(self) -> ssl.SSLContext:
        return self.context(self.own)

    def context(self, own: Path | None) -> ssl.SSLContext:
        """A client with that certificate, or none."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if own is not None:
            context.load_cert_chain(own)
        return context


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("mine") / "ca")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs") / "ca")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, mine: Authority) -> Iterator[MutualServer]:
    folder = tmp_path_factory.mktemp("mutual")
    with MutualServer(folder, mine, mine.client("client"), TOPICS_BULK_READERS=1) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def accepted(server: MutualServer, own: Path | None) -> dict[str, bool]:
    """True for each protocol that accepts a client with that certificate."""
    return {
        "http": _speaks(lambda: _http(server, own)),
        "kafka": _speaks(lambda: _kafka(server, own)),
        "grpc": _speaks(lambda: _grpc(server, server.grpc_target, own)),
    }


def _speaks(ask: object) -> bool:
    try:
        ask()  # type: ignore[operator]
    except (OSError, EOFError, AssertionError, grpc.RpcError):  # ssl.SSLError among them
        return False
    return True


def _http(server: MutualServer, own: Path | None) -> None:
    with urllib.request.urlopen(f"{server.base}/v0/health", timeout=30, context=server.context(own)) as reply:
        assert reply.status == 200


def _kafka(server: MutualServer, own: Path | None) -> None:
    with Wire(server.kafka_port, tls=server.context(own)) as wire:
        assert wire.call(ApiKey.API_VERSIONS, 0)["error_code"] == 0


def channel(server: MutualServer, target: str, own: Path | None) -> grpc.Channel:
    pair = own.read_bytes() if own is not None else None
    credentials = grpc.ssl_channel_credentials(server.cert.read_bytes(), pair, pair)
    options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(target, credentials, options)


def _grpc(server: MutualServer, target: str, own: Path | None) -> None:
    with channel(server, target, own) as one:
        topics_service_pb2_grpc.TopicsServiceStub(one).ListTopics(pb.ListTopicsRequest(), timeout=5)


def test_every_protocol_asks(server: MutualServer, mine: Authority, theirs: Authority) -> None:
    assert accepted(server, mine.client("another")) == {"http": True, "kafka": True, "grpc": True}
    nobody = {"http": False, "kafka": False, "grpc": False}
    assert accepted(server, None) == nobody
    assert accepted(server, theirs.client("client")) == nobody


def test_the_sdk(server: MutualServer) -> None:
    url = f"{server.url}&cert={quote(str(server.own))}"
    with TopicsClient(url) as client:
        client.put_topic("sdk")
        assert client.append("sdk", b"1").head_seq == 1
    with TopicsClient(server.url, retry=Retry(seconds=0), timeout=5) as client, pytest.raises(ConnectError):
        list(client.list_topics())


def test_no_session_outlives_its_authority(server: MutualServer) -> None:
    """A connection that takes up an older session shows no certificate; so there is nothing to take up."""
    context = server.context(server.own)
    plain = socket.create_connection(("127.0.0.1", server.http_port), timeout=30)
    with context.wrap_socket(plain, server_hostname="localhost") as tls:
        assert tls.version() == "TLSv1.3"
        tls.sendall(b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert tls.recv(12) == b"HTTP/1.1 200"
        assert tls.session is None or not tls.session.has_ticket
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as plain:  # noqa: PT011
        context.wrap_socket(plain, server_hostname="localhost")


def reader_port(server: MutualServer) -> int:
    """The port of the bulk reader that is listed, 0 while there is none."""
    request = admin_pb.ListBulkReadersRequest()
    with channel(server, server.grpc_target, server.own) as one:
        readers = admin_service_pb2_grpc.AdminServiceStub(one).ListBulkReaders(request, timeout=30).readers
    return readers[0].port if readers else 0


def test_bulk_readers_ask_as_well(server: MutualServer, mine: Authority) -> None:
    with channel(server, server.grpc_target, server.own) as one:
        stub = topics_service_pb2_grpc.TopicsServiceStub(one)
        stub.Append(pb.AppendRequest(topic="bulk", records=[{"data": b"%d" % n} for n in range(500)]), timeout=30)
    target = f"127.0.0.1:{poll(lambda: reader_port(server), START_SECONDS, 'a bulk reader')}"
    with channel(server, target, server.own) as reader:
        stub = topics_service_pb2_grpc.TopicsServiceStub(reader)
        frames = list(stub.BulkDiff(pb.BulkDiffRequest(topic="bulk", end_seq=500), timeout=20))
    assert frames[-1].done
    assert sum(len(rows(frame)) for frame in frames) == 500
    read = pb.BulkDiffRequest(topic="bulk", end_seq=500)
    for stranger in (channel(server, target, None), grpc.insecure_channel(target)):
        with stranger:
            frames = topics_service_pb2_grpc.TopicsServiceStub(stranger).BulkDiff(read, timeout=2)
            with pytest.raises(grpc.RpcError):
                next(frames)


def test_another_authority_by_a_signal(server: MutualServer, mine: Authority, theirs: Authority) -> None:
    old = reader_port(server)
    new = theirs.client("new")
    shutil.copy(theirs.ca, server.ca_file)
    reload(server, "the certificate was read again and is another one")
    assert accepted(server, server.own) == {"http": False, "kafka": False, "grpc": False}
    assert accepted(server, new) == {"http": True, "kafka": True, "grpc": True}
    server.own = new
    assert poll(lambda: (port := reader_port(server)) != old and port, START_SECONDS, "another bulk reader")
