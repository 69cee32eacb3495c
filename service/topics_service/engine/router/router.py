"""A router: its requests and replies, its state, and its rows."""

import struct
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from topics_service.engine.errors import TopicsError
from topics_service.engine.model import TagMatch
from topics_service.engine.router.foreign import ForeignSource
from topics_service.engine.router.stretch import SourceIdentity
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.topic import Topic
from topics_service.storage import keys

Guarantee = Literal["at_least_once", "exactly_once"]

_CURSOR = struct.Struct("<BQQ")
_VERSION = 1
_BACKOFF_MS = 50
_BACKOFF_MAX_MS = 2000


class RouterConfig(Struct, frozen=True, kw_only=True):
    """The configuration of a router (docs/contract.md, 7). `filter` None forwards everything, also untagged records."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: TagMatch | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"


class PutRouterRequest(Struct, frozen=True, kw_only=True):
    """Create a router or replace its config.

    `create_dest` False requires that the destination exists. Beyond the contract: with `backfill` a router that this
    call creates starts before the earliest record of its source, not at the head.
    """

    router: str
    config: RouterConfig
    create_dest: bool = True
    backfill: bool = False


class PutRouterReply(Struct, kw_only=True):
    """The outcome of a PUT: `created` only when this call brought the router into existence."""

    router: str
    created: bool
    config: RouterConfig


class RouterState(Struct, kw_only=True):
    """A router's state. `forwarded_total` counts delivered copies, and the seqs of ranges lost at the source.

    `lag_records` is the number of source seqs that are not forwarded yet; `last_error` is the error that stopped it.
    """

    router: str
    config: RouterConfig
    forwarded_total: int
    lag_records: int
    last_error: str | None


class ListRoutersRequest(Struct, kw_only=True):
    """A page of routers in name order; `source` and `dest` are exact, empty for any."""

    prefix: str = ""
    source: str = ""
    dest: str = ""
    after: str | None = None
    page_size: int = 100


class ListRoutersReply(Struct, kw_only=True):
    """Router states in name order; `next_after` is None on the last page."""

    routers: Sequence[RouterState]
    next_after: str | None


class DeleteRouterReply(Struct, kw_only=True):
    """`deleted` is False when there was no such router."""

    router: str
    deleted: bool


class Departure(Struct, frozen=True, kw_only=True, array_like=True):
    """A router on its way to another shard, with its new config and what it takes along: see `RouterMoves`."""

    token: str
    origin: int
    shard: int
    router: str
    config: RouterConfig
    create_dest: bool
    is_foreign: bool
    """True if the source is in another shard than the new destination."""
    source: SourceIdentity
    cursor: int
    forwarded: int
    created_ts: int


class Arrival(Struct, frozen=True, array_like=True):
    """A router that has come from the shard `origin`, and does not forward yet."""

    token: str
    origin: int


class RouterRow(Struct, kw_only=True, array_like=True):
    """The stored row of a router, without its cursor. New fields go to the end, with a default.

    `foreign` is the source if it is in another shard. The last two fields are those of a router that moves.
    """

    version: int = _VERSION
    name: str
    config: RouterConfig
    created_ts: int
    foreign: SourceIdentity | None = None
    departure: Departure | None = None
    arrival: Arrival | None = None

    def encode(self) -> bytes:
        """The stored form."""
        fields = list(msgspec.structs.astuple(self))
        while fields[-1] is None:
            fields.pop()
        return msgspec.msgpack.encode(fields)


decode_row = msgspec.msgpack.Decoder(RouterRow).decode


def decode_cursor(row: bytes) -> tuple[int, int]:
    """Cursor and forwarded_total. Raises ValueError for a row of another version or length."""
    if len(row) != _CURSOR.size or row[0] != _VERSION:
        raise ValueError(f"cursor row of {len(row)} bytes, version {row[:1].hex()}")
    _, cursor, forwarded = _CURSOR.unpack(row)
    return cursor, forwarded


class Router:
    """A live router. `cursor` is the last forwarded or skipped seq of the source, `forwarded` the total.

    Two rows: the config, and the cursor, which each slice of forwarding rewrites. `number` is their key.
    """

    __slots__ = (
        "arrival",
        "config",
        "created_ts",
        "cursor",
        "dedup_from",
        "dedup_to",
        "departure",
        "dest",
        "fault",
        "foreign",
        "forwarded",
        "gone",
        "name",
        "number",
        "pruned_at",
        "queued",
        "shown_after",
        "source",
        "ticket",
        "written",
    )

    source: Topic | ForeignSource

    def __init__(self, number: int, row: RouterRow, dest: Topic, cursor: int, forwarded: int) -> None:
        self.number = number
        self.name = row.name
        self.config = row.config
        self.created_ts = row.created_ts
        self.foreign = row.foreign
        self.departure = row.departure
        self.arrival = row.arrival
        self.dest = dest
        self.cursor = cursor
        self.forwarded = forwarded
        self.dedup_to: int | None = None  # up to here it may meet copies of its earlier life; None: unknown
        self.dedup_from = 0  # dedup map rows below this source seq are removed,
        self.pruned_at = 0  # as of this first live seq of the destination
        self.fault: Fault | None = None
        self.gone = False
        self.queued = False
        self.shown_after = 0  # the ticket of its creation: until then readers don't see it
        self.written = 0  # the ticket of the newest write of its config
        self.ticket = 0  # the ticket that its newest copies wait for, 0 if they are visible

    @property
    def is_moving(self) -> bool:
        """Return whether it is on its way from or to another shard, so that it does not forward."""
        return self.departure is not None or self.arrival is not None

    @property
    def lag(self) -> int:
        """Return the number of visible seqs of the source that are not forwarded yet."""
        source = self.source
        return max(0, (source.head if isinstance(source, ForeignSource) else source.log.view.head) - self.cursor)

    def state(self) -> RouterState:
        """The state that a client sees."""
        error = None if self.fault is None else self.fault.error
        if error is None and isinstance(self.source, ForeignSource):
            error = self.source.error
        return RouterState(
            router=self.name,
            config=self.config,
            forwarded_total=self.forwarded,
            lag_records=self.lag,
            last_error=None if error is None else error.message,
        )

    def config_row(self) -> tuple[bytes, bytes]:
        """Key and value of the row of its config."""
        row = RouterRow(
            name=self.name,
            config=self.config,
            created_ts=self.created_ts,
            foreign=self.foreign,
            departure=self.departure,
            arrival=self.arrival,
        )
        return config_key(self.number), row.encode()

    def cursor_row(self, cursor: int, forwarded: int) -> tuple[bytes, bytes]:
        """Key and value of the row of this cursor."""
        return cursor_key(self.number), _CURSOR.pack(_VERSION, cursor, forwarded)


class Fault:
    """The error that stopped a router. It tries again at `retry_at`, or as soon as the destination changes.

    The waits double from 50 ms to 2 s.
    """

    __slots__ = ("attempts", "blocked_at", "dest_state", "error", "retry_at")

    def __init__(self, error: TopicsError, now: int, dest_state: Snapshot, before: "Fault | None") -> None:
        self.error = error
        self.attempts: int = 1 if before is None else before.attempts + 1
        self.blocked_at = now
        self.retry_at = now + min(_BACKOFF_MS << min(self.attempts - 1, 10), _BACKOFF_MAX_MS)
        self.dest_state = dest_state

    def is_over(self, now: int, dest_state: Snapshot) -> bool:
        """Return whether to try again now. Setting the clock back does not lengthen a wait."""
        return now >= self.retry_at or now < self.blocked_at or dest_state is not self.dest_state


def config_key(number: int) -> bytes:
    """The key of a router's config row; its cursor row is the next one."""
    return keys.u64(number) + b"\x00"


def cursor_key(number: int) -> bytes:
    """The key of a router's cursor row."""
    return keys.u64(number) + b"\x01"
