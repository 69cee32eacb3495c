"""Long work on the event loop: in turns, so that other connections get theirs."""

import asyncio
import time
from collections.abc import Awaitable, Generator
from typing import Final

from topics_kafka.protocol import Message

TURN_SECONDS: Final = 0.002


def in_turns(work: Generator[None, None, Message]) -> Message | Awaitable[Message]:
    """The message that `work` returns: at once if that takes no longer than a turn. It yields where it may be left."""
    message = _turn(work)
    return _rest(work) if message is None else message


def _turn(work: Generator[None, None, Message]) -> Message | None:
    ends = time.perf_counter() + TURN_SECONDS
    try:
        while True:
            next(work)
            if time.perf_counter() >= ends:
                return None
    except StopIteration as end:
        message: Message = end.value
        return message


async def _rest(work: Generator[None, None, Message]) -> Message:
    while True:
        await asyncio.sleep(0)
        message = _turn(work)
        if message is not None:
            return message
