"""Rows of the store. Recovery turns what their decoders raise into a refusal that names the row."""

import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import msgspec
from fuzz.target import Target
from msgspec.structs import replace
from pyroaring import BitMap, BitMap64

from support.kafka_members import Classic, Modern, Topics, World, assignment, settle, subscription
from topics_service.engine import lives, producers, snapshot, stored_catalog
from topics_service.engine.deletes import Deletes, decode_chunk
from topics_service.engine.errors import TopicsError
from topics_service.engine.idempotency import _ROW as OUTCOME
from topics_service.engine.idempotency import expiry_key
from topics_service.engine.lives import Ceiling, Lives, decode_ceiling
from topics_service.engine.membership import subscriptions
from topics_service.engine.membership.members import RefusedError
from topics_service.engine.model import TagMatch, TopicConfig
from topics_service.engine.offsets.positions import (
    GroupRow,
    Position,
    decode_position,
    position_key,
    read_position_key,
)
from topics_service.engine.offsets.positions import decode_row as decode_group
from topics_service.engine.parts import Parts, Pending, decode_marker
from topics_service.engine.placement import Place, Spread
from topics_service.engine.queue import leases
from topics_service.engine.queue.attempts import Attempt
from topics_service.engine.queue.deadletters import origin, stamp, strip
from topics_service.engine.queue.shipments import _ARRIVED, Letter, Shipment, Shipments, _batch
from topics_service.engine.redirects import Redirect, Redirects
from topics_service.engine.router import provenance
from topics_service.engine.router.places import RouterPlace, RouterPlaces
from topics_service.engine.router.router import Departure, RouterConfig, RouterRow, decode_cursor
from topics_service.engine.router.router import decode_row as decode_router
from topics_service.engine.router.stretch import SourceIdentity
from topics_service.engine.snapshot import Gap, Snapshot
from topics_service.engine.topic import TopicRow
from topics_service.engine.topic import decode_row as decode_topic
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreOpenError

DAMAGE: Final = (TopicsError, ValueError, struct.error, msgspec.MsgspecError)
"""As `stored_logs` catches it."""
_ENGINE: Final = "topics_service.engine"
_TOPIC = TopicRow(
    name="t", topic_id="top_x", slug="t", rrl="r", config=TopicConfig(cap_records=9, retain_until_acked_by=("g",)),
    log_ids=[1, 2], created_ts=5, kafka_configs={"a": "b"},
)  # fmt: skip
_PART = replace(_TOPIC, spread=Spread(5, 1, 3, epoch=7, revision=2))
_HOME = replace(_TOPIC, log_ids=[4], spread=Spread(1, 0, 8, shards=(2, 5)))
_LETTERS = [Letter(3, b"{}", b"t", None, b"{}", 1), Letter((1 << 64) - 1, b"", None, b"n", None, 255)]
_SHIPMENT = Shipment("q", "top_x", 2, "q.dead", True, False, _LETTERS)
_PENDING = Pending("top_x", 7, 2, True, (2, 5))
_ROUTER = RouterRow(name="r", config=RouterConfig(source="a", dest="b", filter=TagMatch("Glob", b"x")), created_ts=3)
_MOVING_ROUTER = replace(
    _ROUTER,
    foreign=SourceIdentity("id", 7),
    departure=Departure(
        token="t",
        origin=1,
        shard=2,
        router="r",
        config=_ROUTER.config,
        create_dest=True,
        is_foreign=False,
        source=SourceIdentity("id", 7),
        cursor=5,
        forwarded=4,
        created_ts=3,
    ),
)
_DELIVERY = leases.Delivery("worker", "lease_" + "ab" * 16, 99, 2, 3)
_ATTEMPTS = (Attempt(1, 98, "worker", "why", True), Attempt(2, 99, "other", ""))
_RUNS = [(1, 5, 2), (9, 7, 1)]


def _deletes() -> list[bytes]:
    marked, _ = Deletes().marked([(1, 10), *((seq, 7) for seq in range(70, 90)), (5000, 3), (70_000, 3)])
    return [marked.encode(number) for number in marked.numbers()]


