"""The collector of complaints and the loop that tests of the asyncio client use."""

import asyncio
from typing import Any

from grpc import aio

from support.complaints import collect_complaints
from support.sdk import Loop
from support.waiting import poll


def test_a_call_that_a_closed_loop_has_left_is_no_complaint_about_the_next_loop() -> None:
    async def leave() -> object:
        call = aio.insecure_channel("127.0.0.1:9").unary_unary("/a/b")(b"", wait_for_ready=True, timeout=0.2)
        waiting = asyncio.ensure_future(call.initial_metadata())
        await asyncio.sleep(0)
        return call, waiting

    with_a_call = asyncio.new_event_loop()
    kept = with_a_call.run_until_complete(leave())
    with_a_call.close()

    loop = asyncio.new_event_loop()
    reported = list[dict[str, Any]]()
    complaints = collect_complaints(loop)
    handler = loop.get_exception_handler()
    assert handler is not None

    def report(of: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        reported.append(context)
        handler(of, context)

    loop.set_exception_handler(report)

    async def connect() -> None:
        aio.insecure_channel("127.0.0.1:9")
        loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)

    loop.run_until_complete(connect())

    def two_are_reported() -> bool:
        loop.run_until_complete(asyncio.sleep(0.01))
        return len(reported) >= 2

    poll(two_are_reported)
    loop.close()
    assert [type(each["exception"]) for each in complaints] == [ZeroDivisionError]
    del kept


def test_a_loop_has_settled_only_after_the_status_of_a_cancelled_call_came_in() -> None:
    loop = Loop()

    async def cancel_one() -> int:
        call = aio.insecure_channel("127.0.0.1:9").unary_stream("/a/b")(b"", wait_for_ready=True)
        while len(asyncio.all_tasks()) < 3:  # this one, the one that begins the call, the one for its status
            await asyncio.sleep(0)
        call.cancel()
        await loop.settled()
        return len(asyncio.all_tasks())

    try:
        assert loop.run(cancel_one()) == 1
    finally:
        loop.close()
