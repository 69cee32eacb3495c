"""Objects of a cluster's log, manifests of its checkpoints, and what its nodes tell each other."""

from typing import Final

import msgspec
from fuzz.target import Target

from topics_backup.manifest import File, seal
from topics_cluster import checkpoint, founding, objects
from topics_cluster.checkpoint import Checkpoint, CheckpointError
from topics_cluster.log import Position
from topics_cluster.objects import DamagedObjectError, Header, Kind, LaterFormatError, Op
from topics_cluster.store import read_position
from topics_server.node import peers, positions
from topics_service.engine.errors import TopicsError
from topics_service.storage.store import Family

_NUMBER: Final = 42
_NONCE: Final = b"n" * 16


def _object(kind: Kind, *parts: bytes) -> bytes:
    return b"".join(objects.encode(Header(kind, 0, 3, _NUMBER, _NUMBER + 16, 7, _NONCE), parts))


def _data() -> bytes:
    rows = [
        objects.row(Op.PUT, Family.BLOCKS, b"key", b"value" * 100),
        objects.row(Op.DELETE, Family.TAGS, b"key"),
        objects.row(Op.DELETE_RANGE, Family.GAPS, b"a", b"b"),
    ]
    return _object(Kind.DATA, objects.batch_start(6, 1), rows[0], objects.batch_start(7, 2), *rows[1:])


def _samples_of_checkpoints() -> list[bytes]:
    files = [File(name=name, size=3, sha256="0" * 64) for name in ("CURRENT", "MANIFEST-000001", "000002.sst")]
    made = Checkpoint(
        format=checkpoint.FORMAT,
        shard=0,
        number=_NUMBER,
        epoch=3,
        ticket=7,
        applied=9,
        created_ms=5,
        node="a",
        server_version="1",
        store_format="2",
        files=files,
    )
    return [seal(msgspec.json.encode(made))]


TARGETS = (
    Target(
        name="directory that a cluster is being made of",
        decode=founding.decode_begun,
        errors=(CheckpointError,),
        samples=[msgspec.json.encode(founding.Begun(host="h", directory="/d", inode=5, shards=8, began_ms=9)) + b"\n"],
        covers=("topics_cluster.founding:decode_begun",),
    ),
    Target(
        name="object of a shard's log",
        decode=lambda data: objects.decode(0, _NUMBER, data),
        errors=(DamagedObjectError, LaterFormatError),
        samples=[_data(), _object(Kind.FENCE)],
        covers=tuple(f"topics_cluster.objects:{name}" for name in ("decode", "_decode", "_batches")),
    ),
    Target(
        name="place in a shard's log",
        decode=read_position,
        errors=(ValueError,),
        samples=[Position(3, 42, 7).pack() + (9).to_bytes(8)],
        covers=("topics_cluster.store:read_position",),
    ),
    Target(
        name="manifest of a checkpoint",
        decode=lambda data: checkpoint.decode(0, _NUMBER, data),
        errors=(DamagedObjectError, CheckpointError),
        samples=_samples_of_checkpoints(),
        covers=("topics_cluster.checkpoint:decode",),
    ),
    Target(
        name="message of a node",
        decode=peers.read_standpoint,
        errors=(msgspec.MsgspecError,),
        samples=[msgspec.msgpack.encode({"epoch": 3, "ticket": 7})],
        covers=("topics_server.node.peers",),
    ),
    Target(
        name="position of a request",
        decode=lambda data: positions.decode(data.decode("latin-1")),
        errors=(TopicsError,),
        samples=[b"0", b"3-1042"],
        covers=("topics_server.node.positions:decode",),
    ),
)
