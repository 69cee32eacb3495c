"""What BulkDiff sends in Arrow IPC, read with pyarrow."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from topics_proto.v1 import record_pb2
from topics_proto.v1 import topics_service_pb2 as pb


def schema_of(*, tags: bool = False, meta: bool = True, data: bool = True) -> pa.Schema:
    """The schema of a stream."""
    fields = [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("node", pa.string()),
        *([pa.field("tag", pa.string())] if tags else []),
        *([pa.field("meta", pa.string())] if meta else []),
        *([pa.field("data", pa.binary(), nullable=False)] if data else []),
    ]
    return pa.schema(fields)


def batches_of(frames: Sequence[pb.BulkDiffResponse]) -> tuple[pa.Schema | None, list[pa.RecordBatch | None]]:
    """The schema, None when nothing of Arrow was sent, and the batch of each frame. Everything there is is checked."""
    schema, batches = None, []
    for i, frame in enumerate(frames):
        messages = _messages(frame.arrow)
        if i == 0 and messages:
            schema = pa.ipc.read_schema(messages.pop(0))
        assert len(messages) <= 1, "a frame has one batch"
        batch = pa.ipc.read_record_batch(messages[0], schema) if messages else None
        if batch is not None:
            batch.validate(full=True)
            assert batch.num_rows
        batches.append(batch)
    if schema is not None:
        stream = pa.ipc.open_stream(b"".join(frame.arrow for frame in frames))
        assert stream.schema == schema
        assert stream.read_all() == pa.Table.from_batches([batch for batch in batches if batch is not None], schema)
    return schema, batches


def arrow_rows(frames: Sequence[pb.BulkDiffResponse]) -> list[list[record_pb2.Record]]:
    """The records of each frame, one by one, as Diff would give them."""
    return [[] if batch is None else list(map(_record, batch.to_pylist())) for batch in _plain(frames)]


def _plain(frames: Sequence[pb.BulkDiffResponse]) -> list[pa.RecordBatch | None]:
    """The batches with times as numbers."""
    found = []
    for batch in batches_of(frames)[1]:
        if batch is not None:
            batch = batch.set_column(1, "ts", batch.column("ts").cast(pa.int64()))
        found.append(batch)
    return found


def _record(row: dict[str, Any]) -> record_pb2.Record:
    assert row["ts"] % 1000 == 0
    return record_pb2.Record(
        seq=row["seq"],
        ts_ms=row["ts"] // 1000,
        kind=row["kind"],
        node=row["node"],
        tag=row.get("tag"),
        meta=(row.get("meta") or "").encode(),
        data=row.get("data") or b"",
    )


def _messages(data: bytes) -> list[Any]:
    if not data:
        return []
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
    messages = []
    while True:
        try:
            messages.append(reader.read_next_message())
        except StopIteration:
            return messages
