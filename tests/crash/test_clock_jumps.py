"""The machine's clock jumps, years ahead and back, under a server that runs, and over its restart."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from support.fake_time import in_fake_time
from support.http import Api, ok, path
from support.push import PushStream
from support.server import ServerProcess
from support.waiting import poll
from support.wall_clock import WallClock
from support.ws import WebSocket
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.queues import QueuesApi
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, ConfigInput
from topics_service.engine.queue.jobs import ClaimRequest
from topics_service.engine.watch.frames import HeartbeatFrame
from topics_service.storage.memory import MemoryStore

YEARS = 10 * 365 * 86_400_000
HOUR = 3_600_000


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "clock")


def stamps(api: Api, name: str) -> list[int]:
    return [record["$ts"] for record in api.read_all(name)]


def claim(api: Api, node: str, **more: Any) -> list[dict[str, Any]]:
    body = {"node": node, "max": 10, **more}
    found: list[dict[str, Any]] = ok(api.send("POST", path("jobs", "/claim"), body))["claimed"]
    return found


def test_jumps_ahead_and_back(make_server: Callable[..., ServerProcess], clock: WallClock) -> None:
    server = make_server(env=clock.env).start()
    now = time.time_ns() // 1_000_000
    with Api(server.base) as api:
        ok(api.put("log", durability="fsync", idempotency_window_ms=HOUR), 201)
        ok(api.put("aging", ttl_ms=HOUR), 201)
        ok(api.put("jobs", type="queue", lease_ms=60_000, leases_durable=True), 201)
        api.append("log", "now", idempotency_key="k")
        api.append("aging", "now")
        api.append("jobs", 1, 2)
        held = claim(api, "early", max=1)
        assert held[0]["data"] == 1

        clock.jump(YEARS)
        again = api.append("log", "ahead", idempotency_key="k")
        assert (again["deduped"], again["first_seq"]) == (False, 2), "the window is over"
        page = api.read("aging")
        assert (page["records"], page["tombstone"]["reason"]) == ([], "ttl"), "what is too old is gone, and said to be"
        taken = claim(api, "late")
        assert {job["data"] for job in taken} == {1, 2}, "the lease is over"
        body = {"node": "early", "seqs": [held[0]["$seq"]], "lease_ids": [held[0]["lease_id"]]}
        assert ok(api.send("POST", path("jobs", "/ack"), body))["skipped"] == [held[0]["$seq"]], "and its token with it"

        clock.jump(-YEARS)
        assert api.append("log", "back", idempotency_key="k")["deduped"], "the last use of the key counts"
        api.append("log", "back")
        api.append("aging", "back")
        assert stamps(api, "log") == sorted(stamps(api, "log")), "$ts never falls with seq"
        assert len(stamps(api, "aging")) == 1, "and what has expired stays away"
        assert claim(api, "third") == [], "a lease is not over before its time"
        body = {"node": "late", "seqs": [taken[0]["$seq"]], "lease_ids": [taken[0]["lease_id"]]}
        assert ok(api.send("POST", path("jobs", "/ack"), body))["skipped"] == [], "who holds it can end it"

    assert server.stop() == 0
    clock.jump(0)
    server.start()
    with Api(server.base) as api:
        assert [record["data"] for record in api.read_all("log")] == ["now", "ahead", "back"]
        first, ahead, back = stamps(api, "log")
        assert abs(first - now) < 60_000
        assert abs(ahead - now - YEARS) < 60_000
        assert back == ahead
        assert api.append("log", "now again")["first_seq"] == 4
        body = {"node": "late", "seqs": [taken[1]["$seq"]], "lease_ids": [taken[1]["lease_id"]]}
        assert ok(api.send("POST", path("jobs", "/ack"), body))["skipped"] == [], "its lease outlived the restart"
        assert api.state("jobs")["count"] == 0


def test_what_was_told_to_have_expired_stays_away_after_a_kill_with_the_right_clock(
    make_server: Callable[..., ServerProcess], clock: WallClock
) -> None:
    server = make_server(env=clock.env).start()
    names = [f"{way}-{durability}" for durability in ("disk", "fsync") for way in ("diff", "state", "watch", "queue")]
    with Api(server.base) as api:
        for name in names:
            way, durability = name.split("-")
            ok(api.put(name, ttl_ms=HOUR, durability=durability, type="queue" if way == "queue" else "log"), 201)
            api.append(name, 1, 2)
        clock.jump(YEARS)
        for name in names:  # one after the other, within the second in which nobody else looks
            if name.startswith("diff"):
                assert api.read(name)["tombstone"]["gap_to"] == 2
            elif name.startswith("state"):
                assert api.state(name)["earliest_seq"] == 3
            elif name.startswith("queue"):
                assert ok(api.send("GET", path(name)))["queue"]["ready"] == 0
            else:
                with WebSocket(server.base) as watcher:
                    watcher.subscribe(topics={name: {"from_seq": 0}})
                    assert watcher.wait("tombstone")["gap_to"] == 2
        server.kill()
    clock.jump(0)
    server.start()
    with Api(server.base) as api:
        for name in names:
            page = api.read(name)
            assert (page["records"], page["tombstone"]["gap_to"], page["tombstone"]["reason"]) == ([], 2, "ttl"), name


def test_timers_do_not_go_by_the_wall_clock(make_server: Callable[..., ServerProcess], clock: WallClock) -> None:
    """Long polls, heartbeats and pushed work end and come when they should, wherever the clock is."""
    server = make_server(env=clock.env | {"TOPICS_TEST_MIN_HEARTBEAT_MS": 100}).start()
    with Api(server.base) as api, Api(server.base) as other:
        ok(api.put("log"), 201)
        ok(api.put("jobs", type="queue", lease_ms=800), 201)
        api.append("jobs", 1)
        assert claim(api, "dies")
        for offset in (YEARS, -YEARS):
            waited: list[float] = []

            def wait(waited: list[float] = waited) -> None:
                began = time.monotonic()
                assert other.read("log", wait_ms=1500)["records"] == []
                waited.append(time.monotonic() - began)

            with PushStream(server.http_port, "jobs", node="lives", heartbeat_ms=200, lease_ms=800) as stream:
                thread = threading.Thread(target=wait)
                thread.start()
                time.sleep(0.2)
                clock.jump(offset)
                thread.join(20)
                assert 1.2 < waited[0] < 8
                assert poll(lambda stream=stream: stream.next(5).comment, 10), "heartbeats go on"
                api.append("jobs", 2)
                assert stream.jobs(1, 10), "and so does work"


class Moved:
    """The running loop's time in ms, and `ahead` of it."""

    ahead = 0

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000) + self.ahead


@in_fake_time
async def test_pushed_work_comes_when_a_clock_that_was_set_back_is_set_right_again() -> None:
    """The timer for the end of the lease rings in ten years then; with its next heartbeat a stream asks anew."""
    clock = Moved()
    engine = Engine(MemoryStore(), clock)

    async def nothing(_: object) -> None: ...

    api = QueuesApi(lambda: engine, nothing, lambda _: nullcontext(), nothing, clock=clock)
    engine.put_topic("q", ConfigInput(type="queue", lease_ms=1000))
    engine.append(AppendRequest(topic="q", batch=Batch(datas=[b"1"])))
    engine.sync()
    clock.ahead = YEARS
    assert len((await api.claim(ClaimRequest(topic="q", node="dies", max=1))).jobs) == 1
    clock.ahead = 0
    with api.work(ClaimRequest(topic="q", node="lives", max=1), principal=UNRESTRICTED) as stream:
        assert isinstance(await anext(stream), HeartbeatFrame)
        clock.ahead = YEARS
        async with asyncio.timeout(20):  # of the loop's time, which costs nothing
            while isinstance(frame := await anext(stream), HeartbeatFrame):
                pass
        assert isinstance(frame, list)
        assert [job.seq for job in frame] == [1]
