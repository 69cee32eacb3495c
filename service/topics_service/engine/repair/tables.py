"""Tables: their definitions, rows and index entries."""

from typing import Final

from topics_service.engine.repair.actions import Rows
from topics_service.storage.store import Family

_FAMILIES: Final = {
    Family.TABLES: "definitions of tables",
    Family.ROWS: "rows of tables",
    Family.INDEXES: "entries of indexes",
}


def save(rows: Rows) -> None:
    """Save every row that can be read."""
    for family, what in _FAMILIES.items():
        for key, value in rows.family(family):
            rows.put(family, key, value)
        for hole in rows.holes[family]:
            rows.report("lost", f"{what} can't be read: {hole.why}")
