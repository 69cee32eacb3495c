"""Deletes, pages and times through both clients."""

import threading

import pytest

from support.server import ServerProcess
from topics_client import Deleted, InvalidRequestError, NewRecord, NotFoundError, TopicConfig, TopicsClient


def test_records_are_removed_without_a_trace(client: TopicsClient, name: str) -> None:
    client.append_many(name, [NewRecord(i, tag="even" if i % 2 == 0 else "odd") for i in range(1, 11)])
    assert client.delete_records(name, before_seq=4) == Deleted(3, 4, 10, 7, client.get_topic(name).bytes)
    assert client.delete_records(name, tag="odd", before_seq=8).deleted == 2
    assert client.delete_records(name, tag_prefix="ev").deleted == 4
    assert [record.seq for record in client.read(name)] == [9]
    page = client.diff(name)
    assert ([record.seq for record in page.records], page.gap, page.earliest_seq) == ([9], None, 9)
    with pytest.raises(InvalidRequestError):
        client.delete_records(name)
    with pytest.raises(InvalidRequestError, match="mutually exclusive"):
        client.delete_records(name, tag="a", tag_prefix="b")
    with pytest.raises(NotFoundError):
        client.delete_records(f"{name}.none", before_seq=1)


def test_a_page_tells_where_it_stands(client: TopicsClient, name: str) -> None:
    client.append_many(name, [NewRecord(i, tag=f"t{i % 3}", node=f"n{i % 2}") for i in range(1, 301)])
    page = client.diff(name)
    assert (page.topic, page.partition, len(page.records), page.next_from_seq) == (name, 0, 256, 256)
    assert (page.head_seq, page.earliest_seq, page.caught_up, page.lag, page.gap) == (300, 1, False, 44, None)
    page = client.diff(name, page.next_from_seq)
    assert (page.records[0].seq, page.next_from_seq, page.caught_up, page.lag) == (257, 300, True, 0)
    assert [record.seq for record in client.diff(name, 10, limit=3).records] == [11, 12, 13]
    assert {record.tag for record in client.diff(name, tag="t1").records} == {"t1"}
    assert [record.seq for record in client.diff(name, tag_prefix="t", last=2).records] == [299, 300]
    for node in ("n0", ["n0"], ("n0", "x")):
        assert {record.node for record in client.diff(name, node=node).records} == {"n1"}
    first = client.diff(name, limit=1).records[0]
    assert client.diff(name, from_ts_ms=first.ts_ms, limit=1).records == (first,)
    assert client.locate_time(name, first.ts_ms) == 1
    assert client.locate_time(name, first.ts_ms + 1_000_000) == 301
    assert client.diff(name, from_ts_ms=first.ts_ms + 1_000_000).records == ()
    with pytest.raises(InvalidRequestError):
        client.diff(name, 5, last=1)


def test_a_page_waits_for_a_record(shared: ServerProcess, client: TopicsClient, name: str) -> None:
    client.append(name, 1)
    assert client.diff(name, 1, wait_ms=1).records == ()
    with TopicsClient(shared.grpc_target) as other:
        writing = threading.Timer(0.2, other.append, (name, 2))
        writing.start()
        assert [record.value for record in client.diff(name, 1, wait_ms=20_000).records] == [2]
        writing.join()


def test_a_page_has_the_gap_before_its_records(client: TopicsClient, name: str) -> None:
    client.put_topic(name, TopicConfig(cap_records=3))
    client.append_many(name, range(1, 11))
    page = client.diff(name, 2)
    gap = page.gap
    assert gap is not None
    assert (gap.topic, gap.partition, gap.first_seq, gap.last_seq, gap.reason) == (name, 0, 3, 7, "cap")
    assert (gap.missed_estimate, gap.earliest_seq, gap.head_seq) == (5, 8, 10)
    assert [record.seq for record in page.records] == [8, 9, 10]
