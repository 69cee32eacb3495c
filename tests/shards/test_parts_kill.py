"""Topics with partitions in several processes, of which one after another is killed, through HTTP."""

import os
import signal
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
from shards.test_processes import children, is_ready

from support.server import ServerProcess
from support.waiting import poll

PARTITIONS: Final = 6
TURNS: Final = 3


class Client:
    """Calls that are repeated until they have an answer, as SDKs do."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return poll(lambda: self._try(method, path, body), 30, f"{method} {path}", pause=0.05)

    def _try(self, method: str, path: str, body: Any) -> httpx.Response | None:
        try:
            with httpx.Client(timeout=10) as http:
                reply = http.request(method, f"{self._server.base}/v0/topics/{path}", json=body)
        except httpx.TransportError:
            return None
        return None if reply.status_code in (429, 500, 503) else reply

    def read(self, name: str, partition: int) -> list[Any]:
        reply = self.call("POST", f"{name}/diff", {"from_seq": 0, "partition": partition}).json()
        return [record["data"] for record in reply["records"]]


def test_lives_of_a_topic_while_processes_are_killed(tmp_path: Path) -> None:
    chance = Random(5)
    with ServerProcess(tmp_path, env={"TOPICS_PROCESSES": 2, "TOPICS_SHARDS": 4, "TOPICS_DRAIN_SECONDS": 5}) as server:
        client = Client(server)
        for life in range(TURNS):
            victim = children(server)[chance.randrange(2)]
            steps = chance.sample(range(PARTITIONS), 2)
            body = {"partition_count": PARTITIONS, "durability": "fsync"}
            assert client.call("PUT", "t", body).status_code in (200, 201)
            for partition in range(PARTITIONS):
                if partition == steps[0]:
                    os.kill(victim, signal.SIGKILL)
                record = {"records": [{"data": [life, partition]}], "partition": partition}
                assert client.call("POST", "t", record).status_code == 200
            assert client.call("PUT", "t", {"cap_records": 100 + life}).status_code == 200
            for partition in range(PARTITIONS):  # a call that was repeated may have had its effect twice
                found = client.read("t", partition)
                assert found == [[life, partition]] * len(found) != []
            state = client.call("GET", "t").json()
            assert [each["partition"] for each in state["partitions"]] == list(range(PARTITIONS))
            poll(lambda: len(children(server)) == 2 and is_ready(server), 30, "readiness")
            if life % 2:
                os.kill(children(server)[chance.randrange(2)], signal.SIGKILL)
            assert client.call("DELETE", "t").status_code == 200
            assert client.call("GET", "t").status_code == 404
            poll(lambda: len(children(server)) == 2 and is_ready(server), 30, "readiness")
        assert server.stop() == 0
