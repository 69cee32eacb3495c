"""The handshake of nodes: who is let in, what each side says of the other, and what an attacker may try."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from shards.toy import Toy
from shards.wire_nodes import OTHER_SECRET, SECRET, Served, identity, serving, wire

from support.waiting import until
from topics_cluster.trust import Secret
from topics_server.node.links import note_refused
from topics_service.api.audit import AuditLog
from topics_service.engine.errors import Reason, TopicsError
from topics_shards.wire import entrance, framing
from topics_shards.wire.client import Channel
from topics_shards.wire.framing import CALL, HEAD, HELLO, PROOF, REFUSED, RUN, VERSION, Hello
from topics_shards.wire.handshake import (
    UNPROVEN_FRAME,
    CallerHandshake,
    HandshakeError,
    Identity,
    ServerHandshake,
    decode_refusal,
    encode_refusal,
)

SECRETS_DIFFER = "the proof does not hold: the secrets of the nodes differ"


async def cause_of(served: Served, *frames: tuple[int, bytes]) -> str:
    """The cause for which frames are refused."""
    async with wire(served.port) as attacker:
        for kind, body in frames:
            attacker.send(kind, body)
        while True:
            kind, body = await attacker.receive()
            if kind == REFUSED:
                return decode_refusal(memoryview(body))


def shaken(caller: Identity, server: Identity, expected: str = "b") -> tuple[CallerHandshake, ServerHandshake]:
    """Both sides, without a connection. Raises HandshakeError."""
    calling, serves = CallerHandshake(caller, expected), ServerHandshake(server, ["one", "two"])
    proof = None
    for kind, body in serves.take(HELLO, memoryview(calling.hello)):
        proof = calling.take(kind, memoryview(body))
    assert proof is not None
    assert serves.take(PROOF, memoryview(proof)) == []
    return calling, serves


# ---------------------------------------------------------------------- who is let in


def test_two_nodes_of_a_cluster() -> None:
    calling, serves = shaken(identity("a"), identity("b"))
    assert calling.methods == ["one", "two"]
    assert serves.caller == "a"


@pytest.mark.parametrize(
    ("caller", "server", "expected", "cause"),
    [
        (identity("a", OTHER_SECRET), identity("b"), "b", SECRETS_DIFFER),
        (identity("a", cluster="other"), identity("b"), "b", "the clusters differ"),
        (identity("a"), identity("c"), "b", "another node is expected here"),
    ],
    ids=["secret", "cluster", "node"],
)
def test_strangers(caller: Identity, server: Identity, expected: str, cause: str) -> None:
    with pytest.raises(HandshakeError, match=cause):
        shaken(caller, server, expected)


def test_while_the_secret_is_changed() -> None:
    """The steps of docs/cluster.md, node by node: each pair trusts each other at every moment."""
    steps = [(SECRET,), (SECRET, OTHER_SECRET), (OTHER_SECRET, SECRET), (OTHER_SECRET,)]
    for before, after in pairwise(steps):
        shaken(identity("a", *before), identity("b", *after))
        shaken(identity("a", *after), identity("b", *before))
    with pytest.raises(HandshakeError, match=SECRETS_DIFFER):
        shaken(identity("a", *steps[0]), identity("b", *steps[-1]))


async def test_a_secret_is_read_anew_at_each_handshake() -> None:
    own = identity("b")
    async with serving(own) as served:
        assert isinstance(own.secret, Secret)
        own.secret.replace([OTHER_SECRET])
        channel = served.channel(identity("a", OTHER_SECRET))
        assert await served.shards_by(channel).call(1, Toy.echo, b"value") == b"value"


async def refused(served: Served, own: Identity, **options: Any) -> Channel:
    """A channel whose calls are not ready, and reach nobody."""
    channel = served.channel(own, **options)
    with pytest.raises(TopicsError) as caught:
        await served.shards_by(channel, 0.5).call(1, Toy.echo, b"value")
    assert caught.value.reason is Reason.NOT_READY
    assert served.toy.seen == []
    return channel


async def test_both_sides_log_that_secrets_differ_and_do_not_flood(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        await refused(served, identity("a", OTHER_SECRET))
        assert len(served.refused) < 12, "it tries again less and less often"
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line for line in lines if line == f"no calls go to b: {SECRETS_DIFFER}"]
    assert len(lines) <= 2


async def test_a_caller_whose_proof_is_refused_logs_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    """The server's proof holds for it, so it makes calls; they reach no shard, and are not lost."""
    async with serving() as served:
        await refused(served, identity("a", OTHER_SECRET, SECRET))
        assert set(served.refused) == {SECRETS_DIFFER}
        assert len(served.refused) < 12, "it tries again less and less often"
    assert f"no calls go to b: {SECRETS_DIFFER}, it says" in caplog.text
    assert "the connection from 127.0.0.1:" in caplog.text


