"""The bulk readers of a server: child processes, supervised, restarted and ended with it."""

import asyncio
import contextlib
import logging
import pickle
import shutil
import sys
from asyncio import StreamReader, StreamReaderProtocol
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Final

from topics_server.settings import Settings

log = logging.getLogger("topics.bulk")

_MODULE: Final = "topics_server.bulk_reader"
_START_SECONDS: Final = 60.0
_MIN_BACKOFF: Final = 0.5
_MAX_BACKOFF: Final = 30.0
_STEADY_SECONDS: Final = 30.0  # one that lived so long is started again at once
_GRACE_SECONDS: Final = 2.0  # beyond the drain


class BulkReaders:
    """Keeps `settings.bulk_readers` of them running from `start` to `stop`, which is called on the same loop.

    They get everything through their stdin, also the digests of keys: neither command line nor environment shows them.
    The end of the pipe tells them that this process has ended.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._directory = settings.data_path / "bulk-readers"
        self._ports: dict[int, int] = {}
        self._stopping = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []

    def addresses(self) -> Sequence[tuple[str, int]]:
        """Host (empty: that of this server) and gRPC port of each that takes calls now."""
        return [("", port) for port in self._ports.values()]

    def start(self) -> None:
        """Start them, without waiting. The data directory must be open and recovered."""
        shutil.rmtree(self._directory, ignore_errors=True)  # logs that a SIGKILL left
        self._keepers = [asyncio.create_task(self._keep(number)) for number in range(self._settings.bulk_readers)]

    async def stop(self) -> None:
        """End them; returns when they have ended. Idempotent."""
        self._stopping.set()
        if self._keepers:
            await asyncio.wait(self._keepers)
            shutil.rmtree(self._directory, ignore_errors=True)

    async def _keep(self, number: int) -> None:
        """Run the reader of this number, again and again."""
        loop, backoff = asyncio.get_running_loop(), _MIN_BACKOFF
        while not self._stopping.is_set():
            started = loop.time()
            try:
                how = f"ended with {await self._run(number)}"
            except TimeoutError:
                how = f"did not start within {_START_SECONDS:g} s"
            except Exception as error:
                how = f"failed: {error}"
            if self._stopping.is_set():
                return
            if loop.time() - started >= _STEADY_SECONDS:
                backoff = _MIN_BACKOFF
            log.warning("bulk reader %d %s; starts again in %.1f s", number, how, backoff)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF)

    async def _run(self, number: int) -> int:
        """Run it once, until it ends or is to end; returns its exit code."""
        process = _spawn()
        assert process.stdout is not None
        output = StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: StreamReaderProtocol(output), process.stdout
        )
        serving = asyncio.create_task(self._serve(number, process, output))
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            serving.cancel()
            stopped.cancel()
            await asyncio.wait((serving, stopped))
            if self._ports.pop(number, None) is None:
                process.kill()  # it serves no client yet
            code = await self._end(process, output)
            pipe.close()
            shutil.rmtree(self._own(process), ignore_errors=True)
        return code

    async def _serve(self, number: int, process: "Popen[bytes]", output: StreamReader) -> None:
        """Send it the settings, receive its port, and list it until it ends."""
        await asyncio.to_thread(_send, process, pickle.dumps((self._settings, str(self._own(process)))))
        async with asyncio.timeout(_START_SECONDS):
            line = await output.readline()
        if line:
            self._ports[number] = port = int(line)
            log.info("bulk reader %d: gRPC port %d, process %d", number, port, process.pid)
        await output.read()

    def _own(self, process: "Popen[bytes]") -> Path:
        """Its directory: not that of the one before, which may outlive a server that was killed by a moment."""
        return self._directory / str(process.pid)

    async def _end(self, process: "Popen[bytes]", output: StreamReader) -> int:
        """Let it finish its calls, for as long as the server itself does; its exit code."""
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            async with asyncio.timeout(self._settings.drain_seconds + _GRACE_SECONDS):
                while await output.read(1 << 10):
                    pass  # its end is that of the process
        except TimeoutError:
            process.kill()
        return await asyncio.to_thread(process.wait)


def _spawn() -> "Popen[bytes]":
    """Start the process. Not through the loop, which forks: Popen does not run the handlers that gRPC has for that.

    `-P`: no modules from the working directory.
    """
    return Popen([sys.executable, "-P", "-m", _MODULE], stdin=PIPE, stdout=PIPE)


def _send(process: "Popen[bytes]", message: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(message)
    process.stdin.flush()
