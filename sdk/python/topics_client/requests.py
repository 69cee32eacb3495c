"""Construction of protobuf requests from arguments. Raises InvalidRequestError for arguments that no request can
express."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from math import ceil
from typing import Any, Final

from topics_client.codecs import Encode
from topics_client.encoding import column_batch, encode_meta
from topics_client.enums import CONFIG_ENUMS, number_of
from topics_client.errors import InvalidRequestError
from topics_client.models import Job, NewRecord, RouterConfig, TopicConfig
from topics_proto.v1 import queue_service_pb2 as queues
from topics_proto.v1 import router_pb2, topic_pb2
from topics_proto.v1 import topics_service_pb2 as topics
from topics_proto.v1.group_pb2 import LOG_END_EARLIEST, LOG_END_LATEST, PositionCommit
from topics_proto.v1.group_service_pb2 import ResetPositionsRequest
from topics_proto.v1.record_pb2 import TagMatch
from topics_proto.v1.sql_service_pb2 import SqlServiceConsumeRequest

_ENDS: Final = {"earliest": LOG_END_EARLIEST, "latest": LOG_END_LATEST}
_ARROW_BYTES: Final = 1 << 20  # the largest frames: each is a batch


def tag_match(tag: str | None, tag_prefix: str | None) -> TagMatch | None:
    """The filter by tag; None selects all records."""
    if tag is not None and tag_prefix is not None:
        raise InvalidRequestError("invalid_request", "tag and tag_prefix are mutually exclusive")
    if tag is not None:
        return TagMatch(eq=tag)
    return None if tag_prefix is None else TagMatch(prefix=tag_prefix)


def nodes(node: str | Sequence[str]) -> Sequence[str]:
    """The nodes of a reader; a string is a single node."""
    return [node] if isinstance(node, str) else node


def config_message(config: TopicConfig | None) -> topic_pb2.TopicConfig | None:
    """A configuration as a message: None fields are left unset."""
    if config is None:
        return None
    given: dict[str, Any] = {each.name: getattr(config, each.name) for each in fields(config)}
    message: dict[str, Any] = {
        name: number_of(name, value) if name in CONFIG_ENUMS else value
        for name, value in given.items()
        if value is not None
    }
    return topic_pb2.TopicConfig(**message)


def append_request(
    topic: str,
    values: Iterable[object],
    *,
    encode: Encode,
    partition: int,
    idempotency_key: str | None,
    create: bool | None,
    config: TopicConfig | None,
    delay_ms: int,
    priority: int,
) -> topics.AppendRequest:
    """An append of `values`, each a NewRecord or a valid value of one.

    An idempotency key is generated if none is given, so that the write can be retried.
    """
    if idempotency_key is None:
        from uuid import uuid4

        idempotency_key = uuid4().hex
    records = [value if isinstance(value, NewRecord) else NewRecord(value) for value in values]
    encoded = [encode(record.value) for record in records]
    return topics.AppendRequest(
        topic=topic,
        columns=column_batch(
            [data for data, _ in encoded],
            [binary for _, binary in encoded],
            [record.tag for record in records],
            [record.node for record in records],
            [encode_meta(record.meta) for record in records],
        ),
        idempotency_key=idempotency_key,
        create=create,
        config=config_message(config),
        return_seqs=False,
        partition=partition,
        delay_ms=delay_ms,
        priority=priority,
    )


def bulk_request(
    topic: str,
    from_seq: int,
    *,
    end_seq: int | None,
    from_ts_ms: int | None,
    last: int | None,
    tag: str | None,
    tag_prefix: str | None,
    node: str | Sequence[str],
    partition: int,
    follow: bool = False,
    arrow: bool = False,
) -> topics.BulkDiffRequest:
    """A read of a whole range, in columns or in `arrow`."""
    return topics.BulkDiffRequest(
        topic=topic,
        from_seq=from_seq,
        from_ts_ms=from_ts_ms,
        last=last,
        end_seq=end_seq,
        follow=follow,
        node=nodes(node),
        include_tags=True,
        partition=partition,
        filter=tag_match(tag, tag_prefix),
        format=topics.BULK_FORMAT_ARROW if arrow else topics.BULK_FORMAT_COLUMNS,
        frame_bytes=_ARROW_BYTES if arrow else 0,
    )


def router_config(config: RouterConfig, *, create_dest: bool, backfill: bool) -> router_pb2.RouterConfig:
    """A router's configuration, with the options that apply only to its creation."""
    return router_pb2.RouterConfig(
        source=config.source,
        dest=config.dest,
        preserve_node=config.preserve_node,
        preserve_tag=config.preserve_tag,
        create_dest=create_dest,
        filter=tag_match(config.tag, config.tag_prefix),
        allow_cycle=config.allow_cycle,
        guarantee=number_of("guarantee", config.guarantee),  # type: ignore[arg-type]  # an enum is an int
        backfill=backfill,
    )


def sql_consume_request(
    topic: str, group: str, start: str | int, limit: int, partition: int, wait: float, claim_seconds: int | None
) -> SqlServiceConsumeRequest:
    """A read of messages for a group."""
    request = SqlServiceConsumeRequest(
        topic=topic, group_id=group, limit=limit, partition_id=partition, timeout_seconds=ceil(wait)
    )
    if isinstance(start, int):
        request.start_offset = start
    elif start in _ENDS:
        request.start_at = _ENDS[start]
    else:
        raise InvalidRequestError("invalid_request", f"start is earliest, latest or an offset, not {start!r}")
    if claim_seconds is not None:
        request.claim.visibility_seconds = claim_seconds
    return request


def finished(jobs: Sequence[Job]) -> queues.FinishedJobs | None:
    """Jobs to be acked by a claim."""
    return queues.FinishedJobs(**fence(jobs)) if jobs else None


def fence(jobs: Iterable[Job]) -> dict[str, list[Any]]:
    """The seqs of jobs and the lease ids that fence them."""
    jobs = list(jobs)
    return {"seqs": [job.seq for job in jobs], "lease_ids": [job.lease_id for job in jobs]}


def parse_topic_partition(name: str) -> tuple[str, int]:
    """(topic, partition) of `topic` or `topic@N`."""
    topic, at, number = name.rpartition("@")
    return (topic, int(number)) if at and number.isascii() and number.isdigit() else (name, 0)


def position_commits(positions: Mapping[str, int], metadata: str) -> list[PositionCommit]:
    """Position commits, by `topic` or `topic@N`."""
    return [
        PositionCommit(topic=topic, partition=partition, from_seq=seq, metadata=metadata)
        for (topic, partition), seq in ((parse_topic_partition(name), seq) for name, seq in positions.items())
    ]


def reset_request(
    group: str, to: str | int | None, to_ts_ms: int | None, names: Iterable[str]
) -> ResetPositionsRequest:
    """A reset of a group's positions to an end, a seq or a time."""
    request = ResetPositionsRequest(group=group)
    if (to is None) == (to_ts_ms is None):
        raise InvalidRequestError("invalid_request", "give either to or to_ts_ms")
    if to_ts_ms is not None:
        request.to_ts_ms = to_ts_ms
    elif isinstance(to, int):
        request.to_from_seq = to
    elif to in _ENDS:
        request.to_end = _ENDS[to]
    else:
        raise InvalidRequestError("invalid_request", f"a position is earliest, latest or a seq, not {to!r}")
    for name in names:
        topic, partition = parse_topic_partition(name)
        request.topics.add(topic=topic, partitions=() if topic == name else [partition])
    return request
