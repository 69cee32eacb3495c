"""Points in time of all shards of a cluster, and the data directory with shards that is made of one.

Each shard is taken at that time by the clock of its owner: shards have no common order of writes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from topics_backup import restoring
from topics_backup.errors import AbsentError, BackupError
from topics_cluster import identity, objects, pointintime
from topics_cluster.bucket import Bucket
from topics_cluster.checkpoint import folder_of
from topics_cluster.moments import Archive, Cut, Range, Report
from topics_cluster.pointintime import Restored
from topics_service.engine.placement import Place, shard_of
from topics_service.storage import shardfiles

_NONE: Final = Cut(0, 0)


class Span(NamedTuple):
    """A time range that all shards cover."""

    from_ms: int
    until_ms: int


async def count_of(bucket: Bucket, given: int | None = None) -> int:
    """The number of shards, as `cluster.json` says; where that is lost, `given`, or one if there are no others.

    Raises BackupError if it is not the one that was given, or can't be known; IdentityError and BucketError.
    """
    if await bucket.get(identity.NAME) is not None:
        count = (await identity.load(bucket)).shards
        if given is not None and given != count:
            raise BackupError(f"the cluster has {_shards(count)}, not {given}")
        return count
    if given is not None:
        return given
    others = [shard for shard in range(1, identity.MAX_SHARDS) if await bucket.list(f"s{shard}/")]
    if others:
        raise BackupError(
            f"{identity.NAME} is missing, which says how many shards there are, and there are objects of shard "
            f"{others[-1]}: give --shards"
        )
    return 1


async def archives(bucket: Bucket, count: int, report: Callable[[str], None]) -> Sequence[Archive]:
    """The archives of all shards. Raises BackupError if some have neither a log nor checkpoints, and BucketError."""

    def of(shard: int) -> Report:
        return report if count == 1 else lambda text: report(f"shard {shard}: {text}")

    empty = [shard for shard in range(count) if count > 1 and not await _is_there(bucket, shard)]
    if len(empty) == count:
        raise AbsentError("the logs are empty")
    if empty:
        named = ", ".join(map(str, empty))
        raise BackupError(f"there is neither a log nor a checkpoint of {_shards(len(empty))} of {count}: {named}")
    return [Archive(bucket, shard, of(shard)) for shard in range(count)]


async def at_time(each: Sequence[Archive], ms: int) -> Sequence[Cut]:
    """Every shard as `Archive.at_time`; one whose log begins later is empty."""
    cuts = []
    for archive in each:
        with _named(archive, each):
            cuts.append(await archive.at_time(ms, may_begin_later=len(each) > 1))
    _check_any(cuts)
    return cuts


async def at_end(each: Sequence[Archive]) -> Sequence[Cut]:
    """Everything that is in the logs. Raises as `Archive.at_end`."""
    cuts = []
    for archive in each:
        try:
            with _named(archive, each):
                cuts.append(await archive.at_end())
        except AbsentError:
            if len(each) == 1:
                raise
            cuts.append(_NONE)
    _check_any(cuts)
    return cuts


async def at_seq(each: Sequence[Archive], topic: str, partition: int, seq: int, scratch: Path) -> Sequence[Cut]:
    """The shard of a partition up to the batch with which that reached a seq, and the others up to the time of that
    batch. Raises as `Archive.at_seq`."""
    first = shard_of(topic, partition, len(each))
    absent: AbsentError | None = None
    for shard in (first, *(shard for shard in range(len(each)) if shard != first)):  # the others for a placed topic
        try:
            with _named(each[shard], each):
                cut = await each[shard].at_seq(topic, partition, seq, scratch)
        except AbsentError as error:
            absent = absent or error
            continue
        others = [archive for archive in each if archive is not each[shard]]
        cuts = []
        for archive in others:
            with _named(archive, each):
                cuts.append(await archive.at_time(cut.written_ms, may_begin_later=True))
        cuts.insert(shard, cut)
        return cuts
    assert absent is not None, "there is a shard"
    raise absent


async def ranges(each: Sequence[Archive]) -> Sequence[Sequence[Range]]:
    """The restorable times of each shard. Raises as `Archive.ranges`."""
    found = []
    for archive in each:
        with _named(archive, each):
            found.append(await archive.ranges())
    return found


def spans(found: Sequence[Sequence[Range]]) -> Sequence[Span]:
    """The times that all shards cover. The last range of a shard reaches to now: it has had no writes since."""
    until_ms = max((of_shard[-1].until_ms for of_shard in found if of_shard), default=0)
    common = [Span(0, until_ms)]
    for of_shard in found:
        lasting = [*of_shard[:-1], *(last._replace(until_ms=until_ms) for last in of_shard[-1:])]
        both = (
            Span(max(span.from_ms, each.from_ms), min(span.until_ms, each.until_ms))
            for span in common
            for each in lasting
        )
        common = [span for span in both if span.from_ms <= span.until_ms]
    return common


async def restore(
    each: Sequence[Archive], directory: Path, cuts: Sequence[Cut], *, jump: int = 0
) -> Sequence[Restored]:
    """Make `directory` a data directory with shards, or without if there is one; complete or not at all. Otherwise as
    `pointintime.restore`."""
    count = len(each)
    if count == 1:
        return [await pointintime.restore(each[0], directory, cuts[0], jump=jump)]
    restoring.check_free(directory)
    made = []
    with restoring.replacing(directory, "shards") as begun:
        shardfiles.create(begun, count)
        for archive, cut in zip(each, cuts, strict=True):
            own, place = shardfiles.directory(begun, archive.shard), Place(archive.shard, count)
            with _named(archive, each):
                made.append(await pointintime.restore(archive, own, cut, jump=jump, place=place))
    return made


async def _is_there(bucket: Bucket, shard: int) -> bool:
    return bool(await bucket.list(folder_of(shard)) or await bucket.list(objects.prefix(shard)))


def _check_any(cuts: Sequence[Cut]) -> None:
    """Raise AbsentError for a moment before all logs."""
    if not any(cut.written_ms for cut in cuts):
        raise AbsentError("that is before the first write of all shards" if len(cuts) > 1 else "the log is empty")


@contextmanager
def _named(archive: Archive, each: Sequence[Archive]) -> Iterator[None]:
    """Name the shard in errors where there are several."""
    try:
        yield
    except BackupError as error:
        if len(each) == 1:
            raise
        kind = AbsentError if isinstance(error, AbsentError) else BackupError
        raise kind(f"shard {archive.shard}: {error}") from error


def _shards(count: int) -> str:
    return f"{count} shard{'' if count == 1 else 's'}"
