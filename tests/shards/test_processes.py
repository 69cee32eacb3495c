"""`topics serve --processes`: a data directory with shards, through its real doors."""

import json
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.server import ServerProcess, StartFailedError
from support.waiting import poll
from topics_client import AsyncTopicsClient
from topics_server.errors import StartError
from topics_server.processes import share
from topics_server.processes.board import Board, ShardElsewhere
from topics_server.processes.ledger import Ledger
from topics_server.processes.serving import ShardedServer
from topics_server.processes.share import Share
from topics_server.server import Server
from topics_server.settings import Settings, SettingsError, load
from topics_service import __version__
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import ConfigInput
from topics_service.engine.placement import home_of
from topics_service.storage.memory import MemoryStore

NAMES = [f"topic-{number}" for number in range(12)]
assert len({home_of(name, 4) for name in NAMES}) == 4


def settings(path: Path, **others: Any) -> Settings:
    return Settings(data_dir=str(path), port=0, grpc_port=0, drain_seconds=1, processes=1, **others)


async def test_one_process_serves_all_shards_and_keeps_their_data(tmp_path: Path) -> None:
    async with (
        ShardedServer(settings(tmp_path, shards=4)) as server,
        AsyncTopicsClient(f"127.0.0.1:{server.grpc_port}") as client,
    ):
        for name in NAMES:
            assert (await client.append(name, {"n": name})).head_seq == 1
    assert json.loads((tmp_path / "shards.json").read_text()) == {"format": 1, "shards": 4}
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == ["0", "1", "2", "3"]
    async with ShardedServer(settings(tmp_path, shards=8)) as server, httpx.AsyncClient() as http:
        base = f"http://127.0.0.1:{server.http_port}/v0"
        for name in NAMES:
            reply = await http.post(f"{base}/topics/{name}/diff", json={"from_seq": 0})
            assert [record["data"] for record in reply.json()["records"]] == [{"n": name}]
        assert (await http.get(f"{base}/ready")).json() == {
            "status": "ready", "wal_replay_complete": True, "topics": len(NAMES)
        }  # fmt: skip
        counted = (await http.get(f"{base}/metrics", headers={"accept": "application/json"})).json()
        assert (counted["topics"], counted["records_live"], counted["ready"]) == (len(NAMES), len(NAMES), True)
        text = (await http.get(f"{base}/metrics")).text
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        types = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
        assert len(types) == len(set(types))
        assert samples["topics_records_live",] == len(NAMES)
        assert [samples["topics_topic_head_seq", name] for name in NAMES] == [1] * len(NAMES)
        assert samples["topics_http_request_seconds_count", "TopicsService.Diff", "2xx"] == len(NAMES)
        assert samples["topics_ready",] == samples["topics_build_info", __version__] == 1


