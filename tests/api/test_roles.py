"""Rights of roles and keys in SQL, and over which users."""

import pytest

from topics_service.api.access.auth import ALL_SCOPES, ANONYMOUS, UNRESTRICTED, Principal, Role, Scope
from topics_service.api.access.roles import Capability, has, require, require_user, role_of, scopes_of
from topics_service.engine.errors import Reason, TopicsError

R, W, D, A = Scope.READ, Scope.WRITE, Scope.DELETE, Scope.ADMIN
ROWS = {Capability.SELECT, Capability.INSERT, Capability.UPDATE, Capability.DELETE}
EVERYTHING = set(Capability)


def user(role: Role, *prefixes: str, consumes: bool = False) -> Principal:
    return Principal("user:x", scopes_of(role, user_consumes=consumes), prefixes or None, role)


def key(*scopes: Scope, prefixes: tuple[str, ...] | None = None) -> Principal:
    return Principal("0123456789ab", frozenset(scopes), prefixes)


def capabilities(principal: Principal) -> set[Capability]:
    return {each for each in Capability if has(principal, each)}


@pytest.mark.parametrize(
    ("principal", "allowed"),
    [
        (user(Role.USER), ROWS),
        (user(Role.USER, consumes=True), ROWS | {Capability.CONSUME}),
        (user(Role.SERVICE), ROWS | {Capability.CONSUME}),
        (user(Role.DBA), EVERYTHING),
        (user(Role.SYSTEM), EVERYTHING),
        (key(R), {Capability.SELECT, Capability.CONSUME}),
        (key(W), set()),
        (key(R, W), {Capability.SELECT, Capability.INSERT, Capability.UPDATE, Capability.CONSUME}),
        (key(R, W, D), ROWS | {Capability.CONSUME}),
        (key(A), {Capability.DEFINE}),
        (key(R, W, A), EVERYTHING - {Capability.DELETE, Capability.DEFINE_DROP, Capability.USERS}),
        (key(R, W, D, A), EVERYTHING),
        (UNRESTRICTED, EVERYTHING),
        (ANONYMOUS, set()),
    ],
)
def test_what_each_may_do(principal: Principal, allowed: set[Capability]) -> None:
    assert capabilities(principal) == allowed
    for each in EVERYTHING - allowed:
        with pytest.raises(TopicsError) as refused:
            require(principal, each)
        assert refused.value.reason is Reason.FORBIDDEN
        assert refused.value.detail == {"sqlstate": "42501"}


def test_what_a_role_may_do_outside_of_sql() -> None:
    assert scopes_of(Role.USER) == frozenset(), "tables are in SQL only, and topics are not for users"
    assert scopes_of(Role.USER, user_consumes=True) == {R}
    assert scopes_of(Role.SERVICE) == scopes_of(Role.SERVICE, user_consumes=True) == {R, W}
    assert scopes_of(Role.DBA) == scopes_of(Role.SYSTEM) == ALL_SCOPES


def test_the_role_of_a_key() -> None:
    assert role_of(UNRESTRICTED) is role_of(key(*Scope)) is Role.SYSTEM
    assert role_of(key(*Scope, prefixes=("a.",))) is Role.DBA
    assert role_of(key(R, W)) is role_of(key(R, W, A)) is Role.SERVICE
    assert role_of(key(R)) is role_of(key(A)) is Role.USER


@pytest.mark.parametrize("principal", [user(Role.SERVICE, "chat.", "app."), key(R, W, prefixes=("chat.", "app."))])
def test_names_are_within_the_prefixes(principal: Principal) -> None:
    require(principal, Capability.INSERT, ["chat.messages", "app.log"])
    with pytest.raises(TopicsError) as refused:
        require(principal, Capability.INSERT, ["chat.messages", "other.t", "third.t"])
    assert refused.value.reason is Reason.FORBIDDEN
    assert refused.value.detail == {"topic": "other.t", "sqlstate": "42501"}
    with pytest.raises(TopicsError, match="may not define"):
        require(principal, Capability.DEFINE, ["other.t"])


@pytest.mark.parametrize(
    ("principal", "role", "prefixes", "allowed"),
    [
        (user(Role.SYSTEM), Role.SYSTEM, None, True),
        (user(Role.DBA), Role.DBA, None, True),
        (user(Role.DBA), Role.SYSTEM, None, False),
        (user(Role.SERVICE), Role.USER, None, False),
        (user(Role.DBA, "a."), Role.DBA, ("a.", "a.b."), True),
        (user(Role.DBA, "a."), Role.USER, None, False),
        (user(Role.DBA, "a."), Role.USER, ("a.", "b."), False),
        (user(Role.DBA, "a."), Role.USER, (), False),
        (user(Role.SYSTEM, "a."), Role.SYSTEM, None, False),
        (UNRESTRICTED, Role.SYSTEM, None, True),
        (key(*Scope, prefixes=("a.",)), Role.DBA, ("a.",), True),
        (key(*Scope, prefixes=("a.",)), Role.SYSTEM, ("a.",), False),
        (key(A), Role.USER, None, False),
    ],
)
def test_nobody_manages_users_with_more_rights(
    principal: Principal, role: Role, prefixes: tuple[str, ...] | None, allowed: bool
) -> None:
    if allowed:
        require_user(principal, role, prefixes)
    else:
        with pytest.raises(TopicsError) as refused:
            require_user(principal, role, prefixes)
        assert refused.value.reason is Reason.FORBIDDEN
