"""Execution of handlers, in threads or on an event loop."""

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final, Protocol

from topics_client.codecs import Codec, decoded_job
from topics_client.models import Job
from topics_client.worker.leases import Held, Leases

Handler = Callable[[Job], Any]
Finished = Callable[[Held, BaseException | None], None]
_CANCEL_SECONDS: Final = 1.0


def is_async(handler: Handler) -> bool:
    """Return True if calling the handler returns a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def decoding(handler: Handler, codec: Codec[Any]) -> Handler:
    """Wrap a handler so that a codec decodes the values of its jobs. A job that can't be decoded fails with
    DecodeError."""
    if is_async(handler):

        async def awaited(job: Job) -> Any:
            return await handler(decoded_job(job, codec))

        return awaited
    return lambda job: handler(decoded_job(job, codec))


class Executor(Protocol):
    """Calls a handler for jobs, up to `concurrency` at a time, and reports the end of each call."""

    def start(self, batch: list[Held]) -> None:
        """Call the handler for each of these jobs, in order, as capacity allows."""
        ...

    def close(self) -> None:
        """Stop. Running coroutines are cancelled and awaited for a second; threads can't be cancelled."""
        ...


class ThreadExecutor:
    """Calls a plain function in its own threads, one for each concurrent job.

    The threads are daemons: one that hangs does not keep the process alive.
    """

    def __init__(self, handler: Handler, concurrency: int, leases: Leases, finished: Finished) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._leases = leases
        self._finished = finished
        self._jobs: SimpleQueue[Held | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def start(self, batch: list[Held]) -> None:
        """See Executor."""
        for _ in range(min(self._leases.busy, self._concurrency) - len(self._threads)):
            thread = Thread(target=self._run, name=f"topics-job-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        for held in batch:
            self._jobs.put(held)

    def close(self) -> None:
        """See Executor."""
        for _ in self._threads:
            self._jobs.put(None)

    def _run(self) -> None:
        handler, begin, finished = self._handler, self._leases.begin, self._finished
        while (held := self._jobs.get()) is not None:
            if not begin(held):
                continue
            error: BaseException | None = None
            try:
                result = handler(held.job)
                if result is not None and inspect.isawaitable(result):
                    error = _unawaited(result)
            except BaseException as raised:
                error = raised
            finished(held, error)
            del held, error


def _unawaited(result: object) -> TypeError:
    if inspect.iscoroutine(result):
        result.close()
    return TypeError("the handler returned an awaitable: pass the async function itself to the worker")


class LoopExecutor:
    """Calls an async function on an event loop: the caller's, or its own in a thread."""

    def __init__(
        self,
        handler: Handler,
        concurrency: int,
        leases: Leases,
        finished: Finished,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._leases = leases
        self._finished = finished
        self._context = contextvars.copy_context()
        self._waiting: deque[Held] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        self._thread: Thread | None = None
        if loop is None:
            loop = asyncio.new_event_loop()
            self._thread = Thread(target=self._serve, args=(loop,), name="topics-jobs", daemon=True)
            self._thread.start()
        self._loop = loop

    def start(self, batch: list[Held]) -> None:
        """See Executor."""
        self._loop.call_soon_threadsafe(self._spawn, batch, context=self._context)

    def close(self) -> None:
        """See Executor."""
        quiet = Event()
        try:
            self._loop.call_soon_threadsafe(self._cancel, quiet)
        except RuntimeError:  # the loop is closed
            return
        quiet.wait(_CANCEL_SECONDS)
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CANCEL_SECONDS)

    # -------------------------------------------------------------- internals

    def _spawn(self, batch: list[Held]) -> None:
        self._waiting.extend(batch)
        while self._waiting and len(self._tasks) < self._concurrency:
            task = self._loop.create_task(self._handle(self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting:
            self._spawn([])

    async def _handle(self, held: Held) -> None:
        if not self._leases.begin(held):
            return
        error: BaseException | None = None
        try:
            await self._handler(held.job)
        except GeneratorExit:  # the loop is gone
            raise
        except BaseException as raised:
            error = raised
        self._finished(held, error)

    def _cancel(self, quiet: Event) -> None:
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._ending = self._loop.create_task(_ended(set(self._tasks), quiet))
        else:
            quiet.set()

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


async def _ended(tasks: set[asyncio.Task[None]], quiet: Event) -> None:
    await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
    quiet.set()
