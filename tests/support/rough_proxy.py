"""A TCP proxy on loopback that is as bad as a network can be: it cuts, delays, hangs, refuses and swallows answers."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Self

_CALM_SECONDS: Final = (0.0, 0.15)
_HANG_SECONDS: Final = (0.1, 1.5)
_DELAY_SECONDS: Final = (0.0, 0.05)
_WAYS: Final = ("cut", "swallow", "swallow", "swallow", "deaf", "hang", "refuse", "delay")


class RoughProxy:
    """A proxy to `target` (host:port). Its connections fare badly until it is `calm`; what happens hangs on `seed`."""

    def __init__(self, target: str, seed: int) -> None:
        self.done: Counter[str] = Counter()
        """Number of times that each fault was made. `lost` are bytes of the server that did not arrive."""
        self._host, _, port = target.rpartition(":")
        self._server_port = int(port)
        self._random = random.Random(seed)
        self._way = ""  # in which it is bad just now
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def calm(self) -> None:
        """From now on everything gets through, over new connections."""

        async def end() -> None:
            self._task.cancel()  # else what it does just now would end later, and with it a `swallow`
            await asyncio.wait([self._task])
            self._way = ""
            self._cut()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)

    def swallow(self) -> None:
        """From now on no answer gets through, until `cut`; for a proxy that is calm."""
        self._way = "swallow"

    def refuse(self) -> None:
        """From now on no connection holds, until `cut`; for a proxy that is calm."""
        self._way = "refuse"
        self._loop.call_soon_threadsafe(self._cut)

    def cut(self) -> None:
        """End all connections. New ones are good."""
        self._way = ""
        self._loop.call_soon_threadsafe(self._cut)

    async def _misbehave(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(*_CALM_SECONDS))
            self._way = way = self._random.choice(_WAYS)
            if way != "cut":
                longest = _HANG_SECONDS if way in ("hang", "refuse") else (0.0, 0.3)
                await asyncio.sleep(self._random.uniform(*longest))
            if way not in ("hang", "delay"):  # delayed bytes continue, swallowed ones are lost
                self._cut()
            self.done[way] += 1
            self._way = ""

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            async with self._opened(writer):
                if self._way == "refuse":
                    return
                back_reader, back_writer = await asyncio.open_connection(self._host, self._server_port)
                async with self._opened(back_writer):
                    there = asyncio.create_task(self._pump(reader, back_writer, "deaf"))
                    back = asyncio.create_task(self._pump(back_reader, writer, "swallow"))
                    await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
                    there.cancel()
                    back.cancel()
                    await asyncio.gather(there, back, return_exceptions=True)

    @asynccontextmanager
    async def _opened(self, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallows: str) -> None:
        swallowed = False
        while data := await reader.read(1 << 16):
            while self._way == "hang":
                await asyncio.sleep(0.01)
            if self._way == "delay":
                await asyncio.sleep(self._random.uniform(*_DELAY_SECONDS))
            swallowed = swallowed or self._way == swallows  # and all behind it, as streams have no holes
            if swallowed:
                self.done["lost"] += len(data)
                continue
            writer.write(data)
            await writer.drain()

    def __enter__(self) -> Self:
        async def begin() -> tuple[asyncio.Server, asyncio.Task[None]]:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            return server, asyncio.create_task(self._misbehave())

        self._thread.start()
        self._server, self._task = asyncio.run_coroutine_threadsafe(begin(), self._loop).result(10)
        self.target = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.close()
            self._task.cancel()
            self._cut()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
