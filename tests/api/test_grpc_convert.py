"""Messages to engine structs and back."""

from typing import Any

import msgspec
import pytest

from topics_proto.v1 import record_pb2, topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.cursor import read_cursor, write_cursor
from topics_service.api.grpc import convert
from topics_service.api.grpc.configs import config_input, config_message
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import (
    AppendReply,
    ConfigInput,
    DeleteReply,
    DeleteTopicReply,
    Identity,
    ListTopicsReply,
    PartitionState,
    PutTopicReply,
    QueueCounters,
    TagMatch,
    TopicConfig,
    TopicState,
    TopicSummary,
)

IDENTITY = Identity(topic_id="top_1", slug="t", rrl="o/e/c/topics/t", epoch=3)
FULL = TopicConfig(
    type="queue",
    ttl_ms=1,
    cap_records=2,
    cap_bytes=3,
    discard="reject",
    durable=True,
    durability="fsync",
    priority=-4,
    auto_priority=False,
    auto_create=False,
    idempotency_window_ms=5,
    dedupe_node=False,
    lease_ms=600,
    claim_jitter_ms=7,
    max_deliveries=8,
    dead_letter="dead",
    leases_durable=True,
    retain_until_acked_by=("g", "h"),
)


def _state(name: str, **changes: Any) -> TopicState:
    state = TopicState(
        topic=name,
        config=TopicConfig(),
        identity=IDENTITY,
        head_seq=9,
        earliest_seq=2,
        count=8,
        bytes=70,
        effective_priority=-5,
        last_write_ts=None,
        last_read_ts=None,
    )
    return msgspec.structs.replace(state, **changes)


def _refused(reason: Reason = Reason.INVALID_REQUEST, match: str | None = None) -> Any:
    return pytest.raises(TopicsError, match=match, check=lambda error: error.reason is reason)


def test_the_message_and_the_structs_have_the_same_config_fields() -> None:
    fields = [field.name for field in topic_pb2.TopicConfig.DESCRIPTOR.fields]
    assert fields == list(ConfigInput.__struct_fields__) == list(TopicConfig.__struct_fields__)


@pytest.mark.parametrize("config", [TopicConfig(), FULL], ids=["defaults", "full"])
def test_config_round_trip(config: TopicConfig) -> None:
    message = topic_pb2.TopicConfig.FromString(config_message(config).SerializeToString())
    given = config_input(message)
    assert msgspec.structs.asdict(given) == msgspec.structs.asdict(config)
    assert message.HasField("dead_letter") == (config.dead_letter is not None)


@pytest.mark.parametrize("field", ConfigInput.__struct_fields__)
def test_each_config_field_alone(field: str) -> None:
    full = config_message(FULL)
    message = topic_pb2.TopicConfig(**{field: getattr(full, field)})
    assert config_input(message) == ConfigInput(**{field: getattr(FULL, field)})


def test_config_zero_is_not_absent_but_unspecified_is() -> None:
    assert config_input(topic_pb2.TopicConfig()) == ConfigInput()
    zeros = topic_pb2.TopicConfig(ttl_ms=0, priority=0, durable=False, dead_letter="", type=0, discard=0, durability=0)
    assert config_input(zeros) == ConfigInput(ttl_ms=0, priority=0, durable=False, dead_letter="")


@pytest.mark.parametrize("field", ["type", "discard", "durability"])
def test_config_refuses_enum_numbers_from_the_future(field: str) -> None:
    message = topic_pb2.TopicConfig.FromString(topic_pb2.TopicConfig(**{field: 99}).SerializeToString())
    with _refused(match=f"config.{field}"):
        config_input(message)


def test_put_topic() -> None:
    response = convert.put_topic_response(PutTopicReply(topic="t", created=True, config=FULL, identity=IDENTITY))
    assert response == pb.PutTopicResponse(
        topic="t", created=True, config=config_message(FULL), topic_id="top_1", slug="t", rrl=IDENTITY.rrl, epoch=3,
        partition_count=1,
    )  # fmt: skip


def test_topic_state() -> None:
    message = convert.topic_state(_state("t"))
    assert (message.type, message.next_seq, message.partition_count) == (topic_pb2.TOPIC_TYPE_LOG, 10, 1)
    for absent in ("last_write_ts_ms", "last_read_ts_ms", "queue"):
        assert not message.HasField(absent)
    queue = QueueCounters(ready=0, in_flight=0, dead_lettered=0)
    message = convert.topic_state(_state("t", config=FULL, last_write_ts=0, last_read_ts=5, queue=queue))
    assert message.HasField("last_write_ts_ms")
    assert message.last_read_ts_ms == 5
    assert message.HasField("queue")
    assert message.type == topic_pb2.TOPIC_TYPE_QUEUE
    assert (message.head_seq, message.earliest_seq, message.count, message.bytes) == (9, 2, 8, 70)
    assert (message.effective_priority, message.epoch, message.rrl) == (-5, 3, IDENTITY.rrl)


@pytest.mark.parametrize(("asked", "given"), [(None, 100), (0, 1), (1, 1), (1000, 1000), (2**32 - 1, 1000)])
def test_list_topics_page_size(asked: int | None, given: int) -> None:
    request = convert.list_topics_request(pb.ListTopicsRequest(page_size=asked, prefix="p", touch=True))
    assert (request.page_size, request.prefix, request.touch, request.after) == (given, "p", True, None)


