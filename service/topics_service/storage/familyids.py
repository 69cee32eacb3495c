"""The numbers that RocksDB assigned to column families, from its manifest. The write-ahead log uses them."""

from pathlib import Path

from topics_service.storage import manifest
from topics_service.storage.rocks_options import _name
from topics_service.storage.store import FIRST_FAMILIES, Family


def family_ids(directory: Path) -> dict[Family, int]:
    """Return the number of each family that a database has. Raises OSError, and ValueError for a damaged manifest."""
    found = manifest.read(directory).families
    missing = [family.name for family in FIRST_FAMILIES if _name(family) not in found]
    if missing:
        raise ValueError(f"the manifest of {directory} lacks the column family {missing[0].lower()}")
    return {family: found[_name(family)] for family in Family if _name(family) in found}
