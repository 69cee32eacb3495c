"""Answers of a store, good and bad, and what a Bucket makes of each: with a server that answers as it is told."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from topics_cluster.bucket import BucketError
from topics_cluster.probe import UnfitStoreError, probe
from topics_cluster.s3 import S3Bucket

CUT = b""
"""The end of the connection in place of an answer."""
SILENCE = b"..."
"""No answer, until the client ends the connection."""


def answer(status: str, body: bytes = b"", length: int | None = None) -> bytes:
    """An answer, whose body may be shorter than it says."""
    headers = f'Content-Length: {len(body) if length is None else length}\r\nETag: "1"\r\n'
    headers += "Last-Modified: Mon, 30 Nov 2026 08:00:00 GMT\r\nConnection: close\r\n"
    return f"HTTP/1.1 {status}\r\n{headers}\r\n".encode() + body


class Server:
    """Answers requests in turn; `requests` are the heads of those that came."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._answers: list[bytes] = []
        self._connections: set[asyncio.Task[None]] = set()

    def tell(self, answers: Sequence[bytes]) -> None:
        self.requests.clear()
        self._answers = list(answers)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            await self._serve(reader, writer)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        finally:
            writer.transport.abort()
            self._connections.discard(connection)

    async def close(self) -> None:
        """End the connections that are left."""
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [line for line in head.splitlines() if line.lower().startswith("content-length:")]
        await reader.readexactly(int(lengths[0].partition(":")[2]) if lengths else 0)
        self.requests.append(head)
        told = self._answers.pop(0)
        if told == SILENCE:
            assert await reader.read() == b""
        else:
            writer.write(told)
            await writer.drain()


@asynccontextmanager
async def store(monkeypatch: pytest.MonkeyPatch, seconds: float = 5.0) -> AsyncIterator[tuple[Server, S3Bucket]]:
    server = Server()
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    async with listening:
        try:
            yield server, S3Bucket("s3://bucket/x", request_seconds=seconds)
        finally:
            await server.close()


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([answer("200 OK")], True),
        ([answer("412 Precondition Failed"), answer("200 OK")], False),
        ([answer("409 Conflict"), answer("200 OK")], False),
        ([answer("409 Conflict"), answer("404 Not Found")], None),
        ([answer("412 Precondition Failed"), answer("403 Forbidden")], None),
        ([answer("500 Internal Server Error")], None),
        ([answer("503 Slow Down")], None),
        ([answer("404 Not Found", b"<Error><Code>NoSuchBucket</Code></Error>")], None),
        ([answer("501 Not Implemented")], None),
        ([CUT], None),
    ],
)
async def test_the_answers_to_a_create(
    answers: list[bytes], outcome: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store(monkeypatch) as (server, bucket):
        server.tell(answers)
        if outcome is None:
            with pytest.raises(BucketError, match=r"^s3://bucket/x: "):
                await bucket.create("log/1", [b"ab", b"c"])
        else:
            assert await bucket.create("log/1", [b"ab", b"c"]) is outcome
        assert len(server.requests) == len(answers)  # it repeats nothing by itself
        assert server.requests[0].startswith("PUT /bucket/x/log/1 ")
        assert "if-none-match: *\r\n" in server.requests[0].lower()


async def test_a_create_without_an_answer_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with store(monkeypatch, 0.2) as (server, bucket):
        server.tell([SILENCE])
        with pytest.raises(BucketError):
            await asyncio.wait_for(bucket.create("log/1", [b"a"]), 5)
        assert len(server.requests) == 1


async def test_reads_are_repeated_over_failures_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with store(monkeypatch) as (server, bucket):
        server.tell([answer("503 Slow Down"), CUT, answer("200 OK", b"abc")])
        assert await bucket.get("log/1") == b"abc"
        server.tell([answer("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")])
        assert await bucket.get("log/1") is None


async def test_half_a_body_is_no_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with store(monkeypatch) as (server, bucket):
        half = answer("200 OK", b"half", length=8)
        server.tell([half] * 20)
        with pytest.raises(BucketError):
            await bucket.get("log/1")
        with pytest.raises(BucketError):
            await bucket.get_file("log/1", tmp_path / "file")
        assert not os.listdir(tmp_path)


async def test_a_store_that_ignores_the_condition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with store(monkeypatch) as (server, bucket):
        deleted = answer("200 OK", b"<DeleteResult></DeleteResult>")
        server.tell([answer("200 OK"), answer("200 OK"), deleted])
        with pytest.raises(UnfitStoreError, match="ignores If-None-Match"):
            await probe(bucket)
        assert [request.partition(" ")[0] for request in server.requests] == ["PUT", "PUT", "POST"]
        server.tell([answer("501 Not Implemented"), deleted])
        with pytest.raises(BucketError, match="501 Not Implemented"):
            await probe(bucket)
