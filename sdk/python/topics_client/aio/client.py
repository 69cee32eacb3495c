"""The client of one server."""

from collections.abc import Callable
from typing import Any, Unpack, overload

from topics_client.aio.appends import AsyncAppends
from topics_client.aio.groups import AsyncGroups
from topics_client.aio.queues import AsyncQueues
from topics_client.aio.records import AsyncRecords
from topics_client.aio.routers import AsyncRouters
from topics_client.aio.topics import AsyncTopics
from topics_client.codecs import Codec, codec_of
from topics_client.errors import UnavailableError
from topics_client.models import Job, Of
from topics_client.producer.api import AsyncProducer, ProducerOptions
from topics_client.worker.api import AsyncWorker
from topics_client.worker.executor import Handler
from topics_client.worker.options import WorkerOptions
from topics_proto.v1 import admin_service_pb2 as pb


class AsyncTopicsClient(AsyncTopics, AsyncAppends, AsyncRecords, AsyncQueues, AsyncRouters, AsyncGroups):
    """Everything that a server offers. Calls raise TopicsError; its kinds are in `topics_client.errors`.

    One client is enough for a process: calls may go on at the same time. It connects with the first call, and again by
    itself when the server comes back.
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
        """What appends many records fast, in the background; see there for the options. Close it before the client.
        With `of`, a type, or a `codec` its values are of that."""
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
        """What calls `handler` for each job of a queue, once it is run; see there for the options. With `of`, a type,
        or a `codec` the jobs come with their values as that; one that can't be decoded fails."""
        return AsyncWorker(self.connection, queue, handler, codec=codec_of(of, codec, self.codec), **options)

    async def ready(self) -> bool:
        """Whether the server takes traffic now; False also when it can't be reached."""
        try:
            await self.connection.unary(self.connection.admin.GetReady, pb.GetReadyRequest(), repeatable=False)
        except UnavailableError:
            return False
        return True

    async def metrics(self) -> str:
        """The metrics of the server, as Prometheus reads them."""
        reply = await self.connection.unary(self.connection.admin.GetMetrics, pb.GetMetricsRequest())
        return reply.body.decode()
