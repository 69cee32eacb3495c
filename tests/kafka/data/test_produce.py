"""Produce: accepted batches, their offsets, and the error code of every refusal."""

import asyncio
import itertools
import struct
from typing import Any

import hypothesis.strategies as st
import pytest
from data_support import START, Broker, FakeClock, batch, position_after, read_records, with_fields
from hypothesis import given

from topics_kafka.handlers import produce
from topics_kafka.protocol import ApiKey, ErrorCode
from topics_kafka.settings import KafkaSettings
from topics_service.api.access.auth import Principal, Scope
from topics_service.engine.limits import Limits
from topics_service.engine.model import DiffRequest
from topics_service.storage.memory import MemoryStore

WRITER = Principal("k1", frozenset({Scope.WRITE}), ("mine",))


@pytest.fixture
async def broker() -> Broker:
    broker = Broker()
    broker.put("t", 3)
    return broker


@pytest.mark.parametrize("version", range(3, 14))
async def test_every_version(broker: Broker, version: int) -> None:
    broker.append(b"1", b"2")
    answer = await broker.produce(batch(b"a", b"b"), version=version)
    assert (answer["error_code"], answer["base_offset"], answer["log_append_time"]) == (0, 2, -1)
    assert answer.get("log_start_offset", 0) == 0
    refused = await broker.produce(b"junk", version=version)
    assert (refused["error_code"], refused["base_offset"]) == (ErrorCode.CORRUPT_MESSAGE, -1)
    assert version < 8 or refused["error_message"]


