"""A killed owner that starts again, with writes in its own log that the object store does not have."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from support.held_bucket import HeldBucket
from support.shards import SHARD, Member, rows
from support.waiting import until
from topics_cluster import local_log, log, objects, resume
from topics_cluster.bucket import ObjectEntry
from topics_cluster.follower import Follower
from topics_cluster.local_log import LostTailError, trim, unshipped
from topics_cluster.log import OutOfOrderError
from topics_cluster.objects import Kind, LogObject
from topics_cluster.reuse import is_of_log
from topics_cluster.takeover import Ownership
from topics_service.storage import segments
from topics_service.storage.store import Family, StoreStalledError
from topics_service.storage.wal import archive


class KilledError(BaseException):
    """The process ends here."""


class Bucket(HeldBucket):
    """Remembers what was sent, and kills who makes the call with the number `kill_at`, before it is done or after."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, bytes] = {}
        self.calls = 0
        self.kill_at: float | None = None
        """A whole number: before the call of that number. With a half added: after it."""

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        self.sent[name] = b"".join(parts)
        self._begun()
        made = await super().create(name, parts)
        self._done()
        return made

    async def get(self, name: str) -> bytes | None:
        self._begun()
        found = await super().get(name)
        self._done()
        return found

    async def list(self, prefix: str, after: str = "", before: str = "") -> Sequence[ObjectEntry]:
        self._begun()
        found = await super().list(prefix, after, before)
        self._done()
        return found

    def _begun(self) -> None:
        self.calls += 1
        if self.kill_at is not None and self.calls >= self.kill_at:
            raise KilledError

    def _done(self) -> None:
        if self.kill_at is not None and self.calls + 0.5 >= self.kill_at:
            raise KilledError


