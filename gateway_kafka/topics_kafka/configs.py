"""Kafka's topic configs: names, valid values, and their meaning for a topic of this server.

The overrides of a topic are the configs that were set on it. Some are fields of the topic's own config, which every
protocol shows and changes. The others are stored separately (`TopicView.kafka_configs`) and only shown, except those of
batches, which Produce enforces. A value that promises unsupported behaviour is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, get_args

from msgspec.structs import asdict

from topics_service.api.catalog import TopicView
from topics_service.engine.batches import LOG_APPEND_TIME, TIMESTAMP_TYPE
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import ConfigInput, Discard, Durability, TopicConfig
from topics_service.engine.names import check_zone

I32_MAX: Final = (1 << 31) - 1
I64_MAX: Final = (1 << 63) - 1
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
TIMESTAMP_BEFORE_MAX: Final = "message.timestamp.before.max.ms"
TIMESTAMP_AFTER_MAX: Final = "message.timestamp.after.max.ms"
DEFAULT_AFTER_MS: Final = 3_600_000
ZONE: Final = "topics.zone"
_FAILOVER: Final = "rafka.failover.enabled"
_MAX_BATCH_BYTES: Final = 64 << 20


class ConfigType(IntEnum):
    """Config types, as numbered in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    """Origin of a value, as numbered in DescribeConfigs."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class InvalidConfigError(Exception):
    """An invalid config. The message is sent to the client."""


Check = Callable[[str], str]
"""Returns the normalized value; raises InvalidConfigError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One topic config.

    `field` is the field of the topic's own config that it sets; `broker` is Kafka's name of its default. AlterConfigs
    resets configs that it does not name, except those that are `kept`. A `fixed` config can be set only when the topic
    is created.
    """

    name: str
    default: str
    type: ConfigType
    check: Check
    field: str = ""
    broker: str = ""
    kept: bool = False
    fixed: bool = False


def _number(low: int, high: int, *, no_zero: str = "") -> Check:
    def check(value: str) -> str:
        try:
            number = int(value.strip()) if value.isascii() and "_" not in value else None
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise InvalidConfigError(f"must be a number from {low} to {high}")
        if number == 0 and no_zero:
            raise InvalidConfigError(no_zero)
        return str(number)

    return check


def _fraction(value: str) -> str:
    try:
        if 0 <= float(value) <= 1:
            return value.strip()
    except ValueError:
        pass
    raise InvalidConfigError("must be a number from 0 to 1")


def _flag(value: str) -> str:
    lower = value.strip().lower()
    if lower not in ("true", "false"):
        raise InvalidConfigError("must be true or false")
    return lower


def _one_of(*values: str) -> Check:
    def check(value: str) -> str:
        if value.strip() not in values:
            raise InvalidConfigError(f"must be one of {', '.join(values)}")
        return value.strip()

    return check


def _zone(value: str) -> str:
    if value:
        try:
            check_zone(value)
        except TopicsError as error:
            raise InvalidConfigError(error.message) from None
    return value


def _only(value: str, why: str) -> Check:
    """Accept the default only."""

    def check(given: str) -> str:
        if given.strip() != value:
            raise InvalidConfigError(why)
        return value

    return check


def _cleanup(value: str) -> str:
    if items(value) != ["delete"]:
        raise InvalidConfigError("must be delete: there is no compaction")
    return "delete"


_NO_ZERO: Final = "0 would keep nothing; the minimum is 1, and -1 keeps everything"
_BEYOND: Final = str(I64_MAX)

_ALL: Final = (
    Config(
        name="cleanup.policy",
        default="delete",
        type=ConfigType.LIST,
        check=_cleanup,
        broker="log.cleanup.policy",
    ),
    Config(
        name="compression.type",
        default="producer",
        type=ConfigType.STRING,
        check=_only("producer", "must be producer: batches are stored unchanged"),
        broker="compression.type",
    ),
    Config(name="delete.retention.ms", default="86400000", type=ConfigType.LONG, check=_number(0, I64_MAX)),
    Config(name="file.delete.delay.ms", default="60000", type=ConfigType.LONG, check=_number(0, I64_MAX)),
    Config(
        name="flush.messages",
        default=_BEYOND,
        type=ConfigType.LONG,
        check=_only(_BEYOND, "is not supported: set topics.durability instead"),
    ),
    Config(
        name="flush.ms",
        default=_BEYOND,
        type=ConfigType.LONG,
        check=_only(_BEYOND, "is not supported: set topics.durability instead"),
    ),
    Config(name="index.interval.bytes", default="4096", type=ConfigType.INT, check=_number(0, I32_MAX)),
    Config(name="max.compaction.lag.ms", default=_BEYOND, type=ConfigType.LONG, check=_number(1, I64_MAX)),
    Config(
        name=MAX_MESSAGE_BYTES,
        default="1048588",
        type=ConfigType.INT,
        check=_number(0, _MAX_BATCH_BYTES),
        broker="message.max.bytes",
    ),
    Config(
        name=TIMESTAMP_AFTER_MAX,
        default=str(DEFAULT_AFTER_MS),
        type=ConfigType.LONG,
        check=_number(0, I64_MAX),
        broker="log.message.timestamp.after.max.ms",
    ),
    Config(
        name=TIMESTAMP_BEFORE_MAX,
        default=_BEYOND,
        type=ConfigType.LONG,
        check=_number(0, I64_MAX),
        broker="log.message.timestamp.before.max.ms",
    ),
    Config(
        name=TIMESTAMP_TYPE,
        default="CreateTime",
        type=ConfigType.STRING,
        check=_one_of("CreateTime", LOG_APPEND_TIME),
        broker="log.message.timestamp.type",
    ),
    Config(name="min.cleanable.dirty.ratio", default="0.5", type=ConfigType.DOUBLE, check=_fraction),
    Config(name="min.compaction.lag.ms", default="0", type=ConfigType.LONG, check=_number(0, I64_MAX)),
    Config(
        name="min.insync.replicas",
        default="1",
        type=ConfigType.INT,
        check=_only("1", "must be 1: there is one broker"),
        broker="min.insync.replicas",
    ),
    Config(name="preallocate", default="false", type=ConfigType.BOOLEAN, check=_flag),
    Config(
        name=_FAILOVER,
        default="false",
        type=ConfigType.BOOLEAN,
        check=_flag,
        kept=True,
        fixed=True,
    ),
    Config(
        name="remote.storage.enable",
        default="false",
        type=ConfigType.BOOLEAN,
        check=_only("false", "must be false: there is no tiered storage"),
    ),
    Config(
        name="retention.bytes",
        default="-1",
        type=ConfigType.LONG,
        check=_number(-1, I64_MAX, no_zero=_NO_ZERO),
        field="cap_bytes",
        broker="log.retention.bytes",
    ),
    Config(
        name="retention.ms",
        default="-1",
        type=ConfigType.LONG,
        check=_number(-1, I64_MAX, no_zero=_NO_ZERO),
        field="ttl_ms",
        broker="log.retention.ms",
    ),
    Config(name="segment.bytes", default="1073741824", type=ConfigType.INT, check=_number(14, I32_MAX)),
    Config(name="segment.index.bytes", default="10485760", type=ConfigType.INT, check=_number(4, I32_MAX)),
    Config(name="segment.jitter.ms", default="0", type=ConfigType.LONG, check=_number(0, I64_MAX)),
    Config(name="segment.ms", default="604800000", type=ConfigType.LONG, check=_number(1, I64_MAX)),
    Config(
        name="topics.cap.records",
        default="-1",
        type=ConfigType.LONG,
        check=_number(-1, I64_MAX, no_zero=_NO_ZERO),
        field="cap_records",
        kept=True,
    ),
    Config(name=ZONE, default="", type=ConfigType.STRING, check=_zone, kept=True, fixed=True),
    Config(
        name="topics.discard",
        default="old",
        type=ConfigType.STRING,
        check=_one_of(*get_args(Discard)),
        field="discard",
        kept=True,
    ),
    Config(
        name="topics.durability",
        default="disk",
        type=ConfigType.STRING,
        check=_one_of(*get_args(Durability)),
        field="durability",
        kept=True,
    ),
    Config(name="unclean.leader.election.enable", default="false", type=ConfigType.BOOLEAN, check=_flag),
)
CONFIGS: Final[Mapping[str, Config]] = {config.name: config for config in _ALL}
"""Every topic config, ordered by name."""

Overrides = dict[str, str]


def checked(name: str, value: str | None) -> str:
    """Return the normalized value. Raises InvalidConfigError for an unknown name or an invalid value."""
    config = CONFIGS.get(name)
    if config is None:
        raise InvalidConfigError(f"unknown topic config {name}")
    if value is None:
        raise InvalidConfigError(f"{name} has no value")
    try:
        return config.check(value)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{name}={value[:100]!r}: {error}") from None


def items(value: str) -> list[str]:
    """The items of a list config."""
    return [item for item in (part.strip() for part in value.split(",")) if item]


def overrides(topic: TopicView) -> Overrides:
    """The topic's overrides."""
    found = dict(topic.kafka_configs)
    for config in _ALL:
        if config.field:
            value = _shown(getattr(topic.config, config.field))
            if value != config.default:
                found[config.name] = value
    if topic.identity.zone:
        found[ZONE] = topic.identity.zone
    return found


