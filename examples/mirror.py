"""Mirror topics between servers ("sites"), each copy exactly once. docs/guides/mirror.md explains it.

    python examples/mirror.py --site a=topics://10.0.0.1:4001 --site b=topics://10.0.0.2:4001 orders 'chat:*'

Copies go from each site to each other one; with --one-way only from the first to the others. Keys belong into the URLs
(topics://KEY@HOST:PORT) or into TOPICS_API_KEY. Run one such process; SIGTERM ends it, and the next one goes on where
it was, also after a kill. It logs to stderr.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event, Lock, Thread
from typing import Any, Final

from topics_client import (
    Advice,
    CaughtUp,
    ConflictError,
    Gap,
    NewRecord,
    NotFoundError,
    RawJson,
    Record,
    Retry,
    TopicDeleted,
    TopicInfo,
    TopicsClient,
    TopicsError,
    UnavailableError,
)

STAMP: Final = "mirror"  # the header in which a copy says where it comes from
_ROOM: Final = 512  # bytes that a stamp takes at most, with a gap in it
_PAUSE: Final = 1.0  # seconds before a link that broke begins anew
_RENEW: Final = 5.0  # seconds that a watch lasts


@dataclass(frozen=True, slots=True)
class Site:
    """A server, and the name that copies of its records carry as their node elsewhere."""

    name: str
    client: TopicsClient


class Link:
    """Copies from one site to another.

    The group `mirror:SOURCE>DEST` at the source keeps how far it is, and, as metadata of the position, where the append
    that is about to be made ends and where the destination's head was. With that, the process after a kill finds out
    whether the append happened, and else makes the same one again, under the same idempotency key.
    """

    def __init__(self, source: Site, dest: Site, others: Sequence[str], names: Sequence[str], stopping: Event) -> None:
        """`others` are the names of all sites but the source: what they wrote comes to the destination from them."""
        self.name = f"{source.name}>{dest.name}"
        self.copied = 0
        self._source, self._dest = source, dest
        self._others, self._names = others, names
        self._stopping = stopping
        self._group = f"mirror:{self.name}"
        self._lock = Lock()
        self._end_watch: Callable[[], object] = stopping.is_set  # none yet
        self._seen = set[str]()  # topics that were there
        self._queues = set[str]()
        self._forget()

    def _forget(self) -> None:
        self._positions = dict[str, int]()  # all up to here is at the destination, by topic or topic@partition
        self._kept = dict[str, int]()  # what the group says of it, when nothing is under way
        self._lives = dict[str, str]()  # the source topic's id: another one if it is made again
        self._heads = dict[str, int]()  # of the destination
        self._gaps = dict[str, Gap]()  # reported by the next copy

    def run(self) -> None:
        """Copy until it is to stop. Raises TopicsError for what waiting can't help."""
        while not self._stopping.is_set():
            try:
                self._forget()
                self._follow()
            except (UnavailableError, NotFoundError, ConflictError) as error:
                if isinstance(error, ConflictError) and error.reason != "topic_full":
                    raise
                self._say(f"{error}; again in {_PAUSE:g} s")
                self._stopping.wait(_PAUSE)

    def renew(self) -> None:
        """Watch anew, or end `run` if it is to stop; from another thread. A new watch reports where it is caught up,
        which takes the position past records of other sites: nothing else is said of those."""
        with self._lock:
            self._end_watch()

    def _follow(self) -> None:
        client = self._source.client
        for name in self._names:
            partitions = [each.topic for each in client.list_topics(name[:-1])] if name.endswith("*") else [name]
            for topic_partition in partitions:
                self._begin(topic_partition)
        while not self._stopping.is_set():
            self._look_for_others()
            with client.watch(
                self._names, cursor=self._positions, node=self._others, lenient=True, events=True
            ) as stream:
                with self._lock:
                    self._end_watch = stream.close
                for items in [] if self._stopping.is_set() else stream.batches():
                    self._take(items)
        for topic_partition in self._positions:
            self._keep(topic_partition)

    def _look_for_others(self) -> None:
        """Topics may have been deleted, and made again, while there was no watch: a new one would not tell."""
        for topic_partition in list(self._positions):
            topic, _ = _split(topic_partition)
            info = _info(self._source, topic)
            if info is None or info.topic_id != self._lives[topic]:
                self._end(topic_partition)
                if info is not None:
                    self._begin(topic_partition)

    def _end(self, topic_partition: str) -> None:
        if topic_partition in self._names:
            raise self._deleted(topic_partition)
        self._say(f"{topic_partition}: deleted at {self._source.name}; its copy stays")
        self._positions.pop(topic_partition, None)

    # The start

    def _begin(self, topic_partition: str) -> None:
        """Find out how far a topic is copied, and finish what was under way when a mirror before was killed."""
        topic, partition = _split(topic_partition)
        if not self._prepare(topic):
            return
        self._heads[topic_partition] = self._dest.client.get_topic(topic, partition=partition).head_seq
        start, end, head = self._committed(topic, partition)
        copied = max(self._copies(topic_partition, behind=head), default=0)
        if copied > start:  # the append happened; or the group has expired
            start = max(copied, end)
        elif end > start:
            self._append(topic_partition, start, end, self._again(topic_partition, start, end))
            start = end
        self._positions[topic_partition] = start
        self._say(f"{topic_partition}: from seq {start}")

    def _again(self, topic_partition: str, start: int, end: int) -> list[Record]:
        """The records that were under way."""
        topic, partition = _split(topic_partition)
        records = list[Record]()
        for item in self._source.client.read(
            topic, start, end_seq=end, node=self._others, partition=partition, gaps="yield"
        ):
            if isinstance(item, Gap):
                self._gaps[topic_partition] = item
            else:
                records.append(item)
        return records

    def _prepare(self, topic: str) -> bool:
        """See that both sites have the topic; one that is made is like the other. False for a queue: a job is done
        once, so it has one home."""
        here, there = _info(self._source, topic), _info(self._dest, topic)
        if any(info and info.type == "queue" for info in (here, there)):
            self._queues.add(topic)
            self._say(f"{topic}: a queue, which is not mirrored")
            return False
        if here is None and topic in self._seen:
            raise self._deleted(topic)
        model = here or there
        config = replace(model.config, retain_until_acked_by=()) if model else None  # groups are not mirrored
        for site, info in ((self._source, here), (self._dest, there)):
            if info is None:
                site.client.put_topic(topic, config, partitions=model.partition_count if model else 1)
        here = here or self._source.client.get_topic(topic)
        self._seen.add(topic)
        self._lives[topic] = here.topic_id
        return True

    def _committed(self, topic: str, partition: int) -> tuple[int, int, int]:
        """Position, end of the append that was about to be made there, and head of the destination before it."""
        with suppress(NotFoundError):
            for position in self._source.client.fetch_positions(self._group, topic):
                if position.partition == partition:
                    about = json.loads(position.metadata or "{}")  # empty after a reset
                    return position.from_seq, about.get("end", position.from_seq), about.get("head", 0)
        return 0, 0, 0

    def _commit(self, topic_partition: str, position: int, end: int) -> None:
        about = json.dumps({"end": end, "head": self._heads[topic_partition]})
        self._source.client.commit_positions(self._group, {topic_partition: position}, metadata=about)
        self._kept[topic_partition] = position if position == end else -1

    def _copies(self, topic_partition: str, *, behind: int) -> Iterable[int]:
        """Seqs at the source of the copies that the destination has behind a seq of its own."""
        topic, partition = _split(topic_partition)
        for item in self._dest.client.read(topic, behind, partition=partition, gaps="yield"):
            if isinstance(item, Record) and item.node == self._source.name:
                stamp = item.meta.get(STAMP) or {}
                if stamp.get("topic_id") == self._lives[topic]:
                    yield stamp["seq"]

    # Copying

    def _take(self, items: Sequence[Any]) -> None:
        """One frame of the watch: the records of one topic, or one other event."""
        item = items[0]
        if isinstance(item, Advice):
            self._say(f"{item.reason}: {item.message}")
            return
        topic_partition = _joined(item.topic, item.partition)
        if isinstance(item, Record):
            if topic_partition not in self._positions and item.topic not in self._queues:  # new
                self._begin(topic_partition)
            start = self._positions.get(topic_partition, item.seq)
            fresh = [record for record in items if record.seq > start]
            if fresh and topic_partition in self._positions:
                self._copy(topic_partition, start, fresh)
        elif isinstance(item, Gap):
            self._say(
                f"{topic_partition}: seq {item.first_seq} to {item.last_seq} "
                f"is gone ({item.reason}) and can't be copied"
            )
            self._gaps[topic_partition] = item
            if item.reason == "recreated":
                self._positions.pop(topic_partition, None)
        elif isinstance(item, TopicDeleted):
            self._end(topic_partition)
        elif isinstance(item, CaughtUp) and topic_partition in self._positions:
            self._positions[topic_partition] = max(self._positions[topic_partition], item.head_seq)
            self._keep(topic_partition)

    def _copy(self, topic_partition: str, start: int, records: Sequence[Record]) -> None:
        end = records[-1].seq
        self._commit(topic_partition, start, end)
        self._append(topic_partition, start, end, records)
        self._positions[topic_partition] = end

    def _append(self, topic_partition: str, start: int, end: int, records: Sequence[Record]) -> None:
        if not records:
            return
        topic, partition = _split(topic_partition)
        life = self._lives[topic]
        gap = self._gaps.get(topic_partition)
        copies = [self._copy_of(record, life, gap if index == 0 else None) for index, record in enumerate(records)]
        key = f"mirror:{self._source.name}:{life}:{partition}:{start}:{end}"
        done = self._dest.client.append_many(topic, copies, partition=partition, idempotency_key=key, create=False)
        self._gaps.pop(topic_partition, None)
        self._heads[topic_partition] = done.head_seq
        self.copied += 0 if done.deduped else done.count

    def _copy_of(self, record: Record, life: str, gap: Gap | None) -> NewRecord:
        """The record with its data and tag as they were, the site as its node, and a stamp in its headers."""
        stamp: dict[str, Any] = {"site": self._source.name, "topic_id": life, "seq": record.seq, "ts": record.ts_ms}
        if record.node is not None:
            stamp["node"] = record.node
        if gap:
            stamp["gap"] = [gap.first_seq, gap.last_seq, gap.reason]
        meta = record.meta
        size = len(record.data) + len(record.meta_data) + _ROOM
        if len(meta) < 64 and len(record.meta_data) + _ROOM <= 16 << 10 and size <= 1 << 20:  # else there is no room
            meta = {**meta, STAMP: stamp}
        value = record.data if record.binary else RawJson(record.data)
        return NewRecord(value, record.tag, self._source.name, meta)

    def _keep(self, topic_partition: str) -> None:
        """Commit a position at which nothing is under way."""
        position = self._positions[topic_partition]
        if self._kept.get(topic_partition) != position:
            self._commit(topic_partition, position, position)

    def _deleted(self, topic: str) -> TopicsError:
        text = f"{topic} was deleted at {self._source.name}; start again without it, or to make it anew"
        return ConflictError("topic_deleted", text)

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self.name}: {text}", file=sys.stderr, flush=True)


