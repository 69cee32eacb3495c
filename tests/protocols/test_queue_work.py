"""GET /v0/topics/{topic}/work and QueueService.Work on a real server: frames, refusals, disconnects, ends."""

import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from protocols.conftest import refusal

from support.http import Api, fresh, ok, path
from support.push import PushStream
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import errors_pb2, queue_service_pb2, queue_service_pb2_grpc

Open = Callable[..., PushStream]


def queue(api: Api, count: int = 0, **config: object) -> str:
    name = api.make("work", type="queue", **config)
    if count:
        api.append(name, *range(1, count + 1))
    return name


def post(api: Api, name: str, op: str, **body: object) -> dict[str, Any]:
    return ok(api.send("POST", path(name, f"/{op}"), body))


def counters(api: Api, name: str) -> tuple[int, int]:
    found = api.state(name)["queue"]
    return found["ready"], found["in_flight"]


def metrics(api: Api) -> dict[str, Any]:
    return ok(api.client.get("/v0/metrics", headers={"accept": "application/json"}))


@pytest.fixture
def work(server: ServerProcess) -> Iterator[Open]:
    streams: list[PushStream] = []

    def open_(name: str, **query: Any) -> PushStream:
        streams.append(PushStream(server.http_port, name, **{"node": "w"} | query))
        return streams[-1]

    yield open_
    for stream in streams:
        stream.close()


# --------------------------------------------------------------------------- frames


def test_the_stream_from_its_head_to_a_job(api: Api, work: Open) -> None:
    name = queue(api, lease_ms=20_000)
    big = '{"z": 1.50,\n"a":[1e2,18446744073709551616]}'
    ok(api.send("POST", path(name), f'{{"records":[{{"data":{big},"tag":"t","meta":{{"k":1}}}},{{"data":null}}]}}'))
    opened = int(time.time() * 1e3)
    stream = work(name, max=2)
    assert stream.status == 200
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.headers["cache-control"] == "no-store"
    assert stream.headers["x-accel-buffering"] == "no"
    assert stream.next().text == "retry: 2000"
    assert re.fullmatch(r"hb \d{13}", stream.next().comment)
    job = stream.next()
    assert (job.event, job.id) == ("job", "1")
    assert list(job.data) == ["topic", "$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data", "meta"]
    assert f'"data":{big.replace(chr(10), " ")},"meta"' in job.text
    assert job.data["topic"] == name
    assert opened <= job.data["deadline"] - 20_000 <= time.time() * 1e3
    job = stream.next()
    assert (job.id, list(job.data)) == ("2", ["topic", "$seq", "lease_id", "deadline", "$ts", "deliveries", "data"])


@pytest.mark.parametrize(
    "query", [{"node": ""}, {"node": "n" * 129}, {"max": "x"}, {"max": "-1"}, {"max": ""}, {"max": "1.0"},
              {"lease_ms": "x"}, {"lease_ms": "-5"}, {"lease_ms": ""}]
)  # fmt: skip
def test_bad_queries(api: Api, work: Open, query: dict[str, str]) -> None:
    stream = work(queue(api, 1), **query)
    assert (stream.status, stream.refusal()["code"]) == (400, "invalid_request")


def test_refusals_come_in_order(api: Api, work: Open) -> None:
    name, plain, absent = queue(api, 1), api.make(), fresh("absent")
    for each in (name, plain, absent):
        stream = work(each, node="", max="x", accept="application/json")
        assert (stream.status, stream.refusal()["code"]) == (406, "not_acceptable")
        stream = work(each, node="", max="x")
        assert "node" in stream.refusal()["message"]
        stream = work(each, max="x")
        assert (stream.status, stream.refusal()["code"]) == (400, "invalid_request")
    stream = work(absent)
    assert (stream.status, stream.refusal()["detail"]) == (404, {"topic": absent})
    stream = work(plain)
    assert (stream.status, stream.refusal()["code"]) == (409, "not_a_queue")
    assert counters(api, name) == (1, 0)


@pytest.mark.parametrize("accept", ["", "*/*", "text/event-stream", "text/html, text/event-stream;q=0.5"])
def test_accept(api: Api, work: Open, accept: str) -> None:
    assert work(queue(api), accept=accept).status == 200