@pytest.fixture(autouse=True)
def no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no times of batches, so that batches have the same sizes in each run."""
    monkeypatch.setattr("topics_cluster.store.now_ms", lambda: 0)


class Cluster:
    """An owner, what it has written, and those that read it."""

    def __init__(self, path: Path) -> None:
        self.bucket = Bucket()
        self.path = path
        self.members: list[Member] = []

    def member(self, name: str = "a") -> Member:
        self.members.append(Member(self.bucket, self.path / name))
        return self.members[-1]

    async def ahead(self, count: int, write: Callable[[Member], None] = lambda _owner: None) -> Member:
        """An owner with `count` writes that are in the log and as many that are not, and with what `write` does."""
        owner = self.member()
        await owner.own()
        for number in range(count):
            owner.put(b"in %d" % number, b"the log")
        await owner.sync()
        self.bucket.fate = lambda _name: "held"
        for number in range(count):
            owner.put(b"out %d" % number, b"of the log")
        write(owner)
        await until(lambda: set(self.bucket.sent) - set(self.bucket._objects))
        return owner

    def again(self, owner: Member) -> Member:
        """The directory of an owner that is killed, once the store does what it is asked to again."""
        owner.kill()
        self.bucket.fate = lambda _name: "made"
        return self.member()

    async def read(self) -> tuple[Member, list[int]]:
        """A new follower that has read the whole log, and the tickets of the batches that it applied."""
        fresh, tickets = self.member(f"fresh {len(self.members)}"), list[int]()

        def applied(found: LogObject) -> None:
            tickets.extend(batch.ticket for batch in found.batches)

        follower = Follower(self.bucket, fresh.store, SHARD)
        follower.on_applied = applied
        await follower.catch_up()
        return fresh, tickets

    async def check(self, owner: Member, ticket: int) -> None:
        """Everything that the owner has is in the log once, up to the ticket."""
        fresh, tickets = await self.read()
        assert tickets == list(range(1, ticket + 1))
        assert rows(fresh.store) == rows(owner.store)
        assert fresh.store.ticket == owner.store.ticket == ticket

    def fences(self) -> list[int]:
        """The numbers of all fences."""
        there = sorted(self.bucket._objects.items())
        found = (objects.decode(SHARD, objects.number_of(name), data).header for name, (data, _) in there)
        return [header.number for header in found if header.kind is Kind.FENCE]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.bucket.fate = lambda _name: "made"
    for member in cluster.members:
        member.kill()


async def test_the_rest_is_in_the_log_before_anything_else(cluster: Cluster) -> None:
    again = cluster.again(await cluster.ahead(3))
    assert await is_of_log(cluster.bucket, again.store, SHARD, resume.no_checkpoint)
    ownership = await again.resume()
    assert (ownership.epoch, ownership.position.ticket) == (2, 6)
    assert not again.store.is_ahead
    again.put(b"later", b"value")
    await again.sync()
    await cluster.check(again, 7)
    assert again.get(b"out 2") == b"of the log"


async def test_rows_of_all_kinds_come_back_as_they_were_written(cluster: Cluster) -> None:
    large, reference = bytes(range(256)) * 400, segments.encode(segments.Reference(1, 9000))

    def write(owner: Member) -> None:
        batch = owner.store.batch()
        batch.put(Family.BLOCKS, b"large", large)
        batch.put(Family.BLOCKS, b"small", b"value")
        batch.put(Family.BLOCKS, b"like a reference", reference)
        batch.put(Family.META, b"of the engine", b"value")
        for number in range(9):
            batch.put(Family.JOBS, b"%d" % number, large[:number])
        owner.store.write(batch)
        batch = owner.store.batch()
        batch.delete_range(Family.JOBS, b"2", b"5")
        batch.delete(Family.JOBS, b"7")
        batch.apply(Family.LEASES, {b"1": b"", b"2": None})
        batch.put(Family.BLOCKS, b"large", large[:5000])
        owner.store.write(batch)

    again = cluster.again(await cluster.ahead(1, write))
    await again.resume()
    await cluster.check(again, 4)
    assert again.store.get(Family.BLOCKS, b"large") == large[:5000]
    assert again.store.get(Family.BLOCKS, b"like a reference") == reference


async def test_what_the_former_life_sent_and_landed_before_the_fence_is_read(cluster: Cluster) -> None:
    again = cluster.again(await cluster.ahead(2, lambda owner: owner.put(b"late", bytes(9000))))
    late = min(name for name in cluster.bucket.sent if name not in cluster.bucket._objects)
    cluster.bucket.put(late, cluster.bucket.sent[late])
    ownership = await again.resume()
    assert ownership.position.ticket == 5
    fences = cluster.fences()
    assert [number - objects.number_of(late) for number in fences[1:]] == [1]
    await cluster.check(again, 5)


async def test_what_it_sent_and_landed_later_is_of_no_effect(cluster: Cluster) -> None:
    owner = await cluster.ahead(2)
    owner.put(b"1", bytes(log.EARLY_BYTES))
    await until(lambda: len(set(cluster.bucket.sent) - set(cluster.bucket._objects)) >= 2)
    sent = dict(cluster.bucket.sent)
    again = cluster.again(owner)
    await again.resume()
    late = [name for name in sent if name not in cluster.bucket._objects]
    assert late, "the fence took the place of one alone"
    for name in late:
        cluster.bucket.put(name, sent[name])
    again.put(b"later", b"value")
    await again.sync()
    await cluster.check(again, 6)


@pytest.mark.parametrize("step", [0, 0.5])
async def test_a_kill_at_any_step_loses_and_repeats_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """Each life comes one call further than the one before; together they end what one would have done."""
    monkeypatch.setattr(log, "MAX_OBJECT_BYTES", 100)
    monkeypatch.setattr(resume, "MAX_OBJECT_BYTES", 100)
    again = cluster.again(await cluster.ahead(4))
    lives = 0
    while True:
        lives += 1
        cluster.bucket.calls, cluster.bucket.kill_at = 0, lives + step
        try:
            if await is_of_log(cluster.bucket, again.store, SHARD, resume.no_checkpoint):
                await again.resume()
        except KilledError:
            cluster.bucket.kill_at = None
            again.kill()
            again = cluster.member()
            continue
        finally:
            cluster.bucket.kill_at = None
        break
    assert lives > 10
    assert again.uploader is not None
    assert again.store.ticket == 8
    await cluster.check(again, 8)


async def test_every_kill_is_followed_by_one_that_ends_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, but the second life is always whole, and the fence is not put again once it is there."""
    monkeypatch.setattr(log, "MAX_OBJECT_BYTES", 100)
    monkeypatch.setattr(resume, "MAX_OBJECT_BYTES", 100)
    owner = await cluster.ahead(4)
    before = dict(cluster.bucket._objects)
    owner.kill()
    cluster.bucket.fate = lambda _name: "made"
    at, ended = 1.0, False
    while not ended:
        cluster.bucket._objects = dict(before)
        copy = Member(cluster.bucket, _copy(cluster.path / "a", cluster.path / f"at {at}"))
        cluster.members.append(copy)
        cluster.bucket.calls, cluster.bucket.kill_at = 0, at
        try:
            await copy.resume()
            ended = True
        except KilledError:
            pass
        cluster.bucket.kill_at = None
        copy.kill()
        last = Member(cluster.bucket, copy.store.path)
        cluster.members.append(last)
        assert await is_of_log(cluster.bucket, last.store, SHARD, resume.no_checkpoint)
        await last.resume()
        await cluster.check(last, 8)
        at += 0.5
    assert at > 12


