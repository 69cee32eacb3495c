"""Input over HTTP and gRPC before authentication: bodies, cursors, ids, commands."""

import gzip
from typing import Any, Final

from fuzz.target import Target

from topics_gateway.append_decoder import read_append
from topics_gateway.body import inflate
from topics_gateway.config import read_config
from topics_gateway.json_fields import Fields, parse_object
from topics_gateway.record_endpoints import read_match, read_nodes
from topics_gateway.router_endpoints import read_router
from topics_gateway.routes import split_path
from topics_gateway.socket_commands import MalformedError, Write, read_command
from topics_gateway.sse import query_token
from topics_gateway.watch_endpoints import _NULLABLE, _WATCH, read_watch
from topics_gateway.watch_events import cursor_id, read_cursor_id
from topics_service.api.access import scram
from topics_service.api.access.auth import KeySyntaxError, parse_keys, read_bearer
from topics_service.api.access.verifiers import Verifier
from topics_service.api.cursor import read_cursor, write_cursor
from topics_service.api.jsontext import check_meta, normalize_json
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.watch.topic_partition import parse_topic_partition
from topics_service.storage.recordbatch.jsonvalue import all_json, is_json, kinds_of
from topics_service.storage.recordbatch.mapping import key_and_headers

_GATEWAY: Final = "topics_gateway"
_LIMITS: Final = Limits()
_WRITE: Final = (
    b'{"records":[{"data":{"a":[1,2.5e3,"\\u00e9"]},"tag":"t","node":"n","meta":{"k":1}},{"data":null}],"node":"w",'
    b'"idempotency_key":"k","create":true,"config":{"type":"queue","ttl_ms":5,"retain_until_acked_by":["g"]},"partition":1,'
    b'"delay_ms":7,"priority":3}'
)
_SUBSCRIBE: Final = (
    b'{"op":"subscribe","request_id":[1],"topics":{"a":{"from_seq":3},"b@2":{"tail":true},"c-*":{}},"node":["n"],"limit":9,'
    b'"filter":["tag","Glob","x*"],"consistency":"strong","include_meta":false}'
)
_WATCHED: Final = (
    b'{"topics":{"a":{"from_seq":3,"partition":2},"b":{"tail":true}},"cursor":"eyJhIjo1fQ","heartbeat_ms":5,"limit":3,'
    b'"node":"n","filter":"t","consistency":"eventual"}'
)


_VERIFIER: Final = Verifier(
    "",
    *(
        f"{name}$16384:c2FsdHNhbHRzYWx0c2FsdA==${key}:{key}"
        for name, key in ((scram.SHA_256, "A" * 43 + "="), (scram.SHA_512, "A" * 86 + "=="))
    ),
)  # no password has it


def _scram(data: bytes) -> Any:
    first, _, final = data[1:].partition(b"\n")
    mechanism = (scram.SHA_256, scram.SHA_512)[data[0] % 2 if data else 0]
    exchange = scram.Exchange(mechanism, _VERIFIER, scram.user_of(first), b"key", nonce="server")
    return exchange.first(first), exchange.final(final)


def _command(text: bytes) -> Any:
    command = read_command(text)
    return command.read(_LIMITS) if isinstance(command, Write) else command


def _values(text: bytes) -> Any:
    """Every rule of a value, for the members of an object."""
    found: list[Any] = []
    for name, value in parse_object(text).members:
        for read in (read_match, read_nodes):
            try:
                found.append((name, read(value)))
            except TopicsError as error:
                found.append((name, error))
    return found


def _json(data: bytes) -> Any:
    """Two ways to say whether a text is JSON agree."""
    alone, together = is_json(data), all_json([data])
    assert alone or not together
    kinds = kinds_of([data, b"1"])
    assert (kinds is None) == alone or kinds == b"\1\0"
    return normalize_json(data)


