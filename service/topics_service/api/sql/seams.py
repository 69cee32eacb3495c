"""Calls of other parts that the executor and the protocols use."""

from typing import Protocol

from topics_service.api.access.auth import Principal
from topics_service.engine.tables import plans


class UserCalls(Protocol):
    """Changes of users. They check the rights of the caller."""

    async def apply(self, action: plans.CreateUser | plans.AlterUser | plans.DropUser, *, principal: Principal) -> None:
        """Change a user durably. Raises `forbidden`, `already_exists`, `user_not_found`, `invalid_value`."""
        ...
