"""Whether records read back as they were appended, in eight bytes of memory for each."""

from array import array
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics_cli.sending import Batch
    from topics_client import TopicsClient


class RecordChecksums:
    """Takes in what was appended, and then reads the topic."""

    def __init__(self, topic: str) -> None:
        self.count = 0
        self.different = 0
        self.first_different = 0  # the seq of it
        self._topic = topic
        self._runs: dict[int, list[tuple[int, array[int]]]] = defaultdict(list)  # by partition, in order of seq

    def appended(self, batch: "Batch", first_seq: int) -> None:
        """A write, and the seq of its first record."""
        parts = zip(batch.datas, batch.binary, batch.tags, batch.nodes, batch.metas, strict=True)
        self._runs[batch.partition].append((first_seq, array("q", map(hash, parts))))
        self.count += len(batch)

    @property
    def partitions(self) -> int:
        """How many partitions were appended to."""
        return len(self._runs)

    def read(self, client: "TopicsClient") -> None:
        """Count the records that are not there as they were appended."""
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
    """Seq and digest of each record, in order."""
    for first, digests in runs:
        yield from enumerate(digests, first)
