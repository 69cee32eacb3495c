"""A topic configuration in a request body (docs/contract.md, 3.2)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from msgspec import UNSET

from topics_gateway.json_fields import Fields, JsonObject
from topics_service.engine.config import FIELDS
from topics_service.engine.errors import invalid
from topics_service.engine.model import ConfigInput, TopicConfig

_Reader = Callable[[Fields, str], Any]
_I64: Final = 1 << 63  # the engine has the true bounds of signed integers


def read_config(found: JsonObject) -> ConfigInput:
    """The configuration as it was given; the engine knows the defaults, the enums and the clamps."""
    fields = Fields(found, _KNOWN, _NULLABLE)
    return ConfigInput(**{name: read(fields, name) for name, read in _READERS.items() if fields.has(name)})


def _names(fields: Fields, name: str) -> tuple[str, ...]:
    names = fields.value(name)
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise invalid(f"{name} must be an array of strings")
    return tuple(names)


_KINDS: Final[Mapping[type, _Reader]] = {
    str: Fields.text, bool: Fields.boolean, int: Fields.integer, tuple: _names,
}  # fmt: skip
_SIGNED: Final[_Reader] = partial(Fields.integer, low=-_I64, high=_I64)
_READERS: Final = {name: _SIGNED if field.is_signed else _KINDS[field.kind] for name, field in FIELDS.items()}
_KNOWN: Final = frozenset(FIELDS)
_DEFAULTS: Final = TopicConfig()
_NULLABLE: Final = frozenset(
    name for name in FIELDS if name == "durability" or getattr(_DEFAULTS, name) in (None, UNSET)
)  # that of durability depends on `durable`
