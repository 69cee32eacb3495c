"""Records as lines and back, to the byte; times as people write them."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics_cli.lines import BadTextError
from topics_cli.recordtext import gap_object, gap_text, parsed, value_line, value_lines, whole_line
from topics_cli.times import moment, shown
from topics_client.models import Gap, Record

UGLY = [
    b'{"b" : 1.0,"a":1e3, "a":[ ] }',
    b'"\\u00e9\\/ \\ud83d\\ude00 \\n"',
    '"snow ☃ \u2028"'.encode(),
    b'{\n\t"k":\r\n 1}',
    b"1180591620717411303424.10",
    b"9" * 5000,
    b"null",
]


def _record(
    data: bytes, *, binary: bool = False, tag: str | None = None, meta: bytes = b"", partition: int = 0
) -> Record:
    return Record("t", partition, 7, 1700000000123, data, binary, tag, None, meta)


@pytest.mark.parametrize("data", UGLY, ids=repr)
def test_a_line_has_the_same_value_and_is_one(data: bytes) -> None:
    record = _record(data, tag='a"\n')
    for line in (value_line(record), json.dumps(None).encode(), whole_line(record), whole_line(record, exact=True)):
        assert b"\n" not in line
        assert b"\r" not in line
    if len(data) < 4300:
        assert json.loads(value_line(record)) == json.loads(data)
        assert json.loads(whole_line(record))["data"] == json.loads(data)
    assert value_line(record) == data or b"\n" in data


_METAS = st.sampled_from([b"", b"{}", b'{ "a" : 1.0, "a": 2}', b'{\n"a":\r1}'])
_TEXTS = st.none() | st.text(max_size=5)


@given(
    st.builds(
        Record,
        st.just("t"),
        st.integers(0, 3),
        st.just(7),
        st.just(5),
        st.sampled_from(UGLY) | st.text().map(lambda text: json.dumps(text, ensure_ascii=False).encode()),
        st.just(False),
        _TEXTS,
        _TEXTS,
        _METAS,
    )
    | st.builds(
        Record, st.just("t"), st.just(0), st.just(7), st.just(5), st.binary(), st.just(True), _TEXTS, _TEXTS, _METAS
    )
)
def test_a_whole_line_is_read_back_to_the_byte(record: Record) -> None:
    found = parsed(whole_line(record, partition=True, exact=True))
    assert found is not None
    assert (found.data, found.binary) == (record.data, record.binary)
    assert (found.tag, found.node, found.meta, found.partition) == (
        record.tag,
        record.node,
        record.meta_data,
        record.partition,
    )


def test_a_whole_line_has_the_members_of_v0_in_their_order() -> None:
    record = Record("gh", 2, 3, 4, b"\x00\xff", True, "t", "n", b'{"m":1}')
    assert whole_line(record, topic=True, partition=True) == (
        b'{"topic":"gh","$seq":3,"$ts":4,"$partition":2,"$encoding":"base64","$node":"n","$tag":"t","data":"AP8=","meta":{"m":1}}'
    )
    assert whole_line(_record(b" 1")) == b'{"$seq":7,"$ts":1700000000123,"data": 1}'


@given(st.lists(st.sampled_from(UGLY) | st.binary(max_size=3)))
def test_many_lines_are_as_one_and_one(datas: list[bytes]) -> None:
    records = [_record(data, binary=data not in UGLY) for data in datas]
    assert value_lines(records) == b"".join(value_line(each) + b"\n" for each in records)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"[1]", "not a JSON object"),
        (b'{"data":1', "but it ends here"),
        (b'{"$tag":"a"}', 'no "data"'),
        (b'{"data":1,"event":2}', 'no member "event"'),
        (b'{"data":1,"$tag":2}', '"$tag" is not text'),
        (b'{"data":1,"$partition":true}', '"$partition" is not a whole number'),
        (b'{"data":"!","$encoding":"base64"}', '"data" is not base64'),
        (b'{"data":1,"$encoding":"base64"}', '"data" is not text'),
        (b'{"data":"AA==","$encoding":"gzip"}', '"$encoding"'),
        (b'{"data":"AA==","$encoding":"base64","$kind":"json"}', "expecting value"),
    ],
)
def test_a_line_that_is_no_record_says_why(line: bytes, what: str) -> None:
    with pytest.raises(BadTextError) as caught:
        parsed(line)
    assert what in caught.value.what


def test_gaps_have_lines_too() -> None:
    gap = Gap("t", 0, 1, 9, "cap", 9, 10, 20)
    assert parsed(json.dumps({"gap": gap_object(gap)}).encode()) is None
    assert gap_text(gap) == "seq 1 to 9 are gone (cap)"
    assert gap_text(Gap("t", 0, 3, 3, "ttl", 1, 4, 4)) == "seq 3 is gone (ttl)"
    assert "created again" in gap_text(Gap("t", 0, 1, 0, "recreated", 0, 1, 0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15m", 1_000_000_000 - 15 * 60_000),
        ("1.5s", 1_000_000_000 - 1500),
        ("2d", 1_000_000_000 - 2 * 86_400_000),
        ("99999d", 0),
        ("1700000000123", 1700000000123),
        ("2026-11-28T14:30:00Z", int(datetime(2026, 11, 28, 14, 30, tzinfo=UTC).timestamp() * 1000)),
        ("2026-11-28T15:30:00.25+01:00", int(datetime(2026, 11, 28, 14, 30, tzinfo=UTC).timestamp() * 1000) + 250),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert moment(text, 1_000_000_000) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "15x", "-5", "2026-13-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        moment(text, 0)


def test_a_time_is_shown_in_utc() -> None:
    assert shown(1700000000123) == "2023-11-14T22:13:20.123Z"
