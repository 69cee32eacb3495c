"""The object store of a cluster: the protocol. Objects are immutable, but for their deletion."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol


class BucketError(Exception):
    """The store gave no clear answer: what was asked for may have happened, or may happen later."""


class ObjectEntry(NamedTuple):
    """An object: its name, size in bytes, and the time at which it was made by the store's clock, in seconds."""

    name: str
    size: int
    modified: float


class Bucket(Protocol):
    """Objects by name, with `/` between the parts, below the prefix of one cluster.

    Every method may raise BucketError. `create` is linearizable: of all that create one name, one at most succeeds.
    """

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        """Make an object of the concatenated `parts` unless the name is taken; return whether this call made it."""
        ...

    async def get(self, name: str) -> bytes | None:
        """The content of an object, or None if there is none."""
        ...

    async def list(self, prefix: str, after: str = "", before: str = "") -> Sequence[ObjectEntry]:
        """All objects whose name starts with `prefix`, is greater than `after` and, if that is given, less than
        `before`; by name."""
        ...

    async def delete(self, names: Iterable[str]) -> None:
        """Remove objects; absent ones are ignored."""
        ...

    async def put_file(self, name: str, source: Path) -> None:
        """Store a local file, over one of the same name. Raises OSError for faults of the source."""
        ...

    async def get_file(self, name: str, target: Path) -> bool:
        """Write an object to a new local file; return False if there is no such object. Raises OSError for faults of
        the target; no part of a file is left."""
        ...

    async def close(self) -> None:
        """Release its connections."""
        ...
