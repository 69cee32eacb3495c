"""Small writes and acks of one loop iteration: written as one, answered as if each had run on its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.api.access.auth import UNRESTRICTED, Principal
from topics_service.api.scheduling.batcher import WriteBatcher
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.scheduling.pressure import Pressure
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendReply, AppendRequest, Batch, ConfigInput, DiffRequest, joined
from topics_service.engine.queue.jobs import ClaimRequest, SettleReply, SettleRequest
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import StoreError, WriteBatch

# ------------------------------------------------------------------ the turn


class Served:
    """What was served together, as upper-case letters; `x` can't be, and what `fails` says is raised."""

    def __init__(self, max_batch: int = 8) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.fails: Exception | None = None
        self.batcher = WriteBatcher(self.serve, max_batch)

    def serve(self, key: str, requests: Sequence[str]) -> list[str] | None:
        self.calls.append((key, list(requests)))
        if self.fails is not None:
            raise self.fails
        return None if "x" in requests else [request.upper() for request in requests]

    async def ask(self, key: str, request: str, *, linger: bool = False) -> str | None:
        answer = self.batcher.join(key, request, linger=linger)
        return None if answer is None else await answer


async def test_the_first_goes_alone_and_the_others_go_together() -> None:
    served = Served()
    answers = await asyncio.gather(*(served.ask("k", letter) for letter in "abc"), served.ask("other", "d"))
    assert answers == [None, "B", "C", None]
    assert served.calls == [("k", ["b", "c"])]
    assert await served.ask("k", "e") is None, "a new turn"
    await asyncio.sleep(0)
    assert await served.ask("k", "f") is None
    assert len(served.calls) == 1
    assert not served.batcher._groups.get("other")


async def test_a_lingering_request_waits_for_the_others() -> None:
    served = Served()
    assert await asyncio.gather(*(served.ask("k", letter, linger=True) for letter in "abc")) == ["A", "B", "C"]
    assert await served.ask("k", "d", linger=True) == "D"
    assert served.calls == [("k", ["a", "b", "c"]), ("k", ["d"])]


async def test_more_than_a_batch_go_in_several_calls() -> None:
    served = Served(max_batch=2)
    assert await asyncio.gather(*(served.ask("k", letter) for letter in "abcdef")) == [None, *"BCDEF"]
    assert served.calls == [("k", ["b", "c"]), ("k", ["d", "e"]), ("k", ["f"])]


async def test_a_flush_serves_who_has_joined() -> None:
    served = Served()

    async def flush() -> None:
        served.batcher.flush("k")
        assert served.calls[-1] == ("k", ["b"])

    await asyncio.gather(served.ask("k", "a"), served.ask("k", "b"), flush(), served.ask("k", "c"))
    assert served.calls == [("k", ["b"]), ("k", ["c"])]
    served.batcher.flush("k")
    assert len(served.calls) == 2


async def test_a_call_that_can_not_be_answered_sends_each_alone() -> None:
    served = Served()
    assert await asyncio.gather(*(served.ask("k", letter) for letter in "abxc")) == [None] * 4
    assert served.calls == [("k", ["b", "x", "c"])]


async def test_an_error_reaches_all_that_wait() -> None:
    served = Served()
    served.fails = ValueError("a bug")
    answers = await asyncio.gather(*(served.ask("k", letter) for letter in "abc"), return_exceptions=True)
    assert answers == [None, served.fails, served.fails]


async def test_who_leaves_before_the_turn_ends_is_not_served() -> None:
    served = Served()
    tasks = [asyncio.create_task(served.ask("k", letter)) for letter in "abcd"]
    asyncio.get_running_loop().call_soon(tasks[2].cancel)
    assert await asyncio.gather(*tasks, return_exceptions=True) != []
    assert served.calls == [("k", ["b", "d"])]
    assert tasks[2].cancelled()


# ------------------------------------------------------------------ batches


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    count = draw(st.integers(1, 3))
    texts = st.none() | st.lists(st.none() | st.binary(max_size=3), min_size=count, max_size=count)
    datas = draw(st.lists(st.binary(max_size=4), min_size=count, max_size=count))
    kinds = draw(st.none() | st.binary(min_size=count, max_size=count))
    return Batch(datas=datas, tags=draw(texts), nodes=draw(texts), metas=draw(texts), kinds=kinds)


