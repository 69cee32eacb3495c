"""What a TopicsError becomes on the wire."""

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2

from topics_service.api.grpc.status import RpcFailure, failure
from topics_service.engine.errors import Reason, TopicsError


def _status(told: RpcFailure) -> status_pb2.Status:
    ((key, value),) = told.trailing_metadata
    assert key == "grpc-status-details-bin"
    return status_pb2.Status.FromString(value)


def _info(packed: Any) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    assert packed.Unpack(info)
    return info


@pytest.mark.parametrize("reason", Reason)
def test_every_reason(reason: Reason) -> None:
    told = failure(TopicsError(reason, "it did not work"))
    status = _status(told)
    assert told.code is grpc.StatusCode[reason.value.grpc_status]
    assert (status.code, status.message) == (told.code.value[0], "it did not work")
    info = _info(status.details[0])
    assert (info.reason, info.domain, dict(info.metadata)) == (reason.code.upper(), "topics", {})
    assert len(status.details) == (2 if reason.value.retryable else 1)


def test_detail_is_flattened_to_text() -> None:
    detail = {"topic": "a b", "max": 3, "progress": 0.5, "cycle": ["a", "b"], "cap": None, "full": True}
    info = _info(_status(failure(TopicsError(Reason.ROUTER_CYCLE, "m", detail))).details[0])
    assert dict(info.metadata) == {
        "topic": "a b",
        "max": "3",
        "progress": "0.5",
        "cycle": '["a","b"]',
        "cap": "null",
        "full": "true",
    }


def test_retry_info() -> None:
    status = _status(failure(TopicsError(Reason.THROTTLED, "later", retry_after_ms=1250)))
    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1250


def test_long_texts_are_cut() -> None:
    long = "é" * 100_000
    told = failure(TopicsError(Reason.TOPIC_NOT_FOUND, long, {"topic": long, "other": long, "max": 1}))
    assert len(told.trailing_metadata[0][1]) < 4096
    assert long.startswith(told.details)
    assert set(_info(_status(told).details[0]).metadata) == {"topic", "other", "max"}
