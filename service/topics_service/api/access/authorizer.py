"""Authentication and authorization of calls, for every protocol. The rule of each RPC is in `rules`.

Every protocol checks a call in this order: `unauthorized` (`Authorizer.authenticate`), too many calls of one key
(`Authorizer.slot`), `forbidden` by scope and by name (`authorize`), and only then everything else. `check_put` and
`check_append` check the decoded request.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from topics_service.api.access.auth import (
    ANONYMOUS,
    UNRESTRICTED,
    KeyRing,
    Principal,
    Scope,
    kind_of,
    read_basic,
    read_bearer,
)
from topics_service.api.access.passwords import Passwords, UnverifiedPasswordError
from topics_service.api.access.quota import KeyLimits, Quotas, Usage
from topics_service.api.access.revocation import RevocableCall, RevocableCalls, revoked
from topics_service.api.access.rules import (
    NO_GROUP_ROUTE,
    NO_ROUTE,
    NO_ROUTER_ROUTE,
    NO_TOPIC_ROUTE,
    PROBES,
    RULES,
    Rule,
    rule_of,
)
from topics_service.api.access.users import Users
from topics_service.api.audit import ACTIONS
from topics_service.api.observers import NO_OBSERVERS, Observers
from topics_service.api.request_context import current_request
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, ConfigInput

if TYPE_CHECKING:
    from topics_service.api.access.tokens import Tokens  # imports a library that few servers need

__all__ = [
    "NO_GROUP_ROUTE",
    "NO_ROUTE",
    "NO_ROUTER_ROUTE",
    "NO_TOPIC_ROUTE",
    "PROBES",
    "RULES",
    "Authorizer",
    "Rule",
    "authorize",
    "check_append",
    "check_names",
    "check_owned",
    "check_put",
    "check_subscription",
    "rule_of",
]


class _Credentials:
    """The credentials of an authorizer and its clones. `principals` is by `key_id`, None until the keys are first
    replaced."""

    def __init__(self, keys: KeyRing | None, users: Users, tokens: "Tokens | None") -> None:
        self.keys = keys
        self.principals: Mapping[str, Principal] | None = None
        self.users = users
        self.tokens = tokens
        self.open: Final = keys is None and tokens is None and not users.are_configured
        self.keys_only: Final = tokens is None and not users.are_configured


class Authorizer:
    """Identifies callers by API key, password or token, and accounts for the resources of each (`quotas`).

    Authentication is disabled for good if there are neither keys nor users of the settings nor `tokens`. All three can
    be replaced at run time: calls of a caller that was removed or changed end at once, and those of a token that
    expires.
    """

    def __init__(
        self,
        keys: KeyRing | None = None,
        *,
        users: Users | None = None,
        tokens: "Tokens | None" = None,
        probe_auth: bool = False,
        max_inflight: int = 1000,
        quotas: Quotas | None = None,
    ) -> None:
        """`probe_auth` requires a credential for the probes too.

        `quotas` are the limits of keys; if unset, the only limit is `max_inflight`, where 0 means unlimited.
        """
        self.users: Final = users or Users()
        self.passwords: Final = Passwords(self.users)
        self._current = _Credentials(keys, self.users, tokens)
        self._probe_auth = probe_auth
        self.quotas = quotas or Quotas(KeyLimits(in_flight=max_inflight))
        self._running = RevocableCalls()
        self._cancels = False
        self.users.on_change = self._end_invalid

    async def authenticate(self, rpc: str, authorization: bytes | None) -> Principal:
        """Identify the caller by the Authorization header, and wait for the check of a password.

        Raises `unauthorized`, alike for missing and wrong credentials, and `throttled` after too many wrong passwords.
        """
        try:
            return self.identify(rpc, authorization)
        except UnverifiedPasswordError as unverified:
            return await self.verify(unverified)

    def identify(self, rpc: str, authorization: bytes | None) -> Principal:
        """Identify the caller as `authenticate` does, or raise UnverifiedPasswordError if that has to wait."""
        current = self._current
        if current.open:
            return UNRESTRICTED
        if rpc in PROBES and not self._probe_auth:
            return ANONYMOUS
        token = read_bearer(authorization)
        if token is not None:
            principal = self._find_bearer(token)
        elif authorization is not None and (basic := read_basic(authorization)) is not None:
            principal = self.passwords.find(*basic)
        else:
            principal = None
        return self._admitted(principal)

    async def verify(self, unverified: UnverifiedPasswordError, peer: str | None = None) -> Principal:
        """Identify the user once its password is checked. Raises as `authenticate`.

        `peer` is the client's address, that of the current request if unset.
        """
        if peer is None:
            request = current_request.get()
            peer = "" if request is None else request.peer
        return self._admitted(await self.passwords.verify(unverified.name, unverified.password, peer))

    def find(self, user: bytes, password: bytes) -> Principal | None:
        """Find the caller that gives its credential as a password, None if it is wrong.

        That is an API key or a token, whatever the user, or the password of a user. Raises UnverifiedPasswordError.
        Without authentication every password has the unrestricted caller.
        """
        if self._current.open:
            return UNRESTRICTED
        return self._find_bearer(password) or self.passwords.find(user, password)

    def find_bearer(self, token: bytes) -> Principal | None:
        """Find the caller of an API key or a token, None if it is wrong."""
        return UNRESTRICTED if self._current.open else self._find_bearer(token)

    def known(self) -> list[Principal]:
        """The owners of the keys, and the users; callers with tokens are not known before they come."""
        keys = self._current.keys
        return [*(() if keys is None else keys.owners()), *self.users.principals()]

    @property
    def open(self) -> bool:
        """True if authentication is disabled."""
        return self._current.open

    @property
    def keys_only(self) -> bool:
        """True if there are neither users of the settings nor tokens."""
        return self._current.keys_only

    @property
    def takes_keys(self) -> bool:
        """True if a password may be an API key or a token."""
        return self._current.keys is not None or self._current.tokens is not None

    def replace_keys(self, keys: KeyRing, principals: Collection[Principal]) -> None:
        """Replace the keys with `keys`, whose owners are `principals`.

        Calls of other keys end: those within `slot` with `unauthorized`, and tasks that a `cancelling` authorizer let
        in by cancellation.
        """
        self._current.keys = keys
        self._current.principals = {principal.key_id: principal for principal in principals}
        self._end_invalid()

    def replace_tokens(self, tokens: "Tokens") -> None:
        """Replace the key of tokens. Calls with a token of another key end."""
        self._current.tokens = tokens
        self._end_invalid()

    def is_valid(self, principal: Principal) -> bool:
        """True while the key or user exists unchanged, or the token has not expired."""
        current = self._current
        if principal.role is not None:
            if principal.expires is not None:
                return current.tokens is not None and current.tokens.is_valid(principal)
            known = current.users.find(principal.key_id.removeprefix("user:"))
            return known is not None and known[1] == principal
        principals = current.principals
        if principals is None or not principal.key_id:
            return True
        owner = principals.get(principal.key_id)
        return owner is principal or owner == principal

    def cancel_on_revocation(self, principal: Principal, running: "asyncio.Future[Any]") -> None:
        """Cancel the future when the principal is no longer valid."""
        if principal.key_id:
            self._running.add(principal, running)

    def _find_bearer(self, token: bytes) -> Principal | None:
        current = self._current
        if current.tokens is not None and token.count(b".") == 2:
            principal = current.tokens.find(token)
            if principal is not None:
                return principal
        return None if current.keys is None else current.keys.find(token)

    def _admitted(self, principal: Principal | None) -> Principal:
        if principal is None:
            what = "unknown API key" if self.keys_only else "wrong credentials"
            raise TopicsError(Reason.UNAUTHORIZED, f"missing or {what}")
        if self._cancels:
            self._running.add_task(principal)
        return principal

    def _end_invalid(self) -> None:
        self._running.cancel_unless(self.is_valid)

    def cancelling(self) -> "Authorizer":
        """Return a clone for protocols that can't report why a call ends: it cancels the task instead.

        This is the task that calls `authenticate`, which must serve only this call.
        """
        clone = copy(self)
        clone._cancels = True
        return clone

    def slot(self, rpc: str, principal: Principal) -> AbstractContextManager[object]:
        """Return a context manager that holds a slot of the key, if the call takes one, while the call runs.

        Entering raises `throttled` when no slot is free, and `unauthorized` when the key was revoked. If it is revoked
        later, the entering task is cancelled, and leaving raises `unauthorized`.
        """
        if not principal.key_id:
            return _NO_SLOT
        usage = self.quotas.for_key(principal.key_id) if rule_of(rpc).slot else None
        return _Slot(self, principal, usage, None if self._cancels else self._running.call(principal))

    def admits(self, rpc: str, principal: Principal) -> bool:
        """Return whether `slot` could be entered: for a call that ends in the same turn of the event loop."""
        key_id = principal.key_id
        if not key_id:
            return True
        has_slot = not rule_of(rpc).slot or self.quotas.for_key(key_id).has_slot()
        return has_slot and (self._cancels or self.is_valid(principal))

    def while_valid(self, principal: Principal) -> AbstractContextManager[RevocableCall | None]:
        """Return a context manager like `slot`, for a call that already holds its slot.

        A stream tells its value when it sends; that is None if nothing can revoke the call.
        """
        return _Slot(self, principal, None, self._running.call(principal)) if principal.key_id else _NO_SLOT

    def acquire(self, key_id: str) -> bool:
        """Take a slot of the key, to be released later; False when none is free."""
        usage = self.quotas.for_key(key_id)
        if not usage.has_slot():
            return False
        usage.in_flight += 1
        return True

    def release(self, key_id: str) -> None:
        """Release a slot."""
        self.quotas.for_key(key_id).in_flight -= 1


class _Slot:
    """Context manager of `Authorizer.slot`. A class, as a generator would be slower for each request with a key."""

    __slots__ = ("_authorizer", "_call", "_principal", "_usage")

    def __init__(
        self, authorizer: Authorizer, principal: Principal, usage: Usage | None, call: RevocableCall | None
    ) -> None:
        """`usage` is the key's, or None if the call takes no slot."""
        self._authorizer = authorizer
        self._principal = principal
        self._usage = usage
        self._call = call

    def __enter__(self) -> RevocableCall | None:
        usage, call = self._usage, self._call
        if usage is not None:
            usage.take_request()
        if call is None:
            return None
        if not self._authorizer.is_valid(self._principal):
            if usage is not None:
                usage.in_flight -= 1
            raise revoked(self._principal)
        return call.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._usage is not None:
            self._usage.in_flight -= 1
        if self._call is not None:
            self._call.__exit__(kind, error, trace)


