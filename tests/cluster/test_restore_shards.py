"""A cluster with several shards that begins with a data directory, and gives one back: with the real commands."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backup.history import now_ms
from backup.load import Load, check_moment
from sdk.cli.runner import Cli, environment

from support.cluster import Cluster
from support.etcd import Etcd
from support.local_s3 import Fault, LocalS3
from support.server import TOPICS, ServerProcess
from support.waiting import poll
from topics_client import TopicConfig, TopicsClient
from topics_service.engine.placement import home_of

CLI = Cli()
SHARDS = 4
NAMES = [next(f"t-{n}" for n in range(100) if home_of(f"t-{n}", SHARDS) == shard) for shard in range(SHARDS)]
"""A topic of each shard."""


@pytest.fixture
def store() -> Iterator[LocalS3]:
    with LocalS3() as store:
        yield store


def processes(folder: Path, data_dir: Path | None = None) -> ServerProcess:
    """A server with shards."""
    return ServerProcess(folder, data_dir=data_dir, env={"TOPICS_PROCESSES": "2", "TOPICS_SHARDS": str(SHARDS)})


def fill(server: ServerProcess) -> None:
    with TopicsClient(server.grpc_target) as client:
        for name in NAMES:
            client.put_topic(name, TopicConfig(durability="fsync"))
            client.append_many(name, [f"{name} {n}" for n in range(3)])


def content(directory: Path, folder: Path) -> dict[str, list[Any]]:
    """The records that a server with shards reads from a directory."""
    assert CLI("verify", "--data-dir", directory, "--json").row["clean"]
    with processes(folder, directory) as server, TopicsClient(server.grpc_target) as client:
        return {name: [record.value for record in client.read(name)] for name in NAMES}


ALL = {name: [f"{name} {n}" for n in range(3)] for name in NAMES}


@pytest.fixture
def env(store: LocalS3) -> dict[str, str]:
    return {**store.environment, "TOPICS_CLUSTER": "new", "TOPICS_CLUSTER_STORE": "s3://bucket/some"}


@pytest.mark.timeout(300)
def test_a_killed_init_is_run_again(store: LocalS3, env: dict[str, str], tmp_path: Path) -> None:
    with processes(tmp_path / "server") as server:
        fill(server)
        told = CLI("cluster", "init", "--from", server.data_dir, env=env, code=1).err
        assert f"{server.data_dir}: it is in use by another server" in told
    told = CLI("cluster", "init", "--from", server.data_dir, "--shards", 2, env=env, code=2).err
    assert f"{server.data_dir} has 4 shards, which never changes" in told
    assert not [name for name in store.objects if "/probe/" not in name]
    started: list[subprocess.Popen[bytes]] = []

    def kill(method: str, key: str) -> Fault | None:
        if method == "PUT" and "/s2/ckpt/" in key and started:
            os.kill(started[0].pid, signal.SIGKILL)
            started[0].wait()
            return "500"
        return None

    store.fault = kill
    words = [str(TOPICS), "cluster", "init", "--from", str(server.data_dir)]
    started.append(subprocess.Popen(words, env=environment(None, env)))
    assert started[0].wait(60) == -signal.SIGKILL
    assert {name.split("/")[3] for name in store.objects if "/ckpt/" in name} == {"s0", "s1"}
    started.clear()
    told = CLI("cluster", "restore", "--to", tmp_path / "early", env=env, code=1).err
    assert "cluster.json is missing, which says how many shards there are" in told
    told = CLI("cluster", "init", "--shards", SHARDS, env=env, code=1).err
    assert "a cluster is being made here since" in told
    assert CLI("cluster", "init", "--from", server.data_dir, "--json", env=env).row["shards"] == SHARDS
    told = CLI("cluster", "init", "--from", server.data_dir, env=env, code=1).err
    assert told == "topics cluster init: there is a cluster at s3://bucket/some/new\n"
    row = CLI("cluster", "restore", "--to", tmp_path / "new", "--json", env=env).row
    assert [each["shard"] for each in row["shards"]] == list(range(SHARDS))
    assert (row["topics"], row["records"]) == (4, 12)
    assert content(tmp_path / "new", tmp_path / "restored") == ALL
    assert content(server.data_dir, tmp_path / "again") == ALL
    told = CLI("cluster", "restore", "--to", tmp_path / "new", env=env, code=1).err
    assert "is not empty" in told
    told = CLI("cluster", "restore", "--to", tmp_path / "other", "--shards", 3, env=env, code=1).err
    assert told == "topics cluster restore: the cluster has 4 shards, not 3\n"
    for name in [name for name in store.objects if "/s1/" in name or "/s3/" in name]:
        del store.objects[name]
    told = CLI("cluster", "moments", env=env, code=1).err
    assert told == "topics cluster moments: there is neither a log nor a checkpoint of 2 shards of 4: 1, 3\n"


@pytest.mark.timeout(300)
def test_a_directory_without_shards_is_split_on_the_way(env: dict[str, str], tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server") as server:
        fill(server)
        told = CLI("cluster", "init", "--from", server.data_dir, "--shards", SHARDS, env=env, code=1).err
        assert f"a server has {server.data_dir} open: stop it first" in told
    told = CLI("cluster", "init", "--from", server.data_dir, "--shards", SHARDS, env=env).out
    assert told.startswith("s3://bucket/some/new is a cluster with 4 shards, which begins with ")
    assert sorted(path.name for path in server.data_dir.parent.iterdir() if "data" in path.name) == ["data"]
    out = CLI("cluster", "restore", "--to", tmp_path / "new", env=env).out
    assert out.startswith("4 checkpoints of 4 shards and 0B of log: 4 topics, 12 records, as of ")
    assert out.endswith(f"serve it with: topics serve --data-dir {tmp_path / 'new'} --processes 2\n")
    assert content(tmp_path / "new", tmp_path / "restored") == ALL
    with (
        ServerProcess(tmp_path / "again", data_dir=server.data_dir) as again,
        TopicsClient(again.grpc_target) as client,
    ):
        assert [record.value for record in client.read(NAMES[0])] == ALL[NAMES[0]]


@pytest.mark.timeout(600)
def test_nodes_go_on_with_all_shards_and_their_moments_are_restored(store: LocalS3, etcd: Etcd, tmp_path: Path) -> None:
    with processes(tmp_path / "server") as server:
        fill(server)
    cluster = Cluster(tmp_path / "cluster", etcd.address, "s3://bucket/t", store.environment, nodes=2, shards=SHARDS)
    cluster.command("init", "--from", str(server.data_dir))
    env = {name: str(value) for name, value in cluster.env.items()}
    with cluster:

        def all_owned() -> bool:
            claims = [cluster.claimed(shard) for shard in range(SHARDS)]
            return all(claim is not None and claim["epoch"] for claim in claims)

        poll(all_owned, 60, cluster.logs)
        with TopicsClient(cluster["a"].grpc_target) as client:
            assert client.append(NAMES[0], "in the cluster").last_seq == 4
            assert client.append(NAMES[0], "a mistake").last_seq == 5
        told = Cli(cluster["a"].grpc_target)("backup", "create", "--to", tmp_path / "backups", code=1).err
        assert "`topics cluster backup` backs up a cluster with shards" in told
        into = ("--to", tmp_path / "backups", "--scratch", tmp_path, "--json")
        first = CLI("cluster", "backup", *into, env=env).row
        with TopicsClient(cluster["b"].grpc_target) as client:
            assert client.append(NAMES[1], "after the backup").last_seq == 4
            poll(lambda: CLI("cluster", "moments", "--json", env=env).rows[1]["bytes"] > 0, 60)
        second = CLI("cluster", "backup", *into, env=env).row
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("topics-backup-")]
    assert (first["topics"], first["records"], second["records"]) == (4, 14, 15)
    assert second["new_bytes"] < second["bytes"], "what the first has is not copied again"
    CLI("backup", "restore", second["id"], "--from", tmp_path / "backups", "--to", tmp_path / "second")
    found = content(tmp_path / "second", tmp_path / "of-second")
    assert found[NAMES[0]][3:] == ["in the cluster", "a mistake"]
    assert found[NAMES[1]][3:] == ["after the backup"]
    rows = CLI("cluster", "moments", "--json", env=env).rows
    assert [row["shard"] for row in rows] == [*range(SHARDS), None]
    assert max(row["from_ms"] for row in rows[:-1]) == rows[-1]["from_ms"]
    assert max(row["until_ms"] for row in rows[:-1]) == rows[-1]["until_ms"]
    lines = CLI("cluster", "moments", env=env).out.splitlines()
    assert lines[2].startswith("shard 2: restorable from ")
    assert lines[-1].startswith("all shards: restorable from ")
    row = CLI("cluster", "restore", "--at-seq", f"{NAMES[0]}:4", "--to", tmp_path / "new", "--json", env=env).row
    assert row["written_ms"] == row["shards"][0]["written_ms"]
    found = content(tmp_path / "new", tmp_path / "restored")
    assert found == ALL | {NAMES[0]: [*ALL[NAMES[0]], "in the cluster"]}
    made = CLI("backup", "create", "--data-dir", tmp_path / "new", "--to", tmp_path / "backups", "--json").row
    assert (made["topics"], made["records"]) == (4, 13)
    told = CLI("cluster", "restore", "--at-seq", f"{NAMES[0]}:6", "--to", tmp_path / "x", env=env, code=5).err
    assert told.startswith(f'topics cluster restore: shard 0: the log does not show how "{NAMES[0]}" reached seq 6')


@pytest.mark.timeout(600)
def test_a_time_under_load_is_one_moment_where_the_clocks_are_one(store: LocalS3, etcd: Etcd, tmp_path: Path) -> None:
    """Nodes of one machine: nothing that one shard wrote because of another one is there without that."""
    cluster = Cluster(tmp_path / "cluster", etcd.address, "s3://bucket/t", store.environment, nodes=2, shards=SHARDS)
    cluster.command("init", "--shards", str(SHARDS))
    env = {name: str(value) for name, value in cluster.env.items()}
    with cluster:
        with Load(cluster["a"].grpc_target, "fsync") as load:
            poll(lambda: min(load.acked.values()) > 30, 120, cluster.logs)
            at_least, ms = dict(load.acked), now_ms()
            at_most = {topic: sent + 50 for topic, sent in load.sent.items()}
            poll(lambda there=dict(load.acked): all(load.acked[each] > there[each] for each in there), 60, cluster.logs)
        CLI("cluster", "restore", "--at", ms, "--to", tmp_path / "new", env=env)
        assert CLI("verify", "--data-dir", tmp_path / "new", "--json").row["clean"]
        with (
            processes(tmp_path / "restored", tmp_path / "new") as server,
            TopicsClient(server.grpc_target) as restored,
            TopicsClient(cluster["b"].grpc_target) as source,
        ):
            check_moment(restored, source, at_least, at_most)
