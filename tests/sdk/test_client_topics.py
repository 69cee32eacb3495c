"""Topics and appends through both clients."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from support.server import ServerProcess
from topics_client import (
    ConflictError,
    InvalidRequestError,
    NewRecord,
    NotFoundError,
    RawJson,
    TopicConfig,
    TopicsClient,
)


def test_a_topic_is_made_looked_at_and_removed(client: TopicsClient, name: str) -> None:
    asked = TopicConfig(ttl_ms=60_000, cap_records=10, discard="reject", durability="fsync", priority=-7)
    put = client.put_topic(name, asked)
    assert (put.topic, put.created, put.partition_count) == (name, True, 1)
    assert (put.config.type, put.config.discard, put.config.durability) == ("log", "reject", "fsync")
    assert (put.config.ttl_ms, put.config.cap_records, put.config.cap_bytes, put.config.priority) == (60_000, 10, 0, -7)
    again = client.put_topic(name)
    assert (again.created, again.topic_id) == (False, put.topic_id)
    assert again.config == TopicConfig(
        type="log",
        ttl_ms=0,
        cap_records=0,
        cap_bytes=0,
        discard="old",
        durability="disk",
        priority=None,
        auto_priority=True,
        auto_create=True,
        idempotency_window_ms=120_000,
        dedupe_node=True,
        lease_ms=30_000,
        claim_jitter_ms=0,
        max_deliveries=0,
        dead_letter=None,
        leases_durable=False,
        retain_until_acked_by=(),
    )

    info = client.get_topic(name, touch=False)
    assert (info.topic, info.type, info.head_seq, info.earliest_seq, info.next_seq) == (name, "log", 0, 1, 1)
    assert (info.count, info.bytes, info.last_write_ts_ms, info.last_read_ts_ms) == (0, 0, None, None)
    assert (info.config, info.queue, info.topic_id, info.epoch) == (again.config, None, put.topic_id, put.epoch)
    assert (info.partition_count, info.partition, info.partitions) == (1, 0, ())
    assert info.slug
    assert info.rrl.endswith(f"/{info.slug}")

    before = int(time.time() * 1000)
    client.append(name, "x")
    info = client.get_topic(name)
    assert (info.head_seq, info.earliest_seq, info.next_seq, info.count, info.bytes) == (1, 1, 2, 1, 3)
    assert info.last_write_ts_ms is not None
    assert before - 1000 <= info.last_write_ts_ms <= before + 60_000
    assert client.get_topic(name).last_read_ts_ms is not None

    with pytest.raises(ConflictError) as full:
        client.delete_topic(name, if_empty=True)
    assert (full.value.reason, full.value.detail) == ("topic_not_empty", {"topic": name, "count": "1"})
    assert client.delete_topic(name) is True
    assert client.delete_topic(name) is False
    with pytest.raises(NotFoundError) as gone:
        client.get_topic(name)
    assert (gone.value.reason, gone.value.detail, gone.value.retry_after_ms) == (
        "topic_not_found",
        {"topic": name},
        None,
    )
    assert client.put_topic(name).epoch > put.epoch


def test_every_field_of_a_configuration_goes_there_and_back(client: TopicsClient, name: str) -> None:
    queue = TopicConfig(
        type="queue",
        ttl_ms=1_000_000,
        cap_records=1000,
        cap_bytes=1 << 20,
        discard="reject",
        durability="memory",
        priority=3,
        auto_priority=False,
        auto_create=False,
        idempotency_window_ms=5000,
        dedupe_node=False,
        lease_ms=2500,
        claim_jitter_ms=10,
        max_deliveries=4,
        dead_letter=f"{name}.dead",
        leases_durable=True,
    )
    assert client.put_topic(name, queue).config == queue
    info = client.get_topic(name)
    assert info.config == queue
    assert info.queue is not None
    assert (info.queue.ready, info.queue.in_flight, info.queue.dead_lettered) == (0, 0, 0)
    with pytest.raises(ConflictError) as other:
        client.put_topic(name, TopicConfig(type="log"))
    assert other.value.reason == "topic_exists_incompatible"
    assert other.value.detail["existing_type"] == "queue"
    with pytest.raises(InvalidRequestError, match="durability must be one of ephemeral, memory, disk, fsync"):
        client.put_topic(name, TopicConfig(durability="tape"))  # type: ignore[arg-type]
    kept = client.put_topic(f"{name}.log", TopicConfig(retain_until_acked_by=["g1", "g2"]))
    assert kept.config.retain_until_acked_by == ("g1", "g2")


def test_partitions_are_logs_of_their_own(client: TopicsClient, name: str) -> None:
    assert client.put_topic(name, partitions=3).partition_count == 3
    for partition in range(3):
        for i in range(partition + 1):
            given = client.append(name, {"p": partition, "i": i}, partition=partition)
            assert (given.partition, given.first_seq) == (partition, i + 1)
    info = client.get_topic(name, partition=2)
    assert (info.partition, info.partition_count, info.head_seq, info.count) == (2, 3, 3, 3)
    assert [(each.partition, each.head_seq, each.count, each.earliest_seq) for each in info.partitions] == [
        (0, 1, 1, 1),
        (1, 2, 2, 1),
        (2, 3, 3, 1),
    ]
    assert all(each.last_write_ts_ms and each.bytes and each.next_seq == each.head_seq + 1 for each in info.partitions)
    page = client.diff(name, partition=1)
    assert [(record.partition, record.seq, record.value) for record in page.records] == [
        (1, 1, {"p": 1, "i": 0}),
        (1, 2, {"p": 1, "i": 1}),
    ]
    assert [record.value["i"] for record in client.read(name, partition=2)] == [0, 1, 2]
    assert client.delete_records(name, before_seq=3, partition=2).deleted == 2
    assert client.locate_time(name, 0, partition=2) == 3
    with pytest.raises(ConflictError) as fewer:
        client.put_topic(name, partitions=2)
    assert fewer.value.detail["partition_count"] == "3"
    with pytest.raises(NotFoundError) as none:
        client.append(name, 1, partition=3)
    assert (none.value.reason, none.value.detail["partition"]) == ("partition_not_found", "3")


def test_a_listing_has_every_topic_over_all_its_pages(shared: ServerProcess, client: TopicsClient, name: str) -> None:
    made = sorted(f"{name}.{i}" for i in range(1003))
    with TopicsClient(shared.grpc_target) as other, ThreadPoolExecutor(16) as pool:
        config = TopicConfig(durability="ephemeral")
        list(pool.map(lambda each: other.put_topic(each, config), made))
    found = list(client.list_topics(f"{name}."))
    assert [each.topic for each in found] == made
    client.append(made[0], [1, 2])
    first = next(iter(client.list_topics(f"{name}.")))
    assert (first.type, first.head_seq, first.earliest_seq, first.count, first.bytes) == ("log", 1, 1, 1, 5)
    assert (first.durable, first.partition_count) == (False, 1)
    assert first.topic_id.startswith("top_")
    assert list(client.list_topics(f"{name}.none")) == []


# ------------------------------------------------------------------------- append

VALUES: list[object] = [
    None, True, 0, -1.5, 10**30, "", "ä\u2028\U0001f600\x7f", [], {}, {"b": [1, {"a": None}], "a": "\\\"/"}, [[[]]],
]  # fmt: skip


def test_values_come_back_as_they_went(client: TopicsClient, name: str) -> None:
    raws = [b'{"a" : 1.0 }', b"1e400", b'"\\ud83d\\ude00"', b"[ 1 ]"]
    blobs: list[bytes | bytearray | memoryview] = [b"", b"\x00\xff", bytearray(b"{}"), memoryview(b"abcd")[::2]]
    given = client.append_many(name, [*VALUES, *map(RawJson, raws), *blobs])
    assert (given.topic, given.first_seq, given.created, given.deduped) == (name, 1, True, False)
    assert given.count == len(VALUES) + len(raws) + len(blobs)
    assert given.head_seq == given.last_seq == given.count
    assert list(given.seqs) == list(range(1, given.count + 1))
    for records in (client.diff(name).records, tuple(client.read(name))):
        assert [record.value for record in records[: len(VALUES)]] == VALUES
        assert not any(record.binary for record in records[: len(VALUES) + len(raws)])
        assert [record.data for record in records[len(VALUES) :]] == [*raws, *map(bytes, blobs)]
        assert [record.value for record in records[-len(blobs) :]] == [*map(bytes, blobs)]
        assert all(record.binary for record in records[-len(blobs) :])
        assert {(record.tag, record.node, record.meta_data) for record in records} == {(None, None, b"")}
        assert [record.meta for record in records[:2]] == [{}, {}]


def test_a_value_is_compact_json(client: TopicsClient, name: str) -> None:
    client.append(name, {"ü": [1, 2.5], "b": "x"})
    (record,) = client.diff(name).records
    assert record.data == '{"ü":[1,2.5],"b":"x"}'.encode()


def test_tags_nodes_and_headers_come_back(client: TopicsClient, name: str) -> None:
    records = [
        NewRecord(1, tag="a", node="n1", meta={"h": ["ä", 1]}),
        NewRecord(2, tag=""),
        NewRecord(3),
        NewRecord(b"4", tag="ä" * 128, meta={}),
        NewRecord(RawJson(b"5"), node="n2"),
    ]
    client.append_many(name, records)
    client.append(name, 6, tag="t", node="n", meta={"k": None})
    for found in (list(client.diff(name).records), list(client.read(name))):
        assert [(each.value, each.tag, each.node, each.meta) for each in found] == [
            (1, "a", "n1", {"h": ["ä", 1]}),
            (2, "", None, {}),
            (3, None, None, {}),
            (b"4", "ä" * 128, None, {}),
            (5, None, "n2", {}),
            (6, "t", "n", {"k": None}),
        ]
        assert found[0].meta_data == '{"h":["ä",1]}'.encode()
        assert found[0].time.timestamp() * 1000 == pytest.approx(found[0].ts_ms)
        assert found[0].time.tzinfo is not None
    same = client.append_many(name, [NewRecord(i, tag="same", node="same") for i in range(3)])
    assert {(each.tag, each.node) for each in client.diff(name, same.first_seq - 1).records} == {("same", "same")}


BAD_VALUES: list[object] = [
    float("nan"),
    float("inf"),
    {1, 2},
    object(),
    "\ud800",
    {"k": "\udfff"},
    {("a",): 1},
    b"x".decode,
]


@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda value: type(value).__name__)
def test_what_has_no_json_form_is_refused_before_it_is_sent(client: TopicsClient, name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        client.append(name, value)
    assert (refused.value.reason, "no JSON form" in refused.value.message) == ("invalid_request", True)
    with pytest.raises(InvalidRequestError):
        client.append(name, 1, meta={"k": value})
    assert not list(client.list_topics(name))


def test_a_cycle_and_a_depth_without_end_are_refused(client: TopicsClient, name: str) -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (cycle, deep):
        with pytest.raises(InvalidRequestError, match="no JSON form"):
            client.append(name, value)


def test_text_that_is_no_unicode_is_refused_in_a_tag_and_a_node_too(client: TopicsClient, name: str) -> None:
    for fields in ({"tag": "\ud800"}, {"node": "\ud800"}):
        with pytest.raises(InvalidRequestError, match="surrogates"):
            client.append(name, 1, **fields)  # type: ignore[arg-type]


def test_what_the_server_refuses_names_the_cause(client: TopicsClient, name: str) -> None:
    for values, reason in (
        ([RawJson(b"{no json")], "invalid_request"),
        ([], "invalid_request"),
        ([b"x" * (1 << 20) + b"y"], "record_too_large"),
        ([0] * 10_001, "batch_too_large"),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            client.append_many(name, values)
        assert refused.value.reason == reason
    with pytest.raises(InvalidRequestError, match="longer than 256 bytes"):
        client.append(name, 1, tag="x" * 257)
    with pytest.raises(NotFoundError):
        client.append(name, 1, create=False)
    with pytest.raises(InvalidRequestError, match=r"larger than max.*append less at once"):
        client.append(name, b"x" * (90 << 20))
    with pytest.raises(InvalidRequestError, match="log"):
        client.append(name, 1, delay_ms=10)


def test_the_largest_record_fits_and_many_of_them_are_read(client: TopicsClient, name: str) -> None:
    blob = bytes(range(256)) * 4096
    for _ in range(3):
        client.append_many(name, [blob] * 4)
    read = list(client.read(name))
    assert [record.seq for record in read] == list(range(1, 13))
    assert all(record.data == blob for record in read)
    with client.watch(name) as stream:
        assert [record.data == blob for record in islice(stream, 12)] == [True] * 12


def test_a_topic_is_made_by_its_first_write_as_that_says(client: TopicsClient, name: str) -> None:
    config = TopicConfig(cap_records=2, discard="reject")
    assert client.append_many(name, [1, 2], config=config).created
    with pytest.raises(ConflictError) as full:
        client.append(name, 3)
    assert full.value.reason == "topic_full"
    assert (full.value.detail["cap_records"], full.value.detail["head_seq"]) == ("2", "2")


def test_a_key_is_used_once(client: TopicsClient, name: str) -> None:
    first = client.append_many(name, [1, 2], idempotency_key="k")
    again = client.append_many(name, [1, 2], idempotency_key="k")
    assert (again.deduped, again.first_seq, again.last_seq, again.created) == (True, 1, 2, False)
    assert first.deduped is False
    other = [client.append(name, 3), client.append(name, 3)]  # each with a key of its own
    assert [each.first_seq for each in other] == [3, 4]
    empty = [client.append(name, 5, idempotency_key=""), client.append(name, 5, idempotency_key="")]
    assert [each.deduped for each in empty] == [False, True]
    assert client.get_topic(name).head_seq == 5


def test_a_json_text_is_sent_as_it_is(client: TopicsClient, name: str) -> None:
    text = json.dumps({"a": 1, "b": [None]}, indent=2).encode()
    client.append(name, RawJson(text))
    assert client.diff(name).records[0].data == text
