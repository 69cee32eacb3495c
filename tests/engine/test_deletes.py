"""The delete bitmaps against a plain set."""

from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.engine.deletes import CHUNK_BITS, Deletes, decode_chunk

CHUNK = 1 << CHUNK_BITS
edges = st.sampled_from([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 1, 3 * CHUNK])
seqs = st.builds(lambda edge, by: max(0, edge + by), edges, st.integers(-6, 6))
sets = st.sets(seqs, max_size=30)
derandomized = settings(deadline=None, derandomize=True)


def size(seq: int) -> int:
    return seq % 7 + 1


def marked(marks: set[int]) -> Deletes:
    return Deletes().marked((seq, size(seq)) for seq in sorted(marks))[0]


@derandomized
@given(marks=sets, start=seqs, stop=seqs)
def test_ranges(marks: set[int], start: int, stop: int) -> None:
    deletes, within = marked(marks), sorted(seq for seq in marks if start <= seq < stop)
    assert bool(deletes) == bool(marks)
    assert [seq in deletes for seq in (start, stop)] == [seq in marks for seq in (start, stop)]
    assert deletes.count(start, stop) == len(within)
    assert list(deletes.between(start, stop)) == within
    assert deletes.dead_bytes(start, stop, size) == sum(map(size, within))
    expected = next((seq for seq in range(start, stop) if seq not in marks), stop) if start < stop else min(start, stop)
    assert deletes.first_unmarked(start, stop) == expected
    assert deletes.first_marked(start, stop) == (within[0] if within else stop)


@derandomized
@given(marks=sets, asked=st.lists(seqs, max_size=30))
def test_unmarked_keeps_the_order(marks: set[int], asked: list[int]) -> None:
    assert marked(marks).unmarked(asked) == [seq for seq in asked if seq not in marks]


@derandomized
@given(first=sets, second=sets)
def test_marking_makes_a_new_set(first: set[int], second: set[int]) -> None:
    old = marked(first)
    new, changed = old.marked((seq, size(seq)) for seq in second - first)
    assert set(new.between(0, 9 * CHUNK)) == first | second
    assert set(old.between(0, 9 * CHUNK)) == first, "readers hold on to the old one"
    assert changed == sorted({seq >> CHUNK_BITS for seq in second - first})
    assert new.dead_bytes(0, 9 * CHUNK, size) == sum(map(size, first | second))


@derandomized
@given(marks=sets, seq=seqs)
def test_forgetting(marks: set[int], seq: int) -> None:
    deletes = marked(marks)
    above, gone = deletes.forget_below(seq)
    assert set(above.between(seq, 9 * CHUNK)) == {mark for mark in marks if mark >= seq}
    assert all((number + 1) * CHUNK <= seq for number in gone)
    assert set(above.numbers()) | set(gone) == set(deletes.numbers())
    below = deletes.forget_from(seq, size)
    kept = {mark for mark in marks if mark < seq}
    assert set(below.between(0, 9 * CHUNK)) == kept
    assert below.dead_bytes(0, 9 * CHUNK, size) == sum(map(size, kept))
    assert set(below.numbers()) == {mark >> CHUNK_BITS for mark in kept}


@derandomized
@given(marks=sets)
def test_chunks_survive_storage(marks: set[int]) -> None:
    deletes = marked(marks)
    stored = Deletes({number: decode_chunk(deletes.encode(number)) for number in deletes.numbers()})
    assert set(stored.between(0, 9 * CHUNK)) == marks
    assert stored.dead_bytes(0, 9 * CHUNK, size) == deletes.dead_bytes(0, 9 * CHUNK, size)


def test_a_long_deleted_stretch_is_passed_in_one_go() -> None:
    deletes = marked(set(range(5, 3 * CHUNK + 5)))
    assert deletes.first_unmarked(5, 9 * CHUNK) == 3 * CHUNK + 5
    assert deletes.first_unmarked(100, 2 * CHUNK) == 2 * CHUNK
