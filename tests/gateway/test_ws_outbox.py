"""Replies on their way to a client: in order, and bounded."""

import asyncio

from topics_gateway.outbox import Outbox, Reply


class Wire:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.open = asyncio.Event()

    async def send(self, text: bytes) -> None:
        await self.open.wait()
        self.sent.append(text)


async def full(box: Outbox) -> bool:
    try:
        await asyncio.wait_for(box.wait_for_space(), 0.02)
    except TimeoutError:
        return True
    return False


async def test_replies_keep_their_order() -> None:
    box, wire, due, told = Outbox(), Wire(), asyncio.Event(), []

    async def later() -> bytes:
        await due.wait()
        return b"later"

    box.put(Reply(b"first", 5))
    box.put(Reply(later, 5, lambda: told.append("later")))
    box.put(Reply(b"last", 5, lambda: told.append("last")))
    wire.open.set()
    sending = asyncio.create_task(box.send_all(wire.send))
    await asyncio.sleep(0)
    assert wire.sent == [b"first"]
    assert not told
    due.set()
    box.close()
    await sending  # what was added is sent
    assert wire.sent == [b"first", b"later", b"last"]
    assert told == ["later", "last"]


async def test_many_replies_fill_it() -> None:
    box, wire = Outbox(), Wire()
    sending = asyncio.create_task(box.send_all(wire.send))
    for i in range(256):
        assert not await full(box) or i > 250
        box.put(Reply(b"%d" % i, 1))
    assert await full(box)
    waiting = asyncio.create_task(box.wait_for_space())
    wire.open.set()
    await waiting
    box.close()
    await sending
    assert wire.sent == [b"%d" % i for i in range(256)]


async def test_large_replies_fill_it() -> None:
    box, wire = Outbox(), Wire()
    sending = asyncio.create_task(box.send_all(wire.send))
    box.put(Reply(b"x", (1 << 20) - 1))
    assert not await full(box)
    box.put(Reply(b"y", 50 << 20))  # one is taken, whatever its size
    assert await full(box)
    wire.open.set()
    await box.wait_for_space()
    assert wire.sent == [b"x", b"y"]
    assert not sending.done()
    box.close()
    await sending
