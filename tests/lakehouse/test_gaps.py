"""Each lost seq is recorded once, whatever was found before."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table import Table

from pyspark_topics.fetch import Gap
from topics_lakehouse.catalog import GAPS, create_table, identifier, open_catalog
from topics_lakehouse.commit import Append, append, form_of
from topics_lakehouse.config import load
from topics_lakehouse.gaps import _merged, _without, gap_rows, new_gaps
from topics_lakehouse.parquet import ParquetFiles, layout
from topics_lakehouse.schema import GAPS as COLUMNS


def _gap(first: int, last: int, reason: str = "cap", partition: int = 0) -> Gap:
    return Gap("orders", partition, first, last, reason, last - first + 1)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A gaps table with seq 11 to 20 and 31 to 40."""
    config = load(None, {"warehouse": str(tmp_path), "topics": ["orders"]})
    catalog = open_catalog(config)
    name = identifier(config, "orders", GAPS)
    made = create_table(catalog, config, name, COLUMNS, topic="orders", topic_id="top_a", role=GAPS)
    where = layout(made, COLUMNS.names, row_group_rows=10, target_bytes=1 << 20)
    with ParquetFiles(made.io, where) as files:
        files.write(gap_rows([_gap(11, 20), _gap(31, 40)], where.schema))
        files.close()
    ids = (made.metadata.table_uuid, "orders", "top_a")
    return append(catalog, Append(name, *ids, {}, {0: 50}, {0: (1, 50)}, files.files, form_of(made)))


def test_neighbours_become_one(table: Table) -> None:
    found = [_gap(61, 70), _gap(51, 60), _gap(71, 80, "ttl"), _gap(71, 75, partition=1)]
    assert new_gaps(table, {0: 50}, {0: 50}, found) == [_gap(51, 70), _gap(71, 80, "ttl"), _gap(71, 75, partition=1)]


def test_what_was_told_before_a_crash_is_not_told_again(table: Table) -> None:
    found = [_gap(5, 35), _gap(38, 60), _gap(5, 35, partition=1)]
    left = [_gap(5, 10), _gap(21, 30), _gap(41, 60), _gap(5, 35, partition=1)]
    assert new_gaps(table, {0: 50}, {0: 4}, found) == left


@given(st.tuples(st.integers(1, 30), st.integers(0, 30)), st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9))))
def test_what_is_left_of_a_range(whole: tuple[int, int], parts: list[tuple[int, int]]) -> None:
    first, last = whole[0], whole[0] + whole[1]
    taken = {seq for begin, more in parts for seq in range(begin, begin + more + 1)}
    left = _without((first, last), [(begin, begin + more) for begin, more in parts])
    assert [seq for begin, end in sorted(left) for seq in range(begin, end + 1)] == sorted(
        set(range(first, last + 1)) - taken
    )
    assert _merged([]) == []
