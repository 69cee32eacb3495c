"""Files on this machine that are there after a power cut once a commit refers to them.

PyIceberg leaves them to the cache of the operating system, while SQLite syncs the catalog: a power cut would leave a
catalog that points to metadata that was never written.
"""

import io
import os
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO, PyArrowLocalFileSystem

_BUFFER_BYTES = 1 << 20


class SyncedFileIO(PyArrowFileIO):
    """PyIceberg's own, with local files synced to the device when they are closed."""

    def _initialize_local_fs(self) -> FileSystem:
        return _SyncedFileSystem()


class _SyncedFileSystem(PyArrowLocalFileSystem):
    def open_output_stream(self, path: str, *args: Any, **kwargs: Any) -> pa.NativeFile:
        self.create_dir(os.path.dirname(path), recursive=True)
        return pa.PythonFile(io.BufferedWriter(_SyncedFile(path, "wb"), _BUFFER_BYTES), "w")


class _SyncedFile(io.FileIO):
    def close(self) -> None:
        if not self.closed:
            try:
                os.fsync(self.fileno())
            finally:
                super().close()
            folder = os.open(os.path.dirname(os.fsdecode(self.name)), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
