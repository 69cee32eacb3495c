"""From the configuration a client sent to the one that holds: defaults, clamps and checks (docs/contract.md, 3.2)."""

from typing import get_args

from msgspec import UNSET

from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.model import ConfigInput, Discard, Durability, TopicConfig, TopicType
from topics_service.engine.names import check_group_name, is_topic_name

U64_MAX = (1 << 64) - 1
_I32_MIN, _I32_MAX = -(1 << 31), (1 << 31) - 1
_DAY_MS = 86_400_000
_PRIORITY_MAX = 1000
_LEASE_MIN_MS = 100
_JITTER_MAX_MS = 5000
_RETAINING_GROUPS_MAX = 16
_ENUMS = {"type": get_args(TopicType), "discard": get_args(Discard), "durability": get_args(Durability)}
_U64_FIELDS = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
)


def resolve(topic: str, given: ConfigInput, existing: TopicConfig | None = None) -> TopicConfig:
    """The config of `topic` after a PUT of `given`: what is left out takes its default, only the type is kept.

    Raises `invalid_request`, or `topic_exists_incompatible` for a change of type.
    """
    for field, values in _ENUMS.items():
        value = getattr(given, field)
        if value is not None and value not in values:
            raise invalid(f"{field} must be one of {', '.join(values)}")
    for field in _U64_FIELDS:
        value = getattr(given, field)
        if value is not None and not 0 <= value <= U64_MAX:
            raise invalid(f"{field} must be an integer from 0 to 2^64-1")
    if given.priority is not None and not _I32_MIN <= given.priority <= _I32_MAX:
        raise invalid("priority must be a 32-bit integer")
    groups = tuple(dict.fromkeys(given.retain_until_acked_by or ()))
    if len(groups) > _RETAINING_GROUPS_MAX:
        raise invalid(f"retain_until_acked_by names at most {_RETAINING_GROUPS_MAX} groups")
    for group in groups:
        check_group_name(group)
    kind = given.type or (existing.type if existing is not None else "log")
    if given.dead_letter is not None:
        if not is_topic_name(given.dead_letter):
            raise invalid("dead_letter must be a topic name", {"dead_letter": given.dead_letter})
        if kind == "queue" and given.dead_letter == topic:
            raise invalid("a queue can't be its own dead letter topic", {"dead_letter": given.dead_letter})
    if existing is not None and kind != existing.type:
        raise TopicsError(
            Reason.TOPIC_EXISTS_INCOMPATIBLE,
            f'topic "{topic}" is a {existing.type}; the type of a topic can\'t change',
            {"topic": topic, "existing_type": existing.type, "requested_type": kind},
        )
    durability = given.durability or ("fsync" if given.durable else "disk")
    fields = {name: value for name in ConfigInput.__struct_fields__ if (value := getattr(given, name)) is not None}
    fields.update(type=kind, durability=durability, durable=durability == "fsync")
    fields["retain_until_acked_by"] = groups or UNSET
    if "priority" in fields:
        fields["priority"] = _clamp(fields["priority"], -_PRIORITY_MAX, _PRIORITY_MAX)
    if "lease_ms" in fields:
        fields["lease_ms"] = _clamp(fields["lease_ms"], _LEASE_MIN_MS, _DAY_MS)
    if "claim_jitter_ms" in fields:
        fields["claim_jitter_ms"] = _clamp(fields["claim_jitter_ms"], 0, _JITTER_MAX_MS)
    return TopicConfig(**fields)


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
