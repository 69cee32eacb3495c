"""The due topics of one reader, served in rounds by effective priority (docs/contract.md, 3.7)."""

from heapq import heapify, heappop, heappush

from topics_service.engine.log import Log
from topics_service.engine.topic import Topic
from topics_service.engine.watch.priority import effective

_TICK_MS = 50  # the order within a round is recomputed this often, as topics age

_Rank = tuple[float, str, int, "ScheduledLog"]


class ScheduledLog:
    """A log in the order. It is `due`, since `due_ts` (ms), as long as there may be something to serve."""

    __slots__ = ("due", "due_ts", "log", "served", "topic")

    def __init__(self, topic: Topic, log: Log, now: int) -> None:
        self.topic = topic
        self.log = log
        self.due = True
        self.due_ts = now
        self.served = 0  # the round in which it was served last


class TopicScheduler:
    """Serves every due topic once a round, so that none waits for more than one page of each other topic.

    Within a round the highest priority goes first, ties by name; only the first round is in name order. A topic that
    becomes due joins the round that is under way, unless it was served in it already. To take a topic out, set its
    `due` to False.
    """

    __slots__ = ("_arrived", "_later", "_ranked", "_ranked_at", "_round")

    def __init__(self, turns: list[ScheduledLog], now: int) -> None:
        self._round = 1
        self._ranked: list[_Rank] = sorted((-float("inf"), turn.topic.name, turn.log.log_id, turn) for turn in turns)
        self._ranked_at = now
        self._arrived: list[ScheduledLog] = []
        self._later: list[ScheduledLog] = []

    @property
    def first(self) -> ScheduledLog | None:
        """The topic whose turn comes next in the first round; None after that round, or if none is left in it."""
        while self._round == 1 and self._ranked:
            turn = self._ranked[0][-1]
            if turn.due:
                return turn
            heappop(self._ranked)
        return None

    def add(self, turn: ScheduledLog) -> None:
        """The topic has become due, or still is after it was served."""
        (self._later if turn.served == self._round else self._arrived).append(turn)

    def join(self, turn: ScheduledLog) -> None:
        """A new topic: its first turn is in the next round, so that many new ones can't hold up the others."""
        turn.served = self._round
        self._later.append(turn)

    def next(self, now: int) -> ScheduledLog | None:
        """The topic to serve now; None if none is due."""
        while True:
            self._rank(now)
            while self._ranked:
                turn = heappop(self._ranked)[-1]
                if turn.due:
                    turn.served = self._round
                    return turn
            if not self._later:
                return None
            self._round += 1
            if len(self._later) == 1 and self._later[0].due:
                turn = self._later.pop()
                turn.served = self._round
                return turn
            self._arrived, self._later = self._later, []

    def _rank(self, now: int) -> None:
        """Put new arrivals into the order; reorder all when the ranks have grown old."""
        if self._ranked and self._round > 1 and abs(now - self._ranked_at) >= _TICK_MS:
            self._arrived += [rank[-1] for rank in self._ranked]
            self._ranked = []
        if not self._arrived:
            return
        arrived = [_rank(turn, now) for turn in self._arrived if turn.due]
        self._arrived = []
        if self._ranked:
            for rank in arrived:
                heappush(self._ranked, rank)
        else:
            heapify(arrived)
            self._ranked, self._ranked_at = arrived, now


def _rank(turn: ScheduledLog, now: int) -> _Rank:
    topic = turn.topic
    return -effective(topic, now, turn.due_ts), topic.name, turn.log.log_id, turn
