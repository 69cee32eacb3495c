"""Stream of frames for one subscription: read on request, without a buffer for slow clients."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Protocol, Self

from topics_net import background
from topics_service.api.scheduling.dispatch import Dispatcher, Waiter
from topics_service.api.watch_journal import Journal
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason
from topics_service.engine.watch.frames import (
    ErrorFrame,
    Frame,
    HeartbeatFrame,
    Position,
    RecordsFrame,
    WatchFrame,
    WatchRequest,
)
from topics_service.statistics import WatchStatistics

_TURN: Final = 256  # budget of a turn: a record costs 1, and frames are read while some is left
_FRAME_COST: Final = 8
_SLOW_SECONDS: Final = 5.0  # without reading, after which a watcher counts as slow
_TIMER_SECONDS: Final = 0.001  # by which timers may fire early
_NO_TOPIC: Final = "*"

INSTANCE: Final = "#"
"""Suffix of a topic's name in the resume cursors of a session: its value is the instance that the cursor belongs to."""


class Watch(Protocol):
    """The logs that a stream follows: `engine.watch.core.Watch` for those of one engine."""

    @property
    def positions(self) -> dict[str, Position]:
        """The logs found at the start, in order of their names."""
        ...

    @property
    def cursors(self) -> dict[str, int]:
        """The cursors of all logs after the last frame."""
        ...

    @property
    def epochs(self) -> dict[str, int]:
        """The instances that the cursors belong to."""
        ...

    @property
    def heads(self) -> dict[str, int]:
        """The highest known visible seq of each topic in `cursors`."""
        ...

    @property
    def finished(self) -> bool:
        """True if nothing is left to follow or report, and nothing can come."""
        ...

    @property
    def lag(self) -> int:
        """The number of seqs between the cursors and the heads."""
        ...

    @property
    def upcoming(self) -> str | None:
        """The topic that `next` serves in the first round; None after that round, empty while it is not known yet."""
        ...

    def next(self) -> WatchFrame | ErrorFrame | None:
        """Return the next due frame, after moving `cursors`; None if there is none for now."""
        ...

    def share(self, cursors: dict[str, int], epochs: dict[str, int]) -> None:
        """Keep the cursors and epochs in these maps from now on, which watches of other topics keep theirs in too."""
        ...

    def drop(self, topic: str) -> bool:
        """Stop following a topic, or a pattern and the topics that only it brought in; False if it was not followed."""
        ...

    def close(self) -> None:
        """Stop following everything; `heads` keep their values. May be called twice."""
        ...


class SessionStream(Protocol):
    """The stream of a session, as protocols serve it: a WatchStream, or one of another process. Closed as a context."""

    request: WatchRequest

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Frame:
        """Wait for the next frame."""
        ...

    @property
    def positions(self) -> dict[str, Position]:
        """Positions of all topics when the stream was opened, in name order."""
        ...

    @property
    def cursors(self) -> dict[str, int]:
        """Cursors of all topics after the last frame."""
        ...

    @property
    def resume_cursors(self) -> dict[str, int]:
        """Cursors with which a client can resume."""
        ...

    @property
    def over(self) -> bool:
        """True after the last frame."""
        ...

    def resume_token(self) -> str:
        """Return a short token for `resume_cursors`."""
        ...

    async def ready(self) -> None:
        """Wait until `poll` may have a frame or the stream is over."""
        ...

    def poll(self, *, handed_over: bool = True) -> Frame | None:
        """Return the next frame, if one is available. Confirms that the previous frames were handed over."""
        ...


