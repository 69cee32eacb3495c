"""Brokers, leaders and coordinators in a cluster of three nodes, one in each zone, over six shards."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from shards.far import names
from shards.kafka_cluster import KafkaCluster, open_cluster

from support.kafka_batches import Rec, aiokafka_batch, kafka_python_batch
from support.kafka_wire import Wire
from support.waiting import until
from topics_kafka import handlers
from topics_kafka.protocol import SUPPORTED, ApiKey, ErrorCode, Message
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.model import ConfigInput
from topics_service.engine.placement import home_of, shard_of, shard_of_placement
from topics_shards import kafka as sharded_kafka

SHARDS = 6
ALL = {1, 2, 3}


@pytest.fixture
async def cluster() -> AsyncIterator[KafkaCluster]:
    async with open_cluster(SHARDS) as world:
        yield world


class Client:
    """A connection to one node."""

    def __init__(self, cluster: KafkaCluster, node: int, client_id: str = "client") -> None:
        self._wire = Wire(cluster.nodes[node].port, client_id=client_id)

    async def call(self, api: ApiKey, version: int | None = None, **body: Any) -> Message:
        return await asyncio.to_thread(self._wire.call, api, version, **body)

    def close(self) -> None:
        self._wire.close()

    async def create(self, name: str, partitions: int = SHARDS, copies: int = -1, **more: Any) -> Message:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": copies, "assignments": [], **more}
        topic.setdefault("configs", [])
        answer = await self.call(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=1000, validate_only=False)
        found: Message = answer["topics"][0]
        return found

    async def metadata(self, *topics: str, version: int = 12) -> Message:
        named = [{"topic_id": None, "name": name} for name in topics]
        return await self.call(
            ApiKey.METADATA,
            version,
            topics=named,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    async def leaders(self, name: str) -> list[tuple[int, int, int]]:
        """Error, leader and epoch of each partition."""
        (topic,) = (await self.metadata(name))["topics"]
        return [(each["error_code"], each["leader_id"], each["leader_epoch"]) for each in topic["partitions"]]

    async def coordinator(self, key: str, kind: int = 0) -> tuple[int, int]:
        """Error and node."""
        answer = await self.call(ApiKey.FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=[key])
        (found,) = answer["coordinators"]
        return found["error_code"], found["node_id"]

    async def produce(self, name: str, batches: dict[int, bytes]) -> tuple[dict[int, Message], Message]:
        """The answers by partition, and the whole response."""
        data = [{"index": number, "records": records} for number, records in batches.items()]
        topic = {"name": name, "partition_data": data}
        answer = await self.call(ApiKey.PRODUCE, 12, transactional_id=None, acks=-1, timeout=1000, topic_data=[topic])
        return {each["index"]: each for each in answer["responses"][0]["partition_responses"]}, answer

    async def fetch(
        self, name: str, offsets: dict[int, int], epoch: int = -1, max_wait: int = 0, rack: str = ""
    ) -> tuple[dict[int, Message], Message]:
        """The answers by partition, and the whole response."""
        partitions = [
            {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "current_leader_epoch": epoch}
            for number, offset in offsets.items()
        ]
        topic = {"topic": name, "partitions": partitions}
        answer = await self.call(
            ApiKey.FETCH, 12, max_wait=max_wait, min_bytes=1, max_bytes=1 << 20, topics=[topic], rack_id=rack
        )
        return {each["partition_index"]: each for each in answer["responses"][0]["partitions"]}, answer


@pytest.fixture
def connect(cluster: KafkaCluster) -> Any:
    made: list[Client] = []

    def make(node: int, client_id: str = "client") -> Client:
        made.append(Client(cluster, node, client_id))
        return made[-1]

    yield make
    for client in made:
        client.close()


def batch(value: bytes, producer: tuple[int, int] | None = None) -> bytes:
    records = [Rec(None, value, (), 1_700_000_000_000)]
    if producer is None:
        return aiokafka_batch(records)
    return kafka_python_batch(records, producer_id=producer[0], producer_epoch=0, base_sequence=producer[1])


def group_of(shard: int) -> str:
    return next(iter(names(shard, SHARDS, "group")))


async def test_every_node_shows_the_owners_as_leaders(cluster: KafkaCluster, connect: Any) -> None:
    made = await connect(1).create("clicks", copies=3)
    assert (made["error_code"], made["num_partitions"], made["replication_factor"]) == (0, SHARDS, 1)
    cluster.view.follow(shard_of("clicks", 0, SHARDS), 1, 2, 3)
    owners = [cluster.view.owners[shard_of("clicks", number, SHARDS)] for number in range(SHARDS)]
    for node in ALL:
        client = connect(node)
        assert await client.leaders("clicks") == [(0, owner, 1) for owner in owners]
        for version in range(SUPPORTED[ApiKey.METADATA][1] + 1):
            found = await client.metadata("clicks", version=version)
            brokers = {each["node_id"]: (each["host"], each["port"], each.get("rack")) for each in found["brokers"]}
            zones = {1: "a", 2: "b", 3: "c"}
            assert brokers == {
                number: ("127.0.0.1", cluster.nodes[number].port, zones[number] if version else None) for number in ALL
            }
            assert version < 1 or found["controller_id"] == 1
            partitions = found["topics"][0]["partitions"]
            assert [each["leader_id"] for each in partitions] == owners
            assert partitions[0]["replica_nodes"] == [owners[0], *sorted(ALL - {owners[0]})]
            assert partitions[0]["isr_nodes"] == partitions[0]["replica_nodes"]
            assert partitions[1]["replica_nodes"] == [owners[1]]
        described = await client.call(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1)
        assert {each["broker_id"] for each in described["brokers"]} == ALL
        assert described["controller_id"] == 1


async def test_placed_topics_have_one_leader(cluster: KafkaCluster, connect: Any) -> None:
    shard = shard_of_placement("sales", SHARDS)
    name = next(each for each in names((shard + 1) % SHARDS, SHARDS))
    await cluster.world.api.put_topic(name, ConfigInput(), principal=UNRESTRICTED, partition_count=4, placement="sales")
    for node in ALL:
        client = connect(node)
        await until(lambda node=node: cluster.nodes[node].kafka.catalog.find(name) is not None)
        assert await client.leaders(name) == [(0, cluster.view.owners[shard], 1)] * 4


async def test_coordinators_are_where_their_groups_are(cluster: KafkaCluster, connect: Any) -> None:
    client = connect(2)
    for shard in range(SHARDS):
        for kind in (0, 1):
            assert await client.coordinator(group_of(shard), kind) == (0, cluster.view.owners[shard])
    assert (await client.coordinator("g", 2))[0] == 42
    cluster.view.move(3, None)
    assert await client.coordinator(group_of(3)) == (15, -1)
    cluster.view.move(3, 2)
    assert await client.coordinator(group_of(3)) == (0, 2)


async def test_a_shard_without_an_owner_has_no_leader(cluster: KafkaCluster, connect: Any) -> None:
    name = next(iter(names(4, SHARDS)))
    client = connect(3)
    await client.create(name, 2)
    cluster.view.move(4, None)
    cluster.view.move(0, None)
    assert (await client.leaders(name))[0] == (5, -1, 1)
    assert (await client.metadata(name))["controller_id"] == 3, "any node does what admins ask for"
    cluster.view.move(4, 1)
    assert (await client.leaders(name))[0] == (0, 1, 2)


# ---------------------------------------------------------------------- zones


async def test_clients_of_a_zone_see_its_nodes_only() -> None:
    async with open_cluster(SHARDS, ["a", "a", "b", "b", ""]) as cluster:
        zones = {"a": {1, 2}, "b": {3, 4}}
        plain = Client(cluster, 5)
        await plain.create("clicks")
        cluster.view.follow(shard_of("clicks", 0, SHARDS), 4)
        stable: dict[str, Any] = {}
        for node in (1, 3, 5):
            for zone in ("a", "b", "z", ""):
                client = Client(cluster, node, f"zone_id={zone},app=test")
                found = await client.metadata("clicks")
                seen = {each["node_id"] for each in found["brokers"]}
                assert seen == zones.get(zone, {1, 2, 3, 4, 5}), "a zone without nodes is as none"
                assert found["controller_id"] in seen
                described = await client.call(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1)
                assert {each["broker_id"] for each in described["brokers"]} == seen
                shown = []
                for partition in found["topics"][0]["partitions"]:
                    owner = cluster.view.owners[shard_of("clicks", partition["partition_index"], SHARDS)]
                    assert partition["leader_id"] in seen
                    assert partition["leader_id"] == owner or owner not in seen
                    assert partition["replica_nodes"][0] == partition["leader_id"]
                    assert set(partition["replica_nodes"]) <= seen
                    shown.append(partition["leader_id"])
                groups = [await client.coordinator(group_of(shard)) for shard in range(SHARDS)]
                assert all(error == 0 and node in seen for error, node in groups)
                assert stable.setdefault(zone, (shown, groups)) == (shown, groups), "all nodes say the same"
                client.close()
        first_owner = cluster.view.owners[shard_of("clicks", 0, SHARDS)]
        assert stable["b"][0][0] == (first_owner if first_owner in zones["b"] else 4), "one with a warm replica"
        plain.close()


async def test_readers_with_a_rack_are_sent_to_the_replica_of_their_zone(cluster: KafkaCluster, connect: Any) -> None:
    client = connect(1)
    await client.create("clicks")
    owners = [cluster.view.owners[shard_of("clicks", number, SHARDS)] for number in range(SHARDS)]
    first, second, third = (owners.index(node) for node in (1, 2, 3))
    cluster.view.follow(shard_of("clicks", first, SHARDS), 1, 2)
    for number in (first, second):
        await client.produce("clicks", {number: batch(b"1")})

    async def asked(node: int, offset: int, rack: str, client_id: str = "client", number: int = first) -> Message:
        answers, _ = await connect(node, client_id).fetch("clicks", {number: offset}, rack=rack, max_wait=0)
        return answers[number]

    sent = await asked(1, 0, "b")
    assert (sent["error_code"], sent["preferred_read_replica"], bytes(sent["records"])) == (0, 2, b"")
    assert (sent["high_watermark"], sent["log_start_offset"]) == (1, 0)
    began = time.monotonic()
    answers, _ = await client.fetch("clicks", {first: 1, third: 0}, rack="b", max_wait=20_000)
    assert answers[first]["preferred_read_replica"] == 2
    assert time.monotonic() - began < 15, "it need not wait for records to learn of that"
    assert (await asked(1, 9, "b"))["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    there = await asked(2, 0, "b")
    assert (there["error_code"], there["preferred_read_replica"]) == (0, -1)
    assert there["records"], "the replica serves it, whatever epoch the client knows of"
    for node, rack, client_id, number in (
        (1, "a", "client", first),  # the leader is in the zone
        (1, "c", "client", first),  # nobody in the zone has it
        (1, "nowhere", "client", first),
        (1, "", "client", first),
        (1, "b", "zone_id=a", first),  # such clients have leaders in their zone
        (3, "b", "client", first),  # the leader decides
        (2, "b", "client", second),
    ):
        found = await asked(node, 0, rack, client_id, number)
        assert (found["error_code"], found["preferred_read_replica"]) == (0, -1)
        assert found["records"]


async def test_a_zone_whose_last_node_is_gone_sees_all(cluster: KafkaCluster, connect: Any) -> None:
    client = connect(1, "zone_id=b")
    await client.create("clicks")
    assert {leader for _, leader, _ in await client.leaders("clicks")} == {2}
    await cluster.nodes[2].die(heir=3)
    assert {leader for _, leader, _ in await client.leaders("clicks")} == {1, 3}
    assert len((await client.metadata("clicks"))["brokers"]) == 2


async def test_a_node_of_the_zone_passes_requests_on(cluster: KafkaCluster, connect: Any) -> None:
    client = connect(2, "zone_id=b")
    await client.create("clicks")
    answers, _ = await client.produce("clicks", {number: batch(b"%d" % number) for number in range(SHARDS)})
    assert {each["error_code"] for each in answers.values()} == {0}
    assert {node for name, node in cluster.nodes[2].shards.calls if name == "append"} == ALL
    found, _ = await client.fetch("clicks", dict.fromkeys(range(SHARDS), 0), epoch=1)
    assert {(each["error_code"], each["high_watermark"]) for each in found.values()} == {(0, 1)}


# ---------------------------------------------------------------------- epochs and moves


async def test_epochs_of_each_shard(cluster: KafkaCluster, connect: Any) -> None:
    client = connect(1)
    await client.create("clicks")
    await client.produce("clicks", {number: batch(b"x") for number in range(SHARDS)})
    moved = 2
    shard = shard_of("clicks", moved, SHARDS)
    cluster.view.move(shard, 3)
    assert (await client.leaders("clicks"))[moved] == (0, 3, 2)
    for epoch, wanted in ((-1, {0}), (1, {0, 74}), (2, {0, 75})):
        found, _ = await client.fetch("clicks", dict.fromkeys(range(SHARDS), 0), epoch=epoch)
        assert {each["error_code"] for each in found.values()} == wanted
        asked = [
            {"partition_index": number, "current_leader_epoch": epoch, "timestamp": -1} for number in range(SHARDS)
        ]
        listed = await client.call(
            ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[{"name": "clicks", "partitions": asked}]
        )
        ends = [{"partition": number, "current_leader_epoch": epoch, "leader_epoch": 1} for number in range(SHARDS)]
        ended = await client.call(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-2, topics=[{"topic": "clicks", "partitions": ends}]
        )
        for number in range(SHARDS):
            other = {-1: 0, 1: 0, 2: 75}[epoch]
            mine = {-1: 0, 1: 74, 2: 0}[epoch]
            code = mine if number == moved else other
            assert found[number]["error_code"] == code
            offset = listed["topics"][0]["partitions"][number]
            end = ended["topics"][0]["partitions"][number]
            assert (offset["error_code"], end["error_code"]) == (code, code)
            if not code:
                assert offset["leader_epoch"] == (2 if number == moved else 1)
                assert (end["leader_epoch"], end["end_offset"]) == (1, 1)
        if epoch == 1:
            assert found[moved]["current_leader"]["leader_id"] == -1, "its address would be missing"
            newest = await client.call(
                ApiKey.FETCH,
                16,
                max_wait=0,
                min_bytes=1,
                max_bytes=1 << 20,
                rack_id="",
                topics=[
                    {
                        "topic_id": (await client.metadata("clicks"))["topics"][0]["topic_id"],
                        "partitions": [
                            {
                                "partition": moved,
                                "fetch_offset": 0,
                                "partition_max_bytes": 1 << 20,
                                "current_leader_epoch": 1,
                            }
                        ],
                    }
                ],
            )
            (partition,) = newest["responses"][0]["partitions"]
            assert partition["current_leader"] == {"leader_id": 3, "leader_epoch": 2}
            (endpoint,) = newest["node_endpoints"]
            assert (endpoint["node_id"], endpoint["port"]) == (3, cluster.nodes[3].port)


async def test_a_client_from_before_a_move_learns_of_it_once(
    cluster: KafkaCluster, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "TELLING_SECONDS", 0.3)
    name = next(iter(names(1, SHARDS)))  # at node 2
    old, zoned = connect(2), connect(2, "zone_id=b")
    await old.create(name, 2)
    assert (await old.produce(name, {0: batch(b"1"), 1: batch(b"1")}))[0][0]["error_code"] == 0
    cluster.view.move(1, 1)
    answers, response = await old.produce(name, {0: batch(b"2"), 1: batch(b"2")})
    assert (answers[0]["error_code"], answers[1]["error_code"]) == (6, 0), "only that partition"
    assert answers[0]["current_leader"] == {"leader_id": 1, "leader_epoch": 2}
    (endpoint,) = response["node_endpoints"]
    assert (endpoint["node_id"], endpoint["port"], endpoint["rack"]) == (1, cluster.nodes[1].port, "a")
    found, _ = await old.fetch(name, {0: 0, 1: 0})
    assert (found[0]["error_code"], found[1]["error_code"]) == (6, 0)
    assert (await zoned.produce(name, {0: batch(b"2")}))[0][0]["error_code"] == 0, "its leader is still here"
    young = connect(2)
    assert (await young.produce(name, {0: batch(b"3")}))[0][0]["error_code"] == 0, "it came after the move"
    await asyncio.sleep(0.3)
    assert (await old.produce(name, {0: batch(b"4")}))[0][0]["error_code"] == 0, "any node answers"
    assert cluster.appended(name, 1) == 4
    cluster.view.move(1, 3)
    assert (await young.produce(name, {0: batch(b"5")}))[0][0]["error_code"] == 6
    await young.metadata(name)
    assert (await young.produce(name, {0: batch(b"5")}))[0][0]["error_code"] == 0, "it knows, and comes here"


# ---------------------------------------------------------------------- lost shards


@pytest.mark.parametrize("had_effect", [False, True])
async def test_a_batch_whose_outcome_is_unknown_may_be_repeated(
    cluster: KafkaCluster, connect: Any, had_effect: bool
) -> None:
    client = connect(1)
    await client.create("clicks", 3)
    producer_id = (await client.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=0))[
        "producer_id"
    ]
    lost = cluster.nodes[1].shards.lost_after if had_effect else cluster.nodes[1].shards.lost_before
    lost["append"] = 1
    answers, whole = await client.produce("clicks", {number: batch(b"x", (producer_id, 0)) for number in range(3)})
    assert sorted(each["error_code"] for each in answers.values()) == [0, 0, 7], "the others are acknowledged"
    assert whole["throttle_time"] == 0, "clients would hold back everything that they have for the node"
    again = [number for number, each in answers.items() if each["error_code"]]
    answers, _ = await client.produce("clicks", {number: batch(b"x", (producer_id, 0)) for number in again})
    assert [(each["error_code"], each["base_offset"]) for each in answers.values()] == [(0, 0)]
    answers, _ = await client.produce("clicks", {number: batch(b"y", (producer_id, 1)) for number in range(3)})
    assert {(each["error_code"], each["base_offset"]) for each in answers.values()} == {(0, 1)}
    found, _ = await client.fetch("clicks", dict.fromkeys(range(3), 0))
    assert {each["high_watermark"] for each in found.values()} == {2}, "each record once"


async def test_a_shard_without_an_owner_holds_up_no_other(
    cluster: KafkaCluster, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded_kafka, "_PATIENCE_SECONDS", 0.2)
    client = connect(1)
    await client.create("clicks", 3)
    await client.produce("clicks", {number: batch(b"x") for number in range(3)})
    shard = shard_of("clicks", 1, SHARDS)
    cluster.view.move(shard, None)
    loop = asyncio.get_running_loop()
    began = loop.time()
    answers, whole = await client.produce("clicks", {number: batch(b"x") for number in range(3)})
    assert [answers[number]["error_code"] for number in range(3)] == [0, 6, 0]
    assert whole["throttle_time"] == 0
    found, _ = await client.fetch("clicks", dict.fromkeys(range(3), 0), epoch=1)
    assert [found[number]["error_code"] for number in range(3)] == [0, 6, 0]
    assert [found[number]["high_watermark"] for number in range(3)] == [2, -1, 2]
    assert loop.time() - began < 4, "the calls' own patience is 5 s"
    cluster.view.move(shard, 3)
    found, _ = await client.fetch("clicks", {1: 0}, epoch=2)
    assert (found[1]["error_code"], found[1]["high_watermark"]) == (0, 1)


async def test_a_batch_waits_for_a_shard_that_moves(cluster: KafkaCluster, connect: Any) -> None:
    client = connect(1)
    await client.create("clicks", 3)
    shard = shard_of("clicks", 1, SHARDS)
    cluster.view.move(shard, None)
    producing = asyncio.ensure_future(client.produce("clicks", {1: batch(b"x")}))
    await asyncio.sleep(0.1)
    assert not producing.done()
    cluster.view.move(shard, 1)
    answers, _ = await producing
    assert answers[1]["error_code"] == 0


async def test_calls_of_groups_that_are_lost_lead_to_the_coordinator(cluster: KafkaCluster, connect: Any) -> None:
    client = connect(1)
    await client.create("clicks", 3)
    group = group_of(5)
    shards = cluster.nodes[1].shards
    for method, api, body in (
        ("heartbeat", ApiKey.HEARTBEAT, {"group_id": group, "generation_id": 1, "member_id": "m"}),
        (
            "commit",
            ApiKey.OFFSET_COMMIT,
            {
                "group_id": group,
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "topics": [
                    {
                        "name": "clicks",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "committed_offset": 0,
                                "committed_leader_epoch": 1,
                                "committed_metadata": "",
                            }
                        ],
                    }
                ],
            },
        ),
        ("look", ApiKey.DESCRIBE_GROUPS, {"groups": [group], "include_authorized_operations": False}),
        ("delete", ApiKey.DELETE_GROUPS, {"groups_names": [group]}),
    ):
        version = {ApiKey.OFFSET_COMMIT: 8, ApiKey.HEARTBEAT: 4, ApiKey.DESCRIBE_GROUPS: 5, ApiKey.DELETE_GROUPS: 2}
        shards.lost_before[method] = 1
        answer = await client.call(api, version[api], **body)
        assert 16 in _codes(answer), (method, answer)
        assert shards.lost_before[method] == 0, method
        again = await client.call(api, version[api], **body)
        assert 16 not in _codes(again), (method, again)


async def test_positions_that_can_not_be_read_now_are_asked_for_again(cluster: KafkaCluster, connect: Any) -> None:
    client = connect(1)
    await client.create("clicks", 3)
    cluster.nodes[1].shards.lost_before["positions"] = 1
    asked = {"group_id": group_of(5), "topics": None, "require_stable": False}
    assert (await client.call(ApiKey.OFFSET_FETCH, 7, **asked))["error_code"] == 14, "16 crashes admins of librdkafka"
    assert (await client.call(ApiKey.OFFSET_FETCH, 7, **asked))["error_code"] == 0


async def test_calls_of_admins_that_are_lost_say_so(cluster: KafkaCluster, connect: Any) -> None:
    client = connect(1)
    shards = cluster.nodes[1].shards
    shards.lost_after["create_topic"] = 1
    assert (await client.create("clicks", 3))["error_code"] == 7
    assert (await client.create("clicks", 3))["error_code"] == 36, "it was made"
    cluster.nodes[1].shards.lost_before["new_producer_id"] = 1
    answer = await client.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=0)
    assert answer["error_code"] == 14
    shards.lost_after["delete_topic"] = 1
    deleted = await client.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "clicks", "topic_id": None}], timeout_ms=1000)
    assert deleted["responses"][0]["error_code"] in (0, 7)


def _codes(answer: Any) -> set[int]:
    if isinstance(answer, dict):
        own = {answer["error_code"]} if "error_code" in answer else set()
        return own.union(*map(_codes, answer.values()))
    return set().union(*map(_codes, answer)) if isinstance(answer, list) else set()


# ---------------------------------------------------------------------- administration


async def test_groups_are_listed_by_their_coordinators_each_once(cluster: KafkaCluster, connect: Any) -> None:
    client = connect(1)
    await client.create("clicks", 3)
    groups = [group_of(shard) for shard in range(SHARDS)]
    for group in groups:
        partition = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": 3, "committed_metadata": ""}
        await client.call(
            ApiKey.OFFSET_COMMIT,
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": "clicks", "partitions": [partition]}],
        )
    listed = []
    for node in ALL:
        answer = await connect(node).call(ApiKey.LIST_GROUPS, 4, states_filter=[])
        own = [each["group_id"] for each in answer["groups"]]
        assert {cluster.view.owners[home_of(group, SHARDS)] for group in own} == {node}
        listed += own
    assert sorted(listed) == sorted(groups)
    zoned = await connect(2, "zone_id=b").call(ApiKey.LIST_GROUPS, 4, states_filter=[])
    assert sorted(each["group_id"] for each in zoned["groups"]) == sorted(groups), "it can ask no other"
    fetched = await connect(3).call(
        ApiKey.OFFSET_FETCH,
        7,
        group_id=groups[0],
        topics=[{"name": "clicks", "partition_indexes": [0]}],
        require_stable=False,
    )
    assert fetched["topics"][0]["partitions"][0]["committed_leader_epoch"] == 3


async def test_log_directories_are_those_of_the_leader(cluster: KafkaCluster, connect: Any) -> None:
    await connect(1).create("clicks")
    await connect(1).produce("clicks", {number: batch(b"x") for number in range(SHARDS)})
    seen = []
    for node in ALL:
        answer = await connect(node).call(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None)
        for topic in answer["results"][0]["topics"]:
            for partition in topic["partitions"]:
                number = partition["partition_index"]
                assert cluster.view.owners[shard_of("clicks", number, SHARDS)] == node
                assert partition["partition_size"] > 0
                seen.append(number)
    assert sorted(seen) == list(range(SHARDS))


async def test_configs_of_any_broker(cluster: KafkaCluster, connect: Any) -> None:
    async def described(node: int, name: str) -> tuple[int, dict[str, str]]:
        resource = {"resource_type": 4, "resource_name": name, "configuration_keys": None}
        answer = await connect(node).call(
            ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=False, include_documentation=False
        )
        (result,) = answer["results"]
        return result["error_code"], {each["name"]: each["value"] for each in result["configs"]}

    code, own = await described(2, "2")
    assert (code, own["node.id"], own["broker.rack"]) == (0, "2", "b")
    assert own["max.connections"]
    assert own["advertised.listeners"] == f"127.0.0.1:{cluster.nodes[2].port}"
    code, other = await described(1, "2")
    assert code == 0
    assert "max.connections" not in other, "a setting of that node alone"
    assert other == {name: own[name] for name in other}
    assert (await described(1, ""))[1]["node.id"] == "1"
    assert (await described(1, "9"))[0] == 42


async def test_what_asks_for_brokers_is_checked(cluster: KafkaCluster, connect: Any) -> None:
    client = connect(1)
    refused = await client.create("wide", 3, copies=4)
    assert (refused["error_code"], refused["error_message"]) == (38, "there are 3 brokers, so at most 3 replicas")
    assigned = await client.create("placed", -1, assignments=[{"partition_index": 0, "broker_ids": [1]}])
    assert assigned["error_code"] == 39
    cluster.view.follow(0, 2, 3)
    made = await client.create("kept", 3, copies=2)
    assert (made["error_code"], made["replication_factor"]) == (0, 3), "the number is the cluster's"
