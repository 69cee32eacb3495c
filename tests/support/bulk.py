"""Long reads at a server and its bulk readers, and the combined result of pages for every seq."""

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from support.grpc_on_engine import rows
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import admin_service_pb2 as admin_pb
from topics_proto.v1 import admin_service_pb2_grpc, record_pb2, topics_service_pb2_grpc
from topics_proto.v1 import topics_service_pb2 as pb

START_SECONDS = 60.0
"""The time that the server gives a bulk reader to start, which has a low priority where cores are busy."""


class Client:
    """Calls one process, a server or a bulk reader."""

    def __init__(self, target: str, key: str = "") -> None:
        self.channel = grpc.insecure_channel(target)
        self.stub = topics_service_pb2_grpc.TopicsServiceStub(self.channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(self.channel)
        self._metadata = [("authorization", f"Bearer {key}")] if key else []

    def append(self, topic: str, *datas: bytes, **columns: Any) -> int:
        """The head after it."""
        batch = record_pb2.ColumnBatch(data=datas, **columns)
        reply = self.stub.Append(pb.AppendRequest(topic=topic, columns=batch), timeout=30, metadata=self._metadata)
        return int(reply.head_seq)

    def stream(self, topic: str, **request: Any) -> Iterator[pb.BulkDiffResponse]:
        """The frames, in order of arrival."""
        message = pb.BulkDiffRequest(topic=topic, **request)
        return iter(self.stub.BulkDiff(message, timeout=60, metadata=self._metadata))

    def frames(self, topic: str, **request: Any) -> list[pb.BulkDiffResponse]:
        """All frames of a read that ends."""
        frames = list(self.stream(topic, **request))
        assert [frame.done for frame in frames] == [False] * (len(frames) - 1) + [True]
        return frames

    def seqs(self, topic: str, **request: Any) -> list[int]:
        """The seqs of all records."""
        return [record.seq for frame in self.frames(topic, **request) for record in rows(frame)]

    def refused(self, topic: str, **request: Any) -> tuple[grpc.StatusCode, str, str]:
        """Status, reason and message of a read that fails."""
        call = self.stub.BulkDiff(pb.BulkDiffRequest(topic=topic, **request), timeout=60, metadata=self._metadata)
        try:
            frames = list(call)
        except grpc.RpcError:
            status = rpc_status.from_call(call)
            info = error_details_pb2.ErrorInfo()
            assert status is not None, f"{call.code()}: {call.details()}"
            assert status.details[0].Unpack(info)
            return call.code(), info.reason.lower(), call.details()
        raise AssertionError(f"it answers with {len(frames)} frames")

    def listed(self) -> list[int]:
        """The ports of the bulk readers that the server names."""
        reply = self.admin.ListBulkReaders(admin_pb.ListBulkReadersRequest(), timeout=30, metadata=self._metadata)
        assert [reader.host for reader in reply.readers] == [""] * len(reply.readers)
        return [reader.port for reader in reply.readers]

    def readers(self, count: int) -> list[int]:
        """The ports, once the given number takes calls."""
        return poll(lambda: ports if len(ports := self.listed()) == count else None, START_SECONDS, "readers") or []

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def pids(server: ServerProcess, ports: Sequence[int]) -> list[int]:
    """The processes of readers, from the server's log."""
    return [int(server.log.rpartition(f"gRPC port {port}, process ")[2].split()[0]) for port in ports]


def check_whole(frames: Iterable[pb.BulkDiffResponse], from_seq: int, end_seq: int) -> dict[int, bytes]:
    """Every seq after `from_seq` up to `end_seq` is a record or in a tombstone, in order; the data by seq."""
    found: dict[int, bytes] = {}
    at = from_seq
    for frame in frames:
        if frame.HasField("tombstone"):
            assert frame.tombstone.gap_from == at + 1
            at = frame.tombstone.gap_to
        for record in rows(frame):
            assert record.seq == at + 1, f"{at + 1} to {record.seq - 1} are missing"
            at = record.seq
            found[at] = record.data
        assert frame.next_from_seq >= min(at, end_seq)
    assert at >= end_seq
    return found