async def test_a_directory_is_served_as_what_it_is(tmp_path: Path) -> None:
    async with ShardedServer(settings(tmp_path / "many", shards=2)):
        with pytest.raises(StartError, match=r"it is in use by another server|this process has it open"):
            ShardedServer(settings(tmp_path / "many")).open()
    async with Server(settings(tmp_path / "one")):
        pass
    with pytest.raises(StartError, match="has 2 shards: serve it with --processes 1 to 2"):
        Server(settings(tmp_path / "many")).open()
    with pytest.raises(StartError, match="has no shards: topics split"):
        ShardedServer(settings(tmp_path / "one")).open()
    with pytest.raises(StartError, match="has 2 shards, and so at most 2 processes, not 3"):
        ShardedServer(Settings(data_dir=str(tmp_path / "many"), processes=3)).open()
    (tmp_path / "many" / "shards.json").write_text("{")
    with pytest.raises(StartError, match=r"shards\.json is damaged"):
        ShardedServer(settings(tmp_path / "many")).open()


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"TOPICS_PROCESSES": "65"}, "is not a number from 0 to 64"),
        ({"TOPICS_SHARDS": "0"}, "TOPICS_SHARDS must be at least 1"),
        ({"TOPICS_PROCESSES": "2", "TOPICS_BULK_READERS": "1"}, "TOPICS_BULK_READERS is for a data directory without"),
        (
            {
                "TOPICS_PROCESSES": "2",
                "TOPICS_CLUSTER_STORE": "s3://bucket",
                "TOPICS_CLUSTER_ETCD": "127.0.0.1:2379",
                "TOPICS_CLUSTER_SECRET_FILE": "/secret",
            },
            "TOPICS_PROCESSES is not for a node of a cluster",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(environment: dict[str, str], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        load(environment, {})


async def test_statements_reach_the_tables_from_any_shard(tmp_path: Path) -> None:
    async with ShardedServer(settings(tmp_path, shards=4)) as server, httpx.AsyncClient() as http:

        async def sql(text: str) -> Any:
            reply = await http.post(f"http://127.0.0.1:{server.http_port}/api/sql", json={"sql": text})
            assert reply.status_code in (200, 201), reply.text
            return reply.json()

        await sql("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        await sql("INSERT INTO t VALUES (1), (2)")
        assert (await sql("SELECT count(*) AS n FROM t"))["results"][0]["rows"] == [[2]]


async def test_limits_count_what_is_in_other_shards(tmp_path: Path) -> None:
    limits = settings(tmp_path, shards=4, max_topics=4, max_total_bytes=2000)
    async with (
        ShardedServer(limits) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}/v0") as http,
    ):

        async def refusal(reply: httpx.Response) -> Any:
            assert reply.status_code == 429, reply.text
            return reply.json()["error"]["detail"]

        async def write(name: str, size: int) -> httpx.Response:
            return await http.post(f"/topics/{name}", json={"records": [{"data": "x" * (size - 2)}]})

        first, second, third = (next(name for name in NAMES if home_of(name, 4) == shard) for shard in range(3))
        no_topic = {"limit": "max_topics", "max": 4}
        assert (await http.put(f"/topics/{first}", json={"partition_count": 3})).status_code == 201
        assert await refusal(await http.put(f"/topics/{second}", json={"partition_count": 2})) == no_topic
        assert await refusal(await http.put(f"/topics/{first}", json={"partition_count": 5})) == no_topic
        assert (await http.put(f"/topics/{second}", json={})).status_code == 201
        assert await refusal(await write(third, 9)) == no_topic
        assert (await http.delete(f"/topics/{first}")).status_code == 200
        for name in (first, second, third):
            assert (await http.put(f"/topics/{name}", json={})).status_code in (200, 201)
        for name in (first, second):
            assert (await write(name, 1000)).status_code == 200
        assert await refusal(await write(third, 3)) == {"limit": "max_total_bytes", "max": 2000}
        assert (await http.post(f"/topics/{first}/delete", json={"before_seq": 2})).status_code == 200
        assert (await write(third, 1000)).status_code == 200


@pytest.fixture
def several(tmp_path: Path) -> Iterator[ServerProcess]:
    """Two processes with four shards."""
    server = ServerProcess(tmp_path, env={"TOPICS_PROCESSES": 2, "TOPICS_SHARDS": 4, "TOPICS_DRAIN_SECONDS": 5})
    with server:
        yield server


def call(server: ServerProcess, path: str, body: Any = None) -> Any:
    """The reply to a call on a new connection, which any of the processes may get."""
    with httpx.Client() as http:
        url = f"{server.base}{path}"
        reply = http.get(url) if body is None else http.post(url, json=body)
        assert reply.status_code in (200, 201), reply.text
        return reply.json()


def children(server: ServerProcess) -> list[int]:
    """The processes that serve."""
    return [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]


def requests_under_way(server: ServerProcess) -> int:
    """The requests of HTTP that all processes have read and not answered."""
    text = httpx.get(f"{server.base}/v0/metrics").text
    found = re.search(r"^topics_http_requests_in_flight (\S+)$", text, re.MULTILINE)
    assert found is not None, text
    return int(float(found[1]))


def acceptors(server: ServerProcess) -> Counter[int]:
    """The number of connections of HTTP at each process."""
    port, found = f"{server.http_port:04X}", Counter[int]()
    inodes = {
        fields[9]
        for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines())
        if fields[1].endswith(f":{port}") and fields[3] == "01"
    }
    for pid in children(server):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found[pid] += os.readlink(link).removeprefix("socket:[").removesuffix("]") in inodes
    return found


def test_any_process_answers_any_call(several: ServerProcess) -> None:
    for number, name in enumerate(NAMES):
        assert call(several, f"/v0/topics/{name}", {"records": [{"data": number}]})["head_seq"] == 1
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=several.base)) for _ in range(24)]
        for client in clients:
            for number, name in enumerate(NAMES):
                found = client.post(f"/v0/topics/{name}/diff", json={"from_seq": 0}).json()
                assert [record["data"] for record in found["records"]] == [number]
        assert min(acceptors(several).values()) > 0, "one process got all connections"
        assert {client.get("/v0/ready").json()["topics"] for client in clients} == {len(NAMES)}
        counts = [client.get("/v0/metrics", headers={"accept": "application/json"}).json() for client in clients]
        assert {(each["topics"], each["records_live"]) for each in counts} == {(len(NAMES), len(NAMES))}


