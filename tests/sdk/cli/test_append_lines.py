"""Lines as they are read, and what is said of those that are not JSON."""

import io
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics_cli.lines import BadTextError, Source, all_json, chunks, json_value
from topics_service.api.jsontext import check_json
from topics_service.engine.errors import TopicsError


class Pipe:
    """Gives its bytes in the pieces that it was made with."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = iter([piece for piece in pieces if piece])

    def read1(self, size: int = -1, /) -> bytes:
        return next(self._pieces, b"")


def lines(source: Source, **options: int) -> list[tuple[int, bytes | None]]:
    return [numbered for number, group in chunks(source, **options) for numbered in enumerate(group, number)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n\na\r\n \n", [b"", b"", b"a\r", b" "]),
        (b"\xef\xbb\xbf1\n2", [b"1", b"2"]),
        (b"1\n\xef\xbb\xbf2", [b"1", b"\xef\xbb\xbf2"]),
    ],
)
def test_lines_have_numbers_and_no_ends(text: bytes, expected: list[bytes]) -> None:
    assert (lines(io.BytesIO(text))) == list(enumerate(expected, 1))


@given(st.lists(st.binary(max_size=5) | st.sampled_from([b"\n", b"a\nb\n", b"\r\n"])))
def test_how_a_pipe_cuts_its_bytes_makes_no_difference(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    if whole.startswith(b"\xef"):
        return
    assert (lines(Pipe(*pieces))) == (lines(Pipe(whole)))
    assert b"\n".join(text or b"" for _, text in lines(Pipe(whole))) == whole.removesuffix(b"\n") or whole == b"\n"


def test_a_line_that_is_too_long_is_passed_over() -> None:
    found = lines(Pipe(b"12345\n123", b"45", b"6789\n", b"1", b"23456"), longest=5)
    assert found == [(1, b"12345"), (2, None), (3, None)]


@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("", 1, "it is empty"),
        ('{"a":1', 7, "expecting ',' delimiter, but it ends here"),
        ('{"a":1,}', 8, "found '}'"),
        ('{"a" 1}', 6, "expecting ':' delimiter, found '1'"),
        ("{'a':1}", 2, 'double quotes, found "\'"'),
        ("1 2", 3, "extra data, found '2'"),
        ("nul", 1, "expecting value, found 'n'"),
        ('["é", x]', 7, "expecting value, found 'x'"),
        ('"abc', 1, "unterminated string starting"),
        ('"a\tb"', 3, "invalid control character, found '\\t'"),
        ('["NaN", NaN]', 9, "JSON has no NaN"),
        ('[1,-Infinity, "x"]', 4, "JSON has no -Infinity"),
        ('["a", "\\ud800"]', 8, "\\ud800 is half a character"),
        ('"\\ud83d\\ude00\\udc00"', 14, "\\udc00 is half a character"),
        ('"\\ud800x\\udc00"', 2, "\\ud800 is half a character"),
        ("[" * 100_000, 1, "it is nested too deeply"),
        ("\ufeff1", 1, "expecting value, found '\\ufeff'"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_wrong_is_named(text: str, column: int, what: str) -> None:
    with pytest.raises(BadTextError) as caught:
        json_value(text.encode())
    assert caught.value.column == column
    assert what in caught.value.what


def test_a_byte_that_is_not_utf8_is_named() -> None:
    with pytest.raises(BadTextError, match=r"column 3: byte 0xff is not UTF-8"):
        json_value(b'"a\xff"')


@pytest.mark.parametrize("text", ['"\\ud83d\\ude00"', '"\\\\ud800"', "1" * 5000, "1e999", '{"a":1,"a":2}', "-0.0E+1"])
def test_what_is_rare_is_taken(text: str) -> None:
    json_value(text.encode())
    check_json(text.encode())


_PIECES = st.sampled_from(
    [
        "1",
        "[",
        "]",
        ",",
        "{",
        "}",
        ":",
        '"',
        '"a"',
        "\\",
        "\\ud800",
        "\\udc00",
        "\\u00e9",
        "é",
        "NaN",
        "-",
        ".5",
        "null",
        " ",
    ]
)


_TEXTS = st.lists(_PIECES, max_size=8).map(lambda pieces: "".join(pieces).strip().encode())


@given(st.lists(_PIECES, max_size=8).map("".join))
def test_it_agrees_with_the_server(text: str) -> None:
    data = text.strip(" ").encode()

    def server_takes() -> bool:
        try:
            check_json(data)
        except TopicsError:
            return False
        return True

    try:
        value = json_value(data)
    except BadTextError:
        assert not server_takes()
    else:
        assert server_takes()
        assert value == json.loads(text)


@pytest.mark.parametrize("fast", [True, False])
@given(texts=st.lists(_TEXTS | st.sampled_from([b"1,2", b"[3", b"4]", b"\xff", b'"\xff"', b""]), max_size=6))
def test_many_at_once_are_as_one_and_one(fast: bool, texts: list[bytes]) -> None:
    def good(text: bytes) -> bool:
        try:
            json_value(text)
        except BadTextError:
            return False
        return True

    with pytest.MonkeyPatch.context() as patch:
        if not fast:
            patch.setitem(sys.modules, "msgspec", None)  # as where it is not installed
        assert all_json(texts) == all(map(good, texts))
