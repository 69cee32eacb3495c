"""Config entries of responses."""

from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from topics_kafka.configs import CONFIGS, Config, ConfigType, Source, default_of
from topics_kafka.settings import KafkaSettings
from topics_service.api.kafka import Broker


def entries(
    given: Mapping[str, str], settings: KafkaSettings, names: Container[str] | None = None, *, synonyms: bool = True
) -> list[dict[str, Any]]:
    """The configs of a topic with these overrides, all or those in `names`. Cached for many topics: do not modify."""
    max_batch_bytes = settings.max_batch_bytes
    shown = (config for name, config in CONFIGS.items() if names is None or name in names)
    return [_entry(config, given.get(config.name), max_batch_bytes, synonyms) for config in shown]


@lru_cache(maxsize=1024)
def _entry(config: Config, given: str | None, max_batch_bytes: int, with_synonyms: bool) -> dict[str, Any]:
    default = default_of(config, max_batch_bytes)
    source = Source.DEFAULT if default == config.default else Source.STATIC_BROKER
    synonyms = [{"name": config.broker, "value": default, "source": source}] if config.broker else []
    value = default
    if given is not None:
        value, source = given, Source.TOPIC
        synonyms.insert(0, {"name": config.name, "value": value, "source": source})
    return {
        "name": config.name,
        "value": value,
        "read_only": False,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": synonyms if with_synonyms else [],
        "config_type": config.type,
        "documentation": None,
    }


_OF_ALL_BROKERS: Final = frozenset({
    "advertised.listeners", "broker.id", "broker.rack", "default.replication.factor", "log.cleanup.policy",
    "log.message.timestamp.type", "log.retention.bytes", "log.retention.ms", "min.insync.replicas", "node.id",
})  # fmt: skip
"""Configs that any broker knows of another one."""


def broker_entries(
    settings: KafkaSettings,
    broker: Broker,
    replicas: int,
    names: Container[str] | None = None,
    *,
    is_me: bool = True,
    synonyms: bool = True,
) -> list[dict[str, Any]]:
    """The settings of a broker under Kafka's names, as far as this one knows them. All are read-only.

    `replicas` is the number of nodes that have each partition.
    """
    shown = [
        ("advertised.listeners", f"{broker.host}:{broker.port}", ConfigType.STRING),
        ("auto.create.topics.enable", str(settings.auto_create).lower(), ConfigType.BOOLEAN),
        ("broker.id", str(broker.node_id), ConfigType.INT),
        *([("broker.rack", broker.zone, ConfigType.STRING)] if broker.zone else []),
        ("connections.max.idle.ms", str(round(settings.idle_seconds * 1000)), ConfigType.LONG),
        ("default.replication.factor", str(replicas), ConfigType.INT),
        ("group.initial.rebalance.delay.ms", str(settings.initial_rebalance_ms), ConfigType.INT),
        ("group.max.session.timeout.ms", str(settings.max_session_timeout_ms), ConfigType.INT),
        ("group.min.session.timeout.ms", str(settings.min_session_timeout_ms), ConfigType.INT),
        ("log.cleanup.policy", "delete", ConfigType.LIST),
        ("log.message.timestamp.type", "CreateTime", ConfigType.STRING),
        ("log.retention.bytes", "-1", ConfigType.LONG),
        ("log.retention.ms", "-1", ConfigType.LONG),
        ("max.connections", str(settings.max_connections), ConfigType.INT),
        ("message.max.bytes", str(settings.max_batch_bytes), ConfigType.INT),
        ("min.insync.replicas", "1", ConfigType.INT),
        ("node.id", str(broker.node_id), ConfigType.INT),
        ("num.partitions", str(settings.num_partitions), ConfigType.INT),
    ]
    named = (each for each in shown if is_me or each[0] in _OF_ALL_BROKERS)
    return _read_only(named, names, Source.STATIC_BROKER, synonyms)


def group_entries(
    settings: KafkaSettings, names: Container[str] | None = None, *, synonyms: bool = True
) -> list[dict[str, Any]]:
    """The configs of any group: settings of the server. All are read-only."""
    shown = [
        ("consumer.heartbeat.interval.ms", str(settings.consumer_heartbeat_ms), ConfigType.INT),
        ("consumer.session.timeout.ms", str(settings.consumer_session_timeout_ms), ConfigType.INT),
    ]
    return _read_only(shown, names, Source.DEFAULT, synonyms)


def _read_only(
    shown: Iterable[tuple[str, str, ConfigType]], names: Container[str] | None, source: Source, synonyms: bool
) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "value": value,
            "read_only": True,
            "config_source": source,
            "is_sensitive": False,
            "synonyms": [{"name": name, "value": value, "source": source}] if synonyms else [],
            "config_type": kind,
            "documentation": None,
        }
        for name, value, kind in shown
        if names is None or name in names
    ]
