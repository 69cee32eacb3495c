"""Group administration: DescribeGroups, ConsumerGroupDescribe, ListGroups and DeleteGroups."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext, operations
from topics_kafka.handlers.answers import answered
from topics_kafka.handlers.errors import group_error_of, list_error_of
from topics_kafka.handlers.waves import in_waves
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.catalog import uuid_of
from topics_service.api.membership import GroupLine, settled
from topics_service.api.running import LostCallError
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.membership.members import GroupView, MemberView

_EMPTY: Final = "Empty"
_DEAD: Final = "Dead"
_CONSUMER_MEMBER: Final = 1


def handlers(server: ServerContext) -> HandlerTable:
    """The APIs of group administration."""
    groups = GroupAdminHandlers(server)
    return {
        ApiKey.DESCRIBE_GROUPS: groups.describe,
        ApiKey.CONSUMER_GROUP_DESCRIBE: groups.describe_consumer,
        ApiKey.LIST_GROUPS: groups.list,
        ApiKey.DELETE_GROUPS: groups.delete,
    }


class GroupAdminHandlers:
    """Handlers of group administration. A group with positions but without members is shown as a classic one.

    A group that is named repeatedly is described once: a small request must not have a huge response.
    """

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._membership = server.membership

    # --- describe

    async def describe(self, context: Context, version: int, request: Message) -> Message:
        """Describe classic groups. An unknown group is `Dead`, and from version 6 on also an error."""
        work = (self._classic(context, version, request, name) for name in dict.fromkeys(request["groups"]))
        return {"groups": await in_waves(work)}

    async def _classic(self, context: Context, version: int, request: Message, name: str) -> Message:
        described: dict[str, Any] = {"group_id": name, "group_state": "", "protocol_type": "", "protocol_data": ""}
        described |= {"error_code": ErrorCode.NONE, "members": []}
        described["authorized_operations"] = _operations(context, request)
        try:
            view, exists = await self._view(context, ApiKey.DESCRIBE_GROUPS, name)
        except TopicsError as error:
            return {**described, "error_code": group_error_of(error), "error_message": error.message}
        if view is not None and view.type == "classic":
            described |= {"group_state": view.state, "protocol_type": view.protocol_type}
            described["protocol_data"] = view.protocol
            described["members"] = [_classic_member(member) for member in view.members]
        elif view is None and exists:
            described["group_state"] = _EMPTY
        else:
            described["group_state"] = _DEAD
            if version >= 6:
                described |= {"error_code": ErrorCode.GROUP_ID_NOT_FOUND}
                described["error_message"] = f"group {name} is not a classic group"
        return described

    async def describe_consumer(self, context: Context, _version: int, request: Message) -> Message:
        """Describe `consumer` groups."""
        work = (self._consumer(context, request, name) for name in dict.fromkeys(request["group_ids"]))
        return {"groups": await in_waves(work)}

    async def _consumer(self, context: Context, request: Message, name: str) -> Message:
        nothing: dict[str, Any] = {"group_id": name, "group_state": "", "assignor_name": "", "members": []}
        nothing |= {"group_epoch": 0, "assignment_epoch": 0}
        nothing["authorized_operations"] = _operations(context, request)
        if not name:
            return {**nothing, "error_code": ErrorCode.INVALID_GROUP_ID, "error_message": "a group id is missing"}
        try:
            view, _ = await self._view(context, ApiKey.CONSUMER_GROUP_DESCRIBE, name)
        except TopicsError as error:
            return {**nothing, "error_code": group_error_of(error), "error_message": error.message}
        if view is None or view.type != "consumer":
            message = f"group {name} is not a consumer group"
            return {**nothing, "error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": message}
        return {
            **nothing,
            "error_code": ErrorCode.NONE,
            "group_state": view.state,
            "group_epoch": view.epoch,
            "assignment_epoch": view.assignment_epoch,
            "assignor_name": view.protocol,
            "members": [self._consumer_member(context, member) for member in view.members],
        }

    async def _view(self, context: Context, api: ApiKey, name: str) -> tuple[GroupView | None, bool]:
        if not context.is_allowed(api, name):
            raise TopicsError(Reason.FORBIDDEN, "the API key may not touch this group")
        return await settled(self._membership.look(name))

    def _consumer_member(self, context: Context, member: MemberView) -> Message:
        return {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "rack_id": member.rack,
            "member_epoch": member.epoch,
            "client_id": member.client.client_id,
            "client_host": member.client.host,
            "subscribed_topic_names": list(filter(context.principal.allows_name, member.names)),
            "subscribed_topic_regex": member.regex,
            "assignment": {"topic_partitions": self._partitions(context, member.partitions)},
            "target_assignment": {"topic_partitions": self._partitions(context, member.target)},
            "member_type": _CONSUMER_MEMBER,
        }

    def _partitions(self, context: Context, parts: Mapping[str, Sequence[int]] | None) -> list[Message]:
        """Partitions with the names and ids of the topics that the caller may access."""
        found = []
        for name, partitions in (parts or {}).items():
            topic = self._server.catalog.find(name)
            if topic is not None and context.principal.allows_name(name):
                topic_id = uuid_of(topic.identity.topic_id)
                found.append({"topic_id": topic_id, "topic_name": name, "partitions": list(partitions)})
        return found

    # --- list and delete

    def list(self, context: Context, _version: int, request: Message) -> Answer:
        """List the groups that the caller may access, filtered by state and type if any are given.

        Clients ask all brokers, so each lists the groups that it is shown as the coordinator of.
        """
        if not context.is_allowed(ApiKey.LIST_GROUPS):
            return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "groups": []}
        states = {state.casefold() for state in request.get("states_filter") or ()}
        types = {each.casefold() for each in request.get("types_filter") or ()}

        def listed(lines: Sequence[GroupLine]) -> Message:
            groups = [
                {"group_id": name, "protocol_type": protocol_type, "group_state": state, "group_type": kind}
                for name, kind, state, protocol_type in lines
                if (not states or state.casefold() in states) and (not types or kind in types)
            ]
            return {"error_code": ErrorCode.NONE, "groups": groups}

        return answered(
            lambda: self._membership.listing(context.principal.prefixes, shards=self._listed_shards(context)),
            listed,
            lambda refusal: {"error_code": list_error_of(refusal), "groups": []},
        )

    def _listed_shards(self, context: Context) -> Sequence[int] | None:
        """The shards whose groups this broker lists for the client; None for all."""
        server = self._server
        if server.cluster is None:
            return None
        view = context.view
        return [shard for shard in range(server.shards.shard_count) if view.is_answered_here(shard)]

    async def delete(self, context: Context, _version: int, request: Message) -> Message:
        """Delete groups without members, and their positions."""
        work = [self._delete(context, name) for name in dict.fromkeys(request["groups_names"])]
        return {"results": await asyncio.gather(*work)}

    async def _delete(self, context: Context, name: str) -> Message:
        if not context.is_allowed(ApiKey.DELETE_GROUPS, name):
            return {"group_id": name, "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
        try:
            reply = await self._server.api.groups.delete(name, principal=context.principal)
        except TopicsError as refusal:
            return {"group_id": name, "error_code": group_error_of(refusal)}
        except LostCallError:  # it may be repeated
            return {"group_id": name, "error_code": ErrorCode.NOT_COORDINATOR}
        return {"group_id": name, "error_code": ErrorCode.NONE if reply.deleted else ErrorCode.GROUP_ID_NOT_FOUND}


def _operations(context: Context, request: Message) -> int:
    asked = request.get("include_authorized_operations", False)
    return operations.on_groups(context) if asked else operations.NOT_ASKED


def _classic_member(member: MemberView) -> Message:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client.client_id,
        "client_host": member.client.host,
        "member_metadata": member.metadata,
        "member_assignment": member.assigned,
    }
