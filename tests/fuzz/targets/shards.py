"""Decoders of what processes and nodes that hold shards say to each other."""

from collections.abc import Callable
from typing import Any

import msgspec
from fuzz.target import Target
from shards.samples import Samples
from shards.wire_nodes import identity

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.queues import QueuesApi
from topics_service.api.routers import RoutersApi
from topics_service.api.sql.executor import SqlApi
from topics_service.api.sql.requests import SqlReply, SqlRequest
from topics_service.api.topics import TopicsApi
from topics_service.engine.batches import FetchReply
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.membership.members import GroupError, RefusedError
from topics_service.engine.model import AppendRequest, Batch, DiffReply, Slice
from topics_service.engine.producers import SequenceError
from topics_service.engine.queue.jobs import ClaimReply
from topics_service.engine.redirects import ElsewhereError, Redirect
from topics_service.engine.router.foreign import ForeignLog
from topics_service.engine.router.stretch import Stretch
from topics_shards.wire import methods
from topics_shards.wire.carriers import CALLERS
from topics_shards.wire.errors import decode_error, encode_error
from topics_shards.wire.framing import HEAD, HELLO, PROOF, FrameProtocol, FramingError
from topics_shards.wire.handshake import (
    CallerHandshake,
    HandshakeError,
    ServerHandshake,
    decode_refusal,
    encode_refusal,
)
from topics_shards.wire.methods import DECODE_ERRORS, RemoteMethod
from topics_shards.wire.origin import OriginForm


class _Fetches:
    async def fetch(self) -> FetchReply: ...  # type: ignore[empty-body]


_ORIGIN = OriginForm("http", "id", "1.2.3.4:5", CALLERS.pack(UNRESTRICTED))
_APPEND, _SQL, _DIFF, _CLAIM, _FETCH, _PULL = (
    RemoteMethod(method, is_read=False)
    for method in (TopicsApi.append, SqlApi.execute, TopicsApi.diff, QueuesApi.claim, _Fetches.fetch, RoutersApi.pull)
)


def _calls() -> list[bytes]:
    few, many = Batch([b"1", b"22"], tags=[b"t", None]), Batch([b"%d" % i for i in range(20)])
    calls = [
        _APPEND.encode_call(_ORIGIN, (AppendRequest(topic="t", batch=batch),), {"principal": UNRESTRICTED})
        for batch in (few, many)
    ]
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(calls[0]), "of a later release"])
    return [*calls, longer]


def _results(method: RemoteMethod, hint: Any) -> list[bytes]:
    return [method.encode_result(Samples(seed).of(hint)) for seed in (1, 5, 9)]


def _stretches() -> list[bytes]:
    """Stretches as logs have them: each block behind the one before."""
    made = []
    for seed in (1, 5, 9):
        stretch = Stretch(after=4, to=9, head=9, slices=[], lost=[(5, 6)], dead=[(7, 9)], hops=[(10, 12, 1)])
        for block in Samples(seed).blocks:
            start = block.count // 2
            block.base_seq = stretch.to + 1 - start
            stretch.slices.append(Slice(block, start, block.count))
            stretch.to = stretch.head = block.end_seq - 1
        made.append(_PULL.encode_result(stretch))
    return made


def _pulled(data: bytes) -> Any:
    """A stretch, and what routers read of it."""
    stretch = _PULL.decode_result(data)
    log = ForeignLog(stretch.after)
    log.take(stretch)
    blocks = [log.tagged(part.block.base_seq + part.start) for part in stretch.slices]
    for block in blocks:
        log.inflate(block)
    return stretch, [block.data for block in blocks], log.view.first_live(stretch.after + 1)


def _errors() -> list[bytes]:
    errors = [
        TopicsError(Reason.THROTTLED, "text", {"a": [1]}),
        SequenceError("stale_epoch", "text"),
        RefusedError(GroupError.FENCED_INSTANCE_ID, "text"),
        ElsewhereError("t", Redirect(1, "g", 3)),
    ]
    return [encode_error(error, "a call") for error in errors]


class _Frames(FrameProtocol):
    """Takes frames of at most a kilobyte and a half."""

    def __init__(self) -> None:
        super().__init__(bytearray(1024), max_frame=1500)
        self.transport = self
        self.taken: list[tuple[int, int, bytes]] = []

    def take(self, kind: int, call: int, body: memoryview) -> None:
        self.taken.append((kind, call, bytes(body)))

    def lost(self) -> None:
        """See FrameProtocol."""

    def cut_off(self, why: str) -> None:
        raise FramingError(why)


