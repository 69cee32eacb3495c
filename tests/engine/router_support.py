"""A world with routers, and short ways to make and look at them."""

from typing import Any

from engine_support import World, records

from topics_service.engine.model import TagMatch
from topics_service.engine.router.router import PutRouterReply, PutRouterRequest, RouterConfig, RouterState


class RouterWorld(World):
    """A World that can also forward."""

    def route(
        self,
        source: str,
        dest: str,
        name: str | None = None,
        *,
        create_dest: bool = True,
        backfill: bool = False,
        eq: bytes | None = None,
        sync: bool = True,
        **config: Any,
    ) -> PutRouterReply:
        """PUT a router, named `source->dest` unless it has another name."""
        if eq is not None:
            config["filter"] = TagMatch("Eq", eq)
        request = PutRouterRequest(
            router=f"{source}->{dest}" if name is None else name,
            config=RouterConfig(source=source, dest=dest, **config),
            create_dest=create_dest,
            backfill=backfill,
        )
        reply, _ = self.engine.routers.put(request)
        if sync:
            self.engine.sync()
        return reply

    def unroute(self, name: str) -> bool:
        reply, _ = self.engine.routers.delete(name)
        self.engine.sync()
        return reply.deleted

    def forward(self, *, sync: bool = True) -> None:
        """Forward until nothing is due."""
        for _ in range(10_000):
            self.engine.routers.forward()
            if sync:
                self.engine.sync()
            if not self.engine.routers._due and not self.engine.routers._grown:
                return
        raise AssertionError("forwarding never ends")

    def router(self, name: str) -> RouterState:
        return self.engine.routers.get(name)

    def datas(self, topic: str) -> list[bytes]:
        return [data for _, data in self.walk(topic)]

    def metas(self, topic: str) -> list[bytes | None]:
        """The metas of the first page."""
        return self.column(topic, "metas")

    def column(self, topic: str, name: str) -> list[bytes | None]:
        """A column of the first page."""
        page = self.diff(topic=topic, limit=1000)
        found: list[bytes | None] = []
        for part in page.slices:
            column = getattr(part.block, name)
            found += [None if column is None else column[i] for i in range(part.start, part.stop)]
        return found

    def gaps(self, topic: str) -> list[tuple[int, int, str]]:
        """The tombstones that a reader from the beginning gets."""
        found, cursor = [], 0
        while True:
            page = self.diff(cursor, topic=topic, limit=1000)
            if page.tombstone is not None:
                found.append((page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason))
            if page.caught_up:
                return found
            assert records(page) or page.next_from_seq > cursor
            cursor = page.next_from_seq
