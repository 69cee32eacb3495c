"""The programs in examples/, as they are started, and killed in the middle of their work."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.guide import ROOT
from support.server import DIE_WITH_US, ServerProcess
from support.waiting import poll
from topics_client import NewRecord, Retry, TopicConfig, TopicsClient

KEYS = "admin,mirror:read+write:orders|mirror:"


class Program:
    """An example that runs; killed at the end of the test, whatever happens."""

    def __init__(self, name: str, *arguments: str, url: str = "", key: str = "", work_dir: Path = ROOT) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        env |= {"TOPICS_URL": url, "TOPICS_API_KEY": key, "PYTHONWARNINGS": "error"}
        self.process = subprocess.Popen(
            [*DIE_WITH_US, sys.executable, str(ROOT / "examples" / name), *arguments],
            cwd=work_dir,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def kill(self) -> str:
        """SIGKILL; what it said."""
        self.process.kill()
        return self.process.communicate(timeout=30)[0]

    def stop(self) -> str:
        """SIGTERM, as a supervisor sends it; what it said."""
        self.process.terminate()
        return self.end(0)

    def end(self, code: int) -> str:
        """Wait for its end with this exit code; what it said."""
        said, _ = self.process.communicate(timeout=20)
        assert self.process.returncode == code, said
        return said


@contextmanager
def program(name: str, *arguments: str, url: str = "", key: str = "", work_dir: Path = ROOT) -> Iterator[Program]:
    started = Program(name, *arguments, url=url, key=key, work_dir=work_dir)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    place = tmp_path_factory.mktemp("sites")
    with (
        ServerProcess(place / "a", env={"TOPICS_API_KEYS": KEYS}) as a,
        ServerProcess(place / "b", env={"TOPICS_API_KEYS": KEYS}, same_ports=True) as b,
    ):
        yield a, b


@pytest.fixture
def sites(servers: tuple[ServerProcess, ServerProcess]) -> Iterator[tuple[TopicsClient, TopicsClient]]:
    a, b = servers
    patience = Retry(seconds=10)
    with (
        TopicsClient(a.grpc_target, key="admin", retry=patience) as here,
        TopicsClient(b.grpc_target, key="admin", retry=patience) as there,
    ):
        yield here, there
        for site in (here, there):
            for topic in [each.topic for each in site.list_topics()]:
                site.delete_topic(topic)


@contextmanager
def mirror(servers: tuple[ServerProcess, ServerProcess], *arguments: str, key: str = "admin") -> Iterator[Program]:
    a, b = (f"topics://{key}@{server.grpc_target}" for server in servers)
    with program("mirror.py", "--site", f"a={a}", "--site", f"b={b}", *arguments) as started:
        yield started


def count(site: TopicsClient, topic: str = "orders") -> int:
    return next((each.count for each in site.list_topics(topic) if each.topic == topic), 0)


def test_a_mirror_that_is_killed_again_and_again_copies_each_record_once(
    servers: tuple[ServerProcess, ServerProcess], sites: tuple[TopicsClient, TopicsClient]
) -> None:
    a, b = sites
    for site in sites:
        site.put_topic("orders")  # so that the mirror's key need not make it
    for part in range(5):
        with mirror(servers, "orders", key="mirror") as running:
            for start in range(4000 * part, 4000 * part + 4000, 1000):
                a.append_many("orders", [{"a": number} for number in range(start, start + 1000)])
            b.append_many("orders", [{"b": number} for number in range(1000 * part, 1000 * part + 1000)])
            poll(lambda part=part: count(b) >= 5000 * part + 3000, 20)  # type: ignore[misc]
            running.kill()
    with mirror(servers, "orders", key="mirror") as running:
        poll(lambda: count(a) == count(b) == 25_000, 20)
        a.append("orders", {"a": 20_000})
        b.append("orders", {"b": 5_000})
        poll(lambda: count(a) == count(b) == 25_002, 20)
        poll(lambda: [each.lag for each in a.fetch_positions("mirror:a>b")] == [0], 20)  # also past copies of b's
        running.stop()
    for site in sites:
        values = [record.value for record in site.read("orders")]
        assert [value["a"] for value in values if "a" in value] == list(range(20_001))
        assert [value["b"] for value in values if "b" in value] == list(range(5_001))
    (position,) = a.fetch_positions("mirror:a>b")
    about = json.loads(position.metadata)
    assert (position.from_seq, about["end"]) == (25_002, 25_002)
    assert about["head"] in (25_001, 25_002), "that behind its last copy, which b's own last record may have come after"

    a.delete_group("mirror:a>b")  # as when it has expired
    with mirror(servers, "orders") as running:
        a.append("orders", {"a": 20_001})
        poll(lambda: count(b) == 25_003, 20)
        running.stop()
    copied = [record.value["a"] for record in b.read("orders") if "a" in record.value]
    assert copied == list(range(20_002))


def test_a_mirror_outlives_its_servers(
    servers: tuple[ServerProcess, ServerProcess], sites: tuple[TopicsClient, TopicsClient]
) -> None:
    a, b = sites
    there = servers[1]
    with mirror(servers, "--one-way", "chat:*") as running:
        a.append_many("chat:1", range(100))
        poll(lambda: count(b, "chat:1") == 100, 20)
        there.kill()
        a.append_many("chat:1", range(100, 200))
        there.start()
        poll(lambda: b.ready() and count(b, "chat:1") == 200, 20)
        a.delete_topic("chat:1")
        a.append("chat:1", 200)  # the same name, another topic
        poll(lambda: count(b, "chat:1") == 201, 20)
        said = running.stop()
    assert [record.value for record in b.read("chat:1")] == list(range(201))
    assert "chat:1: deleted at a; its copy stays" in said or 'topic "chat:1" does not exist; again in' in said
    assert count(a, "chat:1") == 1


@pytest.mark.parametrize("happened", [True, False])
def test_what_was_under_way_when_it_was_killed_is_found_out_without_the_key(
    servers: tuple[ServerProcess, ServerProcess], sites: tuple[TopicsClient, TopicsClient], happened: bool
) -> None:
    a, b = sites
    topic = f"found-out-{happened}"
    a.append_many(topic, [1, 2, 3])
    if happened:
        with mirror(servers, "--one-way", topic) as running:
            poll(lambda: count(b, topic) == 3, 20)
            running.stop()
        b.put_topic(topic, TopicConfig(idempotency_window_ms=0))  # long after: the key is forgotten
    a.commit_positions("mirror:a>b", {topic: 1}, metadata=json.dumps({"end": 3, "head": 0}))
    with mirror(servers, "--one-way", topic) as running:
        a.append(topic, 4)
        poll(lambda: 4 in [record.value for record in b.read(topic)] if count(b, topic) else False, 20)
        running.stop()
    assert [record.value for record in b.read(topic)] == ([1, 2, 3, 4] if happened else [2, 3, 4])


def test_copies_are_the_originals_and_say_where_they_come_from(
    servers: tuple[ServerProcess, ServerProcess], sites: tuple[TopicsClient, TopicsClient]
) -> None:
    a, b = sites
    a.put_topic("orders", TopicConfig(cap_records=2, durability="fsync"), partitions=2)
    a.append_many("orders", [0, NewRecord(1.50, "t", "web-1", {"trace": "x"}), b"\x00\xff"])
    a.append("orders", "second", partition=1)
    crowded = {str(number): number for number in range(64)}
    with mirror(servers, "orders", "orders@1") as running:
        poll(lambda: count(b) == 3, 20)
        a.append("orders", None, meta=crowded)
        poll(lambda: b.get_topic("orders").head_seq == 3, 20)
        said = running.stop()
    life = a.get_topic("orders").topic_id
    binary, full = b.read("orders", last=2)
    assert (binary.data, binary.binary, binary.node) == (b"\x00\xff", True, "a")
    assert (full.value, full.meta) == (None, crowded)  # no room for a stamp
    assert b.get_topic("orders").config == a.get_topic("orders").config
    (other,) = b.read("orders", partition=1)
    assert (other.value, other.meta["mirror"]["seq"]) == ("second", 1)
    assert "orders: seq 1 to 1 is gone (from_seq_too_old) and can't be copied" in said
    assert count(a) == 3  # nothing came back
    stamp = binary.meta["mirror"]
    assert stamp == {"site": "a", "topic_id": life, "seq": 3, "ts": stamp["ts"]}


def test_a_mirror_waits_for_room(
    servers: tuple[ServerProcess, ServerProcess], sites: tuple[TopicsClient, TopicsClient]
) -> None:
    a, b = sites
    a.append_many("room", [1, 2])
    b.put_topic("room", TopicConfig(cap_records=2, discard="reject"))
    with mirror(servers, "--one-way", "room") as running:
        poll(lambda: count(b, "room") == 2, 20)
        a.append("room", 3)
        assert running.process.stdout is not None
        poll(lambda: "topic_full" in running.process.stdout.readline(), 20)  # type: ignore[union-attr]
        b.delete_records("room", before_seq=2)
        poll(lambda: b.get_topic("room").head_seq == 3, 20)
        running.stop()
    assert [record.value for record in b.read("room")] == [2, 3]


def test_sites_that_wait_for_their_mirrors_do_not_wait_for_each_other(
    servers: tuple[ServerProcess, ServerProcess], sites: tuple[TopicsClient, TopicsClient]
) -> None:
    a, b = sites
    a.put_topic("orders", TopicConfig(cap_records=100, retain_until_acked_by=["mirror:a>b"]))
    b.put_topic("orders")
    with mirror(servers, "orders") as running:
        for start in range(0, 150, 50):  # more than a has room for, were the copies to be copied first
            b.append_many("orders", range(start, start + 50))
            poll(lambda minimum=start + 50: a.get_topic("orders").head_seq >= minimum, 20)  # type: ignore[misc]
        running.stop()
    assert [record.value for record in a.read("orders", last=100)] == list(range(50, 150))


def test_the_copy_behind_a_gap_tells_of_it(
    servers: tuple[ServerProcess, ServerProcess], sites: tuple[TopicsClient, TopicsClient]
) -> None:
    a, b = sites
    a.put_topic("gappy", TopicConfig(cap_records=1))
    a.append_many("gappy", [1])
    a.append_many("gappy", [NewRecord(2, "tag", "web-1", {"trace": "x"})])
    with mirror(servers, "--one-way", "gappy") as running:
        poll(lambda: count(b, "gappy") == 1, 20)
        running.stop()
    (copy,) = b.read("gappy")
    stamp = copy.meta["mirror"]
    assert (copy.value, copy.tag, copy.node, copy.meta["trace"]) == (2, "tag", "a", "x")
    assert (stamp["seq"], stamp["node"], stamp["gap"]) == (2, "web-1", [1, 1, "from_seq_too_old"])


def test_a_mirror_says_what_it_can_not_do(
    servers: tuple[ServerProcess, ServerProcess], sites: tuple[TopicsClient, TopicsClient]
) -> None:
    a, _ = sites
    with program("mirror.py", "--site", "a=topics://127.0.0.1:1", "orders") as running:
        assert "--site NAME=URL at least twice" in running.end(2)
    with mirror(servers, "orders", key="wrong") as running:
        assert "\nmirror: unauthorized: " in running.end(1)
    a.put_topic("jobs", TopicConfig(type="queue"))
    with mirror(servers, "--one-way", "orders", "jobs") as running:
        poll(lambda: count(a) == 0 and list(a.list_topics("orders")), 20)
        a.append("orders", 1)
        poll(lambda: a.list_groups("mirror:") and count(sites[1]) == 1, 20)
        a.delete_topic("orders")
        said = running.end(1)
    assert "jobs: a queue, which is not mirrored" in said
    assert not list(sites[1].list_topics("jobs"))
    assert "mirror: topic_deleted: orders was deleted at a; start again without it, or to make it anew" in said


def test_a_projection_that_is_killed_again_and_again_counts_each_event_once(
    servers: tuple[ServerProcess, ServerProcess], sites: tuple[TopicsClient, TopicsClient], tmp_path: Path
) -> None:
    a, _ = sites
    url = f"topics://admin@{servers[0].grpc_target}"
    arguments = ("projection.py", "--topic", "sales", "--database", str(tmp_path / "sales.db"), "--follow")

    def sold() -> int:
        with sqlite3.connect(f"file:{tmp_path / 'sales.db'}?mode=ro", uri=True) as database:
            try:
                return database.execute("SELECT coalesce(sum(orders), 0) FROM customers").fetchone()[0]
            except sqlite3.OperationalError:  # not made yet
                return 0

    events = [{"customer": f"c{number % 7}", "total": 0.5} for number in range(2000)]
    a.append_many("sales", events)
    (tmp_path / "sales.db").touch()
    for round_ in range(1, 6):
        with program(*arguments, url=url) as running:
            a.append_many("sales", events)
            poll(lambda minimum=2000 * round_: sold() >= minimum, 20)  # type: ignore[misc]
            running.kill()
    with program(*arguments, url=url) as running:
        poll(lambda: sold() == 12_000, 20)
        a.append_many("sales", events)
        poll(lambda: sold() == 14_000, 20)
        running.stop()
    with sqlite3.connect(tmp_path / "sales.db") as database:
        assert database.execute("SELECT sum(orders), sum(total) FROM customers").fetchone() == (14_000, 7000.0)
        assert database.execute("SELECT from_seq FROM place").fetchone() == (14_000,)

    a.delete_topic("sales")  # recreated: everything starts again, and losses are reported
    a.put_topic("sales", TopicConfig(cap_records=1))
    a.append("sales", events[0])
    a.append("sales", events[1])
    with program(*arguments[:-1], url=url) as running:
        running.end(0)
    with sqlite3.connect(tmp_path / "sales.db") as database:
        assert database.execute("SELECT * FROM customers").fetchall() == [("c1", 1, 0.5)]
        assert [row[:2] for row in database.execute("SELECT * FROM gaps")] == [(1, 1)]


def test_a_projection_says_what_is_missing(servers: tuple[ServerProcess, ServerProcess], tmp_path: Path) -> None:
    url = f"topics://admin@{servers[0].grpc_target}"
    with program("projection.py", "--topic", "nowhere", url=url, work_dir=tmp_path) as running:
        assert running.end(1) == 'projection: topic_not_found: topic "nowhere" does not exist\n'


def test_workers_that_are_killed_again_and_again_leave_each_result_once(
    servers: tuple[ServerProcess, ServerProcess], sites: tuple[TopicsClient, TopicsClient]
) -> None:
    a, _ = sites
    url = f"topics://admin@{servers[0].grpc_target}"
    a.put_topic("texts", TopicConfig(type="queue", lease_ms=500))
    a.put_topic("counts")
    jobs, rounds = 1500, 5
    arguments = ("worker.py", "--queue", "texts", "--results", "counts")
    with program(*arguments, url=url) as steady:  # never killed
        for first in range(0, jobs, jobs // rounds):
            with program(*arguments, url=url) as running:
                numbers = range(first, first + jobs // rounds)
                a.append_many("texts", [{"id": number, "text": "word " * (number % 5)} for number in numbers])
                half = first + len(numbers) // 2
                poll(lambda half=half: count(a, "counts") >= half, 20)  # type: ignore[misc]
                running.kill()
        poll(lambda: count(a, "texts") == 0, 20)
        said = steady.stop()
    assert "WorkerStatistics(" in said
    results = {record.value["id"]: record.value["words"] for record in a.read("counts")}
    assert results == {number: number % 5 for number in range(jobs)}
    assert count(a, "counts") == jobs  # though a job may be done twice

    a.append("texts", {"id": "last", "text": ""})
    with program(*arguments, "--until-empty", url=url) as running:
        running.end(0)
    with program("worker.py", "--queue", "nowhere", url=url) as running:
        assert "worker: topic_not_found: " in running.end(1)
