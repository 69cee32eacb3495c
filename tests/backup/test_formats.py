"""The format on disk: what an older version wrote opens, what a later one wrote is refused in words."""

import struct
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from backup.states import contents, everything, fill, records
from sdk.cli.runner import Cli

from support.server import TOPICS, ServerProcess
from support.waiting import poll
from topics_client import TopicsClient
from topics_service.engine import snapshot
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, StoreOpenError

Restored = Callable[[Path], ServerProcess]

KEPT = Path(__file__).parent / "data" / "format-1.tar.gz"
"""A backup that the first version which had backups made of `fill`. Never regenerated: later versions must treat it as
they will treat the data of today's users.
"""

_LOG_ROW_1 = struct.Struct("<B11Qq")


def change(directory: Path, family: Family, key: bytes, value: bytes) -> None:
    store = RocksStore(directory)
    try:
        batch = store.batch()
        batch.put(family, key, value)
        store.write(batch)
    finally:
        store.close()


def test_a_directory_of_a_later_format_is_refused_and_left_alone(server: ServerProcess, cli: Cli, target: Path) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.append("a", 1)
    server.stop()
    change(server.data_dir, Family.META, b"format", b"topics-rocksdb-5")
    env = {"TOPICS_DATA_DIR": str(server.data_dir), "TOPICS_PORT": "0", "TOPICS_GRPC_PORT": "0"}
    done = subprocess.run([TOPICS, "serve"], env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert f"the data directory {server.data_dir} has the format b'topics-rocksdb-5'" in done.stderr
    assert "this server reads b'topics-rocksdb-4'" in done.stderr
    told = cli("backup", "create", "--data-dir", server.data_dir, "--to", target, code=1).err
    assert "topics-rocksdb-5" in told
    with pytest.raises(StoreOpenError, match="topics-rocksdb-5"):
        RocksStore(server.data_dir)


def test_state_rows_of_the_version_before_open(server: ServerProcess, restored: Restored) -> None:
    with TopicsClient(server.grpc_target) as client:
        fill(client)
        before = everything(client)
    server.stop()
    store = RocksStore(server.data_dir)
    try:
        batch = store.batch()
        for key, value in store.scan(Family.LOGS, b"", b"\xff" * 9):
            s = snapshot.decode(value)
            old = _LOG_ROW_1.pack(
                1, s.head, s.earliest, s.evict_cap, s.evict_ttl, s.evict_trim, s.count, s.bytes, s.cum_bytes,
                s.sealed_to, s.reclaimed_to, s.volatile_from, s.last_ts,
            )  # fmt: skip
            batch.put(Family.LOGS, key, old)
        store.write(batch)
    finally:
        store.close()
    with TopicsClient(restored(server.data_dir).grpc_target) as client:
        assert everything(client) == before


def test_the_backup_of_the_first_version_opens(tmp_path: Path, restored: Restored) -> None:
    cli = Cli()
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    kept = tmp_path / "backups-of-format-1"
    (row,) = cli("backup", "verify", "--from", kept, "--deep", "--json").rows
    assert row["records"] == 2258
    cli("backup", "restore", "--from", kept, "--to", tmp_path / "new")
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        found = everything(client)
        assert {name for name in found if name.startswith("topic ")} == {
            f"topic {name}" for name in ("capped", "copies", "events", "jobs", "jobs:dead", "orders", "volatile")
        }
        jobs = {seq for state in ("ready", "delayed") for seq, _, _ in found["jobs jobs"][state]}
        assert set(range(26, 66)) <= jobs, "those that were never claimed"
        assert [record.value for record in records(contents(client, "capped"))] == list(range(70, 120))
        assert client.append("events", "once", idempotency_key="the key").deduped
        given_up = [*range(13, 18), *range(19, 26), *range(66, 71)]  # had their only delivery; four were moved by then
        poll(lambda: client.get_topic("jobs").queue.dead_lettered == len(given_up), 20)
        dead = records(contents(client, "jobs:dead"))
        assert [record.meta["$dead_letter_src_seq"] for record in dead] == [str(seq) for seq in given_up]
        assert found["group billing"] == [("events", 2, 17), ("orders", 0, 40)]
        assert client.append("orders", "new", tag="eu:new").first_seq == 101
        assert client.get_router("copier").forwarded_total == 67


def test_a_backup_of_before_tables_and_the_log_behind_it(tmp_path: Path, restored: Restored) -> None:
    """The log of a directory that was moved on begins anew: rows come back from a backup made after that."""
    cli = Cli()
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    kept = tmp_path / "backups-of-format-1"
    cli("backup", "restore", "--from", kept, "--to", tmp_path / "old")
    env = {"TOPICS_WAL_ARCHIVE_SECONDS": 3600}
    with ServerProcess(tmp_path / "server", env=env, data_dir=tmp_path / "old") as server:
        cli.url = server.grpc_target
        with TopicsClient(server.grpc_target) as client:
            client.sql_script("CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY)")
            client.sql("INSERT INTO app.t VALUES (1)")
            cli("backup", "archive", "--to", kept, "--data-dir", server.data_dir)
            told = cli("backup", "restore", "--at", "latest", "--from", kept, "--to", tmp_path / "early", code=1).err
            assert "no backup in the target is of a server with TOPICS_WAL_ARCHIVE_SECONDS" in told
            cli("backup", "create", "--to", kept)
            client.sql("INSERT INTO app.t VALUES (2)")
            before = everything(client)
            cli("backup", "archive", "--to", kept, "--data-dir", server.data_dir)
    cli("backup", "restore", "--at", "latest", "--from", kept, "--to", tmp_path / "new")
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        found = everything(client)
        assert found["rows app.t"] == [(1,), (2,)]
        assert found == before