def test_head_opens_and_takes_nothing(api: Api, work: Open) -> None:
    name = queue(api, 1)
    stream = work(name, method="HEAD")
    assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert counters(api, name) == (1, 0)


def test_max_and_lease_ms_are_clamped(api: Api, work: Open) -> None:
    name = queue(api, 3)
    opened = int(time.time() * 1e3)
    stream = work(name, max=0, lease_ms=10**19)
    [job] = stream.jobs(1)
    assert opened <= job["deadline"] - 86_400_000 <= time.time() * 1e3
    assert stream.is_quiet(0.1)
    assert len(work(name, max=10**19).jobs(2)) == 2


# ------------------------------------------------------------------ flow of the jobs


def test_at_most_max_are_held_and_each_end_makes_room(api: Api, work: Open) -> None:
    name = queue(api, 9)
    stream = work(name, max=3)
    assert [job["$seq"] for job in stream.jobs(3)] == [1, 2, 3]
    assert stream.is_quiet(0.2)
    assert counters(api, name) == (6, 3)
    post(api, name, "ack", node="w", seqs=[2])
    assert [job["$seq"] for job in stream.jobs(1)] == [4]
    post(api, name, "nack", node="w", seqs=[1, 3], delay_ms=60_000)
    assert [job["$seq"] for job in stream.jobs(2)] == [5, 6]
    post(api, name, "nack", node="w", seqs=[5])
    [again] = stream.jobs(1)
    assert (again["$seq"], again["deliveries"]) == (5, 2)
    assert stream.is_quiet(0.2)
    assert counters(api, name) == (3, 3)


def test_an_expired_lease_makes_room_and_the_job_comes_again(api: Api, work: Open) -> None:
    name = queue(api, 1)
    stream = work(name, lease_ms=200)
    [first] = stream.jobs(1)
    [again] = stream.jobs(1)
    assert (again["$seq"], again["deliveries"]) == (1, 2)
    assert first["deadline"] < again["deadline"] - 200
    assert again["lease_id"] != first["lease_id"]


def test_an_extended_lease_stays(api: Api, work: Open) -> None:
    name = queue(api, 2)
    stream = work(name, lease_ms=2000)
    [job] = stream.jobs(1)
    reply = post(api, name, "extend", node="w", seqs=[1], lease_ids=[job["lease_id"]], lease_ms=30_000)
    assert reply["extended"] == 1
    assert stream.is_quiet(2.3)


def test_jobs_come_as_they_are_written_and_when_delays_end(api: Api, work: Open) -> None:
    name = queue(api)
    stream = work(name, max=9)
    stream.next(), stream.next()
    began = time.monotonic()
    api.append(name, "later", delay_ms=3000)
    api.append(name, "now")
    assert [job["data"] for job in stream.jobs(1)] == ["now"]
    assert time.monotonic() - began < 2.9
    assert [job["data"] for job in stream.jobs(1)] == ["later"]
    assert 2.99 <= time.monotonic() - began < 20


def test_dead_letters_leave_the_stream_room(api: Api, work: Open) -> None:
    name = queue(api, 2, max_deliveries=1, dead_letter=fresh("dlq"))
    stream = work(name)
    assert [job["$seq"] for job in stream.jobs(1)] == [1]
    post(api, name, "nack", node="w", seqs=[1])
    assert [job["$seq"] for job in stream.jobs(1)] == [2]
    assert api.state(name)["queue"]["dead_lettered"] == 1


def test_streams_and_claims_share_a_window(api: Api, work: Open) -> None:
    name = queue(api, claim_jitter_ms=2000)
    streams = [work(name, node=f"s{i}", max=10) for i in range(2)]
    for stream in streams:
        stream.next(), stream.next()
    found: list[Any] = []
    poller = threading.Thread(target=lambda: found.extend(post(api, name, "claim", node="p", max=10)["claimed"]))
    api.append(name, *range(9))
    poller.start()
    assert [len(stream.jobs(3)) for stream in streams] == [3, 3]
    poller.join(20)
    assert len(found) == 3


def test_many_jobs_and_large_ones(api: Api, work: Open) -> None:
    name = queue(api, 500)
    api.append(name, *["x" * 300_000] * 6)
    stream = work(name, max=1000)
    jobs = stream.jobs(506, 20)
    assert [job["$seq"] for job in jobs] == list(range(1, 507))
    assert counters(api, name) == (0, 506)


