"""The members of consumer groups: the coordinator on the engine's topics and store, with a timer of the event loop."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar
from uuid import UUID

from ulid import ULID

from topics_net import background
from topics_service.api.catalog import CatalogView, uuid_of
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.membership.coordinator import Coordinator
from topics_service.engine.membership.members import (
    Beat,
    BeatReply,
    GroupError,
    GroupSettings,
    GroupType,
    GroupView,
    JoinReply,
    JoinRequest,
    Leaving,
    Partition,
    RefusedError,
    SyncReply,
    SyncRequest,
    TopicFacts,
)
from topics_service.engine.offsets.positions import Membership, Target

log: Final = logging.getLogger("topics.kafka")

_Reply = TypeVar("_Reply", JoinReply, SyncReply)


class VisibleTopics:
    """Topics for the coordinator: those that are visible to readers."""

    def __init__(self, catalog: CatalogView) -> None:
        self._catalog = catalog

    def facts(self, name: str) -> TopicFacts | None:
        """See TopicsView."""
        topic = self._catalog.find(name)
        if topic is None:
            return None
        return TopicFacts(uuid_of(topic.identity.topic_id).bytes, topic.identity.partition_count)

    def name_of(self, topic_id: bytes) -> str | None:
        """See TopicsView."""
        topic = self._catalog.find(None, UUID(bytes=topic_id))
        return None if topic is None else topic.name

    def names(self) -> Iterable[str]:
        """See TopicsView."""
        return [topic.name for topic in self._catalog.within(None)]


class MembershipApi:
    """Calls of group members, within their membership: for Kafka, the only protocol that has members.

    A reply is sent once everything that it depends on is durable. Methods raise TopicsError if the server accepts no
    work or the state of the group can't be stored; the next request of the group tries to store it again. Callers have
    authorized the call.
    """

    def __init__(
        self,
        engine: Engine,
        catalog: CatalogView,
        settled: Callable[[int], Awaitable[None]],
        is_durable: Callable[[int], bool],
        settings: GroupSettings,
    ) -> None:
        """Load the stored groups; from now on `engine.groups` asks this for members."""
        self._engine = engine
        self._groups = engine.groups
        self._settled = settled
        self._is_durable = is_durable
        self._tickets: dict[str, int] = {}
        self._unstored: set[str] = set()
        self._held: set[asyncio.Future[JoinReply] | asyncio.Future[SyncReply]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        self._is_closed = False
        self._coordinator = Coordinator(
            VisibleTopics(catalog),
            now=_now_ms,
            new_id=lambda: str(ULID()).lower(),
            settings=settings,
            changed=self._changed,
            admit=self._admit,
            exists=lambda name: self._groups.find(name) is not None,
        )
        self._load()
        engine.catalog.on_changed.append(self._coordinator.topics_changed)
        self._groups.on_deleted.append(self._deleted)
        self._groups.coordinator = self

    def close(self) -> None:
        """Stop: held requests fail with `shutting_down`, and no session expires any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for future in self._held:
            if not future.done():
                future.set_exception(TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down"))

    # --- called by the engine

    def is_empty(self, group: str) -> bool:
        """See `positions.Coordinator`."""
        return self._coordinator.is_empty(group)

    def membership(self, group: str) -> Membership:
        """See `positions.Coordinator`."""
        return self._coordinator.membership(group)

    # --- requests

    async def join(self, request: JoinRequest) -> JoinReply:
        """See Coordinator. Cancellation discards the answer, not the membership."""
        return await self._answer(request.group, lambda respond: self._coordinator.join(request, respond))

    async def sync(self, request: SyncRequest) -> SyncReply:
        """See Coordinator. Cancellation discards the answer, not the membership."""
        return await self._answer(request.group, lambda respond: self._coordinator.sync(request, respond))

    def heartbeat(self, group: str, member_id: str, generation: int, instance_id: str | None) -> GroupError:
        """See Coordinator."""
        self._check(group)
        error = self._coordinator.heartbeat(group, member_id, generation, instance_id)
        self._arm()
        return error

    def leave(self, group: str, members: Sequence[Leaving]) -> tuple[list[GroupError], int]:
        """See Coordinator. Also returns the ticket to settle before answering; 0 if there is none."""
        self._check(group)
        errors = self._coordinator.leave(group, members)
        self._arm()
        return errors, self._stored_ticket(group)

    def beat(self, beat: Beat) -> tuple[BeatReply, int]:
        """See Coordinator. Also returns the ticket to settle before answering; 0 if there is none."""
        self._check(beat.group)
        reply = self._coordinator.consumer_heartbeat(beat)
        self._arm()
        return reply, self._stored_ticket(beat.group)

    # --- positions, as far as members decide on them

    def check_commit(
        self,
        group: str,
        member_id: str,
        epoch: int,
        instance_id: str | None,
        partitions: Collection[Partition] | None = None,
        *,
        knows_epochs: bool,
    ) -> GroupError:
        """See Coordinator."""
        self._check(group)
        return self._coordinator.check_commit(
            group, member_id, epoch, instance_id, partitions, knows_epochs=knows_epochs
        )

    def check_fetch(self, group: str, member_id: str | None, epoch: int) -> GroupError:
        """See Coordinator."""
        self._check(group)
        return self._coordinator.check_fetch(group, member_id, epoch)

    def check_delete(self, group: str, topics: Iterable[str]) -> list[GroupError]:
        """See Coordinator; one result for each topic. Raises `group_not_found`."""
        self._check(group)
        self._groups.get(group)
        return [self._coordinator.check_delete(group, topic) for topic in topics]

    async def delete_positions(self, group: str, targets: Sequence[Target]) -> None:
        """Delete positions in topics that `check_delete` allows, durably. Others raise RefusedError."""
        for error in self.check_delete(group, (target.topic for target in targets)):
            if error:
                raise RefusedError(error)
        _, ticket = self._groups.delete_positions(group, targets, in_use=True)
        await self._settled(ticket)

    # --- all groups

    def describe(self, group: str) -> GroupView | None:
        """See Coordinator."""
        self._check()
        return self._coordinator.describe(group)

    def summaries(self) -> list[tuple[str, GroupType, str, str]]:
        """See Coordinator."""
        self._check()
        return self._coordinator.summaries()

    # --- internals

    def _stored_ticket(self, group: str) -> int:
        """The ticket of the write that an answer about the group must wait for; 0 if there is none."""
        if group in self._unstored:
            raise TopicsError(Reason.NOT_READY, "the state of the group can't be stored")
        ticket = self._tickets.get(group, 0)
        if ticket and self._is_durable(ticket):
            del self._tickets[group]
            return 0
        return ticket

    def _check(self, group: str = "") -> None:
        """Raise TopicsError if the server accepts no work, or none of this group."""
        if self._engine.draining or self._is_closed:
            raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
        if self._engine.recovered < 1.0:
            raise TopicsError(Reason.NOT_READY, "the server is starting")
        if group in self._unstored:
            self._store(group)

    async def _answer(self, group: str, ask: Callable[[Callable[[_Reply], None]], None]) -> _Reply:
        self._check(group)
        future: asyncio.Future[_Reply] = asyncio.get_running_loop().create_future()

        def respond(reply: _Reply) -> None:
            if not future.done():
                future.set_result(reply)

        ask(respond)
        self._arm()
        self._held.add(future)
        try:
            reply = await future
        except (asyncio.CancelledError, TopicsError):
            self._coordinator.forget(respond)
            self._arm()
            raise
        finally:
            self._held.discard(future)
        await self._settled(self._stored_ticket(group))
        return reply

    # --- the store

    def _load(self) -> None:
        for name, row in self._groups.states():
            try:
                self._coordinator.load(name, row)
            except ValueError:
                log.exception("could not load the members of group %r: they must rejoin", name)
        self._arm()

    def _admit(self, name: str) -> None:
        """Create the group. Permanent errors become errors that clients do not retry."""
        try:
            self._groups.create(name)
        except TopicsError as error:
            if error.reason is Reason.INVALID_REQUEST:
                raise RefusedError(GroupError.INVALID_GROUP_ID, error.message) from error
            if (error.detail or {}).get("limit") == "max_groups":
                raise RefusedError(GroupError.GROUP_MAX_SIZE_REACHED, error.message) from error
            raise

    def _changed(self, name: str) -> None:
        try:
            self._store(name)
        except TopicsError as error:
            log.warning("could not store the state of group %r: %s", name, error.message)
            self._unstored.add(name)

    def _store(self, name: str) -> None:
        self._tickets[name] = self._groups.put_state(name, self._coordinator.dump(name))
        self._unstored.discard(name)

    def _deleted(self, name: str) -> None:
        self._coordinator.delete(name)
        self._tickets.pop(name, None)
        self._unstored.discard(name)

    # --- time

    def _arm(self) -> None:
        """Set the timer to the next due time. A timer that fires early does nothing."""
        due = self._coordinator.next_due()
        if due is None or self._is_closed or (self._timer is not None and self._timer_due <= due):
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # still starting: the first request arms the timer
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = background.call_later(max(due - _now_ms(), 0) / 1e3, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if not self._engine.draining:
            self._coordinator.tick()
            self._arm()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
