"""References between topics: routers, and the positions of consumer groups."""

from collections.abc import Mapping

import msgspec

from topics_service.engine.offsets.positions import decode_position, is_group_row, is_mirror_row, read_position_key
from topics_service.engine.offsets.positions import decode_row as decode_group
from topics_service.engine.router.places import is_place_key
from topics_service.engine.router.router import cursor_key, decode_cursor
from topics_service.engine.router.router import decode_row as decode_router
from topics_service.engine.verify.findings import Findings, Part
from topics_service.storage import keys
from topics_service.storage.store import Family


def check_routers(findings: Findings, parts: Mapping[int, Part]) -> int:
    """Check every router; return their number."""
    topics = {part.row.name: part for part in parts.values() if not part.partition}
    rows = dict(findings.rows(Family.ROUTERS))
    names: set[str] = set()
    for key, value in rows.items():
        if key[8:] != b"\x00":
            if not is_place_key(key) and (key[8:] != b"\x01" or key[:8] + b"\x00" not in rows):
                findings.report("orphan", f"the row {key.hex()} belongs to no router")
            continue
        with findings.decoding(f"the row {key.hex()} of a router"):
            row = decode_router(value)
            what = f'router "{row.name}"'
            if row.name in names:
                findings.report("mismatch", f"there are two of {what}")
            names.add(row.name)
            for end in (row.config.source, row.config.dest):
                if end not in topics and (end == row.config.dest or row.foreign is None):
                    findings.report("missing", f'{what} has the topic "{end}" as an end, which does not exist')
            cursor_row = rows.get(cursor_key(keys.read_u64(key)))
            if cursor_row is None:
                findings.report("missing", f"{what} has no cursor")
                continue
            cursor, _ = decode_cursor(cursor_row)
            source = topics.get(row.config.source) if row.foreign is None else None
            if source is not None and source.settled is not None and cursor > source.head:
                text = f"{what} stands at seq {cursor}, the head of its source is {source.head}"
                findings.report("mismatch", text, source, cursor, cursor)
    return len(names)


def check_groups(findings: Findings) -> int:
    """Check every consumer group and its positions; return the number of groups."""
    names: dict[int, str] = {}
    mirrors: set[int] = set()
    states: list[int] = []
    for key, value in findings.rows(Family.GROUPS):
        with findings.decoding(f"the row {key.hex()} of a group"):
            number = keys.read_u64(key)
            if is_group_row(key):
                name = decode_group(value).name
                if name in names.values():
                    findings.report("mismatch", f'there are two groups "{name}"')
                names[number] = name
            elif is_mirror_row(key):
                decode_group(value)
                mirrors.add(number)
            else:
                msgspec.msgpack.decode(value)
                states.append(number)
    for number in states:
        if number not in names:
            findings.report("orphan", f"the members of group {number} belong to no group")
    for key, value in findings.rows(Family.POSITIONS):
        with findings.decoding(f"the position {key.hex()}"):
            number, epoch, partition = read_position_key(key)
            decode_position(value)  # beyond the head is no fault: Kafka clients may commit it
            row = findings.topics.get(epoch)
            if (number not in names and number not in mirrors) or row is None or partition >= row.partition_count:
                findings.report("orphan", f"the position {key.hex()} is of a group or partition that does not exist")
    return len(names)
