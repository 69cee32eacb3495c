"""The manifest of a backup: its content and stored form. Pure.

A target holds `backups/<id>.json`, a manifest for each backup, and `files/<2 digits>/<sha256>`, the files of databases
by content, which backups share.
"""

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from topics_backup.errors import BackupError, DamagedError
from topics_service.storage.shardfiles import MOST_SHARDS

FORMAT: Final = 1
SHARDS_FORMAT: Final = 2
"""The format of a backup of a directory with shards."""
BACKUPS: Final = "backups/"
FILES: Final = "files/"
_ID: Final = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{6}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_SHA: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class File(Struct, frozen=True):
    """One file of the database: its name there, its size and the hash of its content."""

    name: str
    size: int
    sha256: str

    @property
    def key(self) -> str:
        """The name in the target."""
        return key_of(self.sha256)


class Partition(Struct, frozen=True):
    """The state of a partition. `log_id` is the number of its log in the database; 0 in older manifests."""

    head_seq: int
    earliest_seq: int
    count: int
    log_id: int = 0


class Topic(Struct, frozen=True, omit_defaults=True):
    """A topic as the backup has it. Records of an `ephemeral` one are in no backup. `numbers` are those of the
    partitions of a topic that has others in other shards."""

    topic: str
    topic_id: str
    epoch: int
    type: str
    durability: str
    partitions: list[Partition]
    numbers: list[int] = []

    def numbered(self) -> Iterator[tuple[int, Partition]]:
        """Yield the partitions with their numbers."""
        return zip(self.numbers, self.partitions, strict=True) if self.numbers else enumerate(self.partitions)


class LogPoint(Struct, frozen=True):
    """The position of a backup in the retained write-ahead log of a server: the line (`storage.wal.archive`), the log
    file to continue with, the sequence number of the next row, and the time of its last batch.
    """

    line: str
    number: int
    next_seq: int
    written_ms: int


class Part(Struct, frozen=True, kw_only=True):
    """One shard in a backup; its members are as those of a Manifest."""

    files: list[File]
    topics: list[Topic]
    log: LogPoint | None = None


class Manifest(Struct, frozen=True, kw_only=True):
    """One backup. `new_bytes` counts the bytes copied for it, `created_ms` is its moment; `log` is None
    where the server kept no log. That of a directory with shards has files and topics in `shards` only."""

    format: int
    id: str
    created_ms: int
    server_version: str
    store_format: str
    source: str
    bytes: int
    new_bytes: int
    files: list[File]
    topics: list[Topic]
    log: LogPoint | None = None
    shards: list[Part] | UnsetType = UNSET

    @property
    def key(self) -> str:
        """The name in the target."""
        return f"{BACKUPS}{self.id}.json"

    @property
    def databases(self) -> Sequence["Manifest"]:
        """The manifest of each shard, as of a backup of that alone; itself where there are no shards."""
        if self.shards is UNSET:
            return [self]
        return [replace(self, shards=UNSET, files=part.files, topics=part.topics, log=part.log) for part in self.shards]


class _Sealed(Struct):
    sha256: str
    backup: msgspec.Raw


class _Version(Struct):
    format: int


def encode(manifest: Manifest) -> bytes:
    """Return the stored form: JSON with a hash of the content."""
    return seal(msgspec.json.encode(manifest))


def seal(body: bytes) -> bytes:
    """Wrap JSON together with its hash."""
    return msgspec.json.encode(_Sealed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))) + b"\n"


def unseal(data: bytes) -> msgspec.Raw:
    """Return the JSON that `seal` was given. Raises ValueError if it has changed."""
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"can't be read: {error}") from error
    if hashlib.sha256(sealed.backup).hexdigest() != sealed.sha256:
        raise ValueError("does not match its own hash")
    return sealed.backup


def decode(backup_id: str, data: bytes) -> Manifest:
    """Decode a manifest from its stored form. Raises DamagedError, and BackupError for one of another format."""
    what = f"{BACKUPS}{backup_id}.json"
    try:
        body = unseal(data)
    except ValueError as error:
        raise DamagedError(backup_id, f"{what} {error}") from error
    try:
        version = msgspec.json.decode(body, type=_Version).format
        if version not in (FORMAT, SHARDS_FORMAT):
            raise BackupError(
                f"{what} has the format {version}, this version reads {FORMAT} and {SHARDS_FORMAT}: use a later "
                "version of topics"
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(backup_id, f"{what} can't be read: {error}") from error
    shards = None if manifest.shards is UNSET else len(manifest.shards)
    is_of_format = shards is None if version == FORMAT else shards is not None and 1 <= shards <= MOST_SHARDS
    if manifest.id != backup_id or not is_of_format or not all(is_database(each.files) for each in manifest.databases):
        raise DamagedError(backup_id, f"{what} contradicts itself")
    return manifest


def new_id(created_ms: int, mark: str) -> str:
    """The id of a backup, which begins with the time, to the millisecond. `mark` is six hexadecimal digits."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(created_ms / 1000))}{created_ms % 1000:03}Z-{mark}"


def is_id(text: str) -> bool:
    """Return whether `text` has the form of a backup id."""
    return _ID.fullmatch(text) is not None


def id_of(key: str) -> str | None:
    """Return the id of the backup whose manifest has this name in the target; None if it is not such a name."""
    found = key.removeprefix(BACKUPS).removesuffix(".json")
    return found if key == f"{BACKUPS}{found}.json" and is_id(found) else None


def key_of(sha256: str) -> str:
    """The name in the target of a file with this hash."""
    return f"{FILES}{sha256[:2]}/{sha256}"


def is_database(files: list[File]) -> bool:
    """Return whether the entries are valid, and those of a database: without CURRENT a new one would be made."""
    names = [file.name for file in files]
    return "CURRENT" in names and len(set(names)) == len(names) and all(map(_is_file, files))


def _is_file(file: File) -> bool:
    """Return whether the entry is valid: a name from a target must not be a path."""
    return bool(_NAME.fullmatch(file.name) and _SHA.fullmatch(file.sha256)) and file.size >= 0
