"""An owner whose process ends with acknowledged writes that the object store does not have, and that starts again."""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.http import Api, ok
from support.local_s3 import Fault, LocalS3
from support.s3 import S3
from support.waiting import poll
from topics_service.engine.placement import home_of

TOPIC, LARGE, VOLATILE = "kept", "large", "volatile"
SHARDS = 8
IN_THE_STORE, ON_THE_DISK = 50, 400
SIZES = (10, 9000, 100)
"""Of the records: some blocks are kept apart from their rows."""


@contextmanager
def cluster_on(folder: Path, etcd: Etcd, store: LocalS3, nodes: int = 1, shards: int = 1) -> Iterator[Cluster]:
    with Cluster(folder, etcd.address, "s3://bucket/t", store.environment, nodes=nodes, shards=shards) as cluster:
        yield cluster


def no_puts(method: str, key: str) -> Fault | None:
    return "503" if method == "PUT" and "/log/" in key else None


def after(allowed: int, tries: list[str]) -> Callable[[str, str], Fault | None]:
    """A fault of all PUTs of the log but the first; their names go to `tries`."""

    def fault(method: str, key: str) -> Fault | None:
        found = no_puts(method, key)
        if found is not None:
            tries.append(key)
        return found if len(tries) > allowed else None

    return fault


def begin(owner: Node) -> list[int]:
    """Make the topics, with records that are in the store. The numbers of those."""
    with Api(owner.base) as api:
        ok(api.put(TOPIC, durability="disk"), 201)
        ok(api.put(LARGE, durability="disk"), 201)
        api.append(LARGE, "-")
        ok(api.put(VOLATILE, durability="ephemeral"), 201)
        write(api, range(IN_THE_STORE))
        api.append(VOLATILE, "lost")
        api.append("flushed", 1, config={"durability": "fsync"})  # all before it is in the store
    return list(range(IN_THE_STORE))


def write(api: Api, numbers: range) -> None:
    """Some records one by one, and the rest in batches."""
    datas = [{"n": number, "text": "x" * SIZES[number % len(SIZES)]} for number in numbers]
    for data in datas[:20]:
        api.append(TOPIC, data)
    for at in range(20, len(datas), 100):
        api.append(TOPIC, *datas[at : at + 100])


def write_more(owner: Node) -> list[int]:
    """Write what is on the disk of the owner only; all of it is acknowledged. The numbers of all records."""
    with Api(owner.base) as api:
        write(api, range(IN_THE_STORE, IN_THE_STORE + ON_THE_DISK))
        api.append(VOLATILE, "lost")
        state = api.state(TOPIC)
    assert state["head_seq"] == IN_THE_STORE + ON_THE_DISK
    return list(range(IN_THE_STORE + ON_THE_DISK))


def check(node: Node, numbers: list[int], *, gap: bool) -> None:
    """The topic has these records once and in order, and then a gap or none."""
    with Api(node.base) as api:
        found = api.read_all(TOPIC)
        assert [record["data"]["n"] for record in found] == numbers
        assert [record["$seq"] for record in found] == [number + 1 for number in numbers]
        seq = api.append(TOPIC, {"n": -1})["last_seq"]
        assert (seq > len(numbers) + 1) == gap
        rest = api.read(TOPIC, len(numbers))
        assert ("tombstone" in rest and rest["tombstone"] is not None) == gap, rest
        if gap:
            assert rest["tombstone"]["reason"] == "cap"
        assert [record["data"] for record in api.read_all(VOLATILE)] == []
        assert api.append(VOLATILE, "next")["last_seq"] > 1


@pytest.mark.parametrize("way", ["refuses", "hangs"])
def test_a_killed_owner_that_starts_again_has_all_that_it_acknowledged(tmp_path: Path, etcd: Etcd, way: str) -> None:
    """A store that hangs has what was sent land after the kill, before or after the fence."""
    with LocalS3() as store, cluster_on(tmp_path, etcd, store) as cluster:
        owner = cluster.owner()
        begin(owner)
        if way == "refuses":
            store.fault = no_puts
        else:
            store.delay = 3
        numbers = write_more(owner)
        owner.kill()
        store.fault, store.delay = (lambda method, key: None), 0
        owner.start()
        check(cluster.owner(), numbers, gap=False)
        assert "batches that only this node had" in owner.log
        owner.kill()
        owner.start()
        with Api(cluster.owner().base) as api:
            assert len(api.read_all(TOPIC)) == len(numbers) + 1


