"""HTTP/1.1 on raw sockets: order, limits, malformed input, time."""

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

GET = b"GET /%b HTTP/1.1\r\nHost: test\r\n\r\n"


async def response(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes], bytes]:
    """Read one response that has a content-length."""
    head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    fields = (line.split(b": ", 1) for line in head[1:-2])
    headers = {name.lower(): value for name, value in fields}
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers.get(b"content-length", b"0")))


async def assert_rejected(reader: asyncio.StreamReader, status: int = 400) -> str:
    """Read the error envelope and the end of the connection; return the message."""
    got, headers, body = await response(reader)
    assert got == status
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"connection"] == b"close"
    envelope = json.loads(body)
    assert sorted(envelope) == ["error", "performance"]
    assert envelope["performance"]["server_total_ms"] >= 0
    error = envelope["error"]
    assert sorted(error) == ["code", "message"]
    assert error["code"] == "invalid_request"
    assert await reader.read() == b""
    return str(error["message"])


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        b"PRX / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET nonsense HTTP/1.1\r\nHost: test\r\n\r\n",
        b"CONNECT test:80 HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost test\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad header: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_malformed_request(run: Any, serve: Any, data: bytes) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            writer.write(data)
            await assert_rejected(reader)
            writer.close()
            await service.idle()

    run(main())


