"""Points in time of a shard: its log, and the checkpoints that it continues from, as an archive. Changes nothing there.

A moment is a batch: everything up to it, and nothing behind. Tickets number the batches of all epochs, so a moment is a
ticket. What fences leave out is in no moment, as no owner has acknowledged it.
"""

import struct
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from topics_backup import inventory
from topics_backup.errors import AbsentError, BackupError, LogError
from topics_backup.log import shown
from topics_backup.manifest import Topic
from topics_backup.moments import explain
from topics_backup.reaching import Put, Reaching, stood
from topics_backup.reaching import shown as shown_partition
from topics_cluster import objects
from topics_cluster.bucket import Bucket
from topics_cluster.checkpoint import FORMAT, Checkpoint, entries, load, newest_position
from topics_cluster.log import START, OutOfOrderError, Position, Tail
from topics_cluster.objects import Batch, DamagedObjectError, Kind, LogObject, Op
from topics_cluster.reading import contents
from topics_cluster.restore import restore
from topics_cluster.store import now_ms
from topics_service.storage import keys
from topics_service.storage.store import Family
from topics_service.storage.wal.batches import MOMENT_KEY

SKEW_MS: Final = 60_000
"""The clocks of two owners may differ by so much."""
_MOST_GETS: Final = 32

Report = Callable[[str], None]


class Cut(NamedTuple):
    """The last batch that is taken: its ticket, and when it was written."""

    ticket: int
    written_ms: int


class Range(NamedTuple):
    """Times that can be restored, the number of checkpoints in that range, and the bytes of log behind them."""

    from_ms: int
    until_ms: int
    checkpoints: int
    bytes: int


class Piece(NamedTuple):
    """An object behind a checkpoint. Of its batches those that the checkpoint has are left out; `written_ms` is the
    time of each by its owner's clock, `position` that behind the object."""

    found: LogObject
    written_ms: Sequence[int]
    position: Position
    nbytes: int


