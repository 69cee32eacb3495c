"""Hypothesis strategies for requests to both protocols: valid ones, nearly valid ones and noise, as plain data.

Every strategy draws a valid request first and then spoils none, one or a few of its values, its bytes or its manners,
so that most of what is drawn gets far into the server. Names come from small pools, so that requests meet.
"""

import gzip
import json
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import strategies as st

from topics_gateway.routes import annotated_routes
from topics_proto.v1 import (
    admin_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    topics_service_pb2,
    watch_service_pb2,
)

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]

KEYS = {
    "sekret-full": "",
    "sekret-read": "read",
    "sekret-write": "write",
    "sekret-delete": "delete",
    "sekret-admin": "admin+write",
    "sekret-t42": ":t42:|q",
}
API_KEYS = ",".join(f"{key}:{rights}" if rights else key for key, rights in KEYS.items())

POOL = ("a", "b", "orders.eu", "t42:x", "t42:y", "q-1", "Zz")
PATIENT_MS = 50  # whoever may have to wait for longer leaves by itself


class HttpCall(NamedTuple):
    """One HTTP request. `manner` is how it is sent, `cut` a number from 0 to 1 for where it breaks."""

    keyed: bool
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    manner: str
    cut: float
    parks: bool  # may wait for longer than a test wants to
    version: str = "1.1"


class GrpcCall(NamedTuple):
    """One gRPC call with its messages as bytes. `manner` is how it ends."""

    keyed: bool
    path: str
    messages: tuple[bytes, ...]
    metadata: tuple[tuple[str, str], ...]
    manner: str
    seconds: float
    parks: bool
    compressed: bool


# ------------------------------------------------------------------------------------------------------ values