def test_a_killed_process_is_started_again_and_has_what_was_acknowledged(several: ServerProcess) -> None:
    acknowledged: Counter[str] = Counter()
    before = children(several)
    for turn in range(3):
        for name in NAMES:
            body = {"records": [{"data": turn}], "config": {"durability": "fsync"}}
            acknowledged[name] = call(several, f"/v0/topics/{name}", body)["head_seq"]
        os.kill(before[turn % 2], signal.SIGKILL)
        poll(lambda old=before: len(children(several)) == 2 and children(several) != old, 20, "another process")
        before = children(several)
        poll(lambda: is_ready(several), 20, "readiness")
    for name in NAMES:
        assert call(several, f"/v0/topics/{name}/diff", {"from_seq": 0})["head_seq"] >= acknowledged[name]
    assert several.log.count("was killed by signal 9; starts again") == 3
    assert several.stop() == 0


def is_ready(server: ServerProcess) -> bool:
    """Return whether every process says so."""
    try:
        with httpx.Client() as http:
            return all(http.get(f"{server.base}/v0/ready").status_code == 200 for _ in range(8))
    except httpx.TransportError:
        return False


def test_a_stop_lets_calls_end_in_all_processes(several: ServerProcess) -> None:
    call(several, "/v0/topics/a", {"records": [{"data": 1}]})
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(call, several, "/v0/topics/a/diff", {"from_seq": 1, "wait_ms": 20_000}) for _ in range(8)]
        poll(lambda: requests_under_way(several) == 9, 10, "long polls, and the request that asks")
        assert several.stop(10) == 0
        assert [wait.result()["records"] for wait in waits] == [[]] * 8
    assert "processes do not end" not in several.log
    assert several.start().stop() == 0


def test_processes_end_with_their_parent(several: ServerProcess) -> None:
    before = children(several)
    os.kill(several.pid, signal.SIGKILL)
    poll(lambda: not any(Path(f"/proc/{pid}").exists() for pid in before), 15, "the end of the processes")
    several.wait(5)
    several.start()


def test_a_process_that_does_not_start_is_the_end_of_all(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, env={"TOPICS_PROCESSES": 2, "TOPICS_SHARDS": 2})
    server.start().stop()
    (tmp_path / "data" / "shards" / "1" / "CURRENT").unlink()
    with pytest.raises(StartFailedError, match="exited with 1") as raised:
        server.start()
    assert "CURRENT is missing" in str(raised.value)


