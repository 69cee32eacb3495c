"""Rows to columns and block slices to rows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics_proto.v1 import record_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.grpc.convert import diff_response
from topics_service.api.grpc.records import batch
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import Batch, DiffReply, GapReason, Slice, Tombstone
from topics_service.storage.block import build, merge

Row = record_pb2.AppendRecord
JSON, BINARY = record_pb2.RECORD_KIND_JSON, record_pb2.RECORD_KIND_BINARY


def _batch(*rows: record_pb2.AppendRecord, limits: Limits = Limits(), **fields: Any) -> Batch:  # noqa: B008
    message = pb.AppendRequest(topic="t", records=rows, **fields)
    return batch(pb.AppendRequest.FromString(message.SerializeToString()), limits)


def _reply(*slices: Slice, tombstone: Tombstone | None = None) -> DiffReply:
    return DiffReply(
        topic="t",
        slices=slices,
        next_from_seq=6,
        head_seq=9,
        earliest_seq=1,
        tombstone=tombstone,
        records_scanned=4,
    )


def test_columns_that_no_record_has_are_none() -> None:
    assert _batch(Row(data=b"1"), Row(data=b"2", kind=JSON)) == Batch(datas=[b"1", b"2"])
    assert _batch() == Batch(datas=[])


def test_every_part() -> None:
    rows = [
        Row(data=b"1"),
        Row(data=b"\xff 1", kind=BINARY, tag="é"),
        Row(data=b"", kind=BINARY, node="n"),
        Row(data=b"2", kind=JSON, meta=b"{}", tag=""),
        Row(data=b"3", node=""),
    ]
    assert _batch(*rows) == Batch(
        datas=[b"1", b"\xff 1", b"", b"2", b"3"],
        tags=[None, "é".encode(), None, b"", None],
        nodes=[None, None, b"n", None, b""],
        metas=[None, None, None, b"{}", None],
        kinds=b"\0\1\1\0\0",
    )


def test_the_node_of_the_batch_is_the_default() -> None:
    assert _batch(Row(data=b"1"), Row(data=b"2", node="own"), node="all").nodes == [b"all", b"own"]
    assert _batch(Row(data=b"1"), node="").nodes == [b""]


def test_outer_white_space_is_not_stored() -> None:
    rows = [Row(data=b' {"a": 1}\n', meta=b"\t{ }\r"), Row(data=b" x ", kind=BINARY), Row(data=b" 2")]
    stored = _batch(*rows)
    assert stored.datas == [b'{"a": 1}', b" x ", b"2"]
    assert stored.metas == [b"{ }", None, None]
    assert _batch(Row(data=b" 1 ")).datas == [b"1"]


@pytest.mark.parametrize(
    ("row", "where"),
    [
        (Row(), "data"),
        (Row(data=b"{"), "data"),
        (Row(data=b"1,2"), "data"),
        (Row(data=b'"\xff"'), "data"),
        (Row(data=b"1", meta=b"[]"), "meta"),
        (Row(data=b"1", meta=b"{"), "meta"),
        (Row(data=b"1", meta=b'{"a":"' + b"x" * 16384 + b'"}'), "meta"),
        (Row(data=b"\xff", kind=BINARY, meta=b" "), "meta"),
        (Row(data=b"1", kind=3), "kind"),
        (Row(data=b"1", kind=2**31 - 1), "kind"),
        (Row(data=b"1", kind=-1), "kind"),
    ],
    ids=str,
)
@pytest.mark.parametrize("before", [0, 2])
def test_a_bad_record_is_named(row: record_pb2.AppendRecord, where: str, before: int) -> None:
    with pytest.raises(TopicsError) as caught:
        _batch(*[Row(data=b"0", kind=BINARY if before == 1 else JSON)] * before, row, Row(data=b"9"))
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.message.startswith(f"records[{before}].{where}: ")


def test_too_many_records_are_not_looked_at() -> None:
    with pytest.raises(TopicsError) as caught:
        _batch(*[Row(data=b"{")] * 4, limits=Limits(max_batch_records=3))
    assert caught.value.reason is Reason.BATCH_TOO_LARGE


optional_text = st.none() | st.text(max_size=3)
stored_rows = st.builds(
    record_pb2.Record,
    node=optional_text,
    tag=optional_text,
    meta=st.sampled_from([b"", b"{}", b'{"a":1}']),
    data=st.sampled_from([b"1", b'{"b":2}', b'"\xc3\xa9"']),
    kind=st.sampled_from([JSON, BINARY]),
)


@given(st.lists(stored_rows, min_size=1, max_size=8), st.data(), st.booleans(), st.booleans())
def test_records_come_back_as_they_were_written(
    rows: list[record_pb2.Record], data: st.DataObject, include_tags: bool, include_meta: bool
) -> None:
    half = data.draw(st.integers(0, len(rows)))
    blocks = []
    for base, part in ((0, rows[:half]), (half, rows[half:])):
        if part:
            written = _batch(*(_as_sent(row) for row in part))
            columns = (written.tags, written.nodes, written.metas, written.kinds)
            blocks.append(build(1, base + 300, 1000 + base, written.datas, *columns, 0))
    block = merge(blocks)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    response = diff_response(_reply(Slice(block, start, stop)), include_tags=include_tags, include_meta=include_meta)
    for i, row in enumerate(rows):
        row.seq = 300 + i
        row.ts_ms = 1000 + (half if i >= half else 0)
        if not include_tags:
            row.ClearField("tag")
        if not include_meta:
            row.ClearField("meta")
    assert list(response.records) == rows[start:stop]


def _as_sent(row: record_pb2.Record) -> record_pb2.AppendRecord:
    sent = record_pb2.AppendRecord(data=row.data, kind=row.kind, meta=row.meta)
    for part in ("node", "tag"):
        if row.HasField(part):
            setattr(sent, part, getattr(row, part))
    return sent


def test_a_page_of_several_slices() -> None:
    first = build(1, 1, 50, [b"1", b"2"], None, None, None, None, 0)
    second = build(1, 5, 60, [b"5", b"6"], None, None, None, b"\1\0", 2)
    response = diff_response(_reply(Slice(first, 1, 2), Slice(second, 0, 2)), include_tags=False, include_meta=True)
    assert [(r.seq, r.ts_ms, r.data, r.kind) for r in response.records] == [
        (2, 50, b"2", JSON),
        (5, 60, b"5", BINARY),
        (6, 60, b"6", JSON),
    ]
    assert (response.next_from_seq, response.head_seq, response.earliest_seq) == (6, 9, 1)
    assert (response.lag, response.caught_up, response.performance.records_scanned) == (3, False, 4)
    assert not response.HasField("tombstone")


@pytest.mark.parametrize("reason", GapReason.__args__)
def test_a_tombstone(reason: GapReason) -> None:
    lost = Tombstone(gap_from=1, gap_to=2, reason=reason, missed_estimate=3, earliest_seq=4, head_seq=5)
    told = diff_response(_reply(tombstone=lost), include_tags=False, include_meta=True).tombstone
    assert (told.gap_from, told.gap_to, told.missed_estimate, told.earliest_seq, told.head_seq) == (1, 2, 3, 4, 5)
    assert record_pb2.GapReason.Name(told.reason) == f"GAP_REASON_{reason.upper()}"
