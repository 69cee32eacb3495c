"""Browsing a queue's jobs without changing them: pages in order of seq, one state at a time."""

import heapq
from collections.abc import Iterator

from pyroaring import BitMap64

from topics_service.engine.bitmaps import first_absent
from topics_service.engine.queue.attempts import is_told
from topics_service.engine.queue.jobs import JobState, JobView, ListJobsReply, ListJobsRequest
from topics_service.engine.queue.state import Queue
from topics_service.engine.topic import Topic
from topics_service.storage.block import Block


def page(topic: Topic, queue: Queue, request: ListJobsRequest, max_bytes: int) -> ListJobsReply:
    """The jobs after `request.after` in that state. O(page), and for ready ones the runs in between that are not."""
    log = topic.log
    views: list[JobView] = []
    block: Block | None = None
    last = request.after
    for seq in _seqs(topic, queue, request.state, request.after + 1):
        if len(views) == request.limit or max_bytes <= 0:
            return ListJobsReply(topic=topic.name, jobs=views, next_after=last)
        if block is None or not block.base_seq <= seq < block.end_seq:
            block = log.blocks.records(seq)
        last, position = seq, seq - block.base_seq
        views.append(_view(queue, block, position, request.state))
        max_bytes -= block.size_at(position)
    return ListJobsReply(topic=topic.name, jobs=views, next_after=None)


def _seqs(topic: Topic, queue: Queue, state: JobState, start: int) -> Iterator[int]:
    head, waiting = topic.log.view.head, queue.schedule.waiting
    if state == "in_flight":
        yield from _from(queue.held, start)
    elif state == "delayed":
        for seq in heapq.merge(_from(queue.delayed, start), _from(waiting, start)):
            if seq <= head:
                yield seq
    elif state == "exhausted":
        yield from heapq.merge(_from(queue.exhausted, start), _from(queue.aside, start))
    else:
        s = topic.log.state
        sets = (queue.held, queue.delayed, waiting, queue.exhausted, queue.aside)
        hidden = [numbers for numbers in sets if numbers]
        at = max(start, s.earliest)
        while (live := s.first_live(at)) <= head:
            at = live
            for numbers in hidden:
                at = first_absent(numbers, at, head + 1)
            if at == live:
                yield at
                at += 1


def _from(numbers: BitMap64, start: int) -> Iterator[int]:
    """The numbers at or above `start`; the set must not change during the walk."""
    if not numbers or numbers.max() < start:
        return iter(())
    return iter(numbers.iter_equal_or_larger(start))


def _view(queue: Queue, block: Block, position: int, state: JobState) -> JobView:
    seq = block.base_seq + position
    delivery = queue.jobs.get(seq)
    if delivery is None:
        priority, ready_at = queue.schedule.lookup(seq) if state == "delayed" else (queue.schedule.priority_of(seq), 0)
        return JobView(
            block=block, position=position, state=state, deliveries=0, priority=priority, ready_at=ready_at or None
        )
    return JobView(
        block=block,
        position=position,
        state=state,
        deliveries=delivery.deliveries,
        priority=delivery.priority,
        node=delivery.node,
        deadline=delivery.deadline if state == "in_flight" else None,
        ready_at=delivery.deadline if state == "delayed" else None,
        attempts=delivery.attempts if is_told(delivery.attempts) else (),
    )
