"""SIGKILL while routers run, again and again: every destination is an exact, ordered image of its source."""

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from support.http import Api, ok
from support.server import ServerProcess
from support.waiting import poll

KILLS = 5
SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))

# name: source, destination, config; the destinations' configs are below
ROUTERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "disk": ("s", "d-disk", {}),
    "twin": ("s", "d-twin", {"preserve_node": False}),
    "fsync": ("s", "d-fsync", {}),
    "memory": ("s", "d-memory", {}),
    "once": ("s", "d-once", {"guarantee": "exactly_once"}),
    "odd": ("s", "d-odd", {"filter": ["tag", "Eq", "odd"]}),
    "full": ("s", "d-full", {}),
    "chain": ("d-disk", "d-chain", {"guarantee": "exactly_once"}),
    "slow": ("f", "d-slow", {}),
    "ab": ("a", "b", {"allow_cycle": True}),
    "ba": ("b", "a", {"allow_cycle": True}),
}
TOPICS: dict[str, dict[str, Any]] = {
    "s": {},
    "f": {"durability": "fsync"},
    "d-fsync": {"durability": "fsync"},
    "d-memory": {"durability": "memory"},
    "d-full": {"cap_records": 40, "discard": "reject"},
}
IMAGES = {"d-disk": "s", "d-twin": "s", "d-fsync": "s", "d-memory": "s", "d-once": "s", "d-chain": "s", "d-slow": "f"}


@dataclass
class Books:
    """What was acknowledged, by source; and what was taken out of the destination that is kept short."""

    acked: dict[str, set[int]] = field(default_factory=lambda: {"s": set(), "f": set(), "a": set()})
    taken: dict[int, int] = field(default_factory=dict)
    remade: int = 0


class Load:
    """Writers, one who empties the short destination and one who makes a router again; ends with a SIGKILL."""

    def __init__(self, server: ServerProcess, books: Books, numbers: "itertools.count[int]", seed: int) -> None:
        self._server, self._books, self._numbers, self._seed = server, books, numbers, seed
        self._over = False
        self.failure: BaseException | None = None
        works: list[Callable[[Api, random.Random], None]] = [
            lambda api, rng: self._write(api, rng, "s"),
            lambda api, rng: self._write(api, rng, "s"),
            lambda api, rng: self._write(api, rng, "f"),
            self._circulate,
            self._take,
            self._remake,
        ]
        self._threads = [threading.Thread(target=self._run, args=(work, i)) for i, work in enumerate(works)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._over = True
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self, work: Callable[[Api, random.Random], None], number: int) -> None:
        rng = random.Random(f"{self._seed}:{number}")
        try:
            with Api(self._server.base) as api:
                while not self._over:
                    work(api, rng)
        except httpx.TransportError:
            pass  # the server is gone, as it should be
        except BaseException as error:
            self.failure, self._over = error, True

    def _write(self, api: Api, rng: random.Random, topic: str) -> None:
        batch = [next(self._numbers) for _ in range(rng.choice((1, 1, 3, 40)))]
        records = [{"data": number, "tag": "odd" if number % 2 else "even", "node": "n"} for number in batch]
        ok(api.write(topic, records))
        self._books.acked[topic].update(batch)

    def _circulate(self, api: Api, _: random.Random) -> None:
        number = next(self._numbers)
        api.append("a", number)
        self._books.acked["a"].add(number)
        time.sleep(0.02)

    def _take(self, api: Api, rng: random.Random) -> None:
        page = api.read("d-full", limit=rng.choice((1, 20, 100)))
        assert page["tombstone"] is None
        for record in page["records"]:
            self._books.taken.setdefault(record["$seq"], record["data"])
        if page["records"]:
            api.rm("d-full", before_seq=page["next_from_seq"] + 1)

    def _remake(self, api: Api, rng: random.Random) -> None:
        """From the beginning of its source; it passes over what it copied before."""
        ok(api.send("DELETE", "/v0/routers/once"))
        source, dest, config = ROUTERS["once"]
        ok(api.send("PUT", "/v0/routers/once", {"source": source, "dest": dest, "backfill": True, **config}), 201)
        self._books.remade += 1
        time.sleep(rng.random() / 4)


