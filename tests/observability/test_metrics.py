"""Metrics of a real server about its storage, queues, watchers, checkpoints and errors."""

import json
import secrets
import socket
from pathlib import Path

import grpc
from prometheus_client.parser import text_string_to_metric_families

from support.http import Api
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc


class Scrape:
    """The samples of one scrape."""

    def __init__(self, api: Api) -> None:
        self.text = api.send("GET", "/v0/metrics").text
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self._samples[f"topics_{name}", frozenset(labels.items())]


def test_the_age_of_a_queue(plain: ServerProcess) -> None:
    with Api(plain.base) as api:
        name = api.make(type="queue")
        assert Scrape(api)("topic_queue_oldest_ready_ms", topic=name) == 0
        api.append(name, 1)
        first = poll(lambda: Scrape(api)("topic_queue_oldest_ready_ms", topic=name))
        poll(lambda: Scrape(api)("topic_queue_oldest_ready_ms", topic=name) > first)
        claimed = api.send("POST", f"/v0/topics/{name}/claim", {"node": "w"}).json()
        assert len(claimed["claimed"]) == 1
        assert Scrape(api)("topic_queue_oldest_ready_ms", topic=name) == 0
        log = api.make()
        assert f'oldest_ready_ms{{topic="{log}"}}' not in Scrape(api).text


def test_a_watcher_that_does_not_read_is_behind(plain: ServerProcess) -> None:
    with Api(plain.base) as api, socket.socket() as slow:
        name = api.make()
        wid = api.send("POST", "/v0/watch", {"topics": {name: {"from_seq": 0}}}).json()["wid"]
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(20)
        slow.connect(("127.0.0.1", plain.http_port))
        slow.sendall(f"GET /v0/watch/{wid} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert slow.recv(1)
        assert Scrape(api)("watch_lag_records") == 0
        text = "x" * 50_000
        for _ in range(8):
            api.append(name, *[text] * 10)
        found = poll(lambda: found if (found := Scrape(api))("watch_lag_records") else None)
        assert found is not None
        assert 0 < found("watch_lag_records") <= 80
        assert found("watch_lag_records_max") == found("watch_lag_records")
        assert (found("watch_streams_behind"), found("watch_lag_truncated")) == (1, 0)
        taken = 0
        while taken < 80 * len(text):
            taken += len(slow.recv(1 << 16))
        poll(lambda: Scrape(api)("watch_lag_records") == 0)


def test_storage(plain: ServerProcess) -> None:
    with Api(plain.base) as api:
        before = Scrape(api)
        assert before("disk_free_bytes") > 1 << 20
        assert before("disk_min_free_bytes") == 268435456
        name = api.make()

        def grown() -> bool:
            """Write what does not compress; memory comes in pieces of a megabyte or so."""
            api.append(name, *[secrets.token_hex(5000) for _ in range(10)])
            return Scrape(api)("store_memtable_bytes") > before("store_memtable_bytes")

        poll(grown)
        after = Scrape(api)
        assert after("store_wal_bytes") > before("store_wal_bytes") + 10_000
        assert (after("store_write_stopped"), after("store_background_errors")) == (0, 0)
        assert after("recovery_seconds") > 0
        assert 'topics_build_info{version="' in after.text


def test_checkpoints(plain: ServerProcess) -> None:
    with Api(plain.base) as api, grpc.insecure_channel(plain.grpc_target) as channel:
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        before = Scrape(api)
        made = admin.CreateCheckpoint(admin_service_pb2.CreateCheckpointRequest())
        found = Scrape(api)
        assert found("checkpoints_total", outcome="done") == before("checkpoints_total", outcome="done") + 1
        assert abs(found("checkpoint_last_time_seconds") * 1000 - made.created_ms) < 60_000
        assert found("checkpoint_last_seconds") > 0
        assert found("store_table_bytes") > 0  # it flushes


def test_errors_by_code(plain: ServerProcess) -> None:
    with Api(plain.base) as api:
        api.get("nothing-of-that-name")
        before = Scrape(api)
        assert api.get("nothing-of-that-name").status_code == 404
        assert api.send("POST", "/v0/topics/t/diff", []).status_code == 400
        after = Scrape(api)
        code = {"code": "topic_not_found"}
        assert after("http_errors_total", **code) == before("http_errors_total", **code) + 1
        assert after("http_errors_total", code="invalid_request") >= 1


def test_a_key_with_prefixes_sees_the_age_of_its_own_queues_only(tmp_path: Path) -> None:
    env = {"TOPICS_API_KEYS": "sekret-all,sekret-mine:read:mine."}
    with ServerProcess(tmp_path / "server", env=env) as server, Api(server.base) as api:
        api.client.headers["authorization"] = "Bearer sekret-all"
        for name in ("mine.q", "other.q"):
            assert api.send("PUT", f"/v0/topics/{name}", {"type": "queue"}).status_code == 201
        api.client.headers["authorization"] = "Bearer sekret-mine"
        shown = Scrape(api)
        assert shown("topic_queue_oldest_ready_ms", topic="mine.q") == 0
        assert "other.q" not in shown.text
        assert json.loads(api.send("GET", "/v0/metrics", headers={"accept": "application/json"}).content)["topics"] == 2
