"""SQL, and the messages of topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from topics_client.aio.base import AsyncBase
from topics_client.aio.streams import AsyncLiveStream
from topics_client.requests import sql_consume_request
from topics_client.sqllive import Following
from topics_client.sqlresults import messages_of, results_of, rows_of, values_of
from topics_proto.v1 import sql_service_pb2 as pb

if TYPE_CHECKING:
    from topics_client.models import Of
    from topics_client.sqlresults import MessageClaim, Messages, SqlResult


class AsyncSql(AsyncBase):
    """Calls of SQL and of consumers of messages."""

    @overload
    async def sql(
        self, text: str, parameters: Sequence[Any] = (), *, namespace: str = "", repeatable: bool = False
    ) -> SqlResult[dict[str, Any]]: ...

    @overload
    async def sql(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        namespace: str = "",
        of: type[Of],
        repeatable: bool = False,
    ) -> SqlResult[Of]: ...

    async def sql(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        namespace: str = "",
        of: Any = None,
        repeatable: bool = False,
    ) -> SqlResult[Any]:
        """Run statements and return the result of the last one. `parameters` are the values of $1, $2 and so on.

        Rows are dicts, or values of the type `of`: see JsonCodec. Names without a namespace are those of `namespace`.
        Statements that are safe to repeat, such as SELECT, may be declared `repeatable`: they are retried while the
        server is unavailable. Raises TopicsError, with `sqlstate`, `line` and `column`.
        """
        results = await self.sql_script(text, parameters, namespace=namespace, of=of, repeatable=repeatable)
        return results[-1]

    async def sql_script(
        self,
        text: str,
        parameters: Sequence[Any] = (),
        *,
        namespace: str = "",
        of: Any = None,
        repeatable: bool = False,
    ) -> list[SqlResult[Any]]:
        """Run statements and return all their results. See `sql`."""
        request = pb.ExecuteRequest(sql=text, params=values_of(parameters), namespace_id=namespace)
        reply = await self.connection.unary(self.connection.sql.Execute, request, repeatable=repeatable)
        return results_of(reply, of)

    async def sql_many(
        self, text: str, rows: Sequence[Sequence[Any]], *, namespace: str = "", repeatable: bool = False
    ) -> SqlResult[dict[str, Any]]:
        """Run one INSERT, UPDATE or DELETE for each row of parameters, all in one commit; at most 10,000 rows.

        The result is that of all rows together. See `sql`.
        """
        request = pb.ExecuteRequest(sql=text, param_rows=rows_of(rows), namespace_id=namespace)
        if not rows:
            from topics_client.sqlresults import SqlResult

            return SqlResult((), (), 0)
        reply = await self.connection.unary(self.connection.sql.Execute, request, repeatable=repeatable)
        return results_of(reply)[-1]

    def subscribe(
        self, text: str, parameters: Sequence[Any] = (), *, namespace: str = "", after: str | None = None
    ) -> AsyncLiveStream:
        """Follow the rows of a query, `SELECT columns FROM table WHERE …` or SUBSCRIBE TO: LiveSnapshot first, then
        LiveChange for each change, and LiveCaughtUp when there is no more at a moment; endless.

        `after`, the `position` of an earlier stream, continues behind it without a snapshot; if changes are missing
        there, LiveGap and a snapshot follow. Raises ConflictError (`schema_changed`) when the columns of the table are
        changed: subscribe again, with the last position.
        """
        request = pb.SubscribeRequest(sql=text, params=values_of(parameters), namespace_id=namespace, after=after)
        return AsyncLiveStream(self.connection, Following(request))

    async def consume(
        self,
        topic: str,
        *,
        group: str,
        start: Literal["earliest", "latest"] | int = "latest",
        limit: int = 100,
        partition: int = 0,
        wait: float = 0,
        claim_seconds: int | None = None,
    ) -> Messages:
        """Read messages of a topic, or an alias, from where a group stands; wait up to `wait` seconds for a first one.

        `start` counts while the group has acknowledged nothing, except for an offset, which always counts and is how
        messages are read again. Acknowledges nothing: see `acknowledge`.

        With `claim_seconds` each call gives other messages: for so long no other claim of the group holds them, and
        `claim` of the result is what to acknowledge. Messages that are not acknowledged by then come again.
        """
        request = sql_consume_request(topic, group, start, limit, partition, wait, claim_seconds)
        timeout = self.connection.timeout + wait
        return messages_of(await self.connection.unary(self.connection.sql.Consume, request, timeout=timeout))

    async def acknowledge(
        self,
        topic: str,
        upto_offset: int | None = None,
        *,
        group: str,
        partition: int = 0,
        claim: MessageClaim | str | None = None,
    ) -> int:
        """Acknowledge all messages up to an offset for a group. Returns the offset that is acknowledged now, which is
        higher if the group was ahead already.

        With `claim`, or its id, it is the range of that, up to the offset if there is one; the offset that is returned
        follows the lowest message that is not acknowledged, and is -1 while that is the first one. Raises TopicsError
        with the code `claim_expired` if another worker has the messages now.
        """
        request = pb.SqlServiceAckRequest(
            topic=topic,
            group_id=group,
            partition_id=partition,
            upto_offset=upto_offset,
            claim_id=claim if claim is None or isinstance(claim, str) else claim.claim_id,
        )
        reply = await self.connection.unary(self.connection.sql.Ack, request)
        return -1 if reply.none_yet else reply.acknowledged_offset