_NO_SLOT: Final = nullcontext()


def authorize(principal: Principal, rpc: str, name: str, observers: Observers = NO_OBSERVERS) -> None:
    """Raise `forbidden` unless the caller may call `rpc` on `name`, the value of the rule's field.

    The current request becomes the caller's. Refused changes are reported to the observers.
    """
    request = current_request.get()
    if request is not None:
        request.principal = principal
    rule = RULES.get(rpc)
    if rule is not None and rule.scopes <= principal.scopes:
        if rule.whole:
            if principal.prefixes is None:
                return
        elif not rule.field or principal.allows_name(name):
            return
    error = _refusal(principal, rpc)
    if (action := ACTIONS.get(rpc)) is not None:
        observers.note(action[0], {action[1]: name or None}, principal, error)
    raise error


def _refusal(principal: Principal, rpc: str) -> TopicsError:
    rule = rule_of(rpc)
    if not rule.scopes <= principal.scopes:
        missing = sorted(scope.value for scope in rule.scopes - principal.scopes)
        who = "API key" if principal.role is None else f"role {principal.role.value}"
        return _forbidden(f"the {who} lacks {' and '.join(missing)} scope")
    if rule.whole:
        return _forbidden(f"this call spans all topics and requires {_a_key(principal)} without a prefix restriction")
    return _forbidden(f"the name is outside the prefixes of the {kind_of(principal)}")


