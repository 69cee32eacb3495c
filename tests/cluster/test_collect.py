"""Garbage of a shard: what goes when, and what never does."""

from random import Random

import msgspec
import pytest

from topics_backup.manifest import File, seal
from topics_cluster import checkpoint, collect, objects
from topics_cluster.checkpoint import Checkpoint, Entry
from topics_cluster.collect import DAY, HOUR, needed_of
from topics_cluster.memory import MemoryBucket
from topics_cluster.objects import Header, Kind, Op
from topics_service.storage.store import Family

SHARD = 0


class Bucket(MemoryBucket):
    """A bucket whose time is set."""

    def __init__(self) -> None:
        self.now = 1e6
        super().__init__(lambda: self.now)

    async def add(self, number: int, *, fence: bool = False) -> None:
        """An object of the log."""
        header = Header(Kind.FENCE if fence else Kind.DATA, SHARD, 1, number, number + 16, number, bytes(16))
        body = [] if fence else [objects.batch_start(number, 1), objects.row(Op.PUT, Family.META, b"k")]
        await self.create(objects.name(SHARD, number), objects.encode(header, body))

    async def checkpoint(self, number: int, *contents: str, files: bool = True) -> None:
        """A checkpoint with such files."""
        made = [File("CURRENT" if at == 0 else f"{at}.sst", 1, hash_of(each)) for at, each in enumerate(contents)]
        for file in made if files else ():
            self._objects[checkpoint.file_name(SHARD, file)] = b"x", self.now
        manifest = Checkpoint(
            format=1, shard=SHARD, number=number, epoch=1, ticket=number, applied=number, created_ms=0, node="a",
            server_version="", store_format="", files=made,
        )  # fmt: skip
        await self.create(checkpoint.name_of(SHARD, number), [seal(msgspec.json.encode(manifest))])

    async def left(self) -> tuple[list[int], list[int], str]:
        """Numbers of the log and of checkpoints, and the files."""
        log = [objects.number_of(each.name) for each in await self.list(objects.prefix(SHARD))]
        made = [number for number, _ in await checkpoint.entries(self, SHARD)]
        files = [each.name.rpartition("/")[2] for each in await self.list(checkpoint.files_of(SHARD))]
        return log, made, "".join(sorted(chr(int(each, 16)) for each in files))


def hash_of(content: str) -> str:
    return f"{ord(content):064x}"


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


async def test_data_below_the_second_newest_checkpoint_of_an_hour_ago_goes(bucket: Bucket) -> None:
    for number in range(1, 10):
        await bucket.add(number)
    await bucket.checkpoint(4, "a")
    bucket.now += HOUR + 1
    await collect.collect(bucket, SHARD, "1")
    assert (await bucket.left())[0] == list(range(1, 10)), "one checkpoint is none to fall back on"
    await bucket.checkpoint(8, "b")
    await bucket.add(10)
    bucket.now += HOUR
    await collect.collect(bucket, SHARD, "2")
    assert (await bucket.left())[0] == list(range(1, 11)), "no other one leads to the moments of the last hour"
    bucket.now += 1
    gone = await collect.collect(bucket, SHARD, "3")
    assert (await bucket.left())[0] == list(range(4, 11))
    assert gone.objects == 3


async def test_data_of_the_last_hour_stays(bucket: Bucket) -> None:
    await bucket.add(1)
    await bucket.checkpoint(5, "a")
    await bucket.checkpoint(6, "b")
    bucket.now += HOUR
    await collect.collect(bucket, SHARD, "1")
    assert (await bucket.left())[0] == [1]
    bucket.now += 1
    await collect.collect(bucket, SHARD, "2")
    assert (await bucket.left())[0] == []


async def test_fences_never_go(bucket: Bucket) -> None:
    await bucket.add(1, fence=True)
    await bucket.add(17)
    await bucket.add(18, fence=True)
    for number in range(40, 50):
        await bucket.checkpoint(number, "a")
    bucket.now += 1000 * DAY
    await collect.collect(bucket, SHARD, "1")
    assert (await bucket.left())[0] == [1, 18]


async def test_a_checkpoint_goes_when_two_higher_ones_are_an_hour_old(bucket: Bucket) -> None:
    for number in (3, 5, 7, 9):
        await bucket.checkpoint(number, "a")
        bucket.now += HOUR / 2
    await collect.collect(bucket, SHARD, "1")
    assert (await bucket.left())[1] == [3, 5, 7, 9]
    bucket.now += 1
    await collect.collect(bucket, SHARD, "2")
    assert (await bucket.left())[1] == [5, 7, 9]
    bucket.now += 10 * DAY
    await collect.collect(bucket, SHARD, "3")
    assert (await bucket.left())[1] == [7, 9]


@pytest.mark.parametrize(
    ("made", "gone"),
    [
        ([(1, 0.0), (2, 0.0), (3, 0.0)], [1]),
        ([(1, 0.0), (2, 5000.0), (3, 0.0)], []),  # 2 was the second newest a moment ago, and 1 may be relied on
        ([(1, 0.0), (2, 5000.0), (3, 0.0), (4, 0.0)], [1, 2]),
        ([(1, 5000.0), (2, 0.0), (3, 0.0)], [1]),
        ([(1, 0.0), (2, 0.0)], []),
        ([], []),
    ],
)
def test_which_checkpoints_go(made: list[tuple[int, float]], gone: list[int]) -> None:
    left = {number for number, _ in needed_of([Entry(*each) for each in made], 5000.0, HOUR)}
    assert [number for number, _ in made if number not in left] == gone


