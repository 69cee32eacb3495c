"""The client of one server. Producer and worker are imported when one is made: most programs need neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack, overload

from topics_client.aio.appends import AsyncAppends
from topics_client.aio.groups import AsyncGroups
from topics_client.aio.queues import AsyncQueues
from topics_client.aio.records import AsyncRecords
from topics_client.aio.routers import AsyncRouters
from topics_client.aio.sql import AsyncSql
from topics_client.aio.topics import AsyncTopics
from topics_client.codecs import Codec, codec_of
from topics_client.errors import UnavailableError
from topics_client.models import Job, Of
from topics_proto.v1 import admin_service_pb2 as pb

if TYPE_CHECKING:
    from topics_client.producer.api import AsyncProducer, ProducerOptions
    from topics_client.worker.api import AsyncWorker
    from topics_client.worker.executor import Handler
    from topics_client.worker.options import WorkerOptions


class AsyncTopicsClient(AsyncTopics, AsyncAppends, AsyncRecords, AsyncQueues, AsyncRouters, AsyncGroups, AsyncSql):
    """All calls of a server. Calls raise TopicsError; its subclasses are in `topics_client.errors`.

    One client is enough for a process: calls may run concurrently. It connects with the first call and reconnects
    automatically when the server comes back.
    """

    @overload
    def producer(self, **options: Unpack[ProducerOptions]) -> AsyncProducer: ...

    @overload
    def producer(self, *, of: type[Of], **options: Unpack[ProducerOptions]) -> AsyncProducer[Of]: ...

    @overload
    def producer(self, *, codec: Codec[Of], **options: Unpack[ProducerOptions]) -> AsyncProducer[Of]: ...

    def producer(
        self, *, of: Any = None, codec: Codec[Any] | None = None, **options: Unpack[ProducerOptions]
    ) -> AsyncProducer[Any]:
        """Create a producer, which appends many records in the background. See Producer for the options. Close it
        before the client. Values are encoded as the type `of` or by `codec`."""
        from topics_client.producer.api import AsyncProducer

        chosen = codec_of(of, codec, self.codec)
        return AsyncProducer(self.connection.blocking(), codec=chosen, **options)

    @overload
    def worker(self, queue: str, handler: Handler, **options: Unpack[WorkerOptions]) -> AsyncWorker: ...

    @overload
    def worker(
        self, queue: str, handler: Callable[[Job[Of]], Any], *, of: type[Of], **options: Unpack[WorkerOptions]
    ) -> AsyncWorker: ...

    @overload
    def worker(
        self, queue: str, handler: Callable[[Job[Of]], Any], *, codec: Codec[Of], **options: Unpack[WorkerOptions]
    ) -> AsyncWorker: ...

    def worker(
        self,
        queue: str,
        handler: Callable[[Job[Any]], Any],
        *,
        of: Any = None,
        codec: Codec[Any] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> AsyncWorker:
        """Create a worker, which calls `handler` for each job of a queue once it is run. See Worker for the options.
        Values of jobs are decoded as the type `of` or by `codec`; a job that can't be decoded fails."""
        from topics_client.worker.api import AsyncWorker

        return AsyncWorker(self.connection, queue, handler, codec=codec_of(of, codec, self.codec), **options)

    async def ready(self) -> bool:
        """Return True if the server is ready for traffic, False if it is not or can't be reached."""
        try:
            await self.connection.unary(self.connection.admin.GetReady, pb.GetReadyRequest(), repeatable=False)
        except UnavailableError:
            return False
        return True

    async def metrics(self) -> str:
        """Return the server's metrics in the Prometheus text format."""
        reply = await self.connection.unary(self.connection.admin.GetMetrics, pb.GetMetricsRequest())
        return reply.body.decode()
