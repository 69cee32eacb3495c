"""Write `topics_kafka/protocol/schema.json`, the wire schema of the Kafka APIs in `topics_kafka/registry.py`.

The source is kio, a development dependency made from Apache Kafka's own message definitions (Apache-2.0). The service
never imports it. Run `python gateway_kafka/generate_schema.py`; with `--check` it writes nothing and fails on a
difference.

A field that is the same in consecutive versions is one entry with a range. A field whose type, nullability, tag or
default changes is one entry per range. Times are plain integers (ms), error codes are int16.
"""

import argparse
import dataclasses
import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)

from topics_kafka.registry import APIS

SCHEMA = Path(__file__).parent / "topics_kafka" / "protocol" / "schema.json"

WIRE = {"bool", "int8", "int16", "int32", "int64", "uint16", "float64", "uuid", "string", "bytes", "records"}
"""The wire types that the codec knows."""

WIRE_TYPES = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}


@dataclasses.dataclass(frozen=True)
class Field:
    """One field in one version. `fields` are the members of a struct."""

    name: str
    type: str
    nullable: bool
    tag: int | None
    default: Any
    fields: tuple["Field", ...]

    @property
    def attributes(self) -> tuple[Any, ...]:
        """The attributes that are equal in versions which share an entry."""
        return self.name, self.type, self.nullable, self.tag, json.dumps(self.default)


def fields_of(entity: type) -> tuple[Field, ...]:
    return tuple(map(field_of, dataclasses.fields(entity)))


def field_of(field: dataclasses.Field[Any]) -> Field:
    shape = classify_field(field)
    tag = get_field_tag(field)
    if isinstance(shape, EntityField | EntityTupleField):
        kio_type = wire_type = "struct"
        members = fields_of(shape.type_)
    else:
        kio_type = get_schema_field_type(field)
        wire_type = WIRE_TYPES.get(kio_type, kio_type)
        members = ()
        if wire_type not in WIRE or (shape.is_array and wire_type == "uuid"):
            raise ValueError(f"{field.name}: the codec does not know {wire_type}")
    # kio marks every uuid and some times as optional: on the wire their null is a value, not a marker.
    nullable = is_optional(field) and (shape.is_array or wire_type in ("string", "bytes", "records", "struct"))
    name = f"[]{wire_type}" if shape.is_array else wire_type
    return Field(field.name, name, nullable, tag, default_of(field, kio_type, members), members)


def default_of(field: dataclasses.Field[Any], kio_type: str, members: tuple[Field, ...]) -> Any:
    """The default that kio states; None if the type and nullability imply it."""
    value = field.default
    if kio_type == "datetime_i64" and (value is None or value is dataclasses.MISSING):
        return -1
    if value is dataclasses.MISSING or value is None:
        return None
    if isinstance(value, dt.timedelta):
        value = round(value.total_seconds() * 1000)
    if dataclasses.is_dataclass(value):
        stated = dataclasses.asdict(value)  # type: ignore[arg-type]
        if stated != {member.name: member.default for member in members}:
            raise ValueError(f"{field.name}: the default of a struct is not the defaults of its members")
        return None
    if isinstance(value, tuple):
        if value:
            raise ValueError(f"{field.name}: an array with a default that is not empty")
        return [] if is_optional(field) else None
    if isinstance(value, bool):
        return value or None
    if isinstance(value, int):
        return int(value) or None
    if value == "" and not is_optional(field):
        return None
    return str(value)


def merged(versions: dict[int, tuple[Field, ...]]) -> list[dict[str, Any]]:
    """The fields of all versions in wire order, without `since` and `until` where an entry spans all of `versions`."""
    order: list[tuple[Any, ...]] = []
    spans: dict[tuple[Any, ...], list[int]] = {}
    for version, fields in versions.items():
        at = 0
        for field in fields:
            if field.attributes not in spans:
                order.insert(at, field.attributes)
            at = order.index(field.attributes) + 1
            spans.setdefault(field.attributes, []).append(version)
    for version, fields in versions.items():
        if [key for key in order if version in spans[key]] != [field.attributes for field in fields]:
            raise ValueError(f"version {version} has another order of fields")
    return [entry(key, spans[key], versions) for key in order]


def entry(key: tuple[Any, ...], span: list[int], versions: dict[int, tuple[Field, ...]]) -> dict[str, Any]:
    if span != list(range(span[0], span[-1] + 1)):
        raise ValueError(f"{key[0]} is not in consecutive versions")
    members = {version: next(f for f in versions[version] if f.attributes == key) for version in span}
    field = members[span[0]]
    out: dict[str, Any] = {"name": field.name, "type": field.type}
    if span[0] != min(versions):
        out["since"] = span[0]
    if span[-1] != max(versions):
        out["until"] = span[-1]
    if field.nullable:
        out["nullable"] = True
    if field.tag is not None:
        out["tag"] = field.tag
    if field.default is not None:
        out["default"] = field.default
    if field.type.endswith("struct"):
        out["fields"] = merged({version: members[version].fields for version in span})
    return out


def api(key: int, first: int, last: int) -> dict[str, Any]:
    requests = {version: load_request_schema(key, version) for version in range(first, last + 1)}
    responses = {version: load_response_schema(key, version) for version in range(first, last + 1)}
    flexible = [version for version, schema in requests.items() if schema.__flexible__]
    for version in requests:
        headers = requests[version].__header_schema__.__version__, responses[version].__header_schema__.__version__
        expected = (2, 0 if key == 18 else 1) if version in flexible else (1, 0)
        if headers != expected or responses[version].__flexible__ != (version in flexible):
            raise ValueError(f"{key} v{version}: unexpected headers {headers}")
    return {
        "key": key,
        "name": api_key_map[key],
        "versions": [first, last],
        "flexible": min(flexible, default=None),
        "request": merged({version: fields_of(schema) for version, schema in requests.items()}),
        "response": merged({version: fields_of(schema) for version, schema in responses.items()}),
    }


def rendered(items: list[dict[str, Any]], indent: str = "") -> str:
    """JSON with one line per field of a message, and one for the closing bracket of a struct."""
    rows = []
    for item in items:
        nested = {name: value for name, value in item.items() if name in ("request", "response", "fields") and value}
        members = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in item.items() if name not in nested]
        members += [f"{json.dumps(name)}: {rendered(value, indent + ' ')}" for name, value in nested.items()]
        rows.append(f"{indent} {{{', '.join(members)}}}")
    return "[\n" + ",\n".join(rows) + f"\n{indent}]"


def text() -> str:
    return rendered([api(key, *row.versions) for key, row in sorted(APIS.items())]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the wire schema of the Kafka listener.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the file is not up to date")
    arguments = parser.parse_args()
    new = text()
    if arguments.check:
        if not SCHEMA.exists() or SCHEMA.read_text(encoding="utf-8") != new:
            sys.stderr.write(f"{SCHEMA.name} is not up to date: run {Path(__file__).name}\n")
            return 1
        return 0
    SCHEMA.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