# ------------------------------------------------------------------------ disconnects


def test_a_disconnect_gives_back_what_this_stream_held(api: Api, work: Open) -> None:
    name = queue(api, 6)
    assert len(post(api, name, "claim", node="w", max=2)["claimed"]) == 2
    stream, other = work(name, max=2), work(name, max=1)
    pushed = {job["$seq"] for job in stream.jobs(2)}
    other.jobs(1)
    stream.close()
    poll(lambda: counters(api, name) == (3, 3))
    assert post(api, name, "ack", node="w", seqs=[1, 2])["acked"] == 2
    found = {job["$seq"]: job["deliveries"] for job in post(api, name, "claim", node="v", max=9)["claimed"]}
    assert {seq for seq, deliveries in found.items() if deliveries == 2} == pushed


def test_what_a_gone_worker_held_goes_to_another_stream_at_once(api: Api, work: Open) -> None:
    name = queue(api, 2)
    first, second = work(name, max=2), work(name, node="v", max=2)
    first.jobs(2)
    assert second.is_quiet(0.1)
    began = time.monotonic()
    first.close()
    assert sorted(job["$seq"] for job in second.jobs(2)) == [1, 2]
    assert time.monotonic() - began < 10


def test_a_worker_that_is_killed_loses_its_jobs_at_once(api: Api, work: Open) -> None:
    name = queue(api, 2)
    stream = work(name, max=2, lease_ms=60_000)
    stream.jobs(2)
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()  # with RST
    poll(lambda: counters(api, name) == (2, 0))


def test_a_worker_that_falls_silent_loses_its_jobs_with_their_leases(api: Api, work: Open) -> None:
    name = queue(api, 1)
    silent = work(name, lease_ms=2000)
    silent.jobs(1)  # and nothing more is read or acked, while the connection stays
    other = work(name, node="v", lease_ms=60_000)
    [job] = other.jobs(1)
    assert job["deliveries"] == 2
    assert post(api, name, "ack", node="v", seqs=[1])["acked"] == 1


