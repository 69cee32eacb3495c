"""The audit log: every change over every protocol, once, with caller and outcome; and its file."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from protocols.conftest import Grpc, with_key
from security.held import bearer
from security.secure_server import audit_lines, refusal

from support.http import Api, ok, refused
from support.kafka_wire import Wire
from support.server import ServerProcess
from support.waiting import poll
from support.ws import WebSocket
from topics_kafka.protocol import ApiKey
from topics_kafka.registry import APIS, AUDIT_ACTIONS
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc, record_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.keys import fingerprint
from topics_service.api.access.auth import Scope
from topics_service.api.access.authorizer import RULES
from topics_service.api.audit import ACTIONS

OPS, READER = "sekret-ops", "sekret-reader"
OPS_ID, READER_ID = fingerprint(OPS.encode()), fingerprint(READER.encode())


class Audited:
    """A server with an audit log, and the lines that come."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "audit.log"
        keys = f"{OPS},{READER}:read,sekret-t42::t42:"
        env = {"TOPICS_API_KEYS": keys, "TOPICS_AUDIT_LOG": self.file}
        self.server = ServerProcess(folder / "server", env=env, kafka=True)
        self._seen = 0

    def line(self) -> dict[str, Any]:
        """The next line, and no other one; without time and port."""
        poll(lambda: len(audit_lines(self.file)) > self._seen, 20, "a line of the audit log")
        lines = audit_lines(self.file)[self._seen :]
        assert len(lines) == 1, lines
        self._seen += 1
        (line,) = lines
        assert line.pop("time").endswith("Z")
        host, _, port = line.pop("peer").rpartition(":")
        assert host == "127.0.0.1"
        assert port.isdigit()
        return line

    def skip(self) -> None:
        """What has been written does not count; nothing is on its way."""
        self._seen = len(audit_lines(self.file))


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    audited = Audited(tmp_path_factory.mktemp("audit"))
    with audited.server as server:
        yield audited
        assert server.stop() == 0
        assert "Traceback" not in server.log
        assert "sekret" not in server.log + audited.file.read_text()


@pytest.fixture(scope="module")
def ops(audited: Audited) -> Iterator[Api]:
    with with_key(audited.server.base, OPS) as api:
        yield api


def done(action: str, door: str = "http", **facts: Any) -> dict[str, Any]:
    return {"action": action, "outcome": "done", "door": door, "key": OPS_ID, **facts}


# ------------------------------------------------------------------ every protocol


def test_every_change_over_http(audited: Audited, ops: Api) -> None:
    ok(ops.put("a", ttl_ms=5000), 201)
    assert audited.line() == done("topic.put", topic="a", config={"ttl_ms": 5000}, created=True)
    ok(ops.write("b", [{"data": 1}], config={"type": "queue", "dead_letter": "dead"}), 201)
    config = {"type": "queue", "dead_letter": "dead"}
    assert audited.line() == done("topic.put", topic="b", created=True, by="append", config=config)
    ops.append("a", 1, 2, 3)  # records are no matter of this log
    ops.rm("a", before_seq=2)
    assert audited.line() == done("records.delete", topic="a", partition=0, before_seq=2, match=None, deleted=1)
    ok(ops.send("PUT", "/v0/routers/r", {"source": "a", "dest": "c"}), 201)
    line = audited.line()
    assert (line["action"], line["router"], line["created"]) == ("router.put", "r", True)
    assert (line["config"]["source"], line["config"]["dest"]) == ("a", "c")
    ok(ops.send("DELETE", "/v0/routers/r"))
    assert audited.line() == done("router.delete", router="r", deleted=True)
    ok(ops.send("POST", "/v0/topics/b/redrive", {}))
    line = audited.line()
    assert (line["action"], line["topic"], line["redriven"]) == ("queue.redrive", "b", 0)
    ok(ops.drop("a"))
    line = audited.line()
    assert (line["action"], line["topic"], line["deleted"]) == ("topic.delete", "a", True)


