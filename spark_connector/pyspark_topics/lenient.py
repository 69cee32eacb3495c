"""Lenient decoding of records that do not fit the schema, field by field: other values become null and are reported.

Slower than reading by the whole schema at once, so only for records that failed that.
"""

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from pyspark_topics.ddl import ddl_type

REASON_CHARS: Final = 200
_VALUE_CHARS: Final = 60
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode

FAILURES: Final = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""Errors of decoding by msgspec."""


class Value:
    """A value of one type. `kind_of` maps an Arrow type to the type that msgspec decodes."""

    def __init__(self, kind: pa.DataType, kind_of: Callable[[pa.DataType, str], Any], path: str = "$") -> None:
        self._kind = kind
        decoded = kind_of(kind, path)
        self._make = decoded
        self._decode: Callable[[Any], Any] = msgspec.json.Decoder(decoded | None).decode
        self._nullable = True
        self._parts: list[tuple[str, Value]] = []
        if pt.is_struct(kind):
            self._parts = [(each.name, Value(each.type, kind_of, path)) for each in kind]
        elif pt.is_list(kind):
            self._parts, self._nullable = [("", Value(kind.value_type, kind_of, path))], kind.value_field.nullable
        elif pt.is_map(kind):
            self._parts, self._nullable = [("", Value(kind.item_type, kind_of, path))], kind.item_field.nullable

    def read(self, text: bytes | msgspec.Raw, path: str, reasons: list[str]) -> Any:
        """The value of a JSON text, null where it does not fit; adds why. Raises UnicodeDecodeError and RecursionError:
        such a text is no JSON."""
        try:
            return self._decode(text)
        except (UnicodeDecodeError, RecursionError):
            raise
        except FAILURES:
            pass
        try:
            if pt.is_struct(self._kind):
                return self.members(_MEMBERS(text), path, reasons)
            (part,) = (each for _, each in self._parts)
            if pt.is_list(self._kind):
                items = [part.read(each, f"{path}[{i}]", reasons) for i, each in enumerate(_ITEMS(text))]
                return items if self._nullable or None not in items else None
            members = {name: part.read(each, f"{path}.{name}", reasons) for name, each in _MEMBERS(text).items()}
            return members if self._nullable or None not in members.values() else None
        except (UnicodeDecodeError, RecursionError):
            raise
        except FAILURES:
            reasons.append(self._unfit(bytes(text), path))
            return None

    def members(self, members: dict[str, msgspec.Raw], path: str, reasons: list[str]) -> Any:
        """A struct of these members."""
        values = [
            each.read(members[name], f"{path}.{name}", reasons) if name in members else None
            for name, each in self._parts
        ]
        return self._make(*values)

    def mended(self, value: Any, path: str, reasons: list[str], fits: Callable[[Any, pa.DataType], bool]) -> Any:
        """The decoded value, with null for values of a wrong type; adds why."""
        if value is None:
            return None
        if pt.is_struct(self._kind):
            found = [
                each.mended(getattr(value, f"f{i}"), f"{path}.{name}", reasons, fits)
                for i, (name, each) in enumerate(self._parts)
            ]
            return self._make(*found)
        if pt.is_list(self._kind):
            items = [self._parts[0][1].mended(each, f"{path}[{i}]", reasons, fits) for i, each in enumerate(value)]
            return items if self._nullable or None not in items else None
        if pt.is_map(self._kind):
            part = self._parts[0][1]
            members = {name: part.mended(each, f"{path}.{name}", reasons, fits) for name, each in value.items()}
            return members if self._nullable or None not in members.values() else None
        if fits(value, self._kind):
            return value
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
        reasons.append(self._unfit(shown.encode(errors="replace"), path))
        return None

    def _unfit(self, text: bytes, path: str) -> str:
        shown = text.decode(errors="replace").strip()
        if len(shown) > _VALUE_CHARS:
            shown = f"{shown[:_VALUE_CHARS]}…"
        return f"Expected `{ddl_type(self._kind)}`, got `{shown}` - at `{path}`"


def joined(reasons: list[str]) -> str:
    """The reasons as one short text, each once."""
    return "; ".join(dict.fromkeys(reasons))[:REASON_CHARS]
