"""How far the tables are, told to the server as the positions of a consumer group.

Nothing here reads them: the tables are the truth. But a topic may retain for the group what it has not got yet
(`retain_until_acked_by`), and the group's lag is in the server's listings and metrics.
"""

import logging
from typing import Final

from topics.v1 import group_pb2
from topics.v1 import group_service_pb2 as pb
from topics_client.connection import Connection
from topics_client.errors import TopicsError
from topics_lakehouse.catalog import Positions

_log: Final = logging.getLogger(__name__)


class Progress:
    """Commits positions for a group; without a name it does nothing."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._told: dict[str, tuple[str, Positions]] = {}
        self._failed: set[str] = set()

    def tell(self, topic: str, topic_id: str, positions: Positions) -> None:
        """Commit the positions of one life of a topic, unless that was done. A failure is logged, once in a row, and
        made good with the next call."""
        if not self._group or not any(positions.values()) or self._told.get(topic) == (topic_id, positions):
            return
        commits = [
            group_pb2.PositionCommit(topic=topic, partition=partition, from_seq=seq)
            for partition, seq in positions.items()
            if seq
        ]
        request = pb.CommitPositionsRequest(group=self._group, positions=commits)
        try:
            self._connection.unary(self._connection.groups.CommitPositions, request, repeatable=True)
        except TopicsError as error:
            if topic not in self._failed:
                self._failed.add(topic)
                _log.warning("topic %s: group %s was not told of the table's progress: %s", topic, self._group, error)
            return
        self._failed.discard(topic)
        self._told[topic] = (topic_id, positions)
