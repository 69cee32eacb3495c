"""What rows of a data frame become: columns, targets, cuts. No Spark session, no server."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

from pyspark_topics.options import OptionError
from pyspark_topics.write_chunks import Chunk, chunks
from pyspark_topics.write_columns import Layout, RowError, Target
from pyspark_topics.write_options import WriteOptions
from topics_proto.v1 import record_pb2

JSON, BINARY = record_pb2.RECORD_KIND_JSON, record_pb2.RECORD_KIND_BINARY


TYPES: Mapping[str, types.DataType] = {
    "string": types.StringType(),
    "varchar(9)": types.VarcharType(9),
    "binary": types.BinaryType(),
    "tinyint": types.ByteType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "timestamp": types.TimestampType(),
    "variant": types.VariantType(),
    "struct<a:int>": types.StructType().add("a", types.IntegerType()),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    "map<string,int>": types.MapType(types.StringType(), types.IntegerType()),
}


def layout(ddl: str, **options: str) -> Layout:
    """Of columns as `name type, …`; Spark's own parser takes a session."""
    schema = types.StructType()
    for column in ddl.split(", "):
        name, _, kind = column.partition(" ")
        schema.add(name, TYPES[kind])
    return Layout.parse(schema, WriteOptions.parse(options))


def made(
    ddl: str,
    columns: Mapping[str, Any],
    *,
    records: int = 10_000,
    size: int = 1 << 20,
    cuts: Sequence[int] = (),
    **options: str,
) -> list[Chunk]:
    """The chunks of rows that come in batches that end at `cuts`."""
    batch = pa.record_batch(columns)
    ends = [*cuts, batch.num_rows]
    batches = [batch.slice(a, b - a) for a, b in zip([0, *cuts], ends, strict=True)]
    return list(chunks(batches, layout(ddl, **options), max_records=records, max_bytes=size))


def values(column: record_pb2.Column, count: int) -> list[bytes | None]:
    """A column of an append, value by value."""
    if column.HasField("shared"):
        return [column.shared] * count
    if not column.value:
        return [None] * count
    return [None if i in column.absent else value for i, value in enumerate(column.value)]


def content(chunk: Chunk) -> list[tuple[object, ...]]:
    """The records of a chunk as an append would carry them: data, kind, tag, node, meta."""
    batch = chunk.columns()
    count = len(batch.data)
    kinds = list(batch.kinds) if batch.kinds else [batch.kind] * count
    parts = (values(column, count) for column in (batch.tag, batch.node, batch.meta))
    return list(zip(batch.data, kinds, *parts, strict=True))


def test_every_column() -> None:
    (chunk,) = made(
        "data string, tag varchar(9), node string, meta string, kind string",
        {
            "data": ["1", "x", "3"],
            "tag": ["a", None, ""],
            "node": ["n", "n", "n"],
            "meta": ['{"k":1}', "", None],
            "kind": ["json", "binary", None],
        },
        topic="t",
    )
    assert (chunk.target, chunk.number) == (Target("t", 0), 0)
    assert content(chunk) == [
        (b"1", JSON, b"a", b"n", b'{"k":1}'),
        (b"x", BINARY, None, b"n", None),
        (b"3", JSON, b"", b"n", None),
    ]


def test_data_alone_and_options_for_the_rest() -> None:
    (chunk,) = made(
        "data binary, node string",
        {"data": [b"\x00", b"\xff"], "node": ["a", None]},
        topic="t",
        node="x",
        dataKind="BINARY",
    )
    assert content(chunk) == [(b"\x00", BINARY, None, b"x", None), (b"\xff", BINARY, None, b"x", None)]


def test_meta_as_a_map() -> None:
    metas = pa.array([[("a", "1"), ("b", None)], [], None], pa.map_(pa.string(), pa.string()))
    (chunk,) = made("data string, meta map<string,string>", {"data": ["1", "2", "3"], "meta": metas}, topic="t")
    assert [row[-1] for row in content(chunk)] == [b'{"a":"1","b":null}', None, None]


