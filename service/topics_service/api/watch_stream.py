"""One subscription's frames as a door takes them: read when asked for, nothing kept for a client that is slow."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from topics_net import background
from topics_service.api.dispatch import Dispatcher, Waiter
from topics_service.api.watch_journal import Journal
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason
from topics_service.engine.watch.core import Watch
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

_TURN: Final = 256  # what a turn is worth: frames are read while some of it is left, and a record costs 1
_FRAME_COST: Final = 8
_SLOW_SECONDS: Final = 5.0  # a watcher is slow when it took nothing for so long
_TIMER_SECONDS: Final = 0.001  # timers may be so much early
_NO_TOPIC: Final = "*"

INSTANCE: Final = "#"
"""Behind a topic's name, in the place of a session's stream: the number of the instance that its cursor is of."""


class WatchStream(Waiter):
    """Iterates over frames, heartbeats and errors of the stream itself.

    Asking for a frame says that the one before was handed to the transport; that moves the session's cursors. Ends
    after a terminal ErrorFrame, when no topic is left, and when it is closed. Cancelling a wait for a frame loses
    nothing: the stream can go on. One task at a time iterates. `request` is what was asked for; `watch` reads for it.
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
        "request",
        "watch",
    )

    def __init__(
        self,
        request: WatchRequest,
        open_watch: Callable[[Callable[[str], None]], Watch],
        dispatcher: Dispatcher,
        statistics: WatchStatistics,
        clock: Clock,
        moved: Callable[[Watch], None] = lambda _: None,
        marks: Callable[[Mapping[str, int]], dict[str, int]] | None = None,
        remember: Callable[[Journal | None, Mapping[str, int]], tuple[Journal, str]] | None = None,
    ) -> None:
        """`open_watch(wake)` makes the watch; raises TopicsError. `moved` is told when all it gave is handed over.

        `marks` is that of the session, if there is one, and `remember` keeps the places of its streams.
        """
        super().__init__()
        self.request = request
        self._loop = asyncio.get_running_loop()
        self._dispatcher = dispatcher
        self._statistics = statistics
        self._clock = clock
        self._moved = moved
        self._marks = marks
        self._remember = remember
        self._journal: Journal | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._wanted = ""  # a topic with something due that no turn was asked for yet
        self._turn = 0
        self._used_up = False
        self._advice: ErrorFrame | None = None
        self._end: ErrorFrame | None = None
        self._over = self._closed = False
        self._heartbeat = (request.heartbeat_ms or 0) / 1e3
        self._beat = False
        self._timer: asyncio.TimerHandle | None = None
        self.watch = open_watch(self._wake)
        self._wanted = next(iter(self.watch.positions), _NO_TOPIC)
        self._given_at = self._loop.time()
        self._busy_since: float | None = None
        statistics.streams += 1

    @property
    def positions(self) -> dict[str, Position]:
        """Where every topic stood when the stream was opened, in name order."""
        return self.watch.positions

    @property
    def cursors(self) -> dict[str, int]:
        """Where every topic stands after the frame that was given last; topics that were deleted stay in it."""
        return self.watch.cursors

    @property
    def place(self) -> dict[str, int]:
        """The place that the client can come back with: `cursors`, and the instances of topics that were made again."""
        cursors = self.watch.cursors
        if self._marks is None:
            return cursors
        marks = self._marks(self.watch.epochs)
        return cursors | marks if marks else cursors

    def token(self) -> str:
        """A short name for `place`, which the session knows it by while it lives. Only for a session's stream."""
        assert self._remember is not None, "a session remembers places"
        self._journal, token = self._remember(self._journal, self.place)
        return token

    def __aiter__(self) -> "WatchStream":
        return self

    async def __anext__(self) -> Frame:
        """The next frame; waits for one."""
        while True:
            frame = self.poll()
            if frame is not None:
                return frame
            if self._over:
                raise StopAsyncIteration
            await self.ready()

    async def ready(self) -> None:
        """Return when it is worth asking: `poll` may have a frame, or the stream is over. Nothing is read meanwhile."""
        while not (self._turn > 0 or self._over or self._beat or self._end is not None or self._advice is not None):
            if self._wanted:
                self._ask()
            else:
                await self._wait()

    def poll(self, *, handed_over: bool = True) -> Frame | None:
        """The next frame, if there is one now. Like asking for it, this says that those before were handed over.

        With `handed_over` False it does not: the frame goes the same way as the one before it.
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
        """Whether there will be no more frames."""
        return self._over

    def drop(self, topic: str) -> bool:
        """Stop following a topic; False if it is not followed. Without topics the stream ends."""
        known = self.watch.drop(topic)
        if known:
            self._dispatcher.drop(topic, self)
            self._wanted = self._wanted or _NO_TOPIC  # to see whether that was the last one
            self._notify()
        return known

    def end(self, frame: ErrorFrame) -> None:
        """Let `frame`, a terminal one, be the next and last."""
        if self._end is None:
            self._end = frame
            self._notify()

    def close(self) -> None:
        """Let go of everything at once. Who waits for a frame is told that there is none; twice is fine."""
        if self._closed:
            return
        self._closed = self._over = True
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

    def _wake(self, topic: str) -> None:
        """Something is due. A stream that is not waiting for it will look when it is asked for the next frame."""
        if self._waiting is None or self._waiting.done():
            self._wanted = topic
        elif topic not in self.due:
            self._dispatcher.ask(topic, self)

    def _take(self) -> Frame | None:
        """The frame that is due; None if there is none, or none before the stream's turn."""
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
        self._wanted = ""  # the watch may wake the stream while it reads: then others get a turn first
        frame = self.watch.next()
        if frame is None:
            self._turn = 0
            self._used_up = bool(self._wanted)
            if self._busy_since is None:
                self._moved(self.watch)  # what was filtered out needs no handing over
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
        """The frame that was given at `since` has been handed over."""
        self._count_slow(since)
        self._busy_since = None
        self._moved(self.watch)

    def _count_slow(self, since: float) -> None:
        if self._loop.time() - since > _SLOW_SECONDS:
            self._statistics.slow += 1

    def _set_timer(self) -> None:
        self._timer = background.call_at(self._given_at + self._heartbeat, self._time_is_up)

    def _time_is_up(self) -> None:
        """One timer for a whole heartbeat: it looks whether a frame went out meanwhile instead of being set anew."""
        self._timer = None
        if self._waiting is None:
            return  # busy; set again with the next wait
        if self._loop.time() < self._given_at + self._heartbeat - _TIMER_SECONDS:
            self._set_timer()
        else:
            self._beat = True
            self._notify()
