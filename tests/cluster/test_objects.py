"""Objects of the log: every byte survives, and damage is found and named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_cluster import objects
from topics_cluster.objects import Batch, DamagedObjectError, Header, Kind, LaterFormatError, LogObject, Op
from topics_service.storage.store import Family

NONCE = bytes(range(16))
derandomized = settings(deadline=None, derandomize=True, max_examples=200)
rows = st.lists(
    st.tuples(st.sampled_from(Op), st.sampled_from(Family), st.binary(max_size=40), st.binary(max_size=200)), max_size=5
)


def data(first: int, batches: list[list[objects.Row]], number: int = 7) -> bytes:
    body = []
    for ticket, each in enumerate(batches, first):
        body.append(objects.batch_start(ticket, len(each)))
        body += [objects.row(Op(op), Family(family), key, value) for op, family, key, value in each]
    header = Header(Kind.DATA, 3, 5, number, number + 4, first + len(batches) - 1, NONCE)
    return b"".join(objects.encode(header, body))


def fence(number: int = 7, resume: int = 23) -> bytes:
    return b"".join(objects.encode(Header(Kind.FENCE, 3, 6, number, resume, 41, NONCE)))


SAMPLE = data(9, [[(Op.PUT, Family.BLOCKS, b"key", b"value" * 40)], [(Op.DELETE_RANGE, Family.TAGS, b"a", b"b")]])


@derandomized
@given(first=st.integers(1, 1 << 62), batches=st.lists(rows, min_size=1, max_size=6))
def test_batches_come_back_as_they_were(first: int, batches: list[list[objects.Row]]) -> None:
    header, found = objects.decode(3, 7, data(first, batches))
    assert header == Header(Kind.DATA, 3, 5, 7, 11, first + len(batches) - 1, NONCE)
    assert found == [Batch(ticket, each) for ticket, each in enumerate(batches, first)]


def test_a_fence_comes_back_without_batches() -> None:
    assert objects.decode(3, 7, fence()) == LogObject(Header(Kind.FENCE, 3, 6, 7, 23, 41, NONCE), [])
    assert len(fence()) == objects.HEADER_BYTES


def test_large_values_are_not_copied() -> None:
    value = bytes(1 << 20)
    assert objects.encode(Header(Kind.DATA, 0, 1, 1, 5, 1, NONCE), [b"start", value])[2] is value


def test_names_sort_as_their_numbers() -> None:
    names = [objects.name(0, number) for number in (1, 9, 10, 1 << 63)]
    assert names == sorted(names)
    assert [objects.number_of(name) for name in names] == [1, 9, 10, 1 << 63]
    assert names[0] == "s0/log/00000000000000000001"
    for name in ("s0/log/7", "s0/log/0000000000000000000x", "s0/log/-0000000000000000001"):
        with pytest.raises(ValueError, match="no name"):
            objects.number_of(name)


@pytest.mark.parametrize("whole", [SAMPLE, fence()], ids=["data", "fence"])
def test_every_changed_byte_and_every_cut_is_damage(whole: bytes) -> None:
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        with pytest.raises(DamagedObjectError, match="s3/log/00000000000000000007"):
            objects.decode(3, 7, bytes(changed))
        with pytest.raises(DamagedObjectError):
            objects.decode(3, 7, whole[:at])
    with pytest.raises(DamagedObjectError):
        objects.decode(3, 7, whole + b"\x00")


def test_an_object_under_the_name_of_another_is_damage() -> None:
    for shard, number in ((3, 8), (0, 7)):
        with pytest.raises(DamagedObjectError, match="number 7 of shard 3"):
            objects.decode(shard, number, SAMPLE)


@pytest.mark.parametrize(
    "body",
    [
        [],
        [objects.batch_start(41, 1 << 31)],
        [objects.batch_start(41, 1)],
        [objects.batch_start(40, 0)],
        [objects.batch_start(39, 0), objects.batch_start(41, 0)],
        [objects.batch_start(41, 1), objects.ROW.pack(1, 0, 1 << 31, 1 << 31)],
        [objects.batch_start(41, 1), objects.ROW.pack(4, 0, 0, 0)],
        [objects.batch_start(41, 1), objects.ROW.pack(1, 200, 0, 0)],
        [objects.batch_start(41, 0), b"rest"],
    ],
)
def test_a_body_that_contradicts_itself_is_damage(body: list[bytes]) -> None:
    whole = b"".join(objects.encode(Header(Kind.DATA, 3, 5, 7, 11, 41, NONCE), body))
    with pytest.raises(DamagedObjectError, match="s3/log/00000000000000000007 is damaged"):
        objects.decode(3, 7, whole)


@pytest.mark.parametrize(
    "header",
    [
        Header(Kind.FENCE, 3, 6, 7, 7, 41, NONCE),
        Header(Kind.FENCE, 3, 0, 7, 23, 41, NONCE),
        Header(9, 3, 6, 7, 23, 41, NONCE),  # type: ignore[arg-type]
    ],
)
def test_a_header_that_no_writer_makes_is_damage(header: Header) -> None:
    with pytest.raises(DamagedObjectError):
        objects.decode(3, 7, b"".join(objects.encode(header)))


def test_a_fence_with_batches_is_damage() -> None:
    whole = objects.encode(Header(Kind.FENCE, 3, 6, 7, 23, 41, NONCE), [objects.batch_start(41, 0)])
    with pytest.raises(DamagedObjectError, match="batches"):
        objects.decode(3, 7, b"".join(whole))


def test_an_object_of_a_later_version_is_refused_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    header = Header(Kind.DATA, 3, 6, 7, 23, 41, NONCE)
    later = b"".join(objects.encode(header, objects.batch_parts(41, []), version=2))
    with pytest.raises(LaterFormatError, match="format 2, this one reads 1"):
        objects.decode(3, 7, later)
    monkeypatch.setattr(objects, "READABLE", range(1, 3))
    assert objects.decode(3, 7, later).header == header
    monkeypatch.setattr(objects, "READABLE", range(3, 4))
    with pytest.raises(DamagedObjectError, match="version 2"):
        objects.decode(3, 7, later)
