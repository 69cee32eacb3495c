"""The client of one server."""

from topics.v1 import admin_service_pb2 as pb
from topics_client.aio.groups import AsyncGroups
from topics_client.aio.queues import AsyncQueues
from topics_client.aio.records import AsyncRecords
from topics_client.aio.routers import AsyncRouters
from topics_client.aio.topics import AsyncTopics
from topics_client.errors import UnavailableError


class AsyncTopicsClient(AsyncTopics, AsyncRecords, AsyncQueues, AsyncRouters, AsyncGroups):
    """Everything that a server offers. Calls raise TopicsError; its kinds are in `topics_client.errors`.

    One client is enough for a process: calls may go on at the same time. It connects with the first call, and again by
    itself when the server comes back.
    """

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
