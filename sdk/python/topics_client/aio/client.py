"""The client of one server."""

from typing import Unpack

from topics.v1 import admin_service_pb2 as pb
from topics_client.aio.appends import AsyncAppends
from topics_client.aio.groups import AsyncGroups
from topics_client.aio.queues import AsyncQueues
from topics_client.aio.records import AsyncRecords
from topics_client.aio.routers import AsyncRouters
from topics_client.aio.topics import AsyncTopics
from topics_client.errors import UnavailableError
from topics_client.producer.faces import AsyncProducer, ProducerOptions
from topics_client.worker.faces import AsyncWorker
from topics_client.worker.handling import Handler
from topics_client.worker.options import WorkerOptions


class AsyncTopicsClient(AsyncTopics, AsyncAppends, AsyncRecords, AsyncQueues, AsyncRouters, AsyncGroups):
    """Everything that a server offers. Calls raise TopicsError; its kinds are in `topics_client.errors`.

    One client is enough for a process: calls may go on at the same time. It connects with the first call, and again by
    itself when the server comes back.
    """

    def producer(self, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """What appends many records fast, in the background; see there for the options. Close it before the client."""
        return AsyncProducer(self.connection.blocking(), **options)

    def worker(self, queue: str, handler: Handler, **options: Unpack[WorkerOptions]) -> AsyncWorker:
        """What calls `handler` for each job of a queue, once it is run; see there for the options."""
        return AsyncWorker(self.connection, queue, handler, **options)

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
