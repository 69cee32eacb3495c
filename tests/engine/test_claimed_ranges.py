"""Claimed ranges against a model of single offsets: any order of claims, acks, ends of claims and moved positions."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from topics_service.engine.offsets.claims import ClaimedRanges

OFFSETS = 60


class ClaimedRangesMachine(RuleBasedStateMachine):
    """The model has the holder of each offset, and which are acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = ClaimedRanges(0)
        self.now = 0.0
        self.count = 0
        self.acked = set[int]()
        self.holders: dict[int, str] = {}
        self.deadlines: dict[str, float] = {}

    def free(self) -> list[int]:
        return [
            offset
            for start, stop in self.ranges.free()
            for offset in range(start, OFFSETS if stop is None else min(stop, OFFSETS))
        ]

    @rule(size=st.integers(1, 8), seconds=st.integers(1, 20))
    def claim(self, size: int, seconds: int) -> None:
        start, stop = next(self.ranges.free())
        end = min(start + size, OFFSETS if stop is None else stop)
        if end <= start:
            return
        self.count += 1
        name = f"c{self.count}"
        self.ranges.claim(name, start, end, self.now + seconds)
        self.deadlines[name] = self.now + seconds
        for offset in range(start, end):
            assert offset not in self.holders, "held by two"
            assert offset not in self.acked, "acknowledged already"
            self.holders[offset] = name

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        over = {name for name, deadline in self.deadlines.items() if deadline <= self.now}
        held = {name for name in over if name in self.holders.values()}
        assert self.ranges.expire(self.now) == len(held)
        self.end(over)

    def end(self, names: set[str]) -> None:
        self.holders = {offset: name for offset, name in self.holders.items() if name not in names}
        for name in names:
            self.deadlines.pop(name, None)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.holders.values()))))
        self.ranges.release(name, self.now)
        self.end({name})

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def ack_some_of_a_claim(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.holders.values()))))
        offsets = sorted(offset for offset, holder in self.holders.items() if holder == name)
        self.ack(offsets[0], data.draw(st.sampled_from(offsets)) + 1)

    @rule(start=st.integers(0, OFFSETS - 1), size=st.integers(1, 10))
    def ack_what_nobody_holds(self, start: int, size: int) -> None:
        stop = min(start + size, OFFSETS)
        if not any(offset in self.holders for offset in range(start, stop)):
            assert self.ranges.holder(start, stop) is None
            self.ack(start, stop)

    @rule(offset=st.integers(0, OFFSETS - 1))
    def ack_around(self, offset: int) -> None:
        if not self.ranges.is_acked(offset):
            start = self.ranges.around(offset)
            assert len({self.holders.get(each) for each in range(start, offset + 1)}) == 1
            assert not self.acked & set(range(start, offset + 1))
            self.ack(start, offset + 1)

    def ack(self, start: int, stop: int) -> None:
        self.ranges.ack(start, stop)
        for offset in range(start, stop):
            self.acked.add(offset)
            self.holders.pop(offset, None)

    @rule(ahead=st.integers(1, 20))
    def forward(self, ahead: int) -> None:
        base = min(self.ranges.base + ahead, OFFSETS)
        if base > self.ranges.base:
            self.ranges.forward(base)
            self.ack(0, base)

    @rule(data=st.data())
    def back(self, data: st.DataObject) -> None:
        if self.ranges.base:
            base = data.draw(st.integers(0, self.ranges.base - 1))
            self.ranges.back(base)
            self.acked = set(range(base))

    @invariant()
    def agrees(self) -> None:
        lowest = next(offset for offset in range(OFFSETS + 1) if offset not in self.acked)
        assert self.ranges.base == lowest, "follows the lowest that is not acknowledged"
        assert self.free() == [
            offset for offset in range(OFFSETS) if offset not in self.acked and offset not in self.holders
        ], "all else is free: nothing is lost"
        assert self.ranges.held == len(set(self.holders.values()))
        due = self.ranges.next_deadline()
        held = [self.deadlines[name] for name in set(self.holders.values())]
        assert due == min(held, default=None)


ClaimedRangesMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestClaimedRanges = ClaimedRangesMachine.TestCase


def test_pieces_are_merged() -> None:
    ranges = ClaimedRanges(0)
    for n in range(1000):
        ranges.claim(f"c{n}", 10 * n, 10 * n + 10, 60.0)
    for n in range(1, 1000, 2):
        ranges.ack(10 * n, 10 * n + 10)
    assert (ranges.base, ranges.pieces, ranges.held) == (0, 1000, 500)
    for n in range(2, 1000, 2):
        ranges.ack(10 * n, 10 * n + 10)
    assert (ranges.base, ranges.pieces, ranges.held) == (0, 2, 1)
    ranges.ack(0, 10)
    assert (ranges.base, ranges.pieces, ranges.held, ranges.next_deadline()) == (10_000, 0, 0, None)