def replaced(old: Overrides, given: Mapping[str, str | None]) -> Overrides:
    """The overrides after AlterConfigs: those given, and old ones that are `kept`. Raises InvalidConfigError."""
    new = {name: checked(name, value) for name, value in given.items()}
    kept = {config.name: old[config.name] for config in _ALL if config.kept and config.name in old}
    return _fixed(old, {**kept, **new})


def patched(old: Overrides, changes: Mapping[str, str | None]) -> Overrides:
    """The overrides after IncrementalAlterConfigs; None removes an override. Raises InvalidConfigError."""
    new = dict(old)
    for name, value in changes.items():
        if value is None:
            if name not in CONFIGS:
                raise InvalidConfigError(f"unknown topic config {name}")
            new.pop(name, None)
        else:
            new[name] = checked(name, value)
    return _fixed(old, new)


def created(given: Mapping[str, str | None]) -> Overrides:
    """The overrides of a new topic. Raises InvalidConfigError."""
    return {name: checked(name, value) for name, value in given.items()}


def _fixed(old: Overrides, new: Overrides) -> Overrides:
    for config in _ALL:
        if config.fixed and old.get(config.name, config.default) != new.get(config.name, config.default):
            raise InvalidConfigError(f"{config.name} can be set only when the topic is created")
    return new


