"""An audit of the rows of a store in memory."""

from collections.abc import Iterator

from topics_service.engine.verify import Audit, Problem
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family


class MemorySource:
    """Implements Source on rows in memory."""

    def __init__(self, store: MemoryStore) -> None:
        self.get = store.get
        self.floor = store.floor
        self._store = store

    def rows(self, family: Family, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See Source; nothing here is damaged."""
        return self._store.scan(family, start, b"\xff" * 40)


def audit(store: MemoryStore) -> list[Problem]:
    """The faults of the rows."""
    found: list[Problem] = []
    each = Audit(MemorySource(store), found.append, deep=True)
    each.begin()
    each.run()
    return found
