"""Records between their messages and the columns of a batch or block. Hot path."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat

from topics_proto.v1 import record_pb2, stream_pb2, topics_service_pb2
from topics_service.api.jsontext import check_meta, normalize_json
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.engine.model import BINARY_KIND, JSON_KIND, Batch, Slice
from topics_service.storage.block import Block
from topics_service.storage.recordbatch.jsonvalue import all_json

_JSON = record_pb2.RECORD_KIND_JSON
_BINARY = record_pb2.RECORD_KIND_BINARY
_KINDS_IN = {record_pb2.RECORD_KIND_UNSPECIFIED: JSON_KIND, _JSON: JSON_KIND, _BINARY: BINARY_KIND}
_KINDS_OUT = (_JSON, _BINARY)  # by JSON_KIND, BINARY_KIND


def batch(request: topics_service_pb2.AppendRequest, limits: Limits) -> Batch:
    """The records of an append as columns, with JSON data and meta checked and freed of outer white space.

    Raises `batch_too_large` (before it looks at a record) and `invalid_request`, naming the record by its index.
    Sizes of data, tags and nodes are left to the engine.
    """
    count = len(request.records)
    if count > limits.max_batch_records:
        raise TopicsError(
            Reason.BATCH_TOO_LARGE, f"{count} records are more than one append takes ({limits.max_batch_records})"
        )
    datas: list[bytes] = []
    metas: list[bytes | None] = []
    kinds = bytearray()
    tags: list[bytes | None] | None = None
    nodes: list[bytes | None] | None = None
    default_node = request.node.encode() if request.HasField("node") else None
    if default_node is not None:
        nodes = [default_node] * count
    # One pass: each access to a repeated message makes new Python objects, which is most of the cost.
    for i, record in enumerate(request.records):
        datas.append(record.data)
        metas.append(record.meta or None)
        kind = record.kind
        if not 0 <= kind <= 1:  # neither unspecified nor JSON
            kinds += bytes(i - len(kinds))
            kinds.append(kind_in(kind, f"records[{i}].kind"))
        if record.HasField("tag"):
            if tags is None:
                tags = [None] * count
            tags[i] = record.tag.encode()
        if record.HasField("node"):
            if nodes is None:
                nodes = [None] * count
            nodes[i] = record.node.encode()
    if kinds:
        kinds += bytes(count - len(kinds))
    normalize_datas(datas, kinds, "records[{}].data")
    has_meta = any(metas)
    if has_meta:
        normalize_metas(metas, limits, "records[{}].meta")
    return Batch(
        datas=datas, tags=tags, nodes=nodes, metas=metas if has_meta else None, kinds=bytes(kinds) if kinds else None
    )


def kind_in(kind: int, where: str) -> int:
    """The engine's number for a RecordKind; raises `invalid_request`, naming `where`, for one that is not known."""
    try:
        return _KINDS_IN[kind]  # type: ignore[index]  # proto3 enums are open: a newer client may send any number
    except KeyError:
        raise invalid(f"{where}: unknown value {kind}") from None


def normalize_datas(datas: list[bytes], kinds: Sequence[int], where: str) -> None:
    """Check the JSON among the datas (all of them when `kinds` is empty) and free it of outer white space, in place.

    Raises `invalid_request`; `where` names the record, its index in place of `{}`.
    """
    if kinds:
        positions: Iterable[int] = [i for i, kind in enumerate(kinds) if kind == JSON_KIND]
    elif len(datas) > 1 and all_json(datas):
        return
    else:
        positions = range(len(datas))
    for i in positions:
        try:
            datas[i] = normalize_json(datas[i])
        except TopicsError as error:
            raise _at(error, where.format(i)) from None


def normalize_metas(metas: list[bytes | None], limits: Limits, where: str) -> None:
    """Check the metas that are there and free them of outer white space, in place. Raises as `normalize_datas`."""
    normal = all_json([meta for meta in metas if meta is not None])
    for i, meta in enumerate(metas):
        if meta is not None:
            try:
                if not normal:
                    metas[i] = meta = normalize_json(meta)
                check_meta(meta, limits, checked=True)
            except TopicsError as error:
                raise _at(error, where.format(i)) from None


def _at(error: TopicsError, where: str) -> TopicsError:
    return TopicsError(error.reason, f"{where}: {error.message}", error.detail)


def add_records(
    response: topics_service_pb2.DiffResponse | stream_pb2.RecordBatch,
    slices: Iterable[Slice],
    *,
    include_tags: bool,
    include_meta: bool,
    include_data: bool = True,
) -> None:
    """Append the records of `slices` to a reply or a frame, in order."""
    add = response.records.add
    for piece in slices:
        block, start, stop = piece.block, piece.start, piece.stop
        seqs = range(block.base_seq + start, block.base_seq + stop)
        datas = _datas(block, start, stop) if include_data else repeat(b"")
        times = islice(chain.from_iterable(repeat(ts, count) for count, ts in block.ts_runs), start, stop)
        kinds = repeat(_JSON) if block.kinds is None else map(_KINDS_OUT.__getitem__, block.kinds[start:stop])
        tags = block.tags if include_tags else None
        metas = block.metas if include_meta else None
        if block.nodes is tags is metas is None:
            for seq, ts, data, kind in zip(seqs, times, datas, kinds, strict=False):
                add(seq=seq, ts_ms=ts, data=data, kind=kind)
            continue
        columns = zip(
            _part(block.nodes, start, stop), _part(tags, start, stop), _part(metas, start, stop), strict=False
        )
        for seq, ts, data, kind, (node, tag, meta) in zip(seqs, times, datas, kinds, columns, strict=False):
            record = add(seq=seq, ts_ms=ts, data=data, kind=kind)
            if node is not None:
                record.node = node.decode()
            if tag is not None:
                record.tag = tag.decode()
            if meta is not None:
                record.meta = meta


def _datas(block: Block, start: int, stop: int) -> Iterator[bytes]:
    data = block.data
    begin = block.ends[start - 1] if start else 0
    for end in block.ends[start:stop]:
        yield data[begin:end]
        begin = end


def _part(column: Sequence[bytes | None] | None, start: int, stop: int) -> Iterable[bytes | None]:
    return repeat(None) if column is None else column[start:stop]
