"""Strict JSON objects."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from topics_gateway.config import read_config
from topics_gateway.json_fields import Fields, JsonObject, parse_object
from topics_gateway.record_endpoints import read_match
from topics_gateway.topic_endpoints import page_size
from topics_service.api.cursor import read_cursor, write_cursor
from topics_service.engine.config import U64_MAX
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ConfigInput, TagMatch

KNOWN = frozenset({"a", "b"})


def fields(text: str, *nullable: str) -> Fields:
    return Fields(parse_object(text.encode()), KNOWN, frozenset(nullable))


def refused(error: pytest.ExceptionInfo[TopicsError]) -> bool:
    return error.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"{bad}", b"[]", b'"x"', b"5", b"null", b"[{}]", b"{} x", b"{}{}", b'{"a":1,}', b"'a'",
        b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":01}', b'{"a":"\xff"}', b"\xff{}",
        b'{"a":"\\ud800"}', b'{"x":"\\udc00\\ud800"}', b'{"\\ud800":1}', b'{"a":"\n"}', b"\xef\xbb\xbf{}",
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)  # fmt: skip
def test_anything_but_one_valid_object_is_refused(text: bytes) -> None:
    with pytest.raises(TopicsError) as error:
        parse_object(text)
    assert refused(error)


def test_white_space_escapes_and_depth_are_fine() -> None:
    given = fields(' {"a" : "\\u00e9\\ud83d\\ude00",\n"x":%s}\t' % ("[" * 100 + "]" * 100))
    assert given.text("a") == "é😀"


def test_duplicates_count_only_among_known_members_of_the_same_object() -> None:
    assert fields('{"x":1,"x":2,"y":{"a":1,"a":2},"a":3}').integer("a") == 3
    for text in ('{"a":1,"a":1}', '{"a":1,"\\u0061":1}', '{"b":null,"b":1}'):
        with pytest.raises(TopicsError) as error:
            fields(text, "b")
        assert refused(error)


@pytest.mark.parametrize("value", ["1.0", '"5"', "true", "-1", "1e3", "null", "[]", "{}", str(2**64), "1" * 5000])
def test_integers_are_strict(value: str) -> None:
    with pytest.raises(TopicsError) as error:
        fields(f'{{"a":{value}}}').integer("a")
    assert refused(error)


def test_integer_bounds() -> None:
    assert fields(f'{{"a":{U64_MAX}}}').integer("a") == U64_MAX
    assert fields("{}").integer("a") is None
    assert fields('{"a":null}', "a").integer("a") is None
    assert fields('{"a":-5}').integer("a", -5, 5) == -5


def test_amounts_of_any_size_are_clamped() -> None:
    for digits in (1, 20, 45, 50_000):
        assert fields('{"a":%s}' % ("9" * digits)).amount("a") == min(10**digits - 1, U64_MAX)
    assert fields("{}").amount("a") == 0
    for value in ("-1", "-" + "9" * 5000, "1.5", "null", "true"):
        with pytest.raises(TopicsError) as error:
            fields(f'{{"a":{value}}}').amount("a")
        assert refused(error)


def test_booleans_and_texts() -> None:
    given = fields('{"a":true,"b":"x"}')
    assert (given.boolean("a"), given.text("b"), given.has("a"), given.has("c")) == (True, "x", True, False)
    assert (given.boolean("c"), given.text("c"), given.value("c")) == (None, None, None)
    for read in (given.text, fields('{"a":0}').boolean, fields('{"a":null}').text, fields('{"a":null}').boolean):
        with pytest.raises(TopicsError) as error:
            read("a")
        assert refused(error)


def test_config_groups() -> None:
    for text, groups in ((b'["g","h"]', ("g", "h")), (b"[]", ()), (b"null", UNSET)):
        given = read_config(parse_object(b'{"retain_until_acked_by":%b}' % text))
        assert given == ConfigInput(retain_until_acked_by=groups)
    for text in (b'"g"', b"[1]", b"{}", b'["g",null]'):
        with pytest.raises(TopicsError, match="retain_until_acked_by"):
            read_config(parse_object(b'{"retain_until_acked_by":%b}' % text))


def test_config_nulls_and_types() -> None:
    assert read_config(parse_object(b'{"priority":null,"dead_letter":null,"durability":null}')) == ConfigInput()
    given = read_config(parse_object(b'{"type":"queue","ttl_ms":5,"durable":true,"priority":-7,"unknown":{"a":[]}}'))
    assert given == ConfigInput(type="queue", ttl_ms=5, durable=True, priority=-7)
    nullable = {"priority", "dead_letter", "durability", "retain_until_acked_by"}
    for name in sorted(set(ConfigInput.__struct_fields__) - nullable):
        for value in ("null", "[]", "1.5"):
            with pytest.raises(TopicsError) as error:
                read_config(parse_object(f'{{"{name}":{value}}}'.encode()))
            assert refused(error)


def test_tag_rules() -> None:
    assert read_match("a:*") == TagMatch("Eq", b"a:*")
    assert read_match(["tag", "Eq", "é"]) == TagMatch("Eq", "é".encode())
    assert read_match(["tag", "Glob", "a*b*"]) == TagMatch("Glob", b"a*b")
    assert read_match(["tag", "Glob", "*"]) == TagMatch("Glob", b"")
    bad: list[Any] = [5, [], ["tag", "Eq"], ["tag", "Eq", 1], ["tag", "eq", "x"], ["node", "Eq", "x"]]
    bad += [["tag", "Glob", "x"], ["tag", "Eq", "x", "y"], parse_object(b'{"tag":"x"}'), parse_object(b"{}")]
    for rule in bad:
        with pytest.raises(TopicsError) as error:
            read_match(rule)
        assert refused(error)


def test_cursors() -> None:
    assert write_cursor("jobs") == "eyJhZnRlciI6ImpvYnMifQ=="  # base64 with padding: docs/contract.md, 1.7
    assert read_cursor(write_cursor("a>b?~")) == "a>b?~"
    assert "+" in write_cursor("abc->d")
    assert read_cursor(write_cursor("abc->d").replace("+", " ")) == "abc->d"
    assert read_cursor("") is None
    for first_page in ("e30=", "W10=", "bnVsbA==", "eyJhZnRlciI6NX0="):
        assert read_cursor(first_page) is None
    for corrupt in ("x", "eyJhZnRlciI6ImpvYnMifQ", "é", "eyJ-", "e3s=", "////", "*", "W1tb" * 20_000):
        with pytest.raises(TopicsError) as error:
            read_cursor(corrupt)
        assert refused(error)


def test_page_size() -> None:
    sizes = {"0": 1, "1": 1, "007": 7, "1000": 1000, "1001": 1000, "": 100, "-1": 100, "x": 100, "1.5": 100, "²": 100}
    assert {text: page_size(text) for text in sizes} == sizes
    assert page_size("9" * 19) == 1000
    assert page_size("9" * 5000) == 100


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**45), 10**45)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(st.sampled_from("aba"), inner), max_size=3),
    max_leaves=8,
)


def _written(value: Any, space: str) -> str:
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return f"{{{f',{space}'.join(f'{json.dumps(k)}:{space}{_written(part, space)}' for k, part in value)}}}"
    if isinstance(value, list):
        return f"[{f',{space}'.join(_written(part, space) for part in value)}]"
    return json.dumps(value, ensure_ascii=space == "")


def _plain(value: Any) -> Any:
    if isinstance(value, JsonObject):
        return ("object", [(name, _plain(part)) for name, part in value.members])
    return [_plain(part) for part in value] if isinstance(value, list) else (type(value), value)


@settings(deadline=None, derandomize=True, max_examples=500)
@given(
    members=st.lists(st.tuples(st.sampled_from(["a", "b", "é", ""]), _values), max_size=4),
    space=st.sampled_from(["", " "]),
)
def test_the_quick_way_reads_what_the_careful_one_does(members: list[tuple[str, Any]], space: str) -> None:
    text = _written([*members, ("end", 0)], space).encode()
    padded = b" " * 5000 + text  # too long for the quick way
    assert _plain(parse_object(text)) == _plain(parse_object(padded))
