"""Codecs: encode a program's values as record data, and decode them."""

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, get_args

from topics_client.encoding import encode
from topics_client.errors import InvalidRequestError
from topics_client.installation import needs
from topics_client.models import (
    DecodeError,
    Job,
    RawJson,
    Record,
)

if TYPE_CHECKING:
    from typing_extensions import TypeIs

T = TypeVar("T")
_TYPES: Final = 256  # with cached codecs

Encode = Callable[[Any], tuple[bytes, bool]]


class Codec(Protocol[T]):
    """Encodes values as record data and decodes them. Implement it for Avro, Protobuf or any other format.

    `binary` distinguishes records of bytes from JSON records, which other languages and `/v0` read as values.
    """

    def encode(self, value: T) -> tuple[bytes, bool]:
        """Return the record's data, and True if it is binary, False if it is a JSON text in UTF-8. An exception rejects
        the value."""
        ...

    def decode(self, data: bytes, binary: bool) -> T:
        """Return the value of a record. An exception becomes a DecodeError."""
        ...


class JsonCodec(Generic[T]):
    """JSON records as values of one type, and `bytes` as binary records.

    The type is a dataclass, an attrs class, a msgspec struct, a pydantic model, a TypedDict, a datetime, Decimal, UUID,
    Enum or plain value, or a list or dict of those. Types that contain pydantic models are decoded by pydantic, all
    others by msgspec.
    """

    def __init__(self, of: type[T]) -> None:
        """Raises TypeError for a type that can't be decoded from JSON, ModuleNotFoundError if its package is
        missing."""
        self._of = of
        self._decode = _decoder(of)

    def encode(self, value: T) -> tuple[bytes, bool]:
        """Encode the value as JSON, bytes unchanged. Raises InvalidRequestError."""
        return encode(value)

    def decode(self, data: bytes, binary: bool) -> T:
        """Decode a value of the type. Raises the errors of pydantic or msgspec, and ValueError for the other kind of
        record."""
        if binary is not (self._of is bytes):
            raise ValueError(f"it is {f'{len(data)} bytes, no JSON' if binary else 'JSON, no bytes'}")
        value: T = self._decode(data)
        return value

    def __repr__(self) -> str:
        return f"JsonCodec({_name(self._of)})"


class _DecodedRecord(Record[Any]):
    """A record decoded by a codec: the instance attribute `value` overrides the property."""

    value: Any = None


class _DecodedJob(Job[Any]):
    """See _DecodedRecord."""

    value: Any = None


class _UndecodableRecord(Record[Any]):
    """A record that a codec could not decode, with its error."""

    why: str = ""

    @property
    def value(self) -> Any:
        """Raises DecodeError."""
        raise DecodeError(self, self.why)


@lru_cache(_TYPES)
def json_codec(of: Any) -> JsonCodec[Any]:
    """The codec of a type."""
    return JsonCodec(of)


def codec_of(of: Any, codec: Codec[Any] | None, default: Codec[Any] | None = None) -> Codec[Any] | None:
    """The codec of a call; None means that values are decoded as plain JSON on access. Raises TypeError if both `of`
    and `codec` are given."""
    if of is None:
        return codec or default
    if codec is not None:
        raise TypeError("of or codec: one of them")
    return json_codec(of)


def encoder_of(codec: Codec[Any] | None) -> Encode:
    """Return the encoding function. RawJson is sent unchanged, whatever the codec."""
    if codec is None:
        return encode

    def encoded(value: Any) -> tuple[bytes, bool]:
        if isinstance(value, RawJson):
            return value, False
        try:
            return codec.encode(value)
        except InvalidRequestError:
            raise
        except Exception as error:
            raise InvalidRequestError("invalid_request", f"the value can't be encoded: {why(error)}") from error

    return encoded


def value_as(of: Any, record: Record[Any] | Job[Any]) -> Any:
    """Decode the value of a record as a type or by a codec. Raises DecodeError."""
    codec = of if hasattr(of, "decode") and not isinstance(of, type) else json_codec(of)
    try:
        return codec.decode(record.data, record.binary)
    except Exception as error:
        raise DecodeError(record, why(error)) from error


def decoded_record(record: Record[Any], value: Any) -> Record[Any]:
    """The record with its decoded value."""
    made = tuple.__new__(_DecodedRecord, record)
    made.value = value
    return made


def undecodable_record(record: Record[Any], why: str) -> Record[Any]:
    """The record whose value can't be decoded, to be yielded anyway."""
    made = tuple.__new__(_UndecodableRecord, record)
    made.why = why
    return made


def decoded_job(job: Job[Any], codec: Codec[Any]) -> Job[Any]:
    """The job with its value decoded by the codec. Raises DecodeError."""
    value = value_as(codec, job)
    made = tuple.__new__(_DecodedJob, job)
    made.value = value
    return made


def why(error: Exception) -> str:
    """Return a codec's error on one line, without the value."""
    listed = getattr(error, "errors", None)
    if type(error).__module__.startswith("pydantic") and callable(listed):
        found = listed(include_url=False, include_input=False, include_context=False)
        return "; ".join(f"{each['msg']} - at `{'.'.join(map(str, each['loc'])) or '$'}`" for each in found)
    return " ".join(str(error).split()) or type(error).__name__


def _decoder(of: Any) -> Callable[[bytes], Any]:
    if of is bytes:
        return bytes
    if of in (Any, object):
        return json.loads
    if _has_model(of, set()):
        from pydantic import TypeAdapter

        return TypeAdapter(of).validate_json
    with needs("codecs", f"reading records as {_name(of)} takes {{name}}, which is not installed: {{install}}"):
        import msgspec

    decode: Callable[[bytes], Any] = msgspec.json.Decoder(of).decode
    return decode


def _has_model(of: Any, seen: set[Any]) -> bool:
    """Return True if a type is decoded by pydantic: it is, or contains, a pydantic model or dataclass."""
    if hasattr(of, "__pydantic_validator__"):
        return True
    if isinstance(of, str) or id(of) in seen:
        return False
    seen.add(id(of))
    inner = [*get_args(of)]
    if _is_class(of) and is_dataclass(of):
        inner += [field.type for field in fields(of)]
    return any(_has_model(each, seen) for each in inner)


def _is_class(of: Any) -> "TypeIs[type]":
    return isinstance(of, type)


def _name(of: Any) -> str:
    return of.__qualname__ if _is_class(of) else str(of)
