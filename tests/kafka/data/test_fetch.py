"""Fetch: batches and bytes of a response, around holes, gaps and lost records."""

import struct
from uuid import UUID

import pytest
from data_support import START, Broker, Rec, batch, position_after, read_batches, read_records

from topics_kafka.handlers import fetch
from topics_kafka.protocol import ApiKey, ErrorCode
from topics_kafka.settings import KafkaSettings
from topics_service.api.access.auth import Principal, Scope
from topics_service.engine.transaction import Transaction

READER = Principal("k1", frozenset({Scope.READ}), ("mine",))
NOWHERE = (-1, -1, -1)


@pytest.fixture
async def broker() -> Broker:
    broker = Broker()
    broker.put("t", 3)
    return broker


def bounds(answer: dict) -> tuple[int, int, int]:
    return answer["high_watermark"], answer["last_stable_offset"], answer["log_start_offset"]


async def fill(broker: Broker, count: int, size: int = 100, topic: str = "t") -> list[bytes]:
    sent = [batch(b"%0*d" % (size, i)) for i in range(count)]
    for records in sent:
        assert (await broker.produce(records, topic))["error_code"] == 0
    return sent


@pytest.mark.parametrize("version", range(4, 18))
async def test_every_version(broker: Broker, version: int) -> None:
    await broker.produce(batch(b"a", None, keys=[b"k", None], headers=[("h", None)]))
    answer = await broker.fetch(1, version=version)
    assert answer["error_code"] == 0
    assert (answer["high_watermark"], answer["last_stable_offset"]) == (2, 2)
    assert version < 5 or answer["log_start_offset"] == 0
    assert version < 11 or answer["preferred_read_replica"] == -1
    assert answer["aborted_transactions"] is None
    assert read_records(answer["records"]) == [
        Rec(0, b"k", b"a", START, (("h", None),)), Rec(1, None, None, START, (("h", None),)),
    ], "the whole batch, also from its middle"  # fmt: skip
    failed = await broker.fetch(3, version=version)
    assert failed["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (failed["high_watermark"], bytes(failed["records"])) == (-1, b"")


async def test_out_of_range(broker: Broker) -> None:
    broker.put("small", cap_records=2)
    for i in range(5):
        await broker.produce(batch(b"%d" % i), "small")
    for offset, code in ((-1, 1), (0, 1), (2, 1), (3, 0), (5, 0), (6, 1)):
        answer = await broker.fetch(offset, "small")
        assert answer["error_code"] == code, offset
        assert bounds(answer) == (NOWHERE if code else (5, 5, 3))
    assert broker.statistics.out_of_range == 4


async def test_expired(broker: Broker) -> None:
    broker.put("t", ttl_ms=1000)
    await fill(broker, 2)
    broker.clock.now += 600
    await fill(broker, 1)
    broker.clock.now += 600
    assert (await broker.fetch(1))["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert [record.offset for record in await broker.consume(start=2)] == [2]
    broker.clock.now += 600
    answer = await broker.fetch(3)
    assert (answer["error_code"], bounds(answer)) == (0, (3, 3, 3))


async def test_the_first_batch_comes_whatever_its_size(broker: Broker) -> None:
    sent = await fill(broker, 3)
    size = len(sent[0])
    for limits in ({"partition_max": 1}, {"max_bytes": 1}, {"partition_max": 0}, {"max_bytes": 0}):
        assert len((await broker.fetch(0, **limits))["records"]) == size
    assert len((await broker.fetch(0, partition_max=2 * size))["records"]) == 2 * size
    assert len((await broker.fetch(0, partition_max=3 * size - 1))["records"]) == 2 * size
    assert len((await broker.fetch(1, max_bytes=5 * size))["records"]) == 2 * size


async def test_many_partitions_share_the_bytes(broker: Broker) -> None:
    one = batch(b"x" * 1000)
    for partition in range(3):
        for _ in range(3):
            await broker.produce(one, partition=partition)
    targets = [("t", partition, 0) for partition in range(3)]

    async def sizes(**limits: int) -> list[int]:
        answer = await broker.call(ApiKey.FETCH, 12, broker.fetch_many(targets, **limits))
        partitions = answer["responses"][0]["partitions"]
        assert [bounds(partition) for partition in partitions] == [(3, 3, 0)] * 3
        return [len(partition["records"]) // len(one) for partition in partitions]

    assert await sizes() == [3, 3, 3]
    assert await sizes(max_bytes=4 * len(one)) == [3, 1, 0]
    assert await sizes(partition_max=len(one)) == [1, 1, 1]
    assert await sizes(max_bytes=10) == [1, 0, 0], "only the first of all may be too large"
    assert await sizes(max_bytes=len(one) + 10) == [1, 0, 0]


async def test_the_servers_own_limit() -> None:
    broker = Broker(settings=KafkaSettings(fetch_max_bytes=500))
    broker.put("t")
    sent = await fill(broker, 9)
    assert len((await broker.fetch(0))["records"]) == 500 // len(sent[0]) * len(sent[0])


@pytest.mark.parametrize("version", [12, 13, 17])
async def test_topics_that_are_not_there(broker: Broker, version: int) -> None:
    body = broker.fetch_many([("t", 0, 0), ("t", 3, 0)], version)
    asked = {"topic_id": UUID(int=77)} if version >= 13 else {"topic": "gone"}
    body["topics"].append({**asked, "partitions": body["topics"][0]["partitions"][:1]})
    answer = await broker.call(ApiKey.FETCH, version, body)
    codes = [partition["error_code"] for topic in answer["responses"] for partition in topic["partitions"]]
    assert codes == [0, 3, ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else 3]
    broker.engine.delete_topic("t")
    broker.put("t")
    answer = await broker.call(ApiKey.FETCH, version, body)
    assert answer["responses"][0]["partitions"][0]["error_code"] == (100 if version >= 13 else 0)


@pytest.mark.parametrize("version", [12, 13])
async def test_access(broker: Broker, version: int) -> None:
    broker.put("mine.1")
    broker.context = broker.connect(READER)
    assert (await broker.fetch(0, "mine.1", version=version))["error_code"] == 0
    answer = await broker.fetch(0, "t", version=version)
    assert (answer["error_code"], bounds(answer)) == (29, NOWHERE)
    broker.context = broker.connect(Principal("k2", frozenset({Scope.WRITE}), None))
    assert (await broker.fetch(0, "t", version=version))["error_code"] == 29


async def test_leader_epochs(broker: Broker) -> None:
    for epoch, code in ((-1, 0), (0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        assert (await broker.fetch(0, epoch=epoch))["error_code"] == code


async def test_sessions_are_never_given(broker: Broker) -> None:
    await fill(broker, 1)
    for session, epoch in ((0, 0), (0, -1), (0, 5), (7, 0), (7, -1)):
        body = broker.fetch_body(session_id=session, session_epoch=epoch)
        answer = await broker.call(ApiKey.FETCH, 12, body)
        assert (answer["error_code"], answer["session_id"]) == (0, 0)
        assert answer["responses"][0]["partitions"][0]["records"], "a full fetch"
    answer = await broker.call(ApiKey.FETCH, 12, broker.fetch_body(session_id=7, session_epoch=3))
    assert (answer["error_code"], answer["responses"]) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


async def test_holes_inside_a_batch(broker: Broker) -> None:
    keys = [b"keep", b"drop", b"keep", b"drop"]
    sent = batch(b"a", b"b", b"c", b"d", keys=keys, ts=[START + i for i in range(4)], codec=2, producer=(3, 1, 5))
    await broker.produce(sent)
    await broker.produce(batch(b"e"))
    broker.delete(tag=b"drop")
    for sealed in (False, True):
        if sealed:
            broker.seal()
        answer = await broker.fetch(0)
        first, second = read_batches(answer["records"])
        assert (first.base_offset, first.last_offset_delta, first.producer_id) == (0, 3, 3)
        assert second.base_offset == 4
        assert read_records(answer["records"]) == [
            Rec(0, b"keep", b"a", START), Rec(2, b"keep", b"c", START + 2), Rec(4, None, b"e", START),
        ]  # fmt: skip
        assert [record.offset for record in await broker.consume(start=1)] == [2, 4]
        assert [record.offset for record in await broker.consume(start=3)] == [4]


async def test_a_hole_at_the_tail(broker: Broker) -> None:
    await broker.produce(batch(b"a", b"b", keys=[b"k", b"k"]))
    await broker.produce(batch(b"c", b"d", keys=[b"x", b"x"]))
    broker.append(b"1", b"2", tags=[b"x", b"x"])
    assert broker.delete(tag=b"x") == 4
    answer = await broker.fetch(2)
    (control,) = read_batches(answer["records"])
    assert control.is_control_batch
    assert (control.base_offset, control.last_offset_delta, control.attributes) == (5, 0, 0x30)
    assert (answer["high_watermark"], position_after(answer["records"], 2)) == (6, 6)
    assert [record.offset for record in await broker.consume()] == [0, 1]
    assert len(read_batches((await broker.fetch(0))["records"])) == 2, "with the last batch in one response"


async def test_everything_is_deleted(broker: Broker) -> None:
    await broker.produce(batch(b"a", b"b"))
    broker.append(b"1")
    broker.delete(4)
    for offset in range(3):
        answer = await broker.fetch(offset)
        assert bounds(answer) == (3, 3, 3)
        assert position_after(answer["records"], offset) == 3
    assert not (await broker.fetch(3))["records"]
    await broker.produce(batch(b"next"))
    assert [record.offset for record in await broker.consume()] == [3]


async def test_a_deleted_prefix_is_a_hole(broker: Broker) -> None:
    await broker.produce(batch(b"a", b"b", b"c", b"d"))
    broker.delete(3)
    answer = await broker.fetch(0)
    assert (answer["error_code"], answer["log_start_offset"]) == (0, 2)
    assert [record.value for record in read_records(answer["records"])] == [b"c", b"d"]


async def test_gaps_are_passed_over_and_counted(broker: Broker) -> None:
    """Seqs lost in the middle: a hole for Kafka clients, and a number in the metrics."""
    await fill(broker, 1)
    topic = broker.engine.catalog.topics["t"]
    log = topic.log
    with Transaction(broker.engine.writer) as tx:
        log.skip_seqs(tx, log.begin(topic.config, START), 5, topic.config)
        tx.commit()
    broker.commit.sync()
    sent = await fill(broker, 2)
    assert [record.offset for record in await broker.consume()] == [0, 6, 7]
    counted = broker.statistics.gap_records
    assert counted == 5
    assert len((await broker.fetch(3))["records"]) == 2 * len(sent[0])
    assert broker.statistics.gap_records == counted + 3
    await broker.fetch(6)
    assert broker.statistics.gap_records == counted + 3


async def test_gaps_are_counted_also_where_the_bytes_end(broker: Broker) -> None:
    await fill(broker, 1)
    topic = broker.engine.catalog.topics["t"]
    with Transaction(broker.engine.writer) as tx:
        topic.log.skip_seqs(tx, topic.log.begin(topic.config, START), 5, topic.config)
        tx.commit()
    sent = await fill(broker, 2)
    await broker.fetch(0, partition_max=2 * len(sent[0]) + 1)
    assert broker.statistics.gap_records == 5


async def test_records_of_other_protocols(broker: Broker) -> None:
    broker.append(
        b'{"a":1}', b"null", b"\xff\x00",
        tags=[b"tag", None, None],
        metas=[
            b'{"s":"v","n":null,"b":{"$base64":"/w=="},"m":["x",null],"num":[1,2]}', None,
            b'{"$key":{"$base64":"/wA="}}',
        ],
        nodes=[b"node-1", None, None],
        kinds=bytes([0, 0, 1]),
    )  # fmt: skip
    assert await broker.consume() == [
        Rec(0, b"tag", b'{"a":1}', START,
            (("s", b"v"), ("n", None), ("b", b"\xff"), ("m", b"x"), ("m", None), ("num", b"[1,2]"),
             ("topics_node", b"node-1"))),
        Rec(1, None, None, START), Rec(2, b"\xff\x00", b"\xff\x00", START),
    ]  # fmt: skip


async def test_protocols_alternate(broker: Broker) -> None:
    wanted = []
    for i in range(30):
        broker.clock.now += 1
        if i % 3:
            await broker.produce(batch(b"k%d" % i, b"l%d" % i, codec=i % 5, ts=i))
            wanted += [(b"k%d" % i, i), (b"l%d" % i, i)]
        else:
            broker.append(b'"h%d"' % i)
            wanted.append((b'"h%d"' % i, broker.clock.now))
    for sealed in (False, True):
        if sealed:
            broker.seal()
        for start in (0, 7, 20):
            found = await broker.consume(start=start)
            assert [(record.value, record.ts) for record in found] == wanted[start:]
            assert [record.offset for record in found] == list(range(start, len(wanted)))


@pytest.mark.parametrize("partition_max", [1, 100, 10_000, 70_000, 1 << 20])
async def test_large_blocks_of_other_protocols(broker: Broker, partition_max: int) -> None:
    """For any limits, every record is read once, and readers share the rendered batches."""
    datas = [b'"%d%s"' % (i, b"x" * (i % 700)) for i in range(1500)]
    broker.append(*datas, tags=[b"odd" if i % 2 else b"even" for i in range(1500)])
    broker.append(b"1")
    starts = (0, 3, 777)
    if partition_max < 1000:
        starts = (1400,)
    for start in starts:
        found = await broker.consume(start=start, partition_max=partition_max)
        assert [(record.offset, record.value) for record in found] == list(enumerate([*datas, b"1"]))[start:]
    broker.delete(tag=b"odd")
    for start in starts:
        found = await broker.consume(start=start, partition_max=partition_max)
        assert [record.offset for record in found] == [i for i in range(start, 1501) if i == 1500 or not i % 2]


async def test_made_batches_are_kept(broker: Broker) -> None:
    broker.append(*[b'"%0500d"' % i for i in range(2000)])
    cache = broker.api.metrics.caches["kafka_batches"]
    await broker.consume()
    misses = cache.statistics.misses
    assert misses > 10
    await broker.consume()
    await broker.consume(partition_max=300_000)
    assert cache.statistics.misses == misses, "the second and third reader cost nothing"
    assert 1_000_000 < cache.size <= broker.settings.render_cache_bytes


async def test_the_cache_is_bounded() -> None:
    broker = Broker(settings=KafkaSettings(render_cache_bytes=600_000))
    broker.put("t")
    for _ in range(20):
        broker.append(*[b'"%0500d"' % i for i in range(100)])
    cache = broker.api.metrics.caches["kafka_batches"]
    for _ in range(2):
        assert len(await broker.consume()) == 2000
        assert 0 < cache.size <= 600_000


async def test_what_is_made_for_one_response_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_RENDERED_BYTES", 200_000)
    for partition in range(3):
        broker.append(*[b'"%0500d"' % i for i in range(1000)], partition=partition)
    body = broker.fetch_many([("t", partition, 0) for partition in range(3)])
    answer = await broker.call(ApiKey.FETCH, 12, body)
    sizes = [len(partition["records"]) for partition in answer["responses"][0]["partitions"]]
    assert 200_000 < sum(sizes) < 300_000
    assert sizes[1:] == [0, 0]
    assert len(await broker.consume()) == 1000


async def test_long_work_gives_others_their_turn(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "SLICE_SECONDS", 0.0)
    sent = [b'"%0500d"' % i for i in range(1000)]
    broker.append(*sent)
    await broker.produce(batch(b"k"))
    answer = broker.start_call(ApiKey.FETCH, 12, broker.fetch_body(partition_max=2 << 20))
    assert not isinstance(answer, dict)
    found = broker.encoded(ApiKey.FETCH, 12, await answer)["responses"][0]["partitions"][0]
    assert [record.value for record in read_records(found["records"])] == [*sent, b"k"]


async def test_a_thousand_partitions(broker: Broker) -> None:
    broker.put("wide", 1000)
    for partition in (3, 500, 999):
        await broker.produce(batch(b"%d" % partition), "wide", partition)
    answer = await broker.call(ApiKey.FETCH, 12, broker.fetch_many([("wide", i, 0) for i in range(1000)]))
    partitions = answer["responses"][0]["partitions"]
    assert [partition["partition_index"] for partition in partitions] == list(range(1000))
    assert [i for i, partition in enumerate(partitions) if partition["records"]] == [3, 500, 999]


async def test_base_offsets_are_those_of_the_log(broker: Broker) -> None:
    sent = await fill(broker, 300, 10)
    broker.seal()
    records = bytes((await broker.fetch(0))["records"])
    size = len(sent[0])
    assert [struct.unpack_from(">q", records, at)[0] for at in range(0, len(records), size)] == list(range(300))


async def test_a_server_that_drains(broker: Broker) -> None:
    broker.api.drain()
    answer = await broker.fetch(0)
    assert answer["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