async def test_another_node_at_the_address_gets_no_call(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(identity("c")) as served:
        await refused(served, identity("a"))
        assert set(served.refused) == {"another node is expected here"}
    assert "no calls go to b: another node is expected here, it says" in caplog.text


async def test_a_refused_peer_is_an_entry_of_the_audit_log() -> None:
    lines: list[bytes] = []
    audit = AuditLog(lines.append, clock=lambda: 0.0)
    note_refused(audit, "1.2.3.4:5", "the clusters differ")
    note_refused(None, "1.2.3.4:5", "the clusters differ")
    (line,) = lines
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.000Z",
        "action": "node.connect",
        "outcome": "refused",
        "door": "server",
        "peer": "1.2.3.4:5",
        "key": None,
        "reason": "unauthorized",
        "cause": "the clusters differ",
    }


# ---------------------------------------------------------------------- attackers


def hello(**changes: Any) -> bytes:
    fields = {"version": VERSION, "name": "a", "cluster": "cluster-id", "expected": "b", "nonce": bytes(16)}
    return msgspec.msgpack.encode(Hello(**(fields | changes)))


ATTACKS: dict[str, tuple[list[tuple[int, bytes]], str]] = {
    "no hello": ([(RUN, CALL.pack(1, 0))], "a frame is not one of the handshake"),
    "a call before the proof": ([(HELLO, hello()), (RUN, CALL.pack(1, 0))], "a frame is not one of the handshake"),
    "a proof before the hello": ([(PROOF, b"\xa0")], "a frame is not one of the handshake"),
    "two hellos": ([(HELLO, hello()), (HELLO, hello())], "a frame is not one of the handshake"),
    "a hello of a Unix socket": ([(HELLO, hello(nonce=b""))], "the hello is malformed"),
    "a nonce that is short": ([(HELLO, hello(nonce=bytes(15)))], "the hello is malformed"),
    "no name": ([(HELLO, hello(name=""))], "the hello is malformed"),
    "a name with a line end": ([(HELLO, hello(name="a\nb"))], "the hello is malformed"),
    "no MessagePack": ([(HELLO, b"\xc1")], "the hello is malformed"),
    "no text": ([(HELLO, hello().replace(b"cluster-id", b"cluster-\xff\xff"))], "the hello is malformed"),
    "a proof that is no text": ([(HELLO, hello()), (PROOF, b"\xa1\xff")], "the proof is malformed"),
    "too old": ([(HELLO, hello(version=0))], "version 0 of the protocol is not spoken here"),
    "an empty proof": ([(HELLO, hello()), (PROOF, b"\xa0")], SECRETS_DIFFER),
    "a proof that is none": ([(HELLO, hello()), (PROOF, b"\x07")], "the proof is malformed"),
    "a large frame": ([(HELLO, bytes(UNPROVEN_FRAME + 1))], f"a frame of {UNPROVEN_FRAME + 1} bytes"),
    "an unknown frame": ([(99, b"")], "a frame is not one of the handshake"),
}


@pytest.mark.parametrize(("frames", "cause"), ATTACKS.values(), ids=ATTACKS)
async def test_a_peer_without_the_secret(frames: list[tuple[int, bytes]], cause: str) -> None:
    async with serving() as served:
        assert await cause_of(served, *frames) == cause
        assert served.refused == [cause]
        assert not served.toy.seen
        channel = served.channel()
        assert await served.shards_by(channel).call(1, Toy.echo, b"others are served") == b"others are served"


