"""A topic configuration in a request body (docs/contract.md, 3.2)."""

from typing import Final

from msgspec import UNSET, UnsetType

from topics_gateway.json_fields import Fields, JsonObject
from topics_service.engine.errors import invalid
from topics_service.engine.model import ConfigInput

_KNOWN: Final = frozenset(ConfigInput.__struct_fields__)
_NULLABLE: Final = frozenset({"priority", "dead_letter", "durability", "retain_until_acked_by"})
_I64: Final = 1 << 63  # the engine has the true bounds of priority


def read_config(found: JsonObject) -> ConfigInput:
    """The configuration as it was given; the engine knows the defaults, the enums and the clamps."""
    fields = Fields(found, _KNOWN, _NULLABLE)
    return ConfigInput(
        type=fields.text("type"),
        ttl_ms=fields.integer("ttl_ms"),
        cap_records=fields.integer("cap_records"),
        cap_bytes=fields.integer("cap_bytes"),
        discard=fields.text("discard"),
        durable=fields.boolean("durable"),
        durability=fields.text("durability"),
        priority=fields.integer("priority", -_I64, _I64),
        auto_priority=fields.boolean("auto_priority"),
        auto_create=fields.boolean("auto_create"),
        idempotency_window_ms=fields.integer("idempotency_window_ms"),
        dedupe_node=fields.boolean("dedupe_node"),
        lease_ms=fields.integer("lease_ms"),
        claim_jitter_ms=fields.integer("claim_jitter_ms"),
        max_deliveries=fields.integer("max_deliveries"),
        dead_letter=fields.text("dead_letter"),
        leases_durable=fields.boolean("leases_durable"),
        retain_until_acked_by=_groups(fields),
    )


def _groups(fields: Fields) -> tuple[str, ...] | UnsetType:
    if not fields.has("retain_until_acked_by"):
        return UNSET
    groups = fields.value("retain_until_acked_by")
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise invalid("retain_until_acked_by must be an array of strings")
    return tuple(groups)
