"""A disk that is short of room: what the log says of it, and what the probes, the metrics and `topics top` show."""

import json
import re
import subprocess
from pathlib import Path

import grpc
import pytest

from support.http import Api
from support.server import TOPICS, ServerProcess
from support.waiting import poll
from topics_proto.v1 import admin_service_pb2 as pb
from topics_proto.v1 import admin_service_pb2_grpc
from topics_server.space import Crossings

LIMIT = 1 << 60
TICK = 0.02


def crossings(*looks: tuple[float, bool, bool]) -> list[tuple[float, bool]]:
    """Return when the news changed, of looks every 20 ms: (until, short, ample)."""
    news, found, now = Crossings(), list[tuple[float, bool]](), 0.0
    for until, short, ample in looks:
        while now < until:
            before = news.is_reported
            news.look(now, short=short, ample=ample)
            if news.is_reported != before:
                found.append((round(now, 1), news.is_reported))
            now += TICK
    return found


@pytest.mark.parametrize(
    ("looks", "news"),
    [
        pytest.param([(60, True, False)], [(1.0, True)], id="short for good: told once"),
        pytest.param([(0.9, True, False), (60, False, True)], [], id="a burst that waits for a flush"),
        pytest.param([(5, True, False), (60, False, True)], [(1.0, True), (6.0, False)], id="room again"),
        pytest.param([(5, True, False), (60, False, False)], [(1.0, True), (15.0, False)], id="just enough room"),
        pytest.param(
            [look for i in range(30) for look in ((2 * i + 0.02, True, False), (2 * i + 2, False, False))],
            [(2.0, True)],
            id="refused now and then, every two seconds: told once",
        ),
        pytest.param(
            [(0.02, True, False), (20, False, True), (20.02, True, False), (40, False, True)], [], id="twice, far apart"
        ),
    ],
)
def test_what_is_news(looks: list[tuple[float, bool, bool]], news: list[tuple[float, bool]]) -> None:
    found = crossings(*looks)
    assert [told for _, told in found] == [told for _, told in news]
    assert all(abs(at - expected) < 0.15 for (at, _), (expected, _) in zip(found, news, strict=True)), found


def test_a_server_that_refuses_all_writes_says_so_wherever_one_looks(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_MIN_FREE_BYTES": LIMIT}) as server, Api(server.base) as api:
        assert api.write("t", [{"data": 1}]).json()["error"]["detail"] == {"limit": "min_free_bytes", "max": LIMIT}
        poll(lambda: "WARNING topics.space: writes are refused until there is room" in server.log, 20, "the warning")
        (line,) = re.findall(r"the disk has (\S+) left, and TOPICS_MIN_FREE_BYTES keeps (\S+) free", server.log)
        assert line[1] == "1024PiB"
        for path in ("/v0/ready", "/readyz"):
            body = api.client.get(path)
            assert body.status_code == 200
            ready = body.json()
            refused = ready.pop("writes_refused")
            assert ready == {"status": "ready", "wal_replay_complete": True, "topics": 0}
            assert (refused["limit"], refused["max"]) == ("min_free_bytes", LIMIT)
            assert 0 < refused["free_bytes"] < LIMIT
        with grpc.insecure_channel(server.grpc_target) as channel:
            reply = admin_service_pb2_grpc.AdminServiceStub(channel).GetReady(pb.GetReadyRequest(), timeout=30)
        assert (reply.status, reply.writes_refused.limit, reply.writes_refused.max) == (
            "ready",
            "min_free_bytes",
            LIMIT,
        )
        assert "\ntopics_disk_short 1.0\n" in api.client.get("/v0/metrics").text

        done = _topics("top", "--once", "--interval", "100ms", "--server", server.grpc_target)
        assert re.match(r"WRITES ARE REFUSED: the disk has \S+ free, TOPICS_MIN_FREE_BYTES is 1024PiB\n", done.stdout)
        done = _topics("top", "--once", "--interval", "100ms", "--json", "--server", server.grpc_target)
        assert done.stdout == ""
        assert done.stderr.startswith("WRITES ARE REFUSED: ")
        for address in (("--server", server.grpc_target), ("--url", server.base)):
            done = _topics("wait-ready", *address, "--json")
            assert json.loads(done.stdout)["ready"] is True
            assert re.match("topics wait-ready: ready, but writes are refused: .*TOPICS_MIN_FREE_BYTES", done.stderr)
        assert server.stop() == 0


def test_a_server_with_room_says_nothing_of_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_MIN_FREE_BYTES": "1KiB"}) as server, Api(server.base) as api:
        assert set(api.client.get("/v0/ready").json()) == {"status", "wal_replay_complete", "topics"}
        assert "\ntopics_disk_short 0.0\n" in api.client.get("/v0/metrics").text
        done = _topics("top", "--once", "--interval", "100ms", "--server", server.grpc_target)
        assert "REFUSED" not in done.stdout + done.stderr


def _topics(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TOPICS), *arguments], capture_output=True, text=True, timeout=60, check=True)
