"""Capabilities of callers in SQL: those of roles, and of the scopes of API keys. Pure.

require(principal, Capability.INSERT, ["chat.messages"])
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

from topics_service.api.access.auth import ALL_SCOPES, Principal, Role, Scope, kind_of
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.errors import sql_error


class Capability(Enum):
    """Something that a statement or an SQL call needs."""

    SELECT = "read tables"
    """Also system tables of names, live queries, EXPLAIN, DESCRIBE and SHOW."""
    INSERT = "insert rows"
    UPDATE = "update rows"
    """Also the rows of ON CONFLICT DO UPDATE."""
    DELETE = "delete rows"
    CONSUME = "consume topics"
    """Also acknowledge, and read `topics."name"`."""
    DEFINE = "define tables and topics"
    """CREATE and ALTER of tables, topics, routes, aliases, namespaces and indexes."""
    DEFINE_DROP = "drop or empty tables and topics"
    """DROP, TRUNCATE and CLEAR, DROP SOURCE, and other statements that end what others rely on."""
    INSPECT = "inspect the server"
    """System tables about the server and other callers: users, settings, live queries, transactions."""
    USERS = "manage users"
    """CREATE, ALTER and DROP USER, within the bounds of `require_user`."""


_ROWS: Final = frozenset({Capability.SELECT, Capability.INSERT, Capability.UPDATE, Capability.DELETE})
_SERVICE: Final = _ROWS | {Capability.CONSUME}
_ALL: Final = frozenset(Capability)

_OF_ROLE: Final[Mapping[Role, frozenset[Capability]]] = {
    Role.USER: _ROWS,
    Role.SERVICE: _SERVICE,
    Role.DBA: _ALL,
    Role.SYSTEM: _ALL,
}
_USER_WHO_CONSUMES: Final = _ROWS | {Capability.CONSUME}

_READ: Final = frozenset({Scope.READ})
_SCOPES: Final[Mapping[Capability, frozenset[Scope]]] = {
    Capability.SELECT: _READ,
    Capability.INSERT: _READ | {Scope.WRITE},
    Capability.UPDATE: _READ | {Scope.WRITE},
    Capability.DELETE: _READ | {Scope.WRITE, Scope.DELETE},
    Capability.CONSUME: _READ,
    Capability.DEFINE: frozenset({Scope.ADMIN}),
    Capability.DEFINE_DROP: frozenset({Scope.ADMIN, Scope.DELETE}),
    Capability.INSPECT: _READ | {Scope.ADMIN},
    Capability.USERS: ALL_SCOPES,
}
"""The scopes that a key needs. A key with fewer scopes could otherwise make a user with more."""

_RANKS: Final = {role: rank for rank, role in enumerate(Role)}


def scopes_of(role: Role, *, user_consumes: bool = False) -> frozenset[Scope]:
    """The scopes of a role on calls that are not SQL. `user_consumes` lets the role `user` read and consume topics."""
    if role is Role.USER:
        return _READ if user_consumes else frozenset()
    return _READ | {Scope.WRITE} if role is Role.SERVICE else ALL_SCOPES


def role_of(principal: Principal) -> Role:
    """The role of a caller; that of a key is the highest one whose rights it has, or `user`.

    A key with every scope is `dba`, or `system` if it may also access every name.
    """
    if principal.role is not None:
        return principal.role
    if principal.scopes == ALL_SCOPES:
        return Role.SYSTEM if principal.prefixes is None else Role.DBA
    return Role.SERVICE if {Scope.READ, Scope.WRITE} <= principal.scopes else Role.USER


def has(principal: Principal, capability: Capability) -> bool:
    """True if the caller has the capability."""
    role = principal.role
    if role is None:
        return _SCOPES[capability] <= principal.scopes
    if role is Role.USER and Scope.READ in principal.scopes:
        return capability in _USER_WHO_CONSUMES
    return capability in _OF_ROLE[role]


def require(principal: Principal, capability: Capability, names: Iterable[str] = ()) -> None:
    """Raise `forbidden` unless the caller has the capability and may access every one of `names`.

    Names are those of tables with their namespace (`chat.messages`), topics and groups, as the caller gave them: the
    error repeats the first that is denied, as `detail.topic`.
    """
    if not has(principal, capability):
        raise _forbidden(_refusal(principal, capability))
    if principal.prefixes is None:
        return
    for name in names:
        if not principal.allows_name(name):
            raise _forbidden(f"a name is outside the prefixes of the {kind_of(principal)}", topic=name)


def require_user(principal: Principal, role: Role, prefixes: tuple[str, ...] | None) -> None:
    """Raise `forbidden` unless the caller may create, change or drop a user with this role and these prefixes.

    Call it for the user as it is and as it is to be. Nobody may manage users with more rights than their own.
    """
    require(principal, Capability.USERS)
    own = role_of(principal)
    if _RANKS[role] > _RANKS[own]:
        raise _forbidden(f"the role {own.value} may not manage users with the role {role.value}")
    if principal.prefixes is not None and not (prefixes and all(map(principal.allows_name, prefixes))):
        raise _forbidden(f"the user's prefixes are not within those of the {kind_of(principal)}")


def _refusal(principal: Principal, capability: Capability) -> str:
    if principal.role is not None:
        return f"the role {principal.role.value} may not {capability.value}"
    missing = sorted(scope.value for scope in _SCOPES[capability] - principal.scopes)
    return f"the API key lacks {' and '.join(missing)} scope: it may not {capability.value}"


def _forbidden(message: str, **facts: Any) -> TopicsError:
    return sql_error(Reason.FORBIDDEN, message, **facts)
