"""Observers of whole Kafka requests: however a handler answers, each sees the end once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from topics_kafka.handlers import Context
from topics_kafka.protocol import ApiKey, Message
from topics_server.interceptors import KafkaEnd, observed_kafka

ANY: Any = None
ANSWER: Message = {"error_code": 0}


async def later(answer: Message | None) -> Message | None:
    await asyncio.sleep(0)
    return answer


async def failing() -> Message | None:
    await asyncio.sleep(0)
    raise ValueError("later")


def at_once() -> Message | None:
    raise ValueError("at once")


@pytest.mark.parametrize(
    ("handler", "ended"),
    [
        (lambda: ANSWER, (ANSWER, None)),
        (lambda: None, (None, None)),
        (lambda: later(ANSWER), (ANSWER, None)),
        (lambda: later(None), (None, None)),
        (lambda: asyncio.ensure_future(later(ANSWER)), (ANSWER, None)),
        (at_once, (None, ValueError)),
        (failing, (None, ValueError)),
        (lambda: asyncio.ensure_future(failing()), (None, ValueError)),
    ],
)
async def test_every_answer_ends_once(
    handler: Callable[[], Message | Awaitable[Message | None] | None], ended: tuple[Message | None, Any]
) -> None:
    seen: list[object] = []

    def observer(name: str) -> Callable[[ApiKey, int, Context, Message], KafkaEnd | None]:
        def begin(api: ApiKey, version: int, _context: Context, _request: Message) -> KafkaEnd | None:
            seen.append((name, api, version))
            if name == "ignores":
                return None
            return lambda response, error: seen.append((name, response, error and type(error)))

        return begin

    table = observed_kafka(lambda _: {3: lambda *_: handler()}, *map(observer, ("outer", "ignores", "inner")))(ANY)
    if ended[1] is None:
        answer = table[3](ANY, 7, {})
        assert (answer if answer is None or isinstance(answer, dict) else await answer) == ended[0]
    else:
        with pytest.raises(ValueError, match=r"once|later"):
            await table[3](ANY, 7, {})  # type: ignore[misc]
    await asyncio.sleep(0)
    begun = [(name, ApiKey.METADATA, 7) for name in ("outer", "ignores", "inner")]
    assert seen == [*begun, ("inner", *ended), ("outer", *ended)]


@pytest.mark.parametrize("as_task", [False, True])
async def test_a_connection_that_is_lost_cancels(as_task: bool) -> None:
    seen: list[type] = []

    def begin(*_: object) -> KafkaEnd:
        return lambda _, error: seen.append(type(error))

    async def forever() -> None:
        await asyncio.Event().wait()

    def wait(*_: object) -> Awaitable[None]:
        return asyncio.ensure_future(forever()) if as_task else forever()

    running = asyncio.ensure_future(observed_kafka(lambda _: {3: wait}, begin)(ANY)[3](ANY, 7, {}))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0)
    assert seen == [asyncio.CancelledError]


def test_without_observers_the_handlers_are_as_they_were() -> None:
    def make(_: object) -> dict[int, Any]:
        return {}

    assert observed_kafka(make) is make
