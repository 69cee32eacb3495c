"""Records: read, watch, delete."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Unpack, overload

from topics_client.aio.arrow import AsyncArrowStream
from topics_client.aio.base import AsyncBase
from topics_client.aio.streams import HEARTBEAT_SECONDS, AsyncReadStream, AsyncWatchStream
from topics_client.arrow import ArrowReading
from topics_client.codecs import Codec, codec_of
from topics_client.decoding import page_of
from topics_client.models import Deleted, Gap, Notice, Of, Page, Record
from topics_client.reading import Reading, ReadOptions, Undecodable
from topics_client.requests import bulk_request, nodes, tag_match
from topics_client.watching import Start, Watching, WatchOptions, subscribe
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.watch_service_pb2 import (
    WATCH_CONSISTENCY_EVENTUAL,
    WATCH_CONSISTENCY_STRONG,
    WatchRequest,
    WatchSubscription,
)


class AsyncRecords(AsyncBase):
    """Calls that read or remove the records of topics."""

    async def diff(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        limit: int = 0,
        wait_ms: int = 0,
        from_ts_ms: int | None = None,
        last: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
        node: str | Sequence[str] = (),
        partition: int = 0,
    ) -> Page:
        """Read one page of records after the cursor `from_seq`, from a time on, or the `last` records.

        `limit` is at most 1000 (0: 256). At the head, the call waits up to `wait_ms` (at most 30,000) for a record. The
        next page begins at `next_from_seq`.
        """
        request = pb.DiffRequest(
            topic=topic,
            from_seq=from_seq,
            limit=limit,
            node=nodes(node),
            include_tags=True,
            wait_ms=wait_ms,
            partition=partition,
            from_ts_ms=from_ts_ms,
            last=last,
            filter=tag_match(tag, tag_prefix),
        )
        timeout = self.connection.timeout + wait_ms / 1e3
        return page_of(await self.connection.unary(self.connection.topics.Diff, request, timeout=timeout))

    @overload
    def read(
        self, topic: str, from_seq: int = 0, *, gaps: Literal["raise"] = "raise", **options: Unpack[ReadOptions]
    ) -> AsyncReadStream[Record]: ...

    @overload
    def read(
        self, topic: str, from_seq: int = 0, *, gaps: Literal["yield"], **options: Unpack[ReadOptions]
    ) -> AsyncReadStream[Record | Gap]: ...

    @overload
    def read(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        of: type[Of],
        gaps: Literal["raise"] = "raise",
        **options: Unpack[ReadOptions],
    ) -> AsyncReadStream[Record[Of]]: ...

    @overload
    def read(
        self, topic: str, from_seq: int = 0, *, of: type[Of], gaps: Literal["yield"], **options: Unpack[ReadOptions]
    ) -> AsyncReadStream[Record[Of] | Gap]: ...

    @overload
    def read(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        codec: Codec[Of],
        gaps: Literal["raise"] = "raise",
        **options: Unpack[ReadOptions],
    ) -> AsyncReadStream[Record[Of]]: ...

    @overload
    def read(
        self, topic: str, from_seq: int = 0, *, codec: Codec[Of], gaps: Literal["yield"], **options: Unpack[ReadOptions]
    ) -> AsyncReadStream[Record[Of] | Gap]: ...

    def read(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        end_seq: int | None = None,
        from_ts_ms: int | None = None,
        last: int | None = None,
        follow: bool = False,
        tag: str | None = None,
        tag_prefix: str | None = None,
        node: str | Sequence[str] = (),
        partition: int = 0,
        gaps: Literal["raise", "yield"] = "raise",
        of: Any = None,
        codec: Codec[Any] | None = None,
        undecodable: Undecodable = "raise",
    ) -> AsyncReadStream[Any]:
        """Iterate over the records after a cursor (or from a time on, or the `last` ones), up to `end_seq`.

        Without `end_seq` the stream ends at the head as of its start, or never with `follow`. Records lost to retention
        raise GapError at their position; with `gaps="yield"` a Gap is yielded in their place. Records written by any of
        the `node`s are left out.

        Values are decoded as the type `of` or by `codec`. A record that can't be decoded raises DecodeError at its
        position. With `undecodable="yield"` it is yielded, and reading its `value` raises; with a function it is left
        out, and the function is called with the error.
        """
        request = bulk_request(
            topic,
            from_seq,
            end_seq=end_seq,
            from_ts_ms=from_ts_ms,
            last=last,
            follow=follow,
            tag=tag,
            tag_prefix=tag_prefix,
            node=node,
            partition=partition,
        )
        reading = Reading(request, raise_gaps=gaps == "raise")
        return AsyncReadStream(self.connection, reading, codec_of(of, codec, self.codec), undecodable)

    def read_arrow(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        end_seq: int | None = None,
        from_ts_ms: int | None = None,
        last: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
        node: str | Sequence[str] = (),
        partition: int = 0,
        gaps: Literal["raise", "report"] = "raise",
    ) -> AsyncArrowStream:
        """Read the same records as Arrow batches, without copying the bytes received: iterate over them, or get one
        table from `read_all`. Requires pyarrow.

        The columns are `seq` (int64), `ts` (timestamp[us, UTC]), `kind` (int8: 1 for JSON, 2 for bytes), `node`, `tag`,
        `meta` (texts, or null) and `data` (binary). Records lost to retention raise GapError at their position; with
        `gaps="report"` they are listed in the stream's `gaps`. Raises ModuleNotFoundError without pyarrow.
        """
        request = bulk_request(
            topic,
            from_seq,
            end_seq=end_seq,
            from_ts_ms=from_ts_ms,
            last=last,
            tag=tag,
            tag_prefix=tag_prefix,
            node=node,
            partition=partition,
            arrow=True,
        )
        return AsyncArrowStream(self.connection, ArrowReading(request, raise_gaps=gaps == "raise"))

    @overload
    def watch(
        self,
        topics: str | Iterable[str] | Mapping[str, Start],
        *,
        events: Literal[False] = False,
        **options: Unpack[WatchOptions],
    ) -> AsyncWatchStream[Record]: ...

    @overload
    def watch(
        self,
        topics: str | Iterable[str] | Mapping[str, Start],
        *,
        events: Literal[True],
        **options: Unpack[WatchOptions],
    ) -> AsyncWatchStream[Record | Notice]: ...

    @overload
    def watch(
        self,
        topics: str | Iterable[str] | Mapping[str, Start],
        *,
        of: type[Of],
        events: Literal[False] = False,
        **options: Unpack[WatchOptions],
    ) -> AsyncWatchStream[Record[Of]]: ...

    @overload
    def watch(
        self,
        topics: str | Iterable[str] | Mapping[str, Start],
        *,
        of: type[Of],
        events: Literal[True],
        **options: Unpack[WatchOptions],
    ) -> AsyncWatchStream[Record[Of] | Notice]: ...

    @overload
    def watch(
        self,
        topics: str | Iterable[str] | Mapping[str, Start],
        *,
        codec: Codec[Of],
        events: Literal[False] = False,
        **options: Unpack[WatchOptions],
    ) -> AsyncWatchStream[Record[Of]]: ...

    @overload
    def watch(
        self,
        topics: str | Iterable[str] | Mapping[str, Start],
        *,
        codec: Codec[Of],
        events: Literal[True],
        **options: Unpack[WatchOptions],
    ) -> AsyncWatchStream[Record[Of] | Notice]: ...

    def watch(
        self,
        topics: str | Iterable[str] | Mapping[str, Start],
        *,
        cursor: Mapping[str, int] | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
        node: str | Sequence[str] = (),
        strong: bool = False,
        lenient: bool = False,
        events: bool = False,
        of: Any = None,
        codec: Codec[Any] | None = None,
        undecodable: Undecodable = "raise",
    ) -> AsyncWatchStream[Any]:
        """Follow many topics in one endless stream.

        `topics` are names, each with a start: the seq to start after (0 by default) or "tail". A name that ends in `*`
        matches all topics with that prefix, including those created later; `topic@N` is a partition. `cursor`, from an
        earlier watch, takes precedence. With `strong`, records are delivered only once they are synced. With `lenient`,
        missing topics are left out.

        Lost records raise GapError, a deleted topic NotFoundError; iterate again to continue with the others. With
        `events=True`, Gap, TopicDeleted, CaughtUp and Advice objects are yielded instead. `of`, `codec` and
        `undecodable` are as in `read`.
        """
        subscription = WatchSubscription(
            node=nodes(node),
            limit=1000,
            heartbeat_ms=HEARTBEAT_SECONDS * 1000,
            include_tags=True,
            consistency=WATCH_CONSISTENCY_STRONG if strong else WATCH_CONSISTENCY_EVENTUAL,
            filter=tag_match(tag, tag_prefix),
        )
        subscribe(subscription, topics, cursor)
        request = WatchRequest(subscription=subscription, lenient=lenient)
        watching = Watching(request, events=events)
        return AsyncWatchStream(self.connection, watching, codec_of(of, codec, self.codec), undecodable)

    async def delete_records(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
        partition: int = 0,
    ) -> Deleted:
        """Delete records permanently, without tombstones: those below `before_seq`, those with a tag, or those that
        match both.

        Not retried unless `before_seq` is given: a retry might delete records written in between.
        """
        request = pb.DeleteRecordsRequest(
            topic=topic, before_seq=before_seq, match=tag_match(tag, tag_prefix), partition=partition
        )
        reply = await self.connection.unary(
            self.connection.topics.DeleteRecords, request, repeatable=before_seq is not None
        )
        return Deleted(
            deleted=reply.deleted,
            earliest_seq=reply.earliest_seq,
            head_seq=reply.head_seq,
            count=reply.count,
            bytes=reply.bytes,
        )

    async def locate_time(self, topic: str, ts_ms: int, *, partition: int = 0) -> int:
        """Return the first live seq at or after a time (milliseconds since the epoch), or the seq after the head if
        there is none yet."""
        request = pb.LocateTimeRequest(topic=topic, ts_ms=ts_ms, partition=partition)
        return (await self.connection.unary(self.connection.topics.LocateTime, request)).seq