def test_changes_of_groups(audited: Audited, ops: Api) -> None:
    ok(ops.put("g"), 201)
    audited.line()
    ops.append("g", 1, 2)
    ok(ops.send("POST", "/v0/groups/team/commit", {"positions": [{"topic": "g", "from_seq": 1}]}), 200, 201)
    ok(ops.send("POST", "/v0/groups/team/reset", {"to": "earliest"}))
    line = audited.line()
    assert (line["action"], line["group"], line["to"], line["moved"]) == ("group.reset", "team", "earliest", 1)
    ok(ops.send("DELETE", "/v0/groups/team"))
    assert audited.line() == done("group.delete", group="team", deleted=True)


def test_over_grpc(audited: Audited) -> None:
    caller = Grpc(audited.server.grpc_target, OPS)
    caller.call("PutTopic", pb.PutTopicRequest(topic="grpc"))
    assert audited.line() == done("topic.put", "grpc", topic="grpc", config={}, created=True)
    record = record_pb2.AppendRecord(data=b"1")
    caller.call("Append", pb.AppendRequest(topic="grpc2", records=[record]))
    assert audited.line() == done("topic.put", "grpc", topic="grpc2", created=True, by="append")
    batches = iter([pb.AppendStreamRequest(append=pb.AppendRequest(topic="grpc3", records=[record]))])
    list(caller.topics.AppendStream(batches, metadata=bearer(OPS), timeout=30))
    assert audited.line() == done("topic.put", "grpc", topic="grpc3", created=True, by="append")
    caller.call("DeleteTopic", pb.DeleteTopicRequest(topic="grpc"))
    assert audited.line()["action"] == "topic.delete"
    caller.channel.close()


def test_over_web_sockets(audited: Audited) -> None:
    with WebSocket(audited.server.base, key=OPS) as socket:
        socket.publish("ws", 1, config={"cap_records": 5})
        config = {"cap_records": 5}
        assert audited.line() == done("topic.put", "websocket", topic="ws", created=True, by="append", config=config)
        socket.publish("ws", 2)


