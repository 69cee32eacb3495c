"""Group commit: shared fsyncs, visible before acknowledged, and what a failed fsync means for everyone."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from topics_service.api.scheduling.commit import GroupCommit
from topics_service.engine.errors import Reason, TopicsError


class Disk:
    """A store whose fsyncs the test lets through one by one."""

    def __init__(self) -> None:
        self.written = 0
        self.syncs: list[int] = []
        self.published: list[int] = []
        self.failures: list[BaseException] = []
        self.error: BaseException | None = None
        self.began = threading.Event()
        self.proceed = threading.Event()

    def sync(self) -> None:
        self.began.set()
        assert self.proceed.wait(10)
        self.proceed.clear()
        self.syncs.append(self.written)
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
async def commit(disk: Disk) -> AsyncIterator[GroupCommit]:
    commit = GroupCommit(disk.sync, lambda: disk.written, disk.published.append, disk.failures.append)
    yield commit
    disk.proceed.set()
    await asyncio.to_thread(commit.stop)


async def _begun(disk: Disk) -> None:
    assert await asyncio.to_thread(disk.began.wait, 10)
    disk.began.clear()


async def test_writes_that_come_while_an_fsync_runs_share_the_next_one(commit: GroupCommit, disk: Disk) -> None:
    disk.written = 1
    first = asyncio.create_task(commit.wait(1))
    await _begun(disk)
    disk.written = 5
    others = [asyncio.create_task(commit.wait(ticket)) for ticket in (2, 3, 4, 5)]
    await asyncio.sleep(0)
    disk.proceed.set()
    await first
    assert disk.published == [1], "the running fsync covers only what was written when it began"
    assert not any(task.done() for task in others)
    await _begun(disk)
    disk.proceed.set()
    await asyncio.gather(*others)
    assert disk.published == [1, 5]
    assert len(disk.syncs) == 2


async def test_writes_of_a_turn_of_the_loop_share_an_fsync(commit: GroupCommit, disk: Disk) -> None:
    disk.proceed.set()
    for disk.written in (1, 2, 3):
        commit.want(disk.written)
        assert not disk.began.wait(0.02), "it begins once the turn is over"
    await commit.wait(3)
    assert disk.syncs == [3]


async def test_it_is_visible_before_it_is_acknowledged(commit: GroupCommit, disk: Disk) -> None:
    disk.written = 1
    disk.proceed.set()
    await commit.wait(1)
    assert disk.published == [1]
    assert commit.covers(1)
    await commit.wait(1)
    assert len(disk.syncs) == 1, "what is durable is not synced again"


async def test_a_failed_fsync_fails_every_waiter_and_is_never_tried_again(commit: GroupCommit, disk: Disk) -> None:
    disk.written, disk.error = 2, OSError("disk on fire")
    waits = [asyncio.create_task(commit.wait(ticket)) for ticket in (1, 2)]
    disk.proceed.set()
    results = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(result) for result in results] == [TopicsError, TopicsError]
    assert all(isinstance(result, TopicsError) and result.reason is Reason.INTERNAL for result in results)
    assert disk.published == []
    assert disk.failures == [disk.error]
    with pytest.raises(TopicsError, match="could not be made durable"):
        await commit.wait(3)
    assert len(disk.syncs) == 1


async def test_a_cancelled_wait_leaves_nothing_behind_and_disturbs_nobody(commit: GroupCommit, disk: Disk) -> None:
    disk.written = 2
    gone, stays = asyncio.create_task(commit.wait(1)), asyncio.create_task(commit.wait(2))
    await _begun(disk)
    gone.cancel()
    disk.proceed.set()
    await stays
    assert gone.cancelled()
    assert commit.statistics.waiting == 0


async def test_stop_syncs_what_was_asked_for(disk: Disk) -> None:
    commit = GroupCommit(disk.sync, lambda: disk.written, disk.published.append, disk.failures.append)
    disk.written = 1
    commit.want(1)
    disk.proceed.set()
    await asyncio.to_thread(commit.stop)
    assert disk.syncs == [1]
