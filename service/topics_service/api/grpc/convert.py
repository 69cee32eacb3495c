"""Messages of TopicsService to the engine's requests, and its replies to messages.

Requests raise TopicsError `invalid_request` for values that the engine's structs cannot express. Replies come without
`performance.server_total_ms`, which is the servicer's to measure.
"""

from topics_proto.v1 import performance_pb2, record_pb2, topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.cursor import read_cursor, write_cursor
from topics_service.api.grpc.columns import columnar_batch
from topics_service.api.grpc.configs import TYPES, config_input, config_message
from topics_service.api.grpc.enums import numbers
from topics_service.api.grpc.records import add_records, batch
from topics_service.engine.errors import invalid
from topics_service.engine.limits import Limits
from topics_service.engine.model import (
    AppendReply,
    AppendRequest,
    DeleteReply,
    DeleteRequest,
    DeleteTopicReply,
    DiffReply,
    DiffRequest,
    ListTopicsReply,
    ListTopicsRequest,
    PartitionState,
    PutTopicReply,
    QueueCounters,
    TagMatch,
    Tombstone,
    TopicState,
)

_REASONS = numbers(record_pb2.GapReason.DESCRIPTOR)


def put_topic_response(reply: PutTopicReply) -> pb.PutTopicResponse:
    """The outcome of a PutTopic."""
    identity = reply.identity
    return pb.PutTopicResponse(
        topic=reply.topic,
        created=reply.created,
        config=config_message(reply.config),
        topic_id=identity.topic_id,
        slug=identity.slug,
        rrl=identity.rrl,
        epoch=identity.epoch,
        partition_count=identity.partition_count,
        placement=identity.group,
        zone=identity.zone,
    )


def topic_state(state: TopicState) -> topic_pb2.TopicState:
    """The full state of one topic."""
    identity, queue = state.identity, state.queue
    return topic_pb2.TopicState(
        topic=state.topic,
        type=TYPES[state.config.type],
        head_seq=state.head_seq,
        earliest_seq=state.earliest_seq,
        next_seq=state.next_seq,
        count=state.count,
        bytes=state.bytes,
        config=config_message(state.config),
        effective_priority=state.effective_priority,
        last_write_ts_ms=state.last_write_ts,
        last_read_ts_ms=state.last_read_ts,
        queue=None if queue is None else _queue_state(queue),
        topic_id=identity.topic_id,
        slug=identity.slug,
        rrl=identity.rrl,
        epoch=identity.epoch,
        partition_count=identity.partition_count,
        partition=state.partition,
        placement=identity.group,
        zone=identity.zone,
        partitions=map(_partition_state, state.partitions),
    )


def list_topics_request(request: pb.ListTopicsRequest) -> ListTopicsRequest:
    """A listing, with its page size brought into range."""
    page_size = request.page_size if request.HasField("page_size") else 100
    return ListTopicsRequest(
        prefix=request.prefix,
        after=read_cursor(request.cursor),
        page_size=min(max(page_size, 1), 1000),
        touch=request.touch,
    )


def list_topics_response(reply: ListTopicsReply) -> pb.ListTopicsResponse:
    """A page of topics."""
    topics = [
        topic_pb2.TopicSummary(
            topic=line.topic,
            head_seq=line.head_seq,
            earliest_seq=line.earliest_seq,
            count=line.count,
            bytes=line.bytes,
            durable=line.durable,
            effective_priority=line.effective_priority,
            type=TYPES[line.type],
            topic_id=line.topic_id,
            partition_count=line.partition_count,
        )
        for line in reply.topics
    ]
    return pb.ListTopicsResponse(topics=topics, next_cursor=write_cursor(reply.next_after))


def delete_topic_response(reply: DeleteTopicReply) -> pb.DeleteTopicResponse:
    """The outcome of a DeleteTopic."""
    return pb.DeleteTopicResponse(topic=reply.topic, deleted=reply.deleted, routers_removed=reply.routers_removed)


def append_request(request: pb.AppendRequest, limits: Limits) -> AppendRequest:
    """An append; see `records.batch` and `columns.columnar_batch` for the checks."""
    if request.HasField("columns"):
        if request.records:
            raise invalid("records and columns exclude each other")
        records = columnar_batch(request.columns, request.node if request.HasField("node") else None, limits)
    else:
        records = batch(request, limits)
    return AppendRequest(
        topic=request.topic,
        batch=records,
        partition=request.partition,
        idempotency_key=request.idempotency_key if request.HasField("idempotency_key") else None,
        create=request.create if request.HasField("create") else None,
        config=config_input(request.config) if request.HasField("config") else None,
        disable_backpressure=request.disable_backpressure,
        delay_ms=request.delay_ms,
        priority=request.priority,
    )


