"""A rolling restart under clients of every protocol: SIGTERM to one node after the other, the owner among them."""

from pathlib import Path

import pytest
from cluster.clients import addresses
from cluster.everyone import Everyone
from cluster.test_every_door import QUICK

from support.cluster import Cluster
from support.etcd import Etcd
from support.s3 import S3


@pytest.mark.timeout(240)
def test_a_rolling_restart_refuses_nothing_for_good(tmp_path: Path, s3: S3, etcd: Etcd) -> None:
    """Clients meet broken connections and 503, which they repeat as their protocol allows, and no other error."""
    with Cluster(tmp_path, etcd.address, f"{s3.bucket()}/t", s3.environment, env=QUICK) as cluster:
        everyone = Everyone(addresses(cluster))
        with everyone.at_work():
            owners = []
            for node in (cluster.owner(), *cluster.nodes):
                everyone.wait_for_progress(120)
                cluster.wait_for_followers(2)
                owners.append(cluster.owner())
                assert node.stop() == 0
                everyone.wait_for_progress(120)
                node.start()
        assert owners[0] is not owners[1], "the owner has handed over"
        assert not any("lost shard" in node.log or "refuses connections" in node.log for node in cluster.nodes)
