"""Every case of `cases.queue`, over HTTP and over gRPC on one running server: the answers must be the same."""

import itertools
import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import grpc
import msgspec
import pytest
from protocols import test_both_protocols as both_protocols
from protocols.cases.queue import QUEUES
from protocols.cases.steps import Case, Step

from support.server import ServerProcess
from topics_proto.v1 import job_pb2, queue_service_pb2, queue_service_pb2_grpc, record_pb2

Answer = dict[str, Any]
_LEASE = re.compile(r"lease_[0-9a-f]{32}")
_runs = itertools.count(50_000)  # names of their own on the server that these tests share with test_both_protocols
_POSTS = ("claim", "ack", "nack", "extend", "redrive")


class Leases:
    """The lease ids that a client's claims gave, newest last."""

    def __init__(self) -> None:
        self._of_job: dict[tuple[str, int], list[str]] = {}

    def remember(self, topic: str, seq: int, lease_id: str) -> None:
        known = self._of_job.setdefault((topic, seq), [])
        assert _LEASE.fullmatch(lease_id)
        assert lease_id not in known
        known.append(lease_id)

    def filled_in(self, step: Step) -> Answer:
        """The request of a step with real lease ids in it."""
        request = dict(step.request)
        if "lease_ids" in request:
            request["lease_ids"] = [self._find(step.topic, text) for text in request["lease_ids"]]
        return request

    def _find(self, topic: str, text: str) -> str:
        found = re.fullmatch(r"<(\d+)(-\d+)?>", text)
        if found is None:
            return text
        return self._of_job[topic, int(found[1])][int(found[2] or 0) - 1]


class HttpClient(both_protocols.HttpClient):
    def __init__(self, base: str) -> None:
        super().__init__(base)
        self._leases = Leases()

    def ask(self, step: Step) -> Answer:
        if step.op not in (*_POSTS, "jobs"):
            return super().ask(step)
        path = f"/v0/topics/{quote(step.topic, safe='')}/{step.op}"
        began = _now()
        if step.op == "jobs":
            response = self._api.send("GET", path, params=step.request)
        else:
            response = self._api.send("POST", path, both_protocols._body(self._leases.filled_in(step)))
        if response.status_code >= 400:
            error = both_protocols.envelope(response.json())
            assert response.status_code == both_protocols._RULES[error["code"]].http_status
            return both_protocols.refusal(error["code"], error.get("detail", {}), "retry-after" in response.headers)
        reply = response.json()
        performance = reply.pop("performance")
        if step.op == "claim":
            shown = msgspec.json.decode(response.content, type=_Claimed).claimed
            reply["claimed"] = [self._job(step.topic, raws) for raws in shown]
        elif step.op == "jobs":
            shown = msgspec.json.decode(response.content, type=_Listed).jobs
            reply["jobs"] = [_texts(raws) for raws in shown]
            reply.setdefault("next_after", None)
        return _settle(reply, performance, began)

    def _job(self, topic: str, raws: dict[str, msgspec.Raw]) -> Answer:
        assert list(raws) == [name for name in _MEMBERS if name in raws]
        job = _texts(raws)
        self._leases.remember(topic, job["$seq"], job.pop("lease_id"))
        return job


