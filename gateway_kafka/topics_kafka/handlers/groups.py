"""APIs of group members: they find the coordinator, join, get their partitions, send heartbeats and leave."""

from typing import Any, Final
from uuid import UUID

from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.handlers.answers import answered
from topics_kafka.handlers.errors import group_error_of
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.engine.errors import TopicsError
from topics_service.engine.membership.members import (
    Beat,
    BeatReply,
    Client,
    GroupError,
    JoinReply,
    JoinRequest,
    Leaving,
    SyncReply,
    SyncRequest,
)

_GROUP: Final = 0
_TRANSACTION: Final = 1
_MAX_CLIENT_ID_CHARS: Final = 255


def handlers(server: ServerContext) -> HandlerTable:
    """The APIs of group members."""
    members = MemberHandlers(server)
    return {
        ApiKey.FIND_COORDINATOR: members.find_coordinator,
        ApiKey.JOIN_GROUP: members.join,
        ApiKey.SYNC_GROUP: members.sync,
        ApiKey.HEARTBEAT: members.heartbeat,
        ApiKey.LEAVE_GROUP: members.leave,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: members.consumer_heartbeat,
    }


def client_of(context: Context) -> Client:
    """The client as shown to admins, with the host in Kafka's notation."""
    return Client((context.client_id or "")[:_MAX_CLIENT_ID_CHARS], "/" + context.peer.rpartition(":")[0].strip("[]"))


