"""Subscriptions of members: untrusted bytes, and patterns."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.kafka_members import assignment, subscription
from topics_service.engine.membership import subscriptions
from topics_service.engine.membership.members import GroupError, RefusedError
from topics_service.engine.membership.subscriptions import (
    compile_pattern,
    consumer_assignment,
    consumer_topics,
    matching,
)

NAMES = st.text(max_size=20)


@given(names=st.lists(NAMES), userdata=st.binary())
def test_subscriptions_are_read(names: list[str], userdata: bytes) -> None:
    assert consumer_topics(subscription(*names) + userdata) == names


@given(parts=st.dictionaries(st.text("abc", max_size=5), st.lists(st.integers(0, 2**31 - 1))))
def test_assignments_are_read(parts: dict[str, list[int]]) -> None:
    assert consumer_assignment(assignment(parts)) == parts


@given(st.binary(max_size=200))
def test_anything_else_is_not(junk: bytes) -> None:
    for read in (consumer_topics, consumer_assignment):
        found = read(junk)
        assert found is None or len(found) <= len(junk)


@given(st.data())
def test_nor_is_what_is_cut_short(data: st.DataObject) -> None:
    text = assignment({"topic": [1, 2, 3], "other": [4]})[:-4]  # without the user data, which is never read
    cut = data.draw(st.integers(1, len(text) - 1))
    assert consumer_assignment(text[:cut]) is None


def test_patterns_match_whole_names() -> None:
    pattern = compile_pattern("a.c|b", 100)
    assert matching(pattern, ["abc", "xabc", "abcd", "b", "bb"]) == ["abc", "b"]


def test_without_the_library_patterns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "re2", None)
    with pytest.raises(RefusedError) as caught:
        compile_pattern("a", 100)
    assert caught.value.error is GroupError.INVALID_REGULAR_EXPRESSION


@given(st.text(max_size=60))
def test_no_pattern_does_harm(text: str) -> None:
    with contextlib.suppress(RefusedError):
        assert len(matching(compile_pattern(text, 50), ["a" * 249] * 20)) in (0, 20)
