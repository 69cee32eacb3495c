"""How long a request waits for its memory."""

import asyncio
from typing import Final

from topics_service.api.quota import Held

PATIENCE_SECONDS: Final = 10.0


async def wait_for(room: asyncio.Event, held: Held) -> None:
    """Return once `room` is set, which `held` was given to tell of its bytes. Raises `throttled` when it takes long."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await room.wait()
    except TimeoutError:
        held.give_up()
