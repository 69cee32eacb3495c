"""The ranges of a batch read, from the topics on the server."""

from collections.abc import Iterator
from dataclasses import replace

from pyspark_topics.fetch import SeqRange
from pyspark_topics.filters import Limits
from pyspark_topics.inventory import PartitionInfo, TopicInfo, find_topic, find_topics
from pyspark_topics.offsets import OffsetError, locate, resolve
from pyspark_topics.options import ReadOptions
from pyspark_topics.plan import Extent
from topics_client.connection import Connection
from topics_client.errors import AuthError, UnavailableError


def wanted_extents(connection: Connection, options: ReadOptions, limits: Limits) -> list[Extent]:
    """From the start to the end that the options name, within the limits. Empty if there is nothing.

    Raises NotFoundError for a topic that is named and does not exist, OffsetError for offsets that do not fit, and the
    errors of any call.
    """
    topics = _topics(connection, options)
    starts = resolve(connection, topics, options.starting)
    ends = resolve(connection, topics, options.ending)
    found: list[Extent] = []
    for info in topics:
        for at in info.partitions:
            # A time may be after the head, in records written since then.
            start = min(starts[info.topic][at.partition], at.head_seq)
            end = min(ends[info.topic][at.partition], at.head_seq)
            if start > end and start != at.earliest_seq - 1:  # else it is retention that has passed the end
                raise OffsetError(
                    f"partition {at.partition} of topic {info.topic}: the read ends with seq {end}"
                    f" ({options.ending.option}) and begins after seq {start} ({options.starting.option})"
                )
            if limits.wants(info.topic) and at.partition in limits.partitions:
                wanted = SeqRange(info.topic, info.topic_id, at.partition, start + 1, end)
                found += _within(connection, wanted, at, limits)
    return found


def _topics(connection: Connection, options: ReadOptions) -> list[TopicInfo]:
    try:
        return find_topics(connection, options.topics, options.pattern)
    except (AuthError, UnavailableError) as error:
        what = f"topics that match {options.pattern}" if options.pattern else f"topics {', '.join(options.topics)}"
        text = f"{what} at {options.address}: {error.message}"
        raise type(error)(error.reason, text, error.detail, error.retry_after_ms) from error


def _within(connection: Connection, wanted: SeqRange, at: PartitionInfo, limits: Limits) -> Iterator[Extent]:
    """The parts of a range that can have records within the limits, or have lost them."""
    wanted = replace(wanted, first=max(wanted.first, limits.seqs.first), last=min(wanted.last, limits.seqs.last))
    if wanted.first <= wanted.last and limits.bounded_above:
        behind = locate(connection, wanted.topic, wanted.partition, limits.times.last + 1)
        wanted = replace(wanted, last=min(wanted.last, behind - 1))
    if wanted.first <= wanted.last and limits.times.first:
        first = locate(connection, wanted.topic, wanted.partition, limits.times.first)
        # Records removed by retention have no time any more: they are read nevertheless, so that the server reports the
        # loss.
        lost = min(_earliest(connection, wanted) - 1, wanted.last)
        if wanted.first <= lost:
            yield Extent(replace(wanted, last=lost), lost)
        wanted = replace(wanted, first=max(wanted.first, first, lost + 1))
    if wanted.first <= wanted.last:
        yield Extent(wanted, at.earliest_seq, at.bytes // max(at.count, 1))


def _earliest(connection: Connection, wanted: SeqRange) -> int:
    """The current first live seq, after a time was located: seqs below it may have been lost before."""
    found: TopicInfo = find_topic(connection, wanted.topic)
    return next((each.earliest_seq for each in found.partitions if each.partition == wanted.partition), wanted.first)
