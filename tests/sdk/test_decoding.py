"""What records on the wire become, rows and columns alike."""

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics_client import InvalidRequestError, Record
from topics_client.decoding import records_of_columns, records_of_rows
from topics_client.encoding import column_batch
from topics_client.enums import number_of, text_of
from topics_proto.v1 import record_pb2, topic_pb2
from topics_proto.v1.record_pb2 import RECORD_KIND_BINARY, RECORD_KIND_JSON, PackedColumn, RecordColumns


def _packed(values: Sequence[bytes | None]) -> PackedColumn:
    there = [value or b"" for value in values]
    if len(set(values)) == 1 and values[0] is not None:
        return PackedColumn(data=values[0])
    ends = [sum(map(len, there[:i])) for i in range(len(there) + 1)]
    absent = [i for i, value in enumerate(values) if value is None]
    return PackedColumn(data=b"".join(there), offsets=struct.pack(f"<{len(ends)}I", *ends), absent=absent)


def _runs(values: Sequence[int], step: int) -> tuple[list[int], list[int]]:
    firsts, counts = list[int](), list[int]()
    for i, value in enumerate(values):
        if i and value == values[i - 1] + step:
            counts[-1] += 1
        else:
            firsts.append(value)
            counts.append(1)
    return firsts, counts


_TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "ä"]), st.text(max_size=3))
_RECORDS = st.lists(
    st.tuples(st.binary(max_size=5), st.booleans(), _TEXTS, _TEXTS, st.sampled_from([b"", b"{}", b'{"a":1}'])),
    min_size=1,
    max_size=12,
)


@given(
    records=_RECORDS,
    gaps=st.lists(st.integers(1, 3), min_size=12, max_size=12),
    late=st.lists(st.integers(0, 2), min_size=12, max_size=12),
)
def test_columns_become_the_records_that_rows_become(
    records: list[tuple[bytes, bool, str | None, str | None, bytes]], gaps: list[int], late: list[int]
) -> None:
    seqs = [sum(gaps[: i + 1]) for i in range(len(records))]
    times = [sum(late[: i + 1]) for i in range(len(records))]
    datas, binary, tags, nodes, metas = (list(column) for column in zip(*records, strict=True))
    columns = RecordColumns(data=_packed(datas))
    kinds = [RECORD_KIND_BINARY if each else RECORD_KIND_JSON for each in binary]
    if len(set(kinds)) == 1:
        columns.kind = kinds[0]
    else:
        columns.kinds = bytes(kinds)
    for name, texts in (("tag", tags), ("node", nodes)):
        if any(text is not None for text in texts):
            getattr(columns, name).CopyFrom(_packed([text if text is None else text.encode() for text in texts]))
    if any(metas):
        columns.meta.CopyFrom(_packed(metas))
    columns.run_first_seq[:], columns.run_count[:] = _runs(seqs, 1)
    columns.time_ts_ms[:], columns.time_count[:] = _runs(times, 0)
    rows = [
        record_pb2.Record(seq=seq, ts_ms=ts, data=data, kind=kind, tag=tag, node=node, meta=meta)
        for seq, ts, data, kind, tag, node, meta in zip(seqs, times, datas, kinds, tags, nodes, metas, strict=True)
    ]
    expected = [
        Record("t", 3, *fields)
        for fields in zip(seqs, times, datas, binary, tags, nodes, metas, strict=True)
    ]  # fmt: skip
    found = records_of_columns("t", 3, RecordColumns.FromString(columns.SerializeToString()))
    assert found == expected
    assert [type(record) for record in found] == [Record] * len(found)
    assert records_of_rows("t", 3, rows) == expected


@given(records=_RECORDS)
def test_what_is_encoded_as_columns_holds_every_part(records: list[Any]) -> None:
    datas, binary, tags, nodes, metas = (list(column) for column in zip(*records, strict=True))
    batch = column_batch(datas, binary, tags, nodes, metas)
    assert list(batch.data) == datas
    assert [kind == RECORD_KIND_BINARY for kind in batch.kinds] == (binary if any(binary) else [])
    for column, texts in ((batch.tag, tags), (batch.node, nodes)):
        if column.HasField("shared"):
            found: list[str | None] = [column.shared.decode()] * len(texts)
        else:
            found = [value.decode() for value in column.value] or [None] * len(texts)
            for index in column.absent:
                found[index] = None
        assert found == texts
    assert (list(batch.meta.value) or [b""] * len(metas)) == metas


def test_enums_are_the_texts_of_the_product() -> None:
    assert text_of("type", topic_pb2.TOPIC_TYPE_QUEUE) == "queue"
    assert text_of("reason", record_pb2.GAP_REASON_FROM_SEQ_TOO_OLD) == "from_seq_too_old"
    assert text_of("durability", 99) == text_of("durability", 0) == "unspecified"
    assert number_of("guarantee", "exactly_once") == 2
    for wrong in ("unspecified", "FSYNC", "", "tape"):
        with pytest.raises(InvalidRequestError, match="durability must be one of ephemeral, memory, disk, fsync, not"):
            number_of("durability", wrong)
