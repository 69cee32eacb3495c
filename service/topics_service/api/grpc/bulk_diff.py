"""BulkDiff over gRPC: pages of blocks as frames of columns."""

from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import Final

from topics_proto.v1 import record_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.bulk import BulkTopics, Turns, read_bulk
from topics_service.api.grpc.bulk_arrow import ArrowFrames, kinds
from topics_service.api.grpc.convert import checked_time, tag_match, tombstone_message
from topics_service.api.grpc.slices import Joined, by_block, joined_data, seq_runs, time_runs
from topics_service.engine.errors import invalid
from topics_service.engine.limits import Limits
from topics_service.engine.model import BulkRequest, DiffReply, Slice
from topics_service.storage.varbinary import lengths

_DEFAULT_BYTES: Final = 512 << 10
_MIN_BYTES: Final = 64 << 10
_MAX_BYTES: Final = 1 << 20
_MESSAGE_BYTES: Final = 15 << 18  # clients take 4 MiB by default
_RECORD_BYTES: Final = 48  # offsets in four columns, a kind, and separate runs of seqs and times; or in Arrow
_UNSEEN: Final = 4  # this multiple of the bytes is read for a frame that does not hold them
_FORMATS: Final = (pb.BULK_FORMAT_UNSPECIFIED, pb.BULK_FORMAT_COLUMNS, pb.BULK_FORMAT_ARROW)

_Column = Sequence[bytes | None] | None


async def bulk_messages(
    api: BulkTopics, request: pb.BulkDiffRequest, turns: Turns | None = None
) -> AsyncGenerator[bytes, None]:
    """The frames of a BulkDiff, serialized; see `read_bulk`. Raises TopicsError."""
    tags, meta, data = request.include_tags, _with_meta(request), _with_data(request)
    arrow = ArrowFrames(tags=tags, meta=meta, data=data) if request.format == pb.BULK_FORMAT_ARROW else None
    pages = read_bulk(api, bulk_request(request, api.limits), turns, follow=request.follow)
    async with aclosing(pages):
        async for page, done in pages:
            if arrow is not None:
                yield arrow.message(_head(page, done=done), page.slices)
            else:
                frame = bulk_frame(page, done=done, include_tags=tags, include_meta=meta, include_data=data)
                yield frame.SerializeToString()


def _with_meta(request: pb.BulkDiffRequest) -> bool:
    return request.include_meta if request.HasField("include_meta") else True


def _with_data(request: pb.BulkDiffRequest) -> bool:
    return request.include_data if request.HasField("include_data") else True


def bulk_request(request: pb.BulkDiffRequest, limits: Limits) -> BulkRequest:
    """A long read whose pages fit into frames. Raises `invalid_request`."""
    if request.format not in _FORMATS:
        raise invalid(f"format: there is no BulkFormat {int(request.format)}")
    budget = data_bytes = min(max(request.frame_bytes or _DEFAULT_BYTES, _MIN_BYTES), _MAX_BYTES)
    if not _with_data(request) and not _with_meta(request):
        budget, data_bytes = budget * _UNSEEN, 0
    each = _RECORD_BYTES + limits.max_node_bytes + (limits.max_tag_bytes if request.include_tags else 0)
    return BulkRequest(
        topic=request.topic,
        partition=request.partition,
        from_seq=request.from_seq,
        from_ts=checked_time(request.from_ts_ms) if request.HasField("from_ts_ms") else None,
        last=request.last if request.HasField("last") else None,
        end_seq=request.end_seq if request.HasField("end_seq") else None,
        nodes=tuple(node.encode() for node in request.node),
        limit=max(1, (_MESSAGE_BYTES - data_bytes) // each),
        max_batch_bytes=budget,
        filter=tag_match(request.filter, "filter") if request.HasField("filter") else None,
        topic_id=request.topic_id,
    )


def bulk_frame(
    reply: DiffReply, *, done: bool, include_tags: bool, include_meta: bool, include_data: bool = True
) -> pb.BulkDiffResponse:
    """One page as a frame of columns."""
    frame = _head(reply, done=done)
    if reply.slices:
        _fill(
            frame.records, reply.slices, include_tags=include_tags, include_meta=include_meta, include_data=include_data
        )
    return frame


def _head(reply: DiffReply, *, done: bool) -> pb.BulkDiffResponse:
    """One page without its records."""
    return pb.BulkDiffResponse(
        next_from_seq=reply.next_from_seq,
        head_seq=reply.head_seq,
        earliest_seq=reply.earliest_seq,
        tombstone=None if reply.tombstone is None else tombstone_message(reply.tombstone),
        done=done,
        partition=reply.partition,
    )


def _fill(
    records: record_pb2.RecordColumns,
    slices: Sequence[Slice],
    *,
    include_tags: bool,
    include_meta: bool,
    include_data: bool,
) -> None:
    """Set the columns, from slices in order of seq."""
    seqs, times = seq_runs(slices), time_runs(slices)
    records.run_first_seq.extend([first for first, _ in seqs])
    records.run_count.extend([count for _, count in seqs])
    records.time_ts_ms.extend([ts for ts, _ in times])
    records.time_count.extend([count for _, count in times])
    if include_data:
        found = joined_data(slices)
        records.data.data = b"".join(found.data)
        records.data.offsets = b"".join(found.offsets)
    if all(piece.block.kinds is None for piece in slices):
        records.kind = record_pb2.RECORD_KIND_JSON
    else:
        each = kinds(slices, sum(count for _, count in seqs))
        if each.count(each[0]) == len(each):
            records.kind = each[0]  # type: ignore[assignment]  # a number of the enum
        else:
            records.kinds = each
    _fill_column(records, "node", slices, [piece.block.nodes for piece in slices])
    if include_tags and not _fill_packed_tags(records, slices):
        _fill_column(records, "tag", slices, [piece.block.tags for piece in slices])
    if include_meta:
        _fill_column(records, "meta", slices, [piece.block.metas for piece in slices])


def _fill_packed_tags(records: record_pb2.RecordColumns, slices: Sequence[Slice]) -> bool:
    """Set the tag column from the bytes read from disk, without decoding single tags; False if that can't be."""
    found = Joined()
    for block, some in by_block(slices):
        tags = block.packed_tags()
        if tags is None:
            return False
        found.add(tags, some)
    records.tag.data = b"".join(found.data)
    records.tag.offsets = b"".join(found.offsets)
    return True


def _fill_column(
    records: record_pb2.RecordColumns, name: str, slices: Sequence[Slice], parts: Sequence[_Column]
) -> None:
    """Set one column, unless no record has a value."""
    if all(part is None for part in parts):
        return
    values: list[bytes | None] = []
    for piece, part in zip(slices, parts, strict=True):
        values += [None] * (piece.stop - piece.start) if part is None else part[piece.start : piece.stop]
    missing = values.count(None)
    if missing == len(values):
        return
    column: record_pb2.PackedColumn = getattr(records, name)
    if missing:
        column.absent.extend([i for i, value in enumerate(values) if value is None])
    elif len(values) > 1 and values.count(values[0]) == len(values):
        column.data = values[0] or b""
        return
    column.data = b"".join(filter(None, values))
    column.offsets = array("I", accumulate(lengths(values, 0), initial=0)).tobytes()
