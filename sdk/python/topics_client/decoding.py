"""Decoding of protobuf responses into models. On the hot path of every read: measure before and after a change."""

import sys
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, cast

from topics_client.enums import CONFIG_ENUMS, text_of
from topics_client.models import (
    Appended,
    Attempt,
    Gap,
    GapReason,
    GroupPosition,
    GroupSummary,
    Job,
    JobView,
    Page,
    PartitionInfo,
    QueueCounts,
    Record,
    RouterConfig,
    RouterInfo,
    RouterSummary,
    TopicConfig,
    TopicInfo,
    TopicSummary,
)
from topics_proto.v1 import group_pb2, job_pb2, record_pb2, router_pb2, topic_pb2
from topics_proto.v1 import topics_service_pb2 as service

_BINARY: Final = record_pb2.RECORD_KIND_BINARY
_OFFSETS: Final = next(code for code in "IL" if array(code).itemsize == 4)

# `Record._make` at half the cost.
_record: Final = cast("Callable[[Iterable[Any]], Record]", partial(tuple.__new__, Record))

_CONFIG_FIELDS: Final = frozenset(TopicConfig.__dataclass_fields__)


def records_of_rows(topic: str, partition: int, rows: Iterable[record_pb2.Record]) -> list[Record]:
    """Decode records in row format."""
    return [
        _record(
            (
                topic,
                partition,
                row.seq,
                row.ts_ms,
                row.data,
                row.kind == _BINARY,
                tag if (tag := row.tag) or row.HasField("tag") else None,
                row.node if row.HasField("node") else None,
                row.meta,
            )
        )
        for row in rows
    ]


def records_of_columns(topic: str, partition: int, columns: record_pb2.RecordColumns) -> list[Record]:
    """Decode records in column format: a seventh of the cost of rows, and no Python code per record."""
    count = sum(columns.run_count)
    seqs = chain.from_iterable(
        range(first, first + length) for first, length in zip(columns.run_first_seq, columns.run_count, strict=True)
    )
    times = chain.from_iterable(map(repeat, columns.time_ts_ms, columns.time_count))
    binary: Iterable[bool] = repeat(columns.kind == _BINARY)
    if columns.kinds:
        binary = [kind == _BINARY for kind in columns.kinds]
    fields = zip(
        repeat(topic, count),
        repeat(partition),
        seqs,
        times,
        _values(columns.data, count),
        binary,
        _texts(columns, "tag", count),
        _texts(columns, "node", count),
        _values(columns.meta, count) if columns.HasField("meta") else repeat(b""),
        strict=False,  # those that repeat have no end
    )
    return list(map(_record, fields))


def _values(column: record_pb2.PackedColumn, count: int) -> Iterable[bytes]:
    data = column.data
    if not column.offsets:
        return repeat(data, count)
    offsets = array(_OFFSETS, column.offsets)
    if sys.byteorder == "big":
        offsets.byteswap()
    return map(data.__getitem__, map(slice, offsets[:-1], offsets[1:]))


def _texts(columns: record_pb2.RecordColumns, name: str, count: int) -> Iterable[str | None]:
    if not columns.HasField(cast(Any, name)):
        return repeat(None)
    column: record_pb2.PackedColumn = getattr(columns, name)
    if not column.offsets and not column.absent:
        return repeat(column.data.decode(), count)
    texts: list[str | None] = [value.decode() for value in _values(column, count)]
    for index in column.absent:
        texts[index] = None
    return texts


def gap_of(topic: str, partition: int, tombstone: record_pb2.Tombstone) -> Gap:
    """The range of a tombstone."""
    return Gap(
        topic=topic,
        partition=partition,
        first_seq=tombstone.gap_from,
        last_seq=tombstone.gap_to,
        reason=cast(GapReason, text_of("reason", tombstone.reason)),
        missed_estimate=tombstone.missed_estimate,
        earliest_seq=tombstone.earliest_seq,
        head_seq=tombstone.head_seq,
    )


def page_of(reply: service.DiffResponse) -> Page:
    """The result of a diff."""
    return Page(
        topic=reply.topic,
        partition=reply.partition,
        records=tuple(records_of_rows(reply.topic, reply.partition, reply.records)),
        gap=gap_of(reply.topic, reply.partition, reply.tombstone) if reply.HasField("tombstone") else None,
        next_from_seq=reply.next_from_seq,
        head_seq=reply.head_seq,
        earliest_seq=reply.earliest_seq,
        caught_up=reply.caught_up,
        lag=reply.lag,
    )


def appended_of(reply: service.AppendResponse) -> Appended:
    """The result of an append."""
    return Appended(
        topic=reply.topic,
        partition=reply.partition,
        first_seq=reply.first_seq,
        last_seq=reply.last_seq,
        head_seq=reply.head_seq,
        created=reply.created,
        deduped=reply.deduped,
    )


def job_of(queue: str, job: job_pb2.Job) -> Job:
    """A leased job."""
    return Job(
        queue,
        job.seq,
        job.lease_id,
        job.deadline_ts_ms,
        job.ts_ms,
        job.data,
        job.kind == _BINARY,
        job.tag if job.HasField("tag") else None,
        job.deliveries,
        job.meta,
        job.is_last,
    )