def _frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """The frames of the data, which comes in pieces of many sizes."""
    protocol, at, size = _Frames(), 0, 1
    while at < len(data):
        buffer = protocol.get_buffer(-1)
        size = min(size * 3 % 1021 + 1, len(buffer), len(data) - at)
        buffer[:size] = data[at : at + size]
        protocol.buffer_updated(size)
        at += size
    return protocol.taken


def _joined(frames: list[tuple[int, int, bytes]]) -> bytes:
    return b"".join(HEAD.pack(len(body), kind, call) + body for kind, call, body in frames)


_CALLER, _SERVER, _METHODS = identity("a"), identity("b"), ["TopicsApi.append", "TopicsApi.diff"]
_HELLO = CallerHandshake(_CALLER, "b").hello
_ANSWER = ServerHandshake(_SERVER, _METHODS).take(HELLO, memoryview(_HELLO))


def _shaken_by_server(data: bytes) -> None:
    ServerHandshake(_SERVER, _METHODS).take(HELLO, memoryview(data))


def _proven_to_server(data: bytes) -> None:
    """The end of a handshake, for which nobody can know the proof: its nonce is new."""
    handshake = ServerHandshake(_SERVER, _METHODS)
    handshake.take(HELLO, memoryview(_HELLO))
    handshake.take(PROOF, memoryview(data))
    raise AssertionError("the server takes it for a proof")


def _shaken_by_caller(data: bytes) -> None:
    handshake = CallerHandshake(_CALLER, "b")
    handshake.take(HELLO, memoryview(data))
    try:
        handshake.take(PROOF, memoryview(_ANSWER[1][1]))
    except HandshakeError:
        return
    raise AssertionError("the caller takes the proof of another connection")


def _target(name: str, decode: Callable[[bytes], Any], samples: list[bytes], *covers: str) -> Target:
    return Target(
        name=name,
        decode=decode,
        samples=samples,
        errors=DECODE_ERRORS,
        covers=tuple(f"{methods.__name__.rpartition('.')[0]}.{each}" for each in covers),
        growth=2000,
    )


TARGETS = (
    _target(
        "call of a shard",
        _APPEND.decode_call,
        _calls(),
        "methods:decode_call",
        "methods:__init__",
        "carriers:__init__",
        "carriers:_unpack_batch",
        "carriers:unpack",
    ),
    _target(
        "SQL for a shard",
        _SQL.decode_call,
        [_SQL.encode_call(None, (SqlRequest(sql="SELECT", params=[1, "a", None]),), {"principal": UNRESTRICTED})],
        "carriers:_of_union",
    ),
    _target("rows from a shard", _SQL.decode_result, _results(_SQL, SqlReply), "carriers:unpack_error"),
    _target(
        "page from a shard",
        _DIFF.decode_result,
        _results(_DIFF, DiffReply),
        "methods:decode_result",
        "methods:_decoder",
        "carriers:_unpack_slice",
    ),
    Target(
        name="stretch from a shard",
        decode=_pulled,
        errors=DECODE_ERRORS,
        samples=_stretches(),
        growth=2000,
        covers=("topics_service.engine.router.foreign:inflate",),
    ),
    _target("jobs from a shard", _CLAIM.decode_result, _results(_CLAIM, ClaimReply)),
    _target("batches from a shard", _FETCH.decode_result, _results(_FETCH, FetchReply), "carriers:_unpack_part"),
    _target("error from a shard", decode_error, _errors(), "errors", "errors:decode_error"),
    Target(
        name="hello of a node that calls",
        decode=_shaken_by_server,
        samples=[_HELLO],
        errors=(HandshakeError,),
        covers=("topics_shards.wire.handshake",),
    ),
    Target(
        name="hello of a node that is called",
        decode=_shaken_by_caller,
        samples=[_ANSWER[0][1]],
        errors=(HandshakeError,),
        covers=(),
    ),
    Target(
        name="proof of a node",
        decode=_proven_to_server,
        samples=[_ANSWER[1][1], msgspec.msgpack.encode("0" * 64)],
        errors=(HandshakeError,),
        covers=(),
    ),
    Target(
        name="refusal of a node",
        decode=lambda data: decode_refusal(memoryview(data)),
        samples=[encode_refusal("the clusters differ")],
        again=encode_refusal,
        covers=("topics_shards.wire.handshake:decode_refusal",),
    ),
    Target(
        name="frames between processes",
        decode=_frames,
        samples=[_joined([(1, 1, b"body"), (2, 2, b""), (3, 3, bytes(1400)), (4, (1 << 32) - 1, b"x" * 700)])],
        errors=(FramingError,),
        again=_joined,
        covers=("topics_shards.wire.framing:_cut",),
    ),
)
