"""Calls and results as bytes, and back."""

import inspect
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Raw
from shards.samples import Samples, seen

from topics_service.api.access.auth import UNRESTRICTED, Principal, Role, Scope
from topics_service.api.sql.executor import SqlApi
from topics_service.api.sql.requests import ResultColumn, SqlReply, SqlRequest, SqlResult
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendReply, AppendRequest, Batch
from topics_service.engine.tables.outcomes import TopicGap
from topics_service.engine.tables.types import Kind, Type, Value
from topics_shards.calls import CALLS, READS
from topics_shards.wire.carriers import UncarriableError, carrier_of
from topics_shards.wire.methods import RemoteMethod
from topics_shards.wire.origin import OriginForm

KEY = Principal("key1", frozenset({Scope.READ, Scope.WRITE}), ("a", "b"), Role.DBA, "c", 12.5)


@pytest.mark.parametrize("method", CALLS, ids=lambda method: method.__qualname__)
def test_every_method_can_be_carried(method: Callable[..., object]) -> None:
    RemoteMethod(method, is_read=method in READS)


def test_reads_are_calls() -> None:
    assert set(CALLS) >= READS
    assert len(set(CALLS)) == len(CALLS)


def test_an_append() -> None:
    append = RemoteMethod(TopicsApi.append, is_read=False)
    datas: list[Any] = [Raw(b'{"a": 1}'), b"2", memoryview(b"33")]
    batch = Batch(datas, tags=[b"t", None, b""], kinds=b"\0\1\0")
    body = append.encode_call(
        OriginForm("http", "id", "1.2.3.4:5"),
        (AppendRequest(topic="t", batch=batch, partition=3, delay_ms=7),),
        {"principal": KEY},
    )
    origin, (request,), named = append.decode_call(body)
    assert origin == OriginForm("http", "id", "1.2.3.4:5")
    assert named == {"principal": KEY}
    assert named["principal"].expires == 12.5
    assert (request.topic, request.partition, request.delay_ms) == ("t", 3, 7)
    assert request.batch == Batch([b'{"a": 1}', b"2", b"33"], tags=[b"t", None, b""], kinds=b"\0\1\0", sizes=[8, 1, 2])
    reply = AppendReply(topic="t", first_seq=1, count=3, head_seq=3, created=False, deduped=False, fsync_ms=0.5)
    assert append.decode_result(append.encode_result(reply)) == reply


def test_the_caller_without_credentials_is_the_same_object() -> None:
    append = RemoteMethod(TopicsApi.append, is_read=False)
    request = AppendRequest(topic="t", batch=Batch([b"1"]))
    body = append.encode_call(None, (request,), {"principal": UNRESTRICTED})
    assert append.decode_call(body).named["principal"] is UNRESTRICTED
    assert append.decode_call(body).origin is None


def test_a_number_that_message_pack_has_not_is_refused() -> None:
    execute = RemoteMethod(SqlApi.execute, is_read=False)
    with pytest.raises(TopicsError) as caught:
        execute.encode_call(None, (SqlRequest(sql="SELECT", params=[1 << 64]),), {"principal": KEY})
    assert caught.value.reason is Reason.INVALID_VALUE


def test_sql_values() -> None:
    execute = RemoteMethod(SqlApi.execute, is_read=False)
    params = [1, 2.5, "text", b"bytes", None, True, Decimal("1.50"), {"a": [Decimal(2)]}]
    body = execute.encode_call(None, (SqlRequest(sql="SELECT", params=params),), {"principal": KEY})
    assert execute.decode_call(body).positional[0] == SqlRequest(sql="SELECT", params=params)
    rows: list[list[Value]] = [[1, "a", b"a", Decimal("0.10"), None], [2, "b", b"b", Decimal(3), True]]
    columns = (ResultColumn("c", Type(Kind.DECIMAL, 0, 4, 2)), ResultColumn("d", None))
    result = SqlResult(columns=columns, rows=rows, gaps=[TopicGap("t", 0, 1, 2, "cap")])
    failure = TopicsError(Reason.SYNTAX_ERROR, "text", {"line": 3})
    found = execute.decode_result(execute.encode_result(SqlReply(results=[result], error=failure, took_ms=2.5)))
    assert found.results == [result]
    assert found.error.reason is Reason.SYNTAX_ERROR
    assert (found.error.message, found.error.detail, found.error.retry_after_ms) == ("text", {"line": 3}, None)
    assert execute.decode_result(execute.encode_result(SqlReply(results=[]))) == SqlReply(results=[])


class _Bad:
    async def callback(self, wake: Callable[[], None]) -> None: ...

    async def untyped(self, value) -> None: ...  # type: ignore[no-untyped-def]

    async def lists(self, values: list[object]) -> None: ...

    async def result(self) -> AsyncIterator[int]: ...  # type: ignore[empty-body]

    def plain(self) -> int: ...  # type: ignore[empty-body]

    async def engine(self) -> TopicsApi: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("name", [name for name in vars(_Bad) if not name.startswith("_")])
def test_what_cannot_be_carried_is_named(name: str) -> None:
    with pytest.raises(UncarriableError, match=name):
        RemoteMethod(getattr(_Bad, name), is_read=False)


def test_missing_and_unknown_arguments() -> None:
    append = RemoteMethod(TopicsApi.append, is_read=False)
    with pytest.raises(TypeError, match="needs principal"):
        append.encode_call(None, (AppendRequest(topic="t", batch=Batch([])),), {})
    arguments: dict[str, Any] = {"principal": KEY, "other": 1}
    with pytest.raises(TypeError, match="other"):
        append.encode_call(None, (AppendRequest(topic="t", batch=Batch([])),), arguments)


def test_a_union_of_structs_keeps_the_kind() -> None:
    carrier = carrier_of(SqlResult | ResultColumn | None, "here")
    assert not carrier.is_plain


@pytest.mark.parametrize("method", CALLS, ids=lambda method: method.__qualname__)
def test_calls_and_results_come_as_they_went(method: Callable[..., object]) -> None:
    remote = RemoteMethod(method, is_read=False)
    hints = get_type_hints(method, include_extras=True)
    result = hints.pop("return")
    if remote.is_stream:
        result = get_args(result)[0]
    for seed in range(20):
        samples = Samples(seed)
        named = {name: samples.of(hint) for name, hint in hints.items()}
        call = remote.decode_call(remote.encode_call(None, (), named))
        names = [*inspect.signature(method).parameters][1:]
        arrived = dict(zip(names, call.positional, strict=False)) | call.named
        assert seen(arrived) == seen(named)
        value = samples.of(result)
        assert seen(remote.decode_result(remote.encode_result(value))) == seen(value)
