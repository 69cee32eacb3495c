"""Every case of `cases`, over HTTP and over gRPC on one running server: the answers must be the same."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import quote

import grpc
import msgspec
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from protocols.cases import CASES, Case, Step

from support.http import Api, envelope
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import errors_pb2, record_pb2, topic_pb2, topics_service_pb2, topics_service_pb2_grpc

Answer = dict[str, Any]
_runs = itertools.count(1)
_PARTITION = ("partition", "head_seq", "earliest_seq", "next_seq", "count", "bytes")
_RULES = {
    value.GetOptions().Extensions[errors_pb2.rule].code: value.GetOptions().Extensions[errors_pb2.rule]
    for value in errors_pb2.ErrorReason.DESCRIPTOR.values
}


class Client(Protocol):
    """One way in. `ask` gives the answer in the terms of `cases`; a refusal has `error` and `detail`."""

    letter: str

    def ask(self, step: Step) -> Answer: ...


def refusal(code: str, detail: dict[str, Any], retry: bool) -> Answer:
    """A refusal; every value of the detail as text, as google.rpc.ErrorInfo has it."""
    assert retry == _RULES[code].retryable, code
    flat = {name: value if isinstance(value, str) else json.dumps(value) for name, value in detail.items()}
    return {"error": code, "detail": flat}


class HttpClient:
    letter = "h"

    def __init__(self, base: str) -> None:
        self._api = Api(base)

    def close(self) -> None:
        self._api.close()

    def ask(self, step: Step) -> Answer:
        call = {
            "put": ("PUT", "", ("config",)),
            "get": ("GET", "", ("touch", "partition")),
            "list": ("GET", "", ("prefix", "page_size", "cursor", "touch")),
            "drop": ("DELETE", "", ("if_empty",)),
            "append": ("POST", "", ("return_seqs",)),
            "diff": ("POST", "/diff", ()),
            "delete": ("POST", "/delete", ()),
        }[step.op]
        method, tail, query = call
        path = f"/v0/topics/{quote(step.topic, safe='')}{tail}" if step.topic else "/v0/topics"
        params = {name: _query(value) for name, value in step.request.items() if name in query}
        body = None
        if method == "PUT":
            body, params = json.dumps({**step.request["config"], **_counted(step.request)}), {}
        elif method == "POST":
            body = _body({name: value for name, value in step.request.items() if name not in query})
        response = self._api.send(method, path, body, params=params)
        if response.status_code >= 400:
            error = envelope(response.json())
            assert response.status_code == _RULES[error["code"]].http_status
            return refusal(error["code"], error.get("detail", {}), "retry-after" in response.headers)
        reply = response.json()
        assert (response.status_code == 201) == reply.get("created", False)
        performance = reply.pop("performance")
        if step.op in ("put", "get"):
            reply.setdefault("partition_count", 1)
        if step.op in ("get", "append", "diff", "delete"):
            reply.setdefault("partition", 0)
        if step.op == "list":
            for topic in reply["topics"]:
                topic.setdefault("partition_count", 1)
            reply.setdefault("next_cursor", "")
        elif step.op == "append":
            reply.setdefault("seqs", [])
        elif step.op == "get":
            for name in ("last_write_ts", "last_read_ts"):
                reply[name] = reply[name] is not None
            for each in reply.setdefault("partitions", []):
                each["last_write_ts"] = each["last_write_ts"] is not None
        elif step.op == "diff":
            raws = msgspec.json.decode(response.content, type=_Page).records
            reply["records"] = [_record(raw) for raw in raws]
        return _settle(reply, performance)


class GrpcClient:
    letter = "g"

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target, [("grpc.max_receive_message_length", -1)])
        self._stub = topics_service_pb2_grpc.TopicsServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def ask(self, step: Step) -> Answer:
        try:
            return getattr(self, f"_{step.op}")(step.topic, dict(step.request))
        except grpc.RpcError as error:
            return _failure(error)

    def _put(self, topic: str, request: Answer) -> Answer:
        reply = self._call("PutTopic", topic=topic, config=_config(request["config"]), **_counted(request))
        return _settle(
            {
                "topic": reply.topic,
                "created": reply.created,
                "partition_count": reply.partition_count,
                "config": _read_config(reply.config),
                **{name: getattr(reply, name) for name in ("topic_id", "slug", "rrl", "epoch")},
            },
            _timings(reply),
        )

    def _get(self, topic: str, request: Answer) -> Answer:
        reply = self._call("GetTopic", topic=topic, **request)
        state = reply.state
        names = ("topic", "head_seq", "earliest_seq", "next_seq", "count", "bytes", "effective_priority", "partition")
        return _settle(
            {name: getattr(state, name) for name in (*names, "topic_id", "slug", "rrl", "epoch", "partition_count")}
            | {
                "partitions": [
                    {name: getattr(each, name) for name in _PARTITION}
                    | {"last_write_ts": each.HasField("last_write_ts_ms")}
                    for each in state.partitions
                ],
                "type": _name(topic_pb2.TopicType, state.type),
                "config": _read_config(state.config),
                "last_write_ts": state.HasField("last_write_ts_ms"),
                "last_read_ts": state.HasField("last_read_ts_ms"),
            }
            | ({"queue": _queue(state.queue)} if state.HasField("queue") else {}),
            _timings(reply),
        )

    def _list(self, _: str, request: Answer) -> Answer:
        reply = self._call("ListTopics", **request)
        names = (
            "topic", "head_seq", "earliest_seq", "count", "bytes", "durable", "effective_priority", "partition_count",
        )  # fmt: skip
        topics = [{name: getattr(topic, name) for name in names} for topic in reply.topics]
        return _settle({"topics": topics, "next_cursor": reply.next_cursor}, _timings(reply))

    def _drop(self, topic: str, request: Answer) -> Answer:
        reply = self._call("DeleteTopic", topic=topic, **request)
        removed = list(reply.routers_removed)
        return _settle({"topic": reply.topic, "deleted": reply.deleted, "routers_removed": removed}, _timings(reply))

    def _append(self, topic: str, request: Answer) -> Answer:
        records = [
            topics_service_pb2.AppendRequest.DESCRIPTOR.fields_by_name["records"].message_type._concrete_class(
                **{name: value.encode() if name in ("data", "meta") else value for name, value in record.items()}
            )
            for record in request.pop("records")
        ]
        if "config" in request:
            request["config"] = _config(request["config"])
        reply = self._call("Append", topic=topic, records=records, **request)
        names = ("topic", "partition", "first_seq", "last_seq", "head_seq", "count", "created", "deduped")
        return _settle({name: getattr(reply, name) for name in names} | {"seqs": list(reply.seqs)}, _timings(reply))

    def _diff(self, topic: str, request: Answer) -> Answer:
        reply = self._call("Diff", topic=topic, **request)
        names = ("topic", "partition", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "lag")
        tombstone = None
        if reply.HasField("tombstone"):
            tombstone = {
                field.name: getattr(reply.tombstone, field.name) for field in reply.tombstone.DESCRIPTOR.fields
            }
            tombstone["reason"] = _name(record_pb2.GapReason, tombstone["reason"])
        records = []
        for record in reply.records:
            assert record.kind == record_pb2.RECORD_KIND_JSON
            assert record.ts_ms > 0
            shown = {"$seq": record.seq, "data": record.data.decode()}
            shown |= {f"${name}": getattr(record, name) for name in ("node", "tag") if record.HasField(name)}
            records.append(shown | ({"meta": record.meta.decode()} if record.meta else {}))
        fields = {name: getattr(reply, name) for name in names}
        return _settle(fields | {"tombstone": tombstone, "records": records}, _timings(reply))

    def _delete(self, topic: str, request: Answer) -> Answer:
        if match := request.pop("match", None):
            request["match"] = record_pb2.TagMatch(**{match[0]: match[1]})
        reply = self._call("DeleteRecords", topic=topic, **request)
        names = ("topic", "partition", "deleted", "earliest_seq", "head_seq", "count", "bytes")
        return _settle({name: getattr(reply, name) for name in names}, _timings(reply))

    def _call(self, method: str, **fields: Any) -> Any:
        descriptor = topics_service_pb2.DESCRIPTOR.services_by_name["TopicsService"].methods_by_name[method]
        request = getattr(topics_service_pb2, descriptor.input_type.name)(**fields)
        return getattr(self._stub, method)(request, timeout=20)


class _Page(msgspec.Struct):
    records: list[dict[str, msgspec.Raw]]


def _record(raws: dict[str, msgspec.Raw]) -> Answer:
    texts = {name: bytes(raw).decode() for name, raw in raws.items()}
    assert int(texts.pop("$ts")) > 0
    return {name: text if name in ("data", "meta") else json.loads(text) for name, text in texts.items()}


def _failure(error: Any) -> Answer:
    status = rpc_status.from_call(error)
    assert status is not None, error
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    retries = any(detail.Unpack(retry) for detail in status.details)
    assert status.details[0].Unpack(info)
    assert status.message
    assert info.domain == "topics"
    assert error.code().name == _RULES[info.reason.lower()].grpc_status
    return refusal(info.reason.lower(), dict(info.metadata), retries)


def _members(texts: dict[str, str]) -> str:
    joined = ",".join(f'"{name}":{text}' for name, text in texts.items())
    return f"{{{joined}}}"


def _body(request: dict[str, Any]) -> str:
    """The JSON body of a POST, the texts of data and meta spliced in as they are."""
    members = {name: json.dumps(value) for name, value in request.items() if name not in ("records", "match")}
    if "records" in request:
        records = [
            {name: value if name in ("data", "meta") else json.dumps(value) for name, value in record.items()}
            for record in request["records"]
        ]
        members["records"] = f"[{','.join(map(_members, records))}]"
    if "match" in request:
        rule, value = request["match"]
        members["match"] = json.dumps(["tag", "Eq", value] if rule == "eq" else ["tag", "Glob", value + "*"])
    return _members(members)


def _counted(request: dict[str, Any]) -> dict[str, Any]:
    return {"partition_count": request["partition_count"]} if "partition_count" in request else {}


def _query(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


_ENUMS = {
    "type": (topic_pb2.TopicType, "TOPIC_TYPE_"),
    "discard": (topic_pb2.DiscardPolicy, "DISCARD_POLICY_"),
    "durability": (topic_pb2.Durability, "DURABILITY_"),
}


def _config(config: dict[str, Any]) -> topic_pb2.TopicConfig:
    fields = dict(config)
    for name, (enum, prefix) in _ENUMS.items():
        if name in fields:
            label = prefix + fields[name].upper()
            fields[name] = enum.Value(label) if label in enum.keys() else 99  # noqa: SIM118  # not a dict
    return topic_pb2.TopicConfig(**fields)


def _queue(message: topic_pb2.QueueState) -> Answer:
    """Return what the contract has of it; the rest is gRPC's alone (tests/protocols/test_queue_failures.py)."""
    return {name: value for name, value in _fields(message).items() if name not in ("delayed", "retrying", "exhausted")}


