"""CREATE, ALTER and DROP USER: who may, what is stored, and when it counts."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from topics_service.api.access.auth import UNRESTRICTED, Principal, Role, Scope
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.access.roles import scopes_of
from topics_service.api.access.users import UserRow, Users
from topics_service.api.access.verifiers import Verifier, matches
from topics_service.api.sql.users import UserStatements
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.plans import AlterUser, CreateUser, DropUser
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family, StoreOpenError

DIFF = "topics.v1.TopicsService.Diff"
SETTINGS = UserRow("ops", Role.DBA, Verifier("", "", ""))


def caller(role: Role, *prefixes: str) -> Principal:
    return Principal("user:x", scopes_of(role), prefixes or None, role)


SYSTEM, DBA, SERVICE, TENANT = caller(Role.SYSTEM), caller(Role.DBA), caller(Role.SERVICE), caller(Role.DBA, "t.")


class World:
    """Statements on a store; `held` is set to hold back what is durable."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.engine = Engine(self.store, SystemClock())
        self.authorizer = Authorizer(users=Users([SETTINGS]))
        self.users = self.authorizer.users
        self.held: asyncio.Event | None = None
        self.statements = UserStatements(lambda: self.engine, self._settle, self.users, self.authorizer.passwords)
        self.statements.load(self.engine)

    async def _settle(self, ticket: int) -> None:
        assert ticket == self.engine.writer.written, "the ticket of the newest write"
        if self.held is not None:
            await self.held.wait()

    async def run(self, action: CreateUser | AlterUser | DropUser, principal: Principal = SYSTEM) -> None:
        await self.statements.apply(action, principal=principal)

    async def refused(self, action: CreateUser | AlterUser | DropUser, principal: Principal = SYSTEM) -> TopicsError:
        before = self.shown()
        with pytest.raises(TopicsError) as error:
            await self.run(action, principal)
        assert self.shown() == before, "a refused statement changes nothing"
        return error.value

    def shown(self) -> dict[str, UserRow]:
        return {row.name: row for row in self.users.rows()}

    def reopened(self) -> "World":
        return World(self.store)


async def test_users_are_made_changed_dropped_and_kept() -> None:
    world = World()
    await world.run(CreateUser("alice", "one: two, ü", "service"))
    await world.run(CreateUser("bob", "pw", "user"))
    for each in (world, world.reopened()):
        alice = each.shown()["alice"]
        assert (alice.role, alice.prefixes) == (Role.SERVICE, None)
        assert matches("one: two, ü".encode(), alice.verifier)
        assert alice.verifier.scram_sha_512.startswith("SCRAM-SHA-512$")
    await world.run(AlterUser("alice", role="dba"))
    await world.run(AlterUser("alice", password="three"))
    await world.run(DropUser("bob"))
    for each in (world, world.reopened()):
        assert set(each.shown()) == {"alice", "ops"}
        alice = each.shown()["alice"]
        assert alice.role is Role.DBA
        assert matches(b"three", alice.verifier)
    data = b"".join(value for _, value in world.store.scan(Family.TABLES, b"", None))
    assert b"three" not in data


async def test_what_is_there_and_what_is_not() -> None:
    world = World()
    await world.run(CreateUser("alice", "pw", "user"))
    error = await world.refused(CreateUser("alice", "pw", "dba"))
    assert (error.reason, (error.detail or {})["sqlstate"]) == (Reason.ALREADY_EXISTS, "42710")
    await world.run(CreateUser("alice", "other", "dba", if_not_exists=True))
    assert world.shown()["alice"].role is Role.USER
    for action in (DropUser("nobody"), AlterUser("nobody", role="user")):
        assert (await world.refused(action)).reason is Reason.USER_NOT_FOUND
    await world.run(DropUser("nobody", if_exists=True))


