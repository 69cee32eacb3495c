"""Reading a range of a topic as Arrow batches, over breaks of the connection."""

import os
import random
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from topics_client.address import Address
from topics_client.connection import DEFAULT_RETRY, Connection
from topics_client.errors import AuthError, InvalidRequestError, NotFoundError, TopicsError, UnavailableError
from topics_client.retry import Patience, Retry
from topics_proto.v1 import admin_service_pb2 as admin_pb
from topics_proto.v1 import record_pb2
from topics_proto.v1 import topics_service_pb2 as pb

_REASON_PREFIX: Final = "GAP_REASON_"
_SERVER_FRAME: Final = 256 << 10  # a frame takes the time of writers there
_READER_FRAME: Final = 1 << 20
_SERVER_SILENCE: Final = 60.0  # seconds without a frame until the read starts again
_READER_SILENCE: Final = 10.0  # then it continues at the server
_AVOID_SECONDS: Final = 30.0  # for which a node is left alone, and answers hold for other partitions
_MAX_NODES: Final = 32


@dataclass(frozen=True, slots=True)
class SeqRange:
    """Seqs `first` to `last`, both inclusive, of one partition in one life of a topic."""

    topic: str
    topic_id: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        where = f"partition {self.partition} of topic {self.topic}" if self.partition else f"topic {self.topic}"
        return f"{where}, seq {self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class Gap:
    """Seqs that retention removed before they were read: the server's tombstone."""

    topic: str
    partition: int
    gap_from: int
    gap_to: int
    reason: str  # docs/contract.md, 5.3
    missed_estimate: int  # upper estimate of the records lost


@dataclass(frozen=True, slots=True)
class Parts:
    """The records to fetch, and the parts of them."""

    nodes: tuple[str, ...] = ()  # own nodes of the reader, whose records are left out
    tag_eq: str | None = None
    tag_prefix: str | None = None
    tags: bool = True
    meta: bool = True
    data: bool = True
    frame_bytes: int = 0  # of data and meta in a batch; 0: the default of the server


ALL: Final = Parts()


class TopicResetError(TopicsError):
    """The head lies in front of the end of a range that was planned: the server was restored to an older state."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A way to the records of a partition."""

    connection: Connection
    frame_bytes: int
    silence: float


