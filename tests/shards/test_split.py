"""A data directory that is split into shards: everything is there afterwards, and nothing of another shard."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from topics_cli import main
from topics_server.processes.serving import ShardedServer
from topics_server.server import Server
from topics_server.settings import Settings
from topics_server.split import SplitError, split
from topics_server.verify import verify
from topics_service.storage import shardfiles

SHARDS = 4
NAMES = [f"orders-{number}" for number in range(9)]


def settings(path: Path, processes: int = 0) -> Settings:
    return Settings(data_dir=str(path), port=0, grpc_port=0, drain_seconds=1, processes=processes)


_CHANGING = ("performance", "took", "last_read_ts", "effective_priority")
KILLED = """
import os, sys
from pathlib import Path
from topics_server.split import split
from topics_service.storage import checkpoint
create, made = checkpoint.create, []
def die(store, path):
    if len(made) == 2:
        os._exit(9)
    made.append(path)
    create(store, path)
checkpoint.create = die
split(Path(sys.argv[1]), 4)
"""
"""A split that dies at the third shard."""


class Api:
    """Calls of HTTP."""

    def __init__(self, http: httpx.AsyncClient, port: int) -> None:
        self._http = http
        self._base = f"http://127.0.0.1:{port}"

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """The reply, without what differs each time."""
        reply = await self._http.request(method, f"{self._base}{path}", json=body)
        assert reply.status_code < 300, (path, reply.text)
        return {name: value for name, value in reply.json().items() if name not in _CHANGING}

    async def fill(self) -> None:
        """Make some of everything."""
        for at, name in enumerate(NAMES):
            await self.call("PUT", f"/v0/topics/{name}", {"durability": "fsync", "cap_records": 0})
            for n in range(30):
                record = {"data": {"n": n, "of": name}, "tag": f"t{n % 3}", "node": "me"}
                await self.call("POST", f"/v0/topics/{name}", {"records": [record], "idempotency_key": f"k{n}"})
            if at % 2:
                await self.call("POST", f"/v0/topics/{name}/delete", {"match": ["tag", "Eq", "t1"]})
        await self.call("POST", f"/v0/topics/{NAMES[0]}", {"records": [{"data": "x" * 20_000}] * 30})
        for at, name in enumerate(NAMES[:6]):
            await self.call("PUT", f"/v0/routers/r-{at}", {"source": name, "dest": f"copies-{at}"})
            await self.call("POST", f"/v0/topics/{name}", {"records": [{"data": "routed"}]})
            await self.call("GET", f"/v0/routers/r-{at}")
        for group in ("billing", "search", "audit"):
            positions = [{"topic": name, "from_seq": 5 + at} for at, name in enumerate(NAMES)]
            await self.call("POST", f"/v0/groups/{group}/commit", {"positions": positions})
        for n in range(8):  # each name leads to another shard than its group, or to the same
            await self.call("PUT", f"/v0/topics/placed-{n}", {"placement": "orders", "partition_count": 2})
            for partition in range(2):
                record = {"data": f"in {partition}"}
                await self.call("POST", f"/v0/topics/placed-{n}", {"records": [record], "partition": partition})
        await self.call("PUT", "/v0/topics/jobs", {"type": "queue", "leases_durable": True})
        await self.call("POST", "/v0/topics/jobs", {"records": [{"data": n} for n in range(5)]})
        await self.call("POST", "/v0/topics/jobs/claim", {"node": "w", "max": 2, "lease_ms": 600_000})
        await self.call("POST", "/api/sql", {"sql": "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)"})
        await self.call("POST", "/api/sql", {"sql": "INSERT INTO t VALUES (1, 'a'), (2, 'b')"})

    async def content(self) -> dict[str, Any]:
        """Everything that a client can see."""
        found: dict[str, Any] = {"list": await self.call("GET", "/v0/topics?page_size=1000")}
        for name in (topic["topic"] for topic in found["list"]["topics"]):
            found[f"state of {name}"] = await self.call("GET", f"/v0/topics/{name}")
            page: dict[str, Any] = {"next_from_seq": 0, "caught_up": False}
            while not page["caught_up"]:
                from_seq = page["next_from_seq"]
                body = {"from_seq": from_seq, "include_tags": True, "include_meta": True}
                page = await self.call("POST", f"/v0/topics/{name}/diff", body)
                found[f"{name} from {from_seq}"] = page
        found["table"] = await self.call("POST", "/api/sql", {"sql": "SELECT * FROM t ORDER BY id"})
        for group in ("billing", "search", "audit"):
            found[f"positions of {group}"] = await self.call("GET", f"/v0/groups/{group}/positions")
        for state in ("ready", "in_flight"):
            found[state] = await self.call("GET", f"/v0/topics/jobs/jobs?state={state}")
        return found


@pytest.fixture
async def filled(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A directory without shards, and what is in it."""
    path = tmp_path / "data"
    async with httpx.AsyncClient() as http:
        async with Server(settings(path)) as server:
            await Api(http, server.http_port).fill()
        async with Server(settings(path)) as server:
            return path, await Api(http, server.http_port).content()