def descriptors(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def test_a_thousand_connects_and_cancels_leave_nothing(server: ServerProcess, api: Api) -> None:
    name = queue(api, 50)
    api.state(name)
    before = descriptors(server)
    for i in range(1000):
        stream = PushStream(server.http_port, name, node="w", max=3)
        assert stream.status == 200
        if i % 2:
            stream.jobs(1)
        stream.close()
    poll(lambda: counters(api, name) == (50, 0), 20)
    poll(lambda: descriptors(server) <= before + 2, 20, "file descriptors")
    poll(lambda: metrics(api)["sse_connections"] == 0, 20)


def test_slots_are_capped_and_come_back(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_MAX_SSE_CONNECTIONS=2)
    with Api(server.base) as api:
        name = queue(api, 1)
        with (
            PushStream(server.http_port, name, node="w"),
            PushStream(server.http_port, name, node="w") as leaving,
            PushStream(server.http_port, name, node="w") as refused,
            PushStream(server.http_port, "absent", node="w") as absent,
        ):
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert refused.refusal()["detail"] == {"limit": "max_sse_connections", "max": 2}
            assert absent.status == 404  # what is wrong with the request comes first

            def opens() -> bool:
                with PushStream(server.http_port, name, node="w") as stream:
                    return stream.status == 200

            leaving.close()
            poll(opens)


# ------------------------------------------------------------------------------- ends


@pytest.mark.parametrize("again", ["queue", "log", None])
def test_a_deleted_topic_ends_the_stream(api: Api, work: Open, again: str | None) -> None:
    name = queue(api, 2)
    full, hungry = work(name), work(name, max=5)
    full.jobs(1)
    hungry.jobs(1)
    ok(api.drop(name))
    if again:
        ok(api.put(name, type=again), 201)
    for stream in (full, hungry):
        event = stream.next()
        assert (event.event, event.id) == ("error", "")
        assert list(event.data) == ["code", "error", "topic"]
        assert (event.data["code"], event.data["topic"]) == (409, name)
        stream.ends()


def test_a_stop_tells_the_streams_and_gives_their_jobs_back(start: Callable[..., ServerProcess]) -> None:
    server = start()
    with Api(server.base) as api:
        names = [queue(api, 2, leases_durable=durable) for durable in (False, True)]
    streams = [PushStream(server.http_port, name, node="w") for name in names]
    for stream in streams:
        stream.jobs(1)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 5
    for stream in streams:
        event = stream.next()
        assert (event.event, event.data["code"], event.id) == ("error", 503, "")
        stream.ends()
        stream.close()
    server.start()
    with Api(server.base) as api:
        for name in names:
            assert counters(api, name) == (2, 0)


# ------------------------------------------------------------------------------- keys


def test_the_token_of_a_query(keyed: ServerProcess, http: Callable[[str | None], Api]) -> None:
    name = queue(http("full"), 1)
    port = keyed.http_port

    def status(**query: Any) -> int:
        with PushStream(port, name, node="w", **query) as stream:
            return stream.status

    assert status() == 401
    assert status(token="nonsense") == 401
    assert status(token="sekret-rw") == 200
    assert status(token="sekret-read") == 403
    assert status(token="sekret-write") == 403
    assert status(token="sekret-t42") == 403
    assert status(key="sekret-rw", token="nonsense") == 200
    assert status(key="nonsense", token="sekret-rw") == 401
    api = http("rw")
    poll(lambda: counters(api, name) == (1, 0))
    for op in ("claim", "jobs"):
        assert http(None).send("POST", path(name, f"/{op}?token=sekret-rw"), {"node": "w"}).status_code == 401


def test_a_redrive_stays_within_the_prefixes(http: Callable[[str | None], Api]) -> None:
    name, plain = f"t42:{fresh()}", f"t42:{fresh()}"
    ok(http("full").put(name, type="queue", dead_letter="elsewhere"), 201)
    ok(http("full").put(plain, type="queue", dead_letter=f"{plain}:dead"), 201)
    assert http("multi").send("POST", path(name, "/redrive"), {}).status_code == 403
    assert post(http("multi"), plain, "redrive")["redriven"] == 0
    assert http("t42w").send("POST", path(plain, "/redrive"), {}).status_code == 403  # it needs read as well
    assert http("read").send("GET", path(plain, "/jobs")).status_code == 200
    assert http("t42w").send("GET", path(plain, "/jobs")).status_code == 403


# ------------------------------------------------------------------------------- gRPC


@pytest.fixture(scope="module")
def stub(server: ServerProcess) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_target, [("grpc.max_receive_message_length", 4 << 20)]) as channel:
        yield queue_service_pb2_grpc.QueueServiceStub(channel)


def test_work_over_grpc(api: Api, stub: Any) -> None:
    name = queue(api, 3)
    api.append(name, *["x" * 900_000] * 8)
    stream = stub.Work(queue_service_pb2.WorkRequest(topic=name, node="w", max=100, lease_ms=60_000), timeout=20)
    first = next(stream)
    assert first.frame.heartbeat.ts_ms > 0
    jobs: list[Any] = []
    while len(jobs) < 11:
        frame = next(stream).frame
        assert frame.jobs.topic == name
        jobs += frame.jobs.jobs
    assert [job.seq for job in jobs] == list(range(1, 12))
    assert jobs[0].data == b"1"
    assert jobs[0].deliveries == 1
    assert stub.Ack(queue_service_pb2.AckRequest(topic=name, node="w", seqs=[1], lease_ids=[jobs[0].lease_id])).acked
    assert counters(api, name) == (0, 10)
    stream.cancel()
    poll(lambda: counters(api, name) == (10, 0))


def test_replies_of_large_jobs_fit_what_grpc_clients_take(api: Api, stub: Any) -> None:
    name = queue(api)
    api.append(name, *["x" * 900_000] * 8)
    listed = stub.ListJobs(queue_service_pb2.ListJobsRequest(topic=name), timeout=20)
    assert (len(listed.jobs), listed.next_after) == (3, 3)
    claimed: list[int] = []
    while len(claimed) < 8:
        reply = stub.Claim(queue_service_pb2.ClaimRequest(topic=name, node="w", max=100), timeout=20)
        claimed += [job.seq for job in reply.claimed]
    assert claimed == list(range(1, 9))


