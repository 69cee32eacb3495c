"""Provenance of `exactly_once` copies: the identity in `meta._topics_router`, and the map of copies made.

The server adds it: a copy may exceed the limits of records and meta by its length, about 1.5 KB at most. The client's
meta is kept byte for byte; only an existing `_topics_router` is replaced.

A copy and the cursor of its router are written together, so a router never repeats a copy. One that was
deleted and created again with `backfill` can: against that, every slice of an exactly_once router adds a row to the
dedup map, which maps source seqs to destination seqs. Rows are removed with the log of the destination, and once all
their copies have left it.
"""

import struct
from collections.abc import Iterable, Sequence

import msgspec

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.storage import keys
from topics_service.storage.store import Family, Store, WriteBatch
from topics_service.storage.varbinary import Column

_NAME = "_topics_router"
_ORIGINAL = b'{"_topics_original_meta":%b}'
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RUN = struct.Struct(">QQQ")
_ROW_VERSION = b"\x01"
_PRUNED_ROWS = 512
_MAX_META_KEYS = Limits().max_meta_keys

Run = tuple[int, int, int]  # first source seq, first destination seq, count


class Provenance:
    """Builds the meta of copies of one source."""

    def __init__(self, router: str, source: str, topic_id: str, epoch: int) -> None:
        # Names are of a charset that needs no escapes, in JSON and here.
        key = f"router:{router}:{topic_id}:{epoch}:%d"
        self._member = (
            f'"{_NAME}":{{"idempotency_key":"{key}","router":"{router}","source_topic":"{source}",'
            f'"source_topic_id":"{topic_id}","source_epoch":{epoch},"source_seq":%d}}'
        ).encode()

    def column(self, metas: Column | None, seqs: Iterable[int]) -> Column:
        """Return the metas of copies, from those of the records with these seqs."""
        member = self._member
        if metas is None:
            form = b"{" + member + b"}"
            return [form % (seq, seq) for seq in seqs]
        return [
            b"{" + member % (seq, seq) + b"}" if meta is None else _joined(meta, member % (seq, seq))
            for meta, seq in zip(metas, seqs, strict=True)
        ]


def _joined(meta: bytes, member: bytes) -> bytes:
    """Return the object `meta` with the member added, which replaces any `_topics_router`."""
    text = meta.strip()
    if b"\\" in text or b"_topics_router" in text or text.count(b":") >= _MAX_META_KEYS:
        text = _made_room(text)
    inner = text[1:-1].rstrip()
    return b"{" + inner + b"," + member + b"}" if inner.lstrip() else b"{" + member + b"}"


def _made_room(text: bytes) -> bytes:
    """Return the object without `_topics_router`, nested in `_topics_original_meta` if it has too many members."""
    try:
        found = _MEMBERS.decode(text)
    except (ValueError, RecursionError):  # whatever another decoder let pass: it is kept, too
        return _ORIGINAL % text
    if found.pop(_NAME, None) is not None:
        text = b"{" + b",".join(msgspec.json.encode(name) + b":" + bytes(raw) for name, raw in found.items()) + b"}"
    return text if len(found) < _MAX_META_KEYS else _ORIGINAL % text


class DedupMap:
    """The rows of one router's copies out of one life of a source (`epoch`) into one log: disjoint, in seq order."""

    def __init__(self, store: Store, log_id: int, router: str, epoch: int) -> None:
        self._store = store
        self._prefix = keys.u64(log_id) + router.encode() + b"\x00" + keys.u64(epoch)

    def end(self) -> int:
        """The highest source seq in the map; 0 if it is empty."""
        row = self._store.floor(Family.ROUTER_COPIES, self._key((1 << 64) - 1))
        return _last(_decode(row[1])) if row is not None and row[0].startswith(self._prefix) else 0

    def overlapping(self, first: int, last: int) -> list[tuple[bytes, list[Run]]]:
        """Return the rows, with their keys, that contain a source seq in [first, last]."""
        found = []
        start = self._key(first)
        below = self._store.floor(Family.ROUTER_COPIES, start)
        if below is not None and below[0].startswith(self._prefix):
            start = below[0]
        for key, row in self._store.scan(Family.ROUTER_COPIES, start, self._key(last + 1)):
            runs = _decode(row)
            if _last(runs) >= first:
                found.append((key, runs))
        return found

    def put(self, batch: WriteBatch, runs: Sequence[Run]) -> None:
        """Add a row of these runs, ascending in source seqs and of any order in the destination."""
        value = _ROW_VERSION + b"".join(_RUN.pack(*run) for run in runs)
        batch.put(Family.ROUTER_COPIES, self._key(runs[0][0]), value)

    def prune(self, batch: WriteBatch, start: int, earliest: int) -> int:
        """Remove up to 512 rows from source seq `start` on that contain only seqs below `earliest` of the destination.

        Returns the source seq to continue from.
        """
        rows = self._store.scan(Family.ROUTER_COPIES, self._key(start), self._prefix + b"\xff" * 9)
        for _, (key, row) in zip(range(_PRUNED_ROWS), rows, strict=False):
            runs = _decode(row)
            if any(dest + count > earliest for _, dest, count in runs):
                return max(start, runs[0][0])
            batch.delete(Family.ROUTER_COPIES, key)
            start = _last(runs) + 1
        return start

    def cut(self, batch: WriteBatch, last: int) -> None:
        """Remove the runs of source seqs above `last`."""
        for key, runs in self.overlapping(last + 1, (1 << 64) - 2):
            batch.delete(Family.ROUTER_COPIES, key)
            kept = [(seq, at, min(count, last + 1 - seq)) for seq, at, count in runs if seq <= last]
            if kept:
                self.put(batch, kept)

    def _key(self, seq: int) -> bytes:
        return self._prefix + keys.u64(seq)


def joined(runs: Iterable[Run]) -> list[Run]:
    """Merge adjacent runs, which ascend in the source."""
    result: list[Run] = []
    for source, dest, count in runs:
        if result:
            first_source, first_dest, before = result[-1]
            if source == first_source + before and dest == first_dest + before:
                result[-1] = (first_source, first_dest, before + count)
                continue
        result.append((source, dest, count))
    return result


def _decode(row: bytes) -> list[Run]:
    if row[:1] != _ROW_VERSION or len(row) % _RUN.size != 1 or len(row) == 1:
        raise TopicsError(Reason.INTERNAL, "a row of the router's dedup map is damaged")
    return list(_RUN.iter_unpack(row[1:]))


def _last(runs: Sequence[Run]) -> int:
    source, _, count = runs[-1]
    return source + count - 1
