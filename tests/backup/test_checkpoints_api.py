"""The keeper of checkpoints, on a maker that waits, fails or is given up."""

import asyncio
import threading
from pathlib import Path

import pytest

from topics_service.api.checkpoints import MAX_CHECKPOINTS, Checkpoints
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ReadyState


class Maker:
    """Makes directories, once `go` is set; `failing` makes it fail."""

    def __init__(self, directory: Path) -> None:
        self.go = threading.Event()
        self.go.set()
        self.failing = False
        self.running = 0
        self.most_running = 0
        self.state = ReadyState(ready=True, reason="", topics=3, replay_progress=1.0)
        self.keeper = Checkpoints(directory, self.make, self.discard, lambda: self.state)

    def make(self, path: Path) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            self.go.wait(20)
            if self.failing:
                raise OSError("no space left")
            path.mkdir(parents=True)
            (path / "file").write_bytes(bytes(10))
        finally:
            self.running -= 1

    def discard(self, path: Path) -> None:
        (path / "file").unlink()
        path.rmdir()


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "checkpoints")


async def test_one_after_the_other_and_no_more_than_so_many(maker: Maker, tmp_path: Path) -> None:
    maker.go.clear()
    tasks = [asyncio.create_task(maker.keeper.create()) for _ in range(MAX_CHECKPOINTS)]
    await asyncio.sleep(0)
    with pytest.raises(TopicsError) as refused:
        await maker.keeper.create()
    assert refused.value.reason is Reason.THROTTLED
    maker.go.set()
    held = await asyncio.gather(*tasks)
    assert maker.most_running == 1
    assert len({each.checkpoint_id for each in held}) == MAX_CHECKPOINTS
    assert all(each.bytes == 10 and each.topics == 3 for each in held)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == sorted(
        each.checkpoint_id for each in held
    )
    for each in held:
        assert await maker.keeper.release(each.checkpoint_id)
    assert not list((tmp_path / "checkpoints").iterdir())


async def test_a_link_in_the_place_of_the_checkpoints_is_not_followed(maker: Maker, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "mine").mkdir(parents=True)
    (other / "mine" / "file").touch()
    (tmp_path / "checkpoints").symlink_to(other)
    maker.keeper.clear()
    assert (other / "mine" / "file").exists()
    assert not (tmp_path / "checkpoints").is_symlink()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "left").symlink_to(other)
    maker.keeper.clear()
    assert (other / "mine" / "file").exists()
    assert not (tmp_path / "checkpoints").exists()


async def test_what_failed_does_not_count(maker: Maker) -> None:
    maker.failing = True
    for _ in range(2 * MAX_CHECKPOINTS):
        with pytest.raises(TopicsError, match="the server's log says why") as failed:
            await maker.keeper.create()
        assert failed.value.reason is Reason.INTERNAL
    maker.failing = False
    await maker.keeper.create()


async def test_a_call_that_is_given_up_leaves_none(maker: Maker, tmp_path: Path) -> None:
    maker.go.clear()
    tasks = [asyncio.create_task(maker.keeper.create()) for _ in range(2)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    maker.go.set()
    async with asyncio.timeout(10):
        while not (tmp_path / "checkpoints").exists() or list((tmp_path / "checkpoints").iterdir()):
            await asyncio.sleep(0.01)
        for _ in range(MAX_CHECKPOINTS):
            await maker.keeper.create()


@pytest.mark.parametrize("reason", ["not_ready", "read_only", "shutting_down"])
async def test_none_of_a_server_that_is_not_ready(maker: Maker, reason: str) -> None:
    maker.state = ReadyState(ready=False, reason=reason, topics=0, replay_progress=0.5)
    with pytest.raises(TopicsError, match=reason) as refused:
        await maker.keeper.create()
    wanted = Reason.SHUTTING_DOWN if reason == "shutting_down" else Reason.NOT_READY
    assert refused.value.reason is wanted


async def test_a_server_that_fails_while_one_waits_for_its_turn(maker: Maker) -> None:
    maker.go.clear()
    first, second = (asyncio.create_task(maker.keeper.create()) for _ in range(2))
    await asyncio.sleep(0.05)
    maker.state = ReadyState(ready=False, reason="read_only", topics=0, replay_progress=1.0)
    maker.go.set()
    assert (await first).topics == 3
    with pytest.raises(TopicsError, match="read_only"):
        await second
