"""Places of routers, in the home of their names: among several shards a router lives in that of its destination."""

from itertools import islice
from typing import Final

import msgspec
from msgspec import Struct

from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family

_PREFIX: Final = keys.u64(0) + b"\x02"  # no router has the number 0
_STOP: Final = keys.u64(0) + b"\x03"


class RouterPlace(Struct, frozen=True, array_like=True):
    """The shard that a router is in, or is being made in since `ts` (ms).

    `token` is that of the newest move that was decided: the router has moved if it is in the move's shard, and stays if
    it is in the one that it was to leave.
    """

    shard: int
    ts: int
    token: str = ""


_decoded: Final = msgspec.msgpack.Decoder(RouterPlace).decode


class RouterPlaces:
    """The rows of names whose home is here. One is written before its router is, and removed after it; so there can be
    a row without its router, but no router without its row.
    """

    def __init__(self, writer: Writer, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock

    def find(self, name: str) -> RouterPlace | None:
        """The place of a router."""
        row = self._writer.store.get(Family.ROUTERS, place_key(name))
        return None if row is None else _decode(row)

    def put(
        self, name: str, shard: int, expected: RouterPlace | None, token: str | None = None
    ) -> tuple[RouterPlace, int]:
        """Set a place unless another one than `expected` is there; return the one that holds, and the ticket of it.

        Each place of a name is another one. `token` None keeps that of the newest move.
        """
        found, now = self.find(name), self._clock.now_ms()
        if found is not None and found != expected:
            return found, 0
        if found is not None:
            now, token = max(now, found.ts + 1), found.token if token is None else token
        place = RouterPlace(shard, now, token or "")
        batch = self._writer.begin()
        batch.put(Family.ROUTERS, place_key(name), msgspec.msgpack.encode(place))
        return place, self._writer.commit(batch)

    def remove(self, name: str, expected: RouterPlace) -> int:
        """Remove a place that is still this one; return the ticket to wait for."""
        if self.find(name) != expected:
            return 0
        batch = self._writer.begin()
        batch.delete(Family.ROUTERS, place_key(name))
        return self._writer.commit(batch)

    def page(self, after: str, limit: int) -> list[tuple[str, RouterPlace]]:
        """Up to `limit` names and their places, after a name."""
        rows = self._writer.store.scan(Family.ROUTERS, place_key(after) + b"\x00" if after else _PREFIX, _STOP)
        return [(key[len(_PREFIX) :].decode(), _decode(row)) for key, row in islice(rows, limit)]


def is_place_key(key: bytes) -> bool:
    """Return whether a key of the family is that of a place."""
    return key.startswith(_PREFIX)


def _decode(row: bytes) -> RouterPlace:
    try:
        return _decoded(row)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TopicsError(Reason.INTERNAL, f"the place of a router is damaged: {error}") from error


def place_key(name: str) -> bytes:
    """The key of the place of a router."""
    return _PREFIX + name.encode()
