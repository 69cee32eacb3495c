"""The Kafka listener over shards: any process answers any client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from shards.far import names
from shards.kafka_world import KafkaWorld, Process, open_kafka, over_wire

from support.kafka_batches import Rec, aiokafka_batch, kafka_python_batch, read_by_aiokafka
from support.kafka_members import subscription
from support.kafka_wire import Wire
from support.waiting import until
from topics_kafka.protocol import ApiKey
from topics_net import loop_budget
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.model import AppendRequest, Batch
from topics_service.engine.placement import home_of, shard_of


@pytest.fixture(params=[False, True], ids=["direct", "wired"])
async def kafka(request: pytest.FixtureRequest) -> AsyncIterator[KafkaWorld]:
    async with open_kafka(wired=request.param) as world:
        yield world


async def create(process: Process, name: str, partitions: int = 1, **configs: str) -> int:
    given = [{"name": key, "value": value} for key, value in configs.items()]
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": given}
    answer = await process.call(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=1000, validate_only=False)
    return int(answer["topics"][0]["error_code"])


async def metadata(process: Process, *topics: str) -> list[Any]:
    asked = [{"topic_id": None, "name": name} for name in topics] or None
    answer = await process.call(
        ApiKey.METADATA, 12, topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return list(answer["topics"])


def batch(*values: bytes, producer: tuple[int, int, int] | None = None) -> bytes:
    records = [Rec(None, value, (), 1_700_000_000_000) for value in values]
    if producer is None:
        return aiokafka_batch(records)
    number, epoch, first = producer
    return kafka_python_batch(records, producer_id=number, producer_epoch=epoch, base_sequence=first)


async def produce(process: Process, name: str, batches: dict[int, bytes], acks: int = -1) -> Any:
    data = [{"index": number, "records": records} for number, records in batches.items()]
    answer = await process.call(
        ApiKey.PRODUCE,
        12,
        transactional_id=None,
        acks=acks,
        timeout=1000,
        topic_data=[{"name": name, "partition_data": data}],
    )
    if answer is None:
        return None
    return {each["index"]: each for each in answer["responses"][0]["partition_responses"]}


async def fetch(
    process: Process, name: str, offsets: dict[int, int], *, max_wait: int = 0, min_bytes: int = 1, **limits: int
) -> Any:
    partitions = [
        {"partition": number, "fetch_offset": offset, "partition_max_bytes": limits.get("partition_max", 1 << 20)}
        for number, offset in offsets.items()
    ]
    answer = await process.call(
        ApiKey.FETCH,
        12,
        max_wait=max_wait,
        min_bytes=min_bytes,
        max_bytes=limits.get("max_bytes", 1 << 20),
        topics=[{"topic": name, "partitions": partitions}],
    )
    return {each["partition_index"]: each for each in answer["responses"][0]["partitions"]}


def values(answer: Any) -> list[bytes | None]:
    found: list[bytes | None] = []
    data, at = bytes(answer["records"] or b""), 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        found += [record.value for _, record in read_by_aiokafka(data[at : at + size])]
        at += size
    return found


async def test_each_process_shows_all_topics_under_one_broker(kafka: KafkaWorld) -> None:
    made = sorted(next(iter(names(shard, prefix=f"n{shard}"))) for shard in range(3))
    for i, name in enumerate(made):
        assert await create(kafka.processes[i % 2], name, partitions=3) == 0
    shown = []
    for process in kafka.processes:
        found = await metadata(process, *made)
        assert [topic["error_code"] for topic in found] == [0, 0, 0]
        leaders = {partition["leader_id"] for topic in found for partition in topic["partitions"]}
        assert leaders == {1}
        shown.append([(topic["name"], topic["topic_id"], len(topic["partitions"])) for topic in found])
        await until(lambda process=process: [t.name for t in process.kafka.catalog.within(None)] == made)
    assert shown[0] == shown[1]
    assert kafka.first.kafka.cluster_id() == kafka.second.kafka.cluster_id() != ""


async def test_a_topic_is_seen_everywhere_once_it_is_made_and_gone_once_it_is_deleted(
    kafka: KafkaWorld,
) -> None:
    for number in range(20):
        name = f"t{number}"
        assert await create(kafka.first, name, partitions=2) == 0
        (seen,) = await metadata(kafka.second, name)
        assert (seen["error_code"], len(seen["partitions"])) == (0, 2)
        assert await create(kafka.second, name) == 36, "it exists"
        by_id = await kafka.second.call(
            ApiKey.METADATA,
            12,
            topics=[{"topic_id": seen["topic_id"], "name": None}],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        assert by_id["topics"][0]["name"] == name
        deleted = await kafka.second.call(
            ApiKey.DELETE_TOPICS, 6, topics=[{"name": name, "topic_id": None}], timeout_ms=1000
        )
        assert deleted["responses"][0]["error_code"] == 0
        (gone,) = await metadata(kafka.second, name)
        assert gone["error_code"] == 3
    await until(lambda: not list(kafka.first.kafka.catalog.within(None)))


async def test_records_of_all_partitions_come_back_from_any_process(kafka: KafkaWorld) -> None:
    assert await create(kafka.first, "clicks", partitions=6) == 0
    assert {shard_of("clicks", number, 3) for number in range(6)} == {0, 1, 2}
    for turn, process in enumerate(kafka.processes * 2):
        sent = {number: batch(b"%d-%d" % (turn, number)) for number in range(6)}
        answers = await produce(process, "clicks", sent)
        assert {number: (each["error_code"], each["base_offset"]) for number, each in answers.items()} == dict.fromkeys(
            range(6), (0, turn)
        )
    for process in kafka.processes:
        found = await fetch(process, "clicks", dict.fromkeys(range(6), 1))
        for number in range(6):
            assert found[number]["high_watermark"] == 4
            assert values(found[number]) == [b"%d-%d" % (turn, number) for turn in range(1, 4)]
    for number in range(6):
        shard = shard_of("clicks", number, 3)
        assert kafka.world.engines[shard].catalog.visible("clicks").partition(number).view.head == 4


async def test_records_of_other_protocols_are_batches(kafka: KafkaWorld) -> None:
    assert await create(kafka.first, "web", partitions=3) == 0
    for number in range(3):
        request = AppendRequest(topic="web", batch=Batch([b"%d" % number, b"null"]), partition=number)
        await kafka.world.api.append(request, principal=UNRESTRICTED)
    for process in kafka.processes:
        found = await fetch(process, "web", dict.fromkeys(range(3), 0))
        assert [values(found[number]) for number in range(3)] == [[b"%d" % number, None] for number in range(3)]


async def test_a_retry_at_another_process_is_not_appended_again(
    kafka: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await create(kafka.first, "once", partitions=3) == 0
    ids = []
    for process in kafka.processes * 3:
        answer = await process.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=0)
        assert answer["error_code"] == 0
        ids.append(answer["producer_id"])
    assert len(set(ids)) == 6
    sent = {number: batch(b"a", b"b", producer=(ids[0], 0, 0)) for number in range(3)}
    for process in kafka.processes:
        answers = await produce(process, "once", sent)
        assert [(each["error_code"], each["base_offset"]) for each in answers.values()] == [(0, 0)] * 3
    ahead = await produce(kafka.first, "once", {number: batch(b"c", producer=(ids[0], 0, 5)) for number in range(3)})
    assert {each["error_code"] for each in ahead.values()} == {45}
    monkeypatch.setattr(loop_budget, "SLICE_SECONDS", 0.0)
    described = await kafka.second.call(
        ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": "once", "partition_indexes": [0, 1, 2]}]
    )
    for partition in described["topics"][0]["partitions"]:
        assert [each["producer_id"] for each in partition["active_producers"]] == [ids[0]]


async def test_produce_without_answers_is_written_and_refusals_close_the_connection(kafka: KafkaWorld) -> None:
    assert await create(kafka.first, "quiet", partitions=3) == 0
    assert await produce(kafka.first, "quiet", {number: batch(b"x") for number in range(3)}, acks=0) is None
    found = await fetch(kafka.second, "quiet", dict.fromkeys(range(3), 0), max_wait=5000, min_bytes=200)
    assert [values(found[number]) for number in range(3)] == [[b"x"]] * 3
    assert not kafka.first.context.closing
    wrong = {number: batch(b"y", producer=(7, 3, 9)) for number in range(3)}
    for number in range(3):
        await produce(kafka.first, "quiet", {number: batch(b"x", producer=(7, 3, 0))}, acks=0)
    await produce(kafka.first, "quiet", wrong, acks=0)
    assert kafka.first.context.closing


@pytest.mark.parametrize("acks", [-1, 0])
async def test_batches_of_one_connection_keep_their_order(kafka: KafkaWorld, acks: int) -> None:
    assert await create(kafka.second, "order", partitions=3) == 0
    bodies = [
        {
            "transactional_id": None,
            "acks": acks,
            "timeout": 1000,
            "topic_data": [
                {
                    "name": "order",
                    "partition_data": [{"index": number, "records": batch(b"%d" % turn)} for number in range(3)],
                }
            ],
        }
        for turn in range(50)
    ]

    def pipeline() -> None:
        with Wire(kafka.first.port) as wire:
            sent = [wire.send(ApiKey.PRODUCE, 12, body) for body in bodies]
            for correlation in sent if acks else ():
                answer = wire.receive(ApiKey.PRODUCE, 12, correlation)
                assert {each["error_code"] for each in answer["responses"][0]["partition_responses"]} == {0}

    await asyncio.to_thread(pipeline)
    found = await fetch(kafka.second, "order", dict.fromkeys(range(3), 0))
    async with asyncio.timeout(20):  # without acknowledgements they may come later than this fetch
        while {each["high_watermark"] for each in found.values()} != {50}:
            await asyncio.sleep(0.01)
            found = await fetch(kafka.second, "order", dict.fromkeys(range(3), 0))
    for number in range(3):
        assert values(found[number]) == [b"%d" % turn for turn in range(50)]


async def test_a_fetch_waits_for_any_partition(kafka: KafkaWorld) -> None:
    assert await create(kafka.first, "news", partitions=3) == 0
    for process in kafka.processes:
        for number in range(3):
            before = (await fetch(process, "news", {number: 0}))[number]["high_watermark"]
            offsets = dict.fromkeys(range(3), 0) | {number: before}
            heads = {each: (await fetch(process, "news", {each: 0}))[each]["high_watermark"] for each in range(3)}
            waiting = asyncio.ensure_future(fetch(process, "news", heads, max_wait=20_000))
            await asyncio.sleep(0.05)
            assert not waiting.done(), offsets
            await produce(kafka.second, "news", {number: batch(b"n")})
            found = await asyncio.wait_for(waiting, 5)
            assert values(found[number]) == [b"n"]
    logs = [log for engine in kafka.world.engines for log in engine.catalog.visible("news").logs]
    await until(lambda: not any(log._parked for log in logs))


async def test_a_fetch_gives_up_after_its_time(kafka: KafkaWorld) -> None:
    assert await create(kafka.first, "idle", partitions=3) == 0
    await produce(kafka.first, "idle", {number: batch(b"x") for number in range(3)})
    found = await asyncio.wait_for(
        fetch(kafka.first, "idle", dict.fromkeys(range(3), 0), max_wait=100, min_bytes=1 << 19), 5
    )
    assert [values(found[number]) for number in range(3)] == [[b"x"]] * 3
    nothing = await asyncio.wait_for(fetch(kafka.first, "idle", dict.fromkeys(range(3), 1), max_wait=100), 5)
    assert [nothing[number]["records"] or b"" for number in range(3)] == [b""] * 3


async def test_a_response_has_no_more_than_was_asked_for_in_the_order_of_the_request(kafka: KafkaWorld) -> None:
    assert await create(kafka.first, "large", partitions=3) == 0
    for _ in range(3):
        await produce(kafka.first, "large", {number: batch(b"x" * 10_000) for number in range(3)})
    for process in kafka.processes:
        for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
            found = await fetch(process, "large", dict.fromkeys(order, 0), max_bytes=45_000)
            assert [len(values(found[number])) for number in order] == [3, 1, 0]
            assert {each["high_watermark"] for each in found.values()} == {3}
            first = await fetch(process, "large", dict.fromkeys(order, 0), max_bytes=10)
            assert [len(values(first[number])) for number in order] == [1, 0, 0]


@pytest.mark.parametrize("slice_seconds", [loop_budget.SLICE_SECONDS, 0.0])
async def test_offsets_of_partitions_anywhere(
    kafka: KafkaWorld, monkeypatch: pytest.MonkeyPatch, slice_seconds: float
) -> None:
    monkeypatch.setattr(loop_budget, "SLICE_SECONDS", slice_seconds)
    assert await create(kafka.first, "ends", partitions=3) == 0
    await produce(kafka.first, "ends", {number: batch(*[b"x"] * (number + 1)) for number in range(3)})
    for process in kafka.processes:
        for ts, wanted in ((-1, [1, 2, 3]), (-2, [0, 0, 0]), (1_700_000_000_000, [0, 0, 0])):
            partitions = [
                {"partition_index": number, "current_leader_epoch": -1, "timestamp": ts} for number in (0, 1, 2, 3)
            ]
            answer = await process.call(
                ApiKey.LIST_OFFSETS,
                7,
                replica_id=-1,
                isolation_level=0,
                topics=[{"name": "ends", "partitions": partitions}],
            )
            found = answer["topics"][0]["partitions"]
            assert [each["offset"] for each in found[:3]] == wanted
            assert [each["error_code"] for each in found] == [0, 0, 0, 3]
        epochs = await process.call(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            replica_id=-1,
            topics=[
                {
                    "topic": "ends",
                    "partitions": [
                        {"partition": number, "current_leader_epoch": -1, "leader_epoch": 0} for number in range(3)
                    ],
                }
            ],
        )
        assert [each["end_offset"] for each in epochs["topics"][0]["partitions"]] == [1, 2, 3]
        dirs = await process.call(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=[{"topic": "ends", "partitions": [0, 1, 2]}])
        sizes = [each["partition_size"] for each in dirs["results"][0]["topics"][0]["partitions"]]
        assert all(sizes)
        assert sizes == sorted(sizes)
    deleted = await kafka.first.call(
        ApiKey.DELETE_RECORDS,
        2,
        topics=[{"name": "ends", "partitions": [{"partition_index": number, "offset": 1} for number in range(3)]}],
        timeout_ms=1000,
    )
    assert [each["low_watermark"] for each in deleted["topics"][0]["partitions"]] == [1, 1, 1]


async def alter(process: Process, name: str, **configs: str) -> int:
    entries = [{"name": key, "config_operation": 0, "value": value} for key, value in configs.items()]
    answer = await process.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[{"resource_type": 2, "resource_name": name, "configs": entries}],
        validate_only=False,
    )
    return int(answer["responses"][0]["error_code"])


async def test_changes_at_one_process_follow_those_at_another(kafka: KafkaWorld) -> None:
    for shard in range(3):
        name = next(iter(names(shard, prefix="conf")))
        assert await create(kafka.first, name, partitions=2) == 0
        assert await alter(kafka.first, name, **{"retention.ms": "60000"}) == 0
        assert await alter(kafka.second, name, **{"retention.bytes": "1000000"}) == 0
        grown = await kafka.first.call(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=[{"name": name, "count": 5, "assignments": None}],
            timeout_ms=1000,
            validate_only=False,
        )
        assert grown["results"][0]["error_code"] == 0
        for process in kafka.processes:
            answer = await process.call(
                ApiKey.DESCRIBE_CONFIGS,
                4,
                resources=[{"resource_type": 2, "resource_name": name, "configuration_keys": None}],
                include_synonyms=False,
                include_documentation=False,
            )
            found = {each["name"]: each["value"] for each in answer["results"][0]["configs"]}
            assert (found["retention.ms"], found["retention.bytes"]) == ("60000", "1000000")
            await until(lambda p=process, n=name: p.kafka.catalog.find(n).identity.partition_count == 5)
        answers = await produce(kafka.second, name, {number: batch(b"x") for number in range(5)})
        assert {each["error_code"] for each in answers.values()} == {0}


async def join(process: Process, group: str, topics: list[str]) -> Any:
    body = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 20_000,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription(*topics)}],
        "reason": None,
    }
    answer = await process.call(ApiKey.JOIN_GROUP, 9, member_id="", **body)
    assert answer["error_code"] == 79
    return await process.call(ApiKey.JOIN_GROUP, 9, member_id=answer["member_id"], **body)


@pytest.mark.parametrize("shard", range(3))
async def test_a_classic_group_is_one_for_all_processes(kafka: KafkaWorld, shard: int) -> None:
    group = next(iter(names(shard, prefix="group")))
    assert home_of(group, 3) == shard
    first = await join(kafka.first, group, ["t"])
    assert first["error_code"] == 0
    joining = asyncio.ensure_future(join(kafka.second, group, ["t"]))
    beat = {"group_id": group, "generation_id": first["generation_id"], "member_id": first["member_id"]}

    async def is_rebalancing() -> bool:
        answer = await kafka.second.call(ApiKey.HEARTBEAT, 4, group_instance_id=None, **beat)
        return bool(answer["error_code"] == 27)

    async with asyncio.timeout(5):
        while not await is_rebalancing():
            await asyncio.sleep(0.01)
    body = {"session_timeout": 10_000, "rebalance_timeout": 20_000, "protocol_type": "consumer", "reason": None}
    protocols = [{"name": "range", "metadata": subscription("t")}]
    again = asyncio.ensure_future(
        kafka.second.call(
            ApiKey.JOIN_GROUP,
            9,
            group_id=group,
            member_id=first["member_id"],
            group_instance_id=None,
            protocols=protocols,
            **body,
        )
    )
    both = await asyncio.wait_for(asyncio.gather(again, joining), 5)
    assert {each["generation_id"] for each in both} == {2}
    leader = next(each for each in both if each["leader"] == each["member_id"])
    assert len(leader["members"]) == 2
    shared = {"group_id": group, "generation_id": 2, "group_instance_id": None}
    shared |= {"protocol_type": "consumer", "protocol_name": "range"}
    follower = next(each for each in both if each is not leader)
    waiting = asyncio.ensure_future(
        kafka.first.call(ApiKey.SYNC_GROUP, 5, member_id=follower["member_id"], assignments=[], **shared)
    )
    assignments = [{"member_id": each["member_id"], "assignment": each["member_id"].encode()} for each in both]
    synced = await kafka.second.call(
        ApiKey.SYNC_GROUP, 5, member_id=leader["member_id"], assignments=assignments, **shared
    )
    assert synced["assignment"] == leader["member_id"].encode()
    assert (await asyncio.wait_for(waiting, 5))["assignment"] == follower["member_id"].encode()
    for process in kafka.processes:
        listed = await process.call(ApiKey.LIST_GROUPS, 5, states_filter=[], types_filter=[])
        assert [(each["group_id"], each["group_state"]) for each in listed["groups"]] == [(group, "Stable")]
        described = await process.call(ApiKey.DESCRIBE_GROUPS, 6, groups=[group], include_authorized_operations=False)
        assert len(described["groups"][0]["members"]) == 2
    left = await kafka.first.call(
        ApiKey.LEAVE_GROUP,
        5,
        group_id=group,
        members=[{"member_id": each["member_id"], "group_instance_id": None, "reason": None} for each in both],
    )
    assert [each["error_code"] for each in left["members"]] == [0, 0]


async def commit(process: Process, group: str, name: str, offsets: dict[int, int], **member: Any) -> list[int]:
    partitions = [
        {"partition_index": number, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": "m"}
        for number, offset in offsets.items()
    ]
    answer = await process.call(
        ApiKey.OFFSET_COMMIT,
        8,
        **{"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None} | member,
        topics=[{"name": name, "partitions": partitions}],
    )
    return [each["error_code"] for each in answer["topics"][0]["partitions"]]


async def committed(process: Process, group: str, *asked: tuple[str, list[int]]) -> dict[str, dict[int, int]]:
    topics = [{"name": name, "partition_indexes": numbers} for name, numbers in asked] or None
    answer = await process.call(
        ApiKey.OFFSET_FETCH,
        8,
        groups=[{"group_id": group, "topics": topics}],
        require_stable=False,
    )
    (found,) = answer["groups"]
    assert found["error_code"] == 0
    return {
        topic["name"]: {each["partition_index"]: each["committed_offset"] for each in topic["partitions"]}
        for topic in found["topics"]
    }


@pytest.mark.parametrize("shard", range(3))
async def test_positions_in_topics_of_all_shards(kafka: KafkaWorld, shard: int) -> None:
    group = next(iter(names(shard, prefix="reader")))
    made = [next(iter(names(home, prefix="read"))) for home in range(3)]
    for turn, process in enumerate(kafka.processes):
        for name in made:
            assert await create(process, name, partitions=4) == (36 if turn else 0)
            assert await commit(process, group, name, {0: 5 + turn, 3: 7, 4: 1}) == [0, 0, 3]
        assert await commit(process, group, "nothing", {0: 1}) == [3]
        wanted = {name: {0: 5 + turn, 3: 7} for name in made}
        for other in kafka.processes:
            assert await committed(other, group) == wanted
            assert await committed(other, group, (made[0], [3, 1]), ("nothing", [0])) == {
                made[0]: {3: 7, 1: -1},
                "nothing": {0: -1},
            }
    deleted = await kafka.first.call(
        ApiKey.OFFSET_DELETE,
        0,
        group_id=group,
        topics=[
            {"name": made[1], "partitions": [{"partition_index": 0}, {"partition_index": 9}]},
            {"name": "nothing", "partitions": [{"partition_index": 0}]},
        ],
    )
    codes = [[each["error_code"] for each in topic["partitions"]] for topic in deleted["topics"]]
    assert codes == [[0, 3], [3]]
    assert await committed(kafka.second, group, (made[1], [0, 3])) == {made[1]: {0: -1, 3: 7}}
    for process in kafka.processes:
        described = await process.call(ApiKey.DESCRIBE_GROUPS, 6, groups=[group], include_authorized_operations=False)
        assert described["groups"][0]["group_state"] == "Empty"
    for process, code in zip(kafka.processes, (0, 69), strict=True):
        answer = await process.call(ApiKey.DELETE_GROUPS, 2, groups_names=[group])
        assert answer["results"][0]["error_code"] == code
    assert await committed(kafka.second, group) == {}


async def test_a_group_with_members_is_not_deleted_and_takes_no_other_commits(kafka: KafkaWorld) -> None:
    assert await create(kafka.first, "held", partitions=3) == 0
    for shard in range(3):
        group = next(iter(names(shard, prefix="held")))
        joined = await join(kafka.first, group, ["held"])
        member = {"member_id": joined["member_id"], "generation_id_or_member_epoch": joined["generation_id"]}
        for process in kafka.processes:
            assert await commit(process, group, "held", {0: 1}) == [25]
            stale = member | {"generation_id_or_member_epoch": 17}
            assert await commit(process, group, "held", {0: 1}, **stale) == [22]
            answer = await process.call(ApiKey.DELETE_GROUPS, 2, groups_names=[group])
            assert answer["results"][0]["error_code"] == 68


async def beat(process: Process, group: str, member: str, epoch: int, **more: Any) -> Any:
    body = {
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "instance_id": None,
        "rack_id": None,
        "topic_partitions": None,
    }
    return await process.call(
        ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id=group, member_id=member, member_epoch=epoch, **(body | more)
    )


@pytest.mark.parametrize("shard", range(3))
async def test_a_pattern_finds_topics_of_all_shards_also_later_ones(kafka: KafkaWorld, shard: int) -> None:
    group = next(iter(names(shard, prefix="pattern")))
    made = [next(iter(names(home, prefix="seen"))) for home in range(3)]
    assert await create(kafka.first, made[0], partitions=2) == 0
    process = kafka.second
    answer = await beat(process, group, "m", 0, subscribed_topic_regex="seen.*", topic_partitions=[])
    assert answer["error_code"] == 0
    epoch, owned = answer["member_epoch"], answer["assignment"]
    for name in made[1:]:
        assert await create(kafka.second, name, partitions=2) == 0
    assert await create(kafka.second, "unseen", partitions=2) == 0

    async def partitions() -> int:
        nonlocal epoch, owned
        mine = [] if owned is None else owned["topic_partitions"]
        answer = await beat(process, group, "m", epoch, topic_partitions=mine)
        assert answer["error_code"] == 0
        epoch = answer["member_epoch"]
        owned = answer["assignment"] or owned
        return sum(len(each["partitions"]) for each in owned["topic_partitions"])

    async with asyncio.timeout(10):
        while await partitions() != 6:
            await asyncio.sleep(0.05)
    for each in kafka.processes:
        described = await each.call(
            ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group], include_authorized_operations=False
        )
        (member,) = described["groups"][0]["members"]
        assert sorted(t["topic_name"] for t in member["assignment"]["topic_partitions"]) == sorted(made)
    assert (await beat(process, group, "m", -1))["error_code"] == 0


@pytest.mark.parametrize("kafka", [False], indirect=True)
async def test_a_shard_that_was_away_is_followed_again(kafka: KafkaWorld) -> None:
    far = kafka.second.far
    assert far is not None
    kept, gone = [name for _, name in zip(range(2), names(0, prefix="again"), strict=False)]
    for name in (kept, gone):
        assert await create(kafka.first, name) == 0
    catalog = kafka.second.kafka.catalog
    await until(lambda: catalog.find(gone) is not None)
    far.leave(0)
    kafka.world.engines[0].delete_topic(gone)
    assert await create(kafka.first, "made-meanwhile-0003") == 0
    assert catalog.find(kept) is not None, "what is known stays"
    answers = await produce(kafka.second, kept, {0: batch(b"x")})
    assert answers[0]["error_code"] == 6, "a producer looks for the leader, and tries again"
    far.away.clear()
    await until(lambda: catalog.find(gone) is None and catalog.find(kept) is not None)


async def test_real_connections(kafka: KafkaWorld) -> None:
    assert await create(kafka.first, "wired", partitions=3) == 0
    data = [{"index": number, "records": batch(b"v%d" % number)} for number in range(3)]
    for process in kafka.processes:
        answer = await over_wire(
            process.port,
            ApiKey.PRODUCE,
            12,
            transactional_id=None,
            acks=-1,
            timeout=1000,
            topic_data=[{"name": "wired", "partition_data": data}],
        )
        codes = [each["error_code"] for each in answer["responses"][0]["partition_responses"]]
        assert codes == [0, 0, 0]
    brokers = (await over_wire(kafka.second.port, ApiKey.METADATA, 12, topics=[]))["brokers"]
    assert [each["port"] for each in brokers] == [kafka.second.port]
