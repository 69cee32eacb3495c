"""CREATE, ALTER and DROP USER: rows of users in the store, and the users that they are."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from topics_service.api.access.auth import Principal, Role
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.access.roles import Capability, require, require_user
from topics_service.api.access.users import UserRow, check_name
from topics_service.api.access.verifiers import Verifier
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.errors import invalid_value, sql_error
from topics_service.engine.tables.user_rows import UserRows
from topics_service.storage.store import StoreOpenError

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(UserRow).decode


class UserStatements:
    """Implements UserCalls: changes of the users of an authorizer, one after the other.

    A change counts once it is durable. Calls of a user that is changed or dropped end, except the one that does it.
    """

    def __init__(self, rows: UserRows, authorizer: Authorizer, settle: Callable[[int], Awaitable[None]]) -> None:
        """`settle` waits until a ticket is durable."""
        self._rows = rows
        self._users = authorizer.users
        self._passwords = authorizer.passwords
        self._settle = settle
        self._changing = asyncio.Lock()

    def load(self) -> None:
        """Take over the rows in the store. Raises StoreOpenError for a damaged one, without its content."""
        for value in self._rows.load():
            try:
                row = _decode(value)
            except msgspec.MsgspecError:
                raise StoreOpenError("the definition of a user is damaged") from None
            self._users.put_row(row)

    async def apply(self, action: plans.CreateUser | plans.AlterUser | plans.DropUser, *, principal: Principal) -> None:
        """Change a user durably. Raises `forbidden`, `already_exists`, `user_not_found`, `invalid_value`."""
        require(principal, Capability.USERS)
        async with self._changing:
            match action:
                case plans.CreateUser():
                    await self._create(action, principal)
                case plans.AlterUser():
                    await self._alter(action, principal)
                case plans.DropUser():
                    await self._drop(action, principal)

    async def _create(self, action: plans.CreateUser, principal: Principal) -> None:
        """A new user has the prefixes of who makes it."""
        role = _role(action.role)
        require_user(principal, role, principal.prefixes)
        try:
            check_name(action.name)
        except ValueError as error:
            raise invalid_value(str(error)) from None
        if self._users.find(action.name) is not None:
            if action.if_not_exists:
                return
            raise sql_error(Reason.ALREADY_EXISTS, f"the user {action.name} exists", sqlstate="42710")
        await self._put(UserRow(action.name, role, await self._verifier(action.password), principal.prefixes))

    async def _alter(self, action: plans.AlterUser, principal: Principal) -> None:
        row = self._find(action.name, principal)
        if row is None:
            raise _not_found(action.name)
        if action.role is not None:
            role = _role(action.role)
            require_user(principal, role, row.prefixes)
            row = msgspec.structs.replace(row, role=role)
        if action.password is not None:
            row = msgspec.structs.replace(row, verifier=await self._verifier(action.password))
        await self._put(row)

    async def _drop(self, action: plans.DropUser, principal: Principal) -> None:
        if self._find(action.name, principal) is None:
            if action.if_exists:
                return
            raise _not_found(action.name)
        await self._settle(self._rows.remove(action.name))
        self._users.remove_row(action.name)

    def _find(self, name: str, principal: Principal) -> UserRow | None:
        """Find a user that the caller may change. Raises `forbidden`."""
        found = self._users.find(name)
        if found is None:
            return None
        require_user(principal, found[0].role, found[0].prefixes)
        if self._users.is_read_only(name):
            raise sql_error(Reason.FORBIDDEN, f"the user {name} is one of the settings, where it can be changed")
        return found[0]

    async def _put(self, row: UserRow) -> None:
        await self._settle(self._rows.put(row.name, _encode(row)))
        self._users.put_row(row)

    async def _verifier(self, password: str) -> Verifier:
        try:
            return await self._passwords.verifier(password)
        except ValueError as error:
            raise invalid_value(str(error)) from None


def _role(name: str) -> Role:
    try:
        return Role(name)
    except ValueError:
        raise invalid_value(f"the role is none of {', '.join(role.value for role in Role)}") from None


def _not_found(name: str) -> TopicsError:
    return sql_error(Reason.USER_NOT_FOUND, f"the user {name} does not exist")
