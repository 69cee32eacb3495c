"""The tables of a column family of an open database."""

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from rocksdict import Rdict

_TABLE: Final = re.compile(r"^ *(\d+):\d+\[", re.MULTILINE)  # of the property below: number, size, range of keys


class Table(NamedTuple):
    """Keys from `start` to `stop`, both inclusive; `deletions` are those among its `entries`."""

    number: int
    start: bytes
    stop: bytes
    size: int
    entries: int
    deletions: int


def of(family: Rdict) -> list[Table]:
    """The tables of a family, in no order. Some milliseconds where there are thousands."""
    numbers = set(map(int, _TABLE.findall(family.property_value("rocksdb.sstables") or "")))
    facts: Iterable[dict[str, Any]] = family.live_files()  # of all families
    tables = ((int(PurePath(each["name"]).stem), each) for each in facts)
    return [
        Table(number, each["start_key"], each["end_key"], each["size"], each["num_entries"], each["num_deletions"])
        for number, each in tables
        if number in numbers
    ]
