"""Routers: made, changed, deleted and made again, and the slices of their work."""

from simulation.actors.base import LOGS, Actor
from topics_service.engine.model import TagMatch
from topics_service.engine.router.router import PutRouterRequest, RouterConfig

ROUTERS = ("r1", "r2", "r3", "r4")


class Routing(Actor):
    """Puts routers between topics, in chains and cycles and into a queue."""

    weight = 3

    def act(self) -> None:
        """See Actor."""
        name, world = self.pick(*ROUTERS), self.world
        old = world.routers.standing.get(name)
        if old is not None and self.chance(0.3):
            self.tell(f"deletes {name}")
            world.routers.delete(name)
            if self.chance(0.5):
                self.tell(f"makes {name} again")
                world.routers.put(PutRouterRequest(router=name, config=old[0], backfill=True))
                world.trace.meet("a router made again with backfill")
            return
        source, dest = self.pick(*LOGS), self.pick(*LOGS, *LOGS, "q")
        if old is not None and self.chance(0.4):
            source, dest = old[0].source, old[0].dest
        ring = bool(world.routers.standing) and self.chance(0.15)
        if ring:
            other = world.routers.standing[self.random.choice(sorted(world.routers.standing))][0]
            source, dest = other.dest, other.source
        config = RouterConfig(
            source=source,
            dest=dest,
            filter=TagMatch(self.pick("Eq", "Glob"), self.pick(b"a", b"")) if self.chance(0.3) else None,
            preserve_tag=self.chance(0.8),
            preserve_node=self.chance(0.8),
            guarantee=self.pick("exactly_once", "at_least_once"),
            allow_cycle=ring or self.chance(0.25),
        )
        self.tell(f"puts {name} {config}")
        world.routers.put(PutRouterRequest(router=name, config=config, backfill=self.chance(0.5)))


class Forwarder(Actor):
    """Slices of forwarding; and readers of a destination, who wait for it."""

    weight = 12

    def act(self) -> None:
        """See Actor."""
        routers = self.world.engine.routers
        topic = self.topic(*LOGS) if self.chance(0.1) else None
        if topic is not None:
            self.tell(f"pursues what goes to {topic.name}")
            for catch_up in routers.behind(topic.name):
                while self.world.call(lambda catch_up=catch_up: routers.advance(catch_up)):  # type: ignore[misc]
                    pass
            return
        slices = self.random.randint(1, 4)
        self.tell(f"{slices} slices")
        for _ in range(slices):
            self.world.call(routers.forward)
