"""Nodes that vanish, or say nothing, and ones that are only busy: which calls end, and when."""

import asyncio
import ctypes
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest
from shards.toy import METHODS, Toy
from shards.wire_nodes import NODE, Served, Wire, calling_context, identity, listening_context, serving, wire

from support.network import Network
from support.tls_proxy import certificate
from support.waiting import until
from topics_service.engine.errors import Reason, TopicsError
from topics_shards.shards import LostCallError
from topics_shards.wire import pulse, server
from topics_shards.wire.framing import CALL, HEAD, PROOF, PULSE, RESULT, RUN
from topics_shards.wire.handshake import CallerHandshake, ServerHandshake

CLONE_NEWNET: Final = 0x40000000
GONE_WITHIN: Final = 4.0
"""Seconds after which no call waits for a machine that has vanished."""
SLACK: Final = 1.5
"""Seconds that the tests' machine may add."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life ten times as often."""
    monkeypatch.setattr(pulse, "PULSE_SECONDS", pulse.PULSE_SECONDS / 10)
    monkeypatch.setattr(pulse, "SILENCE_SECONDS", pulse.SILENCE_SECONDS / 10)


# ---------------------------------------------------------------------- machines that vanish


def listening_at(network: Network, name: str) -> socket.socket:
    """A socket of another host, for servers of this process."""
    made: list[socket.socket] = []

    def make() -> None:
        space = os.open(network.space(name), os.O_RDONLY)
        try:
            assert ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            made.append(socket.create_server((network.hosts[name], 0)))
        finally:
            os.close(space)

    thread = threading.Thread(target=make)  # the namespace is that of a thread
    thread.start()
    thread.join()
    return made[0]


@asynccontextmanager
async def far_away(network: Network) -> AsyncIterator[Served]:
    """The node `b` on a machine of its own."""
    sock = listening_at(network, "b")
    served = Served(network.hosts["b"], identity("b"), METHODS)
    await served.listen(None, sock)
    try:
        yield served
    finally:
        network.heal()
        await served.close()


async def test_no_call_waits_for_a_machine_that_has_vanished(caplog: pytest.LogCaptureFixture) -> None:
    with Network(["b"]) as network:
        async with far_away(network) as served:
            channel = served.channel()
            shards = served.shards_by(channel, 1.0)
            under_way = asyncio.create_task(shards.call(1, Toy.wait, "under way"))
            await until(lambda: served.toy.began == ["under way"])
            network.cut("clients", "b")
            cut = time.monotonic()
            later = asyncio.create_task(shards.call(1, Toy.echo, bytes(1_000_000)))
            for call in (under_way, later):
                with pytest.raises(LostCallError):
                    await call
            gone = time.monotonic() - cut
            print(f"given up after {gone:.2f} s")
            assert gone < GONE_WITHIN + SLACK
            assert "the connection to b is cut off: nothing was heard of it for 3.5 s" in caplog.text
            with pytest.raises(TopicsError) as caught:
                await shards.call(1, Toy.echo, b"value")
            assert caught.value.reason is Reason.NOT_READY
            assert served.toy.ended == []
            await until(lambda: served.toy.ended == ["under way"])
            print(f"the calls of a caller that has vanished ended after {time.monotonic() - cut:.2f} s")
            network.heal()
            healed = time.monotonic()
            assert await served.shards_by(channel).call(1, Toy.echo, b"again") == b"again"
            print(f"connected again after {time.monotonic() - healed:.2f} s")


async def test_a_connection_without_calls_finds_out_by_the_first_one() -> None:
    with Network(["b"]) as network:
        async with far_away(network) as served:
            channel = served.channel()
            assert await served.shards_by(channel).call(1, Toy.echo, b"value") == b"value"
            network.cut("clients", "b")
            began = time.monotonic()
            with pytest.raises(LostCallError):
                await served.shards_by(channel).call(1, Toy.echo, b"lost")
            assert time.monotonic() - began < GONE_WITHIN + SLACK


# ---------------------------------------------------------------------- nodes that say nothing