@pytest.mark.parametrize(
    "action",
    [
        CreateUser("", "pw", "user"),
        CreateUser("a:b", "pw", "user"),
        CreateUser("a\nb", "pw", "user"),
        CreateUser("x" * 129, "pw", "user"),
        CreateUser("a", "", "user"),
        CreateUser("a", "x" * 1025, "user"),
        CreateUser("a", "pw\0", "user"),
        CreateUser("a", "pw", "emperor"),
        AlterUser("alice", role="emperor"),
        AlterUser("alice", password=""),
    ],
)
async def test_values_that_are_refused(action: CreateUser | AlterUser) -> None:
    world = World()
    await world.run(CreateUser("alice", "pw", "user"))
    assert (await world.refused(action)).reason is Reason.INVALID_VALUE


async def test_users_of_the_settings_stay() -> None:
    world = World()
    for action in (DropUser("ops", if_exists=True), AlterUser("ops", password="x"), AlterUser("ops", role="user")):
        error = await world.refused(action)
        assert error.reason is Reason.FORBIDDEN
        assert "settings" in error.message
    assert (await world.refused(CreateUser("ops", "x", "user"))).reason is Reason.ALREADY_EXISTS


async def test_nobody_manages_users_with_more_rights() -> None:
    world = World()
    await world.run(CreateUser("root", "pw", "system"))
    await world.run(CreateUser("mine", "pw", "user"), TENANT)
    assert world.shown()["mine"].prefixes == ("t.",), "a new user is within the prefixes of who makes it"
    await world.run(AlterUser("mine", role="dba"), TENANT)
    for principal, action in (
        (SERVICE, CreateUser("x", "pw", "user")),
        (SERVICE, DropUser("nobody", if_exists=True)),
        (DBA, CreateUser("x", "pw", "system")),
        (DBA, DropUser("root")),
        (DBA, AlterUser("root", password="mine now")),
        (DBA, AlterUser("mine", role="system")),
        (TENANT, DropUser("root")),
        (TENANT, AlterUser("ops", role="user")),
        (Principal("0123456789ab", frozenset({Scope.ADMIN}), None), CreateUser("x", "pw", "user")),
    ):
        assert (await world.refused(action, principal)).reason is Reason.FORBIDDEN, (principal, action)
    await world.run(DropUser("mine"), TENANT)
    await world.run(DropUser("root"), UNRESTRICTED)


async def test_a_change_counts_when_it_is_durable() -> None:
    world = World()
    world.held = asyncio.Event()
    first = asyncio.ensure_future(world.run(CreateUser("alice", "pw", "user")))
    second = asyncio.ensure_future(world.run(AlterUser("alice", role="dba")))
    while not list(world.store.scan(Family.TABLES, b"user\0", b"user\1")):
        await asyncio.sleep(0.01)
    assert "alice" not in world.shown()
    assert not second.done(), "one after the other"
    world.held.set()
    await asyncio.gather(first, second)
    assert world.shown()["alice"].role is Role.DBA


async def test_calls_of_a_changed_user_end_but_for_the_statement_itself() -> None:
    world = World()
    await world.run(CreateUser("alice", "pw", "dba"))

    async def call(run: Callable[[Principal], Awaitable[None]]) -> str:
        known = world.users.find("alice")
        assert known is not None
        with world.authorizer.slot(DIFF, known[1]):
            await run(known[1])
        return "done"

    async def wait(_: Principal) -> None:
        await asyncio.Event().wait()

    other = asyncio.ensure_future(call(wait))
    await asyncio.sleep(0)
    assert await call(lambda principal: world.run(AlterUser("alice", password="new"), principal)) == "done"
    with pytest.raises(TopicsError, match="the user was removed or changed"):
        await other
    assert await call(lambda principal: world.run(DropUser("alice"), principal)) == "done"


@pytest.mark.parametrize("value", [b"\x01rubbish", b"\x02", b""])
def test_a_damaged_row_stops_the_start(value: bytes) -> None:
    store = MemoryStore()
    batch = store.batch()
    batch.put(Family.TABLES, b"user\0alice", value)
    store.write(batch)
    with pytest.raises(StoreOpenError, match=r"is damaged|of version"):
        World(store)
