"""Users and tokens that come and go: what a running server does, and how calls end."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from security.callers import ENV, api, basic, codes, grpc_web, kafka, rpc, token
from security.held import Held
from security.secure_server import audit_lines, reload

from support.bulk import START_SECONDS
from support.http import ok, refused
from support.server import ServerProcess
from support.tokens import claims, hs256, public_pem, rs256, rsa_key
from support.waiting import poll
from topics_gateway.connection_quota import hold_connection
from topics_gateway.transport.connection_resources import ConnectionResources
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc, sql_service_pb2, sql_service_pb2_grpc
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.access.auth import Principal, Role
from topics_service.api.access.quota import KeyLimits, Quotas

ROOT = basic("root")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("ends"), env=ENV, kafka=True) as server:
        with api(server, ROOT) as root:
            for topic in ("shop.a", "far"):
                ok(root.put(topic), 201)
                root.append(topic, 1)
        yield server
        assert "Traceback" not in server.log


def test_streams_end_with_their_token(server: ServerProcess) -> None:
    expires = int(time.time()) + 8  # time for all to begin
    with (
        kafka(server, "x", hs256(claims(exp=expires))) as wire,
        Held(server, token(exp=expires), "shop.a") as short,
        Held(server, token(), "shop.a") as long,
    ):
        assert codes(wire.call(ApiKey.METADATA, topics=[{"name": "shop.a"}])) == [0]
        assert short.ends() == {"sse": "RemoteProtocolError", "grpc": "UNAUTHENTICATED", "websocket": "cut"}
        assert time.time() >= expires
        assert codes(wire.call(ApiKey.METADATA, topics=[{"name": "shop.a"}])) == [29]
        assert wire.is_closed()
        with api(server, ROOT) as http:
            http.append("shop.a", "more")
        assert long.goes_on()


def test_a_fetch_that_waits_ends_with_its_token(server: ServerProcess) -> None:
    with kafka(server, "x", hs256(claims(exp=int(time.time()) + 5))) as wire:
        partition = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1 << 20}
        topics = [{"topic": "far", "partitions": [partition]}]
        wire.send(ApiKey.FETCH, 12, {"max_wait": 30_000, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics})
        assert wire.is_closed()


def test_users_come_and_go(tmp_path: Path) -> None:
    file, audit = tmp_path / "users", tmp_path / "audit"
    file.write_text("# operators\nops:sekret-1:dba\nshop:sekret-2:service:shop.\n")
    env = {"TOPICS_SQL_USERS_FILE": file, "TOPICS_AUDIT_LOG": audit}
    with ServerProcess(tmp_path / "s", env=env, kafka=True) as server:
        with api(server, basic("ops", "sekret-1")) as ops:
            ok(ops.put("shop.a"), 201)
            with (
                Held(server, basic("shop", "sekret-2"), "shop.a") as gone,
                Held(server, basic("ops", "sekret-1"), "shop.a") as kept,
            ):
                with kafka(server, "shop", "sekret-2") as wire:
                    file.write_text("ops:sekret-1:dba\nshop:sekret-3:service:shop.\nnew:sekret-4:user\n")
                    reload(server, "3 users, 1 of them new, 0 removed, 1 changed")
                    assert gone.ends() == {"sse": "RemoteProtocolError", "grpc": "UNAUTHENTICATED", "websocket": "cut"}
                    assert codes(wire.call(ApiKey.METADATA, topics=[{"name": "shop.a"}])) == [29]
                    assert wire.is_closed()
                ops.append("shop.a", 1)
                assert kept.goes_on(), "its password is the same"
            for header, status in ((basic("shop", "sekret-2"), 401), (basic("shop", "sekret-3"), 200),
                                   (basic("new", "sekret-4"), 403)):  # fmt: skip
                with api(server, header) as http:
                    assert http.diff("shop.a", from_seq=0).status_code == status
            file.write_text("ops:sekret-1:emperor\n")
            reload(server, "SIGHUP: the users stay as they were: TOPICS_SQL_USERS_FILE")
            ok(ops.get("shop.a"))
        assert server.stop() == 0
        reloads = [line for line in audit_lines(audit) if line["action"] == "users.reload"]
        assert [(line["outcome"], line.get("added"), line.get("changed")) for line in reloads] == [
            ("done", ["new"], ["shop"]), ("failed", None, None),
        ]  # fmt: skip
        assert "sekret" not in server.log + json.dumps(reloads)


def test_another_key_of_tokens(tmp_path: Path) -> None:
    file = tmp_path / "public.pem"
    file.write_bytes(public_pem(rsa_key()))
    env = {"TOPICS_JWT_PUBLIC_KEY_FILE": file, "TOPICS_BULK_READERS": 0}
    with ServerProcess(tmp_path / "s", env=env) as server:
        old, new = (f"Bearer {rs256(claims('dba'), rsa_key(number=number))}" for number in range(2))
        confused = f"Bearer {hs256(claims('dba'), file.read_bytes())}"
        with api(server, old) as http:
            ok(http.put("a"), 201)
        with Held(server, old, "a") as held:
            for wrong in (new, confused, token("dba"), ""):
                with api(server, wrong) as http:
                    refused(http.get("a"), 401, "unauthorized")
            file.write_text("rubbish")
            reload(server, "SIGHUP: the key of tokens stays as it was")
            file.write_bytes(public_pem(rsa_key(number=1)))
            reload(server, "SIGHUP: the key of tokens was read again and is another one")
            assert held.ends() == {"sse": "RemoteProtocolError", "grpc": "UNAUTHENTICATED", "websocket": "cut"}
        for header, status in ((old, 401), (new, 200)):
            with api(server, header) as http:
                assert http.get("a").status_code == status
        reload(server, "SIGHUP: the key of tokens was read again and is the same")


def test_a_user_who_changes_itself_gets_the_answer(server: ServerProcess) -> None:
    """Everything else that runs under it ends."""
    with api(server, ROOT) as root:
        ok(root.send("POST", "/api/sql", {"sql": "CREATE USER 'self' WITH PASSWORD 'sekret-1' ROLE dba"}))
    with Held(server, basic("self", "sekret-1"), "shop.a") as held, api(server, basic("self", "sekret-1")) as http:
        ok(http.send("POST", "/api/sql", {"sql": "ALTER USER 'self' SET PASSWORD 'sekret-2'"}))
        assert held.ends() == {"sse": "RemoteProtocolError", "grpc": "UNAUTHENTICATED", "websocket": "cut"}
        refused(http.get("shop.a"), 401, "unauthorized")
    caller = rpc(server, basic("self", "sekret-2"))
    stub = sql_service_pb2_grpc.SqlServiceStub(caller.channel)
    request = sql_service_pb2.ExecuteRequest(sql="DROP USER 'self'")
    assert stub.Execute(request, metadata=caller.metadata, timeout=30).results[0].message == "DROP USER"
    assert caller.refused("GetTopic", pb.GetTopicRequest(topic="shop.a")).code == "UNAUTHENTICATED"


def test_connections_with_any_number_of_subjects_are_bounded() -> None:
    """As those of a proxy, which carries the requests of everyone."""
    quotas, resources = Quotas(KeyLimits(connections=5)), ConnectionResources()
    scope = {"state": {"connection_resources": resources}}
    for number in range(1500):
        principal = Principal(f"jwt:{number}", frozenset(), None, Role.SERVICE)
        for _ in range(2):
            hold_connection(scope, principal, quotas.for_key(principal.key_id))
    assert len(resources.held) == 1000
    usage = quotas.for_key("jwt:1499")
    assert (usage.connections, quotas.for_key("jwt:0").connections) == (1, 0)
    resources.close()
    assert usage.connections == 0


def test_a_user_of_create_user_on_every_interface(tmp_path: Path) -> None:
    """After a restart too, with a password that the settings could not hold; bulk readers do not know it."""
    password = "sekret: with, colons"
    header = basic("made", password)
    server = ServerProcess(tmp_path, env=ENV | {"TOPICS_BULK_READERS": 1}, kafka=True).start()
    try:
        with api(server, ROOT) as root:
            ok(root.put("shop.a"), 201)
            statement = f"CREATE USER 'made' WITH PASSWORD '{password}' ROLE service"
            ok(root.send("POST", "/api/sql", {"sql": statement}))
        for _ in range(2):
            with api(server, header) as http:
                ok(http.get("shop.a"))
                refused(http.put("x"), 403, "forbidden")
            with api(server, basic("made", "other")) as http:
                refused(http.get("shop.a"), 401, "unauthorized")
            assert grpc_web(server, header) == "0"
            caller = rpc(server, header)
            assert caller.call("GetTopic", pb.GetTopicRequest(topic="shop.a")).state.topic == "shop.a"
            poll(lambda: readers_known_to(server, ROOT), START_SECONDS, "a bulk reader")
            assert readers_known_to(server, header) == 0
            kafka(server, "made", password).close()
            assert server.stop() == 0
            server.start()
        with api(server, ROOT) as root:
            ok(root.send("POST", "/api/sql", {"sql": "DROP USER 'made'"}))
        with api(server, header) as http:
            refused(http.get("shop.a"), 401, "unauthorized")
        assert server.stop() == 0
        assert "sekret" not in server.log
    finally:
        server.kill()


def readers_known_to(server: ServerProcess, authorization: str) -> int:
    """The number of bulk readers that the server tells of."""
    with grpc.insecure_channel(server.grpc_target) as channel:
        stub = admin_service_pb2_grpc.AdminServiceStub(channel)
        request = admin_service_pb2.ListBulkReadersRequest()
        reply = stub.ListBulkReaders(request, metadata=(("authorization", authorization),), timeout=30)
    return len(reply.readers)
