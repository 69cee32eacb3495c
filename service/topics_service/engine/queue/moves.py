"""Moving jobs from one log to another in one atomic write: dead letters, and their way back."""

from collections.abc import Callable, Sequence

from topics_service.engine.blocks import LogBlocks
from topics_service.engine.capacity import Capacity
from topics_service.engine.checks import batch_bytes
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import Batch
from topics_service.engine.retention import sizes_of
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction

MOVE_JOBS = 1000
MOVE_BYTES = 8 << 20

NewMeta = Callable[[bytes | None, int], bytes | None]  # from a record's meta and seq


def copies(blocks: LogBlocks, seqs: Sequence[int], new_meta: NewMeta) -> Batch:
    """Return the records for an append elsewhere: data, tag and node unchanged, meta from `new_meta`.

    Stops after `MOVE_BYTES` and before an unreadable record; raises if that is the first.
    """
    datas: list[bytes] = []
    tags: list[bytes | None] = []
    nodes: list[bytes | None] = []
    metas: list[bytes | None] = []
    kinds = bytearray()
    nbytes = 0
    for seq in seqs:
        try:
            block = blocks.records(seq)
        except TopicsError:
            if not datas:
                raise
            break
        i = seq - block.base_seq
        data = block.record_data(i)
        meta = new_meta(None if block.metas is None else block.metas[i], seq)
        nbytes += len(data) + len(meta or b"")
        if nbytes > MOVE_BYTES and datas:
            break
        datas.append(data)
        metas.append(meta)
        tags.append(None if block.tags is None else block.tags[i])
        nodes.append(None if block.nodes is None else block.nodes[i])
        kinds.append(0 if block.kinds is None else block.kinds[i])
    return Batch(datas=datas, tags=column(tags), nodes=column(nodes), metas=column(metas), kinds=kinds_of(kinds))


def fitting(batch: Batch, seqs: Sequence[int], source: Topic, dest: Topic, capacity: Capacity, now: int) -> Batch:
    """Return the batch, or as much of its beginning as fits into `dest` (by halves). The `seqs` leave `source` for it.

    Raises the error of `Capacity.check` if not even the first record fits.
    """
    if not capacity.is_checked(dest):
        return batch
    s = dest.log.begin(dest.config, now)
    while True:
        count = len(batch.datas)
        try:
            freed = sum(size for _, size in sizes_of(source.log.blocks, seqs[:count]))
            capacity.check(dest, s, count, batch_bytes(batch), freed)
        except TopicsError:
            if count == 1:
                raise
            batch = first_of(batch, (count + 1) // 2)
        else:
            return batch


def move(tx: Transaction, batch: Batch, seqs: Sequence[int], source: Topic, dest: Topic, now: int) -> Snapshot:
    """Stage the append of `batch` to `dest`, which has room, and the deletion of `seqs` in `source`.

    Returns the state of the source after it.
    """
    dest.log.append(tx, dest.log.begin(dest.config, now), batch, dest.config, now)
    return leave(tx, seqs, source, now)


def leave(tx: Transaction, seqs: Sequence[int], source: Topic, now: int) -> Snapshot:
    """Stage the deletion of `seqs` in `source`; return its state after it."""
    s = source.log.begin(source.config, now)
    source.log.mark(tx, s, seqs, source.config)
    return s


def first_of(batch: Batch, count: int) -> Batch:
    """The first records of a batch."""
    return Batch(
        datas=batch.datas[:count],
        tags=None if batch.tags is None else column(batch.tags[:count]),
        nodes=None if batch.nodes is None else column(batch.nodes[:count]),
        metas=None if batch.metas is None else column(batch.metas[:count]),
        kinds=None if batch.kinds is None else kinds_of(batch.kinds[:count]),
    )


def column(values: list[bytes | None]) -> list[bytes | None] | None:
    """A column of a batch: None if no record has a value."""
    return values if any(value is not None for value in values) else None


def kinds_of(kinds: bytes | bytearray) -> bytes | None:
    """The kinds of a batch: None if every record is JSON."""
    return bytes(kinds) if any(kinds) else None
