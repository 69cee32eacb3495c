"""What goes wrong."""

from simulation.actors.base import Actor
from topics_service.storage.store import StoreError


class Chaos(Actor):
    """Ends of processes and machines at any moment, also within calls and starts; disks that stall and fail."""

    weight = 6

    def act(self) -> None:
        """See Actor."""
        world, dice = self.world, self.random.random()
        if world.is_read_only:
            if dice < 0.5:
                self.tell("a restart after a failure of the disk")
                self._end()
        elif dice < 0.35:
            world.disk.fuse = self.random.randrange(4)
            self.tell(f"the process will die before operation {world.disk.fuse}")
        elif dice < 0.5:
            self._end()
        elif dice < 0.65:
            self.tell("a clean restart")
            if self.chance(0.3):
                world.disk.fuse = self.random.randrange(2)
            world.close()
            world.trace.meet("a clean restart")
        elif dice < 0.9:
            world.disk.stalls = self.random.randrange(3)
            self.tell(f"write {world.disk.stalls} from now is refused")
        elif dice < 0.95:
            world.disk.breaks = self.random.randrange(3)
            self.tell(f"write {world.disk.breaks} from now fails")
        else:
            self.tell("an fsync fails")
            world.flights.clear()
            world.engine.sync_failed(StoreError("fsync failed: input/output error"))
            world.trace.meet("an fsync that failed")

    def died(self) -> None:
        """The process has died within a call."""
        self.world.trace.meet("a crash within a call")
        self._end()

    def _end(self) -> None:
        power = self.chance(0.5)
        fuses = tuple(self.random.randrange(3) for _ in range(self.pick(0, 0, 1, 2)))
        self.tell(f"{'power cut' if power else 'kill'}, and starts that die at {fuses}")
        self.world.trace.meet("a power cut" if power else "a kill")
        self.world.crash(power=power, fuses=fuses)
