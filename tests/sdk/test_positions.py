"""The position in the log of a cluster that a client has seen."""

import pytest

from topics_client.positions import POSITION, Positions
from topics_proto.v1 import topics_service_pb2 as pb

READ = pb.GetTopicRequest(topic="t")


def at(text: str) -> list[tuple[str, str | bytes]]:
    return [("other", "9-9"), (POSITION, text)]


def test_it_moves_forwards_only() -> None:
    positions = Positions()
    assert positions.wanted(READ) is None
    for text, newest in (("1-9", "1-9"), ("1-10", "1-10"), ("1-2", "1-10"), ("2-1", "2-1"), ("1-99", "2-1")):
        positions.note(positions.begin(), at(text))
        assert positions.wanted(READ) == newest
    for text in ("", "3", "3-", "-3", "x-y"):
        positions.note(positions.begin(), at(text))
    positions.note(positions.begin(), None)
    assert positions.wanted(READ) == "2-1"


@pytest.mark.parametrize(
    ("request_", "is_marked"),
    [
        (pb.GetTopicRequest(), True),
        (pb.DiffRequest(), True),
        (pb.LocateTimeRequest(), True),
        (pb.BulkDiffRequest(), True),
        (pb.BulkDiffRequest(follow=True), False),
        (pb.DiffRequest(wait_ms=1), False),
        (pb.AppendRequest(), False),
        (pb.ListTopicsRequest(), False),
    ],
)
def test_reads_that_any_node_may_answer(request_: pb.DiffRequest, is_marked: bool) -> None:
    positions = Positions()
    positions.note(positions.begin(), at("1-1"))
    assert (positions.wanted(request_) is not None) is is_marked


def test_an_answer_says_nothing_of_what_came_after_its_call_began() -> None:
    positions = Positions()
    positions.note(positions.begin(), at("1-1"))
    early = positions.begin()
    late = positions.forget()
    assert positions.wanted(READ) is None
    positions.note(early, at("1-5"))
    assert positions.wanted(READ) is None
    positions.note(late, at("1-6"))
    positions.note(early, at("1-7"))
    assert positions.wanted(READ) == "1-7"
