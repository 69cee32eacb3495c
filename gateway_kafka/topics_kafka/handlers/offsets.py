"""Committed positions: OffsetCommit, OffsetFetch and OffsetDelete. An offset is the `position` of HTTP and gRPC."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.handlers.answers import answered
from topics_kafka.handlers.errors import group_error_of, positions_error_of
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.catalog import TopicView, uuid_of
from topics_service.api.membership import Claim, CommitOutcome, PositionsReply, settled
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.membership.members import GroupError, Partition
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


class _Asked(NamedTuple):
    """A topic of a request, as it was named. `topic` is None if there is an `error`."""

    named: Message
    topic: TopicView | None
    error: ErrorCode


class OffsetHandlers:
    """Handlers of positions. A commit is acknowledged once it is as durable as its topics."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
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
        if not context.is_allowed(ApiKey.OFFSET_COMMIT, name):
            asked = [self._topic(context, ApiKey.OFFSET_COMMIT, each) for each in request["topics"]]
            return _committed(request, asked, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        refreshed = self._server.refresh_unknown(request["topics"])
        if refreshed is None:
            return self._commit(context, version, name, request)
        return _after(refreshed, lambda: self._commit(context, version, name, request))

    def _commit(self, context: Context, version: int, name: str, request: Message) -> Answer:
        asked = [self._topic(context, ApiKey.OFFSET_COMMIT, each) for each in request["topics"]]
        claim = Claim(
            member_id=request.get("member_id", ""),
            epoch=request.get("generation_id_or_member_epoch", _NONE),
            instance_id=request.get("group_instance_id"),
            knows_epochs=version >= _EPOCHS_SINCE,
        )

        def partitions() -> list[Partition]:
            return [
                (uuid_of(each.topic.identity.topic_id).bytes, partition["partition_index"])
                for each, topic in zip(asked, request["topics"], strict=True)
                if each.topic is not None
                for partition in topic["partitions"]
            ]

        def committed(outcome: CommitOutcome) -> Message:
            if outcome.error:
                return _committed(request, asked, outcome.error)
            found = iter(outcome.outcomes)
            topics = []
            for each, (named, topic, error) in zip(request["topics"], asked, strict=True):
                answers = [
                    {
                        "partition_index": partition["partition_index"],
                        "error_code": error if topic is None else _outcome(next(found)),
                    }
                    for partition in each["partitions"]
                ]
                topics.append({**named, "partitions": answers})
            return {"topics": topics}

        def refused(refusal: TopicsError) -> Message:
            is_bad_name = refusal.reason is Reason.INVALID_REQUEST
            return _committed(request, asked, ErrorCode.INVALID_GROUP_ID if is_bad_name else group_error_of(refusal))

        return answered(
            lambda: self._membership.commit(name, claim, list(_items(request, asked)), partitions), committed, refused
        )

    # --- fetch

    def fetch(self, context: Context, version: int, request: Message) -> Answer:
        """Return positions of some partitions or of all that the group has; each once, even if named repeatedly."""
        if version >= 8:
            asked = {group["group_id"]: group for group in request["groups"]}
            if len(asked) != len(request["groups"]):
                refused = {"topics": [], "error_code": ErrorCode.INVALID_REQUEST}
                return {"groups": [{"group_id": name, **refused} for name in asked]}
            found = [self._fetched(context, version, group) for group in request["groups"]]
            groups = [each for each in found if isinstance(each, dict)]
            return {"groups": groups} if len(groups) == len(found) else _groups(found)
        answer = self._fetched(context, version, request)
        if version < 2:
            return _old(request, answer) if isinstance(answer, dict) else _old_later(request, answer)
        return answer

    def _fetched(self, context: Context, version: int, request: Message) -> Message | Awaitable[Message]:
        name, topics = request["group_id"], request["topics"]
        nothing: Message = {"group_id": name, "topics": []}
        if not context.is_allowed(ApiKey.OFFSET_FETCH, name):
            return {**nothing, "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
        asked = [] if topics is None else [self._topic(context, ApiKey.OFFSET_FETCH, each) for each in topics]
        names = None if topics is None else [each.topic.name for each in asked if each.topic is not None]

        member_id, epoch = request.get("member_id"), request.get("member_epoch", _NONE)

        def fetched(reply: PositionsReply) -> Message:
            if reply.error:
                return {**nothing, "error_code": reply.error}
            if topics is None:
                found = self._all(context, version, reply)
            else:
                found = _some(reply, asked, topics)
            return {**nothing, "error_code": ErrorCode.NONE, "topics": found}

        return answered(
            lambda: self._membership.positions(name, member_id, epoch, names),
            fetched,
            lambda refusal: {**nothing, "error_code": positions_error_of(refusal)},
        )

    def _all(self, context: Context, version: int, reply: PositionsReply) -> list[Message]:
        found: list[Message] = []
        for name, topic_id, positions in ((each.topic, each.topic_id, each.positions) for each in reply.topics):
            topic = self._server.catalog.find(name)
            if (
                topic is None
                or topic.identity.topic_id != topic_id
                or not context.is_allowed(ApiKey.OFFSET_FETCH, name)
            ):
                continue
            named = {"topic_id": uuid_of(topic_id)} if version >= 10 else {"name": name}
            partitions = [_position(p, ErrorCode.NONE, positions[p]) for p in sorted(positions)]
            found.append({**named, "partitions": partitions})
        return found

    # --- delete

    async def delete(self, context: Context, _version: int, request: Message) -> Message:
        """Delete positions in topics that no member subscribes to."""
        name = request["group_id"]
        if not context.is_allowed(ApiKey.OFFSET_DELETE, name):
            return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "topics": []}
        if not name:
            return {"error_code": ErrorCode.INVALID_GROUP_ID, "topics": []}
        asked = []
        targets: list[Target] = []
        for each in request["topics"]:
            numbers = [partition["partition_index"] for partition in each["partitions"]]
            _, topic, unknown = self._topic(context, ApiKey.OFFSET_DELETE, each)
            count = 0 if topic is None else topic.identity.partition_count
            asked.append((each["name"], numbers, unknown, count))
            known = tuple(p for p in numbers if 0 <= p < count)
            if not unknown and known:
                targets.append(Target(each["name"], known))
        try:
            errors = await self._membership.delete_positions(
                name, [each["name"] for each in request["topics"]], targets
            )
        except TopicsError as refusal:
            return {"error_code": group_error_of(refusal), "topics": []}
        if GroupError.NON_EMPTY_GROUP in errors:
            return {"error_code": GroupError.NON_EMPTY_GROUP, "topics": []}
        topics = []
        for (topic_name, numbers, unknown, count), subscribed in zip(asked, errors, strict=True):
            error: int = unknown or subscribed
            missing = unknown or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            partitions = [{"partition_index": p, "error_code": error if 0 <= p < count else missing} for p in numbers]
            topics.append({"name": topic_name, "partitions": partitions})
        return {"error_code": ErrorCode.NONE, "topics": topics}


async def _after(refreshed: Awaitable[None], answer: Callable[[], Answer]) -> Message | None:
    await refreshed
    found = answer()
    return found if found is None or isinstance(found, dict) else await found


async def _groups(found: Sequence[Message | Awaitable[Message]]) -> Message:
    return {"groups": await asyncio.gather(*(settled(each) for each in found))}


def _old(request: Message, answer: Message) -> Message:
    """The response of the versions without an error of the group: all partitions have it."""
    if not answer["error_code"]:
        return answer
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [_position(p, answer["error_code"]) for p in topic["partition_indexes"]],
            }
            for topic in request["topics"]
        ]
    }


async def _old_later(request: Message, answer: Awaitable[Message]) -> Message:
    return _old(request, await answer)


def _some(reply: PositionsReply, asked: Sequence[_Asked], topics: Sequence[Message]) -> list[Message]:
    committed = {each.topic_id: each.positions for each in reply.topics}
    found: list[Message] = []
    answered_before: set[tuple[Any, int]] = set()
    for (named, topic, error), request in zip(asked, topics, strict=True):
        (key,) = named.values()
        numbers = [p for p in dict.fromkeys(request["partition_indexes"]) if (key, p) not in answered_before]
        answered_before.update((key, p) for p in numbers)
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            error = ErrorCode.NONE  # as in Kafka, which looks up positions without checking the topics
        positions: Mapping[int, Position] = {} if topic is None else committed.get(topic.identity.topic_id, {})
        found.append({**named, "partitions": [_position(p, error, positions.get(p)) for p in numbers]})
    return found


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
