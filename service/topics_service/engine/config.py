"""From the configuration a client sent to the one that holds: defaults, clamps and checks (docs/contract.md, 3.2)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, get_args, get_origin

from msgspec import UNSET, structs

from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.model import Clamp, ConfigInput, TopicConfig
from topics_service.engine.names import check_group_name, is_topic_name

U64_MAX = (1 << 64) - 1
_I32_MIN, _I32_MAX = -(1 << 31), (1 << 31) - 1
_RETAINING_GROUPS_MAX = 16


class Field(NamedTuple):
    """A field of a configuration: its kind (str, bool, int, or tuple for names), the values of an enum, its clamp."""

    kind: type
    values: tuple[str, ...]
    clamp: Clamp | None

    @property
    def is_signed(self) -> bool:
        """True for a 32-bit integer; others are u64."""
        return self.clamp is not None and self.clamp.low < 0

    def clamped(self, value: Any) -> Any:
        """The value within the clamp."""
        return value if self.clamp is None else max(self.clamp.low, min(value, self.clamp.high))


def _fields() -> Iterator[tuple[str, Field]]:
    for given, resolved in zip(structs.fields(ConfigInput), structs.fields(TopicConfig), strict=True):
        kind = get_args(given.type)[0]
        parts = [part for option in (resolved.type, *get_args(resolved.type)) for part in get_args(option)]
        values = tuple(part for part in parts if isinstance(part, str))
        yield (
            given.name,
            Field(get_origin(kind) or kind, values, next((p for p in parts if isinstance(p, Clamp)), None)),
        )


FIELDS: Final[Mapping[str, Field]] = dict(_fields())


def resolve(topic: str, given: ConfigInput, existing: TopicConfig | None = None) -> TopicConfig:
    """The config of `topic` after a PUT of `given`: omitted fields take their defaults, only the type is kept.

    Raises `invalid_request`, or `topic_exists_incompatible` for a change of type.
    """
    if existing is None and given == _OMITTED:
        return _DEFAULT
    found: dict[str, Any] = {}
    for name, field in FIELDS.items():
        value = getattr(given, name)
        if value is None:
            continue
        if field.values and value not in field.values:
            raise invalid(f"{name} must be one of {', '.join(field.values)}")
        if field.kind is int:
            if field.is_signed and not _I32_MIN <= value <= _I32_MAX:
                raise invalid(f"{name} must be a 32-bit integer")
            if not field.is_signed and not 0 <= value <= U64_MAX:
                raise invalid(f"{name} must be an integer from 0 to 2^64-1")
            value = field.clamped(value)
        found[name] = value
    groups = tuple(dict.fromkeys(given.retain_until_acked_by or ()))
    if len(groups) > _RETAINING_GROUPS_MAX:
        raise invalid(f"retain_until_acked_by names at most {_RETAINING_GROUPS_MAX} groups")
    for group in groups:
        check_group_name(group)
    kind = found.get("type") or (existing.type if existing is not None else "log")
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
    durability = found.get("durability") or ("fsync" if given.durable else "disk")
    found.update(type=kind, durability=durability, durable=durability == "fsync")
    return TopicConfig(**found | {"retain_until_acked_by": groups or UNSET})


_OMITTED: Final = ConfigInput()
_DEFAULT: Final = TopicConfig()
