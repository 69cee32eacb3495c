"""The seam for observers: what they see, in which order, and that a server without one does nothing for it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from types import FrameType

import httpx
import pytest

from topics_gateway import GatewaySettings, create_app
from topics_service.api import observers as seam
from topics_service.api.access.auth import ANONYMOUS, UNRESTRICTED
from topics_service.api.access.authorizer import authorize
from topics_service.api.observers import End, Observation, Observers
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest
from topics_service.engine.queue.jobs import ClaimRequest, SettleRequest
from topics_service.storage.memory import MemoryStore

CALLS = {"append": 90, "fsynced append": 120, "read": 43, "claim": 180, "append over HTTP": 162}
"""Python calls within the server's packages, at most: as many as before there was a seam. A claim comes with an ack."""


class Seen:
    """An observer that notes the begin and the end of everything, and what it knew then."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, object]] = []

    def __call__(self, observation: Observation) -> End | None:
        if observation.name == "ignored":
            return None
        self.events.append(("begin", observation.name, dict(observation.facts)))

        def end(error: BaseException | None) -> None:
            self.events.append(("end", observation.name, error or dict(observation.facts)))

        return end


@pytest.fixture
async def engine() -> Engine:
    return Engine(MemoryStore(), SystemClock())


@pytest.fixture
async def seen(engine: Engine) -> Seen:
    return Seen()


@pytest.fixture
async def observed(engine: Engine, seen: Seen) -> AsyncIterator[TopicsApi]:
    observers = Observers(seen)
    engine.writer.span = observers
    commit = GroupCommit.for_engine(engine)
    yield TopicsApi(engine, commit, observers=observers)
    commit.stop()


@pytest.fixture
async def api(engine: Engine) -> AsyncIterator[TopicsApi]:
    commit = GroupCommit.for_engine(engine)
    yield TopicsApi(engine, commit)
    commit.stop()


async def test_a_call_holds_its_steps(observed: TopicsApi, seen: Seen) -> None:
    reply = await observed.put_topic("t", ConfigInput(durable=True), principal=UNRESTRICTED)
    asked = {"topic": "t", "config": ConfigInput(durable=True)}
    topic = {
        "topic": "t",
        "topic_id": reply.identity.topic_id,
        "partition_count": 1,
        "topics.created": True,
    }
    assert [event[:2] for event in seen.events] == [
        ("begin", "topic.put"),
        ("begin", "topics.topic.put"),
        ("begin", "topics.store.write"),
        ("end", "topics.store.write"),
        ("end", "topics.topic.put"),
        ("begin", "topics.commit.wait"),
        ("end", "topics.commit.wait"),
        ("end", "topic.put"),
    ]
    assert seen.events[0][2] == asked
    assert seen.events[4][2] == topic
    assert seen.events[-1][2] == {**asked, "created": True}


async def test_an_error_ends_what_it_goes_through(observed: TopicsApi, seen: Seen) -> None:
    with pytest.raises(TopicsError) as refused:
        await observed.put_topic("t", ConfigInput(cap_records=-1), principal=UNRESTRICTED)
    assert [event[:2] for event in seen.events] == [
        ("begin", "topic.put"),
        ("begin", "topics.topic.put"),
        ("end", "topics.topic.put"),
        ("end", "topic.put"),
    ]
    assert seen.events[2][2] is seen.events[3][2] is refused.value


async def test_refusals_of_changes_are_reported(seen: Seen) -> None:
    for rpc in ("topics.v1.TopicsService.PutTopic", "topics.v1.TopicsService.Append"):
        with pytest.raises(TopicsError) as refused:
            authorize(ANONYMOUS, rpc, "t", Observers(seen))
    (begin, end) = seen.events
    assert begin == ("begin", "topic.put", {"topic": "t"})
    assert end[:2] == ("end", "topic.put")
    assert isinstance(end[2], TopicsError)
    assert end[2].reason is Reason.FORBIDDEN is refused.value.reason


async def test_observers_end_in_reverse_and_may_ignore(seen: Seen) -> None:
    order: list[int] = []

    def numbered(number: int) -> seam.Observer:
        return lambda _: lambda _: order.append(number)

    with Observers(numbered(1), seen, numbered(2))("ignored", {}):
        assert not order
    assert order == [2, 1]
    assert not seen.events


# ------------------------------------------------------------------- no observer


async def counted(work: Callable[[], Awaitable[object]]) -> tuple[int, set[str]]:
    """The Python calls within the server's packages while `work` runs, and the files that they are in."""
    files: list[str] = []
    counts: list[int] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and ("topics_service" in name or "topics_gateway" in name):
            files.append(name)

    for _ in range(6):  # the first ones compute what is cached
        before = len(files)
        sys.setprofile(profile)
        try:
            await work()
        finally:
            sys.setprofile(None)
        counts.append(len(files) - before)
        await asyncio.sleep(0.01)
    return min(counts), set(files)


@pytest.mark.parametrize("path", CALLS)
async def test_without_an_observer_nothing_is_done_for_it(api: TopicsApi, path: str) -> None:
    durable = path == "fsynced append"
    await api.put_topic("t", ConfigInput(durable=durable), principal=UNRESTRICTED)
    await api.put_topic("q", ConfigInput(type="queue"), principal=UNRESTRICTED)
    batch = Batch(datas=[b"1"] * 40)
    await api.append(AppendRequest(topic="t", batch=batch), principal=UNRESTRICTED)
    await api.append(AppendRequest(topic="q", batch=batch), principal=UNRESTRICTED)

    async def append() -> None:
        await api.append(AppendRequest(topic="t", batch=Batch(datas=[b"1"])), principal=UNRESTRICTED)

    async def read() -> None:
        await api.diff(DiffRequest(topic="t", from_seq=3))

    async def claim() -> None:
        reply = await api.queues.claim(ClaimRequest(topic="q", node="n"))
        await api.queues.ack(SettleRequest(topic="q", node="n", seqs=[job.seq for job in reply.jobs]))

    transport = httpx.ASGITransport(create_app(api, GatewaySettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def append_over_http() -> None:
            (await client.post("/v0/topics/t", json={"records": [{"data": 1}]})).raise_for_status()

        works: dict[str, Callable[[], Awaitable[None]]] = {
            "append": append,
            "fsynced append": append,
            "read": read,
            "claim": claim,
            "append over HTTP": append_over_http,
        }
        calls, files = await counted(works[path])
    assert seam.__file__ not in files
    assert calls <= CALLS[path]
