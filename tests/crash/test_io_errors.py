"""The disk gives an error: wherever it hits, nothing that was acknowledged is lost and nothing more is promised."""

import os
import random
import threading
from collections.abc import Callable

import grpc
import pytest
from crash.faults import SYNCS, WRITES, assert_read_only, failing, newest, next_tables
from crash.kafka_oracle import Producer, answers_of, produce_body

from support.http import Api, ok, refused
from support.kafka_wire import Wire
from support.server import ServerProcess
from support.waiting import poll
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import topics_service_pb2, topics_service_pb2_grpc

SMALL = {"TOPICS_MEMORY_BYTES": 8 << 20}  # so that a few MiB fill a write buffer
WRITERS = 6


class Writer(threading.Thread):
    """Appends to a topic, each record once, until it is refused."""

    def __init__(self, server: ServerProcess, topic: str, number: int, size: int) -> None:
        super().__init__()
        self.topic, self.acked = topic, list[str]()
        self.sent: list[str] = []
        self._server, self.number, self._pad = server, number, "x" * size
        self.end: tuple[int, str] | None = None
        self.start()

    def run(self) -> None:
        with Api(self._server.base) as api:
            for i in range(4000):
                text = f"{self.number}:{i}:{self._pad}"
                self.sent.append(text)
                reply = api.write(self.topic, [{"data": text}])
                if reply.status_code == 429:  # the store catches up
                    self.sent.pop()
                    continue
                if reply.status_code != 200:
                    self.end = reply.status_code, reply.json()["error"]["code"]
                    return
                self.acked.append(text)


MORE = [("table", SYNCS), ("MANIFEST", WRITES), ("MANIFEST", SYNCS)]
LONG = pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("file", "calls"),
    [
        ("log", WRITES),
        ("table", WRITES),
        *(pytest.param(*each, marks=[pytest.mark.soak, LONG]) for each in MORE),
    ],
)
def test_an_error_of_the_disk(make_server: Callable[..., ServerProcess], file: str, calls: str) -> None:
    server = make_server(env=SMALL).start()
    with Api(server.base) as api:
        api.put("f", durability="fsync")
        api.put("d")
        api.append("f", "before")
        api.append("d", "before")
        paths = {
            "log": lambda: [newest(server.data_dir, "*.log")],
            "table": lambda: next_tables(server.data_dir),
            "MANIFEST": lambda: [newest(server.data_dir, "MANIFEST-*")],
        }[file]()
        with failing(server, calls, "EIO", paths):
            writers = [Writer(server, "fd"[i % 2], i, 20 if file == "log" else 20_000) for i in range(WRITERS)]
            for writer in writers:
                writer.join(40)
                assert not writer.is_alive(), "nobody waits for ever"
                assert writer.end == (500, "internal")
            poll(lambda: api.send("GET", "/v0/ready").status_code == 503, what="readiness is down")
            assert_read_only(api)
            refused(api.write("f", [{"data": 3}]), 500, "internal")
        assert server.stop(20) == 0
    assert server.log.count("read-only from now on") == 1, "the log says what has happened, once"
    with make_server(data_dir=server.data_dir, env=SMALL) as again, Api(again.base) as api:
        for topic in "fd":
            found = [record["data"] for record in api.read_all(topic)]
            assert found[0] == "before"
            assert len(set(found)) == len(found)
            for writer in writers:
                if writer.topic == topic:
                    mine = [text for text in found if text.startswith(f"{writer.number}:")]
                    assert mine == writer.sent[: len(mine)]
                    assert len(mine) >= len(writer.acked), "an acknowledged write is lost"
                    assert len(mine) <= len(writer.acked) + 1, "of what was refused, the one write that failed at most"
            assert api.append(topic, "after")["first_seq"] == len(found) + 1


def test_every_waiting_ack_fails(make_server: Callable[..., ServerProcess]) -> None:
    """Many writes wait for one fsync, at every protocol, and it fails: all of them are told, and none is seen."""
    server = make_server(kafka=True).start()
    told: dict[str, object] = {}

    def over_http(i: int) -> None:
        with Api(server.base) as api:
            told[f"http {i}"] = refused(api.write("f", [{"data": f"http {i}"}]), 500, "internal")["code"]

    def over_grpc(i: int) -> None:
        with grpc.insecure_channel(server.grpc_target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            request = topics_service_pb2.AppendRequest(topic="f")
            request.records.add(data=b'"grpc"')
            with pytest.raises(grpc.RpcError) as failed:
                topics_service_pb2_grpc.TopicsServiceStub(channel).Append(request, timeout=20)
            told[f"grpc {i}"] = failed.value.code()

    def over_kafka(i: int) -> None:
        with Wire(server.kafka_port) as wire:
            sent = Producer(-1, -1, random.Random(i)).batch(("f", 0), 1)
            answer = wire.call(ApiKey.PRODUCE, 9, **produce_body([sent]))
            told[f"kafka {i}"] = answers_of(answer)["f", 0][0]

    with Api(server.base) as api:
        ok(api.put("f", durability="fsync"), 201)
        ok(api.put("d"), 201)
        api.append("f", "before")
        # Slow as well, so that they gather: the first fails alone, or with whoever came in time.
        with failing(server, SYNCS, "EIO:delay_enter=400000"):
            writers = [(write, i) for write in (over_http, over_grpc, over_kafka) for i in range(4)]
            threads = [threading.Thread(target=write, args=(i,)) for write, i in writers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            assert len(told) == 12, told
            assert {str(value) for key, value in told.items() if "grpc" in key} == {"StatusCode.INTERNAL"}
            assert all(value for key, value in told.items() if "kafka" in key), told
            assert [record["data"] for record in api.read_all("f")] == ["before"]
            assert_read_only(api)