async def test_a_node_that_says_nothing_is_given_up(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    """The connection lives, and takes all that is sent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handshake = ServerHandshake(identity("b"), [method.name for method in METHODS])
        while not handshake.caller:
            size, kind, _ = HEAD.unpack(await reader.readexactly(HEAD.size))
            for sent, body in handshake.take(kind, memoryview(await reader.readexactly(size))):
                writer.write(HEAD.pack(len(body), sent, 0) + body)
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with serving() as served:
        channel = served.channel(port=listening.sockets[0].getsockname()[1])
        with pytest.raises(LostCallError):
            await served.shards_by(channel).call(1, Toy.echo, b"value")
    listening.close()
    assert "the connection to b is cut off: nothing was heard" in caplog.text


async def outlasts(call: "asyncio.Task[object]", seconds: float) -> None:
    """Wait so long for a call that does not end."""
    done, _ = await asyncio.wait((call,), timeout=seconds)
    assert not done, call


async def test_a_call_that_takes_long_is_no_silence(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        shards = served.shards_by(served.channel())
        call = asyncio.create_task(shards.call(1, Toy.wait, "long"))
        await outlasts(call, 2 * pulse.SILENCE_SECONDS)
        served.toy.gate.set()
        assert await call == 1
    assert "cut off" not in caplog.text


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "TLS"])
async def test_a_node_that_reads_nothing_since_it_has_enough_is_no_silence(
    quick: None, with_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_MAX_HELD_BYTES", 1000)
    cert, key = map(str, certificate(tmp_path)) if with_tls else ("", "")
    async with serving(tls=listening_context(cert, key) if with_tls else None) as served:
        shards = served.shards_by(served.channel(tls=calling_context(cert) if with_tls else None))
        calls = [asyncio.create_task(shards.call(1, Toy.wait, f"{i}{'x' * 400_000}")) for i in range(9)]
        await until(lambda: bool(served.toy.began))
        await outlasts(calls[-1], 2 * pulse.SILENCE_SECONDS)
        assert len(served.toy.began) == 1, "the others wait in the sockets"
        served.toy.gate.set()
        assert await asyncio.gather(*calls) == [1] * 9
    assert "cut off" not in caplog.text


def test_the_kernel_alone_would_end_what_only_waits() -> None:
    """The reason for a sign of life: TCP_USER_TIMEOUT takes a machine that reads nothing for one that is gone."""

    def fill() -> None:
        while True:
            ours.send(bytes(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    with ours, theirs:
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 300)
        with pytest.raises(TimeoutError):
            fill()


# ---------------------------------------------------------------------- signs of life


async def test_signs_of_life_come_while_calls_are_under_way_and_only_then(quick: None) -> None:
    async with serving() as served, wire(served.port) as caller:
        await caller.prove(CallerHandshake(identity("a"), "b"))
        caller.send(PROOF, caller.proof)
        caller.send(RUN, CALL.pack(NODE, 1) + msgspec.msgpack.encode((None, (), "long")), 1)
        for _ in range(3):
            await caller.expect(PULSE)
        served.toy.gate.set()
        while (await caller.receive())[0] != RESULT:
            pass
        await until_silent(caller)


async def until_silent(caller: Wire) -> None:
    """Return once nothing comes for as long as five signs of life; at most two come before."""
    for _ in range(3):
        try:
            async with asyncio.timeout(5 * pulse.PULSE_SECONDS):
                kind, _ = await caller.receive()
            assert kind == PULSE
        except TimeoutError:
            return
    raise AssertionError("signs of life without calls")


async def test_signs_of_life_come_while_a_large_call_arrives(quick: None) -> None:
    async with serving() as served, wire(served.port) as caller:
        await caller.prove(CallerHandshake(identity("a"), "b"))
        caller.send(PROOF, caller.proof)
        body = CALL.pack(1, 0) + msgspec.msgpack.encode((None, (), bytes(1_000_000)))
        whole = HEAD.pack(len(body), RUN, 1) + body
        caller.send_raw(whole[:100_000])
        for _ in range(4):
            await caller.expect(PULSE)
        caller.send_raw(whole[100_000:])
        while (await caller.receive())[0] != RESULT:
            pass
