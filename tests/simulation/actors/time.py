"""Clock, fsyncs and background work."""

from simulation.actors.base import Actor
from simulation.oracle import calls


class Clock(Actor):
    """Goes on in steps, and back now and then."""

    weight = 9

    def act(self) -> None:
        """See Actor."""
        world, step = self.world, self.pick(1, 1, 20, 51, 101, 101, 700, 3000)
        if self.chance(0.5):
            moments = sorted(self._moments())
            if moments:
                step = self.random.choice(moments[:3]) + self.pick(0, 0, 1) - world.now
        if self.chance(0.1):
            world.look()  # what is over stays so: it has been seen
            world.queues.refresh()
            step = -self.pick(1, 60, 150)
            world.trace.meet("the clock set back")
        self.tell(f"{step} ms")
        world.clock.advance(step)
        world.latest = max(world.latest, world.now)

    def _moments(self) -> set[int]:
        """When something ends: just then it has not ended yet."""
        world, found = self.world, set[int]()
        for topic, _, log in world.topics.logs():
            first = next(iter(log.view.live.values()), None)
            if first is not None and topic.config.ttl_ms:
                found.add(first.ts + topic.config.ttl_ms)
            found.update(key.created + topic.config.idempotency_window_ms for key in log.written.keys.values())
            found.update(rec.ready_at for rec in log.view.live.values())
        for queue in world.queues.models.values():
            found.update(job.lease.deadline if job.lease else job.free_at for job in queue.touched.values())
            found.add(queue.stuck_until - 1)
        return {moment for moment in found if world.now < moment < world.now + 5000}


class Fsync(Actor):
    """Begins fsyncs, which end late, and not in their order."""

    weight = 14

    def act(self) -> None:
        """See Actor."""
        world = self.world
        if world.is_read_only:
            return
        if world.flights and self.chance(0.6):
            which = self.random.randrange(len(world.flights))
            self.tell(f"{which} of {len(world.flights)} ends")
            if which:
                world.trace.meet("fsyncs that end out of step")
            world.end_sync(which)
        else:
            self.tell(f"begins, at {world.engine.writer.written}")
            world.begin_sync()


class Upkeep(Actor):
    """Seals, reclaims and sweeps."""

    weight = 8

    def act(self) -> None:
        """See Actor."""
        world = self.world
        if self.chance(0.3):
            self.tell("sweeps")
            calls.sweep(world)
            return
        for _ in range(self.random.randint(1, 3)):
            self.tell("a slice")
            world.look()
            written = world.w
            world.call(world.engine.maintain)
            world.trace.meet("a write of upkeep", world.w - written)
