"""Removal of objects that are not needed any more: parts of the log, and checkpoints with their files.

Any node may do it at any time, also two at once. All times are those of the store, which a small object tells. Every
moment of a *window*, an hour at least, can be restored afterwards (`moments`).

- A checkpoint goes only when two higher ones are older than an hour. So a maker may trust, for half an hour, that the
  files of the two highest stay (`checkpoint.PASS_SECONDS`). Of the others the first of each hour stays, and the two
  newest that are older than the window: the newer one leads to all its moments, and the other one if that is damaged.
- Data of the log goes when it is below these two and older than the window. Fences never go: a stale owner would find
  their number free.
- A file goes when no checkpoint has it and it was sent more than a day ago, longer than a checkpoint may take
  (`checkpoint.LIMIT_SECONDS`).
"""

import logging
from typing import Final, NamedTuple

from topics_cluster import objects
from topics_cluster.bucket import Bucket, BucketError, ObjectEntry
from topics_cluster.checkpoint import CheckpointError, Entry, entries, file_name, files_of, load, name_of

log = logging.getLogger("topics.cluster")

HOUR: Final = 3600.0
DAY: Final = 86_400.0


class Collected(NamedTuple):
    """Numbers of removed objects of the log, checkpoints and files, and the bytes of the first and last."""

    objects: int
    checkpoints: int
    files: int
    bytes: int


async def collect(bucket: Bucket, shard: int, nonce: str, window_seconds: float = 0.0) -> Collected:
    """Remove all that is not needed any more. `nonce` is of this call alone; a window of less than an hour is one of an
    hour. Raises BucketError."""
    now = await _now(bucket, shard, nonce)
    window = max(HOUR, window_seconds)
    made = await entries(bucket, shard)
    needed = needed_of(made, now, window)
    data = await _outdated(bucket, shard, _second_newest(needed, now - window), now - window)
    await bucket.delete(each.name for each in data)
    gone = sorted({number for number, _ in made} - {number for number, _ in needed})
    await bucket.delete(name_of(shard, number) for number in gone)
    files = await _unneeded(bucket, shard, now)
    await bucket.delete(each.name for each in files)
    return Collected(len(data), len(gone), len(files), sum(each.size for each in (*data, *files)))


def needed_of(made: list[Entry], now: float, window: float) -> list[Entry]:
    """The checkpoints that stay."""
    first, recent = _second_newest(made, now - window), _second_newest(made, now - HOUR)
    of_hours: dict[float, int] = {}
    for number, modified in made:
        of_hours.setdefault(modified // HOUR, number)
    return [
        Entry(number, modified)
        for number, modified in made
        if number >= recent or (number >= first and (modified < now - window or number == of_hours[modified // HOUR]))
    ]


def is_outdated(entry: ObjectEntry, below: int, before: float) -> bool:
    """Return whether an object of the log goes: data below a number, made before a time. A fence is as long as a header
    alone."""
    if entry.size <= objects.HEADER_BYTES or entry.modified >= before:
        return False
    try:
        return objects.number_of(entry.name) < below
    except ValueError:  # none of ours
        return False


async def _now(bucket: Bucket, shard: int, nonce: str) -> float:
    folder = f"s{shard}/clock/"
    mine = f"{folder}{nonce}"
    await bucket.create(mine, [b""])
    there = await bucket.list(folder)
    now = next((each.modified for each in there if each.name == mine), None)
    if now is None:
        raise BucketError(f"{mine} was made, and is not listed")
    await bucket.delete(each.name for each in there if each.name == mine or each.modified < now - HOUR)
    return now


def _second_newest(made: list[Entry], before: float) -> int:
    """The number of the second newest checkpoint that was made before a time; 0 if there are not two."""
    old = [number for number, modified in made if modified < before]
    return old[-2] if len(old) > 1 else 0


async def _outdated(bucket: Bucket, shard: int, below: int, before: float) -> list[ObjectEntry]:
    there = await bucket.list(objects.prefix(shard), before=objects.name(shard, below))
    return [each for each in there if is_outdated(each, below, before)]


async def _unneeded(bucket: Bucket, shard: int, now: float) -> list[ObjectEntry]:
    """The files that no checkpoint has; none if it is not certain what the checkpoints have."""
    old = [each for each in await bucket.list(files_of(shard)) if each.modified < now - DAY]
    if not old:
        return []
    needed: set[str] = set()
    for number, _ in await entries(bucket, shard):
        try:
            found = await load(bucket, shard, number)
        except (objects.DamagedObjectError, CheckpointError) as error:
            log.error("files of checkpoints are not removed: %s", error)
            return []
        if found is None:  # another node collects: what took its place may not have been listed
            return []
        needed |= {file_name(shard, file) for file in found.files}
    return [each for each in old if each.name not in needed]
