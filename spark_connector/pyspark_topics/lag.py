"""Lag of a streaming query, from its progress."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark_topics.stream_offsets import CheckpointError, Json, Positions, from_json


def lag(progress: Mapping[str, Any] | None) -> dict[str, int]:
    """Seqs not yet read by the query, by topic, after the batch of `query.lastProgress`.

    An upper bound of the records that wait, as deleted ones have had a seq too. Empty before the first batch, for a
    query that reads no topic, and on Spark 4.1, which does not report the heads.
    """
    found: dict[str, int] = {}
    for source in progress["sources"] if progress else ():
        end, latest = _offset(source["endOffset"]), _offset(source["latestOffset"])
        if latest:
            for topic, count in behind(end, latest).items():
                found[topic] = found.get(topic, 0) + count
    return found


def behind(end: Positions, latest: Positions) -> dict[str, int]:
    """Seqs between two offsets, by the topics of the second; all of a life that is not in the first."""
    found = {}
    for topic, head in latest.items():
        at = end.get(topic)
        done = at.seq if at is not None and at.topic_id == head.topic_id else {}
        found[topic] = sum(max(0, seq - done.get(partition, 0)) for partition, seq in head.seq.items())
    return found


def _offset(value: str | Json | None) -> Positions:
    """An offset of a progress, as text or as object; empty if it is none of ours."""
    try:
        read = json.loads(value) if isinstance(value, str) else value
        return from_json(read or {})
    except (CheckpointError, json.JSONDecodeError):
        return {}