def _copy(source: Path, target: Path) -> Path:
    return shutil.copytree(source, target)


async def test_a_fence_that_lands_after_the_kill_is_known(cluster: Cluster) -> None:
    """Killed with its fence on the way, and once more after it was read."""
    again = cluster.again(await cluster.ahead(2))
    cluster.bucket.fate = lambda _name: "held"
    tried = len(cluster.bucket.tried)
    resuming = asyncio.create_task(again.resume())
    await until(lambda: len(cluster.bucket.tried) > tried)
    name = cluster.bucket.tried[-1]
    fence = cluster.bucket.sent[name]
    resuming.cancel()
    await asyncio.wait([resuming])
    again = cluster.again(again)
    await Follower(cluster.bucket, again.store, SHARD, nonce=again.store.fence).catch_up()
    cluster.bucket.put(name, fence)
    await Follower(cluster.bucket, again.store, SHARD, nonce=again.store.fence).catch_up()
    assert (again.store.position.epoch, again.store.fence, again.store.is_ahead) == (2, None, True)
    again = cluster.again(again)
    assert (await again.resume()).epoch == 3
    await cluster.check(again, 4)


async def test_a_node_that_fenced_first_wins(cluster: Cluster) -> None:
    again = cluster.again(await cluster.ahead(2))
    other = cluster.member("b")
    await other.own()
    with pytest.raises(OutOfOrderError, match="rows up to 4 are here"):
        await again.resume()
    assert not await is_of_log(cluster.bucket, again.store, SHARD, resume.no_checkpoint)
    other.put(b"other", b"value")
    await other.sync()
    await cluster.check(other, 3)


