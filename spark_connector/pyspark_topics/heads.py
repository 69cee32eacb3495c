"""Current heads of a stream's topics, cached briefly."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark_topics.inventory import PartitionInfo, TopicInfo, find_topic
from topics_client.connection import Connection
from topics_client.errors import InvalidRequestError, NotFoundError
from topics_proto.v1 import topics_service_pb2 as pb

FRESH: Final = 0.05
"""Seconds that an answer is kept: Spark asks about 65 times a second while nothing comes."""

_SHARE: Final = 10  # a slow answer is kept for this multiple of its duration ...
_MAX_FRESH: Final = 2.0  # ... up to this many seconds
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a topic, at the time of the answer."""

    topic_id: str
    partitions: Mapping[int, PartitionInfo]


Lives: TypeAlias = Mapping[str, Life]


class Heads:
    """Asks where the topics of these names, or those whose whole name matches the pattern, stand. One thread."""

    def __init__(self, connection: Connection, names: Sequence[str], pattern: str) -> None:
        self._connection = connection
        self._names = tuple(dict.fromkeys(names))
        try:
            self._matches = re.compile(pattern).fullmatch
        except re.error as error:
            raise InvalidRequestError("invalid_request", f"not a regular expression: {pattern!r}: {error}") from error
        self._prefix = literal_prefix(pattern)
        self._lives: Lives | None = None
        self._asked = 0.0
        self._fresh = FRESH

    @property
    def last(self) -> Lives | None:
        """The last answer, however old."""
        return self._lives

    def subscribed(self, topic: str) -> bool:
        """Return True if the topic is, or would be, among these."""
        return topic in self._names if self._names else self._matches(topic) is not None

    def wait(self) -> None:
        """Sleep until the last answer is too old to be given again."""
        time.sleep(max(0.0, self._asked + self._fresh - time.monotonic()))

    def look(self, *, anew: bool = False) -> Lives:
        """Every topic that exists. A recent answer is returned again, unless `anew`.

        Takes one GetTopic for each name, or one ListTopics for each thousand topics and one GetTopic for each topic of
        several partitions. Raises TopicsError; while the server is absent it tries as long as the connection does.
        """
        began = time.monotonic()
        if anew or self._lives is None or began - self._asked >= self._fresh:
            self._lives = dict(self._named() if self._names else self._listed())
            self._asked = time.monotonic()
            self._fresh = min(max(FRESH, _SHARE * (self._asked - began)), _MAX_FRESH)
        return self._lives

    def _named(self) -> Iterator[tuple[str, Life]]:
        for name in self._names:
            try:
                yield name, life(find_topic(self._connection, name))
            except NotFoundError:
                continue

    def _listed(self) -> Iterator[tuple[str, Life]]:
        cursor = ""
        while True:
            request = pb.ListTopicsRequest(prefix=self._prefix, page_size=_PAGE, cursor=cursor, touch=False)
            page = self._connection.unary(self._connection.topics.ListTopics, request, repeatable=True)
            for each in page.topics:
                if not self._matches(each.topic):
                    continue
                if each.partition_count <= 1:
                    only = PartitionInfo(0, each.head_seq, each.earliest_seq, each.count, each.bytes)
                    yield each.topic, Life(each.topic_id, {0: only})
                    continue
                try:
                    yield each.topic, life(find_topic(self._connection, each.topic))
                except NotFoundError:  # deleted since it was listed
                    continue
            cursor = page.next_cursor
            if not cursor:
                return


def life(info: TopicInfo) -> Life:
    """The same, by partition."""
    return Life(info.topic_id, {each.partition: each for each in info.partitions})


def literal_prefix(pattern: str) -> str:
    """A common prefix of all strings that match the regular expression, as far as it is easy to find."""
    if "|" in pattern:
        return ""
    plain = re.match(r"[A-Za-z0-9_:-]*", pattern)
    found = plain.group() if plain else ""
    return found[:-1] if pattern[len(found) : len(found) + 1] in ("?", "*", "{") and found else found