def prepare(api: Api) -> None:
    for topic, config in TOPICS.items():
        ok(api.put(topic, **config), 201)
    for name, (source, dest, config) in ROUTERS.items():
        ok(api.send("PUT", f"/v0/routers/{name}", {"source": source, "dest": dest, **config}), 201)


def numbers_in(api: Api, topic: str) -> list[int]:
    return [record["data"] for record in api.read_all(topic)]


def check(api: Api, books: Books) -> None:
    """What the routers did, once they have done it all."""
    if ok(api.send("GET", "/v0/routers?prefix=once"))["routers"] == []:  # killed while it was made again
        source, dest, config = ROUTERS["once"]
        ok(api.send("PUT", "/v0/routers/once", {"source": source, "dest": dest, "backfill": True, **config}), 201)
    sources = {topic: numbers_in(api, topic) for topic in ("s", "f")}
    for topic, found in sources.items():
        assert books.acked[topic] <= set(found), f"{topic}: an acknowledged record is gone"
        assert len(set(found)) == len(found)
    for dest, source in IMAGES.items():
        found = numbers_in(api, dest)
        if dest == "d-chain":  # two hops: a reader waits for one
            poll(lambda: numbers_in(api, "d-chain") == sources["s"], 20, "the end of the chain")
            continue
        assert found == sources[source], f"{dest} is no image of {source}: {difference(found, sources[source])}"
    assert numbers_in(api, "d-odd") == [number for number in sources["s"] if number % 2]

    def drained() -> bool:
        page = api.read("d-full", limit=1000)
        for record in page["records"]:
            books.taken.setdefault(record["$seq"], record["data"])
        api.rm("d-full", before_seq=page["next_from_seq"] + 1)
        return len(books.taken) >= len(sources["s"])

    poll(drained, 30, "the short destination")
    assert [books.taken[seq] for seq in sorted(books.taken)] == sources["s"]

    for name, (source, _, _) in ROUTERS.items():
        state = ok(api.send("GET", f"/v0/routers/{name}"))
        assert state["last_error"] is None
        if source in sources:
            assert state["lag_records"] == 0
            expected = sum(number % 2 for number in sources[source]) if name == "odd" else len(sources[source])
            if name != "once":  # it has been made again: what it passed over does not count
                assert state["forwarded_total"] == expected, name

    def settled() -> bool:
        lags = [ok(api.send("GET", f"/v0/routers/{name}"))["lag_records"] for name in ("ab", "ba")]
        return lags == [0, 0]

    poll(settled, 20, "the cycle")
    found, other = numbers_in(api, "a"), numbers_in(api, "b")
    assert set(found) == set(other)
    assert books.acked["a"] <= set(found)


def difference(found: list[int], wanted: list[int]) -> str:
    for i, (one, other) in enumerate(itertools.zip_longest(found, wanted)):
        if one != other:
            return f"at {i}: {found[i : i + 5]} instead of {wanted[i : i + 5]}"
    return "none"


def crash_and_check(directory: Path, kills: Callable[[int], bool], seed: int) -> None:
    books, numbers, rng = Books(), itertools.count(1), random.Random(seed)
    server = ServerProcess(directory)
    try:
        server.start()
        with Api(server.base) as api:
            prepare(api)
        for i in itertools.count():
            if not kills(i):
                break
            with Load(server, books, numbers, rng.getrandbits(32)):
                time.sleep(rng.uniform(0.1, 0.8))
            server.start()
            with Api(server.base) as api:
                check(api, books)
        assert books.acked["s"]
        assert books.remade
        assert "Traceback" not in server.log
        assert " ERROR " not in server.log
    finally:
        server.kill()


@pytest.mark.timeout(180)
def test_routers_under_sigkill(tmp_path: Path) -> None:
    crash_and_check(tmp_path / "server", lambda i: i < KILLS, seed=20240)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_routers_under_sigkill_for_long(tmp_path: Path) -> None:
    end = time.monotonic() + SOAK_SECONDS
    for number in itertools.count():
        if time.monotonic() >= end:
            break
        crash_and_check(tmp_path / f"server-{number}", lambda i: i < 12, seed=random.randrange(1 << 32))
