"""Bulk readers through the real listeners: child processes of a server that answer as it does."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.bulk import Client, check_whole, pids
from support.grpc_on_engine import column
from support.server import ServerProcess
from support.waiting import poll
from topics_client import TopicsClient
from topics_proto.v1 import record_pb2, topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.settings import SettingsError, load

FORMATS = (pb.BULK_FORMAT_COLUMNS, pb.BULK_FORMAT_ARROW)
LONG = b'"%b"' % (b"x" * 3000)
TWO = {"TOPICS_BULK_READERS": 2}


class Beside:
    """A server, a client of it, and clients of its bulk readers."""

    def __init__(self, server: ServerProcess, count: int) -> None:
        self.process = server
        self.server = Client(server.grpc_target)
        self.ports = self.server.readers(count)
        self.readers = [Client(f"127.0.0.1:{port}") for port in self.ports]

    @property
    def reader(self) -> Client:
        return self.readers[0]

    @property
    def reader_target(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def put(self, topic: str, **config: object) -> str:
        """Create it; its id."""
        request = pb.PutTopicRequest(topic=topic, config=topic_pb2.TopicConfig(**config))  # type: ignore[arg-type]
        return str(self.server.stub.PutTopic(request).topic_id)

    def drop(self, topic: str) -> None:
        self.server.stub.DeleteTopic(pb.DeleteTopicRequest(topic=topic))

    def close(self) -> None:
        for client in (self.server, *self.readers):
            client.close()


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    with ServerProcess(tmp_path_factory.mktemp("bulk"), env=TWO) as server:
        beside = Beside(server, 2)
        yield beside
        beside.close()
        assert server.stop() == 0
        assert "Traceback" not in server.log
        assert " ERROR " not in server.log


def is_gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


# ------------------------------------------------------------------ the answers


def test_each_answers_as_the_server(beside: Beside) -> None:
    server = beside.server
    beside.put("same", dedupe_node=True)
    for i in range(40):
        server.append(
            "same",
            *[b'{"n":%d}' % n for n in range(50)],
            tag=column(*[b"a", b"b", None, b"", b"ab"] * 10),
            node=column(*[b"n1", None] * 25),
            meta=record_pb2.Column(shared=b'{"i":%d}' % i),
        )
    server.stub.DeleteRecords(pb.DeleteRecordsRequest(topic="same", before_seq=101))
    server.stub.DeleteRecords(pb.DeleteRecordsRequest(topic="same", match=record_pb2.TagMatch(eq="b")))
    asked = [
        {"end_seq": 2000},
        {"end_seq": 1234, "from_seq": 77, "frame_bytes": 1},
        {"end_seq": 2000, "include_tags": True, "include_meta": False},
        {"end_seq": 2000, "node": ["n1"]},
        {"end_seq": 2000, "filter": record_pb2.TagMatch(eq="a"), "include_tags": True},
        {"end_seq": 2000, "filter": record_pb2.TagMatch(prefix="a"), "include_data": False},
        {"end_seq": 2000, "last": 10},
        {"end_seq": 2000, "from_ts_ms": 0},
        {"end_seq": 0},
        {"end_seq": 5, "from_seq": 9000},
    ]
    for request in asked:
        for form in FORMATS:
            expected = server.frames("same", format=form, **request)
            for reader in beside.readers:
                assert reader.frames("same", format=form, **request) == expected, request


def test_partitions(beside: Beside) -> None:
    beside.server.stub.PutTopic(pb.PutTopicRequest(topic="parts", partition_count=3))
    batch = record_pb2.ColumnBatch(data=[b"1", b"2"])
    beside.server.stub.Append(pb.AppendRequest(topic="parts", partition=2, columns=batch))
    assert beside.reader.seqs("parts", partition=2, end_seq=2) == [1, 2]
    assert beside.reader.seqs("parts", partition=1, end_seq=0) == []
    assert beside.reader.refused("parts", partition=3, end_seq=0)[1] == "partition_not_found"


def test_what_was_acknowledged_is_there(beside: Beside) -> None:
    """Each append and each delete, as soon as its answer came, while others write."""
    stop = threading.Event()

    def write_elsewhere() -> None:
        with Client(beside.process.grpc_target) as other:
            while not stop.is_set():
                other.append("busy", *[LONG] * 50)

    writer = threading.Thread(target=write_elsewhere)
    writer.start()
    try:
        for i in range(150):
            head = beside.server.append("fresh", b"%d" % i, tag=column(b"t%d" % i))
            reader = beside.readers[i % 2]
            assert reader.seqs("fresh", from_seq=head - 1, end_seq=head) == [head]
            if i % 3 == 2:
                gone = record_pb2.TagMatch(eq=f"t{i - 1}")
                beside.server.stub.DeleteRecords(pb.DeleteRecordsRequest(topic="fresh", match=gone))
                assert reader.seqs("fresh", from_seq=head - 3, end_seq=head) == [head - 2, head]
            if i % 30 == 0:
                beside.server.stub.DeleteRecords(pb.DeleteRecordsRequest(topic="fresh", before_seq=head))
                (frame,) = reader.frames("fresh", end_seq=head)
                assert (frame.earliest_seq, frame.next_from_seq) == (head, head)
    finally:
        stop.set()
        writer.join(30)


@pytest.mark.parametrize("config", [{"cap_records": 20_000}, {"cap_bytes": 20_000_000, "durability": 4}])
def test_eviction_and_sealing_while_a_read_is_under_way(beside: Beside, config: dict[str, object]) -> None:
    """A slow read meets what is evicted in front of it: each seq is a record, exact, or in a tombstone."""
    topic = f"evicted-{len(config)}"
    beside.put(topic, **config)
    head = 0

    def write(records: int) -> None:
        nonlocal head
        for _ in range(records // 100):
            head = beside.server.append(topic, *[b'"%d-%s"' % (head + n, b"x" * 1000) for n in range(1, 101)])

    write(20_000)
    lost = 0
    for rounds in range(4):
        from_seq = head - 20_000
        frames: list[pb.BulkDiffResponse] = []
        for frame in beside.readers[rounds % 2].stream(topic, from_seq=from_seq, end_seq=head, frame_bytes=1):
            frames.append(frame)
            if len(frames) % 8 == 1 and len(frames) < 40:
                write(2500)
                assert beside.readers[rounds % 2].seqs(topic, from_seq=head - 1, end_seq=head) == [head]
        end = frames[-1].next_from_seq
        found = check_whole(frames, from_seq, end)
        lost += sum(frame.tombstone.missed_estimate for frame in frames if frame.HasField("tombstone"))
        assert all(data.startswith(b'"%d-' % seq) for seq, data in found.items())
        assert frames[-1].done
    assert lost, "nothing was evicted in front of a read"


def test_a_topic_made_again_is_another(beside: Beside) -> None:
    first = beside.put("again")
    beside.server.append("again", *[b"1"] * 5)
    for reader in beside.readers:
        assert reader.seqs("again", end_seq=5, topic_id=first) == [1, 2, 3, 4, 5]
    beside.drop("again")
    for reader in beside.readers:
        assert reader.refused("again", end_seq=5)[:2] == (grpc.StatusCode.NOT_FOUND, "topic_not_found")
    second = beside.put("again")
    beside.server.append("again", *[b"2"] * 3)
    for reader in beside.readers:
        assert reader.refused("again", end_seq=5, topic_id=first)[1] == "topic_not_found"
        assert reader.seqs("again", end_seq=3, topic_id=second) == [1, 2, 3]


def test_a_topic_that_goes_while_it_is_read(beside: Beside) -> None:
    beside.put("gone")
    for _ in range(40):
        beside.server.append("gone", *[LONG] * 100)
    stream = beside.reader.stream("gone", end_seq=4000, frame_bytes=1)
    next(stream)
    beside.drop("gone")
    assert beside.reader.refused("gone", end_seq=1)[1] == "topic_not_found"  # and so the read fails too
    with pytest.raises(grpc.RpcError, match="does not exist"):
        for _ in stream:
            pass


# ----------------------------------------------------------------- what it leaves


def test_what_a_reader_does_not_answer(beside: Beside) -> None:
    beside.server.append("asked", b"1")
    reader = beside.reader
    code, reason, message = reader.refused("asked")
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")
    assert "end_seq" in message
    assert reader.refused("asked", end_seq=1, follow=True)[1] == "invalid_request"
    code, reason, message = reader.refused("asked", end_seq=2)
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "not_ready")
    assert 'topic "asked" is to be read at the server' in message
    beside.put("in-memory", durability=topic_pb2.DURABILITY_EPHEMERAL)
    beside.server.append("in-memory", b"1")
    assert reader.refused("in-memory", end_seq=1)[1] == "not_ready"
    beside.put("in-memory", durability=topic_pb2.DURABILITY_DISK)
    assert reader.seqs("in-memory", end_seq=1) == [1]
    assert reader.refused("none", end_seq=1)[1] == "topic_not_found"
    with pytest.raises(grpc.RpcError) as error:
        reader.append("asked", b"2")
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_clients_that_leave(beside: Beside) -> None:
    """Nothing is logged, which the fixture checks, and no other call is delayed."""
    for _ in range(20):
        beside.server.append("left", *[LONG] * 100)
    for _ in range(10):
        with Client(beside.reader_target) as client:
            next(client.stream("left", end_seq=2000, frame_bytes=1))
        call = beside.reader.stub.BulkDiff(pb.BulkDiffRequest(topic="left", end_seq=2000, frame_bytes=1))
        next(call)
        call.cancel()
    assert len(beside.reader.seqs("left", end_seq=2000)) == 2000


def test_health(beside: Beside) -> None:
    health = health_pb2_grpc.HealthStub(beside.reader.channel)
    for service in ("", "topics.v1.TopicsService"):
        reply = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_they_give_way_to_the_server(beside: Beside) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)  # tests may be nice themselves
    niceness = [os.getpriority(os.PRIO_PROCESS, pid) for pid in pids(beside.process, beside.ports)]
    assert niceness == [min(19, own + 10)] * 2
    assert os.getpriority(os.PRIO_PROCESS, beside.process.pid) == own


# ------------------------------------------------------------------ life and death


def test_a_reader_that_dies_comes_back(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env=TWO) as server:
        beside = Beside(server, 2)
        beside.server.append("t", *[b"1"] * 10)
        dead, alive = pids(server, beside.ports)
        os.kill(dead, signal.SIGKILL)
        poll(lambda: beside.ports[0] not in beside.server.listed(), 20, "it is not listed any more")
        assert beside.readers[1].seqs("t", end_seq=10) == list(range(1, 11))
        ports = beside.server.readers(2)
        assert beside.ports[1] in ports
        (new,) = set(ports) - {beside.ports[1]}
        with Client(f"127.0.0.1:{new}") as reader:
            head = beside.server.append("t", b"1")
            assert reader.seqs("t", end_seq=head) == list(range(1, 12))
        assert not is_gone(alive)
        beside.close()
        assert " ended with -9; starts again in 0.5 s" in server.log


def test_they_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, env=TWO)
    with server:
        beside = Beside(server, 2)
        beside.server.append("t", *[b"1"] * 10)
        readers = pids(server, beside.ports)
        os.kill(server.pid, signal.SIGKILL)
        server.wait(10)
        poll(lambda: all(map(is_gone, readers)), 20, "the readers end")
        assert not list((server.data_dir / "bulk-readers").iterdir())
        beside.close()
    with server:
        beside = Beside(server, 2)
        for reader in beside.readers:
            assert reader.seqs("t", end_seq=10) == list(range(1, 11))
        beside.server.append("t", *[b"1"] * 10)
        for reader in beside.readers:
            assert reader.seqs("t", end_seq=20) == list(range(1, 21))
        beside.close()


def test_a_stop_ends_reads_and_leaves_nothing(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_BULK_READERS": 1}) as server:
        beside = Beside(server, 1)
        for _ in range(40):
            beside.server.append("t", *[LONG] * 100)
        stream = beside.reader.stream("t", end_seq=4000, frame_bytes=1)
        next(stream)
        server.signal(signal.SIGTERM)
        poll(lambda: " stopping: " in server.log, 20)
        with pytest.raises(grpc.RpcError, match="shutting down"):
            list(stream)
        assert server.wait(20) == 0
        assert all(map(is_gone, pids(server, beside.ports)))
        assert not (server.data_dir / "bulk-readers").exists()
        beside.close()
        assert "Traceback" not in server.log


def test_events_of_tables_are_read_as_other_records(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_BULK_READERS": 1}) as server:
        with TopicsClient(server.grpc_target) as client:
            client.sql_script(
                "CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY); CREATE INDEX i ON app.t (id);"
                "CREATE TOPIC app.events WITH (partitions = 1); ALTER TOPIC app.events ADD SOURCE app.t ON INSERT"
            )
            client.sql_many("INSERT INTO app.t VALUES ($1)", [(number,) for number in range(30)])
        beside = Beside(server, 1)
        assert beside.reader.seqs("app.events", end_seq=30) == list(range(1, 31))
        beside.close()


def test_files_in_the_working_directory_are_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grpc.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    with ServerProcess(tmp_path, env={"TOPICS_BULK_READERS": 1}) as server, Client(server.grpc_target) as client:
        assert len(client.readers(1)) == 1
        assert "not ours" not in server.log
        assert server.stop() == 0


def test_without_them_none_is_listed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, Client(server.grpc_target) as client:
        assert client.listed() == []
        assert not (server.data_dir / "bulk-readers").exists()


# --------------------------------------------------------------------------- keys


def test_they_ask_for_the_same_keys(tmp_path: Path) -> None:
    keys = "sekret-all, sekret-write:write, sekret-t42:read:t42:"
    with ServerProcess(tmp_path, env={"TOPICS_API_KEYS": keys, "TOPICS_BULK_READERS": 1}) as server:
        with Client(server.grpc_target, "sekret-all") as full:
            full.append("t42:a", b"1")
            full.append("other", b"1")
            (port,) = full.readers(1)
        target = f"127.0.0.1:{port}"
        answers = {}
        for key in ("", "wrong", "sekret-write", "sekret-t42", "sekret-all"):
            with Client(target, key) as reader:
                answers[key] = [
                    reader.seqs(topic, end_seq=1) if key == "sekret-all" or (key, topic) == ("sekret-t42", "t42:a")
                    else reader.refused(topic, end_seq=1)[1]
                    for topic in ("t42:a", "other")
                ]  # fmt: skip
        assert answers == {
            "": ["unauthorized", "unauthorized"],
            "wrong": ["unauthorized", "unauthorized"],
            "sekret-write": ["forbidden", "forbidden"],
            "sekret-t42": [[1], "forbidden"],
            "sekret-all": [[1], [1]],
        }
        (pid,) = pids(server, [port])
        for place in ("cmdline", "environ"):
            assert b"sekret" not in Path(f"/proc/{pid}/{place}").read_bytes()
        assert server.stop() == 0
        assert "sekret" not in server.log


def test_the_setting() -> None:
    assert load({"TOPICS_BULK_READERS": "2"}, {}).bulk_readers == 2
    assert load({}, {}).bulk_readers == 0
    with pytest.raises(SettingsError, match="TOPICS_BULK_READERS='65' is not a number from 0 to 64"):
        load({"TOPICS_BULK_READERS": "65"}, {})
