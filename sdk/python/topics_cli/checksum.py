"""Comparison of records read back with those appended, in eight bytes of memory per record."""

from array import array
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics_cli.sending import Batch
    from topics_client import TopicsClient


class RecordChecksums:
    """Collects a hash of each appended record, then reads the topic and compares."""

    def __init__(self, topic: str) -> None:
        self.count = 0
        self.different = 0
        self.first_different = 0  # its seq
        self._topic = topic
        self._runs: dict[int, list[tuple[int, array[int]]]] = defaultdict(list)  # by partition, in order of seq

    def appended(self, batch: "Batch", first_seq: int) -> None:
        """Add a write, with the seq of its first record."""
        parts = zip(batch.datas, batch.binary, batch.tags, batch.nodes, batch.metas, strict=True)
        self._runs[batch.partition].append((first_seq, array("q", map(hash, parts))))
        self.count += len(batch)

    @property
    def partitions(self) -> int:
        """The number of partitions appended to."""
        return len(self._runs)

    def read(self, client: "TopicsClient") -> None:
        """Read the topic, and count the records that differ from those appended."""
        from topics_client.models import Record

        for partition, runs in self._runs.items():
            expected = _expected(runs)
            seq, digest = next(expected)
            last_first, last = runs[-1]
            end = last_first + len(last) - 1
            with client.read(self._topic, seq - 1, end_seq=end, partition=partition, gaps="yield") as stream:
                for item in stream:
                    if type(item) is not Record or item.seq < seq:
                        continue
                    while seq < item.seq:
                        self._differs(seq)
                        seq, digest = next(expected, _END)
                    if seq == item.seq:
                        parts = (item.data, item.binary, item.tag, item.node, item.meta_data)
                        if hash(parts) != digest:
                            self._differs(seq)
                        seq, digest = next(expected, _END)
            while seq < _END[0]:
                self._differs(seq)
                seq, digest = next(expected, _END)

    def _differs(self, seq: int) -> None:
        self.different += 1
        self.first_different = self.first_different or seq


_END = (1 << 64, 0)


def _expected(runs: "list[tuple[int, array[int]]]") -> Iterator[tuple[int, int]]:
    """Yield the seq and hash of each record, in order."""
    for first, digests in runs:
        yield from enumerate(digests, first)
