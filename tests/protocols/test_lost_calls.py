"""A call whose outcome nobody knows: its client sees what it sees when a server dies in the middle."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import grpc
import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from support.kafka_batches import Rec, aiokafka_batch
from support.kafka_wire import ClosedError, Wire
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1 import topics_service_pb2_grpc
from topics_server.server import Server
from topics_server.settings import Settings
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.running import LostCallError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput

APPEND = pb.AppendRequest(topic="t")
APPEND.columns.data.append(b"1")
BODY = {"records": [{"data": 1}]}


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """A server that loses every write."""

    def lost_now(*_: Any, **__: Any) -> NoReturn:
        raise LostCallError("it is gone")

    async def lost(*_: Any, **__: Any) -> NoReturn:
        lost_now()

    async with Server(Settings(data_dir=str(tmp_path), port=0, grpc_port=0, kafka_port="0", drain_seconds=1)) as server:
        config = ConfigInput(durability="fsync")
        await server.api.append(AppendRequest(topic="t", batch=Batch([b"1"]), config=config), principal=UNRESTRICTED)
        for name in ("append", "settle"):
            monkeypatch.setattr(server.api, name, lost)
        monkeypatch.setattr(server.api, "settled", lost)
        yield server


async def test_http_closes_without_an_answer(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}") as client:
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            await client.post("/v0/topics/t", json=BODY)
        assert (await client.get("/v0/ready")).status_code == 200
    assert not caplog.records


@pytest.mark.parametrize("at", ["append", "submit"])
async def test_a_websocket_ends_without_a_close_frame(
    server: Server, at: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if at == "submit":
        monkeypatch.setattr(server.api, "submit", server.api.append)
    async with connect(f"ws://127.0.0.1:{server.http_port}/v0/ws", proxy=None) as socket:
        await socket.send(json.dumps({"op": "publish", "topic": "t"} | BODY))
        with pytest.raises(ConnectionClosedError) as caught:
            await socket.recv()
        assert caught.value.rcvd is None
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_grpc_is_unavailable(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = topics_service_pb2_grpc.TopicsServiceStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Append(APPEND)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.AppendStream(iter([pb.AppendStreamRequest(append=APPEND)])):
                pass
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_kafka_closes_the_connection(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def produce() -> None:
        with Wire(server.kafka_port) as wire:
            batch = aiokafka_batch([Rec(None, b"1")])
            partitions = [{"index": 0, "records": batch}]
            data = [{"name": "t", "partition_data": partitions}]
            with pytest.raises(ClosedError):
                wire.call(ApiKey.PRODUCE, 9, transactional_id=None, acks=-1, timeout_ms=1000, topic_data=data)

    await asyncio.to_thread(produce)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
