"""Positions in the log of a cluster: with them a client reads its writes at any node."""

from collections.abc import Iterable
from threading import Lock
from typing import Final, Literal

from google.protobuf.message import Message

from topics_proto.v1 import topics_service_pb2 as pb

POSITION: Final = "x-topics-position"
"""The metadata that has the position: in an answer that which contains all that the call wrote and saw, in a read that
which the answer has to contain."""

ReadFrom = Literal["owner", "followers"]
"""The nodes of a cluster that answer a client's reads; a single server answers all in any case."""


class Positions:
    """The newest position of a client. Thread-safe.

    It contains everything that calls which have ended wrote and saw. It is unknown at first, and after what came
    without one, as the items of a stream do; the owner's next answer brings it.
    """

    def __init__(self) -> None:
        self._newest: tuple[int, int] | None = None
        self._unknown = 0  # times that it became unknown
        self._lock = Lock()

    def wanted(self, request: Message) -> str | None:
        """The position that the answer has to contain, if it is a read that any node may answer."""
        newest = self._newest
        return None if newest is None or not _is_read(request) else f"{newest[0]}-{newest[1]}"

    def begin(self) -> int:
        """Begin a call; the number is for `note`."""
        return self._unknown

    def note(self, began: int, metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
        """Take note of the trailing metadata of an answer. It says nothing of what came during the call."""
        for name, value in metadata or ():
            epoch, sign, ticket = str(value).partition("-") if name == POSITION else ("", "", "")
            if sign and epoch.isdecimal() and ticket.isdecimal():
                found = int(epoch), int(ticket)
                with self._lock:
                    if self._newest is not None:
                        self._newest = max(self._newest, found)
                    elif began == self._unknown:
                        self._newest = found

    def forget(self) -> int:
        """Take note of something that came without a position. Return the number of a call that begins now."""
        with self._lock:
            self._newest = None
            self._unknown += 1
            return self._unknown


def is_read_to_end(request: Message) -> bool:
    """Return whether the request is a long read that ends, whose position comes with its end."""
    return isinstance(request, pb.BulkDiffRequest) and not request.follow


def _is_read(request: Message) -> bool:
    if isinstance(request, pb.DiffRequest):
        return not request.wait_ms
    return isinstance(request, pb.GetTopicRequest | pb.LocateTimeRequest) or is_read_to_end(request)
