"""Repairs of rows that contradict each other, or can't be read: the result is sound, and exact except for reported
gaps.
"""

from collections.abc import Callable

import pytest
from corruption.data import Originals
from corruption.harness import copied
from corruption.repairs import LAST, compare, copy_of, in_memory, repaired
from corruption.test_damaged_rows import (
    CASES,
    Case,
    Rows,
    bring_back,
    change_block,
    copy_block,
    lose_block,
    lose_state,
    lose_topic,
)

from topics_service.engine.repair import Uncertain
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family


@pytest.fixture(scope="module")
def rows(originals: Originals, tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    """Of an intact directory; to be copied before they are changed."""
    return in_memory(copied(originals.stopped, tmp_path_factory.mktemp("rows") / "data"))


TOGETHER = [case for case in CASES if case.topic != "large" and case.change not in (lose_topic, lose_state)]
ALONE = [case for case in CASES if case not in TOGETHER]
GAPS = {
    lose_block: [("large", 301, 400)],
    change_block: [("large", 301, 400)],
    copy_block: [("large", 301, 400)],
    bring_back: [("large", 1, 30_000)],  # which of them were deleted is lost
}


def changed(rows: MemoryStore, *changes: Callable[[Rows], None]) -> MemoryStore:
    """A copy with these changes."""
    store = copy_of(rows)
    for change in changes:
        batch = store.batch()
        change(Rows(store, batch))
        store.write(batch)
    return store


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.text.replace(" ", "-"))
def test_one_contradiction(case: Case, rows: MemoryStore, originals: Originals) -> None:
    done = repaired(changed(rows, case.change))
    compare(done, originals.truth)
    if case.topic == "large":
        assert done.gaps == GAPS.get(case.change, [] if "no block" not in case.text else [("large", 30_001, 30_050)])


def test_many_of_them_at_once(rows: MemoryStore, originals: Originals) -> None:
    done = repaired(changed(rows, *(case.change for case in TOGETHER)))
    compare(done, originals.truth)
    assert done.gaps == [("kafka", 3901, 4000)]
    told = "\n".join(done.others)
    for text in (
        'derived orders: the cursor of router "copier"',
        "dropped jobs: the lease: 2 rows",
        "dropped jobs: the row of jobs: 1 rows",
        "dropped kafka: the producer: 1 rows",
        "the counter of logs",
        "whose group or partition is gone",
    ):
        assert text in told, told


def test_records_of_which_it_is_lost_whether_they_were_deleted(rows: MemoryStore, originals: Originals) -> None:
    """They become gaps, unless they are wanted back."""
    done = repaired(changed(rows, bring_back), bring_back=True)
    assert done.gaps == []
    assert "it is lost which of its records were deleted: they come back" in "\n".join(done.others)
    compare(done, originals.truth)


def test_a_repair_of_what_is_sound_changes_nothing_but_the_index(rows: MemoryStore, originals: Originals) -> None:
    done = repaired(rows)
    assert done.actions == []
    compare(done, originals.truth)
    # What is below the first seqs, and of topics that are gone, is left out.
    less = {Family.TAGS, Family.BLOCKS, Family.DELETES, Family.IDEMPOTENCY_EXPIRY}
    for family in Family:
        if family not in less:
            assert list(done.store.scan(family, b"", LAST)) == list(rows.scan(family, b"", LAST)), family


def test_records_of_a_topic_whose_row_is_lost_are_in_one_of_their_own(rows: MemoryStore, originals: Originals) -> None:
    log_id = Rows(rows, rows.batch()).log("capped")
    done = repaired(changed(rows, lose_topic))
    (lost,) = [action for action in done.actions if action.kind == "lost"]
    assert lost.topic == f"recovered:log-{log_id}"
    expected = {place: content for place, content in originals.truth.items() if place[0] != "capped"}
    compare(done, expected | {(f"recovered:log-{log_id}", 0): originals.truth["capped", 0]})


@pytest.mark.parametrize(
    ("revived", "gone"),
    [
        ({Family.GROUPS}, {Family.GROUPS, Family.POSITIONS}),
        ({Family.POSITIONS}, {Family.POSITIONS}),
        ({Family.LEASES}, {Family.LEASES}),
        ({Family.BLOCKS, Family.TAGS, Family.DELETES, Family.GAPS, Family.JOBS, Family.IDEMPOTENCY}, set()),
    ],
    ids=lambda families: "-".join(family.name for family in families) or "nothing",
)
def test_what_a_lost_range_had_removed_does_not_come_back(
    revived: set[Family], gone: set[Family], rows: MemoryStore
) -> None:
    """Of groups, positions and leases none is saved; other rows are removed so with their topic alone."""
    sound = repaired(copy_of(rows))
    done = repaired(copy_of(rows), end=Uncertain(revived=frozenset(revived)))
    for family in Family:
        before, after = (list(store.scan(family, b"", LAST)) for store in (sound.store, done.store))
        if family in gone:
            assert [key for key, _ in after if len(key) != 16 or key[8:] != bytes(8)] == [], "a queue's own row stays"
        else:
            assert after == before, family
    assert bool(gone & {Family.GROUPS, Family.POSITIONS}) == any(action.kind == "lost" for action in done.actions)
