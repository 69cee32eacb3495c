"""Frames on a connection between two processes: their layout, and a protocol that cuts what arrives into them.

    length   u32, of the body
    kind     u8
    call     u32, the number that the caller gave its call; 0 where there is none
    body

All integers are little-endian. A call's body begins with `CALL`, that of `MORE` is none; the others are MessagePack.
A caller opens the connection and says hello first. After the answer it makes calls, as many as it likes at a time:

    caller                          shard
    CALL, for a method              RESULT or FAILED
    OPEN, for a generator           -
    MORE: the next item             ITEM, END or FAILED
    CANCEL: ends the call           FAILED, or what was on the way
                                    GOODBYE: takes no more calls, and ends those under way
                                    PULSE, over TCP: it lives, and calls are under way

Over TCP both prove who they are first (`handshake.py`).
"""

import asyncio
import logging
import struct
from abc import abstractmethod
from typing import Any, Final
from weakref import WeakKeyDictionary

from msgspec import Struct

log: Final = logging.getLogger("topics.shards")

HEAD: Final = struct.Struct("<IBI")
CALL: Final = struct.Struct("<IH")
"""The shard, or the number of a process as a whole; and the number that the peer gave the method in its hello."""
VERSION: Final = 1
"""The newest version of the protocol: of its kinds of frames, their layouts and the handshake."""
_OLDEST_VERSION: Final = 1

HELLO, RUN, OPEN, MORE, CANCEL, RESULT, ITEM, END, FAILED, AWAY, GOODBYE, PROOF, REFUSED, PULSE = range(14)
"""The kinds. AWAY answers a call whose shard is not here, or that came after GOODBYE: nothing has happened."""

MAX_FRAME: Final = 72 << 20
"""Most bytes of a body: those of a request (64 MiB) and what stands around its records."""
HIGH_WATER: Final = 1 << 20
"""Unsent bytes from which on callers, or results, wait."""
_SCRATCH_BYTES: Final = 256 << 10
_JOINED_BYTES: Final = 64 << 10
_LARGE_BYTES: Final = 16 << 10  # of a body that is read into memory of its own, unless it comes at once


class Hello(Struct, array_like=True):
    """The first frame of either side.

    A caller says the newest version that it speaks, the shard's side the one that both do from then on. That side also
    names its methods, in the order of their numbers. The rest is of the handshake over TCP.
    """

    version: int
    name: str
    methods: list[str] = []
    cluster: str = ""
    expected: str = ""
    nonce: bytes = b""


def agreed_version(offered: int = VERSION) -> int:
    """The version to speak with a caller that offers this one; 0 if there is none."""
    return min(VERSION, offered) if offered >= _OLDEST_VERSION else 0


_scratches: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, bytearray]] = WeakKeyDictionary()


class FramingError(Exception):
    """The peer has sent what is no frame, or not one of its side."""


def _shared_scratch() -> bytearray:
    """The memory that connections of the running loop read into."""
    loop = asyncio.get_running_loop()
    scratch = _scratches.get(loop)
    if scratch is None:
        scratch = _scratches[loop] = bytearray(_SCRATCH_BYTES)
    return scratch


class FrameProtocol(asyncio.BufferedProtocol):
    """One connection. A subclass takes frames; one that raises FramingError from there is cut off.

    `scratch` is memory that all connections of a loop share: what is in it is taken before the next read.
    """

    def __init__(self, scratch: bytearray | None = None, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self.transport: Any = None
        self.is_writable = True
        self.heard = False
        """True once anything has arrived; a look at it sets it to False."""
        self._scratch = memoryview(_shared_scratch() if scratch is None else scratch)
        self._kept = b""  # the beginning of a frame
        self._body: bytearray | None = None  # of a large frame, as long as it is not complete
        self._got = 0
        self._head = (0, 0)

    @abstractmethod
    def take(self, kind: int, call: int, body: memoryview) -> None:
        """Take a frame. The body is only there until this returns. Raises FramingError."""

    @abstractmethod
    def lost(self) -> None:
        """The connection is gone."""

    def writable(self) -> None:
        """There is room for more again."""

    def expect_more(self) -> None:
        """A large frame has begun, and is not complete."""

    @property
    def is_amid_frame(self) -> bool:
        """Return whether a large frame has begun, and is not complete."""
        return self._body is not None

    # ------------------------------------------------------------------ of asyncio

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol."""
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.transport, self.is_writable = None, False
        self._body, self._kept = None, b""
        self.lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._scratch if self._body is None else memoryview(self._body)[self._got :]

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        self.heard = True
        try:
            if self._body is None:
                data = self._scratch[:nbytes]
                self._cut(memoryview(self._kept + data) if self._kept else data)
                return
            self._got += nbytes
            if self._got == len(self._body):
                body, self._body = self._body, None
                self.take(*self._head, memoryview(body))
        except FramingError as error:
            self.cut_off(str(error))

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_writable = True
        self.writable()

    # ------------------------------------------------------------------ frames

    def send(self, kind: int, call: int, body: bytes = b"", before: bytes = b"") -> None:
        """Send a frame with the body `before` + `body`, unless the connection is gone."""
        transport = self.transport
        if transport is None:
            return
        size = len(before) + len(body)
        head = HEAD.pack(size, kind, call)
        if size <= _JOINED_BYTES:
            transport.write(head + before + body)
        else:
            transport.writelines((head + before, body))

    def cut_off(self, why: str) -> None:
        """End the connection at once."""
        if self.transport is not None:
            log.error("the connection to %s is cut off: %s", self.peer, why)
            self.transport.abort()
            self.transport, self.is_writable = None, False

    @property
    def peer(self) -> str:
        """The peer, for log lines."""
        return "a peer"

    def _cut(self, data: memoryview) -> None:
        """Take the whole frames of the data, and keep the rest."""
        at, end = 0, len(data)
        while end - at >= HEAD.size:
            size, kind, call = HEAD.unpack_from(data, at)
            if size > self.max_frame:
                raise FramingError(f"a frame of {size} bytes")
            start = at + HEAD.size
            if end - start < size:
                if size > _LARGE_BYTES:
                    self._body, self._got, self._head = bytearray(size), end - start, (kind, call)
                    self._body[: self._got] = data[start:]
                    at = end
                    self.expect_more()
                break
            at = start + size
            self.take(kind, call, data[start:at])
            if self.transport is None:
                return
        self._kept = bytes(data[at:])
