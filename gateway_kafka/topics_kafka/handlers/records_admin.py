"""DeleteRecords and DescribeLogDirs."""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.handlers.elsewhere import Elsewhere, completed
from topics_kafka.handlers.errors import error_of
from topics_kafka.handlers.waves import in_waves
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.catalog import TopicView
from topics_service.api.kafka_logs import size_of
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import DeleteRequest

_HIGH_WATERMARK: Final = -1
_UNKNOWN: Final = -1
_LOG_DIR: Final = "data"
_Queries = Elsewhere[tuple[str, int], int]


def handlers(server: ServerContext) -> HandlerTable:
    """DeleteRecords and DescribeLogDirs."""
    records = RecordsAdminHandlers(server)
    return {ApiKey.DELETE_RECORDS: records.delete_records, ApiKey.DESCRIBE_LOG_DIRS: records.describe_log_dirs}


class RecordsAdminHandlers:
    """Handlers for the records of partitions. Offset N is seq N + 1."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    async def delete_records(self, context: Context, version: int, request: Message) -> Message:
        """Delete the records below an offset; -1 is the high watermark, and beyond it is OFFSET_OUT_OF_RANGE."""
        topics = []
        for entry in request["topics"]:
            asked = {each["partition_index"]: each["offset"] for each in entry["partitions"]}
            work = (self._delete(context, entry["name"], index, offset) for index, offset in asked.items())
            outcomes = zip(asked, await in_waves(work), strict=True)
            partitions = [
                {"partition_index": index, "low_watermark": low, "error_code": code} for index, (low, code) in outcomes
            ]
            topics.append({"name": entry["name"], "partitions": partitions})
        return {"topics": topics}

    async def _delete(self, context: Context, name: str, partition: int, offset: int) -> tuple[int, ErrorCode]:
        """Return the first offset that is left, and an error code."""
        api = self._server.api
        if not context.is_allowed(ApiKey.DELETE_RECORDS, name):
            return _UNKNOWN, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        try:
            state = await api.get_topic(name, touch=False, partition=partition)
            until = state.head_seq if offset == _HIGH_WATERMARK else offset
            if not 0 <= until <= state.head_seq:
                return _UNKNOWN, ErrorCode.OFFSET_OUT_OF_RANGE
            if until < state.earliest_seq:
                return state.earliest_seq - 1, ErrorCode.NONE
            reply = await api.delete_records(DeleteRequest(topic=name, partition=partition, before_seq=until + 1))
        except TopicsError as error:
            return _UNKNOWN, error_of(error)
        return reply.earliest_seq - 1, ErrorCode.NONE

    def describe_log_dirs(self, context: Context, version: int, request: Message) -> Answer:
        """Return the bytes of records in each partition that this broker is shown as the leader of.

        Clients ask each broker for its own ones. All are in one directory.
        """
        if not context.is_allowed(ApiKey.DESCRIBE_LOG_DIRS):
            return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "results": []}
        server = self._server
        queries = None if server.single is not None else _Queries(server.shards.sizes, lambda _error: 0)
        view = None if server.cluster is None else context.view
        topics = []
        for topic, partitions in self._asked(context, request["topics"]):
            sized = [
                self._sized(topic, partition, queries)
                for partition in partitions
                if view is None or view.is_answered_here(server.shard(topic.name, partition))
            ]
            if sized or view is None:
                topics.append({"name": topic.name, "partitions": sized})
        response = {"results": [{"error_code": ErrorCode.NONE, "log_dir": _LOG_DIR, "topics": topics}]}
        return completed(response, queries)

    def _sized(self, topic: TopicView, partition: int, queries: _Queries | None) -> dict[str, Any]:
        sized = {"partition_index": partition, "partition_size": 0, "offset_lag": 0}
        api = self._server.here(topic.name, partition)
        if api is not None:
            sized["partition_size"] = size_of(api, topic.name, partition)
        elif queries is not None:
            shard = self._server.shards.shard(topic.name, partition)
            queries.add(shard, (topic.name, partition), partial(sized.__setitem__, "partition_size"))
        return sized

    def _asked(self, context: Context, asked: list[Message] | None) -> Iterable[tuple[TopicView, Iterable[int]]]:
        """The existing topics and partitions among those that are requested and that the caller may access."""
        catalog = self._server.catalog
        if asked is None:
            for topic in catalog.within(context.prefixes):
                yield topic, range(topic.identity.partition_count)
            return
        for entry in asked:
            name = entry["topic"]
            found = catalog.find(name) if context.is_allowed(ApiKey.DESCRIBE_LOG_DIRS, name) else None
            if found is not None:
                count = found.identity.partition_count
                yield found, [index for index in dict.fromkeys(entry["partitions"]) if 0 <= index < count]
