"""Reading a range over lost connections, against a scripted server. No JVM."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pyarrow as pa
import pytest

from pyspark_topics import fetch
from pyspark_topics.fetch import Fetcher, Gap, Parts, SeqRange, TopicResetError
from topics_client.address import Address
from topics_client.errors import AuthError, NotFoundError, TopicsError, UnavailableError
from topics_client.retry import Retry
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc, record_pb2, topics_service_pb2_grpc
from topics_proto.v1 import topics_service_pb2 as pb

_SCHEMA = pa.schema([pa.field("seq", pa.int64(), nullable=False)])
_RANGE = SeqRange("orders", "top_1", 0, 1, 9)
_QUICK = Retry(seconds=5, first_pause=0.01, longest_pause=0.02)

Answer = Callable[[pb.BulkDiffRequest, grpc.ServicerContext], Iterator[pb.BulkDiffResponse]]


class _Server(topics_service_pb2_grpc.TopicsServiceServicer, admin_service_pb2_grpc.AdminServiceServicer):
    """Answers the calls in order, the last answer repeatedly; keeps the requests."""

    def __init__(self, *answers: Answer, readers: tuple[int, ...] | None = ()) -> None:
        self.answers = list(answers)
        self.readers = readers
        self.by_partition: dict[int, admin_service_pb2.ListBulkReadersResponse] = {}
        self.asked: list[tuple[str, int]] = []
        self.requests: list[pb.BulkDiffRequest] = []

    def BulkDiff(self, request: pb.BulkDiffRequest, context: Any) -> Iterator[pb.BulkDiffResponse]:  # noqa: N802
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(request, context)

    def ListBulkReaders(  # noqa: N802
        self, request: admin_service_pb2.ListBulkReadersRequest, context: Any
    ) -> admin_service_pb2.ListBulkReadersResponse:
        self.asked.append((request.topic, request.partition))
        if request.partition in self.by_partition:
            return self.by_partition[request.partition]
        if self.readers is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "what?")
        readers = [admin_service_pb2.BulkReader(port=port) for port in self.readers or ()]
        return admin_service_pb2.ListBulkReadersResponse(readers=readers)


@contextmanager
def _serving(servicer: _Server) -> Iterator[int]:
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        topics_service_pb2_grpc.add_TopicsServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(0).wait()


def _frame(first: int, last: int, *, begin: bool = False, done: bool = False, **fields: Any) -> pb.BulkDiffResponse:
    """Records `first` to `last`; with `begin` the schema in front of them."""
    batch = pa.record_batch([pa.array(range(first, last + 1), pa.int64())], schema=_SCHEMA)
    arrow = (_SCHEMA.serialize().to_pybytes() if begin else b"") + batch.serialize().to_pybytes()
    return pb.BulkDiffResponse(arrow=arrow, next_from_seq=last, head_seq=9, done=done, **fields)


def _all(request: pb.BulkDiffRequest, context: Any) -> Iterator[pb.BulkDiffResponse]:
    yield _frame(request.from_seq + 1, request.end_seq, begin=True, done=True)


def _broken(code: grpc.StatusCode) -> Answer:
    def answer(request: pb.BulkDiffRequest, context: Any) -> Iterator[pb.BulkDiffResponse]:
        yield _frame(request.from_seq + 1, request.from_seq + 2, begin=True)
        context.abort(code, "broken")

    return answer


def _refused(code: grpc.StatusCode) -> Answer:
    def answer(request: pb.BulkDiffRequest, context: Any) -> Iterator[pb.BulkDiffResponse]:
        context.abort(code, "refused")
        yield from ()

    return answer


def _read(servicer: _Server, parts: Parts = Parts(), retry: Retry = _QUICK) -> list[int | Gap]:  # noqa: B008
    with _serving(servicer) as port, Fetcher(Address("127.0.0.1", port, "s3cret"), retry=retry) as fetcher:
        found: list[int | Gap] = []
        for got in fetcher.read(_RANGE, parts):
            found += [got] if isinstance(got, Gap) else got.column("seq").to_pylist()
        return found


def test_the_request_says_what_is_wanted() -> None:
    servicer = _Server(_all, readers=None)  # a server older than bulk readers
    parts = Parts(nodes=("n",), tag_prefix="a", tags=False, meta=False, data=False, frame_bytes=70_000)
    assert _read(servicer, parts) == list(range(1, 10))
    (request,) = servicer.requests
    assert request == pb.BulkDiffRequest(
        topic="orders",
        topic_id="top_1",
        end_seq=9,
        node=["n"],
        include_meta=False,
        include_data=False,
        frame_bytes=70_000,
        format=pb.BULK_FORMAT_ARROW,
        filter=record_pb2.TagMatch(prefix="a"),
    )


def test_a_break_is_mended_by_reading_on() -> None:
    servicer = _Server(_broken(grpc.StatusCode.UNAVAILABLE), _refused(grpc.StatusCode.UNAVAILABLE), _all)
    assert _read(servicer) == list(range(1, 10))
    assert [request.from_seq for request in servicer.requests] == [0, 2, 2]


def test_a_stream_that_ends_before_its_end_is_a_break() -> None:
    def early(request: pb.BulkDiffRequest, context: Any) -> Iterator[pb.BulkDiffResponse]:
        yield _frame(1, 4, begin=True)

    servicer = _Server(early, _all)
    assert _read(servicer) == list(range(1, 10))
    assert [request.from_seq for request in servicer.requests] == [0, 4]


def test_gaps_stand_where_they_are_and_frames_may_be_empty() -> None:
    def answer(request: pb.BulkDiffRequest, context: Any) -> Iterator[pb.BulkDiffResponse]:
        lost = record_pb2.Tombstone(gap_from=1, gap_to=3, reason=record_pb2.GAP_REASON_MIXED, missed_estimate=3)
        schema = _SCHEMA.serialize().to_pybytes()
        yield pb.BulkDiffResponse(tombstone=lost, next_from_seq=3, arrow=schema)
        yield _frame(4, 5)
        yield pb.BulkDiffResponse(next_from_seq=6)
        lost = record_pb2.Tombstone(gap_from=7, gap_to=7, reason=record_pb2.GAP_REASON_TTL, missed_estimate=1)
        yield _frame(8, 9, done=True, tombstone=lost)

    assert _read(_Server(answer)) == [Gap("orders", 0, 1, 3, "mixed", 3), 4, 5, Gap("orders", 0, 7, 7, "ttl", 1), 8, 9]


@pytest.mark.parametrize(
    ("code", "kind"), [(grpc.StatusCode.NOT_FOUND, NotFoundError), (grpc.StatusCode.PERMISSION_DENIED, AuthError)]
)
def test_what_no_wait_can_mend_names_topic_and_range(code: grpc.StatusCode, kind: type[TopicsError]) -> None:
    servicer = _Server(_refused(code))
    with pytest.raises(kind, match="topic orders, seq 1 to 9: ") as caught:
        _read(servicer)
    assert len(servicer.requests) == 1
    assert "s3cret" not in str(caught.value)


def test_a_server_that_stays_away_ends_the_read_with_how_far_it_came() -> None:
    servicer = _Server(_broken(grpc.StatusCode.UNAVAILABLE), _refused(grpc.StatusCode.UNAVAILABLE))
    with pytest.raises(UnavailableError, match=r"topic orders, seq 1 to 9: .*read up to seq 2"):
        _read(servicer, retry=Retry(seconds=2, first_pause=0.01, longest_pause=0.1))
    assert len(servicer.requests) > 2


def test_the_time_to_wait_counts_from_the_last_record() -> None:
    steps = [_broken(grpc.StatusCode.UNAVAILABLE)] * 4  # each gets two records further
    assert _read(_Server(*steps, _all), retry=Retry(seconds=0.05, first_pause=0.04)) == list(range(1, 10))


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNKNOWN])
def test_what_a_bulk_reader_can_not_give_the_server_gives(code: grpc.StatusCode) -> None:
    reader, server = _Server(_broken(code)), _Server(_all)
    with _serving(reader) as port:
        server.readers = (port,)
        assert _read(server) == list(range(1, 10))
    assert [request.from_seq for request in reader.requests] == [0]
    assert [request.from_seq for request in server.requests] == [2]


def test_each_partition_is_read_at_a_follower_in_the_zone_or_at_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    server, owner, near, far = (_Server(_all) for _ in range(4))
    with _serving(server) as port, _serving(owner) as owners, _serving(near) as nears, _serving(far) as fars:

        def answer(owner_zone: str, *readers: tuple[int, str]) -> admin_service_pb2.ListBulkReadersResponse:
            at = admin_service_pb2.BulkReader
            followers = [at(port=number, zone=zone) for number, zone in readers]
            return admin_service_pb2.ListBulkReadersResponse(readers=followers, owner=at(port=owners, zone=owner_zone))

        server.by_partition = {
            0: answer("east", (nears, "west"), (fars, "east")),
            1: answer("east"),
            2: answer("west", (fars, "east")),
            3: answer("east", (fars, "east")),
        }
        monkeypatch.setenv("TOPICS_ZONE", "west")
        with Fetcher(Address("127.0.0.1", port), retry=_QUICK) as fetcher:
            for partition, expected in enumerate((near, owner, owner, far)):
                found = fetcher.read(SeqRange("orders", "top_1", partition, 1, 9))
                assert [seq for got in found for seq in got.column("seq").to_pylist()] == list(range(1, 10))  # type: ignore[union-attr]
                assert expected.requests.pop().partition == partition
                assert not [each for each in (server, owner, near, far) if each.requests]
        assert server.asked == [("orders", partition) for partition in range(4)]

        owner.answers, far.answers = [_refused(grpc.StatusCode.UNAVAILABLE)], [_broken(grpc.StatusCode.UNAVAILABLE)]
        server.by_partition = {0: answer("", (fars, ""))}
        monkeypatch.delenv("TOPICS_ZONE")
        with Fetcher(Address("127.0.0.1", port), retry=_QUICK) as fetcher:
            for _ in range(3):  # a follower, then the owner, then the server alone: none is asked twice
                found = fetcher.read(_RANGE)
                assert [seq for got in found for seq in got.column("seq").to_pylist()] == list(range(1, 10))  # type: ignore[union-attr]
        assert [len(each.requests) for each in (far, owner, server)] == [1, 1, 3]
        assert [request.from_seq for request in server.requests] == [2, 0, 0]


def test_a_head_below_the_range_is_no_end() -> None:
    def short(request: pb.BulkDiffRequest, context: Any) -> Iterator[pb.BulkDiffResponse]:
        yield _frame(1, 4, begin=True, done=True)

    with pytest.raises(TopicResetError, match="topic orders, seq 1 to 9: the head is seq 4"):
        _read(_Server(short))


def test_a_server_that_was_put_back_gives_nothing_twice() -> None:
    """For a cursor beyond its head it starts again, after a tombstone."""

    def anew(request: pb.BulkDiffRequest, context: Any) -> Iterator[pb.BulkDiffResponse]:
        lost = record_pb2.Tombstone(gap_from=1, gap_to=1, reason=record_pb2.GAP_REASON_RECREATED)
        frame = _frame(1, 1, begin=True, done=True, tombstone=lost)
        frame.head_seq = 1
        yield frame

    found: list[pa.RecordBatch | Gap] = []
    servicer = _Server(_broken(grpc.StatusCode.UNAVAILABLE), anew)
    with _serving(servicer) as port, Fetcher(Address("127.0.0.1", port), retry=_QUICK) as fetcher:
        read = map(found.append, fetcher.read(_RANGE))
        with pytest.raises(TopicResetError, match="topic orders, seq 1 to 9: the head is seq 1"):
            list(read)
    [batch] = found
    assert not isinstance(batch, Gap)
    assert batch.column("seq").to_pylist() == [1, 2]


def test_a_bulk_reader_that_hangs_is_left_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_READER_SILENCE", 1.0)
    ended = threading.Event()

    def hanging(request: pb.BulkDiffRequest, context: Any) -> Iterator[pb.BulkDiffResponse]:
        yield _frame(1, 2, begin=True)
        context.add_callback(ended.set)
        assert ended.wait(30)

    reader, server = _Server(hanging), _Server(_all)
    with _serving(reader) as port, _serving(server) as at:
        server.readers = (port,)
        with Fetcher(Address("127.0.0.1", at), retry=_QUICK) as fetcher:
            for expected in (1, 1):  # it is not asked again
                found = [seq for got in fetcher.read(_RANGE) for seq in got.column("seq").to_pylist()]  # type: ignore[union-attr]
                assert found == list(range(1, 10))
                assert len(reader.requests) == expected
        assert ended.wait(30)
    assert [request.from_seq for request in server.requests] == [2, 0]


def test_time_that_the_caller_takes_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_SERVER_SILENCE", 1.5)

    def frames(request: pb.BulkDiffRequest, context: Any) -> Iterator[pb.BulkDiffResponse]:
        yield _frame(1, 4, begin=True)
        yield _frame(5, 9, done=True)

    server = _Server(frames)
    with _serving(server) as port, Fetcher(Address("127.0.0.1", port), retry=_QUICK) as fetcher:
        batches = fetcher.read(_RANGE)
        next(batches)
        threading.Event().wait(3)
        assert [each.num_rows for each in batches] == [5]  # type: ignore[union-attr]
    assert len(server.requests) == 1
