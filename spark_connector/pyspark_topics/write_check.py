"""Check that the records stored under a key by an earlier attempt equal those of this attempt."""

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics.fetch import Fetcher, Gap, SeqRange
from pyspark_topics.write_chunks import Chunk
from topics_client.errors import ConflictError
from topics_proto.v1 import record_pb2
from topics_proto.v1 import topics_service_pb2 as pb

_JSON_SPACE: Final = b" \t\r\n"  # white space that the server may strip from a JSON text


class MismatchError(ConflictError):
    """A repeat of a write has other rows than the first attempt, in place of those already stored."""


def check(fetcher: Fetcher, chunk: Chunk, topic_id: str, stored: pb.AppendResponse) -> None:
    """Compare the chunk with the records of `stored`, read back. Raises MismatchError.

    Records that were deleted or evicted since then can't be compared; that there were as many is checked all the same.
    """
    where = f"{chunk}: an earlier attempt stored seq {stored.first_seq} to {stored.last_seq} there"
    if stored.count != chunk.records.num_rows:
        raise _mismatch(where, f"{stored.count} records")
    target = chunk.target
    wanted = SeqRange(target.topic, topic_id, target.partition, stored.first_seq, stored.last_seq)
    for got in fetcher.read(wanted):
        if isinstance(got, Gap) or not got.num_rows:
            continue
        at = pc.subtract(got.column("seq"), stored.first_seq)
        expected = chunk.records.take(at)
        for name in ("data", "kind", "tag", "node", "meta"):
            found = got.column(name).cast(expected.column(name).type)
            if not found.equals(expected.column(name)):
                _compare(where, name, expected, found, got.column("seq"))


def _compare(where: str, name: str, expected: pa.RecordBatch, found: pa.Array, seqs: pa.Array) -> None:
    """Value by value, as the server may spell one. Raises MismatchError."""
    kinds = expected.column("kind").to_pylist()
    wanted = expected.column(name).to_pylist()
    for kind, ours, theirs, seq in zip(kinds, wanted, found.to_pylist(), seqs.to_pylist(), strict=True):
        if ours == theirs:
            continue
        if name == "data" and kind == record_pb2.RECORD_KIND_JSON and ours.strip(_JSON_SPACE) == theirs:
            continue
        if name == "meta" and _object(ours) == _object(theirs):
            continue
        raise _mismatch(where, f"another {name} at seq {seq}")


def _object(text: bytes | None) -> Any:
    # numbers as they are spelled: 1 is neither true nor 1.0, and long ones are no trouble
    return json.loads(text, parse_int=str.encode, parse_float=str.encode) if text else {}


def _mismatch(where: str, what: str) -> MismatchError:
    return MismatchError(
        "write_mismatch",
        f"{where}, with {what}. A repeat must have the same rows in the same order: sort the data frame before it is "
        "written (sortWithinPartitions behind repartition, or spark.sql.execution.sortBeforeRepartition=true), keep "
        "the options of the write and the number of partitions as they were, and give another write another writeId. "
        "Nothing was appended for this chunk",
    )
