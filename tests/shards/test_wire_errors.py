"""Exceptions of calls on the way."""

import asyncio
import logging

import msgspec
import pytest

from topics_service.api.running import LostCallError
from topics_service.engine.errors import Reason, TopicsError, partition_not_found
from topics_service.engine.membership.members import GroupError, RefusedError
from topics_service.engine.producers import SequenceError
from topics_service.engine.redirects import ElsewhereError, Redirect
from topics_service.storage.recordbatch import InvalidBatchError
from topics_shards.wire.errors import decode_error, encode_error


@pytest.mark.parametrize("reason", list(Reason))
def test_an_error_keeps_its_reason_and_when_to_retry(reason: Reason) -> None:
    sent = TopicsError(reason, "text", {"topic": "t"}, retry_after_ms=7 if reason is Reason.THROTTLED else None)
    found = decode_error(encode_error(sent, "a call"))
    assert isinstance(found, TopicsError)
    assert (found.reason, found.message, found.detail) == (reason, "text", {"topic": "t"})
    assert found.retry_after_ms == sent.retry_after_ms


def test_a_subclass_arrives_as_the_error_that_it_is() -> None:
    found = decode_error(encode_error(partition_not_found("t", 3, 2), "a call"))
    assert isinstance(found, TopicsError)
    assert found.detail == {"topic": "t", "partition": 3, "partition_count": 2}


def test_the_others_that_callers_tell_apart() -> None:
    sequence = decode_error(encode_error(SequenceError("stale_epoch", "text"), "a call"))
    assert isinstance(sequence, SequenceError)
    assert (sequence.kind, str(sequence)) == ("stale_epoch", "text")
    batch = decode_error(encode_error(InvalidBatchError("codec", "text"), "a call"))
    assert isinstance(batch, InvalidBatchError)
    assert (batch.code, str(batch)) == ("codec", "text")
    refused = decode_error(encode_error(RefusedError(GroupError.FENCED_INSTANCE_ID, "text"), "a call"))
    assert isinstance(refused, RefusedError)
    assert (refused.error, refused.message) == (GroupError.FENCED_INSTANCE_ID, "text")
    elsewhere = decode_error(encode_error(ElsewhereError("t", Redirect(2, "group", 3)), "a call"))
    assert isinstance(elsewhere, ElsewhereError)
    assert (elsewhere.name, elsewhere.redirect) == ("t", Redirect(2, "group", 3))
    lost = decode_error(encode_error(LostCallError("text"), "a call"))
    assert isinstance(lost, LostCallError)
    assert str(lost) == "text"


def test_a_call_that_was_broken_off_is_lost() -> None:
    assert isinstance(decode_error(encode_error(asyncio.CancelledError(), "a call")), LostCallError)


def test_what_nobody_expects_is_internal_and_logged_at_the_shard(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "topics.shards"):
        found = decode_error(encode_error(ZeroDivisionError("secret"), "TopicsApi.append"))
    assert isinstance(found, TopicsError)
    assert (found.reason, found.message) == (Reason.INTERNAL, "internal error")
    assert "TopicsApi.append failed" in caplog.text
    assert "ZeroDivisionError: secret" in caplog.text


def test_what_a_later_version_says_is_internal() -> None:
    newer = msgspec.msgpack.encode(("topics", "of_a_later_version", "text"))
    found = decode_error(newer)
    assert isinstance(found, TopicsError)
    assert (found.reason, found.message) == (Reason.INTERNAL, "text")
    code = decode_error(msgspec.msgpack.encode(("refused", "OF_A_LATER_VERSION", "text")))
    assert isinstance(code, TopicsError)
    assert (code.reason, code.message) == (Reason.INTERNAL, "text")
