"""Dealing jobs to the claimers of one pass: one each in turn, in the order they came (SPEC DESIGN 10.3)."""

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

from topics_service.engine.blocks import LogBlocks
from topics_service.storage.block import Block

Dealt = tuple[int, Block]  # a job's seq and the block that holds it


def deal(
    jobs: Iterator[int], wants: list[int], budgets: list[int], blocks: LogBlocks, max_record: int
) -> list[list[Dealt]]:
    """Give each claimer at most as many jobs as it wants; a claimer that has enough is passed over.

    One that has its budget of record bytes has enough, whatever it wanted: a reply is at most one record (`max_record`
    bytes) larger. Raises TopicsError `internal` when a record can't be read.
    """
    hands: list[list[Dealt]] = [[] for _ in wants]
    room = list(budgets)
    turn = list(range(len(wants)))
    block = None
    base = end = at = 0
    for seq in islice(jobs, sum(wants)):
        if block is None or not base <= seq < end:
            block = blocks.records(seq)
            base, end = block.base_seq, block.end_seq
        at = at if at < len(turn) else 0
        i = turn[at]
        hand, want = hands[i], wants[i]
        hand.append((seq, block))
        if want * max_record > budgets[i]:
            room[i] -= block.sizes_upto(seq - base + 1) - block.sizes_upto(seq - base)
        if len(hand) < want and room[i] > 0:
            at += 1
        else:
            del turn[at]
            if not turn:
                break
    for hand in hands:
        hand.sort(key=itemgetter(0))
    return hands
