"""Progress of the tables, committed to the server as the positions of a consumer group.

The tables are authoritative: nothing resumes from these positions. But a topic may retain records for the group
(`retain_until_acked_by`), the group's lag is in the server's listings and metrics, and a table behind its own group was
restored from older metadata.
"""

import logging
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from topics_client.connection import Connection
from topics_client.errors import TopicsError, UnavailableError
from topics_lakehouse.catalog import Positions
from topics_proto.v1 import group_pb2
from topics_proto.v1 import group_service_pb2 as pb

_log: Final = logging.getLogger(__name__)
_TABLE: Final = "iceberg table "  # in front of the id of the table, in the metadata of a position


class Progress:
    """Commits positions for a group; without a name it does nothing."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._reported: dict[str, tuple[uuid.UUID, Positions]] = {}
        self._failed: set[str] = set()

    def report(self, topic: str, table: uuid.UUID, positions: Positions) -> None:
        """Commit the positions of a topic's table, unless that was done. A failure is logged, once in a row, and made
        good with the next call."""
        if not self._group or not any(positions.values()) or self._reported.get(topic) == (table, positions):
            return
        if self.commit(topic, table, {partition: seq for partition, seq in positions.items() if seq}):
            self._reported[topic] = (table, positions)

    def commit(self, topic: str, table: uuid.UUID, positions: Positions) -> bool:
        """Commit just these positions, back as well as forth; whether that went well, or without a group."""
        if not self._group:
            return True
        commits = [
            group_pb2.PositionCommit(topic=topic, partition=partition, from_seq=seq, metadata=f"{_TABLE}{table}")
            for partition, seq in positions.items()
        ]
        request = pb.CommitPositionsRequest(group=self._group, positions=commits)
        try:
            self._connection.unary(self._connection.groups.CommitPositions, request, repeatable=True)
        except TopicsError as error:
            if topic not in self._failed:
                self._failed.add(topic)
                _log.warning("topic %s: can't commit progress to group %s: %s", topic, self._group, error)
            return False
        self._failed.discard(topic)
        return True


def witnessed(connection: Connection, group: str, topic: str) -> Mapping[uuid.UUID, Positions]:
    """The positions in a topic that tables committed to the group, by table. Call it before reading a table, which may
    advance afterwards. None of a group that is not there, or not ours to read. Raises UnavailableError.
    """
    found: dict[uuid.UUID, dict[int, int]] = {}
    if not group:
        return found
    request = pb.FetchPositionsRequest(group=group, topic=topic)
    try:
        reply = connection.unary(connection.groups.FetchPositions, request, repeatable=True)
    except UnavailableError:
        raise
    except TopicsError:
        return found
    for each in reply.positions:
        with suppress(ValueError):  # someone else's
            table = uuid.UUID(each.metadata.removeprefix(_TABLE))
            found.setdefault(table, {})[each.partition] = each.from_seq
    return found
