"""HTTP/2 on raw frames: windows, resets, limits, GOAWAY, malformed input."""

import asyncio
import contextlib
import random
from typing import Any

import h2.events
import h2.settings
import hyperframe.frame as frames
import pytest
from h2.errors import ErrorCodes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = frames.SettingsFrame(0).serialize()
MIB = 1 << 20


def test_preface_in_pieces(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            client = type(await h2_connect(service))(reader, writer)
            client.h2.initiate_connection()
            for byte in client.h2.data_to_send():
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            stream_id = await client.request("/scope")
            await client.until(h2.events.StreamEnded, stream_id)
            assert b'"http_version": "2"' in client.body(stream_id)

    run(main())


def test_echo_while_streaming_with_small_windows(run: Any, serve: Any, h2_connect: Any) -> None:
    """5 MiB through one stream in both directions at once, all windows at their minimum."""

    async def main() -> None:
        async with serve(stream_window=65535, connection_window=65535) as service:
            client = await h2_connect(service)
            body = random.Random(1).randbytes(5 * MIB)
            stream_id = await client.request("/stream", "POST", end=False)
            await client.until(h2.events.RemoteSettingsChanged)
            sent = 0
            while sent < len(body):
                room = min(client.h2.local_flow_control_window(stream_id), client.h2.max_outbound_frame_size)
                if room == 0:
                    await client.read()
                    continue
                padding = 7 if room > 9000 else None
                part = body[sent : sent + room - (8 if padding else 0)]
                sent += len(part)
                client.h2.send_data(stream_id, part, end_stream=sent == len(body), pad_length=padding)
                await client.flush()
            await client.until(h2.events.StreamEnded, stream_id)
            assert client.body(stream_id) == body

    run(main())


def test_body_is_acknowledged_only_when_read(run: Any, serve: Any, h2_connect: Any) -> None:
    """One unread stream fills its window; the others continue, and its bytes are returned at its end."""

    async def main() -> None:
        async with serve(stream_window=65535, connection_window=200_000) as service:
            client = await h2_connect(service)
            await client.until(h2.events.WindowUpdated, 0)
            for _ in range(5):
                while client.h2.outbound_flow_control_window < 75_535:
                    await client.read()
                held = await client.request("/hold-unread", "POST", end=False)
                client.h2.send_data(held, b"x" * 16384)
                client.h2.send_data(held, b"x" * 16384)
                client.h2.send_data(held, b"x" * 16384)
                client.h2.send_data(held, b"x" * 16383)
                await client.flush()
                await service.app.started.acquire()
                other = await client.request("/echo", "POST", end=False)
                client.h2.send_data(other, b"y" * 10000, end_stream=True)
                await client.flush()
                await client.until(h2.events.StreamEnded, other)
                assert client.body(other) == b"y" * 10000
                assert client.h2.local_flow_control_window(held) == 0
                assert not [e for e in client.events if isinstance(e, h2.events.WindowUpdated) and e.stream_id == held]
                client.h2.reset_stream(held, ErrorCodes.CANCEL)
                await client.flush()
            service.app.release.set()

    run(main())


def test_sender_waits_for_each_window(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            client.acknowledge = False
            client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000})
            await client.flush()
            await client.until(h2.events.SettingsAcknowledged)
            stream_id = await client.request("/big?2")

            async def received(size: int) -> None:
                while len(client.body(stream_id)) < size:
                    await client.read()
                assert len(client.body(stream_id)) == size

            await received(1000)
            client.h2.increment_flow_control_window(2000, stream_id)
            await client.flush()
            await received(3000)
            # A setting moves the windows of open streams.
            client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 100_000})
            await client.flush()
            await received(65535)  # the connection's window
            client.h2.increment_flow_control_window(MIB)
            await client.flush()
            await received(102_000)
            client.h2.increment_flow_control_window(MIB, stream_id)
            await client.flush()
            await client.until(h2.events.StreamEnded, stream_id)
            await received(2 * 65536)

    run(main())


