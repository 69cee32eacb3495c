"""Errors of calls that fail on the way, and no duplicates."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.kafka_proxy import Proxy
from support.sdk import Clients
from support.server import ServerProcess
from support.tls_proxy import certificate, tls_proxy
from support.waiting import poll
from topics_client import (
    AuthError,
    ConflictError,
    ConnectError,
    InvalidRequestError,
    NewRecord,
    NotFoundError,
    Retry,
    Settled,
    TopicConfig,
    TopicsClient,
    TopicsError,
    UnavailableError,
)
from topics_client.errors import code_of, error_of
from topics_client.models import JobState
from topics_proto.v1.errors_pb2 import ErrorReason
from topics_proto.v1.errors_pb2 import rule as rules

_ONCE = Retry(seconds=0)

KINDS = {
    InvalidRequestError: """invalid_request batch_too_large record_too_large method_not_allowed not_acceptable
        payload_too_large unsupported_media_type invalid_json unsupported_message syntax_error unsupported_sql
        invalid_value column_not_found function_not_found division_by_zero transaction_error not_null_violation
        check_violation result_too_large query_too_large cross_shard""",
    AuthError: "unauthorized forbidden",
    NotFoundError: """topic_not_found router_not_found not_found partition_not_found group_not_found table_not_found
        namespace_not_found route_not_found index_not_found user_not_found zone_not_found""",
    ConflictError: """router_cycle topic_exists_incompatible topic_not_empty not_a_queue topic_full group_not_empty
        unique_violation already_exists dependent_objects not_a_log claim_expired schema_changed""",
    UnavailableError: "throttled not_ready shutting_down server_shutting_down query_timeout",
    TopicsError: "internal",
}


def test_every_reason_of_the_registry_has_its_kind() -> None:
    kinds = {code: kind for kind, codes in KINDS.items() for code in codes.split()}
    values = [value for value in ErrorReason.DESCRIPTOR.values if value.number]
    assert {value.GetOptions().Extensions[rules].code for value in values} == set(kinds)
    for value in values:
        code = code_of(value.number)
        error = error_of(code, "text", {"a": "b"}, 5)
        assert (type(error), error.reason, error.message) == (kinds[code], code, "text")
        assert (error.detail, error.retry_after_ms, str(error)) == ({"a": "b"}, 5, f"{code}: text")
    assert code_of(0) == code_of(9999) == "internal"
    assert type(error_of("from_the_future", "text")) is TopicsError


def test_an_absent_server_is_named_and_its_key_is_not(clients: Clients) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{taken.getsockname()[1]}"
        client = clients(f"topics://s3cret@{target}", retry=_ONCE)
        calls: list[Callable[[], Any]] = [
            lambda: client.get_topic("t"),
            lambda: next(iter(client.read("t"))),
            lambda: next(iter(client.watch("t"))),
        ]
        for call in calls:
            with pytest.raises(UnavailableError) as absent:
                call()
            assert (absent.value.reason, absent.value.retry_after_ms) == ("unavailable", None)
            assert str(absent.value).startswith(f"unavailable: topics://{target}: no connection: ")
            assert "s3cret" not in f"{absent.value} {absent.value!r}"
        assert client.ready() is False


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"TOPICS_API_KEYS": "all-of-it,reads:read"}
    with ServerProcess(tmp_path_factory.mktemp("keyed"), env=env) as process:
        yield process


def test_keys(clients: Clients, keyed: ServerProcess, name: str) -> None:
    full = clients(keyed.grpc_target, key="all-of-it")
    full.append(name, 1)
    reader = clients(f"topics://reads@{keyed.grpc_target}")
    assert [record.value for record in reader.read(name)] == [1]
    with pytest.raises(AuthError) as refused:
        reader.append(name, 2)
    assert refused.value.reason == "forbidden"
    for other in (clients(keyed.grpc_target, key="wrong"), clients(keyed.grpc_target)):
        for call in (lambda: other.append(name, 1), lambda: list(other.read(name)), lambda: list(other.watch(name))):  # noqa: B023
            with pytest.raises(AuthError) as refused:
                call()
            assert refused.value.reason == "unauthorized"
            assert "wrong" not in str(refused.value)


def test_tls_and_what_is_none(clients: Clients, shared: ServerProcess, tmp_path: Path, name: str) -> None:
    cert, key = certificate(tmp_path)
    with tls_proxy(shared.grpc_target, cert, key) as port:
        for url in (f"localhost:{port}", f"topics+tls://localhost:{port}", f"topics+tls://{shared.grpc_target}"):
            with clients(url, retry=_ONCE) as other, pytest.raises(ConnectError) as refused:
                other.get_topic(name)
            assert str(refused.value).startswith(f"unavailable: topics{'+tls' if '+' in url else ''}://")
        with clients(f"topics+tls://localhost:{port}?ca={cert}") as client:
            client.append_many(name, [1, 2])
            assert [record.value for record in client.read(name)] == [1, 2]


@pytest.mark.parametrize("call", ["get_topic", "append", "read", "watch", "producer"])
def test_the_http_port_is_told_from_the_grpc_port(
    clients: Clients, shared: ServerProcess, name: str, call: str
) -> None:
    client = clients(f"127.0.0.1:{shared.http_port}")  # a retry would last a minute
    calls: dict[str, Callable[[], Any]] = {
        "get_topic": lambda: client.get_topic(name),
        "append": lambda: client.append(name, 1),
        "read": lambda: list(client.read(name)),
        "watch": lambda: list(client.watch(name)),
        "producer": lambda: _produced(f"127.0.0.1:{shared.http_port}", name),
    }
    with pytest.raises(ConnectError, match="that is an HTTP port: give the server's gRPC port, 4001 by default"):
        calls[call]()


def _produced(target: str, name: str) -> int:
    with TopicsClient(target) as client, client.producer() as producer:
        return producer.append(name, 1).result(10)


def test_nothing_of_grpc_reaches_the_user(shared: ServerProcess) -> None:
    """No name of its classes, no report of its own behind the error, no line of its core on the terminal."""
    program = f"""
    import asyncio, traceback
    from topics_client import AsyncTopicsClient, Retry, TopicsClient, TopicsError

    async def ask(url):
        async with AsyncTopicsClient(url, retry=Retry(seconds=0)) as client:
            await client.get_topic("t")

    for url in ("127.0.0.1:{shared.http_port}", "topics+tls://{shared.grpc_target}", "127.0.0.1:1", "no.such.invalid"):
        for asked in (lambda: asyncio.run(ask(url)), lambda: TopicsClient(url, retry=Retry(seconds=0)).get_topic("t")):
            try:
                asked()
            except TopicsError:
                traceback.print_exc()
    """
    env = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, env=env
    )
    assert ran.stderr.count("topics_client.errors.") == 8, ran.stderr
    for private in ("RpcError", "debug_error_string", "StatusCode", "ssl_transport", "direct cause", "ipv4:"):
        assert private not in ran.stderr
    assert ran.stderr.startswith("Traceback")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:4000", "http://…: .*write topics:// and the gRPC port, 4001 by default"),
        ("https://s3cret@h", r"https://…: .*write topics\+tls:// and the gRPC port"),
        ("grpc://h:4001", "grpc://…: .*write topics://$"),
        ("grpcs://h:4001", r"grpcs://…: .*write topics\+tls://$"),
        ("s3cret://h", "…://…: the scheme of a server's URL is topics or, with TLS, topics\\+tls$"),
    ],
)
def test_a_scheme_of_another_protocol_is_told_what_to_write(clients: Clients, url: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as refused:
        clients(url)
    assert "s3cret" not in str(refused.value)


def test_a_url_that_is_none(clients: Clients) -> None:
    for url in ("http://127.0.0.1:4000", "topics://h:99999", "topics://"):
        with pytest.raises(ValueError, match=r"topics://"):
            clients(url)


# ------------------------------------------------------------ answers that are lost


@pytest.fixture
def proxy(shared: ServerProcess) -> Iterator[Proxy]:
    with Proxy() as made:
        made.target = int(shared.grpc_target.rpartition(":")[2])
        yield made


def _losing(client: TopicsClient, proxy: Proxy, done: Callable[[], bool], call: Callable[[], Any]) -> Any:
    """Make a call whose first answer gets lost with the connection, once it is `done` at the server. What it gave, or
    the error."""
    poll(client.ready)  # a call that is made once fails at once where there is no connection
    with ThreadPoolExecutor(1) as pool:
        proxy.hold()
        future = pool.submit(call)
        poll(done)
        proxy.drop()
        return future.exception(20) or future.result()


def test_a_deadline_names_itself_and_what_to_do(clients: Clients, proxy: Proxy, name: str) -> None:
    client = clients(f"127.0.0.1:{proxy.port}", timeout=0.15, retry=_ONCE)
    proxy.hold()
    for call in (lambda: client.get_topic(name), lambda: client.append(name, 1), lambda: list(client.list_topics())):
        with pytest.raises(UnavailableError) as late:
            call()
        assert late.value.reason == "deadline_exceeded"
        assert late.value.message == (
            f"topics://127.0.0.1:{proxy.port}: no answer within 0.15 s; the client's `timeout` allows more"
        )


def test_a_write_whose_answer_is_lost_is_stored_once(
    clients: Clients, proxy: Proxy, shared: ServerProcess, name: str
) -> None:
    client = clients(f"127.0.0.1:{proxy.port}", retry=Retry(seconds=20))
    with TopicsClient(shared.grpc_target) as other:

        def head(seq: int) -> bool:
            return other.get_topic(name).head_seq == seq

        client.append(name, 0)
        given = _losing(client, proxy, lambda: head(3), lambda: client.append_many(name, [1, 2]))
        assert (given.first_seq, given.last_seq, given.deduped) == (2, 3, True)
        given = _losing(client, proxy, lambda: head(4), lambda: client.append(name, 3, idempotency_key="mine"))
        assert (given.first_seq, given.deduped) == (4, True)
        assert [record.value for record in client.read(name)] == [0, 1, 2, 3]


@pytest.mark.parametrize("window_ms", [0, 1])
def test_a_write_whose_key_may_be_forgotten_is_not_made_again(
    clients: Clients, proxy: Proxy, shared: ServerProcess, name: str, window_ms: int
) -> None:
    client = clients(f"127.0.0.1:{proxy.port}", retry=Retry(seconds=20))
    config = TopicConfig(idempotency_window_ms=window_ms)
    with TopicsClient(shared.grpc_target) as other:

        def stored() -> list[str]:
            return [topic.topic for topic in other.list_topics(name) if topic.count]

        lost = _losing(client, proxy, lambda: stored() == [name], lambda: client.append(name, 1, config=config))
        assert isinstance(lost, TopicsError)
        assert not isinstance(lost, UnavailableError)  # which would invite to write it again, under another key
        assert lost.reason == "outcome_unknown"
        assert "look whether it is there" in lost.message
        assert [record.value for record in other.read(name)] == [1]


def test_a_write_that_never_went_out_is_made_again_whatever_the_topic_remembers(
    clients: Clients, restarted: Callable[[], ServerProcess]
) -> None:
    server = restarted()
    client = clients(server.grpc_target, retry=Retry(seconds=20))
    client.put_topic("t", TopicConfig(idempotency_window_ms=0))
    server.kill()
    assert client.ready() is False  # by now it knows that there is no connection
    with ThreadPoolExecutor(1) as pool:
        given = pool.submit(client.append, "t", 1)
        restarted()
        assert given.result(20).first_seq == 1
    assert [record.value for record in client.read("t")] == [1]


def test_what_must_not_be_done_twice_is_not(clients: Clients, proxy: Proxy, shared: ServerProcess, name: str) -> None:
    client = clients(f"127.0.0.1:{proxy.port}", retry=Retry(seconds=20))
    config = TopicConfig(type="queue", max_deliveries=1, dead_letter=f"{name}.dead")
    records = [NewRecord(n, tag=tag) for n, tag in enumerate("xyzzz", 1)]
    client.append_many(name, records, config=config)
    with TopicsClient(shared.grpc_target) as other:

        def jobs(state: JobState) -> list[int]:
            return [view.record.seq for view in other.list_jobs(name, state)]

        lost = _losing(client, proxy, lambda: jobs("in_flight") == [1], lambda: client.claim(name, "w"))
        assert isinstance(lost, UnavailableError)
        lost = _losing(client, proxy, lambda: jobs("in_flight") == [], lambda: client.delete_records(name, tag="x"))
        assert isinstance(lost, UnavailableError)
        done = _losing(
            client, proxy, lambda: jobs("ready") == [3, 4, 5], lambda: client.delete_records(name, before_seq=3)
        )
        assert done.count == 3
        poll(client.ready)
        (job,) = client.claim(name, "w")
        settled = _losing(client, proxy, lambda: jobs("in_flight") == [], lambda: client.ack(name, "w", [job]))
        assert settled in (Settled(1, ()), Settled(0, (3,)))
        poll(client.ready)
        client.nack(name, "w", client.claim(name, "w", max=2))
        assert client.claim(name, "w") == []
        assert other.get_topic(f"{name}.dead").count == 2
        lost = _losing(client, proxy, lambda: len(jobs("ready")) == 1, lambda: client.redrive(name, max=1))
        assert isinstance(lost, UnavailableError)
        assert other.get_topic(f"{name}.dead").count == 1


@pytest.mark.parametrize("what", ["read", "watch"])
def test_a_stream_whose_frames_are_lost_goes_on(
    clients: Clients, proxy: Proxy, shared: ServerProcess, name: str, what: str
) -> None:
    client = clients(f"127.0.0.1:{proxy.port}", retry=Retry(seconds=20))
    client.append(name, 1)
    found: list[int] = []
    stream = client.read(name, follow=True) if what == "read" else client.watch(name)
    thread = threading.Thread(target=lambda: found.extend(record.seq for record in stream))
    thread.start()
    poll(lambda: len(found) == 1)
    with TopicsClient(shared.grpc_target) as other:
        proxy.hold()
        other.append_many(name, range(50))
        assert proxy.withheld.wait(10)
        proxy.drop()
    poll(lambda: len(found) >= 51, 20)
    stream.close()
    thread.join(5)
    assert found == list(range(1, 52))