def _info(site: Site, topic: str) -> TopicInfo | None:
    try:
        return site.client.get_topic(topic)
    except NotFoundError:
        return None


def _split(topic_partition: str) -> tuple[str, int]:
    topic, _, partition = topic_partition.partition("@")
    return topic, int(partition or 0)


def _joined(topic: str, partition: int) -> str:
    return f"{topic}@{partition}" if partition else topic


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; 0, or 1 for what can't be helped by waiting."""
    parser = argparse.ArgumentParser(description="Mirror topics between servers.")
    parser.add_argument("--site", action="append", required=True, metavar="NAME=URL", help="a server; two or more")
    parser.add_argument("--one-way", action="store_true", help="only from the first site to the others")
    parser.add_argument("topics", nargs="+", metavar="TOPIC", help="a name, topic@PARTITION, or a prefix and *")
    options = parser.parse_args(arguments)
    urls = dict(each.partition("=")[::2] for each in options.site)
    if len(urls) < 2 or len(urls) < len(options.site) or not all(urls.keys()) or not all(urls.values()):
        parser.error("--site NAME=URL at least twice, each with a name of its own")

    sites = [Site(name, TopicsClient(url, retry=Retry(seconds=20))) for name, url in urls.items()]
    stopping, errors = Event(), list[Exception]()
    links = [
        Link(source, dest, [name for name in urls if name != source.name], options.topics, stopping)
        for source in (sites[:1] if options.one_way else sites)
        for dest in sites
        if dest is not source
    ]

    def run(link: Link) -> None:
        try:
            link.run()
        except Exception as error:
            errors.append(error)
            stopping.set()

    threads = [Thread(target=run, args=[link], name=link.name) for link in links]
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stopping.set())
    for thread in threads:
        thread.start()
    while not stopping.wait(_RENEW):
        for link in links:
            link.renew()
    for link in links:
        link.renew()
    for link, thread in zip(links, threads, strict=True):
        thread.join()
        print(f"{link.name}: {link.copied} records copied", file=sys.stderr)
    for site in sites:
        site.client.close()
    for error in errors:
        print(f"mirror: {error}" if isinstance(error, TopicsError) else f"mirror: {error!r}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
