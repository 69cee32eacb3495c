"""The scope of a subscription when it begins: topics by name and by pattern, and the start in each."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

from topics_service.engine.catalog import Catalog
from topics_service.engine.errors import TopicsError, invalid
from topics_service.engine.names import is_name_of_any, narrow
from topics_service.engine.topic import Topic
from topics_service.engine.watch.frames import WatchRequest, WatchTopic
from topics_service.engine.watch.topic_partition import format_topic_partition, parse_topic_partition


def by_topic_partition(starts: Iterable[tuple[str, int, WatchTopic]]) -> dict[str, WatchTopic]:
    """The topics of a request as keys of `WatchRequest.topics`, each given by key, partition (0: none said) and start.

    Raises `invalid_request` where both say a partition but not the same, for a pattern with one, and for doubles.
    """
    topics: dict[str, WatchTopic] = {}
    for key, partition, start in starts:
        name = key
        if partition:
            topic, number = parse_topic_partition(key)
            if "*" in key or number not in (0, partition):
                raise invalid(f'"{key}" has no partition {partition}')
            name = format_topic_partition(topic, partition)
        if name in topics:
            raise invalid(f'duplicate topic "{name}"')
        topics[name] = start
    return topics


def prefix_of(key: str) -> str | None:
    """The prefix of a pattern like `tenant42:*`; None if the key is a name.

    Raises `invalid_request` unless the star is the last character and a topic's name can begin like that.
    """
    star = key.find("*")
    if star < 0:
        return None
    prefix = key[:-1]
    if star != len(prefix) or (prefix and not is_name_of_any(prefix)):
        raise invalid(f'"{key}" is not a pattern: a pattern is a prefix of topic names with one * at the end')
    return prefix


def patterns_of(request: WatchRequest, max_topics: int, *, new: bool) -> dict[str, WatchTopic]:
    """The prefixes of a request's patterns with their starts, the most specific first.

    Raises `invalid_request` for a bad pattern, too many topics or, unless it is of a session, for none.
    """
    if new and not request.topics:  # a session may have none that exists
        raise invalid("a watch needs at least one topic")
    if len(request.topics) > max_topics:
        raise invalid(f"a watch has at most {max_topics} topics")
    patterns = {prefix: given for key, given in request.topics.items() if (prefix := prefix_of(key)) is not None}
    return {prefix: patterns[prefix] for prefix in sorted(patterns, key=len, reverse=True)}


def too_many(max_topics: int) -> TopicsError:
    """The error of patterns that match more topics than a watch may have."""
    return invalid(f"the patterns match too many topics: a watch has at most {max_topics}")


class Scope:
    """The topic partitions of a subscription: `topics` to follow, and deleted ones (`departed`) with their last heads.

    A recreated topic without the partition counts as deleted too. `prefixes` are those of the patterns; `refused` are
    topics that match but are too many.
    """

    def __init__(
        self, catalog: Catalog, request: WatchRequest, max_topics: int, heads: Mapping[str, int] | None = None
    ) -> None:
        """See Watch. Raises `invalid_request`, `topic_not_found` and `partition_not_found`."""
        self._request = request
        self._known = heads
        self._patterns = patterns_of(request, max_topics, new=heads is None)
        self.prefixes = tuple(self._patterns)
        self.topics: dict[str, Topic] = {}
        self.departed: dict[str, int] = {}
        self.refused: list[str] = []
        if heads is None:
            self._find_named(catalog)
        else:
            self._find_known(catalog, heads)
        self._resumed = self._prefixes_in(request.cursor)
        for topic in self._matches(catalog):
            if len(self.topics) < max_topics:
                self.topics[topic.name] = topic
            elif heads is None:
                raise too_many(max_topics)
            elif len(self.refused) < max_topics:
                self.refused.append(topic.name)
            else:
                break

    def start(self, name: str, head: int) -> int:
        """Return the cursor to start at in a topic partition whose head is given.

        A topic that matches a pattern and is new since is read from its first record: one that a session does not know,
        or one without a cursor where there are some for the pattern.
        """
        cursor = self._request.cursor.get(name)
        if cursor is not None:
            return cursor
        if self._known is not None and name not in self._known:
            return 0
        given = self._request.topics.get(name)
        if given is None:
            prefix = next(prefix for prefix in self.prefixes if name.startswith(prefix))
            if prefix in self._resumed:
                return 0
            given = self._patterns[prefix]
        return head if given.tail else given.from_seq

    def _find_named(self, catalog: Catalog) -> None:
        for key in self._request.topics:
            if "*" not in key:
                name, partition = parse_topic_partition(key)
                try:
                    topic = catalog.visible(name)
                    topic.partition(partition)
                    self.topics[key] = topic
                except TopicsError:
                    if not self._request.lenient:
                        raise

    def _find_known(self, catalog: Catalog, known: Mapping[str, int]) -> None:
        for key, head in known.items():
            if key in self._request.topics or key.startswith(self.prefixes):
                name, partition = parse_topic_partition(key)
                topic = catalog.find(name)
                if topic is None or catalog.unsynced(topic) or topic.find_log(partition) is None:
                    self.departed[key] = head
                else:
                    self.topics[key] = topic

    def _matches(self, catalog: Catalog) -> Iterator[Topic]:
        """The visible topics that patterns add."""
        for name in catalog.under(narrow("", self.prefixes)):
            topic = catalog.topics[name]
            if name not in self.topics and not catalog.unsynced(topic):
                yield topic

    def _prefixes_in(self, cursor: Mapping[str, int]) -> set[str]:
        """The patterns that the cursor has topics of."""
        if not self.prefixes:
            return set()
        ordered = sorted(cursor)
        found = set()
        for prefix in self.prefixes:
            at = bisect_left(ordered, prefix)
            if at < len(ordered) and ordered[at].startswith(prefix):
                found.add(prefix)
        return found
