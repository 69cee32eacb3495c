"""What reaches an event loop's exception handler: exceptions that nobody has seen."""

import asyncio
from typing import Any


def collect_complaints(loop: asyncio.AbstractEventLoop) -> list[dict[str, Any]]:
    """The contexts that the loop's exception handler is called with from now on, in a list that grows.

    gRPC has one completion queue per process. If the loop of an event is closed, the failure is reported to the loop
    that takes the event: it is an earlier test's leftover and no complaint about this loop.
    """
    complaints: list[dict[str, Any]] = []

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not (
            isinstance(error := context.get("exception"), RuntimeError)
            and str(error) == "Event loop is closed"
            and "PollerCompletionQueue" in repr(context.get("handle"))
        ):
            complaints.append(context)

    loop.set_exception_handler(handle)
    return complaints
