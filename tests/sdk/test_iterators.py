"""Streams as iterators, and what a REPL shows of the things of the SDK."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from support.server import ServerProcess
from support.waiting import poll
from topics_client import AsyncTopicsClient, GapError, NewRecord, TopicConfig, TopicsClient
from topics_client.errors import InvalidRequestError


@pytest.fixture
def client(shared: ServerProcess) -> Iterator[TopicsClient]:
    with TopicsClient(f"topics://s3cret@{shared.grpc_target}") as client:
        yield client


def test_a_stream_is_an_iterator(client: TopicsClient, name: str) -> None:
    client.append_many(name, range(5))
    for stream in (client.read(name), client.watch(name)):
        assert isinstance(stream, Iterator)
        assert next(stream).seq == 1
        assert [next(stream).seq, next(iter(stream)).seq] == [2, 3]
        for record in stream:  # continues where next was
            assert record.seq == 4
            break
        assert next(stream).seq == 5
        stream.close()
        assert next(stream, None) is None
    assert next(client.read(name, 5), None) is None
    pairs = zip(*[client.read(name, end_seq=4)] * 2, strict=True)
    assert [(a.seq, b.seq) for a, b in pairs] == [(1, 2), (3, 4)]
    read = client.read(name)
    assert next(read).seq == 1
    assert [record.seq for batch in read.batches() for record in batch] == [2, 3, 4, 5]
    assert [next(read, None), next(read, None)] == [None, None]  # its end stays its end


async def test_an_asynchronous_stream_is_an_iterator(shared: ServerProcess, name: str) -> None:
    async with AsyncTopicsClient(shared.grpc_target) as client:
        await client.append_many(name, range(4))
        for stream in (client.read(name), client.watch(name)):
            assert isinstance(stream, AsyncIterator)
            assert (await anext(stream)).seq == 1
            async for record in stream:
                assert record.seq == 2
                break
            assert [(await anext(stream)).seq, (await anext(stream)).seq] == [3, 4]
            stream.close()
            assert await anext(stream, None) is None


def test_next_raises_what_a_loop_does_and_goes_on_behind_it(client: TopicsClient, name: str) -> None:
    client.put_topic(name, TopicConfig(cap_records=2))
    client.append_many(name, range(5))
    stream = client.read(name)
    with pytest.raises(GapError):
        next(stream)
    assert [next(stream).seq, next(stream).seq, next(stream, None)] == [4, 5, None]


def test_nobody_who_only_took_the_next_item_leaves_a_call_open(client: TopicsClient, name: str) -> None:
    client.append(name, 1)

    def opened() -> int:
        (line,) = (line for line in client.metrics().splitlines() if line.startswith("topics_grpc_calls_in_flight "))
        return int(float(line.split()[1]))

    before = opened()
    assert next(client.read(name, follow=True)).seq == next(client.watch(name)).seq == 1
    poll(lambda: opened() == before)
    stream = client.read(name, follow=True)
    assert next(stream).seq == 1
    poll(lambda: opened() == before + 1)
    del stream
    poll(lambda: opened() == before)


def test_reprs_tell_server_topic_and_position(client: TopicsClient, shared: ServerProcess, name: str) -> None:
    server = f"topics://{shared.grpc_target}"
    client.append_many(name, [NewRecord({"n": 1}, tag="eu"), b"x" * 5000, 3])
    read, watch = client.read(name), client.watch([name, f"{name}*"])
    assert repr(read) == f"<ReadStream of {name} behind seq 0 at {server}>"
    record = next(read)
    assert repr(read) == f"<ReadStream of {name} behind seq 1 at {server}>"
    assert repr(client.read(name, last=2)) == f"<ReadStream of the last 2 of {name} at {server}>"
    time = record.time.isoformat(timespec="milliseconds")
    assert repr(record) == f"<Record {name} seq 1 {time} tag 'eu' b'{{\"n\":1}}'>"
    assert record.time.utcoffset() == timedelta(0)
    large = repr(next(read))
    assert large.endswith("… 5,000 bytes>")
    assert len(large) < 400
    next(watch)
    assert repr(watch) == f"<WatchStream of {name}, {name}*, cursor {{'{name}': 1}} at {server}>"
    watch.close()
    (batch,) = client.read(name).batches()
    assert repr(batch).startswith(f"[<Record {name} seq 1 ")
    assert ", … 1 more …, <Record" in repr(batch)
    page = client.diff(name, 1)
    assert repr(page) == f"<Page {name} 2 records, next_from_seq 3, head_seq 3>"
    with client.producer() as producer:
        assert repr(producer.append(name, 1)) == "<Delivery pending>"
        producer.flush()
        told = "0 records buffered, 0 appends in flight, 1 delivered, 0 failed"
        assert repr(producer) == f"<Producer at {server}: {told}>"
    worker = client.worker("jobs", print, node="me")
    assert repr(worker) == f"<Worker of jobs at {server} as me: 0 jobs running, 0 acked, 0 retried>"
    assert repr(client) == f"TopicsClient('{server}')"
    assert repr(AsyncTopicsClient(server)) == f"AsyncTopicsClient('{server}')"
    client.put_topic(f"{name}.q", TopicConfig(type="queue"))
    client.append(f"{name}.q", 1)
    (job,) = client.claim(f"{name}.q", "me")
    assert repr(job) == f"<Job {name}.q seq 1 delivery 1 b'1'>"
    for each in (client, client.connection, producer, worker, read, watch):
        assert "s3cret" not in repr(each)


def test_a_misspelt_member_is_refused_with_the_nearest_name() -> None:
    assert NewRecord.of({"value": 1, "tag": "x"}) == NewRecord(1, tag="x")
    for members, told in (
        ({"value": 1, "tga": "x"}, 'a record has no member "tga": is "tag" meant?'),
        ({"vlaue": 1}, 'a record has no member "vlaue": is "value" meant?'),
        ({"value": 1, "zzzz": 2}, 'a record has no member "zzzz", only meta, node, tag, value'),
        ({"tag": "x"}, 'a record has a member "value"'),
    ):
        with pytest.raises(InvalidRequestError, match=told.replace("?", r"\?")):
            NewRecord.of(members)
