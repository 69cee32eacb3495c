"""The protos' declaration of each call, compared with the promise in its comment."""

import pytest
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message

from topics_client.idempotency import is_repeatable
from topics_proto.v1 import (
    admin_service_pb2,
    group_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    topics_service_pb2,
    watch_service_pb2,
)

READS = set(
    """GetTopic ListTopics Diff BulkDiff LocateTime Watch ListJobs GetRouter ListRouters ListGroups GetGroup Consume
    FetchPositions GetHealth GetReady GetMetrics ListBulkReaders GetCluster""".split()  # noqa: SIM905
)
IDEMPOTENT = set(
    """PutTopic DeleteTopic PutRouter DeleteRouter CommitPositions ResetPositions DeletePositions DeleteGroup
    ReleaseCheckpoint MoveShard DrainNode SetShardZone StopWork""".split()  # noqa: SIM905
)
ONCE = set(
    """Append AppendStream DeleteRecords Claim Ack Nack Extend Work Redrive CreateWatch OpenWatch
    CreateCheckpoint""".split()  # noqa: SIM905
)

_FILES = (
    admin_service_pb2,
    group_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    topics_service_pb2,
    watch_service_pb2,
)
METHODS = {
    method.name: method
    for file in _FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_every_call_has_its_level() -> None:
    levels = {name: method.GetOptions().idempotency_level for name, method in METHODS.items()}
    reads = {name for name, level in levels.items() if level == MethodOptions.NO_SIDE_EFFECTS}
    idempotent = {name for name, level in levels.items() if level == MethodOptions.IDEMPOTENT}
    rest = set(levels) - reads - idempotent
    assert reads == READS
    assert idempotent == IDEMPOTENT
    assert rest == ONCE


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_request_tells_whether_it_may_be_repeated(name: str) -> None:
    request: Message = METHODS[name].input_type._concrete_class()
    assert is_repeatable(request) is (name not in ONCE)
