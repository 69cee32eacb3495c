"""The handlers of groups on an engine in memory, called through the codec in the version that a test says."""

from typing import Any

from support.kafka_members import subscription
from topics_kafka.handlers import Context, ServerContext, groups, groups_admin, offsets
from topics_kafka.protocol import (
    SUPPORTED,
    ApiKey,
    Message,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from topics_kafka.registry import APIS
from topics_kafka.settings import KafkaSettings
from topics_service.api.access.auth import ALL_SCOPES, UNRESTRICTED, Principal, Scope
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.catalog import uuid_of
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, ConfigInput
from topics_service.statistics import KafkaStatistics
from topics_service.storage.memory import MemoryStore


class Broker:
    """What serves groups. `restart` is what a SIGKILL and a new start do."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.settings = KafkaSettings(initial_rebalance_ms=0, min_session_timeout_ms=50)
        self.commits: list[GroupCommit] = []
        self.start()

    def start(self) -> None:
        self.engine = engine = Engine(self.store, SystemClock())
        commit = GroupCommit.for_engine(engine)
        self.commits.append(commit)
        self.api = TopicsApi(engine, commit)
        self.server = ServerContext(
            apis=APIS,
            api=self.api,
            authorizer=Authorizer(),
            settings=self.settings,
            statistics=KafkaStatistics(),
            cluster_id="cluster",
            host="broker",
            port=9092,
        )
        self.handlers = {
            **groups.handlers(self.server),
            **groups_admin.handlers(self.server),
            **offsets.handlers(self.server),
        }
        self.membership = self.server.membership
        self.context = self.connect()

    def restart(self) -> None:
        self.membership.close()
        self.start()

    def connect(self, principal: Principal = UNRESTRICTED) -> Context:
        return Context(server=self.server, peer="127.0.0.1:5000", principal=principal, authenticated=True)

    async def put(self, topic: str, partitions: int = 1, records: int = 0) -> None:
        """A topic with the given number of partitions, and records in each."""
        config = ConfigInput(durability="disk")
        await self.api.put_topic(topic, config, principal=UNRESTRICTED, partition_count=partitions)
        for partition in range(partitions if records else 0):
            batch = Batch(datas=[b"1"] * records)
            request = AppendRequest(topic=topic, batch=batch, partition=partition)
            await self.api.append(request, principal=UNRESTRICTED)

    def topic_id(self, topic: str) -> Any:
        return uuid_of(self.engine.catalog.topics[topic].identity.topic_id)

    async def call(self, api: ApiKey, version: int, context: Context | None = None, **body: Any) -> Message:
        """The response as a client sees it."""
        _, decoded = decode_request(b"".join(encode_request(api, version, 7, "client", body)))
        caller = context or self.context
        caller.client_id = "client"
        answer = self.handlers[api](caller, version, decoded)
        response = answer if isinstance(answer, dict) else await answer  # type: ignore[misc]
        assert response is not None
        return decode_response(api, version, b"".join(encode_response(api, version, 7, response)))[1]


FULL = {
    "rebalance_timeout": 60_000,
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "instance_id": None,
    "rack_id": None,
}


def versions(api: ApiKey) -> range:
    low, high = SUPPORTED[api]
    return range(low, high + 1)


def limited(*prefixes: str, scopes: frozenset[Scope] = ALL_SCOPES) -> Principal:
    return Principal("key1", scopes, prefixes)


async def join(broker: Broker, version: int = 9, group: str = "g", member_id: str = "", **more: Any) -> Message:
    """Join, with the id that the coordinator gives."""
    body = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 20_000,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("t")}],
        "reason": None,
        **more,
    }
    response: Message = await broker.call(ApiKey.JOIN_GROUP, version, member_id=member_id, **body)
    if response["error_code"] == 79:
        response = await broker.call(ApiKey.JOIN_GROUP, version, member_id=response["member_id"], **body)
    return response


async def sync(broker: Broker, joined: Message, assigned: bytes, version: int = 5, group: str = "g") -> Message:
    member_id = joined["member_id"]
    response: Message = await broker.call(
        ApiKey.SYNC_GROUP,
        version,
        group_id=group,
        generation_id=joined["generation_id"],
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": member_id, "assignment": assigned}],
    )
    return response


async def beat(broker: Broker, member_id: str = "m", epoch: int = 0, version: int = 1, **more: Any) -> Message:
    body = {**FULL, "subscribed_topic_names": ["t"], "topic_partitions": [], **more}
    response: Message = await broker.call(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        version,
        **{"group_id": "g", "member_id": member_id, "member_epoch": epoch, **body},
    )
    return response
