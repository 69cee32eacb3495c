"""The disk is full, and has room again: nothing that was acknowledged is lost, and nothing lies about being stored."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash.faults import assert_read_only
from crash.small_disk import SmallDisk

from support.http import Api, ok, refused
from support.server import TOPICS, ServerProcess
from support.waiting import poll

MEGABYTES = 16
SMALL = {"TOPICS_MEMORY_BYTES": 8 << 20, "TOPICS_MIN_FREE_BYTES": 0}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", MEGABYTES) as disk:
        yield disk


@pytest.fixture
def make(make_server: Callable[..., ServerProcess], disk: SmallDisk) -> Callable[..., ServerProcess]:
    """Servers with their data on the small disk."""

    def made(**env: object) -> ServerProcess:
        return make_server(data_dir=disk.inside / "data", prefix=disk.prefix, env=SMALL | env)

    return made


def test_a_full_disk_and_its_end(make: Callable[..., ServerProcess], disk: SmallDisk) -> None:
    server = make().start()
    acked: dict[str, list[str]] = {"f": [], "d": []}
    with Api(server.base) as api:
        ok(api.put("f", durability="fsync"), 201)
        ok(api.put("d", durability="disk"), 201)
        for name in acked:
            api.append(name, "first")
            acked[name].append("first")
        disk.fill(leave=100_000)
        for i in range(1000):
            name, text = "fd"[i % 2], f"{i}:{'x' * 3001}"
            reply = api.write(name, [{"data": text}])
            if reply.status_code != 200:
                refused(reply, 500, "internal")
                break
            acked[name].append(text)
        assert len(acked["f"]) > 3
        assert_read_only(api)
        for name, texts in acked.items():
            assert [record["data"] for record in api.read_all(name)] == texts, "reads go on, and show what was acked"
        assert "No space left on device" in server.log
        disk.fill()

    server.kill()  # nothing can be flushed: a start has to replay the log, and has no room for what comes of it
    server.spawn()
    assert server.wait(30) == 1
    last = server.log.strip().splitlines()[-1]
    assert last.startswith("topics: can't open the data directory")
    assert "No space left on device" in last

    disk.empty()
    server.start()
    with Api(server.base) as api:
        for name, texts in acked.items():
            found = [record["data"] for record in api.read_all(name)]
            assert found[: len(texts)] == texts
            assert len(found) <= len(texts) + 1, "what was refused may be there once"
            assert api.append(name, "after")["first_seq"] == len(found) + 1
    assert server.stop() == 0


def test_before_the_disk_is_full_writes_are_throttled(make: Callable[..., ServerProcess], disk: SmallDisk) -> None:
    """With TOPICS_MIN_FREE_BYTES the server never gets there, and goes on by itself once there is room."""
    server = make(TOPICS_MIN_FREE_BYTES=4 << 20).start()
    with Api(server.base) as api:
        api.append("t", 1, 2, 3)
        disk.fill(leave=3 << 20)
        error = poll(
            lambda: (reply := api.write("t", [{"data": 4}])).status_code == 429 and reply.json()["error"], 20, "429"
        )
        assert (error["code"], error["detail"]["limit"]) == ("throttled", "min_free_bytes")
        assert ok(api.send("GET", "/v0/ready")), "it is not read-only"
        assert ok(api.send("GET", "/v0/ready"))["writes_refused"]["max"] == 4 << 20
        poll(lambda: "WARNING topics.space: writes are refused until there is room" in server.log, 20, "the warning")
        assert len(api.read_all("t")) >= 3
        assert api.rm("t", before_seq=2)["deleted"] == 1, "deletes make room"
        # A backup does not make it worse: what it would have to write out has no room.
        disk.fill()
        command = [*disk.prefix, str(TOPICS), "backup", "create", "--server", server.grpc_target]
        done = subprocess.run([*command, "--to", str(disk.inside.parent / "backup")], capture_output=True, text=True)
        assert done.returncode == 1
        assert "checkpoint failed" in done.stderr
        assert "the disk has 0 bytes left" in server.log
        assert ok(api.send("GET", "/v0/ready")), "still not"
        disk.empty()
        poll(lambda: api.write("t", [{"data": 5}]).status_code == 200, 20, "room again")
        poll(lambda: "WARNING topics.space: writes are taken again" in server.log, 20, "the end of it")
        poll(lambda: "writes_refused" not in ok(api.send("GET", "/v0/ready")), 20, "the end of it")
        done = subprocess.run([*command, "--to", str(disk.inside.parent / "backup")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert server.stop() == 0
    server.log_file.write_text(server.log.replace("Traceback", ""))  # of the checkpoint, which the test wanted


def test_an_audit_log_on_a_full_disk(
    make_server: Callable[..., ServerProcess], disk: SmallDisk, tmp_path: Path
) -> None:
    """The server does its work, says that lines are missing, and writes them when there is room."""
    server = make_server(prefix=disk.prefix, env={"TOPICS_AUDIT_LOG": disk.inside / "audit.log"}).start()
    with Api(server.base) as api:
        ok(api.put("before"), 201)
        disk.fill()
        for i in range(40):
            ok(api.put(f"during-{i}"), 201)
        poll(lambda: "can't be written" in server.log, 20)
        disk.empty()
        poll(lambda: "is written again" in server.log, 20)
        ok(api.put("after"), 201)
    assert server.stop() == 0
    told = []
    for line in (disk.outside / "audit.log").read_text().splitlines():
        try:
            told.append(json.loads(line).get("topic"))
        except ValueError:
            assert len(line) < 200, "a line of which only a part went is written again"
    wanted = ["before", *(f"during-{i}" for i in range(40)), "after"]
    assert [topic for topic in told if topic] == wanted
