"""Application of a topic's deletes to its table: an explicit step, complete when the call returns.

A record that is deleted in a topic (by seq, tag or prefix, or by the ack of a job) leaves no trace that a pipeline
could follow. So the topic's live seqs are listed, and rows of other seqs are removed from the table by rewriting their
files. Evicted records are not deletes: they stay in the table. A range that was evicted after some of it had been
deleted is reported as evicted as a whole, so sync deletes before retention reaches them.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table import Table

from pyspark_topics.inventory import TopicInfo, find_topic
from topics_client.connection import Connection
from topics_lakehouse.catalog import ERRORS, RECORDS, TableError, find_table, identifier, owned_state
from topics_lakehouse.config import Config
from topics_lakehouse.dead import find_dead
from topics_lakehouse.history import Witness, check_history
from topics_lakehouse.progress import witnessed
from topics_lakehouse.rewrite import LiveFile, Rewritten, live_files, read_file, replace
from topics_lakehouse.seqs import SeqSet

WAITING: Final = "waiting"
LISTING: Final = "listing"
REWRITING: Final = "rewriting"

_ROUND_BYTES: Final = 256 << 20  # rewritten in one commit
_RACES: Final = 10
_PAUSE: Final = 0.2
_SUMMARY: Final = {"topics.maintenance": "deletes"}


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a stage: seqs waited for, seqs listed, or bytes rewritten, and the total."""

    stage: str  # waiting, listing, rewriting
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Synced:
    """The result: every record deleted before the call that was in the table or about to be written is removed."""

    topic: str
    heads: Mapping[int, int]  # by partition: up to where the table was compared
    rows: int
    error_rows: int
    files: int


class NotCaughtUpError(TimeoutError):
    """The table had not got as far as the topic in time. The text names partition and seqs."""


def sync_deletes(
    config: Config,
    catalog: Catalog,
    connection: Connection,
    topic: str,
    *,
    timeout: float | None = None,
    progress: Callable[[Step], None] = lambda _: None,
) -> Synced:
    """Remove the rows of records that are deleted in the topic.

    Blocks until the table has every record that the topic has now (a pipeline must be running, or have run), for at
    most `timeout` seconds: then NotCaughtUpError. Runs concurrently with a pipeline and compaction, and may be repeated
    at any time. Older snapshots have the rows until they expire. Raises NotFoundError for an unknown topic, TableError
    for one that has no table, that of an earlier life, or one that was rolled back.
    """
    info = find_topic(connection, topic)
    heads = {each.partition: each.head_seq for each in info.partitions}
    ends = None if timeout is None else time.monotonic() + timeout
    witness = witnessed(connection, config.group, topic)
    tables = {RECORDS: _reached(config, catalog, info, heads, ends, progress, witness)}
    if find_table(catalog, identifier(config, topic, ERRORS)) is not None:
        tables[ERRORS] = _own(catalog, config, info, ERRORS)  # which is committed before the records
    dead = _list(connection, info, heads, progress)
    removed: dict[str, Rewritten] = {}
    if any(each.count for each in dead.values()):
        removed = {role: remove_rows(table, dead, progress) for role, table in tables.items()}
    rows, errors = removed.get(RECORDS, Rewritten()), removed.get(ERRORS, Rewritten())
    return Synced(
        topic,
        heads,
        rows.rows_before - rows.rows_after,
        errors.rows_before - errors.rows_after,
        rows.files_before + errors.files_before,
    )


def _reached(
    config: Config,
    catalog: Catalog,
    info: TopicInfo,
    heads: Mapping[int, int],
    ends: float | None,
    progress: Callable[[Step], None],
    witness: Witness,
) -> Table:
    """The topic's table, once its positions are at the heads."""
    total, said = sum(heads.values()), -1
    while True:
        table = _own(catalog, config, info, RECORDS, witness)
        positions = owned_state(table, info.topic, RECORDS).positions
        behind = {p: (positions.get(p, 0), head) for p, head in heads.items() if positions.get(p, 0) < head}
        if not behind:
            return table
        done = total - sum(head - position for position, head in behind.values())
        if done != said:
            progress(Step(WAITING, done, total))
            said = done
        if ends is not None and time.monotonic() >= ends:
            partition, (position, head) = min(behind.items())
            name = ".".join(table.name())
            raise NotCaughtUpError(
                f"topic {info.topic}: table {name} is at seq {position} of partition {partition}, the "
                f"topic at {head}: run the pipeline (`topics lakehouse run`)"
            )
        time.sleep(_PAUSE)


