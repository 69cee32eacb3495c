"""ListOffsets, OffsetForLeaderEpoch, InitProducerId, DescribeProducers."""

import asyncio

import pytest
from data_support import START, Broker, batch

from topics_kafka.protocol import ApiKey, ErrorCode
from topics_service.api.access.auth import Principal, Scope
from topics_service.storage.memory import MemoryStore

LATEST, EARLIEST, NEWEST, LOCAL, TIERED, PENDING = range(-1, -7, -1)


@pytest.fixture
async def broker() -> Broker:
    broker = Broker()
    broker.put("t", 2)
    return broker


async def found(broker: Broker, ts: int, **more: int) -> tuple[int, int]:
    answer = await broker.offsets(ts, **more)
    assert answer["error_code"] == 0, answer
    return answer["offset"], answer["timestamp"]


@pytest.mark.parametrize("version", range(1, 12))
async def test_every_version(broker: Broker, version: int) -> None:
    await broker.produce(batch(b"a", b"b", ts=[START, START + 5]))
    answers = {ts: await broker.offsets(ts, version=version) for ts in (*range(PENDING, 0), START + 1, START + 9)}
    since = {LATEST: 1, EARLIEST: 1, NEWEST: 7, LOCAL: 8, TIERED: 9, PENDING: 11}
    for ts, wanted in {
        LATEST: (2, -1), EARLIEST: (0, -1), NEWEST: (1, START + 5), LOCAL: (0, -1), TIERED: (-1, -1),
        PENDING: (-1, -1), START + 1: (1, START + 5), START + 9: (-1, -1),
    }.items():  # fmt: skip
        answer = answers[ts]
        if version < since.get(ts, 0):
            assert answer["error_code"] == ErrorCode.UNSUPPORTED_VERSION
        else:
            assert (answer["offset"], answer["timestamp"]) == wanted, ts
            assert version < 4 or answer["leader_epoch"] == (-1 if wanted[0] < 0 else 0)


async def test_times_to_the_record(broker: Broker) -> None:
    """The first record that is not older, also if times are out of order and of other protocols."""
    times = [START + offset for offset in (50, 10, 90, 20)]
    await broker.produce(batch(*[b"x"] * 4, ts=times, codec=1))
    broker.clock.now = START + 60
    broker.append(b"1")
    await broker.produce(batch(b"y", ts=START + 95))
    all_times = [*times, START + 60, START + 95]
    for sealed in (False, True):
        if sealed:
            broker.seal()
        for ts in range(START, START + 100):
            wanted = next(((i, at) for i, at in enumerate(all_times) if at >= ts), (-1, -1))
            assert await found(broker, ts) == wanted
        assert await found(broker, NEWEST) == (5, START + 95)
        assert await found(broker, 0) == (0, START + 50)


async def test_what_is_gone_is_not_found(broker: Broker) -> None:
    await broker.produce(batch(b"a", b"b", b"c", keys=[b"x", b"y", b"z"], ts=[START + i for i in (30, 20, 10)]))
    broker.delete(tag=b"x")
    assert await found(broker, START) == (1, START + 20)
    assert await found(broker, NEWEST) == (1, START + 20)
    broker.delete(3)
    assert await found(broker, START) == (2, START + 10)
    assert await found(broker, EARLIEST) == (2, -1)
    broker.delete(4)
    assert await found(broker, START) == await found(broker, NEWEST) == (-1, -1)
    assert await found(broker, EARLIEST) == await found(broker, LATEST) == (3, -1)


async def test_many_look_ups_give_others_their_turn() -> None:
    broker = Broker()
    broker.put("t", 60)
    sent = batch(*[b"x" * 50] * 5000, ts=[START + i for i in range(5000)], codec=1)
    for partition in range(60):
        await broker.produce(sent, partition=partition)
    asked = [{"partition_index": partition, "timestamp": START + 4000} for partition in range(60)]
    body = {"replica_id": -1, "topics": [{"name": "t", "partitions": asked}]}
    answer = broker.start_call(ApiKey.LIST_OFFSETS, 9, body)
    assert not isinstance(answer, dict)
    found = broker.encoded(ApiKey.LIST_OFFSETS, 9, await answer)["topics"][0]["partitions"]
    assert [(each["partition_index"], each["offset"]) for each in found] == [(i, 4000) for i in range(60)]


async def test_log_append_time() -> None:
    broker = Broker()
    broker.put("t", kafka={"message.timestamp.type": "LogAppendTime"})
    await broker.produce(batch(b"a", ts=5))
    broker.clock.now += 10
    await broker.produce(batch(b"b", b"c", ts=1))
    assert await found(broker, START) == (0, START)
    assert await found(broker, START + 1) == (1, START + 10)
    assert await found(broker, NEWEST) == (1, START + 10)


