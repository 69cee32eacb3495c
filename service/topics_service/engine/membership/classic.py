"""Classic consumer groups: members agree on a generation in two rounds (join, sync) and one of them, the leader,
assigns the partitions. We only see opaque metadata and assignments.

A member's session runs out unless it is heard of, but not while we owe it an answer.
"""

from collections import Counter
from functools import partial

from topics_service.engine.membership.classic_member import (
    ClassicMember,
    JoinRespond,
    SyncRespond,
    size_of,
    subscription,
)
from topics_service.engine.membership.members import (
    GroupError,
    JoinedMember,
    JoinReply,
    JoinRequest,
    Leaving,
    RefusedError,
    SyncReply,
    SyncRequest,
)
from topics_service.engine.membership.runtime import Runtime
from topics_service.engine.membership.subscriptions import consumer_topics
from topics_service.engine.membership.timers import Alarm

EMPTY = "Empty"
PREPARING = "PreparingRebalance"
COMPLETING = "CompletingRebalance"
STABLE = "Stable"

_UNSTORED = 1_000
_MAX_PROTOCOLS = 100
_MAX_ID_CHARS = 255


class ClassicGroup:
    """The state machine of a group: Empty, PreparingRebalance (joins), CompletingRebalance (syncs), Stable."""

    type = "classic"

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name = name
        self.state = EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.pending: dict[str, Alarm] = {}  # assigned ids that have not joined yet
        self.statics: dict[str, str] = {}
        self.unsynced: set[str] = set()
        self.is_stored = False
        self.retirement = runtime.alarm(lambda: None)
        self._run = runtime
        self._round = runtime.alarm(self._round_is_over)
        self._gather_until: int | None = None  # while the first members of an empty group gather
        self._is_growing = False
        self._unstored = 0  # how many generations there may have been that a restart knows nothing of

    # --- requests

    def join(self, request: JoinRequest, respond: JoinRespond) -> None:
        """Answer now or when the round of joins ends. Raises RefusedError."""
        self.check_join(request)
        member_id, instance_id = request.member_id, request.instance_id
        if not member_id:
            known = self.statics.get(instance_id) if instance_id is not None else None
            if known is not None:
                self._replace(self.members[known], request, respond)
            elif instance_id is None and request.needs_id:
                member_id = self._reserve(request)
                reply = JoinReply(error=GroupError.MEMBER_ID_REQUIRED, member_id=member_id)
                self._run.answer(respond, reply)
            else:
                self._add(self._new_id(request), request, respond)
        elif member_id in self.pending and instance_id is None:
            self.pending.pop(member_id).cancel()
            self._add(member_id, request, respond).knows_id = True
        else:
            self._rejoin(self._member(member_id, instance_id), request, respond)

    def sync(self, request: SyncRequest, respond: SyncRespond) -> None:
        """Answer now or when the leader has brought the assignments. Raises RefusedError."""
        member = self.check(request.member_id, request.generation, request.instance_id)
        if (request.protocol_type or self.protocol_type) != self.protocol_type or (
            request.protocol or self.protocol
        ) != self.protocol:
            raise RefusedError(GroupError.INCONSISTENT_GROUP_PROTOCOL)
        if self.state == PREPARING:
            raise RefusedError(GroupError.REBALANCE_IN_PROGRESS)
        is_leader = member.member_id == self.leader
        if self.state == COMPLETING and is_leader:
            self._check_assignments(request)
        self._renew_session(member)
        self.unsynced.discard(member.member_id)
        if self.state == COMPLETING:
            self._answer_sync(member, GroupError.REBALANCE_IN_PROGRESS)
            member.sync = respond
            member.session.cancel()
            self._run.hold(respond, self.name, member.member_id)
            if is_leader:
                self._settle(dict(request.assignments))
        else:
            self._run.answer(respond, self._assigned(member))
        if self.state == STABLE and not self.unsynced:
            self._round.cancel()

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None) -> GroupError:
        """Keep the member's session alive; whether a rebalance is on. Raises RefusedError."""
        member = self.check(member_id, generation, instance_id)
        self._renew_session(member)
        return GroupError.REBALANCE_IN_PROGRESS if self.state == PREPARING else GroupError.NONE

    def leave(self, leaving: list[Leaving]) -> list[GroupError]:
        """Let members go, with one rebalance for all."""
        errors: list[GroupError] = []
        any_gone = False
        for member_id, instance_id in leaving:
            if member_id in self.pending and instance_id is None:
                self.pending.pop(member_id).cancel()
                self._run.idle.add(self.name)
                errors.append(GroupError.NONE)
                continue
            try:
                member = self._member(member_id or self.statics.get(instance_id or "", ""), instance_id)
            except RefusedError as refusal:
                errors.append(refusal.error)
                continue
            self._remove(member)
            any_gone = True
            errors.append(GroupError.NONE)
        if any_gone:
            self._shrunk()
        else:
            self._try_complete()
        return errors

    def check(self, member_id: str, generation: int, instance_id: str | None) -> ClassicMember:
        """The member, if it is of this generation. Raises RefusedError."""
        member = self._member(member_id, instance_id)
        if generation != self.generation:
            raise RefusedError(GroupError.ILLEGAL_GENERATION)
        return member

    def check_commit(self, member_id: str, generation: int, instance_id: str | None) -> None:
        """Check that the member may commit, which counts as a sign of life. Raises RefusedError."""
        member = self.check(member_id, generation, instance_id)
        self._renew_session(member)
        if self.state == COMPLETING:
            raise RefusedError(GroupError.REBALANCE_IN_PROGRESS)

    def forget(self, member_id: str, respond: object) -> None:
        """Drop an answer that is no longer awaited: the member's session runs, or ends if its id was never sent."""
        member = self.members.get(member_id)
        if member is None:
            return
        if member.join == respond:
            member.join = None
            if not member.knows_id and member.instance_id is None:
                self._remove(member)
                self._shrunk()
                return
        elif member.sync == respond:
            member.sync = None
        if not member.session.due:
            self._renew_session(member)

    def subscribed(self) -> set[str] | None:
        """The topics that its consumers subscribe to; None if they are not that kind of members."""
        if self.protocol_type != "consumer":
            return None if self.members else set()
        return {
            name
            for member in self.members.values()
            for metadata in list(member.protocols.values())[:1]
            for name in consumer_topics(metadata) or ()
        }

    @property
    def is_idle(self) -> bool:
        """Return whether the group has no members and none is joining."""
        return not self.members and not self.pending

    def resume(self, *, is_stable: bool) -> None:
        """Resume after a restart, with the stored members; in a rebalance they all have to join again.

        Generations without assignments were not stored, and must not be given out twice.
        """
        self._unstored = _UNSTORED
        if self.members:
            self.state = STABLE
            if not is_stable:
                self.rebalance()

    def close(self) -> None:
        """The group turns into one of another type, or is deleted: ids that were given out are void."""
        for alarm in self.pending.values():
            alarm.cancel()
        self.pending.clear()
        self._round.cancel()

    # --- joining

    def check_join(self, request: JoinRequest) -> None:
        """Raise RefusedError if no member could join with this request."""
        settings = self._run.settings
        if not settings.min_session_ms <= request.session_ms <= settings.max_session_ms:
            raise RefusedError(GroupError.INVALID_SESSION_TIMEOUT)
        if not request.protocols or not request.protocol_type:
            raise RefusedError(GroupError.INCONSISTENT_GROUP_PROTOCOL)
        if len(request.protocols) > _MAX_PROTOCOLS:
            raise RefusedError(GroupError.INVALID_REQUEST, f"a member knows at most {_MAX_PROTOCOLS} protocols")
        if request.instance_id == "":
            raise RefusedError(GroupError.INVALID_REQUEST, "an instance id can't be empty")
        if max(len(request.instance_id or ""), len(request.protocol_type)) > _MAX_ID_CHARS:
            raise RefusedError(GroupError.INVALID_REQUEST, f"ids have at most {_MAX_ID_CHARS} characters")
        replaced = request.member_id or self.statics.get(request.instance_id or "", "")
        self._run.check_size(size_of(request.protocols), self.members.values(), self.members.get(replaced))
        others = [member for member in self.members.values() if member.member_id != replaced]
        if len(others) >= settings.max_members:
            raise RefusedError(GroupError.GROUP_MAX_SIZE_REACHED)
        if self.members and request.protocol_type != self.protocol_type:
            raise RefusedError(GroupError.INCONSISTENT_GROUP_PROTOCOL)
        if others and not any(self._all_know(name, others) for name, _ in request.protocols):
            raise RefusedError(GroupError.INCONSISTENT_GROUP_PROTOCOL)

    def _all_know(self, protocol: str, members: list[ClassicMember]) -> bool:
        return all(protocol in member.protocols for member in members)

    def _new_id(self, request: JoinRequest) -> str:
        return f"{request.instance_id or request.client.client_id}-{self._run.new_id()}"

    def _reserve(self, request: JoinRequest) -> str:
        if len(self.pending) >= self._run.settings.max_members:
            raise RefusedError(GroupError.GROUP_MAX_SIZE_REACHED)
        member_id = self._new_id(request)
        alarm = self.pending[member_id] = self._run.alarm(partial(self._pending_expired, member_id))
        alarm.set(self._run.now() + request.session_ms)
        return member_id

    def _pending_expired(self, member_id: str) -> None:
        del self.pending[member_id]
        self._run.idle.add(self.name)
        self._try_complete()

    def _add(self, member_id: str, request: JoinRequest, respond: JoinRespond) -> ClassicMember:
        member = self.enter(member_id, request.instance_id)
        member.update(request)
        self._run.weigh(member)
        self._is_growing = True
        self._await(member, request, respond)
        return member

    def enter(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """Make room for a member."""
        member = ClassicMember(member_id, self._run.alarm(partial(self._session_expired, member_id)))
        self.members[member_id] = member
        if instance_id is not None:
            member.instance_id = instance_id
            self.statics[instance_id] = member_id
        return member

    def _rejoin(self, member: ClassicMember, request: JoinRequest, respond: JoinRespond) -> None:
        member.knows_id = True
        is_changed = member.protocols != dict(request.protocols)
        leads = member.member_id == self.leader
        if self.state == PREPARING or is_changed or (self.state == STABLE and leads):
            member.update(request)
            self._run.weigh(member)
            self._await(member, request, respond)
        else:  # its client missed the answer, or does not know that nothing has changed
            self._renew_session(member)
            self._run.answer(respond, self._joined(member))

    def _replace(self, old: ClassicMember, request: JoinRequest, respond: JoinRespond) -> None:
        """A static member is back, as another process: it takes over, and the old one is fenced off."""
        is_same = subscription(request.protocol_type, old.protocols) == subscription(
            request.protocol_type, dict(request.protocols)
        )
        led, was_unsynced = self.leader == old.member_id, old.member_id in self.unsynced
        self._remove(old, GroupError.FENCED_INSTANCE_ID)
        member = self.enter(self._new_id(request), request.instance_id)
        member.update(request)
        member.assignment = old.assignment
        self._run.weigh(member)
        if led:
            self.leader = member.member_id
        if was_unsynced:
            self.unsynced.add(member.member_id)
        if self.state != STABLE or not is_same:
            self._await(member, request, respond)
            return
        self._renew_session(member)
        reply = self._joined(member)
        if led and request.can_skip_assignment:
            reply.skip_assignment = True
        elif led:  # such a client must not take itself for the leader, or it would assign partitions again
            reply.leader, reply.members = old.member_id, ()
        self._run.answer(respond, reply)

    def _await(self, member: ClassicMember, request: JoinRequest, respond: JoinRespond) -> None:
        """Hold the answer until the round of joins ends, and begin one if none is on."""
        self._answer_join(member, JoinReply(error=GroupError.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        self.protocol_type = request.protocol_type
        member.join, member.joined = respond, True
        member.session.cancel()
        self._run.hold(respond, self.name, member.member_id)
        if self.state == PREPARING:
            self._try_complete()
        else:
            self.rebalance()

    # --- rounds

    def rebalance(self) -> None:
        """Begin a round of joins."""
        for member in self.members.values():
            if self.state == COMPLETING and member.assignment:
                member.assignment = b""
                self._run.weigh(member)
            self._answer_sync(member, GroupError.REBALANCE_IN_PROGRESS)
        self.unsynced.clear()
        was_empty, self.state = self.state == EMPTY, PREPARING
        delay, longest = self._run.settings.initial_delay_ms, self._longest()
        if was_empty and delay > 0:
            now = self._run.now()
            self._gather_until, self._is_growing = now + longest, False
            self._round.set(now + min(delay, longest))
        else:
            self._gather_until = None
            self._round.set(self._run.now() + longest)
            self._try_complete()

    def _longest(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    def _round_is_over(self) -> None:
        now = self._run.now()
        if self.state != PREPARING:
            late = sorted(self.unsynced)
            for member_id in late:
                self._remove(self.members[member_id])
            if late:
                self._shrunk()
        elif self._gather_until is not None and self._is_growing and now < self._gather_until:
            self._is_growing = False
            self._round.set(min(now + self._run.settings.initial_delay_ms, self._gather_until))
        else:
            self._complete()

    def _try_complete(self) -> None:
        if self.state != PREPARING or self.pending:
            return
        gathers = self._gather_until is not None and bool(self.members)
        if not gathers and all(member.joined for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        """Begin the next generation with the members that have joined, and static members."""
        self._gather_until = None
        for member in list(self.members.values()):
            if not member.joined and member.instance_id is None:
                self._remove(member)
        joined = [member for member in self.members.values() if member.joined]
        if self.members and not joined:
            self._round.set(self._run.now() + self._longest())
            return
        self._round.cancel()
        self.generation += 1 + self._unstored
        self._unstored = 0
        if not joined:
            self.state, self.protocol, self.leader = EMPTY, None, None
            self._run.idle.add(self.name)
            self._run.touched.add(self.name)
            return
        able = [member for member in joined if member.join is not None] or joined
        if not any(member.member_id == self.leader for member in able):
            self.leader = able[0].member_id
        self.protocol = self._vote()
        self.state = COMPLETING
        self.unsynced = {member.member_id for member in joined}
        self._round.set(self._run.now() + self._longest())
        for member in joined:
            member.joined = False
            if member.join is not None:
                self._answer_join(member, self._joined(member))
                member.knows_id = True

    def _vote(self) -> str:
        """The protocol that most members prefer, of those that all know."""
        members = list(self.members.values())
        common = [name for name in members[0].protocols if self._all_know(name, members)]
        votes = Counter(next(name for name in member.protocols if name in common) for member in members)
        return votes.most_common(1)[0][0]

    def _check_assignments(self, request: SyncRequest) -> None:
        size, settings = sum(len(assignment) for _, assignment in request.assignments), self._run.settings
        if size > settings.max_assignment_bytes or self._run.weight + size > settings.max_bytes:
            raise RefusedError(GroupError.INVALID_REQUEST)

    def _settle(self, assignments: dict[str, bytes]) -> None:
        """The leader has spoken."""
        self.state = STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            self._run.weigh(member)
            self._answer_sync(member)
        self._run.touched.add(self.name)

    # --- members

    def _member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        if instance_id is not None:
            known = self.statics.get(instance_id)
            if known is not None and known != member_id:
                raise RefusedError(GroupError.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None or member.instance_id != (instance_id if instance_id is not None else member.instance_id):
            raise RefusedError(GroupError.UNKNOWN_MEMBER_ID)
        return member

    def _renew_session(self, member: ClassicMember) -> None:
        """A sign of life; the session of a member that waits for us does not run."""
        if member.join is None and member.sync is None and self.members.get(member.member_id) is member:
            member.session.set(self._run.now() + member.session_ms)

    def _session_expired(self, member_id: str) -> None:
        self._remove(self.members[member_id])
        self._shrunk()

    def _remove(self, member: ClassicMember, error: GroupError = GroupError.UNKNOWN_MEMBER_ID) -> None:
        del self.members[member.member_id]
        self._run.weigh(member, is_gone=True)
        member.session.cancel()
        self.unsynced.discard(member.member_id)
        if member.instance_id is not None:
            del self.statics[member.instance_id]
            self._run.touched.add(self.name)
        self._answer_join(member, JoinReply(error=error, member_id=member.member_id))
        self._answer_sync(member, error)

    def _shrunk(self) -> None:
        if self.state in (STABLE, COMPLETING):
            self.rebalance()
        else:
            self._try_complete()

    # --- answers

    def _joined(self, member: ClassicMember) -> JoinReply:
        protocol = self.protocol or ""
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                JoinedMember(m.member_id, m.instance_id, m.protocols[protocol]) for m in self.members.values()
            )
        return JoinReply(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=protocol,
            leader=self.leader or "",
            members=members,
        )

    def _assigned(self, member: ClassicMember) -> SyncReply:
        return SyncReply(protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment)

    def _answer_join(self, member: ClassicMember, reply: JoinReply) -> None:
        if member.join is not None:
            respond, member.join = member.join, None
            self._run.answer(respond, reply)
            self._renew_session(member)

    def _answer_sync(self, member: ClassicMember, error: GroupError = GroupError.NONE) -> None:
        if member.sync is not None:
            respond, member.sync = member.sync, None
            reply = SyncReply(error=error) if error else self._assigned(member)
            self._run.answer(respond, reply)
            self._renew_session(member)