class WatchStream(Waiter):
    """Iterates over frames, heartbeats and errors of one stream, from `begin` until it is closed.

    Requesting a frame confirms that the previous one was handed to the transport, and moves the session's cursors. Ends
    after a terminal ErrorFrame, when no topic is left, and when it is closed. A cancelled wait loses nothing: iteration
    can continue. Only one task may iterate. `request` is the subscription; `watch` reads its logs. `held` is released
    when the stream is closed, as the context manager of a stream does.
    """

    __slots__ = (
        "_advice",
        "_beat",
        "_busy_since",
        "_clock",
        "_closed",
        "_dispatcher",
        "_end",
        "_given_at",
        "_heartbeat",
        "_journal",
        "_loop",
        "_marks",
        "_moved",
        "_over",
        "_remember",
        "_statistics",
        "_timer",
        "_turn",
        "_used_up",
        "_waiting",
        "_wanted",
        "held",
        "request",
        "watch",
    )

    def __init__(
        self,
        request: WatchRequest,
        dispatcher: Dispatcher,
        statistics: WatchStatistics,
        clock: Clock,
        moved: Callable[[Watch], None] = lambda _: None,
        marks: Callable[[Mapping[str, int]], dict[str, int]] | None = None,
        remember: Callable[[Journal | None, Mapping[str, int]], tuple[Journal, str]] | None = None,
    ) -> None:
        """`moved` is called when all frames were handed over.

        `marks` is the session's, if any, and `remember` stores the resume cursors of its streams.
        """
        super().__init__()
        self.request = request
        self.held = ExitStack()
        self._loop = asyncio.get_running_loop()
        self._dispatcher = dispatcher
        self._statistics = statistics
        self._clock = clock
        self._moved = moved
        self._marks = marks
        self._remember = remember
        self._journal: Journal | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._wanted = ""  # a topic with due records, for which no turn was requested yet
        self._turn = 0
        self._used_up = False
        self._advice: ErrorFrame | None = None
        self._end: ErrorFrame | None = None
        self._over = self._closed = False
        self._heartbeat = (request.heartbeat_ms or 0) / 1e3
        self._beat = False
        self._timer: asyncio.TimerHandle | None = None
        self._busy_since: float | None = None

    def begin(self, watch: Watch) -> None:
        """Follow with this watch, which calls `wake`."""
        self.watch = watch
        self._wanted = next(iter(watch.positions), _NO_TOPIC)
        self._given_at = self._loop.time()
        self._statistics.streams += 1

    @property
    def positions(self) -> dict[str, Position]:
        """Positions of all topics when the stream was opened, in name order."""
        return self.watch.positions

    @property
    def cursors(self) -> dict[str, int]:
        """Cursors of all topics after the last frame; deleted topics remain in it."""
        return self.watch.cursors

    @property
    def resume_cursors(self) -> dict[str, int]:
        """Cursors with which a client can resume: `cursors`, and the instances of topics that were recreated."""
        cursors = self.watch.cursors
        if self._marks is None:
            return cursors
        marks = self._marks(self.watch.epochs)
        return cursors | marks if marks else cursors

    def resume_token(self) -> str:
        """Return a short token for `resume_cursors`, valid while the session lives. Only for streams of a session."""
        assert self._remember is not None, "only streams of a session have tokens"
        self._journal, token = self._remember(self._journal, self.resume_cursors)
        return token

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame:
        """Wait for the next frame."""
        while True:
            frame = self.poll()
            if frame is not None:
                return frame
            if self._over:
                raise StopAsyncIteration
            await self.ready()

    async def ready(self) -> None:
        """Wait until `poll` may have a frame or the stream is over, without reading anything."""
        while not (self._turn > 0 or self._over or self._beat or self._end is not None or self._advice is not None):
            if self._wanted:
                self._ask()
            else:
                await self._wait()

    def poll(self, *, handed_over: bool = True) -> Frame | None:
        """Return the next frame, if one is available. Confirms that the previous frames were handed over.

        With `handed_over` False it does not confirm: the frame is sent together with the previous one.
        """
        if handed_over and self._busy_since is not None:
            self._settle(self._busy_since)
        frame = self._take()
        if frame is not None:
            self._busy_since = self._given_at = self._loop.time()
            self._beat = False
            self._statistics.frames += 1
        return frame

    @property
    def over(self) -> bool:
        """True after the last frame."""
        return self._over

    def drop(self, topic: str) -> bool:
        """Stop following a topic; returns False if it was not followed. Without topics the stream ends."""
        known = self.watch.drop(topic)
        if known:
            self._dispatcher.drop(topic, self)
            self._wanted = self._wanted or _NO_TOPIC  # to find out if that was the last one
            self._notify()
        return known

    def end(self, frame: ErrorFrame) -> None:
        """Make `frame`, a terminal one, the next and last."""
        if self._end is None:
            self._end = frame
            self._notify()

    def close(self) -> None:
        """Release everything at once, and end a wait for a frame. Idempotent."""
        if self._closed:
            return
        self._closed = self._over = True
        self.held.close()
        if self._busy_since is not None:
            self._count_slow(self._busy_since)
            self._busy_since = None
        self._statistics.streams -= 1
        self.watch.close()
        self._dispatcher.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._notify()

    def wake(self, topic: str) -> None:
        """Note that records of `topic` are due. A stream that does not wait checks on the next request for a frame."""
        if self._waiting is None or self._waiting.done():
            self._wanted = topic
        elif topic not in self.due:
            self._dispatcher.ask(topic, self)

    # ---------------------------------------------------------------- for the dispatcher

    def turn(self) -> None:
        """See Waiter."""
        self._turn = _TURN
        self._used_up = False
        self._notify()

    def pace(self, topic: str, retry_after_ms: int) -> None:
        """See Waiter."""
        self._statistics.paced += 1
        self._advice = ErrorFrame(
            reason=Reason.THROTTLED,
            code=429,
            message="the server is overloaded: records of low priority come less often",
            retry_after_ms=retry_after_ms,
            topics=(topic,),
            terminal=False,
        )
        self._notify()

    # ------------------------------------------------------------------------- internals

    def _take(self) -> Frame | None:
        """Take the frame that is due; None if there is none, or none before the stream's turn."""
        if self._over:
            return None
        if self._end is not None:
            self._over = True
            return self._end
        if self._advice is not None:
            advice, self._advice = self._advice, None
            return advice
        if self._turn <= 0 and self._wanted:
            self._ask()
        if self._turn > 0:
            frame = self._read()
            if frame is not None or self._over:
                return frame
        return HeartbeatFrame(ts=self._clock.now_ms()) if self._beat else None

    def _ask(self) -> None:
        topic, self._wanted = self._wanted, ""
        self._dispatcher.ask(topic, self, again=self._used_up)

    def _read(self) -> WatchFrame | ErrorFrame | None:
        self._wanted = ""  # if the watch wakes the stream while it reads, others get a turn first
        frame = self.watch.next()
        if frame is None:
            self._turn = 0
            self._used_up = bool(self._wanted)
            if self._busy_since is None:
                self._moved(self.watch)  # filtered records are not handed over
            self._over = self.watch.finished
            return None
        self._turn -= _FRAME_COST
        if isinstance(frame, RecordsFrame):
            for piece in frame.slices:
                self._turn -= piece.stop - piece.start
                self._statistics.records += piece.stop - piece.start
        if self._turn <= 0:
            self._wanted = _NO_TOPIC if isinstance(frame, ErrorFrame) else frame.topic_partition
            self._used_up = True
        return frame

    async def _wait(self) -> None:
        self._waiting = self._loop.create_future()
        if self._heartbeat and self._timer is None:
            self._set_timer()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _notify(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _settle(self, since: float) -> None:
        """Note that the frame returned at `since` was handed over."""
        self._count_slow(since)
        self._busy_since = None
        self._moved(self.watch)

    def _count_slow(self, since: float) -> None:
        if self._loop.time() - since > _SLOW_SECONDS:
            self._statistics.slow += 1

    def _set_timer(self) -> None:
        self._timer = background.call_at(self._given_at + self._heartbeat, self._time_is_up)

    def _time_is_up(self) -> None:
        """Send a heartbeat if due. The timer is not reset for each frame; it checks when the last one was sent."""
        self._timer = None
        if self._waiting is None:
            return  # busy; set again with the next wait
        if self._loop.time() < self._given_at + self._heartbeat - _TIMER_SECONDS:
            self._set_timer()
        else:
            self._beat = True
            self._notify()
