"""Backups by the command: made of a running server and of a directory at rest, listed, restored and compared."""

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from backup.states import contents, everything, fill
from confluent_kafka import Producer
from sdk.cli.runner import Cli

from support.server import ServerProcess
from topics_client import TopicConfig, TopicsClient
from topics_proto.v1 import admin_service_pb2 as pb
from topics_proto.v1 import admin_service_pb2_grpc

Restored = Callable[[Path], ServerProcess]


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_a_restored_server_tells_what_the_source_told(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    with TopicsClient(server.grpc_target) as client:
        fill(client)
        before = everything(client)
        made = cli("backup", "create", "--to", target, "--json").row
        assert everything(client) == before
    assert {state: len(jobs) for state, jobs in before["jobs jobs"].items()} == {
        "ready": 36,
        "delayed": 5,
        "in_flight": 13,
    }
    assert made["topics"] == len([name for name in before if name.startswith("topic ")])
    cli("backup", "restore", made["id"], "--from", target, "--to", tmp_path / "new")
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        assert everything(client) == before
        again = client.append("events", "once", idempotency_key="the key")
        assert again.deduped
        assert again.first_seq == 601
        more = client.append("orders", "more", tag="eu:more")
        assert more.first_seq == 101
        assert client.get_router("copier").forwarded_total == before["router copier"].forwarded_total + 1
        claimed = {job.seq for job in client.claim("jobs", "another", max=100)}
        assert claimed == {seq for seq, _, _ in before["jobs jobs"]["ready"]}


def test_a_backup_of_a_directory_at_rest(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    with TopicsClient(server.grpc_target) as client:
        fill(client)
        before = everything(client)
    refused = cli("backup", "create", "--data-dir", server.data_dir, "--to", target, code=1)
    assert "--server" in refused.err
    assert not target.exists()
    server.kill()  # not a clean end: what a start decides, the backup decides
    cli("backup", "create", "--data-dir", server.data_dir, "--to", target)
    cli("backup", "restore", "--from", target, "--to", tmp_path / "new")
    for directory in (tmp_path / "new", server.data_dir):
        with TopicsClient(restored(directory).grpc_target) as client:
            assert everything(client) == before
    assert not (server.data_dir / "checkpoints").exists()


def test_the_second_backup_copies_what_is_new(server: ServerProcess, cli: Cli, target: Path) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.append_many("big", [os.urandom(100_000) for _ in range(30)])
        first = cli("backup", "create", "--to", target, "--json").row
        client.append("big", os.urandom(1000))
        second = cli("backup", "create", "--to", target, "--json").row
    assert first["new_bytes"] == first["bytes"] > 3_000_000
    assert second["bytes"] > first["bytes"]
    assert second["new_bytes"] < 100_000
    stored = sum(path.stat().st_size for path in files(target / "files"))
    assert stored == first["new_bytes"] + second["new_bytes"]
    assert not list(target.glob(".part-*"))
    rows = cli("backup", "list", "--from", target, "--json").rows
    assert rows == [first, second]
    table = cli("backup", "list", "--from", target).cells
    assert [row[0] for row in table] == ["ID", first["id"], second["id"]]


def test_what_a_manifest_tells(server: ServerProcess, cli: Cli, target: Path) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.put_topic("a", TopicConfig(durability="fsync"), partitions=2)
        client.append_many("a", range(7), partition=1)
        info = client.get_topic("a")
        made = cli("backup", "create", "--to", target, "--json").row
    sealed = json.loads((target / "backups" / f"{made['id']}.json").read_text())
    backup = sealed["backup"]
    assert backup["format"] == 1
    assert backup["store_format"] == "topics-rocksdb-4"
    assert backup["source"].endswith(f":{server.data_dir}")
    (topic,) = backup["topics"]
    assert len({partition.pop("log_id") for partition in topic["partitions"]}) == 2
    assert backup["topics"] == [
        {
            "topic": "a",
            "topic_id": info.topic_id,
            "epoch": info.epoch,
            "type": "log",
            "durability": "fsync",
            "partitions": [
                {"head_seq": 0, "earliest_seq": 1, "count": 0},
                {"head_seq": 7, "earliest_seq": 1, "count": 7},
            ],
        }
    ]
    assert {file["name"] for file in backup["files"]} >= {"CURRENT"}
    for file in backup["files"]:
        assert (target / "files" / file["sha256"][:2] / file["sha256"]).stat().st_size == file["size"]


def test_ephemeral_records_are_lost_in_words(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.put_topic("eph", TopicConfig(durability="ephemeral"))
        client.append_many("eph", range(10))
        cli("backup", "create", "--to", target)
    cli("backup", "verify", "--from", target, "--deep")
    cli("backup", "restore", "--from", target, "--to", tmp_path / "new")
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        page = client.diff("eph")
        assert page.gap is not None
        assert not page.records
        assert client.append("eph", "new").first_seq > 10


def test_verify_reads_all_that_there_is(server: ServerProcess, cli: Cli, target: Path, tmp_path: Path) -> None:
    with TopicsClient(server.grpc_target) as client:
        fill(client)
        first = cli("backup", "create", "--to", target, "--json").row["id"]
        client.append_many("events", range(100))
        second = cli("backup", "create", "--to", target, "--json").row
    shallow = cli("backup", "verify", "--from", target, "--json").rows
    assert [(row["id"], row["intact"]) for row in shallow] == [(second["id"], True), (first, True)]
    assert sum(row["bytes"] for row in shallow) == sum(path.stat().st_size for path in files(target / "files"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    deep = cli("backup", "verify", second["id"], "--from", target, "--deep", "--scratch", scratch, "--json").row
    assert deep["records"] == second["records"]
    assert not list(scratch.iterdir())


def test_a_restore_writes_over_nothing(server: ServerProcess, cli: Cli, target: Path, tmp_path: Path) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.append("a", 1)
        cli("backup", "create", "--to", target)
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious").write_text("mine")
    refused = cli("backup", "restore", "--from", target, "--to", full, code=1)
    assert "is not empty" in refused.err
    assert [path.name for path in full.iterdir()] == ["precious"]
    assert "is not a directory" in cli("backup", "restore", "--from", target, "--to", full / "precious", code=1).err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert cli("backup", "restore", "--from", target, "--to", empty, "--json").row["data_dir"] == str(empty)
    assert (empty / "CURRENT").exists()
    assert not list(tmp_path.glob(".*.part"))


def test_what_is_not_there(cli: Cli, target: Path, tmp_path: Path) -> None:
    assert cli("backup", "list", "--from", target, "--json").rows == []
    assert "no backup" in cli("backup", "restore", "--from", target, "--to", tmp_path / "new", code=5).err
    assert "no backup" in cli("backup", "verify", "--from", target, code=5).err
    unknown = "20260101T000000000Z-abcdef"
    assert unknown in cli("backup", "verify", unknown, "--from", target, code=5).err
    assert "not a backup id" in cli("backup", "restore", "../x", "--from", target, "--to", tmp_path / "new", code=5).err
    assert not (tmp_path / "new").exists()
    assert "not a data directory" in cli("backup", "create", "--data-dir", tmp_path / "no", "--to", target, code=1).err
    assert "no checkpoint" in cli("backup", "release", "none", code=5).err
    cli("backup", "prune", "--from", target, code=2)
    cli("backup", "create", "--to", target, "--server", cli.url, "--data-dir", tmp_path, code=2)
    cli("backup", "create", "--to", target, "--server", "127.0.0.1:9", code=3)
    assert not target.exists()


def test_a_target_that_can_not_be_written(server: ServerProcess, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = cli("backup", "create", "--to", tmp_path / "file" / "x", code=1)
    assert refused.err.startswith(f"topics backup create: {tmp_path / 'file'}")
    assert refused.err.endswith(": Not a directory\n")
    assert not (server.data_dir / "checkpoints").exists() or not list((server.data_dir / "checkpoints").iterdir())


@pytest.mark.parametrize("url", ["nonsense://bucket/x", "s3://", "file://relative"])
def test_a_url_that_is_none(url: str) -> None:
    Cli()("backup", "list", "--from", url, code=1)


def test_a_file_url_is_a_folder(server: ServerProcess, cli: Cli, target: Path) -> None:
    made = cli("backup", "create", "--to", f"file://{target}", "--json").row
    assert cli("backup", "list", "--from", target, "--json").row == made
    shutil.rmtree(target)


class Elsewhere(admin_service_pb2_grpc.AdminServiceServicer):
    """A server on another machine: its checkpoint is not here."""

    released: str = ""

    def CreateCheckpoint(self, request: pb.CreateCheckpointRequest, context: object) -> pb.CreateCheckpointResponse:  # noqa: N802
        return pb.CreateCheckpointResponse(checkpoint_id="theirs", path="/not/here/theirs", created_ms=1)

    def ReleaseCheckpoint(self, request: pb.ReleaseCheckpointRequest, context: object) -> pb.ReleaseCheckpointResponse:  # noqa: N802
        self.released = request.checkpoint_id
        return pb.ReleaseCheckpointResponse(released=True)


def test_a_server_on_another_machine(target: Path) -> None:
    elsewhere = Elsewhere()
    served = grpc.server(ThreadPoolExecutor(2))
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(elsewhere, served)
    port = served.add_insecure_port("127.0.0.1:0")
    served.start()
    try:
        told = Cli(f"127.0.0.1:{port}")("backup", "create", "--to", target, code=1).err
    finally:
        served.stop(None).wait()
    assert "can't read the server's checkpoint /not/here/theirs" in told
    assert "run this on the server's machine" in told
    assert elsewhere.released == "theirs"
    assert not target.exists()


def test_the_key_must_be_one_of_an_admin(tmp_path: Path, target: Path) -> None:
    with ServerProcess(tmp_path / "server", env={"TOPICS_API_KEYS": "ops:admin,reader:read"}) as server:
        cli = Cli(server.grpc_target)
        assert "admin" in cli("backup", "create", "--to", target, code=4, env={"TOPICS_API_KEY": "reader"}).err
        cli("backup", "create", "--to", target, code=4)
        assert not target.exists()
        made = cli("backup", "create", "--to", target, "--json", "--key-env", "MINE", env={"MINE": "ops"}).row
    assert cli("backup", "list", "--from", target, "--json").row == made


def test_what_kafka_clients_wrote(tmp_path: Path, target: Path, restored: Restored) -> None:
    with ServerProcess(tmp_path / "server", kafka=True) as server:
        where = f"127.0.0.1:{server.kafka_port}"
        producer = Producer({"bootstrap.servers": where, "enable.idempotence": True, "compression.type": "lz4"})
        for number in range(500):
            producer.produce("kafka", key=f"k{number % 7}", value=json.dumps({"n": number}), headers={"h": b"x"})
        assert producer.flush(30) == 0
        with TopicsClient(server.grpc_target) as client:
            before = everything(client)
        cli = Cli(server.grpc_target)
        cli("backup", "create", "--to", target)
    assert cli("backup", "verify", "--from", target, "--deep", "--json").row["records"] == 500
    cli("backup", "restore", "--from", target, "--to", tmp_path / "new")
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        assert everything(client) == before
        assert len(contents(client, "kafka")) == 500
