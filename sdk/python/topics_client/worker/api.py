"""Workers: call a handler for each job of a queue, and see to its lease, its ack and its retries.

    def resize(job: Job) -> None:
        make_thumbnail(job.value["image"])

    client.worker("images", resize, concurrency=4).run()

A handler that returns has its job acked. One that raises has it tried again, later each time; when the queue's
`max_deliveries` are used up, the job goes to its dead letters. `raise Release()` gives a job back untried, `raise
RetryLater(delay_ms)` names the time. Delivery is at least once: a job may be done twice, so handlers are idempotent.
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
from topics_client.worker.signals import heeded, heeded_by_loop

__all__ = ["AsyncWorker", "Backoff", "Release", "RetryLater", "Worker", "WorkerStatistics"]

_CANCELLED_SECONDS: Final = 10.0


class HasBlocking(Protocol):
    """A Connection or an AsyncConnection."""

    def blocking(self) -> Connection:
        """What threads use: itself, or its twin."""
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
        """A worker for one run.

        `handler` takes a Job; a plain function is called in threads, an async one on an event loop. `concurrency` (up
        to 1000) jobs run at a time. `prefetch` more are leased ahead, which short jobs gain from, while long ones would
        wait here that others could do now. `node` is the name at the server, made of host and process id by default.

        A lease is `lease_ms` long (100 ms to 24 h; by default as the queue has it) and extended while the job runs: a
        short one only means that others have the job sooner when this process hangs or its machine dies. `backoff` is
        for jobs that fail. With `until_empty` the run ends when the queue has nothing ready, and nothing that waits for
        a retry if its deliveries are limited (`max_deliveries` and `dead_letter`); the log tells what is left.
        `on_error(job, error)` is called in place of a log line, where the handler ran. With a `codec` jobs come with
        their values as that reads them; one that can't be read fails with DecodeError. Raises ValueError.
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
        """What the worker is called at the server."""
        return self._options.node

    def stop(self) -> None:
        """Take no new jobs, let the handlers that run end, for up to `drain_seconds`, and end `run`. Does not wait.

        From any thread, and from handlers; before `run`, that one ends at once.
        """
        self._core.wish(Wish.STOP)

    def lost(self, job: Job) -> bool:
        """Whether the lease of a job whose handler runs is lost: somebody else may have the job already, and what its
        handler returns counts for nothing. Long handlers ask now and then, and end early. Costs nothing."""
        return self._core.leases.lost(job)

    def statistics(self) -> WorkerStatistics:
        """What was done so far; also while it runs."""
        return self._core.statistics()

    def _begin(self) -> None:
        if not self._begins.acquire(blocking=False):
            raise RuntimeError("a worker runs once: make another")

    def _executor(self, loop: asyncio.AbstractEventLoop | None) -> Executor:
        concurrency, leases, finished = self._options.concurrency, self._core.leases, self._core.finished
        if is_async(self._handler):
            return LoopExecutor(self._handler, concurrency, leases, finished, loop)
        return ThreadExecutor(self._handler, concurrency, leases, finished)


class Worker(_Worker):
    """A worker for programs with threads.

    Handlers run in daemon threads; async ones on one event loop in a thread of its own. Acks, nacks and extends of
    leases are sent by other threads, in few calls, so a handler never waits for the server.
    """

    def run(self) -> None:
        """Work until `stop`, SIGTERM or SIGINT (in the main thread), or the queue is empty if that was asked for.

        At the end no new jobs are taken, handlers that run have `drain_seconds`, after which their jobs are given back
        and `lost` says so, and every outcome is sent; a thread can't be ended, so such a handler goes on. A second
        signal ends at once, by KeyboardInterrupt or SystemExit. While the server is unavailable the worker goes on
        trying. Raises TopicsError for what trying can't help (no such topic, not a queue, a wrong key), and what a
        handler raised that is no Exception.
        """
        self._begin()
        with heeded(self.stop, install=self._install_signals):
            self._core.conduct(self._executor(None))


class AsyncWorker(_Worker):
    """A worker for programs with an event loop.

    Async handlers run on the loop that awaits `run`, plain ones in daemon threads. All else happens in threads: a
    handler that blocks the loop does not lose its lease.
    """

    async def run(self) -> None:
        """As Worker.run. At the end, handlers that are not done after `drain_seconds` are cancelled.

        When it is cancelled itself, it cancels the handlers, gives their jobs back, sends the other outcomes, and ends.
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

        with heeded_by_loop(loop, self.stop, end, install=self._install_signals):
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