async def test_refused(broker: Broker) -> None:
    for ts in (LATEST, EARLIEST, NEWEST, LOCAL, TIERED, START):
        assert (await broker.offsets(ts, "gone"))["error_code"] == 3
        assert (await broker.offsets(ts, partition=2))["error_code"] == 3
    answer = await broker.offsets(LATEST, epoch=1)
    assert (answer["error_code"], answer["offset"]) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)
    assert (await broker.offsets(LATEST, epoch=0))["error_code"] == 0
    broker.context = broker.connect(Principal("k", frozenset({Scope.READ}), ("mine",)))
    assert (await broker.offsets(LATEST))["error_code"] == 29


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_leader_epochs(broker: Broker, version: int) -> None:
    await broker.produce(batch(b"a", b"b"))

    async def end(epoch: int, current: int = -1, partition: int = 0, topic: str = "t") -> tuple[int, int, int]:
        asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        body = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [asked]}]}
        answer = await broker.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, body)
        got = answer["topics"][0]["partitions"][0]
        return got["error_code"], got["leader_epoch"], got["end_offset"]

    assert await end(0) == await end(0, current=0) == (0, 0, 2)
    assert await end(1) == await end(-1) == (0, -1, -1)
    assert await end(0, current=1) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert await end(0, partition=2) == await end(0, topic="gone") == (3, -1, -1)


@pytest.mark.parametrize("version", [4, 9])
async def test_leader_epochs_of_a_shard(broker: Broker, version: int) -> None:
    """In a cluster an epoch ends with a takeover: clients of an earlier one are fenced, and no offset is used again."""
    await broker.produce(batch(b"a", b"b"))
    broker.context.server.leader_epoch = 7
    for current, wanted in ((6, ErrorCode.FENCED_LEADER_EPOCH), (7, 0), (8, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, 0)):
        offsets = await broker.offsets(LATEST, version=version, epoch=current)
        assert offsets["error_code"] == wanted
        assert (offsets["offset"], offsets["leader_epoch"]) == ((-1, -1) if wanted else (2, 7))
        fetched = await broker.fetch(version=12, epoch=current)
        assert fetched["error_code"] == wanted
        for epoch, end in ((-1, (-1, -1)), (0, (0, 2)), (6, (6, 2)), (7, (7, 2)), (8, (-1, -1))):
            asked = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
            body = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [asked]}]}
            answer = (await broker.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, body))["topics"][0]["partitions"][0]
            assert answer["error_code"] == wanted
            assert (answer["leader_epoch"], answer["end_offset"]) == ((-1, -1) if wanted else end)


async def init(broker: Broker, version: int = 4, **fields: object) -> dict:
    body = {"transactional_id": None, "transaction_timeout": 1000, **fields}
    return await broker.call(ApiKey.INIT_PRODUCER_ID, version, body)


@pytest.mark.parametrize("version", range(6))
async def test_producer_ids_are_always_new(broker: Broker, version: int) -> None:
    got = [await init(broker, version, producer_id=0, producer_epoch=0) for _ in range(5)]
    assert {(answer["error_code"], answer["producer_epoch"]) for answer in got} == {(0, 0)}
    assert len({answer["producer_id"] for answer in got}) == 5
    refused = await init(broker, version, transactional_id="tx")
    assert (refused["error_code"], refused["producer_id"]) == (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)


async def test_producer_ids_are_new_after_a_kill() -> None:
    store = MemoryStore()
    ids = []
    for _ in range(3):
        broker = Broker(store)
        ids += [(await init(broker))["producer_id"] for _ in range(3)]
    assert len(set(ids)) == 9


async def test_a_producer_id_is_durable_first() -> None:
    broker = Broker()
    broker.commit.eager = False
    body = {"transactional_id": None, "transaction_timeout": 1}
    task = asyncio.ensure_future(broker.start_call(ApiKey.INIT_PRODUCER_ID, 4, body))
    await asyncio.sleep(0)
    assert not task.done()
    broker.commit.sync()
    assert (await task)["error_code"] == 0


async def test_producer_ids_take_the_write_scope(broker: Broker) -> None:
    broker.context = broker.connect(Principal("k", frozenset({Scope.READ}), None))
    assert (await init(broker))["error_code"] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_describe_producers(broker: Broker) -> None:
    for first in (0, 2):
        await broker.produce(batch(b"a", b"b", producer=(7, 1, first)))
    await broker.produce(batch(b"a", producer=(8, 0, 5)))
    body = {"topics": [{"name": "t", "partition_indexes": [0, 1, 2]}, {"name": "gone", "partition_indexes": [0]}]}
    answer = await broker.call(ApiKey.DESCRIBE_PRODUCERS, 0, body)
    mine, gone = answer["topics"]
    assert [partition["error_code"] for partition in (*mine["partitions"], *gone["partitions"])] == [0, 0, 3, 3]
    producers = mine["partitions"][0]["active_producers"]
    assert sorted(
        (each["producer_id"], each["producer_epoch"], each["last_sequence"], each["last_timestamp"])
        for each in producers
    ) == [(7, 1, 3, START), (8, 0, 5, START)]
    assert {(each["coordinator_epoch"], each["current_txn_start_offset"]) for each in producers} == {(-1, -1)}
    assert mine["partitions"][1]["active_producers"] == []
    often = {"topics": [{"name": "t", "partition_indexes": [0] * 10_000}]}
    assert len((await broker.call(ApiKey.DESCRIBE_PRODUCERS, 0, often))["topics"][0]["partitions"]) == 1
    broker.context = broker.connect(Principal("k", frozenset({Scope.WRITE}), None))
    answer = await broker.call(ApiKey.DESCRIBE_PRODUCERS, 0, body)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 29