async def test_a_node_that_fences_while_it_is_shipped_wins(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was in the log by then stays there, and the rest is nowhere."""
    monkeypatch.setattr(log, "MAX_OBJECT_BYTES", 100)
    monkeypatch.setattr(resume, "MAX_OBJECT_BYTES", 100)
    again, others = cluster.again(await cluster.ahead(4)), HeldBucket()
    others._objects = cluster.bucket._objects
    cluster.bucket.fate = lambda _name: "held" if again.store.position.ticket == 6 else "made"
    resuming = asyncio.create_task(again.resume())
    await until(lambda: again.store.position.ticket == 6)
    other = Member(others, cluster.path / "b")
    cluster.members.append(other)
    assert (await other.own()).position.ticket == 6
    cluster.bucket.fate = lambda _name: "made"
    with pytest.raises(OutOfOrderError, match="rows up to 8 are here"):
        await resuming
    other.put(b"other", b"value")
    await other.sync()
    await cluster.check(other, 7)


async def test_of_two_at_once_one_owns(cluster: Cluster) -> None:
    again = cluster.again(await cluster.ahead(3))
    other = cluster.member("b")
    results = await asyncio.gather(again.resume(), other.own(), return_exceptions=True)
    owners = [each for each, result in zip((again, other), results, strict=True) if isinstance(result, Ownership)]
    assert owners
    last = owners[-1]
    last.put(b"later", b"value")
    await last.sync()
    await cluster.check(last, last.store.ticket)


async def test_it_waits_while_the_store_is_away(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_OBJECT_BYTES", 100)
    monkeypatch.setattr(resume, "MAX_OBJECT_BYTES", 100)
    again = cluster.again(await cluster.ahead(6))
    fates = iter(("made", "made", "error", "lost", "error", "made", "lost"))
    cluster.bucket.fate = lambda _name: next(fates, "made")  # type: ignore[arg-type, return-value]
    resuming = asyncio.create_task(again.resume())
    await until(lambda: again.store.position.ticket > 6)
    cluster.bucket.away = True
    await until(lambda: cluster.bucket.away)
    assert not resuming.done()
    cluster.bucket.away = False
    assert (await resuming).position.ticket == 12
    await cluster.check(again, 12)


def flush(member: Member) -> None:
    """Move everything into tables, and begin another log file."""
    for family in member.store.families:
        family.flush(True)


async def test_tables_and_clean_closes_take_nothing_from_the_log(cluster: Cluster) -> None:
    """Each open and close moves the log's rows into tables, and the file into the archive."""
    owner = await cluster.ahead(2)
    flush(owner)
    owner.put(b"in another file", b"value")
    again = cluster.again(owner)
    again.close()
    again = cluster.member()
    trim(again.store)
    await again.resume()
    await cluster.check(again, 5)
    trim(again.store)
    again.put(b"later", b"value")
    await again.sync()
    flush(again)
    again.put(b"later still", b"value")
    await again.sync()
    trim(again.store)
    assert not list(archive.numbered(again.store.path / "archive"))


async def test_more_than_rocksdb_itself_would_keep(cluster: Cluster) -> None:
    """The store is away for so long that files of the log were needed no more."""
    owner = Member(cluster.bucket, cluster.path / "a", reserve_bytes=4 << 20)
    cluster.members.append(owner)
    await owner.own()
    cluster.bucket.away = True

    def is_put(number: int) -> bool:
        try:
            owner.put(b"%d" % number, bytes(256 << 10), Family.BLOCKS)
        except StoreStalledError:  # RocksDB has to write tables first
            return False
        return True

    for number in range(40):
        await until(partial(is_put, number))
    await until(lambda: len(list(archive.numbered(owner.store.path / "archive"))) > 1)
    trim(owner.store)
    cluster.bucket.away = False
    again = cluster.again(owner)
    await again.resume()
    await cluster.check(again, 40)
    assert max(len(content) for content in cluster.bucket.objects()) <= log.MAX_OBJECT_BYTES + 4096


async def test_files_are_removed_as_long_as_a_store_is_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local_log, "_TRIM_SECONDS", 0.01)
    owner = cluster.member()
    await owner.own()
    owner.put(b"1", b"value")
    await owner.sync()
    flush(owner)
    owner.put(b"2", b"value")
    await owner.sync()
    folder = owner.store.path / "archive"
    await until(lambda: list(archive.numbered(folder)))
    trimming = asyncio.create_task(local_log.keep_trimmed(owner.store))
    await until(lambda: not list(archive.numbered(folder)))
    with monkeypatch.context() as patch:
        calls: list[object] = []

        def fail(store: object) -> None:
            calls.append(store)
            raise OSError("no such disk")

        patch.setattr(local_log, "trim", fail)
        await until(lambda: len(calls) > 3)
    trimming.cancel()
    await asyncio.wait([trimming])
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "can't trim the archive of the log: no such disk"
    ]


@pytest.mark.parametrize("fault", ["gone", "cut", "damaged"])
async def test_a_log_that_lacks_some_of_it_is_told_and_nothing_is_changed(cluster: Cluster, fault: str) -> None:
    again = cluster.again(await cluster.ahead(3))
    names = sorted(cluster.bucket._objects)
    _, path = max(archive.numbered(again.store.path / "archive"))
    data = path.read_bytes()
    at = data.rindex(b"out 1")
    match fault:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(data[:at])
        case "damaged":
            path.write_bytes(data[:at] + b"x" + data[at + 1 :])
    there = 0 if fault == "gone" else 1
    with pytest.raises(LostTailError, match=f"3 batches are not in the log .* has {there} of them"):
        await again.resume()
    assert sorted(cluster.bucket._objects) == names
    assert again.store.fence is None


async def test_the_log_of_a_follower_that_is_no_owner_has_nothing_to_ship(cluster: Cluster) -> None:
    owner = await cluster.ahead(3)
    cluster.bucket.fate = lambda _name: "made"
    await owner.sync()
    follower = cluster.member("b")
    await Follower(cluster.bucket, follower.store, SHARD).catch_up()
    assert list(unshipped(follower.store)) == []
    assert (await follower.resume()).position.ticket == 6


def test_the_life_of_a_directory_is_in_no_copy_of_it(tmp_path: Path) -> None:
    def life(name: str, boot: str = "boot") -> str:
        with Member(Bucket(), tmp_path / name, boot_id=boot) as member:
            return member.store.life

    first = life("a")
    assert life("a") == first
    assert life("b") != first
    assert life("a", "another boot") != first
    assert life("a", "") == ""
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert life("copy") != first
