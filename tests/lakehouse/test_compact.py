"""Small files become large ones, and nothing else changes."""

import random
from dataclasses import replace as changed
from itertools import pairwise
from pathlib import Path

import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from support.lake_tables import append, content, make_catalog, make_table
from topics_lakehouse.compact import Compaction, compact, plan
from topics_lakehouse.rewrite import LiveFile, Rewritten, live_files

THOROUGH = Compaction(target_bytes=1 << 20, thorough=True)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(make_catalog(tmp_path))


def _file(first: int, size: int, partition: int | None = 0, deletes: tuple[DataFile, ...] = ()) -> LiveFile:
    data = DataFile.from_args(file_path=f"{partition}-{first}", record_count=10, file_size_in_bytes=size)
    return LiveFile(data, deletes, partition, first, first + 9)


def _plan(sizes: list[int], how: Compaction) -> list[list[int]]:
    """The groups of files with these sizes, as their numbers."""
    files = [_file(10 * i + 1, size) for i, size in enumerate(sizes)]
    return [[((file.first or 0) - 1) // 10 for file in group] for group in plan(files, how)]


def test_small_files_are_grouped_up_to_the_target() -> None:
    assert _plan([30] * 7, Compaction(100, thorough=True)) == [[0, 1, 2], [3, 4, 5]]
    assert _plan([30] * 8, Compaction(100, thorough=True)) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_large_files_are_left_alone_and_end_a_run() -> None:
    assert _plan([10, 10, 50, 10, 10, 200, 10], Compaction(100, thorough=True)) == [[0, 1], [3, 4]]


def test_a_group_waits_until_it_is_worth_it() -> None:
    how = Compaction(100, min_files=4)
    assert _plan([5] * 3, how) == []
    assert _plan([5] * 4, how) == [[0, 1, 2, 3]]
    assert _plan([20, 20, 20], how) == [[0, 1, 2]]  # enough for a file that is never touched again
    assert _plan([25, 5, 5, 5, 5], how) == [[1, 2, 3, 4]]  # the first is larger than all that it would be put to
    assert _plan([20, 5, 5, 5, 5], how) == [[0, 1, 2, 3, 4]]


def test_partitions_overlaps_and_foreign_files_are_kept_apart() -> None:
    how = Compaction(100, thorough=True)
    files = [_file(1, 10), _file(11, 10), _file(1, 10, 1), _file(11, 10, 1)]
    assert [[file.path for file in group] for group in plan(files, how)] == [["0-1", "0-11"], ["1-1", "1-11"]]
    assert list(plan([_file(1, 10), _file(5, 10)], how)) == []
    assert list(plan([_file(1, 10, None), _file(11, 10, None)], how)) == []
    assert list(plan([changed(_file(1, 10), first=None), _file(11, 10)], how)) == []
    deletes = (DataFile.from_args(file_path="deletes"),)
    assert list(plan([_file(1, 10), _file(11, 10, deletes=deletes)], how)) == []


def test_files_of_errors_and_gaps_may_mix_partitions() -> None:
    how = Compaction(100, thorough=True, ordered=False)
    files = [_file(1, 10, None), changed(_file(1, 10), first=None), _file(1, 10, 1), _file(1, 90, 2)]
    assert list(plan(files, how)) == [files[:3]]


@pytest.mark.parametrize("seed", range(5))
def test_runs_come_to_an_end_and_a_growing_table_is_rewritten_a_few_times(seed: int) -> None:
    """A model: sizes add up. Live, with a run after each commit, then thoroughly."""
    rng = random.Random(seed)
    sizes: list[int] = []
    rewritten = appended = 0
    for _ in range(400):
        size = rng.randint(1, 20) if rng.random() < 0.95 else rng.randint(100, 1500)
        sizes.append(size)
        appended += size
        while groups := _plan(sizes, Compaction(1000, min_files=8)):
            for group in reversed(groups):
                total = sum(sizes[i] for i in group)
                rewritten += total
                sizes[group[0] : group[-1] + 1] = [total]
    assert sum(sizes) == appended
    assert rewritten < 6 * appended
    assert len(sizes) < 10 + 4 * (appended // 1000) + 40
    while groups := _plan(sizes, Compaction(1000, thorough=True)):
        group = groups[0]
        sizes[group[0] : group[-1] + 1] = [sum(sizes[i] for i in group)]
    assert not any(a < 500 and b < 500 and a + b <= 1000 for a, b in pairwise(sizes)), (
        "two neighbours would fit into one"
    )


def test_content_stays_row_for_row_and_a_second_run_does_nothing(table: Table) -> None:
    rng = random.Random(8)
    for partition in (0, 1):
        first = 1
        for _ in range(12):
            last = first + rng.randint(0, 60)
            append(table, first, last, partition=partition)
            first = last + rng.choice((1, 1, 7))
    before, positions = content(table), table.metadata.properties["topics.positions"]
    done = compact(table, THOROUGH)
    assert (done.files_before, done.files_after) == (24, 2)
    assert done.rows_before == done.rows_after == len(before)
    assert content(table) == before
    assert table.metadata.properties["topics.positions"] == positions
    assert compact(table, THOROUGH) == Rewritten()


def test_files_are_made_no_larger_than_the_target(table: Table) -> None:
    for i in range(20):
        append(table, 100 * i + 1, 100 * i + 100)
    sizes = [file.bytes for file in live_files(table)]
    how = Compaction(target_bytes=4 * max(sizes), thorough=True)
    before = content(table)
    compact(table, how)
    assert compact(table, how) == Rewritten()
    files = live_files(table.refresh())
    assert 2 <= len(files) <= 10
    assert all(file.bytes <= how.target_bytes for file in files)
    assert content(table) == before


def test_work_is_bounded_and_the_next_run_goes_on(table: Table) -> None:
    for i in range(12):
        append(table, 100 * i + 1, 100 * i + 100)
    before, size = content(table), live_files(table)[0].bytes
    how = Compaction(target_bytes=2 * size + size // 2, max_bytes=1, thorough=True)
    done = compact(table, how)
    assert (done.files_before, done.files_after) == (2, 1)
    for _ in range(20):
        if compact(table, how) == Rewritten():
            break
    else:
        pytest.fail("no end")
    assert content(table) == before


def test_an_empty_table_is_left_alone(table: Table) -> None:
    assert compact(table) == Rewritten()
