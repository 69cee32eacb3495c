"""Access to the APIs of topics: every API with every scope and with a prefix."""

from collections.abc import Callable
from typing import Any

import pytest

from support.http import Api
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_kafka.protocol import ApiKey
from topics_kafka.registry import APIS, all_handlers, error_codes

from .conftest import SECRETS, Serve

SCOPES = ("read", "write", "delete", "admin")
CONFIG = {"resource_type": 2, "configs": []}


def _requests(name: str) -> dict[ApiKey, tuple[set[str], dict[str, Any]]]:
    """For each API its scopes, and a request that accesses the topic `name` without changing it."""
    partition = {"partition_index": 0, "current_leader_epoch": -1}
    return {
        ApiKey.PRODUCE: (
            {"write"},
            {"acks": -1, "topic_data": [{"name": name, "partition_data": [{"index": 0, "records": b"x"}]}]},
        ),
        ApiKey.FETCH: (
            {"read"},
            {"max_wait": 0, "min_bytes": 0, "topics": [{"topic": name, "partitions": [{"partition": 0}]}]},
        ),
        ApiKey.LIST_OFFSETS: (
            {"read"},
            {"topics": [{"name": name, "partitions": [{**partition, "timestamp": -1}]}]},
        ),
        ApiKey.METADATA: (set(SCOPES), {"topics": [{"name": name}], "allow_auto_topic_creation": False}),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: (set(SCOPES), {"topics": [{"name": name}]}),
        ApiKey.CREATE_TOPICS: (
            {"admin"},
            {"validate_only": True, "topics": [{"name": name, "num_partitions": 1, "replication_factor": 1}]},
        ),
        ApiKey.DELETE_TOPICS: ({"delete"}, {"topics": [{"name": f"{name}.none"}]}),
        ApiKey.DELETE_RECORDS: (
            {"delete"},
            {"topics": [{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}]},
        ),
        ApiKey.DESCRIBE_CONFIGS: ({"read"}, {"resources": [{"resource_type": 2, "resource_name": name}]}),
        ApiKey.ALTER_CONFIGS: (
            {"admin"},
            {"validate_only": True, "resources": [{**CONFIG, "resource_name": name}]},
        ),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (
            {"admin"},
            {"validate_only": True, "resources": [{**CONFIG, "resource_name": name}]},
        ),
        ApiKey.CREATE_PARTITIONS: ({"admin"}, {"validate_only": True, "topics": [{"name": name, "count": 2}]}),
    }


TOPIC_APIS = list(_requests(""))
VERSIONS = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12}  # the last ones that name topics


@pytest.fixture(scope="module")
def topics(keyed: ServerProcess) -> tuple[str, str]:
    """A topic inside and one outside the prefix of the key t42."""
    with Api(keyed.base) as api:
        for name in ("t42.access", "other.access"):
            reply = api.send("PUT", f"/v0/topics/{name}", {}, headers={"authorization": f"Bearer {SECRETS['full']}"})
            assert reply.status_code in (200, 201)
    return "t42.access", "other.access"


@pytest.mark.parametrize("api", TOPIC_APIS, ids=lambda api: api.name)
def test_scopes_and_prefixes(api: ApiKey, topics: tuple[str, str], login: Callable[[str], Wire]) -> None:
    for name in topics:
        scopes, request = _requests(name)[api]
        for caller in (*SCOPES, "full", "t42"):
            allowed = name.startswith("t42") if caller == "t42" else caller == "full" or caller in scopes
            answer = login(caller).call(api, VERSIONS.get(api), **request)
            codes = set(error_codes(api, answer))
            assert (29 in codes) != allowed, (caller, name, codes)


def test_by_id_nothing_is_told(topics: tuple[str, str], login: Callable[[str], Wire]) -> None:
    full, t42 = login("full"), login("t42")
    (other,) = full.call(ApiKey.METADATA, topics=[{"name": topics[1]}])["topics"]
    (answer,) = t42.call(ApiKey.DELETE_TOPICS, 6, topics=[{"topic_id": other["topic_id"]}])["responses"]
    assert (answer["error_code"], answer["name"]) == (29, None)


def test_what_concerns_the_cluster(topics: tuple[str, str], login: Callable[[str], Wire]) -> None:
    for caller in SCOPES:
        wire = login(caller)
        broker = {"resource_type": 4, "resource_name": "1"}
        (answer,) = wire.call(ApiKey.DESCRIBE_CONFIGS, resources=[broker])["results"]
        assert answer["error_code"] == (0 if caller == "read" else 31)
        altered = {**broker, "configs": []}
        (answer,) = wire.call(ApiKey.ALTER_CONFIGS, resources=[altered])["responses"]
        assert answer["error_code"] == (42 if caller == "admin" else 31)
        answer = wire.call(ApiKey.DESCRIBE_LOG_DIRS, topics=None)
        assert answer["error_code"] == (0 if caller == "read" else 31)
        assert wire.call(ApiKey.DESCRIBE_CLUSTER)["error_code"] == 0
    (directory,) = login("t42").call(ApiKey.DESCRIBE_LOG_DIRS, topics=None)["results"]
    assert topics[0] in {each["name"] for each in directory["topics"]}
    assert all(each["name"].startswith("t42.") for each in directory["topics"])


def test_the_configs_of_a_topic_one_made_but_may_not_read(login: Callable[[str], Wire]) -> None:
    asked = {"validate_only": True, "topics": [{"name": "other.x", "num_partitions": 1, "replication_factor": 1}]}
    (made,) = login("admin").call(ApiKey.CREATE_TOPICS, **asked)["topics"]
    assert (made["error_code"], made["topic_config_error_code"], made["configs"]) == (0, 29, None)


async def test_every_api_has_a_handler(serve: Serve) -> None:
    server = await serve({})
    assert set(all_handlers(server.context)) == set(APIS) == set(ApiKey)