def test_large_types_and_other_integers() -> None:
    columns = {
        "Data": pa.array(["1", "2"], pa.large_string()),
        "TOPIC": pa.array(["a", "b"], pa.large_string()),
        "partition": pa.array([3, None], pa.int8()),
    }
    found = made("Data string, TOPIC string, partition tinyint", columns)
    assert [(chunk.target, content(chunk)[0][0]) for chunk in found] == [(Target("a", 3), b"1"), (Target("b", 0), b"2")]


def test_options_win_over_columns() -> None:
    columns = {"data": ["1", "2"], "topic": ["a", "b"], "partition": [1, 2]}
    (chunk,) = made("data string, topic string, partition int", columns, topic="t", partition="7")
    assert (chunk.target, len(content(chunk))) == (Target("t", 7), 2)


def test_seq_and_ts_of_a_read_are_passed_over() -> None:
    (chunk,) = made("seq bigint, data string, ts timestamp", {"seq": [9], "data": ["1"], "ts": [None]}, topic="t")
    assert content(chunk) == [(b"1", JSON, None, None, None)]


def test_no_rows() -> None:
    assert made("data string", {"data": pa.array([], pa.string())}, topic="t") == []
    assert list(chunks([], layout("data string", topic="t"), max_records=5, max_bytes=5)) == []


def random_rows(rng: random.Random, count: int) -> dict[str, pa.Array]:
    return {
        "data": pa.array([f'"{"x" * rng.randrange(60)}{i}"' for i in range(count)]),
        "topic": pa.array([f"t{rng.randrange(5)}" for _ in range(count)]),
        "partition": pa.array([rng.choice([0, 1, 2, None]) for _ in range(count)], pa.int32()),
        "tag": pa.array([rng.choice([None, "", "tag"]) for _ in range(count)]),
    }


