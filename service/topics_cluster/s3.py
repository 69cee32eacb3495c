"""A Bucket in S3, or another store with conditional creation that `obstore` knows."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError

from topics_backup.stores import STORE_ERRORS, one_line, open_store
from topics_cluster.bucket import BucketError, ObjectEntry

if TYPE_CHECKING:
    from obstore.store import ClientConfig

REQUEST_SECONDS: Final = 10.0
"""The time for an object of the log."""
_RETRY_SECONDS: Final = 15.0
_DELETE: Final = 1000
_PIECE_BYTES: Final = 1 << 20
_PARTS_AT_ONCE: Final = 4  # of 5 MiB each


class S3Bucket:
    """A Bucket in a store of that URL. Its methods may be called on several event loops."""

    def __init__(self, url: str, *, request_seconds: float = REQUEST_SECONDS) -> None:
        """Open it, without a request. Raises ValueError for a URL that is none."""
        client: ClientConfig = {"connect_timeout": "3s", "pool_idle_timeout": "15s"}
        seconds = f"{round(request_seconds * 1000)}ms"
        self._url = url
        # A create is asked once: the log repeats it itself, and looks at what is there.
        self._once = open_store(url, 0, client | {"timeout": seconds})
        self._store = open_store(url, _RETRY_SECONDS, client | {"timeout": "10m", "read_timeout": seconds})

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        """See Bucket. Copies the parts into one, which is cheaper than handing over thousands."""
        try:
            await obstore.put_async(self._once, name, b"".join(parts), mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            # Both of S3's answers: 412, the object is there; 409, another request for the name was under way, and
            # neither may have succeeded.
            if await self._exists(name):
                return False
            raise self._failed(error) from error
        except STORE_ERRORS as error:
            raise self._failed(error) from error
        return True

    async def get(self, name: str) -> bytes | None:
        """See Bucket."""
        try:
            found = await obstore.get_async(self._store, name)
            return (await found.bytes_async()).to_bytes()
        except FileNotFoundError as error:
            self._check_bucket(error)
            return None
        except BaseError as error:
            raise self._failed(error) from error

    async def list(self, prefix: str, after: str = "", before: str = "") -> Sequence[ObjectEntry]:
        """See Bucket. Pages come in the order of names, so it ends with the one that reaches `before`."""
        folder = prefix.rpartition("/")[0]  # obstore takes whole parts of a name only
        entries: list[ObjectEntry] = []
        try:
            async for page in obstore.list(self._store, folder or None, offset=after or None):
                entries += [
                    ObjectEntry(found["path"], found["size"], found["last_modified"].timestamp())
                    for found in page
                    if found["path"].startswith(prefix) and (not before or found["path"] < before)
                ]
                if before and page and page[-1]["path"] >= before:
                    break
        except STORE_ERRORS as error:
            raise self._failed(error) from error
        return sorted(entries)

    async def delete(self, names: Iterable[str]) -> None:
        """See Bucket."""
        left = list(names)
        while left:
            part, left = left[:_DELETE], left[_DELETE:]
            try:
                await obstore.delete_async(self._store, part)
            except FileNotFoundError as error:
                self._check_bucket(error)
                await self._delete_each(part)
            except BaseError as error:
                raise self._failed(error) from error

    async def _delete_each(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                await obstore.delete_async(self._store, name)
            except FileNotFoundError:
                continue
            except BaseError as error:
                raise self._failed(error) from error

    async def put_file(self, name: str, source: Path) -> None:
        """See Bucket."""
        with source.open("rb") as file:
            try:
                await obstore.put_async(self._store, name, file, max_concurrency=_PARTS_AT_ONCE)
            except STORE_ERRORS as error:
                raise self._failed(error) from error

    async def get_file(self, name: str, target: Path) -> bool:
        """See Bucket. Nothing is left of a file that did not arrive whole."""
        try:
            found = await obstore.get_async(self._store, name)
        except FileNotFoundError as error:
            self._check_bucket(error)
            return False
        except BaseError as error:
            raise self._failed(error) from error
        whole = False
        with target.open("xb") as file:
            try:
                async for piece in found.stream(min_chunk_size=_PIECE_BYTES):
                    file.write(piece)
                whole = True
            except BaseError as error:
                raise self._failed(error) from error
            finally:
                if not whole:
                    os.unlink(target)
        return True

    async def close(self) -> None:
        """See Bucket. Connections are closed when they have been idle for some seconds."""

    async def _exists(self, name: str) -> bool:
        try:
            await obstore.head_async(self._store, name)
        except FileNotFoundError:
            return False
        except BaseError as error:
            raise self._failed(error) from error
        return True

    def _check_bucket(self, error: FileNotFoundError) -> None:
        """Raise BucketError where not the object is missing but its bucket."""
        if "NoSuchBucket" in str(error):
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> BucketError:
        return BucketError(f"{self._url}: {one_line(error)}")
