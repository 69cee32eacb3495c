"""Throttled writes, on a real server: overload, a full disk, memory for ephemeral topics."""

import json
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import randbytes

import grpc
import pytest

from support.http import Api, envelope, ok
from support.server import ServerProcess
from topics_proto.v1 import record_pb2, topics_service_pb2, topics_service_pb2_grpc


def test_a_nearly_full_disk_takes_no_writes_but_reads_and_deletes_go_on(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, Api(server.base) as api:
        api.append("t", 1, 2, 3)
        assert server.stop() == 0
    with ServerProcess(tmp_path, env={"TOPICS_MIN_FREE_BYTES": 1 << 60}) as server, Api(server.base) as api:
        reply = api.write("t", [{"data": 4}])
        assert reply.status_code == 429
        assert reply.headers["retry-after"].isdigit()
        error = envelope(reply.json())
        assert (error["code"], error["detail"]) == ("throttled", {"limit": "min_free_bytes", "max": 1 << 60})
        with grpc.insecure_channel(server.grpc_target) as channel:
            stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
            request = topics_service_pb2.AppendRequest(topic="t", records=[record_pb2.AppendRecord(data=b"4")])
            with pytest.raises(grpc.RpcError) as refused:
                stub.Append(request, timeout=30)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert [record["data"] for record in api.read_all("t")] == [1, 2, 3]
        assert ok(api.send("POST", "/v0/topics/t/delete", {"before_seq": 3}))["deleted"] == 2


def test_ephemeral_topics_stay_within_their_memory(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_MEMORY_BYTES": 4 << 20}) as server, Api(server.base) as api:
        api.put("e", durability="ephemeral")
        body = [{"data": b64encode(randbytes(7_500)).decode()} for _ in range(10)]  # what does not shrink
        for _ in range(30):
            reply = api.write("e", body)
            if reply.status_code != 200:
                break
        maximum = 3 * (4 << 20) // 8
        assert envelope(reply.json())["detail"] == {"limit": "max_ephemeral_bytes", "max": maximum}
        assert maximum / 2 < api.state("e")["bytes"] < maximum + 100_000
        assert api.write("d", body).status_code == 201, "the disk has room"
        ok(api.drop("e"))
        api.put("e", durability="ephemeral")
        assert api.write("e", body).status_code == 200, "and so has memory again"


def test_overload_answers_429_unless_the_writer_waits(tmp_path: Path) -> None:
    """Three late timers in a row of more than a millisecond are overload here."""
    body = json.dumps({"records": [{"data": {"n": i, "text": "x" * 100}} for i in range(2000)]})
    patient = body[:-1] + ',"disable_backpressure":true}'
    seen = threading.Event()
    statuses: set[tuple[bool, int]] = set()
    waits: list[float] = []

    def load(worker: int) -> None:
        waiting = worker % 2 == 0
        deadline = time.monotonic() + 20
        with Api(server.base) as api:
            while not seen.is_set() and time.monotonic() < deadline:
                reply = api.send("POST", f"/v0/topics/t{worker}", patient if waiting else body)
                statuses.add((waiting, reply.status_code))
                if reply.status_code == 429:
                    error = envelope(reply.json())
                    assert error["code"] == "throttled"
                    assert error["detail"]["retry_after_ms"] >= 1000
                    assert int(reply.headers["retry-after"]) >= 1
                elif "throttle_wait_ms" in reply.json()["performance"]:
                    waits.append(reply.json()["performance"]["throttle_wait_ms"])
                if (False, 429) in statuses and waits:
                    seen.set()

    with ServerProcess(tmp_path, env={"TOPICS_MAX_LAG_MS": 1}) as server:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(load, range(8)))
        assert seen.is_set(), statuses
    assert (True, 429) not in statuses, "a writer that opted out waits instead"
    assert all(wait > 0 for wait in waits)
