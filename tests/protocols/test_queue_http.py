"""Queues over HTTP: the order of the checks, the exact shape of replies, what is taken and what is refused."""

import json
import threading
import time
from base64 import b64encode
from collections.abc import Callable

import grpc
import pytest

from support.http import NOT_INTEGERS, Api, fresh, member, ok, path, refused
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import (
    queue_service_pb2,
    queue_service_pb2_grpc,
    record_pb2,
    topics_service_pb2,
    topics_service_pb2_grpc,
)

SETTLES = {"ack": {}, "nack": {}, "extend": {"lease_ms": 1000}}


def queue(api: Api, count: int = 0, **config: object) -> str:
    name = api.make("q", type="queue", **config)
    if count:
        api.append(name, *range(1, count + 1))
    return name


def post(api: Api, name: str, op: str, /, **body: object):  # type: ignore[no-untyped-def]
    return api.send("POST", path(name, f"/{op}"), body)


def claim(api: Api, name: str, node: str = "w", **body: object) -> list[dict]:  # type: ignore[type-arg]
    return list(ok(post(api, name, "claim", node=node, **body))["claimed"])


def counters(api: Api, name: str) -> tuple[int, int, int]:
    found = api.state(name)["queue"]
    return found["ready"], found["in_flight"], found["dead_lettered"]


# ------------------------------------------------------------------------ shapes


def test_a_claim_looks_exactly_so(api: Api) -> None:
    name = queue(api, lease_ms=20_000)
    big = '{"z": 1.50,"a":[1e2,18446744073709551616],"é":"\\u00e9"}'
    body = f'{{"records":[{{"data":{big},"tag":"a\\"b","meta":{{"k" : 1}},"node":"n"}},{{"data":null}}]}}'
    ok(api.send("POST", path(name), body.encode()))
    asked = int(time.time() * 1e3)
    reply = post(api, name, "claim", node="w", max=3)
    found = ok(reply)
    assert list(found) == ["topic", "claimed", "count", "ready", "performance"]
    assert set(found["performance"]) == {"server_total_ms", "throttle_wait_ms"}
    first, second = found["claimed"]
    assert list(first) == ["$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data", "meta"]
    assert list(second) == ["$seq", "lease_id", "deadline", "$ts", "deliveries", "data"]
    assert f'"data":{big},"meta":{{"k" : 1}}}},' in reply.text
    assert first["$tag"] == 'a"b'
    assert first["lease_id"] != second["lease_id"]
    assert asked <= first["deadline"] - 20_000 <= time.time() * 1e3


def test_the_other_replies_look_exactly_so(api: Api) -> None:
    name = queue(api, 5)
    claim(api, name, max=4)
    acked = ok(post(api, name, "ack", node="w", seqs=[1, 9]))
    assert list(acked) == ["topic", "acked", "skipped", "ready", "in_flight", "performance"]
    assert list(acked["performance"]) == ["server_total_ms"]
    nacked = ok(post(api, name, "nack", node="w", seqs=[2], delay_ms=60_000))
    assert list(nacked) == ["topic", "nacked", "skipped", "ready", "in_flight", "performance"]
    extended = ok(post(api, name, "extend", node="w", seqs=[3, 4], lease_ms=5000))
    assert list(extended) == ["topic", "extended", "skipped", "deadlines", "performance"]
    assert set(extended["deadlines"]) == {"3", "4"}
    listed = ok(api.send("GET", path(name, "/jobs"), params={"state": "delayed"}))
    assert list(listed) == ["topic", "state", "jobs", "performance"]
    [job] = listed["jobs"]
    assert list(job) == ["$seq", "$ts", "state", "deliveries", "ready_at", "data"]
    assert 50_000 < job["ready_at"] - time.time() * 1e3 < 60_000
    held = ok(api.send("GET", path(name, "/jobs"), params={"state": "in_flight"}))["jobs"]
    assert list(held[0]) == ["$seq", "$ts", "state", "deliveries", "node", "deadline", "data"]
    assert held[0]["node"] == "w"
    page = ok(api.send("GET", path(name, "/jobs"), params={"state": "in_flight", "limit": 1}))
    assert list(page) == ["topic", "state", "jobs", "next_after", "performance"]


