"""Appends: each is stored exactly once, regardless of how often it is sent."""

from asyncio import Event
from collections.abc import Iterable
from typing import Any

from topics_client import retry_window
from topics_client.aio.base import AsyncBase
from topics_client.codecs import encoder_of
from topics_client.decoding import appended_of
from topics_client.errors import AuthError, NotFoundError, UnavailableError
from topics_client.models import Appended, Headers, NewRecord, TopicConfig
from topics_client.requests import append_request
from topics_client.retry import Patience
from topics_proto.v1 import topics_service_pb2 as pb


class AsyncAppends(AsyncBase):
    """Calls that append records to topics."""

    async def append(
        self,
        topic: str,
        value: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Headers | None = None,
        partition: int = 0,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
        delay_ms: int = 0,
        priority: int = 0,
    ) -> Appended:
        """Append one record: any JSON value, a dataclass and the like, RawJson, or bytes for a binary one. See
        `append_many`, and NewRecord for `tag`, `node` and `meta`."""
        return await self.append_many(
            topic,
            (NewRecord(value, tag, node, meta),),
            partition=partition,
            idempotency_key=idempotency_key,
            create=create,
            config=config,
            delay_ms=delay_ms,
            priority=priority,
        )

    async def append_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        partition: int = 0,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
        delay_ms: int = 0,
        priority: int = 0,
    ) -> Appended:
        """Append up to 10,000 records, all or none; each is a NewRecord or what its value can be.

        The call returns once the records are durable at the topic's durability class. A missing topic is created with
        `config`, unless `create` is False. `delay_ms` and `priority` (0 to 9) are for jobs of a queue. A write whose
        `idempotency_key` was used within the topic's `idempotency_window_ms` stores nothing and returns the first
        write's result. If no key is given, one is generated, so that a write whose response was lost is not stored
        twice. Retries stop once the topic may have forgotten the key: TopicsError (outcome_unknown). Raises
        InvalidRequestError, NotFoundError, ConflictError (topic_full).
        """
        request = append_request(
            topic,
            values,
            encode=encoder_of(self.codec),
            partition=partition,
            idempotency_key=idempotency_key,
            create=create,
            config=config,
            delay_ms=delay_ms,
            priority=priority,
        )
        return appended_of(await self._append(request))

    async def _append(self, request: pb.AppendRequest) -> pb.AppendResponse:
        """Send a write, retrying while a retry cannot store it twice."""
        connection, patience, ended = self.connection, Patience(self.connection.retry), Event()
        lost: UnavailableError | None = None  # the failure of the first attempt with an unknown outcome
        lost_at, timeout = 0.0, connection.timeout
        while True:
            began = retry_window.now()
            try:
                if lost is not None:
                    timeout = min(connection.timeout, retry_window.left(lost_at, await self._window(request.topic)))
                return await connection.unary(connection.topics.Append, request, repeatable=False, timeout=timeout)
            except UnavailableError as error:
                if lost is None and retry_window.may_be_stored(error):
                    lost, lost_at = error, began
                if not await connection.waited(patience, error, ended):
                    raise lost or error from None

    async def _window(self, topic: str) -> float:
        """Return the seconds for which the topic remembers an idempotency key."""
        topics = self.connection.topics
        try:
            answer = await self.connection.unary(topics.GetTopic, retry_window.question(topic), repeatable=False)
        except (AuthError, NotFoundError) as error:
            return retry_window.seconds(error)
        return retry_window.seconds(answer)
