"""Files and settings of operators: keys, certificates, backups, the small files of a database."""

import hashlib
import json
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from fuzz.target import Target
from fuzz.targets.storage import log_of

from support.tokens import SECRET, claims, hs256, public_pem, rsa_key, unsigned
from topics_backup import manifest, pruning
from topics_backup.errors import BackupError
from topics_server import keys as key_files
from topics_server import settings, tls, users
from topics_server.processes import share
from topics_server.secret_files import SecretsError, entries_of
from topics_server.settings import SettingsError
from topics_server.tls import TlsError
from topics_service.api.access.auth import KeySyntaxError, read_basic
from topics_service.api.access.tokens import TokenKey, Tokens
from topics_service.storage import clean_shutdown, shardfiles
from topics_service.storage import manifest as database
from topics_service.storage.repair_swap import Swap
from topics_service.storage.store import StoreOpenError
from topics_service.storage.wal import archive, end_mark, repair, validation

_APP: Final = "topics_server"
_ID: Final = "20260101T000000000Z-abcdef"
_FOLDER: Final = tempfile.TemporaryDirectory(prefix="topics-fuzz-")
_PLACE: Final = Path(_FOLDER.name)


def _file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """A decoder of the bytes in a file."""

    def decode(data: bytes) -> Any:
        path = _PLACE / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return decode


def _manifest() -> bytes:
    file = manifest.File("CURRENT", 3, "ab" * 32)
    topic = manifest.Topic("t", "top_x", 1, "log", "disk", [manifest.Partition(3, 1, 3)])
    return manifest.encode(
        manifest.Manifest(
            format=1, id=_ID, created_ms=5, server_version="0", store_format="1", source="s", bytes=3, new_bytes=3,
            files=[file], topics=[topic],
        )
    )  # fmt: skip


def _resealed(data: bytes) -> Any:
    """A manifest whose hash is right whatever else is wrong with it."""
    return manifest.decode(_ID, msgspec.json.encode(manifest._Sealed(_sha(data), msgspec.Raw(data))))


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Listing:
    """A target that holds one list."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, _: str) -> list[bytes]:
        return [self._data]


def _setting(data: bytes) -> Any:
    """One text as the value of settings of every kind."""
    text = data.decode(errors="surrogateescape").replace("\0", "")
    names = (
        "TOPICS_PORT",
        "TOPICS_HOST",
        "TOPICS_MAX_LIMIT",
        "TOPICS_API_KEYS",
        "TOPICS_PROBE_AUTH",
        "TOPICS_LOG_LEVEL",
    )
    made: list[Any] = []
    for name in names:
        try:
            made.append(settings.load({name: text}, {}))
        except SettingsError as error:
            made.append(error)
    return made


def _marked(path: Path) -> Any:
    (path.parent / "CURRENT").write_text("MANIFEST-1\n")
    return end_mark.read(path.parent)


def _closed(path: Path) -> Any:
    (path.parent / "CURRENT").write_text("MANIFEST-1\n")
    (path.parent / "MANIFEST-1").touch()
    directory = path.parent
    return (
        clean_shutdown.find_damage(directory),
        clean_shutdown.known_files(directory),
        clean_shutdown.is_closed(directory),
    )


def _database(path: Path) -> Any:
    (path.parent / "CURRENT").write_text(path.name)
    return database.read(path.parent)


def _users(data: bytes) -> Any:
    return [users._entry(entry, 1) for entry in entries_of(data.decode(errors="surrogateescape"))]


def _heard(data: bytes) -> Any:
    """A message of a process, as its parent reads it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(data)
        return share.read(ours)


def _shards(path: Path) -> Any:
    return shardfiles.count_of(path.parent), len(shardfiles.directories(path.parent))


_PEM = b"-----BEGIN CERTIFICATE-----\nMIIBAgMEBQYH\n-----END CERTIFICATE-----\n"

