"""Writes that are taken in before those ahead of them are durable, at whichever shard each belongs."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from topics_service.api.access.auth import Principal
from topics_service.api.request_context import note_answer
from topics_service.api.topics import Submitted, TopicsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendReply, AppendRequest
from topics_service.engine.redirects import ElsewhereError
from topics_shards.locating import Located, is_unknown

_MAX_KNOWN: Final = 65_536


class Submission(Submitted, kw_only=True):
    """A write at a shard of this process, which is `at`, or on its way to another one."""

    topic: str
    shard: int
    at: TopicsApi | None = None
    sent: asyncio.Future[AppendReply] | None = None


class Submissions:
    """The calls `submit` and `settle` of all shards.

    The first write to a topic in a shard is made as a whole, since the topic may be in another shard than its name
    says, and the shard may lack its part of it. Those behind it go to that shard without waiting for each other.
    """

    def __init__(self, located: Located) -> None:
        self._located = located
        self._known: OrderedDict[tuple[str, int], None] = OrderedDict()

    async def submit(self, request: AppendRequest, *, principal: Principal) -> Submitted:
        """See TopicsApi; what a shard of another process refuses, `settle` raises."""
        topic, shards = request.topic, self._located.shards
        shard = self._located.shard(topic, request.partition)
        if (topic, shard) not in self._known:
            return await self._first(request, principal)
        local = shards.direct(shard)
        if local is not None:
            note_answer("")
            taken = await local.api.submit(request, principal=principal)
            return Submission(
                ticket=taken.ticket,
                reply=taken.reply,
                error=taken.error,
                written=taken.written,
                topic=topic,
                shard=shard,
                at=local.api,
            )
        sent = await shards.begin(shard, TopicsApi.publish, request, principal=principal)
        sent.add_done_callback(_noted)
        return Submission(topic=topic, shard=shard, sent=sent)

    async def settle(self, submitted: Submitted) -> AppendReply:
        """See TopicsApi."""
        if isinstance(submitted, Submission):
            return await self._settle(submitted)
        if submitted.error is not None:
            raise submitted.error
        assert submitted.reply is not None, "it is one or the other"
        return submitted.reply

    async def _settle(self, submitted: Submission) -> AppendReply:
        topic, shard = submitted.topic, submitted.shard
        try:
            if submitted.sent is not None:
                return await submitted.sent
            assert submitted.at is not None, "it is one or the other"
            return await submitted.at.settle(submitted)
        except TopicsError as error:
            if isinstance(error, ElsewhereError):
                self._known.pop((topic, shard), None)
            elif is_unknown(error, topic):
                self._known.pop((topic, shard), None)
                if shard == self._located.home(topic) or not await self._is_alive(topic):
                    raise
            else:
                raise
            message = f'topic "{topic}" was recreated: a shard that had it does not know it now'
            raise TopicsError(Reason.NOT_READY, message) from None  # later writes may be where it is already

    def is_settled(self, submitted: Submitted) -> bool:
        """See TopicsApi."""
        if not isinstance(submitted, Submission):
            return True
        if submitted.sent is not None:
            return submitted.sent.done()
        return submitted.at is None or submitted.at.is_settled(submitted)

    async def settle_all(self, writes: Iterable[Submitted]) -> None:
        """See TopicsApi."""
        for each in tuple(writes):
            with suppress(TopicsError):
                if isinstance(each, Submission) and each.sent is not None:
                    await asyncio.wait((each.sent,))  # another one waits for it too
                await self.settle(each)

    async def _first(self, request: AppendRequest, principal: Principal) -> Submitted:
        try:
            reply = await self._located.call(
                request.topic, request.partition, TopicsApi.append, request, principal=principal
            )
        except TopicsError as error:
            if error.reason in (Reason.FORBIDDEN, Reason.SHUTTING_DOWN, Reason.NOT_READY):
                raise
            return Submitted(error=error)
        self._known[request.topic, self._located.shard(request.topic, request.partition)] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return Submitted(reply=reply)

    async def _is_alive(self, topic: str) -> bool:
        try:
            await self._located.describe(topic)
        except TopicsError as error:
            if not is_unknown(error, topic):
                raise
            return False
        return True


def _noted(sent: "asyncio.Future[AppendReply]") -> None:
    """Take note of an outcome that has no one waiting for it: its client can be gone."""
    if not sent.cancelled():
        sent.exception()
