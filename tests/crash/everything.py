"""Every data path of one server at once, under the oracles that the tests of each path have."""

import asyncio
import contextlib
import functools
import itertools
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
from crash import kafka_oracle, test_kafka_sigkill, test_queue_sigkill, test_router_sigkill, test_sigkill
from crash import test_watch_sigkill as watches
from crash.oracle import Churned, Oracle
from crash.queue_oracle import QueueOracle

from support.http import Api, ok
from support.kafka_wire import Wire
from support.server import ServerProcess


class Everything:
    """Topics of every class with writers, deletes, trims and churn; queues, routers, watchers, Kafka and groups.

    `load` runs all clients; `check` compares everything with the server after a crash; `finish` ends all jobs and has
    the watchers catch up, and compares those.
    """

    def __init__(self, server: ServerProcess, rng: random.Random) -> None:
        """Makes the topics of a server that runs and is empty."""
        self._server, self._rng = server, rng
        self.logs = Oracle(test_sigkill.subjects())
        self.logs.churned = [Churned(f"churned-{i}") for i in range(10)]
        self.queues = QueueOracle()
        self.books, self._numbers = test_router_sigkill.Books(), itertools.count(1)
        self.kafka = kafka_oracle.Oracle(test_kafka_sigkill.PLACES)
        self._producers = [kafka_oracle.Producer(-1, -1, random.Random(rng.random())) for _ in range(2)]
        self._watchers: list[watches.Watcher] = [
            watches.SseWatcher(rng.randrange(1 << 30), strong=False),
            watches.SseWatcher(rng.randrange(1 << 30), strong=True),
            watches.GrpcWatcher(rng.randrange(1 << 30), strong=False),
        ]
        self._writers = [watches.Writer(i) for i in range(2)]
        with Api(server.base) as api, Wire(server.kafka_port) as wire:
            configs: dict[str, dict[str, object]] = {topic.name: topic.config for topic in self.logs.subjects}
            configs |= {queue.name: {"type": "queue", **queue.config} for queue in self.queues.subjects}
            configs |= {name: {"durability": name, "partition_count": 2} for name in ("disk", "fsync")}
            configs |= watches.CONFIGS
            for name, config in configs.items():
                ok(api.put(name, **config), 201)
            test_router_sigkill.prepare(api)
            for producer in self._producers:
                test_kafka_sigkill.fresh_id(wire, self.kafka, producer)

    @property
    def acked(self) -> int:
        """Writes that a client was told are done: appends of every kind, jobs taken in, acks of jobs."""
        jobs = sum(len(queue._taken_in) for queue in self.queues.subjects) + self.queues.acks
        logs = sum(batch.acked for topic in self.logs.subjects for batch in topic.batches)
        forwarded = sum(map(len, self.books.acked.values()))
        return logs + jobs + forwarded + self.kafka.acks + sum(writer.acks for writer in self._writers)

    @contextlib.contextmanager
    def load(self) -> Iterator["Loads"]:
        """All clients at work; the end of the block kills the server under them, unless they were sent away before."""
        server, rng = self._server, self._rng
        with contextlib.ExitStack() as stack:
            following = stack.enter_context(_following([*self._watchers, *self._writers], server))
            loads = [
                test_sigkill.Load(server, self.logs, rng.randrange(1 << 30)),
                test_queue_sigkill.Load(server, self.queues, rng.randrange(1 << 30)),
                test_router_sigkill.Load(server, self.books, self._numbers, rng.randrange(1 << 30)),
                # The last: it is the one that has to know when the server is killed.
                test_kafka_sigkill.Load(server, self.kafka, self._producers, rng),
            ]
            for load in loads:
                stack.enter_context(load)
            yield Loads(loads, following)

    def check(self) -> None:
        """What a crash must not change; what it left open is settled for the next time."""
        server = self._server
        self.queues.restarted()
        with Api(server.base) as api, Wire(server.kafka_port) as wire:
            self.logs.check(api)
            test_sigkill.retry_keys(server, self.logs, self._rng)
            test_sigkill.check_trims(api, self.logs)
            test_router_sigkill.check(api, self.books)
            self.kafka.check(wire)
            for producer in self._producers:
                test_kafka_sigkill.retries(wire, self.kafka, producer)
            self.kafka.check(wire)

    def finish(self) -> None:
        """All jobs are done once, and every watcher has what `diff` has."""
        calls = test_queue_sigkill.HttpCalls(self._server)
        with Api(self._server.base) as api:
            for queue in self.queues.subjects:
                test_queue_sigkill.finish(queue, calls, api)
        calls.close()
        asyncio.run_coroutine_threadsafe(self._catch_up(), _loop()).result(300)

    async def _catch_up(self) -> None:
        with Api(self._server.base) as api:
            heads = {name: api.state(name)["head_seq"] for name in watches.CONFIGS}
            tasks = [asyncio.create_task(watcher.run(self._server)) for watcher in self._watchers]
            for watcher in self._watchers:
                await watches.until_true(lambda watcher=watcher: watcher.is_at(heads), tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for name, head in heads.items():
                watches.compare(api, name, head, self._watchers, self._writers)

    def straggle(self, seconds: float) -> None:
        """Write until the server is gone or has said that it stops, at most so long."""
        rng, end = self._rng, time.monotonic() + seconds
        http = test_sigkill.HttpWriter(self._server)
        with contextlib.suppress(test_sigkill.GoneError), contextlib.closing(http):
            while time.monotonic() < end:
                batch = self.logs.sending(rng.choice(self.logs.subjects), "late", rng.choice((1, 17)), keyed=False)
                try:
                    first_seq, count, _ = http.write(batch)
                except AssertionError as error:
                    if "shutting_down" not in str(error):
                        raise
                    return
                self.logs.acked(batch, first_seq, count)


class Loads:
    """The clients of one life of the server."""

    def __init__(self, loads: Sequence[Any], following: "_Following") -> None:
        self._loads, self._following = loads, following

    def check(self) -> None:
        """Raise what one of them has met."""
        for load in [*self._loads, self._following]:
            if load.failure is not None:
                raise load.failure

    def send_away(self) -> None:
        """Have all of them finish what they do, and leave."""
        for load in self._loads:
            load._over = True
        for thread in [thread for load in self._loads for thread in load._threads]:
            thread.join(60)
            assert not thread.is_alive()
        self._following.stop()
        self.check()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all watchers of this process, in a thread: gRPC does not let go of one that it has used."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


class _Following:
    """Watchers and their writers at work."""

    def __init__(self, who: Sequence[Any], server: ServerProcess) -> None:
        self.failure: BaseException | None = None
        self._who, self._server = who, server
        self._tasks: list[asyncio.Task[None]] = []
        self._outcome = asyncio.run_coroutine_threadsafe(self._follow(), _loop())

    async def _follow(self) -> None:
        self._tasks = [asyncio.create_task(each.run(self._server)) for each in self._who]
        for found in await asyncio.gather(*self._tasks, return_exceptions=True):
            if found is not None and not isinstance(found, asyncio.CancelledError | httpx.TransportError):
                self.failure = found

    def stop(self) -> None:
        """Break off wherever they are."""
        _loop().call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])
        self.join()

    def join(self) -> None:
        self._outcome.result(60)


@contextlib.contextmanager
def _following(who: Sequence[Any], server: ServerProcess) -> Iterator[_Following]:
    following = _Following(who, server)
    try:
        yield following
    finally:
        server.kill()
        following.join()
    if following.failure is not None:
        raise following.failure
