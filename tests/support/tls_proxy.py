"""A proxy on loopback that ends TLS, as one in front of a server does."""

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.missing import without


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of localhost that signs itself, and its key. Skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        without("openssl is not installed")
    made, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


@contextmanager
def tls_proxy(target: str, cert: Path, key: Path) -> Iterator[int]:
    """The port of a proxy to `target` (host:port)."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["h2"])
    host, _, port = target.rpartition(":")
    loop = asyncio.new_event_loop()
    writers: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        back_reader, back_writer = await asyncio.open_connection(host, int(port))
        writers.append(back_writer)
        await asyncio.gather(pump(reader, back_writer), pump(back_reader, writer))

    async def start() -> asyncio.Server:
        return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)

    async def end(server: asyncio.Server) -> None:
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()  # a close would wait for the other end's
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
        await asyncio.sleep(0)  # a handshake that failed just now closes its socket in the next turn

    server = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
