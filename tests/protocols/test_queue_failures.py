"""Jobs that fail, on a running server: never ready after their last delivery, but moved or exhausted; and why."""

from collections.abc import Iterator

import grpc
import pytest

from support.http import Api, ok, path, refused
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import job_pb2, queue_service_pb2, queue_service_pb2_grpc, topic_pb2, topics_service_pb2_grpc
from topics_proto.v1 import topics_service_pb2 as pb

NOT_SHOWN = {"delayed", "retrying", "exhausted"}


class Grpc:
    """The gRPC API."""

    def __init__(self, target: str) -> None:
        self.channel = grpc.insecure_channel(target)
        self.queues = queue_service_pb2_grpc.QueueServiceStub(self.channel)
        self._topics = topics_service_pb2_grpc.TopicsServiceStub(self.channel)

    def counts(self, queue: str) -> topic_pb2.QueueState:
        """Return what it says of a queue."""
        return self._topics.GetTopic(pb.GetTopicRequest(topic=queue)).state.queue

    def nack(self, queue: str, *seqs: int, **more: object) -> queue_service_pb2.NackResponse:
        """Give jobs of `w` back."""
        return self.queues.Nack(queue_service_pb2.NackRequest(topic=queue, node="w", seqs=seqs, **more))  # type: ignore[arg-type]


@pytest.fixture
def rpc(server: ServerProcess) -> Iterator[Grpc]:
    found = Grpc(server.grpc_target)
    with found.channel:
        yield found


def queue(api: Api, count: int, **config: object) -> tuple[str, str]:
    """A queue with jobs, and the name of its dead letter topic."""
    letters = api.make("dead")
    name = api.make("q", type="queue", max_deliveries=1, dead_letter=letters, **config)
    api.append(name, *range(1, count + 1))
    return name, letters


def take(api: Api, name: str, **more: object) -> list[int]:
    found = ok(api.send("POST", path(name, "/claim"), {"node": "w", "max": 100, **more}))
    return [job["$seq"] for job in found["claimed"]]


def test_a_nack_of_the_last_delivery_leaves_nothing_ready(api: Api) -> None:
    name, letters = queue(api, 1)
    assert take(api, name) == [1]
    reply = ok(api.send("POST", path(name, "/nack"), {"node": "w", "seqs": [1], "delay_ms": 60_000}))
    assert list(reply) == ["topic", "nacked", "skipped", "ready", "in_flight", "performance"]
    assert (reply["nacked"], reply["ready"]) == (1, 0)
    assert api.state(name)["queue"] == {"ready": 0, "in_flight": 0, "dead_lettered": 1}
    assert api.state(letters)["count"] == 1


def test_a_timer_moves_what_nobody_asks_for(api: Api, rpc: Grpc) -> None:
    name, letters = queue(api, 2)
    assert take(api, name, lease_ms=200) == [1, 2]
    poll(lambda: api.state(letters)["count"] == 2, 20)  # only the other topic is looked at
    assert api.state(name)["queue"] == {"ready": 0, "in_flight": 0, "dead_lettered": 2}


def test_what_is_refused_is_exhausted_and_tried_again(api: Api, rpc: Grpc) -> None:
    name, letters = queue(api, 2)
    ok(api.put(letters, cap_records=1, discard="reject"))
    assert take(api, name) == [1, 2]
    assert list(rpc.nack(name, 1).dead_lettered) == [1]
    reply = rpc.nack(name, 2, delay_ms=60_000)
    assert (reply.nacked, list(reply.dead_lettered), list(reply.exhausted)) == (1, [], [2])
    counts = rpc.counts(name)
    assert (counts.ready, counts.in_flight, counts.delayed, counts.exhausted, counts.dead_lettered) == (0, 0, 0, 1, 1)
    assert api.state(name)["queue"] == {"ready": 0, "in_flight": 0, "dead_lettered": 1}
    for state, seqs in (("ready", []), ("delayed", []), ("exhausted", [2])):
        page = ok(api.send("GET", path(name, f"/jobs?state={state}")))
        assert [(job["$seq"], job["state"]) for job in page["jobs"]] == [(seq, state) for seq in seqs]
    request = queue_service_pb2.ListJobsRequest(topic=name, state=job_pb2.JOB_STATE_EXHAUSTED)
    (view,) = rpc.queues.ListJobs(request).jobs
    assert (view.record.seq, view.state, view.deliveries) == (2, job_pb2.JOB_STATE_EXHAUSTED, 1)
    assert take(api, name) == []
    metric = f'topics_topic_queue_exhausted{{topic="{name}"}}'
    assert f"{metric} 1" in api.send("GET", "/v0/metrics").text
    ok(api.put(letters))
    poll(lambda: rpc.counts(name).dead_lettered == 2, 20)
    assert f"{metric} 0" in api.send("GET", "/v0/metrics").text