class GrpcClient(both_protocols.GrpcClient):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._queues = queue_service_pb2_grpc.QueueServiceStub(self._channel)
        self._leases = Leases()

    def ask(self, step: Step) -> Answer:
        if step.op not in (*_POSTS, "jobs"):
            return super().ask(step)
        try:
            return getattr(self, f"_{step.op}")(step.topic, self._leases.filled_in(step))
        except grpc.RpcError as error:
            return both_protocols._failure(error)

    def _get(self, topic: str, request: Answer) -> Answer:
        answer = super()._get(topic, request)
        state = self._call("GetTopic", topic=topic, touch=False).state
        if state.HasField("queue"):
            answer["queue"] = {name: getattr(state.queue, name) for name in ("ready", "in_flight", "dead_lettered")}
        return answer

    def _claim(self, topic: str, request: Answer) -> Answer:
        began = _now()
        reply = self._queues.Claim(queue_service_pb2.ClaimRequest(topic=topic, **_fit(request)), timeout=20)
        claimed = []
        for job in reply.claimed:
            self._leases.remember(topic, job.seq, job.lease_id)
            assert job.kind == record_pb2.RECORD_KIND_JSON
            assert job.ts_ms > 0
            shown = {"$seq": job.seq, "deadline": job.deadline_ts_ms, "deliveries": job.deliveries}
            shown |= {"$tag": job.tag} if job.HasField("tag") else {}
            shown |= {"meta": job.meta.decode()} if job.meta else {}
            claimed.append(shown | {"data": job.data.decode()})
        fields = {"topic": reply.topic, "claimed": claimed, "count": reply.count, "ready": reply.ready}
        if reply.HasField("acked"):
            fields |= {"acked": reply.acked, "skipped": list(reply.skipped)}
        return _settle(fields, both_protocols._timings(reply), began)

    def _ack(self, topic: str, request: Answer) -> Answer:
        reply = self._queues.Ack(queue_service_pb2.AckRequest(topic=topic, **request), timeout=20)
        return self._settled(reply, "acked")

    def _nack(self, topic: str, request: Answer) -> Answer:
        if "mode" in request:
            request["mode"] = queue_service_pb2.NackMode.Value(f"NACK_MODE_{request['mode'].upper()}")
        reply = self._queues.Nack(queue_service_pb2.NackRequest(topic=topic, **request), timeout=20)
        return self._settled(reply, "nacked")

    def _settled(self, reply: Any, done: str) -> Answer:
        fields = {name: getattr(reply, name) for name in ("topic", done, "ready", "in_flight")}
        return _settle(fields | {"skipped": list(reply.skipped)}, both_protocols._timings(reply), 0)

    def _extend(self, topic: str, request: Answer) -> Answer:
        began = _now()
        reply = self._queues.Extend(queue_service_pb2.ExtendRequest(topic=topic, **request), timeout=20)
        fields = {"topic": reply.topic, "extended": reply.extended, "skipped": list(reply.skipped)}
        fields["deadlines"] = {str(seq): deadline for seq, deadline in reply.deadlines_ts_ms.items()}
        return _settle(fields, both_protocols._timings(reply), began)

    def _redrive(self, topic: str, request: Answer) -> Answer:
        if match := request.pop("match", None):
            request["match"] = record_pb2.TagMatch(**{match[0]: match[1]})
        reply = self._queues.Redrive(queue_service_pb2.RedriveRequest(topic=topic, **request), timeout=20)
        fields = {name: getattr(reply, name) for name in ("topic", "dead_letter", "redriven")}
        return _settle(fields, both_protocols._timings(reply), 0)

    def _jobs(self, topic: str, request: Answer) -> Answer:
        if "state" in request:
            request["state"] = job_pb2.JobState.Value(f"JOB_STATE_{request['state'].upper()}")
        began = _now()
        reply = self._queues.ListJobs(queue_service_pb2.ListJobsRequest(topic=topic, **request), timeout=20)
        state = both_protocols._name(job_pb2.JobState, reply.state)
        listed = []
        for view in reply.jobs:
            assert view.state == reply.state
            record = view.record
            assert record.ts_ms > 0
            shown = {"$seq": record.seq, "state": state, "deliveries": view.deliveries, "data": record.data.decode()}
            shown |= {f"${name}": getattr(record, name) for name in ("tag", "node") if record.HasField(name)}
            shown |= {"meta": record.meta.decode()} if record.meta else {}
            shown |= {"priority": view.priority} if view.priority else {}
            shown |= {"node": view.node} if view.HasField("node") else {}
            for name in ("deadline", "ready_at"):
                if view.HasField(f"{name}_ts_ms"):
                    shown[name] = getattr(view, f"{name}_ts_ms")
            listed.append(shown)
        fields = {"topic": reply.topic, "state": state, "jobs": listed}
        fields["next_after"] = reply.next_after if reply.HasField("next_after") else None
        return _settle(fields, both_protocols._timings(reply), began)


_MEMBERS = ("$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data", "meta")


class _Claimed(msgspec.Struct):
    claimed: list[dict[str, msgspec.Raw]]


class _Listed(msgspec.Struct):
    jobs: list[dict[str, msgspec.Raw]]


def _texts(raws: dict[str, msgspec.Raw]) -> Answer:
    """A job; data and meta as the texts they are."""
    texts = {name: bytes(raw).decode() for name, raw in raws.items()}
    assert int(texts.pop("$ts")) > 0
    return {name: text if name in ("data", "meta") else json.loads(text) for name, text in texts.items()}


def _fit(request: Answer) -> Answer:
    """`max` is u32 on gRPC, and `ack` a message."""
    fitted = request | ({"max": min(request["max"], (1 << 32) - 1)} if "max" in request else {})
    return fitted | ({"ack": queue_service_pb2.FinishedJobs(**request["ack"])} if "ack" in request else {})


def _settle(reply: Answer, performance: Answer, began: int) -> Answer:
    """Times become lengths, rounded to what was asked for; with a few views that cases ask for."""
    reply = both_protocols._settle(reply, performance)
    jobs = reply.get("claimed", reply.get("jobs", []))
    held = [_length(job.pop("deadline") - began) for job in jobs if "deadline" in job]
    for job in jobs:
        job.pop("ready_at", None)
    if "claimed" in reply or "jobs" in reply:
        reply["$seqs"] = [job["$seq"] for job in jobs]
        reply["$deliveries"] = [job["deliveries"] for job in jobs]
        reply["$tags"] = [job.get("$tag") for job in jobs]
    if "deadlines" in reply:
        held = [_length(deadline - began) for deadline in reply["deadlines"].values()]
        reply["$deadlines"] = sorted(reply["deadlines"])
        reply["deadlines"] = {}
    reply["$held_ms"] = held if began else []
    return reply


def _length(ms: int) -> int:
    """The length of a lease, as asked for: the server took it a little later than we looked at the clock."""
    return min((100, 1000, 5000, 9000, 20_000, 30_000, 60_000, 86_400_000), key=lambda length: abs(ms - length))


def _now() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def queue_clients(server: ServerProcess) -> Iterator[list[Any]]:
    http, grpc_ = HttpClient(server.base), GrpcClient(server.grpc_target)
    yield [http, grpc_]
    http.close()
    grpc_.close()


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in QUEUES])
def test_protocols_agree_on_queues(case: Case, queue_clients: list[Any]) -> None:
    run = next(_runs)
    answers = [both_protocols._run(case, client, run) for client in queue_clients]
    for step, over_http, over_grpc in zip(case.steps, *answers, strict=True):
        assert over_http == over_grpc, f"{case.name}: {step}"
