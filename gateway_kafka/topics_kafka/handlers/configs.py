"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from collections import Counter
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Final

from topics_kafka import configs
from topics_kafka.configs import CONFIGS, ConfigType, InvalidConfigError, Overrides
from topics_kafka.handlers import Context, HandlerTable, ServerContext
from topics_kafka.handlers.config_entries import broker_entries, entries, group_entries
from topics_kafka.handlers.errors import RefusedError, admin_error_of, list_error_of
from topics_kafka.handlers.waves import in_waves
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.catalog import TopicView
from topics_service.api.membership import settled
from topics_service.engine.errors import TopicsError

_TOPIC: Final = 2
_BROKER: Final = 4
_CLIENT_METRICS: Final = 16
_GROUP: Final = 32
_LISTED: Final = (_TOPIC, _BROKER, _CLIENT_METRICS, _GROUP)

Change = Callable[[Overrides, Message], Overrides]


class Operation(IntEnum):
    """Operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def handlers(server: ServerContext) -> HandlerTable:
    """The APIs of configs."""
    config_handlers = ConfigHandlers(server)
    return {
        ApiKey.DESCRIBE_CONFIGS: config_handlers.describe,
        ApiKey.ALTER_CONFIGS: config_handlers.alter,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: config_handlers.alter_some,
        ApiKey.LIST_CONFIG_RESOURCES: config_handlers.list_resources,
    }


class ConfigHandlers:
    """Handlers of configs: those of topics can be changed, those of brokers are read-only."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def describe(self, context: Context, version: int, request: Message) -> Message | Awaitable[Message]:
        """Describe the configs of topics and of brokers, with the origin of each value.

        Of another broker these are the ones that this one knows: its address, id and rack, and what none can change.
        """
        names = [each["resource_name"] for each in request["resources"] if each["resource_type"] == _TOPIC]
        refreshed = self._server.catalog.refresh(names)
        return self._all_described(context, request) if refreshed is None else self._after(refreshed, context, request)

    async def _after(self, refreshed: Awaitable[None], context: Context, request: Message) -> Message:
        await refreshed
        return self._all_described(context, request)

    def _all_described(self, context: Context, request: Message) -> Message:
        results = []
        synonyms = request["include_synonyms"]
        asked = {(each["resource_type"], each["resource_name"]): each for each in request["resources"]}
        for (kind, name), resource in asked.items():
            shown = {"resource_type": kind, "resource_name": name}
            try:
                found = self._described(context, kind, name, resource["configuration_keys"] or None, synonyms)
            except RefusedError as error:
                results.append({**shown, **error.result})
                continue
            results.append({**shown, "error_code": ErrorCode.NONE, "configs": found})
        return {"results": results}

    def _described(
        self, context: Context, kind: int, name: str, names: list[str] | None, synonyms: bool
    ) -> list[Message]:
        settings = self._server.settings
        if kind == _TOPIC:
            topic = self._topic(context, ApiKey.DESCRIBE_CONFIGS, name)
            return entries(configs.overrides(topic), settings, names, synonyms=synonyms)
        if kind == _GROUP:
            if not context.is_allowed(ApiKey.DESCRIBE_CONFIGS, name):
                raise RefusedError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "the API key may not touch this group")
            return group_entries(settings, names, synonyms=synonyms)
        if kind != _BROKER:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"there are no resources of type {kind}")
        if not context.is_allowed(ApiKey.DESCRIBE_CONFIGS):
            raise RefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "the API key may not see the broker's configs")
        server = self._server
        me, nodes = server.me, server.views.brokers.nodes()
        broker = me if name == "" else next((node for node in nodes if name == str(node.node_id)), None)
        if broker is None:
            known = ", ".join(str(node.node_id) for node in nodes)
            message = f"the broker is {known}" if len(nodes) == 1 else f"the brokers are {known}"
            raise RefusedError(ErrorCode.INVALID_REQUEST, message)
        is_me = broker.node_id == me.node_id
        return broker_entries(settings, broker, server.replicas, names, is_me=is_me, synonyms=synonyms)

    async def list_resources(self, context: Context, version: int, request: Message) -> Message:
        """List the resources that have configs: those of the types asked for, of all for none, and in version 0 those
        of client metrics, of which there are none."""
        if not context.is_allowed(ApiKey.LIST_CONFIG_RESOURCES):
            return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "config_resources": []}
        kinds = set(request["resource_types"] or _LISTED) if version >= 1 else {_CLIENT_METRICS}
        if not kinds <= set(_LISTED):
            return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": []}
        names: list[tuple[int, str]] = []
        if _TOPIC in kinds:
            names += ((_TOPIC, topic.name) for topic in self._server.catalog.within(context.prefixes))
        if _BROKER in kinds:
            names += ((_BROKER, str(node.node_id)) for node in self._server.views.brokers.nodes())
        if _GROUP in kinds:
            try:
                groups = await settled(self._server.membership.listing(context.prefixes))
            except TopicsError as error:
                return {"error_code": list_error_of(error), "config_resources": []}
            names += ((_GROUP, line.name) for line in groups)
        found = [{"resource_type": kind, "resource_name": name} for kind, name in names]
        return {"error_code": ErrorCode.NONE, "config_resources": found}

    async def alter(self, context: Context, version: int, request: Message) -> Message:
        """Replace all overrides of topics: a config that is not named is reset to its default."""
        return await self._alter(context, ApiKey.ALTER_CONFIGS, request, _replace)

    async def alter_some(self, context: Context, version: int, request: Message) -> Message:
        """Change only the overrides of topics that are named."""
        return await self._alter(context, ApiKey.INCREMENTAL_ALTER_CONFIGS, request, _patch)

    async def _alter(self, context: Context, api: ApiKey, request: Message, change: Change) -> Message:
        resources = [(each["resource_type"], each["resource_name"]) for each in request["resources"]]
        counts = Counter(resources)
        by_resource = dict(zip(resources, request["resources"], strict=True))
        work = (
            self._alter_one(context, api, resource, change, twice=counts[key] > 1, only_check=request["validate_only"])
            for key, resource in by_resource.items()
        )
        return {"responses": await in_waves(work)}

    async def _alter_one(
        self, context: Context, api: ApiKey, resource: Message, change: Change, *, twice: bool, only_check: bool
    ) -> Message:
        kind, name = resource["resource_type"], resource["resource_name"]
        shown = {"resource_type": kind, "resource_name": name}
        try:
            if twice:
                raise RefusedError(ErrorCode.INVALID_REQUEST, "the resource is in the request more than once")
            if kind == _TOPIC:
                await self._server.refresh(name)
            topic = self._alterable(context, api, kind, name)
            config, kafka_configs = configs.to_topic(change(configs.overrides(topic), resource), topic.config)
            if not only_check:
                await self._server.api.put_topic(name, config, principal=context.principal, kafka_configs=kafka_configs)
                await self._server.refresh(name)
        except RefusedError as error:
            return {**shown, **error.result}
        except InvalidConfigError as error:
            return {**shown, "error_code": ErrorCode.INVALID_CONFIG, "error_message": str(error)}
        except TopicsError as error:
            return {**shown, "error_code": admin_error_of(error), "error_message": error.message}
        return {**shown, "error_code": ErrorCode.NONE}

    def _alterable(self, context: Context, api: ApiKey, kind: int, name: str) -> TopicView:
        if kind == _TOPIC:
            return self._topic(context, api, name)
        if kind == _BROKER:
            if not context.is_allowed(api):
                raise RefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "the API key may not change the broker")
            raise RefusedError(ErrorCode.INVALID_REQUEST, "the broker's configs are settings of the server")
        if kind == _GROUP:
            if not context.is_allowed(api, name):
                raise RefusedError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "the API key may not change this group")
            raise RefusedError(ErrorCode.INVALID_REQUEST, "the configs of groups are settings of the server")
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"there are no resources of type {kind}")

    def _topic(self, context: Context, api: ApiKey, name: str) -> TopicView:
        if not context.is_allowed(api, name):
            raise RefusedError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the API key may not do this with this topic")
        topic = self._server.catalog.find(name)
        if topic is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic")
        return topic


def _replace(old: Overrides, resource: Message) -> Overrides:
    return configs.replaced(old, {config["name"]: config["value"] for config in resource["configs"]})


def _patch(old: Overrides, resource: Message) -> Overrides:
    changes: dict[str, str | None] = {}
    for config in resource["configs"]:
        name, value = config["name"], config["value"]
        if name in changes:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name} is changed more than once")
        try:
            operation = Operation(config["config_operation"])
        except ValueError:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name}: unknown operation") from None
        if operation is Operation.DELETE:
            changes[name] = None
        elif value is None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name}: a value is missing")
        elif operation is Operation.SET:
            changes[name] = value
        else:
            changes[name] = _listed(old, name, value, operation)
    return configs.patched(old, changes)


def _listed(old: Overrides, name: str, value: str, operation: Operation) -> str:
    """The value of a list config after items are appended or subtracted."""
    config = CONFIGS.get(name)
    if config is None or config.type is not ConfigType.LIST:
        raise InvalidConfigError(f"{name} is not a list: items can't be added or taken away")
    now, given = configs.items(old.get(name, config.default)), configs.items(value)
    if operation is Operation.APPEND:
        return ",".join([*now, *(item for item in given if item not in now)])
    return ",".join(item for item in now if item not in given)