async def test_calls_behind_a_wrong_proof_reach_no_shard() -> None:
    async with serving() as served, wire(served.port) as attacker:
        attacker.send(HELLO, hello())
        attacker.send(PROOF, msgspec.msgpack.encode("0" * 64))
        for call in range(1, 9):
            attacker.send(RUN, CALL.pack(1, 0) + msgspec.msgpack.encode((None, (), b"value")), call)
        await attacker.expect(HELLO)
        await attacker.expect(PROOF)
        await attacker.expect(REFUSED)
        assert await attacker.is_ended()
        assert not served.toy.seen


async def test_the_servers_own_proof_sent_back_is_no_proof() -> None:
    async with serving() as served, wire(served.port) as attacker:
        attacker.send(HELLO, hello())
        await attacker.expect(HELLO)
        attacker.send(PROOF, await attacker.expect(PROOF))
        assert decode_refusal(memoryview(await attacker.expect(REFUSED))) == SECRETS_DIFFER


async def test_a_proof_of_another_connection_is_no_proof() -> None:
    """Hello and proof of a caller, sent once more, open nothing."""
    async with serving() as served:
        calling = CallerHandshake(identity("a"), "b")
        async with wire(served.port) as first:
            await first.prove(calling)
            first.send(PROOF, first.proof)
            first.send(RUN, CALL.pack(1, 0) + msgspec.msgpack.encode((None, (), b"value")), 1)
            await first.expect(framing.RESULT)
        async with wire(served.port) as attacker:
            attacker.send(HELLO, calling.hello)
            attacker.send(PROOF, first.proof)
            attacker.send(RUN, CALL.pack(1, 0) + msgspec.msgpack.encode((None, (), b"value")), 1)
            await attacker.expect(HELLO)
            await attacker.expect(PROOF)
            assert decode_refusal(memoryview(await attacker.expect(REFUSED))) == SECRETS_DIFFER
        assert len(served.toy.seen) == 1