def test_malformed_byte_by_byte(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            for byte in (
                b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\nhi" + b"PRI * HTTP/2.0\r\n\r\nS"
            ):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert (await response(reader))[2] == b"hi"
            writer.write(b"M\r\n\r\n")
            await assert_rejected(reader)
            writer.close()

    run(main())


def test_error_comes_after_the_answers_before_it(run: Any, serve: Any) -> None:
    """The pipeline ends in garbage: what came before is answered, then the connection ends."""

    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            writer.write(GET % b"hold" + GET % b"scope" + b"nonsense\r\n\r\n")
            await service.app.started.acquire()
            service.app.release.set()
            assert (await response(reader))[2] == b"ok"
            status, headers, body = await response(reader)
            assert (status, headers[b"connection"], json.loads(body)["path"]) == (200, b"close", "/scope")
            assert await reader.read() == b""
            writer.close()

    run(main())


def test_malformed_body_of_a_queued_request(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            chunked = b"POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\nzz\r\n"
            writer.write(GET % b"hold" + chunked)
            await service.app.started.acquire()
            service.app.release.set()
            assert (await response(reader))[0] == 200
            assert await reader.read() == b""
            writer.close()

    run(main())


def test_malformed_body_within_a_response(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            writer.write(b"POST /stream HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
            await reader.readuntil(b"1\r\nx\r\n")
            writer.write(b"zz\r\n")
            assert await reader.read() == b""
            await service.app.disconnected.acquire()
            writer.close()

    run(main())


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_head_too_large(run: Any, serve: Any, end: bytes) -> None:
    async def main() -> None:
        async with serve(max_header_bytes=4096) as service:
            for part in (b"GET /" + b"x" * 5000, b"GET / HTTP/1.1\r\nX: " + b"x" * 5000, GET[:-2] + b"X: y\r\n" * 1000):
                reader, writer = await service.connect()
                writer.write(part[:100])
                await writer.drain()
                writer.write(part[100:] + end)
                await writer.drain()
                if not end:
                    writer.write(b"x" * 5000)
                assert await assert_rejected(reader, 431) == "request head too large"
                writer.close()
            reader, writer = await service.connect()
            writer.write(GET[:-2] % b"scope" + b"X: " + b"x" * 3900 + b"\r\n\r\n")
            assert (await response(reader))[0] == 200
            writer.close()

    run(main())


def test_large_bodies_count_nothing_against_the_head(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(max_header_bytes=1000) as service:
            reader, writer = await service.connect()
            post = b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000
            writer.write(post * 20 + post[:30])
            for _ in range(20):
                assert (await response(reader))[0] == 200
            writer.write(post[30:])
            assert (await response(reader))[0] == 200
            writer.close()

    run(main())


def test_trailers(run: Any, serve: Any) -> None:
    """Trailers do not reach the headers, and an endless one is cut off."""

    async def main() -> None:
        async with serve(max_header_bytes=4096) as service:
            reader, writer = await service.connect()
            head = b"POST /%b HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
            writer.write(head % b"scope" + b"X-Trailer: y\r\n\r\n")
            headers = json.loads((await response(reader))[2])["headers"]
            assert "x-trailer" not in dict(headers)
            writer.write(head % b"echo" + b"X-Trailer: ")
            for _ in range(20):
                writer.write(b"y" * 1000)
                await writer.drain()
            assert "trailers" in await assert_rejected(reader)
            writer.close()

    run(main())


def test_pipeline_is_answered_in_order(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            post = b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\n%05d"
            writer.write(GET % b"hold" + b"".join(post % number for number in range(500)))
            await service.app.started.acquire()
            service.app.release.set()
            assert (await response(reader))[2] == b"ok"
            for number in range(500):
                assert (await response(reader))[2] == b"%05d" % number
            writer.close()

    run(main())


def test_pipeline_is_bounded(run: Any, serve: Any, caplog: Any) -> None:
    """A long poll with a flood behind it: the flood stays in the client's socket.

    The price: such a client's disconnect is not seen, as the socket is not read.
    """

    async def main() -> None:
        async with serve() as service:
            _, writer = await service.connect()
            writer.write(GET % b"wait" + b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 900000000\r\n\r\n")
            await service.app.started.acquire()
            writer.transport.set_write_buffer_limits(0)

            async def flood() -> None:
                for _ in range(1000):
                    writer.write(b"x" * 65536)
                    await writer.drain()

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(flood(), 0.5)
        caplog.clear()  # the request had to be cancelled

    run(main())


def test_disconnect_reaches_the_request_that_runs(run: Any, serve: Any) -> None:
    """Not the newest of the pipeline, as in uvicorn."""

    async def main() -> None:
        async with serve() as service:
            _, writer = await service.connect()
            writer.write(GET % b"wait" + GET % b"scope")
            await service.app.started.acquire()
            writer.close()
            await service.app.disconnected.acquire()
            await service.idle()

    run(main())


def test_disconnect_is_seen_behind_a_request_that_came_later(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            _, writer = await service.connect()
            writer.write(GET % b"wait")
            await service.app.started.acquire()
            writer.write(GET % b"scope")
            await asyncio.sleep(0.05)  # a read of its own
            writer.close()
            await service.app.disconnected.acquire()
            await service.idle()

    run(main())


@pytest.mark.parametrize(
    "data",
    [
        b"P",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: te",
        b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nhalf",
        b"POST /stream HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha",
    ],
)
@pytest.mark.parametrize("abort", [False, True])
def test_half_a_request_and_gone(run: Any, serve: Any, data: bytes, abort: bool) -> None:
    async def main() -> None:
        async with serve() as service:
            _, writer = await service.connect()
            writer.write(data)
            await writer.drain()
            begun = b"\r\n\r\n" in data
            while service.server.connections == 0 or service.app.running < begun:  # no event for it
                await asyncio.sleep(0.001)  # the server has no event for it
            if abort:
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
                )
            writer.close()
            await service.idle()

    run(main())


@pytest.mark.parametrize(
    "data", [b"", b"P", b"PRI * HTTP/2.0\r\n", b"GET / HT", GET % b"scope", GET % b"scope" + b"GET"]
)
def test_header_timeout(run: Any, serve: Any, data: bytes) -> None:
    """It holds for new and for idle connections, and sending a byte now and then does not move it."""

    async def main() -> None:
        async with serve(header_timeout=1) as service:
            reader, writer = await service.connect()
            writer.write(data)
            if data.startswith(GET % b"scope"):
                assert (await response(reader))[0] == 200
            begin = asyncio.get_running_loop().time()
            assert await reader.read() == b""
            assert 0.5 < asyncio.get_running_loop().time() - begin < 20
            writer.close()
            await service.idle()

    run(main())


def test_header_timeout_is_not_moved_by_bytes(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(header_timeout=0.3) as service:
            reader, writer = await service.connect()
            writer.write(b"GET /")
            closed = asyncio.create_task(reader.read())
            while not closed.done():
                writer.write(b"X")
                await asyncio.wait([closed], timeout=0.02)
            assert closed.exception() is None or isinstance(closed.exception(), ConnectionError)
            await service.idle()

    run(main())


def test_header_timeout_spares_a_running_request(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(header_timeout=0.5) as service:
            reader, writer = await service.connect()
            idle, _ = await service.connect()
            writer.write(GET % b"hold")
            await service.app.started.acquire()
            assert await idle.read() == b""
            other, _ = await service.connect()
            assert await other.read() == b""
            service.app.release.set()
            assert (await response(reader))[0] == 200
            assert await reader.read() == b""
            writer.close()

    run(main())


def test_keep_alive_after_errors(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            writer.write(b"POST /early HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nbody")
            assert (await response(reader))[0] == 413
            # The body of an answered request may still come; it is dropped.
            writer.write(b"POST /early HTTP/1.1\r\nHost: test\r\nContent-Length: 400000\r\n\r\nbody")
            assert (await response(reader))[0] == 413
            writer.write(b"x" * 399_996 + GET % b"scope")
            assert (await response(reader))[0] == 200
            writer.close()

    run(main())


def test_expect_continue(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            post = b"POST /%b HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
            reader, writer = await service.connect()
            writer.write(post % b"echo")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"hi")
            assert (await response(reader))[2] == b"hi"
            writer.write(post % b"early")
            status, headers, _ = await response(reader)
            assert (status, headers[b"connection"]) == (413, b"close")
            assert await reader.read() == b""
            writer.close()

    run(main())


def test_other_upgrades_are_ignored(run: Any, serve: Any) -> None:
    """Java's client offers h2c with every first request."""

    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
            post = b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n"
            for data in ((GET % b"scope")[:-2] + upgrade, post + upgrade + b"abc", GET % b"scope"):
                writer.write(data)
                assert (await response(reader))[0] == 200
            writer.write(post + upgrade + b"abc" + post + b"\r\nxyz")
            assert (await response(reader))[2] == b"abc"
            assert (await response(reader))[2] == b"xyz"
            writer.close()

    run(main())


def test_http_1_0(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            writer.write(b"POST /stream HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert (b"transfer-encoding" in head, body) == (False, b"hi")
            writer.close()

    run(main())


def test_slow_reader_holds_the_sender(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
                sock.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(sock, ("127.0.0.1", service.port))
                await loop.sock_sendall(sock, GET.replace(b"%b", b"big?2000"))
                await service.app.started.acquire()
                sent = -1
                while sent != service.app.sent:
                    sent = service.app.sent
                    await asyncio.sleep(0.1)
                assert sent < 2000 * 65536
            await service.idle()

    run(main())


def test_websocket(run: Any, serve: Any) -> None:
    websockets = pytest.importorskip("websockets")

    async def main() -> None:
        async with serve(ws_ping_interval=0.02, header_timeout=1) as service:
            async with websockets.connect(f"ws://127.0.0.1:{service.port}/", proxy=None) as client:
                await client.send("hi")
                assert await client.recv() == "hi"
                # Longer than the header timeout, kept alive by pings.
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.recv(), 1.5)
            await service.app.disconnected.acquire()
            await service.idle()
            async with websockets.connect(f"ws://127.0.0.1:{service.port}/", proxy=None) as client:
                await service.app.started.acquire()
                await service.app.started.acquire()
                await service.server.stop(5)
                with pytest.raises(websockets.ConnectionClosedError) as caught:
                    await client.recv()
                assert caught.value.rcvd.code == 1012
                await service.app.disconnected.acquire()

    run(main())


def test_stop_drains(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service, service.client("1.1") as client:
            idle, idle_writer = await service.connect()
            idle_writer.write(GET % b"scope" + b"GET / HT")
            assert (await response(idle))[0] == 200
            running = [asyncio.create_task(client.get(path)) for path in ("/hold", "/half")]
            for _ in running:
                await service.app.started.acquire()
            stopping = asyncio.create_task(service.server.stop(20))
            assert await idle.read() == b""
            await service.refuses()
            assert not stopping.done()
            service.app.release.set()
            responses = [await task for task in running]
            assert [response.content for response in responses] == [b"ok", b"first,last"]
            assert responses[0].headers["connection"] == "close"
            await stopping
            with pytest.raises(httpx.ConnectError):
                await client.get("/")
            idle_writer.close()

    run(main())


def test_nodelay(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            writer.write(GET % b"scope")
            await response(reader)
            (connection,) = service.server._registry.connections
            sock = connection.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            writer.close()

    run(main())


def test_a_server_starts_once(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            with pytest.raises(RuntimeError):
                await service.server.start()

    run(main())
