"""TLS between nodes: both sides know each other by certificate, and nothing is forwarded to a stranger."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import websockets
from security.authority import Authority

from support.forwarded import Front, fronting, owning
from support.tls_proxy import certificate
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceStub
from topics_server.node.links import PeerTls
from topics_server.settings import Settings
from topics_server.tls import Certificate, Source


def source(cert: Path, key: Path | str = "", ca: Path | str = "") -> Source:
    return Source(str(cert), str(key), "TOPICS_TLS_CERT_FILE", "TOPICS_TLS_KEY_FILE", str(ca))


def settings(of: Source) -> Settings:
    return Settings(tls_cert_file=of.cert_file, tls_key_file=of.key_file, tls_client_ca_file=of.client_ca_file)


@asynccontextmanager
async def between(front: Source, owner: Source, **options: Any) -> AsyncIterator[Front]:
    """A node with one certificate in front of an owner with another."""
    async with (
        owning(certificate=Certificate(owner)) as node,
        fronting(lambda: node.addresses, tls=PeerTls(settings(front)), **options) as made,
    ):
        yield made


async def outcomes(front: Front) -> list[object]:
    """The outcome of a request of each protocol: the HTTP status, `open` for a WebSocket, the status of gRPC."""
    async with httpx.AsyncClient(base_url=front.base, trust_env=False, timeout=20) as client:
        found: list[object] = [(await client.put("/v0/topics/t", json={})).status_code]
    try:
        async with websockets.connect(f"ws{front.base[4:]}/v0/ws", proxy=None) as socket:
            await socket.send(json.dumps({"op": "ping"}))
            found.append(json.loads(await socket.recv())["op"])
    except websockets.InvalidStatus as refused:
        found.append(refused.response.status_code)
    async with grpc.aio.insecure_channel(front.target) as channel:
        stub: Any = TopicsServiceStub(channel)
        found.append(await stub.GetTopic(pb.GetTopicRequest(topic="t")).code())
    return found


FORWARDED = [201, "pong", grpc.StatusCode.OK]
REFUSED = [503, 503, grpc.StatusCode.UNAVAILABLE]


async def test_nodes_with_one_certificate(tmp_path: Path) -> None:
    shared = source(*certificate(tmp_path))
    async with between(shared, shared) as front:
        assert await outcomes(front) == FORWARDED


async def test_nodes_with_certificates_of_one_authority(tmp_path: Path) -> None:
    """The authority stands in the chain of each, or in the file of the authorities of clients."""
    authority = Authority(tmp_path / "ca")
    nodes = [authority.node(name) for name in ("one", "two")]
    chains = []
    for node in nodes:
        chain = node.with_suffix(".chain")
        chain.write_bytes(node.read_bytes() + authority.ca.read_bytes())
        chains.append(source(chain))
    async with between(*chains) as front:
        assert await outcomes(front) == FORWARDED
    one, two = (source(node, ca=authority.ca) for node in nodes)
    async with between(one, two) as front:
        assert await outcomes(front) == FORWARDED


async def test_an_owner_with_a_strange_certificate_gets_nothing(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    one, two = (source(*certificate(folder)) for folder in folders)
    async with between(one, two, hold_seconds=1) as front:
        assert await outcomes(front) == REFUSED


async def test_an_owner_refuses_a_node_without_a_certificate_of_its_authority(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    own = stranger.node("one")
    chain = own.with_suffix(".chain")
    chain.write_bytes(own.read_bytes() + authority.ca.read_bytes())
    async with between(source(chain), source(authority.node("two"), ca=authority.ca), hold_seconds=1) as front:
        assert await outcomes(front) == REFUSED


async def test_a_name_that_is_not_the_owners_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    ours = source(authority.node("one"), ca=authority.ca)
    theirs = source(authority.node("two", host="elsewhere.example"), ca=authority.ca)
    async with between(ours, theirs, hold_seconds=1) as front:
        assert await outcomes(front) == REFUSED


@pytest.mark.parametrize("missing", ["cert", "key"])
async def test_files_that_can_not_be_read_hold_requests(tmp_path: Path, missing: str) -> None:
    cert, key = certificate(tmp_path)
    shared = source(cert, key)
    async with between(shared, shared, hold_seconds=1) as front:
        (cert if missing == "cert" else key).unlink()
        assert await outcomes(front) == REFUSED
