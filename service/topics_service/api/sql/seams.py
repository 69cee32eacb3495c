"""Calls of other parts that the executor and the protocols use."""

from typing import Protocol

from topics_service.api.access.auth import Principal
from topics_service.api.sql.requests import AckRequest, ConsumeReply, ConsumeRequest
from topics_service.engine.tables import plans


class ConsumeCalls(Protocol):
    """Consuming and acknowledging: `consume.ConsumeApi`. They check the rights of the caller."""

    async def consume(self, request: ConsumeRequest, *, principal: Principal) -> ConsumeReply:
        """Read messages, waiting for a first one."""
        ...

    async def ack(self, request: AckRequest, *, principal: Principal) -> int:
        """Acknowledge; return the offset that is acknowledged now."""
        ...


class UserCalls(Protocol):
    """Changes of users. They check the rights of the caller."""

    async def apply(self, action: plans.CreateUser | plans.AlterUser | plans.DropUser, *, principal: Principal) -> None:
        """Change a user durably. Raises `forbidden`, `already_exists`, `user_not_found`, `invalid_value`."""
        ...
