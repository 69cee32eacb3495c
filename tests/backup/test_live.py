"""Backups while everything runs are of one moment; kills of either side leave no half backup."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from backup.load import Load, check_moment
from backup.states import everything, fill
from sdk.cli.runner import Cli, environment

from support.server import TOPICS, ServerProcess
from support.waiting import poll
from topics_client import TopicsClient
from topics_client.errors import TopicsError
from topics_proto.v1 import admin_service_pb2 as pb

Restored = Callable[[Path], ServerProcess]


def has_come(load: Load, minimum: int) -> bool:
    return min(load.acked.values()) > minimum


def checkpoints(server: ServerProcess) -> list[Path]:
    directory = server.data_dir / "checkpoints"
    return list(directory.iterdir()) if directory.is_dir() else []


def is_at(create: "subprocess.Popen[bytes]", server: ServerProcess, held: int, target: Path, moment: int) -> bool:
    """Whether the command has its checkpoint, and so many files of the backup are there; or it has ended."""
    stored = [path for path in target.rglob("*") if path.is_file()]
    return create.poll() is not None or (len(checkpoints(server)) > held and len(stored) >= moment)


def test_a_backup_under_load_is_of_one_moment(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    made = []
    with Load(server.grpc_target) as load:
        for number in range(3):
            poll(partial(has_come, load, 50 * (number + 1)), 40, "progress")
            at_least = dict(load.acked)
            backup = cli("backup", "create", "--to", target, "--json").row
            made.append((backup["id"], at_least, dict(load.sent)))
    with TopicsClient(server.grpc_target) as source:
        for number, (backup_id, at_least, at_most) in enumerate(made):
            manifest = json.loads((target / "backups" / f"{backup_id}.json").read_text())["backup"]
            stood = {topic["topic"]: topic["partitions"][0] for topic in manifest["topics"]}
            assert stood["copies"]["head_seq"] <= stood["orders"]["head_seq"]
            cli("backup", "restore", backup_id, "--from", target, "--to", tmp_path / backup_id)
            with TopicsClient(restored(tmp_path / backup_id).grpc_target) as client:
                heads = check_moment(client, source, at_least, at_most)
            assert all(stood[topic]["head_seq"] == heads[topic] for topic in at_least)
            print(f"backup {number}: {heads}")
    cli("backup", "verify", "--from", target, "--deep")


def test_a_killed_create_leaves_no_half_backup(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    with TopicsClient(server.grpc_target) as client:
        fill(client)
        client.append_many("big", [random.Random(i).randbytes(900_000) for i in range(60)])
        before = everything(client)

    killed = 0
    # 0: the server has begun its checkpoint. Then: when so many files are there, whole or begun.
    for moment, signum in ((0, signal.SIGKILL), (1, signal.SIGKILL), (4, signal.SIGKILL), (6, signal.SIGTERM)):
        held = len(checkpoints(server))
        create = cli.start("backup", "create", "--to", target / str(moment), stderr=subprocess.PIPE)
        poll(partial(is_at, create, server, held, target / str(moment), moment), 30)
        create.send_signal(signum)
        _, told = create.communicate(timeout=30)
        assert told == b""
        if create.returncode:  # else it was faster
            killed += 1
            assert create.returncode == (-signal.SIGKILL if signum == signal.SIGKILL else 143)
        if moment:  # before that, the server may see it disconnect, and remove an unannounced checkpoint
            assert len(checkpoints(server)) == held + (create.returncode == -signal.SIGKILL)
        else:
            poll(lambda: all(f"checkpoint {path}" in server.log for path in checkpoints(server)), 30)
        there = cli("backup", "list", "--from", target / str(moment), "--json").rows
        assert len(there) == (create.returncode == 0)
    assert killed >= 2
    for path in checkpoints(server):
        cli("backup", "release", path.name)
    assert not checkpoints(server)
    target = target / "4"
    last = cli("backup", "create", "--to", target, "--json").row
    assert all(row["intact"] for row in cli("backup", "verify", "--from", target, "--deep", "--json").rows)
    cli("backup", "restore", last["id"], "--from", target, "--to", tmp_path / "new")
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        assert everything(client) == before
    cli("backup", "prune", "--from", target, "--keep", 1, "--grace", 0)
    manifest = json.loads((target / "backups" / f"{last['id']}.json").read_text())["backup"]
    assert len(list((target / "files").rglob("*/*"))) == len({file["sha256"] for file in manifest["files"]})


def test_a_server_killed_while_it_makes_a_checkpoint(server: ServerProcess, cli: Cli, target: Path) -> None:
    with TopicsClient(server.grpc_target) as client:
        fill(client)
        client.append_many("big", [random.Random(i).randbytes(900_000) for i in range(30)])
        before = everything(client)
    chance = random.Random(11)
    for _ in range(3):
        with TopicsClient(server.grpc_target) as client:
            client.append_many("more", [chance.randbytes(100_000) for _ in range(50)])
            head = client.get_topic("more").head_seq
            future = client.connection.admin.CreateCheckpoint.future(pb.CreateCheckpointRequest(), timeout=30)
            # Anywhere between the call and its answer, which takes about 0.1 s.
            while not future.done() and chance.random() > 0.1:
                time.sleep(0.01)
            server.kill()
            future.exception()
        server.start()
        assert not (server.data_dir / "checkpoints").exists()
        with TopicsClient(server.grpc_target) as client:
            assert client.get_topic("more").head_seq == head
            found = everything(client)
            assert {name: found[name] for name in before} == before


def test_a_server_killed_while_its_checkpoint_is_copied(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    """The files exist as long as the directory: the backup continues without the server."""
    with TopicsClient(server.grpc_target) as client:
        client.append_many("big", [random.Random(i).randbytes(900_000) for i in range(60)])
        before = everything(client)
    create = cli.start("backup", "create", "--to", target, stderr=subprocess.PIPE)
    poll(lambda: create.poll() is not None or list(target.glob(".part-*")), 30)
    server.kill()
    _, told = create.communicate(timeout=60)
    assert create.returncode == 0
    assert b"could not release checkpoint" in told
    assert told.count(b"\n") == 1
    cli("backup", "restore", "--from", target, "--to", tmp_path / "new")
    with TopicsClient(restored(tmp_path / "new").grpc_target) as client:
        assert everything(client) == before


def test_a_killed_restore_is_no_directory(
    server: ServerProcess, cli: Cli, target: Path, tmp_path: Path, restored: Restored
) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.append_many("big", [random.Random(i).randbytes(900_000) for i in range(60)])
        before = everything(client)
    cli("backup", "create", "--to", target)
    new = tmp_path / "new"
    restore = cli.start("backup", "restore", "--from", target, "--to", new)
    poll(lambda: restore.poll() is not None or list(tmp_path.glob(".new.*/*")), 30)
    restore.kill()
    assert restore.wait(20) == -signal.SIGKILL
    assert not new.exists()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    verify = cli.start("backup", "verify", "--deep", "--scratch", scratch, "--from", target)
    poll(lambda: verify.poll() is not None or list(scratch.glob("*/.data.*/*")), 30)
    verify.terminate()
    assert verify.wait(20) in (143, 0)
    assert not list(scratch.iterdir())
    cli("backup", "restore", "--from", target, "--to", new)
    assert not list(tmp_path.glob(".new.*"))
    with TopicsClient(restored(new).grpc_target) as client:
        assert everything(client) == before


def test_a_server_that_stops_meanwhile(server: ServerProcess) -> None:
    with TopicsClient(server.grpc_target) as client:
        client.append_many("big", [random.randbytes(900_000) for _ in range(60)])
        future = client.connection.admin.CreateCheckpoint.future(pb.CreateCheckpointRequest(), timeout=30)
        poll(lambda: (server.data_dir / "checkpoints").exists(), 20)
        assert server.stop() == 0
        if future.exception() is None:
            assert future.result().topics == 1
        else:
            with pytest.raises(TopicsError):
                client.get_topic("big")
    server.start()
    with TopicsClient(server.grpc_target) as client:
        assert client.get_topic("big").head_seq == 60


def test_a_disk_that_takes_no_more(server: ServerProcess, cli: Cli, target: Path, tmp_path: Path) -> None:
    """By a limit on the size of files, which fails writes as a full disk does, with another errno."""
    with TopicsClient(server.grpc_target) as client:
        client.append_many("big", [random.Random(i).randbytes(900_000) for i in range(4)])
    limited = ["prlimit", "--fsize=1000000", "--", str(TOPICS), "backup"]
    env = environment(server.grpc_target, {})
    arguments = [*limited, "create", "--to", str(target)]
    done = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == f"topics backup create: {target}: File too large\n"
    assert not checkpoints(server)
    assert not (target / "backups").exists()
    assert not list(target.glob(".part-*"))
    cli("backup", "create", "--to", target)
    arguments = [*limited, "restore", "--from", str(target), "--to", str(tmp_path / "new")]
    done = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".new.*"))
