"""Ranges of seqs of a partition that were deleted on purpose."""

from collections.abc import Iterator

from topics_client.connection import Connection
from topics_client.errors import NotFoundError, TopicsError, UnavailableError
from topics_lakehouse.seqs import SeqSet
from topics_proto.v1 import topics_service_pb2 as pb


def find_dead(connection: Connection, topic: str, topic_id: str, partition: int, last: int) -> Iterator[int | SeqSet]:
    """List the live seqs up to `last`, which must not be above the head; missing seqs that were not evicted are dead.
    Gives the cursor now and then, and at the end the dead seqs.

    Only the server itself is asked: the view of a bulk reader may be older than a delete. Records come without their
    data, as runs of seqs. Raises NotFoundError if the topic was deleted or recreated.
    """
    dead = SeqSet()
    cursor = 0
    while cursor < last:

        def listed(start: int = cursor) -> int:
            """One call: reads from after `start` as far as it gets."""
            return _list(connection, _request(topic, topic_id, partition, start, last), dead)

        try:
            cursor = connection.retry.run(listed)
        except NotFoundError as error:
            raise NotFoundError(
                error.reason, f"topic {topic}: deleted or recreated while its deletes were listed", error.detail
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


def _list(connection: Connection, request: pb.BulkDiffRequest, dead: SeqSet) -> int:
    """The cursor after the result of one call. Fails only where it brought nothing."""
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


def _take(frame: pb.BulkDiffResponse, cursor: int, dead: SeqSet) -> int:
    """Process a frame. Returns the cursor after it."""
    if frame.HasField("tombstone"):  # evicted: deleted records among them can't be distinguished any more
        dead.add(cursor + 1, frame.tombstone.gap_from - 1)
        cursor = max(cursor, frame.tombstone.gap_to)
    records = frame.records
    for first, count in zip(records.run_first_seq, records.run_count, strict=True):
        dead.add(cursor + 1, first - 1)
        cursor = first + count - 1
    dead.add(cursor + 1, frame.next_from_seq)
    return max(cursor, frame.next_from_seq)
