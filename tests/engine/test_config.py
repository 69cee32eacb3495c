"""Config resolution, field by field (docs/contract.md, 3.2)."""

from typing import Any

import msgspec
import pytest
from engine_support import World, code

from topics_service.engine.config import U64_MAX, resolve
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import ConfigInput, TopicConfig
from topics_service.engine.topic import TopicRow, decode_row


def resolved(existing: TopicConfig | None = None, **given: Any) -> TopicConfig:
    return resolve("t", ConfigInput(**given), existing)


def test_nothing_given_is_the_documented_default() -> None:
    assert msgspec.to_builtins(resolved()) == {
        "type": "log",
        "ttl_ms": 0,
        "cap_records": 0,
        "cap_bytes": 0,
        "discard": "old",
        "durable": False,
        "durability": "disk",
        "priority": None,
        "auto_priority": True,
        "auto_create": True,
        "idempotency_window_ms": 120_000,
        "dedupe_node": True,
        "lease_ms": 30_000,
        "claim_jitter_ms": 0,
        "max_deliveries": 0,
        "dead_letter": None,
        "leases_durable": False,
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "queue"),
        ("ttl_ms", U64_MAX),
        ("cap_records", 7),
        ("cap_bytes", U64_MAX),
        ("discard", "reject"),
        ("durability", "ephemeral"),
        ("durability", "memory"),
        ("priority", -5),
        ("priority", 0),
        ("auto_priority", False),
        ("auto_create", False),
        ("idempotency_window_ms", 0),
        ("dedupe_node", False),
        ("lease_ms", 100),
        ("claim_jitter_ms", 5000),
        ("max_deliveries", 3),
        ("dead_letter", "t2"),
        ("leases_durable", True),
    ],
)
def test_a_given_field_is_kept_and_stored(field: str, value: object) -> None:
    config = resolved(**{field: value})
    assert getattr(config, field) == value
    assert msgspec.structs.replace(config, **{field: getattr(TopicConfig(), field)}) == TopicConfig()
    row = TopicRow(name="t", topic_id="top_x", slug="t", rrl="r", config=config, log_ids=[1], created_ts=0)
    assert decode_row(row.encode()).config == config


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("priority", 5000, 1000),
        ("priority", -5000, -1000),
        ("priority", (1 << 31) - 1, 1000),
        ("lease_ms", 0, 100),
        ("lease_ms", 99, 100),
        ("lease_ms", U64_MAX, 86_400_000),
        ("claim_jitter_ms", 5001, 5000),
    ],
)
def test_what_is_out_of_range_is_clamped(field: str, value: int, kept: int) -> None:
    assert getattr(resolved(**{field: value}), field) == kept


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "Log"),
        ("type", ""),
        ("discard", "new"),
        ("durability", "Disk"),
        ("durability", "none"),
        ("ttl_ms", -1),
        ("ttl_ms", U64_MAX + 1),
        ("cap_records", -1),
        ("cap_bytes", U64_MAX + 1),
        ("idempotency_window_ms", -1),
        ("lease_ms", -1),
        ("claim_jitter_ms", -1),
        ("max_deliveries", -1),
        ("priority", 1 << 31),
        ("priority", -(1 << 31) - 1),
        ("dead_letter", ""),
        ("dead_letter", "a/b"),
    ],
)
def test_what_can_not_be_is_invalid(field: str, value: object) -> None:
    with pytest.raises(TopicsError) as error:
        resolved(**{field: value})
    assert code(error) == "invalid_request"
    assert field in error.value.message


@pytest.mark.parametrize(
    ("given", "durability", "durable"),
    [
        ({}, "disk", False),
        ({"durable": False}, "disk", False),
        ({"durable": True}, "fsync", True),
        ({"durability": "fsync"}, "fsync", True),
        ({"durability": "disk", "durable": True}, "disk", False),
        ({"durability": "fsync", "durable": False}, "fsync", True),
        ({"durability": "ephemeral", "durable": True}, "ephemeral", False),
        ({"durability": "memory"}, "memory", False),
    ],
)
def test_explicit_durability_beats_durable(given: dict[str, Any], durability: str, durable: bool) -> None:
    config = resolved(TopicConfig(durability="memory"), **given)
    assert (config.durability, config.durable) == (durability, durable)


def test_only_the_type_is_kept_when_left_out() -> None:
    existing = TopicConfig(type="queue", ttl_ms=5, lease_ms=1000, priority=3, durability="fsync", durable=True)
    assert resolved(existing) == TopicConfig(type="queue")
    assert resolved(existing, type="queue", ttl_ms=6) == TopicConfig(type="queue", ttl_ms=6)


@pytest.mark.parametrize(("old", "new"), [("log", "queue"), ("queue", "log")])
def test_the_type_never_changes(old: str, new: str) -> None:
    with pytest.raises(TopicsError) as error:
        resolved(TopicConfig(type=old), type=new)  # type: ignore[arg-type]
    assert code(error) == "topic_exists_incompatible"
    assert error.value.detail == {"topic": "t", "existing_type": old, "requested_type": new}


def test_a_queue_is_not_its_own_dead_letter_but_a_log_may_name_itself() -> None:
    with pytest.raises(TopicsError) as error:
        resolved(type="queue", dead_letter="t")
    assert error.value.detail == {"dead_letter": "t"}
    with pytest.raises(TopicsError):
        resolved(TopicConfig(type="queue"), dead_letter="t")
    assert resolved(dead_letter="t").dead_letter == "t"


def test_a_bad_dead_letter_is_seen_before_a_change_of_type() -> None:
    with pytest.raises(TopicsError) as error:
        resolved(TopicConfig(type="queue"), type="log", dead_letter="/")
    assert code(error) == "invalid_request"


def test_put_replaces_the_config_and_it_survives_a_restart(world: World) -> None:
    world.put(cap_records=5, ttl_ms=9, durability="fsync")
    assert world.state().config == TopicConfig(cap_records=5, ttl_ms=9, durability="fsync", durable=True)
    world.put(ttl_ms=7)
    assert world.state().config == TopicConfig(ttl_ms=7)
    world.kill()
    assert world.state().config == TopicConfig(ttl_ms=7)


def test_a_refused_put_changes_nothing(world: World) -> None:
    world.put(cap_records=5)
    for bad in ({"type": "queue"}, {"ttl_ms": -1}):
        with pytest.raises(TopicsError):
            world.put(**bad)  # type: ignore[arg-type]
    assert world.state().config == TopicConfig(cap_records=5)
