"""Clients that stop reading: they cost little, are cut off after a time, and other clients are not."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import h2.errors
import h2.events
import h2.settings

GET = b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n"
KIB = 1024


@contextlib.asynccontextmanager
async def silent_client(service: Any, path: bytes) -> AsyncIterator[socket.socket]:
    """Sends a request and reads nothing, with little room in its own kernel; leaves at the end."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", service.port))
        await loop.sock_sendall(sock, GET.replace(b"%b", path))
        await service.app.started.acquire()
        yield sock
    await service.idle()


def test_http1_client_that_takes_nothing_is_cut_off(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(send_timeout=0.3) as service, silent_client(service, b"big?2000"):
            await service.idle()
            # `send` was let go then, and the application ran to its end without anyone to send to.
            assert service.app.sent == 2000 * 64 * KIB

    run(main())


def test_http1_client_that_takes_nothing_costs_little(run: Any, serve: Any) -> None:
    """The memory held for it, in the process and in both kernels: its window, and 128 and 64 KiB of ours."""

    async def main() -> None:
        async with serve() as service, silent_client(service, b"big?2000"):
            sent = -1
            while sent != service.app.sent:
                sent = service.app.sent
                await asyncio.sleep(0.1)
            assert sent < 1024 * KIB

    run(main())


def test_http1_client_that_takes_a_little_is_not_cut_off(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(send_timeout=1) as service, silent_client(service, b"big?20") as sock:
            loop = asyncio.get_running_loop()
            got = 0
            deadline = loop.time() + 2.5
            while loop.time() < deadline:
                got += len(await loop.sock_recv(sock, 8 * KIB))
                await asyncio.sleep(0.02)
            while data := await loop.sock_recv(sock, 64 * KIB):
                got += len(data)
                if data.endswith(b"\r\n0\r\n\r\n"):
                    break
            assert got > 20 * 64 * KIB

    run(main())


def test_http1_client_that_wakes_up_in_time_gets_the_timeout_event(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(send_timeout=0.3) as service, silent_client(service, b"timeout-event?2000") as sock:
            while service.server.requests:
                await asyncio.sleep(0.01)
            loop = asyncio.get_running_loop()
            received = b""
            while data := await loop.sock_recv(sock, 1 << 20):
                received += data
            assert received.endswith(b"x\r\n7\r\nthe end\r\n0\r\n\r\n")
            assert len(received) < 2000 * 64 * KIB
            await service.idle()

    run(main())


def test_http1_client_that_never_wakes_up_does_not_keep_the_connection(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(send_timeout=0.3) as service, silent_client(service, b"timeout-event?2000"):
            await service.idle()

    run(main())


def test_stop_does_not_wait_for_clients_that_take_nothing(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service, silent_client(service, b"big?2000"):
            async with asyncio.timeout(8):
                await service.server.stop(25)

    run(main())


def test_http2_stream_without_a_window_is_reset(run: Any, serve: Any, h2_connect: Any) -> None:
    """The connection and its other streams continue."""

    async def main() -> None:
        async with serve(send_timeout=0.3) as service:
            client = await h2_connect(service)
            client.acknowledge = False
            stuck = await client.request("/big?2")
            reset = await client.until(h2.events.StreamReset, stuck)
            assert reset.error_code == h2.errors.ErrorCodes.CANCEL
            client.h2.increment_flow_control_window(1 << 20)
            other = await client.request("/scope")
            await client.until(h2.events.StreamEnded, other)

    run(main())


def test_http2_windows_that_open_a_little_are_enough(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve(send_timeout=1) as service:
            client = await h2_connect(service)
            client.acknowledge = False
            stream_id = await client.request("/big?2")
            loop = asyncio.get_running_loop()
            deadline = loop.time() + 2.5
            size = 65535
            while loop.time() < deadline:
                client.h2.increment_flow_control_window(10)
                client.h2.increment_flow_control_window(10, stream_id)
                await client.flush()
                size += 10
                while len(client.body(stream_id)) < size:
                    await client.read()
                await asyncio.sleep(0.05)
            client.h2.increment_flow_control_window(1 << 20)
            client.h2.increment_flow_control_window(1 << 20, stream_id)
            await client.flush()
            await client.until(h2.events.StreamEnded, stream_id)
            assert len(client.body(stream_id)) == 2 * 64 * KIB

    run(main())


def test_window_updates_without_a_window_are_not_enough(run: Any, serve: Any, h2_connect: Any) -> None:
    """Other streams' windows wake the sender, but nothing of its own leaves."""

    async def main() -> None:
        async with serve(send_timeout=0.3) as service:
            client = await h2_connect(service)
            client.acknowledge = False
            stuck = await client.request("/big?2")
            while not any(isinstance(event, h2.events.StreamReset) for event in client.events):
                client.h2.increment_flow_control_window(10)
                await client.flush()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await client.read()
            assert len(client.body(stuck)) == 65535

    run(main())


def test_http2_connection_that_takes_nothing_is_closed(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve(send_timeout=0.3) as service:
            client = await h2_connect(service)
            client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
            client.h2.increment_flow_control_window(2**31 - 1 - 65535)
            await client.flush()
            await client.until(h2.events.SettingsAcknowledged)
            client.reader._transport.pause_reading()
            await client.request("/big?2000")
            await service.app.started.acquire()
            await service.idle()

    run(main())
