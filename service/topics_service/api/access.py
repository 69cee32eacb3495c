"""Who may call what, once for every door: the gate that every call passes. `access_rules` has the rule of each RPC.

A door refuses a call in this order: `unauthorized` (`Gate.identify`), too many calls of one key (`Gate.slot`),
`forbidden` by scope and by name (`authorize`), and only then for whatever else is wrong with it. What depends on the
decoded request is checked by `check_put` and `check_append`.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from types import TracebackType
from typing import Any, Final

from topics_service.api.access_calls import Call, Running, gone
from topics_service.api.access_rules import (
    NO_GROUP_ROUTE,
    NO_ROUTE,
    NO_ROUTER_ROUTE,
    NO_TOPIC_ROUTE,
    PROBES,
    RULES,
    Rule,
    rule_of,
)
from topics_service.api.audit import current_call
from topics_service.api.auth import ANYONE, NOBODY, KeyRing, Principal, Scope, read_bearer
from topics_service.api.quota import KeyLimits, Quotas, Usage
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, ConfigInput

__all__ = [
    "NO_GROUP_ROUTE",
    "NO_ROUTE",
    "NO_ROUTER_ROUTE",
    "NO_TOPIC_ROUTE",
    "PROBES",
    "RULES",
    "Gate",
    "Rule",
    "authorize",
    "check_append",
    "check_names",
    "check_owned",
    "check_put",
    "check_subscription",
    "rule_of",
]


class _Known:
    """The keys of a gate, and of those made of it. `principals`, by `key_id`: None for those there were at first."""

    def __init__(self, keys: KeyRing | None) -> None:
        self.keys = keys
        self.principals: Mapping[str, Principal] | None = None


class Gate:
    """Tells callers apart by their keys and counts what each key holds (`quotas`).

    The keys may be exchanged while it is used: the calls of a key that goes, or that may no longer do what it could,
    are ended at once (`renew`).
    """

    def __init__(
        self,
        keys: KeyRing | None = None,
        *,
        probe_auth: bool = False,
        max_inflight: int = 1000,
        quotas: Quotas | None = None,
    ) -> None:
        """`keys` None lets everyone in. `probe_auth` asks for a key on the probes too; `max_inflight` 0 is no cap.

        `quotas` are the limits of keys; without them there is none but `max_inflight`.
        """
        self._known = _Known(keys)
        self._probe_auth = probe_auth
        self.quotas = quotas or Quotas(KeyLimits(in_flight=max_inflight))
        self._running = Running()
        self._cuts = False

    def identify(self, rpc: str, authorization: bytes | None) -> Principal:
        """Who calls `rpc`, by the Authorization header. Raises `unauthorized`, alike for no key and a wrong one."""
        keys = self._known.keys
        if keys is None:
            return ANYONE
        if rpc in PROBES and not self._probe_auth:
            return NOBODY
        token = read_bearer(authorization)
        principal = None if token is None else keys.find(token)
        if principal is None:
            raise TopicsError(Reason.UNAUTHORIZED, "missing or unknown API key")
        if self._cuts:
            self._running.add_task(principal)
        return principal

    def find(self, password: bytes) -> Principal | None:
        """Who has this key; everyone, whatever it is, where no key is asked for. None for an unknown key."""
        keys = self._known.keys
        return ANYONE if keys is None else keys.find(password)

    @property
    def open(self) -> bool:
        """Whether no key is asked for."""
        return self._known.keys is None

    def renew(self, keys: KeyRing, principals: Collection[Principal]) -> None:
        """Take these keys, whose owners are `principals`, in place of the old ones.

        What runs for others ends: calls within `slot` with `unauthorized`, tasks that a `cutting` gate let in by being
        cancelled.
        """
        self._known.keys = keys
        self._known.principals = {principal.key_id: principal for principal in principals}
        self._running.end_all_but(frozenset(principals))

    def knows(self, principal: Principal) -> bool:
        """Whether the key that was found to be `principal` is still good for that."""
        principals = self._known.principals
        if principals is None or not principal.key_id:
            return True
        known = principals.get(principal.key_id)
        return known is principal or known == principal

    def ends_with_key(self, principal: Principal, running: "asyncio.Future[Any]") -> None:
        """Cancel what runs for `principal` when the key goes."""
        if principal.key_id:
            self._running.add(principal, running)

    def cutting(self) -> "Gate":
        """The same gate for a door that can't tell a client why its call ends: the task is cancelled.

        That is the task that calls `identify`, which must do nothing but serve this call.
        """
        made = copy(self)
        made._cuts = True
        return made

    def slot(self, rpc: str, principal: Principal) -> AbstractContextManager[None]:
        """What a call holds while it runs: one of the key's slots, if it takes any, and that its key is good.

        Entering raises `throttled` when no slot is free, and `unauthorized` when the key has gone; leaving raises
        `unauthorized` if it went meanwhile, which ends what the task that entered waits for.
        """
        if not principal.key_id:
            return _FREE
        usage = self.quotas.of(principal.key_id) if rule_of(rpc).slot else None
        return _Hold(self, principal, usage, None if self._cuts else self._running.call(principal))

    def while_known(self, principal: Principal) -> AbstractContextManager[None]:
        """As `slot`, for a call whose slot is held already."""
        return _Hold(self, principal, None, self._running.call(principal)) if principal.key_id else _FREE

    def acquire(self, key_id: str) -> bool:
        """Take one of the key's slots, which must be released; False when none is free."""
        usage = self.quotas.of(key_id)
        if not usage.may_start():
            return False
        usage.in_flight += 1
        return True

    def release(self, key_id: str) -> None:
        """Give a slot back."""
        self.quotas.of(key_id).in_flight -= 1


