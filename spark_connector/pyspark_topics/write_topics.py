"""The topics that a task writes to: made where that is allowed, and checked before the first append."""

import time
from contextlib import suppress
from typing import Final

from pyspark_topics.inventory import TopicInfo, find_topic
from pyspark_topics.write_columns import Target
from pyspark_topics.write_options import WriteOptions
from topics_client.connection import Connection
from topics_client.errors import ConflictError, NotFoundError, TopicsError
from topics_client.units import shown_ms
from topics_proto.v1 import topics_service_pb2 as pb

_MARGIN: Final = 2  # required ratio of a window to the time for which one append is retried


class ShortWindowError(ConflictError):
    """The topic forgets idempotency keys too soon for a repeat of this write to be recognized."""


class Topics:
    """Looks each topic up once."""

    def __init__(self, connection: Connection, options: WriteOptions, *, any_time: bool, begun: float | None) -> None:
        """`any_time`: the same write may come again after an outage, so keys have to last. `begun`: when the first
        attempt of this task may have begun, in seconds since the epoch, if this is a later one."""
        self._connection = connection
        self._options = options
        self._any_time = any_time
        self._begun = begun
        self._known: dict[str, TopicInfo] = {}

    def ready(self, target: Target, seconds: float = 0.0) -> TopicInfo:
        """The topic, which exists, has the partition, and remembers keys for long enough. `seconds`: age of an earlier
        attempt at the same records. Raises TopicsError.
        """
        info = self._known.get(target.topic)
        if info is None:
            try:
                info = self._known[target.topic] = self._find(target.topic)
            except TopicsError as error:
                if target.topic in error.message:
                    raise
                text = f"topic {target.topic}: {error.message}"
                raise type(error)(error.reason, text, error.detail, error.retry_after_ms) from error
        if target.partition >= len(info.partitions):
            raise NotFoundError(
                "partition_not_found", f"{target}: the topic has {len(info.partitions)}, numbered from 0"
            )
        past = "this retries an append whose answer was lost"
        if self._begun is not None and (since := time.time() - self._begun) > seconds:
            seconds, past = since, "this task retries one that may have begun that long ago"
        if seconds * 1e3 > info.idempotency_window_ms:
            raise ShortWindowError(
                "window_passed",
                f"{target}: the topic remembers idempotency keys for {shown_ms(info.idempotency_window_ms)} only, and "
                f"{seconds:.0f} s have passed ({past}): a retry could append "
                f"records twice. {_ADVICE}",
            )
        return info

    def _find(self, topic: str) -> TopicInfo:
        options = self._options
        try:
            info = find_topic(self._connection, topic)
        except NotFoundError as error:
            if not options.create:
                raise NotFoundError(error.reason, f"{error.message} (and option create is false)") from error
            wanted = pb.PutTopicRequest(topic=topic, config=options.config(), partition_count=options.partitions)
            with suppress(ConflictError):  # it is there by now, with more partitions
                self._put(wanted)
            info = find_topic(self._connection, topic)
        minimum = _MARGIN * options.retry_seconds * 1000
        if self._any_time or options.window_ms is not None:
            minimum = max(minimum, options.min_window_ms)
        if options.raise_window:
            minimum = max(minimum, options.new_window_ms)
        if info.idempotency_window_ms >= minimum:
            return info
        if options.raise_window:
            return self._raised(topic, minimum)
        raise ShortWindowError(
            "window_too_short",
            f"topic {topic} remembers idempotency keys for {shown_ms(info.idempotency_window_ms)}, and this write "
            f"needs {shown_ms(minimum)}: a repeat that comes later would be appended twice. {_ADVICE}, or accept a "
            "shorter one (options idempotencyWindow and retrySeconds)",
        )

    def _raised(self, topic: str, window_ms: int) -> TopicInfo:
        asked = pb.GetTopicRequest(topic=topic, touch=False)
        state = self._connection.unary(self._connection.topics.GetTopic, asked, repeatable=True).state
        state.config.idempotency_window_ms = window_ms
        self._put(pb.PutTopicRequest(topic=topic, config=state.config))
        return find_topic(self._connection, topic)

    def _put(self, request: pb.PutTopicRequest) -> None:
        self._connection.unary(self._connection.topics.PutTopic, request, repeatable=True)


_ADVICE: Final = (
    "Raise idempotency_window_ms of the topic (option raiseWindow=true does it, with a key that has scope admin)"
)