def test_users_and_limits_are_those_of_all_processes(tmp_path: Path) -> None:
    env = {
        "TOPICS_PROCESSES": 2,
        "TOPICS_SHARDS": 2,
        "TOPICS_SQL_USERS": "root:secret:system",
        "TOPICS_API_KEYS": "busy",
        "TOPICS_MAX_INFLIGHT_PER_KEY": 3,
        "TOPICS_AUDIT_LOG": tmp_path / "audit.jsonl",
        "TOPICS_DRAIN_SECONDS": 5,
    }
    with ServerProcess(tmp_path / "server", env=env) as server:

        def sql(text: str) -> None:
            with httpx.Client(auth=("root", "secret")) as http:
                reply = http.post(f"{server.base}/api/sql", json={"sql": text})
                assert reply.json()["status"] == "success", reply.text

        def statuses(password: str) -> set[int]:
            found = set()
            for _ in range(16):
                with httpx.Client(auth=("ann", password)) as http:
                    found.add(http.get(f"{server.base}/v0/topics").status_code)
            return found

        assert statuses("first") == {401}
        sql("CREATE USER 'ann' WITH PASSWORD 'first' ROLE service")
        assert statuses("first") == {200}
        sql("ALTER USER 'ann' SET PASSWORD 'second'")
        assert statuses("second") == {200}
        assert 200 not in statuses("first"), "the password before"
        sql("DROP USER 'ann'")
        assert 200 not in statuses("second"), "the user is gone"

        key = {"authorization": "Bearer busy"}
        httpx.post(f"{server.base}/v0/topics/a", json={"records": [{"data": 1}]}, headers=key)

        def wait(_: int) -> int:
            body = {"from_seq": 1, "wait_ms": 3000}
            with httpx.Client(timeout=30) as http:
                return http.post(f"{server.base}/v0/topics/a/diff", json=body, headers=key).status_code

        with ThreadPoolExecutor(12) as pool:
            counts = Counter(pool.map(wait, range(12)))
        assert counts[200] in (3, 4), "two processes may both grant what is left"
        assert counts[429] == 12 - counts[200]
        (tmp_path / "audit.jsonl").rename(tmp_path / "audit.1")
        os.kill(server.pid, signal.SIGHUP)
        poll(lambda: (tmp_path / "audit.jsonl").exists(), 10, "the new audit log")
        users = [json.loads(line)["action"] for line in (tmp_path / "audit.1").read_text().splitlines()]
        assert users.count("sql.user") == 3
        sql("CREATE USER 'bob' WITH PASSWORD 'third' ROLE user")
        poll(lambda: "sql.user" in (tmp_path / "audit.jsonl").read_text(), 10, "an entry")
        assert server.stop() == 0


def test_a_shard_counts_what_the_others_have() -> None:
    board = Board(3)
    for shard, nbytes in enumerate((100, 10, 5)):
        board.take(shard, nbytes)
    assert [ShardElsewhere(board, shard).taken for shard in range(3)] == [15, 105, 110]
    assert [board.ready(shard).reason for shard in range(3)] == ["not_ready"] * 3


def test_a_long_error_of_a_process_comes_to_its_parent() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        part = Share(process=0, processes=1, count=1, sockets=Path(), control=theirs, board=Board(1), ledger=Ledger(1))
        part.tell(failed="é" * 100_000)
        message = share.read(ours)
    assert message is not None
    assert message["failed"].startswith("ééé")


def test_a_shard_shows_its_topics_with_the_write_that_made_them() -> None:
    engine, board = Engine(MemoryStore(), SystemClock()), Board(2)
    for name in NAMES:
        engine.put_topic(name, ConfigInput())
    board.measure(1, engine)
    assert board.ready(1).topics == len(NAMES)
    assert ShardElsewhere(board, 0).partitions == len(NAMES)
