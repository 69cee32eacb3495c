"""Routers, with cursors not beyond the heads, and the positions of consumer groups: those that have both ends."""

import msgspec

from topics_service.engine.offsets.positions import decode_position, is_group_row, is_mirror_row, read_position_key
from topics_service.engine.offsets.positions import decode_row as decode_group
from topics_service.engine.repair.actions import Rows
from topics_service.engine.repair.catalog import Ledger
from topics_service.engine.router.places import is_place_key
from topics_service.engine.router.provenance import DedupMap
from topics_service.engine.router.router import _CURSOR, _VERSION, cursor_key, decode_cursor
from topics_service.engine.router.router import decode_row as decode_router
from topics_service.engine.verify.findings import DECODING
from topics_service.storage import keys
from topics_service.storage.store import Family


def save_routers(rows: Rows, ledger: Ledger) -> None:
    """Save the routers. One whose cursor is lost restarts, or continues after its last known copy."""
    ends = {part.row.name: part for part in ledger.parts.values() if not part.partition}
    found, names = dict(rows.family(Family.ROUTERS)), set()
    for hole in rows.holes[Family.ROUTERS]:
        rows.report("lost", f"routers can't be read: {hole.why}")
    for key, value in found.items():
        if key[8:] != b"\x00":
            if is_place_key(key):
                rows.put(Family.ROUTERS, key, value)
            elif key[8:] != b"\x01" or key[:8] + b"\x00" not in found:
                rows.report("dropped", f"the row {key.hex()}, which belongs to no router")
            continue
        try:
            row = decode_router(value)
        except DECODING as error:
            rows.report("lost", f"the router {key.hex()} can't be read: {error}")
            continue
        source, dest = ends.get(row.config.source), ends.get(row.config.dest)
        is_here = row.foreign is None  # else the source is in another shard
        if dest is None or row.name in names or (is_here and (source is None or source.s is None)):
            text = f'the router "{row.name}" is left out: "{row.config.source}" or its destination is gone'
            rows.report("lost", text)
            continue
        names.add(row.name)
        number, head = keys.read_u64(key), source.head if is_here and source is not None else None
        try:
            cursor, forwarded = decode_cursor(found.get(cursor_key(number), b""))
        except DECODING:
            cursor, forwarded = 0, 0
            if row.config.guarantee == "exactly_once":
                epoch = row.foreign.epoch if row.foreign is not None else getattr(source, "number", 0)
                cursor = _copied(rows, dest.log_id, row.name, epoch)
            text = f'the cursor of router "{row.name}", which continues after seq {cursor} of'
            rows.report("derived", text, source if is_here else None)
        if head is not None and cursor > head:
            rows.report("derived", f'the cursor of router "{row.name}" was beyond the head', source, cursor, head)
            cursor = head
        rows.put(Family.ROUTERS, key, value)
        rows.put(Family.ROUTERS, cursor_key(number), _CURSOR.pack(_VERSION, cursor, forwarded))


def _copied(rows: Rows, dest: int, router: str, epoch: int) -> int:
    try:
        return DedupMap(rows.source, dest, router, epoch).end()  # type: ignore[arg-type]  # it only looks up one row
    except DECODING:
        return 0


def save_groups(rows: Rows, ledger: Ledger, revived: frozenset[Family]) -> None:
    """Save groups, their members and positions; none whose family is among `revived`: those that were deleted can't be
    distinguished from the others then, and must not come back."""
    if Family.GROUPS in revived:
        rows.report("lost", "groups and their positions: which of them were deleted can't be read any more")
        return
    found: dict[int, str] = {}
    mirrors: set[int] = set()  # they are left out: the shards of the groups tell them again
    members: list[tuple[bytes, bytes]] = []
    for key, value in rows.family(Family.GROUPS):
        try:
            number = keys.read_u64(key)
            if is_mirror_row(key):
                mirrors.add(number)
                continue
            if not is_group_row(key):
                msgspec.msgpack.decode(value)
                members.append((key, value))
                continue
            name = decode_group(value).name
        except DECODING as error:
            rows.report("lost", f"the row {key.hex()} of a group can't be read: {error}")
            continue
        if name in found.values():
            rows.report("lost", f'there are two groups "{name}"')
            continue
        found[number] = name
        rows.put(Family.GROUPS, key, value)
    for hole in rows.holes[Family.GROUPS]:
        rows.report("lost", f"groups can't be read: {hole.why}")
    for key, value in members:
        if keys.read_u64(key) in found:
            rows.put(Family.GROUPS, key, value)
        else:
            rows.report("dropped", f"the members of group {keys.read_u64(key)}, which is gone")
    if Family.POSITIONS in revived:
        rows.report("lost", "positions of groups: which of them were deleted can't be read any more")
        return
    for key, value in rows.family(Family.POSITIONS):
        try:
            number, epoch, partition = read_position_key(key)
            decode_position(value)
            if number in mirrors:
                continue
            topic = ledger.topics.get(epoch)
        except DECODING:
            rows.report("lost", f"the position {key.hex()} of a group can't be read")
            continue
        if number not in found or topic is None or partition >= topic.partition_count:
            rows.report("dropped", f"the position {key.hex()}, whose group or partition is gone")
            continue
        rows.put(Family.POSITIONS, key, value)
    for hole in rows.holes[Family.POSITIONS]:
        rows.report("lost", f"positions of groups can't be read: {hole.why}")
