"""Names of topics that only Kafka clients may choose, on every protocol."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from support.http import Api, ok, refused
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_client import InvalidRequestError, TopicsClient
from topics_kafka.protocol import ApiKey


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    with Api(server.base) as api:
        yield api


def create(wire: Wire, name: str) -> int:
    topic = {"name": name, "num_partitions": 1, "replication_factor": -1, "assignments": [], "configs": []}
    body = wire.call(ApiKey.CREATE_TOPICS, topics=[topic], timeout=1000, validate_only=False)
    return int(body["topics"][0]["error_code"])


@pytest.mark.parametrize("first", ["_", "-", ".", "__"])
def test_a_name_that_begins_with_a_sign(first: str, wire: Wire, api: Api) -> None:
    name = first + uuid4().hex[:10]
    refused(api.put(name), 400, "invalid_request")
    refused(api.write(name, [{"data": 1}], create=True), 400, "invalid_request")
    assert create(wire, name) == 0
    assert create(wire, name) == 36
    assert ok(api.put(name, ttl_ms=60_000))["created"] is False
    assert api.append(name, "by another protocol")["last_seq"] == 1
    assert [record["data"] for record in api.read_all(name)] == ["by another protocol"]
    assert name in [topic["topic"] for topic in api.listing(prefix=name)["topics"]]
    assert ok(api.drop(name))["deleted"] is True


def test_metadata_makes_them_too(wire: Wire) -> None:
    name = f"_{uuid4().hex[:10]}"
    body = wire.call(ApiKey.METADATA, topics=[{"name": name}], allow_auto_topic_creation=True)
    assert [topic["error_code"] for topic in body["topics"]] == [0]


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_are_paths(name: str, wire: Wire) -> None:
    assert create(wire, name) == 17


def test_watches_routers_and_producers_take_them(wire: Wire, api: Api, server: ServerProcess) -> None:
    source, dest = (f"_{uuid4().hex[:10]}" for _ in range(2))
    assert (create(wire, source), create(wire, dest)) == (0, 0)
    ok(api.send("PUT", f"/v0/routers/{source[1:]}", {"source": source, "dest": dest}), 201)
    with TopicsClient(server.grpc_target) as client:
        with client.producer() as producer:
            producer.append(source, "routed")
        with client.watch({f"{dest[:6]}*": 0}) as records:
            assert next(iter(records)).value == "routed"
        with pytest.raises(InvalidRequestError, match="topic name"):
            client.put_topic("_of_grpc")
    missing = f"_{uuid4().hex[:10]}"
    answer = api.send("PUT", "/v0/routers/none", {"source": source, "dest": missing})
    refused(answer, 400, "invalid_request")
