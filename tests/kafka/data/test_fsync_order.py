"""acks=all on an `fsync` topic, as seen by the kernel: log write, log sync, and only then the answer."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "crash"))

from data_support import Remote, batch
from test_fsync_before_ack import CALLS, answered, can_trace, index, returned, synced_log, wrote_log

from support.http import Api
from support.server import ServerProcess

pytestmark = pytest.mark.skipif(not can_trace(), reason="strace is not there or may not trace")


def test_the_sync_comes_before_the_answer(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    prefix = ["strace", "-f", "--seccomp-bpf", "-yy", "-s", "4096", "-e", f"trace={CALLS}", "-o", str(trace)]
    server = ServerProcess(tmp_path / "server", prefix=prefix, kafka=True)
    try:
        server.start()
        with Api(server.base) as api, Remote(server.kafka_port) as remote:
            name = api.make("durable", durability="fsync")
            for i in range(10):
                producer = (3, 0, i // 2) if i % 2 else (-1, -1, -1)
                sent = batch(b"over-kafka-%d." % i, producer=producer)
                assert remote.produce(sent, name, acks=-1 if i % 3 else 1)["base_offset"] == i
        assert server.stop(20) == 0
    finally:
        server.kill()
    calls = returned(trace)
    at = 0
    for i in range(10):
        at = index(calls, wrote_log(f"over-kafka-{i}."), at)
        synced = index(calls, synced_log, at)
        at = index(calls, answered(name), at)
        assert at > synced, f"write {i} was answered before its sync"
