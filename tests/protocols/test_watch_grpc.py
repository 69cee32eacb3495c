"""Watch over gRPC on a real server: restarts, keys, caps, and sessions that both protocols know."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from protocols.conftest import SECRETS

from support.grpc_watch import Follower, subscription
from support.http import Api, ok
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import errors_pb2, record_pb2, watch_service_pb2_grpc
from topics_proto.v1 import watch_service_pb2 as pb


class Watcher:
    """Opens streams on one server, with a key or without."""

    def __init__(self, target: str, key: str | None = None) -> None:
        self.channel = grpc.aio.insecure_channel(target)
        self.stub: Any = watch_service_pb2_grpc.WatchServiceStub(self.channel)
        self.metadata = (("authorization", f"Bearer {SECRETS[key]}"),) if key else ()

    def watch(self, *topics: str, lenient: bool = False, **fields: Any) -> Follower:
        request = pb.WatchRequest(subscription=subscription(*topics, **fields), lenient=lenient)
        return Follower(self.stub.Watch(request, metadata=self.metadata), fields.get("cursor"))

    async def create(self, *topics: str, **fields: Any) -> pb.CreateWatchResponse:
        request = pb.CreateWatchRequest(subscription=subscription(*topics, **fields))
        return await self.stub.CreateWatch(request, metadata=self.metadata)

    def open(self, wid: str, cursor: dict[str, int] | None = None) -> Follower:
        return Follower(
            self.stub.OpenWatch(pb.OpenWatchRequest(wid=wid, cursor=cursor), metadata=self.metadata), cursor
        )


@pytest.fixture
async def watchers() -> AsyncIterator[Callable[..., Watcher]]:
    """`watchers(target, key)`; their channels are closed."""
    made: list[Watcher] = []

    def watcher(target: str, key: str | None = None) -> Watcher:
        made.append(Watcher(target, key))
        return made[-1]

    yield watcher
    for each in made:
        await each.channel.close()


@pytest.fixture
def watcher(server: ServerProcess, watchers: Callable[..., Watcher]) -> Watcher:
    return watchers(server.grpc_target)


@pytest.fixture(scope="module")
def keyed_api(keyed: ServerProcess) -> Iterator[Api]:
    with Api(keyed.base) as api:
        api.client.headers["authorization"] = f"Bearer {SECRETS['full']}"
        yield api


# -------------------------------------------------------------------- delivery


async def test_what_is_written_over_http_comes_over_grpc(api: Api, watcher: Watcher) -> None:
    name = api.make()
    api.append(name, {"a": 1}, None)
    async with watcher.watch(name, include_tags=True) as follower:
        await follower.until("caught_up")
        ok(api.write(name, [{"data": [1, 2], "tag": "x", "node": "n", "meta": {"k": "v"}}]))
        (record,) = (await follower.until("records")).records.records
        assert (record.seq, record.data, record.tag, record.node, record.meta) == (
            3,
            b"[1, 2]",
            "x",
            "n",
            b'{"k": "v"}',
        )
        assert follower.seen == {name: [1, 2, 3]}
        assert follower.cursor == {name: 3}


async def test_a_filter_a_prefix_and_a_topic_made_later(api: Api, watcher: Watcher) -> None:
    name = api.make()
    rule = record_pb2.TagMatch(eq="x")
    async with watcher.watch(f"{name}*", filter=rule) as follower:
        await follower.until("caught_up")
        later = f"{name}:later"
        ok(api.write(later, [{"data": 1, "tag": "y"}, {"data": 2, "tag": "x"}]), 201)
        await follower.until_seen(later, 2)
        assert (follower.seen, follower.cursor) == ({later: [2]}, {name: 0, later: 2})
        ok(api.drop(later))
        assert (await follower.until("topic_deleted")).topic_deleted.head_seq == 2
        assert follower.cursor == {name: 0}


async def test_more_topics_than_a_subscription_may_have(watcher: Watcher) -> None:
    names = [f"none-{i}" for i in range(257)]
    assert await watcher.watch(*names, lenient=True).status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory", "ephemeral"])
async def test_every_class_and_a_watcher_that_wants_fsync(api: Api, watcher: Watcher, durability: str) -> None:
    name = api.make(durability=durability)
    async with watcher.watch(name, consistency=pb.WATCH_CONSISTENCY_STRONG) as follower:
        for i in range(1, 4):
            api.append(name, i)
            await follower.until_seen(name, i)


async def test_a_session_of_one_protocol_is_opened_at_the_other(api: Api, watcher: Watcher) -> None:
    name = api.make()
    api.append(name, 1, 2)
    wid = ok(api.send("POST", "/v0/watch", {"topics": {name: {"from_seq": 1}}}))["wid"]
    async with watcher.open(wid) as follower:
        assert (await follower.next()).subscribed.topics[name].from_seq == 1
        await follower.until("caught_up")
        assert follower.seen == {name: [2]}
    made = await watcher.create(name, cursor={name: 1})
    with api.client.stream("GET", made.stream_url, headers={"accept": "text/event-stream"}) as stream:
        assert stream.status_code == 200
        lines = (line for line in stream.iter_lines() if line.startswith("data:"))
        assert f'"topic":"{name}","records":[{{"$seq":2' in next(lines)


# ----------------------------------------------------------- ends and restarts


async def test_a_stop_tells_every_watcher_and_does_not_wait_for_them(
    start: Callable[..., ServerProcess], watchers: Callable[..., Watcher]
) -> None:
    server = start()
    with Api(server.base) as api:
        name = api.make()
        api.append(name, 1)
    watcher = watchers(server.grpc_target)
    followers = [watcher.watch(name) for _ in range(20)]
    for follower in followers:
        await follower.until("caught_up")
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    for follower in followers:
        error = (await follower.until("error")).error
        assert (error.reason, error.terminal) == (errors_pb2.ERROR_REASON_SERVER_SHUTTING_DOWN, True)
        assert await follower.status() == ("UNAVAILABLE", "SHUTTING_DOWN")
    assert await asyncio.to_thread(server.wait, 15) == 0
    assert time.monotonic() - began < 8


async def test_a_watcher_goes_on_over_kills(
    start: Callable[..., ServerProcess], watchers: Callable[..., Watcher], tmp_path: Path
) -> None:
    server = start()
    name, cursor, seen = "jobs", {}, {}
    for turn in range(1, 4):
        with Api(server.base) as api:
            api.append(name, *range(turn * 10))
        async with watchers(server.grpc_target).watch(name, cursor=cursor, limit=7) as follower:
            follower.seen = seen
            for _ in range(turn + 1):
                await follower.next()
            server.kill()
            code, _ = await follower.status()
            assert code == "UNAVAILABLE"
            cursor = follower.cursor
        server.start()
    async with watchers(server.grpc_target).watch(name, cursor=cursor) as follower:
        follower.seen = seen
        await follower.until_seen(name, 60)
    assert seen == {name: list(range(1, 61))}


# ------------------------------------------------------------------------ keys


async def test_keys_and_what_they_may_watch(
    keyed: ServerProcess, keyed_api: Api, watchers: Callable[..., Watcher]
) -> None:
    target = keyed.grpc_target
    for name in ("t42:a", "other"):
        ok(keyed_api.put(name), 201)
    assert await watchers(target).watch("t42:a").status() == ("UNAUTHENTICATED", "UNAUTHORIZED")
    assert await watchers(target, "write").watch("t42:a").status() == ("PERMISSION_DENIED", "FORBIDDEN")
    limited = watchers(target, "t42")
    for topics in (("t42:a", "other"), ("t42:absent", "absent"), ("t4*",), ("*",)):
        assert await limited.watch(*topics).status() == ("PERMISSION_DENIED", "FORBIDDEN")
    async with limited.watch("t42:*") as follower:
        assert set((await follower.next()).subscribed.topics) == {"t42:a"}
    made = await limited.create("t42:a")
    assert await watchers(target, "full").open(made.wid).status() == ("UNAUTHENTICATED", "UNAUTHORIZED")
    async with limited.open(made.wid) as follower:
        assert await follower.kind() == "subscribed"


async def test_connections_are_counted_per_key_and_given_back(
    start: Callable[..., ServerProcess], watchers: Callable[..., Watcher]
) -> None:
    server = start(TOPICS_API_KEYS="sekret-full,sekret-read:read", TOPICS_MAX_SSE_CONNECTIONS_PER_KEY=2)
    full, read = watchers(server.grpc_target, "full"), watchers(server.grpc_target, "read")
    with Api(server.base) as api:
        api.client.headers["authorization"] = "Bearer sekret-full"
        name = api.make()
        first, second = full.watch(name), full.watch(name)
        for follower in (first, second):
            await follower.next()
        assert await full.watch(name).status() == ("RESOURCE_EXHAUSTED", "THROTTLED")
        async with read.watch(name) as follower:
            assert await follower.kind() == "subscribed"
        first.cancel()

        def connections() -> str:
            return str(api.send("GET", "/v0/metrics").text)

        await asyncio.to_thread(poll, lambda: "\ntopics_sse_connections 1.0\n" in connections(), 10)
        async with full.watch(name) as follower:
            assert await follower.kind() == "subscribed"
        second.cancel()


# ----------------------------------------------------------------------- leaks


async def test_clients_that_vanish_leave_nothing_open(
    start: Callable[..., ServerProcess], watchers: Callable[..., Watcher]
) -> None:
    server = start()
    with Api(server.base) as api:
        name = api.make()
        api.append(name, *range(50))

        def held() -> tuple[int, bool]:
            text = api.send("GET", "/v0/metrics").text
            return len(os.listdir(f"/proc/{server.pid}/fd")), "\ntopics_sse_connections 0.0\n" in text

        async def visit() -> None:
            options = [("grpc.use_local_subchannel_pool", 1)]  # a TCP connection of its own
            async with grpc.aio.insecure_channel(server.grpc_target, options=options) as channel:
                call = watch_service_pb2_grpc.WatchServiceStub(channel).Watch(  # type: ignore[no-untyped-call]
                    pb.WatchRequest(subscription=subscription(name, limit=10))
                )
                await call.read()

        await visit()
        await asyncio.to_thread(poll, lambda: held()[1], 10)
        before = held()
        for _ in range(10):
            await asyncio.gather(*(visit() for _ in range(20)))
        await asyncio.to_thread(poll, lambda: held() <= before, 10, "the server lets go")
