"""The batches of a shard in a node's own write-ahead log, which has those that the object store does not have yet.

RocksDB needs a log file until its rows are in tables. Here it is kept, in the archive, until the object store has its
batches.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from topics_cluster.objects import Batch, Op, Row
from topics_cluster.store import FENCE_KEY, POSITION_KEY, ShardStore, read_position
from topics_cluster.takeover import StoreAheadError
from topics_service.storage import segments
from topics_service.storage.familyids import family_ids
from topics_service.storage.store import Family
from topics_service.storage.wal import archive, batches
from topics_service.storage.wal.archive import LogFile
from topics_service.storage.wal.batches import Change
from topics_service.storage.wal.records import mapped

log = logging.getLogger("topics.cluster")

_TRIM_SECONDS: Final = 2.0
_OPS: Final = {batches.PUT: Op.PUT, batches.DELETE: Op.DELETE, batches.DELETE_RANGE: Op.DELETE_RANGE}
_LOCAL: Final = frozenset((POSITION_KEY, FENCE_KEY))


class LostTailError(StoreAheadError):
    """The write-ahead log lacks batches that are not in the object store either."""


def unshipped(store: ShardStore) -> Iterator[Batch]:
    """Yield the batches of a former owner's store that are not in the log of the shard, by ticket.

    Raises LostTailError behind those before the first that is missing.
    """
    after, upto = store.position.ticket, store.ticket
    wanted, why = after + 1, "its files are gone"
    try:
        families = {number: family for family, number in family_ids(store.path).items()}
        for ticket, changes in _written(store.path, _split(store.path, after)[1]):
            if ticket == wanted <= upto:
                yield Batch(ticket, _rows(changes, families))
                wanted += 1
    except (OSError, ValueError, KeyError) as error:
        why = str(error)
    if wanted <= upto:
        raise LostTailError(
            f"{upto - after} batches are not in the log of the shard, and the write-ahead log of {store.path} "
            f"has {wanted - after - 1} of them: {why}"
        )


async def keep_trimmed(store: ShardStore) -> None:
    """Remove archived log files as `trim` does, until cancelled. Failures are logged, once each time they begin."""
    failed = False
    while True:
        await asyncio.sleep(_TRIM_SECONDS)
        try:
            await asyncio.to_thread(trim, store)
            failed = False
        except (OSError, ValueError) as error:
            if not failed:
                log.error("can't trim the archive of the log: %s", error)
            failed = True


def trim(store: ShardStore) -> None:
    """Remove archived log files whose batches are all in the log of the shard. Raises OSError and ValueError."""
    files = archive.archived(store.path)
    if files and store.is_ahead:
        files = [number for number, _ in _split(store.path, store.position.ticket)[0]]
    for number in files:
        archive.remove(store.path, number)


def _split(directory: Path, after: int) -> tuple[list[LogFile], list[LogFile]]:
    """The log files with batches up to the ticket `after` only, and those that may have others, oldest first."""
    files = archive.log_files(directory)
    for at in reversed(range(len(files))):
        first = next(_written(directory, files[at : at + 1]), None)
        if first is not None and first[0] <= after + 1:
            return files[:at], files[at:]
    return [], files


def _written(directory: Path, files: Iterable[LogFile]) -> Iterator[tuple[int, list[Change]]]:
    """Yield all that was written with a row at POSITION_KEY, and the ticket in that row.

    Batches of an owner come first for their ticket: a follower that is ahead applies objects under the newest ticket.
    Raises ValueError where a file does not continue the one before, or ends too soon.
    """
    next_seq: int | None = None
    for number, _ in files:
        with mapped(archive.open_log(directory, number)) as data:
            for each in batches.batches(data):
                if next_seq is not None and each.seq != next_seq:
                    raise ValueError(f"row {each.seq} in {number:06}.log follows row {next_seq - 1}")
                next_seq = each.next_seq
                changes = list(batches.changes(each))
                for kind, family, key, value in changes:
                    if kind == batches.PUT and family == Family.META and key == POSITION_KEY:
                        yield read_position(value)[1], changes


def _rows(changes: Iterable[Change], families: Mapping[int, Family]) -> list[Row]:
    """The rows of a batch as its writer put them: without those of the directory, and with values in their places."""
    rows: list[Row] = []
    apart: dict[bytes, bytes] = {}
    for kind, number, key, value in changes:
        family = families[number]
        if family is Family.SEGMENTS:
            apart[key] = value
        elif family is not Family.META or key not in _LOCAL:
            reference = segments.reference(value) if family is Family.BLOCKS and kind == batches.PUT else None
            whole = value if reference is None else apart[segments.key(reference.position, key)]
            rows.append((_OPS[kind], family, key, whole))
    return rows
