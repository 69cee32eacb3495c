"""File formats: detection by name and by content."""

import gzip
import io
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from topics_cli.server import UsageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CHOICES: Final = ("ndjson", "csv", "parquet", "ndjson.gz", "ndjson.zst", "csv.gz", "csv.zst")
"""The values of `--format`."""

HELP: Final = f"{', '.join(CHOICES[:-1])} or {CHOICES[-1]} (default: by the extension of FILE, else ndjson)"
"""The help of `--format`."""

_SPOKEN: Final = {"ndjson": "NDJSON", "csv": "CSV", "parquet": "Parquet", "gz": "gzip", "zst": "Zstandard"}
_KINDS: Final = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv", ".parquet": "parquet"}
_PACKINGS: Final = {".gz": "gz", ".zst": "zst"}
_UNPACK: Final = {"gz": "gunzip", "zst": "unzstd"}
# Extensions of unsupported formats, with the remedy.
_CONVERT: Final = "convert it to NDJSON, CSV or Parquet"
_FOREIGN: Final = {
    **{f".{name}": (name, "unpack it first") for name in ("bz2", "xz", "lz4", "br", "zip", "7z", "tar", "tgz")},
    **{f".{name}": (name, _CONVERT) for name in ("tsv", "xls", "xlsx", "avro", "orc", "arrow", "feather")},
}
_MAGIC: Final = (
    (b"\x1f\x8b", "gz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet"),
    (b"Obj\x01", "Avro"),
    (b"ARROW1", "Arrow"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_HEAD: Final = 64
_BUFFER: Final = 1 << 18


class Format(NamedTuple):
    """`kind` is ndjson, csv or parquet, `packing` gz, zst or none; each is None where a name does not say."""

    kind: str | None
    packing: str | None


def of_name(file: str, chosen: str | None = None) -> Format:
    """The format by the name of a file, overridden by `--format`. Raises UsageError for unsupported formats."""
    name, packing = os.path.basename(file).lower(), None
    for ending, found in _PACKINGS.items():
        if name.endswith(ending):
            name, packing = name.removesuffix(ending), found
    ending = os.path.splitext(name)[1]
    kind = _KINDS.get(ending)
    if chosen is not None:
        kind, _, packed = chosen.partition(".")
        packing = packed or packing
    elif ending in _FOREIGN:
        foreign, remedy = _FOREIGN[ending]
        raise UsageError(f"{file}: {foreign} isn't supported: {remedy}, or override the format with --format")
    if kind == "parquet" and packing:
        raise _twice(file, packing)
    return Format(kind, packing)


def looks_like(head: bytes) -> str | None:
    """parquet, gz, zst, or the name of another format whose files begin so; None for possible text."""
    if head.startswith(b"PAR1") and head[4:5] < b" " and head[4:5] not in (b"\t", b"\r", b"\n"):
        return "parquet"
    if head.startswith(b"BZh") and head[4:10] == b"1AY&SY":
        return "bzip2"
    return next((what for magic, what in _MAGIC if head.startswith(magic)), None)


def spoken(what: str) -> str:
    """The name of a format as people write it."""
    return _SPOKEN.get(what, what)


def refuse_other(head: bytes, label: str, wanted: str, remedy: str) -> None:
    """Raises ValueError for the beginning of a file that can't be `wanted`, a kind of text; `remedy` ends the line."""
    if found := looks_like(head):
        raise ValueError(f"{label} looks like {spoken(found)}, not {spoken(wanted)}: {remedy}")


class Source:
    """The unpacked bytes of an open file. `consumed` counts those that were read of the file itself."""

    def __init__(self, raw: io.FileIO, label: str) -> None:
        self.label = label
        self.packing: str | None = None
        self._counting = _Counting(raw)
        self._stream: Any = io.BufferedReader(self._counting, _BUFFER)

    @property
    def consumed(self) -> int:
        """Bytes of the file."""
        return self._counting.count

    def unpack(self) -> None:
        """Decompress gzip or Zstandard from here on. Raises ValueError if that is not supported here."""
        found = looks_like(self.head())
        if found == "gz":
            self.packing, self._stream = found, gzip.GzipFile(fileobj=self._stream)
        elif found == "zst":
            self.packing, self._stream = found, zstd().ZstdFile(self._stream)

    def head(self) -> bytes:
        """Peek at the next bytes, up to 64; empty only at the end."""
        with self._decompression_errors():
            return bytes(self._stream.peek(_HEAD)[:_HEAD])

    def read1(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, as they are there. Raises ValueError for packed bytes that are damaged or cut off."""
        with self._decompression_errors():
            return bytes(self._stream.read1(size))

    @contextmanager
    def as_file(self, name: str) -> "Iterator[str | IO[bytes]]":
        """A seekable file: `name` itself, or a temporary copy of the data from a pipe."""
        if name != "-" and self._counting.seekable():
            yield name
            return
        with tempfile.TemporaryFile() as copy:
            while data := self.read1(_BUFFER):
                copy.write(data)
            copy.seek(0)
            yield copy

    @contextmanager
    def _decompression_errors(self) -> Iterator[None]:
        if self.packing is None:
            yield
            return
        broken: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
        if self.packing == "zst":
            broken = (EOFError, zstd().ZstdError)
        try:
            yield
        except broken as error:
            what = "is truncated" if isinstance(error, EOFError) else f"is damaged: {error}"
            raise ValueError(f"{self.label}: its {spoken(self.packing)} data {what}") from error


@contextmanager
def opened(file: str, label: str, chosen: str | None) -> "Iterator[tuple[Source, str, bool]]":
    """A file or `-` to be imported, unpacked, its kind, and whether that is only a guess.

    Raises ValueError for bytes that are of another format than the name or `--format` says, UsageError for a name of
    a format that isn't supported.
    """
    said = of_name(file, chosen)
    with io.FileIO(0 if file == "-" else file, closefd=file != "-") as raw:
        source = Source(raw, label)
        source.unpack()
        if chosen is None and said.packing and source.packing != said.packing and source.head():
            named, found = spoken(said.packing), looks_like(source.head())
            actual = f"it looks like {spoken(source.packing or found or '')}" if source.packing or found else ""
            raise ValueError(
                f"{label} is named like {named} but isn't: {actual or 'it may be plain text'}; rename it, or give "
                f"--format {said.kind or 'ndjson'}"
            )
        head = source.head()
        found = looks_like(head)
        kind = said.kind or ("parquet" if found == "parquet" else "ndjson")
        if kind == "parquet":
            if source.packing:
                raise _twice(label, source.packing)
            if head and found != "parquet":
                looks = f"it looks like {spoken(found)}" if found else "it does not begin with PAR1"
                raise ValueError(f"{label} isn't Parquet: {looks}")
        elif found == "parquet":
            refuse_other(head, label, kind, "--format parquet reads it" if not source.packing else "unpack it first")
        elif found in _UNPACK:
            raise ValueError(f"{label} is compressed twice: {_UNPACK[found]} it first")
        else:
            remedy = "iconv -t UTF-8 converts it" if found == "UTF-16 text" else "unpack or convert it first"
            refuse_other(head, label, kind, remedy)
        yield source, kind, said.kind is None


def packed(target: IO[bytes], packing: str | None) -> IO[bytes]:
    """A stream that compresses its input into `target`; its `close` ends the format and leaves `target` open."""
    if packing == "gz":
        return gzip.GzipFile(fileobj=target, mode="wb", compresslevel=6, mtime=0, filename="")  # type: ignore[return-value]
    if packing == "zst":
        found: IO[bytes] = zstd().ZstdFile(target, "wb")
        return found
    return target


def zstd() -> Any:
    """The Zstandard module. Raises ValueError with the package to install if there is none."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd as found
        else:
            from backports import zstd as found
    except ModuleNotFoundError:
        raise ValueError("Zstandard (.zst) needs backports.zstd: pip install backports.zstd") from None
    return found


def _twice(file: str, packing: str) -> UsageError:
    return UsageError(
        f"{file}: Parquet inside {spoken(packing)} isn't supported, as Parquet compresses its columns itself; "
        f"{_UNPACK[packing]} an existing file, name a new one .parquet"
    )


class _Counting(io.RawIOBase):
    """A file that counts the bytes read."""

    def __init__(self, raw: io.FileIO) -> None:
        self.count = 0
        self._raw = raw

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._raw.seekable()

    def readinto(self, buffer: "WriteableBuffer", /) -> int | None:
        count = self._raw.readinto(buffer)
        self.count += count or 0
        return count