def _fields(message: Any) -> Answer:
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def _read_config(message: topic_pb2.TopicConfig) -> Answer:
    fields: Answer = {"priority": None, "dead_letter": None}
    for field, value in message.ListFields():
        fields[field.name] = _name(_ENUMS[field.name][0], value) if field.name in _ENUMS else value
    return fields


def _name(enum: Any, number: int) -> str:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.DESCRIPTOR.name).upper() + "_"
    return str(enum.Name(number)).removeprefix(prefix).lower()


def _timings(reply: Any) -> Answer:
    timings = {field.name: value for field, value in reply.performance.ListFields()}
    return {"server_total_ms": 0.0} | timings


def _settle(reply: Answer, performance: Answer) -> Answer:
    """Without what differs from run to run; with a few views that cases ask for."""
    assert performance.pop("server_total_ms") >= 0
    performance.pop("throttle_wait_ms", None)  # either protocol may leave it out
    if "fsync_ms" in performance:
        performance["fsync_ms"] = 0
    for name in ("topic_id", "slug", "rrl", "epoch"):
        reply.pop(name, None)
    for state in (reply, *reply.get("topics", ())):
        if 400 <= state.get("effective_priority", 0) <= 500 and state.get("config", {}).get("priority") is None:
            state["effective_priority"] = 500
    reply["$timings"] = sorted(performance)
    if "records" in reply:
        reply["$scanned"] = performance["records_scanned"]
        reply["$seqs"] = [record["$seq"] for record in reply["records"]]
        reply["$datas"] = [record["data"] for record in reply["records"]]
        for view, name in (("$tags", "$tag"), ("$nodes", "$node"), ("$metas", "meta")):
            reply[view] = [record.get(name) for record in reply["records"]]
    return reply


