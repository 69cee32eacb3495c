"""Topics as a whole: what their home knows of them, with the partitions that lie in other shards."""

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.parts import PartsApi
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import partition_not_found
from topics_service.engine.model import ListTopicsReply, ListTopicsRequest, PartitionState, TopicState
from topics_service.engine.parts import Extent
from topics_shards.locating import Located

_PARTITIONS_A_PAGE: Final = 10_000
"""As in `Engine.list_topics`."""

Place = tuple[str, int]
"""A topic and the number of one of its partitions."""


async def topic_state(located: Located, name: str, partition: int, *, touch: bool) -> TopicState:
    """See TopicsApi.get_topic."""
    state = await located.call(name, 0, TopicsApi.get_topic, name, touch=touch)
    count = state.identity.partition_count
    if not 0 <= partition < count:
        raise partition_not_found(name, partition, count)
    await _complete(located, [state])
    if partition:
        own = state.partitions[partition]
        state.partition, state.head_seq, state.earliest_seq = partition, own.head_seq, own.earliest_seq
        state.count, state.bytes, state.last_write_ts = own.count, own.bytes, own.last_write_ts
    return state


async def topics_page(located: Located, request: ListTopicsRequest, principal: Principal) -> ListTopicsReply:
    """See TopicsApi.list_topics. The page is not of one moment over all shards."""
    shards = located.shards
    pages = await shards.each(TopicsApi.list_topics, replace(request, touch=False), principal=principal)
    found = {state.topic: (shard, state) for shard, page in enumerate(pages) for state in page.topics}
    ends = [page.next_after for page in pages if page.next_after is not None]
    upto = min(ends, default=None)  # behind it a shard may have more that it did not send
    names = [name for name in sorted(found) if upto is None or name <= upto]
    kept = _kept(request, names, found)
    has_more = bool(ends) or len(kept) < len(names)
    if request.touch:
        for shard in {found[name][0] for name in kept}:
            own = [name for name in kept if found[name][0] == shard]
            page = await shards.call(
                shard, TopicsApi.list_topics, replace(request, page_size=len(own)), principal=principal
            )
            found |= {state.topic: (shard, state) for state in page.topics}
    states = [found[name][1] for name in kept]
    await _complete(located, states)
    return ListTopicsReply(topics=states, next_after=kept[-1] if has_more and kept else None)


def _kept(request: ListTopicsRequest, names: Sequence[str], found: dict[str, tuple[int, TopicState]]) -> list[str]:
    """The names that are on the page."""
    kept: list[str] = []
    partitions = 0
    for name in names:
        partitions += found[name][1].identity.partition_count
        if len(kept) == request.page_size or (kept and partitions > _PARTITIONS_A_PAGE):
            break
        kept.append(name)
    return kept


async def _complete(located: Located, states: Sequence[TopicState]) -> None:
    """Add the partitions in other shards to the states that home gave."""
    wanted: dict[int, list[Place]] = {}
    for state in states:
        count = state.identity.partition_count
        if len(state.partitions) < count > 1:
            for partition in {*range(count)} - {each.partition for each in state.partitions}:
                wanted.setdefault(located.shard(state.topic, partition), []).append((state.topic, partition))
    if not wanted:
        return
    async with asyncio.TaskGroup() as group:
        tasks = {
            shard: group.create_task(located.shards.call(shard, PartsApi.extents, places))
            for shard, places in wanted.items()
        }
    found: dict[str, list[tuple[int, Extent | None]]] = {}
    for shard, places in wanted.items():
        for (name, partition), extent in zip(places, tasks[shard].result(), strict=True):
            found.setdefault(name, []).append((partition, extent))
    for state in states:
        _add(state, found.get(state.topic, ()))


def _add(state: TopicState, extents: Sequence[tuple[int, Extent | None]]) -> None:
    """Add partitions of other shards; one that its shard does not know yet is empty."""
    known = {each.partition: each for each in state.partitions}
    if not extents:
        return
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
