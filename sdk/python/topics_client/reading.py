"""Position of a stream of records, and the request that resumes it. Makes no calls."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, Protocol, TypedDict, TypeVar

from google.protobuf.message import Message

from topics_client.codecs import Codec, decoded_record, undecodable_record, why
from topics_client.decoding import gap_of, records_of_columns
from topics_client.models import DecodeError, Gap, GapError, Record, topic_partition_name
from topics_proto.v1.topics_service_pb2 import BulkDiffRequest, BulkDiffResponse

Request_co = TypeVar("Request_co", bound=Message, covariant=True)
Response_contra = TypeVar("Response_contra", bound=Message, contravariant=True)
Item = TypeVar("Item")


Undecodable = Literal["raise", "yield"] | Callable[[DecodeError], object]
"""Handling of records that a codec can't decode: raise DecodeError, yield records whose `value` raises it, or leave
them out and call the function with the error."""


class ReadOptions(TypedDict, total=False):
    """The options of `read`, to annotate functions that pass them on."""

    end_seq: int | None
    from_ts_ms: int | None
    last: int | None
    follow: bool
    tag: str | None
    tag_prefix: str | None
    node: str | Sequence[str]
    partition: int
    undecodable: Undecodable


class Batch(list[Item]):
    """Items of one response."""

    def __repr__(self) -> str:
        shown = f"{self[0]!r}, … {len(self) - 2:,} more …, {self[-1]!r}" if len(self) > 2 else repr(list(self))[1:-1]
        return f"[{shown}]"


class Feed(Protocol[Request_co, Response_contra, Item]):
    """The state machine of a resumable stream.

    Responses go to `take` one after the other; each item is passed to `at` right before it is yielded, and the response
    to `passed` after its last item. When the stream breaks, `request` asks for the items not yielded yet.
    """

    @property
    def done(self) -> bool:
        """True if no more items will come."""

    def request(self) -> Request_co:
        """The request for the items not yielded yet."""

    def take(self, response: Response_contra) -> Iterable[Item]:
        """The items of a response."""

    def at(self, item: Item) -> None:
        """Count `item` as yielded. Raises its error if it is not to be yielded as an object."""

    def passed(self, response: Response_contra) -> None:
        """Count a whole response as yielded."""

    def groups(self, response: Response_contra) -> Iterator[Sequence[Item]]:
        """The items of a response in groups, each counted as yielded (by `at` and `passed`) right before it is."""


class Resuming:
    """Base class of feeds."""

    def groups(self: Feed[Any, Any, Any], response: Any) -> Iterator[Sequence[Any]]:
        """See Feed."""
        items = Batch(self.take(response))
        for item in items:
            self.at(item)
        self.passed(response)
        if items:
            yield items


def behind(gap: Gap) -> int:
    """The cursor after a gap."""
    return max(gap.earliest_seq - 1, 0) if gap.reason == "recreated" else gap.last_seq


class Reading(Resuming):
    """A read of one partition, from a cursor to an end or endless."""

    def __init__(self, request: BulkDiffRequest, *, raise_gaps: bool) -> None:
        """`request` defines the start. The cursor is unknown until the first response if the read starts at a time or
        at a number of records before the head."""
        self._request: Final = request
        self._raise_gaps: Final = raise_gaps
        begins_elsewhere = request.HasField("from_ts_ms") or request.HasField("last")
        self.position: int | None = None if begins_elsewhere else request.from_seq
        self._head: int | None = None  # the default end
        self._done = False

    def __str__(self) -> str:
        """Return the topic and the position in it."""
        request = self._request
        topic = topic_partition_name(request.topic, request.partition)
        if self.position is not None:
            return f"{topic} behind seq {self.position}"
        return (
            f"{topic} from time {request.from_ts_ms} on"
            if request.HasField("from_ts_ms")
            else f"the last {request.last} of {topic}"
        )

    @property
    def done(self) -> bool:
        """True once the end is reached."""
        return self._done

    def request(self) -> BulkDiffRequest:
        """The request for the records after the cursor. A resumed read ends where the first one was to end."""
        request = self._request
        if self.position is None:
            self._head = None
        else:
            request.ClearField("from_ts_ms")
            request.ClearField("last")
            request.from_seq = self.position
            if self._head is not None and not (request.follow or request.HasField("end_seq")):
                request.end_seq = self._head
        return request

    def take(self, response: BulkDiffResponse) -> Sequence[Record | Gap]:
        """The gap, if there is one, and the records after it."""
        self._began_at(response)
        topic, partition = self._request.topic, response.partition
        records = records_of_columns(topic, partition, response.records) if response.HasField("records") else []
        if response.HasField("tombstone"):
            return [gap_of(topic, partition, response.tombstone), *records]
        return records

    def _began_at(self, response: BulkDiffResponse) -> None:
        if self._head is None:
            self._head = response.head_seq

    def at(self, item: Record | Gap) -> None:
        """Move the cursor past `item`. Raises GapError if gaps are to be raised."""
        if isinstance(item, Record):
            self.position = item.seq
        elif isinstance(item, Gap):
            self.position = behind(item)
            if self._raise_gaps:
                raise GapError(item)

    def passed(self, response: BulkDiffResponse) -> None:
        """Move the cursor past the response, including filtered records."""
        self.position = response.next_from_seq
        self._done = response.done


class Decoding:
    """A feed wrapper that decodes the values of records with a codec."""

    def __init__(self, feed: Feed[Any, Any, Any], codec: Codec[Any], undecodable: Undecodable) -> None:
        self._feed: Final = feed
        self._codec: Final = codec
        self._undecodable: Final = undecodable

    @property
    def done(self) -> bool:
        """See Feed."""
        return self._feed.done

    def request(self) -> Any:
        """See Feed."""
        return self._feed.request()

    def take(self, response: Any) -> Iterator[Any]:
        """The items, each decoded when it is yielded; a DecodeError in place of a record to raise for."""
        decode = self._codec.decode
        for item in self._feed.take(response):
            if not isinstance(item, Record):
                yield item
                continue
            try:
                value = decode(item.data, item.binary)
            except Exception as error:
                wrong = DecodeError(item, why(error))
                wrong.__cause__ = error
                if callable(self._undecodable):
                    self._feed.at(item)
                    self._undecodable(wrong)
                else:
                    yield undecodable_record(item, wrong.why) if self._undecodable == "yield" else wrong
            else:
                yield decoded_record(item, value)

    def at(self, item: Any) -> None:
        """See Feed. Raises `item` if it is a DecodeError."""
        if isinstance(item, DecodeError):
            self._feed.at(item.record)
            raise item
        self._feed.at(item)

    def passed(self, response: Any) -> None:
        """See Feed."""
        self._feed.passed(response)

    def groups(self, response: Any) -> Iterator[Sequence[Any]]:
        """See Feed. The items before a record that raises form a separate group, so that none is lost."""
        group = Batch[Any]()
        for item in self.take(response):
            if isinstance(item, DecodeError) and group:
                yield group  # the next item raises
            self.at(item)
            group.append(item)
        self.passed(response)
        if group:
            yield group
