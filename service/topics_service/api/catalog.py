"""A read-only view of the topics, for gateways whose protocol describes them itself."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, Protocol
from uuid import UUID

from ulid import ULID

from topics_service.engine import names
from topics_service.engine.engine import Engine
from topics_service.engine.model import Identity, TopicConfig

_PREFIX: Final = "top_"


@lru_cache(maxsize=8192)
def uuid_of(topic_id: str) -> UUID:
    """The UUID of a topic id `top_<ulid>`: the 16 bytes of the ULID. The mapping is one to one."""
    return ULID.from_str(topic_id.removeprefix(_PREFIX).upper()).to_uuid()


@lru_cache(maxsize=8192)
def topic_id_of(uuid: UUID) -> str:
    """The topic id with this `uuid_of`."""
    return _PREFIX + str(ULID.from_uuid(uuid)).lower()


class TopicView(Protocol):
    """A topic as it is now. The same topic is always the same object; one that was deleted stays as it was."""

    @property
    def name(self) -> str:
        """The name."""
        ...

    @property
    def identity(self) -> Identity:
        """The id and the number of partitions."""
        ...

    @property
    def config(self) -> TopicConfig:
        """The config."""
        ...

    @property
    def kafka_configs(self) -> Mapping[str, str]:
        """The configs that only Kafka knows, if they are set."""
        ...

    @property
    def is_part(self) -> bool:
        """Return whether the topic's home is another shard."""
        ...

    def partition_bytes(self, number: int) -> int:
        """Bytes of the records in an existing partition that is here, as readers saw them last."""
        ...


class Catalog(Protocol):
    """The topics that are visible to readers. Reads memory only; raises nothing except in `check_capacity`."""

    on_changed: list[Callable[[], None]]
    """Called when a topic becomes visible, is removed or gets more partitions."""

    def find(self, name: str | None, topic_id: UUID | None = None) -> TopicView | None:
        """The topic by name or, if that is empty, by id."""
        ...

    def within(self, prefixes: tuple[str, ...] | None, after: str | None = None) -> Iterator[TopicView]:
        """Topics in name order, behind `after`, if their names start with one of `prefixes`; None: all."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether the topic exists, even if its creation is not durable yet."""
        ...

    def check_capacity(self, partitions: int) -> None:
        """Raise `throttled` unless the limit allows this many more partitions."""
        ...

    def is_routed(self, name: str) -> bool:
        """Return whether the topic is the source or the destination of a router."""
        ...

    def is_behind(self, name: str) -> bool:
        """Return whether `RoutersApi.forwarded` would wait."""
        ...

    def refresh(self, names: Iterable[str], ids: Iterable[UUID] = ()) -> Awaitable[None] | None:
        """Have the topics as they are now, wherever they are; returns None if they are up to date anyway."""
        ...


class CatalogView:
    """The catalog of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._catalog = engine.catalog
        self.on_changed = engine.catalog.on_changed

    def find(self, name: str | None, topic_id: UUID | None = None) -> TopicView | None:
        """The topic by name or, if that is empty, by id."""
        if name:
            topic = self._catalog.find(name)
        else:
            topic = None if topic_id is None else self._catalog.by_id.get(topic_id_of(topic_id))
        return None if topic is None or self._catalog.unsynced(topic) else topic

    def home(self, name: str | None, topic_id: UUID | None = None) -> TopicView | None:
        """The topic as `find` has it, unless its home is another shard."""
        topic = self.find(name, topic_id)
        return None if topic is None or topic.is_part else topic

    def within(self, prefixes: tuple[str, ...] | None, after: str | None = None) -> Iterator[TopicView]:
        """Topics in name order, behind `after`, if their names start with one of `prefixes`; None: all."""
        for name in self._catalog.under(names.narrow("", prefixes), after):
            topic = self._catalog.topics[name]
            if not self._catalog.unsynced(topic):
                yield topic

    def exists(self, name: str) -> bool:
        """Return whether the topic exists, even if its creation is not durable yet."""
        return self._engine.has_topic(name)

    def check_capacity(self, partitions: int) -> None:
        """Raise `throttled` unless the limit allows this many more partitions."""
        self._catalog.check_capacity(partitions)

    def is_routed(self, name: str) -> bool:
        """Return whether the topic is the source or the destination of a router."""
        return self._engine.routers.is_end(name)

    def is_behind(self, name: str) -> bool:
        """Return whether `RoutersApi.forwarded` would wait."""
        return self._engine.routers.may_be_behind(name)

    def refresh(self, names: Iterable[str], ids: Iterable[UUID] = ()) -> None:
        """Nothing to do."""
