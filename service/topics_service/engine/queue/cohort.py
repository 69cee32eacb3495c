"""Dealing jobs to the claimers of one pass: one each in turn, in order of arrival (docs/contract.md, 10.2)."""

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

from topics_service.engine.blocks import LogBlocks
from topics_service.storage.block import Block

Dealt = tuple[int, Block]  # a job's seq and the block that holds it


def deal(
    jobs: Iterator[int], wants: list[int], budgets: list[int], blocks: LogBlocks, max_record: int
) -> list[list[Dealt]]:
    """Give each claimer at most the number of jobs it requested; satisfied claimers are skipped.

    One that has its budget of record bytes has enough, whatever it wanted: a reply is at most one record (`max_record`
    bytes) larger. Raises TopicsError `internal` when a record can't be read.
    """
    found = _located(jobs, blocks)
    if len(wants) == 1 and wants[0] * max_record <= budgets[0]:
        return [sorted(islice(found, wants[0]), key=itemgetter(0))]
    hands: list[list[Dealt]] = [[] for _ in wants]
    room = list(budgets)
    turn = list(range(len(wants)))
    at = 0
    for seq, block in islice(found, sum(wants)):
        at = at if at < len(turn) else 0
        i = turn[at]
        hand, want = hands[i], wants[i]
        hand.append((seq, block))
        if want * max_record > budgets[i]:
            room[i] -= block.size_at(seq - block.base_seq)
        if len(hand) < want and room[i] > 0:
            at += 1
        else:
            del turn[at]
            if not turn:
                break
    for hand in hands:
        hand.sort(key=itemgetter(0))
    return hands


def _located(jobs: Iterator[int], blocks: LogBlocks) -> Iterator[Dealt]:
    """Jobs with their blocks; neighbours cost one look-up. Takes no more of them than requested."""
    block = None
    base = end = 0
    for seq in jobs:
        if block is None or not base <= seq < end:
            block = blocks.records(seq)
            base, end = block.base_seq, block.end_seq
        yield seq, block
