"""Which seqs of a partition were deleted on purpose, as ranges."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from topics.v1 import topics_service_pb2 as pb
from topics_client.connection import Connection
from topics_client.errors import NotFoundError, TopicsError, UnavailableError


class DeadSeqs:
    """Ranges of seqs in ascending order, 16 bytes each."""

    def __init__(self) -> None:
        self._firsts = array("q")
        self._lasts = array("q")
        self.count = 0
        """How many seqs they are."""

    def add(self, first: int, last: int) -> None:
        """One more range, behind the others; none if `last` is below `first`."""
        if last < first:
            return
        self.count += last - first + 1
        if self._lasts and self._lasts[-1] + 1 == first:
            self._lasts[-1] = last
        else:
            self._firsts.append(first)
            self._lasts.append(last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def within(self, first: int, last: int) -> bool:
        """Whether any of the seqs `first` to `last` is dead."""
        i = bisect_right(self._firsts, last) - 1
        return i >= 0 and self._lasts[i] >= first

    def mask(self, seqs: pa.Array) -> pa.BooleanArray:
        """For each seq whether it is dead."""
        if not self._firsts:
            return pa.repeat(pa.scalar(False), len(seqs))
        firsts, lasts = (
            pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
            for numbers in (self._firsts, self._lasts)
        )
        places = pc.cast(pc.search_sorted(firsts, seqs, side="right"), pa.int64())  # one behind the range it may be in
        range_lasts = pc.take(lasts, pc.max_element_wise(pc.subtract(places, 1), 0))
        return pc.and_(pc.greater(places, 0), pc.less_equal(seqs, range_lasts))


def find_dead(connection: Connection, topic: str, topic_id: str, partition: int, last: int) -> Iterator[int | DeadSeqs]:
    """List what lives up to seq `last`, which must not lie behind the head; what is not there and was not evicted is
    dead. Gives the cursor now and then, and at the end the dead seqs.

    Only the server itself is asked: the view of a bulk reader may be older than a delete. Records come without their
    data, as runs of seqs. Raises NotFoundError when the topic was deleted or made again.
    """
    dead = DeadSeqs()
    cursor = 0
    while cursor < last:

        def listed(start: int = cursor) -> int:
            """One call: reads on behind `start` as far as it comes."""
            return _list(connection, _request(topic, topic_id, partition, start, last), dead)

        try:
            cursor = connection.retry.run(listed)
        except NotFoundError as error:
            raise NotFoundError(
                error.reason, f"topic {topic}: deleted or made again while its deletes were listed", error.detail
            ) from error
        except TopicsError as error:
            text = f"topic {topic}, partition {partition}, seq {cursor + 1} to {last}: {error.message}"
            raise type(error)(error.reason, text, error.detail, error.retry_after_ms) from error
        yield cursor
    yield dead


def _request(topic: str, topic_id: str, partition: int, cursor: int, last: int) -> pb.BulkDiffRequest:
    return pb.BulkDiffRequest(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        from_seq=cursor,
        end_seq=last,
        include_meta=False,
        include_data=False,
        frame_bytes=1 << 20,
    )


def _list(connection: Connection, request: pb.BulkDiffRequest, dead: DeadSeqs) -> int:
    """The cursor behind what one call brought. Fails only where it brought nothing."""
    cursor, done = request.from_seq, False
    try:
        with connection.stream(connection.topics.BulkDiff, request) as frames:
            for frame in frames:
                cursor = _take(frame, cursor, dead)
                done = frame.done
    except UnavailableError:
        if cursor == request.from_seq:
            raise
        return cursor
    if not done and cursor == request.from_seq:
        raise UnavailableError("unavailable", "the stream ended early")
    if done and cursor < request.end_seq:
        raise TopicsError("internal", f"the server's head is seq {cursor}, and was {request.end_seq} before")
    return cursor


def _take(frame: pb.BulkDiffResponse, cursor: int, dead: DeadSeqs) -> int:
    """What a frame tells of the seqs behind the cursor; the cursor behind it."""
    if frame.HasField("tombstone"):  # evicted: what was deleted among it can't be told apart any more
        dead.add(cursor + 1, frame.tombstone.gap_from - 1)
        cursor = max(cursor, frame.tombstone.gap_to)
    records = frame.records
    for first, count in zip(records.run_first_seq, records.run_count, strict=True):
        dead.add(cursor + 1, first - 1)
        cursor = first + count - 1
    dead.add(cursor + 1, frame.next_from_seq)
    return max(cursor, frame.next_from_seq)
