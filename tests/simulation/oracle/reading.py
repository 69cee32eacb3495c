"""Reads of topics: pages, losses, and what a topic says of itself."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulation.oracle.topics import TopicModel
from support.log_model import LogState, Rec, demand, matches, read
from topics_service.engine.model import DiffReply, DiffRequest, Slice, TagMatch
from topics_service.storage.block import Block

if TYPE_CHECKING:
    from simulation.world import World


def diff(
    world: "World", topic: TopicModel, partition: int, cursor: int, *, limit: int = 256, max_bytes: int = 1 << 20,
    match: TagMatch | None = None, nodes: tuple[bytes, ...] = (),
) -> DiffReply:  # fmt: skip
    """Read a page, which must be what the log has there, and end for a reason."""
    world.look(topic)
    request = DiffRequest(
        topic=topic.name, partition=partition, from_seq=cursor, limit=limit, max_batch_bytes=max_bytes, filter=match,
        nodes=nodes,
    )  # fmt: skip
    reply = world.call(lambda: world.engine.diff(request))
    view = topic.logs[partition].view
    at = check_loss(world, view, cursor, reply)
    wanted = check_records(
        view, at, reply.next_from_seq, reply.slices, match, nodes if topic.config.dedupe_node else ()
    )
    demand((reply.head_seq, reply.earliest_seq) == (view.head, view.earliest), "a page tells of another head or start")
    if reply.next_from_seq < view.head and match is None and not nodes:
        at_gap = view.gap_within(at, reply.next_from_seq + 1) is not None
        size = sum(rec.size for rec in wanted)
        rest = next(view.between(reply.next_from_seq, view.head), None)
        full = len(wanted) >= limit or rest is None or size + rest.size > max_bytes
        demand(at_gap or full, f"a page ends at {reply.next_from_seq} for no reason")
    demand(reply.next_from_seq > cursor or reply.tombstone or reply.caught_up, "a reader gets no further")
    return reply


def diff_from(
    world: "World", topic: TopicModel, partition: int, *, ts: int | None = None, last: int | None = None
) -> None:
    """Read the first page from a time on, or the last so many records."""
    world.look(topic)
    request = DiffRequest(topic=topic.name, partition=partition, from_ts=ts, last=last)
    reply = world.call(lambda: world.engine.diff(request))
    view = topic.logs[partition].view
    wanted = list(view.live.values())
    if ts is not None:
        wanted = [rec for rec in wanted if rec.ts >= ts]
    elif last is not None:
        wanted = wanted[max(0, len(wanted) - last) :]
    wanted = [rec for rec in wanted if rec.seq <= reply.next_from_seq]
    found = [rec for part in reply.slices for rec in records(part)]
    demand(found == wanted, f"the records from {ts} on, or the last {last}, are {found}, not {wanted}")
    told = reply.tombstone
    if told is not None:
        check_loss(world, view, told.gap_from - 1, reply)
    at_gap = view.gap_within(reply.next_from_seq, reply.next_from_seq + 1) is not None
    demand(reply.caught_up or at_gap or len(found) == last, "a page ends for no reason")
    world.trace.meet("a page from a time, or of the last records")


def check_loss(world: "World", view: LogState, cursor: int, reply: DiffReply, end: int | None = None) -> int:
    """The loss that a reader at this cursor is told, or its beginning up to where it may see, `end` at most; returns
    where it reads on."""
    lost, told = view.lost_at(cursor), reply.tombstone
    if lost is not None and told is not None and end is not None and cursor < told.gap_to <= min(end, lost[1]):
        lost = lost._replace(last=told.gap_to)
    found = None if told is None else (told.gap_from, told.gap_to, told.reason)
    demand(found == lost, f"a reader at {cursor} is told of the loss {found}, not {lost}")
    if lost is None:
        return cursor
    world.trace.meet(f"a gap told: {lost[2]}")
    return view.earliest - 1 if lost[2] == "recreated" else lost[1]


def check_records(
    view: LogState, cursor: int, to: int, slices: Sequence[Slice], match: TagMatch | None = None,
    nodes: tuple[bytes, ...] = (),
) -> list[Rec]:  # fmt: skip
    """These are the records alive behind `cursor`, up to `to`, between which there is no loss."""
    demand(view.gap_within(cursor, to) is None, f"a reader goes from {cursor} to {to} over a loss")
    wanted = [rec for rec in view.between(cursor, to) if matches(match, rec.tag) and rec.node not in (nodes or ("",))]
    found = [rec for part in slices for rec in records(part)]
    if found != wanted:  # the text of it takes longer than the comparison
        demand(False, f"a reader from {cursor} to {to} gets {found}, not {wanted}")
    return wanted


def records(part: Slice) -> list[Rec]:
    """The records of a slice."""
    block = part.block
    assert isinstance(block, Block)
    return [read(block, i) for i in range(part.start, part.stop)]


def check(world: "World", topic: TopicModel) -> None:
    """What a topic says of itself, and each of its records."""
    if topic.config.type == "queue":
        world.queues.of(topic).refresh(world.now)
    state = world.engine.get_topic(topic.name, touch=False)
    demand(state.config == topic.config, "a topic has another config")
    for partition, log in enumerate(topic.logs):
        found = world.engine.get_topic(topic.name, touch=False, partition=partition)
        view = log.view
        told = (found.head_seq, found.earliest_seq, found.count, found.bytes)
        demand(told == (view.head, view.earliest, view.count, view.nbytes), f"{topic.name}/{partition} says {told}")
        demand((found.last_write_ts or 0) == view.last_ts, "the last write was at another time")
        cursor = 0
        while cursor < view.head:
            cursor = diff(world, topic, partition, cursor, limit=16).next_from_seq
        for cursor in {*range(max(0, view.earliest - 2), min(view.earliest + 1, view.head)), view.head // 2}:
            diff(world, topic, partition, cursor, limit=3)
