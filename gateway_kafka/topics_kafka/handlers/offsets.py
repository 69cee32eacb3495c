"""Committed positions: OffsetCommit, OffsetFetch and OffsetDelete. An offset is the `position` of HTTP and gRPC."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.handlers.errors import group_error_of
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.catalog import TopicView, uuid_of
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.membership.members import GroupError
from topics_service.engine.offsets.positions import CommitItem, Position, Target

_NONE: Final = -1
_EPOCHS_SINCE: Final = 9  # the first version of OffsetCommit with member epochs


def handlers(server: ServerContext) -> HandlerTable:
    """The APIs of committed positions."""
    offsets = OffsetHandlers(server)
    return {
        ApiKey.OFFSET_COMMIT: offsets.commit,
        ApiKey.OFFSET_FETCH: offsets.fetch,
        ApiKey.OFFSET_DELETE: offsets.delete,
    }


Committed = Mapping[TopicView, Mapping[int, Position]]


class _Asked(NamedTuple):
    """A topic of a request, as it was named. `topic` is None if there is an `error`."""

    named: Message
    topic: TopicView | None
    error: ErrorCode


class OffsetHandlers:
    """Handlers of positions. A commit is acknowledged once it is as durable as its topics."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._groups = server.api.groups
        self._membership = server.membership

    def _topic(self, context: Context, api: ApiKey, asked: Message) -> _Asked:
        """The requested topic, by name or id, if the caller may access it."""
        by_id = "topic_id" in asked
        topic_id: UUID | None = asked.get("topic_id")
        name: str = asked.get("name") or ""
        named: Message = {"topic_id": topic_id} if by_id else {"name": name}
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not by_id and not context.is_allowed(api, name):
            return _Asked(named, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = self._server.catalog.find(name, topic_id)
        if topic is None:
            return _Asked(named, None, unknown)
        if not context.is_allowed(api, topic.name):
            return _Asked(named, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return _Asked(named, topic, ErrorCode.NONE)

    # --- commit

    def commit(self, context: Context, version: int, request: Message) -> Answer:
        """Set positions; each partition succeeds or fails alone."""
        name = request["group_id"]
        asked = [self._topic(context, ApiKey.OFFSET_COMMIT, each) for each in request["topics"]]
        if not context.is_allowed(ApiKey.OFFSET_COMMIT, name):
            return _committed(request, asked, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        try:
            refused = self._check(version, name, request, asked)
            if refused:
                return _committed(request, asked, refused)
            outcomes, ticket = self._groups.commit_each(name, list(_items(request, asked)))
        except TopicsError as refusal:
            is_bad_name = refusal.reason is Reason.INVALID_REQUEST
            return _committed(request, asked, ErrorCode.INVALID_GROUP_ID if is_bad_name else group_error_of(refusal))
        found = iter(outcomes)
        topics = []
        for each, (named, topic, error) in zip(request["topics"], asked, strict=True):
            partitions = [
                {
                    "partition_index": partition["partition_index"],
                    "error_code": error if topic is None else _outcome(next(found)),
                }
                for partition in each["partitions"]
            ]
            topics.append({**named, "partitions": partitions})
        response = {"topics": topics}
        return response if self._server.api.is_durable(ticket) else self._durable(request, asked, response, ticket)

    def _check(self, version: int, name: str, request: Message, asked: list[_Asked]) -> GroupError:
        member_id, instance_id = request.get("member_id", ""), request.get("group_instance_id")
        epoch = request.get("generation_id_or_member_epoch", _NONE)
        check = partial(self._membership.check_commit, knows_epochs=version >= _EPOCHS_SINCE)
        error = check(name, member_id, epoch, instance_id)
        if error is GroupError.STALE_MEMBER_EPOCH:
            parts = [
                (uuid_of(each.topic.identity.topic_id).bytes, partition["partition_index"])
                for each, topic in zip(asked, request["topics"], strict=True)
                if each.topic is not None
                for partition in topic["partitions"]
            ]
            error = check(name, member_id, epoch, instance_id, parts)
        return error

    async def _durable(self, request: Message, asked: list[_Asked], response: Message, ticket: int) -> Message:
        try:
            await self._server.api.settled(ticket)
        except TopicsError as error:
            return _committed(request, asked, group_error_of(error))
        return response

    # --- fetch

    def fetch(self, context: Context, version: int, request: Message) -> Answer:
        """Return positions of some partitions or of all that the group has; each once, even if named repeatedly."""
        if version >= 8:
            asked = {group["group_id"]: group for group in request["groups"]}
            if len(asked) != len(request["groups"]):
                refused = {"topics": [], "error_code": ErrorCode.INVALID_REQUEST}
                return {"groups": [{"group_id": name, **refused} for name in asked]}
            return {"groups": [self._fetched(context, version, group) for group in request["groups"]]}
        answer = self._fetched(context, version, request)
        if version < 2 and answer["error_code"]:
            partitions = [
                {**topic, "partitions": [_position(p, answer["error_code"]) for p in topic["partition_indexes"]]}
                for topic in request["topics"]
            ]
            return {"topics": [{"name": each["name"], "partitions": each["partitions"]} for each in partitions]}
        return answer

    def _fetched(self, context: Context, version: int, request: Message) -> Message:
        name = request["group_id"]
        nothing: Message = {"group_id": name, "topics": []}
        if not context.is_allowed(ApiKey.OFFSET_FETCH, name):
            return {**nothing, "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
        try:
            error = self._membership.check_fetch(name, request.get("member_id"), request.get("member_epoch", _NONE))
        except TopicsError as refusal:
            return {**nothing, "error_code": group_error_of(refusal)}
        if error:
            return {**nothing, "error_code": error}
        committed, topics = self._groups.committed(name), request["topics"]
        found = self._all(context, version, committed) if topics is None else self._some(context, committed, topics)
        return {**nothing, "error_code": ErrorCode.NONE, "topics": found}

    def _all(self, context: Context, version: int, committed: Committed) -> list[Message]:
        found: list[Message] = []
        for topic, positions in committed.items():
            name = topic.name
            if not context.is_allowed(ApiKey.OFFSET_FETCH, name) or self._server.catalog.find(name) is not topic:
                continue
            by_id = version >= 10
            named = {"topic_id": uuid_of(topic.identity.topic_id)} if by_id else {"name": name}
            partitions = [_position(p, ErrorCode.NONE, positions[p]) for p in sorted(positions)]
            found.append({**named, "partitions": partitions})
        return found

    def _some(self, context: Context, committed: Committed, topics: list[Message]) -> list[Message]:
        found: list[Message] = []
        answered: set[tuple[Any, int]] = set()
        for asked in topics:
            named, topic, error = self._topic(context, ApiKey.OFFSET_FETCH, asked)
            (key,) = named.values()
            numbers = [p for p in dict.fromkeys(asked["partition_indexes"]) if (key, p) not in answered]
            answered.update((key, p) for p in numbers)
            if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                error = ErrorCode.NONE  # as in Kafka, which looks up positions without checking the topics
            positions = {} if topic is None else committed.get(topic, {})
            found.append({**named, "partitions": [_position(p, error, positions.get(p)) for p in numbers]})
        return found

    # --- delete

    async def delete(self, context: Context, _version: int, request: Message) -> Message:
        """Delete positions in topics that no member subscribes to."""
        name = request["group_id"]
        if not context.is_allowed(ApiKey.OFFSET_DELETE, name):
            return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "topics": []}
        if not name:
            return {"error_code": ErrorCode.INVALID_GROUP_ID, "topics": []}
        try:
            errors = self._membership.check_delete(name, [each["name"] for each in request["topics"]])
            if GroupError.NON_EMPTY_GROUP in errors:
                return {"error_code": GroupError.NON_EMPTY_GROUP, "topics": []}
            targets: list[Target] = []
            topics: list[dict[str, Any]] = []
            for each, subscribed in zip(request["topics"], errors, strict=True):
                numbers = [partition["partition_index"] for partition in each["partitions"]]
                _, topic, unknown = self._topic(context, ApiKey.OFFSET_DELETE, each)
                count = 0 if topic is None else topic.identity.partition_count
                error: int = unknown or subscribed
                missing = unknown or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                partitions = [
                    {"partition_index": p, "error_code": error if 0 <= p < count else missing} for p in numbers
                ]
                topics.append({"name": each["name"], "partitions": partitions})
                known = tuple(p for p in numbers if 0 <= p < count)
                if not error and known:
                    targets.append(Target(each["name"], known))
            if targets:
                await self._membership.delete_positions(name, targets)
        except TopicsError as refusal:
            return {"error_code": group_error_of(refusal), "topics": []}
        return {"error_code": ErrorCode.NONE, "topics": topics}


def _items(request: Message, asked: list[_Asked]) -> Iterable[CommitItem]:
    """The positions to commit, in the order of the request, without topics that have an error."""
    for each, (_, topic, _) in zip(request["topics"], asked, strict=True):
        if topic is not None:
            for partition in each["partitions"]:
                yield CommitItem(
                    topic.name,
                    partition["partition_index"],
                    partition["committed_offset"],
                    partition.get("committed_leader_epoch", _NONE),
                    partition["committed_metadata"] or "",
                )


def _outcome(error: TopicsError | None) -> int:
    """The error code of one partition of a commit."""
    if error is None:
        return ErrorCode.NONE
    detail = error.detail or {}
    if detail.get("limit") == "max_metadata_bytes":
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    if "from_seq" in detail:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return group_error_of(error)


def _committed(request: Message, asked: list[_Asked], error: int) -> Message:
    """A response without a commit: `error` for all partitions, except of topics with an error of their own."""
    topics = []
    for each, (named, _, own) in zip(request["topics"], asked, strict=True):
        partitions = [{"partition_index": p["partition_index"], "error_code": own or error} for p in each["partitions"]]
        topics.append({**named, "partitions": partitions})
    return {"topics": topics}


def _position(partition: int, error: int, position: Position | None = None) -> Message:
    if position is None:
        nothing = {"committed_offset": _NONE, "committed_leader_epoch": _NONE, "metadata": ""}
        return {"partition_index": partition, "error_code": error, **nothing}
    return {
        "partition_index": partition,
        "error_code": error,
        "committed_offset": position.from_seq,
        "committed_leader_epoch": position.leader_epoch,
        "metadata": position.metadata,
    }
