"""One server: start-up, main loop and shutdown in the order they happen."""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import uvloop

from topics_server import collector, logs, maintenance
from topics_server.core import Core
from topics_server.errors import StartError
from topics_server.listeners import Listeners
from topics_server.notices import Shutdown, log_stopped
from topics_server.reload import Readers, SighupHandler, is_useful
from topics_server.resources import Resources
from topics_server.serving import Serving
from topics_server.settings import Settings
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import Clock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import StoreError

if TYPE_CHECKING:
    from topics_server.processes.share import Share

log = logging.getLogger("topics.server")

# The commit thread needs the GIL back after each fsync. The default of 5 ms caps it at 160 fsyncs/s with a p50 of
# 6 ms; 0.3 ms gives 1,140 at 0.8 ms.
_SWITCH_INTERVAL_SECONDS: Final = 0.0003


def run(settings: Settings, warnings: Sequence[str] = ()) -> None:
    """Serve until SIGTERM or SIGINT, then drain; `warnings` are logged first. Main thread only. Raises StartError."""
    logs.configure(settings.log_level, settings.log_format)
    for text in warnings:
        log.warning("%s", text)
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    if settings.processes > 1:
        from topics_server.processes.parent import Parent

        Parent(settings, _serve_share).run()
        return
    hangups = SighupHandler() if is_useful(settings) else None
    serve(_server(settings, hangups))


def serve(server: Serving) -> None:
    """Run a server until SIGTERM or SIGINT, then drain. Main thread only. Raises StartError."""
    server.open()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve_until_signal(server))
    except (StoreError, TopicsError) as error:
        raise StartError(str(error)) from error
    finally:
        server.close()


def _server(settings: Settings, hangups: SighupHandler | None) -> Serving:
    if settings.cluster_store:
        from topics_server.node.server import NodeServer, connect  # and all that only a cluster needs

        return NodeServer(settings, connect=connect, hangups=hangups)
    if settings.processes:
        from topics_server.processes.serving import ShardedServer  # and all that only shards need

        return ShardedServer(settings, hangups=hangups)
    return Server(settings, hangups=hangups)


def _serve_share(settings: Settings, share: "Share") -> None:
    from topics_server.processes.serving import ShardedServer

    serve(ShardedServer(settings, hangups=SighupHandler() if is_useful(settings) else None, share=share))


async def _serve_until_signal(server: Serving) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, server.stop)
    try:
        collector.pause()
        await server.startup()
        collector.resume()
        await server.main_loop()
    finally:
        await server.shutdown()


class Server(Serving):
    """A server of one data directory: HTTP, gRPC and, if their ports are set, Kafka and PostgreSQL.

    `topics serve` is `run`. A program embeds a server as an asynchronous context manager on its own event loop:

        async with Server(Settings(data_dir="data", port=0, grpc_port=0)) as server:
            print(server.http_port, server.grpc_port)

    It is ready inside the block and drained at its end. Signals, logging and the garbage collector stay as the program
    set them; only the soft limit of open files is raised to the hard one. Raises StartError if the server can't start.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        store: RocksStore | None = None,
        hangups: SighupHandler | None = None,
    ) -> None:
        """`clock` replaces the system's clock; `store` is the store in `settings.data_path`, opened by the caller and
        closed by the server. `hangups` are the SIGHUPs to follow."""
        super().__init__(settings, clock, hangups)
        self._store = store
        self._core: Core | None = None
        self._listeners: Listeners | None = None
        self._readers = Readers(settings)
        self._background: list[asyncio.Task[None]] = []
        self._shutdown: Shutdown | None = None

    @property
    def engine(self) -> Engine:
        """The engine, from `startup` on."""
        assert self._core is not None, "the server has not started"
        return self._core.engine

    @property
    def api(self) -> TopicsApi:
        """The API that all listeners call, from `startup` on."""
        assert self._core is not None, "the server has not started"
        return self._core.api

    def open(self) -> None:
        """Open the resources of the server: files, sockets, the store. Blocks; raises StartError."""
        self._resources = Resources.open(self._settings, self._store)
        self._readers = Readers(self._resources.settings)

    async def startup(self) -> None:
        """Listen, recover, serve. Health probes are answered during recovery; the other ports open after it.

        Raises StartError, StoreError or TopicsError; `shutdown` undoes a partial start.
        """
        resources = self._resources
        assert resources is not None, "open() comes first"
        self._core = core = Core(resources, self._clock, resources.store, authorizer=resources.settings.authorizer())
        self._ports = self._listeners = listeners = Listeners(resources, core, self._readers)
        if self._hangups is not None:
            self._hangups.follow(listeners.reload())
        self._background = [asyncio.create_task(each) for each in core.background(listeners.grpc.set_serving)]
        await listeners.start()
        began = time.monotonic()
        with core.api.observers("topics.recovery", {}):
            await maintenance.recover(core.engine, self._stop)
            core.recovered()
        maintenance.log_ready(core.engine)
        core.api.metrics.recovery_seconds = time.monotonic() - began
        listeners.grpc.set_serving(core.engine.ready().ready)
        if not self._stop.is_set():
            self._readers.start()
            await listeners.start_kafka()
            await listeners.start_postgres()

    async def shutdown(self) -> None:
        """Drain, end the background work, and make the rest durable."""
        core, listeners = self._core, self._listeners
        if core is None:
            return
        if listeners is not None:
            await asyncio.gather(self._readers.stop(), listeners.stop())
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        if self._hangups is not None:
            self._hangups.leave()
        kept, recovered = dict(core.engine.catalog.counts.by_class), core.engine.recovered >= 1
        await core.stop()
        core.authorizer.passwords.close()
        if self._stopped_at:
            forgotten = kept.pop("ephemeral", 0)
            self._shutdown = Shutdown(self._stopped_at, core.is_sound, recovered, sum(kept.values()), forgotten)

    def close(self) -> None:
        """Close the resources of `open` and log the outcome. Blocks."""
        if self._resources is None:
            return
        unwritten = self._resources.close(is_sound=self._shutdown is None or self._shutdown.is_sound)
        self._resources = None
        if self._shutdown is not None:
            log_stopped(self._shutdown, unwritten)
