"""Calls that run while their caller becomes invalid, in the moment in which they send."""

import asyncio

import pytest

from topics_service.api.access import revocation
from topics_service.api.access.auth import ALL_SCOPES, Principal
from topics_service.api.access.revocation import RevocableCalls
from topics_service.engine.errors import Reason, TopicsError

CALLER = Principal("key1", ALL_SCOPES, None)


async def test_a_message_is_sent_to_its_end() -> None:
    calls, sent = RevocableCalls(), asyncio.Event()

    async def stream() -> None:
        with calls.call(CALLER) as call:
            call.begin_sending()
            await sent.wait()
            call.end_sending()

    running = asyncio.create_task(stream())
    await asyncio.sleep(0)
    for _ in range(2):
        calls.cancel_unless(lambda _: False)
    await asyncio.sleep(0)
    assert not running.done()
    sent.set()
    with pytest.raises(TopicsError) as error:
        await running
    assert error.value.reason is Reason.UNAUTHORIZED
    assert not running.cancelling()


async def test_a_client_that_never_reads_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "_SEND_SECONDS", 0.0)
    calls = RevocableCalls()
    left = False

    async def stream() -> None:
        nonlocal left
        with calls.call(CALLER) as call:
            call.begin_sending()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                left = True
                raise

    running = asyncio.create_task(stream())
    await asyncio.sleep(0)
    calls.cancel_unless(lambda _: False)
    async with asyncio.timeout(10):
        with pytest.raises(TopicsError):
            await running
    assert left