def test_jobs_that_are_not_due_are_counted_apart(api: Api, rpc: Grpc) -> None:
    name = api.make("q", type="queue")
    api.append(name, 1, 2)
    api.write(name, [{"data": 3}], delay_ms=60_000)
    assert take(api, name, max=2) == [1, 2]
    rpc.nack(name, 1, delay_ms=60_000)
    counts = rpc.counts(name)
    assert (counts.ready, counts.in_flight, counts.delayed, counts.retrying, counts.exhausted) == (0, 1, 2, 1, 0)
    assert not NOT_SHOWN & api.state(name)["queue"].keys()


def test_a_worker_is_told_which_delivery_is_the_last(api: Api, rpc: Grpc) -> None:
    name = api.make("q", type="queue", max_deliveries=2, dead_letter="told-dead")
    api.append(name, 1)
    claim = queue_service_pb2.ClaimRequest(topic=name, node="w")
    (job,) = rpc.queues.Claim(claim).claimed
    assert not job.is_last
    rpc.nack(name, 1)
    stream = rpc.queues.Work(queue_service_pb2.WorkRequest(topic=name, node="w"))
    (job,) = next(frame.frame.jobs.jobs for frame in stream if frame.frame.jobs.jobs)
    assert (job.deliveries, job.is_last) == (2, True)
    stream.cancel()
    poll(lambda: rpc.counts(name).dead_lettered == 1, 20)  # its connection is gone, and that was the last delivery


# ------------------------------------------------------------------------ reasons


def test_a_reason_over_http_is_told_by_jobs_and_dead_letters(api: Api) -> None:
    letters = api.make("dead")
    name = api.make("q", type="queue", max_deliveries=2, dead_letter=letters)
    api.append(name, 1)
    take(api, name)
    body = {"node": "w", "seqs": [1], "reason": 'no "disk"\n', "whatever": 1}
    assert ok(api.send("POST", path(name, "/nack"), body))["nacked"] == 1
    (job,) = ok(api.send("GET", path(name, "/jobs")))["jobs"]
    (attempt,) = job["attempts"]
    assert list(attempt) == ["delivery", "ended_at", "node", "reason"]
    assert (attempt["delivery"], attempt["node"], attempt["reason"]) == (1, "w", 'no "disk"\n')
    (claimed,) = ok(api.send("POST", path(name, "/claim"), {"node": "v"}))["claimed"]
    assert "attempts" not in claimed
    ok(api.send("POST", path(name, "/nack"), {"node": "v", "seqs": [1]}))
    meta = ok(api.send("POST", path(letters, "/diff"), {"from_seq": 0}))["records"][0]["meta"]
    assert meta["$dead_letter_attempts"][0] == attempt
    assert [(each["delivery"], each["node"], each["reason"]) for each in meta["$dead_letter_attempts"]] == [
        (1, "w", 'no "disk"\n'),
        (2, "v", ""),
    ]


@pytest.mark.parametrize("reason", [None, 7, ["x"], "x" * 4097, "é" * 2049])
def test_a_bad_reason_over_http_is_refused_and_changes_nothing(api: Api, reason: object) -> None:
    name = api.make("q", type="queue")
    api.append(name, 1)
    take(api, name)
    refused(api.send("POST", path(name, "/nack"), {"node": "w", "seqs": [1], "reason": reason}), 400, "invalid_request")
    assert api.state(name)["queue"]["in_flight"] == 1


def test_reasons_over_grpc(api: Api, rpc: Grpc) -> None:
    name = api.make("q", type="queue")
    api.append(name, 1, 2, 3)
    take(api, name)
    rpc.nack(name, 1, 2, reasons=["one", "two"], reason="not this")
    rpc.nack(name, 3, reason="three")
    views = rpc.queues.ListJobs(queue_service_pb2.ListJobsRequest(topic=name)).jobs
    assert [[(each.delivery, each.node, each.reason) for each in view.attempts] for view in views] == [
        [(1, "w", "one")],
        [(1, "w", "two")],
        [(1, "w", "three")],
    ]
    assert all(view.attempts[0].ended_at_ts_ms > 1_600_000_000_000 for view in views)
    take(api, name)
    for wrong in ({"reason": "x" * 4097}, {"reasons": ["a", "b"]}):
        with pytest.raises(grpc.RpcError) as error:
            rpc.nack(name, 1, **wrong)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert rpc.counts(name).in_flight == 3
