"""The state of a data directory before its database is opened."""

import logging
from pathlib import Path

from topics_service.storage import clean_shutdown, tablelist
from topics_service.storage.store import StoreOpenError
from topics_service.storage.wal import end_mark, quarantine, validation

log = logging.getLogger("topics.storage")


def find_damage(path: Path, boot_id: str) -> validation.Break | None:
    """Look for damage that RocksDB would silently accept. Return the break at which the logs must be cut after a power
    cut, or None. Raises StoreOpenError, naming the file, and OSError."""
    if clean_shutdown.is_headless(path):
        raise StoreOpenError(f"the file {path / 'CURRENT'} is missing, and there are files of a database")
    damage = clean_shutdown.find_damage(path)
    if damage is None and (path / "CURRENT").exists():
        damage = tablelist.find_damage(path, closed=clean_shutdown.is_closed(path))
    if damage is not None:
        raise StoreOpenError(damage)
    if clean_shutdown.is_closed(path):
        return None
    try:
        return validation.find_break(path, boot_id)
    except validation.LostLogError as error:
        raise StoreOpenError(str(error)) from None


def prepare(path: Path, boot_id: str) -> None:
    """Cut the logs where a power cut broke them. Until the database is open, which logs there are says nothing of how
    far the last server came: so note it. Raises StoreOpenError and OSError."""
    broken = find_damage(path, boot_id)
    if broken is not None:
        aside = quarantine.set_aside(path, broken)
        log.warning("%s, as after a power cut: what follows is not applied, and kept in %s", broken.text, aside)
    mark = end_mark.read(path)
    if mark is not None:
        mark.starting = validation.starting(path, mark)
        end_mark.write(path, mark)


def reason(error: OSError | ValueError) -> str:
    """Return the error without its number, and with its file."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
