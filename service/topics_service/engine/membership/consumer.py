"""`consumer` groups (KIP-848): we assign the partitions, and each member moves to its target at its own pace.

The group's epoch grows with every change of members, subscriptions or topics; the target assignment follows it. With a
heartbeat a member first revokes partitions that leave its target, stays at its epoch until it confirms that, and only
then gets free ones. A partition is free if it has no owner: a member to which it was assigned, and that has neither
confirmed its revocation nor left.
"""

from collections import Counter
from collections.abc import Collection
from functools import partial

from topics_service.engine.membership.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Subscriber
from topics_service.engine.membership.consumer_member import LEFT, ConsumerMember, by_topic, size_of
from topics_service.engine.membership.members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Beat,
    BeatReply,
    GroupError,
    Leaving,
    Partition,
    RefusedError,
    TopicFacts,
)
from topics_service.engine.membership.runtime import Runtime
from topics_service.engine.membership.subscriptions import Pattern, compile_pattern

_MAX_ID_CHARS = 255
_MAX_NAMES = 10_000


class ConsumerGroup:
    """The state of a group. `owners` is the current assignment, `target` the intended one."""

    type = "consumer"

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name = name
        self.epoch = 0
        self.target_epoch = 0
        self.target: dict[str, set[Partition]] = {}
        self.assignor = DEFAULT_ASSIGNOR
        self.members: dict[str, ConsumerMember] = {}
        self.statics: dict[str, str] = {}
        self.owners: dict[Partition, str] = {}
        self.topics: dict[str, TopicFacts] = {}
        self.is_stored = False
        self.retirement = runtime.alarm(lambda: None)
        self._run = runtime
        self._topics_version = -1
        self._matched_version = -1
        self._matched_at: int | None = None

    @property
    def state(self) -> str:
        """A word of the Kafka protocol."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        settled = all(
            member.epoch == self.target_epoch
            and not member.revoking
            and member.assigned.keys() == self.target.get(member.member_id, set())
            for member in self.members.values()
            if member.epoch != LEFT
        )
        return "Stable" if settled else "Reconciling"

    @property
    def is_idle(self) -> bool:
        """Return whether the group has no members."""
        return not self.members

    # --- requests

    def heartbeat(self, beat: Beat) -> BeatReply:
        """Apply the member's heartbeat and move it towards its target. Raises RefusedError."""
        pattern = self.check(beat)
        if beat.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(beat)
        member = self._joining(beat) if beat.epoch == JOIN_EPOCH else self._current(beat)
        before = member.epoch, dict(member.assigned), set(member.revoking)
        member.packed = None
        self._follow(member, beat, pattern)
        owned = set() if beat.epoch == JOIN_EPOCH else None if beat.owned is None else set(beat.owned)
        self._reconcile(member, owned, is_fresh=beat.epoch == JOIN_EPOCH)
        member.session.set(self._run.now() + self._run.settings.session_ms)
        is_full = (
            beat.rebalance_ms != -1 and beat.owned is not None and (beat.names is not None or beat.regex is not None)
        )
        has_news = (
            is_full
            or before[1].keys() != member.assigned.keys()
            or (owned is not None and owned != member.assigned.keys())
        )
        if before != (member.epoch, member.assigned, member.revoking):
            self._touch()
        return BeatReply(
            member_id=member.member_id,
            epoch=member.epoch,
            heartbeat_ms=self._run.settings.heartbeat_ms,
            assignment=by_topic(member.assigned) if has_news else None,
        )

    def check(self, beat: Beat) -> Pattern | None:
        """Raise RefusedError if the beat can't be one, or has too large a subscription; else its pattern, compiled."""
        _check_form(beat)
        if beat.names is not None:
            member_id = self.statics.get(beat.instance_id or "", beat.member_id)
            self._run.check_size(size_of(beat.names), self.members.values(), self.members.get(member_id))
        return self._pattern(beat)

    def leave(self, leaving: list[Leaving]) -> list[GroupError]:
        """Let static members go whom an operator names by their instance ids."""
        errors = []
        for member_id, instance_id in leaving:
            known = self.statics.get(instance_id) if instance_id is not None else None
            if known is None or member_id not in ("", known):
                errors.append(GroupError.UNKNOWN_MEMBER_ID if known is None else GroupError.FENCED_INSTANCE_ID)
                continue
            self._remove(self.members[known])
            errors.append(GroupError.NONE)
        return errors

    def check_commit(
        self, member_id: str, epoch: int, partitions: Collection[Partition] | None, *, knows_epochs: bool
    ) -> None:
        """Check that the member may commit, which counts as a sign of life. Raises RefusedError.

        With an epoch of the past it may for `partitions` that it has had ever since then.
        """
        member = self._member(member_id, None)
        if not knows_epochs:
            raise RefusedError(GroupError.UNSUPPORTED_VERSION)
        if epoch != member.epoch:
            kept = [member.assigned.get(part, epoch + 1) <= epoch for part in partitions or ()]
            if epoch > member.epoch or not kept or not all(kept):
                raise RefusedError(GroupError.STALE_MEMBER_EPOCH)
        member.session.set(self._run.now() + self._run.settings.session_ms)

    def check_fetch(self, member_id: str, epoch: int) -> None:
        """Check that the member may read its positions. Raises RefusedError."""
        if epoch != self._member(member_id, None).epoch:
            raise RefusedError(GroupError.STALE_MEMBER_EPOCH)

    def subscribed(self) -> set[str]:
        """The topics that its members subscribe to."""
        return set().union(*{member.topics for member in self.members.values()})

    def forget(self, member_id: str, respond: object) -> None:
        """Do nothing: no answer is ever held back."""

    def close(self) -> None:
        """The group is deleted or turns into one of another type; it has no members."""

    # --- members

    def _joining(self, beat: Beat) -> ConsumerMember:
        """The member that joins: new, back after a lost answer, or in the place of a static one that is away."""
        member_id = beat.member_id or self._run.new_id()
        instance_id = beat.instance_id
        known = self.statics.get(instance_id) if instance_id is not None else None
        if known is not None and known != member_id:
            if self.members[known].epoch != LEFT:
                raise RefusedError(GroupError.UNRELEASED_INSTANCE_ID, f"instance {instance_id} is still in use")
            if member_id in self.members:
                raise RefusedError(GroupError.INVALID_REQUEST, f"member {member_id} is another instance")
            return self._replace(self.members[known], member_id)
        member = self.members.get(member_id)
        if member is not None:
            if member.instance_id != instance_id:
                raise RefusedError(GroupError.INVALID_REQUEST, f"member {member_id} is another instance")
            return member
        if len(self.members) >= self._run.settings.max_members:
            raise RefusedError(
                GroupError.GROUP_MAX_SIZE_REACHED, f"a group has at most {self._run.settings.max_members} members"
            )
        self._touch()
        return self.enter(member_id, instance_id)

    def enter(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Make room for a member."""
        member = ConsumerMember(
            member_id,
            session=self._run.alarm(partial(self._expired, member_id)),
            revocation=self._run.alarm(partial(self._expired, member_id)),
            instance_id=instance_id,
        )
        self.members[member_id] = member
        if instance_id is not None:
            self.statics[instance_id] = member_id
        return member

    def _replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back, as another process: it takes over the assignment of the old one."""
        old.session.cancel()
        old.revocation.cancel()
        del self.members[old.member_id]
        self._run.weigh(old, is_gone=True)
        member = self.enter(member_id, old.instance_id)
        member.names, member.regex, member.pattern, member.matched = old.names, old.regex, old.pattern, old.matched
        member.rack, member.assignor, member.rebalance_ms = old.rack, old.assignor, old.rebalance_ms
        member.assigned = old.assigned
        self._run.weigh(member)
        for part in member.assigned:
            self.owners[part] = member_id
        self.target[member_id] = self.target.pop(old.member_id, set())
        self._touch()
        return member

    def _current(self, beat: Beat) -> ConsumerMember:
        """The member, if its epoch says that it knows of its partitions. Raises RefusedError."""
        member = self._member(beat.member_id, beat.instance_id)
        if beat.epoch == member.epoch:
            return member
        knows_the_last = (
            beat.epoch == member.previous
            and member.epoch > beat.epoch
            and beat.owned is not None
            and member.assigned.keys() >= set(beat.owned)
        )
        if not knows_the_last:
            raise RefusedError(
                GroupError.FENCED_MEMBER_EPOCH,
                f"the member is at epoch {member.epoch}, not {beat.epoch}: it must give up its partitions and rejoin",
            )
        return member

    def _member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id is not None:
            known = self.statics.get(instance_id)
            if known is not None and known != member_id:
                raise RefusedError(GroupError.FENCED_INSTANCE_ID, f"instance {instance_id} is another member by now")
        member = self.members.get(member_id)
        if member is None or (instance_id is not None and member.instance_id != instance_id):
            raise RefusedError(GroupError.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of the group")
        return member

    def _leave(self, beat: Beat) -> BeatReply:
        member = self._member(beat.member_id, beat.instance_id)
        if beat.epoch == STATIC_LEAVE_EPOCH:
            self._free(member.revoking - member.assigned.keys(), member)
            member.revoking = set()
            member.revocation.cancel()
            member.epoch, member.packed = LEFT, None
            member.session.set(self._run.now() + self._run.settings.session_ms)
            self._touch()
        else:
            self._remove(member)
        return BeatReply(member_id=beat.member_id, epoch=beat.epoch)

    def _expired(self, member_id: str) -> None:
        """The member has missed its heartbeats, or has kept revoked partitions for too long."""
        self._remove(self.members[member_id])

    def _remove(self, member: ConsumerMember) -> None:
        del self.members[member.member_id]
        self._run.weigh(member, is_gone=True)
        if member.instance_id is not None:
            del self.statics[member.instance_id]
        member.session.cancel()
        member.revocation.cancel()
        self._free(member.assigned.keys() | member.revoking, member)
        self.target.pop(member.member_id, None)
        self.epoch += 1
        self._touch()
        if not self.members:
            self.target_epoch = self.epoch
            self._run.idle.add(self.name)

    # --- subscriptions and the target

    def _pattern(self, beat: Beat) -> Pattern | None:
        """The pattern of the beat, compiled; many clients send the same one again and again. Raises RefusedError."""
        if not beat.regex:
            return None
        member = self.members.get(beat.member_id)
        if member is not None and member.regex == beat.regex and member.pattern is not None:
            return member.pattern
        return compile_pattern(beat.regex, self._run.settings.max_regex_chars)

    def _follow(self, member: ConsumerMember, beat: Beat, pattern: Pattern | None) -> None:
        """Bring the target up to date with the subscriptions and the topics."""
        is_new, is_unheard = member.member_id not in self.target, member.allowed is None
        is_changed = member.update(beat, pattern)
        if is_changed:
            self._run.weigh(member)
        if is_changed or is_unheard:
            is_changed |= member.match(self._run.matches, self._run.topics_version)
        is_changed |= is_new
        is_changed |= self._match()
        version = self._run.topics_version
        if is_changed or version != self._topics_version:
            self._topics_version = version
            found = {name: self._run.topics.facts(name) for name in self.subscribed()}
            topics = {name: facts for name, facts in found.items() if facts is not None}
            is_changed |= topics != self.topics
            self.topics = topics
        if is_changed:
            self.epoch += 1
        if self.epoch > self.target_epoch:
            self._assign()
            self._touch()

    def _match(self) -> bool:
        """Match all patterns again if topics were created or deleted; whether any member's have changed."""
        now = self._run.now()
        if self._matched_version == self._run.topics_version:
            return False
        members = [member for member in self.members.values() if member.pattern is not None]
        at = self._matched_at
        if members and at is not None and now - at < self._run.settings.regex_refresh_ms:
            return False
        self._matched_version, self._matched_at = self._run.topics_version, now
        changes = [member.match(self._run.matches, self._run.topics_version) for member in members]
        return any(changes)

    def _assign(self) -> None:
        votes = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        self.assignor = votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR
        subscribers = {
            member.member_id: Subscriber(
                member.topics, (member.instance_id is None, member.instance_id or member.member_id)
            )
            for member in self.members.values()
        }
        before, self.target = self.target, ASSIGNORS[self.assignor](subscribers, self.topics, self.target)
        self.target_epoch = self.epoch
        for member in self.members.values():
            if before.get(member.member_id) != self.target[member.member_id]:
                member.packed = None

    # --- towards the target

    def _reconcile(self, member: ConsumerMember, owned: set[Partition] | None, *, is_fresh: bool) -> None:
        """Move the member on. `owned` are the partitions that it reports, None if unchanged.

        One that has just joined works on nothing, so it has nothing to confirm.
        """
        if member.revoking and not is_fresh and (owned is None or not owned.isdisjoint(member.revoking)):
            return
        target = self.target.get(member.member_id, set())
        given_up = member.revoking
        kept = {part: epoch for part, epoch in member.assigned.items() if part in target}
        revoked = member.assigned.keys() - target
        if revoked and not is_fresh:
            member.assigned, member.revoking = kept, revoked
            self._free(given_up, member)
            member.revocation.set(self._run.now() + member.rebalance_ms)
            return
        self._free(given_up | revoked, member)
        member.revoking = set()
        member.revocation.cancel()
        member.assigned = kept
        for part in target - kept.keys():
            if part not in self.owners:
                self.owners[part] = member.member_id
                kept[part] = self.target_epoch
        if member.epoch != self.target_epoch:
            member.previous, member.epoch = member.epoch, self.target_epoch

    def _free(self, parts: Collection[Partition], member: ConsumerMember) -> None:
        """Take these partitions from the member; those of others are unaffected."""
        for part in parts:
            if self.owners.get(part) == member.member_id:
                del self.owners[part]

    def _touch(self) -> None:
        self._run.touched.add(self.name)


def _check_form(beat: Beat) -> None:
    """Raise RefusedError if the beat can't be one."""
    problem = None
    joins = beat.epoch == JOIN_EPOCH
    if beat.epoch < STATIC_LEAVE_EPOCH:
        problem = "there is no such member epoch"
    elif not beat.member_id and not (joins and beat.makes_id):
        problem = "a member id is missing"
    elif beat.instance_id == "" or beat.rack == "":
        problem = "an instance id or rack can't be empty"
    elif max(len(beat.member_id), len(beat.instance_id or ""), len(beat.rack or "")) > _MAX_ID_CHARS:
        problem = f"ids and racks have at most {_MAX_ID_CHARS} characters"
    elif beat.epoch == STATIC_LEAVE_EPOCH and beat.instance_id is None:
        problem = "only a static member can leave for a while"
    elif joins and beat.rebalance_ms == -1:
        problem = "a member joins with its rebalance timeout"
    elif joins and (beat.owned is None or beat.owned):
        problem = "a member joins with an empty list of partitions"
    elif joins and beat.names is None and beat.regex is None:
        problem = "a member joins with its subscription"
    elif len(beat.names or ()) > _MAX_NAMES:
        problem = f"a member subscribes to at most {_MAX_NAMES} topics by name"
    if problem is not None:
        raise RefusedError(GroupError.INVALID_REQUEST, problem)
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        raise RefusedError(GroupError.UNSUPPORTED_ASSIGNOR, f"the assignors are {', '.join(ASSIGNORS)}")
