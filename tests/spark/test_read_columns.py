"""The columns of a frame from the batches of the server, without Spark and without a server."""

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from pyspark_topics.columns import Columns, DataLossError, frame_schema
from pyspark_topics.ddl import arrow_schema
from pyspark_topics.fetch import Gap, SeqRange
from pyspark_topics.options import ColumnOptions, OptionError, ReadOptions

RANGE = SeqRange("orders", "top_x", 2, 1, 10)
BASE = ["topic", "seq", "ts", "node", "tag", "meta", "data", "partition"]
AT = datetime(2026, 11, 28, tzinfo=UTC)


def batch(*data: bytes, kinds: list[int] | None = None, first: int = 1) -> pa.RecordBatch:
    count = len(data)
    return pa.record_batch(
        {
            "seq": pa.array(range(first, first + count), pa.int64()),
            "ts": pa.array([AT] * count, pa.timestamp("us", "UTC")),
            "kind": pa.array(kinds or [1] * count, pa.int8()),
            "node": pa.array(["n"] * count, pa.string()),
            "tag": pa.array([None] * count, pa.string()),
            "meta": pa.array(["{}"] * count, pa.string()),
            "data": pa.array(data, pa.binary()),
        }
    )


def made(
    columns: Columns, *read: pa.RecordBatch | Gap, fail: bool = False, gaps: bool = False
) -> list[dict[str, object]]:
    found = list(columns.batches(RANGE, read, fail_on_data_loss=fail, gaps=gaps))
    assert all(each.schema.equals(columns.schema) for each in found)
    return [row for each in found for row in each.to_pylist()]


def test_the_columns_of_the_options() -> None:
    assert frame_schema(ColumnOptions()).names == BASE
    assert frame_schema(ColumnOptions(meta=False, data=False)).names == [n for n in BASE if n not in ("meta", "data")]
    every = ColumnOptions(kind=True, gaps=True, data_schema="id bigint, at timestamp")
    assert frame_schema(every).names == [*BASE, "kind", "gap_to", "gap_reason", "id", "at", "_corrupt"]
    for wrong in ("seq bigint", "Topic string", "_corrupt string", "id whatever"):
        with pytest.raises(OptionError, match="dataSchema"):
            frame_schema(ColumnOptions(data_schema=wrong))


def test_a_frame_has_columns() -> None:
    """A batch without columns would have no rows either, however many there are."""
    with pytest.raises(OptionError, match="no columns"):
        Columns(pa.schema([]))


def test_rows_of_records() -> None:
    columns = Columns(frame_schema(ColumnOptions(kind=True, gaps=True, data_schema="id bigint")))
    rows = made(columns, batch(b'{"id":1}', b"x", b"[]", kinds=[1, 2, 1]), batch(b'{"id":4}', first=4))
    envelope = {"topic": "orders", "ts": AT, "node": "n", "tag": None, "meta": "{}", "partition": 2}
    nothing = {"gap_to": None, "gap_reason": None}
    assert rows == [
        envelope | {"seq": 1, "data": b'{"id":1}', "kind": "json", "id": 1, "_corrupt": None} | nothing,
        envelope | {"seq": 2, "data": b"x", "kind": "binary", "id": None, "_corrupt": "a binary record"} | nothing,
        envelope
        | {"seq": 3, "data": b"[]", "kind": "json", "id": None, "_corrupt": "Expected `object`, got `array`"}
        | nothing,
        envelope | {"seq": 4, "data": b'{"id":4}', "kind": "json", "id": 4, "_corrupt": None} | nothing,
    ]


def test_gaps_fail_or_are_passed_or_are_rows() -> None:
    columns = Columns(frame_schema(ColumnOptions(gaps=True)))
    gap = Gap("orders", 2, 1, 7, "cap", 7)
    with pytest.raises(DataLossError) as caught:
        made(columns, gap, batch(b"1", first=8), fail=True)
    for word in ("partition 2 of topic orders", "1 to 10", "1 to 7", "cap", "failOnDataLoss"):
        assert word in str(caught.value)
    assert [row["seq"] for row in made(columns, gap, batch(b"1", first=8))] == [8]
    first, second = made(columns, gap, batch(b"1", first=8), gaps=True)
    known = {"topic": "orders", "partition": 2, "seq": 1, "gap_to": 7, "gap_reason": "cap"}
    assert first == dict.fromkeys(columns.schema.names) | known
    assert second["seq"] == 8


def test_a_schema_of_ones_own_is_all_that_is_made_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = pickle.loads(pickle.dumps(Columns(arrow_schema("amount double, seq bigint, _corrupt string"))))
    assert made(columns, batch(b'{"amount":1}', b"?")) == [
        {"amount": 1.0, "seq": 1, "_corrupt": None},
        {"amount": None, "seq": 2, "_corrupt": "JSON is malformed: invalid character (byte 0)"},
    ]
    options = ReadOptions.parse({"subscribe": "orders"})
    asked = [
        (parts.tags, parts.meta, parts.data)
        for parts in (
            Columns(arrow_schema(text)).parts(options)
            for text in ("seq bigint", "tag string", "meta string", "data binary", "amount double", "_corrupt string")
        )
    ]
    assert asked == [
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (False, False, True),
        (False, False, True),
        (False, False, True),
    ]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([("seq", pa.int32())]), "seq is of type int64"),
        (pa.schema([("_corrupt", pa.int32())]), "_corrupt is of type string"),
        (pa.schema([pa.field("seq", pa.int64(), nullable=False)]), "NOT NULL"),
        (pa.schema([("a", pa.duration("us"))]), "duration"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "twice"),
    ],
)
def test_schemas_that_can_not_be_made_are_refused(schema: pa.Schema, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Columns(schema)


def test_batches_are_made_as_they_are_read() -> None:
    taken = []

    def read() -> Iterator[pa.RecordBatch]:
        for i in range(3):
            taken.append(i)
            yield batch(b"1", first=i + 1)

    columns = Columns(frame_schema(ColumnOptions()))
    found = columns.batches(RANGE, read(), fail_on_data_loss=True, gaps=False)
    next(found)
    assert taken == [0]