@pytest.mark.parametrize("seed", range(20))
def test_cuts_hang_on_the_rows_alone(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(1, 400)
    columns = random_rows(rng, count)
    limits = {"records": rng.choice([1, 7, 50, 10_000]), "size": rng.choice([1, 100, 1000, 1 << 20])}
    ddl, options = "data string, topic string, partition int, tag string", {}
    if seed % 3 == 0:
        options = {"topic": "t"}
    elif seed % 3 == 1:
        options = {"topic": "t", "partition": "1"}
    whole = made(ddl, columns, **limits, **options)
    seen = [(chunk.target, chunk.number, content(chunk)) for chunk in whole]
    for _ in range(5):
        cuts = sorted(rng.randrange(count + 1) for _ in range(rng.randrange(12)))
        found = made(ddl, columns, cuts=cuts, **limits, **options)
        assert [(chunk.target, chunk.number, content(chunk)) for chunk in found] == seen
    wanted = defaultdict[Target, list[bytes]](list)
    for row in pa.record_batch(columns).to_pylist():
        topic, partition = options.get("topic", row["topic"]), int(options.get("partition", row["partition"] or 0))
        wanted[Target(topic, partition)].append(row["data"].encode())
    got = defaultdict[Target, list[bytes]](list)
    numbers = defaultdict[Target, int](int)
    for target, number, rows in seen:
        assert number == numbers[target]
        numbers[target] += 1
        assert 0 < len(rows) <= limits["records"]
        assert len(rows) == 1 or sum(len(row[0]) for row in rows) <= limits["size"]
        got[target] += [row[0] for row in rows]
    assert got == wanted


@pytest.mark.parametrize("topic", ["t", ""])
def test_cuts_behind_a_record_that_is_larger_than_an_append(topic: str) -> None:
    """Also where a batch ends with it."""
    columns = {"data": ["x" * 5000, *(f"{i}" for i in range(20))] * 2, "topic": ["t"] * 42}
    options = {"topic": topic} if topic else {}
    whole = [content(chunk) for chunk in made("data string, topic string", columns, records=4, size=600, **options)]
    for cuts in ([1], [21], [22], [1, 22], list(range(1, 42))):
        found = made("data string, topic string", columns, records=4, size=600, cuts=cuts, **options)
        assert [content(chunk) for chunk in found] == whole


def test_rows_are_taken_in_as_they_are_needed() -> None:
    taken = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield pa.record_batch({"data": ["1"] * 10})

    cut = chunks(batches(), layout("data string", topic="t"), max_records=20, max_bytes=1 << 20)
    next(cut)
    assert taken <= 3


@pytest.mark.parametrize(
    ("ddl", "options", "text"),
    [
        ("value string", {"topic": "t"}, "column value: records have no such part"),
        ("data string, gap_to bigint", {"topic": "t"}, "column gap_to"),
        ("tag string", {"topic": "t"}, "there is no column data"),
        ("data string", {}, "neither a column topic nor the option topic"),
        ("data struct<a:int>", {"topic": "t"}, r"data is string or binary, not struct<a:int>: to_json\(...\)"),
        ("data variant", {"topic": "t"}, "data is string or binary, not variant"),
        (
            "data string, partition string",
            {"topic": "t"},
            "partition is tinyint or smallint or int or bigint, not string",
        ),
        ("data string, meta map<string,int>", {"topic": "t"}, "meta is string or map<string,string>"),
        ("data string, DATA binary", {"topic": "t"}, "column DATA is there twice"),
        ("data string, tag binary", {"topic": "t"}, "tag is string, not binary"),
    ],
)
def test_columns_that_cant_be(ddl: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(RowError, match=text):
        layout(ddl, **options)


@pytest.mark.parametrize(
    ("ddl", "columns", "text"),
    [
        ("data string", {"data": ["1", None]}, "data is null in 1 rows"),
        ("data string, topic string", {"data": ["1"], "topic": pa.nulls(1, pa.string())}, "topic is null"),
        ("data string, partition int", {"data": ["1"], "partition": [-1]}, "partition -1"),
        ("data string, kind string", {"data": ["1"], "kind": ["JSON"]}, "kind is one of json, binary.*not JSON"),
    ],
)
def test_rows_that_cant_be(ddl: str, columns: dict[str, Any], text: str) -> None:
    with pytest.raises(RowError, match=text):
        made(ddl, columns, **({} if "topic" in ddl else {"topic": "t"}))


def test_options() -> None:
    options = WriteOptions.parse(
        {
            "URL": "topics://k@h:1",
            "Topic": "t",
            "idempotencywindow": "2H",
            "durability": "fsync",
            "CREATE": "False",
            "checkpointLocation": "/x",
            "queryName": "q",
        }
    )
    assert (options.topic, options.create, options.window_ms) == ("t", False, 7_200_000)
    assert options.config().idempotency_window_ms == 7_200_000
    assert "k@" not in repr(options)
    plain = WriteOptions.parse({})
    assert (plain.new_window_ms, plain.min_window_ms) == (7 * 86_400_000, 3_600_000)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "t"}, "unknown option subscribe of a write; known are url"),
        ({"dataKind": "xml"}, "dataKind is one of json, binary, not 'xml'"),
        ({"durability": "no"}, "durability is one of"),
        ({"partition": "-1"}, "partition is a whole number from 0"),
        ({"partition": "x"}, "partition is a whole number from 0"),
        ({"maxRecordsPerAppend": "10001"}, "maxRecordsPerAppend is at most 10000"),
        ({"maxBytesPerAppend": "999999999"}, "maxBytesPerAppend is at most"),
        ({"idempotencyWindow": "7"}, "idempotencyWindow is a time such as"),
        ({"writeId": "ü"}, "writeId is a text of 1 to 128"),
        ({"create": "yes"}, "create is true or false"),
        ({"url": "http://h"}, "option url"),
    ],
)
def test_options_that_cant_be(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        WriteOptions.parse(options)
