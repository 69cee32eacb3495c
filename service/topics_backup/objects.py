"""Backups in an object store, through `obstore`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from topics_backup.errors import AbsentError, BackupError
from topics_backup.stores import STORE_ERRORS, one_line, open_store
from topics_backup.target import CHUNK_BYTES, Entry

_DELETE: Final = 1000
_RETRY_SECONDS: Final = 60


class Objects:
    """A Target in an object store, below its prefix.

    Large files go in parts, of which nothing is seen before the last.
    """

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name

    def __str__(self) -> str:
        return self._name

    def put(self, name: str, data: bytes) -> None:
        """See Target."""
        try:
            obstore.put(self._store, name, data)
        except STORE_ERRORS as error:
            raise self._failed(error) from error

    def put_file(self, name: str, source: Path) -> None:
        """See Target."""
        with source.open("rb") as file:
            try:
                obstore.put(self._store, name, file)
            except STORE_ERRORS as error:
                raise self._failed(error) from error

    def read(self, name: str) -> Iterator[bytes]:
        """See Target."""
        try:
            for piece in obstore.get(self._store, name).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(piece)
        except FileNotFoundError:
            raise AbsentError(f"{name} is not there") from None
        except BaseError as error:
            raise self._failed(error) from error

    def list(self, prefix: str) -> Iterator[Entry]:
        """See Target."""
        try:
            for page in obstore.list(self._store, prefix=prefix):
                for found in page:
                    yield Entry(found["path"], found["size"], found["last_modified"].timestamp())
        except FileNotFoundError:
            return
        except BaseError as error:
            raise self._failed(error) from error

    def delete(self, names: Iterable[str]) -> None:
        """See Target."""
        left = list(names)
        while left:
            part, left = left[:_DELETE], left[_DELETE:]
            try:
                obstore.delete(self._store, part)
            except FileNotFoundError:
                self._delete_each(part)
            except BaseError as error:
                raise self._failed(error) from error

    def clean(self, seconds: float) -> None:
        """See Target. Parts of uploads that were never finished are for the store's own rules to remove."""

    def _delete_each(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                obstore.delete(self._store, name)
            except FileNotFoundError:
                continue
            except BaseError as error:
                raise self._failed(error) from error

    def _failed(self, error: Exception) -> BackupError:
        return BackupError(f"{self._name}: {one_line(error)}")


def open_url(url: str) -> Objects:
    """The store of a URL, see `open_store`. Raises BackupError for a URL that is none."""
    try:
        return Objects(open_store(url, _RETRY_SECONDS), url)
    except ValueError as error:
        raise BackupError(f"{url}: {error}") from error
