"""Collector of the unseen exceptions that reach an event loop's exception handler."""

import asyncio
from typing import Any


def collect_complaints(loop: asyncio.AbstractEventLoop) -> list[dict[str, Any]]:
    """The contexts that the loop's exception handler is called with from now on, in a list that grows.

    gRPC has one completion queue per process. If the loop of an event is closed, the failure is reported to the loop
    that takes the event: it is an earlier test's leftover and no complaint about this loop. Nor is it one if another
    loop was faster to take an event (BlockingIOError, grpc/grpc#42357).
    """
    complaints: list[dict[str, Any]] = []

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        is_of_another = isinstance(error, BlockingIOError) or (
            isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        )
        if not (is_of_another and "PollerCompletionQueue" in repr(context.get("handle"))):
            complaints.append(context)

    loop.set_exception_handler(handle)
    return complaints
