"""Routers: the server copies records from one topic to another."""

from collections.abc import AsyncIterator

from topics_client.aio.base import AsyncBase
from topics_client.decoding import router_info_of, router_summary_of
from topics_client.models import RouterConfig, RouterInfo, RouterSummary
from topics_client.requests import router_config
from topics_proto.v1 import router_service_pb2 as pb


class AsyncRouters(AsyncBase):
    """Calls on routers."""

    async def put_router(
        self, router: str, config: RouterConfig, *, create_dest: bool = True, backfill: bool = False
    ) -> bool:
        """Create a router or replace its configuration. Returns True if it is new.

        A new router starts at the head of its source, or at its earliest record with `backfill`. Without `create_dest`
        the destination must exist. Raises ConflictError for a cycle, and for a destination fed by another topic.
        """
        message = router_config(config, create_dest=create_dest, backfill=backfill)
        request = pb.PutRouterRequest(router=router, config=message)
        return (await self.connection.unary(self.connection.routers.PutRouter, request)).created

    async def get_router(self, router: str) -> RouterInfo:
        """Return a router, once it has caught up with its source's current head. Raises NotFoundError."""
        request = pb.GetRouterRequest(router=router)
        return router_info_of((await self.connection.unary(self.connection.routers.GetRouter, request)).state)

    async def list_routers(self, prefix: str = "", *, source: str = "", dest: str = "") -> AsyncIterator[RouterSummary]:
        """List routers by name, in byte order; if given, only those from `source` and to `dest`."""
        request = pb.ListRoutersRequest(prefix=prefix, source=source, dest=dest, page_size=1000)
        while True:
            reply = await self.connection.unary(self.connection.routers.ListRouters, request)
            for summary in reply.routers:
                yield router_summary_of(summary)
            if not reply.next_cursor:
                return
            request.cursor = reply.next_cursor

    async def delete_router(self, router: str) -> bool:
        """Delete a router; its copies stay. Returns False if there was none."""
        request = pb.DeleteRouterRequest(router=router)
        return (await self.connection.unary(self.connection.routers.DeleteRouter, request)).deleted
