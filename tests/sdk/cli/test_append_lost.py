"""`topics append` where answers are lost: it never says that a line is not there which may be."""

from typing import Any

from support.fake_topics import FakeTopics, lose, stored
from support.http import fresh
from topics_proto.v1 import topics_service_pb2 as pb

from .runner import Cli

_NOT_SENT = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: connection refused"


def test_a_lost_answer_is_remembered_when_the_server_is_gone_afterwards() -> None:
    def answer(request: pb.AppendRequest, attempt: int, context: Any) -> pb.AppendResponse:
        lose(context, "broken" if attempt == 1 else _NOT_SENT)

    with FakeTopics(answer, [120_000] * 1000) as fake:
        ran = Cli(fake.target)("append", "t", stdin="1\n2\n", code=3)
    assert "lines 1 to 2, without a response: they may or may not be stored" in ran.err
    assert len({request.idempotency_key for request in fake.attempts}) == 1
    assert len(fake.attempts) > 1


def test_attempts_that_never_went_out_leave_no_doubt_and_use_up_no_window() -> None:
    def answer(request: pb.AppendRequest, attempt: int, context: Any) -> pb.AppendResponse:
        return stored(request, 1) if attempt == 4 else lose(context, _NOT_SENT)

    with FakeTopics(answer) as fake:  # which is not asked for its window
        assert "1 record appended" in Cli(fake.target)("append", "t", "1").out


def test_a_lost_write_is_not_made_again_where_it_could_be_stored_twice() -> None:
    """The topic that was not there after the first attempt has been made since, with a short window."""
    with FakeTopics(lambda request, attempt, context: lose(context), [None, 100]) as fake:
        ran = Cli(fake.target)("append", "t", "1", code=1)
    assert "outcome_unknown: the answer to a write was lost" in ran.err
    assert "they may or may not be stored" in ran.err
    assert len(fake.attempts) == 2


def test_an_answer_about_other_records_is_no_success() -> None:
    def answer(request: pb.AppendRequest, attempt: int, context: Any) -> pb.AppendResponse:
        return pb.AppendResponse(first_seq=1, last_seq=1, head_seq=1, count=1)

    with FakeTopics(answer) as fake:
        ran = Cli(fake.target)("append", "t", stdin="1\n2\n", code=1)
    assert "its key was used for a write of 1 record, and this one has 2" in ran.err
    assert "may or may not be stored" in ran.err
    assert len(fake.attempts) == 1, "it is not made in parts, which might be there twice"


def test_a_key_is_not_used_for_two_different_writes(topics: Cli) -> None:
    topic = fresh()
    topics("append", topic, "--key", "k", stdin="1\n2\n")
    again = topics("append", topic, "--key", "k", stdin="1\n2\n3\n", code=1)
    assert "its key was used for a write of 2 records, and this one has 3" in again.err
    assert "nothing was appended" in again.err
    assert topics("read", topic).out == "1\n2\n"
