"""JSON text as it arrives: one value, kept byte for byte."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics_service.api.jsontext import check_json, check_meta, normalize_json
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.storage.recordbatch.jsonvalue import all_json

LIMITS = Limits()
GOOD = [
    b"null",
    b"true",
    b"0",
    b"-0.0e+10",
    b"1e999",
    b"1180591620717411303424",
    b'""',
    b'"\\ud83d\\ude00"',
    '"snow ☃ 😀"'.encode(),
    b"[1,\n 2]",
    b'{"b":1,"a":{"b":[]},"b":2}',
    b"[" * 100 + b"]" * 100,
]
BAD = [
    b"",
    b"  ",
    b"1 2",
    b"1,2",
    b"01",
    b".5",
    b"+1",
    b"NaN",
    b"nul",
    b"'a'",
    b'{"a":1,}',
    b"[1,2",
    b"1]",
    b"1\x00",
    b"\x0b1",
    b'"\n"',
    b'"\\x41"',
    b'"\\ud800"',  # a lone surrogate
    b'"\\udc00\\ud800"',
    b'"\xff"',  # msgspec alone takes these three
    b'"\xed\xa0\x80"',
    b'{"\xc0\xaf":1}',
    b"\xef\xbb\xbf1",
    b"[" * 100_000 + b"]" * 100_000,
    b"[" * 100_000,
]


@pytest.mark.parametrize("text", GOOD, ids=repr)
def test_a_value_is_kept_byte_for_byte(text: bytes) -> None:
    assert normalize_json(text) == text
    assert normalize_json(b" \t\r\n" + text + b"\n") == text
    check_json(text)
    assert all_json([text, b"1", text])
    assert not all_json([b"1", text + b" "])


@pytest.mark.parametrize("text", BAD, ids=lambda text: repr(text[:20]))
def test_anything_else_is_invalid(text: bytes) -> None:
    with pytest.raises(TopicsError) as caught:
        check_json(text)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert not all_json([text])
    assert not all_json([b"1", text])


@pytest.mark.parametrize(
    "texts",
    [[b"1,2", b"[3", b"4]"], [b"[1", b"2]"], [b'{"a":1', b'"b":2}'], [b'"a', b'b"'], [b"", b""], [b"1", b""]],
    ids=repr,
)
def test_texts_that_are_json_only_together_are_not_normal(texts: list[bytes]) -> None:
    assert not all_json(texts)


@given(st.lists(st.one_of(st.binary(max_size=6), st.sampled_from([b"1", b"[", b"]", b",", b"1,2", b'"', b" 1"]))))
def test_all_json_agrees_with_one_at_a_time(texts: list[bytes]) -> None:
    def normal(text: bytes) -> bool:
        try:
            return normalize_json(text) == text
        except TopicsError:
            return False

    assert all_json(texts) == all(map(normal, texts))


@given(st.recursive(st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists))
def test_what_python_writes_is_taken(value: object) -> None:
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only).encode()
        assert normalize_json(text) == text


def _keys(n: int) -> bytes:
    return json.dumps({f"k{i}": i for i in range(n)}).encode()


@pytest.mark.parametrize(
    "meta",
    [
        b"{}",
        b' {"a":1}\n',
        b'{"a":{"b":[1]},"c":null}',
        _keys(64),
        b'{"a":[' + b'"::::::::::",' * 100 + b"1]}",
        b"{" + b",".join([b'"same" : 1'] * 200) + b"}",
        b'{"x":"%b"}' % (b"y" * (LIMITS.max_meta_bytes - 8)),
    ],
    ids=lambda meta: repr(meta[:20]),
)
@pytest.mark.parametrize("checked", [False, True])
def test_meta_within_the_limits(meta: bytes, checked: bool) -> None:
    check_meta(meta, LIMITS, checked=checked)


@pytest.mark.parametrize(
    "meta",
    [
        b"[]",
        b"null",
        b'"{}"',
        _keys(65),
        json.dumps({chr(i): 0 for i in range(32, 140)}, separators=(",", ":"), ensure_ascii=False).encode(),
        b'{"x":"%b"}' % (b"y" * (LIMITS.max_meta_bytes - 7)),
    ],
    ids=lambda meta: repr(meta[:20]),
)
@pytest.mark.parametrize("checked", [False, True])
def test_meta_beyond_them(meta: bytes, checked: bool) -> None:
    with pytest.raises(TopicsError, match="meta") as caught:
        check_meta(meta, LIMITS, checked=checked)
    assert caught.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize("meta", [b"", b"{", b"{}{}", b'{"a":\xff}', b'{"a":"\xff"}'], ids=repr)
def test_meta_is_checked_unless_told_otherwise(meta: bytes) -> None:
    with pytest.raises(TopicsError):
        check_meta(meta, LIMITS)


@pytest.mark.parametrize("maximum", range(4))
def test_the_shortest_text_with_too_many_keys_is_counted(maximum: int) -> None:
    limits = Limits(max_meta_keys=maximum)
    keys = ["", *"abcdefg"]

    def shortest(n: int) -> bytes:
        return json.dumps(dict.fromkeys(keys[:n], 0), separators=(",", ":")).encode()

    check_meta(shortest(maximum), limits)
    with pytest.raises(TopicsError, match="keys"):
        check_meta(shortest(maximum + 1), limits)