def _own(catalog: Catalog, config: Config, info: TopicInfo, role: str, witness: Witness | None = None) -> Table:
    name = identifier(config, info.topic, role)
    table = find_table(catalog, name)
    if table is None:
        raise TableError(f"topic {info.topic}: there is no table {'.'.join(name)}: run the pipeline first")
    state = owned_state(table, info.topic, role)
    if state.topic_id != info.topic_id:
        raise TableError(
            f"topic {info.topic}: table {'.'.join(name)} is of an earlier life of the topic ({state.topic_id}, now "
            f"{info.topic_id}): its deletes are no longer known"
        )
    check_history(table, witness or {})
    return table


def _list(
    connection: Connection, info: TopicInfo, heads: Mapping[int, int], progress: Callable[[Step], None]
) -> dict[int, SeqSet]:
    """The deleted seqs of each partition."""
    found: dict[int, SeqSet] = {}
    total, before = sum(heads.values()), 0
    for partition, head in heads.items():
        for got in find_dead(connection, info.topic, info.topic_id, partition, head):
            if isinstance(got, int):
                progress(Step(LISTING, before + got, total))
            else:
                found[partition] = got
        before += head
    return found


def remove_rows(
    table: Table, dead: Mapping[int, SeqSet], progress: Callable[[Step], None] = lambda _: None
) -> Rewritten:
    """Rewrite every file that holds a row of a dead seq without it; `table` is refreshed. Does nothing twice."""
    done = Rewritten()
    clean: set[str] = set()  # files that were read and hold none
    lost = 0
    while True:
        suspects = [file for file in live_files(table.refresh()) if file.path not in clean and _suspect(file, dead)]
        total = done.bytes_before + sum(file.bytes for file in suspects)
        progress(Step(REWRITING, done.bytes_before, total))
        chosen: list[LiveFile] = []
        for file in suspects:
            if not _holds(table, file, dead):
                clean.add(file.path)
            else:
                chosen.append(file)
                if sum(each.bytes for each in chosen) >= _ROUND_BYTES:
                    break
        if not chosen:
            return done
        try:
            done += replace(table, [[file] for file in chosen], keep=_keep(dead), properties=_SUMMARY)
        except (ValidationException, CommitFailedException):  # compaction was faster: look again
            lost += 1
            if lost == _RACES:
                raise


def _suspect(file: LiveFile, dead: Mapping[int, SeqSet]) -> bool:
    """Return True if the file may hold a dead row, according to the manifests."""
    if file.partition is None or file.first is None or file.last is None:
        return True
    return file.partition in dead and dead[file.partition].within(file.first, file.last)


def _holds(table: Table, file: LiveFile, dead: Mapping[int, SeqSet]) -> bool:
    return any(pc.any(_dead(batch, dead)).as_py() for batch in read_file(table, file, ("partition", "seq")))


def _keep(dead: Mapping[int, SeqSet]) -> Callable[[pa.RecordBatch], pa.BooleanArray]:
    return lambda batch: pc.invert(_dead(batch, dead))


def _dead(batch: pa.RecordBatch, dead: Mapping[int, SeqSet]) -> pa.BooleanArray:
    """For each row whether it is of a dead record."""
    partitions, seqs = batch.column("partition"), batch.column("seq")
    found = pa.repeat(pa.scalar(False), batch.num_rows)
    for partition in _distinct(partitions):
        if partition in dead:
            inside = pc.and_(pc.equal(partitions, partition), dead[partition].mask(seqs))
            found = pc.or_(found, pc.fill_null(inside, False))
    return found


def _distinct(partitions: pa.Array) -> Iterator[int]:
    yield from (each for each in pc.unique(partitions).to_pylist() if each is not None)
