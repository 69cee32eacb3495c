"""Idempotency of calls, as the protos declare it."""

from functools import cache

from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message

from topics_proto.v1 import (
    admin_service_pb2,
    group_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    sql_service_pb2,
    topics_service_pb2,
    watch_service_pb2,
)

_FILES = (
    admin_service_pb2,
    group_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    sql_service_pb2,
    topics_service_pb2,
    watch_service_pb2,
)


def is_repeatable(request: Message) -> bool:
    """Return True if the call of `request` is declared (`idempotency_level`) free of side effects or idempotent.

    Idempotency that depends on the request, such as an append with an idempotency key, is up to the caller.
    """
    return request.DESCRIPTOR.full_name in _repeatable_requests()


@cache
def _repeatable_requests() -> frozenset[str]:
    return frozenset(
        method.input_type.full_name
        for file in _FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.GetOptions().idempotency_level != MethodOptions.IDEMPOTENCY_UNKNOWN
    )
