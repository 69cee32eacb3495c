"""Topic configuration between its message and the engine's structs."""

from collections.abc import Mapping
from typing import Final

from topics_proto.v1 import topic_pb2
from topics_service.engine.errors import invalid
from topics_service.engine.model import ConfigInput, Discard, Durability, TopicConfig, TopicType

TYPES: Final[Mapping[TopicType, topic_pb2.TopicType.ValueType]] = {
    "log": topic_pb2.TOPIC_TYPE_LOG,
    "queue": topic_pb2.TOPIC_TYPE_QUEUE,
}
_DISCARDS: Final[Mapping[Discard, topic_pb2.DiscardPolicy.ValueType]] = {
    "old": topic_pb2.DISCARD_POLICY_OLD,
    "reject": topic_pb2.DISCARD_POLICY_REJECT,
}
_DURABILITIES: Final[Mapping[Durability, topic_pb2.Durability.ValueType]] = {
    "ephemeral": topic_pb2.DURABILITY_EPHEMERAL,
    "memory": topic_pb2.DURABILITY_MEMORY,
    "disk": topic_pb2.DURABILITY_DISK,
    "fsync": topic_pb2.DURABILITY_FSYNC,
}
_TYPE_NAMES: Final[Mapping[int, str]] = {number: name for name, number in TYPES.items()}
_DISCARD_NAMES: Final[Mapping[int, str]] = {number: name for name, number in _DISCARDS.items()}
_DURABILITY_NAMES: Final[Mapping[int, str]] = {number: name for name, number in _DURABILITIES.items()}
_ENUM_NAMES: Final = {"type": _TYPE_NAMES, "discard": _DISCARD_NAMES, "durability": _DURABILITY_NAMES}


def config_input(message: topic_pb2.TopicConfig) -> ConfigInput:
    """Return the fields that the client set; the others are None. An enum with its unspecified value counts as unset.

    Raises `invalid_request` for an enum number that this version does not know.
    """
    given: dict[str, int | bool | str | tuple[str, ...]] = {}
    for field, value in message.ListFields():  # lists an optional field exactly when it was set
        names = _ENUM_NAMES.get(field.name)
        if field.name == "retain_until_acked_by":
            given[field.name] = tuple(value)
        elif names is None:
            given[field.name] = value
        elif value:
            if value not in names:
                raise invalid(f"config.{field.name}: unknown value {value}")
            given[field.name] = names[value]
    return ConfigInput(**given)  # type: ignore[arg-type]  # both sides have the same field names, a test compares them


def config_message(config: TopicConfig) -> topic_pb2.TopicConfig:
    """A resolved config, with every field set except `priority` and `dead_letter` where there is none."""
    return topic_pb2.TopicConfig(
        type=TYPES[config.type],
        ttl_ms=config.ttl_ms,
        cap_records=config.cap_records,
        cap_bytes=config.cap_bytes,
        discard=_DISCARDS[config.discard],
        durable=config.durable,
        durability=_DURABILITIES[config.durability],
        priority=config.priority,
        auto_priority=config.auto_priority,
        auto_create=config.auto_create,
        idempotency_window_ms=config.idempotency_window_ms,
        dedupe_node=config.dedupe_node,
        lease_ms=config.lease_ms,
        claim_jitter_ms=config.claim_jitter_ms,
        max_deliveries=config.max_deliveries,
        dead_letter=config.dead_letter,
        leases_durable=config.leases_durable,
        retain_until_acked_by=config.retaining,
    )
