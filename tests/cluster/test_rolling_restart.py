"""A rolling restart under clients of every protocol: SIGTERM to one node after the other, owners among them."""

from pathlib import Path

import pytest
from cluster.clients import addresses
from cluster.everyone import Everyone
from cluster.test_every_door import QUICK, SHARDS

from support.cluster import Cluster
from support.etcd import Etcd
from support.s3 import S3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shards", [1, pytest.param(SHARDS, marks=pytest.mark.soak)])
def test_a_rolling_restart_refuses_nothing_for_good(tmp_path: Path, s3: S3, etcd: Etcd, shards: int) -> None:
    """Clients meet broken connections and 503, which they repeat as their protocol allows, and no other error."""
    with Cluster(tmp_path, etcd.address, f"{s3.bucket()}/t", s3.environment, env=QUICK, shards=shards) as cluster:
        everyone = Everyone(addresses(cluster))
        with everyone.at_work():
            for node in (cluster.owner(), *cluster.nodes):
                everyone.wait_for_progress(120)
                cluster.wait_for_followers(2 if shards == 1 else 1)
                assert node.stop() == 0
                cluster.wait_until_taken_over(node)
                everyone.wait_for_progress(120)
                node.start()
        assert all(any(f"handing shard {shard} over" in node.log for node in cluster.nodes) for shard in range(shards))
        assert not any("lost shard" in node.log or "refuses connections" in node.log for node in cluster.nodes)
