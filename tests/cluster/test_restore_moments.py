"""Restores to moments of a cluster of processes, with the real command, across the death of an owner."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from backup.history import History, now_ms
from backup.states import everything, records
from sdk.cli.runner import Cli

from support.cluster import Cluster
from support.etcd import Etcd
from support.local_s3 import LocalS3
from support.server import ServerProcess
from support.waiting import poll
from topics_client import Gap, NewRecord, TopicConfig, TopicInfo, TopicsClient

CLI = Cli()


@pytest.fixture
def store() -> Iterator[LocalS3]:
    with LocalS3() as store:
        yield store


def without_losses(state: dict[str, Any]) -> dict[str, Any]:
    """A state without what a power cut, or a failover, may add: seqs that are lost at the end of a partition, and the
    higher head behind them."""
    found: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, TopicInfo):
            earliest = value.earliest_seq if value.count else 0
            found[name] = replace(value, head_seq=0, next_seq=0, earliest_seq=earliest)
        elif name.startswith("partition "):
            (_, earliest, count, *figures), there = value
            there = [replace(each, head_seq=0) if isinstance(each, Gap) else each for each in there]
            while there and isinstance(there[-1], Gap):
                there.pop()
            found[name] = earliest if count else 0, count, figures, there
        else:
            found[name] = value
    return found


def check(directory: Path, folder: Path, state: dict[str, Any]) -> None:
    """Compare what a server of its own answers from a directory with a state that was noted."""
    assert CLI("verify", "--data-dir", directory, "--json").row["clean"]
    with ServerProcess(folder, data_dir=directory) as server:
        with TopicsClient(server.grpc_target) as client:
            found, wanted = without_losses(everything(client)), without_losses(state)
        assert "Traceback" not in server.log
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == value, name


@pytest.mark.timeout(600)
def test_moments_before_and_after_a_failover_and_before_a_mistake(store: LocalS3, etcd: Etcd, tmp_path: Path) -> None:
    """The cluster begins with the directory of a server, so with a checkpoint. Then it is a cluster again."""
    history = History(seed=3)
    with ServerProcess(tmp_path / "single") as server, TopicsClient(server.grpc_target) as client:
        client.append_many("kept", [b"a", b"b"])
    cluster = Cluster(tmp_path / "cluster", etcd.address, "s3://bucket/t", store.environment, nodes=2)
    cluster.command("init", "--from", str(server.data_dir))
    with cluster:
        owner = cluster.owner()
        with TopicsClient(owner.grpc_target) as client:
            history.begin(client)
            history.go_on(client, 6)
            client.append("orders", "of the class fsync, so that all before it is in the store")
            history.note(client)
        before = len(history.moments) - 1
        cluster.wait_for_followers(1)
        owner.kill()
        cluster.owner(other_than=owner)
        with TopicsClient(cluster.owner().grpc_target) as client:
            history.go_on(client, 6)
            last = client.append_many("events", [NewRecord(n) for n in range(3)]).last_seq
            history.note(client)
            client.delete_records("events", before_seq=last + 1)
            client.sql_script("DELETE FROM shop.stock")
            client.delete_topic("orders")
            client.append("kept", b"c")
        [found] = rows(cluster, "moments")
        assert found["from_ms"] <= history.moments[0].ms
        assert found["until_ms"] > history.moments[-1].ms
        assert found["checkpoints"] == 1
        there = {name for name in store.objects if "/log/" in name or "/ckpt/" in name}
        chosen = [("--at", history.moments[i].ms, history.moments[i]) for i in (2, before, -1)]
        chosen.append(("--at-seq", f"events:{last}", history.moments[-1]))
        for number, (flag, at, moment) in enumerate(chosen):
            new = tmp_path / f"new-{number}"
            [told] = rows(cluster, "restore", flag, str(at), "--to", str(new))
            assert told["written_ms"] <= moment.ms
            assert told["checkpoint"] == 1
            check(new, tmp_path / f"restored-{number}", moment.state)
        assert there <= store.objects.keys()
        refused = cluster.command("restore", "--at-seq", "events:1000000", "--to", str(tmp_path / "x"), check=False)
        assert (refused.returncode, (tmp_path / "x").exists()) == (5, False)
        assert "does not show how" in refused.stderr
    again = Cluster(tmp_path / "again", etcd.address, "s3://bucket/again", store.environment, nodes=1)
    again.command("init", "--from", str(tmp_path / "new-2"))
    with again, TopicsClient(again.owner().grpc_target) as client:
        state = without_losses(everything(client))
        assert state["partition events@0"] == without_losses(history.moments[-1].state)["partition events@0"]
        assert client.append("events", 1).first_seq > last


def rows(cluster: Cluster, *words: str) -> list[Any]:
    """The JSON lines that a command of the cluster prints."""
    return [json.loads(line) for line in cluster.command(*words, "--json").stdout.splitlines()]


@pytest.mark.timeout(300)
def test_no_seq_that_was_acknowledged_is_given_again_and_ephemeral_records_are_a_gap(
    store: LocalS3, etcd: Etcd, tmp_path: Path
) -> None:
    """Also where the owner dies with records of the class disk that are not in the store."""
    with Cluster(tmp_path, etcd.address, "s3://bucket/t", store.environment, nodes=1) as cluster:
        owner = cluster.owner()
        with TopicsClient(owner.grpc_target) as client:
            client.put_topic("fleeting", TopicConfig(durability="ephemeral"))
            client.put_topic("local", TopicConfig(durability="disk"))
            client.put_topic("safe", TopicConfig(durability="fsync"))
            fleeting = client.append_many("fleeting", range(20)).last_seq
            client.append_many("local", range(5))
            client.append_many("safe", range(5))
            ms = now_ms()
            poll(lambda: now_ms() > ms, 5)
            store.fault = lambda method, _key: "500" if method == "PUT" else None
            lost = client.append_many("local", range(5, 9)).last_seq
            assert lost == 9
        owner.kill()
        store.fault = lambda _method, _key: None
        for number, at in enumerate((str(ms), "latest")):
            new = tmp_path / f"new-{number}"
            cluster.command("restore", "--at", at, "--to", str(new))
            with (
                ServerProcess(tmp_path / f"restored-{number}", data_dir=new) as server,
                TopicsClient(server.grpc_target) as client,
            ):
                for topic, count, last in (("safe", 5, 5), ("local", 5, lost), ("fleeting", 0, fleeting)):
                    with client.read(topic, gaps="yield") as stream:
                        found = list(stream)
                    assert [record.value for record in records(found)] == list(range(count))
                    assert client.append(topic, "on").first_seq > last
