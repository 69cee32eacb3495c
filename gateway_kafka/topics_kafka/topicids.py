"""Topic ids in Kafka: the 16 bytes of the ULID in `top_<ulid>`, as a UUID."""

from functools import lru_cache
from typing import Final
from uuid import UUID

from ulid import ULID

from topics_service.engine.catalog import Catalog
from topics_service.engine.topic import Topic

_PREFIX: Final = "top_"
_STALE: Final = 1024


@lru_cache(maxsize=8192)
def uuid_of(topic_id: str) -> UUID:
    """The UUID of a topic id. The mapping is one to one."""
    return ULID.from_str(topic_id.removeprefix(_PREFIX).upper()).to_uuid()


class TopicIds:
    """Finds topics by UUID. Create it after recovery of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._topics: dict[UUID, Topic] = {}
        self._load()
        catalog.on_created.append(self._add)

    def find(self, uuid: UUID) -> Topic | None:
        """The topic if it is visible to readers, else None."""
        topic = self._topics.get(uuid)
        if topic is None or self._catalog.find(topic.name) is not topic or self._catalog.unsynced(topic):
            return None
        return topic

    def _add(self, topic: Topic) -> None:
        if len(self._topics) > 2 * len(self._catalog) + _STALE:
            self._load()  # drops deleted topics
        self._topics[uuid_of(topic.identity.topic_id)] = topic

    def _load(self) -> None:
        self._topics = {uuid_of(topic.identity.topic_id): topic for topic in self._catalog.topics.values()}
