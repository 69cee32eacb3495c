"""Kafka records as records of other protocols, and back."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kafka_batches import (
    CODECS,
    LIBRDKAFKA,
    LIBRDKAFKA_RECORDS,
    START_TS,
    Rec,
    aiokafka_batch,
    batch_of,
    kafka_python_batch,
    read_by_aiokafka,
    read_by_kafka_python,
    record,
    samples,
    varint,
)
from topics_service.api.jsontext import check_json
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import BINARY_KIND, JSON_KIND
from topics_service.storage import recordbatch
from topics_service.storage.recordbatch import Columns
from topics_service.storage.recordbatch.jsonvalue import BINARY, JSON, is_json, kinds_of

CODEC_NAMES = [*CODECS, "xerial"]


def columns_of(*records: Rec) -> Columns:
    batch = kafka_python_batch(records)
    recordbatch.check(batch, max_bytes=len(batch))
    return recordbatch.columns(memoryview(batch))


def back(columns: Columns, nodes: list[bytes | None] | None = None) -> list[Rec]:
    batch = recordbatch.encoded(0, [START_TS] * len(columns.datas), columns, nodes)
    recordbatch.check(batch, max_bytes=len(batch))
    read = read_by_aiokafka(batch)
    assert [offset for offset, _ in read] == list(range(len(read)))
    return [r for _, r in read]


def column_record(data: bytes = b"{}", tag: bytes | None = None, meta: Any = None, *, binary: bool = False) -> Columns:
    text = meta if isinstance(meta, bytes) or meta is None else json.dumps(meta).encode()
    tags = None if tag is None else [tag]
    return Columns([data], tags, None if text is None else [text], b"\1" if binary else None)


def test_kinds_are_those_of_the_engine() -> None:
    assert (JSON, BINARY) == (JSON_KIND, BINARY_KIND)


@pytest.mark.parametrize(
    ("value", "data", "kind"),
    [
        (b'{"a": [1, 2.50, null], "a": 0}', b'{"a": [1, 2.50, null], "a": 0}', JSON),
        (b"17", b"17", JSON),
        (b' "y"\n', b' "y"\n', JSON),
        ('"\u00f6\U0001f600"'.encode(), '"\u00f6\U0001f600"'.encode(), JSON),
        (b"null", b"null", JSON),
        (None, b"null", JSON),
        (b"", b"", BINARY),
        (b" ", b" ", BINARY),
        (b"{}{}", b"{}{}", BINARY),
        (b"1,2", b"1,2", BINARY),
        (b"hello", b"hello", BINARY),
        (b"NaN", b"NaN", BINARY),
        (b"01", b"01", BINARY),
        (b'"\xff"', b'"\xff"', BINARY),
        (b'"\\ud800"', b'"\\ud800"', BINARY),
        (b"\xef\xbb\xbf{}", b"\xef\xbb\xbf{}", BINARY),
        (b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000 + b"]" * 100_000, BINARY),
        (b"\0\1\2", b"\0\1\2", BINARY),
    ],
)
def test_value_and_data(value: bytes | None, data: bytes, kind: int) -> None:
    columns = columns_of(Rec(None, value))
    assert columns == Columns([data], None, None, bytes([kind]) if kind else None)
    expected = None if value == b"null" else value
    assert back(columns) == [Rec(None, expected)]
    # the same among other records
    columns = columns_of(Rec(None, b"1"), Rec(None, value), Rec(None, b"\xff"))
    assert columns.kinds == bytes([JSON, kind, BINARY])


@given(st.lists(st.sampled_from([b"1", b"[3", b"4]", b"{}", b'"a', b'b"', b"", b" 7 ", b",", b"null", b"\xff", b"x"])))
def test_kinds_in_one_pass_are_those_one_by_one(values: list[bytes]) -> None:
    expected = bytes(JSON if is_json(value) else BINARY for value in values)
    assert (kinds_of(values) or bytes(len(values))) == expected


@given(st.binary(max_size=12) | st.text('{}[]",: 01e+-.truefalsn\\\\u\u00f6\n', max_size=12).map(str.encode))
@settings(max_examples=500)
def test_json_is_what_an_append_takes_as_json(value: bytes) -> None:
    try:
        check_json(value)
    except TopicsError:
        assert not is_json(value)
    else:
        assert is_json(value)


@pytest.mark.parametrize(
    ("key", "tag", "meta"),
    [
        (None, None, None),
        (b"", b"", None),
        (b"user-1", b"user-1", None),
        ("\u00f6".encode() * 128, "\u00f6".encode() * 128, None),
        (b"k" * 257, None, {"$key": {"$base64": "a2tr" * 85 + "a2s="}}),
        (b"\xff\xfe", None, {"$key": {"$base64": "//4="}}),
    ],
)
def test_key_and_tag(key: bytes | None, tag: bytes | None, meta: Any) -> None:
    columns = columns_of(Rec(key, b"{}"))
    assert columns.tags == (None if tag is None else [tag])
    assert (columns.metas and json.loads(columns.metas[0] or b"")) == meta
    assert back(columns) == [Rec(key, b"{}")]


@pytest.mark.parametrize(
    ("headers", "meta"),
    [
        ([("a", b"1")], {"a": "1"}),
        ([("a", b"1"), ("b", b"")], {"a": "1", "b": ""}),
        ([("", b"x")], {"": "x"}),
        ([("a", None)], {"a": None}),
        ([("a", b"\xff")], {"a": {"$base64": "/w=="}}),
        ([("a", b'{"$base64":"/w=="}')], {"a": '{"$base64":"/w=="}'}),
        ([("a", b'"quoted" \x00 \\')], {"a": '"quoted" \x00 \\'}),
        ([("a", b"1"), ("a", b"2"), ("a", None), ("a", b"\x80")], {"a": ["1", "2", None, {"$base64": "gA=="}]}),
        ([("$key", b"v")], {"$$key": "v"}),
        ([("$$key", b"v")], {"$$$key": "v"}),
        ([("$base64:eA==", b"v")], {"$$base64:eA==": "v"}),
        ([("$other", b"v"), ("$", b"v"), ("$$x", b"v")], {"$other": "v", "$": "v", "$$x": "v"}),
        ([("$base64", b"v")], {"$base64": "v"}),
        ([("\u00f6\U0001f600\0", "\u00f6".encode())], {"\u00f6\U0001f600\0": "\u00f6"}),
    ],
)
@pytest.mark.parametrize("key", [None, b"k", b"\xff"])
def test_headers_and_meta(headers: list[tuple[str, bytes | None]], meta: dict[str, Any], key: bytes | None) -> None:
    columns = columns_of(Rec(key, b"{}", headers))
    assert columns.metas is not None
    text = columns.metas[0]
    assert text is not None
    expected = {"$key": {"$base64": "/w=="}} | meta if key == b"\xff" else meta
    assert list(json.loads(text).items()) == list(expected.items())
    assert text == json.dumps(expected, separators=(",", ":"), ensure_ascii=False).encode()
    assert back(columns) == [Rec(key, b"{}", tuple(headers))]


def test_header_names_that_are_not_utf8() -> None:
    body = record(0, b"k", b"{}", [(b"\xff", b"1"), (b"a", None), (b"\xff", b"2")]) + record(1)
    columns = recordbatch.columns(batch_of(body, 2))
    assert columns == Columns([b"{}", b"{}"], [b"k", None], [b'{"$base64:/w==":["1","2"],"a":null}', None], None)
    encoded = recordbatch.encoded(0, [START_TS] * 2, columns, None)
    regrouped = record(0, b"k", b"{}", [(b"\xff", b"1"), (b"\xff", b"2"), (b"a", None)]) + record(1)
    assert encoded[61:] == regrouped


@pytest.mark.parametrize(
    ("tag", "meta", "key", "headers"),
    [
        (None, {"$key": "text"}, b"text", []),
        (None, {"$key": {"$base64": "/w=="}, "a": "1"}, b"\xff", [("a", b"1")]),
        (None, b'{"\\u0024key":"text"}', b"text", []),
        (b"t", {"$key": "text"}, b"t", [("$key", b"text")]),
        (None, {"$key": 5}, None, [("$key", b"5")]),
        (None, {"$key": None}, None, [("$key", None)]),
        (None, {"$key": {"$base64": "?"}}, None, [("$key", b'{"$base64": "?"}')]),
        (None, {"$key": ["a"]}, None, [("$key", b"a")]),
        (None, {"n": 1.50, "t": True}, None, [("n", b"1.5"), ("t", b"true")]),
        (None, b'{"n": 1.50, "o" : { "x" : [ ] } }', None, [("n", b"1.50"), ("o", b'{ "x" : [ ] }')]),
        (None, {"a": ["x", 1]}, None, [("a", b'["x", 1]')]),
        (None, {"a": []}, None, [("a", b"[]")]),
        (None, {"a": ["x", None]}, None, [("a", b"x"), ("a", None)]),
        (None, {"a": {"$base64": "/w==", "b": 1}}, None, [("a", b'{"$base64": "/w==", "b": 1}')]),
        (None, {"a": {"$base64": 1}}, None, [("a", b'{"$base64": 1}')]),
        (None, {"$base64:eA==": "plain"}, None, [("$base64:eA==", b"plain")]),
        (None, {"$base64:?": "plain"}, None, [("$base64:?", b"plain")]),
        (None, {}, None, []),
    ],
)
def test_meta_of_other_protocols(tag: bytes | None, meta: Any, key: bytes | None, headers: list[Any]) -> None:
    assert back(column_record(tag=tag, meta=meta)) == [Rec(key, b"{}", tuple(headers))]


def test_node_is_a_header() -> None:
    columns = Columns([b"1", b"2", b"3"], None, [b'{"a":"x"}', b'{"a":"x"}', None], None)
    read = back(columns, [b"n1", None, b"n3"])
    node = "topics_node"
    assert [r.headers for r in read] == [(("a", b"x"), (node, b"n1")), (("a", b"x"),), ((node, b"n3"),)]
    read = back(columns._replace(metas=None), [b"n1", None, None])
    assert [r.headers for r in read] == [((node, b"n1"),), (), ()]


def test_null_is_null_only_as_json() -> None:
    assert back(column_record(b"null")) == [Rec(None, None)]
    assert back(column_record(b"null", binary=True)) == [Rec(None, b"null")]
    assert back(column_record(b" null")) == [Rec(None, b" null")]
    columns = Columns([b"null", b"null", b"1"], None, None, bytes([BINARY, JSON, JSON]))
    assert [r.value for r in back(columns)] == [b"null", None, b"1"]


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_columns_do_not_depend_on_the_codec(codec: str) -> None:
    records = samples(200)
    assert recordbatch.columns(kafka_python_batch(records, codec)) == columns_of(*records)
    if codec in CODECS:
        assert recordbatch.columns(aiokafka_batch(records, codec)) == columns_of(*records)


@pytest.mark.parametrize("codec", CODECS)
def test_columns_of_librdkafka(codec: str) -> None:
    columns = recordbatch.columns(bytes.fromhex(LIBRDKAFKA[codec]))
    assert columns == columns_of(*LIBRDKAFKA_RECORDS)
    assert columns.tags == [b"k1", None, None, b"k4"]
    assert columns.metas == [
        b'{"h":["v","w"],"n":null}',
        None,
        b'{"$key":{"$base64":"//4="},"b":{"$base64":"gA=="}}',
        None,
    ]
    assert columns.kinds == bytes([JSON, BINARY, JSON, BINARY])


def test_columns_of_a_batch_in_many_pieces() -> None:
    """Pieces of 1 MiB, records larger than that, and odd ones among them."""
    shapes: list[dict[str, Any]] = [
        {"value": b"1"},
        {"value": b"x" * (2 << 20), "key": b"big", "headers": [(b"h", b"v")]},
        {"value": b"[%b]" % (b"1," * 300_000 + b"1")},
        {"headers": [(b"\xff", b"v")]},
        {"value": None, "key": b"\xff"},
    ]
    one_by_one = [recordbatch.columns(batch_of(record(0, **shape), 1, "lz4")) for shape in shapes]
    body = b"".join(record(i, **shape) for i, shape in enumerate(shapes))
    together = recordbatch.columns(batch_of(body, len(shapes), "lz4"))
    assert together.datas == [c.datas[0] for c in one_by_one]
    assert together.tags == [None if c.tags is None else c.tags[0] for c in one_by_one]
    assert together.metas == [None if c.metas is None else c.metas[0] for c in one_by_one]
    assert together.kinds == bytes(0 if c.kinds is None else c.kinds[0] for c in one_by_one)


def test_records_that_can_not_be_read_are_raw_bytes() -> None:
    bad = b"\0\0\2\1\1\x09"  # a negative count of headers
    moved = record(7, b"k")  # not at the position that its offset implies
    body = record(0, b"k", b"1", [(b"h", b"v")]) + varint(len(bad)) + bad + moved + record(3, None, b"2")
    for padding in (b"", record(4, None, b'"%b"' % (b"x" * (2 << 20)))):
        count = 5 if padding else 4
        columns = recordbatch.columns(batch_of(body + padding, count))
        assert columns.datas[:4] == [b"1", bad, moved[1:], b"2"]
        assert columns.tags is not None
        assert columns.tags[:4] == [b"k", None, None, None]
        assert columns.metas is not None
        assert columns.metas[:4] == [b'{"h":"v"}', None, None, None]
        assert columns.kinds == bytes([JSON, BINARY, BINARY, JSON, JSON][:count])


def test_a_raw_record_is_binary_even_if_it_reads_as_json() -> None:
    columns = recordbatch.columns(batch_of(varint(7) + b"1234567", 1))
    assert columns == Columns([b"1234567"], None, None, bytes([BINARY]))


TEXT = st.text(max_size=8)
NAMES = TEXT | st.sampled_from(["$key", "$$key", "$base64:eA==", "$base64", "topics_node", "a", "b"])
VALUES = st.none() | st.binary(max_size=20) | TEXT.map(str.encode) | st.sampled_from([b"{}", b"[1]", b'"x"'])
RECORDS = st.builds(
    Rec,
    st.none() | st.binary(max_size=300) | TEXT.map(str.encode),
    VALUES.filter(lambda value: value != b"null"),
    st.lists(st.tuples(NAMES, VALUES), max_size=4).map(lambda headers: tuple(sorted(headers, key=lambda h: h[0]))),
    st.integers(0, 2**48),
)


@given(st.lists(RECORDS, min_size=1, max_size=12), st.sampled_from(CODEC_NAMES), st.integers(0, 2**62))
@settings(max_examples=300, deadline=None)
def test_the_way_there_and_back_loses_nothing(records: list[Rec], codec: str, base_offset: int) -> None:
    """For records whose repeated headers are adjacent, and whose value is not the text `null`."""
    batch = kafka_python_batch(records, codec)
    recordbatch.check(batch, max_bytes=1 << 20)
    columns = recordbatch.columns(batch)
    for meta in columns.metas or []:
        assert meta is None or isinstance(json.loads(meta), dict)
    times = recordbatch.times(batch)
    encoded = recordbatch.encoded(base_offset, times, columns, None)
    expected = [(base_offset + i, r) for i, r in enumerate(records)]
    assert read_by_aiokafka(encoded) == expected
    assert read_by_kafka_python(encoded) == expected
