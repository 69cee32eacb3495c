"""Faults around a cluster of real processes: its store, its etcd, and an owner that sleeps with writes in flight."""

import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster.clients import EVENTS, JOBS
from cluster.load import Load

from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.http import JSON, Api, ok, path
from support.local_s3 import Fault, LocalS3
from support.waiting import poll

AWAY_SECONDS = 10.0
"""That the store is away."""
LATE_SECONDS = 4.0


@contextlib.contextmanager
def cluster_on(folder: Path, store: LocalS3, etcd: Etcd, nodes: int = 2) -> Iterator[Cluster]:
    with Cluster(folder, etcd.address, "s3://bucket/t", store.environment, nodes=nodes) as cluster:
        yield cluster


@pytest.mark.parametrize("way", ["refuses", "hangs"])
def test_a_store_that_is_away_for_a_while_delays_and_loses_nothing(tmp_path: Path, etcd: Etcd, way: str) -> None:
    with LocalS3() as store, cluster_on(tmp_path, store, etcd) as cluster:
        load = Load(cluster)
        with load.running():
            load.wait_for_acks()
            gone = time.monotonic()
            with store.away(way, AWAY_SECONDS):
                time.sleep(AWAY_SECONDS)
            back = time.monotonic()
            load.wait_for_acks()
            assert load.pause(gone) >= AWAY_SECONDS - 2
            print(f"first acknowledgement after {load.pause(gone) - (back - gone):.2f} s")


def test_writes_continue_without_etcd_and_failovers_with_an_empty_one(tmp_path: Path) -> None:
    with (
        Etcd(tmp_path / "etcd") as etcd,
        LocalS3() as store,
        cluster_on(tmp_path, store, etcd, nodes=3) as cluster,
    ):
        load = Load(cluster)
        with load.running():
            load.wait_for_acks()
            owner = cluster.owner()
            gone = time.monotonic()
            etcd.empty()
            time.sleep(5)  # longer than any lease
            load.wait_for_acks()
            print(f"longest pause without etcd {load.pause(gone):.2f} s")
            with Api(owner.base) as api:
                assert api.state(EVENTS)["head_seq"]
            etcd.start()
            cluster.owner()
            load.wait_for_acks()
            cluster.wait_for_followers(1)
            cluster.owner().kill()
            load.wait_for_acks()


def test_an_owner_that_slept_acknowledges_nothing_that_is_not_in_the_log(tmp_path: Path, etcd: Etcd) -> None:
    with LocalS3() as store, cluster_on(tmp_path, store, etcd, nodes=3) as cluster:
        load = Load(cluster)
        with load.running():
            load.wait_for_acks()
            cluster.wait_for_followers(1)
            owner = cluster.owner()
            load.avoid(owner)
            late = [Late(owner, number) for number in range(8)]
            try:
                owner.signal(signal.SIGSTOP)
                stopped = time.monotonic()
                for each in late:
                    each.send()
                cluster.owner(other_than=owner)
                load.wait_for_acks()
                assert load.pause(stopped) < 15, "a lease takes 2 to 3 s"
                print(f"longest pause beside an owner that sleeps {load.pause(stopped):.2f} s")
                with Api(cluster.owner().base) as api:
                    head = api.state(EVENTS)["head_seq"]
            finally:
                owner.signal(signal.SIGCONT)
            with httpx.Client(base_url=owner.base, timeout=30, trust_env=False) as client:
                reply = until_answered(client, path(EVENTS, "/diff"), {"from_seq": head - 1, "limit": 1})
                assert reply["head_seq"] >= head, "a stale read"
            acknowledged = sorted(each.number for each in late if each.acknowledged())
            load.wait_for_acks()
            cluster.wait_for_followers(2)
        with Api(cluster.owner().base) as api:
            there = sorted(record["data"]["late"] for record in api.read_all(JOBS) if "late" in record["data"])
        assert there == acknowledged


class Late:
    """A write without a key on a connection to a node that sleeps: it is in flight until the node wakes up."""

    def __init__(self, node: Node, number: int) -> None:
        self.number = number
        self._client = httpx.Client(base_url=node.base, timeout=60, trust_env=False)
        self._client.get("/v0/health").raise_for_status()  # a connection that was accepted before
        self._status = 0
        self._thread = threading.Thread(target=self._write, daemon=True)

    def send(self) -> None:
        self._thread.start()

    def _write(self) -> None:
        body = {"records": [{"data": {"late": self.number}}]}
        with contextlib.suppress(httpx.TransportError):
            self._status = self._client.post(path(JOBS), content=json.dumps(body), headers=JSON).status_code

    def acknowledged(self) -> bool:
        """True if it was, once it has an answer or none is to come."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._client.close()
        return self._status in (200, 201)


def until_answered(client: httpx.Client, where: str, body: Any) -> dict[str, Any]:
    """The reply to a read that may be refused for a while."""

    def ask() -> dict[str, Any] | None:
        try:
            response = client.post(where, content=json.dumps(body), headers=JSON)
        except httpx.TransportError:
            return None
        return None if response.status_code >= 500 else ok(response)

    reply = poll(ask, 30, where)
    assert reply is not None
    return reply


def test_errors_and_lost_answers_of_the_store_lose_and_repeat_nothing(tmp_path: Path, etcd: Etcd) -> None:
    rng = random.Random(7)

    def fault(method: str, key: str) -> Fault | None:
        if "/log/" not in key or rng.random() > 0.2:
            return None
        faults: list[Fault] = ["500", "503", "lost"] if method == "PUT" else ["500", "half"]
        return rng.choice(faults)

    with LocalS3() as store, cluster_on(tmp_path, store, etcd) as cluster:
        load = Load(cluster)
        with load.running():
            load.wait_for_acks()
            store.fault = fault
            load.wait_for_acks()
            cluster.wait_for_followers(1)
            cluster.owner().kill()
            load.wait_for_acks()


def test_a_put_that_lands_after_the_takeover_is_of_no_effect(tmp_path: Path, etcd: Etcd) -> None:
    late: list[str] = []

    def fault(method: str, key: str) -> Fault | None:
        if method == "PUT" and "/log/" in key and armed.is_set():
            late.append(key)
            return "late"
        return None

    armed = threading.Event()
    with LocalS3(fault=fault, late_seconds=LATE_SECONDS) as store, cluster_on(tmp_path, store, etcd, 3) as cluster:
        load = Load(cluster)
        with load.running():
            load.wait_for_acks()
            cluster.wait_for_followers(2)
            owner = cluster.owner()
            armed.set()
            poll(lambda: late, 10)
            owner.kill()
            armed.clear()
            sent = time.monotonic()
            cluster.owner(other_than=owner)
            load.wait_for_acks()
            poll(lambda: time.monotonic() > sent + LATE_SECONDS + 1, LATE_SECONDS + 5)
            owner.start()
            cluster.wait_for_followers(2)
            cluster.owner().kill()
            load.wait_for_acks()


def test_a_store_that_creates_over_what_is_there_is_refused(tmp_path: Path, etcd: Etcd) -> None:
    with LocalS3(conditional=False) as store:
        node = Cluster(tmp_path, etcd.address, "s3://bucket/t", store.environment, nodes=1).nodes[0]
        node.spawn()
        assert node.wait(30) == 1
        assert "ignores If-None-Match" in node.log
        assert store.keys("bucket/t/") == []
