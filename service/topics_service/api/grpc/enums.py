"""Enums of the protos by the names that JSON and the engine's Literals use: `queue` is `TOPIC_TYPE_QUEUE`."""

from typing import Any

from google.protobuf.descriptor import EnumDescriptor


def numbers(enum: EnumDescriptor) -> dict[str, Any]:
    """The numbers by name, without that of the unspecified value."""
    unspecified, *values = enum.values
    prefix = unspecified.name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in values}


def names(enum: EnumDescriptor, unspecified: str | None = None) -> dict[int, Any]:
    """The names by number, with `unspecified` as that of the unspecified value, unless it is None."""
    known: dict[int, Any] = {number: name for name, number in numbers(enum).items()}
    return known if unspecified is None else {0: unspecified} | known
