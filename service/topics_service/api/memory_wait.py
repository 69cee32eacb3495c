"""Wait of a request for its memory."""

import asyncio
from typing import Final

from topics_service.api.access.quota import Held

MEMORY_WAIT_SECONDS: Final = 10.0


async def wait_for(granted: asyncio.Event, held: Held) -> None:
    """Wait until `granted`, which `held` sets for its bytes, is set. Raises `throttled` on timeout."""
    try:
        async with asyncio.timeout(MEMORY_WAIT_SECONDS):
            await granted.wait()
    except TimeoutError:
        held.give_up()