def test_over_kafka(audited: Audited) -> None:
    with Wire(audited.server.kafka_port) as wire:
        wire.authenticate(OPS)
        new = {"name": "kafka", "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
        wire.call(ApiKey.CREATE_TOPICS, topics=[new], timeout_ms=1000, validate_only=False)
        line = audited.line()
        assert (line["action"], line["door"], line["key"]) == ("topic.put", "kafka", OPS_ID)
        assert (line["topic"], line["partition_count"], line["created"]) == ("kafka", 2, True)
        partitions = [{"partition_index": 0, "offset": 0}]
        wire.call(ApiKey.DELETE_RECORDS, topics=[{"name": "kafka", "partitions": partitions}], timeout_ms=1000)
        audited.skip()
        wire.call(ApiKey.METADATA, topics=[{"name": "by-metadata"}], allow_auto_topic_creation=True)
        assert audited.line() == done("topic.put", "kafka", topic="by-metadata", config={}, created=True)
        group, committed = "kafka-team", {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
        commit = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        topics = [{"name": "kafka", "partitions": [committed]}]
        assert not wire.call(ApiKey.OFFSET_COMMIT, 8, **commit, topics=topics)["topics"][0]["partitions"][0][
            "error_code"
        ]
        places = [{"name": "kafka", "partitions": [{"partition_index": 0}]}]
        assert wire.call(ApiKey.OFFSET_DELETE, group_id=group, topics=places)["error_code"] == 0
        assert audited.line() == done("group.delete_positions", "kafka", group=group, topics=["kafka"])
        some = [*places, {"name": "none", "partitions": [{"partition_index": 0}]}]
        for named, topics, reason in (
            (group, some, "unknown_topic_or_partition"),
            ("none", places, "group_id_not_found"),
        ):
            wire.call(ApiKey.OFFSET_DELETE, group_id=named, topics=topics)
            line = done("group.delete_positions", "kafka", group=named, topics=[topic["name"] for topic in topics])
            assert audited.line() == {**line, "outcome": "refused", "reason": reason}
        wire.call(ApiKey.DELETE_GROUPS, groups_names=[group])
        line = audited.line()
        assert (line["action"], line["group"], line["door"]) == ("group.delete", group, "kafka")
        wire.call(ApiKey.DELETE_TOPICS, 3, topic_names=["kafka"], timeout_ms=1000)
        line = audited.line()
        assert (line["action"], line["topic"], line["door"], line["key"]) == ("topic.delete", "kafka", "kafka", OPS_ID)


# ------------------------------------------------------------------- refusals


def test_who_may_not_is_logged(audited: Audited) -> None:
    denied = {"outcome": "refused", "key": READER_ID, "reason": "forbidden"}
    with with_key(audited.server.base, READER) as reader:
        refused(reader.drop("a"), 403, "forbidden")
        assert audited.line() == {"action": "topic.delete", "door": "http", "topic": "a", **denied}
        refused(reader.send("PUT", "/v0/routers/x", {}), 403, "forbidden")
        assert audited.line() == {"action": "router.put", "door": "http", "router": "x", **denied}
        refused(reader.write("a", [{"data": 1}]), 403, "forbidden")  # no change that is logged
    caller = Grpc(audited.server.grpc_target, READER)
    assert caller.refused("DeleteTopic", pb.DeleteTopicRequest(topic="a")).reason == "FORBIDDEN"
    assert audited.line() == {"action": "topic.delete", "door": "grpc", "topic": "a", **denied}
    caller.channel.close()
    with Wire(audited.server.kafka_port) as wire:
        wire.authenticate(READER)
        wire.call(ApiKey.DELETE_TOPICS, 3, topic_names=["a"], timeout_ms=1000)
        assert audited.line() == {"action": "topic.delete", "door": "kafka", "topic": "a", **denied}
        partitions = [{"partition_index": 0, "offset": 0}, {"partition_index": 1, "offset": 0}]
        wire.call(ApiKey.DELETE_RECORDS, topics=[{"name": "a", "partitions": partitions}], timeout_ms=1000)
        assert audited.line() == {"action": "records.delete", "door": "kafka", "topic": "a", **denied}
        wire.call(ApiKey.DELETE_GROUPS, groups_names=["team"])
        assert audited.line() == {"action": "group.delete", "door": "kafka", "group": "team", **denied}
    with with_key(audited.server.base, "sekret-t42") as tenant:
        refused(tenant.put("other"), 403, "forbidden")
        assert audited.line()["reason"] == "forbidden"
        refused(tenant.put("t42:q", type="queue", dead_letter="other"), 403, "forbidden")  # by a name in the body
        line = audited.line()
        assert (line["outcome"], line["reason"], line["topic"]) == ("refused", "forbidden", "t42:q")


def test_what_fails_is_logged_with_its_reason(audited: Audited, ops: Api) -> None:
    refused(ops.put("queue-or-log", type="queue", dead_letter="queue-or-log"), 400, "invalid_request")
    line = audited.line()
    assert (line["outcome"], line["reason"]) == ("refused", "invalid_request")
    with with_key(audited.server.base, None) as nobody:  # an unknown caller changes nothing, and fills no disk
        refused(nobody.drop("a"), 401, "unauthorized")
    ok(ops.put("marker"), 201)
    assert audited.line()["topic"] == "marker"


def test_checkpoints(audited: Audited) -> None:
    with grpc.insecure_channel(audited.server.grpc_target) as channel:
        stub = admin_service_pb2_grpc.AdminServiceStub(channel)
        request = admin_service_pb2.CreateCheckpointRequest()
        made = stub.CreateCheckpoint(request, metadata=bearer(OPS), timeout=20).checkpoint_id
        line = audited.line()
        assert (line["action"], line["checkpoint"], line["key"]) == ("checkpoint.create", made, OPS_ID)
        release = admin_service_pb2.ReleaseCheckpointRequest(checkpoint_id=made)
        stub.ReleaseCheckpoint(release, metadata=bearer(OPS), timeout=20)
        assert audited.line() == done("checkpoint.release", "grpc", checkpoint=made, released=True)
        for key in (READER, "sekret-t42"):  # which lacks the scope, and which has prefixes
            with pytest.raises(grpc.RpcError) as error:
                stub.CreateCheckpoint(request, metadata=bearer(key), timeout=20)
            assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
            line = audited.line()
            assert (line["action"], line["reason"], line["checkpoint"]) == ("checkpoint.create", "forbidden", None)
            assert line["key"] == fingerprint(key.encode())


def test_nobody_forges_a_line(audited: Audited, ops: Api) -> None:
    for name in ('x"}\n{"action":"topic.delete"', "\u2028\r\n", "n" * 100_000):
        with with_key(audited.server.base, READER) as reader:
            refused(reader.put(name[:10_000]), 403, "forbidden")
        line = audited.line()
        assert (line["action"], line["key"]) == ("topic.put", READER_ID)
        assert len(line["topic"]) <= 513


def test_no_key_shows_in_answers_or_metrics(audited: Audited, ops: Api) -> None:
    caller = Grpc(audited.server.grpc_target, "sekret-nobody")
    failure = caller.refused("GetTopic", pb.GetTopicRequest(topic="a"))
    caller.channel.close()
    with with_key(audited.server.base, "sekret-nobody") as nobody:
        answer = nobody.get("a", token="sekret-nobody")
    shown = [str(failure), answer.text, str(answer.headers), ops.send("GET", "/v0/metrics").text]
    assert not [text for text in shown if "sekret" in text or OPS_ID in text]


# ----------------------------------------------------------------------- file


def test_without_keys_there_is_no_key_to_tell(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_AUDIT_LOG": "-"}) as server, Api(server.base) as api:
        ok(api.put("a"), 201)
        poll(lambda: '"action":"topic.put"' in server.log, 20, "a line on stderr")
        (line,) = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
        assert (line["key"], line["topic"]) == (None, "a")


def test_logrotate(audited: Audited, ops: Api) -> None:
    moved = audited.file.with_suffix(".1")
    audited.file.rename(moved)
    ok(ops.put("before"), 201)
    poll(lambda: '"before"' in moved.read_text(), 20, "a line in the old file")
    os.kill(audited.server.pid, signal.SIGHUP)
    poll(audited.file.exists, 20, "a new file")
    assert audited.file.stat().st_mode & 0o777 == 0o600
    ok(ops.put("after"), 201)
    poll(lambda: '"after"' in audited.file.read_text(), 20, "a line in the new file")
    assert '"after"' not in moved.read_text()
    audited.file.write_text(moved.read_text() + audited.file.read_text())
    audited.skip()


def test_a_file_that_cannot_be_opened_is_a_refusal(tmp_path: Path) -> None:
    assert refusal(tmp_path, TOPICS_AUDIT_LOG=tmp_path).startswith("topics: TOPICS_AUDIT_LOG")
    assert "No such file" in refusal(tmp_path, TOPICS_AUDIT_LOG=tmp_path / "no" / "file")


def test_every_rpc_that_takes_admin_or_delete_is_audited() -> None:
    dangerous = {Scope.ADMIN, Scope.DELETE}
    wanted = {rpc for rpc, rule in RULES.items() if rule.scopes & dangerous and rpc.startswith("topics.v1.")}
    assert wanted <= set(ACTIONS)
    # They show ACLs, quotas and credentials, elect and move nothing, and refuse each change.
    changes_nothing = {29, 30, 31, 43, 45, 48, 49, 50, 51}
    audited = {key for key, api in APIS.items() if api.rule.scopes & dangerous} - changes_nothing
    assert audited == set(AUDIT_ACTIONS)
