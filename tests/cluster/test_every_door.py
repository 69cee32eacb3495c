"""Kills of owners and more, under clients of every protocol: everything is there once and in order.

`TOPICS_KILLS` is the number of kills of the long form, which `make soak` runs with its default of 200; that with many
shards lasts `TOPICS_SOAK_SECONDS`.
"""

import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cluster import across
from cluster.clients import addresses
from cluster.disruptions import Disruptions
from cluster.everyone import Everyone

from support.cluster import NAMES, Cluster
from support.etcd import Etcd
from support.network import Network
from support.s3 import S3

KILLS = 3
SOAK_KILLS = int(os.environ.get("TOPICS_KILLS", "20"))
KILLS_OF_A_CLUSTER = 20
"""Then the next one begins, so that comparisons stay quick."""
NODES = 3
SHARDS = 8
SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "60"))
SECONDS_OF_A_CLUSTER = 300.0
PROGRESS_SECONDS = 60.0
CALL_SECONDS = 4.0
"""The time after which a client asks another node: one may be asleep."""
QUICK: dict[str, object] = {"TOPICS_KAFKA_INITIAL_REBALANCE_MS": 0}


def kill_owners(cluster: Cluster, everyone: Everyone, kills: int, rng: random.Random) -> list[float]:
    """Kill one owner after the other, as soon as a follower is caught up; each longest pause of a writer, in seconds.

    A killed node starts again while the next owner works, or dies.
    """
    pauses = []
    files: dict[str, tuple[Path, ...]] = {}
    for _ in range(kills):
        everyone.wait_for_progress(120)
        cluster.wait_for_followers(1)
        time.sleep(rng.uniform(0, 0.3))  # the moment within a batch, a PUT or a claim is any
        owner = cluster.owner()
        moment = time.monotonic()
        owner.kill()
        cluster.owner(other_than=owner)
        pauses.append(everyone.pause_around(moment))
        files[owner.name] = owner.spawn()
    for name, of in files.items():
        cluster[name].wait_until_ready(of)
    return pauses


def run(folder: Path, s3: S3, etcd: Etcd, kills: int, seed: int) -> tuple[list[float], str]:
    with Cluster(folder, etcd.address, f"{s3.bucket()}/t", s3.environment, env=QUICK) as cluster:
        everyone = Everyone(addresses(cluster))
        with everyone.at_work():
            pauses = kill_owners(cluster, everyone, kills, random.Random(seed))
        return pauses, str(everyone)


@pytest.mark.timeout(240)
def test_everything_is_there_once_and_in_order_over_kills_of_the_owner(tmp_path: Path, s3: S3, etcd: Etcd) -> None:
    pauses, everyone = run(tmp_path, s3, etcd, KILLS, 1)
    print(f"longest pauses {[round(pause, 3) for pause in pauses]} s; {everyone}")
    assert len(pauses) == KILLS


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_every_protocol_over_kills_soak(tmp_path: Path, s3: S3, etcd: Etcd) -> None:
    pauses: list[float] = []
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    while len(pauses) < SOAK_KILLS:
        kills = min(KILLS_OF_A_CLUSTER, SOAK_KILLS - len(pauses))
        found, everyone = run(tmp_path / str(seed), s3, etcd, kills, seed)
        pauses += found
        pauses.sort()
        print(f"TOPICS_SOAK_SEED={seed}: {everyone}")
        print(
            f"{len(pauses)} kills, nothing lost, nothing twice; longest pause of a writer p50 "
            f"{pauses[len(pauses) // 2]:.2f} s, p95 {pauses[int(len(pauses) * 0.95)]:.2f} s, most {pauses[-1]:.2f} s",
            flush=True,
        )
        seed += 1


class Hosts(NamedTuple):
    """Hosts that can be cut off from each other, with a store and an etcd."""

    network: Network
    s3: S3
    etcd: Etcd


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with (
        Network(NAMES[:NODES]) as network,
        S3(tmp_path / "s3", network.hosts["store"]) as s3,
        Etcd(tmp_path / "etcd", host=network.hosts["etcd"]) as etcd,
    ):
        yield Hosts(network, s3, etcd)


def run_with_many_shards(
    folder: Path, hosts: Hosts, seed: int, kinds: Iterable[str] | None, seconds: float = 0
) -> tuple[dict[str, list[float]], str]:
    """Cause the kinds of disruptions, or any for so many seconds: the longest pauses of a writer, by kind."""
    network, s3, etcd = hosts
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    pauses: dict[str, list[float]] = {}
    store = f"{s3.bucket()}/t"
    with Cluster(
        folder, etcd.address, store, s3.environment, nodes=NODES, env=QUICK, network=network, shards=SHARDS
    ) as cluster:
        everyone = Everyone(addresses(cluster), seconds=CALL_SECONDS, sdk_nodes=NODES, others=across.everyone)
        disruptions = Disruptions(cluster, rng, network)
        names = [*disruptions.kinds]
        each = iter(kinds) if kinds is not None else iter(lambda: rng.choice(names), "")
        with everyone.at_work():
            for kind in each:
                everyone.wait_for_progress(PROGRESS_SECONDS)
                if kinds is None and time.monotonic() > end:
                    break
                began = disruptions.cause(kind)
                everyone.wait_for_progress(PROGRESS_SECONDS)
                pauses.setdefault(kind, []).append(everyone.pause_around(began))
                print(f"{kind}: {pauses[kind][-1]:.2f} s", flush=True)
        return pauses, str(everyone)


@pytest.mark.timeout(300)
def test_many_shards_are_all_there_over_kills_sleep_restarts_drains_moves_and_cuts(
    tmp_path: Path, hosts: Hosts
) -> None:
    kinds = ["kill", "sleep", "cut from etcd", "drain", "move", "cut from a node", "restart"]
    pauses, everyone = run_with_many_shards(tmp_path, hosts, 1, kinds)
    print(f"longest pauses {shown(pauses)}; {everyone}")
    assert {*pauses} == {*kinds}


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_shards_over_disruptions_soak(tmp_path: Path, hosts: Hosts) -> None:
    """Clusters one after the other, each with disruptions at random."""
    end = time.monotonic() + SOAK_SECONDS
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    pauses: dict[str, list[float]] = {}
    while (left := end - time.monotonic()) > 0:
        print(f"TOPICS_SOAK_SEED={seed}", flush=True)
        found, everyone = run_with_many_shards(tmp_path / str(seed), hosts, seed, None, min(left, SECONDS_OF_A_CLUSTER))
        for kind, longest in found.items():
            pauses.setdefault(kind, []).extend(longest)
        print(f"longest pauses {shown(found)}; {everyone}", flush=True)
        seed += 1
    for kind, longest in sorted(pauses.items()):
        print(f"{len(longest)} x {kind}: {max(longest):.2f} s at most", flush=True)


def shown(pauses: dict[str, list[float]]) -> str:
    """Pauses by kind, in seconds."""
    return ", ".join(f"{kind} {sorted(round(each, 2) for each in found)}" for kind, found in sorted(pauses.items()))
