"""DeleteRecords and DescribeLogDirs on a real server."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from support.http import Api
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_kafka.protocol import ApiKey

from .test_topics import create, topic, versions


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    with Api(server.base) as api:
        yield api


@pytest.fixture
def name(wire: Wire, api: Api) -> str:
    """A topic of two partitions, with five records in the first."""
    name = f"t.{uuid4().hex[:10]}"
    assert create(wire, topic(name, 2))[0]["error_code"] == 0
    api.append(name, 1, 2, 3, 4, 5)
    return name


def delete(wire: Wire, name: str, *offsets: tuple[int, int], version: int = 2) -> list[tuple[int, int]]:
    """Delete records. Returns the first offset left and the error code for each (partition, offset)."""
    asked = [{"partition_index": partition, "offset": offset} for partition, offset in offsets]
    (found,) = wire.call(ApiKey.DELETE_RECORDS, version, topics=[{"name": name, "partitions": asked}])["topics"]
    assert [each["partition_index"] for each in found["partitions"]] == [partition for partition, _ in offsets]
    return [(each["low_watermark"], each["error_code"]) for each in found["partitions"]]


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_RECORDS))
def test_delete_below_an_offset(version: int, wire: Wire, api: Api, name: str) -> None:
    assert delete(wire, name, (0, 2), version=version) == [(2, 0)]
    assert [record["data"] for record in api.read_all(name)] == [3, 4, 5]
    assert delete(wire, name, (0, 1), version=version) == [(2, 0)], "it never goes back"
    assert delete(wire, name, (0, 0), version=version) == [(2, 0)]
    assert delete(wire, name, (0, 6), version=version) == [(-1, 1)]
    assert delete(wire, name, (0, -2), version=version) == [(-1, 1)]
    assert delete(wire, name, (0, -1), (1, -1), (2, 0), version=version) == [(5, 0), (0, 0), (-1, 3)]
    assert api.state(name)["count"] == 0
    assert delete(wire, name, (0, 5), version=version) == [(5, 0)]
    assert delete(wire, "no.such.topic", (0, 0), version=version) == [(-1, 3)]


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_log_dirs(version: int, wire: Wire, name: str) -> None:
    asked = [{"topic": name, "partitions": [0, 1, 7]}, {"topic": "no.such.topic", "partitions": [0]}]
    body = wire.call(ApiKey.DESCRIBE_LOG_DIRS, version, topics=asked)
    (directory,) = body["results"]
    (found,) = directory["topics"]
    assert (directory["error_code"], found["name"]) == (0, name)
    sizes = {each["partition_index"]: each["partition_size"] for each in found["partitions"]}
    assert sizes == {0: 5, 1: 0}
    everything = wire.call(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)["results"][0]["topics"]
    assert name in {each["name"] for each in everything}
