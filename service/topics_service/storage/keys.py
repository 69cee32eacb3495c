"""Row keys. Integers are big-endian so that byte order is numeric order; topic names never reach a key.

META                 name of the fact; shipments under way (`engine.queue.shipments`)
TOPICS               topic number (= epoch)
LOGS, CEILINGS       log id
BLOCKS               log id, base seq
TAGS                 log id, kind of row (below)
DELETES              log id, chunk number (seq >> 16)
GAPS                 log id, first lost seq
IDEMPOTENCY          log id, key
IDEMPOTENCY_EXPIRY   expiry ms, log id, key
ROUTERS              router number, kind of row; number 0: where routers are (`engine.router.places`)
ROUTER_COPIES        destination log id, router name, zero byte, source epoch, first source seq
LEASES               log id, seq of a job (0: the queue's own row)
JOBS                 log id, then what `engine.schedule` says
PRODUCERS            log id, producer id
GROUPS               group number, kind of row
POSITIONS            group number, topic number, partition
ROWS                 table number, primary key (`engine.tables.keycode`)
INDEXES              table number, index number (4 bytes), indexed values, primary key
TABLES               kind of definition and a zero byte, then the number or the name of what it is of
SEGMENTS             position, key of a row of BLOCKS (`segments`)

Below a log id, TAGS has, each kind after two zero bytes and in this order:

                     base seq of a block that is not indexed yet
0xfd                 nothing: the seq up to which older rows are replaced
0xfe                 base seq of a run, level
0xff                 level, base seq of a run, then the first entry of a chunk: escaped tag, terminator, position

and behind them rows of an older kind: escaped tag, terminator, run base seq.
"""

import struct

_U64 = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
_INDEX = struct.Struct(">QI")
_TAG_END = b"\x00\x01"
_UNINDEXED = b"\x00\x00"  # no escaped tag begins with it
_MOVED = b"\x00\x00\xfd"  # nor is a seq so high
_RUN = b"\x00\x00\xfe"
_CHUNK = b"\x00\x00\xff"
_POSITION = struct.Struct(">I")

u64 = _U64.pack
pair = _PAIR.pack


def read_u64(key: bytes, at: int = 0) -> int:
    """The integer at byte `at`."""
    value: int = _U64.unpack_from(key, at)[0]
    return value


def log_range(log_id: int) -> tuple[bytes, bytes]:
    """The key range [start, stop) of all rows that begin with this log id."""
    return u64(log_id), u64(log_id + 1)


def index_prefix(table: int, index: int) -> bytes:
    """The beginning of the keys of all entries of an index."""
    return _INDEX.pack(table, index)


def prefix_range(prefix: bytes) -> tuple[bytes, bytes]:
    """The key range of all keys that begin with `prefix`, which begins with a number below 2^64 - 1."""
    return prefix, _successor(prefix)


def tag(log_id: int, value: bytes, run_base: int) -> bytes:
    """The key of a tag's positions within the run that starts at `run_base`."""
    return u64(log_id) + _escape(value) + _TAG_END + u64(run_base)


def tag_range(log_id: int, value: bytes, *, prefix: bool) -> tuple[bytes, bytes]:
    """The key range of exactly this tag, or with `prefix` of all tags that start with it."""
    start = u64(log_id) + _escape(value)
    if not prefix:
        start += _TAG_END
    if not value and prefix:
        return start + _TAG_END, _successor(start)
    return start, _successor(start)


def unindexed(log_id: int, base_seq: int) -> bytes:
    """The key that marks the block at `base_seq` as not indexed by tag."""
    return u64(log_id) + _UNINDEXED + u64(base_seq)


def unindexed_range(log_id: int, start_seq: int = 0) -> tuple[bytes, bytes]:
    """The key range of the marks at and above `start_seq`."""
    return unindexed(log_id, start_seq), u64(log_id) + _MOVED


def moved(log_id: int) -> bytes:
    """The key of the seq up to which runs replace the older rows, while they do."""
    return u64(log_id) + _MOVED


def run(log_id: int, base_seq: int, level: int) -> bytes:
    """The key of a run of the tag index."""
    return u64(log_id) + _RUN + u64(base_seq) + bytes((level,))


def runs(log_id: int) -> tuple[bytes, bytes]:
    """The key range of all runs of a log."""
    return u64(log_id) + _RUN, u64(log_id) + _CHUNK


def chunk(log_id: int, base_seq: int, level: int, tag: bytes, position: int) -> bytes:
    """The key of the chunk of a run that begins with this entry."""
    start = _chunks_of(log_id, base_seq, level)
    return b"".join((start, _escape(tag), _TAG_END, _POSITION.pack(position)))


def chunks(log_id: int, base_seq: int, level: int) -> tuple[bytes, bytes]:
    """The key range of the chunks of a run."""
    start = _chunks_of(log_id, base_seq, level)
    return start, _successor(start)


def chunk_stop(log_id: int, base_seq: int, level: int, prefix: bytes) -> bytes:
    """The key above those of all chunks that begin with a tag which starts with `prefix`."""
    return _successor(_chunks_of(log_id, base_seq, level) + _escape(prefix))


def tag_rows(log_id: int) -> tuple[bytes, bytes]:
    """The key range of the older kind of rows, one for each tag of a run."""
    return u64(log_id) + _TAG_END, u64(log_id + 1)


def run_of(key: bytes) -> tuple[int, int]:
    """The base seq and the level at the end of a run's key."""
    return read_u64(key, 11), key[19]


def run_of_chunk(key: bytes) -> tuple[int, int]:
    """The base seq and the level in a chunk's key."""
    return read_u64(key, 12), key[11]


def tag_run(key: bytes) -> int:
    """The run base seq at the end of a tag key."""
    return read_u64(key, len(key) - 8)


def _chunks_of(log_id: int, base_seq: int, level: int) -> bytes:
    return u64(log_id) + _CHUNK + bytes((level,)) + u64(base_seq)


def _escape(value: bytes) -> bytes:
    return value.replace(b"\x00", b"\x00\xff")


def _successor(prefix: bytes) -> bytes:
    """The smallest key greater than every key with this prefix (which starts with a log id, so is never all 0xff)."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])