def test_a_state_has_its_queue_object_in_its_place(api: Api) -> None:
    name, plain = queue(api, 3), api.make()
    claim(api, name)
    state = api.state(name)
    assert list(state)[7:10] == ["config", "queue", "effective_priority"]
    assert state["queue"] == {"ready": 2, "in_flight": 1, "dead_lettered": 0}
    assert "queue" not in api.state(plain)


def test_binary_jobs_are_base64(server: ServerProcess, api: Api) -> None:
    name = queue(api)
    with grpc.insecure_channel(server.grpc_target) as channel:
        record = topics_service_pb2.AppendRequest.DESCRIPTOR.fields_by_name["records"].message_type._concrete_class(
            data=b"\x00\xff", kind=record_pb2.RECORD_KIND_BINARY, tag="t"
        )
        topics_service_pb2_grpc.TopicsServiceStub(channel).Append(
            topics_service_pb2.AppendRequest(topic=name, records=[record])
        )
    [job] = ok(api.send("GET", path(name, "/jobs")))["jobs"]
    assert (job["$encoding"], job["data"]) == ("base64", b64encode(b"\x00\xff").decode())
    [job] = claim(api, name)
    assert list(job)[3:6] == ["$ts", "$encoding", "$tag"]
    assert (job["$encoding"], job["data"]) == ("base64", b64encode(b"\x00\xff").decode())


# ----------------------------------------------------------------- order of checks


def test_claim_checks_in_order(api: Api) -> None:
    name, plain, absent = queue(api, 1), api.make(), fresh("absent")
    for each in (name, plain, absent):
        refused(api.client.post(path(each, "/claim")), 400, "invalid_request")  # empty, whatever the type
        refused(api.client.post(path(each, "/claim"), content="{}"), 415, "unsupported_media_type")
        refused(api.send("POST", path(each, "/claim"), "{"), 400, "invalid_request")
        refused(post(api, each, "claim"), 400, "invalid_request")
        refused(post(api, each, "claim", node=None), 400, "invalid_request")
    for node in ("", "n" * 129):
        refused(post(api, absent, "claim", node=node), 404, "topic_not_found")
        refused(post(api, plain, "claim", node=node), 409, "not_a_queue")
        refused(post(api, name, "claim", node=node), 400, "invalid_request")
    assert api.get(absent).status_code == 404
    assert counters(api, name) == (1, 0, 0)


@pytest.mark.parametrize("op", SETTLES)
def test_settles_check_in_order(api: Api, op: str) -> None:
    name, plain, absent = queue(api, 1), api.make(), fresh("absent")
    rest = SETTLES[op]
    for each in (name, plain, absent):
        refused(api.client.post(path(each, f"/{op}")), 415, "unsupported_media_type")
        refused(api.send("POST", path(each, f"/{op}"), ""), 400, "invalid_request")
        refused(api.client.post(path(each, f"/{op}"), content="{}"), 415, "unsupported_media_type")
        refused(post(api, each, op, seqs=[1], **rest), 400, "invalid_request")
        refused(post(api, each, op, node="w", **rest), 400, "invalid_request")
        many = post(api, each, op, node="w", seqs=[1] * 1001, lease_ids=["lease_1"], **rest)
        assert refused(many, 400, "batch_too_large")["detail"] == {"seqs": 1001, "max": 1000}
        # The first error is reported: the malformed lease id, then the node, then the number.
        both = post(api, each, op, node="", seqs=[1] * 1001, lease_ids=["x"], **rest)
        assert "lease_ids" in refused(both, 400, "invalid_request")["message"]
        both = post(api, each, op, node="", seqs=[1] * 1001, **rest)
        assert "node" in refused(both, 400, "invalid_request")["message"]
        uneven = post(api, each, op, node="w", seqs=[1, 2], lease_ids=["lease_1"], **rest)
        assert "lease_ids" in refused(uneven, 400, "invalid_request")["message"]
        refused(post(api, each, op, node="w", seqs=[], **rest), 400, "invalid_request")
    assert refused(post(api, absent, op, node="w", seqs=[1], **rest), 404, "topic_not_found")["detail"] == {
        "topic": absent
    }
    assert refused(post(api, plain, op, node="w", seqs=[1], **rest), 409, "not_a_queue")["detail"] == {"topic": plain}
    found = ok(post(api, name, op, node="w", seqs=[1] * 1000, **rest))
    assert found["skipped"] == [1] * 1000