def to_topic(given: Overrides, base: TopicConfig | None = None) -> tuple[ConfigInput, dict[str, str]]:
    """Translate overrides to a topic config, based on `base`, and the configs that are stored separately."""
    fields: dict[str, Any] = {} if base is None else asdict(base)
    stored = {}
    for config in _ALL:
        if config.field:
            fields[config.field] = _read(config, given.get(config.name, config.default))
        elif config.name in given and config.name != ZONE:  # it stands in the identity
            stored[config.name] = given[config.name]
    fields.pop("durable", None)  # follows from durability
    return ConfigInput(**fields), stored


def effective(given: Mapping[str, str], name: str, max_batch_bytes: int) -> str:
    """The effective value for a topic with these overrides."""
    return given.get(name) or default_of(CONFIGS[name], max_batch_bytes)


def default_of(config: Config, max_batch_bytes: int) -> str:
    """The default for a topic. That of `max.message.bytes` is TOPICS_KAFKA_MAX_BATCH_BYTES."""
    return str(max_batch_bytes) if config.name == MAX_MESSAGE_BYTES else config.default


def _shown(value: Any) -> str:
    """A field of the topic's config in Kafka's notation: off is -1, not 0."""
    return "-1" if value == 0 else str(value)


def _read(config: Config, value: str) -> Any:
    return value if config.type is ConfigType.STRING else max(0, int(value))
