"""Seq arithmetic of a snapshot against brute force."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from topics_service.engine import snapshot
from topics_service.engine.deletes import Deletes
from topics_service.engine.snapshot import Gap, Snapshot

HEAD = 30
derandomized = settings(deadline=None, derandomize=True, max_examples=200)


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[Snapshot, list[int]]:
    """A snapshot with deletes and gaps, and its live seqs. `earliest` is live, as the engine keeps it."""
    head = draw(st.integers(0, HEAD))
    bounds = sorted(draw(st.sets(st.integers(1, head), max_size=6))) if head else []
    gaps = tuple(Gap(a, b, "cap") for a, b in zip(bounds[::2], bounds[1::2], strict=False))
    lost = {seq for gap in gaps for seq in range(gap.start, gap.stop + 1)}
    marks = draw(st.sets(st.integers(1, HEAD))) - lost
    start = draw(st.integers(1, HEAD + 1))
    live = [seq for seq in range(start, head + 1) if seq not in lost and seq not in marks]
    s = Snapshot(head=head, earliest=live[0] if live else head + 1, count=len(live), gaps=gaps)
    s.deletes = Deletes().marked((seq, 1) for seq in sorted(marks) if seq <= head)[0]
    return s, live


@derandomized
@given(case=snapshots(), start=st.integers(1, HEAD + 3), stop=st.integers(1, HEAD + 3))
def test_counting_and_finding(case: tuple[Snapshot, list[int]], start: int, stop: int) -> None:
    s, live = case
    assert s.live_between(start, stop) == sum(start <= seq < stop for seq in live)
    assert s.is_live(start) == (start in live)
    asked = [stop, start, *range(HEAD + 3)]
    assert s.live_among(asked) == list(filter(s.is_live, asked))
    at = max(start, s.earliest)
    assert s.first_live(at) == next((seq for seq in live if seq >= at), s.head + 1)


@derandomized
@given(case=snapshots(), n=st.integers(1, HEAD), seq=st.integers(1, HEAD + 1))
def test_the_nth_and_the_last(case: tuple[Snapshot, list[int]], n: int, seq: int) -> None:
    s, live = case
    if n <= len(live):
        assert s.nth_live(n) == live[n - 1] + 1
    assume(live and live[0] < seq)
    assert s.last_live_below(seq) == max(x for x in live if x < seq)


@derandomized
@given(case=snapshots(), seq=st.integers(0, HEAD + 2))
def test_gaps(case: tuple[Snapshot, list[int]], seq: int) -> None:
    s, _ = case
    assert s.gap_at(seq) == next((g for g in s.gaps if seq in range(g.start, g.stop + 1)), None)
    assert s.next_gap(seq) == next((g for g in s.gaps if g.start >= seq), None)
    assert s.gaps_around(seq) == (
        tuple(g for g in s.gaps if g.stop < seq),
        tuple(g for g in s.gaps if g.stop >= seq),
    )


def test_the_floor_is_above_the_highest_loss() -> None:
    assert Snapshot().evict_floor == 1
    assert Snapshot(evict_cap=3, evict_ttl=5, evict_trim=4).evict_floor == 6


def test_a_snapshot_survives_storage() -> None:
    s = Snapshot(*range(1, 13))
    assert snapshot.decode(snapshot.encode(s)) == s


@pytest.mark.parametrize("row", [b"", b"\x01", b"\x02" + bytes(96), b"\x01" + bytes(97)])
def test_a_row_that_is_none_is_refused(row: bytes) -> None:
    with pytest.raises(ValueError, match="log row"):
        snapshot.decode(row)
