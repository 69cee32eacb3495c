"""Chunks of the tag index: what is put in is found, split at their size, and damage is refused."""

from array import array
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.storage import tagchunk
from topics_service.storage.tagchunk import Chunk, CorruptChunkError, Entries, encode, limited, split

tags = st.sampled_from((b"", b"\x00", b"\x00\xff", b"a", b"a\x00", b"aa", b"b", b"\xff", b"long" * 20))
posted = st.dictionaries(tags, st.sets(st.integers(0, 50), min_size=1), min_size=1)


def _entries(found: dict[bytes, set[int]]) -> Entries:
    pairs = [pair for tag in sorted(found) for pair in limited(tag, sorted(found[tag]))]
    return Entries(
        [tag for tag, _ in pairs],
        [len(places) for _, places in pairs],
        array("I", [place for _, places in pairs for place in places]),
    )


@settings(max_examples=200, deadline=None)
@given(posted, st.sampled_from((1, 3, 4096)), st.sampled_from((1, 30, 100, 16384)), st.booleans())
def test_what_was_split_and_stored_is_found(found: dict[bytes, set[int]], most: int, size: int, whole: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tagchunk, "MAX_POSITIONS", most)
        patch.setattr(tagchunk, "CHUNK_BYTES", size)
        parts = list(split(_entries(found), whole=whole))
    if not whole:
        assert sum(len(tag) + 8 for tag in parts[-1].tags) < size
        parts = [part for part in parts if part.tags]
    seen = defaultdict[bytes, list[int]](list)
    for part in parts:
        chunk = Chunk(encode(part))
        chunk.check()
        assert chunk.entries() == part
        assert chunk.last == part.tags[-1]
        for i in range(chunk.count):
            assert len(chunk.positions(i)) <= most
            seen[chunk.tag(i)] += chunk.positions(i)
        for tag in (b"", b"\x00", b"a", b"aa", b"ab", b"\xff\xff"):
            assert [part.tags[i] for i in chunk.matching(tag, prefix=False)] == [t for t in part.tags if t == tag]
            assert [part.tags[i] for i in chunk.matching(tag, prefix=True)] == [
                t for t in part.tags if t.startswith(tag)
            ]
    assert seen == {tag: sorted(places) for tag, places in found.items()}


GOOD = encode(Entries([b"a", b"bc"], [1, 2], array("I", [3, 1, 2])))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        GOOD[:7],
        GOOD[:-1],
        GOOD + b"\x00",
        b"\x02" + GOOD[1:],
        GOOD[:1] + b"\x03" + GOOD[2:],
        GOOD[:4] + b"\xff\xff\xff\xff" + GOOD[8:],
        GOOD[:4] + bytes(4) + GOOD[8:],
        GOOD[:12] + b"\xff\xff\xff\xff" + GOOD[16:],
    ],
)
def test_what_is_no_chunk_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptChunkError):
        Chunk(value)


@pytest.mark.parametrize(
    "entries",
    [
        Entries([b"b", b"a"], [1, 1], array("I", [1, 2])),
        Entries([b"a", b"a"], [1, 1], array("I", [2, 1])),
        Entries([b"a", b"b"], [2, 1], array("I", [1, 1, 3])),
    ],
)
def test_disorder_is_seen_by_a_check(entries: Entries) -> None:
    with pytest.raises(CorruptChunkError):
        Chunk(encode(entries)).check()
