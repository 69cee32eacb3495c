"""The system tables: names and types of their columns. `api.sql.system` makes their rows."""

from collections.abc import Mapping
from typing import Final

from topics_service.engine.tables.types import Kind, Type

_TEXT: Final = Type(Kind.TEXT)
_INTEGER: Final = Type(Kind.INTEGER)
_BIGINT: Final = Type(Kind.BIGINT)
_BOOLEAN: Final = Type(Kind.BOOLEAN)
_JSON: Final = Type(Kind.JSON)
_TIMESTAMP: Final = Type(Kind.TIMESTAMP)

SYSTEM_TABLES: Final[Mapping[str, tuple[tuple[str, Type], ...]]] = {
    "namespaces": (("name", _TEXT), ("placement", _TEXT), ("created_at", _TIMESTAMP)),
    "tables": (
        ("namespace", _TEXT), ("name", _TEXT), ("table_id", _TEXT), ("columns", _INTEGER), ("primary_key", _JSON),
        ("durability", _TEXT), ("placement", _TEXT), ("schema_version", _INTEGER), ("created_at", _TIMESTAMP),
    ),
    "columns": (
        ("namespace", _TEXT), ("table_name", _TEXT), ("name", _TEXT), ("position", _INTEGER), ("data_type", _TEXT),
        ("is_nullable", _BOOLEAN), ("is_primary_key", _BOOLEAN), ("column_default", _TEXT),
    ),
    "indexes": (
        ("namespace", _TEXT), ("table_name", _TEXT), ("name", _TEXT), ("columns", _JSON), ("is_unique", _BOOLEAN),
        ("is_constraint", _BOOLEAN), ("state", _TEXT),
    ),
    "topics": (
        ("topic_id", _TEXT), ("name", _TEXT), ("alias", _TEXT), ("partitions", _INTEGER),
        ("retention_seconds", _BIGINT), ("retention_max_bytes", _BIGINT), ("durability", _TEXT),
        ("created_at", _TIMESTAMP), ("type", _TEXT), ("routes", _JSON),
    ),
    "topic_routes": (
        ("topic", _TEXT), ("table_id", _TEXT), ("op", _TEXT), ("payload_mode", _TEXT), ("filter_expr", _TEXT),
        ("partition_key_expr", _TEXT), ("tombstones", _BOOLEAN), ("matched", _BIGINT), ("evaluated", _BIGINT),
    ),
    "topic_offsets": (
        ("topic_id", _TEXT), ("topic", _TEXT), ("group_id", _TEXT), ("partition_id", _INTEGER),
        ("last_acked_offset", _BIGINT), ("lag", _BIGINT), ("updated_at", _TIMESTAMP),
    ),
    "topic_partitions": (
        ("topic", _TEXT), ("partition", _INTEGER), ("first_offset", _BIGINT), ("next_offset", _BIGINT),
        ("count", _BIGINT), ("bytes", _BIGINT),
    ),
    "users": (("name", _TEXT), ("role", _TEXT), ("prefixes", _JSON), ("is_read_only", _BOOLEAN)),
    "settings": (("name", _TEXT), ("value", _TEXT), ("description", _TEXT)),
}  # fmt: skip
"""Columns in the order of `SELECT *`, by the name of the table without `system.`."""
