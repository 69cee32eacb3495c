"""Values in one run of bytes, as a sequence."""

import pytest

from topics_service.engine.model import AppendRequest, Batch, joined
from topics_service.storage import block
from topics_service.storage.joined import Joined

VALUES = [b"a", b"", b"ccc", b"dd", b""]
JOINED = Joined(b"".join(VALUES), list(map(len, VALUES)))


def test_it_is_the_sequence_of_its_values() -> None:
    assert list(JOINED) == VALUES
    assert len(JOINED) == 5
    assert [JOINED[i] for i in range(5)] == VALUES
    assert b"".join(JOINED) == JOINED.data
    with pytest.raises(IndexError):
        JOINED[5]


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("stop", range(6))
def test_a_part_of_it_is_another_one(start: int, stop: int) -> None:
    part = JOINED[start:stop]
    assert list(part) == VALUES[start:stop]
    assert len(part) == len(VALUES[start:stop])


def test_sizes_that_are_not_those_of_the_data() -> None:
    with pytest.raises(ValueError, match="3 bytes of values, and 2 of data"):
        Joined(b"12", [1, 2])


def test_a_batch_of_it_is_as_good_as_one_of_single_values() -> None:
    plain, one = Batch(VALUES), Batch(JOINED)
    assert one.sizes == plain.sizes
    assert [list(piece.datas) for piece in one.pieces(3)] == [list(piece.datas) for piece in plain.pieces(3)]
    assert list(joined([one, plain]).datas) == VALUES * 2
    assert AppendRequest(topic="t", batch=one).batch.datas[2] == b"ccc"
    built = block.build(1, 1, 5, JOINED, None, None, None, None, 0)
    assert [built.record_data(i) for i in range(5)] == VALUES