class Fetcher:
    """Reads ranges from one server, or from its bulk readers where it has some.

    In a cluster with several shards each range comes from a follower of its partition, or else straight from the owner.
    Of several, those in the zone are preferred that TOPICS_ZONE names in the environment of this process.
    """

    def __init__(self, address: Address, *, retry: Retry = DEFAULT_RETRY) -> None:
        """`retry` limits the time of retries without progress."""
        self._address = address
        self._retry = retry
        self._zone = os.environ.get("TOPICS_ZONE", "")
        self._server = _Source(Connection(address, retry=retry), _SERVER_FRAME, _SERVER_SILENCE)
        self._nodes: OrderedDict[tuple[str, int], Connection] = OrderedDict()  # those used last
        self._avoided: dict[tuple[str, int], float] = {}  # those that did not answer, and until when
        self._found: admin_pb.ListBulkReadersResponse | None = None  # where it is the same for all topics
        self._found_until = 0.0

    def read(self, wanted: SeqRange, parts: Parts = ALL) -> Iterator[pa.RecordBatch | Gap]:
        """The records of the range in order of seq, with each gap in front of what follows it.

        Batches have the columns of BULK_FORMAT_ARROW (proto/topics/v1/topics_service.proto): seq int64, ts
        timestamp[us, UTC], kind int8, node, and as asked for tag, meta, data. Deleted records are passed in silence.
        After a lost connection the read resumes after the last record; NotFoundError: the topic was deleted or
        recreated since the range was planned; TopicResetError, that the server has lost its end; UnavailableError, that
        the server did not answer for as long as `retry` allows.
        """
        cursor, source, patience = wanted.first - 1, self._source(wanted), Patience(self._retry)
        while cursor < wanted.last:
            try:
                for got in self._frames(source, wanted, parts, cursor):
                    if not isinstance(got, int):
                        yield got
                    elif got > cursor:
                        cursor = got
                        patience.renew()
            except TopicsError as error:
                if source is not self._server:  # another may know less than the server: ask that
                    self._drop(source, error)
                    source = self._server
                elif not (isinstance(error, UnavailableError) and patience.waited(error)):
                    raise _named(error, wanted, cursor) from error

    def _frames(
        self, source: _Source, wanted: SeqRange, parts: Parts, cursor: int
    ) -> Iterator[pa.RecordBatch | Gap | int]:
        """Yield the batches and gaps of one call, those of each frame followed by the cursor after it."""
        schema: pa.Schema | None = None
        done = False
        request = _request(source, wanted, parts, cursor)
        connection = source.connection
        with connection.stream(connection.topics.BulkDiff, request, silence=source.silence) as frames:
            for frame in frames:
                if frame.next_from_seq < cursor:  # it starts again for an unknown cursor
                    raise _topic_reset(frame.head_seq)
                if frame.HasField("tombstone"):
                    yield _gap(wanted, frame.tombstone)
                messages = pa.BufferReader(frame.arrow)
                if schema is None and frame.arrow:
                    schema = pa.ipc.read_schema(messages)
                while messages.tell() < messages.size():
                    yield pa.ipc.read_record_batch(pa.ipc.read_message(messages), schema)
                cursor, done = frame.next_from_seq, frame.done
                yield cursor
        if not done:
            raise UnavailableError("unavailable", "the stream ended early")
        if cursor < wanted.last:
            raise _topic_reset(cursor)

    # ------------------------------------------------------------ sources

    def _source(self, wanted: SeqRange) -> _Source:
        """A bulk reader of the partition, or its owner, or the server."""
        found = self._found
        if found is None or time.monotonic() > self._found_until:
            found = self._ask(wanted)
        is_usable = self._is_usable
        readers = [each for each in found.readers if is_usable(each)]
        owners = [found.owner] if found.HasField("owner") and is_usable(found.owner) else []
        near = [each for each in readers if each.zone == self._zone] if self._zone else []
        if not near and self._zone:
            near = [each for each in owners if each.zone == self._zone]
        chosen = near or readers or owners
        if not chosen:
            return self._server
        one = random.choice(chosen)
        is_owner = one is found.owner
        return _Source(self._node(one), _SERVER_FRAME if is_owner else _READER_FRAME, _READER_SILENCE)

    def _ask(self, wanted: SeqRange) -> admin_pb.ListBulkReadersResponse:
        """The bulk readers that the server names for a partition."""
        server = self._server.connection
        request = admin_pb.ListBulkReadersRequest(topic=wanted.topic, partition=wanted.partition)
        try:
            found = server.unary(server.admin.ListBulkReaders, request, repeatable=True)
        except InvalidRequestError:  # a server that knows no bulk readers
            found = admin_pb.ListBulkReadersResponse()
        self._found = None if found.HasField("owner") else found
        self._found_until = time.monotonic() + _AVOID_SECONDS
        return found

    def _where(self, reader: admin_pb.BulkReader) -> tuple[str, int]:
        return reader.host or self._address.host, reader.port

    def _is_usable(self, reader: admin_pb.BulkReader) -> bool:
        until = self._avoided.get(self._where(reader))
        return until is None or time.monotonic() > until

    def _node(self, reader: admin_pb.BulkReader) -> Connection:
        """The connection to a reader."""
        at = host, port = self._where(reader)
        if at not in self._nodes:
            where = self._address
            address = Address(host, port, where.key, where.tls, where.ca_file, where.cert_file)
            self._nodes[at] = Connection(address, retry=self._retry, follow_owners=False)
            if len(self._nodes) > _MAX_NODES:
                self._nodes.popitem(last=False)[1].close()
        self._nodes.move_to_end(at)
        return self._nodes[at]

    def _drop(self, source: _Source, error: TopicsError) -> None:
        """Stop using a node that does not answer."""
        if error.reason != "unavailable":
            return
        for at, connection in [*self._nodes.items()]:
            if connection is source.connection:
                self._avoided[at] = time.monotonic() + _AVOID_SECONDS
                self._nodes.pop(at).close()
        while len(self._avoided) > _MAX_NODES:
            del self._avoided[next(iter(self._avoided))]

    def close(self) -> None:
        """End all connections."""
        for each in (self._server.connection, *self._nodes.values()):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _request(source: _Source, wanted: SeqRange, parts: Parts, cursor: int) -> pb.BulkDiffRequest:
    request = pb.BulkDiffRequest(
        topic=wanted.topic,
        topic_id=wanted.topic_id,
        partition=wanted.partition,
        from_seq=cursor,
        end_seq=wanted.last,
        node=parts.nodes,
        include_tags=parts.tags,
        include_meta=parts.meta,
        include_data=parts.data,
        frame_bytes=parts.frame_bytes or source.frame_bytes,
        format=pb.BULK_FORMAT_ARROW,
    )
    if parts.tag_eq is not None:
        request.filter.eq = parts.tag_eq
    elif parts.tag_prefix is not None:
        request.filter.prefix = parts.tag_prefix
    return request


def _topic_reset(head: int) -> TopicResetError:
    return TopicResetError("out_of_range", f"the head is seq {head}: the server was restored to an older state")


def _gap(wanted: SeqRange, tombstone: record_pb2.Tombstone) -> Gap:
    reason = record_pb2.GapReason.Name(tombstone.reason).removeprefix(_REASON_PREFIX).lower()
    return Gap(wanted.topic, wanted.partition, tombstone.gap_from, tombstone.gap_to, reason, tombstone.missed_estimate)


def _named(error: TopicsError, wanted: SeqRange, cursor: int) -> TopicsError:
    """The error with the topic and range read."""
    text = f"{wanted}: {error.message} (read up to seq {cursor})"
    if isinstance(error, NotFoundError | AuthError):
        text = f"{wanted}: {error.message}"
    return type(error)(error.reason, text, error.detail, error.retry_after_ms)
