"""Workers: call a handler for each job of a queue, and manage its lease, ack and retries.

    def resize(job: Job) -> None:
        make_thumbnail(job.value["image"])

    client.worker("images", resize, concurrency=4).run()

When a handler returns, its job is acked. When it raises, the job is retried with a growing delay; once the queue's
`max_deliveries` are used up, it becomes a dead letter. `raise Release()` returns a job unprocessed, `raise
RetryLater(delay_ms)` sets the delay. Delivery is at least once: a job may be processed twice, so handlers must be
idempotent.
"""

import asyncio
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, Final, Protocol

from topics_client.codecs import Codec
from topics_client.connection import Connection
from topics_client.models import Job
from topics_client.worker.ack_sender import Backoff, Release, RetryLater
from topics_client.worker.core import Core, Wish
from topics_client.worker.executor import Executor, Handler, LoopExecutor, ThreadExecutor, decoding, is_async
from topics_client.worker.options import DEFAULT_BACKOFF, OnError, Options, WorkerStatistics, default_node
from topics_client.worker.signals import stop_on_loop_signals, stop_on_signals

__all__ = ["AsyncWorker", "Backoff", "Release", "RetryLater", "Worker", "WorkerStatistics"]

_CANCELLED_SECONDS: Final = 10.0


class HasBlocking(Protocol):
    """A Connection or an AsyncConnection."""

    def blocking(self) -> Connection:
        """The blocking connection: itself, or its counterpart."""
        ...


class _Worker:
    """Common part of the blocking and the asyncio worker."""

    def __init__(
        self,
        connection: HasBlocking,
        queue: str,
        handler: Handler,
        *,
        node: str | None = None,
        concurrency: int = 8,
        prefetch: int = 0,
        lease_ms: int | None = None,
        backoff: Backoff = DEFAULT_BACKOFF,
        drain_seconds: float = 30.0,
        until_empty: bool = False,
        on_error: OnError | None = None,
        install_signals: bool = True,
        codec: Codec[Any] | None = None,
    ) -> None:
        """Create a worker for one run.

        `handler` takes a Job; a plain function is called in threads, an async one on an event loop. Up to `concurrency`
        (at most 1000) jobs run at a time. `prefetch` more are leased ahead: this helps with short jobs, but long ones
        would wait here instead of running on another worker. `node` is the worker's name on the server, by default
        derived from host and process id.

        Leases last `lease_ms` (100 ms to 24 h; by default the queue's) and are extended while the job runs: with a
        short lease, another worker receives the job sooner if this process hangs or its machine fails. `backoff` is the
        retry delay of failed jobs. With `until_empty` the run ends when the queue has nothing ready, and nothing
        waiting for a retry if deliveries are limited (`max_deliveries` and `dead_letter`); remaining jobs are logged.
        `on_error(job, error)` is called instead of logging, in the thread or loop of the handler. With a `codec`, it
        decodes the values of jobs; a job that can't be decoded fails with DecodeError. Raises ValueError.
        """
        if not callable(handler):
            raise TypeError(f"a handler is a function of a job, not {handler!r}")
        self.queue = queue
        self._server = str(connection.blocking().address)
        self._handler = handler if codec is None else decoding(handler, codec)
        self._install_signals = install_signals
        self._options = Options(
            node=node or default_node(),
            concurrency=concurrency,
            prefetch=prefetch,
            lease_ms=lease_ms,
            backoff=backoff,
            drain_seconds=drain_seconds,
            until_empty=until_empty,
            on_error=on_error,
        )
        self._core = Core(connection.blocking(), queue, self._options)
        self._begins = Lock()

    def __repr__(self) -> str:
        done = self.statistics()
        return (
            f"<{type(self).__name__} of {self.queue} at {self._server} as {self.node}: "
            f"{done.running} jobs running, {done.acked} acked, {done.retried} retried>"
        )

    @property
    def node(self) -> str:
        """The name of the worker on the server."""
        return self._options.node

    def stop(self) -> None:
        """Stop accepting jobs, let running handlers finish for up to `drain_seconds`, and end `run`. Does not block.

        Callable from any thread and from handlers. If called before `run`, `run` ends at once.
        """
        self._core.wish(Wish.STOP)

    def lost(self, job: Job) -> bool:
        """Return True if the lease of a running job is lost: another worker may have the job, and the handler's result
        is ignored. Long handlers should check this from time to time and return early. Cheap."""
        return self._core.leases.lost(job)

    def statistics(self) -> WorkerStatistics:
        """Current statistics, also available while the worker runs."""
        return self._core.statistics()

    def _begin(self) -> None:
        if not self._begins.acquire(blocking=False):
            raise RuntimeError("a worker runs once: create another")

    def _executor(self, loop: asyncio.AbstractEventLoop | None) -> Executor:
        concurrency, leases, finished = self._options.concurrency, self._core.leases, self._core.finished
        if is_async(self._handler):
            return LoopExecutor(self._handler, concurrency, leases, finished, loop)
        return ThreadExecutor(self._handler, concurrency, leases, finished)


class Worker(_Worker):
    """A worker for programs with threads.

    Handlers run in daemon threads, async ones on one event loop in a dedicated thread. Acks, nacks and lease extensions
    are sent in batches by other threads, so a handler never waits for the server.
    """

    def run(self) -> None:
        """Run until `stop`, SIGTERM or SIGINT (in the main thread), or until the queue is empty with `until_empty`.

        At the end, no new jobs are accepted, running handlers have `drain_seconds`, after which their jobs are released
        and `lost` returns True for them, and all outcomes are sent. A thread can't be cancelled, so such a handler
        keeps running. A second signal ends the run at once, with KeyboardInterrupt or SystemExit. While the server is
        unavailable, the worker retries. Raises TopicsError if a retry can't help (missing topic, not a queue, wrong API
        key), and any exception of a handler that is not an Exception.
        """
        self._begin()
        with stop_on_signals(self.stop, install=self._install_signals):
            self._core.conduct(self._executor(None))


class AsyncWorker(_Worker):
    """A worker for programs with an event loop.

    Async handlers run on the loop that awaits `run`, plain ones in daemon threads. Everything else runs in other
    threads: a handler that blocks the loop does not lose its lease.
    """

    async def run(self) -> None:
        """See Worker.run. At the end, handlers that are not done after `drain_seconds` are cancelled.

        If it is cancelled itself, it cancels the handlers, releases their jobs, sends the other outcomes, and ends.
        """
        self._begin()
        loop, ended, errors = asyncio.get_running_loop(), asyncio.Event(), list[BaseException]()
        executor = self._executor(loop)

        def conduct() -> None:
            try:
                self._core.conduct(executor)
            except BaseException as error:
                errors.append(error)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        def end(error: BaseException) -> None:
            errors.append(error)
            self._core.wish(Wish.ABANDON)

        with stop_on_loop_signals(loop, self.stop, end, install=self._install_signals):
            Thread(target=conduct, name="topics-worker", daemon=True).start()
            try:
                await ended.wait()
            except asyncio.CancelledError:
                self._core.wish(Wish.HURRY)
                try:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_CANCELLED_SECONDS):
                            await ended.wait()
                finally:
                    self._core.wish(Wish.ABANDON)  # unless it has ended
                raise
        if errors:
            raise errors[0]
