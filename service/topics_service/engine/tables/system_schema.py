"""The system tables: names and types of their columns. `api.sql.system` makes their rows."""

from collections.abc import Mapping
from typing import Final

from topics_service.engine.tables.types import BIGINT, BOOLEAN, INTEGER, JSON, TEXT, TIMESTAMP, Type

SYSTEM_TABLES: Final[Mapping[str, tuple[tuple[str, Type], ...]]] = {
    "namespaces": (("name", TEXT), ("placement", TEXT), ("created_at", TIMESTAMP)),
    "tables": (
        ("namespace", TEXT), ("name", TEXT), ("table_id", TEXT), ("columns", INTEGER), ("primary_key", JSON),
        ("durability", TEXT), ("placement", TEXT), ("schema_version", INTEGER), ("created_at", TIMESTAMP),
    ),
    "columns": (
        ("namespace", TEXT), ("table_name", TEXT), ("name", TEXT), ("position", INTEGER), ("data_type", TEXT),
        ("is_nullable", BOOLEAN), ("is_primary_key", BOOLEAN), ("column_default", TEXT),
    ),
    "indexes": (
        ("namespace", TEXT), ("table_name", TEXT), ("name", TEXT), ("columns", JSON), ("is_unique", BOOLEAN),
        ("is_constraint", BOOLEAN), ("state", TEXT),
    ),
    "views": (("namespace", TEXT), ("name", TEXT), ("columns", JSON), ("definition", TEXT), ("created_at", TIMESTAMP)),
    "checks": (("namespace", TEXT), ("table_name", TEXT), ("name", TEXT), ("expression", TEXT)),
    "topics": (
        ("topic_id", TEXT), ("name", TEXT), ("alias", TEXT), ("partitions", INTEGER),
        ("retention_seconds", BIGINT), ("retention_max_bytes", BIGINT), ("durability", TEXT),
        ("created_at", TIMESTAMP), ("type", TEXT), ("routes", JSON),
    ),
    "topic_routes": (
        ("topic", TEXT), ("table_id", TEXT), ("op", TEXT), ("payload_mode", TEXT), ("filter_expr", TEXT),
        ("partition_key_expr", TEXT), ("tombstones", BOOLEAN), ("matched", BIGINT), ("evaluated", BIGINT),
    ),
    "topic_offsets": (
        ("topic_id", TEXT), ("topic", TEXT), ("group_id", TEXT), ("partition_id", INTEGER),
        ("last_acked_offset", BIGINT), ("lag", BIGINT), ("updated_at", TIMESTAMP),
    ),
    "topic_partitions": (
        ("topic", TEXT), ("partition", INTEGER), ("first_offset", BIGINT), ("next_offset", BIGINT),
        ("count", BIGINT), ("bytes", BIGINT),
    ),
    "users": (("name", TEXT), ("role", TEXT), ("prefixes", JSON), ("is_read_only", BOOLEAN)),
    "settings": (("name", TEXT), ("value", TEXT), ("description", TEXT)),
}  # fmt: skip
"""Columns in the order of `SELECT *`, by the name of the table without `system.`."""
