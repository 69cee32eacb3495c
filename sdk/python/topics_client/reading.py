"""How far a stream of records has come, and what to ask for to go on. No calls are made here."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, Protocol, TypedDict, TypeVar

from google.protobuf.message import Message

from topics_client.codecs import Codec, decoded_record, undecodable_record, why
from topics_client.decoding import gap_of, records_of_columns
from topics_client.models import DecodeError, Gap, GapError, Record, place_name
from topics_proto.v1.topics_service_pb2 import BulkDiffRequest, BulkDiffResponse

Request_co = TypeVar("Request_co", bound=Message, covariant=True)
Response_contra = TypeVar("Response_contra", bound=Message, contravariant=True)
Item = TypeVar("Item")


Undecodable = Literal["raise", "yield"] | Callable[[DecodeError], object]
"""What is to become of records that a codec can't read: DecodeError in their place, or records that raise it for their
`value`, or they are left out, and the function is called with the error."""


class ReadOptions(TypedDict, total=False):
    """The options of a read, for those who pass them on: see `read`."""

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
    """Items that came together."""

    def __repr__(self) -> str:
        shown = f"{self[0]!r}, … {len(self) - 2:,} more …, {self[-1]!r}" if len(self) > 2 else repr(list(self))[1:-1]
        return f"[{shown}]"


class Feed(Protocol[Request_co, Response_contra, Item]):
    """What a stream that resumes goes by.

    Answers are taken one after the other; each item of one is passed to `at` right before it is handed out, and the
    answer to `passed` after its last. Whenever the stream breaks, `request` asks for what was not handed out yet.
    """

    @property
    def done(self) -> bool:
        """Whether there is nothing more to come, ever."""

    def request(self) -> Request_co:
        """What to ask for."""

    def take(self, response: Response_contra) -> Iterable[Item]:
        """The items of an answer."""

    def at(self, item: Item) -> None:
        """Count `item` as handed out. Raises what stands for it if it is not to be handed out as an object."""

    def passed(self, response: Response_contra) -> None:
        """Count all of an answer as handed out."""

    def groups(self, response: Response_contra) -> Iterator[Sequence[Item]]:
        """The items of an answer, counted as handed out as `at` and `passed` would, each group right before it is."""


class Resuming:
    """What feeds share."""

    def groups(self: Feed[Any, Any, Any], response: Any) -> Iterator[Sequence[Any]]:
        """See Feed."""
        items = Batch(self.take(response))
        for item in items:
            self.at(item)
        self.passed(response)
        if items:
            yield items


def behind(gap: Gap) -> int:
    """The cursor to go on with behind a gap."""
    return max(gap.earliest_seq - 1, 0) if gap.reason == "recreated" else gap.last_seq


class Reading(Resuming):
    """A read of one partition, from a cursor to an end or for ever."""

    def __init__(self, request: BulkDiffRequest, *, raise_gaps: bool) -> None:
        """`request` says where it begins; the cursor is known from the first answer on if it begins at a time or at so
        many records before the head."""
        self._request: Final = request
        self._raise_gaps: Final = raise_gaps
        begins_elsewhere = request.HasField("from_ts_ms") or request.HasField("last")
        self.position: int | None = None if begins_elsewhere else request.from_seq
        self._head: int | None = None  # where it ends if nobody says where
        self._done = False

    def __str__(self) -> str:
        """Return which topic, and where in it."""
        request = self._request
        topic = place_name(request.topic, request.partition)
        if self.position is not None:
            return f"{topic} behind seq {self.position}"
        return (
            f"{topic} from time {request.from_ts_ms} on"
            if request.HasField("from_ts_ms")
            else f"the last {request.last} of {topic}"
        )

    @property
    def done(self) -> bool:
        """Whether the end is reached."""
        return self._done

    def request(self) -> BulkDiffRequest:
        """What lies behind the cursor. A call that goes on after another ends where that one was to end."""
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
        """The gap, if there is one, and the records behind it."""
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
        """Move the cursor behind `item`. Raises GapError if gaps are to be raised."""
        if isinstance(item, Record):
            self.position = item.seq
        elif isinstance(item, Gap):
            self.position = behind(item)
            if self._raise_gaps:
                raise GapError(item)

    def passed(self, response: BulkDiffResponse) -> None:
        """Move the cursor behind the answer, and what was filtered out of it."""
        self.position = response.next_from_seq
        self._done = response.done


class Decoding:
    """Another feed whose records come with their values as a codec reads them."""

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
        """The items, each decoded when its turn has come; a DecodeError in place of one that is to be raised for."""
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
        """See Feed. Raises a DecodeError that is one."""
        if isinstance(item, DecodeError):
            self._feed.at(item.record)
            raise item
        self._feed.at(item)

    def passed(self, response: Any) -> None:
        """See Feed."""
        self._feed.passed(response)

    def groups(self, response: Any) -> Iterator[Sequence[Any]]:
        """See Feed. What lies in front of a record that is raised for is a group of its own, so that none is lost."""
        group = Batch[Any]()
        for item in self.take(response):
            if isinstance(item, DecodeError) and group:
                yield group  # and what comes behind it is an error
            self.at(item)
            group.append(item)
        self.passed(response)
        if group:
            yield group
