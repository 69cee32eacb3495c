"""A store that is slow, that is away for a minute, and that does not accept the keys of a node any more."""

import time
from pathlib import Path

import pytest
from cluster.load import Load

from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.local_s3 import LocalS3
from support.waiting import poll

SLOW_SECONDS = 3.5
"""Longer than the time after which an owner that does not reach the store gives the shard to a node that does."""
AWAY_SECONDS = 60.0


def with_keys(file: Path, key_id: str) -> None:
    """Write the keys as a tool does that changes them: another file takes the place of the first."""
    new = file.with_suffix(".new")
    new.write_text(f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = anything\n")
    new.replace(file)


def with_files(folder: Path, etcd: Etcd, store: LocalS3, nodes: int) -> tuple[Cluster, dict[str, Path]]:
    """A cluster whose nodes have their keys in files of their own, and these."""
    environment = dict(store.environment)
    secret = {name: environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    files = {name: folder / f"keys-{name}" for name in "abc"[:nodes]}
    own = {
        name: {**dict.fromkeys(secret, ""), "AWS_SHARED_CREDENTIALS_FILE": file} for name, file in files.items()
    }  # fmt: skip
    for file in files.values():
        with_keys(file, "anyone")
    return Cluster(folder, etcd.address, "s3://bucket/t", environment, nodes=nodes, own=own), files


@pytest.mark.soak
def test_a_store_that_is_slow_to_create_moves_nothing(tmp_path: Path, etcd: Etcd) -> None:
    """Another node would not be faster."""

    def slow(method: str, key: str) -> None:
        if method == "PUT" and "/log/" in key:
            time.sleep(SLOW_SECONDS)

    with LocalS3() as store, Cluster(tmp_path, etcd.address, "s3://bucket/t", store.environment, nodes=2) as cluster:
        cluster.wait_for_followers(1)
        load = Load(cluster)
        owner = cluster.owner()
        with load.running():
            load.wait_for_acks()
            store.fault = slow
            load.wait_for_acks(1)
            store.fault = lambda method, key: None
            load.wait_for_acks()
        assert cluster.owner() is owner
        assert cluster.metric("topics_cluster_takeovers_total") == 1


@pytest.mark.soak
@pytest.mark.parametrize("way", ["refuses", "hangs"])
def test_a_store_that_is_away_for_a_minute_delays_and_loses_nothing(tmp_path: Path, etcd: Etcd, way: str) -> None:
    with LocalS3() as store, Cluster(tmp_path, etcd.address, "s3://bucket/t", store.environment, nodes=3) as cluster:
        cluster.wait_for_followers(2)
        load = Load(cluster, with_readers=True, window_ms=600_000)
        for writer in load.writers:
            writer.calls.patience += AWAY_SECONDS
        owner = cluster.owner()
        with load.running():
            load.wait_for_acks()
            gone = time.monotonic()
            with store.away(way, AWAY_SECONDS):
                poll(lambda: time.monotonic() > gone + AWAY_SECONDS, AWAY_SECONDS + 5)
            back = time.monotonic()
            load.wait_for_acks()
            late = load.pause(gone) - (back - gone)
            print(f"first acknowledgement {late:.2f} s after {AWAY_SECONDS} s without a store that {way}")
            assert late < 6
            cluster.wait_for_followers(2, 60)
            load.wait_for_acks()
        assert cluster.owner() is owner
        assert cluster.metric("topics_cluster_takeovers_total") == 1


def test_nodes_wait_for_keys_that_the_store_accepts(tmp_path: Path, etcd: Etcd) -> None:
    with LocalS3() as store:
        store.key_ids = {"anyone"}
        cluster, files = with_files(tmp_path, etcd, store, 2)
        with cluster:
            cluster.wait_for_followers(1)
            load = Load(cluster)
            owner = cluster.owner()
            with load.running():
                load.wait_for_acks()
                store.key_ids = {"new"}
                ended = time.monotonic()
                poll(lambda: "InvalidAccessKeyId" in owner.log, 10, lambda: owner.log[-1500:])
                files[owner.name].write_text("[default]\naws_access_")  # half of the file, and then none
                poll(lambda: time.monotonic() > ended + 2.5, 10)
                files[owner.name].unlink()
                poll(lambda: time.monotonic() > ended + 4, 10)  # longer than a node waits that another could replace
                for file in files.values():
                    with_keys(file, "new")
                changed = time.monotonic()
                load.wait_for_acks()
                late = load.pause(ended) - (changed - ended)
                print(f"first acknowledgement {late:.2f} s after the new keys")
                assert late < 5
                cluster.wait_for_followers(1, 30)
            assert cluster.owner() is owner
            assert cluster.metric("topics_cluster_takeovers_total") == 1


@pytest.mark.soak
def test_an_owner_whose_keys_alone_have_ended_gives_the_shard_up(tmp_path: Path, etcd: Etcd) -> None:
    with LocalS3() as store:
        cluster, files = with_files(tmp_path, etcd, store, 2)
        with cluster:
            cluster.wait_for_followers(1)
            load = Load(cluster)
            owner: Node = cluster.owner()
            with load.running():
                load.wait_for_acks()
                for name, file in files.items():
                    if name != owner.name:
                        with_keys(file, "new")
                poll(lambda: "new" in store.seen_key_ids, 10)
                store.key_ids = {"new"}
                ended = time.monotonic()
                later = cluster.owner(other_than=owner)
                load.wait_for_acks()
                print(f"{load.pause(ended):.2f} s without an acknowledgement")
                assert load.pause(ended) < 6
                assert owner.stop() == 0, "a node stops without the store"
                with_keys(files[owner.name], "new")
                owner.start()
                cluster.wait_for_followers(1, 30)
                load.wait_for_acks()
                assert cluster.owner() is later
