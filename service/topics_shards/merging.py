"""Topics as a whole: what their home knows of them, with the partitions that lie in other shards."""

import asyncio
import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain, starmap
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.parts import PartsApi
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import TopicsError, partition_not_found
from topics_service.engine.model import ListTopicsReply, ListTopicsRequest, PartitionState, TopicState, TopicSummary
from topics_service.engine.parts import Extent
from topics_service.engine.placement import shard_of
from topics_shards.locating import Located
from topics_shards.process import ProcessApi
from topics_shards.reading_ahead import ReadAhead, Rest, pages_at_once
from topics_shards.shards import LostCallError, at_once

_PARTITIONS_A_PAGE: Final = 10_000
"""As in `Engine.list_topics`."""
_MARGIN: Final = 1.3
_MORE: Final = 2
"""The number of topics that a shard is asked for beyond its share of a page."""
_NAME: Final = attrgetter("topic")

Place = tuple[str, int]
"""A topic and the number of one of its partitions."""


async def topic_state(located: Located, name: str, partition: int, *, touch: bool) -> TopicState:
    """See TopicsApi.get_topic."""
    state = await located.call(name, 0, TopicsApi.get_topic, name, touch=touch)
    count = state.identity.partition_count
    if not 0 <= partition < count:
        raise partition_not_found(name, partition, count)
    if len(state.partitions) < count > 1:
        known = {each.partition for each in state.partitions}
        about = count, known, state.identity.placement
        _add(state, (await _elsewhere(located, {name: about})).get(name, ()))
    if partition:
        own = state.partitions[partition]
        state.partition, state.head_seq, state.earliest_seq = partition, own.head_seq, own.earliest_seq
        state.count, state.bytes, state.last_write_ts = own.count, own.bytes, own.last_write_ts
    return state


async def topics_page(
    located: Located, request: ListTopicsRequest, principal: Principal, ahead: ReadAhead
) -> ListTopicsReply:
    """See TopicsApi.list_topics. The page is not of one moment over all shards."""
    shards = located.shards
    reads_ahead = not request.touch and len(shards.local) < shards.count
    rest = ahead.take(request, principal) if reads_ahead else None
    state = ahead.state
    if rest is None or (rest.has_more and len(rest.lines) < request.page_size):
        now, pages = asyncio.get_running_loop().time(), pages_at_once(request, rest)
        found = _Found(located, request, principal, pages)
        rest = Rest(*await found.read(), now, pages)
        if request.touch:
            await found.touch(rest.lines)
    lines = _kept(request, rest.lines)
    left = rest.lines[len(lines) :]
    await _complete(located, lines)
    if not left and not rest.has_more:
        return ListTopicsReply(topics=lines, next_after=None)
    after = lines[-1].topic
    if reads_ahead:
        ahead.keep(request, principal, after, rest._replace(lines=left), state)
    return ListTopicsReply(topics=lines, next_after=after)


