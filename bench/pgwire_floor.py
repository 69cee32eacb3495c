"""A server that answers the bytes of one query over and over: the least that any server on this event loop takes."""

import asyncio
import contextlib
import multiprocessing
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import uvloop

from topics_postgres import oids, wire
from topics_postgres.encoding import encoders
from topics_service.api.sql.requests import ResultColumn
from topics_service.engine.tables.types import Value

_STARTED: Final = b"".join(
    (
        wire.AUTHENTICATED,
        wire.parameter_status("client_encoding", "UTF8"),
        wire.parameter_status("server_version", "16.0"),
        wire.key_data(1, bytes(4)),
        wire.ready(b"I"),
    )
)
_PARSED: Final = wire.PARSE_COMPLETE + wire.ready(b"I")


class Floor(NamedTuple):
    """The process and its port."""

    pid: int
    port: int


def answer(columns: Sequence[ResultColumn], row: Sequence[Value], tag: str) -> bytes:
    """The reply to Bind, Describe, Execute and Sync, with values in text."""
    formats = (0,) * len(columns)
    head = wire.BIND_COMPLETE + wire.row_description(list(map(oids.column_of, columns)), formats)
    makers = encoders([each.type for each in columns], formats)
    return head + wire.data_row(row, makers) + wire.command_complete(tag) + wire.ready(b"I")


@contextlib.contextmanager
def answering(reply: bytes) -> Iterator[Floor]:
    """Serve until the context ends."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, reply), daemon=True)
    process.start()
    try:
        port = here.recv()
        assert process.pid is not None
        yield Floor(process.pid, port)
    finally:
        process.terminate()
        process.join()


class _Answering(asyncio.Protocol):
    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._is_started = False
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._is_started:
            self._is_started = True
            self._transport.write(_STARTED)
        else:
            self._transport.write(_PARSED if data[:1] == b"P" else self._reply)


def _serve(parent: Connection, reply: bytes) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: _Answering(reply), "127.0.0.1", 0)
        parent.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
