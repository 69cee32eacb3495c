"""Write-ahead logs behind damage: what later writes tell. RocksDB itself does not say where it had to pass over one."""

from collections.abc import Iterator
from pathlib import Path

from topics_service.storage.walbatches import Batch, rows
from topics_service.storage.walcheck import BLOCK, RECORD, intact

_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)
_HEADER = 12  # of a batch: sequence number and count


def puts_behind_damage(directory: Path) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of every put, of any column family, in the intact batches behind the first damaged record of the
    log files. Nothing where nothing is damaged. Raises OSError."""
    damaged = False
    for path in sorted(directory.glob("*.log")):
        parts: list[bytes] = []
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                at = 0
                while len(block) - at >= RECORD.size:
                    if block.count(0, at, at + RECORD.size) == RECORD.size:
                        at += 1  # padding
                        continue
                    length = intact(block, at, len(block))
                    if length is None:
                        damaged, parts = True, []
                        break  # as RocksDB does: the rest of the block is passed over
                    kind, payload = block[at + RECORD.size - 1], block[at + RECORD.size : at + RECORD.size + length]
                    at += RECORD.size + length
                    if kind in (_FULL, _FIRST):
                        parts = [payload]
                    elif parts:
                        parts.append(payload)
                    if kind in (_FULL, _LAST) and parts and damaged:
                        yield from _puts(b"".join(parts))
                    if kind in (_FULL, _LAST):
                        parts = []


def _puts(record: bytes) -> Iterator[tuple[bytes, bytes]]:
    try:
        for row in rows(Batch(0, 0, 0, record[_HEADER:])):
            if row.value is not None:
                yield row.key, row.value
    except ValueError:
        return
