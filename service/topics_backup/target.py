"""Backup targets: the protocol, and its implementation on a local folder."""

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from topics_backup.errors import AbsentError, BackupError
from topics_client.installation import needs
from topics_service.storage.durable import sync
from topics_service.storage.private import make_private

CHUNK_BYTES: Final = 1 << 20
_PART: Final = ".part-"
_SCHEME: Final = "://"


class Entry(NamedTuple):
    """A file of a target: its name, size, and the time of its last write by the target's own clock, in seconds."""

    name: str
    size: int
    modified: float


class Target(Protocol):
    """Files by name, with `/` between the parts. All methods block; failures of the target raise BackupError.

    A file exists with its whole content or not at all, and is durable when `put` returns.
    """

    def put(self, name: str, data: bytes) -> None:
        """Write or replace a file."""
        ...

    def put_file(self, name: str, source: Path) -> None:
        """Copy a local file. Raises OSError for faults of the target."""
        ...

    def read(self, name: str) -> Iterator[bytes]:
        """The content in pieces. Raises AbsentError."""
        ...

    def list(self, prefix: str) -> Iterator[Entry]:
        """Every file whose name starts with `prefix`, which ends with `/`, in no order."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove files; absent ones are ignored."""
        ...

    def clean(self, seconds: float) -> None:
        """Remove leftovers of killed writers older than `seconds`, unless the target does so itself."""
        ...


class Folder:
    """A Target in a directory, which the first write creates."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def put(self, name: str, data: bytes) -> None:
        """See Target."""
        part = self._part()
        try:
            with part.open("xb") as file:
                file.write(data)
            self._publish(part, name)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            part.unlink(missing_ok=True)

    def put_file(self, name: str, source: Path) -> None:
        """See Target."""
        with source.open("rb") as given:
            part = self._part()
            try:
                with part.open("xb") as file:
                    shutil.copyfileobj(given, file, CHUNK_BYTES)
                self._publish(part, name)
            except OSError as error:
                raise self._failed(error) from error
            finally:
                part.unlink(missing_ok=True)

    def read(self, name: str) -> Iterator[bytes]:
        """See Target."""
        try:
            with (self._root / name).open("rb") as file:
                while piece := file.read(CHUNK_BYTES):
                    yield piece
        except FileNotFoundError:
            raise AbsentError(f"{name} is not there") from None
        except OSError as error:
            raise self._failed(error) from error

    def list(self, prefix: str) -> Iterator[Entry]:
        """See Target."""
        for directory, _, names in os.walk(self._root / prefix, onerror=self._unlisted):
            for name in names:
                path = Path(directory) / name
                try:
                    status = path.stat()
                except FileNotFoundError:  # removed since
                    continue
                except OSError as error:
                    raise self._failed(error) from error
                yield Entry(path.relative_to(self._root).as_posix(), status.st_size, status.st_mtime)

    def delete(self, names: Iterable[str]) -> None:
        """See Target."""
        parents = set()
        try:
            for name in names:
                path = self._root / name
                path.unlink(missing_ok=True)
                parents.add(path.parent)
            for parent in parents:
                if parent.exists():
                    sync(parent)
        except OSError as error:
            raise self._failed(error) from error

    def clean(self, seconds: float) -> None:
        """See Target."""
        mark = self._part()
        try:
            mark.touch()
            now = mark.stat().st_mtime
            for path in self._root.glob(f"{_PART}*"):
                if now - path.stat().st_mtime >= seconds:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            mark.unlink(missing_ok=True)

    def _unlisted(self, error: OSError) -> None:
        """Raise for a directory that can't be listed: as an empty one, it would make a prune remove needed files."""
        if not isinstance(error, FileNotFoundError):
            raise self._failed(error) from error

    def _part(self) -> Path:
        """Return a name that no list shows, for an incomplete file."""
        try:
            _make(self._root, self._root)
        except OSError as error:
            raise self._failed(error) from error
        return self._root / f"{_PART}{uuid.uuid4().hex}"

    def _publish(self, part: Path, name: str) -> None:
        sync(part)
        path = self._root / name
        _make(path.parent, self._root)
        part.rename(path)
        sync(path.parent)

    def _failed(self, error: OSError) -> BackupError:
        return BackupError(f"{error.filename or self._root}: {error.strerror or error}")


def open_target(text: str) -> Target:
    """The target that an operator names: a folder, `file:///folder`, or the URL of an object store.

    Raises BackupError for a URL that is none, MissingError where the package for object stores is missing.
    """
    if text.startswith("file://"):
        text = text.removeprefix("file://")
        if not text.startswith("/"):
            raise BackupError("a file URL has three slashes: file:///folder")
    if _SCHEME not in text:
        if not text:
            raise BackupError("the target has no name")
        return Folder(Path(text))
    with needs("backup", "object stores need {name}: {install}"):
        from topics_backup.objects import open_url
    return open_url(text)


def _make(directory: Path, root: Path) -> None:
    """Create a directory and its parents, durably; `root` for its owner alone."""
    if directory.is_dir():
        return
    _make(directory.parent, root)
    if directory == root:
        make_private(directory)
    else:
        directory.mkdir(exist_ok=True)
    sync(directory.parent)