Change = Callable[[Hello], Hello]
CHANGES: dict[str, Change] = {
    "methods": lambda hello: msgspec.structs.replace(hello, methods=["two", "one"]),
    "nonce": lambda hello: msgspec.structs.replace(hello, nonce=bytes(16)),
    "a field that is not used": lambda hello: msgspec.structs.replace(hello, cluster="x"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_servers_hello_that_was_changed_on_the_way(change: Change) -> None:
    calling, serves = CallerHandshake(identity("a"), "b"), ServerHandshake(identity("b"), ["one", "two"])
    (_, sent), (_, proof) = serves.take(HELLO, memoryview(calling.hello))
    changed = msgspec.msgpack.encode(change(msgspec.msgpack.decode(sent, type=Hello)))
    assert calling.take(HELLO, memoryview(changed)) is None
    with pytest.raises(HandshakeError, match=SECRETS_DIFFER):
        calling.take(PROOF, memoryview(proof))


@pytest.mark.parametrize("field", ["name", "nonce"])
def test_a_callers_hello_that_was_changed_on_the_way(field: str) -> None:
    calling, serves = CallerHandshake(identity("a"), "b"), ServerHandshake(identity("b"), ["one", "two"])
    sent = msgspec.msgpack.decode(calling.hello, type=Hello)
    changed = msgspec.structs.replace(sent, **{field: {"name": "x", "nonce": bytes(16)}[field]})
    (_, answer), (_, proof) = serves.take(HELLO, memoryview(msgspec.msgpack.encode(changed)))
    assert calling.take(HELLO, memoryview(answer)) is None
    with pytest.raises(HandshakeError, match=SECRETS_DIFFER):
        calling.take(PROOF, memoryview(proof))


def test_a_server_that_is_another_node_than_it_says() -> None:
    """A node with the secret, at the address of another: it answers to the name, and is not believed."""
    calling, serves = CallerHandshake(identity("a"), "b"), ServerHandshake(identity("b"), [])
    (_, sent), _ = serves.take(HELLO, memoryview(calling.hello))
    renamed = msgspec.structs.replace(msgspec.msgpack.decode(sent, type=Hello), name="c")
    with pytest.raises(HandshakeError, match="another node is there"):
        calling.take(HELLO, memoryview(msgspec.msgpack.encode(renamed)))


@pytest.mark.parametrize(
    ("answers", "cause"),
    [
        ([(framing.RESULT, b"\x91\x01"), (framing.GOODBYE, b"")], "a frame is not one of the handshake"),
        ([(HELLO, hello(name="b")), (PROOF, msgspec.msgpack.encode("0" * 64))], SECRETS_DIFFER),
        ([(HELLO, hello(name="b")), (framing.PULSE, b"")], "a frame is not one of the handshake"),
        ([(HELLO, hello(name="b", version=VERSION + 1))], f"version {VERSION + 1} of the protocol is not spoken here"),
        ([(REFUSED, encode_refusal("go\naway" * 100))], "go?away"),
        ([(REFUSED, b"\xc1")], "no cause, it says"),
        ([(HELLO, bytes(65 << 10))], f"a frame of {65 << 10} bytes"),
    ],
    ids=["no hello", "wrong proof", "no proof", "version", "refusal", "malformed refusal", "a large frame"],
)
async def test_a_server_without_the_secret_gets_no_call(
    answers: list[tuple[int, bytes]], cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for kind, body in answers:
            writer.write(HEAD.pack(len(body), kind, 0) + body)
        with contextlib.suppress(ConnectionError):
            got.append(await reader.read())
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with serving() as served:
        await refused(served, identity("a"), port=listening.sockets[0].getsockname()[1])
    listening.close()
    assert cause in caplog.text
    assert not any(b"value" in each for each in got)


# ---------------------------------------------------------------------- bounds


async def test_a_peer_that_proves_nothing_is_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "UNPROVEN_SECONDS", 0.2)
    async with serving() as served, wire(served.port) as idle, wire(served.port) as slow:
        slow.send(HELLO, hello())
        assert await idle.is_ended()
        assert await slow.is_ended()
        assert served.refused == 2 * ["it has not proven in time that it is a node"]
        channel = served.channel()
        assert await served.shards_by(channel).call(1, Toy.echo, b"value") == b"value"
        await asyncio.sleep(0.4)
        assert channel.connection is not None, "one that is proven has no deadline"
        assert len(served.refused) == 2


@pytest.mark.parametrize("count", [64])
async def test_unproven_peers_are_few_and_do_not_keep_nodes_out(count: int, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served, contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(wire(served.port))
        await until(lambda: len(served.server.connections) == count)
        async with wire(served.port) as one_more:
            assert await one_more.is_ended()
        assert "refusing a connection: there are too many, 64 of them not proven" in caplog.text
        channel = served.channel()
        assert await served.shards_by(channel, 4.0).call(1, Toy.echo, b"value") == b"value"
        assert len(served.server.connections) == count, "the oldest made room"


async def test_bytes_that_come_one_by_one() -> None:
    async with serving() as served, wire(served.port) as caller:
        calling = CallerHandshake(identity("a"), "b")
        for byte in HEAD.pack(len(calling.hello), HELLO, 0) + calling.hello:
            caller.send_raw(bytes((byte,)))
            await asyncio.sleep(0)
        assert calling.take(HELLO, memoryview(await caller.expect(HELLO))) is None
        proof = calling.take(PROOF, memoryview(await caller.expect(PROOF)))
        assert proof is not None
        # The call comes with the proof, and is larger than what a peer may send before it.
        value = bytes(100_000)
        body = CALL.pack(1, 0) + msgspec.msgpack.encode((None, (), value))
        caller.send_raw(HEAD.pack(len(proof), PROOF, 0) + proof + HEAD.pack(len(body), RUN, 7) + body)
        assert msgspec.msgpack.decode(await caller.expect(framing.RESULT)) == [value]


async def test_a_connection_that_ends_in_the_middle_leaves_nothing() -> None:
    calling = CallerHandshake(identity("a"), "b")
    whole = HEAD.pack(len(calling.hello), HELLO, 0) + calling.hello
    async with serving() as served:
        for size in (0, 1, HEAD.size, len(whole) - 1, len(whole)):
            async with wire(served.port) as cut:
                cut.send_raw(whole[:size])
            await until(lambda: not served.server.connections)
        assert served.refused == []