class Archive:
    """The log and the checkpoints of a shard. `report` gets what is damaged and can be done without."""

    def __init__(self, bucket: Bucket, shard: int, report: Report = lambda _text: None) -> None:
        self.bucket = bucket
        self.shard = shard
        self.report = report
        self._numbers: list[int] | None = None
        self._loaded: dict[int, Checkpoint | None] = {}

    async def bases(self) -> AsyncGenerator[Checkpoint]:
        """The checkpoints that were there at the first call, the newest first; the empty one if none was made yet.

        Raises BucketError, and CheckpointError for one of a later version.
        """
        if self._numbers is None:
            self._numbers = [number for number, _ in reversed(await entries(self.bucket, self.shard))]
        if not self._numbers:
            yield _empty(self.shard)
        for number in self._numbers:
            if number not in self._loaded:
                self._loaded[number] = await self._load(number)
            found = self._loaded[number]
            if found is not None:
                yield found

    async def _load(self, number: int) -> Checkpoint | None:
        try:
            return await load(self.bucket, self.shard, number)
        except DamagedObjectError as error:
            self.report(f"{error}; an older checkpoint takes its place")
            return None

    async def behind(self, base: Checkpoint) -> AsyncGenerator[Piece]:
        """The objects behind a checkpoint, to the end of the log.

        Raises LogError for one that is damaged or missing, LaterFormatError and BucketError.
        """
        tail, last_ms = Tail(self.shard, base.position, base.applied), base.from_ms
        async with aclosing(contents(self.bucket, tail, _MOST_GETS, lambda: _MOST_GETS)) as every:
            async for data in every:
                name = objects.name(self.shard, tail.next)
                try:
                    found = tail.read(data)
                except (DamagedObjectError, OutOfOrderError) as error:
                    raise LogError(last_ms + 1, str(error)) from error
                assert found is not None, "there is data"
                written = []
                with _readable(name, last_ms):
                    for batch in found.batches:
                        last_ms = _written_ms(batch) or last_ms
                        written.append(last_ms)
                yield Piece(found, written, tail.position, len(data))
        if await self._is_hole(tail):
            raise LogError(last_ms + 1, f"the object {objects.name(self.shard, tail.next)} is missing")

    async def at_time(self, ms: int, *, may_begin_later: bool = False) -> Cut:
        """Everything up to the last batch that was written at `ms` or before. Reading ends when batches are so much
        later that no clock explains it. With `may_begin_later` it is nothing at all before the first batch of a whole
        log.

        Raises BackupError if that moment can't be restored, and BucketError.
        """
        cut, last_ms = Cut(0, 0), 0
        base = await self._base(ms)
        if base is not None:
            cut, last_ms = Cut(base.applied, base.from_ms), base.from_ms
            try:
                async with aclosing(self._batches(base)) as every:
                    async for batch, written in every:
                        last_ms = max(last_ms, written)
                        if written <= ms:
                            cut = Cut(batch.ticket, written)
                        elif written > ms + SKEW_MS:
                            break
            except LogError as error:
                if last_ms < ms:
                    raise explain(base.from_ms, error) from error
                self.report(f"{error}, behind what is restored")
        is_whole = base is not None and not base.files
        if may_begin_later and is_whole and not cut.written_ms and (last_ms > ms or (not last_ms and ms <= now_ms())):
            return cut
        if not cut.written_ms or ms > max(last_ms, now_ms()):
            raise BackupError(f"{shown(ms)} can't be restored: {await self._what_can()}")
        return cut

    async def at_end(self) -> Cut:
        """Everything that is in the log. Raises BackupError and BucketError."""
        base = await self._base()
        if base is None:
            raise BackupError(f"no checkpoint of shard {self.shard} is intact")
        cut = Cut(base.applied, base.from_ms)
        try:
            async with aclosing(self._batches(base)) as every:
                async for batch, written in every:
                    cut = Cut(batch.ticket, written)
        except LogError as error:
            raise explain(base.from_ms, error) from error
        if not cut.written_ms:
            raise AbsentError("the log is empty")
        return cut

    async def at_seq(self, topic: str, partition: int, seq: int, scratch: Path) -> Cut:
        """Everything up to the batch with which a partition reached `seq`. Of successive topics with that name, the
        last one that reached it counts.

        Looks further and further back: from the newest checkpoint, the second, the fourth, and so on, each of which is
        restored in `scratch`. Raises BackupError, AbsentError where the log does not show it, and BucketError.
        """
        bases = [each async for each in self.bases()]
        until: int | None = None
        at = 0
        while at < len(bases):
            base = bases[at]
            try:
                topics = await self._topics(base, scratch)
            except DamagedObjectError as error:
                self.report(f"{error}; an older checkpoint takes its place")
                at += 1
                continue
            reaching = Reaching(topic, partition, seq, stood(topics, topic, partition))
            try:
                cut = await self._reached(base, reaching, until)
            except LogError as error:
                raise explain(base.from_ms, error) from error
            if cut is not None:
                return cut
            until, at = base.applied, len(bases) if base is bases[-1] else min(2 * at + 1, len(bases) - 1)
        raise AbsentError(
            f"the log does not show how {shown_partition(topic, partition)} reached seq {seq}: {await self._what_can()}"
        )

    async def ranges(self) -> list[Range]:
        """The restorable times in order; between two ranges there is a hole. Objects are looked at by name. Raises
        BucketError and CheckpointError."""
        found: list[Range] = []
        goes_on = False
        bases = [each async for each in self.bases()][::-1]
        for base, after in zip_longest(bases, bases[1:]):
            numbers, nbytes, reached = await self._chain(base, after)
            until_ms = await self._last_ms(base, numbers) if reached is None else reached.from_ms
            if goes_on:
                last = found[-1]
                found[-1] = Range(last.from_ms, max(last.until_ms, until_ms), last.checkpoints + 1, last.bytes + nbytes)
            elif until_ms:
                from_ms = base.from_ms or await self._first_ms(base)
                found.append(Range(from_ms, max(from_ms, until_ms), int(bool(base.files)), nbytes))
            goes_on = reached is not None
        return found

    async def _what_can(self) -> str:
        """The restorable times in words."""
        found = [f"{shown(each.from_ms)} to {shown(each.until_ms)}" for each in await self.ranges()]
        return f"the restorable moments are {', '.join(found)}" if found else "the log is empty"

    async def _base(self, ms: int | None = None) -> Checkpoint | None:
        """The newest checkpoint, or the newest that leads to a time; None if there is none."""
        async with aclosing(self.bases()) as every:
            async for each in every:
                if ms is None or each.from_ms <= ms:
                    return each
        return None

    async def _batches(self, base: Checkpoint) -> AsyncGenerator[tuple[Batch, int]]:
        async with aclosing(self.behind(base)) as pieces:
            async for piece in pieces:
                for each in zip(piece.found.batches, piece.written_ms, strict=True):
                    yield each

    async def _reached(self, base: Checkpoint, reaching: Reaching, until: int | None) -> Cut | None:
        """The last batch behind a checkpoint, up to a ticket, with which the partition reached the seq."""
        cut, last_ms = None, base.from_ms
        async with aclosing(self._batches(base)) as every:
            async for batch, written in every:
                if until is not None and batch.ticket > until:
                    break
                puts = [Put(Family(family), key, value) for op, family, key, value in batch.rows if op == Op.PUT]
                with _readable(f"batch {batch.ticket}", last_ms):
                    if reaching.take(puts):
                        cut = Cut(batch.ticket, written)
                last_ms = written
        return cut

    async def _topics(self, base: Checkpoint, scratch: Path) -> list[Topic]:
        """The topics of a checkpoint. Raises DamagedObjectError."""
        if not base.files:
            return []
        with tempfile.TemporaryDirectory(prefix=".topics-moments-", dir=scratch) as own:
            directory = Path(own) / "data"
            await restore(self.bucket, base, directory)
            return inventory.read(directory).topics

    async def _is_hole(self, tail: Tail) -> bool:
        """Return whether the object `tail.next` is missing, rather than not made yet."""
        name = objects.name(self.shard, tail.next)
        above = list(await self._there(name))
        newest = None
        with suppress(DamagedObjectError):
            newest = await newest_position(self.bucket, self.shard)
        if await self.bucket.get(name) is not None:  # made meanwhile
            return False
        if newest is not None and newest.ticket > tail.position.ticket:
            return True
        if above and tail.lacks(above[-1]):
            return True
        return any([await self._is_behind(tail, number) for number in above])

    async def _there(self, after: str, before: str = "") -> Mapping[int, int]:
        """The objects between two names, in order: number to size."""
        found = {}
        for each in await self.bucket.list(objects.prefix(self.shard), after, before):
            with suppress(ValueError):  # none of ours
                found[objects.number_of(each.name)] = each.size
        return found

    async def _is_behind(self, tail: Tail, number: int) -> bool:
        """Return whether the writer of an object had acknowledged, or read, what the reader lacks."""
        data = await self.bucket.get(objects.name(self.shard, number))
        if data is None:
            return False
        try:
            header = objects.decode(self.shard, number, data).header
        except DamagedObjectError:
            return False
        if header.kind is Kind.FENCE:
            return header.ticket > tail.position.ticket
        window = header.resume - number
        return header.epoch == tail.position.epoch and number - window >= tail.next

    async def _chain(self, base: Checkpoint, after: Checkpoint | None) -> tuple[list[int], int, Checkpoint | None]:
        """The numbers of objects behind a checkpoint that are there without a hole, their bytes, and the checkpoint
        `after` if they lead to it."""
        before = objects.name(self.shard, after.number) if after is not None else ""
        there = await self._there(objects.name(self.shard, base.number - 1), before)
        numbers, nbytes, number = [], 0, base.number
        while number in there:
            numbers.append(number)
            nbytes += there[number]
            number = number + 1 if there[number] > objects.HEADER_BYTES else await self._resume(number)
        return numbers, nbytes, after if after is not None and number == after.number else None

    async def _resume(self, number: int) -> int:
        """The first number behind a fence; 0 if the fence can't be read."""
        data = await self.bucket.get(objects.name(self.shard, number))
        try:
            return 0 if data is None else objects.decode(self.shard, number, data).header.resume
        except DamagedObjectError:
            return 0

    async def _first_ms(self, base: Checkpoint) -> int:
        """The time of the first batch behind a checkpoint; 0 if there is none."""
        async with aclosing(self._batches(base)) as every:
            async for _, written in every:
                return written
        return 0

    async def _last_ms(self, base: Checkpoint, numbers: list[int]) -> int:
        """The time of the last batch of these objects that has one; that of the checkpoint if there is none."""
        for number in reversed(numbers):
            data = await self.bucket.get(objects.name(self.shard, number))
            try:
                batches = () if data is None else objects.decode(self.shard, number, data).batches
                found = next(filter(None, map(_written_ms, reversed(batches))), None)
            except (DamagedObjectError, struct.error):
                continue
            if found is not None:
                return found
        return base.from_ms


def _empty(shard: int) -> Checkpoint:
    """The state in front of a log."""
    return Checkpoint(
        format=FORMAT,
        shard=shard,
        number=START.number,
        epoch=START.epoch,
        ticket=START.ticket,
        applied=START.ticket,
        created_ms=0,
        node="",
        server_version="",
        store_format="",
        files=[],
    )


def _written_ms(batch: Batch) -> int | None:
    """The time at which a batch was written; None means the same millisecond as the one before. Raises struct.error."""
    for _, family, key, value in reversed(batch.rows):
        if family == Family.META and key == MOMENT_KEY:
            return keys.read_u64(value)
    return None


@contextmanager
def _readable(name: str, last_ms: int) -> Iterator[None]:
    """Rows that this version can't read: of a later one, since their checksums held."""
    try:
        yield
    except (ValueError, struct.error, msgspec.MsgspecError) as error:
        raise LogError(last_ms + 1, f"{name} can't be read: {error}") from error
