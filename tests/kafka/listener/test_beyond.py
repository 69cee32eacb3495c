"""A position that a Kafka client committed beyond the end of a log: over every protocol, and across a restart."""

import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from support.http import Api, ok, refused
from support.kafka_wire import Wire
from support.server import TOPICS, ServerProcess
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import group_service_pb2 as pb
from topics_proto.v1 import group_service_pb2_grpc

GROUP = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None, "retention_time": -1}
OUT_OF_RANGE = 1
MAX_OFFSET = (1 << 63) - 1


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that tests may restart."""
    with ServerProcess(tmp_path_factory.mktemp("beyond"), kafka=True) as process:
        yield process


def commit(server: ServerProcess, group: str, topic: str, offset: int) -> int:
    """Commit like a consumer without membership. Returns the error code."""
    partition = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
    topics = [{"name": topic, "partitions": [{**partition, "committed_metadata": ""}]}]
    with Wire(server.kafka_port) as wire:
        reply = wire.call(ApiKey.OFFSET_COMMIT, 9, group_id=group, topics=topics, **GROUP)
    return int(reply["topics"][0]["partitions"][0]["error_code"])


def committed(server: ServerProcess, group: str, topic: str) -> int:
    one = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}], "member_id": None}
    with Wire(server.kafka_port) as wire:
        reply = wire.call(ApiKey.OFFSET_FETCH, 9, groups=[{**one, "member_epoch": -1}], require_stable=False)
    return int(reply["groups"][0]["topics"][0]["partitions"][0]["committed_offset"])


def fetch(server: ServerProcess, topic: str, offset: int) -> int:
    """Read at an offset. Returns the error code."""
    part = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1}
    part |= {"log_start_offset": -1, "partition_max_bytes": 1 << 20}
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0, "session_id": 0}
    body |= {"session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
    with Wire(server.kafka_port) as wire:
        reply = wire.call(ApiKey.FETCH, 12, topics=[{"topic": topic, "partitions": [part]}], **body)
    return int(reply["responses"][0]["partitions"][0]["error_code"])


def run(server: ServerProcess, command: str, *arguments: str) -> None:
    """Run a command on the data directory of a stopped server. It must find no fault."""
    done = subprocess.run(
        [TOPICS, command, "--data-dir", server.data_dir, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)


def consume(api: Api, group: str, topic: str, **body: Any) -> dict[str, Any]:
    return ok(api.send("POST", f"/v0/groups/{group}/consume", {"topic": topic, **body}))


def seen(server: ServerProcess, api: Api, group: str, topic: str) -> tuple[int, int, int]:
    """Position, head and lag, the same over every protocol and in the metrics."""
    (position,) = ok(api.send("GET", f"/v0/groups/{group}/positions", params={"topic": topic}))["positions"]
    (again,) = [each for each in ok(api.send("GET", f"/v0/groups/{group}"))["positions"] if each["topic"] == topic]
    assert again == position
    with grpc.insecure_channel(server.grpc_target) as channel:
        stub = group_service_pb2_grpc.GroupServiceStub(channel)
        (other,) = stub.FetchPositions(pb.FetchPositionsRequest(group=group, topic=topic)).positions
    found = position["from_seq"], position["head_seq"], position["lag"]
    assert (other.from_seq, other.head_seq, other.lag) == found
    assert committed(server, group, topic) == found[0]
    metrics = api.send("GET", "/v0/metrics", headers={"accept": "text/plain"}).text
    line = f'topics_group_lag_records{{group="{group}",topic="{topic}",partition="0"}} {found[2]}'
    assert line in metrics.splitlines()
    return found


def test_it_is_kept_and_counts_as_the_head(own: ServerProcess) -> None:
    with Api(own.base) as api:
        topic = api.make()
        api.append(topic, *range(450))
        assert commit(own, "far", topic, 500) == commit(own, "most", topic, MAX_OFFSET) == 0
        assert commit(own, "far", topic, -1) == OUT_OF_RANGE
        assert (seen(own, api, "far", topic), seen(own, api, "most", topic)) == ((500, 450, 0), (MAX_OFFSET, 450, 0))
        told = subprocess.run(
            [TOPICS, "groups", "--server", own.grpc_target, "far", "--json"], capture_output=True, text=True, check=True
        ).stdout
        assert [(line["from_seq"], line["lag"]) for line in map(json.loads, told.splitlines())] == [(500, 0)]
        assert (fetch(own, topic, 450), fetch(own, topic, 500)) == (0, OUT_OF_RANGE)
        for start in ({"from_seq": 451}, {"from_seq": 500}):
            body = {"topic": topic, **start}
            refused(api.send("POST", "/v0/groups/far/commit", body), 400, "invalid_request")
        assert seen(own, api, "far", topic) == (500, 450, 0)

        page = consume(api, "far", topic)
        assert (page["committed_from_seq"], page["records"], page["tombstone"]) == (500, [], None)
        assert (page["next_from_seq"], page["head_seq"], page["lag"], page["caught_up"]) == (450, 450, 0, True)
        threading.Timer(0.2, api.append, (topic, "new")).start()
        page = consume(api, "far", topic, wait_ms=10_000)
        assert [record["data"] for record in page["records"]] == ["new"], "a reader who waits misses nothing"

        own.stop()
        run(own, "verify", "--deep")
        (own.data_dir / "CURRENT").unlink()
        run(own, "repair", "--apply", "--no-copy")
        own.start()
    with Api(own.base) as api:
        assert seen(own, api, "far", topic) == (500, 451, 0)
        api.append(topic, *range(149))
        assert seen(own, api, "far", topic) == (500, 600, 100), "the log has grown past it"
        assert consume(api, "far", topic, limit=1)["records"][0]["$seq"] == 501
        api.drop(topic)
        ok(api.put(topic), 201)
        assert committed(own, "far", topic) == -1, "another life of the topic"


def test_a_topic_that_waits_for_the_group_is_held_back_by_nothing(own: ServerProcess) -> None:
    with Api(own.base) as api:
        topic = api.make(cap_records=2, retain_until_acked_by=["waited"])
        api.append(topic, 1, 2)
        refused(api.write(topic, [{"data": 3}]), 422, "topic_full")
        assert commit(own, "waited", topic, 4) == 0
        for data in (3, 4):
            api.append(topic, data)
        assert seen(own, api, "waited", topic) == (4, 4, 0)
        api.append(topic, 5)
        api.append(topic, 6)
        refused(api.write(topic, [{"data": 7}]), 422, "topic_full")
        assert [record["$seq"] for record in api.read_all(topic)] == [5, 6]
        ok(api.send("POST", "/v0/groups/waited/commit", {"topic": topic, "from_seq": 5}))
        api.append(topic, 7)