async def test_everything_is_there_after_a_split(filled: tuple[Path, dict[str, Any]]) -> None:
    path, before = filled
    report = split(path, SHARDS)
    assert sum(report.topics) == len(before["list"]["topics"])
    assert all(report.topics)
    problems: list[Any] = []
    found = verify(path, problems.append, deep=True)
    assert not problems
    assert found.topics >= len(before["list"]["topics"])
    async with httpx.AsyncClient() as http:
        async with ShardedServer(settings(path, 1)) as server:
            api = Api(http, server.http_port)
            assert await api.content() == before
            again = await api.call(
                "POST", f"/v0/topics/{NAMES[0]}", {"records": [{"data": 0}], "idempotency_key": "k3"}
            )
            assert again["deduped"] is True
            for at, name in enumerate(NAMES[:6]):
                await api.call("POST", f"/v0/topics/{name}", {"records": [{"data": "after"}]})
                await api.call("GET", f"/v0/routers/r-{at}")
                copies = await api.call("POST", f"/v0/topics/copies-{at}/diff", {"from_seq": 0})
                assert [record["data"] for record in copies["records"]] == ["routed", "after"]
            page = await api.call("POST", "/v0/groups/search/consume", {"topic": NAMES[2]})
            assert page["records"][0]["$seq"] == 8
            body = {"topic": NAMES[2], "from_seq": 20}
            await api.call("POST", "/v0/groups/search/commit", body)
            await api.call("POST", "/api/sql", {"sql": "INSERT INTO t VALUES (3, 'c')"})
            made = await api.call("PUT", "/v0/topics/new", {})
            assert made["created"] is True
        async with Server(settings(report.before)) as server:
            assert await Api(http, server.http_port).content() == before


async def test_a_split_that_is_killed_leaves_the_directory_as_it_was(
    filled: tuple[Path, dict[str, Any]],
) -> None:
    path, before = filled
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(path))
    assert await process.wait() == 9
    assert shardfiles.count_of(path) is None
    async with httpx.AsyncClient() as http, Server(settings(path)) as server:
        assert await Api(http, server.http_port).content() == before
    assert sum(split(path, SHARDS).topics) == len(before["list"]["topics"])


async def test_the_command_says_what_it_did_and_what_it_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data"
    assert main(["split", "--data-dir", str(path)]) == 2
    async with Server(settings(path)):
        with pytest.raises(SplitError, match="this process has it open already"):
            split(path, 2)
    capsys.readouterr()
    assert main(["split", "--data-dir", str(path), "--shards", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "shards": 3, "topics": [0, 0, 0], "before": str(tmp_path / "data.unsplit")
    }  # fmt: skip
    assert main(["split", "--data-dir", str(path)]) == 1
    assert "has 3 shards already, and their number is fixed" in capsys.readouterr().err
    assert main(["split", "--data-dir", str(path), "--shards", "65"]) == 2


async def test_what_is_not_for_shards_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "data"
    async with ShardedServer(settings(path, 1)):
        pass
    assert main(["verify", "--data-dir", str(path)]) == 0
    (path / "shards" / "3" / "CURRENT").unlink()
    capsys.readouterr()
    assert main(["verify", "--data-dir", str(path)]) == 1
    assert "shard 3: " in capsys.readouterr().out