TARGETS = (
    Target(
        name="file of keys",
        cost=4,
        decode=_file("keys", lambda path: key_files.from_file(str(path))),
        errors=(SecretsError,),
        samples=[b"# ours\na:read:t.|u.\n\n b , c:rw\n", b"\xef\xbb\xbfkey\r\n"],
        covers=(f"{_APP}.keys:from_file",),
    ),
    Target(
        name="keys of the environment",
        decode=lambda data: key_files.from_text(data.decode(errors="surrogateescape")),
        errors=(SecretsError,),
        samples=[b"a:read:t.|u.,b", b",,"],
        covers=(f"{_APP}.keys:from_text",),
    ),
    Target(
        name="users",
        decode=_users,
        errors=(KeySyntaxError,),
        samples=[b"alice:pw:user", b"bob: p w :DBA:a.|b:", "ü:ü:system, c:d:service:x".encode()],
        covers=(f"{_APP}.users:_entry", "topics_service.api.access.auth:parse_prefixes"),
    ),
    Target(
        name="public key of tokens",
        cost=2,
        decode=TokenKey.public,
        errors=(ValueError,),
        samples=[_PEM.replace(b"CERTIFICATE", b"PUBLIC KEY"), public_pem(rsa_key())],
        covers=("topics_service.api.access.tokens:public",),
    ),
    Target(
        name="token",
        decode=Tokens(TokenKey.secret(SECRET.encode())).find,
        errors=(),
        samples=[
            hs256(claims("system")).encode(),
            hs256({"exp": 1e999}).encode(),
            unsigned({}, {"alg": "none"}).encode(),
        ],
        covers=("topics_service.api.access.tokens:find",),
    ),
    Target(
        name="header of a user",
        decode=read_basic,
        errors=(),
        samples=[b"Basic YTpi", b"Basic YTpiOmM=", b"Basic Og=="],
        covers=("topics_service.api.access.auth:read_basic",),
    ),
    Target(
        name="certificate",
        cost=4,
        decode=_file("pem", lambda path: tls._read(tls.Source(str(path), "", "CERT", "KEY"))),
        errors=(TlsError,),
        samples=[_PEM, _PEM + _PEM.replace(b"CERTIFICATE", b"PRIVATE KEY")],
        covers=(f"{_APP}.tls:_read",),
    ),
    Target(
        name="settings",
        cost=10,
        decode=_setting,
        samples=[
            b"4000",
            b"127.0.0.1:80",
            b"[::1]:90",
            b"key:read",
            b"true",
            b"info",
            b"9" * 5000,
            "x:\u00b2".encode(),
        ],
        growth=20_000,
        covers=(f"{_APP}.settings:load", f"{_APP}.settings:_value", "topics_client.environment:split_host"),
    ),
    Target(
        name="manifest of a backup",
        decode=lambda data: manifest.decode(_ID, data),
        errors=(BackupError,),
        samples=[_manifest()],
        growth=1000,
        covers=("topics_backup.manifest:decode", "topics_backup.manifest:unseal", "topics_backup.manifest"),
        again=manifest.encode,
    ),
    Target(
        name="manifest with a right hash",
        decode=_resealed,
        errors=(BackupError, msgspec.MsgspecError),
        samples=[bytes(msgspec.json.decode(_manifest(), type=manifest._Sealed).backup)],
        growth=1000,
        covers=(),
    ),
    Target(
        name="list of files to prune",
        decode=lambda data: pruning._listed(_Listing(data), "x"),  # type: ignore[arg-type]
        samples=[b'["files/ab/abab"]', b"[]"],
        growth=1000,
        covers=("topics_backup.pruning:_listed",),
    ),
    Target(
        name="write-ahead log",
        cost=5,
        decode=_file(
            "wal/1.log",
            lambda path: (validation.read([(1, path)]).broken, repair.what_is_left(path.parent).lost_rows),
        ),
        samples=[log_of(b"x" * 50, b"y" * 300, b""), log_of(b"z" * 3000)],
        covers=(
            "topics_service.storage.wal.records:intact",
            "topics_service.storage.wal.records:_is_cut",
            "topics_service.storage.wal.batches:batch_of",
        ),
    ),
    Target(
        name="list of files at a clean end",
        cost=5,
        decode=_file("db/topics-files.json", _closed),
        errors=(OSError,),
        samples=[
            json.dumps({"current": "MANIFEST-1\n", "files": {"1.sst": 5, "MANIFEST-1": 0}}).encode(),
            json.dumps({"current": "MANIFEST-1\n", "files": [[1, 2], ["a", 3], [None, 1]]}).encode(),
            b"[" * 100_000,
        ],
        growth=1000,
        covers=(
            "topics_service.storage.clean_shutdown:find_damage",
            "topics_service.storage.clean_shutdown:known_files",
            "topics_service.storage.clean_shutdown:is_closed",
        ),
    ),
    Target(
        name="manifest of the database",
        cost=5,
        decode=_file("manifest/MANIFEST-1", _database),
        errors=(ValueError,),
        samples=[
            log_of(
                b"\x01\x05bytes\x02\x04\x04\x09\xc8\x01\x05\xc9\x01\x06blocks",
                b"\x67\x00\x08\x64\x01a\x01b\x02\x09\x05\x01\x00\x01\x0a\x04\xac\x02\x00\xc8\x01\x05",
            )
        ],
        covers=("topics_service.storage.manifest:read",),
    ),
    Target(
        name="end of the write-ahead log",
        cost=5,
        decode=_file(f"mark/{end_mark.NAME}", _marked),
        samples=[bytes(end_mark._NUMBERS.size) + b'{"boot":"x","first":4,"first_seq":2,"starting":1,"manifest":"x"}'],
        covers=("topics_service.storage.wal.end_mark:read",),
    ),
    Target(
        name="line of a log archive",
        cost=5,
        decode=_file(f"line/{archive._LINE}", lambda path: archive.line_of(path.parent)),
        errors=(ValueError,),
        samples=[msgspec.json.encode(archive.Line("20260101T000000Z-abcdef", 3)), b"[" * 100_000],
        growth=1000,
        covers=("topics_service.storage.wal.archive:line_of",),
    ),
    Target(
        name="marker of a repair",
        cost=5,
        decode=_file(f"repair/{clean_shutdown._REPAIR}", lambda path: Swap(path.parent).pending()),
        errors=(ValueError,),
        samples=[b'{"quarantine": "quarantine-1", "phase": "out"}', b"[" * 100_000],
        growth=1000,
        covers=("topics_service.storage.repair_swap:pending",),
    ),
    Target(
        name="number of shards",
        cost=5,
        decode=_file(f"shards/{shardfiles.NAME}", _shards),
        errors=(StoreOpenError,),
        samples=[
            b'{"format":1,"shards":8}\n',
            b'{"format":1,"shards":999999999999999999}',
            b'{"format":1,"more":[[{}]],"shards":2}',
            b'{"more":' + b"[" * 100_000,
        ],
        growth=1000,
        covers=("topics_service.storage.shardfiles:count_of",),
    ),
    Target(
        name="message of a process",
        decode=_heard,
        samples=[
            b'{"failed": "the port is in use"}',
            b'{"listening": true}',
            b"5",
            b'[["failed", 1]]',
            b"[" * 60_000,
        ],
        growth=1000,
        covers=("topics_server.processes.share:read",),
    ),
)
