"""The order that durability stands on, seen by the kernel: log written, log synced, and only then the answer."""

import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from crash.kafka_oracle import Producer, commit_body, produce_body

from support.http import Api, fresh, ok, path
from support.kafka_wire import Wire as KafkaWire
from support.server import ServerProcess
from support.ws import WebSocket
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import topics_service_pb2, topics_service_pb2_grpc
from topics_proto.v1.record_pb2 import AppendRecord

CALLS = "fsync,fdatasync,sync_file_range,write,writev,pwrite64,sendto,sendmsg"


def can_trace() -> bool:
    strace = shutil.which("strace")
    return (
        strace is not None
        and subprocess.run([strace, "-f", "--seccomp-bpf", "-o", "/dev/null", "true"], check=False).returncode == 0
    )


pytestmark = pytest.mark.skipif(not can_trace(), reason="strace is not there or may not trace")


class Traced(NamedTuple):
    """A system call that has returned."""

    name: str
    arguments: str


@pytest.fixture
def traced(tmp_path: Path, make_server: Callable[..., ServerProcess]) -> Iterator[tuple[ServerProcess, Path]]:
    trace = tmp_path / "trace"
    # -yy shows the files and sockets behind the descriptors, -s enough of the data to find ours.
    prefix = ["strace", "-f", "--seccomp-bpf", "-yy", "-s", "4096", "-e", f"trace={CALLS}", "-o", str(trace)]
    server = make_server(prefix=prefix)
    yield server.start(), trace
    server.kill()


def returned(trace: Path) -> list[Traced]:
    """The calls in the order in which they returned. One that was interrupted shows as two lines."""
    begun: dict[str, str] = {}
    calls = []
    for line in trace.read_text(errors="replace").splitlines():
        thread, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            begun[thread] = rest.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>", rest):
            rest = begun.pop(thread) + rest[resumed.end() :]
        if found := re.match(r"(\w+)\((.*)\)\s+= (-?\d+)", rest):
            calls.append(Traced(found[1], found[2]))
    return calls


def index(calls: list[Traced], found: Callable[[Traced], bool], start: int = 0) -> int:
    for at in range(start, len(calls)):
        if found(calls[at]):
            return at
    raise AssertionError(f"not after call {start}: {[call.name for call in calls[start:]][:50]}")


def wrote_log(mark: str) -> Callable[[Traced], bool]:
    return lambda call: "write" in call.name and ".log>" in call.arguments.partition(",")[0] and mark in call.arguments


def synced_log(call: Traced) -> bool:
    return call.name in ("fsync", "fdatasync") and ".log>" in call.arguments


def answered(mark: str) -> Callable[[Traced], bool]:
    return lambda call: (
        call.name in ("write", "writev", "sendto", "sendmsg") and "TCP" in call.arguments and mark in call.arguments
    )


def test_fsync_class(traced: tuple[ServerProcess, Path]) -> None:
    """For an `fsync` topic the sync of the log returns between the write of the record and the answer."""
    server, trace = traced
    with Api(server.base) as api, grpc.insecure_channel(server.grpc_target) as channel:
        stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
        name = api.make("durable", durability="fsync")
        for i in range(10):
            assert api.append(name, f"over-http-{i}")["first_seq"] == 2 * i + 1
            request = topics_service_pb2.AppendRequest(topic=name)
            request.records.add(data=b'"over-grpc-%d"' % i)
            assert stub.Append(request, timeout=20).first_seq == 2 * i + 2
    assert server.stop(20) == 0
    calls = returned(trace)
    at = 0
    for i in range(10):
        at = index(calls, wrote_log(f"over-http-{i}"), at)
        synced = index(calls, synced_log, at)
        at = index(calls, answered(f'\\"first_seq\\":{2 * i + 1},'), at)
        assert at > synced, f"write {i} was answered before its sync"
        at = index(calls, wrote_log(f"over-grpc-{i}"), at)
        synced = index(calls, synced_log, at)
        at = index(calls, answered(name), at)
        assert at > synced, f"write {i} was answered over gRPC before its sync"


def test_topics_configs_and_deletes(traced: tuple[ServerProcess, Path]) -> None:
    """Creating, configuring and deleting are synced before they are answered, whatever the class."""
    server, trace = traced
    names = [fresh("synced") for _ in range(5)]
    with Api(server.base) as api:
        for i, name in enumerate(names):
            assert api.put(name).status_code == 201
            assert api.put(name, ttl_ms=12345678901 + i).status_code == 200
            assert api.drop(name).status_code == 200
    assert server.stop(20) == 0
    calls = returned(trace)
    at = 0
    for name in names:
        for answer in ('\\"created\\":true', '\\"created\\":false', '\\"deleted\\":true'):
            end = index(
                calls, lambda call, name=name, answer=answer: answered(name)(call) and answer in call.arguments, at
            )
            assert any(map(synced_log, calls[at:end])), f"{answer} of {name} was answered before its sync"
            at = end + 1


