"""Rows of tables as records, the common part of Parquet and CSV."""

import base64
import json
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from topics_cli.lines import JSON_SPACE, BadTextError, json_value
from topics_cli.recordtext import Parsed
from topics_cli.server import UsageError

COLUMNS: Final = ("partition", "seq", "ts", "tag", "node", "meta", "kind", "data")
"""The columns of a whole record, in the order in which `topics export` writes them."""

OF_RECORDS: Final = ("data", "kind", "tag", "node", "meta", "partition")
"""The columns that `topics import` takes."""

_TAG_BYTES: Final = 256


def record(row: Mapping[str, Any]) -> Parsed:
    """A row with the columns of a record; all but data are optional. Raises BadTextError."""
    data, meta = (_bytes(row, name) for name in ("data", "meta"))
    if row["data"] is None:
        raise BadTextError(0, "its data is null")
    kind = row.get("kind")
    if kind not in (None, "json", "binary"):
        raise BadTextError(0, f"its kind is {kind!r}, neither json nor binary")
    if kind != "binary":
        data = data.strip(JSON_SPACE)
        json_value(data)
    partition = row.get("partition")
    if partition is not None and (type(partition) is not int or partition < 0):
        raise BadTextError(0, "its partition is not a whole number")
    return Parsed(data, kind == "binary", _text(row, "tag"), _text(row, "node"), meta, partition)


def row_object(row: Mapping[str, Any], tag_field: str | None) -> Parsed:
    """A row as a JSON object, with its tag by one of its columns. Raises BadTextError."""
    tag = None if tag_field is None else tag_of(row, tag_field)
    data = json.dumps(_plain(row), ensure_ascii=False, separators=(",", ":")).encode()
    return Parsed(data, False, tag, None, b"", None)


def check_tag_field(tag_field: str | None, label: str) -> None:
    """Raises UsageError for `--tag-field` where each row is a whole record, which has its tag."""
    if tag_field is not None:
        raise UsageError(
            f"--tag-field is for objects, and each row of {label} is a whole record; --rows makes objects of them"
        )


def tag_of(value: Any, field: str) -> str | None:
    """The tag of a record by a field of its own; None where that is no text. Raises BadTextError."""
    tag = value.get(field) if isinstance(value, dict) else None
    if not isinstance(tag, str):
        return None
    if len(tag) > _TAG_BYTES // 4 and len(tag.encode()) > _TAG_BYTES:
        raise BadTextError(0, f"its {field} is too long for a tag, which has {_TAG_BYTES} bytes at most")
    return tag


def _bytes(row: Mapping[str, Any], name: str) -> bytes:
    value = row.get(name)
    if value is not None and not isinstance(value, str | bytes):
        raise BadTextError(0, f"its {name} is neither text nor bytes")
    return value.encode() if isinstance(value, str) else value or b""


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise BadTextError(0, f"its {name} is not text")
    return value


def _plain(value: Any) -> Any:
    """Convert a value without a JSON form to the customary one: times to ISO 8601, bytes to base64, decimals to
    strings, and non-finite numbers to null."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, datetime | date | clock_time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value