class _OneRow:
    """A store whose rows are all the same; each range has one, behind its start."""

    def __init__(self, row: bytes) -> None:
        self.row = row

    def get(self, _family: Family, _key: bytes) -> bytes:
        return self.row

    def scan(self, _family: Family, start: bytes, _stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield start + b"t", self.row


def _writer(row: bytes) -> Writer:
    store: Any = _OneRow(row)
    return Writer(store)


def _pending(row: bytes) -> Any:
    """A change that parts had to learn of at the last end."""
    none: Any = SimpleNamespace()
    parts = Parts(none, none, _writer(row), none, Place(0, 2))
    parts.load()
    return parts.pending["t"]


def _redirect(row: bytes) -> Any:
    redirects = Redirects(_writer(row))
    redirects.load()
    return redirects.find("t")


def _shipments(row: bytes) -> Shipments:
    none: Any = None
    return Shipments(none, _writer(row), none, none)


def _underway(row: bytes) -> Any:
    """A shipment as it is after a start, and as it would be taken back."""
    shipments = _shipments(row)
    shipments.load()
    shipment = next(shipments.outbox())
    return shipment, shipment.key, shipments.waiting, _batch(shipment.letters, is_redrive=False)


def _place(row: bytes) -> Any:
    none: Any = None
    places = RouterPlaces(_writer(row), none)
    return places.find("r"), places.page("", 9)


def _topic_at_a_start(value: bytes) -> Any:
    row = stored_catalog.decode_catalog_row(value)
    return row, stored_catalog.decode_config(row.config)


def _chunk(value: bytes) -> Any:
    """A bitmap, and what readers ask of it."""
    chunk = decode_chunk(value)
    marks = chunk.marks
    return chunk, len(marks), marks.rank(40), marks.contains_range(3, 90), marks & BitMap(range(99)), marks.serialize()


def _numbers(value: bytes) -> Any:
    found = BitMap64.deserialize(value)
    return len(found), found & BitMap64(range(9)), found.contains_range(3, 1 << 41), found.serialize()


def _groups() -> list[bytes]:
    """Groups of both kinds, as they are stored."""
    classic, modern = World(Topics(t=4, u=2)), World(Topics(t=4, u=2))
    member = Classic(classic, instance_id="i")
    member.join()
    settle(member)
    for one in (Modern(modern, "m1", names=["t", "u"]), Modern(modern, "m2", names=None, regex="t.*")):
        one.beat()
    return [*classic.store.values(), *modern.store.values()]


def _loaded(row: bytes) -> Any:
    """A group, as it is after a restart; it tells of itself and lets time pass."""
    world = World(Topics(t=4, u=2))
    world.coordinator.load("g", row)
    for group in list(world.coordinator._groups.values()):
        world.coordinator.view(group)
    world.advance(100_000)
    return world.coordinator.dump("g")


def _pattern(text: bytes) -> Any:
    pattern = subscriptions.compile_pattern(text.decode(errors="replace"), 1024)
    return subscriptions.matching(pattern, ["t", "u", "a" * 255])


_STATE = snapshot.encode(Snapshot(*range(1, 14)))
_CURSOR = struct.pack("<BQQ", 1, 9, 4)
_META = b'{"a": {"b":[1]}, "$dead_letter_from":"q","c":"\\u00e9"}'

TARGETS = (
    Target(
        name="row of a log",
        decode=lambda row: (snapshot.decode(row), snapshot.figures(row)),
        errors=(ValueError,),
        samples=[_STATE, b"\1" + _STATE[1:-8]],
        covers=tuple(f"{_ENGINE}.snapshot:{name}" for name in ("decode", "figures", "_fields")),
    ),
    Target(
        name="row of a topic",
        decode=decode_topic,
        errors=DAMAGE,
        samples=[_TOPIC.encode(), _PART.encode(), _HOME.encode()],
        covers=(f"{_ENGINE}.topic",),
        again=TopicRow.encode,
    ),
    Target(
        name="row of a topic at a start",
        decode=_topic_at_a_start,
        errors=DAMAGE,
        samples=[_TOPIC.encode(), _PART.encode(), _HOME.encode()],
        covers=(f"{_ENGINE}.stored_catalog",),
    ),
    Target(
        name="pending change of a topic",
        decode=_pending,
        errors=(StoreOpenError,),
        samples=[msgspec.msgpack.encode(_PENDING)],
        covers=(f"{_ENGINE}.parts",),
        again=msgspec.msgpack.encode,
    ),
    Target(
        name="redirect of a topic",
        decode=_redirect,
        errors=(StoreOpenError,),
        samples=[msgspec.msgpack.encode(Redirect(3, "orders", 1))],
        covers=(f"{_ENGINE}.redirects", f"{_ENGINE}.redirects:load"),
        again=msgspec.msgpack.encode,
    ),
    Target(
        name="marker of a dropped part",
        decode=decode_marker,
        errors=(),
        samples=[keys.pair(7, 1 << 40)],
        covers=(f"{_ENGINE}.parts:decode_marker",),
    ),
    Target(
        name="ceiling of a log",
        decode=decode_ceiling,
        errors=(ValueError,),
        samples=[Ceiling(7, 2).encode(), keys.u64(7)],
        covers=(f"{_ENGINE}.lives:decode_ceiling",),
    ),
    Target(
        name="count of unclean ends",
        decode=lambda row: lives.read(_OneRow(row)),
        errors=(StoreOpenError,),
        samples=[Lives(7, 2).encode()],
        covers=(f"{_ENGINE}.lives:read",),
    ),
    Target(
        name="delete bitmap",
        decode=_chunk,
        errors=DAMAGE,
        samples=_deletes(),
        covers=(f"{_ENGINE}.deletes:decode_chunk",),
    ),
    Target(
        name="set of jobs",
        decode=_numbers,
        errors=(*DAMAGE, IndexError),  # an empty row
        samples=[BitMap64([1, 5, 1 << 40, *range(100, 300)]).serialize(), BitMap64().serialize()],
        covers=(f"{_ENGINE}.queue.schedule:load",),
    ),
    Target(
        name="gap",
        decode=lambda value: Gap.of_row(3, value),
        errors=DAMAGE,
        samples=[Gap(3, 9, "cap").row(1)[1], Gap(3, 1 << 63, "source_trim").row(1)[1]],
        covers=(f"{_ENGINE}.snapshot:of_row",),
    ),
    Target(
        name="outcome of a write",
        decode=lambda row: expiry_key(b"\0" * 8 + b"key", row),
        errors=(struct.error,),
        samples=[OUTCOME.pack(1, 2, 3, 4, 5)],
        covers=(f"{_ENGINE}.idempotency:expiry_key", f"{_ENGINE}.idempotency:find"),
    ),
    Target(
        name="lease",
        decode=leases.decode,
        samples=[
            *map(leases.encode, (_DELIVERY, leases.Delivery(None, "", 5, 2, 0))),
            leases.encode(replace(_DELIVERY, attempts=_ATTEMPTS)),
        ],
        covers=(
            *(f"{_ENGINE}.queue.leases:{name}" for name in ("decode", "parse")),
            *(f"{_ENGINE}.queue.{name}" for name in ("attempts", "attempts:decode")),
        ),
        again=leases.encode,
    ),
    Target(
        name="row of a queue",
        decode=leases.decode_queue,
        errors=(ValueError,),
        samples=[leases.encode_queue(3, 9)],
        covers=(f"{_ENGINE}.queue.leases:decode_queue",),
        again=lambda made: leases.encode_queue(*made),
    ),
    Target(
        name="meta of a dead letter",
        decode=lambda meta: (strip(meta), origin(meta), stamp(meta, "q", 1, 2)),
        errors=DAMAGE,
        samples=[_META, stamp(_META, "queue", 3, 4), b"{}"],
        covers=(f"{_ENGINE}.queue.deadletters:origin", f"{_ENGINE}.queue.deadletters"),
    ),
    Target(
        name="shipment in the outbox",
        decode=_underway,
        errors=(StoreOpenError,),
        samples=[msgspec.msgpack.encode(_SHIPMENT), msgspec.msgpack.encode(replace(_SHIPMENT, letters=_LETTERS[:1]))],
        covers=(f"{_ENGINE}.queue.shipments",),
        again=lambda made: msgspec.msgpack.encode(made[0]),
    ),
    Target(
        name="arrival in the inbox",
        decode=lambda row: _shipments(row).arrivals(b"", 9)[0][1],
        errors=(TopicsError,),
        samples=[_ARRIVED.pack(1, 2, 7, 1 << 40)],
        covers=(f"{_ENGINE}.queue.shipments:_arrival",),
        again=lambda made: _ARRIVED.pack(1, *made),
    ),
    Target(
        name="row of a router",
        decode=decode_router,
        errors=DAMAGE,
        samples=[_ROUTER.encode(), _MOVING_ROUTER.encode()],
        covers=(f"{_ENGINE}.router.router",),
        again=RouterRow.encode,
    ),
    Target(
        name="cursor of a router",
        decode=decode_cursor,
        errors=(ValueError,),
        samples=[_CURSOR],
        covers=(f"{_ENGINE}.router.router:decode_cursor",),
    ),
    Target(
        name="copies of a router",
        decode=provenance._decode,
        errors=(TopicsError,),
        samples=[b"\1" + b"".join(struct.pack(">QQQ", *run) for run in _RUNS)],
        covers=(f"{_ENGINE}.router.provenance:_decode", f"{_ENGINE}.router.provenance"),
    ),
    Target(
        name="place of a router",
        decode=_place,
        errors=(TopicsError,),
        samples=[msgspec.msgpack.encode(RouterPlace(3, 1 << 40, token)) for token in ("", "ab" * 16)],
        covers=(f"{_ENGINE}.router.places", f"{_ENGINE}.router.places:_decode"),
        again=lambda made: msgspec.msgpack.encode(made[0]),
    ),
    Target(
        name="row of a group",
        decode=decode_group,
        errors=DAMAGE,
        samples=[GroupRow(name="g", created_ts=1, active_ts=2).encode()],
        covers=(f"{_ENGINE}.offsets.positions",),
        again=GroupRow.encode,
    ),
    Target(
        name="position of a group",
        decode=decode_position,
        errors=DAMAGE,
        samples=[Position(9, 1, "m\u00e9", 7).encode()],
        covers=(f"{_ENGINE}.offsets.positions:decode_position",),
        again=Position.encode,
    ),
    Target(
        name="key of a position",
        decode=read_position_key,
        errors=(struct.error,),
        samples=[position_key(1, 2, 3)],
        covers=(f"{_ENGINE}.offsets.positions:read_position_key",),
        again=lambda made: position_key(*made),
    ),
    Target(
        name="members of a group",
        decode=_loaded,
        errors=(ValueError,),
        samples=_groups(),
        growth=2000,
        covers=(
            f"{_ENGINE}.membership.stored:load",
            f"{_ENGINE}.membership.stored",
            f"{_ENGINE}.membership.coordinator:load",
        ),
    ),
    Target(
        name="subscription of a classic member",
        decode=lambda data: (subscriptions.consumer_topics(data), subscriptions.consumer_assignment(data)),
        samples=[subscription("t", "u", userdata=b"x"), assignment({"t": [0, 1], "u": []})],
        covers=(
            f"{_ENGINE}.membership.subscriptions:consumer_topics",
            f"{_ENGINE}.membership.subscriptions:consumer_assignment",
            f"{_ENGINE}.membership.subscriptions:_int",
            f"{_ENGINE}.membership.subscriptions:_string",
            f"{_ENGINE}.membership.subscriptions:__init__",
        ),
    ),
    Target(
        name="pattern of a subscription",
        decode=_pattern,
        errors=(RefusedError,),
        samples=[b"t.*", b"(a|b){3,9}[^x]+$", b"(?i)(\\w+){1000}"],
        covers=(f"{_ENGINE}.membership.subscriptions:compile_pattern",),
    ),
    Target(
        name="row of a producer",
        decode=lambda row: producers._decode(7, row),
        errors=(struct.error,),
        samples=[producers.Producer(7, 2, 99, (producers.Known(0, 4, 11), producers.Known(5, 5, 16))).encode()],
        covers=(f"{_ENGINE}.producers:_decode",),
        again=producers.Producer.encode,
    ),
)