def test_a_grpc_stream_ends_with_the_status_of_its_error(api: Api, stub: Any) -> None:
    name = queue(api, 1)
    stream = stub.Work(queue_service_pb2.WorkRequest(topic=name, node="w"), timeout=20)
    next(stream), next(stream)
    ok(api.drop(name))
    told = next(stream).frame.error
    assert (told.reason, told.code, told.terminal) == (errors_pb2.ERROR_REASON_NOT_A_QUEUE, 409, True)
    with pytest.raises(grpc.RpcError) as failed:
        next(stream)
    assert refusal(failed.value)[:2] == ("FAILED_PRECONDITION", "NOT_A_QUEUE")


def test_refusals_over_grpc(api: Api, stub: Any) -> None:
    for request, reason in (
        ({"topic": "absent"}, "INVALID_REQUEST"),
        ({"topic": "absent", "node": "w"}, "TOPIC_NOT_FOUND"),
        ({"topic": api.make(), "node": "w"}, "NOT_A_QUEUE"),
    ):
        with pytest.raises(grpc.RpcError) as failed:
            next(stub.Work(queue_service_pb2.WorkRequest(**request), timeout=20))
        assert refusal(failed.value).reason == reason


def test_cancelled_grpc_streams_leave_nothing(server: ServerProcess, api: Api, stub: Any) -> None:
    name = queue(api, 20)
    for i in range(300):
        stream = stub.Work(queue_service_pb2.WorkRequest(topic=name, node="w", max=2))
        if i % 2:
            next(stream), next(stream)
        stream.cancel()
    poll(lambda: counters(api, name) == (20, 0), 20)
    poll(lambda: metrics(api)["sse_connections"] == 0)
    assert "Traceback" not in server.log


def test_stop_work_lets_the_streams_of_one_worker_bring_no_more(api: Api, stub: Any) -> None:
    name = queue(api, 20)
    work = queue_service_pb2.WorkRequest
    mine = [stub.Work(work(topic=name, node="mine", max=2), timeout=20) for _ in range(2)]
    other = stub.Work(work(topic=name, node="other", max=3), timeout=20)
    frames = [_jobs(stream, count) for stream, count in ((mine[0], 2), (mine[1], 2), (other, 3))]
    stop = queue_service_pb2.StopWorkRequest(topic=name, node="mine")
    assert stub.StopWork(stop).topic == name
    assert [stub.StopWork(stop).held for _ in range(2)] == [4, 4], "told again, it says the same"
    assert stub.StopWork(queue_service_pb2.StopWorkRequest(topic=name, node="nobody")).held == 0

    def ack(node: str, *jobs: Any) -> None:
        seqs = [job.seq for job in jobs]
        assert stub.Ack(queue_service_pb2.AckRequest(topic=name, node=node, seqs=seqs)).acked == len(seqs)

    # What it settles makes no room, while the others get theirs.
    ack("mine", frames[0][0])
    stub.Nack(queue_service_pb2.NackRequest(topic=name, node="mine", seqs=[frames[1][0].seq], delay_ms=60_000))
    ack("other", *frames[2])
    assert len(_jobs(other, 3)) == 3
    assert stub.StopWork(stop).held == 2
    assert counters(api, name)[1] == 2 + 3
    # What it still holds stays leased, can be extended, and is given back when its stream ends.
    kept = frames[1][1]
    extended = stub.Extend(queue_service_pb2.ExtendRequest(topic=name, node="mine", seqs=[kept.seq], lease_ms=60_000))
    assert extended.extended == 1
    mine[1].cancel()
    poll(lambda: stub.StopWork(stop).held == 1)
    # Streams are meant, not the worker: its claims, and a stream that it opens later, are served.
    claimed = stub.Claim(queue_service_pb2.ClaimRequest(topic=name, node="mine", max=1), timeout=20)
    assert claimed.count == 1
    again = stub.Work(work(topic=name, node="mine", max=2), timeout=20)
    assert len(_jobs(again, 2)) == 2
    assert stub.StopWork(stop).held == 3, "a claim is no stream's"
    for stream in (mine[0], other, again):
        stream.cancel()
    poll(lambda: counters(api, name)[1] == 1)


