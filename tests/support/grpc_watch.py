"""A client of Watch and OpenWatch: reads frames with a deadline and keeps the cursor map as stream.proto says."""

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from topics_proto.v1 import stream_pb2
from topics_proto.v1 import watch_service_pb2 as pb

SECONDS = 10.0


def subscription(*topics: str, from_seq: int = 0, tail: bool = False, **fields: Any) -> pb.WatchSubscription:
    """All topics from the same place."""
    start = pb.WatchTopic(from_seq=from_seq, tail=tail)
    return pb.WatchSubscription(topics=dict.fromkeys(topics, start), **fields)


class Follower:
    """One open stream. `cursor` is the merged map, `seen` the seqs of all records by topic."""

    def __init__(self, call: Any, cursor: Mapping[str, int] | None = None) -> None:
        self._call = call
        self.cursor = dict(cursor or {})
        self.seen: dict[str, list[int]] = {}
        self.last_cursor: dict[str, int] = {}

    async def next(self, seconds: float = SECONDS) -> stream_pb2.Frame:
        """The next frame; EOFError at the end of the stream."""
        async with asyncio.timeout(seconds):
            response = await self._call.read()
        if response is grpc.aio.EOF:
            raise EOFError
        frame = response.frame
        assert isinstance(frame, stream_pb2.Frame)
        if frame.WhichOneof("kind") == "topic_deleted":
            gone = frame.topic_deleted
            self.cursor.pop(f"{gone.topic}@{gone.partition}" if gone.partition else gone.topic, None)
        self.last_cursor = dict(frame.cursor)
        self.cursor |= self.last_cursor
        if frame.WhichOneof("kind") == "records":
            batch = frame.records
            found = [record.seq for record in batch.records]
            assert found == sorted(found)
            assert batch.from_seq < found[0] <= found[-1] <= batch.to_seq <= batch.head_seq
            self.seen.setdefault(batch.topic, []).extend(found)
        return frame

    async def kind(self, seconds: float = SECONDS) -> str | None:
        """The content of the next frame."""
        return (await self.next(seconds)).WhichOneof("kind")

    async def until(self, kind: str, topic: str | None = None) -> stream_pb2.Frame:
        """Read up to a frame of this kind (and topic) and return it."""
        while True:
            frame = await self.next()
            if frame.WhichOneof("kind") == kind and topic in (None, getattr(getattr(frame, kind), "topic", None)):
                return frame

    async def until_seen(self, topic: str, seq: int) -> None:
        """Read until this record has come."""
        while self.seen.get(topic, [0])[-1] < seq:
            await self.next()

    async def status(self) -> tuple[str, str]:
        """How the stream ended: the gRPC code, and the reason in its details. Reads what is left."""
        try:
            while True:
                await self.next()
        except EOFError:
            return "OK", ""
        except grpc.aio.AioRpcError as error:
            status = await rpc_status.aio.from_call(self._call)
            info = error_details_pb2.ErrorInfo()
            if status is not None:
                assert status.details[0].Unpack(info)
            return error.code().name, info.reason

    def cancel(self) -> None:
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
