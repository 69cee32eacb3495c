"""Checkpoints: of a store under writes, and over the wire: access, number, lifetime."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.http import Api
from support.server import ServerProcess
from support.waiting import poll
from topics_client import TopicsClient
from topics_client.connection import Connection
from topics_client.errors import AuthError, InvalidRequestError, TopicsError
from topics_proto.v1 import admin_service_pb2 as pb
from topics_service.storage import checkpoint, keys
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, StoreError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "data")
    yield store
    store.close()


def write(store: RocksStore, number: int) -> None:
    """One write with a row in each of three families."""
    batch = store.batch()
    for family in (Family.BLOCKS, Family.LOGS, Family.POSITIONS):
        batch.put(family, keys.u64(number), bytes(1000))
    store.write(batch)


def numbers(path: Path) -> list[list[int]]:
    store = RocksStore(path)
    try:
        families = (Family.BLOCKS, Family.LOGS, Family.POSITIONS)
        return [[keys.read_u64(key) for key, _ in store.scan(family, b"", b"\xff" * 9)] for family in families]
    finally:
        store.close()


def test_a_checkpoint_is_one_prefix_of_what_is_written_meanwhile(store: RocksStore, tmp_path: Path) -> None:
    written = 0
    stop = threading.Event()

    def writing() -> None:
        nonlocal written
        while not stop.is_set():
            write(store, written + 1)
            written += 1

    writer = threading.Thread(target=writing)
    writer.start()
    try:
        spans = []
        for number in range(8):
            poll(lambda: written > 100 * len(spans) + 100, 20)
            before = written
            checkpoint.create(store, tmp_path / "points" / str(number))
            spans.append((before, written + 1))
    finally:
        stop.set()
        writer.join()
    for number, (before, after) in enumerate(spans):
        blocks, logs, positions = numbers(tmp_path / "points" / str(number))
        assert blocks == logs == positions == list(range(1, len(blocks) + 1))
        assert before <= len(blocks) <= after
    assert spans[-1][0] > spans[0][1]


def test_a_checkpoint_shares_its_files_and_outlives_them(store: RocksStore, tmp_path: Path) -> None:
    for number in range(1000):
        write(store, number)
    checkpoint.create(store, tmp_path / "point")
    tables = list((tmp_path / "point").glob("*.sst"))
    assert tables
    assert all(table.samefile(tmp_path / "data" / table.name) for table in tables)
    batch = store.batch()
    for family in Family:
        batch.delete_range(family, b"", b"\xff" * 9)
    store.write(batch)
    for family in store._families:
        family.flush(True)
        family.compact_range(None, None)
    assert not any((tmp_path / "data" / table.name).exists() for table in tables)
    assert numbers(tmp_path / "point")[0] == list(range(1000))
    checkpoint.remove(tmp_path / "point")
    checkpoint.remove(tmp_path / "point")
    assert not (tmp_path / "point").exists()


def test_a_checkpoint_that_fails_leaves_nothing(store: RocksStore, tmp_path: Path) -> None:
    (tmp_path / "points").write_text("in the way")
    with pytest.raises((StoreError, OSError)):
        checkpoint.create(store, tmp_path / "points" / "1")
    write(store, 1)
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == ["points"]


def call(connection: Connection, ttl_ms: int = 0) -> pb.CreateCheckpointResponse:
    return connection.unary(connection.admin.CreateCheckpoint, pb.CreateCheckpointRequest(ttl_ms=ttl_ms))


def release(connection: Connection, checkpoint_id: str) -> bool:
    request = pb.ReleaseCheckpointRequest(checkpoint_id=checkpoint_id)
    return bool(connection.unary(connection.admin.ReleaseCheckpoint, request).released)


def test_a_call_tells_where_the_checkpoint_is(server: ServerProcess) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.append("a", 1)
        made = call(client.connection)
        path = Path(made.path)
        assert path.parent == server.data_dir / "checkpoints"
        assert path.name == made.checkpoint_id
        assert made.topics == 1
        assert made.bytes == sum(file.stat().st_size for file in path.iterdir())
        assert made.expires_ms - made.created_ms == 3_600_000
        assert release(client.connection, made.checkpoint_id)
        assert not path.exists()
        assert not release(client.connection, made.checkpoint_id)
        for odd in ("", "..", "../..", "."):
            assert not release(client.connection, odd)
        assert (server.data_dir / "CURRENT").exists()


def test_there_are_so_many_at_a_time(server: ServerProcess) -> None:
    with TopicsClient(server.grpc_target) as client:
        held = [call(client.connection) for _ in range(4)]
        with pytest.raises(TopicsError, match=held[0].checkpoint_id) as refused:
            call(client.connection)
        assert refused.value.reason == "throttled"
        assert refused.value.detail["limit"] == "checkpoints"
        assert release(client.connection, held[2].checkpoint_id)
        call(client.connection)


def test_one_that_nobody_releases_goes(server: ServerProcess) -> None:
    with TopicsClient(server.grpc_target) as client:
        path = Path(call(client.connection, ttl_ms=200).path)
        poll(lambda: not path.exists(), 20)
        with pytest.raises(InvalidRequestError, match="ttl_ms"):
            call(client.connection, ttl_ms=7 * 86_400_000 + 1)


def test_a_start_removes_what_an_earlier_run_left(server: ServerProcess) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.append("a", 1)
        path = Path(call(client.connection).path)
    server.kill()
    (path.parent / "half.tmp").mkdir()
    server.start()
    assert not path.parent.exists()
    assert f"removing the checkpoint {path} that an earlier run of the server left" in server.log
    with TopicsClient(server.grpc_target) as client:
        assert client.get_topic("a").head_seq == 1
        call(client.connection)


def test_a_caller_that_gives_up_leaves_none(server: ServerProcess) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.append_many("a", [os.urandom(500_000) for _ in range(60)])
        with pytest.raises(TopicsError):
            client.connection.unary(
                client.connection.admin.CreateCheckpoint, pb.CreateCheckpointRequest(), timeout=0.02
            )
        directory = server.data_dir / "checkpoints"
        poll(lambda: "not released in time" in server.log and not list(directory.iterdir()), 20)
        for _ in range(4):
            call(client.connection)


def test_it_takes_an_admin_of_everything(tmp_path: Path) -> None:
    keys = "all,ops:admin,some:admin:tenant,reader:read+write+delete"
    with ServerProcess(tmp_path / "server", env={"TOPICS_API_KEYS": keys}) as server:
        for key, may in (("all", True), ("ops", True), ("some", False), ("reader", False)):
            with TopicsClient(server.grpc_target, key=key) as client:
                if may:
                    assert release(client.connection, call(client.connection).checkpoint_id)
                    continue
                with pytest.raises(AuthError):
                    call(client.connection)
                with pytest.raises(AuthError):
                    release(client.connection, "x")


def test_writers_go_on_meanwhile(server: ServerProcess) -> None:
    with TopicsClient(server.grpc_target) as client, TopicsClient(server.grpc_target) as writer:
        writer.append_many("a", [os.urandom(500_000) for _ in range(80)])
        future = client.connection.admin.CreateCheckpoint.future(pb.CreateCheckpointRequest(), timeout=60)
        meanwhile = 0
        while not future.done():
            writer.append("a", meanwhile)
            meanwhile += 1
        assert future.result().topics == 1
        assert meanwhile > 1


def test_it_is_no_part_of_the_http_protocol(server: ServerProcess) -> None:
    with Api(server.base) as api:
        for method in ("GET", "POST", "PUT"):
            assert api.client.request(method, "/v0/checkpoints").status_code == 404
