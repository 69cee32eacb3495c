"""Answers from calls whose reply is there at once, or is awaited."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from topics_kafka.protocol import Message
from topics_service.engine.errors import TopicsError

T = TypeVar("T")


def answered(
    ask: Callable[[], T | Awaitable[T]], shown: Callable[[T], Message], refused: Callable[[TopicsError], Message]
) -> Message | Awaitable[Message]:
    """The response to a call: its reply as `shown` has it, at once if the reply is there, or its error."""
    try:
        reply = ask()
    except TopicsError as error:
        return refused(error)
    return _later(reply, shown, refused) if isinstance(reply, Awaitable) else shown(reply)


async def _later(
    reply: Awaitable[T], shown: Callable[[T], Message], refused: Callable[[TopicsError], Message]
) -> Message:
    try:
        return shown(await reply)
    except TopicsError as error:
        return refused(error)
