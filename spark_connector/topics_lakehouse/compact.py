"""Merging small files into large ones: keeps reads fast after many small commits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.table import Table

from topics_lakehouse.rewrite import LiveFile, Rewritten, live_files, replace

TARGET_BYTES: Final = 128 << 20
"""Size that files are to have; one of at least half of it is left as it is."""

_ROUND_BYTES: Final = 256 << 20  # rewritten in one commit
_SUMMARY: Final = {"topics.maintenance": "compact"}


@dataclass(frozen=True, slots=True)
class Compaction:
    """Compaction settings.

    While a table grows, a group that does not reach half of `target_bytes` yet waits for `min_files`, and a file that
    is larger than all the small ones behind it together waits for more of them: so a record is rewritten a few times,
    not with every run. `thorough` puts together whatever can be.
    """

    target_bytes: int = TARGET_BYTES
    min_files: int = 8
    thorough: bool = False
    ordered: bool = True  # only files of one partition, by seq; False for tables of errors and gaps, whose files mix
    max_bytes: int = 4 << 30  # read in one run; the next run continues from there


def compact(table: Table, how: Compaction = Compaction()) -> Rewritten:
    """Rewrite small files that follow each other in a partition; `table` is refreshed.

    Content, order and positions stay. Bounded by `max_bytes`; called again and again it comes to an end, where it
    returns Rewritten(). Runs concurrently with a pipeline and readers. Raises as `replace` does; earlier commits stay.
    """
    done = Rewritten()
    while done.bytes_before < how.max_bytes:
        groups = list(_round(plan(live_files(table.refresh()), how), how.max_bytes - done.bytes_before))
        if not groups:
            break
        done += replace(table, groups, properties=_SUMMARY)
    return done


def plan(files: Sequence[LiveFile], how: Compaction = Compaction()) -> Iterator[list[LiveFile]]:
    """The groups of files to be made one each, of all files of a table by partition and seq."""
    for run in _runs(files, how):
        group: list[LiveFile] = []
        size = 0
        for file in run:
            if size + file.bytes > how.target_bytes:
                yield from _worthwhile(group, how)
                group, size = [], 0
            group.append(file)
            size += file.bytes
        yield from _worthwhile(group, how)


def _runs(files: Sequence[LiveFile], how: Compaction) -> Iterator[list[LiveFile]]:
    """Small files that follow each other, without an overlap."""
    run: list[LiveFile] = []
    for file in files:
        fits = file.bytes < how.target_bytes // 2 and not file.deletes
        if how.ordered:
            fits = fits and file.partition is not None and file.first is not None
            breaks = bool(run) and not (fits and _follows(run[-1], file))
        else:
            breaks = False
        if breaks:
            yield run
            run = []
        if fits:
            run.append(file)
    if run:
        yield run


def _follows(before: LiveFile, behind: LiveFile) -> bool:
    return (
        before.partition == behind.partition
        and before.last is not None
        and behind.first is not None
        and before.last < behind.first
    )


def _worthwhile(group: list[LiveFile], how: Compaction) -> Iterator[list[LiveFile]]:
    if len(group) < 2:
        return
    total = sum(file.bytes for file in group)
    if how.thorough or total >= how.target_bytes // 2:
        yield group
        return
    largest = max(range(len(group)), key=lambda i: group[i].bytes)
    if group[largest].bytes > total - group[largest].bytes:
        yield from _worthwhile(group[:largest], how)
        yield from _worthwhile(group[largest + 1 :], how)
    elif len(group) >= how.min_files:
        yield group


def _round(groups: Iterator[list[LiveFile]], max_bytes: int) -> Iterator[list[LiveFile]]:
    """The first groups, as many as one commit takes."""
    size = 0
    for group in groups:
        if size and size + sum(file.bytes for file in group) > min(_ROUND_BYTES, max_bytes):
            return
        size += sum(file.bytes for file in group)
        yield group
