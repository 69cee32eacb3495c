"""One text for both clients: `Blocking` lets the one for asyncio be called as the one for threads is."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar, cast

from grpc.aio import _call

from support.complaints import collect_complaints
from topics_client import AsyncTopicsClient, TopicsClient

T = TypeVar("T")
_SECONDS = 60.0


class Loop:
    """An event loop in a thread of its own, in asyncio's debug mode."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_debug(True)
        self._loop.slow_callback_duration = _SECONDS
        self.complaints = collect_complaints(self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_SECONDS)

    def call(self, work: Any) -> None:
        """Call something within the loop."""

        async def within() -> None:
            work()

        self.run(within())

    def close(self) -> None:
        """End it, when nothing is left running."""
        self.run(self._loop.shutdown_asyncgens())
        self.run(self.settled())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        left = asyncio.all_tasks(self._loop)
        self._loop.close()
        assert not left, f"tasks are left: {left}"
        assert not self.complaints, self.complaints

    async def settled(self) -> None:
        """Return once gRPC's own tasks, which begin a call and take in the status of one that is over, have ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                while own := [task for task in asyncio.all_tasks() if _is_of_grpc(task)]:
                    await asyncio.wait(own)  # one that begins a call leaves another, also if it is cancelled


def _is_of_grpc(task: asyncio.Task[Any]) -> bool:
    coroutine: Any = task.get_coro()
    code = getattr(coroutine, "cr_code", None)  # none in a compiled coroutine
    return coroutine.__qualname__.startswith("_AioCall.") or (code is not None and code.co_filename == _call.__file__)


class _Stream:
    """A stream of the asyncio client as the other one has it."""

    def __init__(self, loop: Loop, stream: Any) -> None:
        self._loop = loop
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        return _over(self._loop, aiter(self._stream))

    def batches(self) -> Iterator[Sequence[Any]]:
        return _over(self._loop, self._stream.batches())

    def close(self) -> None:
        self._loop.call(self._stream.close)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        self._loop.run(self._stream.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._stream.__aexit__(None, None, None))


class Blocking:
    """An AsyncTopicsClient behind the face of a TopicsClient."""

    def __init__(self, loop: Loop, *args: Any, **options: Any) -> None:
        self._loop = loop
        self._client = AsyncTopicsClient(*args, **options)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        def called(*args: Any, **options: Any) -> Any:
            given = found(*args, **options)
            if asyncio.iscoroutine(given):
                return self._loop.run(given)
            if hasattr(given, "batches"):
                return _Stream(self._loop, given)
            return _over(self._loop, given) if hasattr(given, "__anext__") else given

        return called

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._client.close())


class Clients:
    """Makes clients of one kind, `sync` or `async`, and closes them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._loop = Loop() if kind == "async" else None
        self._made: list[TopicsClient] = []

    def __call__(self, url: str, **options: Any) -> TopicsClient:
        if self._loop is None:
            client = TopicsClient(url, **options)
        else:
            client = cast(TopicsClient, Blocking(self._loop, url, **options))
        self._made.append(client)
        return client

    def close(self) -> None:
        """Close all."""
        for client in self._made:
            client.close()
        if self._loop is not None:
            self._loop.close()


def _over(loop: Loop, items: AsyncIterator[Any]) -> Iterator[Any]:
    """The items of an asynchronous iterator, which is closed when this one is."""
    end = object()

    async def following() -> Any:
        return await anext(items, end)

    try:
        while (item := loop.run(following())) is not end:
            yield item
    finally:
        closing = getattr(items, "aclose", None)
        if closing is not None and not loop.closed:
            loop.run(closing())
