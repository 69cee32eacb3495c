"""Records that the suites write, and what comes back of them."""

from support.kafka_clients import Record
from support.kafka_kinds import Kind

T0 = 1_700_000_000_000


def mixed(kind: Kind, partitions: int = 3) -> list[Record]:
    """Keys, values and headers of every sort that the client can write; times T0, T0 + 10, ..."""
    headers: list[tuple[tuple[str, bytes | None], ...]] = [
        (),
        (("trace", b"abc"),),
        (("h", b"1"), ("g", b"2"), ("h", b"3")) if kind.name != "kafkajs" else (("h", b"1"), ("h", b"3"), ("g", b"2")),
    ]
    if "null header" not in kind.lacks:
        headers.append((("none", None), ("empty", b"")) if kind.name != "kcat" else (("none", None),))
    if "binary header" not in kind.lacks:
        headers.append((("raw", b"\xff\x00"),))
    contents: list[tuple[bytes | None, bytes | None]] = [
        (b"key", b'{"a": 1}'),
        (b"key", None),
        (None, b"no key"),
        ("\N{FISH}".encode(), "käse".encode()),
        (b"", b"") if kind.name != "kcat" else (b"k", b"v"),
        (b"k" * 300, b"x" * 5000),
    ]
    if kind.name != "kcat":
        contents.append((b"\xff\xfe", bytes(range(256))))
    if "null key and value" not in kind.lacks:
        contents.append((None, None))
    records = []
    for number, (key, value) in enumerate(contents * 3):
        timestamp = None if "timestamp" in kind.lacks else T0 + 10 * number
        records.append(Record(number % partitions, key, value, headers[number % len(headers)], timestamp))
    return records


def by_partition(records: list[Record]) -> dict[int, list[Record]]:
    """The records of each partition, in their order."""
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found


def placed(records: list[Record], after: dict[int, int] | None = None) -> dict[int, list[Record]]:
    """What has to be read of records that were written, by partition: with the offsets that they get after `after`."""
    found = by_partition(records)
    for partition, some in found.items():
        first = (after or {}).get(partition, 0)
        found[partition] = [record._replace(offset=first + i) for i, record in enumerate(some)]
    return found


def without_times(found: dict[int, list[Record]]) -> dict[int, list[Record]]:
    """For clients that choose the times themselves."""
    return {partition: [record._replace(timestamp=None) for record in some] for partition, some in found.items()}
