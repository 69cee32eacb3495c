"""Conversion of values without a JSON form, called by the JSON encoder for each unknown type."""

import binascii
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """Convert a value: a dataclass, attrs class, pydantic model or msgspec struct to an object of its fields; a
    datetime, date or time to its ISO string; a Decimal or UUID to its string; an Enum to its value; bytes to base64.
    msgspec decodes all of these, pydantic its models. Raises TypeError for anything else."""
    kind = type(value)
    if (serializer := getattr(kind, "__pydantic_serializer__", None)) is not None:  # of a model, or a dataclass of its
        return serializer.to_python(value, mode="json", by_alias=True)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if (attributes := getattr(kind, "__attrs_attrs__", None)) is not None:
        return {attribute.name: getattr(value, attribute.name) for attribute in attributes}
    if hasattr(kind, "__struct_config__"):
        import msgspec

        return msgspec.to_builtins(value, enc_hook=plain)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    from decimal import Decimal
    from uuid import UUID

    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes | bytearray | memoryview):
        return binascii.b2a_base64(value, newline=False).decode()
    raise TypeError(f"Object of type {kind.__name__} is not JSON serializable")
