"""The coordinator of consumer groups: their members, and the assignment of partitions to them.

It is pure: it has no tasks and no clock. Call `tick` when `next_due` is reached. `changed` is called before the answer
that depends on the change: the caller stores it before it sends the answer, or after a crash two members could work on
the same partition. Nothing is answered twice or forgotten.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from topics_service.engine.membership import stored
from topics_service.engine.membership.classic import ClassicGroup
from topics_service.engine.membership.classic_member import JoinRespond, SyncRespond
from topics_service.engine.membership.consumer import ConsumerGroup
from topics_service.engine.membership.members import (
    JOIN_EPOCH,
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
    TopicsView,
)
from topics_service.engine.membership.runtime import Runtime
from topics_service.engine.membership.views import membership_of, view_of
from topics_service.engine.offsets.positions import Membership

Group = ClassicGroup | ConsumerGroup
AnyGroup = TypeVar("AnyGroup", ClassicGroup, ConsumerGroup)


def _nothing(_name: str) -> None:
    pass


def _unknown(_name: str) -> bool:
    return False


class Coordinator:
    """All groups with members. A group is of one type, classic or `consumer`, as long as it has any.

    `now` gives milliseconds that never go back. `new_id` gives a new unique id. `changed` is called with the name of a
    group whose stored state (`dump`) is out of date, before any answer; it must not raise. `admit` is called before a
    group is known for the first time; it can refuse it by raising RefusedError. `exists` says whether there is a group
    of that name, also one that has had no members lately.
    """

    def __init__(
        self,
        topics: TopicsView,
        *,
        now: Callable[[], int],
        new_id: Callable[[], str],
        settings: GroupSettings | None = None,
        changed: Callable[[str], None] = _nothing,
        admit: Callable[[str], None] = _nothing,
        exists: Callable[[str], bool] = _unknown,
    ) -> None:
        self.settings = settings or GroupSettings()
        self._run = Runtime(topics, now, new_id, self.settings)
        self._changed = changed
        self._admit = admit
        self._exists = exists
        self._groups: dict[str, Group] = {}

    # --- classic groups

    def join(self, request: JoinRequest, respond: JoinRespond) -> None:
        """Join a classic group; `respond` gets the answer, now or later, unless `forget` is called before."""
        try:
            self._classic_to_join(request).join(request, respond)
        except RefusedError as refusal:
            reply = JoinReply(error=refusal.error, member_id=request.member_id)
            self._run.answer(respond, reply)
        self._flush()

    def sync(self, request: SyncRequest, respond: SyncRespond) -> None:
        """Ask for an assignment; `respond` gets the answer, now or later, unless `forget` is called before."""
        try:
            self._classic(request.group).sync(request, respond)
        except RefusedError as refusal:
            self._run.answer(respond, SyncReply(error=refusal.error))
        self._flush()

    def heartbeat(self, group: str, member_id: str, generation: int, instance_id: str | None = None) -> GroupError:
        """Keep a member of a classic group alive."""
        try:
            return self._classic(group).heartbeat(member_id, generation, instance_id)
        except RefusedError as refusal:
            return refusal.error

    def leave(self, group: str, members: Sequence[Leaving]) -> list[GroupError]:
        """Let members go; one result for each. Static members of a `consumer` group go by their instance ids.

        Raises RefusedError without a group id.
        """
        if not group:
            raise RefusedError(GroupError.INVALID_GROUP_ID, "a group id is missing")
        found = self._groups.get(group)
        if found is None:
            return [GroupError.UNKNOWN_MEMBER_ID] * len(members)
        errors = found.leave(list(members))
        self._flush()
        return errors

    def forget(self, respond: JoinRespond | SyncRespond) -> None:
        """Drop an answer that is no longer awaited."""
        held = self._run.held.pop(respond, None)
        if held is None:
            self._run.take_back(respond)
        else:
            self._groups[held[0]].forget(held[1], respond)
            self._flush()

    # --- `consumer` groups

    def consumer_heartbeat(self, beat: Beat) -> BeatReply:
        """Join, stay in or leave a `consumer` group."""
        try:
            reply = self._consumer(beat).heartbeat(beat)
        except RefusedError as refusal:
            reply = BeatReply(error=refusal.error, message=refusal.message or None, member_id=beat.member_id)
        self._flush()
        return reply

    def topics_changed(self) -> None:
        """Topics or their partition counts have changed: groups see it with their next heartbeats."""
        self._run.topics_version += 1

    # --- positions

    def check_commit(
        self,
        group: str,
        member_id: str = "",
        epoch: int = -1,
        instance_id: str | None = None,
        partitions: Collection[Partition] | None = None,
        *,
        knows_epochs: bool = True,
    ) -> GroupError:
        """Check that this member may commit positions, or a client without membership while there are no members.

        A member of a `consumer` group may be at an epoch of the past if it has had all `partitions` since then; its
        client must know member epochs.
        """
        found = self._groups.get(group)
        is_anonymous = not member_id and instance_id is None and epoch < 0
        if found is None or not found.members:
            if epoch < 0:
                return GroupError.NONE
            if found is not None or self._exists(group):
                return GroupError.UNKNOWN_MEMBER_ID
            return GroupError.GROUP_ID_NOT_FOUND if knows_epochs else GroupError.ILLEGAL_GENERATION
        if is_anonymous:
            return GroupError.UNKNOWN_MEMBER_ID
        try:
            if isinstance(found, ClassicGroup):
                found.check_commit(member_id, epoch, instance_id)
            else:
                found.check_commit(member_id, epoch, partitions, knows_epochs=knows_epochs)
        except RefusedError as refusal:
            return refusal.error
        return GroupError.NONE

    def check_fetch(self, group: str, member_id: str | None = None, epoch: int = -1) -> GroupError:
        """Check that this member may read the group's positions. A client that claims no membership always may.

        Members of classic groups don't say that they are.
        """
        found = self._groups.get(group)
        if not isinstance(found, ConsumerGroup) or (member_id is None and epoch < 0):
            return GroupError.NONE
        try:
            found.check_fetch(member_id or "", epoch)
        except RefusedError as refusal:
            return refusal.error
        return GroupError.NONE

    def check_delete(self, group: str, topic: str) -> GroupError:
        """Check that the group's positions in a topic may be deleted: not while members may be working on it."""
        found = self._groups.get(group)
        if found is None or not found.members:
            return GroupError.NONE
        topics = found.subscribed()
        if topics is None:
            return GroupError.NON_EMPTY_GROUP
        return GroupError.GROUP_SUBSCRIBED_TO_TOPIC if topic in topics else GroupError.NONE

    # --- all groups

    def is_empty(self, group: str) -> bool:
        """Return whether the group has no members."""
        found = self._groups.get(group)
        return found is None or not found.members

    def membership(self, group: str) -> Membership:
        """Return the members of a group, for the other protocols."""
        found = self._groups.get(group)
        return Membership() if found is None else membership_of(self.view(found))

    def describe(self, group: str) -> GroupView | None:
        """All about a group's members; None if it has had none lately."""
        found = self._groups.get(group)
        return None if found is None else self.view(found)

    def view(self, group: Group) -> GroupView:
        """All about a group's members."""
        return view_of(group, self._run.topics)

    def summaries(self) -> list[tuple[str, GroupType, str, str]]:
        """Name, type, state and protocol type of every group that has or lately had members."""
        return [
            (name, "classic", group.state, group.protocol_type)
            if isinstance(group, ClassicGroup)
            else (name, "consumer", group.state, "consumer")
            for name, group in self._groups.items()
        ]

    def delete(self, group: str) -> GroupError:
        """Forget a group without members. GROUP_ID_NOT_FOUND if it has had none lately."""
        found = self._groups.get(group)
        if found is None:
            return GroupError.GROUP_ID_NOT_FOUND
        if found.members:
            return GroupError.NON_EMPTY_GROUP
        self._drop(found)
        self._flush()
        return GroupError.NONE

    def dump(self, group: str) -> bytes | None:
        """Return the row to store for the group; None if there is nothing to store."""
        found = self._groups.get(group)
        if found is None:
            return None
        found.is_stored = True
        return stored.dump(found)

    def load(self, group: str, row: bytes) -> None:
        """Take in a group as it was stored. Raises ValueError if the row can't be read."""
        self._keep(stored.load(group, row, self._run))
        self._flush()

    # --- time

    def next_due(self) -> int | None:
        """Return the time of the next `tick`, by the clock of `now`; None if nothing is due."""
        return self._run.timers.next_due()

    def tick(self, now: int | None = None) -> None:
        """Run due timers: sessions and rounds end, groups without members are forgotten."""
        self._run.timers.tick(self._run.now() if now is None else now)
        self._flush()

    # --- groups

    def _classic(self, name: str) -> ClassicGroup:
        if not name:
            raise RefusedError(GroupError.INVALID_GROUP_ID)
        found = self._groups.get(name)
        if not isinstance(found, ClassicGroup):
            raise RefusedError(GroupError.UNKNOWN_MEMBER_ID)
        return found

    def _classic_to_join(self, request: JoinRequest) -> ClassicGroup:
        if not request.group:
            raise RefusedError(GroupError.INVALID_GROUP_ID)
        found = self._groups.get(request.group)
        if isinstance(found, ClassicGroup):
            return found
        group = ClassicGroup(request.group, self._run)
        group.check_join(request)  # or requests that are refused would leave groups behind
        if found is not None and found.members:
            raise RefusedError(GroupError.INCONSISTENT_GROUP_PROTOCOL)
        if request.member_id:
            raise RefusedError(GroupError.UNKNOWN_MEMBER_ID)
        return self._enter(group, found)

    def _consumer(self, beat: Beat) -> ConsumerGroup:
        if not beat.group:
            raise RefusedError(GroupError.INVALID_REQUEST, "a group id is missing")
        found = self._groups.get(beat.group)
        if isinstance(found, ClassicGroup) and found.members:
            raise RefusedError(GroupError.GROUP_ID_NOT_FOUND, "the group is a classic one and has members")
        if isinstance(found, ConsumerGroup):
            return found
        group = ConsumerGroup(beat.group, self._run)
        group.check(beat)
        if beat.epoch == JOIN_EPOCH:
            return self._enter(group, found)
        if found is not None or self._exists(beat.group):
            raise RefusedError(GroupError.UNKNOWN_MEMBER_ID, f"{beat.member_id} is not a member of the group")
        raise RefusedError(GroupError.GROUP_ID_NOT_FOUND, "there is no such group")

    def _enter(self, group: AnyGroup, instead_of: Group | None) -> AnyGroup:
        """Add a group, or let it take the place of an empty one of the other type."""
        if instead_of is None:
            self._admit(group.name)
        else:
            self._drop(instead_of)
        self._keep(group)
        return group

    def _keep(self, group: Group) -> None:
        self._groups[group.name] = group
        group.retirement = self._run.alarm(lambda: self._forget_idle(group))
        self._run.idle.add(group.name)

    def _forget_idle(self, group: Group) -> None:
        if group.is_idle and self._groups.get(group.name) is group:
            self._drop(group)

    def _drop(self, group: Group) -> None:
        group.close()
        del self._groups[group.name]
        if group.is_stored:
            self._run.touched.add(group.name)

    def _retire(self) -> None:
        """Schedule the removal of groups without members."""
        while self._run.idle:
            group = self._groups.get(self._run.idle.pop())
            if group is not None and group.is_idle:
                group.retirement.set(self._run.now() + self.settings.empty_retention_ms)

    def _flush(self) -> None:
        """Have changes stored, then hand out the answers, one by one: each can lead to more of both."""
        run = self._run
        self._retire()
        while run.touched or run.outbox:
            touched, run.touched = run.touched, set()
            for name in sorted(touched):
                self._changed(name)
            if run.outbox:
                respond, reply = run.outbox.popleft()
                respond(reply)
            self._retire()
