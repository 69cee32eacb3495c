"""A disk that forgets what was not synced, fails when it is told to, and loses its power between any two operations."""

from collections.abc import Iterator

from engine_support import CrashStore

from topics_service.engine.verify import Audit, Problem
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family, StoreError, StoreStalledError, WriteBatch


class CrashError(BaseException):
    """The process ends here, in the middle of whatever it does. Not an Exception: nobody may handle it."""


class Disk(CrashStore):
    """`fuse` operations (writes and syncs) are still done, the next one is not: the process dies before it.

    `stalls` and `breaks` say in how many writes from now one is refused, or fails, once; -1 is never. While it
    `is_stalled`, all are refused; `refused` counts those.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fuse = self.stalls = self.breaks = -1
        self.is_stalled = False
        self.refused = 0

    def write(self, batch: WriteBatch) -> None:
        """See Store."""
        self._burn_fuse()
        if self.breaks >= 0:
            self.breaks -= 1
            if self.breaks < 0:
                raise StoreError("write failed: no space left on device")
        is_refused = self.is_stalled or self.stalls == 0
        self.stalls -= self.stalls >= 0
        if is_refused:
            self.refused += 1
            raise StoreStalledError("Write stall")
        super().write(batch)

    def sync(self) -> None:
        """See Store."""
        self._burn_fuse()
        super().sync()

    def mend(self) -> None:
        """Nothing is about to happen any more."""
        self.fuse = self.stalls = self.breaks = -1

    def _burn_fuse(self) -> None:
        if self.fuse == 0:
            raise CrashError
        self.fuse -= self.fuse > 0


class _Rows:
    """The rows of a disk, for an audit."""

    def __init__(self, store: MemoryStore) -> None:
        self.get, self.floor, self._store = store.get, store.floor, store

    def rows(self, family: Family, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See verify.Source: nothing here is damaged."""
        return self._store.scan(family, start, b"\xff" * 40)


def audit(disk: MemoryStore) -> list[Problem]:
    """What `topics verify --deep` would say of it."""
    found: list[Problem] = []
    each = Audit(_Rows(disk), found.append, deep=True)
    each.begin()
    each.run()
    return found