def test_list_topics() -> None:
    lines = [
        TopicSummary("a", "top_a", "log", False, 7, 3, 5, 50, 0),
        TopicSummary("b", "top_b", "queue", True, 2, 1, 2, 20, 500, partition_count=3),
    ]
    response = convert.list_topics_response(ListTopicsReply(topics=lines, next_after="b"))
    a = {"topic": "a", "topic_id": "top_a", "type": 1, "head_seq": 7, "earliest_seq": 3, "count": 5, "bytes": 50}
    b = {"topic": "b", "topic_id": "top_b", "type": 2, "head_seq": 2, "earliest_seq": 1, "count": 2, "bytes": 20}
    assert [*response.topics] == [
        topic_pb2.TopicSummary(**a, partition_count=1),
        topic_pb2.TopicSummary(**b, durable=True, effective_priority=500, partition_count=3),
    ]
    assert convert.list_topics_request(pb.ListTopicsRequest(cursor=response.next_cursor)).after == "b"
    assert convert.list_topics_response(ListTopicsReply(topics=[], next_after=None)).next_cursor == ""


def test_cursor() -> None:
    assert write_cursor("my-topic") == "eyJhZnRlciI6Im15LXRvcGljIn0="
    for first_page in ("", "e30=", "bnVsbA==", "eyJhZnRlciI6MX0="):
        assert read_cursor(first_page) is None
    for corrupt in ("x", "====", "eyJhZnRlciI6Im15LXRvcGljIn0", "e3=", "/w==", "e30=e30=", "é"):
        with _refused():
            read_cursor(corrupt)


def test_append_request() -> None:
    record = record_pb2.AppendRecord(data=b"1")
    request = convert.append_request(pb.AppendRequest(topic="t", records=[record]), Limits())
    assert (request.topic, request.batch.datas) == ("t", [b"1"])
    assert request.idempotency_key is request.create is request.config is None
    assert not request.disable_backpressure
    message = pb.AppendRequest(
        topic="t",
        records=[record],
        idempotency_key="",
        create=False,
        config=topic_pb2.TopicConfig(),
        disable_backpressure=True,
    )
    request = convert.append_request(message, Limits())
    assert (request.idempotency_key, request.create, request.config) == ("", False, ConfigInput())
    assert request.disable_backpressure


def test_append_response() -> None:
    reply = AppendReply(topic="t", first_seq=5, count=3, head_seq=9, created=True, deduped=False, wal_append_ms=0.5)
    response = convert.append_response(reply, return_seqs=True)
    assert (response.first_seq, response.last_seq, list(response.seqs)) == (5, 7, [5, 6, 7])
    assert (response.head_seq, response.count, response.created, response.deduped) == (9, 3, True, False)
    assert response.performance.wal_append_ms == 0.5
    assert response.performance.HasField("fsync_ms")
    assert not convert.append_response(reply, return_seqs=False).seqs
    deduped = convert.append_response(msgspec.structs.replace(reply, deduped=True), return_seqs=True)
    assert deduped.HasField("performance")
    assert not deduped.performance.HasField("wal_append_ms")
    assert not deduped.performance.HasField("fsync_ms")


def test_diff_request() -> None:
    message = pb.DiffRequest(topic="t", from_seq=1, limit=2, node=["a", "é"], wait_ms=3, max_batch_bytes=4)
    request = convert.diff_request(message)
    assert (request.topic, request.from_seq, request.limit) == ("t", 1, 2)
    assert (request.nodes, request.wait_ms, request.max_batch_bytes) == ((b"a", "é".encode()), 3, 4)


def test_delete() -> None:
    request = convert.delete_records_request(pb.DeleteRecordsRequest(topic="t"))
    assert request.before_seq is request.match is None
    message = pb.DeleteRecordsRequest(topic="t", before_seq=0, match=record_pb2.TagMatch(eq=""))
    request = convert.delete_records_request(message)
    assert (request.before_seq, request.match) == (0, TagMatch("Eq", b""))
    message = pb.DeleteRecordsRequest(topic="t", match=record_pb2.TagMatch(prefix="é*"))
    assert convert.delete_records_request(message).match == TagMatch("Glob", "é*".encode())
    with _refused(match="match"):
        convert.delete_records_request(pb.DeleteRecordsRequest(topic="t", match=record_pb2.TagMatch()))
    response = convert.delete_records_response(
        DeleteReply(topic="t", deleted=1, earliest_seq=2, head_seq=3, count=4, bytes=5)
    )
    assert response == pb.DeleteRecordsResponse(topic="t", deleted=1, earliest_seq=2, head_seq=3, count=4, bytes=5)
    gone = convert.delete_topic_response(DeleteTopicReply(topic="t", deleted=True, routers_removed=["a", "b"]))
    assert gone == pb.DeleteTopicResponse(topic="t", deleted=True, routers_removed=["a", "b"])


def test_partitions() -> None:
    assert convert.append_request(pb.AppendRequest(partition=1), Limits()).partition == 1
    assert convert.diff_request(pb.DiffRequest(partition=1)).partition == 1
    assert convert.delete_records_request(pb.DeleteRecordsRequest(partition=1)).partition == 1
    second = PartitionState(partition=1, head_seq=4, earliest_seq=3, next_seq=5, count=2, bytes=6, last_write_ts=None)
    state = convert.topic_state(_state("t", partition=1, partitions=[second]))
    assert state.partition == 1
    assert list(state.partitions) == [
        topic_pb2.PartitionState(partition=1, head_seq=4, earliest_seq=3, next_seq=5, count=2, bytes=6)
    ]
