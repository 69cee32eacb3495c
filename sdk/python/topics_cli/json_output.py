"""Models as JSON objects, with the names that `/v0` has for their members."""

from typing import TYPE_CHECKING, Any

from topics_cli.config import FIELDS, value

if TYPE_CHECKING:
    from topics_client.models import (
        GroupPosition,
        RouterInfo,
        RouterSummary,
        TopicConfig,
        TopicInfo,
        TopicPut,
        TopicSummary,
    )


def config(found: "TopicConfig") -> dict[str, Any]:
    """A configuration in force."""
    members: dict[str, Any] = {}
    for name in FIELDS:
        if name == "durability":
            members["durable"] = found.durability == "fsync"
        members[name] = value(found, name)
    if not members["retain_until_acked_by"]:
        del members["retain_until_acked_by"]
    return members


def put(found: "TopicPut") -> dict[str, Any]:
    """The result of a put of a topic."""
    return {
        "topic": found.topic,
        "created": found.created,
        "config": config(found.config),
        "topic_id": found.topic_id,
        "epoch": found.epoch,
        "partition_count": found.partition_count,
        **_placement(found),
    }


def _placement(found: "TopicPut | TopicInfo") -> dict[str, str]:
    """The member that only topics of a placement group, or of a zone, have."""
    return {name: value for name in ("placement", "zone") if (value := getattr(found, name))}


def summary(found: "TopicSummary") -> dict[str, Any]:
    """A line of a listing of topics."""
    return {
        "topic": found.topic,
        "type": found.type,
        "head_seq": found.head_seq,
        "earliest_seq": found.earliest_seq,
        "count": found.count,
        "bytes": found.bytes,
        "durable": found.durable,
        "effective_priority": found.effective_priority,
        "topic_id": found.topic_id,
        "partition_count": found.partition_count,
    }


def state(found: "TopicInfo") -> dict[str, Any]:
    """All of a topic."""
    members: dict[str, Any] = {"topic": found.topic, "type": found.type, "partition": found.partition}
    if found.partitions:
        members["partitions"] = [
            {
                "partition": each.partition,
                "head_seq": each.head_seq,
                "earliest_seq": each.earliest_seq,
                "next_seq": each.next_seq,
                "count": each.count,
                "bytes": each.bytes,
                "last_write_ts": each.last_write_ts_ms,
            }
            for each in found.partitions
        ]
    members |= {
        "head_seq": found.head_seq,
        "earliest_seq": found.earliest_seq,
        "next_seq": found.next_seq,
        "count": found.count,
        "bytes": found.bytes,
        "config": config(found.config),
    }
    if found.queue is not None:
        members["queue"] = {
            "ready": found.queue.ready,
            "in_flight": found.queue.in_flight,
            "delayed": found.queue.delayed,
            "exhausted": found.queue.exhausted,
            "dead_lettered": found.queue.dead_lettered,
        }
    return members | {
        "effective_priority": found.effective_priority,
        "last_write_ts": found.last_write_ts_ms,
        "last_read_ts": found.last_read_ts_ms,
        "topic_id": found.topic_id,
        "slug": found.slug,
        "rrl": found.rrl,
        "epoch": found.epoch,
        "partition_count": found.partition_count,
        **_placement(found),
    }


def router(found: "RouterInfo") -> dict[str, Any]:
    """All of a router."""
    how = found.config
    rule: list[str] | None = None
    if how.tag is not None:
        rule = ["tag", "Eq", how.tag]
    elif how.tag_prefix is not None:
        rule = ["tag", "Glob", f"{how.tag_prefix}*"]
    return {
        "router": found.router,
        "source": how.source,
        "dest": how.dest,
        "preserve_node": how.preserve_node,
        "preserve_tag": how.preserve_tag,
        "filter": rule,
        "allow_cycle": how.allow_cycle,
        "guarantee": how.guarantee,
        "forwarded_total": found.forwarded_total,
        "lag_records": found.lag_records,
        "last_error": found.last_error,
    }


def router_summary(found: "RouterSummary") -> dict[str, Any]:
    """A line of a listing of routers."""
    return {
        "router": found.router,
        "source": found.source,
        "dest": found.dest,
        "guarantee": found.guarantee,
        "forwarded_total": found.forwarded_total,
        "lag_records": found.lag_records,
    }


def position(found: "GroupPosition") -> dict[str, Any]:
    """The position of a group in a partition."""
    return {
        "topic": found.topic,
        "partition": found.partition,
        "from_seq": found.from_seq,
        "head_seq": found.head_seq,
        "lag": found.lag,
    }
