"""Python clients on both sides: the view of a Python program, against redis-py."""

import time
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import redis

from bench.table import Row
from bench.tools import data_of, redis_server, write_body
from support.http import JSON
from support.server import ServerProcess
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.record_pb2 import ColumnBatch
from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceStub

_SECONDS = 3.0
_BATCH = 1000


def run(directory: Path) -> list[Row]:
    """Every row of the Python clients."""
    datas = [data_of(i).encode() for i in range(_BATCH)]
    body = write_body(_BATCH)
    with ServerProcess(directory / "topics") as server:
        with httpx.Client(base_url=server.base, trust_env=False, headers=JSON) as client:
            append, page = "/v0/topics/http?return_seqs=false", f'{{"from_seq":0,"limit":{_BATCH}}}'
            over_http = _rate(lambda: client.post(append, content=body).raise_for_status())
            read_http = _rate(lambda: client.post("/v0/topics/http/diff", content=page).raise_for_status().json())
        with grpc.insecure_channel(server.grpc_target) as channel:
            stub = TopicsServiceStub(channel)
            columns = pb.AppendRequest(topic="grpc", columns=ColumnBatch(data=datas), return_seqs=False)
            over_grpc = _rate(lambda: stub.Append(columns))
    (directory / "redis").mkdir()
    with redis_server(directory / "redis", "everysec") as port, redis.Redis(port=port) as peer:

        def add() -> None:
            pipeline = peer.pipeline(transaction=False)
            for data in datas:
                pipeline.xadd("stream", {"d": data})
            pipeline.execute()

        peer_add = _rate(add)
        peer_read = _rate(lambda: peer.xrange("stream", count=_BATCH))
    name = "redis-py"
    return [
        Row("Python client: append of 1000 over HTTP", over_http, "rec/s", "", peer_add, name, "httpx, body made once"),
        Row("Python client: append of 1000 over gRPC, columns", over_grpc, "rec/s", "", peer_add, name),
        Row("Python client: read of 1000 over HTTP, parsed", read_http, "rec/s", "", peer_read, name),
    ]


def _rate(call: Callable[[], object]) -> float:
    """Records a second when `call`, which handles a batch, is made over and over."""
    call()
    calls, started = 0, time.perf_counter()
    while time.perf_counter() - started < _SECONDS:
        call()
        calls += 1
    return calls * _BATCH / (time.perf_counter() - started)
