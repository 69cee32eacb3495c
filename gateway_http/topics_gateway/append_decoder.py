"""From the body of a write to a batch of columns, without parsing the records' data (docs/contract.md, 4)."""

import codecs
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Raw

from topics_gateway.append_schema import Body, Record, Text
from topics_gateway.config import read_config
from topics_gateway.duplicate_keys import Columns, has_room_for_more, refuse_duplicates
from topics_gateway.json_fields import Fields, parse_object
from topics_service.api.jsontext import check_meta
from topics_service.engine.errors import invalid
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendRequest, Batch, ConfigInput

T = TypeVar("T")

_BODY: Final = msgspec.json.Decoder(Body)
_UTF8: Final = codecs.getincrementaldecoder("utf-8")
_STEP_BYTES: Final = 1 << 20


class Options(NamedTuple):
    """The parts of a body that are parsed exactly."""

    config: ConfigInput | None
    delay_ms: int
    priority: int
    partition: int


def read_append(topic: str, text: bytes, limits: Limits) -> AppendRequest:
    """The append that the JSON `text` asks for. `data` and `meta` are kept byte for byte.

    Raises `invalid_request` for malformed JSON, a wrong type, a duplicate key, or a meta beyond its limits. The
    number and size of the records are the engine's to judge.
    """
    body = decode_body(text, _BODY)
    return to_append(topic, text, body, read_options(body), limits)


def decode_body(text: bytes, decoder: msgspec.json.Decoder[T], what: str = "the body") -> T:
    """Decode the JSON `text`, named `what` in errors, with `decoder`. Raises `invalid_request`."""
    try:
        if not text.isascii():
            _check_utf8(text, what)  # msgspec skips over the string bytes inside a Raw
        return decoder.decode(text)
    except RecursionError:
        raise invalid(f"{what} is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise invalid(f"{what} is malformed: {error}") from None


def _check_utf8(text: bytes, what: str) -> None:
    """Raise `invalid_request` unless `text` is UTF-8. In steps: one character beyond the BMP makes all of a str of four
    bytes each."""
    decoder, view = _UTF8(), memoryview(text)
    for at in range(0, len(text), _STEP_BYTES):
        step = view[at : at + _STEP_BYTES]
        try:
            decoder.decode(step, at + len(step) == len(text))
        except UnicodeDecodeError as error:
            begin = at + len(step) - len(error.object)  # it may begin with the rest of the step before
            raise invalid(f"{what} is not valid UTF-8 (byte {begin + error.start})") from None


def read_options(body: Body) -> Options:
    """The members of `body` whose types are not checked yet. Raises `invalid_request`."""
    return Options(
        config=_config(bytes(body.config)),
        delay_ms=_number("delay_ms", body.delay_ms).amount("delay_ms") if body.delay_ms else 0,
        priority=(_number("priority", body.priority).integer("priority") or 0) if body.priority else 0,
        partition=_partition(bytes(body.partition)),
    )


def to_append(topic: str, text: bytes, body: Body, options: Options, limits: Limits) -> AppendRequest:
    """The append that `body`, decoded from `text`, asks for; see `read_append`."""
    datas = [record.data for record in body.records]
    tags = _text_column([record.tag for record in body.records])
    columns = Columns(datas, list(map(len, datas)), tags)
    if has_room_for_more(text, body, columns):  # a node or a meta takes room as well as a duplicate
        columns = columns._replace(
            nodes=_text_column([record.node for record in body.records]), metas=_meta_column(body.records, limits)
        )
        refuse_duplicates(text, body, columns, limits.max_record_bytes)
    return AppendRequest(
        topic=topic,
        batch=Batch(
            datas=columns.datas,
            tags=columns.tags,
            nodes=_with_default(columns.nodes, body.node, len(columns.datas)),
            metas=columns.metas,
            sizes=columns.sizes,
        ),
        idempotency_key=body.idempotency_key if isinstance(body.idempotency_key, str) else None,
        create=body.create if isinstance(body.create, bool) else None,
        config=options.config,
        disable_backpressure=body.disable_backpressure is True,
        delay_ms=options.delay_ms,
        priority=options.priority,
        partition=options.partition,
    )


def _text_column(values: list[Text]) -> list[bytes | None] | None:
    try:
        return list(map(str.encode, cast("list[str]", values)))
    except TypeError:  # not every record has one
        column = [value.encode() if isinstance(value, str) else None for value in values]
    return column if any(value is not None for value in column) else None


def _meta_column(records: Sequence[Record], limits: Limits) -> list[bytes | None] | None:
    raws = [record.meta for record in records]
    if not any(map(len, raws)):
        return None
    column = [text if (text := bytes(raw)) not in (b"", b"null") else None for raw in raws]
    present = [meta for meta in column if meta is not None]
    for meta in present:
        check_meta(meta, limits, checked=True)
    return column if present else None


def _with_default(nodes: list[bytes | None] | None, default: Text, count: int) -> list[bytes | None] | None:
    if not isinstance(default, str):
        return nodes
    node = default.encode()
    return [node] * count if nodes is None else [node if own is None else own for own in nodes]


def _number(name: str, text: Raw) -> Fields:
    return Fields(parse_object(b'{"%b":%b}' % (name.encode(), bytes(text))), frozenset((name,)))


def _partition(text: bytes) -> int:
    return (_number("partition", Raw(text)).integer("partition") or 0) if text not in (b"", b"null") else 0


def _config(text: bytes) -> ConfigInput | None:
    return read_config(parse_object(text, "config")) if text not in (b"", b"null") else None
