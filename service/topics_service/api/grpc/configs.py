"""Topic configuration between its message and the engine's structs. Both have the same field names: a test compares."""

from typing import Any, Final

from msgspec import UNSET

from topics_proto.v1 import topic_pb2
from topics_service.api.grpc.enums import names, numbers
from topics_service.engine.config import FIELDS
from topics_service.engine.errors import invalid
from topics_service.engine.model import ConfigInput, TopicConfig

_ENUMS: Final = {
    field.name: field.enum_type for field in topic_pb2.TopicConfig.DESCRIPTOR.fields if field.enum_type is not None
}
_NUMBERS: Final = {name: numbers(enum) for name, enum in _ENUMS.items()}
_NAMES: Final = {name: names(enum) for name, enum in _ENUMS.items()}
TYPES: Final = _NUMBERS["type"]


def config_input(message: topic_pb2.TopicConfig) -> ConfigInput:
    """Return the fields that the client set; the others are None. An enum with its unspecified value counts as unset.

    Raises `invalid_request` for an enum number that this version does not know.
    """
    given: dict[str, Any] = {}
    for field, value in message.ListFields():  # lists an optional field exactly when it was set
        known = _NAMES.get(field.name)
        if known is None:
            given[field.name] = tuple(value) if FIELDS[field.name].kind is tuple else value
        elif value:
            if value not in known:
                raise invalid(f"config.{field.name}: unknown value {value}")
            given[field.name] = known[value]
    return ConfigInput(**given)


def config_message(config: TopicConfig) -> topic_pb2.TopicConfig:
    """A resolved config, with every field set except `priority` and `dead_letter` where there is none."""
    found: dict[str, Any] = {name: value for name in FIELDS if (value := getattr(config, name)) is not UNSET}
    for name, known in _NUMBERS.items():
        found[name] = known[found[name]]
    return topic_pb2.TopicConfig(**found)