def check_names(principal: Principal, names: Iterable[str]) -> None:
    """Raise `forbidden`, with the first denied name, unless the caller may access every name in a request body."""
    for name in names:
        if not principal.allows_name(name):
            raise _forbidden(f"a name is outside the prefixes of the {kind_of(principal)}", name)


def check_owned(principal: Principal, names: Iterable[str]) -> None:
    """Check names that the caller did not give: like `check_names`, but the error discloses none of them."""
    if not all(map(principal.allows_name, names)):
        raise _forbidden(f"the {kind_of(principal)} may not access the underlying topics")


def check_subscription(principal: Principal, keys: Iterable[str]) -> None:
    """Raise `forbidden` unless the caller may watch every topic matched by these names and patterns (`tenant42:*`)."""
    for key in keys:
        if not principal.allows_name(key.removesuffix("*")):
            raise _forbidden(f"a name is outside the prefixes of the {kind_of(principal)}", key)


def check_put(principal: Principal, config: ConfigInput) -> None:
    """Raise `forbidden` unless the caller may access every name in a topic's config: jobs stay in its prefixes."""
    if config.dead_letter is not None:
        check_names(principal, (config.dead_letter,))
    if config.retain_until_acked_by:
        check_names(principal, config.retain_until_acked_by)


def check_append(principal: Principal, request: AppendRequest, *, exists: bool) -> None:
    """Raise `forbidden` unless the caller may make this write; the `write` scope was checked before.

    A write that creates its topic with a config also requires the `admin` scope, as PutTopic does.
    """
    check_names(principal, (request.topic,))
    if request.config is None:
        return
    if not exists and not principal.allows(Scope.ADMIN):
        raise _forbidden("creating a topic with a config requires admin scope", request.topic)
    check_put(principal, request.config)


def _a_key(principal: Principal) -> str:
    return "a key" if principal.role is None else f"a {kind_of(principal)}"


def _forbidden(message: str, topic: str | None = None) -> TopicsError:
    return TopicsError(Reason.FORBIDDEN, message, None if topic is None else {"topic": topic})
