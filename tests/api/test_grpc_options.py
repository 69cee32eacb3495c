"""The options of gRPC servers and clients: a name that gRPC does not know is passed over without a word."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc._cython import cygrpc

from support.grpc_on_engine import open_service
from topics_client.connection import SEVERAL_OPTIONS
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceStub
from topics_service.api.grpc.options import server_options

_LIBRARY = Path(cygrpc.__file__).read_bytes()


@pytest.mark.parametrize("name", sorted({name for name, _ in (*server_options(1), *SEVERAL_OPTIONS)}))
def test_grpc_knows_the_option(name: str) -> None:
    assert name.encode() + b"\0" in _LIBRARY


@pytest.mark.soak
async def test_a_client_that_pings_every_ten_seconds_keeps_a_silent_stream(tmp_path: Path) -> None:
    pinging = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_permit_without_calls", 1)]
    append = pb.AppendRequest(topic="t", records=[{"data": b"1"}])  # type: ignore[list-item]
    async with (
        open_service(tmp_path) as service,
        grpc.aio.insecure_channel(service.address, options=pinging) as channel,
    ):
        await service.stub.Append(append)
        stream = TopicsServiceStub(channel).BulkDiff(pb.BulkDiffRequest(topic="t", follow=True))
        assert (await stream.read()).next_from_seq == 1
        await asyncio.sleep(55)  # gRPC's own limits on pings would have ended the stream after 36 s
        await service.stub.Append(append)
        assert (await stream.read()).next_from_seq == 2
        stream.cancel()
