"""The thread of a producer: sends due batches, handles responses, and settles deliveries."""

import logging
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Final

import grpc

from topics_client import retry_window
from topics_client.connection import Connection
from topics_client.encoding import column_batch
from topics_client.errors import TopicsError
from topics_client.producer.batch import Batch, Parts
from topics_client.producer.batching import Batches
from topics_client.producer.delivery import Receipt, enter_delivering_thread
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.record_pb2 import ColumnBatch

_UNSEEN: Final = 100  # unreported failures kept for `flush`
_LOG_SECONDS: Final = 10.0  # between log lines about the same problem
_LOG: Final = logging.getLogger("topics_client.producer")

_PLAIN: Final = Parts(False, None, None, b"", 0)

_Then = Callable[[], None]


class Sender:
    """Sends batches until it is asked to finish.

    `lock` guards `batches` and the members marked so. Calls are started under it too: otherwise a busy appending thread
    would keep the GIL for 5 ms at a time, several times per call.
    """

    def __init__(self, connection: Connection, batches: Batches) -> None:
        self.lock = Lock()
        self.batches = batches
        self.unseen: list[tuple[Receipt, TopicsError]] = []  # unreported failures; under the lock
        self._connection = connection
        self._arrived: SimpleQueue[_Then | None] = SimpleQueue()  # None only wakes
        self.ended = False
        self._looked: list[tuple[Batch, float]] = []  # to be sent now, with the seconds left
        self._waiting_for_room: dict[_Then, None] = {}
        self._waiting_for_end: dict[_Then, int] = {}
        self._wakes_at: float | None = None
        self._finishing = False
        self._failure_log = self._trouble_log = 0.0  # when the next line may be logged
        self._unlogged = 0
        self.thread = Thread(target=self._run, name="topics-producer", daemon=True)
        self.thread.start()

    def wake(self) -> None:
        """Make the thread check `batches` again."""
        self._arrived.put(None)

    def when_room(self, then: _Then) -> None:
        """Call `then` once when the buffer has room, or the thread has ended. Under the lock."""
        if self.ended or not self.batches.full:
            then()
        else:
            self._waiting_for_room[then] = None
            self.batches.hurry()
            self.wake()

    def when_settled(self, number: int, then: _Then) -> None:
        """Call `then` once when all batches up to `number` have their outcomes and their callbacks have run, or the
        thread has ended. Under the lock."""
        if self.ended:
            then()
        else:
            self._waiting_for_end[then] = number
            self.wake()

    def forget(self, then: _Then) -> None:
        """Unregister `then`. Under the lock."""
        self._waiting_for_room.pop(then, None)
        self._waiting_for_end.pop(then, None)

    def finish(self, error: TopicsError) -> None:
        """End the thread, and fail the records without an outcome. Returns when the thread has ended."""
        with self.lock:
            self._finishing = True
            if not self.ended:
                self.batches.fail_all(error)
        self.wake()
        self.thread.join()

    def abandon(self, why: str) -> Lock:
        """Reset the state in the child of a fork, which has no such thread, and where the lock may be held forever.
        Returns a new lock."""
        self.lock = Lock()
        self.ended = True
        self.unseen = []
        self.batches.close(why)
        self.batches.abandon(TopicsError("forked", why))
        return self.lock

    # ------------------------------------------------------------- in the thread

    def _run(self) -> None:
        enter_delivering_thread()
        try:
            while not self._turn():
                pass
        except Exception as error:  # a bug: release all waiting callers
            _LOG.exception("the producer's thread failed")
            with self.lock:
                self.batches.close(f"its thread failed: {error!r}")
                self.batches.fail_all(TopicsError("internal", f"the producer's thread failed: {error!r}"))
                callbacks = self.batches.take_callbacks()
            self._run_callbacks(callbacks)
        finally:
            with self.lock:
                self.ended = True
                waiting = [*self._waiting_for_room, *self._waiting_for_end]
            for then in waiting:
                then()

    def _turn(self) -> bool:
        """Wait for work, and do it. Returns True if the thread is to end."""
        arrived = self._wait()
        with self.lock:
            for then in arrived:
                if then is not None and not self._finishing:
                    then()
            self.batches.stirred = False
            for batch, left in self._looked:
                self._append(batch, left)
            self._looked.clear()
            for batch in self.batches.take():
                self._send(batch)
            self._wakes_at = self.batches.wakes_at()
            callbacks = self.batches.take_callbacks()
            ready = [] if callbacks else self._ready()
        self._run_callbacks(callbacks)
        if callbacks:
            with self.lock:
                ready = self._ready()
        for then in ready:
            then()
        return self._finishing

    def _run_callbacks(self, callbacks: list[_Then]) -> None:
        """Run the callbacks of outcomes, and process the remaining failures."""
        for then in callbacks:
            try:
                then()
            except BaseException:  # including sys.exit(), which has no effect here
                _LOG.exception("a delivery callback failed")
        if self.batches.failures:
            self._look_at_failures()
        if (trouble := self.batches.trouble) is not None and time.monotonic() >= self._trouble_log:
            _LOG.warning("%s; retrying", trouble)
            self._trouble_log = time.monotonic() + _LOG_SECONDS

    def _wait(self) -> list[_Then | None]:
        timeout = None if self._wakes_at is None else max(0.0, self._wakes_at - time.monotonic())
        arrived = list[_Then | None]()
        try:
            arrived.append(self._arrived.get(timeout=timeout))
            while True:
                arrived.append(self._arrived.get_nowait())
        except Empty:
            return arrived

    def _ready(self) -> list[_Then]:
        """Return and unregister the waiters whose condition is met. Under the lock."""
        batches = self.batches
        ready = [then for then, number in self._waiting_for_end.items() if batches.settled(number)]
        if self._waiting_for_room and not batches.full:
            ready += self._waiting_for_room
        for then in ready:
            self.forget(then)
        return ready

    def _look_at_failures(self) -> None:
        """Keep the unreported failures, and log one from time to time."""
        with self.lock:
            failures = [each for each in self.batches.failures if not each[0].seen]
            self.batches.failures.clear()
            self.unseen = [*(each for each in self.unseen if not each[0].seen), *failures][:_UNSEEN]
        if not failures:
            return
        self._unlogged += len(failures)
        if (now := time.monotonic()) >= self._failure_log:
            others = f" (failed batches: {self._unlogged})" if self._unlogged > 1 else ""
            _LOG.warning("%s%s", failures[0][1], others)
            self._failure_log, self._unlogged = now + _LOG_SECONDS, 0

    # -------------------------------------------------------------------- calls

    def _send(self, batch: Batch) -> None:
        if not batch.data:  # a KeyboardInterrupt came before its first record was added
            self._arrived.put(partial(self.batches.stored, batch, 0))
        elif batch.lost_at is None:
            self._append(batch)
        else:
            look = retry_window.question(batch.topic_partition[0])
            self._start(batch, self._connection.topics.GetTopic, look, partial(self._topic_came, batch, batch.lost_at))

    def _append(self, batch: Batch, left: float | None = None) -> None:
        topic, partition = batch.topic_partition
        request = pb.AppendRequest(topic=topic, partition=partition, idempotency_key=batch.key, return_seqs=False)
        request.columns.data.extend(batch.data)
        if batch.parts:
            request.columns.MergeFrom(_other_columns(batch))
        self._start(
            batch, self._connection.topics.Append, request, partial(self._append_came, batch, retry_window.now()), left
        )

    def _start(
        self, batch: Batch, method: Any, request: Any, then: Callable[[Any], None], left: float | None = None
    ) -> None:
        """Start a call; `then` receives its future, in this thread."""
        timeout = self._connection.timeout if left is None else min(left, self._connection.timeout)
        try:
            future = self._connection.start(method, request, timeout=timeout)
        except Exception as error:
            reason = "closed" if isinstance(error, ValueError) else "internal"  # gRPC's error for a closed channel
            failure = TopicsError(reason, f"{self._connection.address}: the call could not be started: {error}")
            self._arrived.put(partial(self.batches.failed, batch, failure))
            return
        future.add_done_callback(lambda done: self._arrived.put(partial(then, done)))

    def _append_came(self, batch: Batch, sent_at: float, future: Any) -> None:
        answer = self._answer(future)
        if isinstance(answer, TopicsError):
            self.batches.failed(batch, answer, sent_at if retry_window.may_be_stored(answer) else None)
        elif answer.count != len(batch):
            text = f"the server acknowledged {answer.count} records instead of {len(batch)}"
            self.batches.failed(batch, TopicsError("internal", text), sent_at)
        else:
            self.batches.stored(batch, answer.first_seq)

    def _topic_came(self, batch: Batch, lost_at: float, future: Any) -> None:
        """Send the batch again if its key is still remembered."""
        try:
            left = retry_window.left(lost_at, retry_window.seconds(self._answer(future)))
        except TopicsError as error:
            self.batches.failed(batch, error)
        else:
            self._looked.append((batch, left))

    def _answer(self, future: Any) -> Any:
        """The result of a call, or TopicsError as a value."""
        try:
            return future.result()
        except grpc.RpcError as error:
            return self._connection.failure(error)
        except grpc.FutureCancelledError:
            return TopicsError("cancelled", f"{self._connection.address}: the connection was closed")


def _other_columns(batch: Batch) -> ColumnBatch:
    """All columns except the data."""
    rows = map(batch.parts.get, range(len(batch)), repeat(_PLAIN))
    binary, tags, nodes, metas, _ = zip(*rows, strict=True)
    return column_batch((), binary, tags, nodes, metas)
