"""kio as the oracle of the Kafka protocol: random messages, its bytes for them, and what our codec makes of them.

kio only writes here: its decoder aborts the process on hostile bytes.

Run as a program it prints the golden file:
`PYTHONPATH=tests python -m support.kafka_kio > tests/kafka/protocol/golden.txt`.
"""

import dataclasses
import datetime as dt
import random
import string
import uuid
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    get_field_tag,
    is_optional,
)

from topics_kafka.protocol import SUPPORTED

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
LETTERS = string.ascii_letters + string.digits + "-._äß語😀"


def served() -> Iterator[tuple[int, int]]:
    """Every (API key, version) that the listener serves."""
    for key, (first, last) in sorted(SUPPORTED.items()):
        for version in range(first, last + 1):
            yield key, version


class Maker:
    """Makes random messages. `maximum` bounds the length of arrays, strings and bytes."""

    def __init__(self, rng: random.Random, maximum: int = 3) -> None:
        self.rng = rng
        self.maximum = maximum

    def entity(self, kind: type) -> Any:
        return kind(**{field.name: self._value(field) for field in dataclasses.fields(kind)})

    def _value(self, field: dataclasses.Field[Any]) -> Any:
        rng = self.rng
        shape = classify_field(field)
        tagged = get_field_tag(field) is not None
        if tagged and field.default is not dataclasses.MISSING and rng.random() < 0.4:
            return field.default
        if is_optional(field) and rng.random() < 0.3 and (not tagged or field.default is None):
            return None
        if isinstance(shape, EntityField):
            return self.entity(shape.type_)
        if isinstance(shape, EntityTupleField):
            return tuple(self.entity(shape.type_) for _ in range(rng.randint(0, self.maximum)))
        kafka_type = field.metadata["kafka_type"]
        if isinstance(shape, PrimitiveTupleField):
            # Now and then more than a compact length of one byte can say.
            count = 200 if self.maximum > 2 and rng.random() < 0.02 else rng.randint(0, self.maximum)
            return tuple(self._primitive(kafka_type) for _ in range(count))
        return self._primitive(kafka_type)

    def _primitive(self, kafka_type: str) -> Any:
        rng = self.rng
        match kafka_type:
            case "bool":
                return rng.random() < 0.5
            case "string":
                count = (
                    rng.choice([130, 20_000])
                    if self.maximum > 2 and rng.random() < 0.01
                    else rng.randint(0, 2 * self.maximum)
                )
                return "".join(rng.choices(LETTERS, k=min(count, 8000)))
            case "bytes" | "records":
                count = 20_000 if self.maximum > 2 and rng.random() < 0.02 else rng.randint(0, 4 * self.maximum)
                return rng.randbytes(count)
            case "uuid":
                return uuid.UUID(int=rng.getrandbits(128))
            case "error_code":
                return rng.choice(list(ErrorCode))
            case "timedelta_i32":
                return dt.timedelta(milliseconds=rng.randint(-1, 2**31 - 1))
            case "timedelta_i64":
                return dt.timedelta(milliseconds=rng.randint(-1, 10**12))
            case "datetime_i64":
                return EPOCH + dt.timedelta(milliseconds=rng.randint(0, 4 * 10**12))
            case "float64":
                return rng.choice([0.0, -1.5, 1e300, rng.random()])
            case "uint16":
                return rng.choice([0, 1, 0xFFFF, rng.getrandbits(16)])
        bits = INTEGERS[kafka_type]
        return rng.choice([-(2**bits), -1, 0, 1, 2**bits - 1, rng.getrandbits(bits)])


def message(value: Any, kafka_type: str = "") -> Any:
    """What our codec decodes to where kio has this value."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: message(getattr(value, field.name), field.metadata.get("kafka_type", ""))
            for field in dataclasses.fields(value)
        }
    match value:
        case tuple():
            return [message(element, kafka_type) for element in value]
        case dt.timedelta():
            return round(value / dt.timedelta(milliseconds=1))
        case dt.datetime():
            return round((value - EPOCH) / dt.timedelta(milliseconds=1))
        case ErrorCode():
            return value.value
        case None if kafka_type == "datetime_i64":
            return -1
    return value


def written(*entities: Any) -> bytes:
    """kio's bytes."""
    buffer = BytesIO()
    for entity in entities:
        entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def request(maker: Maker, key: int, version: int, correlation_id: int, client_id: str | None) -> tuple[Any, bytes]:
    """A random request and its frame."""
    kind = load_request_schema(key, version)
    header = kind.__header_schema__(
        request_api_key=key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    entity = maker.entity(kind)
    return entity, written(header, entity)


def response(maker: Maker, key: int, version: int, correlation_id: int) -> tuple[Any, bytes]:
    """A random response and its frame."""
    kind = load_response_schema(key, version)
    entity = maker.entity(kind)
    return entity, written(kind.__header_schema__(correlation_id=correlation_id), entity)


def golden() -> Iterator[str]:
    for key, version in served():
        maker = Maker(random.Random(f"golden {key} {version}"), maximum=2)
        yield f"{key} {version} request {request(maker, key, version, 7, 'golden')[1].hex()}"
        yield f"{key} {version} response {response(maker, key, version, 7)[1].hex()}"


if __name__ == "__main__":
    print("\n".join(golden()))
