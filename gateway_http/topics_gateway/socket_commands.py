"""Client commands on a WebSocket, from JSON text (docs/contract.md, 9)."""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from topics_gateway.append_decoder import Options, decode_body, read_options, to_append
from topics_gateway.append_schema import Publish
from topics_gateway.body import OBJECT_BYTES
from topics_gateway.json_fields import Fields, JsonObject, parse_object
from topics_gateway.watch_endpoints import read_subscription, read_topics
from topics_service.engine.errors import TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendRequest
from topics_service.engine.watch.frames import WatchRequest, WatchTopic
from topics_service.engine.watch.scope import by_topic_partition

_ENVELOPE: Final = frozenset({"op", "request_id"})
_SUBSCRIBE: Final = _ENVELOPE | {
    "topic", "topics", "from_seq", "tail", "node", "filter", "limit", "max_batch_bytes", "include_data", "include_meta",
    "include_tags", "lenient", "consistency", "partition",
}  # fmt: skip
_UNSUBSCRIBE: Final = _ENVELOPE | {"topic", "topics", "partition"}
_NULLABLE: Final = frozenset({"request_id", "node", "filter", "partition"})
_LIMIT: Final = 1000


class MalformedError(Exception):
    """The text is no command: not JSON, an unknown op, a required member missing or one of a wrong type."""


class _Subscribe(Struct, tag_field="op", tag="subscribe"):
    request_id: Raw = Raw()


class _Unsubscribe(Struct, tag_field="op", tag="unsubscribe"):
    request_id: Raw = Raw()


class _Ping(Struct, tag_field="op", tag="ping"):
    request_id: Raw = Raw()


_COMMAND: Final = msgspec.json.Decoder(_Subscribe | _Unsubscribe | Publish | _Ping)


class Command(Struct):
    """A command. `request_id` is its JSON text as it was sent, `null` when there was none."""

    request_id: bytes


class Subscribe(Command):
    """Follow topics. `request` may lack any."""

    request: WatchRequest


class Unsubscribe(Command):
    """Follow topics or patterns no longer."""

    topics: list[str]


class Write(Command):
    """Append records; faults are found when `read` is called."""

    text: bytes
    body: Publish
    options: Options

    def read(self, limits: Limits) -> AppendRequest:
        """The append. Raises `invalid_request`."""
        return to_append(self.body.topic, self.text, self.body, self.options, limits)


class Ping(Command):
    """Ask for an answer."""


def read_command(text: bytes) -> Command:
    """The command in `text`. Raises MalformedError."""
    if len(text) > OBJECT_BYTES and b'"publish"' not in text:
        raise MalformedError(f"the command has more than {OBJECT_BYTES} bytes, which only a publish may")
    try:
        found = decode_body(text, _COMMAND, "the command")
        request_id = bytes(found.request_id) or b"null"
        match found:
            case Publish():
                return Write(request_id, text, found, read_options(found))
            case _Subscribe():
                return Subscribe(request_id, _subscription(_fields(text, _SUBSCRIBE)))
            case _Unsubscribe():
                return Unsubscribe(request_id, _names(_fields(text, _UNSUBSCRIBE)))
            case _:
                _fields(text, _ENVELOPE)
                return Ping(request_id)
    except TopicsError as error:
        raise MalformedError(error.message) from None


def _fields(text: bytes, known: frozenset[str]) -> Fields:
    if len(text) > OBJECT_BYTES:
        raise invalid(f"it has more than {OBJECT_BYTES} bytes")
    return Fields(parse_object(text, "the command"), known, _NULLABLE)


def _subscription(fields: Fields) -> WatchRequest:
    topics = {}
    if fields.has("topics") and (not isinstance(given := fields.value("topics"), JsonObject) or given.members):
        topics = read_topics(given)
    start = WatchTopic(from_seq=fields.integer("from_seq") or 0, tail=fields.boolean("tail") is True)
    if (name := _topic_partition(fields)) is not None:
        topics.setdefault(name, start)
    request = read_subscription(fields, topics)
    request.limit = request.limit or _LIMIT
    request.max_batch_bytes = request.max_batch_bytes or 0
    request.lenient = fields.boolean("lenient") is True
    return request


def _topic_partition(fields: Fields) -> str | None:
    """The topic partition that the members `topic` and `partition` name, if any."""
    topic, partition = fields.text("topic"), fields.integer("partition") or 0
    return None if topic is None else next(iter(by_topic_partition([(topic, partition, WatchTopic())])))


def _names(fields: Fields) -> list[str]:
    names = [] if (name := _topic_partition(fields)) is None else [name]
    if fields.has("topics"):
        match fields.value("topics"):
            case JsonObject(members=members):
                names += [name for name, _ in members]
            case list(more) if all(isinstance(name, str) for name in more):
                names += more
            case _:
                raise invalid("topics must be an array of strings, or an object")
    return names
