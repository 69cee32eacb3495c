"""Checks of every answer to a random request, on either protocol: honest, and in the terms of the error registry."""

import gzip
import json
import re
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from protocols.strategies import GrpcCall, HttpCall

from support.arrow import arrow_rows
from support.grpc_on_engine import rows
from support.http import envelope
from topics_proto.v1 import errors_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.engine.errors import Reason

REASONS = {reason.code: reason.value for reason in Reason}
PROBES: Final = ("/v0/health", "/v0/ready", "/healthz", "/readyz")
EXPECTED = set(REASONS) - {"internal", "not_ready", "shutting_down"}


def check_text(text: str) -> None:
    """Nothing of the inside is shown."""
    assert "Traceback" not in text, text[:2000]
    assert 'File "/' not in text, text[:2000]


def check_http(call: HttpCall, status: int, headers: dict[str, str], body: bytes) -> str:
    """One answer of the HTTP API; its status, and the code of an error."""
    assert headers["content-length"].isdigit()
    if call.method == "HEAD":
        assert body == b""
    else:
        assert int(headers["content-length"]) == len(body)
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
    assert status in (200, 201) or 400 <= status < 500, (status, body[:500])
    check_text(body.decode())
    is_foreign = not call.keyed and ("Host", "evil") in call.headers and call.manner != "http2"  # which sends its own
    if status < 300:
        assert not is_foreign or call.target.startswith(PROBES), "only probes are served under any name"
        if call.method != "HEAD" and headers["content-type"] == "application/json":
            check_http_success(call, status, json.loads(body))
        elif call.method != "HEAD":
            assert headers["content-type"] == "text/plain; version=0.0.4"
        return str(status)
    assert headers["content-type"] == "application/json"
    if call.method == "HEAD":
        return str(status)
    answer = json.loads(body)
    code = envelope(answer)["code"]
    assert code in EXPECTED
    assert (status, code) == (431, "invalid_request") or REASONS[code].http_status == status
    assert ("retry-after" in headers) == REASONS[code].retryable
    assert call.keyed or code != "unauthorized"
    assert call.keyed or code != "forbidden" or is_foreign
    assert answer["performance"]["server_total_ms"] >= 0
    return f"{status} {code}"


def check_http_success(call: HttpCall, status: int, answer: Any) -> None:
    """A success over HTTP."""
    assert isinstance(answer, dict)
    assert "error" not in answer
    assert (status == 201) == answer.get("created", False)
    if not {"status", "uptime_ms"} & set(answer):  # no probe, no metrics; a target may name a route in many ways
        performance = answer["performance"]
        assert performance["server_total_ms"] >= 0
        if "deduped" in answer:
            assert answer["last_seq"] - answer["first_seq"] + 1 == answer["count"] > 0
            assert answer["deduped"] or {"wal_append_ms", "fsync_ms"} <= set(performance)
        if "caught_up" in answer:
            assert performance["records_scanned"] >= len(answer["records"])
            seqs = [record["$seq"] for record in answer["records"]]
            assert seqs == sorted(set(seqs))
    else:
        assert "performance" not in answer


def check_status(call: GrpcCall, error: Any) -> str:
    """One status of the gRPC API that is not OK; its code and reason."""
    code = error.code()
    check_text(error.details() or "")
    if code is grpc.StatusCode.CANCELLED:
        assert call.manner in ("cancel", "hang_up")
        return code.name
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        assert call.manner != "whole" or call.parks, "no answer in time"
        return code.name
    if code is grpc.StatusCode.UNIMPLEMENTED:
        assert not re.match(r"/topics\.v1\.(Topics|Admin)Service/(?!Nope)", call.path)
        return code.name
    service = call.path.split("/")[1]
    if not service.startswith("topics.v1."):
        assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)
        return code.name
    status = rpc_status.from_call(error)
    assert status is not None, "a status without details"
    infos = {detail.TypeName(): detail for detail in status.details}
    info = error_details_pb2.ErrorInfo()
    assert infos["google.rpc.ErrorInfo"].Unpack(info)
    assert info.domain == "topics"
    reason = info.reason.lower()
    assert reason in EXPECTED
    assert REASONS[reason].grpc_status == code.name
    assert ("google.rpc.RetryInfo" in infos) == REASONS[reason].retryable
    assert call.keyed or reason not in ("unauthorized", "forbidden")
    return f"{code.name} {reason}"


def check_replies(call: GrpcCall, replies: list[Message], *, complete: bool) -> None:
    """The messages of one gRPC call; `complete` if it ended with OK."""
    for reply in replies:
        if "performance" in reply.DESCRIPTOR.fields_by_name:
            assert reply.HasField("performance")
            assert reply.performance.server_total_ms >= 0
    if call.path.endswith("/AppendStream"):
        check_acks(call, [ack for reply in replies for ack in reply.acks], complete=complete)
    elif call.path.endswith("/BulkDiff"):
        cursor, in_arrow = 0, arrow_rows(replies)
        for i, frame in enumerate(replies):
            assert not frame.done or (i == len(replies) - 1)
            assert not (frame.arrow and frame.HasField("records"))
            if frame.HasField("records") or in_arrow[i]:
                seqs = [record.seq for record in in_arrow[i] or rows(frame)]
                assert seqs == sorted(set(seqs))
                assert cursor < seqs[0]
                assert seqs[-1] <= frame.next_from_seq
                cursor = frame.next_from_seq
        assert not complete or replies[-1].done
    elif call.path.endswith("/Append"):
        for reply in replies:
            assert reply.last_seq - reply.first_seq + 1 == reply.count > 0


def check_acks(call: GrpcCall, acks: list[pb.AppendAck], *, complete: bool) -> None:
    """Acks in the order of the requests, of all of them if the stream ended with OK."""
    sent = []
    for raw in call.messages:
        try:
            sent.append(pb.AppendStreamRequest.FromString(raw).request_id)
        except DecodeError:
            break
    assert [ack.request_id for ack in acks] == sent[: len(acks)]
    assert not complete or len(acks) == len(call.messages)
    for ack in acks:
        if ack.HasField("error"):
            name = errors_pb2.ErrorReason.Name(ack.error.reason).removeprefix("ERROR_REASON_").lower()
            assert name in EXPECTED, ack
            assert ack.error.HasField("retry_after_ms") == REASONS[name].retryable
        else:
            assert ack.appended.HasField("performance"), ack
            assert ack.appended.last_seq - ack.appended.first_seq + 1 == ack.appended.count > 0
