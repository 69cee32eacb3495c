"""The column families of a database, of which earlier versions have fewer."""

from pathlib import Path

from topics_service.storage import manifest
from topics_service.storage.rocks_options import _name
from topics_service.storage.store import FIRST_FAMILIES, Family


def known_families(path: Path) -> list[Family]:
    """Return the families that the database has: one of an earlier version has fewer."""
    try:
        names = manifest.read(path).families
    except (OSError, ValueError):
        return list(Family)  # to open it fails, or another try helps
    return [family for family in Family if family in FIRST_FAMILIES or _name(family) in names]
