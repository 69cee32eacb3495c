"""Removal of objects that are not needed any more: parts of the log, and checkpoints with their files.

Any node may do it at any time, also two at once. All times are those of the store, which a small object tells.

- Data of the log goes when it is below the second newest checkpoint and older than an hour. Fences never go: a stale
  owner would find their number free.
- A checkpoint goes when two higher ones are older than an hour. So a maker may trust, for half an hour, that the files
  of the two highest stay (`checkpoint.PASS_SECONDS`).
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


async def collect(bucket: Bucket, shard: int, nonce: str) -> Collected:
    """Remove all that is not needed any more. `nonce` is of this call alone. Raises BucketError."""
    now = await _now(bucket, shard, nonce)
    made = await entries(bucket, shard)
    data = await _outdated(bucket, shard, made, now)
    await bucket.delete(each.name for each in data)
    gone = superseded(made, now)
    await bucket.delete(name_of(shard, number) for number in gone)
    files = await _unneeded(bucket, shard, now)
    await bucket.delete(each.name for each in files)
    return Collected(len(data), len(gone), len(files), sum(each.size for each in (*data, *files)))


def superseded(made: list[Entry], now: float) -> list[int]:
    """The checkpoints above which there are two that are older than an hour."""
    old = [number for number, modified in made if modified < now - HOUR]
    return [number for number, _ in made if sum(other > number for other in old) >= 2]


def is_outdated(entry: ObjectEntry, below: int, now: float) -> bool:
    """Return whether an object of the log goes: data below a number, older than an hour. A fence is as long as a header
    alone."""
    if entry.size <= objects.HEADER_BYTES or entry.modified >= now - HOUR:
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


async def _outdated(bucket: Bucket, shard: int, made: list[Entry], now: float) -> list[ObjectEntry]:
    if len(made) < 2:
        return []
    below = made[-2].number
    return [each for each in await bucket.list(objects.prefix(shard)) if is_outdated(each, below, now)]


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
