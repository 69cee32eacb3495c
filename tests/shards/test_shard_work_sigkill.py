"""Routers and dead letters between the processes of a server, which are killed one by one under load."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from shards.lives import names

from support.waiting import poll

_SHARDS = 4
_KILLS = 4


class Server:
    """A server of two processes."""

    def __init__(self, directory: Path) -> None:
        port_file = directory / "http"
        env = {
            **os.environ,
            "TOPICS_PORT": "0",
            "TOPICS_GRPC_PORT": "0",
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_DATA_DIR": str(directory / "data"),
            "TOPICS_PROCESSES": "2",
            "TOPICS_SHARDS": str(_SHARDS),
        }
        self.parent = subprocess.Popen(
            [Path(sys.executable).parent / "topics", "serve"], env=env, stderr=subprocess.DEVNULL
        )
        poll(port_file.exists, 30)
        self._base = f"http://{port_file.read_text().split()[0]}/v0"

    def call(self, method: str, path: str, body: object = None, *, again: bool = True) -> dict[str, Any]:
        """Call until it is answered; without `again` a call whose outcome is unknown raises OSError."""
        request = urllib.request.Request(
            self._base + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    found: dict[str, Any] = json.load(answer)
                    return found
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503) or time.monotonic() > deadline:
                    raise
            except OSError:
                if not again or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def data(self, topic: str) -> list[Any]:
        """The data of all records of a topic."""
        found: list[Any] = []
        after = 0
        while True:
            page = self.call("POST", f"/topics/{topic}/diff", {"from_seq": after, "limit": 1000})
            assert page.get("tombstone") is None
            found += [record["data"] for record in page["records"]]
            if page["next_from_seq"] == after:
                return found
            after = page["next_from_seq"]

    def kill(self, number: int) -> None:
        """Kill a child of the parent."""
        children = Path(f"/proc/{self.parent.pid}/task/{self.parent.pid}/children")
        pids = poll(lambda: found if len(found := children.read_text().split()) == 2 else None, 30)
        assert pids is not None
        os.kill(int(pids[number]), signal.SIGKILL)


@contextmanager
def serving(directory: Path) -> Iterator[Server]:
    """Run a server."""
    server = Server(directory)
    try:
        yield server
    finally:
        server.parent.terminate()
        server.parent.wait(30)


@pytest.mark.timeout(180)
def test_no_copy_and_no_letter_is_lost_or_there_twice(tmp_path: Path) -> None:
    """Source and queue are in one process, destination and dead letters in the other."""
    source, dest = names(_SHARDS, 0, 1, prefix="r")
    queue, letters = names(_SHARDS, 2, 3, prefix="q")
    with serving(tmp_path) as server:
        server.call("PUT", f"/topics/{source}", {})
        server.call("PUT", "/routers/r", {"source": source, "dest": dest})
        config = {"type": "queue", "dead_letter": letters, "max_deliveries": 1, "leases_durable": True}
        server.call("PUT", f"/topics/{queue}", config)
        is_over = threading.Event()
        acked: list[int] = []

        def write() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                try:
                    server.call("POST", f"/topics/{source}", {"records": [{"data": number}]}, again=False)
                    server.call("POST", f"/topics/{queue}", {"records": [{"data": number}]}, again=False)
                except OSError:
                    continue
                acked.append(number)

        def fail() -> None:
            while not is_over.is_set():
                try:
                    claim = server.call("POST", f"/topics/{queue}/claim", {"node": "w", "max": 5, "lease_ms": 500})
                    seqs = [job["$seq"] for job in claim["claimed"]]
                    if seqs:
                        server.call("POST", f"/topics/{queue}/nack", {"node": "w", "seqs": seqs}, again=False)
                except OSError:
                    continue

        threads = [threading.Thread(target=work) for work in (write, fail)]
        for thread in threads:
            thread.start()

        def go_on() -> None:
            enough = len(acked) + 30
            poll(lambda: len(acked) > enough, 60)

        for number in range(_KILLS):
            go_on()
            server.kill(number % 2)
        go_on()
        is_over.set()
        for thread in threads:
            thread.join()
        written = server.data(source)
        assert set(acked) <= set(written)
        poll(lambda: len(server.data(dest)) >= len(written), 30)
        assert server.data(dest) == written

        def moved() -> bool:
            paths = [f"/topics/{queue}/jobs?state={state}" for state in ("exhausted", "in_flight")]
            return not any(server.call("GET", path)["jobs"] for path in paths)

        poll(moved, 30)
        left, dead = server.data(queue), server.data(letters)
        assert len(dead) > _KILLS
        found = Counter(left + dead)
        assert [number for number, count in found.items() if count > 1] == []
        assert set(acked) <= set(found)


@pytest.mark.timeout(180)
def test_a_router_that_moves_about_leaves_nothing_out_and_copies_nothing_twice(tmp_path: Path) -> None:
    """Destinations are in all shards, and processes; the source and the router's name are in one."""
    source, *dests = names(_SHARDS, 0, 0, 1, 2, 3, prefix="m")
    with serving(tmp_path) as server:
        server.call("PUT", f"/topics/{source}", {})
        for dest in dests:
            server.call("PUT", f"/topics/{dest}", {})
        server.call("PUT", "/routers/r", {"source": source, "dest": dests[0]})
        is_over = threading.Event()
        acked: list[int] = []
        moved: list[str] = []

        def write() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                try:
                    server.call("POST", f"/topics/{source}", {"records": [{"data": number}]}, again=False)
                except OSError:
                    continue
                acked.append(number)

        def move() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                with suppress(OSError):
                    put = {"source": source, "dest": dests[number % len(dests)]}
                    moved.append(server.call("PUT", "/routers/r", put, again=False)["dest"])

        def go_on() -> None:
            enough = len(moved) + 10
            poll(lambda: len(moved) > enough, 60)

        threads = [threading.Thread(target=work) for work in (write, move, move)]
        for thread in threads:
            thread.start()
        for number in range(_KILLS):
            go_on()
            server.kill(number % 2)
        go_on()
        is_over.set()
        for thread in threads:
            thread.join()
        put = {"source": source, "dest": dests[1]}
        assert server.call("PUT", "/routers/r", put)["dest"] == dests[1]
        written = server.data(source)
        assert set(acked) <= set(written)
        poll(lambda: sum(len(server.data(dest)) for dest in dests) >= len(written), 30)
        found = [server.data(dest) for dest in dests]
        assert sorted(number for each in found for number in each) == sorted(written)
        order = {number: place for place, number in enumerate(written)}
        assert all([order[number] for number in each] == sorted(order[number] for number in each) for each in found)
        assert [router["router"] for router in server.call("GET", "/routers")["routers"]] == ["r"]
        server.call("POST", f"/topics/{source}", {"records": [{"data": "last"}]})
        assert server.data(dests[1])[-1] == "last"