@pytest.fixture(scope="session")
def clients(server: ServerProcess) -> Iterator[list[Client]]:
    yield from _open(server)


@pytest.fixture(scope="session")
def small_clients(small_server: ServerProcess) -> Iterator[list[Client]]:
    yield from _open(small_server)


def _open(server: ServerProcess) -> Iterator[list[Client]]:
    http, grpc_ = HttpClient(server.base), GrpcClient(server.grpc_target)
    yield [http, grpc_]
    http.close()
    grpc_.close()


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_protocols_agree(case: Case, request: pytest.FixtureRequest) -> None:
    both: list[Client] = request.getfixturevalue("small_clients" if case.small else "clients")
    run = next(_runs)
    answers = [_run(case, client, run) for client in both]
    for step, over_http, over_grpc in zip(case.steps, *answers, strict=True):
        assert over_http == over_grpc, f"{case.name}: {step}"


def _run(case: Case, client: Client, run: int) -> list[Answer]:
    names = {f"{{{letter}}}": f"{letter}{client.letter}{run:05}" for letter in "tuvw"}
    cursor = ""
    answers = []
    for step in case.steps:
        actual = Step(
            step.op,
            _replaced(step.topic, names),
            _replaced(step.request, names | {"<next>": cursor}),
            want=_replaced(step.want, names),
            until=step.until,
        )
        answer = _ask(client, actual)
        _check(answer, actual.want, f"{case.name} over {client.letter}: {actual}")
        cursor = answer.get("next_cursor", "")
        answers.append(_replaced(_without_cursor(answer), {name: key for key, name in names.items()}))
    if case.small:
        for name in names.values():
            client.ask(Step("drop", name, {}))
    return answers