def test_a_killed_node_has_what_was_acknowledged_in_every_shard(tmp_path: Path, etcd: Etcd) -> None:
    """Each of its eight logs is continued, with what only this node has."""
    topics = {home_of(name, SHARDS): name for name in (f"topic-{n}" for n in range(100))}
    with LocalS3() as store, cluster_on(tmp_path, etcd, store, shards=SHARDS) as cluster:
        node = cluster.nodes[0]
        poll(lambda: len(cluster.owned(node)) == SHARDS, 30, cluster.logs)
        epochs = {shard: claim["epoch"] for shard in topics if (claim := cluster.claimed(shard))}
        with Api(node.base) as api:
            for name in topics.values():
                ok(api.put(name, durability="disk"), 201)
                api.append(name, *range(IN_THE_STORE))
            store.fault = no_puts
            for name in topics.values():
                for number in range(IN_THE_STORE, ON_THE_DISK, 50):
                    api.append(name, *range(number, min(number + 50, ON_THE_DISK)))
        node.kill()
        store.fault = lambda method, key: None
        node.start()
        poll(lambda: len(cluster.owned(node)) == SHARDS, 30, cluster.logs)
        with Api(node.base) as api:
            for shard, name in topics.items():
                found = api.read_all(name)
                assert [record["data"] for record in found] == list(range(ON_THE_DISK)), name
                assert [record["$seq"] for record in found] == list(range(1, ON_THE_DISK + 1)), "there is a gap"
                assert api.append(name, "next")["last_seq"] == ON_THE_DISK + 1
                assert (cluster.claimed(shard) or {})["epoch"] > epochs[shard]
        assert node.log.count("batches that only this node had") == SHARDS


def test_a_store_that_hangs_while_it_is_killed_and_starts_again(tmp_path: Path, etcd: Etcd) -> None:
    """With SeaweedFS, as processes have it."""
    with S3(tmp_path / "s3") as store:
        url = store.bucket()
        with Cluster(tmp_path, etcd.address, url, store.environment, nodes=1) as cluster:
            owner = cluster.owner()
            begin(owner)
            store.pause()
            try:
                numbers = write_more(owner)
                owner.kill()
                before = len(owner.log)
                files = owner.spawn()
                poll(lambda: len(owner.log) > before, 30)
            finally:
                store.resume()
            owner.wait_until_ready(files)
            check(cluster.owner(), numbers, gap=False)


def test_it_is_killed_again_and_again_while_it_puts_what_the_store_lacks(tmp_path: Path, etcd: Etcd) -> None:
    """Each life puts one object more than the one before: none, the fence, the fence and data."""
    with LocalS3() as store, cluster_on(tmp_path, etcd, store) as cluster:
        owner = cluster.owner()
        begin(owner)
        store.fault = no_puts
        numbers = write_more(owner)
        with Api(owner.base) as api:
            for text in "abcd":  # which does not become less when it is compressed
                api.append(LARGE, *(text + random.randbytes(450_000).hex() for _ in range(3)))
        tries: list[str] = []

        for allowed in range(4):
            owner.kill()
            tries.clear()
            store.fault = after(allowed, tries)
            owner.spawn()
            poll(lambda: len(tries) > 6, 60, owner.log)
        owner.kill()
        store.fault = lambda method, key: None
        owner.start()
        check(cluster.owner(), numbers, gap=False)
        with Api(owner.base) as api:
            assert "".join(record["data"][0] for record in api.read_all(LARGE)) == "-aaabbbcccddd"


def test_an_owner_that_is_stopped_while_the_store_is_away_keeps_its_directory(tmp_path: Path, etcd: Etcd) -> None:
    with LocalS3() as store, cluster_on(tmp_path, etcd, store) as cluster:
        owner = cluster.owner()
        begin(owner)
        store.fault = no_puts
        numbers = write_more(owner)
        owner.stop(40)
        store.fault = lambda method, key: None
        owner.start()
        check(cluster.owner(), numbers, gap=False)


def test_a_follower_that_took_over_has_a_gap_in_its_place(tmp_path: Path, etcd: Etcd) -> None:
    with LocalS3() as store, cluster_on(tmp_path, etcd, store, 2) as cluster:
        cluster.wait_for_followers(1)
        owner = cluster.owner()
        numbers = begin(owner)
        store.fault = no_puts
        with Api(owner.base) as api:
            write(api, range(IN_THE_STORE, IN_THE_STORE + 5))
        owner.kill()
        store.fault = lambda method, key: None
        successor = cluster.owner(other_than=owner)
        check(successor, numbers, gap=True)
        owner.start()
        cluster.wait_for_followers(1)
        assert "batches that are not in the log, and never will be" in owner.log
        with Api(owner.base) as api:
            assert [record["data"]["n"] for record in api.read_all(TOPIC)] == [*numbers, -1]


@pytest.mark.parametrize("is_killed", [True, False])
def test_an_owner_that_is_back_before_a_slow_follower_takes_over_has_it_all(
    tmp_path: Path, etcd: Etcd, *, is_killed: bool
) -> None:
    """Killed, or given up by itself since it did not reach the store, as it was the only one."""
    with LocalS3() as store, cluster_on(tmp_path, etcd, store, 2) as cluster:
        cluster.wait_for_followers(1)
        owner = cluster.owner()
        begin(owner)
        slow = next(node for node in cluster.nodes if node is not owner)
        slow.signal(signal.SIGSTOP)
        try:
            store.fault = no_puts
            numbers = write_more(owner)
            if is_killed:
                owner.kill()
                store.fault = lambda method, key: None
                owner.start()
            else:
                store.fault = lambda method, key: (
                    "503"
                )  # an owner that still reads from the store would keep the shard for longer
                poll(lambda: "lost shard 0: the object store does not answer" in owner.log, 30)
                store.fault = lambda method, key: None
                poll(lambda: "batches that only this node had" in owner.log, 30)
            assert cluster.owner() is owner
        finally:
            slow.signal(signal.SIGCONT)
        cluster.wait_for_followers(1)
        check(slow, numbers, gap=False)