@pytest.mark.parametrize("acks", [-1, 1])
async def test_partitions_and_topics_in_one_request(broker: Broker, acks: int) -> None:
    broker.put("u")
    body = {
        "transactional_id": None, "acks": acks, "timeout": 1, "topic_data": [
            {"name": "t", "partition_data": [{"index": i, "records": batch(b"%d" % i)} for i in (2, 0, 7)]},
            {"name": "gone", "partition_data": [{"index": 0, "records": batch(b"x")}]},
            {"name": "u", "partition_data": [{"index": 0, "records": batch(b"y", b"z")}]},
        ]
    }  # fmt: skip
    answer = await broker.call(ApiKey.PRODUCE, 9, body)
    got = [
        (topic["name"], partition["index"], partition["error_code"], partition["base_offset"])
        for topic in answer["responses"]
        for partition in topic["partition_responses"]
    ]
    assert got == [
        ("t", 2, 0, 0), ("t", 0, 0, 0), ("t", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ("gone", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1), ("u", 0, 0, 0),
    ]  # fmt: skip
    assert [record.value for record in await broker.consume("u")] == [b"y", b"z"]


REFUSED = {
    "two batches": (lambda: batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD),
    "no records": (lambda: with_fields(batch(b"a"), count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD),
    "wrong delta": (lambda: with_fields(batch(b"a"), last_offset_delta=1), ErrorCode.INVALID_RECORD),
    "magic 1": (lambda: with_fields(batch(b"a"), magic=1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "bad checksum": (lambda: with_fields(batch(b"a"), crc=False, max_ts=5), ErrorCode.CORRUPT_MESSAGE),
    "cut off": (lambda: batch(b"abc")[:-1], ErrorCode.CORRUPT_MESSAGE),
    "nothing": (lambda: b"", ErrorCode.INVALID_RECORD),
    "null": (lambda: None, ErrorCode.INVALID_RECORD),
    "transactional": (lambda: batch(b"a", producer=(1, 0, 0), transactional=True), ErrorCode.INVALID_RECORD),
    "control": (lambda: with_fields(batch(b"a"), attributes=0x20), ErrorCode.INVALID_RECORD),
    "unknown codec": (lambda: with_fields(batch(b"a"), attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "too large": (lambda: batch(b"x" * 1_048_588), ErrorCode.MESSAGE_TOO_LARGE),
    "a bomb": (lambda: batch(b"\0" * (65 << 20), codec=4), ErrorCode.MESSAGE_TOO_LARGE),
    "future": (lambda: batch(b"a", b"b", ts=[START, START + 3_600_001]), ErrorCode.INVALID_TIMESTAMP),
    "the broker's time": (lambda: with_fields(batch(b"a"), attributes=8), ErrorCode.INVALID_TIMESTAMP),
    "a producer without a number": (lambda: batch(b"a", producer=(5, 0, -1)), ErrorCode.INVALID_RECORD),
    "a lie about times": (lambda: with_fields(batch(b"a"), max_ts=1 << 62), ErrorCode.INVALID_TIMESTAMP),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_batches(broker: Broker, case: str) -> None:
    make, code = REFUSED[case]
    answer = await broker.produce(make())
    assert (answer["error_code"], answer["base_offset"]) == (code, -1)
    assert answer["error_message"]
    assert (await broker.offsets(-1))["offset"] == 0, "nothing was written"


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
async def test_codecs_are_kept(broker: Broker, codec: int) -> None:
    sent = batch(*[b"value %d" % i for i in range(50)], codec=codec)
    assert (await broker.produce(batch(b"first")))["error_code"] == 0
    assert (await broker.produce(sent))["base_offset"] == 1
    got = bytes((await broker.fetch(1))["records"])
    assert got == struct.pack(">qii", 1, len(sent) - 12, 0) + sent[16:], "all but offset and epoch is as it came"


async def test_the_request_as_a_whole(broker: Broker) -> None:
    for acks in (2, -2):
        assert (await broker.produce(batch(b"a"), acks=acks))["error_code"] == ErrorCode.INVALID_REQUIRED_ACKS
    answer = await broker.produce(batch(b"a"), transactional_id="tx")
    assert answer["error_code"] == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (await broker.offsets(-1))["offset"] == 0


async def test_unknown_topics(broker: Broker) -> None:
    assert (await broker.produce(batch(b"a"), "nope"))["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    body = broker.produce_body(batch(b"a"), version=13)
    broker.engine.delete_topic("t")
    broker.put("t")
    answer = await broker.call(ApiKey.PRODUCE, 13, body)
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    assert answer["responses"][0]["topic_id"] == body["topic_data"][0]["topic_id"]


@pytest.mark.parametrize("version", [12, 13])
async def test_access(broker: Broker, version: int) -> None:
    broker.put("mine.1")
    broker.context = broker.connect(WRITER)
    assert (await broker.produce(batch(b"a"), "mine.1", version=version))["error_code"] == 0
    assert (await broker.produce(batch(b"a"), "t", version=version))["error_code"] == 29
    assert version > 12 or (await broker.produce(batch(b"a"), "gone"))["error_code"] == 29, "before it is looked for"
    broker.context = broker.connect(Principal("k2", frozenset({Scope.READ}), None))
    assert (await broker.produce(batch(b"a"), "mine.1", version=version))["error_code"] == 29


async def test_acks_0_is_never_answered(broker: Broker) -> None:
    assert await broker.produce(batch(b"a"), acks=0) is None
    assert not broker.context.closing
    assert (await broker.offsets(-1))["offset"] == 1
    assert await broker.produce(batch(b"a") * 2, acks=0) is None
    assert broker.context.closing, "which is all that the client can see"
    assert broker.statistics.errors["Produce", "INVALID_RECORD"] == 1


async def test_max_message_bytes() -> None:
    broker = Broker(settings=KafkaSettings(max_batch_bytes=200))
    broker.put("t")
    broker.put("wide", kafka={"max.message.bytes": "500"})
    assert (await broker.produce(batch(b"x" * 300)))["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    assert (await broker.produce(batch(b"x" * 300), "wide"))["error_code"] == 0
    assert (await broker.produce(batch(b"x" * 500), "wide"))["error_code"] == ErrorCode.MESSAGE_TOO_LARGE


async def test_times_that_the_topic_takes(broker: Broker) -> None:
    hour = 3_600_000
    assert (await broker.produce(batch(b"a", b"b", ts=[START + hour, -1])))["error_code"] == 0
    assert (await broker.produce(batch(b"a", ts=0)))["error_code"] == 0, "as old as they like"
    answer = await broker.produce(batch(b"a", b"b", b"c", ts=[START, START + hour + 1, START + 2 * hour]))
    assert answer["error_code"] == ErrorCode.INVALID_TIMESTAMP
    assert [error["batch_index"] for error in answer["record_errors"]] == [1, 2]
    broker.put("narrow", kafka={"message.timestamp.before.max.ms": "10", "message.timestamp.after.max.ms": "20"})
    for ts, code in ((START - 10, 0), (START - 11, 32), (START + 20, 0), (START + 21, 32)):
        assert (await broker.produce(batch(b"a", b"b", ts=[START, ts]), "narrow"))["error_code"] == code


async def test_log_append_time() -> None:
    broker = Broker()
    broker.put("t", kafka={"message.timestamp.type": "LogAppendTime"})
    answer = await broker.produce(batch(b"a", b"b", ts=[5, 1 << 60], codec=1))
    assert (answer["error_code"], answer["log_append_time"]) == (0, START)
    got = read_records((await broker.fetch(0))["records"])
    assert [(record.value, record.ts) for record in got] == [(b"a", START), (b"b", START)]


async def test_idempotence(broker: Broker) -> None:
    sent = [batch(b"%d" % i, b"+", producer=(9, 0, 2 * i)) for i in range(8)]
    for i in range(6):
        assert (await broker.produce(sent[i]))["base_offset"] == 2 * i
    for i in (5, 1, 3):
        again = await broker.produce(sent[i])
        assert (again["error_code"], again["base_offset"]) == (0, 2 * i), "where it went the first time"
    gap = await broker.produce(sent[7])
    assert gap["error_code"] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await broker.produce(sent[0]))["error_code"] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "6 batches ago"
    broker.restart()
    assert (await broker.produce(sent[5]))["base_offset"] == 10
    assert (await broker.produce(sent[6]))["base_offset"] == 12
    assert (await broker.produce(batch(b"n", producer=(9, 2, 3))))["error_code"] == 45, "a new epoch begins at 0"
    assert (await broker.produce(batch(b"n", producer=(9, 2, 0))))["base_offset"] == 14
    assert (await broker.produce(batch(b"n", producer=(9, 1, 1))))["error_code"] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await broker.produce(batch(b"n", producer=(10, 0, 77))))["base_offset"] == 15, "unknown: any number"
    assert (await broker.produce(sent[0], partition=1))["base_offset"] == 0, "of each partition its own"


async def test_kept_over_a_kill(broker: Broker) -> None:
    sent = batch(b"a", producer=(9, 0, 0))
    assert (await broker.produce(sent))["base_offset"] == 0
    broker.start()
    assert (await broker.produce(sent))["base_offset"] == 0
    assert (await broker.offsets(-1))["offset"] == 1


async def test_durability_is_waited_for_in_order() -> None:
    broker = Broker()
    broker.put("sure", durability="fsync")
    broker.put("fast", durability="ephemeral")
    assert (await broker.produce(batch(b"a"), "fast"))["error_code"] == 0
    broker.commit.eager = False
    bodies = [broker.produce_body(batch(b"%d" % i), "sure") for i in range(3)]
    answers = [broker.start_call(ApiKey.PRODUCE, 12, body) for body in bodies]
    assert (await broker.offsets(-1, "sure"))["offset"] == 0, "taken in, and not visible yet"
    quick = broker.start_call(ApiKey.PRODUCE, 12, broker.produce_body(batch(b"b"), "fast"))
    assert isinstance(quick, dict)
    tasks = [asyncio.ensure_future(answer) for answer in answers]
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    broker.commit.sync()
    got = [(await task)["responses"][0]["partition_responses"][0] for task in tasks]
    assert [(answer["error_code"], answer["base_offset"]) for answer in got] == [(0, 0), (0, 1), (0, 2)]


async def test_what_cannot_be_made_durable() -> None:
    broker = Broker()
    broker.put("sure", durability="fsync")
    broker.put("fast", durability="ephemeral")
    assert (await broker.produce(batch(b"a"), "fast"))["error_code"] == 0
    broker.commit.eager = False
    body = broker.produce_body(batch(b"a"), "sure")
    body["topic_data"] += broker.produce_body(batch(b"b"), "fast")["topic_data"]
    task = asyncio.ensure_future(broker.start_call(ApiKey.PRODUCE, 12, body))
    await asyncio.sleep(0)
    broker.commit.fail()
    answer = await task
    sure, fast = (topic["partition_responses"][0] for topic in answer["responses"])
    assert (sure["error_code"], sure["base_offset"]) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert (fast["error_code"], fast["base_offset"]) == (0, 1)


async def test_full_topics_and_quotas() -> None:
    broker = Broker(limits=Limits(max_total_bytes=400))
    broker.put("full", cap_records=2, discard="reject")
    broker.put("t")
    assert (await broker.produce(batch(b"a", b"b"), "full"))["error_code"] == 0
    assert (await broker.produce(batch(b"c"), "full"))["error_code"] == ErrorCode.NOT_ENOUGH_REPLICAS
    assert (await broker.produce(batch(b"x" * 400)))["error_code"] == ErrorCode.NOT_ENOUGH_REPLICAS


async def test_a_server_that_drains(broker: Broker) -> None:
    broker.api.drain()
    assert (await broker.produce(batch(b"a")))["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_log_start_is_told() -> None:
    broker = Broker(MemoryStore(), clock=FakeClock())
    broker.put("t", cap_records=2)
    answers: list[dict[str, Any]] = [await broker.produce(batch(b"%d" % i)) for i in range(4)]
    assert [answer["log_start_offset"] for answer in answers] == [0, 0, 1, 2]


@given(
    codec=st.integers(0, 4),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
    cut=st.floats(0.5, 1.2),
    sealed=st.booleans(),
)
def test_hostile_batches(codec: int, changes: list[tuple[float, int]], cut: float, sealed: bool) -> None:
    """Any bytes get an error code or are accepted, and accepted records can be read over every protocol."""

    async def run() -> None:
        broker = Broker()
        broker.put("t")
        records = batch(b"a" * 20, b"null", None, keys=[b"k", None, b"x" * 300], headers=[("h", b"v")], codec=codec)
        mutated = bytearray(records)
        for place, value in changes:
            mutated[int(place * len(records))] = value
        sent = bytes(mutated)[: max(1, round(cut * len(records)))]
        if sealed and len(sent) > 61:
            sent = with_fields(sent, magic=2, length=len(sent) - 12)
        answer = await broker.produce(sent)
        assert (answer["base_offset"] == 0) == (answer["error_code"] == 0)
        fetched = await broker.fetch(0)
        if answer["error_code"]:
            assert fetched["high_watermark"] == 0
            return
        head = fetched["high_watermark"]
        assert bytes(fetched["records"])[16:] == sent[16:]
        page = broker.engine.diff(DiffRequest(topic="t", from_seq=0))
        assert sum(part.stop - part.start for part in page.slices) == head
        broker.delete(head)
        assert position_after((await broker.fetch(0))["records"], 0) == head
        for ts in (0, START, 1 << 62, -3):
            await broker.offsets(ts)

    asyncio.run(run())


async def test_many_large_batches_are_appended_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "BUDGET_SECONDS", 0.0)
    broker = Broker()
    broker.put("t", 3)
    broker.commit.eager = False
    has_time = itertools.cycle((True, False))
    monkeypatch.setattr(broker.server.loop_budget, "has_time", lambda: next(has_time))
    body = broker.produce_body(batch(b"0"))
    body["topic_data"][0]["partition_data"] += [{"index": i, "records": batch(b"%d" % i)} for i in (1, 2, 9)]
    running = asyncio.ensure_future(broker.start_call(ApiKey.PRODUCE, 9, body))
    heads = [[log.state.head for log in broker.engine.catalog.topics["t"].logs]]
    assert broker.context.appending
    while broker.context.appending:
        await asyncio.sleep(0)
        heads.append([log.state.head for log in broker.engine.catalog.topics["t"].logs])
    assert [heads[i] for i in range(len(heads)) if heads[i] not in heads[:i]] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert not running.done(), "not durable yet"
    broker.commit.sync()
    found = broker.encoded(ApiKey.PRODUCE, 9, await running)["responses"][0]["partition_responses"]
    assert [(each["index"], each["error_code"], each["base_offset"]) for each in found] == [
        (0, 0, 0), (1, 0, 0), (2, 0, 0), (9, 3, -1)
    ]  # fmt: skip


async def test_a_topic_deleted_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "BUDGET_SECONDS", 0.0)
    broker = Broker()
    broker.put("t", 2)
    body = broker.produce_body(batch(b"0"), acks=0)
    body["topic_data"][0]["partition_data"].append({"index": 1, "records": batch(b"1")})
    running = asyncio.ensure_future(broker.start_call(ApiKey.PRODUCE, 9, body))
    broker.engine.delete_topic("t")
    assert await running is None
    assert broker.context.closing, "acks=0 has no other way to tell"
    assert not broker.context.appending
