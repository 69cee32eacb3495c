"""A client that stops sending its body gets an answer and loses its connection; nothing waits for it without end."""

import asyncio
import socket

from topics_gateway.app import create_app
from topics_gateway.settings import GatewaySettings
from topics_gateway.transport.server import HttpServer
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.storage.memory import MemoryStore


async def _answer(head: bytes) -> bytes:
    engine = Engine(MemoryStore(), SystemClock())
    commit = GroupCommit.for_engine(engine)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    app = create_app(TopicsApi(engine, commit), GatewaySettings(body_timeout_seconds=0.05))
    server = HttpServer(app, sock)
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head)
        async with asyncio.timeout(10):
            answer = await reader.read()  # up to the end of the connection
        writer.close()
        await writer.wait_closed()
        assert engine.ready().topics == 0, "half a request changed nothing"
        return answer
    finally:
        await server.stop(1)
        await asyncio.to_thread(commit.stop)


async def test_half_a_body_is_answered_and_the_connection_closed() -> None:
    answer = await _answer(
        b"POST /v0/topics/t HTTP/1.1\r\nhost: [::]\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_request"' in answer


async def test_an_early_error_does_not_wait_for_the_rest_either() -> None:
    answer = await _answer(
        b"PUT /v0/nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"code":"not_found"' in answer
