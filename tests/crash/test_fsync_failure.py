"""An fsync that fails, on the real process: nothing more is promised, what was promised stays."""

import shutil
import subprocess
from collections.abc import Callable

import grpc
import pytest
from crash.faults import is_traced
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.http import Api, envelope
from support.server import ServerProcess
from support.waiting import poll

STRACE = shutil.which("strace")


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_after_a_failed_fsync_the_server_is_read_only(make_server: Callable[..., ServerProcess]) -> None:
    server = make_server().start()
    assert STRACE is not None
    with Api(server.base) as api, grpc.insecure_channel(server.grpc_target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        api.put("f", durability="fsync")
        api.put("d")
        assert api.append("f", 1)["seqs"] == [1]
        api.append("d", 1)
        fail = ["-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:error=EIO"]
        tracer = subprocess.Popen(
            [STRACE, "-f", "-qq", "-o", "/dev/null", *fail, "-p", str(server.pid)], stderr=subprocess.PIPE
        )
        try:
            try:
                poll(lambda: tracer.poll() is not None or is_traced(server.pid), 20, "strace is attached")
            finally:
                if tracer.poll() is not None:
                    pytest.skip("strace may not trace here")
            failed = api.write("f", [{"data": 2}])
            assert (failed.status_code, envelope(failed.json())["code"]) == (500, "internal")
            assert str(server.data_dir) not in failed.text, "no path of the server is told"
            for refused in (
                api.write("f", [{"data": 3}]),
                api.write("d", [{"data": 2}]),
                api.put("new"),
                api.drop("d"),
            ):
                assert (refused.status_code, envelope(refused.json())["code"]) == (500, "internal")
            assert [record["data"] for record in api.read_all("f")] == [1], "what was not durable is not visible"
            assert api.state("d")["count"] == 1
            ready = api.send("GET", "/v0/ready")
            assert (ready.status_code, envelope(ready.json())["code"]) == (503, "not_ready")
            metrics = api.send("GET", "/v0/metrics").text
            assert "\ntopics_wal_read_only 1" in metrics
            assert "\ntopics_ready 0" in metrics
            request = health_pb2.HealthCheckRequest()
            poll(
                lambda: health.Check(request, timeout=20).status == health_pb2.HealthCheckResponse.NOT_SERVING,
                20,
                "gRPC health follows",
            )
        finally:
            tracer.terminate()
            tracer.communicate(timeout=30)
        assert server.stop() == 0
    assert "Traceback" not in server.log
    with make_server(data_dir=server.data_dir) as again, Api(again.base) as api:
        seqs = [record["$seq"] for record in api.read_all("f")]
        assert seqs in ([1], [1, 2]), "the write that failed may be there or not, a refused one never"
        assert api.append("f", 4)["first_seq"] == seqs[-1] + 1