class _Found:
    """The next topics of each shard in name order, as far as it was asked."""

    def __init__(self, located: Located, request: ListTopicsRequest, principal: Principal, pages: int) -> None:
        """`pages` is the number of pages for which to read topics."""
        self._shards = located.shards
        self._principal = principal
        self._page = request
        share = request.page_size * pages / located.shards.count
        each = min(request.page_size * pages, math.ceil(share * _MARGIN) + _MORE if pages == 1 else math.ceil(share))
        self._request = replace(request, touch=False, page_size=each)
        self._lines: list[list[TopicSummary]] = [[] for _ in range(located.shards.count)]
        self._ends: dict[int, str] = dict.fromkeys(range(located.shards.count), request.after or "")
        """The last name that a shard has listed, for each that may have more."""

    async def read(self) -> tuple[list[TopicSummary], bool]:
        """The topics of the page and those that are known behind it, and whether there may be more: asks the shards
        until the page is known."""
        await self._read_first()
        while True:
            lines = sorted(chain.from_iterable(self._lines), key=_NAME)
            upto = min(self._ends.values(), default=None)  # behind it a shard may have some that it did not tell of
            known = len(lines) if upto is None else bisect_right(lines, upto, key=_NAME)
            if upto is None or known >= self._page.page_size or len(_kept(self._page, lines[:known])) < known:
                return lines[:known], upto is not None
            await at_once([self._read(shard) for shard, end in self._ends.items() if end == upto])

    async def touch(self, lines: list[TopicSummary]) -> None:
        """Touch the topics of the page, which have the state after that then."""
        kept = {line.topic: number for number, line in enumerate(_kept(self._page, lines))}
        for shard, told in enumerate(self._lines):
            own = sum(line.topic in kept for line in told)
            if own:
                page = await self._ask(shard, replace(self._request, touch=True, page_size=own))
                for line in page.topics:
                    if line.topic in kept:
                        lines[kept[line.topic]] = line

    async def _read_first(self) -> None:
        """Read the first topics of each shard, with one call to each other process that has several."""
        own = self._shards.number_of(self._shards.process)
        by_process = self._shards.by_process(self._ends)
        here = by_process.pop(own, [])
        await at_once([*starmap(self._read_at, by_process.items()), self._read_each(here)])

    async def _read_at(self, process: int, shards: list[int]) -> None:
        pages: Sequence[ListTopicsReply | None] = [None] * len(shards)
        if len(shards) > 1:
            method = ProcessApi.list_topics
            with suppress(LostCallError, TopicsError):  # its shards are asked then, wherever they are now
                begun = await self._shards.begin(process, method, shards, self._request, principal=self._principal)
                pages = await begun
        for shard, page in zip(shards, pages, strict=True):
            if page is not None:
                self._take(shard, page)
        await at_once([self._read(shard) for shard, page in zip(shards, pages, strict=True) if page is None])

    async def _read_each(self, shards: Iterable[int]) -> None:
        """Read shards of this process."""
        for shard in shards:
            await self._read(shard)

    async def _read(self, shard: int) -> None:
        """Read the next topics of a shard."""
        self._take(shard, await self._ask(shard, replace(self._request, after=self._ends[shard] or None)))

    def _take(self, shard: int, page: ListTopicsReply) -> None:
        self._lines[shard] += page.topics
        if page.next_after is None:
            del self._ends[shard]
        else:
            self._ends[shard] = page.next_after

    async def _ask(self, shard: int, request: ListTopicsRequest) -> ListTopicsReply:
        return await self._shards.call(shard, TopicsApi.list_topics, request, principal=self._principal)


def _kept(request: ListTopicsRequest, lines: list[TopicSummary]) -> list[TopicSummary]:
    """The first of these topics, as many as a page may have."""
    kept = lines[: request.page_size]
    upto = accumulate(line.partition_count for line in kept)
    return kept[: max(1, sum(partitions <= _PARTITIONS_A_PAGE for partitions in upto))]


async def _complete(located: Located, lines: Sequence[TopicSummary]) -> None:
    """Add the partitions in other shards to the lines that home gave."""
    wide = [line for line in lines if line.partitions]
    if not wide:
        return
    found = await _elsewhere(
        located, {line.topic: (line.partition_count, line.partitions, line.placement) for line in wide}
    )
    for line in wide:
        for _, extent in found.get(line.topic, ()):
            if extent is not None:
                line.count += extent.state.count
                line.bytes += extent.state.bytes
                line.effective_priority = max(line.effective_priority, extent.effective_priority)
        line.partitions = ()


async def _elsewhere(
    located: Located, topics: Mapping[str, tuple[int, Collection[int], str]]
) -> dict[str, list[tuple[int, Extent | None]]]:
    """The unknown partitions of topics. Each topic has the number of all, those that are known, and its placement."""
    wanted: dict[int, list[Place]] = {}
    for name, (count, known, placement) in topics.items():
        for partition in {*range(count)}.difference(known):
            shard = shard_of(name, partition, located.shards.count, placement)
            wanted.setdefault(shard, []).append((name, partition))
    extents = await at_once(located.shards.call(shard, PartsApi.extents, places) for shard, places in wanted.items())
    found: dict[str, list[tuple[int, Extent | None]]] = {}
    for places, own in zip(wanted.values(), extents, strict=True):
        for (name, partition), extent in zip(places, own, strict=True):
            found.setdefault(name, []).append((partition, extent))
    return found


def _add(state: TopicState, extents: Sequence[tuple[int, Extent | None]]) -> None:
    """Add partitions of other shards; one that its shard does not know yet is empty."""
    known = {each.partition: each for each in state.partitions}
    for partition, extent in extents:
        if extent is None:
            known[partition] = _empty(partition)
            continue
        known[partition] = extent.state
        state.effective_priority = max(state.effective_priority, extent.effective_priority)
        if extent.last_read_ts is not None:
            state.last_read_ts = max(state.last_read_ts or 0, extent.last_read_ts)
    state.partitions = [known[partition] for partition in sorted(known)]


def _empty(partition: int) -> PartitionState:
    return PartitionState(
        partition=partition, head_seq=0, earliest_seq=1, next_seq=1, count=0, bytes=0, last_write_ts=None
    )