def rows(batch: Batch) -> list[tuple[Any, ...]]:
    none = [None] * len(batch.datas)
    kinds = batch.kinds or bytes(len(none))
    columns = (batch.datas, batch.sizes, batch.tags or none, batch.nodes or none, batch.metas or none, kinds)
    return list(zip(*columns, strict=True))


@settings(deadline=None, derandomize=True)
@given(parts=st.lists(batches(), min_size=1, max_size=5))
def test_joined_batches_have_the_records_of_all(parts: list[Batch]) -> None:
    assert rows(joined(parts)) == [row for part in parts for row in rows(part)]


# ------------------------------------------------------------------ appends


class Service:
    """An api with an engine in memory, which counts the writes of the store."""

    def __init__(self, commit: GroupCommit, engine: Engine, pressure: Pressure | None = None) -> None:
        self.engine = engine
        self.api = TopicsApi(engine, commit, pressure)

    async def append(
        self, *datas: bytes, topic: str = "t", by: Principal = UNRESTRICTED, **options: Any
    ) -> AppendReply:
        batch = Batch(datas=list(datas), **{part: options.pop(part) for part in ("tags",) if part in options})
        return await self.api.append(AppendRequest(topic=topic, batch=batch, **options), principal=by)

    @property
    def blocks(self) -> int:
        return self.engine.catalog.topics["t"].log.unsealed_blocks

    def content(self, topic: str = "t") -> list[bytes]:
        found = self.engine.diff(DiffRequest(topic=topic, limit=1000))
        return [bytes(part.block.record_data(i)) for part in found.slices for i in range(part.start, part.stop)]


LIMITS = Limits(max_record_bytes=100)


