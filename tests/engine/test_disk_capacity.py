"""Without room on the disk whatever adds records is refused, and whatever frees some is taken."""

import pytest
from batch_support import BatchWorld
from engine_support import code

from topics_service.engine.errors import Reason, TopicsError


class Disk:
    """Room for writes of up to `maximum` bytes."""

    maximum = 1 << 30

    def is_scarce(self) -> bool:
        return True

    def check(self, nbytes: int) -> None:
        if nbytes > self.maximum:
            raise TopicsError(Reason.THROTTLED, "the disk is nearly full", {"limit": "min_free_bytes"})


@pytest.fixture
def world() -> BatchWorld:
    world = BatchWorld()
    disk = world.engine.capacity.disk = Disk()
    world.put("source")
    world.route("source", "copies")
    world.queue(dead_letter="letters", max_deliveries=1)
    world.put("letters")
    world.append(100, 100, topic="source")
    world.work(100, 100)
    world.claim()
    world.clock.advance(2000)
    disk.maximum = 50
    return world


def test_what_adds_records_is_refused(world: BatchWorld) -> None:
    before = world.state("source").head_seq
    for write in (lambda: world.append(100, topic="source"), lambda: world.produce(b"x" * 100, topic="source")):
        with pytest.raises(TopicsError) as error:
            write()
        assert code(error) == "throttled"
    assert world.state("source").head_seq == before
    world.forward()
    assert world.state("copies").head_seq == 0
    assert world.engine.routers.get("source->copies").last_error == "the disk is nearly full"
    world.claim(max_jobs=9)
    world.engine.sync()
    assert world.state("letters").head_seq == 0, "the dead letter waits"
    assert world.append(10, topic="source").count == 1, "there is room for a small one"


def test_what_waited_goes_on_when_there_is_room(world: BatchWorld) -> None:
    world.forward()
    assert isinstance(world.engine.capacity.disk, Disk)
    world.engine.capacity.disk.maximum = 1 << 30
    world.clock.advance(60_000)
    world.maintain()
    world.forward()
    world.claim()
    world.engine.sync()
    assert (world.state("copies").head_seq, world.state("letters").head_seq) == (2, 1)


def test_what_makes_room_is_taken(world: BatchWorld) -> None:
    (job,) = world.claim()
    assert world.ack(job.seq).done == 1
    assert world.delete(before=2, topic="source").deleted == 1
    world.put("source", cap_records=1)
    assert world.engine.delete_topic("source")[0].deleted


def test_whoever_gives_space_back_is_told_what_is_dead(world: BatchWorld) -> None:
    freed: list[tuple[int, int | None]] = []
    world.engine.writer.on_freed = lambda log_id, stop: freed.append((log_id, stop))
    log_id = world.engine.catalog.topics["source"].log.log_id
    world.delete(before=3, topic="source")
    world.maintain()
    assert freed == [(log_id, 3)]
    world.engine.delete_topic("source")
    assert freed[1:] == [(log_id, None)]
