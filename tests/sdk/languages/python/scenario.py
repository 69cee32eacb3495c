"""The scenario of `facts.json` with the generated Python code alone: one step after the other, each with its facts.

Environment: TOPICS_ADDRESS, TOPICS_KEY (every scope), TOPICS_READER_KEY (read alone), TOPICS_FACTS (the file). The
server is fresh and takes two topics. Ends with an AssertionError at the first fact that is another one.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import MethodOptions
from google.rpc import error_details_pb2, status_pb2

from topics_proto.v1 import queue_service_pb2, record_pb2, stream_pb2, topic_pb2, watch_service_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.queue_service_pb2_grpc import QueueServiceStub
from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceStub
from topics_proto.v1.watch_service_pb2_grpc import WatchServiceStub

Facts = dict[str, Any]
SECONDS = 20.0


class Scenario:
    """The steps; each gives what it saw."""

    def __init__(self, channel: grpc.Channel, key: str, reader_key: str) -> None:
        self.topics = TopicsServiceStub(channel)
        self.queues = QueueServiceStub(channel)
        self.watches = WatchServiceStub(channel)
        self.reader_key = reader_key
        self.auth: dict[str, Any] = {"metadata": _bearer(key), "timeout": SECONDS}

    def create(self) -> Facts:
        request = pb.PutTopicRequest(topic="events", config=topic_pb2.TopicConfig(cap_records=3))
        put = self.topics.PutTopic(request, **self.auth)
        return {
            "created": put.created,
            "created_again": self.topics.PutTopic(request, **self.auth).created,
            "type": put.config.type,
            "cap_records": put.config.cap_records,
            "partitions": put.partition_count,
        }

    def append(self) -> Facts:
        tags = ["odd", "even", "odd", "even", None]
        records = [record_pb2.AppendRecord(data=b'{"n": %d}' % n, tag=tag) for n, tag in enumerate(tags, 1)]
        request = pb.AppendRequest(topic="events", records=records, idempotency_key="import-1")
        first = self.topics.Append(request, **self.auth)
        again = self.topics.Append(request, **self.auth)
        return {
            "seqs": [*first.seqs],
            "deduped": first.deduped,
            "again_seqs": [*again.seqs],
            "again_deduped": again.deduped,
            "head": again.head_seq,
        }

    def gap(self) -> Facts:
        page = self.topics.Diff(pb.DiffRequest(topic="events", include_tags=True), **self.auth)
        return {
            "gap_from": page.tombstone.gap_from,
            "gap_to": page.tombstone.gap_to,
            "reason": page.tombstone.reason,
            "missed": page.tombstone.missed_estimate,
            "seqs": [record.seq for record in page.records],
            "tags": [record.tag if record.HasField("tag") else None for record in page.records],
            "data": [record.data.decode() for record in page.records],
            "next": page.next_from_seq,
            "caught_up": page.caught_up,
        }

    def delete(self) -> Facts:
        match = record_pb2.TagMatch(eq="even")
        deleted = self.topics.DeleteRecords(pb.DeleteRecordsRequest(topic="events", match=match), **self.auth)
        page = self.topics.Diff(pb.DiffRequest(topic="events", from_seq=2), **self.auth)
        return {
            "deleted": deleted.deleted,
            "left": deleted.count,
            "seqs": [record.seq for record in page.records],
            "gap": page.HasField("tombstone"),
        }

    def watch(self) -> Facts:
        subscription = watch_service_pb2.WatchSubscription(topics={"events": watch_service_pb2.WatchTopic(from_seq=2)})
        stream = self.watches.Watch(watch_service_pb2.WatchRequest(subscription=subscription), **self.auth)
        cursor: dict[str, int] = {}

        def until(kind: str) -> tuple[stream_pb2.Frame, list[record_pb2.Record]]:
            records: list[record_pb2.Record] = []
            for response in stream:
                frame: stream_pb2.Frame = response.frame
                records += frame.records.records
                cursor.update(frame.cursor)
                if frame.WhichOneof("kind") == kind:
                    return frame, records
            raise AssertionError(f"the stream ended before {kind}")

        subscribed, _ = until("subscribed")
        caught_up, backlog = until("caught_up")
        self.topics.Append(pb.AppendRequest(topic="events", records=_rows(b'{"n": 6}')), **self.auth)
        _, live = until("records")
        stream.cancel()
        return {
            "from": subscribed.subscribed.topics["events"].from_seq,
            "backlog": [record.seq for record in backlog],
            "caught_up": caught_up.caught_up.head_seq,
            "live": [record.seq for record in live],
            "live_data": [record.data.decode() for record in live],
            "cursor": cursor["events"],
        }

    def queue(self) -> Facts:
        config = topic_pb2.TopicConfig(type=topic_pb2.TOPIC_TYPE_QUEUE)
        self.topics.PutTopic(pb.PutTopicRequest(topic="jobs", config=config), **self.auth)
        self.topics.Append(pb.AppendRequest(topic="jobs", records=_rows(b"1", b"2")), **self.auth)

        def claim() -> queue_service_pb2.ClaimResponse:
            request = queue_service_pb2.ClaimRequest(topic="jobs", node="worker", max=10)
            return self.queues.Claim(request, **self.auth)

        def ack(seq: int, lease_id: str) -> queue_service_pb2.AckResponse:
            request = queue_service_pb2.AckRequest(topic="jobs", node="worker", seqs=[seq], lease_ids=[lease_id])
            return self.queues.Ack(request, **self.auth)

        one, two = (claimed := claim().claimed)
        acked = ack(one.seq, one.lease_id)
        nack = queue_service_pb2.NackRequest(topic="jobs", node="worker", seqs=[two.seq], lease_ids=[two.lease_id])
        nacked = self.queues.Nack(nack, **self.auth)
        again = claim().claimed
        stale = ack(two.seq, two.lease_id)
        last = ack(again[0].seq, again[0].lease_id)
        return {
            "claimed": [job.seq for job in claimed],
            "deliveries": [job.deliveries for job in claimed],
            "acked": acked.acked,
            "nacked": nacked.nacked,
            "again": [job.seq for job in again],
            "again_deliveries": [job.deliveries for job in again],
            "stale_acked": stale.acked,
            "stale_skipped": [*stale.skipped],
            "last_acked": last.acked,
            "ready": last.ready,
            "in_flight": last.in_flight,
        }

    def error(self) -> Facts:
        return _refused(lambda: self.topics.GetTopic(pb.GetTopicRequest(topic="nowhere"), **self.auth))

    def retry(self) -> Facts:
        return _refused(lambda: self.topics.PutTopic(pb.PutTopicRequest(topic="one-too-many"), **self.auth))

    def no_key(self) -> Facts:
        return _refused(lambda: self.topics.ListTopics(pb.ListTopicsRequest(), timeout=SECONDS))

    def wrong_key(self) -> Facts:
        auth: dict[str, Any] = {"metadata": _bearer("a-wrong-key"), "timeout": SECONDS}
        return _refused(lambda: self.topics.ListTopics(pb.ListTopicsRequest(), **auth))

    def no_scope(self) -> Facts:
        auth: dict[str, Any] = {"metadata": _bearer(self.reader_key), "timeout": SECONDS}
        listed = self.topics.ListTopics(pb.ListTopicsRequest(), **auth)
        refused = _refused(lambda: self.topics.Append(pb.AppendRequest(topic="events", records=_rows(b"7")), **auth))
        return {"reads": [topic.topic for topic in listed.topics] == ["events", "jobs"], **refused}

    def repeatable(self) -> Facts:
        methods = pb.DESCRIPTOR.services_by_name["TopicsService"].methods_by_name
        return {
            name: methods[name].GetOptions().idempotency_level != MethodOptions.IDEMPOTENCY_UNKNOWN
            for name in ("PutTopic", "GetTopic", "Diff", "BulkDiff", "Append", "AppendStream")
        }


def _bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def _rows(*datas: bytes) -> list[record_pb2.AppendRecord]:
    return [record_pb2.AppendRecord(data=data) for data in datas]


def _refused(call: Callable[[], object]) -> Facts:
    """What the error of a call says."""
    try:
        call()
    except grpc.RpcError as error:
        trailer = {item.key: item.value for item in error.trailing_metadata()}
        status = status_pb2.Status.FromString(trailer["grpc-status-details-bin"])
        info, again = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        retry_ms = None
        for detail in status.details:
            if detail.Unpack(again):
                retry_ms = again.retry_delay.ToMilliseconds()
            detail.Unpack(info)
        return {
            "status": error.code().value[0],
            "reason": info.reason,
            "domain": info.domain,
            "detail": dict(info.metadata),
            "retry_ms": retry_ms,
        }
    raise AssertionError("it was not refused")


def main() -> None:
    """Every step of the file in its order."""
    with open(os.environ["TOPICS_FACTS"]) as file:
        expected = json.load(file)
    with grpc.insecure_channel(os.environ["TOPICS_ADDRESS"]) as channel:
        scenario = Scenario(channel, os.environ["TOPICS_KEY"], os.environ["TOPICS_READER_KEY"])
        for step, facts in expected.items():
            seen = getattr(scenario, step)()
            assert seen == facts, f"{step}: saw {seen}, expected {facts}"
            print(f"ok {step}")


if __name__ == "__main__":
    main()
