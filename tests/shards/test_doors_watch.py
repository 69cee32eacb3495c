"""Watches through the doors of two processes: any of them follows any topic, and a killed one loses nothing."""

import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.push import EndedError, WatchStream, cursors, event_id
from support.server import ServerProcess
from support.waiting import poll
from support.ws import WebSocket
from topics_client import Record, TopicsClient
from topics_service.api.watch_sessions import process_of
from topics_service.engine.placement import home_of

NAMES = [f"watched-{number}" for number in range(8)]
assert {home_of(name, 4) for name in NAMES} == {0, 1, 2, 3}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Two processes with four shards."""
    with ServerProcess(tmp_path, env={"TOPICS_PROCESSES": 2, "TOPICS_SHARDS": 4}) as server:
        yield server


def append(server: ServerProcess, name: str, *datas: Any, durable: bool = False) -> int:
    """Append to a topic over a new connection, and so by any process; return the last seq."""
    body: dict[str, Any] = {"records": [{"data": data} for data in datas]}
    if durable:
        body["config"] = {"durability": "fsync"}
    reply = httpx.post(f"{server.base}/v0/topics/{name}", json=body)
    assert reply.status_code in (200, 201), reply.text
    return int(reply.json()["head_seq"])


def session(server: ServerProcess, **members: Any) -> str:
    """The URL of the stream of a new session, which is in any process."""
    reply = httpx.post(f"{server.base}/v0/watch", json=members)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["stream_url"])


def children(server: ServerProcess) -> list[int]:
    """The processes that serve, in the order of their start."""
    return [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]


def owner_of(server: ServerProcess, stream: WatchStream) -> int:
    """The process at the other end of a connection."""
    client, port = stream.socket.getsockname()[1], stream.socket.getpeername()[1]
    ends = (f":{port:04X}", f":{client:04X}")
    inode = next(
        fields[9]
        for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines())
        if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1])
    )
    for pid in children(server):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if os.readlink(link) == f"socket:[{inode}]":
                    return pid
    raise AssertionError("no process has the connection")


def streams_at_each(server: ServerProcess, url: str, stack: ExitStack, **headers: str) -> dict[int, WatchStream]:
    """A stream of the session at each of the processes."""
    found: dict[int, WatchStream] = {}
    for _ in range(64):
        stream = stack.enter_context(WatchStream(server.http_port, url, headers=headers))
        pid = owner_of(server, stream)
        if pid in found:
            stream.close()
        else:
            found[pid] = stream
        if len(found) == 2:
            return found
    raise AssertionError("one process gets all connections")


def test_any_process_streams_any_session(server: ServerProcess) -> None:
    for name in NAMES:
        append(server, name, 1, 2)
    sessions = [session(server, topics={name: {} for name in NAMES}) for _ in range(16)]
    assert {process_of(url.rpartition("/")[2], 2) for url in sessions} == {0, 1}
    last = ""
    with ExitStack() as stack:
        start = {"last-event-id": event_id(dict.fromkeys(NAMES, 0))}
        for stream in streams_at_each(server, sessions[0], stack, **start).values():  # both are of one session
            seen: Counter[str] = Counter()
            while sum(seen.values()) < 2 * len(NAMES):
                event = stream.event("record")
                seen[event.data["topic"]] += len(event.data["records"])
                last = event.id
            assert seen == dict.fromkeys(NAMES, 2)
            assert cursors(event) == dict.fromkeys(NAMES, 2)
    for name in NAMES:
        append(server, name, 3)
    with ExitStack() as stack:  # at another process, or another session, from the last id
        for stream in streams_at_each(server, sessions[0], stack, **{"last-event-id": last}).values():
            records = stream.records(len(NAMES))
            assert [record["$seq"] for record in records] == [3] * len(NAMES)
    url = session(server, topics={name: {} for name in NAMES}, cursor=last)
    with WatchStream(server.http_port, url) as stream:
        assert [record["$seq"] for record in stream.records(len(NAMES))] == [3] * len(NAMES)


def test_streams_outlive_the_process_of_their_topics(server: ServerProcess) -> None:
    """The connection is at the one process, half of the topics are at the other, which is killed again and again."""
    for name in NAMES:
        append(server, name, 0, durable=True)
    start = {"last-event-id": event_id(dict.fromkeys(NAMES, 0))}  # whatever other streams of the session have read
    with ExitStack() as stack:
        owner = children(server)[0]
        stream = streams_at_each(server, session_of(server, 0), stack, **start)[owner]
        read: defaultdict[str, list[int]] = defaultdict(list)
        heads = dict.fromkeys(NAMES, 1)
        for turn in range(3):
            victim = next(pid for pid in children(server) if pid != owner)
            for name in NAMES:
                heads[name] = append(server, name, turn, durable=True)
            os.kill(victim, signal.SIGKILL)
            poll(lambda old=victim: len(children(server)) == 2 and old not in children(server), 20, "another process")
            poll(lambda: is_ready(server), 20, "readiness")
            for name in NAMES:
                heads[name] = append(server, name, turn, durable=True)
            while any(read[name][-1:] != [head] for name, head in heads.items()):
                event = stream.event("record")
                read[event.data["topic"]] += [record["$seq"] for record in event.data["records"]]
        assert read == {name: list(range(1, head + 1)) for name, head in heads.items()}
        assert owner in children(server)


def test_a_killed_process_ends_its_sessions(server: ServerProcess) -> None:
    append(server, NAMES[0], 1)
    with ExitStack() as stack:
        first, second = children(server)
        url = session_of(server, 1)
        streams = streams_at_each(server, url, stack)
        for stream in streams.values():
            assert stream.event("caught-up").data["head_seq"] == 1
        os.kill(second, signal.SIGKILL)
        error = streams[first].event("error")
        assert error.data["code"] == 410
        streams[first].ends()
        with pytest.raises(EndedError):
            streams[second].event("nothing")
        poll(lambda: is_ready(server), 20, "readiness")
        for _ in range(8):
            reply = httpx.get(f"{server.base}{url}", headers={"accept": "text/event-stream"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


def test_websockets_follow_topics_of_all_processes(server: ServerProcess) -> None:
    for name in NAMES:
        append(server, name, 1)
    for _ in range(6):
        with WebSocket(server.base) as socket:
            told = socket.subscribe(topics={name: {} for name in NAMES})
            heads = {name: at["head_seq"] for name, at in told.items()}
            assert heads.keys() == set(NAMES)
            assert len(socket.records(sum(heads.values()))) == sum(heads.values())
            for name in NAMES:
                assert socket.publish(name, "more")["head_seq"] == heads[name] + 1
            assert sorted(record["$seq"] for record in socket.records(len(NAMES))) == [
                heads[name] + 1 for name in NAMES
            ]


def test_the_sdk_reads_all_once_while_processes_are_killed(server: ServerProcess) -> None:
    """Its connection may be at the killed process too: it goes on at its cursors at another."""
    for name in NAMES:
        append(server, name, "0", durable=True)
    count, read = 12, defaultdict[str, list[int]](list)
    done = threading.Event()

    def follow() -> None:
        with TopicsClient(server.grpc_target) as client, client.watch(NAMES) as stream:
            for record in stream:
                assert isinstance(record, Record)
                read[record.topic].append(record.seq)
                if len(heads) == len(NAMES) and all(len(read[name]) >= head for name, head in heads.items()):
                    done.set()
                    return

    heads: dict[str, int] = {}
    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    acknowledged: Counter[str] = Counter(NAMES)
    for turn in range(count):
        for name in NAMES:
            with suppress(httpx.TransportError, AssertionError):  # of a process that was killed under it
                acknowledged[name] = append(server, name, str(turn), durable=True)
        if turn in (3, 7):
            victim = children(server)[turn % 2]
            os.kill(victim, signal.SIGKILL)
            poll(lambda old=victim: len(children(server)) == 2 and old not in children(server), 20, "another process")
            poll(lambda: is_ready(server), 20, "readiness")
    for name in NAMES:
        heads[name] = append(server, name, "last", durable=True)
        assert heads[name] > acknowledged[name]
    for name in NAMES:  # wakes the reader, should it have read everything before it knew
        append(server, name, "and one")
    assert done.wait(30), {name: (seqs[-1:], heads[name]) for name, seqs in read.items()}
    for name in NAMES:
        assert read[name] == list(range(1, len(read[name]) + 1))
        assert len(read[name]) >= heads[name]


def session_of(server: ServerProcess, process: int) -> str:
    """A session with all topics in a certain process."""
    for _ in range(64):
        url = session(server, topics={"watched-*": {}})
        if process_of(url.rpartition("/")[2], 2) == process:
            return url
    raise AssertionError("one process gets all connections")


def is_ready(server: ServerProcess) -> bool:
    """Return whether every process says so."""
    try:
        return all(httpx.get(f"{server.base}/v0/ready").status_code == 200 for _ in range(8))
    except httpx.TransportError:
        return False
