"""APIs that operators' tools ask of brokers: leaders, reassignments, quorum, access, quotas, transactions, configs."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from support.http import Api, ok
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_kafka.protocol import SUPPORTED, ApiKey

from .conftest import SECRETS

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER = 2, 3, 4
USERS = {name: f"User:{hashlib.sha256(secret.encode()).hexdigest()[:12]}" for name, secret in SECRETS.items()}


@pytest.fixture
def name(server: ServerProcess) -> Iterator[str]:
    with Api(server.base) as api:
        name = f"t.{uuid4().hex[:10]}"
        ok(api.put(name), 201)
        yield name


def versions(api: ApiKey) -> range:
    first, last = SUPPORTED[api]
    return range(first, last + 1)


# --- leaders and reassignments


@pytest.mark.parametrize("version", versions(ApiKey.ELECT_LEADERS))
def test_leaders_are_elected_already(version: int, wire: Wire, name: str) -> None:
    asked = [{"topic": name, "partitions": [0, 7]}, {"topic": "not.there", "partitions": [0]}]
    body = wire.call(ApiKey.ELECT_LEADERS, version, election_type=0, topic_partitions=asked, timeout=1000)
    found = {
        (topic["topic"], each["partition_id"]): each["error_code"]
        for topic in body["replica_election_results"]
        for each in topic["partition_result"]
    }
    assert found == {(name, 0): 84, (name, 7): 3, ("not.there", 0): 3}
    body = wire.call(ApiKey.ELECT_LEADERS, version, election_type=1, topic_partitions=None, timeout=1000)
    assert body["replica_election_results"] == []


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
@pytest.mark.parametrize(("replicas", "code"), [([1], 0), ([2], 39), ([1, 2], 39), ([], 39), (None, 85)])
def test_reassignments(version: int, replicas: list[int] | None, code: int, wire: Wire, name: str) -> None:
    topics = [{"name": name, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
    body = wire.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, topics=topics, timeout=1000)
    assert body["error_code"] == 0
    assert [each["error_code"] for each in body["responses"][0]["partitions"]] == [code]


def test_no_reassignment_is_under_way(wire: Wire, name: str) -> None:
    asked: Any
    for asked in (None, [{"name": name, "partition_indexes": [0]}]):
        body = wire.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=asked, timeout=1000)
        assert (body["error_code"], body["topics"]) == (0, [])


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_QUORUM))
def test_the_quorum_is_the_broker(version: int, wire: Wire, server: ServerProcess) -> None:
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}, {"partition_index": 1}]}]
    body = wire.call(ApiKey.DESCRIBE_QUORUM, version, topics=asked)
    assert body["error_code"] == 0
    found, missing = body["topics"][0]["partitions"]
    assert (found["error_code"], found["leader_id"], len(found["current_voters"])) == (0, 1, 1)
    assert found["current_voters"][0]["log_end_offset"] == found["high_watermark"] >= 0
    assert missing["error_code"] == 3
    if version >= 2:
        (node,) = body["nodes"]
        assert [(each["host"], each["port"]) for each in node["listeners"]] == [("127.0.0.1", server.kafka_port)]


# --- access


def acls(wire: Wire, version: int = 3, **filters: Any) -> Any:
    asked = {
        "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY, "principal_filter": None,
        "host_filter": None, "operation": ANY, "permission_type": ANY,
    }  # fmt: skip
    return wire.call(ApiKey.DESCRIBE_ACLS, version, **(asked | filters))


def flat(body: Any) -> set[tuple[str, int, str, int, int]]:
    return {
        (acl["principal"], each["resource_type"], each["resource_name"], each["pattern_type"], acl["operation"])
        for each in body["resources"]
        for acl in each["acls"]
    }


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_ACLS))
def test_acls_are_the_scopes_of_keys(version: int, login: Callable[[str], Wire]) -> None:
    wire = login("full")
    found = flat(acls(wire, version))
    assert (USERS["read"], TOPIC, "*", LITERAL, 3) in found, "a key that reads"
    assert (USERS["read"], TOPIC, "*", LITERAL, 4) not in found
    assert (USERS["t42"], TOPIC, "t42.", PREFIXED, 4) in found
    assert (USERS["admin"], CLUSTER, "kafka-cluster", LITERAL, 7) in found
    assert not any(acl[:2] == (USERS["write"], GROUP) for acl in found), "a key that only writes has no groups"


def test_filters_of_acls(login: Callable[[str], Wire]) -> None:
    wire = login("full")
    everything = flat(acls(wire))
    assert flat(acls(wire, principal_filter=USERS["t42"])) == {acl for acl in everything if acl[0] == USERS["t42"]}
    assert flat(acls(wire, resource_type_filter=GROUP, operation=3)) == {
        acl for acl in everything if acl[1] == GROUP and acl[4] == 3
    }
    named = flat(acls(wire, resource_type_filter=TOPIC, resource_name_filter="t42.a", pattern_type_filter=MATCH))
    assert {acl[2] for acl in named} == {"*", "t42."}
    named = flat(acls(wire, resource_type_filter=TOPIC, resource_name_filter="t42.", pattern_type_filter=PREFIXED))
    assert {acl[2] for acl in named} == {"t42."}
    assert flat(acls(wire, resource_name_filter="t42.a")) == set()
    assert flat(acls(wire, permission_type=2)) == flat(acls(wire, host_filter="10.0.0.1")) == set()


def test_access_is_not_changed_here(login: Callable[[str], Wire]) -> None:
    wire = login("full")
    creation = {
        "resource_type": TOPIC, "resource_name": "x", "resource_pattern_type": LITERAL, "principal": "User:eve",
        "host": "*", "operation": 3, "permission_type": 3,
    }  # fmt: skip
    before = flat(acls(wire))
    body = wire.call(ApiKey.CREATE_ACLS, creations=[creation, creation])
    assert [each["error_code"] for each in body["results"]] == [42, 42]
    every = {"resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY,
             "principal_filter": None, "host_filter": None, "operation": ANY, "permission_type": ANY}  # fmt: skip
    body = wire.call(ApiKey.DELETE_ACLS, filters=[every])
    assert [(each["error_code"], each["matching_acls"]) for each in body["filter_results"]] == [(42, [])]
    assert flat(acls(wire)) == before


def test_a_server_without_authentication_has_no_acls(wire: Wire) -> None:
    body = acls(wire)
    assert (body["error_code"], body["resources"]) == (54, [])


@pytest.mark.parametrize("key", ["read", "write", "delete", "t42"])
def test_access_is_shown_to_admins_only(key: str, login: Callable[[str], Wire]) -> None:
    wire = login(key)
    code = 0 if key == "t42" else 31  # that key has all scopes
    assert acls(wire)["error_code"] == code
    assert wire.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=None)["error_code"] == code
    assert wire.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False)["error_code"] == code
    body = wire.call(ApiKey.ELECT_LEADERS, election_type=0, topic_partitions=None, timeout=1000)
    assert body["error_code"] == code
    topics = [{"name": "elsewhere", "partitions": [{"partition_index": 0, "replicas": None}]}]
    body = wire.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=topics, timeout=1000)
    assert body["error_code"] == code
    if not code:
        assert body["responses"][0]["partitions"][0]["error_code"] == 29, "a topic of another prefix"


# --- quotas and credentials


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLIENT_QUOTAS))
def test_there_are_no_quotas(version: int, wire: Wire) -> None:
    components = [{"entity_type": "user", "match_type": 2, "match": None}]
    body = wire.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, components=components, strict=False)
    assert (body["error_code"], body["entries"]) == (0, [])
    entity = [{"entity_type": "user", "entity_name": "ada"}]
    change = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1048576.5, "remove": False}]}
    body = wire.call(ApiKey.ALTER_CLIENT_QUOTAS, version, entries=[change], validate_only=False)
    assert [(entry["error_code"], entry["entity"]) for entry in body["entries"]] == [(42, entity)]


def test_credentials_of_users(tmp_path_factory: pytest.TempPathFactory) -> None:
    env = {"TOPICS_SQL_USERS": "ada:password:dba,bob:another:user"}
    with (
        ServerProcess(tmp_path_factory.mktemp("users"), kafka=True, env=env) as server,
        Wire(server.kafka_port) as wire,
    ):
        assert wire.authenticate("password", "ada")["error_code"] == 0
        body = wire.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=None)
        both = [{"mechanism": 1, "iterations": 16384}, {"mechanism": 2, "iterations": 16384}]
        assert [(each["user"], each["credential_infos"]) for each in body["results"]] == [("ada", both), ("bob", both)]
        body = wire.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[{"name": "bob"}, {"name": "eve"}])
        assert [(each["user"], each["error_code"]) for each in body["results"]] == [("bob", 0), ("eve", 91)]
        new = {"name": "eve", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"x" * 32}
        old = {"name": "bob", "mechanism": 2}
        body = wire.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, deletions=[old], upsertions=[new])
        assert [(each["user"], each["error_code"]) for each in body["results"]] == [("bob", 42), ("eve", 42)]
        assert "password" not in server.log


# --- transactions and resources with configs


@pytest.mark.parametrize("version", versions(ApiKey.LIST_TRANSACTIONS))
def test_there_are_no_transactions(version: int, wire: Wire) -> None:
    filters = {"state_filters": ["Ongoing", "Nonsense"], "producer_id_filters": []}
    body = wire.call(ApiKey.LIST_TRANSACTIONS, version, **filters)
    assert (body["error_code"], body["transaction_states"]) == (0, [])
    assert body["unknown_state_filters"] == ["Nonsense"]
    body = wire.call(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["a", "b", "a"])
    assert [(each["transactional_id"], each["error_code"]) for each in body["transaction_states"]] == [
        ("a", 105),
        ("b", 105),
    ]


def test_a_pattern_of_transactions_that_is_none(wire: Wire) -> None:
    filters = {"state_filters": [], "producer_id_filters": [], "transactional_id_pattern": "("}
    assert wire.call(ApiKey.LIST_TRANSACTIONS, **filters)["error_code"] == 128


def test_resources_with_configs(wire: Wire, name: str) -> None:
    group = f"g.{uuid4().hex[:10]}"
    position = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": name, "partitions": [position]}]
    wire.call(ApiKey.OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)
    body = wire.call(ApiKey.LIST_CONFIG_RESOURCES, resource_types=[])
    found = {(each["resource_type"], each["resource_name"]) for each in body["config_resources"]}
    assert {(2, name), (4, "1"), (32, group)} <= found
    body = wire.call(ApiKey.LIST_CONFIG_RESOURCES, resource_types=[4])
    assert [each["resource_name"] for each in body["config_resources"]] == ["1"]
    assert wire.call(ApiKey.LIST_CONFIG_RESOURCES, resource_types=[16])["config_resources"] == []
    assert wire.call(ApiKey.LIST_CONFIG_RESOURCES, 0)["config_resources"] == []
    assert wire.call(ApiKey.LIST_CONFIG_RESOURCES, resource_types=[99])["error_code"] == 35


def test_configs_of_groups(wire: Wire) -> None:
    resource = {"resource_type": 32, "resource_name": "any", "configuration_keys": None}
    body = wire.call(ApiKey.DESCRIBE_CONFIGS, resources=[resource], include_synonyms=False)
    (result,) = body["results"]
    found = {each["name"]: (each["value"], each["read_only"]) for each in result["configs"]}
    assert found["consumer.session.timeout.ms"] == ("45000", True)
    change = {"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "50000"}
    asked = [{"resource_type": 32, "resource_name": "any", "configs": [change]}]
    body = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=asked, validate_only=False)
    assert [each["error_code"] for each in body["responses"]] == [42]
