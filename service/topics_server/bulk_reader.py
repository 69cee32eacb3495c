"""A bulk reader: the process that follows the server's database and serves BulkDiff from it, and nothing else.

`bulk_readers` starts it. It gets its settings on stdin, says on stdout which port it took, and ends when stdin does,
which is also when the server has died.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, cast

import grpc
import uvloop
from grpc.aio import ServicerContext
from grpc_health.v1 import health_pb2_grpc

from topics_proto.v1 import topics_service_pb2 as pb
from topics_server import logs
from topics_server.settings import Settings
from topics_server.tls import TlsError, certificates
from topics_service.api.bulk import Turns
from topics_service.api.grpc.bulk_diff import bulk_messages
from topics_service.api.grpc.guard import Guard
from topics_service.api.grpc.health import HealthServicer
from topics_service.api.grpc.options import filter_logs, server_options
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.engine.model import BulkRequest, DiffReply
from topics_service.engine.replica import Replica
from topics_service.storage.secondary import SecondaryStore
from topics_service.storage.store import StoreError

log = logging.getLogger("topics.bulk")

Context = ServicerContext[Any, Any]

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["TopicsService"].full_name
_NICE: Final = 10  # the server's loop comes first where there are fewer cores than processes
_FOLLOW_SECONDS: Final = 2.0  # files that the server has dropped take room on the disk until then
_FAILURES: Final = 5
_STORE_CACHE_BYTES: Final = 16 << 20
_BLOCK_CACHE_BYTES: Final = 32 << 20
_REQUEST_BYTES: Final = 1 << 20


class ReplicaApi:
    """The part of `TopicsApi` that a BulkDiff calls, on a replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.draining = False

    @property
    def limits(self) -> Limits:
        """The limits that requests meet."""
        return self._replica.limits

    async def bulk(self, request: BulkRequest) -> tuple[DiffReply, int]:
        """One page; see `Replica.bulk`. Raises `shutting_down` too."""
        if self.draining:
            raise TopicsError(Reason.SHUTTING_DOWN, "the bulk reader is shutting down")
        return self._replica.bulk(request)


class BulkServicer:
    """BulkDiff of TopicsService, up to an `end_seq`; its other calls are UNIMPLEMENTED."""

    def __init__(self, api: ReplicaApi) -> None:
        self._api = cast(TopicsApi, api)  # a BulkDiff needs only this part
        self._turns = Turns()

    def register(self, server: grpc.aio.Server) -> None:
        """Add the one call to a server."""
        call: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
            self._bulk_diff, pb.BulkDiffRequest.FromString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"BulkDiff": call}),))

    async def _bulk_diff(self, request: pb.BulkDiffRequest, context: Context) -> AsyncIterator[bytes]:
        """See AdminService.ListBulkReaders. Yields serialized messages."""
        if request.follow:
            raise invalid("a bulk reader does not follow: ask the server")
        async with aclosing(bulk_messages(self._api, request, self._turns)) as messages:
            async for message in messages:
                yield message


def main() -> None:
    """Serve until stdin ends or SIGTERM comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to everyone; the server closes stdin then
    settings: Settings
    try:
        settings, own = pickle.load(sys.stdin.buffer)  # from the process that started this one
    except EOFError:  # which has ended already
        return
    os.nice(_NICE)
    logs.configure(settings.log_level, settings.log_format)
    try:
        store = SecondaryStore(settings.data_path, Path(own), block_cache_bytes=_STORE_CACHE_BYTES)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_serve(settings, store))
        finally:
            store.close()
    except (StoreError, TlsError) as error:  # it is started again
        sys.exit(f"bulk reader: {error}")
    finally:
        shutil.rmtree(own, ignore_errors=True)


async def _serve(settings: Settings, store: SecondaryStore) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    stdin = sys.stdin.fileno()

    def on_message() -> None:
        if not os.read(stdin, 1):
            loop.remove_reader(stdin)
            stop.set()

    loop.add_reader(stdin, on_message)
    replica = Replica(store, SystemClock(), limits=settings.limits, cache_bytes=_BLOCK_CACHE_BYTES)
    api = ReplicaApi(replica)
    authorizer = settings.authorizer()
    filter_logs()
    health = HealthServicer(("", _SERVICE))
    server = grpc.aio.server(
        interceptors=[Guard(authorizer)], options=server_options(_REQUEST_BYTES, settings.grpc_max_connections)
    )
    BulkServicer(api).register(server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    common, address = certificates(settings).common, f"{host}:0"
    if common is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, common.grpc_credentials())
    replica.follow()
    await server.start()
    health.set_serving(True)
    following = asyncio.create_task(_follow(replica, stop))
    print(port, flush=True)  # noqa: T201  # the server reads it
    await stop.wait()
    following.cancel()
    api.draining = True
    health.close()
    await server.stop(settings.drain_seconds)


async def _follow(replica: Replica, stop: asyncio.Event) -> None:
    """Follow the writer between reads; end the process if that fails again and again."""
    failures = 0
    while failures < _FAILURES:
        await asyncio.sleep(_FOLLOW_SECONDS)
        try:
            replica.follow()
            failures = 0
        except TopicsError as error:
            failures += 1
            log.warning("%s", error)
    log.error("bulk reader gives up")
    stop.set()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the server died before it got the port
        main()