def test_extend_needs_its_lease_ms(api: Api) -> None:
    refused(post(api, queue(api, 1), "extend", node="w", seqs=[1]), 400, "invalid_request")


@pytest.mark.parametrize("text", NOT_INTEGERS)
def test_integers_are_strict(api: Api, text: str) -> None:
    name = queue(api, 1)
    claim(api, name)
    # A number that is too large is clamped wherever there is a clamp; null is no lease_ms of a claim.
    clamped = text == str(1 << 64)
    for op, field in (("claim", "max"), ("claim", "lease_ms"), ("nack", "delay_ms"), ("extend", "lease_ms")):
        body = f'{{"node":"v","seqs":[1],"lease_ms":1000,{member(field, text)[1:]}'
        if (op, field) != ("claim", "max"):
            body = body.replace('"lease_ms":1000,', "" if field == "lease_ms" else '"lease_ms":1000,')
        reply = api.send("POST", path(name, f"/{op}"), body)
        if clamped or (op, field, text) == ("claim", "lease_ms", "null"):
            ok(reply)
        else:
            refused(reply, 400, "invalid_request")
    for op, rest in SETTLES.items():
        body = json.dumps({"node": "w", "seqs": "?", **rest}).replace('"?"', f"[{text}]")
        refused(api.send("POST", path(name, f"/{op}"), body), 400, "invalid_request")
    refused(api.send("POST", path(name, "/redrive"), member("max", text)), 400, "invalid_request")
    assert counters(api, name) == (0, 1, 0)


def test_nulls_duplicates_and_unknown_members(api: Api) -> None:
    name = queue(api, 1)
    for op, body in (
        ("claim", '{"node":"w","max":null}'),
        ("claim", '{"node":"w","node":"w"}'),
        ("ack", '{"node":"w","seqs":null}'),
        ("ack", '{"node":"w","seqs":[1],"lease_ids":null}'),
        ("ack", '{"node":"w","seqs":[1],"lease_ids":[null]}'),
        ("ack", '{"node":"w","seqs":{}}'),
        ("nack", '{"node":"w","seqs":[1],"delay_ms":null}'),
        ("nack", '{"node":"w","seqs":[1],"mode":"other"}'),
        ("nack", '{"node":"w","seqs":[1],"mode":null}'),
        ("nack", '{"node":"w","seqs":[1],"mode":1}'),
        ("extend", '{"node":"w","seqs":[1],"lease_ms":null}'),
        ("redrive", '{"match":["data","Eq","x"]}'),
        ("redrive", "[]"),
    ):
        refused(api.send("POST", path(name, f"/{op}"), body), 400, "invalid_request")
    assert counters(api, name) == (1, 0, 0)
    ok(api.send("POST", path(name, "/claim"), '{"node":"w","lease_ms":null,"seqs":[],"more":{"x":[]}}'))
    ok(post(api, name, "ack", node="w", seqs=[1], lease_ms=5, lease_ids=[], max=2))


