"""CreateTopics, DeleteTopics and CreatePartitions."""

from collections import Counter
from typing import Any, Final

from topics_kafka import configs
from topics_kafka.configs import InvalidConfigError
from topics_kafka.handlers import Context, HandlerTable, ServerContext
from topics_kafka.handlers.config_entries import entries
from topics_kafka.handlers.errors import RefusedError, admin_error_of
from topics_kafka.handlers.waves import in_waves
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.catalog import TopicView, uuid_of
from topics_service.engine.errors import TopicsError
from topics_service.engine.names import is_kafka_name

_UNSET: Final = -1


def handlers(server: ServerContext) -> HandlerTable:
    """The APIs that create, grow and delete topics."""
    topics = TopicHandlers(server)
    return {
        ApiKey.CREATE_TOPICS: topics.create,
        ApiKey.DELETE_TOPICS: topics.delete,
        ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    }


class TopicHandlers:
    """Handlers of topics. Each topic succeeds or fails alone; all changes are durable before the response."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    # --------------------------------------------------------------- create

    async def create(self, context: Context, version: int, request: Message) -> Message:
        """Create topics. The timeout of the request is ignored: the server has its own."""
        names = Counter(entry["name"] for entry in request["topics"])
        entries_by_name = {entry["name"]: entry for entry in request["topics"]}
        work = (
            self._create(context, entry, twice=names[name] > 1, only_check=request["validate_only"])
            for name, entry in entries_by_name.items()
        )
        return {"topics": await in_waves(work)}

    async def _create(self, context: Context, entry: Message, *, twice: bool, only_check: bool) -> Message:
        name = entry["name"]
        try:
            if twice:
                raise RefusedError(ErrorCode.INVALID_REQUEST, "the topic is in the request more than once")
            count, given = self._checked(context, entry)
            config, kafka_configs = configs.to_topic(given)
            if not only_check:
                created = await self._server.api.create_topic(
                    name,
                    config,
                    principal=context.principal,
                    partition_count=count,
                    kafka_configs=kafka_configs,
                    zone=given.get(configs.ZONE, ""),
                )
                if not created:
                    raise _existing(name)
                await self._server.refresh(name)
        except RefusedError as error:
            return {"name": name, **error.result}
        except InvalidConfigError as error:
            return {"name": name, "error_code": ErrorCode.INVALID_CONFIG, "error_message": str(error)}
        except TopicsError as error:
            return {"name": name, "error_code": admin_error_of(error), "error_message": error.message}
        answer = {
            "name": name,
            "error_code": ErrorCode.NONE,
            "num_partitions": count,
            "replication_factor": self._server.replicas,
            "configs": entries(given, self._server.settings),
        }
        if not context.is_allowed(ApiKey.DESCRIBE_CONFIGS, name):
            answer.update(topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, configs=None)
            answer.update(num_partitions=_UNSET, replication_factor=_UNSET)
        topic = self._server.catalog.find(name)
        if topic is not None:
            answer["topic_id"] = uuid_of(topic.identity.topic_id)
        return answer

    def _checked(self, context: Context, entry: Message) -> tuple[int, configs.Overrides]:
        """The number of partitions and the configs of a topic to be created. Raises RefusedError."""
        name = entry["name"]
        if not context.is_allowed(ApiKey.CREATE_TOPICS, name):
            raise RefusedError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the API key may not create this topic")
        if not is_kafka_name(name):
            raise RefusedError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                "a topic name is 1 to 249 characters from A-Z a-z 0-9 . _ -, and neither . nor ..",
            )
        server = self._server
        if server.catalog.exists(name):
            raise _existing(name)
        count = self._count(entry)
        max_partitions = server.api.limits.max_partitions
        if not 1 <= count <= max_partitions:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS, f"the number of partitions must be from 1 to {max_partitions}"
            )
        given = configs.created({config["name"]: config["value"] for config in entry["configs"]})
        server.catalog.check_capacity(count)
        return count, given

    def _count(self, entry: Message) -> int:
        count, copies, assignments = entry["num_partitions"], entry["replication_factor"], entry["assignments"]
        if not assignments:
            self._check_copies(copies)
            return int(self._server.settings.num_partitions if count == _UNSET else count)
        if count != _UNSET or copies != _UNSET:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                "assignments say how many partitions and replicas there are: both numbers must be -1",
            )
        if sorted(each["partition_index"] for each in assignments) != list(range(len(assignments))):
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the partitions of the assignments must be numbered from 0"
            )
        self._check_assignments(assignments)
        return len(assignments)

    def _check_copies(self, copies: int) -> None:
        """The number of nodes with a replica is that of the cluster; a topic may ask for as many as there are nodes."""
        most = len(self._server.views.brokers.nodes())
        if copies != _UNSET and not 1 <= copies <= most:
            message = (
                "there is one broker, so one replica"
                if self._server.cluster is None
                else f"there are {most} brokers, so at most {most} replicas"
            )
            raise RefusedError(ErrorCode.INVALID_REPLICATION_FACTOR, message)

    def _check_assignments(self, assignments: list[dict[str, Any]]) -> None:
        if self._server.cluster is not None:
            raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the cluster itself assigns partitions to brokers")
        me = self._server.settings.node_id
        if any(each["broker_ids"] != [me] for each in assignments):
            raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"every partition is on broker {me}, the only one")

    # --------------------------------------------------------------- delete

    async def delete(self, context: Context, version: int, request: Message) -> Message:
        """Delete topics by name or, from version 6 on, by id."""
        asked = request["topics"] if version >= 6 else [{"name": name} for name in request["topic_names"]]
        targets = [(entry["name"], entry.get("topic_id")) for entry in asked]
        counts = Counter(targets)
        work = (self._delete(context, name, topic_id, counts[name, topic_id] > 1) for name, topic_id in counts)
        return {"responses": await in_waves(work)}

    async def _delete(self, context: Context, name: str | None, topic_id: Any, twice: bool) -> Message:
        shown: dict[str, Any] = {"name": name, "topic_id": topic_id}
        try:
            if twice:
                raise RefusedError(ErrorCode.INVALID_REQUEST, "the topic is in the request more than once")
            if (name is None) == (topic_id is None):
                raise RefusedError(ErrorCode.INVALID_REQUEST, "a topic is named either by its name or by its id")
            await self._server.refresh(*(() if name is None else (name,)), topic_id=topic_id)
            topic = self._found(context, name, topic_id)
            shown = {"name": topic.name, "topic_id": uuid_of(topic.identity.topic_id)}
            reply = await self._server.api.delete_topic(topic.name)
            await self._server.refresh(topic.name)
            if not reply.deleted:  # another request deleted it first
                raise _unknown(topic_id)
        except RefusedError as error:
            return {**shown, **error.result}
        except TopicsError as error:
            return {**shown, "error_code": admin_error_of(error), "error_message": error.message}
        return {**shown, "error_code": ErrorCode.NONE}

    def _found(self, context: Context, name: str | None, topic_id: Any) -> TopicView:
        forbidden = RefusedError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the API key may not delete this topic")
        if name is not None and not context.is_allowed(ApiKey.DELETE_TOPICS, name):
            raise forbidden
        topic = self._server.catalog.find(name, topic_id)
        if topic is None:
            raise _unknown(topic_id)
        if not context.is_allowed(ApiKey.DELETE_TOPICS, topic.name):
            raise forbidden
        return topic

    # ----------------------------------------------------------- partitions

    async def create_partitions(self, context: Context, version: int, request: Message) -> Message:
        """Add partitions to topics. Existing records stay in their partitions."""
        names = Counter(entry["name"] for entry in request["topics"])
        by_name = {entry["name"]: entry for entry in request["topics"]}
        work = (
            self._grow(context, entry, twice=names[name] > 1, only_check=request["validate_only"])
            for name, entry in by_name.items()
        )
        return {"results": await in_waves(work)}

    async def _grow(self, context: Context, entry: Message, *, twice: bool, only_check: bool) -> Message:
        name = entry["name"]
        try:
            if twice:
                raise RefusedError(ErrorCode.INVALID_REQUEST, "the topic is in the request more than once")
            await self._server.refresh(name)
            topic = self._growable(context, entry)
            if not only_check:
                config, _ = configs.to_topic(configs.overrides(topic), topic.config)
                await self._server.api.put_topic(
                    name, config, principal=context.principal, partition_count=entry["count"]
                )
                await self._server.refresh(name)
        except RefusedError as error:
            return {"name": name, **error.result}
        except TopicsError as error:
            return {"name": name, "error_code": admin_error_of(error), "error_message": error.message}
        return {"name": name, "error_code": ErrorCode.NONE}

    def _growable(self, context: Context, entry: Message) -> TopicView:
        name, count, assignments = entry["name"], entry["count"], entry["assignments"]
        if not context.is_allowed(ApiKey.CREATE_PARTITIONS, name):
            raise RefusedError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the API key may not change this topic")
        server = self._server
        topic = server.catalog.find(name)
        if topic is None:
            raise _unknown(None)
        now, max_partitions = topic.identity.partition_count, server.api.limits.max_partitions
        if count <= now:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS, f"the topic has {now} partitions already; there can only be more"
            )
        if count > max_partitions:
            raise RefusedError(ErrorCode.INVALID_PARTITIONS, f"a topic has at most {max_partitions} partitions")
        if topic.config.type == "queue" or server.catalog.is_routed(name):
            raise RefusedError(ErrorCode.INVALID_REQUEST, "a queue and an end of a router have one partition")
        if assignments is not None:
            if len(assignments) != count - now:
                raise RefusedError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"there must be {count - now} assignments, one for each new one",
                )
            self._check_assignments(assignments)
        server.catalog.check_capacity(count - now)
        return topic


def _existing(name: str) -> RefusedError:
    return RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f'topic "{name}" exists')


def _unknown(topic_id: Any) -> RefusedError:
    if topic_id is not None:
        return RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id")
    return RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic")
