"""CREATE, ALTER and DROP USER."""

from topics_service.api.access.auth import Principal
from topics_service.engine.errors import Reason
from topics_service.engine.tables import plans
from topics_service.engine.tables.errors import sql_error


class NoUsers:
    """Implements UserCalls where there are no users."""

    async def apply(self, action: plans.CreateUser | plans.AlterUser | plans.DropUser, *, principal: Principal) -> None:
        """Refuse it."""
        raise sql_error(Reason.UNSUPPORTED_SQL, "there are no users here")
