"""Ordered appends to a topic, with progress and failures tracked by line."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from topics_client.units import counted

if TYPE_CHECKING:
    from topics_client.connection import Connection
    from topics_client.errors import TopicsError
    from topics_proto.v1.topics_service_pb2 import AppendRequest, AppendResponse

MAX_RECORDS: Final = 10_000  # that the server takes in a write
_AHEAD_BYTES: Final = 8 << 20  # read and not sent yet
_BATCH_BYTES: Final = 1 << 20
_RECORD_BYTES: Final = 32  # overhead of a record
_ABSENT_SECONDS: Final = 1.0  # how long a server is waited for that never answered
_GONE_SECONDS: Final = 60.0  # and one that did


@dataclass(slots=True)
class Batch:
    """Records for one partition as columns, all of one file; each has the number of its line there."""

    file: str
    partition: int = 0
    datas: list[bytes] = field(default_factory=list)
    binary: list[bool] = field(default_factory=list)
    tags: list[str | None] = field(default_factory=list)
    nodes: list[str | None] = field(default_factory=list)
    metas: list[bytes] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    size: int = 0
    lost_at: float | None = None  # when it was sent for the first time without an answer: may be stored since

    def add(
        self,
        data: bytes,
        line: int,
        *,
        binary: bool = False,
        tag: str | None = None,
        node: str | None = None,
        meta: bytes = b"",
    ) -> None:
        """One more record."""
        self.datas.append(data)
        self.binary.append(binary)
        self.tags.append(tag)
        self.nodes.append(node)
        self.metas.append(meta)
        self.lines.append(line)
        self.size += len(data) + len(meta) + _RECORD_BYTES

    def fill(self, datas: list[bytes], tags: list[str | None], first_line: int, *, meta: bytes) -> None:
        """Records of JSON on lines one after the other, where there are none yet."""
        count = len(datas)
        self.datas, self.tags, self.lines = datas, tags, list(range(first_line, first_line + count))
        self.binary, self.nodes, self.metas = [False] * count, [None] * count, [meta] * count
        self.size = self._weight()

    def _weight(self) -> int:
        return sum(map(len, self.datas)) + sum(map(len, self.metas)) + _RECORD_BYTES * len(self)

    def __len__(self) -> int:
        return len(self.datas)

    def part(self, start: int, stop: int) -> "Batch":
        """Some of its records."""
        part = Batch(
            self.file,
            self.partition,
            self.datas[start:stop],
            self.binary[start:stop],
            self.tags[start:stop],
            self.nodes[start:stop],
            self.metas[start:stop],
            self.lines[start:stop],
        )
        part.size = part._weight()
        return part

    def extend(self, other: "Batch") -> None:
        """The records of another behind its own."""
        self.datas += other.datas
        self.binary += other.binary
        self.tags += other.tags
        self.nodes += other.nodes
        self.metas += other.metas
        self.lines += other.lines
        self.size += other.size

    def continues(self, other: "Batch") -> bool:
        """Return True if the other batch can be merged into it."""
        return (self.file, self.partition) == (other.file, other.partition)


class StoppedError(Exception):
    """`batch` and everything after it was not appended; with `unknown`, the batch may have been."""

    def __init__(self, cause: "TopicsError", batch: Batch, *, unknown: bool) -> None:
        super().__init__(cause)
        self.cause = cause
        self.batch = batch
        self.unknown = unknown


@dataclass(frozen=True, slots=True)
class Options:
    """The options of all writes."""

    topic: str
    node: str | None = None
    key: str | None = None  # of the one write that there is then
    create: bool | None = None
    delay_ms: int = 0
    priority: int = 0
    batch_records: int = MAX_RECORDS
    skip_too_large: bool = False


class Sender:
    """Appends batches in order, in a background thread, one write at a time: lines that arrive during a write form the
    next batch.

    The SDK's producer continues after a rejected record, which suits independent records; a file must stop there, so
    that its position is known.

    Every write has an idempotency key, and is retried within the topic's window while the server is away. The first
    that fails is the last: nothing behind it is sent. A write that is refused for a record of it, or for want of room,
    is made in parts, so that all before that record is appended.
    """

    def __init__(
        self, connection: "Connection", options: Options, appended: Callable[[Batch, int], object] | None = None
    ) -> None:
        """`connection` makes each call once. `appended` is called with each write and the seq of its first record."""
        self.count = 0
        self.bytes = 0  # data and meta
        self.too_large: list[Batch] = []  # of one record each, that were passed over
        self.first_seq = self.last_seq = 0
        self.deduped = False
        self.last: tuple[str, int] | None = None  # file and line of the last record that was appended
        self._appended = appended
        self._connection = connection
        self._options = options
        self._changed = Condition()
        self._pending: deque[Batch] = deque()
        self._ahead = 0
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, name="append", daemon=True)
        self._thread.start()

    def put(self, batch: Batch) -> None:
        """Send `batch` after all earlier ones; waits while too much is ahead. Raises what stopped the sending."""
        with self._changed:
            self._changed.wait_for(lambda: self._ahead < _AHEAD_BYTES or self._failure)
            if self._failure:
                raise self._failure
            self._pending.append(batch)
            self._ahead += batch.size
            self._changed.notify_all()

    def finish(self, timeout: float | None = None) -> bool:
        """Wait until all that was put is appended. False if the time was up first. Raises what stopped the sending."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._failure:
            raise self._failure
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Stop sending."""
        with self._changed:
            self._closed = True
            self._pending.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while batch := self._next():
                self._send(batch)
                with self._changed:
                    self._ahead -= batch.size
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _next(self) -> Batch | None:
        """The next write: pending batches, merged up to its limits."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closed)
            if not self._pending:
                return None
            batch, maximum = self._pending.popleft(), self._options.batch_records
            if len(batch) > maximum:
                self._pending.appendleft(batch.part(maximum, len(batch)))
                return batch.part(0, maximum)
            while (
                self._pending
                and batch.continues(self._pending[0])
                and len(batch) + len(self._pending[0]) <= maximum
                and batch.size + self._pending[0].size <= _BATCH_BYTES
            ):
                batch.extend(self._pending.popleft())
            return batch

    def _send(self, batch: Batch) -> None:
        from topics_client import retry_window
        from topics_client.errors import InvalidRequestError, TopicsError

        try:
            reply = self._append(batch)
        except TopicsError as error:
            unknown = batch.lost_at is not None and not retry_window.proves_absence(error)
            refused = isinstance(error, InvalidRequestError) or error.reason == "topic_full"
            if len(batch) > 1 and self._options.key is None and refused and not unknown:
                middle = len(batch) // 2
                self._send(batch.part(0, middle))
                self._send(batch.part(middle, len(batch)))
            elif error.reason == "record_too_large" and self._options.skip_too_large and len(batch) == 1:
                self.too_large.append(batch)
            else:
                raise StoppedError(error, batch, unknown=unknown) from error
        else:
            self.first_seq = self.first_seq or reply.first_seq
            self.last_seq = reply.last_seq
            self.count += len(batch)
            self.bytes += batch.size - _RECORD_BYTES * len(batch)
            self.deduped |= reply.deduped and self._options.key is not None
            self.last = (batch.file, batch.lines[-1])
            if self._appended is not None:
                self._appended(batch, reply.first_seq)

    def _append(self, batch: Batch) -> "AppendResponse":
        """One write, retried while that is safe and the server may come back."""
        from topics_client import retry_window
        from topics_client.errors import InvalidRequestError, TopicsError, UnavailableError
        from topics_client.retry import Patience, Retry

        request, connection, timeout = self._request(batch), self._connection, self._connection.timeout
        patience = Patience(Retry(seconds=_GONE_SECONDS if self.count else _ABSENT_SECONDS))
        while True:
            sent_at = retry_window.now()
            try:
                if batch.lost_at is not None:
                    timeout = min(connection.timeout, retry_window.left(batch.lost_at, self._window()))
                reply = connection.unary(connection.topics.Append, request, repeatable=False, timeout=timeout)
                break
            except TopicsError as error:
                if batch.lost_at is None and retry_window.may_be_stored(error):
                    batch.lost_at = sent_at
                if not isinstance(error, UnavailableError) or not patience.waited(error):
                    raise
        if reply.count != len(batch):  # none is passed over in silence
            text = f"its key was used for a write of {counted(reply.count, 'record')}, and this one has {len(batch)}"
            raise StoppedError(InvalidRequestError("invalid_request", text), batch, unknown=self._options.key is None)
        return reply

    def _window(self) -> float:
        """The seconds for which the topic remembers a write's key."""
        from topics_client import retry_window
        from topics_client.errors import AuthError, NotFoundError

        question = retry_window.question(self._options.topic)
        try:
            answer = self._connection.unary(self._connection.topics.GetTopic, question, repeatable=False)
        except (AuthError, NotFoundError) as error:
            return retry_window.seconds(error)
        return retry_window.seconds(answer)

    def _request(self, batch: Batch) -> "AppendRequest":
        from topics_client.encoding import column_batch
        from topics_proto.v1.topics_service_pb2 import AppendRequest

        options = self._options
        return AppendRequest(
            topic=options.topic,
            columns=column_batch(batch.datas, batch.binary, batch.tags, batch.nodes, batch.metas),
            node=options.node,
            idempotency_key=uuid4().hex if options.key is None else options.key,
            create=options.create,
            return_seqs=False,
            partition=batch.partition,
            delay_ms=options.delay_ms,
            priority=options.priority,
        )