class _Hold:
    """What `Gate.slot` returns. No generator: each request with a key passes this."""

    __slots__ = ("_call", "_gate", "_principal", "_usage")

    def __init__(self, gate: Gate, principal: Principal, usage: Usage | None, call: Call | None) -> None:
        """`usage` is that of the key, if the call takes a slot."""
        self._gate = gate
        self._principal = principal
        self._usage = usage
        self._call = call

    def __enter__(self) -> None:
        usage, call = self._usage, self._call
        if usage is not None:
            usage.take_request()
        if call is None:
            return
        if not self._gate.knows(self._principal):
            if usage is not None:
                usage.in_flight -= 1
            raise gone()
        call.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._usage is not None:
            self._usage.in_flight -= 1
        if self._call is not None:
            self._call.__exit__(kind, error, trace)


_FREE: Final = nullcontext()


def authorize(principal: Principal, rpc: str, name: str) -> None:
    """Raise `forbidden` unless the caller may call `rpc` upon `name`, the value of the rule's field.

    The audit log, where there is one, learns who calls, and who was refused.
    """
    call = current_call.get()
    if call is not None:
        call.principal = principal
    rule = RULES.get(rpc)
    if rule is not None and rule.scopes <= principal.scopes:
        if rule.whole:
            if principal.prefixes is None:
                return
        elif not rule.field or principal.allows_name(name):
            return
    error = _refusal(principal, rpc)
    if call is not None:
        call.refused(rpc, name, error)
    raise error


def _refusal(principal: Principal, rpc: str) -> TopicsError:
    rule = rule_of(rpc)
    if not rule.scopes <= principal.scopes:
        missing = sorted(scope.value for scope in rule.scopes - principal.scopes)
        return _forbidden(f"the API key lacks {' and '.join(missing)} scope")
    if rule.whole:
        return _forbidden("this is about every topic: it takes a key without prefixes")
    return _forbidden("the name is outside the prefixes of the API key")


def check_names(principal: Principal, names: Iterable[str]) -> None:
    """Raise `forbidden`, with the first name at fault, unless the caller may touch every name in a request's body."""
    for name in names:
        if not principal.allows_name(name):
            raise _forbidden("a name is outside the prefixes of the API key", name)


def check_owned(principal: Principal, names: Iterable[str]) -> None:
    """As `check_names`, for names that the caller did not give: the refusal tells none of them."""
    if not all(map(principal.allows_name, names)):
        raise _forbidden("the key may not access the underlying topics")


def check_subscription(principal: Principal, keys: Iterable[str]) -> None:
    """Raise `forbidden` unless the caller may watch every topic that these names and patterns (`tenant42:*`) mean."""
    for key in keys:
        if not principal.allows_name(key.removesuffix("*")):
            raise _forbidden("a name is outside the prefixes of the API key", key)


def check_put(principal: Principal, config: ConfigInput) -> None:
    """Raise `forbidden` unless the caller may give a topic this config: jobs must not leave its names."""
    if config.dead_letter is not None:
        check_names(principal, (config.dead_letter,))
    if config.retain_until_acked_by:
        check_names(principal, config.retain_until_acked_by)


def check_append(principal: Principal, request: AppendRequest, *, exists: bool) -> None:
    """Raise `forbidden` unless the caller may make this write; the door has asked for the `write` scope.

    A config on a write to a topic that does not exist is a PutTopic: it takes the `admin` scope as well.
    """
    check_names(principal, (request.topic,))
    if request.config is None:
        return
    if not exists and not principal.allows(Scope.ADMIN):
        raise _forbidden("creating a topic with a config takes admin scope", request.topic)
    check_put(principal, request.config)


def _forbidden(message: str, topic: str | None = None) -> TopicsError:
    return TopicsError(Reason.FORBIDDEN, message, None if topic is None else {"topic": topic})
