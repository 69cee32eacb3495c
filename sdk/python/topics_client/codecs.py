"""Codecs: values of a program as the bytes of records, and back."""

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
_TYPES: Final = 256  # whose codecs are kept

Encode = Callable[[Any], tuple[bytes, bool]]


class Codec(Protocol[T]):
    """What turns values into the data of records and back: one of your own for Avro, Protobuf or anything else.

    `binary` tells a record of bytes from one of JSON, which other languages and `/v0` read as a value.
    """

    def encode(self, value: T) -> tuple[bytes, bool]:
        """The data of a record, and whether it is binary; False: the data is a JSON text in UTF-8. What it raises
        refuses the value."""
        ...

    def decode(self, data: bytes, binary: bool) -> T:
        """The value of a record. What it raises becomes a DecodeError."""
        ...


class JsonCodec(Generic[T]):
    """JSON records as values of one type, and `bytes` as binary records.

    The type is a dataclass, an attrs class, a msgspec struct, a pydantic model, a TypedDict, a datetime, Decimal, UUID,
    Enum or plain value, or a list or dict of those. pydantic reads what has a model of its in it, msgspec all others.
    """

    def __init__(self, of: type[T]) -> None:
        """Raises TypeError for a type that JSON can't be read as, ModuleNotFoundError where its package is missing."""
        self._of = of
        self._decode = _decoder(of)

    def encode(self, value: T) -> tuple[bytes, bool]:
        """The value as JSON, or bytes as they are. Raises InvalidRequestError."""
        return encode(value)

    def decode(self, data: bytes, binary: bool) -> T:
        """The value of this type. Raises what pydantic or msgspec does, and ValueError for the other kind of record."""
        if binary is not (self._of is bytes):
            raise ValueError(f"it is {f'{len(data)} bytes, no JSON' if binary else 'JSON, no bytes'}")
        value: T = self._decode(data)
        return value

    def __repr__(self) -> str:
        return f"JsonCodec({_name(self._of)})"


class _DecodedRecord(Record[Any]):
    """One that a codec has read: the value lies in the instance, in front of the property."""

    value: Any = None


class _DecodedJob(Job[Any]):
    """As _DecodedRecord."""

    value: Any = None


class _UndecodableRecord(Record[Any]):
    """One that a codec could not read, with what it said."""

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
    """The codec that a call is to use; None: values are decoded as plain JSON when they are asked for. Raises
    TypeError if it is given both `of` and `codec`."""
    if of is None:
        return codec or default
    if codec is not None:
        raise TypeError("of or codec: one of them")
    return json_codec(of)


def encoder_of(codec: Codec[Any] | None) -> Encode:
    """Return what turns values into data. RawJson goes as it is, whatever the codec."""
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
    """The value of a record as a type, or as a codec has it. Raises DecodeError."""
    codec = of if hasattr(of, "decode") and not isinstance(of, type) else json_codec(of)
    try:
        return codec.decode(record.data, record.binary)
    except Exception as error:
        raise DecodeError(record, why(error)) from error


def decoded_record(record: Record[Any], value: Any) -> Record[Any]:
    """The record with a value that was decoded."""
    made = tuple.__new__(_DecodedRecord, record)
    made.value = value
    return made


def undecodable_record(record: Record[Any], why: str) -> Record[Any]:
    """The record whose value can't be decoded, to be handed out all the same."""
    made = tuple.__new__(_UndecodableRecord, record)
    made.why = why
    return made


def decoded_job(job: Job[Any], codec: Codec[Any]) -> Job[Any]:
    """The job with its value as the codec reads it. Raises DecodeError."""
    value = value_as(codec, job)
    made = tuple.__new__(_DecodedJob, job)
    made.value = value
    return made


def why(error: Exception) -> str:
    """Return what a codec has against a value, on one line, without the value."""
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
    """Return whether pydantic is to read a type: a model or dataclass of its, or one that holds any."""
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
