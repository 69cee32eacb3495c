"""Watchers on all three protocols at once, random changes and reconnects: each sees what `diff` would give.

The whole server runs in the test's event loop, on real sockets, with a clock that only the test moves. A seed decides
what is written and when each watcher breaks off; `TOPICS_WATCH_SEED=n` runs that one alone, `TOPICS_WATCH_STEPS` says
how far.
"""

import asyncio
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import pytest
import uvloop

from support.local_server import LocalServer, serving
from support.log_model import Rec
from support.watch_followers import Follower, GrpcFollower, SessionFollower, Wish, WsFollower
from support.watch_model import Life, Model, Reading, Version, tag_json
from support.watch_wire import http
from topics_proto.v1 import topics_service_pb2, topics_service_pb2_grpc
from topics_service.engine.model import TagMatch, TopicConfig

SEEDS = range(8)
STEPS = int(os.environ.get("TOPICS_WATCH_STEPS", "220"))
SECONDS = 40.0  # within which all followers must have caught up
NAMES = ("w.a", "w.b", "w.c", "v.d")
DURABILITIES = ("ephemeral", "disk", "disk", "memory", "fsync")
TAGS = (None, b"a", b"a:1", b"b")
MATCHES = (TagMatch("Eq", b"a"), TagMatch("Glob", b"a"), TagMatch("Glob", b""), TagMatch("Eq", b"z"))
NODES = (None, b"n1", b"n2")


