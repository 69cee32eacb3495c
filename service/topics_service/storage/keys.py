"""Row keys. Integers are big-endian so that byte order is numeric order; topic names never reach a key.

META                 name of the fact
TOPICS               topic number (= epoch)
LOGS, CEILINGS       log id
BLOCKS               log id, base seq
TAGS                 log id, escaped tag, terminator, run base seq
DELETES              log id, chunk number (seq >> 16)
GAPS                 log id, first lost seq
IDEMPOTENCY          log id, key
IDEMPOTENCY_EXPIRY   expiry ms, log id, key
ROUTERS              router number, kind of row
ROUTER_COPIES        destination log id, router name, zero byte, source epoch, first source seq
LEASES               log id, seq of a job (0: the queue's own row)
JOBS                 log id, then what `engine.schedule` says
PRODUCERS            log id, producer id
GROUPS               group number, kind of row
POSITIONS            group number, topic number, partition

Below a log id, TAGS begins with the bases of blocks that are not indexed yet, each after two zero bytes.
"""

import struct

_U64 = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
_TAG_END = b"\x00\x01"
_UNINDEXED = b"\x00\x00"  # no escaped tag begins with it

u64 = _U64.pack
pair = _PAIR.pack


def read_u64(key: bytes, at: int = 0) -> int:
    """The integer at byte `at`."""
    value: int = _U64.unpack_from(key, at)[0]
    return value


def log_range(log_id: int) -> tuple[bytes, bytes]:
    """The key range [start, stop) of all rows that begin with this log id."""
    return u64(log_id), u64(log_id + 1)


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
    return unindexed(log_id, start_seq), u64(log_id) + _TAG_END


def tag_run(key: bytes) -> int:
    """The run base seq at the end of a tag key."""
    return read_u64(key, len(key) - 8)


def _escape(value: bytes) -> bytes:
    return value.replace(b"\x00", b"\x00\xff")


def _successor(prefix: bytes) -> bytes:
    """The smallest key greater than every key with this prefix (which starts with a log id, so is never all 0xff)."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])