def test_of_a_window_the_first_checkpoint_of_each_hour_stays() -> None:
    made = [Entry(number, 600.0 * number) for number in range(100)]  # every ten minutes, for almost 17 hours
    left = [number for number, _ in needed_of(made, 60_000.0, 4 * HOUR)]
    recent = list(range(92, 100))  # those of the last hour, and two before
    assert left == [74, 75, 78, 84, 90, *recent]
    again = [each for each in made if each.number in left]
    assert needed_of(again, 60_000.0, 4 * HOUR) == again


@pytest.mark.parametrize("seed", range(6))
async def test_every_moment_of_the_window_can_be_restored(bucket: Bucket, seed: int) -> None:
    """Whatever comes when, from two checkpoints each: the log goes on from them, over fences too."""
    chance = Random(seed)
    window = chance.choice((HOUR, 3 * HOUR, 9 * HOUR))
    began, number, made = bucket.now, 1, {}
    starts: dict[int, float] = {}
    removed = 0
    for step in range(800):
        bucket.now += chance.choice((1, 60, 600, 2000)) * chance.random()
        if chance.random() < 0.1:
            await bucket.add(number, fence=True)
            number += 16
        elif chance.random() < 0.6:
            await bucket.add(number)
            made[number] = bucket.now
            number += 1
        elif chance.random() < 0.6:
            await bucket.checkpoint(number, "a")
            starts.setdefault(number, bucket.now)
        else:
            gone = await collect.collect(bucket, SHARD, str(step), 0.0 if window == HOUR else window)
            removed += gone.objects + gone.checkpoints
            log, checkpoints, _ = await bucket.left()
            old = [each for each, at in starts.items() if at < bucket.now - window]
            led = [each for each in old if each in checkpoints][-2:]
            assert len(led) == min(2, len(old))
            first = led[0] if len(led) == 2 else 0
            assert {each for each in made if each >= first} <= set(log)
    assert bucket.now - began > 3 * window
    assert removed


async def test_files_go_a_day_after_they_were_sent_if_no_checkpoint_has_them(bucket: Bucket) -> None:
    await bucket.checkpoint(1, *"ab")
    await bucket.checkpoint(2, *"bc")
    await bucket.checkpoint(3, *"cd")
    bucket._objects[f"s{SHARD}/files/{hash_of('x')}"] = b"x", bucket.now  # of a maker that was killed
    bucket.now += DAY
    await collect.collect(bucket, SHARD, "1")
    assert await bucket.left() == ([], [2, 3], "abcdx")
    bucket.now += 1
    gone = await collect.collect(bucket, SHARD, "2")
    assert await bucket.left() == ([], [2, 3], "bcd")
    assert (gone.files, gone.bytes) == (2, 2)


async def test_no_file_goes_while_a_manifest_cannot_be_read(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    await bucket.checkpoint(1, *"ab")
    await bucket.checkpoint(2, "c")
    bucket._objects[f"s{SHARD}/files/{hash_of('x')}"] = b"x", bucket.now
    bucket._objects[checkpoint.name_of(SHARD, 1)] = b"{}", bucket.now
    bucket.now += 2 * DAY
    await collect.collect(bucket, SHARD, "1")
    assert (await bucket.left())[2] == "abcx"
    assert f"files of checkpoints are not removed: the object {checkpoint.name_of(SHARD, 1)} is damaged" in caplog.text


async def test_no_file_goes_while_another_node_removes_checkpoints(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bucket.checkpoint(1, "a")
    bucket.now += 2 * DAY

    async def gone(*_: object) -> None:
        return None

    monkeypatch.setattr(collect, "load", gone)
    await collect.collect(bucket, SHARD, "1")
    assert (await bucket.left())[2] == "a"


async def test_the_time_is_that_of_the_store(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of this machine that is years ahead or behind makes no difference."""
    await bucket.add(1)
    await bucket.checkpoint(5, "a")
    await bucket.checkpoint(6, "b")
    monkeypatch.setattr("time.time", lambda: 4e9)
    await collect.collect(bucket, SHARD, "1")
    assert (await bucket.left())[0] == [1]
    assert [each.name for each in await bucket.list(f"s{SHARD}/clock/")] == []


async def test_what_a_killed_one_left_goes_and_what_is_not_ours_stays(bucket: Bucket) -> None:
    await bucket.create(f"s{SHARD}/clock/of-a-killed-one", [b""])
    await bucket.create(f"{objects.prefix(SHARD)}readme", [b"x" * 100])
    await bucket.create("s1/log/" + "0" * 19 + "1", [b"x" * 100])
    await bucket.checkpoint(5, "a")
    await bucket.checkpoint(6, "b")
    bucket.now += HOUR + 1
    await collect.collect(bucket, SHARD, "1")
    assert [each.name for each in await bucket.list("s")] == [
        f"s{SHARD}/ckpt/{5:020}",
        f"s{SHARD}/ckpt/{6:020}",
        f"s{SHARD}/files/{hash_of('a')}",
        f"s{SHARD}/files/{hash_of('b')}",
        f"s{SHARD}/log/readme",
        "s1/log/" + "0" * 19 + "1",
    ]