class Disk(MemoryStore):
    """Whose fsyncs end when the test lets them, and whose writes and fsyncs fail when it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.fails = False

    def write(self, batch: WriteBatch) -> None:
        if self.fails:
            raise StoreError("write failed: the test says so")
        super().write(batch)

    def sync(self) -> None:
        assert self.goes_on.wait(20)
        if self.fails:
            raise StoreError("sync failed: the test says so")


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
async def service(disk: Disk) -> AsyncIterator[Service]:
    engine = Engine(disk, SystemClock(), limits=LIMITS)
    commit = GroupCommit.for_engine(engine, disk.sync)
    service = Service(commit, engine)
    await service.api.put_topic("t", ConfigInput(), principal=UNRESTRICTED)
    await service.append(b"0")  # from here on the ceiling is durable
    yield service
    commit.stop()


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory", "ephemeral"])
async def test_appends_of_a_turn_are_two_blocks(service: Service, durability: Any) -> None:
    """Or one, where all wait for the same fsync."""
    await service.api.put_topic("t", ConfigInput(durability=durability), principal=UNRESTRICTED)
    await service.append(b"1")
    before = service.blocks
    replies = await asyncio.gather(*(service.append(b"%d" % n, tags=[b"x"] if n % 2 else None) for n in range(2, 40)))
    assert service.blocks == before + (1 if durability == "fsync" else 2)
    assert [(reply.first_seq, reply.last_seq, reply.created) for reply in replies] == [
        (seq, seq, False) for seq in range(3, 41)
    ]
    assert all(reply.head_seq >= reply.last_seq for reply in replies)
    assert all((reply.fsync_ms > 0) == (durability == "fsync") for reply in replies)
    assert service.content() == [b"%d" % n for n in range(40)]


async def test_nothing_is_shown_or_answered_before_the_fsync(service: Service, disk: Disk) -> None:
    await service.api.put_topic("t", ConfigInput(durability="fsync"), principal=UNRESTRICTED)
    disk.goes_on.clear()
    tasks = [asyncio.create_task(service.append(b"%d" % n)) for n in range(1, 4)]
    written = service.engine.writer.written
    await until(lambda: service.engine.writer.written > written)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    assert service.content() == [b"0"]
    disk.goes_on.set()
    assert [reply.first_seq for reply in await asyncio.gather(*tasks)] == [2, 3, 4]
    assert service.content() == [b"0", b"1", b"2", b"3"]


async def test_a_failed_fsync_fails_all(service: Service, disk: Disk) -> None:
    await service.api.put_topic("t", ConfigInput(durability="fsync"), principal=UNRESTRICTED)
    disk.goes_on.clear()
    tasks = [asyncio.create_task(service.append(b"%d" % n)) for n in range(1, 4)]
    written = service.engine.writer.written
    await until(lambda: service.engine.writer.written > written)
    disk.fails = True
    disk.goes_on.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answer.reason for answer in answers if isinstance(answer, TopicsError)] == [Reason.INTERNAL] * 3
    assert service.content() == [b"0"]


async def test_a_failed_write_fails_all(service: Service, disk: Disk) -> None:
    disk.fails = True
    answers = await asyncio.gather(*(service.append(b"%d" % n) for n in range(1, 4)), return_exceptions=True)
    assert [answer.reason for answer in answers if isinstance(answer, TopicsError)] == [Reason.INTERNAL] * 3
    assert service.content() == [b"0"]
    disk.fails = False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


async def test_records_of_an_append_stay_together(service: Service) -> None:
    first, second, third = await asyncio.gather(
        service.append(b"a"), service.append(b"b", b"c"), service.append(b"d", b"e")
    )
    assert [(reply.first_seq, reply.count) for reply in (first, second, third)] == [(2, 1), (3, 2), (5, 2)]
    assert service.content() == [b"0", b"a", b"b", b"c", b"d", b"e"]


async def test_one_that_is_refused_spoils_no_other(service: Service) -> None:
    answers = await asyncio.gather(
        *(service.append(data) for data in (b"a", b"b", b"x" * 101, b"c")), return_exceptions=True
    )
    errors = [answer for answer in answers if isinstance(answer, TopicsError)]
    assert [error.reason for error in errors] == [Reason.RECORD_TOO_LARGE]
    assert service.content() == [b"0", b"a", b"b", b"c"]


async def test_appends_take_effect_in_the_order_in_which_they_came(service: Service) -> None:
    await asyncio.gather(
        service.append(b"a"),
        service.append(b"b"),
        service.append(*[b"c"] * 5),
        service.append(b"d"),
        service.append(b"e"),
    )
    assert service.content() == [b"0", b"a", b"b", *[b"c"] * 5, b"d", b"e"]


async def test_what_is_more_than_records_goes_alone(service: Service) -> None:
    before = service.blocks
    replies = await asyncio.gather(
        service.append(b"a"),
        service.append(b"b", idempotency_key="k"),
        service.append(b"b", idempotency_key="k"),
        service.append(b"c", disable_backpressure=True),
        service.append(*[b"d"] * 5),
    )
    assert [reply.deduped for reply in replies] == [False, False, True, False, False]
    assert service.blocks == before + 4


async def test_a_topic_that_goes_meanwhile_is_not_made_again_by_one_who_may_not(service: Service) -> None:
    drop = asyncio.create_task(service.api.delete_topic("t"))
    tasks = [asyncio.create_task(service.append(data, create=False)) for data in (b"a", b"b")]
    # The deletion runs first, then both writes find no topic.
    answers = await asyncio.gather(drop, *tasks, return_exceptions=True)
    assert [answer.reason for answer in answers[1:] if isinstance(answer, TopicsError)] == [Reason.TOPIC_NOT_FOUND] * 2
    await service.api.put_topic("t", ConfigInput(), principal=UNRESTRICTED)
    first = asyncio.create_task(service.append(b"a", create=False))
    second = asyncio.create_task(service.append(b"b", create=False))
    drop = asyncio.create_task(service.api.delete_topic("t"))  # after both have joined, before the turn ends
    assert (await first).first_seq == 1
    with pytest.raises(TopicsError) as error:
        await second
    assert error.value.reason is Reason.TOPIC_NOT_FOUND
    assert (await drop).deleted
    assert "t" not in service.engine.catalog.topics


async def test_each_is_checked_for_who_writes_it(service: Service) -> None:
    stranger = Principal(key_id="s", scopes=UNRESTRICTED.scopes, prefixes=("other",))
    answers = await asyncio.gather(
        service.append(b"a"), service.append(b"b"), service.append(b"c", by=stranger), return_exceptions=True
    )
    assert isinstance(answers[2], TopicsError)
    assert answers[2].reason is Reason.FORBIDDEN
    assert service.content() == [b"0", b"a", b"b"]


async def test_a_full_topic_refuses_those_that_find_no_room(service: Service) -> None:
    await service.api.put_topic("t", ConfigInput(cap_records=4, discard="reject"), principal=UNRESTRICTED)
    answers = await asyncio.gather(*(service.append(b"%d" % n) for n in range(1, 6)), return_exceptions=True)
    assert [isinstance(answer, AppendReply) for answer in answers] == [True, True, True, False, False]
    assert service.content() == [b"0", b"1", b"2", b"3"]


# --------------------------------------------------------------------- acks


async def claimed(service: Service, *nodes: str) -> list[list[int]]:
    held = []
    for node in nodes:
        reply = await service.api.queues.claim(ClaimRequest(topic="q", node=node, max=2))
        held.append([job.seq for job in reply.jobs])
    return held


def ack(service: Service, node: str, seqs: list[int]) -> "asyncio.Task[SettleReply]":
    return asyncio.create_task(service.api.queues.ack(SettleRequest(topic="q", node=node, seqs=seqs)))


@pytest.fixture
async def queue(service: Service) -> Service:
    await service.api.put_topic("q", ConfigInput(type="queue"), principal=UNRESTRICTED)
    await service.append(*[b"%d" % n for n in range(12)], topic="q")
    return service


async def test_acks_of_a_turn_are_two_writes(queue: Service) -> None:
    held = await claimed(queue, "a", "b", "c", "d")
    before = queue.engine.writer.written
    replies = await asyncio.gather(*(ack(queue, node, seqs) for node, seqs in zip("abcd", held, strict=True)))
    assert queue.engine.writer.written == before + 2
    assert [(reply.done, reply.skipped) for reply in replies] == [(2, [])] * 4
    assert (replies[-1].ready, replies[-1].in_flight) == (4, 0)
    assert queue.content("q") == [b"8", b"9", b"10", b"11"]


async def test_acks_are_answered_after_the_fsync(queue: Service, disk: Disk) -> None:
    await queue.api.put_topic("q", ConfigInput(type="queue", durability="fsync"), principal=UNRESTRICTED)
    held = await claimed(queue, "a", "b", "c")
    disk.goes_on.clear()
    tasks = [ack(queue, node, seqs) for node, seqs in zip("abc", held, strict=True)]
    written = queue.engine.writer.written
    await until(lambda: queue.engine.writer.written == written + 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    assert len(queue.content("q")) == 12
    disk.goes_on.set()
    assert [(reply.done, reply.fsync_ms > 0) for reply in await asyncio.gather(*tasks)] == [(2, True)] * 3
    assert len(queue.content("q")) == 6


async def test_a_job_is_acked_once_by_its_holder(queue: Service) -> None:
    (held,) = await claimed(queue, "a")
    (other,) = await claimed(queue, "b")
    replies = await asyncio.gather(
        ack(queue, "b", other), ack(queue, "a", held[:1]), ack(queue, "a", held), ack(queue, "b", held)
    )
    assert [(reply.done, reply.skipped) for reply in replies] == [(2, []), (1, []), (1, held[:1]), (0, held)]


async def test_a_wrong_ack_spoils_no_other(queue: Service) -> None:
    held = await claimed(queue, "a", "b", "c")
    answers = await asyncio.gather(
        ack(queue, "a", held[0]), ack(queue, "b", []), ack(queue, "c", held[2]), return_exceptions=True
    )
    assert isinstance(answers[1], TopicsError)
    assert answers[1].reason is Reason.INVALID_REQUEST
    assert [answer.done for answer in answers if isinstance(answer, SettleReply)] == [2, 2]
    counters = queue.engine.queues.counters("q")
    assert (counters.ready, counters.in_flight) == (6, 2)


async def test_claims_that_ack_go_together_too(queue: Service) -> None:
    held = await claimed(queue, "a", "b")
    replies = await asyncio.gather(
        *(
            queue.api.queues.claim(
                ClaimRequest(topic="q", node=node, max=2, ack=SettleRequest(topic="q", node=node, seqs=seqs))
            )
            for node, seqs in zip("ab", held, strict=True)
        )
    )
    assert [reply.settled.done for reply in replies if reply.settled is not None] == [2, 2]
    assert sorted(job.seq for reply in replies for job in reply.jobs) == [5, 6, 7, 8]
