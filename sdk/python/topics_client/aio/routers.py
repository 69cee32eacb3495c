"""Routers: copies of what is appended to one topic in another, made by the server."""

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
        """Make a router, or replace its configuration. True: it is new.

        A new one begins at the head of its source, with `backfill` before its earliest record. Without `create_dest`
        the destination has to be there. Raises ConflictError for a cycle, and for a destination that another topic
        feeds.
        """
        message = router_config(config, create_dest=create_dest, backfill=backfill)
        request = pb.PutRouterRequest(router=router, config=message)
        return (await self.connection.unary(self.connection.routers.PutRouter, request)).created

    async def get_router(self, router: str) -> RouterInfo:
        """A router, once it has come to where its source's head is now. Raises NotFoundError."""
        request = pb.GetRouterRequest(router=router)
        return router_info_of((await self.connection.unary(self.connection.routers.GetRouter, request)).state)

    async def list_routers(self, prefix: str = "", *, source: str = "", dest: str = "") -> AsyncIterator[RouterSummary]:
        """Routers by name, in byte order; those from `source` and to `dest` where these are given."""
        request = pb.ListRoutersRequest(prefix=prefix, source=source, dest=dest, page_size=1000)
        while True:
            reply = await self.connection.unary(self.connection.routers.ListRouters, request)
            for summary in reply.routers:
                yield router_summary_of(summary)
            if not reply.next_cursor:
                return
            request.cursor = reply.next_cursor

    async def delete_router(self, router: str) -> bool:
        """Remove a router; its copies stay. False: there was none."""
        request = pb.DeleteRouterRequest(router=router)
        return (await self.connection.unary(self.connection.routers.DeleteRouter, request)).deleted