def test_disk_class_is_written_before_it_is_answered(traced: tuple[ServerProcess, Path]) -> None:
    """For a `disk` topic the log has the record before the answer, and no sync is waited for."""
    server, trace = traced
    with Api(server.base) as api:
        name = api.make("quick", durability="disk")
        api.append(name, "first")
        for i in range(20):
            api.append(name, f"quick-{i}")
    assert server.stop(20) == 0
    calls = returned(trace)
    at = syncs = 0
    for i in range(20):
        start = at
        at = index(calls, wrote_log(f"quick-{i}"), at)
        at = index(calls, answered(f'\\"first_seq\\":{i + 2},'), at)
        syncs += sum(map(synced_log, calls[start:at]))
    assert syncs < 10


def test_every_kind_of_write(tmp_path: Path, make_server: Callable[..., ServerProcess]) -> None:
    """Whatever changes an `fsync` topic, at any protocol: log written, log synced, and only then the answer."""
    trace = tmp_path / "trace"
    prefix = ["strace", "-f", "--seccomp-bpf", "-yy", "-s", "4096", "-e", f"trace={CALLS}", "-o", str(trace)]
    server = make_server(prefix=prefix, kafka=True).start()
    kinds = ("ws", "stream", "kafka", "commit", "deleted", "acked", "claimed")
    names = {kind: fresh(kind) for kind in kinds}
    with (
        Api(server.base) as api,
        grpc.insecure_channel(server.grpc_target) as channel,
        WebSocket(server.base) as ws,
        KafkaWire(server.kafka_port) as kafka,
    ):
        stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
        for kind, name in names.items():
            queue = {"type": "queue", "leases_durable": True} if kind in ("acked", "claimed") else {}
            assert api.put(name, durability="fsync", **queue).status_code == 201
        for kind in ("commit", "deleted", "acked", "claimed"):
            api.append(names[kind], 1)

        def claim(kind: str) -> dict[str, Any]:
            [job] = ok(api.send("POST", path(names[kind], "/claim"), {"node": "n"}))["claimed"]
            return {"node": "n", "seqs": [job["$seq"]], "lease_ids": [job["lease_id"]]}

        held = claim("acked")
        body = commit_body({(names["commit"], 0): 1}, "")
        request = topics_service_pb2.AppendRequest(topic=names["stream"], records=[AppendRecord(data=b"1")])
        stream = [topics_service_pb2.AppendStreamRequest(append=request)]
        steps: dict[str, tuple[Callable[[], object], str]] = {  # and what the answer can be told by
            "ws": (lambda: ws.publish(names["ws"], 1), names["ws"]),
            "stream": (lambda: list(stub.AppendStream(iter(stream))), names["stream"]),
            "kafka": (lambda: kafka.call(ApiKey.PRODUCE, 9, **produced(names["kafka"])), names["kafka"]),
            "commit": (lambda: kafka.call(ApiKey.OFFSET_COMMIT, 9, **body), names["commit"]),
            "deleted": (lambda: api.rm(names["deleted"], before_seq=2), '\\"deleted\\":1'),
            "acked": (lambda: ok(api.send("POST", path(names["acked"], "/ack"), held)), '\\"acked\\":1'),
            "claimed": (lambda: claim("claimed"), '\\"lease_id\\"'),
        }
        marks = []
        for kind, (step, mark) in steps.items():
            api.get(f"begin-{kind}")  # its 404 in the trace says where the step begins
            step()
            marks.append((kind, mark))
    assert server.stop(20) == 0
    calls = returned(trace)
    for kind, mark in marks:
        begin = index(calls, answered(f"begin-{kind}"))
        wrote = index(calls, lambda call: "write" in call.name and ".log>" in call.arguments.partition(",")[0], begin)
        synced = index(calls, synced_log, wrote)
        answer = index(calls, answered(mark), begin)
        assert answer > synced, f"{kind} was answered before its sync"


def produced(topic: str) -> dict[str, Any]:
    """The body of a Produce with one record, acks=all."""
    return dict(produce_body([Producer(-1, -1, random.Random(1)).batch((topic, 0), 1)]))
