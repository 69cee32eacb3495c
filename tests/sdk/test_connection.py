"""Calls of the SDK's connection against a real server: errors with their facts, retries, streams."""

import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from support.server import ServerProcess
from topics_client.address import Address
from topics_client.connection import Connection
from topics_client.errors import (
    AuthError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    TopicsError,
    UnavailableError,
)
from topics_client.owners import Key
from topics_client.retry import Retry
from topics_client.routes import Link
from topics_proto.v1 import topics_service_pb2 as pb

_KEYS = "admin-key,reader:read"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), env={"TOPICS_API_KEYS": _KEYS}) as process:
        yield process


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[Connection]:
    with Connection(Address.parse(server.grpc_target, key="admin-key")) as connection:
        yield connection


def _append(topic: str, *datas: bytes, **fields: object) -> pb.AppendRequest:
    return pb.AppendRequest(topic=topic, records=[{"data": data} for data in datas], **fields)  # type: ignore[arg-type]


def test_errors_tell_what_to_do_and_the_facts(server: ServerProcess, connection: Connection) -> None:
    topics = connection.topics
    with pytest.raises(NotFoundError) as missing:
        connection.unary(topics.GetTopic, pb.GetTopicRequest(topic="nowhere"), repeatable=True)
    assert (missing.value.reason, missing.value.detail["topic"]) == ("topic_not_found", "nowhere")
    assert str(missing.value).startswith("topic_not_found: ")
    with pytest.raises(InvalidRequestError) as bad:
        connection.unary(topics.Append, _append("errors", b"{no json"), repeatable=False)
    assert bad.value.reason == "invalid_request"
    connection.unary(topics.Append, _append("errors", b"1"), repeatable=False)
    with pytest.raises(ConflictError) as full:
        connection.unary(topics.DeleteTopic, pb.DeleteTopicRequest(topic="errors", if_empty=True), repeatable=True)
    assert (full.value.reason, full.value.detail["count"]) == ("topic_not_empty", "1")
    for key, reason in (("wrong", "unauthorized"), ("reader", "forbidden")):
        with Connection(Address.parse(server.grpc_target, key=key)) as other, pytest.raises(AuthError) as refused:
            other.unary(other.topics.Append, _append("errors", b"1"), repeatable=False)
        assert refused.value.reason == reason
        assert key not in str(refused.value)


def test_a_stream_ends_with_its_context_and_tells_its_error(connection: Connection) -> None:
    connection.unary(connection.topics.Append, _append("stream", b"1", b"2"), repeatable=False)
    request = pb.BulkDiffRequest(topic="stream", follow=True)
    with connection.stream(connection.topics.BulkDiff, request) as frames:
        assert next(frames).next_from_seq == 2
    with (
        pytest.raises(NotFoundError),
        connection.stream(connection.topics.BulkDiff, pb.BulkDiffRequest(topic="x")) as f,
    ):
        next(f)


def test_an_absent_server_is_named_and_only_repeatable_calls_are_repeated() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        address = Address.parse(f"topics://s3cret@127.0.0.1:{taken.getsockname()[1]}")
        attempts = 0

        def counted(key: Key, *, is_anywhere: bool = False) -> tuple[Link, bool]:
            nonlocal attempts
            attempts += 1
            return begin(key, is_anywhere=is_anywhere)

        with Connection(address, retry=Retry(seconds=0.3, first_pause=0.01)) as connection:
            begin = connection._routes.begin
            connection._routes.begin = counted  # type: ignore[method-assign]
            for repeatable in (False, True):
                attempts, request = 0, pb.GetTopicRequest(topic="t")
                with pytest.raises(UnavailableError) as absent:
                    connection.unary(connection.topics.GetTopic, request, repeatable=repeatable)
                assert (attempts > 1) is repeatable
                assert absent.value.reason == "unavailable"
                assert address.target in str(absent.value)
                assert "s3cret" not in str(absent.value)


def test_a_call_is_made_again_once_the_server_is_back(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path, same_ports=True) as server,
        Connection(Address.parse(server.grpc_target)) as connection,
    ):
        connection.unary(connection.topics.Append, _append("t", b"1"), repeatable=False)
        server.kill()
        with pytest.raises(UnavailableError):
            connection.unary(connection.topics.Append, _append("t", b"1"), repeatable=False)
        port = int(server.grpc_target.rpartition(":")[2])
        with ServerProcess(tmp_path, data_dir=server.data_dir, env={"TOPICS_GRPC_PORT": port}):
            state = connection.unary(connection.topics.GetTopic, pb.GetTopicRequest(topic="t"), repeatable=True).state
            assert state.head_seq == 1


def test_pauses_grow_and_a_server_that_names_a_time_is_given_it() -> None:
    retry, slept = Retry(seconds=1e6, first_pause=1, longest_pause=4), list[float]()
    outcomes: list[Exception | str] = [
        UnavailableError("unavailable", "gone"),
        UnavailableError("throttled", "slow", {}, 30_000),
        UnavailableError("unavailable", "gone"),
        "there",
    ]

    def attempt() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert retry.run(attempt, sleep=slept.append) == "there"
    assert slept[0] <= 1
    assert slept[1] == 30
    assert slept[2] <= 4
    with pytest.raises(NotFoundError):
        retry.run(lambda: (_ for _ in ()).throw(NotFoundError("topic_not_found", "no")), sleep=slept.append)
    assert len(slept) == 3


def test_what_is_no_answer_of_ours_is_told_by_its_status() -> None:
    class Broken(grpc.RpcError, grpc.Call):  # type: ignore[misc]  # grpc's own errors are both
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.CANCELLED

        def details(self) -> str:
            return "gone"

        def trailing_metadata(self) -> None:
            return None

        initial_metadata = is_active = time_remaining = cancel = add_callback = trailing_metadata

    from topics_client.errors import from_rpc

    error = from_rpc(Broken(), "topics://h:1")
    assert type(error) is TopicsError
    assert str(error) == "cancelled: topics://h:1: gone"