class Run:
    """One seed."""

    def __init__(self, server: LocalServer, model: Model, rng: random.Random) -> None:
        self.server = server
        self.model = model
        self.rng = rng
        self.pending: dict[str, asyncio.Task[None]] = {}
        self.followers: list[Follower] = []
        self.following: list[asyncio.Task[None]] = []
        self.channel = grpc.aio.insecure_channel(server.grpc_target)
        self.stub: Any = topics_service_pb2_grpc.TopicsServiceStub(self.channel)
        self.count = 0

    # ---------------------------------------------------------------------- operations

    async def step(self) -> None:
        name = self.rng.choice(NAMES)
        operations: tuple[tuple[int, Callable[[str], Any]], ...] = (
            (48, self.append), (10, self.burst), (8, self.delete), (7, self.put), (4, self.drop), (2, self.replace),
            (7, self.tick), (3, self.burn), (9, self.shake), (3, self.press), (2, self.settle),
        )  # fmt: skip
        weights = [weight for weight, _ in operations]
        (operation,) = self.rng.choices([operation for _, operation in operations], weights)
        await operation(name)
        if self.rng.random() < 0.4:
            await asyncio.sleep(self.rng.choice((0, 0, 0.001, 0.005)))
        for task in self.following:
            if task.done():
                await task
                raise AssertionError("a follower has stopped")

    async def free(self, name: str) -> None:
        """Wait for the operation that is under way on the topic."""
        if name in self.pending:
            await self.pending.pop(name)

    async def start(self, name: str, operation: Any) -> None:
        self.pending[name] = asyncio.create_task(operation)

    async def append(self, name: str) -> None:
        await self.free(name)
        subject = self.model.subjects[name]
        records = [self.record() for _ in range(self.rng.choice((1, 1, 1, 2, 5)))]
        life = subject.alive
        if life is None:
            life = Life([Version(), Version().written(records, self.model.now)])  # made, then written to
            subject.lives.append(life)
        else:
            life.push(life.now.written(records, self.model.now))
        follower_class = self.rng.choice((self._append_http, self._append_http, self._append_grpc))

        async def operation() -> None:
            assert await follower_class(name, records) == life.now.head
            self.done(life)

        await self.start(name, operation())

    async def burst(self, name: str) -> None:
        for _ in range(self.rng.randint(2, 6)):
            await self.append(name)

    async def _append_http(self, name: str, records: list[Rec]) -> int:
        reply = await self.call("POST", f"/v0/topics/{name}", json_body(records))
        return int(reply["head_seq"])

    async def _append_grpc(self, name: str, records: list[Rec]) -> int:
        request = topics_service_pb2.AppendRequest(topic=name)
        for rec in records:
            request.records.add(data=rec.data, meta=rec.meta or b"", tag=text(rec.tag), node=text(rec.node))
        return int((await self.stub.Append(request)).head_seq)

    def record(self) -> Rec:
        self.count += 1
        size = self.rng.choices((0, 5, 30, 3000, 40_000), (50, 25, 25, 2, 1))[0]
        text = f'{{"n":{self.count}, "pad":"{"x" * size}"}}'
        meta = self.rng.choice((None, None, b'{"k":[1, 2]}'))
        return Rec(0, 0, text.encode(), meta, self.rng.choice(TAGS), self.rng.choice(NODES))

    async def delete(self, name: str) -> None:
        await self.free(name)
        life = self.model.subjects[name].alive
        if life is None:
            return
        head = life.now.head
        before = self.rng.choice((None, head + 1, head - 1, head - 4, self.rng.randint(0, head + 1)))
        match = self.rng.choice(MATCHES) if before is None or self.rng.random() < 0.2 else None
        count = len(life.now.at(self.model.now).live)
        life.push(life.now.deleted(before if before is None else max(0, before), match, self.model.now))
        body = {"before_seq": before if before is None else max(0, before)}
        body |= {} if match is None else {"match": tag_json(match)}

        async def operation() -> None:
            reply = await self.call("POST", f"/v0/topics/{name}/delete", body)
            assert reply["deleted"] == count - len(life.now.live)
            assert (reply["head_seq"], reply["earliest_seq"]) == (life.now.head, life.now.earliest)
            self.done(life)

        await self.start(name, operation())

    async def put(self, name: str) -> None:
        await self.free(name)
        subject = self.model.subjects[name]
        given: dict[str, Any] = {
            "durability": self.rng.choice(DURABILITIES),
            "ttl_ms": self.rng.choice((0, 0, 100)),
            "cap_records": self.rng.choice((0, 0, 3, 8, 20)),
            "cap_bytes": self.rng.choice((0, 0, 0, 200)),
            "dedupe_node": self.rng.random() < 0.7,
        }
        config = TopicConfig(**given)
        life = subject.alive
        if life is None:
            life = Life([Version(config=config)])
            subject.lives.append(life)
        elif config != life.now.config:
            life.push(*life.now.reconfigured(config, self.model.now))

        async def operation() -> None:
            await self.call("PUT", f"/v0/topics/{name}", given)
            self.done(life)

        await self.start(name, operation())

    async def drop(self, name: str) -> None:
        await self.free(name)
        life = self.model.subjects[name].alive
        if life is None:
            return
        life.ending = True

        async def operation() -> None:
            assert (await self.call("DELETE", f"/v0/topics/{name}"))["deleted"]
            life.ended = True

        await self.start(name, operation())

    async def replace(self, name: str) -> None:
        """Delete and make again, before all watchers have seen it."""
        await self.drop(name)
        await self.rng.choice((self.put, self.burst))(name)

    async def burn(self, name: str) -> None:
        await self.free(name)
        life = self.model.subjects[name].alive
        if life is None or not life.created:
            return
        count = self.rng.randint(1, 4)
        life.push(life.now.at(self.model.now).burnt(count))

        async def operation() -> None:
            await self.server.burn(name, count)
            self.done(life)

        await self.start(name, operation())

    async def tick(self, _: str) -> None:
        await self.idle()
        self.model.tick(self.rng.choice((1, 20, 60, 110)))

    async def press(self, _: str) -> None:
        self.server.overload_ms = self.rng.choice((0, 5, 20))

    async def shake(self, _: str) -> None:
        await self.rng.choice(self.followers).shake()

    async def settle(self, _: str = "") -> None:
        """All followers get everything, and `diff` agrees with the model."""
        await self.idle()
        for follower, task in zip(self.followers, self.following, strict=True):
            await self.told(follower, task)
        for name, subject in self.model.subjects.items():
            if subject.alive is not None:
                await self.check_diff(name, subject.alive.now)

    async def told(self, follower: Follower, task: "asyncio.Task[None]") -> None:
        end = time.monotonic() + SECONDS
        while True:
            follower.changed.clear()
            if follower.settled():
                return
            change = asyncio.create_task(follower.changed.wait())
            await asyncio.wait((change, task), timeout=end - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
            if task.done():
                await task
            assert time.monotonic() < end, f"not told everything: {follower}"

    async def check_diff(self, name: str, version: Version) -> None:
        reading, cursor = self.reading(strong=False), self.rng.randint(0, version.head + 1)
        body = {
            "from_seq": cursor, "limit": reading.limit, "max_batch_bytes": reading.max_bytes,
            "node": reading.node_names, "include_tags": True,
        }  # fmt: skip
        body |= {} if reading.match is None else {"filter": tag_json(reading.match)}
        reply = await self.call("POST", f"/v0/topics/{name}/diff", body)
        lost, at = version.lost(cursor, version.head), cursor
        if lost is None:
            assert reply["tombstone"] is None, (name, reply, version)
        else:
            found = reply["tombstone"]
            assert (found["gap_from"], found["gap_to"], found["reason"]) == lost, (name, found, version)
            at = version.earliest - 1 if lost.reason in ("recreated", "cap", "ttl", "mixed") else lost.last
        page = version.read(at, version.head, reading)
        assert [record["$seq"] for record in reply["records"]] == [rec.seq for rec in page.taken], (name, version)
        assert page.minimum <= reply["next_from_seq"] <= page.next, (name, cursor, reply, version)

    async def idle(self) -> None:
        for name in list(self.pending):
            await self.free(name)

    def done(self, life: Life) -> None:
        life.settle()
        if not life.created:
            life.created = True
            self.model.stir()

    async def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return await http(self.server.http_port, method, path, body)

    # ------------------------------------------------------------------------ watchers

    def reading(self, *, strong: bool) -> Reading:
        return Reading(
            limit=self.rng.choice((1, 2, 3, 256)),
            max_bytes=self.rng.choice((1, 60, 1 << 18, 1 << 18)),
            nodes=frozenset(self.rng.choice(((), (), (b"n1",), (b"n1", b"n2")))),
            match=self.rng.choice((None, None, *MATCHES)),
            strong=strong,
        )

    def wish(self) -> Wish:
        start: Callable[[], dict[str, Any]] = lambda: self.rng.choice(({}, {}, {"from_seq": 3}, {"tail": True}))  # noqa: E731
        if self.rng.random() < 0.35:
            keys = [self.rng.choice(("w.*", "*", "w.*"))]
        else:
            keys = self.rng.sample(NAMES, self.rng.randint(1, 4))
        return Wish(
            {key: start() for key in keys},
            self.reading(strong=self.rng.random() < 0.25),
            tags=self.rng.random() < 0.5,
            metas=self.rng.random() < 0.8,
            datas=self.rng.random() < 0.8,
        )

    def follow(self) -> None:
        for i, follower_class in enumerate((*(SessionFollower,) * 4, *(GrpcFollower,) * 3, *(WsFollower,) * 3)):
            rng = random.Random(f"{self.rng.random()} {i}")
            follower = follower_class(f"{follower_class.__name__} {i}", self.server, self.model, self.wish(), rng)
            self.followers.append(follower)
            self.following.append(asyncio.create_task(follower.run()))

    async def end(self) -> None:
        """Each comes back once more, and each topic that is there and wanted is followed to its end."""
        for follower in self.followers:
            await follower.shake()
        await self.settle()

    async def close(self) -> None:
        for task in self.following:
            task.cancel()
        await asyncio.gather(*self.following, return_exceptions=True)
        for task in self.pending.values():
            task.cancel()
        await asyncio.gather(*self.pending.values(), return_exceptions=True)
        await self.channel.close()


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def json_body(records: list[Rec]) -> bytes:
    """A write body with each text as it stands."""
    items = []
    for rec in records:
        parts = [b'"data":' + rec.data]
        parts += [b'"meta":' + rec.meta] if rec.meta else []
        parts += [
            b'"%b":%b' % (key, json.dumps(text(value)).encode())
            for key, value in ((b"tag", rec.tag), (b"node", rec.node))
        ]
        items.append(b"{" + b",".join(parts) + b"}")
    return b'{"records":[' + b",".join(items) + b"]}"


async def play(seed: int, path: Path, steps: int) -> dict[str, int]:
    rng = random.Random(seed)
    model = Model(NAMES)
    async with serving(path, model, random.Random(seed)) as server:
        run = Run(server, model, rng)
        try:
            for name in NAMES[: rng.randint(1, 4)]:
                await run.put(name)
            await run.idle()
            run.follow()
            for _ in range(steps):
                await run.step()
            await run.end()
        except BaseException as error:
            culprits = [f for f, task in zip(run.followers, run.following, strict=True) if task.done()]
            about = "\n\n".join(map(str, culprits))
            raise AssertionError(
                f"rerun with TOPICS_WATCH_SEED={seed} TOPICS_WATCH_STEPS={steps}: {error!r}\n{about}"
            ) from error
        finally:
            await run.close()
        return {f.label: f.frames for f in run.followers}


def check(seed: int, path: Path, steps: int = STEPS) -> dict[str, int]:
    with (
        patch("topics_service.engine.maintenance.SEAL_BLOCKS", 3),
        patch("topics_service.engine.maintenance._RECLAIM_SEQS", 2),
        patch("topics_service.engine.log.CEILING_STEP", 8),
        patch("topics_service.engine.watch.core._SILENT_RECORDS", 8),
        patch("topics_service.api.watch_stream._TURN", 12),
        patch("topics_service.api.scheduling.dispatch._TURNS", 2),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(play(seed, path, steps))


ALONE = os.environ.get("TOPICS_WATCH_SEED")


@pytest.mark.parametrize("seed", SEEDS if ALONE is None else [int(ALONE)])
@pytest.mark.timeout(120)
def test_every_watcher_on_every_protocol_sees_what_diff_gives(seed: int, tmp_path: Path) -> None:
    told = check(seed, tmp_path)
    assert sum(told.values()) > STEPS, told


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_every_watcher_on_every_protocol_sees_what_diff_gives_for_long(tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ["TOPICS_SOAK_SECONDS"])
    first = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 1_000_000_000))
    seed = first
    while time.monotonic() < end:
        data = tmp_path / str(seed)
        check(seed, data, STEPS * (1 + seed % 4))
        shutil.rmtree(data)
        seed += 1
    print(f"{seed - first} seeds from TOPICS_SOAK_SEED={first}")
