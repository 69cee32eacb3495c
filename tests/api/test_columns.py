"""Columnar batches of the gRPC API: the same records as rows, or refused for the same reasons."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_proto.v1 import record_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.grpc.convert import append_request
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import Batch

JSON, BINARY = record_pb2.RECORD_KIND_JSON, record_pb2.RECORD_KIND_BINARY


def _read(limits: Limits | None = None, **columns: Any) -> Batch:
    request = pb.AppendRequest(topic="t", columns=record_pb2.ColumnBatch(**columns))
    return append_request(request, limits or Limits()).batch


def _refusal(**columns: Any) -> TopicsError:
    with pytest.raises(TopicsError) as caught:
        _read(**columns)
    return caught.value


def test_data_alone() -> None:
    assert _read(data=[b"1", b' {"a": 1.0}\n']) == Batch(datas=[b"1", b'{"a": 1.0}'])


def test_absent_is_not_empty() -> None:
    batch = _read(data=[b"1", b"2", b"3"], tag={"value": [b"a", b"", b""], "absent": [2]})
    assert batch.tags == [b"a", b"", None]


def test_a_shared_value() -> None:
    batch = _read(data=[b"1", b"2"], tag={"shared": b"x"}, node={"shared": b""}, meta={"shared": b'{"k": 1}'})
    assert batch == Batch(datas=[b"1", b"2"], tags=[b"x"] * 2, nodes=[b""] * 2, metas=[b'{"k": 1}'] * 2)


def test_columns_without_a_value() -> None:
    nothing = {"value": [b"", b""], "absent": [0, 1]}
    assert _read(data=[b"1", b"2"], tag=nothing, node=nothing, meta={"value": [b"", b""]}) == Batch(datas=[b"1", b"2"])


def test_the_node_of_the_batch_fills_in() -> None:
    request = pb.AppendRequest(topic="t", node="n", columns=record_pb2.ColumnBatch(data=[b"1", b"2"]))
    batch = append_request(request, Limits()).batch
    assert batch.nodes == [b"n", b"n"]
    request.columns.node.value.extend([b"", b"own"])
    request.columns.node.absent.append(0)
    assert append_request(request, Limits()).batch.nodes == [b"n", b"own"]


def test_kinds() -> None:
    assert _read(data=[b"\xff", b""], kind=BINARY).kinds == b"\1\1"
    assert _read(data=[b"1", b"2"], kind=JSON).kinds is None
    assert _read(data=[b"\xff", b" 2 ", b"3"], kind=BINARY, kinds=b"\2\1\0") == Batch(
        datas=[b"\xff", b"2", b"3"], kinds=b"\1\0\0"
    )
    assert _read(data=[b"1"], kind=BINARY, kinds=b"\1").kinds is None


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        ({"data": [b"1", b"{"]}, r"columns\.data\[1\]"),
        ({"data": [b"\xff"]}, r"columns\.data\[0\]"),
        ({"data": [b"1,2", b"[3", b"4]"]}, r"columns\.data\[0\]"),
        ({"data": [b"\xff", b"x"], "kinds": b"\2\1"}, r"columns\.data\[1\]"),
        ({"data": [b"1"], "kind": 7}, r"columns\.kind: unknown value 7"),
        ({"data": [b"1", b"1"], "kinds": b"\1\3"}, r"columns\.kinds\[1\]: unknown value 3"),
        ({"data": [b"1"], "kinds": b"\1\1"}, r"columns\.kinds has 2 entries for 1"),
        ({"data": [b"1"], "tag": {"value": [b"a", b"b"]}}, r"columns\.tag has 2 entries for 1"),
        ({"data": [b"1"], "node": {}}, r"columns\.node has 0 entries for 1"),
        ({"data": [b"1", b"2"], "tag": {"value": [b"\xc3", b"\xa9"]}}, r"columns\.tag\[0\] is not valid UTF-8"),
        ({"data": [b"1", b"2"], "node": {"value": [b"a", b"\xff"]}}, r"columns\.node\[1\] is not valid UTF-8"),
        ({"data": [b"1"], "node": {"shared": b"\xff"}}, r"columns\.node\[0\] is not valid UTF-8"),
        ({"data": [b"1"], "tag": {"shared": b"a", "value": [b"a"]}}, r"columns\.tag: shared excludes"),
        ({"data": [b"1"], "tag": {"shared": b"a", "absent": [0]}}, r"columns\.tag: shared excludes"),
        ({"data": [b"1"], "tag": {"value": [b""], "absent": [1]}}, r"columns\.tag\.absent: 1"),
        ({"data": [b"1"], "tag": {"value": [b"a"], "absent": [0]}}, r"columns\.tag\.absent: 0"),
        ({"data": [b"1"] * 2, "tag": {"value": [b""] * 2, "absent": [1, 0]}}, r"columns\.tag\.absent: 0"),
        ({"data": [b"1"] * 2, "tag": {"value": [b""] * 2, "absent": [0, 0]}}, r"columns\.tag\.absent: 0"),
        ({"data": [b"1"] * 2, "meta": {"value": [b"{}", b"[]"]}}, r"columns\.meta\[1\]: meta must be a JSON object"),
        ({"data": [b"1"], "meta": {"shared": b"{"}}, r"columns\.meta\[0\]"),
    ],
)
def test_refusals(columns: dict[str, Any], where: str) -> None:
    error = _refusal(**columns)
    assert error.reason is Reason.INVALID_REQUEST
    assert re.search(where, error.message), error.message


def test_too_many_records_are_refused_unread() -> None:
    with pytest.raises(TopicsError) as caught:
        _read(Limits(max_batch_records=2), data=[b"{"] * 3)
    assert caught.value.reason is Reason.BATCH_TOO_LARGE


def test_rows_and_columns_exclude_each_other() -> None:
    request = pb.AppendRequest(topic="t", records=[record_pb2.AppendRecord(data=b"1")])
    request.columns.SetInParent()
    with pytest.raises(TopicsError, match="exclude"):
        append_request(request, Limits())


texts = st.text(max_size=5)
records = st.tuples(
    st.one_of(
        st.integers(-5, 5).map(lambda n: b"%d" % n), st.sampled_from([b' {"a":[1, 2]} ', b'"\xc3\xa9"', b"null"])
    ),
    st.none() | texts,
    st.none() | texts,
    st.none() | st.sampled_from([b'{"k":1}', b" {} "]),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(records, min_size=1, max_size=6), st.none() | texts)
def test_columns_are_what_rows_are(given_rows: list[Any], node: str | None) -> None:
    by_rows, by_columns = pb.AppendRequest(topic="t", node=node), pb.AppendRequest(topic="t", node=node)
    for data, tag, own_node, meta, binary in given_rows:
        by_rows.records.add(data=data, tag=tag, node=own_node, meta=meta or b"", kind=BINARY if binary else JSON)
    columns = by_columns.columns
    datas, tags, nodes, metas, binaries = zip(*given_rows, strict=True)
    columns.data.extend(datas)
    columns.kinds = bytes(BINARY if binary else JSON for binary in binaries)
    for column, values in ((columns.tag, tags), (columns.node, nodes)):
        column.value.extend([(value or "").encode() for value in values])
        column.absent.extend([i for i, value in enumerate(values) if value is None])
    columns.meta.value.extend([meta or b"" for meta in metas])
    assert append_request(by_rows, Limits()).batch == append_request(by_columns, Limits()).batch
