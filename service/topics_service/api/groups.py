"""Calls on consumer groups and their committed positions, once for all protocols."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import check_names, check_owned
from topics_service.api.catalog import TopicView
from topics_service.api.observers import NO_OBSERVERS, Facts, Observers
from topics_service.engine import names
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.engine.model import DiffReply, DiffRequest
from topics_service.engine.offsets.positions import (
    CommitItem,
    DeleteGroupReply,
    GroupState,
    ListGroupsReply,
    ListGroupsRequest,
    Position,
    PositionState,
    ResetRequest,
    Target,
)


class ConsumeRequest(Struct, kw_only=True):
    """Read `page` from the group's position, or from `start` while it has none; the cursor in `page` is ignored."""

    group: str
    page: DiffRequest
    start: Literal["earliest", "latest"] | int = "earliest"

    def first_page(self) -> DiffRequest:
        """The page to read while the group has no position."""
        if self.start == "earliest":
            return replace(self.page, from_seq=0, from_ts=0)
        if self.start == "latest":
            return replace(self.page, from_seq=0, last=0)
        return replace(self.page, from_seq=self.start)


class ConsumeReply(Struct, kw_only=True):
    """The page, and the position that it was read from; None if there is none."""

    committed: int | None
    page: DiffReply


class CommitReply(Struct, kw_only=True):
    """The positions that were set; `created` when the group is new."""

    group: str
    created: bool
    positions: list[PositionState]


class GroupsApi:
    """Runs calls on groups and answers when their effect is as durable as promised.

    Every method raises TopicsError. All run on the event loop that owns the engine. The gateways have authorized the
    call on the group; access to the topics is checked here.
    """

    def __init__(
        self,
        admit: Callable[[], Engine],
        settle: Callable[[int], Awaitable[None]],
        diff: Callable[[DiffRequest], Awaitable[DiffReply]],
        observers: Observers = NO_OBSERVERS,
    ) -> None:
        """`admit` gives the engine or refuses every call, `settle` waits until a ticket is durable, `diff` reads."""
        self._admit = admit
        self._settle = settle
        self._diff = diff
        self._observers = observers

    async def page(self, request: ListGroupsRequest, *, principal: Principal) -> ListGroupsReply:
        """One page, in name order, of the groups that the caller may know of."""
        return self._admit().groups.page(request, principal.prefixes)

    async def get(self, name: str, *, principal: Principal) -> GroupState:
        """All about a group, as far as the topics are the caller's to know."""
        state = self._admit().groups.describe(name, principal.prefixes)
        await self._settle(0)
        return state

    async def delete(self, name: str, *, principal: Principal) -> DeleteGroupReply:
        """Remove a group and its positions; durable before it is acknowledged."""
        facts: Facts = {"group": name}
        with self._observers("group.delete", facts, principal):
            groups = self._admit().groups
            check_owned(principal, groups.topics(name))
            reply, ticket = groups.delete(name)
            await self._settle(ticket)
            facts["deleted"] = reply.deleted
        return reply

    async def consume(self, request: ConsumeRequest, *, principal: Principal) -> ConsumeReply:
        """Read from where the group stands, waiting like a diff; commits nothing. Cancelling it ends the wait."""
        engine, page = self._admit(), request.page
        check_names(principal, (page.topic,))
        names.check_group_name(request.group)
        position = engine.groups.position(request.group, page.topic, page.partition)
        engine.groups.touch(request.group)
        if position is not None:
            page = replace(page, from_seq=position.from_seq, committed=True)
        else:
            page = request.first_page()
        reply = await self._diff(page)
        return ConsumeReply(committed=None if position is None else position.from_seq, page=reply)

    async def commit(self, name: str, items: Sequence[CommitItem], *, principal: Principal) -> CommitReply:
        """Set positions, all or none; as durable as their topics before it is acknowledged."""
        engine = self._admit()
        check_commit(items, principal, engine.limits)
        created = engine.groups.find(name) is None
        _, ticket = engine.groups.commit(name, items, whole=True)
        places = sorted({(item.topic, item.partition) for item in items})
        reply = CommitReply(
            group=name, created=created, positions=[engine.groups.position_state(name, *place) for place in places]
        )
        await self._settle(ticket)
        return reply

    async def positions(self, name: str, topic: str | None, *, principal: Principal) -> list[PositionState]:
        """The group's positions, all or those in one topic, as far as the topics are the caller's to know."""
        found = self._admit().groups.positions(name, topic, principal.prefixes)
        await self._settle(0)
        return found

    async def reset(self, request: ResetRequest, *, principal: Principal) -> list[PositionState]:
        """Move positions, all or none; durable before it is acknowledged."""
        facts: Facts = {"group": request.group, "to": request.to, "ts": request.ts, "targets": request.targets}
        with self._observers("group.reset", facts, principal):
            groups = self._admit().groups
            if request.targets:
                check_names(principal, (target.topic for target in request.targets))
            else:
                check_owned(principal, groups.topics(request.group))
            moved, ticket = groups.reset(request)
            await self._settle(ticket)
            facts["moved"] = len(moved)
        return moved

    async def delete_positions(self, name: str, targets: Sequence[Target], *, principal: Principal) -> int:
        """Forget positions, durably; returns how many there were."""
        facts: Facts = {"group": name, "targets": targets}
        with self._observers("group.delete_positions", facts, principal):
            groups = self._admit().groups
            check_names(principal, (target.topic for target in targets))
            check_targets(targets)
            gone, ticket = groups.delete_positions(name, targets)
            await self._settle(ticket)
            facts["deleted"] = len(gone)
        return len(gone)

    # --- for Kafka, whose gateway has checked the names

    def names(self, *, principal: Principal) -> Iterator[str]:
        """The names of the groups that the caller may access, in order."""
        return self._admit().groups.index.under("", principal.prefixes, None)

    def exists(self, name: str) -> bool:
        """Return whether there is such a group."""
        return self._admit().groups.find(name) is not None

    def commit_each(self, name: str, items: Sequence[CommitItem]) -> tuple[list[TopicsError | None], int]:
        """Set positions by Kafka's rules, each on its own; see `Groups.commit`.

        Returns an outcome for each item, and the ticket to settle before answering.
        """
        return self._admit().groups.commit(name, items, kafka=True)

    def committed(self, name: str) -> Mapping[TopicView, Mapping[int, Position]]:
        """The positions of a group by topic and partition, none without a group; the group counts as in use."""
        groups = self._admit().groups
        groups.touch(name)
        group = groups.find(name)
        return {} if group is None else cast("Mapping[TopicView, Mapping[int, Position]]", group.positions)


def check_commit(items: Sequence[CommitItem], principal: Principal, limits: Limits) -> None:
    """Raise unless the caller may commit these positions, as many as they are."""
    check_names(principal, (item.topic for item in items))
    if not items:
        raise invalid("there is no position to commit")
    if len(items) > limits.max_batch_records:
        raise TopicsError(Reason.BATCH_TOO_LARGE, f"at most {limits.max_batch_records} positions at a time")


def check_targets(targets: Sequence[Target]) -> None:
    """Raise `invalid_request` for a delete of no positions."""
    if not targets:
        raise invalid("a delete of positions needs a topic")
