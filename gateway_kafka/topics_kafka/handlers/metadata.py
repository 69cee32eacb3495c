"""Metadata and DescribeCluster: topics, partitions and brokers. Metadata may create missing topics."""

from collections.abc import Awaitable, Mapping
from typing import Final
from uuid import UUID

from topics_kafka.brokers import BrokerView
from topics_kafka.handlers import Context, HandlerTable, ServerContext, operations
from topics_kafka.handlers.waves import in_waves
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.access.auth import Scope
from topics_service.api.catalog import TopicView, uuid_of
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ConfigInput
from topics_service.engine.names import is_kafka_name

_BROKERS: Final = 1  # endpoint type


def handlers(server: ServerContext) -> HandlerTable:
    """Metadata and DescribeCluster."""
    metadata_handlers = MetadataHandlers(server)
    return {ApiKey.METADATA: metadata_handlers.metadata, ApiKey.DESCRIBE_CLUSTER: metadata_handlers.describe_cluster}


class MetadataHandlers:
    """Metadata handlers. Clients that name their zone learn of the brokers of that zone only, admins among them."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def metadata(self, context: Context, version: int, request: Message) -> Message | Awaitable[Message]:
        """Describe the requested topics, or all that the caller may access.

        A missing topic is created with one partition if the request allows it (before version 4 every request does)
        and the caller has the scope `write`; otherwise it is UNKNOWN_TOPIC_OR_PARTITION.
        """
        context.epochs = self._server.epochs()
        asked = request["topics"]
        if asked is None or (version == 0 and not asked):
            topics, view = self._server.catalog.within(context.prefixes), context.view
            found = [self._described(context, view, topic, request) for topic in topics]
            return self._response(context, request, found)
        missing = self._missing(context, asked)
        refreshed = self._refresh(asked, missing)
        if refreshed is not None:
            return self._once_refreshed(context, version, request, refreshed)
        if missing and self._may_create(context, request):
            return self._create(context, version, request, missing)
        return self._response(context, request, self._asked(context, version, request, {}))

    def _refresh(self, asked: list[Message], missing: list[str]) -> Awaitable[None] | None:
        """Ask for topics that this process does not know where they are; None if there are none or they can't be."""
        find = self._server.catalog.find
        ids = [each["topic_id"] for each in asked if each["name"] is None and find(None, each["topic_id"]) is None]
        return self._server.catalog.refresh(missing, filter(None, ids)) if missing or ids else None

    async def _once_refreshed(
        self, context: Context, version: int, request: Message, refreshed: Awaitable[None]
    ) -> Message:
        await refreshed
        missing = self._missing(context, request["topics"]) if self._may_create(context, request) else []
        if missing:
            return await self._create(context, version, request, missing)
        return self._response(context, request, self._asked(context, version, request, {}))

    def describe_cluster(self, context: Context, version: int, request: Message) -> Message:
        """Describe the brokers that the client sees."""
        if version >= 1 and request["endpoint_type"] != _BROKERS:
            return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": "there are no separate controllers"}
        view = context.view
        asked = request["include_cluster_authorized_operations"]
        return {
            "error_code": ErrorCode.NONE,
            "endpoint_type": _BROKERS,
            "cluster_id": self._server.cluster_id,
            "controller_id": view.controller,
            "brokers": view.listed("broker_id"),
            "cluster_authorized_operations": operations.on_cluster(context) if asked else operations.NOT_ASKED,
        }

    def _may_create(self, context: Context, request: Message) -> bool:
        return (
            self._server.settings.auto_create
            and request.get("allow_auto_topic_creation", True)
            and context.has_scope(Scope.WRITE)
        )

    def _missing(self, context: Context, asked: list[Message]) -> list[str]:
        asked_for = dict.fromkeys(entry["name"] for entry in asked)
        return [
            name
            for name in asked_for
            if name
            and is_kafka_name(name)
            and context.is_allowed(ApiKey.METADATA, name)
            and self._server.catalog.find(name) is None
        ]

    async def _create(self, context: Context, version: int, request: Message, missing: list[str]) -> Message:
        codes = await in_waves(self._create_one(context, name) for name in missing)
        failed = {name: code for name, code in zip(missing, codes, strict=True) if code}
        return self._response(context, request, self._asked(context, version, request, failed))

    async def _create_one(self, context: Context, name: str) -> ErrorCode:
        server = self._server
        try:
            # Another request may be creating it, perhaps with a config.
            await server.api.create_topic(name, ConfigInput(), principal=context.principal, kafka_configs={})
            await server.refresh(name)
        except TopicsError as error:
            limited = error.reason is Reason.THROTTLED and "limit" in (error.detail or {})
            return ErrorCode.POLICY_VIOLATION if limited else ErrorCode.LEADER_NOT_AVAILABLE
        return ErrorCode.NONE

    def _asked(
        self, context: Context, version: int, request: Message, failed: Mapping[str, ErrorCode]
    ) -> list[Message]:
        found: dict[str | UUID | None, Message] = {}
        view = context.view
        for entry in request["topics"]:
            name, topic_id = entry["name"], entry.get("topic_id")
            if name is None:
                found[topic_id] = self._by_id(context, view, version, topic_id, request)
            elif name not in found:
                found[name] = self._by_name(context, view, name, failed, request)
        return list(found.values())

    def _by_name(
        self, context: Context, view: BrokerView, name: str, failed: Mapping[str, ErrorCode], request: Message
    ) -> Message:
        if not context.is_allowed(ApiKey.METADATA, name):
            return {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "name": name}
        topic = self._server.catalog.find(name)
        if topic is not None:
            return self._described(context, view, topic, request)
        if not is_kafka_name(name):
            return {"error_code": ErrorCode.INVALID_TOPIC_EXCEPTION, "name": name}
        return {"error_code": failed.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), "name": name}

    def _by_id(
        self, context: Context, view: BrokerView, version: int, topic_id: UUID | None, request: Message
    ) -> Message:
        topic = self._server.catalog.find(None, topic_id)
        if topic is not None and context.is_allowed(ApiKey.METADATA, topic.name):
            return self._described(context, view, topic, request)
        code = ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return {"error_code": code, "name": None if version >= 12 else "", "topic_id": topic_id}

    def _described(self, context: Context, view: BrokerView, topic: TopicView, request: Message) -> Message:
        asked = request.get("include_topic_authorized_operations", False)
        return {
            "error_code": ErrorCode.NONE,
            "name": topic.name,
            "topic_id": uuid_of(topic.identity.topic_id),
            "partitions": self._server.partitions(view, topic),
            "topic_authorized_operations": operations.on_topics(context) if asked else operations.NOT_ASKED,
        }

    def _response(self, context: Context, request: Message, topics: list[Message]) -> Message:
        view = context.view
        asked = request.get("include_cluster_authorized_operations", False)
        return {
            "brokers": view.listed(),
            "cluster_id": self._server.cluster_id,
            "controller_id": view.controller,
            "topics": topics,
            "cluster_authorized_operations": operations.on_cluster(context) if asked else operations.NOT_ASKED,
        }
