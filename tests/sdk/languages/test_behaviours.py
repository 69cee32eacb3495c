"""What every client does, in Python, in Go, in TypeScript on Node and in TypeScript as browsers have it (over HTTP).

Each behaviour is written once. It drives one program per language, which prints the client's events (`driver.py`,
`driver/main.go`, `driver.mjs`), against a real server.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from support.missing import without
from support.rough_proxy import RoughProxy
from support.server import DIE_WITH_US, ServerProcess
from support.waiting import poll
from topics_client import NewRecord, Retry, TopicConfig, TopicsClient

HERE = Path(__file__).parent
NODE = HERE / "node"
SECONDS = 30.0
LOST_SECONDS = 90.0  # where calls are lost: a client gives one up after 30 s, a long poll over HTTP after 40

pytestmark = pytest.mark.timeout(300)  # the first one builds grpc in Go

for_workers = pytest.mark.parametrize("language", ["python", "go", "node"], indirect=True)  # none for browsers

Line = dict[str, Any]
Drive = Callable[..., "Driver"]


class Driver:
    """A program that does one operation; the lines that it prints come in while it runs."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.lines: list[Line] = []
        self._process = subprocess.Popen(
            [*DIE_WITH_US, *command],
            env=os.environ | {"PYTHONWARNINGS": "error"} | env,
            cwd=NODE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._said = ""
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._take, self._listen)]
        for reader in self._readers:
            reader.start()

    def _take(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        self._said = self._process.stderr.read()

    def having(self, name: str) -> list[Any]:
        """The values of all lines that have a member."""
        return [line[name] for line in list(self.lines) if name in line]

    def until(self, name: str, count: int = 1, seconds: float = SECONDS) -> list[Any]:
        """The values of the lines with a member, once there are enough."""

        def enough() -> list[Any]:
            has_ended = self._process.poll() is not None
            if has_ended:  # its last lines may not be read yet
                for reader in self._readers:
                    reader.join(SECONDS)
            values = self.having(name)
            assert len(values) >= count or not has_ended, (self._said, self.lines[-5:])
            return values if len(values) >= count else []

        return poll(enough, seconds, f"{count} lines with {name}; {self.lines[-5:]}")

    def end(self, seconds: float = SECONDS) -> list[Line]:
        """All lines, once it has ended well."""
        assert self._process.wait(seconds) == 0, (self._said, self.lines[-5:])
        for reader in self._readers:
            reader.join(SECONDS)
        return self.lines

    def stop(self) -> list[Line]:
        """End an endless scenario; all its lines."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        return self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=10)


@pytest.fixture(scope="session")
def go_driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The driver in Go, built."""
    if shutil.which("go") is None:
        without("go is not installed")
    program = tmp_path_factory.mktemp("go") / "driver"
    done = subprocess.run(
        ["go", "build", "-o", str(program), "./driver"], cwd=HERE / "go", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return str(program)


@pytest.fixture(params=["python", "go", "node", "browser"])
def language(request: pytest.FixtureRequest) -> str:
    """Which client it is."""
    return str(request.param)


@pytest.fixture
def command(language: str, request: pytest.FixtureRequest) -> list[str]:
    """How to run the driver of the client."""
    if language == "python":
        return [sys.executable, str(HERE / "python/driver.py")]
    if language == "go":
        return [request.getfixturevalue("go_driver")]
    if not (NODE / "node_modules/topics-sdk/client").exists():
        without("the packages for Node are not installed: make test-sdk does it")
    return ["node", str(NODE / "driver.mjs")]


@pytest.fixture
def drive(command: list[str], language: str) -> Iterator[Drive]:
    """Starts a driver: the server or its address, the operation, its arguments. All are ended with the test."""
    started: list[Driver] = []

    def drive(server: ServerProcess, operation: str, *, through: str = "", **ask: Any) -> Driver:
        env = {"TOPICS_ADDRESS": through or server.grpc_target}
        if language == "browser":
            env["TOPICS_HTTP"] = f"http://{through}" if through else server.base
        started.append(Driver([*command, operation, json.dumps(ask)], env))
        return started[-1]

    yield drive
    for driver in started:
        driver.__exit__()


@pytest.fixture
def topics(shared: ServerProcess) -> Iterator[TopicsClient]:
    """A client of the server that tests share."""
    with TopicsClient(shared.grpc_target, retry=Retry(seconds=10)) as client:
        yield client


class Restarted:
    """A server that is killed, and comes back on the same ports and data."""

    def __init__(self, work_dir: Path) -> None:
        self.server = ServerProcess(work_dir, same_ports=True).start()
        self.client = TopicsClient(self.server.grpc_target, retry=Retry(seconds=20))

    def again(self) -> None:
        self.server.kill()
        self.server.start()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarted]:
    """A server that tests kill, one after the other."""
    restarted = Restarted(tmp_path_factory.mktemp("killed"))
    yield restarted
    restarted.client.close()
    restarted.server.kill()


def seqs(lines: list[Line]) -> list[int]:
    return [line["seq"] for line in lines if "seq" in line]


def value(line: Line) -> Any:
    """The payload of a record: bytes, or a JSON value."""
    data = base64.b64decode(line["data"])
    return data if line["binary"] else json.loads(data)


def test_a_read_tells_every_record_and_every_gap(
    drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str
) -> None:
    topics.put_topic(name, TopicConfig(cap_records=4))
    topics.append_many(name, [NewRecord({"n": n}, f"t{n % 2}", "web", {"trace": n}) for n in range(1, 6)])
    topics.append(name, "untagged")
    lines = drive(shared, "read", topic=name).end()
    assert lines[0] == {"gap": [1, 2, "cap"]}
    assert seqs(lines) == [3, 4, 5, 6]
    assert [(line["tag"], line["node"], line["meta"]) for line in lines[1:3]] == [
        ("t1", "web", {"trace": 3}),
        ("t0", "web", {"trace": 4}),
    ]
    assert (value(lines[4]), lines[4]["tag"], lines[4]["node"], lines[4]["meta"]) == ("untagged", None, None, {})
    assert lines[-1] == {"end": 6}
    assert seqs(drive(shared, "read", topic=name, **{"from": 4}).end()) == [5, 6]
    assert seqs(drive(shared, "read", topic=name, last=1).end()) == [6]


def test_deletes_are_silent_and_tags_filter(
    drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str
) -> None:
    topics.append_many(name, [NewRecord(n, "odd" if n % 2 else "even") for n in range(1, 9)])
    topics.delete_records(name, before_seq=3)
    topics.delete_records(name, tag="even", before_seq=7)
    lines = drive(shared, "read", topic=name).end()
    assert lines[:-1] == [line for line in lines if "seq" in line]
    assert seqs(lines) == [3, 5, 7, 8]
    assert lines[-1] == {"end": 8}
    assert seqs(drive(shared, "read", topic=name, tag="even").end()) == [8]
    filtered = drive(shared, "read", topic=name, tag_prefix="od").end()
    assert (seqs(filtered), filtered[-1]) == ([3, 5, 7], {"end": 8})


VALUES: list[Any] = [
    None, True, 0, -1.5, 2**52, "", "Grüße, 世界 \U0001f680 \u2028 \\ \" \n", [], {}, {"a": [{"b": None}], "": "\x00"},
]  # fmt: skip
BYTES = [b"", bytes(range(256)), b"{not json"]


def test_values_come_back_as_they_were_written(
    drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str, language: str
) -> None:
    records: list[Line] = [{"value": each, "tag": "täg", "meta": {"ü": each}} for each in VALUES]
    binary = [{"value": {"$bytes": base64.b64encode(each).decode()}} for each in BYTES]
    if language == "browser":  # HTTP takes JSON alone, which is said before anything is sent
        [refused] = drive(shared, "append", topic=name, records=[*records, *binary]).end()
        assert refused["error"] == "invalid_request"
    else:
        records += binary
    [done] = drive(shared, "append", topic=name, records=records).end()
    assert done == {"first": 1, "last": len(records), "deduped": False}
    if language == "browser":
        topics.append_many(name, BYTES)
    stored = list(topics.read(name))
    assert [record.value for record in stored] == [*VALUES, *BYTES]
    assert [record.meta for record in stored[: len(VALUES)]] == [{"ü": each} for each in VALUES]
    lines = drive(shared, "read", topic=name).end()[:-1]
    assert [value(line) for line in lines] == [*VALUES, *BYTES]
    assert [line["tag"] for line in lines] == ["täg"] * len(VALUES) + [None] * len(BYTES)
    assert [line["meta"] for line in lines[: len(VALUES)]] == [{"ü": each} for each in VALUES]


def test_the_same_key_stores_once(drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str) -> None:
    for deduped in (False, True):
        [done] = drive(shared, "append", topic=name, key="once", records=[{"value": 1}, {"value": 2}]).end()
        assert done == {"first": 1, "last": 2, "deduped": deduped}
    assert topics.get_topic(name).head_seq == 2


def test_errors_have_reasons_and_facts(drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str) -> None:
    expected = {"error": "topic_not_found", "detail": {"topic": name}, "transient": False}
    assert drive(shared, "read", topic=name).end() == [expected]
    assert drive(shared, "watch", topics={name: 0}).end() == [expected]
    topics.put_topic(name, TopicConfig(cap_records=1, discard="reject"))
    topics.append(name, 1)
    [refused] = drive(shared, "append", topic=name, records=[{"value": 2}]).end()
    assert (refused["error"], refused["detail"]["cap_records"], refused["transient"]) == ("topic_full", "1", False)


def test_many_records_are_produced_and_read_in_order(
    drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str
) -> None:
    [done] = drive(shared, "produce", topic=name, count=12_000).end()
    assert done["stored"] == list(range(1, 12_001))
    assert [record.value["n"] for record in topics.read(name)] == list(range(12_000))
    lines = drive(shared, "read", topic=name).end()
    assert lines[-1] == {"end": 12_000}
    assert [value(line)["n"] for line in lines[:-1]] == list(range(12_000))


def test_a_watch_tells_gaps(drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str) -> None:
    topics.put_topic(name, TopicConfig(cap_records=2))
    topics.append_many(name, range(5))
    watching = drive(shared, "watch", topics={name: 0})
    watching.until("caught_up")
    first, *rest = watching.stop()
    assert first == {"gap": [1, 3, "from_seq_too_old"]}
    assert seqs(rest) == [4, 5]
    assert rest[-1] == {"end": {name: 5}}


def test_a_topic_that_was_made_anew_is_a_gap(
    drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str
) -> None:
    topics.append(name, "new")
    lines = drive(shared, "read", topic=name, **{"from": 7}).end()
    assert lines[0]["gap"][2] == "recreated"
    assert seqs(lines) == [1]
    assert lines[-1] == {"end": 1}


def test_nothing_is_stored_twice_or_lost_over_a_rough_network(
    drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str, language: str
) -> None:
    topics.put_topic(name)
    target = f"127.0.0.1:{shared.http_port}" if language == "browser" else shared.grpc_target
    with RoughProxy(target, seed=7) as network:
        reading = drive(shared, "read", topic=name, follow=True, through=network.target)
        producing = drive(shared, "produce", topic=name, count=300, pause_ms=5, through=network.target)
        poll(lambda: network.done["lost"] and network.done["cut"] + network.done["swallow"] >= 5, LOST_SECONDS)
        network.calm()
        [done] = producing.end(LOST_SECONDS)
        reading.until("seq", 300, LOST_SECONDS)
        lines = reading.stop()
    assert done == {"stored": list(range(1, 301))}
    assert [record.value["n"] for record in topics.read(name)] == list(range(300))
    assert seqs(lines) == list(range(1, 301))


def test_a_write_whose_answer_is_lost_is_not_made_again_once_its_key_may_be_forgotten(
    drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str, language: str
) -> None:
    topics.put_topic(name, TopicConfig(idempotency_window_ms=500))  # shorter than any repeat
    target = f"127.0.0.1:{shared.http_port}" if language == "browser" else shared.grpc_target
    with RoughProxy(target, seed=0) as network:
        network.calm()
        # It goes on for longer than a busy machine may take to look at the topic.
        producing = drive(shared, "produce", topic=name, count=250, pause_ms=20, through=network.target)
        poll(lambda: topics.get_topic(name).head_seq >= 3, SECONDS)
        network.swallow()
        poll(lambda: network.done["lost"], SECONDS)
        network.cut()
        [refused] = producing.end()
    assert (refused["error"], refused["transient"]) == ("outcome_unknown", False)
    stored = [record.value["n"] for record in topics.read(name)]
    assert stored == sorted(set(stored))
    assert stored[-1] == 249  # what was sent behind it is stored all the same


@for_workers
def test_a_job_that_failed_is_tried_again(drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str) -> None:
    topics.put_topic(name, TopicConfig(type="queue"))
    topics.append_many(name, range(3))
    working = drive(shared, "work", queue=name, fail_first=1, concurrency=2)
    working.until("done", 3)
    poll(lambda: topics.get_topic(name).count == 0, SECONDS)
    lines = working.stop()
    tried = sorted((line["job"], line["deliveries"]) for line in lines if "job" in line)
    assert tried == [(seq, times) for seq in (1, 2, 3) for times in (1, 2)]
    assert lines[-1] == {"acked": 3, "retried": 3, "released": 0, "lost_count": 0}


@for_workers
def test_a_job_that_comes_back_before_the_answer_to_its_return_is_not_lost(
    drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str
) -> None:
    """The server delivers it again 1 ms after it was given back, on a stream that may be ahead of the answer."""
    topics.put_topic(name, TopicConfig(type="queue"))
    topics.append_many(name, range(200))
    working = drive(shared, "work", queue=name, fail_first=3, backoff_ms=1, concurrency=8)
    working.until("done", 200)
    poll(lambda: topics.get_topic(name).count == 0, SECONDS)
    assert working.stop()[-1] == {"acked": 200, "retried": 600, "released": 0, "lost_count": 0}


@for_workers
def test_a_lease_is_extended_while_its_job_runs(
    drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str
) -> None:
    topics.put_topic(name, TopicConfig(type="queue", lease_ms=1500))
    topics.append(name, 1)
    working = drive(shared, "work", queue=name, busy_ms=4000)
    working.until("done")
    poll(lambda: topics.get_topic(name).count == 0, SECONDS)
    assert working.stop()[-1] == {"acked": 1, "retried": 0, "released": 0, "lost_count": 0}
    assert working.having("deliveries") == [1]


@for_workers
def test_a_worker_that_is_stopped_finishes_what_runs_and_takes_no_more(
    drive: Drive, shared: ServerProcess, topics: TopicsClient, name: str
) -> None:
    topics.put_topic(name, TopicConfig(type="queue"))
    topics.append_many(name, range(10))
    working = drive(shared, "work", queue=name, busy_ms=700, concurrency=2)
    working.until("job", 2)
    lines = working.stop()
    assert lines[-1] == {"acked": 2, "retried": 0, "released": 0, "lost_count": 0}
    assert sorted(working.having("done")) == [1, 2]
    assert [view.deliveries for view in topics.list_jobs(name)] == [0] * 8


def test_everything_goes_on_after_the_server_was_killed(drive: Drive, killed: Restarted, language: str) -> None:
    client, server = killed.client, killed.server
    log, a, b, c, jobs = (f"{language}.{each}" for each in ("log", "a", "b", "c", "jobs"))
    client.append_many(log, range(3))
    client.append_many(a, [1, 2])
    client.append(f"{b}:1", 1)
    client.append(c, 1)
    reading = drive(server, "read", topic=log, follow=True)
    watching = drive(server, "watch", topics={a: 1, f"{b}:*": 0, c: "tail"})
    reading.until("seq", 3)
    watching.until("caught_up", 3)
    client.append(c, 2)
    client.append(f"{b}:2", 1)  # made while it is watched
    watching.until("seq", 4)
    if language != "browser":
        client.put_topic(jobs, TopicConfig(type="queue"))
        client.append(jobs, 1)
        quick = drive(server, "work", queue=jobs)
        quick.until("done")
        poll(lambda: client.get_topic(jobs).count == 0, SECONDS)
        client.put_topic(f"{jobs}.slow", TopicConfig(type="queue"))
        client.append(f"{jobs}.slow", 1)
        slow = drive(server, "work", queue=f"{jobs}.slow", busy_ms=60_000, lease_ms=1000)
        slow.until("job")

    killed.again()

    client.append_many(log, range(3, 5))
    reading.until("seq", 5)
    lines = reading.stop()
    assert [value(line) for line in lines[:-1]] == list(range(5))
    assert (seqs(lines), lines[-1]) == ([1, 2, 3, 4, 5], {"end": 5})

    for topic in (a, f"{b}:1", f"{b}:2", f"{b}:3", c):
        client.append(topic, "after")
    watching.until("seq", 9)
    client.delete_topic(f"{b}:1")
    watching.until("deleted")
    lines = watching.stop()
    told: dict[str, list[int]] = {}
    for line in lines:
        if "seq" in line:
            told.setdefault(line["topic"], []).append(line["seq"])
    assert told == {a: [2, 3], f"{b}:1": [1, 2], f"{b}:2": [1, 2], f"{b}:3": [1], c: [2, 3]}
    assert [line["deleted"] for line in lines if "deleted" in line] == [f"{b}:1"]
    cursor = lines[-1]["end"]
    assert cursor == {a: 3, f"{b}:2": 2, f"{b}:3": 1, c: 3}
    client.append(a, "more")
    again = drive(server, "watch", topics={a: 0, f"{b}:*": 0, c: 0}, cursor=cursor)
    again.until("caught_up", 4)
    assert [(line["topic"], line["seq"]) for line in again.stop() if "seq" in line] == [(a, 4)]

    if language != "browser":
        assert slow.until("lost") == [1]  # leases don't survive a crash
        assert slow.until("job", 2) == [1, 1]
        client.delete_topic(f"{jobs}.slow")
        assert slow.until("error")[0] in ("topic_not_found", "not_a_queue")
        slow.end()
        client.append_many(jobs, range(1, 20))
        quick.until("done", 20)
        poll(lambda: client.get_topic(jobs).count == 0, SECONDS)
        assert quick.stop()[-1]["acked"] == 20
        assert sorted(quick.having("done")) == list(range(1, 21))
