"""A log that all protocols write, delete from and overflow, against a model: every consumer, wherever it starts, gets
exactly the live records at their offsets, and always reaches the head."""

import asyncio
from typing import Any

import hypothesis.strategies as st
from data_support import Broker, batch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

KEYS = (None, b"red", b"blue", b"\xff")
VALUES = (b"1", b'{"a":"b"}', b"text", b"\x00\xff", None, b"y" * 300)
SHAPES = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES), st.integers(-50, 50)), min_size=1, max_size=9
)


class LogMachine(RuleBasedStateMachine):
    @initialize(
        cap=st.sampled_from([0, 0, 5, 20]),
        ttl=st.sampled_from([0, 0, 100]),
        durability=st.sampled_from(["disk", "fsync"]),
    )
    def create(self, cap: int, ttl: int, durability: str) -> None:
        self.runner = asyncio.Runner()
        self.ttl, self.cap = ttl, cap
        self.live: dict[int, tuple[bytes | None, bytes | None, int, int]] = {}  # key, value, Kafka's and our time
        self.head = self.evicted = 0
        self.run(self._create(cap_records=cap, ttl_ms=ttl, durability=durability))

    async def _create(self, **config: Any) -> None:
        self.broker = Broker()
        self.broker.put(**config)

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()

    # ------------------------------------------------------------------ model

    def add(self, key: bytes | None, value: bytes | None, ts: int) -> None:
        self.live[self.head] = (key, value, ts, self.broker.clock.now)
        self.head += 1

    def outgrow(self) -> None:
        gone = []
        if self.ttl:
            gone = [offset for offset, record in self.live.items() if record[3] < self.broker.clock.now - self.ttl]
        if self.cap:
            gone += sorted(set(self.live) - set(gone))[: max(0, len(self.live) - len(gone) - self.cap)]
        for offset in gone:
            del self.live[offset]
            self.evicted = max(self.evicted, offset + 1)

    @property
    def start(self) -> int:
        return min(self.live, default=self.head)

    # ----------------------------------------------------------------- writes

    @rule(records=SHAPES, codec=st.integers(0, 4), seal=st.booleans())
    def produce(self, records: list[Any], codec: int, seal: bool) -> None:
        now = self.broker.clock.now
        keys, values, times = zip(*((key, value, now + shift) for key, value, shift in records), strict=True)
        answer = self.run(self.broker.produce(batch(*values, keys=keys, ts=times, codec=codec)))
        self.outgrow()
        assert (answer["error_code"], answer["base_offset"]) == (0, self.head)
        for record in zip(keys, values, times, strict=True):
            self.add(*record)
        self.outgrow()
        if seal:
            self.broker.seal()

    @rule(records=SHAPES)
    def append(self, records: list[Any]) -> None:
        keys = [key if key != b"\xff" else None for key, _, _ in records]
        values = [value or b"null" for _, value, _ in records]
        first = self.broker.append(*values, tags=keys, kinds=bytes(value in (b"text", b"\x00\xff") for value in values))
        assert first == self.head + 1
        for key, value in zip(keys, values, strict=True):
            self.add(key, None if value == b"null" else value, self.broker.clock.now)
        self.outgrow()

    @rule(tag=st.sampled_from([b"red", b"blue"]))
    def delete_tag(self, tag: bytes) -> None:
        self.outgrow()
        gone = [offset for offset, record in self.live.items() if record[0] == tag]
        assert self.broker.delete(tag=tag) == len(gone)
        for offset in gone:
            del self.live[offset]

    @rule(share=st.floats(0, 1.1))
    def delete_below(self, share: float) -> None:
        before = round(self.head * share)
        self.broker.delete(before)
        self.live = {offset: record for offset, record in self.live.items() if offset + 1 >= before}

    @rule(ms=st.integers(1, 80))
    def later(self, ms: int) -> None:
        self.broker.clock.now += ms

    @rule()
    def seal(self) -> None:
        self.broker.seal()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        async def start() -> None:
            if clean:
                self.broker.restart()
            else:
                self.broker.start()

        self.run(start())

    # ------------------------------------------------------------------ reads

    @precondition(lambda self: hasattr(self, "broker"))
    @invariant()
    def consumers_get_everything(self) -> None:
        self.outgrow()
        for start in {0, self.evicted, (self.evicted + self.head) // 2, self.head}:
            self.consume(start, 1 << 20)

    @rule(share=st.floats(0, 1), partition_max=st.sampled_from([1, 150, 600, 1 << 20]))
    def consume_from(self, share: float, partition_max: int) -> None:
        self.outgrow()
        self.consume(round(self.head * share), partition_max)

    def consume(self, start: int, partition_max: int) -> None:
        if start < self.evicted:
            assert self.run(self.broker.fetch(start))["error_code"] == 1
            return
        found = self.run(self.broker.consume(start=start, partition_max=partition_max))
        wanted = {offset: record[:3] for offset, record in self.live.items() if offset >= start}
        assert {record.offset: (record.key, record.value, record.ts) for record in found} == wanted
        assert [record.offset for record in found] == sorted(wanted)

    @rule(shift=st.integers(-60, 60))
    def offset_of_a_time(self, shift: int) -> None:
        self.outgrow()
        ts = self.broker.clock.now + shift
        wanted = next(((at, self.live[at][2]) for at in sorted(self.live) if self.live[at][2] >= ts), (-1, -1))
        answer = self.run(self.broker.offsets(ts))
        assert (answer["offset"], answer["timestamp"]) == wanted

    @rule()
    def bounds(self) -> None:
        self.outgrow()
        assert self.run(self.broker.offsets(-1))["offset"] == self.head
        assert self.run(self.broker.offsets(-2))["offset"] == self.start
        newest = max(self.live, key=lambda at: (self.live[at][2], -at), default=None)
        answer = self.run(self.broker.offsets(-3))
        assert (answer["offset"], answer["timestamp"]) == (
            (-1, -1) if newest is None else (newest, self.live[newest][2])
        )


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
