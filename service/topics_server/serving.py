"""The life of a server, of one data directory or of a cluster, in the order of its steps."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol, Self

from topics_server.errors import StartError
from topics_server.reload import SighupHandler
from topics_server.resources import Resources
from topics_server.settings import Settings
from topics_service.engine.clock import Clock, SystemClock
from topics_service.engine.errors import TopicsError
from topics_service.storage.store import StoreError

log = logging.getLogger("topics.server")


class Ports(Protocol):
    """The ports of a server, each 0 while it is not listened on."""

    @property
    def http_port(self) -> int:
        """The port of HTTP."""
        ...

    @property
    def grpc_port(self) -> int:
        """The port of gRPC."""
        ...

    @property
    def kafka_port(self) -> int:
        """The port of Kafka."""
        ...

    @property
    def pg_port(self) -> int:
        """The port of PostgreSQL."""
        ...


class Serving(ABC):
    """Steps that `topics serve` takes one by one, and a program as an asynchronous context manager on its own loop.

    It is ready inside the block and drained at its end. Raises StartError if the server can't start.
    """

    def __init__(self, settings: Settings, clock: Clock | None, hangups: SighupHandler | None) -> None:
        """`clock` replaces the system's clock; `hangups` are the SIGHUPs to follow."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._hangups = hangups
        self._resources: Resources | None = None
        self._ports: Ports | None = None
        self._stop = asyncio.Event()
        self._stopped_at = 0.0

    @property
    def http_port(self) -> int:
        """The port of HTTP; 0 while it is not listened on, as for the others."""
        return self._ports.http_port if self._ports else 0

    @property
    def grpc_port(self) -> int:
        """The port of gRPC."""
        return self._ports.grpc_port if self._ports else 0

    @property
    def kafka_port(self) -> int:
        """The port of Kafka."""
        return self._ports.kafka_port if self._ports else 0

    @property
    def pg_port(self) -> int:
        """The port of PostgreSQL."""
        return self._ports.pg_port if self._ports else 0

    @abstractmethod
    def open(self) -> None:
        """Open the resources of the server. Blocks; raises StartError."""

    @abstractmethod
    async def startup(self) -> None:
        """Listen and serve. Raises StartError, StoreError or TopicsError; `shutdown` undoes a partial start."""

    async def main_loop(self) -> None:
        """Serve until `stop`."""
        await self._stop.wait()
        self._stopped_at = time.monotonic()
        log.info("stopping: draining for up to %d s", self._settings.drain_seconds)

    def stop(self) -> None:
        """Let `main_loop` return, and a start end early. On the event loop; idempotent."""
        self._stop.set()

    @abstractmethod
    async def shutdown(self) -> None:
        """Drain, and end all work."""

    @abstractmethod
    def close(self) -> None:
        """Close the resources of `open` and log the outcome. Blocks."""

    async def _until_ready(self) -> None:  # noqa: B027  # most are ready when `startup` returns
        """Wait until the server is ready, or has failed."""

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.open)
        try:
            await self.startup()
            await self._until_ready()
        except BaseException as error:
            await self._end()
            if isinstance(error, StoreError | TopicsError):
                raise StartError(str(error)) from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        await self.main_loop()
        await self._end()

    async def _end(self) -> None:
        try:
            await self.shutdown()
        finally:
            await asyncio.to_thread(self.close)
