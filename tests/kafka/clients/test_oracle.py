"""The oracle of group tests detects violations."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.kafka_journal import Journal, judge

Line = list[Any]


def journal(directory: Path, member: str, *lines: Line) -> Journal:
    """A journal with these lines, and a torn one."""
    path = directory / member
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '["assig')
    return Journal(path)


def read(at: float, *offsets: int) -> Line:
    return ["records", at, [[0, offset] for offset in offsets]]


def committed(at: float, offset: int) -> list[Line]:
    return [["committing", at, {"0": offset}], ["committed", at + 0.1, {"0": offset}]]


def test_a_handover_in_order(tmp_path: Path) -> None:
    a = journal(tmp_path, "a", ["assigned", 1, [0]], read(2, 0, 1), *committed(3, 2), ["revoked", 4, [0]], ["left", 9])
    b = journal(tmp_path, "b", ["assigned", 5, [0]], read(6, 2, 3), ["leaving", 7])
    outcome = judge([a, b])
    assert (outcome.errors, outcome.processed, outcome.again) == ([], {0: {0, 1, 2, 3}}, 0)
    assert (a.owned(), b.owned()) == (set(), set())


def test_two_owners(tmp_path: Path) -> None:
    a = journal(tmp_path, "a", ["assigned", 1, [0]], ["revoked", 4, [0]])
    b = journal(tmp_path, "b", ["assigned", 3, [0, 1]])
    assert "two owners of 0" in judge([a, b]).errors[0]
    a.killed_at = 2
    assert judge([b, journal(tmp_path, "c", ["assigned", 1, [0]], ["leaving", 2])]).errors == []


def test_a_killed_member_owns_until_then(tmp_path: Path) -> None:
    a = journal(tmp_path, "a", ["assigned", 1, [0]], read(2, 0, 1))
    b = journal(tmp_path, "b", ["assigned", 5, [0]], read(6, 0, 1, 2))
    assert "two owners" in judge([a, b]).errors[0]
    a.killed_at = 4
    outcome = judge([a, b])
    assert (outcome.errors, outcome.again) == ([], 2)


@pytest.mark.parametrize(
    ("lines", "offset"),
    [
        ([read(2, 0, 2)], 2),  # one left out
        ([read(2, 0, 1, 1)], 1),  # one twice
        ([read(2, 1)], 1),  # not at the start
        ([read(2, 0, 1), *committed(3, 2), ["assigned", 4, [0]], read(5, 0)], 0),  # committed records, again
        ([read(2, 0, 1), *committed(3, 2), ["assigned", 4, [0]], read(5, 3)], 3),  # beyond the committed position
    ],
)
def test_records_out_of_order(tmp_path: Path, lines: list[Line], offset: int) -> None:
    (error,) = judge([journal(tmp_path, "a", ["assigned", 1, [0]], *lines)]).errors
    assert f"0:{offset}" in error


def test_a_commit_without_an_answer_may_count_or_not(tmp_path: Path) -> None:
    for start in (0, 2):
        a = journal(tmp_path, f"a{start}", ["assigned", 1, [0]], read(2, 0, 1), ["committing", 3, {"0": 2}])
        a.killed_at = 4
        b = journal(tmp_path, f"b{start}", ["assigned", 5, [0]], read(6, start))
        assert judge([a, b]).errors == []