def _ask(client: Client, step: Step) -> Answer:
    if not step.until:
        return client.ask(step)

    def reached() -> Answer | None:
        answer = client.ask(step)
        return answer if step.until.items() <= {k: v for k, v in answer.items() if k in step.until}.items() else None

    if any(isinstance(value, list) for value in step.until.values()):

        def reached() -> Answer | None:
            answer = client.ask(step)
            return answer if all(answer.get(name) == value for name, value in step.until.items()) else None

    return poll(reached, what=str(step))


def _without_cursor(answer: Answer) -> Answer:
    """Cursors hold names; that they are the same text is for the walk through the pages to show."""
    return answer | ({"next_cursor": bool(answer["next_cursor"])} if "next_cursor" in answer else {})


def _check(answer: Answer, want: Answer, where: str) -> None:
    if "error" in want and "detail" in want:
        want = refusal(want["error"], want["detail"], _RULES[want["error"]].retryable)
    for name, value in want.items():
        got = answer.get(name)
        if isinstance(value, dict) and isinstance(got, dict) and name == "tombstone":
            got = {key: got.get(key) for key in value}
        elif name == "topics":
            assert isinstance(got, list), where
            assert len(got) == len(value), f"{where}: {got}"
            got = [{key: topic.get(key) for key in wanted} for topic, wanted in zip(got, value, strict=True)]
        assert got == value, f"{where}: {name} is {got!r} in {answer}"


def _replaced(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, dict):
        return {_replaced(key, names): _replaced(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(item, names) for item in value)
    return value
