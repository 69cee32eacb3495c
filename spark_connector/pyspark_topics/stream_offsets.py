"""The offset of a stream, as it stands in Spark's checkpoint.

    {"orders": {"id": "top_01…", "seq": {"0": 99, "1": 5}, "from": {"0": 49, "1": 0}}}

`seq` is the last seq dealt with in each partition of that life of the topic, `from` the seq behind which its reading
began. They give the start of a topic or partition that is new in an offset, and of the first batch, whose start Spark
does not write down.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]


class CheckpointError(ValueError):
    """An offset in a checkpoint that this connector did not write."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a stream in one life of a topic, by partition."""

    topic_id: str
    seq: Mapping[int, int]  # last seq dealt with
    begun: Mapping[int, int] = field(default_factory=dict)  # seq behind which the reading began


Positions: TypeAlias = Mapping[str, Position]


def to_json(positions: Positions) -> Json:
    """The offset for Spark, which compares offsets as texts: the same positions always give the same text."""
    found: Json = {}
    for topic in sorted(positions):
        at = positions[topic]
        found[topic] = {"id": at.topic_id, "seq": _numbers(at.seq)}
        if at.begun:
            found[topic]["from"] = _numbers(at.begun)
    return found


def from_json(offset: Json) -> dict[str, Position]:
    """The positions in an offset. Raises CheckpointError."""
    try:
        return {topic: _position(at) for topic, at in offset.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"not an offset of a stream of topics: {str(offset)[:500]}") from None


def _position(at: Json) -> Position:
    topic_id = at["id"]
    if not isinstance(topic_id, str):
        raise TypeError(topic_id)
    return Position(topic_id, _partitions(at["seq"]), _partitions(at.get("from", {})))


def _partitions(numbers: Mapping[str, int]) -> dict[int, int]:
    if not all(isinstance(seq, int) for seq in numbers.values()):
        raise TypeError(numbers)
    return {int(partition): seq for partition, seq in numbers.items()}


def _numbers(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): numbers[partition] for partition in sorted(numbers)}
