"""What becomes of the records of a process that ends without a word, or forks."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.server import ServerProcess
from topics_client.address import Address
from topics_client.connection import Connection
from topics_proto.v1 import topics_service_pb2 as pb

_HEAD = """
import os, sys, threading, time
from topics_client.producer import shutdown
from topics_client.address import Address
from topics_client.connection import Connection
from topics_client.producer.api import Producer
from topics_client.retry import Retry
connection = Connection(Address.parse())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


def _started(script: str, target: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", _HEAD + script],
        env=os.environ | {"TOPICS_URL": target, "GRPC_VERBOSITY": "NONE"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(script: str, target: str, *, code: int = 0) -> tuple[str, str]:
    process = _started(script, target)
    out, err = process.communicate(timeout=40)
    assert process.returncode == code, err
    return out, err


def _head_seq(server: ServerProcess, topic: str) -> int:
    with Connection(Address.parse(server.grpc_target)) as connection:
        return connection.unary(connection.topics.GetTopic, pb.GetTopicRequest(topic=topic)).state.head_seq


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise KeyError('bug')", 1),
        ("del producer", 0),
        ("threading.Thread(target=lambda: (time.sleep(0.5), producer.append('TOPIC', 0))).start()", 0),
    ],
)
def test_a_process_that_just_ends_delivers_first(
    server: ServerProcess, end: str, code: int, request: pytest.FixtureRequest
) -> None:
    topic = f"exit-{request.node.callspec.indices['end']}"
    script = f"""
producer = Producer(connection, linger_ms=60_000)
for i in range(1000): producer.append("{topic}", i)
{end.replace("TOPIC", topic)}
"""
    _, err = _run(script, server.grpc_target, code=code)
    assert _head_seq(server, topic) == 1000 + ("Thread" in end)
    assert "KeyError" in err if code == 1 else err == ""


def test_one_that_hangs_takes_no_time_from_the_others(server: ServerProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        script = f"""
shutdown.SECONDS = 2
other = Connection(Address.parse("{server.grpc_target}"))
producers = [Producer(each, linger_ms=60_000) for each in (connection, other, connection)]
for producer in producers: producer.append("beside", 1)
"""
        _, err = _run(script, f"127.0.0.1:{deaf.getsockname()[1]}")
    assert err.count("1 record is not delivered") == 2
    assert _head_seq(server, "beside") == 1


def test_a_closed_producer_holds_nothing_up(server: ServerProcess) -> None:
    script = """
with Producer(connection) as producer: producer.append("closed", 1)
assert not shutdown._open
"""
    assert _run(script, server.grpc_target) == ("", "")


def test_what_can_not_be_delivered_at_the_end_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        script = """
shutdown.SECONDS = 0.5
producer = Producer(connection)
for i in range(7): producer.append("t", i)
"""
        _, err = _run(script, f"127.0.0.1:{deaf.getsockname()[1]}")
    assert "a producer was not closed before its process ended: 7 records are not delivered after 0.5 s" in err


def test_a_failure_that_nobody_saw_is_told_at_the_end(server: ServerProcess) -> None:
    script = """
producer = Producer(connection, linger_ms=60_000)
producer.append("failed", 1, partition=5)
"""
    _, err = _run(script, server.grpc_target)
    assert "a producer was not closed before its process ended: partition_not_found: 1 record for failed@5" in err


@pytest.mark.parametrize("where", ["with producer: time.sleep(60)", "producer.close()"])
def test_an_interrupt_is_not_held_up_for_long(where: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        script = f"""
import signal
shutdown.SECONDS = 0.5
producer = Producer(connection)
delivery = producer.append("t", 1)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    {where}
finally:
    print(delivery.exception(0))
"""
        out, err = _run(script, f"127.0.0.1:{deaf.getsockname()[1]}", code=-signal.SIGINT)
    assert out == "closed: 1 record for t, maybe stored: the producer was closed before it could deliver\n"
    assert "KeyboardInterrupt" in err
    assert ("1 record is not delivered after 0.5 s" in err) is ("with" in where)


@pytest.mark.filterwarnings("default")
def test_a_forked_child_is_told_and_its_parent_goes_on(server: ServerProcess) -> None:
    script = """
import warnings
warnings.simplefilter("ignore")  # of the fork itself
producer = Producer(connection, linger_ms=300)
pending = producer.append("forked", 1)
producer._core._lock.acquire()  # as another thread may hold it at that moment
child = os.fork()
if child == 0:
    for call in (lambda: producer.append("forked", 2), lambda: pending.result(5)):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    producer.flush(5)
    producer.close(5)
    os._exit(0)
producer._core._lock.release()
os.waitpid(child, 0)
print("parent", pending.result(20), flush=True)
producer.close()
"""
    out, _ = _run(script, server.grpc_target)
    lines = out.splitlines()
    assert lines[0].startswith("RuntimeError this process was forked: the producer is its parent's")
    assert lines[1].startswith("TopicsError forked: this process was forked")
    assert lines[2:] == ["parent 1"]
    assert _head_seq(server, "forked") == 1
