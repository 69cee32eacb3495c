"""The RPCs of topics.v1, as the protos declare them."""

from functools import cache
from typing import NamedTuple

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import MethodOptions

from topics_service.api.grpc.server import SERVICE_NAMES


class Call(NamedTuple):
    """An RPC: which of its sides stream, and whether it may be made twice."""

    request_streams: bool
    response_streams: bool
    is_repeatable: bool


def find_call(rpc: str) -> Call | None:
    """The RPC of this full name, `topics.v1.TopicsService.Append`; None if there is none."""
    return _calls().get(rpc)


@cache
def _calls() -> dict[str, Call]:
    pool = descriptor_pool.Default()
    return {
        method.full_name: Call(
            bool(method.client_streaming),
            bool(method.server_streaming),
            method.GetOptions().idempotency_level != MethodOptions.IDEMPOTENCY_UNKNOWN,
        )
        for name in SERVICE_NAMES
        for method in pool.FindServiceByName(name).methods
    }