def job_view_of(queue: str, view: job_pb2.JobView) -> JobView:
    """A job in a list of jobs."""
    (record,) = records_of_rows(queue, 0, [view.record])
    return JobView(
        record=record,
        state=text_of("state", view.state),
        deliveries=view.deliveries,
        priority=view.priority,
        node=_given(view, "node"),
        deadline_ts_ms=_given(view, "deadline_ts_ms"),
        ready_at_ts_ms=_given(view, "ready_at_ts_ms"),
        attempts=tuple(Attempt(each.delivery, each.ended_at_ts_ms, each.node, each.reason) for each in view.attempts),
    )


def config_of(config: topic_pb2.TopicConfig) -> TopicConfig:
    """The configuration in effect, with all defaults filled in."""
    given: dict[str, Any] = {
        field.name: value if isinstance(value, str | int) else tuple(value)
        for field, value in config.ListFields()
        if field.name in _CONFIG_FIELDS
    }
    return TopicConfig(**given | {name: text_of(name, given[name]) for name in CONFIG_ENUMS.keys() & given.keys()})


def _queue_counts_of(queue: topic_pb2.QueueState) -> QueueCounts:
    return QueueCounts(
        ready=queue.ready,
        in_flight=queue.in_flight,
        dead_lettered=queue.dead_lettered,
        delayed=queue.delayed,
        retrying=queue.retrying,
        exhausted=queue.exhausted,
    )


def topic_info_of(state: topic_pb2.TopicState) -> TopicInfo:
    """The full state of a topic."""
    return TopicInfo(
        topic=state.topic,
        type=text_of("type", state.type),
        head_seq=state.head_seq,
        earliest_seq=state.earliest_seq,
        next_seq=state.next_seq,
        count=state.count,
        bytes=state.bytes,
        config=config_of(state.config),
        effective_priority=state.effective_priority,
        last_write_ts_ms=_given(state, "last_write_ts_ms"),
        last_read_ts_ms=_given(state, "last_read_ts_ms"),
        queue=_queue_counts_of(state.queue) if state.HasField("queue") else None,
        topic_id=state.topic_id,
        slug=state.slug,
        rrl=state.rrl,
        epoch=state.epoch,
        partition_count=state.partition_count,
        partition=state.partition,
        placement=state.placement,
        zone=state.zone,
        partitions=tuple(
            PartitionInfo(
                partition=each.partition,
                head_seq=each.head_seq,
                earliest_seq=each.earliest_seq,
                next_seq=each.next_seq,
                count=each.count,
                bytes=each.bytes,
                last_write_ts_ms=_given(each, "last_write_ts_ms"),
            )
            for each in state.partitions
        ),
    )


def topic_summary_of(summary: topic_pb2.TopicSummary) -> TopicSummary:
    """An entry in a list of topics."""
    return TopicSummary(
        topic=summary.topic,
        type=text_of("type", summary.type),
        head_seq=summary.head_seq,
        earliest_seq=summary.earliest_seq,
        count=summary.count,
        bytes=summary.bytes,
        durable=summary.durable,
        effective_priority=summary.effective_priority,
        topic_id=summary.topic_id,
        partition_count=summary.partition_count,
    )


def router_info_of(state: router_pb2.RouterState) -> RouterInfo:
    """A router and its progress."""
    config = state.config
    rule = config.filter.WhichOneof("rule") if config.HasField("filter") else None
    return RouterInfo(
        router=state.router,
        config=RouterConfig(
            source=config.source,
            dest=config.dest,
            tag=config.filter.eq if rule == "eq" else None,
            tag_prefix=config.filter.prefix if rule == "prefix" else None,
            guarantee=cast(Any, text_of("guarantee", config.guarantee)),
            preserve_node=config.preserve_node,
            preserve_tag=config.preserve_tag,
            allow_cycle=config.allow_cycle,
        ),
        forwarded_total=state.forwarded_total,
        lag_records=state.lag_records,
        last_error=_given(state, "last_error"),
    )


def router_summary_of(summary: router_pb2.RouterSummary) -> RouterSummary:
    """An entry in a list of routers."""
    return RouterSummary(
        router=summary.router,
        source=summary.source,
        dest=summary.dest,
        guarantee=text_of("guarantee", summary.guarantee),
        forwarded_total=summary.forwarded_total,
        lag_records=summary.lag_records,
    )


def group_position_of(position: group_pb2.GroupPosition) -> GroupPosition:
    """The position of a group in a partition."""
    return GroupPosition(
        topic=position.topic,
        partition=position.partition,
        from_seq=position.from_seq,
        metadata=position.metadata,
        commit_ts_ms=position.commit_ts_ms,
        head_seq=position.head_seq,
        earliest_seq=position.earliest_seq,
        lag=position.lag,
    )


def group_summary_of(summary: group_pb2.GroupSummary) -> GroupSummary:
    """An entry in a list of groups."""
    return GroupSummary(
        group=summary.group,
        state=summary.state,
        members=summary.members,
        positions=summary.positions,
        last_commit_ts_ms=_given(summary, "last_commit_ts_ms"),
    )


def _given(message: Any, name: str) -> Any:
    """The value of an optional field, None where it is absent."""
    return getattr(message, name) if message.HasField(name) else None
