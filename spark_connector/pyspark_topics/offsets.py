"""Start and end of a read: earliest, latest, after a seq, or at a time.

One number serves both ends, the last seq before the boundary: a read starts after its start, and includes its end.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from pyspark_topics.inventory import PartitionInfo, TopicInfo
from topics_client.connection import Connection
from topics_proto.v1 import topics_service_pb2 as pb

EARLIEST: Final = -2
LATEST: Final = -1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_MAX_INT64: Final = (1 << 63) - 1


class OffsetError(ValueError):
    """Offsets that do not fit the topics they are for."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The option for one end of the read, before it is resolved for topics."""

    option: str
    default: int | datetime  # EARLIEST, LATEST or a time; for all partitions not named
    by_topic: Mapping[str, int | Mapping[int, int]] = field(default_factory=dict)
    times: bool = False  # whether numbers of `by_topic` that are not negative are ms since the Unix epoch, not seqs


def boundary(option: str, value: str) -> Boundary:
    """Read the value of `(starting|ending)(Offsets|Timestamp|OffsetsByTimestamp)`. Raises ValueError.

    Offsets: `earliest`, `latest` or JSON `{"orders": {"0": 99, "1": -2}}`, with -2 for earliest and -1 for latest;
    `{"orders": 99}` is short for partition 0 of a topic with one partition. A timestamp: ms since the Unix epoch, or
    ISO 8601 (UTC where it names no zone). Offsets by timestamp: JSON of the same form with ms for seqs.
    """
    default = EARLIEST if option.lower().startswith("starting") else LATEST
    if option.lower().endswith("bytimestamp"):
        return Boundary(option, default, _by_topic(value), times=True)
    if option.lower().endswith("timestamp"):
        return Boundary(option, _time(value))
    word = value.strip().lower()
    if word in _WORDS:
        return Boundary(option, _WORDS[word])
    return Boundary(option, default, _by_topic(value))


def resolve(connection: Connection, topics: Sequence[TopicInfo], wanted: Boundary) -> dict[str, dict[int, int]]:
    """The last seq in front of the boundary, by topic and partition.

    A time stands in front of the first live record of that time or later. Raises OffsetError for a topic, a partition
    or a seq that is not there.
    """
    known = {info.topic for info in topics}
    if strangers := sorted(set(wanted.by_topic) - known):
        raise OffsetError(f"option {wanted.option} names topic {strangers[0]}, which is not read")
    return {info.topic: _resolve_topic(connection, info, wanted) for info in topics}


def _resolve_topic(connection: Connection, info: TopicInfo, wanted: Boundary) -> dict[int, int]:
    given = wanted.by_topic.get(info.topic, {})
    if isinstance(given, int):
        if given >= 0 and not wanted.times and len(info.partitions) > 1:
            count = len(info.partitions)
            raise OffsetError(
                f"option {wanted.option} has one seq for topic {info.topic}, which has {count} partitions"
            )
        given = {each.partition: given for each in info.partitions}
    present = {each.partition for each in info.partitions}
    if strangers := sorted(set(given) - present):
        raise OffsetError(
            f"option {wanted.option} names partition {strangers[0]} of topic {info.topic}, which has {len(present)}"
        )
    return {
        each.partition: _resolve_one(connection, info.topic, each, given.get(each.partition, wanted.default), wanted)
        for each in info.partitions
    }


def _resolve_one(
    connection: Connection, topic: str, at: PartitionInfo, position: int | datetime, wanted: Boundary
) -> int:
    if position == EARLIEST:
        return at.earliest_seq - 1
    if position == LATEST:
        return at.head_seq
    if isinstance(position, datetime):
        return locate(connection, topic, at.partition, ceil_ms(position)) - 1
    if wanted.times:
        return locate(connection, topic, at.partition, position) - 1
    if position > at.head_seq:
        raise OffsetError(
            f"option {wanted.option}: partition {at.partition} of topic {topic} has seqs up to {at.head_seq},"
            f" not {position} (another topic of that name, or an older state?)"
        )
    return position


def locate(connection: Connection, topic: str, partition: int, ts_ms: int) -> int:
    """The first live seq of a time or later; one more than the head if there is none."""
    request = pb.LocateTimeRequest(topic=topic, partition=partition, ts_ms=min(max(ts_ms, 0), _MAX_INT64))
    return connection.unary(connection.topics.LocateTime, request, repeatable=True).seq


def ceil_ms(time: datetime) -> int:
    """The first whole millisecond since the Unix epoch that is not before a time; UTC where it has no zone."""
    return -floor_ms(time, sign=-1)


def floor_ms(time: datetime, *, sign: int = 1) -> int:
    """The last whole millisecond since the Unix epoch that is not behind a time; UTC where it has no zone."""
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    past = aware - datetime.fromtimestamp(0, UTC)
    micros = (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds
    return sign * micros // 1000


def _time(value: str) -> datetime:
    """A time from ms since the epoch or from ISO 8601."""
    stripped = value.strip()
    try:
        if re.fullmatch(r"\d+", stripped):
            ms = int(stripped)
            return datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
        found = datetime.fromisoformat(stripped)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"not ms since the Unix epoch or ISO 8601: {value!r}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _by_topic(value: str) -> dict[str, int | Mapping[int, int]]:
    try:
        read = json.loads(value, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"not earliest, latest or JSON: {error} in {value[:200]!r}") from None
    if not isinstance(read, dict):
        raise ValueError(f"not a JSON object of topics: {value[:200]!r}")
    found: dict[str, int | Mapping[int, int]] = {}
    for topic, positions in read.items():
        if isinstance(positions, dict):
            found[topic] = {_partition(topic, key): _position(topic, each) for key, each in positions.items()}
        else:
            found[topic] = _position(topic, positions)
    return found


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    read = dict(pairs)
    if len(read) < len(pairs):
        raise ValueError("a name comes twice")
    return read


def _partition(topic: str, key: str) -> int:
    if not re.fullmatch(r"\d{1,9}", key):
        raise ValueError(f"topic {topic}: not the number of a partition: {key!r}")
    return int(key)


def _position(topic: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not EARLIEST <= value <= _MAX_INT64:
        raise ValueError(f"topic {topic}: not a number from 0, -1 (latest) or -2 (earliest): {value!r}")
    return value
