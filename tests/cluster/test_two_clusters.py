"""Nodes with one prefix of a bucket, of which some know another etcd than the others: two clusters on one log."""

from pathlib import Path
from typing import Final

import pytest
from cluster.load import ShardsLoad

from support.cluster import Cluster
from support.etcd import Etcd
from support.s3 import S3
from support.waiting import poll

SHARDS: Final = 8


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_what_either_acknowledges_is_there_once(tmp_path: Path, s3: S3, etcd: Etcd) -> None:
    """Each takes the shards from the other by fences in the log, which no etcd has a say in."""
    store = s3.bucket()
    with (
        Etcd(tmp_path / "etcd") as another,
        Cluster(tmp_path / "one", etcd.address, store, s3.environment, nodes=1, shards=SHARDS) as one,
    ):
        poll(lambda: len(one.owners()) == SHARDS, 60, one.logs)
        load = ShardsLoad(one)
        with load.writing():
            load.wait_for_acks()
            with Cluster(
                tmp_path / "two", another.address, store, s3.environment, nodes=1, shards=SHARDS, name=one.name
            ) as two:
                poll(lambda: one.metric("topics_cluster_fenced_total") >= SHARDS, 60, one.logs)
                others = ShardsLoad(two, prefix="other-")
                with others.writing():
                    others.wait_for_acks(3, 90)
                    load.wait_for_acks(3, 90)
                print(f"epochs {[(one.claimed(shard) or {}).get('epoch') for shard in range(SHARDS)]}")
            poll(lambda: len(one.owners()) == SHARDS, 60, one.logs)
            load.wait_for_acks()
        load.check()
        others.check(one)
