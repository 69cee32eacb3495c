"""Position of a watch in each topic, and the request that resumes it. Makes no calls."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypedDict

from topics_client.decoding import gap_of, records_of_rows
from topics_client.errors import InvalidRequestError, NotFoundError, code_of, error_of
from topics_client.models import Advice, CaughtUp, Event, Gap, GapError, Record, TopicDeleted, topic_partition_name
from topics_client.reading import Resuming, Undecodable, behind
from topics_client.requests import parse_topic_partition
from topics_proto.v1.errors_pb2 import ERROR_REASON_THROTTLED
from topics_proto.v1.stream_pb2 import Frame, StreamError, Subscribed
from topics_proto.v1.watch_service_pb2 import WatchRequest, WatchResponse, WatchSubscription

Start = int | Literal["tail"]


class WatchOptions(TypedDict, total=False):
    """The options of `watch`, to annotate functions that pass them on."""

    cursor: Mapping[str, int] | None
    tag: str | None
    tag_prefix: str | None
    node: str | Sequence[str]
    strong: bool
    lenient: bool
    undecodable: Undecodable


_SHOWN: Final = 5


def subscribe(
    subscription: WatchSubscription,
    topics: str | Iterable[str] | Mapping[str, Start],
    cursor: Mapping[str, int] | None = None,
) -> None:
    """Fill in the watched topics, each with its start, and the cursor, which takes precedence. Raises
    InvalidRequestError."""
    if isinstance(topics, str):
        topics = [topics]
    starts = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 0)
    if not starts:
        raise InvalidRequestError("invalid_request", "a watch takes at least one topic")
    for name, start in starts.items():
        topic = subscription.topics[topic_partition_name(*parse_topic_partition(name))]
        if start == "tail":
            topic.tail = True
        elif isinstance(start, int) and start >= 0:
            topic.from_seq = start
        else:
            raise InvalidRequestError(
                "invalid_request", f"a watch of {name} begins at a seq or at 'tail', not {start!r}"
            )
    for name, seq in (cursor or {}).items():
        subscription.cursor[topic_partition_name(*parse_topic_partition(name))] = seq


class Watching(Resuming):
    """A watch of many topics.

    `cursor` holds the last seq yielded of each topic; yielded records count as processed. Another watch with this
    cursor resumes exactly there. A topic reported as deleted is no longer followed, unless it is created again and
    matches a prefix.
    """

    def __init__(self, request: WatchRequest, *, events: bool) -> None:
        """Without `events` only records are yielded, and other important events are raised as errors."""
        self._request: Final = request
        self._events: Final = events
        self._topic_partition = ""  # of the current frame
        self._began = False  # whether a stream was open
        self.cursor: dict[str, int] = dict(request.subscription.cursor)

    def __str__(self) -> str:
        """Return the topics and the positions in them."""
        topics = self._request.subscription.topics
        return f"{_some(sorted(topics))}, cursor {{{_some([f'{n!r}: {seq}' for n, seq in self.cursor.items()])}}}"

    @property
    def done(self) -> bool:
        """True if no topic is left to follow."""
        return not self._request.subscription.topics

    def request(self) -> WatchRequest:
        """The request for the records after the cursor. A topic deleted while no stream was open does not fail the
        others: it is reported like one deleted during a stream."""
        if self._began:
            self._request.lenient = True
        self._request.subscription.cursor.clear()
        self._request.subscription.cursor.update(self.cursor)
        return self._request

    def take(self, response: WatchResponse) -> Sequence[Event]:
        """The items of a frame, usually no or many records."""
        frame = response.frame
        kind = frame.WhichOneof("kind")
        if kind == "records":
            batch = frame.records
            self._topic_partition = topic_partition_name(batch.topic, batch.partition)
            return records_of_rows(batch.topic, batch.partition, batch.records)
        if kind == "tombstone":
            lost = frame.tombstone
            return [gap_of(lost.topic, lost.partition, lost.tombstone)]
        if kind == "topic_deleted":
            gone = frame.topic_deleted
            return [TopicDeleted(gone.topic, gone.partition, gone.head_seq)]
        if kind == "error":
            return [] if frame.error.terminal else [_advice(frame.error)]
        if kind == "caught_up" and self._events:
            drained = frame.caught_up
            return [CaughtUp(drained.topic, drained.partition, drained.head_seq)]
        if kind == "subscribed" and self._began:
            return [
                TopicDeleted(*parse_topic_partition(name), self.cursor[name])
                for name in self._missing(frame.subscribed)
            ]
        return []

    def at(self, item: Event) -> None:
        """Move the cursor past an item. Unless events are yielded, raises GapError, NotFoundError for a deleted topic,
        and the error of a topic that is no longer followed."""
        if isinstance(item, Record):
            self.cursor[self._topic_partition] = item.seq
        elif isinstance(item, Gap):
            self.cursor[topic_partition_name(item.topic, item.partition)] = behind(item)
            if not self._events:
                raise GapError(item)
        elif isinstance(item, TopicDeleted):
            self._departed(topic_partition_name(item.topic, item.partition))
            if not self._events:
                raise NotFoundError("topic_not_found", f"{item.topic} was deleted", {"topic": item.topic})
        elif isinstance(item, Advice) and not self._events and not _paces(item):
            raise error_of(item.reason, item.message, {"topics": ",".join(item.topics)}, item.retry_after_ms)

    def passed(self, response: WatchResponse) -> None:
        """Apply the cursor of a frame."""
        frame: Frame = response.frame
        self.cursor.update(frame.cursor)
        kind = frame.WhichOneof("kind")
        if kind == "topic_deleted":
            self.cursor.pop(topic_partition_name(frame.topic_deleted.topic, frame.topic_deleted.partition), None)
        elif kind == "subscribed":
            self._subscribed(frame.subscribed)

    def _subscribed(self, subscribed: Subscribed) -> None:
        """From now on the cursor defines where each topic resumes. A topic that matches a prefix and is created while
        no stream is open is read from its first record, as during a stream, wherever the prefix started. Topics that
        were left out stay out."""
        self._began = True
        for name in self._missing(subscribed):
            del self.cursor[name]
        topics = self._request.subscription.topics
        for name in list(topics):
            if name.endswith("*"):
                topics[name].Clear()
            elif name not in subscribed.topics:
                del topics[name]

    def _missing(self, subscribed: Subscribed) -> list[str]:
        """The topics in the cursor that should be followed but are missing."""
        topics = self._request.subscription.topics
        prefixes = tuple(name.removesuffix("*") for name in topics if name.endswith("*"))
        there = subscribed.topics
        return sorted(
            name for name in self.cursor if name not in there and (name in topics or name.startswith(prefixes))
        )

    def _departed(self, name: str) -> None:
        self.cursor.pop(name, None)
        self._request.subscription.topics.pop(name, None)


def _advice(error: StreamError) -> Advice:
    retry = error.retry_after_ms if error.HasField("retry_after_ms") else None
    return Advice(code_of(error.reason), error.message, tuple(error.topics), retry)


def _paces(advice: Advice) -> bool:
    return advice.reason == code_of(ERROR_REASON_THROTTLED) and advice.retry_after_ms is not None


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_SHOWN]) + (f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
