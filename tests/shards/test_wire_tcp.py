"""Calls between nodes over TCP, with TLS and without."""

import asyncio
import os
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import uvloop
from security.authority import Authority
from shards.toy import Toy
from shards.wire_nodes import NODE, Served, calling_context, identity, listening_context, serving, wire

from support.tls_proxy import certificate
from support.waiting import until
from topics_server.node.links import PeerTls
from topics_server.settings import Settings
from topics_server.tls import Certificate, Source
from topics_service.engine.errors import Reason, TopicsError
from topics_shards.shards import LostCallError
from topics_shards.wire.client import Channel
from topics_shards.wire.tcp import ALPN, tcp

Contexts = tuple[ssl.SSLContext | None, ssl.SSLContext | None]


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def contexts(request: pytest.FixtureRequest, tmp_path: Path) -> Contexts:
    """Those of the node that is called, and of its caller."""
    if not request.param:
        return None, None
    cert, key = certificate(tmp_path)
    return listening_context(str(cert), str(key)), calling_context(str(cert))


async def all_sizes(served: Served, calling: ssl.SSLContext | None) -> None:
    shards = served.shards_by(served.channel(tls=calling))
    for size in (0, 10, 4096, 65_536, 262_145, 5_000_000):
        value = os.urandom(size)
        assert await shards.call(1, Toy.echo, value) == value
    assert [item async for item in shards.stream(1, Toy.items, 3)] == [0, 1, 2]
    assert await shards.call(NODE, Toy.echo, b"a node as a whole") == b"a node as a whole"
    assert served.refused == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_calls_of_any_size(host: str, contexts: Contexts) -> None:
    async with serving(host=host, tls=contexts[0]) as served:
        await all_sizes(served, contexts[1])


def test_on_the_loop_of_servers(contexts: Contexts) -> None:
    async def run() -> None:
        async with serving(tls=contexts[0]) as served:
            await all_sizes(served, contexts[1])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_closing_a_channel_fails_its_calls_at_once(contexts: Contexts) -> None:
    async with serving(tls=contexts[0]) as served:
        channel = served.channel(tls=contexts[1])
        call = asyncio.create_task(served.shards_by(channel).call(1, Toy.wait, "one"))
        await until(lambda: served.toy.began == ["one"])
        channel.close()
        async with asyncio.timeout(0.5):
            with pytest.raises(LostCallError):
                await call
        await until(lambda: served.toy.ended == ["one"])


async def test_a_node_that_drains_says_so_and_ends_its_calls(contexts: Contexts) -> None:
    async with serving(tls=contexts[0]) as served:
        channel = served.channel(tls=contexts[1])
        call = asyncio.create_task(served.shards_by(channel).call(1, Toy.wait, "one"))
        await until(lambda: served.toy.began == ["one"])
        draining = asyncio.create_task(served.server.drain(5))
        await until(lambda: channel.connection is None)
        served.toy.gate.set()
        assert await call == 1
        await draining


# ---------------------------------------------------------------------- certificates


def peer_tls(cert: Path, ca: Path | str = "") -> PeerTls:
    return PeerTls(Settings(tls_cert_file=str(cert), tls_client_ca_file=str(ca)))


def served_with(cert: Path, ca: Path | str = "") -> ssl.SSLContext:
    """The context of a node's port, as its other ports have it."""
    source = Source(str(cert), "", "TOPICS_TLS_CERT_FILE", "TOPICS_TLS_KEY_FILE", str(ca))
    return Certificate(source).context([ALPN])


async def test_nodes_with_certificates_of_one_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    one, two = authority.node("one"), authority.node("two")
    async with serving(tls=served_with(two, authority.ca)) as served:
        channel = served.channel(tls=peer_tls(one, authority.ca).context(ALPN))
        assert await served.shards_by(channel).call(1, Toy.echo, b"value") == b"value"


async def test_a_caller_without_a_certificate_is_refused_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "ca")
    async with serving(tls=served_with(authority.node("two"), authority.ca)) as served:
        channel = served.channel(tls=calling_context(str(authority.ca)))
        with pytest.raises(TopicsError) as caught:
            await served.shards_by(channel, 0.3).call(1, Toy.echo, b"value")
        assert caught.value.reason is Reason.NOT_READY
        assert served.refused
        assert "handshake of TLS failed" in served.refused[0]
        assert served.toy.seen == []
    assert "b ended the connection before it proved itself: " in caplog.text


async def test_a_node_with_a_strange_certificate_is_not_called(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine, strange = Authority(tmp_path / "mine"), Authority(tmp_path / "strange")
    async with serving(tls=served_with(strange.node("two"))) as served:
        channel = served.channel(tls=peer_tls(mine.node("one"), mine.ca).context(ALPN))
        with pytest.raises(TopicsError, match="can't be reached"):
            await served.shards_by(channel, 0.3).call(1, Toy.echo, b"value")
    assert "no calls go to b: " in caplog.text
    assert "certificate verify failed" in caplog.text


async def test_a_certificate_of_another_host_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path / "ca")
    two = authority.node("two", host="elsewhere.example")
    async with serving(tls=served_with(two)) as served:
        channel = served.channel(tls=peer_tls(two, authority.ca).context(ALPN))
        with pytest.raises(TopicsError, match="can't be reached"):
            await served.shards_by(channel, 0.3).call(1, Toy.echo, b"value")
    assert "Hostname mismatch" in caplog.text


async def test_tls_of_another_protocol_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A connection meant for another port of a node can't be led to this one, nor one meant for this to another."""
    cert, key = certificate(tmp_path)
    web = calling_context(str(cert), "http/1.1")
    async with serving(tls=listening_context(str(cert), str(key))) as served:
        reader, writer = await asyncio.open_connection(served.host, served.port, ssl=web, server_hostname="localhost")
        assert b"TLS is of another protocol" in await reader.read(1000)
        writer.close()
        assert served.refused == ["TLS is of another protocol"]
        channel = served.channel(tls=web)
        with pytest.raises(TopicsError, match="can't be reached"):
            await served.shards_by(channel, 0.3).call(1, Toy.echo, b"value")
    assert "no calls go to b: TLS is of another protocol" in caplog.text


async def test_handshakes_that_never_end_do_not_keep_nodes_out(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with serving(tls=listening_context(str(cert), str(key))) as served, AsyncExitStack() as stack:
        for _ in range(64):
            await stack.enter_async_context(wire(served.port))
        async with wire(served.port) as one_more:
            assert await one_more.is_ended()
        channel = served.channel(tls=calling_context(str(cert)))
        assert await served.shards_by(channel, 4.0).call(1, Toy.echo, b"value") == b"value"


async def test_a_missing_file_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = peer_tls(tmp_path / "missing.pem")
    channel = Channel(tcp("127.0.0.1", 1, lambda: missing.context(ALPN)), "b", "a", identity=identity("a"))
    await until(lambda: "no calls go to b: " in caplog.text)
    channel.close()
    assert "No such file" in caplog.text
