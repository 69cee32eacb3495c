"""Data for a client that has left is dropped, and the application can know at once."""

import asyncio
from typing import Any

import pytest


class Talker:
    """An application that never receives: it sends parts until a send reports that they are dropped."""

    def __init__(self) -> None:
        self.sent = 0
        self.states: asyncio.Queue[Any] = asyncio.Queue()
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        state = scope["state"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not state.get("gone"):
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            self.sent += 1
            await asyncio.sleep(0)
        self.states.put_nowait(state)


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_the_state_says_that_the_client_is_gone(run: Any, serve: Any, version: str) -> None:
    async def main() -> None:
        async with serve() as service:
            talker = Talker()
            service.app.talk = talker
            async with service.client(version) as client, client.stream("GET", "/talk") as response:
                async for _ in response.aiter_raw():
                    break
            assert (await asyncio.wait_for(talker.states.get(), 10))["gone"]

    run(main())


def test_no_part_is_taken_between_the_end_of_the_client_and_that_of_the_connection(run: Any, serve: Any) -> None:
    """Data counts as taken if a client that ends its side can still read it."""

    async def main() -> None:
        async with serve() as service:
            for _ in range(20):
                talker = Talker()
                service.app.talk = talker
                reader, writer = await service.connect()
                writer.write(b"GET /talk HTTP/1.1\r\nHost: x\r\n\r\n")
                await reader.readuntil(b"part")
                writer.write_eof()
                rest = await reader.read()
                await asyncio.wait_for(talker.states.get(), 10)
                # The part that was sent as the end came may or may not have been dropped; none before it was.
                assert talker.sent - 1 <= 1 + rest.count(b"part") <= talker.sent

    run(main())
