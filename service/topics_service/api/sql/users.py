"""CREATE, ALTER and DROP USER: users as rows of the catalog, beside those of the settings."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from topics_service.api.access.auth import Principal, Role
from topics_service.api.access.passwords import Passwords
from topics_service.api.access.roles import require_user
from topics_service.api.access.users import UserRow, Users, check_name
from topics_service.api.access.verifiers import Verifier
from topics_service.api.sql.system import UserLine
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import plans, user_rows
from topics_service.engine.tables.errors import invalid_value, sql_error
from topics_service.storage.store import StoreOpenError

UserStatement = plans.CreateUser | plans.AlterUser | plans.DropUser
_USER_EXISTS: Final = "42710"
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(UserRow).decode


class UserStatements:
    """Runs the statements, one after the other. A user whom a caller with prefixes makes has the same prefixes."""

    def __init__(
        self, admit: Callable[[], Engine], settle: Callable[[int], Awaitable[None]], users: Users, passwords: Passwords
    ) -> None:
        self._admit = admit
        self._settle = settle
        self._users = users
        self._passwords = passwords
        self._turn = asyncio.Lock()
        self.spread: Callable[[], Awaitable[None]] | None = None
        """Tells other processes of a change, before it is acknowledged."""

    def load(self, engine: Engine) -> None:
        """Take over the rows in the store, once it is recovered. Raises StoreOpenError for a damaged one."""
        for name, row in user_rows.load(engine.writer):
            try:
                self._users.put_row(_decode(row))
            except (msgspec.MsgspecError, ValueError) as error:  # ValueError: text that is not UTF-8
                raise StoreOpenError(f'the row of the user "{name}" is damaged: {error}') from error

    def lines(self) -> Iterator[UserLine]:
        """All users, as their system table shows them."""
        for row in self._users.rows():
            yield UserLine(row.name, row.role.value, row.prefixes, self._users.is_read_only(row.name))

    async def apply(self, action: UserStatement, *, principal: Principal) -> None:
        """Change a user durably.

        Raises `forbidden`, also for a user of the settings, `already_exists`, `user_not_found`, `invalid_value`.
        """
        async with self._turn:
            self._admit()
            match action:
                case plans.CreateUser():
                    await self._create(action, principal)
                case plans.AlterUser():
                    await self._alter(action, principal)
                case plans.DropUser():
                    await self._drop(action, principal)
            if self.spread is not None:
                await self.spread()

    async def _create(self, action: plans.CreateUser, principal: Principal) -> None:
        role = _role(action.role)
        require_user(principal, role, principal.prefixes)
        try:
            check_name(action.name)
        except ValueError as error:
            raise invalid_value(str(error)) from None
        if self._users.find(action.name) is not None:
            if action.if_not_exists:
                return
            message = f'the user "{action.name}" exists'
            raise sql_error(Reason.ALREADY_EXISTS, message, sqlstate=_USER_EXISTS, user=action.name)
        await self._put(UserRow(action.name, role, await self._verifier(action.password), principal.prefixes))

    async def _alter(self, action: plans.AlterUser, principal: Principal) -> None:
        row = self._find(action.name, principal)
        if action.role is not None:
            role = _role(action.role)
            require_user(principal, role, row.prefixes)
            row = replace(row, role=role)
        if action.password is not None:
            row = replace(row, verifier=await self._verifier(action.password))
        await self._put(row)

    async def _drop(self, action: plans.DropUser, principal: Principal) -> None:
        if action.if_exists and self._users.find(action.name) is None:
            require_user(principal, Role.USER, principal.prefixes)
            return
        self._find(action.name, principal)
        await self._settle(user_rows.put(self._admit().writer, action.name, None))
        self._users.remove_row(action.name)

    def _find(self, name: str, principal: Principal) -> UserRow:
        """The user that the caller may change."""
        found = self._users.find(name)
        if found is None:
            require_user(principal, Role.USER, principal.prefixes)
            raise sql_error(Reason.USER_NOT_FOUND, f'the user "{name}" does not exist', user=name)
        row = found[0]
        require_user(principal, row.role, row.prefixes)
        if self._users.is_read_only(name):
            raise sql_error(Reason.FORBIDDEN, f'the user "{name}" is one of the settings: change it there', user=name)
        return row

    async def _put(self, row: UserRow) -> None:
        await self._settle(user_rows.put(self._admit().writer, row.name, _encode(row)))
        self._users.put_row(row)

    async def _verifier(self, password: str) -> Verifier:
        try:
            return await self._passwords.verifier(password)
        except ValueError as error:
            raise invalid_value(str(error)) from None


def _role(word: str) -> Role:
    try:
        return Role(word.lower())
    except ValueError:
        raise _unknown_role(word) from None


def _unknown_role(word: str) -> TopicsError:
    return invalid_value(f'"{word}" is no role: it is one of {", ".join(role.value for role in Role)}')