def test_methods_and_queries(api: Api) -> None:
    name = queue(api, 2)
    for op in ("claim", "ack", "nack", "extend", "redrive"):
        refused(api.send("GET", path(name, f"/{op}")), 405, "method_not_allowed")
    refused(api.send("POST", path(name, "/jobs"), {}), 405, "method_not_allowed")
    refused(api.send("POST", path(name, "/work"), {}), 405, "method_not_allowed")
    for query in ({"state": "done"}, {"state": ""}, {"limit": "x"}, {"limit": "-1"}, {"after": "1.0"}, {"after": ""}):
        refused(api.send("GET", path(name, "/jobs"), params=query), 400, "invalid_request")
    assert api.client.head(path(name, "/jobs")).status_code == 200


def test_the_limit_of_a_claim_is_configurable(small_server: ServerProcess, small: Api) -> None:
    assert small.base == small_server.base
    name = "q"
    ok(small.put(name, type="queue"), 201)
    small.append(name, 1, 2, 3)
    refused(post(small, name, "claim", node="n" * 7), 400, "invalid_request")
    assert len(claim(small, name, max=9)) == 2
    found = refused(post(small, name, "ack", node="w", seqs=[1, 2, 3]), 400, "batch_too_large")
    assert found["detail"] == {"seqs": 3, "max": 2}


def test_metrics_of_queues(start: Callable[..., ServerProcess]) -> None:
    server = start()
    with Api(server.base) as api:
        name, plain = queue(api, 5), api.make()
        short = queue(api, 1)
        claim(api, name, max=2)
        claim(api, short, lease_ms=100)
        as_json = ok(api.client.get("/v0/metrics", headers={"accept": "application/json"}))
        assert (as_json["queue_topics"], as_json["queue_leases_in_flight"]) == (2, 3)

        def lines() -> list[str]:
            return str(api.client.get("/v0/metrics").text).splitlines()

        poll(lambda: "topics_queue_leases_in_flight 2.0" in lines())
        text = lines()
        assert "topics_queue_topics 2.0" in text
        assert f'topics_topic_queue_ready{{topic="{name}"}} 3' in text
        assert f'topics_topic_queue_in_flight{{topic="{name}"}} 2' in text
        assert f'topics_topic_queue_ready{{topic="{short}"}} 1' in text
        assert not [line for line in text if "_queue_" in line and plain in line]


# -------------------------------------------------------------------------- writes


@pytest.mark.parametrize("field", ["delay_ms", "priority"])
@pytest.mark.parametrize("text", NOT_INTEGERS)
def test_schedules_of_writes_are_strict(api: Api, field: str, text: str) -> None:
    name = queue(api)
    reply = api.send("POST", path(name), f'{{"records":[{{"data":1}}],{member(field, text)[1:]}')
    if (field, text) == ("delay_ms", str(1 << 64)):
        ok(reply)
    else:
        refused(reply, 400, "invalid_request")


@pytest.mark.parametrize("field", ["delay_ms", "priority"])
def test_a_schedule_given_twice_is_refused(api: Api, field: str) -> None:
    name = queue(api)
    for body in (
        f'{{"records":[{{"data":1}}],"{field}":1,"{field}":2}}',
        f'{{ "{field}": 1, "records": [ {{"data":1}} ], "{field}": 1 }}',
    ):
        assert field in refused(api.send("POST", path(name), body), 400, "invalid_request")["message"]
    assert api.state(name)["head_seq"] == 0
    ok(api.send("POST", path(name), f'{{ "{field}" : 2 , "records" : [ {{ "data" : 1, "more" : 1 }} ] , "x" : 1 }}'))


def test_a_delayed_write_is_seen_at_once_and_claimed_later(api: Api) -> None:
    name = queue(api)
    began = time.monotonic()
    api.append(name, "later", delay_ms=2000)
    assert [record["data"] for record in api.read_all(name)] == ["later"]
    assert counters(api, name) == (0, 0, 0)
    assert claim(api, name) == []
    poll(lambda: counters(api, name) == (1, 0, 0))
    assert time.monotonic() - began >= 1.99
    assert [job["data"] for job in claim(api, name)] == ["later"]