def test_slow_reader_holds_the_sender(run: Any, serve: Any, h2_connect: Any) -> None:
    """Windows wide open, but the socket is not read: the transport's buffer holds the sender."""

    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
            client.h2.increment_flow_control_window(2**31 - 1 - 65535)
            await client.flush()
            await client.until(h2.events.SettingsAcknowledged)
            client.reader._transport.pause_reading()
            await client.request("/big?2000")
            await service.app.started.acquire()
            sent = -1
            while sent != service.app.sent:
                sent = service.app.sent
                await asyncio.sleep(0.1)
            assert sent < 2000 * 65536
            await client.close()
            await service.idle()

    run(main())


def test_reset_is_a_disconnect(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            for path in ("/wait", "/stream"):
                stream_id = await client.request(path, "POST", end=path == "/wait")
                await service.app.started.acquire()
                client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
                await client.flush()
                await service.app.disconnected.acquire()
            other = await client.request("/scope")
            await client.until(h2.events.StreamEnded, other)

    run(main())


def test_connection_loss_is_a_disconnect_for_every_stream(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            for _ in range(20):
                await client.request("/wait")
                await service.app.started.acquire()
            await client.request("/echo", "POST", end=False)
            client.writer.transport.abort()
            for _ in range(21):
                await service.app.disconnected.acquire()
            await service.idle()

    run(main())


def test_streams_beyond_the_limit_are_refused(run: Any, serve: Any, h2_connect: Any) -> None:
    """Also a client that has not seen our settings keeps its connection."""

    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            streams = [await client.request("/hold") for _ in range(260)]
            for _ in range(256):
                await service.app.started.acquire()
            for stream_id in streams[256:]:
                reset = await client.until(h2.events.StreamReset, stream_id)
                assert reset.error_code == ErrorCodes.REFUSED_STREAM
            settings = await client.until(h2.events.RemoteSettingsChanged)
            limit = settings.changed_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS]
            assert limit.new_value == 256
            service.app.release.set()
            for stream_id in streams[:256]:
                await client.until(h2.events.StreamEnded, stream_id)

    run(main())


def test_rapid_reset_ends_the_connection(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            for _ in range(1500):
                stream_id = await client.request("/wait")
                client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
                await client.flush()
                await asyncio.sleep(0)
                if client.writer.transport.is_closing():
                    break
            end = await client.until(h2.events.ConnectionTerminated)
            assert end.error_code == ErrorCodes.ENHANCE_YOUR_CALM
            assert service.app.peak <= 256

    run(main())


def test_early_answer_resets_the_upload(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            stream_id = await client.request("/early", "POST", end=False)
            await client.until(h2.events.StreamEnded, stream_id)
            reset = await client.until(h2.events.StreamReset, stream_id)
            assert reset.error_code == ErrorCodes.NO_ERROR
            # Data that was on its way counts against the connection only until it is dropped.
            data = frames.DataFrame(stream_id)
            data.data = b"x" * 16384
            for _ in range(2000):
                client.writer.write(data.serialize())
                await client.writer.drain()
            other = await client.request("/scope")
            await client.until(h2.events.StreamEnded, other)

    run(main())


def test_broken_response_is_a_reset(run: Any, serve: Any, h2_connect: Any, caplog: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            stream_id = await client.request("/fail-late")
            reset = await client.until(h2.events.StreamReset, stream_id)
            assert reset.error_code == ErrorCodes.INTERNAL_ERROR
            assert len(caplog.records) == 1
            caplog.clear()

    run(main())


def test_ping(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            client.h2.ping(b"12345678")
            await client.flush()
            assert (await client.until(h2.events.PingAckReceived)).ping_data == b"12345678"

    run(main())


def test_head_ends_with_the_headers(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            stream_id = await client.request("/half", "HEAD")
            await client.until(h2.events.StreamEnded, stream_id)
            service.app.release.set()
            stream_id = await client.request("/nothing")
            response = await client.until(h2.events.ResponseReceived, stream_id)
            assert response.stream_ended is not None

    run(main())


def test_expect_continue(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            stream_id = await client.request("/echo", "POST", end=False, headers=(("expect", "100-continue"),))
            assert await client.until(h2.events.InformationalResponseReceived, stream_id)
            client.h2.send_data(stream_id, b"hi", end_stream=True)
            await client.flush()
            await client.until(h2.events.StreamEnded, stream_id)
            assert client.body(stream_id) == b"hi"

    run(main())


def test_trailers_end_the_body(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            stream_id = await client.request("/echo", "POST", end=False)
            client.h2.send_data(stream_id, b"hi")
            client.h2.send_headers(stream_id, [("x-trailer", "1")], end_stream=True)
            await client.flush()
            await client.until(h2.events.StreamEnded, stream_id)
            assert client.body(stream_id) == b"hi"

    run(main())


def test_bad_target_is_400(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            stream_id = await client.request("nonsense")
            response = await client.until(h2.events.ResponseReceived, stream_id)
            assert dict(response.headers)[":status"] == "400"
            await client.until(h2.events.StreamEnded, stream_id)
            assert b'"invalid_request"' in client.body(stream_id)

    run(main())


def raw(kind: type[frames.Frame], stream_id: int, body: bytes, flags: int = 0, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = size.to_bytes(3, "big") + bytes([kind.type or 0, flags]) + stream_id.to_bytes(4, "big")
    return head + body


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (raw(frames.DataFrame, 0, b"x"), ErrorCodes.PROTOCOL_ERROR),
        (raw(frames.DataFrame, 3, b"x"), ErrorCodes.PROTOCOL_ERROR),
        (raw(frames.HeadersFrame, 2, b"\x82", 5), ErrorCodes.PROTOCOL_ERROR),
        (raw(frames.HeadersFrame, 3, b"\xff\xff\xff\xff\xff", 5), ErrorCodes.PROTOCOL_ERROR),
        (raw(frames.SettingsFrame, 0, b"\x00"), ErrorCodes.FRAME_SIZE_ERROR),
        (raw(frames.PingFrame, 0, b"123"), ErrorCodes.FRAME_SIZE_ERROR),
        (raw(frames.ContinuationFrame, 3, b"\x82", 4), ErrorCodes.PROTOCOL_ERROR),
        (raw(frames.WindowUpdateFrame, 0, b"\0\0\0\0"), ErrorCodes.PROTOCOL_ERROR),
        (raw(frames.PushPromiseFrame, 1, b"\0\0\0\2\x82", 4), ErrorCodes.PROTOCOL_ERROR),
        # Announced sizes are refused before the bytes come.
        (raw(frames.DataFrame, 1, b"x", length=65537), ErrorCodes.FRAME_SIZE_ERROR),
        (raw(frames.HeadersFrame, 3, b"x", length=1 << 23), ErrorCodes.FRAME_SIZE_ERROR),
        # A header block in many frames.
        (
            raw(frames.HeadersFrame, 3, b"\x82") + raw(frames.ContinuationFrame, 3, b"\0" * 16384) * 5,
            ErrorCodes.ENHANCE_YOUR_CALM,
        ),
        # A header list of 20 kB in a few bytes each: one entry of 4000 bytes, used again and again.
        (
            raw(frames.HeadersFrame, 3, b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000 + b"\xbe" * 20, 5),
            ErrorCodes.ENHANCE_YOUR_CALM,
        ),
    ],
)
def test_malformed_frames(run: Any, serve: Any, h2_connect: Any, data: bytes, code: ErrorCodes) -> None:
    async def main() -> None:
        async with serve(max_header_bytes=65536 if len(data) > 60000 else 16384) as service:
            client = await h2_connect(service)
            await client.request("/wait")
            await service.app.started.acquire()
            client.writer.write(data)
            end = await client.until(h2.events.ConnectionTerminated)
            assert end.error_code == code
            while not client.closed:
                await client.read()
            await service.app.disconnected.acquire()
            await client.close()
            await service.idle()

    run(main())


def test_noise(run: Any, serve: Any) -> None:
    """Random frames and flipped bytes: the connection ends or continues, nothing is logged or left."""

    async def main() -> None:
        rng = random.Random(7)
        async with serve() as service:
            block = bytes.fromhex("828684410f7777772e6578616d706c652e636f6d")
            good = PREFACE + SETTINGS + b"".join(raw(frames.HeadersFrame, n, block, 5) for n in (1, 3, 5))
            for _ in range(300):
                data = bytearray(good)
                for _ in range(rng.randint(1, 4)):
                    data[rng.randrange(len(PREFACE), len(data))] = rng.randrange(256)
                kinds = rng.choices(list(frames.FRAMES.values()), k=rng.randint(0, 5))
                noise = b"".join(
                    raw(kind, rng.choice([0, 1, 3, 7]), rng.randbytes(rng.randrange(30)), rng.randrange(256))
                    for kind in kinds
                )
                reader, writer = await service.connect()
                writer.write(bytes(data) + noise)
                writer.write_eof()
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                writer.close()
            await service.idle()

    run(main())


def test_peer_that_does_not_read_its_pings(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            client.reader._transport.pause_reading()
            ping = raw(frames.PingFrame, 0, b"12345678") * 4000

            async def flood() -> None:
                while True:
                    client.writer.write(ping)
                    await client.writer.drain()

            with pytest.raises(ConnectionError):
                await flood()
            await service.idle()

    run(main())


@pytest.mark.parametrize("path", [None, "/scope"])
def test_idle_connection_gets_goaway(run: Any, serve: Any, h2_connect: Any, path: str | None) -> None:
    async def main() -> None:
        async with serve(header_timeout=0.2) as service:
            client = await h2_connect(service)
            if path:
                await client.request(path)
            end = await client.until(h2.events.ConnectionTerminated)
            assert end.error_code == ErrorCodes.NO_ERROR
            while not client.closed:
                await client.read()
            await service.idle()

    run(main())


def test_running_stream_keeps_the_connection(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve(header_timeout=0.5) as service:
            client = await h2_connect(service)
            stream_id = await client.request("/hold")
            await service.app.started.acquire()
            for _ in range(3):
                idle, _ = await service.connect()
                assert await idle.read() == b""
            service.app.release.set()
            await client.until(h2.events.StreamEnded, stream_id)

    run(main())


def test_stop_sends_goaway_and_finishes(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            idle = await h2_connect(service)
            await idle.until(h2.events.RemoteSettingsChanged)
            client = await h2_connect(service)
            held = await client.request("/hold")
            half = await client.request("/half")
            upload = await client.request("/stream", "POST", end=False)
            for _ in range(3):
                await service.app.started.acquire()
            stopping = asyncio.create_task(service.server.stop(20))
            for each, last in ((client, upload), (idle, 0)):
                end = await each.until(h2.events.ConnectionTerminated)
                assert (end.error_code, end.last_stream_id) == (ErrorCodes.NO_ERROR, last)
            late = await client.request("/scope")
            assert (await client.until(h2.events.StreamReset, late)).error_code == ErrorCodes.REFUSED_STREAM
            while not idle.closed:
                await idle.read()
            await service.refuses()
            assert not stopping.done()
            client.h2.send_data(upload, b"up", end_stream=True)
            await client.flush()
            await client.until(h2.events.StreamEnded, upload)
            service.app.release.set()
            for stream_id, body in ((held, b"ok"), (half, b"first,last"), (upload, b"up")):
                await client.until(h2.events.StreamEnded, stream_id)
                assert client.body(stream_id) == body
            while not client.closed:
                await client.read()
            await client.close()
            await stopping

    run(main())


def test_goaway_of_the_client_lets_its_streams_finish(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            stream_id = await client.request("/hold")
            await service.app.started.acquire()
            client.h2.close_connection()
            client.h2.ping(b"12345678")
            await client.flush()
            await client.until(h2.events.PingAckReceived)
            service.app.release.set()
            await client.until(h2.events.StreamEnded, stream_id)
            assert client.body(stream_id) == b"ok"
            while not client.closed:
                await client.read()

    run(main())


def test_stop_limit_resets_the_streams(run: Any, serve: Any, h2_connect: Any, caplog: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            stream_id = await client.request("/hold")
            await service.app.started.acquire()
            stopping = asyncio.create_task(service.server.stop(0.05))
            assert (await client.until(h2.events.StreamReset, stream_id)).error_code == ErrorCodes.CANCEL
            await stopping
            assert len(caplog.records) == 1
            caplog.clear()

    run(main())


def test_unread_bodies_of_all_connections_are_bounded_together(run: Any, serve: Any, h2_connect: Any) -> None:
    """Beyond the bound a connection is not read once it has 64 KiB; in the end every body is whole."""

    async def main() -> None:
        async with serve(unread=100_000) as service:
            body = random.Random(2).randbytes(600_000)
            clients = [await h2_connect(service) for _ in range(6)]
            streams = []
            for client in clients:
                await client.until(h2.events.RemoteSettingsChanged)
                streams.append(await client.request("/hold-unread", "POST", end=False))
                for at in range(0, len(body), 16384):
                    part = body[at : at + 16384]
                    client.h2.send_data(streams[-1], part, end_stream=at + len(part) == len(body))
                await client.flush()
                await service.app.started.acquire()
            unread, seen = service.server._registry.unread, []
            while len(seen) < 20 or seen[-1] != seen[-20]:  # until no more comes
                await asyncio.sleep(0.01)
                seen.append(unread.nbytes)
            assert 100_000 < seen[-1] < 100_000 + 6 * (65536 + 262_144), seen[-1]
            service.app.release.set()
            for client, stream_id in zip(clients, streams, strict=True):
                await client.until(h2.events.StreamEnded, stream_id)
                assert client.body(stream_id) == body
            assert unread.nbytes == 0

    run(main())


def test_a_stop_does_not_wait_for_a_connection_that_is_held(run: Any, serve: Any, h2_connect: Any, caplog: Any) -> None:
    async def main() -> None:
        async with serve(unread=0) as service:
            client = await h2_connect(service)
            await client.until(h2.events.RemoteSettingsChanged)
            held = await client.request("/hold-unread", "POST", end=False)
            for _ in range(6):
                client.h2.send_data(held, b"x" * 16384)
            await client.flush()
            await service.app.started.acquire()
            unread = service.server._registry.unread
            while unread.nbytes <= 65536:
                await asyncio.sleep(0.01)
            await service.server.stop(0.05)
            assert unread.nbytes == 0
            assert ["unfinished" in record.getMessage() for record in caplog.records] == [True]
            caplog.clear()

    run(main())


def test_a_body_in_tiny_frames_is_whole(run: Any, serve: Any, h2_connect: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            client = await h2_connect(service)
            await client.until(h2.events.RemoteSettingsChanged)
            stream_id = await client.request("/hold-unread", "POST", end=False)
            numbers = random.Random(3)
            parts = [numbers.randbytes(numbers.choice((1, 2, 3, 3000))) for _ in range(300)]
            for part in parts:
                client.h2.send_data(stream_id, part)
            client.h2.end_stream(stream_id)
            await client.flush()
            service.app.release.set()
            await client.until(h2.events.StreamEnded, stream_id)
            assert client.body(stream_id) == b"".join(parts)

    run(main())
