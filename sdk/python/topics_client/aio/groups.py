"""Consumer groups: reader positions stored by the server."""

from collections.abc import AsyncIterator, Iterable, Mapping

from topics_client.aio.base import AsyncBase
from topics_client.decoding import group_position_of, group_summary_of
from topics_client.models import GroupPosition, GroupSummary
from topics_client.requests import position_commits, reset_request
from topics_proto.v1 import group_service_pb2 as pb


class AsyncGroups(AsyncBase):
    """Calls on consumer groups."""

    async def commit_positions(
        self, group: str, positions: Mapping[str, int], *, metadata: str = ""
    ) -> list[GroupPosition]:
        """Commit a group's positions: for each topic, or `topic@N`, the seq up to which all records are processed.
        Atomic. Creates the group."""
        request = pb.CommitPositionsRequest(group=group, positions=position_commits(positions, metadata))
        reply = await self.connection.unary(self.connection.groups.CommitPositions, request)
        return [group_position_of(each) for each in reply.positions]

    async def fetch_positions(self, group: str, topic: str = "") -> list[GroupPosition]:
        """Return a group's committed positions and its lag. Raises NotFoundError."""
        request = pb.FetchPositionsRequest(group=group, topic=topic)
        reply = await self.connection.unary(self.connection.groups.FetchPositions, request)
        return [group_position_of(each) for each in reply.positions]

    async def reset_positions(
        self, group: str, to: str | int | None = None, *, to_ts_ms: int | None = None, topics: Iterable[str] = ()
    ) -> list[GroupPosition]:
        """Move positions `to` "earliest", "latest" or a seq, or to a time: those of `topics` (`topic@N` for one
        partition), by default all. Atomic. Raises ConflictError while the group has members."""
        request = reset_request(group, to, to_ts_ms, topics)
        reply = await self.connection.unary(self.connection.groups.ResetPositions, request)
        return [group_position_of(each) for each in reply.positions]

    async def list_groups(self, prefix: str = "") -> AsyncIterator[GroupSummary]:
        """List groups by name, in byte order."""
        request = pb.ListGroupsRequest(prefix=prefix, page_size=1000)
        while True:
            reply = await self.connection.unary(self.connection.groups.ListGroups, request)
            for summary in reply.groups:
                yield group_summary_of(summary)
            if not reply.next_cursor:
                return
            request.cursor = reply.next_cursor

    async def delete_group(self, group: str) -> bool:
        """Delete a group and its positions. Returns False if there was none. Raises ConflictError while it has
        members."""
        request = pb.DeleteGroupRequest(group=group)
        return (await self.connection.unary(self.connection.groups.DeleteGroup, request)).deleted