def test_an_idempotent_retry_of_a_scheduled_write(api: Api) -> None:
    name = queue(api)
    first = api.append(name, 1, delay_ms=60_000, priority=3, idempotency_key="k")
    again = api.append(name, 1, delay_ms=60_000, priority=3, idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (True, first["seqs"])


# ----------------------------------------------------------------------- the window


def test_a_window_shares_evenly_and_lasts_as_long_as_it_should(server: ServerProcess, api: Api) -> None:
    name = queue(api, 20, claim_jitter_ms=2000)
    counts: list[int] = []
    spans: list[float] = []

    def worker(number: int) -> None:
        with Api(server.base) as own:
            began = time.monotonic()
            counts.append(len(claim(own, name, f"w{number}", max=10)))
            spans.append(time.monotonic() - began)

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert counts == [5, 5, 5, 5]
    assert 1.99 < max(spans) < 3.9


def test_a_claim_in_a_window_ends_with_its_queue(server: ServerProcess, api: Api) -> None:
    name = queue(api, 4, claim_jitter_ms=5000)
    answers: list[tuple[str, float]] = []

    def over_http() -> None:
        with Api(server.base) as own:
            error = refused(post(own, name, "claim", node="h"), 404, "topic_not_found")
            answers.append((error["detail"]["topic"], time.monotonic()))

    def over_grpc() -> None:
        with grpc.insecure_channel(server.grpc_target) as channel:
            stub = queue_service_pb2_grpc.QueueServiceStub(channel)
            with pytest.raises(grpc.RpcError) as failed:
                stub.Claim(queue_service_pb2.ClaimRequest(topic=name, node="g"), timeout=30)
            assert failed.value.code() is grpc.StatusCode.NOT_FOUND
            answers.append((name, time.monotonic()))

    threads = [threading.Thread(target=each) for each in (over_http, over_grpc)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)  # both are in the window; a later one gets the same
    deleted = time.monotonic()
    api.client.delete(path(name)).raise_for_status()
    for thread in threads:
        thread.join(10)
    assert [found for found, _ in answers] == [name] * 2
    assert max(at for _, at in answers) - deleted < 4


def test_a_claimer_that_leaves_the_window_gets_nothing(server: ServerProcess, api: Api) -> None:
    name = queue(api, 4, claim_jitter_ms=600)
    leaving = Api(server.base)
    with pytest.raises(Exception, match="timed out"):
        leaving.client.post(path(name, "/claim"), json={"node": "gone", "max": 4}, timeout=0.15)
    leaving.close()
    assert [job["$seq"] for job in claim(api, name, max=4)] == [1, 2, 3, 4]
    assert {job["deliveries"] for job in claim(api, name, max=4)} == set()


def test_workers_share_every_job_once(server: ServerProcess, api: Api) -> None:
    name = queue(api, 300)
    done: list[int] = []

    def worker(number: int) -> None:
        with Api(server.base) as own:
            while jobs := claim(own, name, f"w{number}", max=7):
                found = ok(post(own, name, "ack", node=f"w{number}", seqs=[job["$seq"] for job in jobs]))
                assert found["acked"] == len(jobs)
                done.extend(job["data"] for job in jobs)

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(done) == list(range(1, 301))
    assert counters(api, name) == (0, 0, 0)


def test_an_ack_in_a_claim_is_an_object(server: ServerProcess, api: Api) -> None:
    name = queue(api, 3)
    assert ok(post(api, name, "claim", node="w", ack=None))["count"] == 1, "null is none"
    for bad in ([], "1", 1, {}, {"seqs": [1], "lease_ids": None}):
        assert post(api, name, "claim", node="w", ack=bad).json()["error"]["code"] == "invalid_request"
    found = ok(post(api, name, "claim", node="w", ack={"seqs": [1]}))
    assert [found[member] for member in ("count", "ready", "acked", "skipped")] == [1, 1, 1, []]
    assert "acked" not in ok(post(api, name, "claim", node="w"))
    assert counters(api, name) == (0, 2, 0)
