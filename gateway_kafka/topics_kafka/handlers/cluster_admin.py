"""ElectLeaders, the APIs of reassignments, and DescribeQuorum: what operators' tools ask of brokers.

Brokers here neither elect leaders nor hold replicas of their own. Tools learn that there is nothing to do, and what
would change the placement of partitions is refused.
"""

from collections.abc import Iterable
from typing import Any, Final

from topics_kafka.handlers import Context, HandlerTable, ServerContext
from topics_kafka.handlers.errors import RefusedError
from topics_kafka.protocol import ApiKey, ErrorCode, Message

_METADATA_TOPIC: Final = "__cluster_metadata"
_UNKNOWN: Final = -1


def handlers(server: ServerContext) -> HandlerTable:
    """The APIs of leaders, reassignments and the quorum."""
    cluster = ClusterAdminHandlers(server)
    return {
        ApiKey.ELECT_LEADERS: cluster.elect_leaders,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: cluster.reassign,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: cluster.list_reassignments,
        ApiKey.DESCRIBE_QUORUM: cluster.describe_quorum,
    }


class ClusterAdminHandlers:
    """Handlers of the APIs about brokers and their partitions."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    async def elect_leaders(self, context: Context, version: int, request: Message) -> Message:
        """Report that each partition has the leader that it prefers; of all (null), none is listed."""
        if not context.is_allowed(ApiKey.ELECT_LEADERS):
            return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "replica_election_results": []}
        asked = request["topic_partitions"] or ()
        await self._server.refresh(*(entry["topic"] for entry in asked))
        results = []
        for entry in asked:
            found = [
                {"partition_id": number, **self._of(context, ApiKey.ELECT_LEADERS, entry["topic"], number, _elected)}
                for number in dict.fromkeys(entry["partitions"])
            ]
            results.append({"topic": entry["topic"], "partition_result": found})
        return {"error_code": ErrorCode.NONE, "replica_election_results": results}

    async def reassign(self, context: Context, version: int, request: Message) -> Message:
        """Accept the replicas that a partition has, and refuse others; no reassignment is ever under way."""
        if not context.is_allowed(ApiKey.ALTER_PARTITION_REASSIGNMENTS):
            return {
                "error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                "error_message": "the API key may not reassign partitions",
                "responses": [],
            }
        await self._server.refresh(*(entry["name"] for entry in request["topics"]))
        responses = [
            {"name": entry["name"], "partitions": list(self._reassigned(context, entry))} for entry in request["topics"]
        ]
        return {"error_code": ErrorCode.NONE, "error_message": None, "responses": responses}

    def _reassigned(self, context: Context, entry: Message) -> Iterable[Message]:
        api, name = ApiKey.ALTER_PARTITION_REASSIGNMENTS, entry["name"]
        for each in {each["partition_index"]: each for each in entry["partitions"]}.values():
            number, wanted = each["partition_index"], each["replicas"]

            def moved(replicas: list[int], wanted: list[int] | None = wanted) -> None:
                if wanted is None:
                    raise RefusedError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is in progress")
                if sorted(wanted) != sorted(replicas):
                    raise RefusedError(
                        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                        "the server itself places partitions: their replicas can't be assigned",
                    )

            yield {"partition_index": number, **self._of(context, api, name, number, moved)}

    def _of(self, context: Context, api: ApiKey, name: str, number: int, check: Any) -> Message:
        """The outcome of `check`, called with the replicas of a partition, as members of a response."""
        try:
            if not context.is_allowed(api, name):
                raise RefusedError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the API key may not change this topic")
            topic = self._server.catalog.find(name)
            if topic is None or not 0 <= number < topic.identity.partition_count:
                raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
            check(self._server.partitions(context.view, topic)[number]["replica_nodes"])
        except RefusedError as error:
            return error.result
        return {"error_code": ErrorCode.NONE, "error_message": None}

    def list_reassignments(self, context: Context, version: int, request: Message) -> Message:
        """List none: partitions are never under way."""
        if not context.is_allowed(ApiKey.LIST_PARTITION_REASSIGNMENTS):
            message = "the API key may not see reassignments"
            return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "error_message": message, "topics": []}
        return {"error_code": ErrorCode.NONE, "error_message": None, "topics": []}

    def describe_quorum(self, context: Context, version: int, request: Message) -> Message:
        """Describe the controller as the only voter of the metadata log, which is none that could be read."""
        if not context.is_allowed(ApiKey.DESCRIBE_QUORUM):
            message = "the API key may not see the quorum"
            return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "error_message": message, "topics": []}
        topics = [
            {
                "topic_name": entry["topic_name"],
                "partitions": [
                    self._quorum(context, entry["topic_name"], each["partition_index"]) for each in entry["partitions"]
                ],
            }
            for entry in request["topics"]
        ]
        view = context.view
        nodes = [
            {
                "node_id": node.node_id,
                "listeners": [{"name": "CONTROLLER", "host": node.host, "port": node.port}],
            }
            for node in view.nodes
            if node.node_id == view.controller
        ]
        return {"error_code": ErrorCode.NONE, "error_message": None, "topics": topics, "nodes": nodes}

    def _quorum(self, context: Context, topic: str, number: int) -> Message:
        if topic != _METADATA_TOPIC or number != 0:
            return {
                "partition_index": number,
                "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "error_message": "there is no such partition of the metadata log",
                "leader_id": _UNKNOWN,
                "leader_epoch": _UNKNOWN,
                "high_watermark": _UNKNOWN,
                "current_voters": [],
                "observers": [],
            }
        view = context.view
        epoch = max(self._server.epochs(), default=self._server.leader_epoch)
        voter = {"replica_id": view.controller, "log_end_offset": epoch}
        return {
            "partition_index": 0,
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "leader_id": view.controller,
            "leader_epoch": epoch,
            "high_watermark": epoch,
            "current_voters": [voter],
            "observers": [],
        }


def _elected(_replicas: list[int]) -> None:
    raise RefusedError(ErrorCode.ELECTION_NOT_NEEDED, "the partition has the leader that it prefers")