def test_stop_work_of_a_queue_that_nobody_waits_at(api: Api, stub: Any) -> None:
    for name in (queue(api, 1), queue(api, 1, claim_jitter_ms=50)):
        stop = queue_service_pb2.StopWorkRequest(topic=name, node="w")
        assert stub.StopWork(stop).held == 0
        ok(api.drop(name))
        with pytest.raises(grpc.RpcError) as failed:
            stub.StopWork(stop)
        assert refusal(failed.value).reason == "TOPIC_NOT_FOUND"


def test_stop_work_is_refused_as_work_is(api: Api, stub: Any) -> None:
    name = queue(api, 1)
    for request, status, reason in (
        ({"topic": name}, "INVALID_ARGUMENT", "INVALID_REQUEST"),
        ({"topic": name, "node": "n" * 129}, "INVALID_ARGUMENT", "INVALID_REQUEST"),
        ({"topic": "absent", "node": "w"}, "NOT_FOUND", "TOPIC_NOT_FOUND"),
        ({"topic": api.make(), "node": "w"}, "FAILED_PRECONDITION", "NOT_A_QUEUE"),
    ):
        with pytest.raises(grpc.RpcError) as failed:
            stub.StopWork(queue_service_pb2.StopWorkRequest(**request))
        assert refusal(failed.value)[:2] == (status, reason), request


@pytest.mark.parametrize(
    ("key", "status"),
    [("rw", None), ("full", None), ("read", "PERMISSION_DENIED"), ("write", "PERMISSION_DENIED"),
     ("t42", "PERMISSION_DENIED"), ("nonsense", "UNAUTHENTICATED"), (None, "UNAUTHENTICATED")],
)  # fmt: skip
def test_stop_work_takes_a_key_that_may_work(
    keyed: ServerProcess, http: Callable[[str | None], Api], key: str | None, status: str | None
) -> None:
    name = queue(http("full"), 1)
    metadata = [("authorization", f"Bearer sekret-{key}")] if key else []
    with grpc.insecure_channel(keyed.grpc_target) as channel:
        stop = queue_service_pb2_grpc.QueueServiceStub(channel).StopWork
        request = queue_service_pb2.StopWorkRequest(topic=name, node="w")
        if status is None:
            assert stop(request, metadata=metadata).held == 0
            return
        with pytest.raises(grpc.RpcError) as failed:
            stop(request, metadata=metadata)
    assert refusal(failed.value)[0] == status


def _jobs(stream: Any, count: int) -> list[Any]:
    """The given number of jobs of a stream, without its heartbeats."""
    jobs: list[Any] = []
    while len(jobs) < count:
        jobs += next(stream).frame.jobs.jobs
    return jobs


# --------------------------------------------------------------------------- fairness


@pytest.mark.parametrize("kind", ["polling", "pushed"])
def test_fifty_workers_get_their_share(server: ServerProcess, api: Api, kind: str) -> None:
    name = queue(api)
    workers, jobs = 50, 5000
    for first in range(0, jobs, 500):
        api.append(name, *range(first, first + 500))
    done = [0] * workers
    gate = threading.Barrier(workers)

    def poller(number: int) -> None:
        node = f"w{number}"
        with Api(server.base) as own:
            own.state(name)
            gate.wait(30)
            while claimed := post(own, name, "claim", node=node, max=8)["claimed"]:
                done[number] += post(own, name, "ack", node=node, seqs=[job["$seq"] for job in claimed])["acked"]

    def pushed(number: int) -> None:
        node = f"w{number}"
        with Api(server.base) as own:
            own.state(name)
            gate.wait(30)
            with PushStream(server.http_port, name, node=node, max=8) as stream:
                while sum(done) < jobs:
                    try:
                        event = stream.next(1)
                    except TimeoutError:
                        continue
                    if event.event == "job":
                        done[number] += post(own, name, "ack", node=node, seqs=[event.data["$seq"]])["acked"]

    run = poller if kind == "polling" else pushed
    threads = [threading.Thread(target=run, args=(i,)) for i in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    mean = sum(done) / workers
    deviation = (sum((count - mean) ** 2 for count in done) / workers) ** 0.5
    assert sum(done) == jobs
    assert deviation / mean < 0.3, sorted(done)
