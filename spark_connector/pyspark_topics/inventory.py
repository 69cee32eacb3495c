"""Discovery of topics and the state of their partitions."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from topics_client.connection import Connection
from topics_client.errors import InvalidRequestError, NotFoundError
from topics_proto.v1 import topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb

_PAGE: Final = 1000
_DURABILITY_PREFIX: Final = "DURABILITY_"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The state of a partition when it was requested."""

    partition: int
    head_seq: int
    earliest_seq: int  # head_seq + 1 when there is no live record
    count: int  # live records
    bytes: int  # their data and meta


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One life of a topic."""

    topic: str
    topic_id: str
    partitions: tuple[PartitionInfo, ...]
    durability: str  # ephemeral, memory, disk, fsync
    idempotency_window_ms: int


def find_topic(connection: Connection, topic: str) -> TopicInfo:
    """The topic of this name. Raises NotFoundError, and the errors of any call."""
    reply = connection.unary(connection.topics.GetTopic, pb.GetTopicRequest(topic=topic, touch=False), repeatable=True)
    return _info(reply.state)


def find_topics(connection: Connection, names: Sequence[str] = (), pattern: str = "") -> list[TopicInfo]:
    """The topics of these names, in that order, or those whose whole name matches the regular expression, by name.

    A named topic that does not exist is a NotFoundError; a pattern may match none.
    """
    if names:
        return [find_topic(connection, name) for name in dict.fromkeys(names)]
    try:
        matches = re.compile(pattern).fullmatch
    except re.error as error:
        raise InvalidRequestError("invalid_request", f"not a regular expression: {pattern!r}: {error}") from error
    found = []
    for name in _names(connection):
        if matches(name):
            try:
                found.append(find_topic(connection, name))
            except NotFoundError:  # deleted since it was listed
                continue
    return found


def _names(connection: Connection) -> Iterator[str]:
    cursor = ""
    while True:
        request = pb.ListTopicsRequest(page_size=_PAGE, cursor=cursor, touch=False)
        page = connection.unary(connection.topics.ListTopics, request, repeatable=True)
        for each in page.topics:
            yield each.topic
        cursor = page.next_cursor
        if not cursor:
            return


def _info(state: topic_pb2.TopicState) -> TopicInfo:
    if state.partitions:
        partitions = tuple(
            PartitionInfo(each.partition, each.head_seq, each.earliest_seq, each.count, each.bytes)
            for each in state.partitions
        )
    else:
        partitions = (PartitionInfo(0, state.head_seq, state.earliest_seq, state.count, state.bytes),)
    durability = topic_pb2.Durability.Name(state.config.durability).removeprefix(_DURABILITY_PREFIX).lower()
    return TopicInfo(state.topic, state.topic_id, partitions, durability, state.config.idempotency_window_ms)