U64 = (1 << 64) - 1
WILD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from([U64, U64 + 1, -1, "", "*", "\ud800", "\0", 1.0, "5", 10**60, [], {}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
NUMBERS = st.sampled_from([0, 0, 1, 2, 3, 5, 50, 1000, 1 << 32, 1 << 63, U64])
DATA = st.sampled_from([None, 1, "x", True, {"a": [1, "é"]}, [], "y" * 300, 1e300]) | WILD
TAGS = st.sampled_from(["", "a", "a:1", "a:2", "b", "é", "a*"] * 3 + ["t" * 256, "t" * 257])
NODES = st.sampled_from(["", "n", "m"] * 6 + ["é" * 64, "n" * 129])
META = st.sampled_from(
    [None, {}, {"k": "v"}, {"k": 1, "é": [None]}] * 4 + [{"k": "v" * 200}, {"k": "v" * 17_000}, [], "x"]
)
ODD_NAMES = ["A" * 255, "a" * 256, "", ".", "..", "-a", "a/b", "a b", "é", "\0", "💥", "%", "a?b", "%2e"]
NAMES = st.one_of(*[st.sampled_from(POOL)] * 9, st.sampled_from(ODD_NAMES), st.text(max_size=4))

CONFIG = {
    "type": st.sampled_from(["log", "log", "queue"]),
    "ttl_ms": st.sampled_from([0, 1, 30, 1 << 40, U64]),
    "cap_records": st.sampled_from([0, 1, 3, 50, U64]),
    "cap_bytes": st.sampled_from([0, 1, 10, 2000, U64]),
    "discard": st.sampled_from(["old", "reject"]),
    "durable": st.booleans(),
    "durability": st.sampled_from(["ephemeral", "memory", "disk", "fsync", None]),
    "priority": st.sampled_from([None, -5, 0, 3, 5000]),
    "auto_priority": st.booleans(),
    "auto_create": st.booleans(),
    "idempotency_window_ms": st.sampled_from([0, 1, 20, 120_000, U64]),
    "dedupe_node": st.booleans(),
    "lease_ms": NUMBERS,
    "claim_jitter_ms": NUMBERS,
    "max_deliveries": NUMBERS,
    "dead_letter": st.sampled_from([None, "dead", "t42:dead", "a", ""]),
    "leases_durable": st.booleans(),
}
PARTITION = st.sampled_from([0, 0, 0, 1, 1, 2, None, U64])
RECORD = {"data": DATA, "tag": TAGS | st.none(), "node": NODES | st.none(), "meta": META}
MATCH = st.builds(lambda tag: ["tag", "Eq", tag], TAGS) | st.builds(lambda tag: ["tag", "Glob", tag + "*"], TAGS) | TAGS
WRITE = {
    "node": NODES | st.none(),
    "idempotency_key": st.sampled_from(["k1", "k2", "", None] * 3 + ["é" * 256, "k" * 257]),
    "create": st.booleans() | st.none(),
    "config": st.deferred(lambda: some_of(CONFIG)) | st.none(),
    "disable_backpressure": st.booleans(),
    "partition": PARTITION,
}
WAITS = st.sampled_from([0, 0, 0, 1, 10, 30, 30_000, U64])
DIFF = {
    "from_seq": NUMBERS,
    "limit": NUMBERS,
    "node": NODES | st.lists(NODES, max_size=2) | st.none(),
    "include_tags": st.booleans(),
    "include_meta": st.booleans(),
    "wait_ms": WAITS,
    "max_batch_bytes": NUMBERS,
    "from_ts": st.sampled_from([0, 1, 1 << 41, U64]),
    "last": NUMBERS,
    "partition": PARTITION,
}
DELETE = {"before_seq": NUMBERS, "match": MATCH, "partition": PARTITION}

# Built once: large bodies are to cost the server something, not the drawing.
HEAVY = [
    b'{"records":[{"data":"%s"}]}' % (b"x" * ((1 << 20) - 2)),
    b'{"records":[{"data":"%s"}]}' % (b"x" * (1 << 20)),
    b'{"records":[%s]}' % b",".join([b'{"data":1}'] * 2000),
    b'{"records":[%s]}' % b",".join([b'{"data":1}'] * 10_001),
    b'{"records":[{"data":%s}]}' % (b"[" * 100_000),
    b"{%s}" % b",".join(b'"k%d":1' % i for i in range(10_000)),
]


def once_in(draw: Draw[Any], times: int) -> bool:
    """True that rarely. (Hypothesis likes the ends of a range of integers and draws them far more often.)"""
    return bool(draw(st.sampled_from(range(times))) == times // 2)


@st.composite
def some_of(draw: Draw[Any], fields: dict[str, st.SearchStrategy[Any]], maximum: int = 4) -> dict[str, Any]:
    """Some members of an object, each with a value that fits it."""
    chosen = draw(st.lists(st.sampled_from(sorted(fields)), unique=True, max_size=maximum))
    return {name: draw(fields[name]) for name in chosen}


def spoil(draw: Draw[Any], body: dict[str, Any]) -> None:
    """Replace, drop or add members, here or in the first record."""
    target = body
    records = body.get("records")
    if isinstance(records, list) and records and isinstance(records[0], dict) and draw(st.booleans()):
        target = records[0]
    field = draw(st.sampled_from([*sorted(target), "unknown"]))
    if once_in(draw, 4):
        target.pop(field, None)
    else:
        target[field] = draw(WILD)


def mutated(draw: Draw[Any], data: bytes) -> bytes:
    """`data` with a byte or a few changed."""
    text = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = int(draw(st.floats(0, 1)) * len(text))
        how = draw(st.sampled_from(["insert", "delete", "replace", "repeat", "cut"]))
        if how == "insert":
            text[at:at] = draw(st.sampled_from([b'"', b"{", b"]", b",", b"\\u", b"1e9", b"\xed\xa0\x80", b"\0", b"9"]))
        elif how == "delete":
            del text[at : at + 3]
        elif how == "replace" and at < len(text):
            text[at] = draw(st.integers(0, 255))
        elif how == "repeat":
            text[at:at] = text[max(0, at - 12) : at]
        else:
            del text[max(at, 1) :]
    return bytes(text)


# -------------------------------------------------------------------------------------------------------- HTTP

ROUTES = sorted({(method, path) for _, method, path in annotated_routes()})
TOPIC_CALLS = ["put", "write", "write", "write", "diff", "diff", "diff", "delete", "get", "list", "drop"]
METHODS = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW", "get"]
QUERY = {
    "touch": st.sampled_from(["true", "false", "1", "0", "x", ""]),
    "return_seqs": st.sampled_from(["true", "false", "1", "0", "x", ""]),
    "if_empty": st.sampled_from(["true", "false", "1", "0", "x", ""]),
    "prefix": st.sampled_from(["", "t42:", "a", "é", "\0"]),
    "page_size": st.sampled_from(["0", "1", "2", "1000", "99999", "-1", "x", ""]),
    "cursor": st.sampled_from(["", "x", "YQ", "YQ==", "====", "é"]),
    "partition": st.sampled_from(["0", "1", "2", "x", "", "-1", "9" * 30]),
}
PATHS = [
    "/", "*", "/v0", "/v0/", "/v0/topics/", "/v0/topics/a/xyz", "/metrics", "/v0/ws", "//v0//topics", "/v0/topics/%ff",
    "/v0/topics/%00", "/v0/topics/%", "/v0/topics/a%2Fdiff", "/v0/topics/a/diff/", "/v0/topics?cursor=%ff&&=&%",
    "/v0/topics/" + "a" * 9000, "http://evil/v0/topics", "/v0/../v0/topics", "/v0/topics/a;b", "/v0/topics/a#b", "x",
]  # fmt: skip
HEADERS = st.sampled_from(
    [
        ("Accept", "application/json"), ("Accept", "text/event-stream"), ("Accept", "\xff"),
        ("Accept-Encoding", "gzip"), ("Accept-Encoding", "gzip;q=0, br"), ("Accept-Encoding", "*"),
        ("Idempotency-Key", "k1"), ("Idempotency-Key", "\xff\xfe"), ("Idempotency-Key", "k" * 300),
        ("Expect", "100-continue"), ("Expect", "x"), ("Connection", "close"), ("Connection", "keep-alive, x"),
        ("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABkAAQ"),
        ("Host", "evil"), ("Cookie", "a=b"), ("X-Long", "y" * 5000), ("X-Huge", "y" * 70_000), ("X-Odd", "\x80"),
        ("Content-Type", "text/plain"), ("Content-Type", "application/json; charset=latin-1"),
        ("Last-Event-ID", "e30"), ("TE", "trailers"), ("Range", "bytes=0-1"), ("If-None-Match", "*"), ("Date", "0"),
    ]
)  # fmt: skip
TOKENS = [f"Bearer {key}" for key in KEYS]
BAD_TOKENS = ["", "Bearer", "Bearer ", "bearer sekret-full", "Bearer nobody", "Basic eA==", "Bearer \xff"]
MANNERS = ["whole"] * 12 + ["http2"] * 8 + ["pieces", "chunked", "chunked", "pipelined", "http1.0", "half_close"]
MANNERS += ["abort", "reset", "leave", "leave_reset"]


def authorization(draw: Draw[Any], keyed: bool) -> str | None:
    """A token, mostly a good one where there are keys."""
    kinds = TOKENS[:1] * 8 + TOKENS + (BAD_TOKENS if once_in(draw, 8) else [])
    return draw(st.sampled_from(kinds)) if keyed or once_in(draw, 10) else None


def body_of(draw: Draw[Any], kind: str) -> dict[str, Any] | None:
    """A fitting body for a call of this kind."""
    if kind == "put":
        return draw(some_of(CONFIG | {"partition_count": st.sampled_from([1, 2, 2, 3, None])}))
    if kind == "write":
        records = [{"data": draw(DATA)} | draw(some_of(RECORD, 2)) for _ in range(draw(st.integers(1, 4)))]
        return {"records": records} | draw(some_of(WRITE, 2))
    if kind == "diff":
        return draw(some_of(DIFF))
    return draw(some_of(DELETE)) if kind == "delete" else None


@st.composite
def http_calls(draw: Draw[Any]) -> HttpCall:
    """A request to the HTTP API."""
    keyed = draw(st.booleans())
    kind = draw(st.sampled_from([*TOPIC_CALLS, "route", "path"]))
    name = quote(draw(NAMES), safe=draw(st.sampled_from(["", ":", "/:"])))
    parks = False
    if kind == "path":
        method, target, found = draw(st.sampled_from(METHODS)), draw(st.sampled_from(PATHS)), draw(WILD)
    elif kind == "route":
        method, target = draw(st.sampled_from(ROUTES))
        for part in ("{topic}", "{router}", "{wid}"):
            target = target.replace(part, name)
        if draw(st.booleans()):
            method = draw(st.sampled_from(METHODS))
        found = body_of(draw, draw(st.sampled_from(TOPIC_CALLS)))
    else:
        method = {"put": "PUT", "get": "GET", "list": "GET", "drop": "DELETE"}.get(kind, "POST")
        tail = f"/{kind}" if kind in ("diff", "delete") else ""
        target = "/v0/topics" if kind == "list" else f"/v0/topics/{name}{tail}"
        found = body_of(draw, kind)
    if isinstance(found, dict):
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
            spoil(draw, found)
        wait = found.get("wait_ms", 0)
        parks = not isinstance(wait, int) or wait > PATIENT_MS
    if once_in(draw, 3):
        query = draw(some_of(QUERY, 3))
        target += ("?" + urlencode(query)) if query else ""
    body = None if found is None else json.dumps(found).encode()
    if body is not None and once_in(draw, 10):
        body, parks = mutated(draw, body), True
    if once_in(draw, 150):
        body = draw(st.sampled_from(HEAVY))
    headers = draw(st.lists(HEADERS, max_size=2)) if once_in(draw, 4) else []
    if body is not None and not once_in(draw, 30):
        headers.append(("Content-Type", "application/json"))
    if body is not None and once_in(draw, 6):
        headers.append(("Content-Encoding", draw(st.sampled_from(["gzip"] * 8 + ["br", "identity"]))))
        if not once_in(draw, 8):
            body = gzip.compress(body, 1)
            if once_in(draw, 6):
                body = mutated(draw, body)
    if (token := authorization(draw, keyed)) is not None:
        headers.append(("Authorization", token))
    manner, cut = draw(st.sampled_from(MANNERS)), draw(st.floats(0, 1))
    version = "1.0" if manner == "http1.0" else "1.1"
    return HttpCall(keyed, method, target, tuple(headers), body, manner, cut, parks, version)


# -------------------------------------------------------------------------------------------------------- gRPC

SERVICES = {
    service.full_name: service
    for module in (
        topics_service_pb2, admin_service_pb2, queue_service_pb2, router_service_pb2, watch_service_pb2, health_pb2,
        reflection_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
}  # fmt: skip
BUILT = ("topics.v1.TopicsService", "topics.v1.AdminService")
ALWAYS = {
    "AppendRequest": ("topic",),
    "AppendStreamRequest": ("append",),
    "DeleteRecordsRequest": ("before_seq",),
    "AppendRecord": ("data",),
}
JSON_BYTES = st.sampled_from(
    [b"1", b'"x"', b"null", b'{"a": [1]}', b'"%s"' % (b"y" * 300)] * 8 + [b"", b"{", b"\xff", b"nul"]
)
META_BYTES = st.sampled_from([b"", b"{}", b'{"k":"v"}'] * 8 + [b"[]", b"{", b"\xff", b'{"k":"%s"}' % (b"v" * 200)])
BYTES = {"data": JSON_BYTES, "meta": META_BYTES, "kinds": st.binary(max_size=3)}
TEXTS = {
    "topic": NAMES,
    "dead_letter": NAMES,
    "prefix": TAGS,
    "eq": TAGS,
    "tag": TAGS,
    "node": NODES,
    "idempotency_key": st.sampled_from(["k1", "k2", "", "é" * 256, "k" * 257]),
    "cursor": QUERY["cursor"],
    "service": st.sampled_from(["", *SERVICES]),
}
INTS = {name: CONFIG[name] for name in ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms")}
INTS |= {"wait_ms": WAITS, "partition": st.sampled_from([0] * 9 + [1]), "partition_count": st.sampled_from([0, 1, 2])}


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values for a field that holds no message."""
    if field.type == field.TYPE_BYTES:
        return BYTES.get(field.name, st.binary(max_size=8))
    if field.type == field.TYPE_STRING:
        return TEXTS.get(field.name, st.text(max_size=6))
    if field.type == field.TYPE_BOOL:
        return st.booleans()
    if field.type == field.TYPE_ENUM:
        return st.sampled_from([*(value.number for value in field.enum_type.values)] * 6 + [77])
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return st.floats()
    if field.name in INTS:
        return INTS[field.name]
    if field.type in (field.TYPE_INT64, field.TYPE_SINT64):
        return st.sampled_from([0, 1, 1 << 40, (1 << 63) - 1, -1])
    if field.type in (field.TYPE_INT32, field.TYPE_SINT32):
        return st.sampled_from([0, 1, -5, 5000, (1 << 31) - 1])
    if field.type == field.TYPE_UINT32:
        return st.sampled_from([0, 1, 2, 5, 1000, (1 << 32) - 1])
    return NUMBERS


@st.composite
def columns(draw: Draw[Any]) -> Message:
    """A batch in columns that fits together, more or less."""
    count = draw(st.integers(0, 5))
    made = topics_service_pb2.AppendRequest().columns
    made.data.extend(draw(st.lists(JSON_BYTES, min_size=count, max_size=count)))
    if draw(st.booleans()):
        made.kind = draw(st.sampled_from([0, 1, 2, 2, 77]))
    if once_in(draw, 4):
        made.kinds = bytes(draw(st.lists(st.sampled_from([0, 1, 2, 2, 9]), min_size=count, max_size=count)))
    for name, values in (("tag", TAGS.map(str.encode)), ("node", NODES.map(str.encode)), ("meta", META_BYTES)):
        how = draw(st.sampled_from(["none", "none", "shared", "values", "wild"]))
        column = getattr(made, name)
        if how in ("shared", "wild"):
            column.shared = draw(values)
        if how in ("values", "wild"):
            size = count if how == "values" else draw(st.integers(0, 5))
            column.value.extend(draw(st.lists(values, min_size=size, max_size=size)))
            for i in draw(st.lists(st.integers(0, 5), max_size=2)):
                if how == "wild" or (i < size and i not in column.absent and i >= max(column.absent, default=0)):
                    column.absent.append(i)
                    if how == "values":
                        column.value[i] = b""
    return made


@cache
def messages(descriptor: Descriptor) -> st.SearchStrategy[Message]:
    """Messages of this type with some of their fields set."""
    return columns() if descriptor.name == "ColumnBatch" else _messages(descriptor)


@st.composite
def _messages(draw: Draw[Any], descriptor: Descriptor) -> Message:
    made = message_factory.GetMessageClass(descriptor)()
    fields = {field.name: field for field in descriptor.fields if not _is_map(field)}
    chosen = set(ALWAYS.get(descriptor.name, ()))
    if descriptor.name == "AppendRequest":
        chosen.add(draw(st.sampled_from(["records", "columns"])))
    elif "topic" in fields:
        chosen.add("topic")
    if fields:
        chosen.update(draw(st.lists(st.sampled_from(sorted(fields)), unique=True, max_size=3)))
    for name in sorted(chosen):
        field = fields[name]
        values = scalars(field) if field.message_type is None else messages(field.message_type)
        if field.is_repeated:
            getattr(made, name).extend(draw(st.lists(values, min_size=name == "records", max_size=4)))
        elif field.message_type is not None:
            getattr(made, name).CopyFrom(draw(values))
        elif (value := draw(values)) is not None:
            setattr(made, name, value)
    return made


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def may_park(method: MethodDescriptor, message: Message) -> bool:
    """Return True if the call may wait for something to happen."""
    if method.name == "Watch" and method.containing_service.name == "Health":
        return True
    return getattr(message, "wait_ms", 0) > PATIENT_MS or bool(getattr(message, "follow", False))


@st.composite
def grpc_calls(draw: Draw[Any]) -> GrpcCall:
    """A call to the gRPC API."""
    keyed = draw(st.booleans())
    service = SERVICES[draw(st.sampled_from([*BUILT[:1] * 12, BUILT[1], *sorted(SERVICES)]))]
    method = draw(st.sampled_from(sorted(service.methods, key=lambda method: method.name)))
    if service.name == "TopicsService" and draw(st.booleans()):
        method = service.methods_by_name[draw(st.sampled_from(["Append", "AppendStream", "Diff", "BulkDiff"]))]
    count = draw(st.integers(0, 6)) if method.client_streaming else 1
    drawn = [draw(messages(method.input_type)) for _ in range(count)]
    parks = any(may_park(method, message) for message in drawn)
    raw = [message.SerializeToString() for message in drawn]
    if raw and once_in(draw, 14):
        raw[draw(st.integers(0, len(raw) - 1))] = mutated(draw, raw[0])
        parks = True
    path = f"/{service.full_name}/{method.name}"
    if once_in(draw, 40):
        path = draw(st.sampled_from(["/topics.v1.TopicsService/Nope", "/x/y", "/topics.v1.Nope/Append", "/"]))
    metadata = []
    if (token := authorization(draw, keyed)) is not None and token.isascii():
        metadata.append(("authorization", token.strip()))
    if once_in(draw, 10):
        metadata.append(("x-something", "y" * draw(st.sampled_from([0, 1, 2000]))))
    manner = draw(st.sampled_from(["whole"] * 9 + ["deadline", "cancel", "cancel", "hang_up"]))
    seconds = draw(st.sampled_from([0.0005, 0.002, 0.01, 0.04]))
    return GrpcCall(keyed, path, tuple(raw), tuple(metadata), manner, seconds, parks, compressed=once_in(draw, 10))


CALLS: st.SearchStrategy[HttpCall | GrpcCall] = http_calls() | grpc_calls()