def append_response(reply: AppendReply, *, return_seqs: bool) -> pb.AppendResponse:
    """Convert the reply of an append. A deduplicated one wrote nothing and has no write timings."""
    performance = performance_pb2.Performance()
    if not reply.deduped:
        performance.wal_append_ms = reply.wal_append_ms
        performance.fsync_ms = reply.fsync_ms
        performance.throttle_wait_ms = reply.throttle_wait_ms
    return pb.AppendResponse(
        topic=reply.topic,
        partition=reply.partition,
        first_seq=reply.first_seq,
        last_seq=reply.last_seq,
        seqs=range(reply.first_seq, reply.last_seq + 1) if return_seqs else (),
        head_seq=reply.head_seq,
        count=reply.count,
        created=reply.created,
        deduped=reply.deduped,
        performance=performance,
    )


def diff_request(request: pb.DiffRequest) -> DiffRequest:
    """A read; the engine clamps its numbers."""
    return DiffRequest(
        topic=request.topic,
        partition=request.partition,
        from_seq=request.from_seq,
        limit=request.limit,
        nodes=tuple(node.encode() for node in request.node),
        wait_ms=request.wait_ms,
        max_batch_bytes=request.max_batch_bytes,
        from_ts=checked_time(request.from_ts_ms) if request.HasField("from_ts_ms") else None,
        last=request.last if request.HasField("last") else None,
        filter=tag_match(request.filter, "filter") if request.HasField("filter") else None,
    )


def checked_time(ts_ms: int) -> int:
    """A time that a read starts at. Raises `invalid_request` for one before 1970."""
    if ts_ms < 0:
        raise invalid("a time is a number of milliseconds from 0 on")
    return ts_ms


def diff_response(reply: DiffReply, *, include_tags: bool, include_meta: bool) -> pb.DiffResponse:
    """A page of records."""
    response = pb.DiffResponse(
        topic=reply.topic,
        partition=reply.partition,
        next_from_seq=reply.next_from_seq,
        head_seq=reply.head_seq,
        earliest_seq=reply.earliest_seq,
        caught_up=reply.caught_up,
        tombstone=None if reply.tombstone is None else tombstone_message(reply.tombstone),
        lag=reply.lag,
        performance=performance_pb2.Performance(records_scanned=reply.records_scanned),
    )
    add_records(response, reply.slices, include_tags=include_tags, include_meta=include_meta)
    return response


def delete_records_request(request: pb.DeleteRecordsRequest) -> DeleteRequest:
    """A deletion; the engine refuses one without a selector."""
    return DeleteRequest(
        topic=request.topic,
        partition=request.partition,
        before_seq=request.before_seq if request.HasField("before_seq") else None,
        match=tag_match(request.match, "match") if request.HasField("match") else None,
    )


def delete_records_response(reply: DeleteReply) -> pb.DeleteRecordsResponse:
    """Convert the reply of a deletion."""
    return pb.DeleteRecordsResponse(
        topic=reply.topic,
        partition=reply.partition,
        deleted=reply.deleted,
        earliest_seq=reply.earliest_seq,
        head_seq=reply.head_seq,
        count=reply.count,
        bytes=reply.bytes,
    )


def _partition_state(state: PartitionState) -> topic_pb2.PartitionState:
    return topic_pb2.PartitionState(
        partition=state.partition,
        head_seq=state.head_seq,
        earliest_seq=state.earliest_seq,
        next_seq=state.next_seq,
        count=state.count,
        bytes=state.bytes,
        last_write_ts_ms=state.last_write_ts,
    )


def _queue_state(queue: QueueCounters) -> topic_pb2.QueueState:
    return topic_pb2.QueueState(
        ready=queue.ready,
        in_flight=queue.in_flight,
        dead_lettered=queue.dead_lettered,
        delayed=queue.delayed,
        retrying=queue.retrying,
        exhausted=queue.exhausted,
    )


def tombstone_message(tombstone: Tombstone) -> record_pb2.Tombstone:
    """A gap."""
    return record_pb2.Tombstone(
        gap_from=tombstone.gap_from,
        gap_to=tombstone.gap_to,
        reason=_REASONS[tombstone.reason],
        missed_estimate=tombstone.missed_estimate,
        earliest_seq=tombstone.earliest_seq,
        head_seq=tombstone.head_seq,
    )


def tag_match(match: record_pb2.TagMatch, field: str) -> TagMatch:
    """A tag rule, given as the request's `field`. Raises `invalid_request` for one without a rule."""
    rule = match.WhichOneof("rule")
    if rule is None:
        raise invalid(f"{field}: no rule is set")
    return TagMatch("Eq", match.eq.encode()) if rule == "eq" else TagMatch("Glob", match.prefix.encode())
