"""Users, tokens and keys on every interface: who gets in, and what each role may do."""

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from security.callers import ENV, KEY, api, basic, codes, grpc_web, kafka, rpc, token
from security.secure_server import audit_lines

from support.http import ok, refused
from support.kafka_wire import ClosedError, Wire
from support.server import PRELOADED, ServerProcess
from support.tokens import SECRET, claims, hs256
from support.waiting import poll
from support.ws import RefusedError, WebSocket
from topics_client import AuthError, TopicsClient
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import queue_service_pb2, record_pb2
from topics_proto.v1 import topics_service_pb2 as pb

RIGHT = {
    "key": f"Bearer {KEY}",
    "user": basic("root"),
    "user beyond ASCII": basic("ü"),
    "token": token("system"),
}
WRONG = {
    "none": "",
    "key": "Bearer sekret-other",
    "user": basic("target1", "sekret-other"),
    "unknown user": basic("nobody", "sekret-root"),
    "empty password": basic("target2", ""),
    "password of another user": basic("target3", "sekret-ops"),
    "password with a colon": basic("target0", "sekret-target:x"),
    "not UTF-8": basic(b"target\xff", b"sekret-root"),
    "password that is not UTF-8": basic("target1", b"\xff\xfe"),
    "key as a password": basic("target2", KEY),
    "token as a password": basic("target3", hs256(claims("system"))),
    "password as a key": "Bearer sekret-root",
    "no Base64": "Basic sekret-root",
    "other scheme": basic("target0").replace("Basic", "Digest"),
    "forged token": f"Bearer {hs256(claims('system'), 'x' * 40)}",
    "expired token": token("system", exp=1),
    "token of an unknown role": token("emperor"),
    "token without a role": token(None),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("users")
    env = ENV | {"TOPICS_AUDIT_LOG": folder / "audit", "TOPICS_LOG_LEVEL": "debug", "TOPICS_MAX_INFLIGHT_PER_KEY": 3}
    with ServerProcess(folder, env=env, kafka=True) as server:
        with api(server, RIGHT["key"]) as setup:
            for topic in ("shop.a", "t.other", "far"):
                ok(setup.put(topic), 201)
                setup.append(topic, 1)
        yield server
        assert "with 2 API keys, 11 users, HS256 tokens" in server.log
        assert server.stop() == 0
        for secret in ("sekret", SECRET, "eyJ", "SCRYPT"):
            assert secret not in server.log
            assert secret not in (folder / "audit").read_text()
        assert "Traceback" not in server.log


# ------------------------------------------------------------------- who gets in


@pytest.mark.parametrize("authorization", RIGHT.values(), ids=RIGHT)
def test_a_right_credential_on_every_interface(server: ServerProcess, authorization: str) -> None:
    with api(server, authorization) as http:
        for _ in range(2):  # the second one finds a password that is remembered
            ok(http.get("shop.a"))
        assert [record["data"] for record in ok(http.diff("shop.a", from_seq=0))["records"]] == [1]
    caller = rpc(server, authorization)
    assert caller.call("GetTopic", pb.GetTopicRequest(topic="shop.a")).state.topic == "shop.a"
    assert len(list(caller.call("BulkDiff", pb.BulkDiffRequest(topic="shop.a", from_seq=0)))) > 0
    with WebSocket(server.base, authorization=authorization) as socket:
        socket.subscribe(topic="shop.a", from_seq=0)
        assert socket.wait("record")["topic"] == "shop.a"
    assert grpc_web(server, authorization) == "0"


@pytest.mark.parametrize("authorization", WRONG.values(), ids=WRONG)
def test_a_wrong_credential_on_every_interface(server: ServerProcess, authorization: str) -> None:
    with api(server, authorization) as http:
        reply = http.get("shop.a")
        assert refused(reply, 401, "unauthorized")["message"] == "missing or wrong credentials"
        assert "www-authenticate" not in reply.headers, "or browsers would keep passwords, for pages of others to use"
        refused(http.send("GET", "/v0/no/such/path"), 401, "unauthorized")
    caller = rpc(server, authorization)
    assert caller.refused("GetTopic", pb.GetTopicRequest(topic="shop.a")).code == "UNAUTHENTICATED"
    with pytest.raises(grpc.RpcError) as error:
        list(caller.call("BulkDiff", pb.BulkDiffRequest(topic="shop.a", from_seq=0)))
    assert error.value.code().name == "UNAUTHENTICATED"
    with pytest.raises(RefusedError) as refusal:
        WebSocket(server.base, **({"authorization": authorization} if authorization else {}))
    assert refusal.value.status == 401
    assert grpc_web(server, authorization) == "16"


def test_a_token_in_the_query_of_an_event_stream(server: ServerProcess) -> None:
    good = hs256(claims("service"))
    with api(server, f"Bearer {good}") as http:
        url = ok(http.send("POST", "/v0/watch", {"topics": {"shop.a": {"from_seq": 0}}}), 200, 201)["stream_url"]
        del http.client.headers["authorization"]
        for query, status in ((good, 200), (hs256(claims("service"), "x" * 40), 401), ("a.b.c", 401)):
            with http.client.stream("GET", url, params={"token": query}) as stream:
                assert stream.status_code == status


def test_a_watch_session_is_of_one_subject_with_the_same_rights(server: ServerProcess) -> None:
    with api(server, token("service")) as http:
        url = ok(http.send("POST", "/v0/watch", {"topics": {"far": {"from_seq": 0}}}), 200, 201)["stream_url"]
        for other in (token("service", prefixes=["shop."]), token("service", sub="other"), token("dba"), basic("svc")):
            refused(http.client.get(url, headers={"authorization": other}), 401, "unauthorized")
        with http.client.stream("GET", url, headers={"authorization": token("service", jti="2")}) as stream:
            assert stream.status_code == 200


def test_long_credentials(server: ServerProcess) -> None:
    """100 kB and more, where the interface takes a head that long."""
    for authorization in (f"Bearer {'a.' * 2}{'x' * 100_000}", basic("root", "x" * 100_000)):
        with api(server, authorization) as http:
            assert http.get("shop.a").status_code == 431
        assert rpc(server, authorization).refused("GetTopic", pb.GetTopicRequest(topic="x")).code in (
            "RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL",
        )  # fmt: skip
        with Wire(server.kafka_port) as wire:
            assert wire.authenticate(authorization, "root")["error_code"] == 58
    with api(server, basic("root", "x" * 20_000)) as http:
        refused(http.get("shop.a"), 401, "unauthorized")


# ------------------------------------------------------------------- Kafka


@pytest.mark.parametrize(
    ("user", "password"),
    [("root", "sekret-root"), ("ü", "sekret-ü"), ("anybody", KEY), ("root", KEY), ("", hs256(claims("system")))],
    ids=["user", "user beyond ASCII", "key", "key and user", "token"],
)
def test_a_right_credential_on_kafka(server: ServerProcess, user: str, password: str) -> None:
    with kafka(server, user, password) as wire:
        assert codes(wire.call(ApiKey.METADATA, topics=[{"name": "shop.a"}])) == [0]
        assert wire.authenticate(password, user)["error_code"] == 0, "again"
    with Wire(server.kafka_port) as wire:  # without a request around the token, as old clients send it
        assert wire.call(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")["error_code"] == 0
        wire.write_frame(f"\0{user}\0{password}".encode())
        assert wire.read_frame() == b""
        assert codes(wire.call(ApiKey.METADATA, topics=[{"name": "shop.a"}])) == [0]


@pytest.mark.parametrize(
    "pair",
    [("target4", "sekret-ops"), ("nobody", "sekret-root"), ("target4", ""), ("target4", "sekret-target:"),
     ("Target4", "sekret-target"), ("x", hs256(claims("system"), "x" * 40)), ("x", hs256(claims("system", exp=1))),
     ("", "sekret-root")],
)  # fmt: skip
def test_a_wrong_credential_on_kafka(server: ServerProcess, pair: tuple[str, str]) -> None:
    user, password = pair
    with Wire(server.kafka_port) as wire:
        answer = wire.authenticate(password, user)
        assert (answer["error_code"], answer["error_message"]) == (58, "wrong credentials")
        assert wire.is_closed()
    with Wire(server.kafka_port) as wire:
        wire.call(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")
        wire.write_frame(f"\0{user}\0{password}".encode())
        with pytest.raises(ClosedError):
            wire.read_frame()


def test_requests_that_come_during_the_check_of_a_password_wait(server: ServerProcess) -> None:
    with Wire(server.kafka_port) as wire:
        wire.call(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")
        wire.write_frame(b"\0busy\0sekret-busy")
        wire.send(ApiKey.METADATA, 4, {"topics": [{"name": "shop.a"}], "allow_auto_topic_creation": False})
        assert wire.read_frame() == b""
        assert len(wire.read_frame()) > 20


def test_a_connection_keeps_its_caller(server: ServerProcess) -> None:
    with kafka(server, "ops", "sekret-ops") as wire:
        answer = wire.authenticate("sekret-root", "root")
        assert (answer["error_code"], answer["error_message"]) == (58, "a connection can't change its user")


def test_a_kafka_session_has_the_lifetime_of_its_token(server: ServerProcess) -> None:
    with Wire(server.kafka_port) as wire:
        lifetime = wire.authenticate(hs256(claims("dba", exp=int(time.time()) + 100)))["session_lifetime"]
        assert 90_000 < lifetime <= 100_000
        longer = wire.authenticate(hs256(claims("dba", exp=int(time.time()) + 1000)))["session_lifetime"]
        assert longer > 900_000
    with Wire(server.kafka_port) as wire:
        assert wire.authenticate("sekret-ops", "ops")["session_lifetime"] == 0


# ------------------------------------------------------------- what roles may do

CALLS = ("read", "write", "delete", "configure")
MAY = {"user": (), "service": ("read", "write"), "dba": CALLS, "system": CALLS}


@pytest.mark.parametrize("role", MAY)
@pytest.mark.parametrize("kind", ["user", "token"])
def test_what_a_role_may_do(server: ServerProcess, role: str, kind: str) -> None:
    name = {"user": "alice", "service": "busy", "dba": "ops", "system": "root"}[role]
    authorization = basic(name) if kind == "user" else token(role)
    caller = rpc(server, authorization)
    topic = f"t.{kind}-{role}"
    with api(server, RIGHT["key"]) as setup:
        ok(setup.put(topic), 201)
    with api(server, authorization) as http:
        done = {
            "read": http.diff(topic, from_seq=0),
            "write": http.write(topic, [{"data": 1}]),
            "delete": http.send("POST", f"/v0/topics/{topic}/delete", {"before_seq": 1}),
            "configure": http.put(topic, cap_records=5),
        }
        assert tuple(call for call, reply in done.items() if reply.status_code < 300) == MAY[role], done
        if role in ("user", "service"):
            said = refused(done["delete"], 403, "forbidden")["message"]
            assert said == f"the role {role} lacks delete scope"
        if role == "user":
            for path in ("/v0/topics", f"/v0/topics/{topic}", "/v0/metrics", "/v0/groups", f"/v0/topics/{topic}/jobs"):
                refused(http.send("GET", path), 403, "forbidden")
            refused(http.send("POST", "/v0/watch", {"topics": {topic: {}}}), 403, "forbidden")
            refused(http.send("POST", "/v0/groups/g/consume", {"topic": topic}), 403, "forbidden")
    for call, request in (
        ("Diff", pb.DiffRequest(topic=topic, from_seq=0)),
        ("Append", pb.AppendRequest(topic=topic, records=[record_pb2.AppendRecord(data=b"1")])),
        ("DeleteTopic", pb.DeleteTopicRequest(topic=topic, if_empty=True)),
    ):
        scope = {"Diff": "read", "Append": "write", "DeleteTopic": "delete"}[call]
        if scope not in MAY[role]:
            assert caller.refused(call, request).code == "PERMISSION_DENIED"
        elif call != "DeleteTopic":
            caller.call(call, request)
    with kafka(server, name, f"sekret-{name}") if kind == "user" else kafka(server, "x", hs256(claims(role))) as wire:
        known = wire.call(ApiKey.METADATA, topics=None)["topics"]
        assert bool(known) == bool(MAY[role]), "a role without scopes learns no names"
        asked = wire.call(ApiKey.METADATA, topics=[{"name": topic}, {"name": "shop.a"}])
        assert codes(asked) == ([29, 29] if role == "user" else [0, 0])
        create = {
            "name": f"{topic}-new",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        made = wire.call(ApiKey.CREATE_TOPICS, topics=[create], timeout=1000)
        assert codes(made) == ([0] if "configure" in MAY[role] else [29])


def test_the_sdk_and_the_command_line_take_a_user_for_a_key(server: ServerProcess) -> None:
    for key in ("ops:sekret-ops", hs256(claims("dba")), KEY):
        with TopicsClient(f"topics://{server.grpc_target}", key=key) as topics:
            assert [record.data for record in topics.read("far")] == [b"1"]
    with TopicsClient(f"topics://ops:wrong@{server.grpc_target}") as topics, pytest.raises(AuthError):
        next(iter(topics.read("far")))
    env = {"TOPICS_URL": f"topics://{server.grpc_target}", "TOPICS_API_KEY": "ops:sekret-ops", "PATH": "/usr/bin"}
    done = PRELOADED.run(["read", "far"], env, timeout=30)
    assert (done.returncode, "sekret" in done.stderr.decode()) == (0, False)


def test_a_role_within_prefixes(server: ServerProcess) -> None:
    for authorization in (basic("svc"), token("service", prefixes=["shop.", "t."])):
        with api(server, authorization) as http:
            ok(http.diff("shop.a", from_seq=0))
            said = refused(http.diff("far", from_seq=0), 403, "forbidden")["message"]
            kind = "user" if authorization.startswith("Basic") else "token"
            assert said == f"the name is outside the prefixes of the {kind}"
            assert "far" not in [topic["topic"] for topic in http.listing()["topics"]]


def test_users_who_may_consume(tmp_path: Path) -> None:
    env = ENV | {"TOPICS_ALLOW_USER_ROLE_CONSUME": "1"}
    with ServerProcess(tmp_path, env=env) as server:
        with api(server, basic("ops")) as ops:
            ok(ops.put("q"), 201)
            ops.append("q", 1)
        for authorization in (basic("alice"), token("user")):
            with api(server, authorization) as http:
                assert len(ok(http.diff("q", from_seq=0))["records"]) == 1
                refused(http.write("q", [{"data": 1}]), 403, "forbidden")
                refused(http.put("q2"), 403, "forbidden")


# -------------------------------------------------------- quotas, audit, guessing


def test_the_limits_of_a_user_and_of_a_subject(server: ServerProcess) -> None:
    """Three requests in flight, as TOPICS_MAX_INFLIGHT_PER_KEY says, for each."""
    for authorization, other in ((basic("busy"), basic("ops")), (token(sub="busy"), token(sub="calm"))):
        caller = rpc(server, authorization)
        caller.call("GetTopic", pb.GetTopicRequest(topic="shop.a"))
        waiting = [
            caller.topics.Diff.future(pb.DiffRequest(topic="far", from_seq=1, wait_ms=20_000), metadata=caller.metadata)
            for _ in range(3)
        ]

        def limited(authorization: str = authorization) -> bool:
            with api(server, authorization) as http:
                reply = http.get("shop.a")
                return reply.status_code == 429 and reply.json()["error"]["detail"]["limit"] == "max_inflight_per_key"

        poll(limited, 20, "the limit")
        with api(server, other) as http:
            ok(http.get("shop.a"))
        for each in waiting:
            each.cancel()
        poll(lambda limited=limited: not limited(), 20, "the end of the calls")  # type: ignore[misc]


def test_changes_are_attributed(server: ServerProcess) -> None:
    file = Path(server.work_dir) / "audit"
    for number, (authorization, who) in enumerate(((basic("ops"), "user:ops"), (token("dba", sub="a\u202eb"), None),
                                                   (token("dba", sub="agent 7"), "jwt:agent 7"))):  # fmt: skip
        with api(server, authorization) as http:
            if who is None:
                refused(http.put("t.audited"), 401, "unauthorized")  # a name that would turn the line around
                continue
            ok(http.put(f"t.audited-{number}"), 201)
        poll(lambda number=number: f"t.audited-{number}" in file.read_text(), 20, "a line of the audit log")  # type: ignore[misc]
        (line,) = [each for each in audit_lines(file) if each.get("topic") == f"t.audited-{number}"]
        assert (line["action"], line["outcome"], line["key"]) == ("topic.put", "done", who)
    with kafka(server, "ops", "sekret-ops") as wire:
        wire.call(ApiKey.DELETE_TOPICS, 1, topic_names=["t.audited-0"], timeout=1000)
    # A deletion, since other tests leave lines of Kafka, too.
    deletions = poll(
        lambda: [each for each in audit_lines(file) if (each["door"], each["action"]) == ("kafka", "topic.delete")],
        20,
        "a line of the audit log",
    )
    assert [each["key"] for each in deletions] == ["user:ops"]


def test_guessing_is_throttled_on_every_interface(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env=ENV, kafka=True) as server:
        with api(server, basic("ops")) as good:
            ok(good.put("shop.a"), 201)
        for number in range(20):
            with api(server, basic("root", f"guess {number}")) as http:
                refused(http.get("shop.a"), 401, "unauthorized")
        for password in ("guess", "sekret-root"):
            with api(server, basic("root", password)) as http:
                reply = http.get("shop.a")
                error = refused(reply, 429, "throttled")
                assert error["detail"]["limit"] == "password_failures_per_minute"
                assert 1 <= int(reply.headers["retry-after"]) <= 61
            said = rpc(server, basic("root", password)).refused("GetTopic", pb.GetTopicRequest(topic="shop.a"))
            assert said.code == "RESOURCE_EXHAUSTED"
            assert said.retry_after_ms is not None
            assert 0 < said.retry_after_ms <= 60_001
            assert grpc_web(server, basic("root", password)) == "8"
            with pytest.raises(RefusedError) as refusal:
                WebSocket(server.base, authorization=basic("root", password))
            assert refusal.value.status == 429
            with Wire(server.kafka_port) as wire:
                answer = wire.authenticate(password, "root")
                assert (answer["error_code"], "too many wrong passwords" in answer["error_message"]) == (58, True)
        with api(server, basic("ops")) as other, api(server, token("system")) as by_token:
            ok(other.get("shop.a"))
            ok(by_token.get("shop.a"))
        caller = rpc(server, basic("ops"))
        caller.call("GetTopic", pb.GetTopicRequest(topic="shop.a"))
        assert server.log.count("too many wrong passwords for the user 'root' from 127.0.0.1") == 1


def test_every_kind_of_grpc_call_after_a_wrong_password(server: ServerProcess) -> None:
    """Then the address counts too, which only the call knows: it begins before its password is checked."""
    with api(server, basic("busy", "wrong")) as http:
        refused(http.get("shop.a"), 401, "unauthorized")
    caller = rpc(server, basic("busy"))
    assert caller.call("GetTopic", pb.GetTopicRequest(topic="shop.a")).state.topic == "shop.a"
    assert len(list(caller.call("BulkDiff", pb.BulkDiffRequest(topic="shop.a", from_seq=0)))) > 0
    append = pb.AppendRequest(topic="shop.a", records=[record_pb2.AppendRecord(data=b"1")])
    batches = [pb.AppendStreamRequest(append=append) for _ in range(3)]
    answers = list(caller.topics.AppendStream(iter(batches), metadata=caller.metadata, timeout=30))
    assert sum(len(answer.acks) for answer in answers) == 3, answers
    assert caller.refused("GetTopic", pb.GetTopicRequest(topic="no")).code == "NOT_FOUND"
    with pytest.raises(grpc.RpcError) as error:
        caller.channel.unary_unary("/topics.v1.TopicsService/GetTopic")(b"\xff", metadata=caller.metadata, timeout=30)
    assert error.value.code().name == "INVALID_ARGUMENT"
    with pytest.raises(grpc.RpcError) as error:
        caller.channel.unary_unary(
            "/topics.v1.QueueService/Redrive", queue_service_pb2.RedriveRequest.SerializeToString
        )(queue_service_pb2.RedriveRequest(topic="shop.a"), metadata=caller.metadata, timeout=30)
    assert error.value.code().name in ("INVALID_ARGUMENT", "FAILED_PRECONDITION")
    assert grpc_web(server, basic("busy")) == "0"


def test_probes_need_no_credential(server: ServerProcess) -> None:
    with api(server, "") as http:
        for path in ("/v0/health", "/v0/ready"):
            ok(http.send("GET", path))
        refused(http.send("GET", "/v0/topics"), 401, "unauthorized")