TARGETS = (
    Target(
        name="body in gzip",
        decode=lambda data: inflate(data, 1 << 16),
        errors=(TopicsError,),
        samples=[gzip.compress(b'{"a":1}' * 20), gzip.compress(bytes(1 << 20)), gzip.compress(b"")],
        covers=(f"{_GATEWAY}.body:inflate",),
    ),
    Target(
        name="body",
        decode=parse_object,
        errors=(TopicsError,),
        samples=[_WRITE, _WATCHED, b'{"a":-1.5e-3,"b":[{}],"c":"\\u00e9\\ud83d\\ude00"}', b"{}"],
        growth=1000,
        covers=(f"{_GATEWAY}.json_fields:parse_object",),
    ),
    Target(
        name="write",
        decode=lambda text: read_append("t", text, _LIMITS),
        errors=(TopicsError,),
        samples=[_WRITE, b'{"records":[{"data":1}]}', b'{ "records" : [ {"data":"x"} ] }'],
        growth=1000,
        covers=(
            f"{_GATEWAY}.append_decoder:read_append",
            f"{_GATEWAY}.append_decoder:read_options",
            f"{_GATEWAY}.append_decoder:decode_body",
            f"{_GATEWAY}.append_decoder",
            f"{_GATEWAY}.duplicate_keys",
            f"{_GATEWAY}.duplicate_keys:refuse_duplicates",
        ),
    ),
    Target(
        name="configuration",
        decode=lambda text: read_config(parse_object(text)),
        errors=(TopicsError,),
        samples=[
            b'{"type":"log","ttl_ms":5,"priority":-3,"durable":true,"dead_letter":null,"retain_until_acked_by":["g"]}'
        ],
        growth=1000,
        covers=(f"{_GATEWAY}.config:read_config",),
    ),
    Target(
        name="router",
        decode=lambda text: read_router("r", parse_object(text)),
        errors=(TopicsError,),
        samples=[b'{"source":"a","dest":"b","filter":["tag","Eq","x"],"guarantee":"exactly_once","backfill":true}'],
        growth=1000,
        covers=(f"{_GATEWAY}.router_endpoints:read_router",),
    ),
    Target(
        name="rules of tags and nodes",
        decode=_values,
        errors=(TopicsError,),
        samples=[b'{"a":["tag","Eq","x"],"b":["tag","Glob","x*"],"c":"x","d":["a","b"],"e":null}'],
        growth=1000,
        covers=(f"{_GATEWAY}.record_endpoints:read_match", f"{_GATEWAY}.record_endpoints:read_nodes"),
    ),
    Target(
        name="watch",
        decode=lambda text: read_watch(Fields(parse_object(text), _WATCH, _NULLABLE)),
        errors=(TopicsError,),
        samples=[_WATCHED],
        growth=1000,
        covers=(
            f"{_GATEWAY}.watch_endpoints:read_watch",
            f"{_GATEWAY}.watch_endpoints:read_subscription",
            f"{_GATEWAY}.watch_endpoints:read_topics",
        ),
    ),
    Target(
        name="command on a WebSocket",
        decode=_command,
        errors=(MalformedError, TopicsError),
        samples=[
            _SUBSCRIBE,
            b'{"op":"publish","topic":"t","request_id":1,' + _WRITE[1:],
            b'{"op":"unsubscribe","topics":["a","b"]}',
            b'{"op":"ping","request_id":"x"}',
        ],
        growth=1000,
        covers=(f"{_GATEWAY}.socket_commands:read_command", f"{_GATEWAY}.socket_commands"),
    ),
    Target(
        name="id of an event",
        decode=read_cursor_id,
        samples=[cursor_id({"a": 1}), cursor_id({"a": 5, "b@2": 1 << 63, "c": 0})],
        growth=1000,
        covers=(f"{_GATEWAY}.watch_events:read_cursor_id",),
        again=lambda made: cursor_id(made),
    ),
    Target(
        name="cursor of a listing",
        decode=lambda data: read_cursor(data.decode("latin-1")),
        errors=(TopicsError,),
        samples=[write_cursor("jobs").encode(), write_cursor("a->b\u00e9").encode()],
        covers=("topics_service.api.cursor:read_cursor",),
        again=lambda made: write_cursor(made).encode(),
    ),
    Target(
        name="place in a watch",
        decode=lambda data: parse_topic_partition(data.decode(errors="replace")),
        samples=[b"t@3", b"t", b"t*"],
        covers=("topics_service.engine.watch.topic_partition:parse_topic_partition",),
    ),
    Target(
        name="path",
        decode=split_path,
        errors=(TopicsError,),
        samples=[b"/v0/topics/a%3Ab/diff", b"/v0/routers/a-%3Eb"],
        covers=(f"{_GATEWAY}.routes:split_path",),
    ),
    Target(
        name="token in a query",
        decode=query_token,
        samples=[b"a=1&token=x%20y+z", b"%74oken=1&token=2"],
        covers=(f"{_GATEWAY}.sse:query_token",),
    ),
    Target(
        name="header with a key",
        decode=read_bearer,
        samples=[b"Bearer sekret", b"bearer x"],
        covers=("topics_service.api.access.auth:read_bearer",),
    ),
    Target(
        name="list of keys",
        decode=lambda data: parse_keys(data.decode(errors="surrogateescape")),
        errors=(KeySyntaxError,),
        samples=[b"a,b:read+write:p1|p2,c::x:,:rw", b"k:admin"],
        covers=("topics_service.api.access.auth:parse_keys",),
    ),
    Target(
        name="data of a record",
        decode=_json,
        errors=(TopicsError,),
        samples=[b' {"a":[1,{"b":null}]} ', b"-0.5E+7", b'"\\ud83d\\ude00"', b"[" * 90 + b"]" * 90],
        covers=(
            "topics_service.api.jsontext:normalize_json",
            "topics_service.api.jsontext",
            "topics_service.storage.recordbatch.jsonvalue:is_json",
            "topics_service.storage.recordbatch.jsonvalue:all_json",
            "topics_service.storage.recordbatch.jsonvalue",
        ),
    ),
    Target(
        name="scram",
        decode=_scram,
        errors=(scram.ScramError,),
        samples=[
            b"\0n,,n=ada,r=client\nc=biws,r=clientserver,p=" + b"A" * 43 + b"=",
            b"\1y,a=a=2Cb,n=a=3Db,r=client\nc=eSxhPWE9MkNiLA==,r=clientserver,p=" + b"A" * 86 + b"==",
        ],
        covers=(
            "topics_service.api.access.scram:_base64",
            "topics_service.api.access.scram:_decoded",
            "topics_service.api.access.scram:_read",
        ),
    ),
    Target(
        name="meta of a record",
        decode=lambda data: check_meta(data, _LIMITS),
        errors=(TopicsError,),
        samples=[b'{"a":1,"b":{"c":[]}}', b"{%b}" % b",".join(b'"k%d":0' % i for i in range(65))],
        covers=("topics_service.api.jsontext:check_meta",),
    ),
    Target(
        name="meta for Kafka",
        decode=lambda meta: key_and_headers(b"tag", meta),
        samples=[
            b'{"$key":"a","h":["1",null,{"$base64":"/w=="}],"$base64:gA==":"x","$$key":"y"}',
            b'{"a":1,"b":"text"}',
            b'{"a":1,"b":"te\xd8t"}',
        ],
        covers=(
            "topics_service.storage.recordbatch.mapping:key_and_headers",
            "topics_service.storage.recordbatch.mapping:_decoded",
            "topics_service.storage.recordbatch.mapping:_contents",
            "topics_service.storage.recordbatch.mapping",
        ),
    ),
)
