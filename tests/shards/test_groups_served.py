"""Consumer groups of a server of two processes, over HTTP: a group in one, its topics in both, and a killed process."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.server import ServerProcess
from support.waiting import poll
from topics_service.engine.placement import home_of, shard_of

SHARDS = 4
TOPIC = "ledger"
GROUPS = [next(name for name in map("g{}".format, range(99)) if home_of(name, SHARDS) == shard) for shard in range(4)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, env={"TOPICS_PROCESSES": 2, "TOPICS_SHARDS": SHARDS}) as server:
        yield server


def call(server: ServerProcess, path: str, body: Any = None, method: str = "") -> Any:
    """The reply on a new connection, which any of the processes may get; with the code of an error."""
    with httpx.Client(base_url=server.base, timeout=20) as http:
        reply = http.request(method or ("GET" if body is None else "POST"), f"/v0/{path}", json=body)
        found = reply.json()
        return found["error"]["code"] if "error" in found else found


def append(server: ServerProcess, count: int, partition: int = 0) -> Any:
    body = {"records": [{"data": number} for number in range(count)], "partition": partition}
    return call(server, f"topics/{TOPIC}", body)


def commit(server: ServerProcess, group: str, *seqs: int) -> Any:
    positions = [
        {"topic": TOPIC, "partition": partition, "from_seq": from_seq} for partition, from_seq in enumerate(seqs)
    ]
    return call(server, f"groups/{group}/commit", {"positions": positions})


def positions(server: ServerProcess, group: str) -> list[tuple[int, int, int]]:
    found = call(server, f"groups/{group}/positions")["positions"]
    return [(each["partition"], each["from_seq"], each["lag"]) for each in found]


def test_a_group_reads_what_lies_in_all_processes(server: ServerProcess) -> None:
    call(server, f"topics/{TOPIC}", {"partition_count": 4}, "PUT")
    for partition in range(4):
        append(server, partition + 1, partition)
    for group in GROUPS:
        assert commit(server, group, 1, 2, 3, 9) == "invalid_request"
        assert call(server, f"groups/{group}") == "group_not_found"
        assert commit(server, group, 1, 1, 1, 1)["created"]
        assert positions(server, group) == [(n, 1, n) for n in range(4)]
        page = call(server, f"groups/{group}/consume", {"topic": TOPIC, "partition": 2})
        assert (page["committed_from_seq"], page["next_from_seq"], page["lag"]) == (1, 3, 0)
        assert lags(server, group) == {partition: partition for partition in range(4)}
        moved = call(server, f"groups/{group}/reset", {"to": "latest", "topic": TOPIC, "partition": 3})
        assert [each["from_seq"] for each in moved["positions"]] == [4]
    for size in (1, 3, 4):
        assert [each["group"] for each in listed(server, size)] == sorted(GROUPS)
    assert call(server, f"groups/{GROUPS[0]}", method="DELETE")["deleted"]
    assert [each["group"] for each in listed(server, 2)] == sorted(GROUPS[1:])


def lags(server: ServerProcess, group: str) -> dict[int, int]:
    """The lags of a group by partition, as metrics have them."""
    text = httpx.get(f"{server.base}/v0/metrics").text
    pattern = rf'^topics_group_lag_records{{group="{group}",topic="{TOPIC}",partition="(\d+)"}} (\d+)'
    return {int(partition): int(lag) for partition, lag in re.findall(pattern, text, re.MULTILINE)}


def listed(server: ServerProcess, size: int) -> list[Any]:
    found: list[Any] = []
    cursor = ""
    while True:
        page = call(server, f"groups?page_size={size}" + (f"&cursor={cursor}" if cursor else ""))
        found += page["groups"]
        cursor = page.get("next_cursor") or ""
        if not cursor:
            return found


def test_records_wait_for_groups_over_killed_processes(server: ServerProcess) -> None:
    config = {"cap_records": 3, "retain_until_acked_by": GROUPS, "partition_count": 2, "durability": "fsync"}
    call(server, f"topics/{TOPIC}", config, "PUT")
    assert {shard_of(TOPIC, partition, SHARDS) % 2 for partition in (0, 1)} == {0, 1}, "each process has one"
    for partition in (0, 1):
        append(server, 3, partition)
        assert append(server, 1, partition) == "topic_full"
    for turn in range(1, 3):
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        os.kill(int(children[turn % 2]), signal.SIGKILL)
        for group in GROUPS:
            poll(lambda group=group, turn=turn: committed(server, group, turn), 20, "a commit", pause=0.05)
        for partition in (0, 1):
            head = poll(lambda partition=partition: room(server, partition), 20, "room for a record", pause=0.05)
            assert head == 3 + turn
            assert append(server, 1, partition) == "topic_full"
    assert commit(server, GROUPS[2], 0, 0)["positions"][0]["earliest_seq"] == 3
    call(server, f"groups/{GROUPS[2]}/reset", {"to": "latest"})
    for partition in (0, 1):
        assert append(server, 1, partition) == "topic_full", "the others are at 2"
    assert server.stop() == 0
    assert server.start().stop() == 0


def committed(server: ServerProcess, group: str, from_seq: int) -> bool:
    return isinstance(commit(server, group, from_seq, from_seq), dict)


def room(server: ServerProcess, partition: int) -> int:
    found = append(server, 1, partition)
    return int(found["head_seq"]) if isinstance(found, dict) else 0
