"""The wire schema of the served APIs, from `schema.json`: the fields of each message and their versions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "float64": "d",
    "uuid": "16s",
}
"""Wire type of constant size -> its `struct` format, big endian."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message or of a struct in it, with its versions."""

    name: str
    type: str
    """A wire type, or the type of the elements of an array: a key of `FIXED`, string, bytes, records or struct."""
    array: bool
    versions: range
    nullable: bool
    tag: int | None
    default: Any
    """The value of an absent field: an int, a str, an empty list or None. A struct has none, but its members do."""
    fields: tuple["Field", ...]

    @property
    def struct(self) -> bool:
        return self.type == "struct"

    @property
    def fixed(self) -> str | None:
        """The `struct` format of a plain field of constant size, else None."""
        return None if self.array else FIXED.get(self.type)

    @property
    def element(self) -> "Field":
        """An element of the array, as a field."""
        return replace(self, array=False, nullable=False, default=None)

    @property
    def literal(self) -> str:
        """The default as Python source. It creates a new list or dict each time."""
        if self.struct and not self.array and not self.nullable:
            return "{" + ",".join(f"{field.name!r}:{field.literal}" for field in self.fields) + "}"
        return repr(self.default)


@dataclass(frozen=True)
class Api:
    """One API: its request and response in every served version."""

    key: int
    name: str
    versions: range
    flexible_since: int | None
    """The first version with compact lengths and tagged fields; None if no version has them."""
    request_fields: tuple[Field, ...]
    response_fields: tuple[Field, ...]

    def flexible(self, version: int) -> bool:
        return self.flexible_since is not None and version >= self.flexible_since

    def flexible_response_header(self, version: int) -> bool:
        """Return whether the header of a response of that version is flexible.

        Never for ApiVersions: clients must be able to read its answer before they know the server.
        """
        return self.flexible(version) and self.key != 18

    def request(self, version: int) -> tuple[Field, ...]:
        """The fields of a request of that version in wire order."""
        return _of(self.request_fields, version)

    def response(self, version: int) -> tuple[Field, ...]:
        """The fields of a response of that version in wire order."""
        return _of(self.response_fields, version)


def _of(fields: tuple[Field, ...], version: int) -> tuple[Field, ...]:
    return tuple(
        replace(field, fields=_of(field.fields, version)) if field.struct else field
        for field in fields
        if version in field.versions
    )


def _field(raw: Mapping[str, Any], versions: range) -> Field:
    own = range(raw.get("since", versions.start), raw.get("until", versions.stop - 1) + 1)
    kind = raw["type"].removeprefix("[]")
    array = kind != raw["type"]
    nullable = raw.get("nullable", False)
    fields = tuple(_field(member, own) for member in raw.get("fields", ()))
    default = raw.get("default")
    if default is None and not nullable:
        default = [] if array else {"string": "", "bytes": b"", "bool": False}.get(kind, 0)
        if not array and kind in ("uuid", "records", "struct"):
            default = None
    return Field(raw["name"], kind, array, own, nullable, raw.get("tag"), default, fields)


class Schema:
    """All served APIs by key. The file is read at first use."""

    @cached_property
    def apis(self) -> Mapping[int, Api]:
        apis = {}
        for raw in json.loads(Path(__file__).with_name("schema.json").read_bytes()):
            first, last = raw["versions"]
            versions = range(first, last + 1)
            request = tuple(_field(field, versions) for field in raw["request"])
            response = tuple(_field(field, versions) for field in raw["response"])
            apis[raw["key"]] = Api(raw["key"], raw["name"], versions, raw["flexible"], request, response)
        return apis

    def api(self, key: int, version: int) -> Api | None:
        """The API, or None if that version is not served."""
        api = self.apis.get(key)
        return api if api is not None and version in api.versions else None


SCHEMA = Schema()