class MemberHandlers:
    """Handlers of members. An answer is sent once the state of the group that it reports is durable."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._membership = server.membership

    def find_coordinator(self, context: Context, version: int, request: Message) -> Answer:
        """Name the broker of a group's shard as its coordinator; also of transactions, which InitProducerId refuses."""
        kind = request.get("key_type", _GROUP)
        if version >= 4:
            found = [self._coordinator(context, kind, key) for key in request["coordinator_keys"]]
            return {"coordinators": found}
        return self._coordinator(context, kind, request["key"])

    def _coordinator(self, context: Context, kind: int, key: str) -> Message:
        no_coordinator = {"key": key, "node_id": -1, "host": "", "port": -1}
        if kind not in (_GROUP, _TRANSACTION):
            message = "only groups and transactions have coordinators"
            return {**no_coordinator, "error_code": ErrorCode.INVALID_REQUEST, "error_message": message}
        if kind == _GROUP and not context.is_allowed(ApiKey.FIND_COORDINATOR, key):
            message = "the API key may not touch this group"
            return {**no_coordinator, "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "error_message": message}
        found, _ = context.view.leader(self._server.group_shard(key))
        if found is None:
            message = "the coordinator moves to another broker"
            return {**no_coordinator, "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "error_message": message}
        coordinator = {"node_id": found.node_id, "host": found.host, "port": found.port}
        return {"key": key, **coordinator, "error_code": ErrorCode.NONE}

    # --- classic groups

    async def join(self, context: Context, version: int, request: Message) -> Message:
        """Join, and wait until all members have joined."""
        name, member_id = request["group_id"], request["member_id"]
        if not context.is_allowed(ApiKey.JOIN_GROUP, name):
            return _not_joined(version, ErrorCode.GROUP_AUTHORIZATION_FAILED, member_id)
        asked = JoinRequest(
            group=name,
            member_id=member_id,
            instance_id=request.get("group_instance_id"),
            session_ms=request["session_timeout"],
            rebalance_ms=request["rebalance_timeout"] if version >= 1 else request["session_timeout"],
            protocol_type=request["protocol_type"],
            protocols=[(each["name"], bytes(each["metadata"])) for each in request["protocols"]],
            needs_id=version >= 4,
            can_skip_assignment=version >= 9,
            client=client_of(context),
        )
        try:
            reply = await self._membership.join(asked)
        except TopicsError as error:
            return _not_joined(version, group_error_of(error), member_id)
        if reply.error:
            return _not_joined(version, reply.error, reply.member_id)
        return _joined(reply)

    async def sync(self, context: Context, version: int, request: Message) -> Message:
        """Submit the assignments, as the leader, and wait for the own one."""
        name = request["group_id"]
        if not context.is_allowed(ApiKey.SYNC_GROUP, name):
            return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "assignment": b""}
        if version >= 5 and name and not (request["protocol_type"] and request["protocol_name"]):
            return {"error_code": ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "assignment": b""}
        asked = SyncRequest(
            group=name,
            member_id=request["member_id"],
            generation=request["generation_id"],
            instance_id=request.get("group_instance_id"),
            protocol_type=request.get("protocol_type"),
            protocol=request.get("protocol_name"),
            assignments=[(each["member_id"], bytes(each["assignment"])) for each in request["assignments"]],
        )
        try:
            reply: SyncReply = await self._membership.sync(asked)
        except TopicsError as error:
            return {"error_code": group_error_of(error), "assignment": b""}
        return {
            "error_code": reply.error,
            "protocol_type": reply.protocol_type,
            "protocol_name": reply.protocol,
            "assignment": reply.assignment,
        }

    def heartbeat(self, context: Context, _version: int, request: Message) -> Answer:
        """Keep the session of a member alive."""
        name = request["group_id"]
        if not context.is_allowed(ApiKey.HEARTBEAT, name):
            return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
        return answered(
            lambda: self._membership.heartbeat(
                name, request["member_id"], request["generation_id"], request.get("group_instance_id")
            ),
            lambda error: {"error_code": error},
            lambda refusal: {"error_code": group_error_of(refusal)},
        )

    def leave(self, context: Context, version: int, request: Message) -> Answer:
        """Leave the group; from version 3 on an admin may remove many members."""
        name = request["group_id"]
        if not context.is_allowed(ApiKey.LEAVE_GROUP, name):
            return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "members": []}
        if not name:
            return {"error_code": ErrorCode.INVALID_GROUP_ID, "members": []}
        asked = request["members"] if version >= 3 else [{"member_id": request["member_id"]}]
        leaving = [Leaving(each["member_id"], each.get("group_instance_id")) for each in asked]

        def left(errors: list[GroupError]) -> Message:
            if version < 3:
                return {"error_code": errors[0]}
            results = [
                {"member_id": member_id, "group_instance_id": instance_id, "error_code": error}
                for (member_id, instance_id), error in zip(leaving, errors, strict=True)
            ]
            return {"error_code": ErrorCode.NONE, "members": results}

        return answered(
            lambda: self._membership.leave(name, leaving),
            left,
            lambda refusal: {"error_code": group_error_of(refusal), "members": []},
        )

    # --- `consumer` groups

    def consumer_heartbeat(self, context: Context, version: int, request: Message) -> Answer:
        """Join, stay or leave, and return the assigned partitions."""
        name, names = request["group_id"], request["subscribed_topic_names"]
        if not context.is_allowed(ApiKey.CONSUMER_GROUP_HEARTBEAT, name):
            return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "the API key may not touch this group")
        principal = context.principal
        hidden = [topic for topic in names or () if not principal.allows_name(topic)]
        if hidden:
            return _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"the API key may not read {hidden[0]}")
        owned = request["topic_partitions"]
        beat = Beat(
            group=name,
            member_id=request["member_id"],
            epoch=request["member_epoch"],
            instance_id=request["instance_id"],
            rack=request["rack_id"],
            rebalance_ms=request["rebalance_timeout"],
            names=names,
            regex=request.get("subscribed_topic_regex"),
            assignor=request["server_assignor"],
            owned=None if owned is None else [(_bytes(t["topic_id"]), p) for t in owned for p in t["partitions"]],
            client=client_of(context),
            makes_id=version == 0,
            allowed=principal.allows_name,
        )
        return answered(
            lambda: self._membership.beat(beat, principal.prefixes),
            _beaten,
            lambda refusal: _refused(group_error_of(refusal), refusal.message),
        )


def _bytes(topic_id: UUID | None) -> bytes:
    return bytes(16) if topic_id is None else topic_id.bytes


def _not_joined(version: int, error: ErrorCode | GroupError, member_id: str) -> Message:
    return {
        "error_code": error,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": None if version >= 7 else "",
        "leader": "",
        "member_id": member_id,
        "members": [],
    }


def _joined(reply: JoinReply) -> Message:
    return {
        "error_code": ErrorCode.NONE,
        "generation_id": reply.generation,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol,
        "leader": reply.leader,
        "skip_assignment": reply.skip_assignment,
        "member_id": reply.member_id,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "metadata": each.metadata}
            for each in reply.members
        ],
    }


def _refused(error: ErrorCode, message: str) -> Message:
    return {"error_code": error, "error_message": message, "member_epoch": 0, "heartbeat_interval": 0}


def _beaten(reply: BeatReply) -> Message:
    assignment: dict[str, Any] | None = None
    if reply.assignment is not None:
        parts = [{"topic_id": UUID(bytes=t), "partitions": partitions} for t, partitions in reply.assignment.items()]
        assignment = {"topic_partitions": parts}
    return {
        "error_code": reply.error,
        "error_message": reply.message,
        "member_id": reply.member_id,
        "member_epoch": reply.epoch,
        "heartbeat_interval": reply.heartbeat_ms,
        "assignment": assignment,
    }
