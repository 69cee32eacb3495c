"""Values of users' own types in and out of topics, by every protocol of the SDK."""

import pickle
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass

from support.sdk import Clients
from support.server import ServerProcess
from topics_client import (
    AsyncTopicsClient,
    Codec,
    DecodeError,
    Gap,
    Job,
    JsonCodec,
    NewRecord,
    RawJson,
    Record,
    TopicConfig,
    TopicsClient,
)
from topics_client.encoding import encode
from topics_client.errors import InvalidRequestError
from topics_client.installation import install_line


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Level(IntEnum):
    LOW = 1


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: int
    key: UUID
    at: datetime
    day: date
    hour: time
    size: Size
    level: Level
    raw: bytes
    lines: list[Line] = field(default_factory=list)
    note: str | None = None


class Struct(msgspec.Struct, rename="camel", tag="struct"):
    line_count: int
    line: Line


@attrs.define
class Attrs:
    name: str
    price: Decimal


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    at: datetime
    price: Decimal


@pydantic_dataclass
class Checked:
    n: pydantic.PositiveInt


@dataclass
class Holder:
    model: Model


_AT = datetime(2026, 11, 29, 10, 0, 0, 5, tzinfo=UTC)
_MODEL = Model(fullName="Ö", at=_AT, price=Decimal("0.10"))
VALUES: list[tuple[Any, Any, bytes]] = [
    (
        Order,
        Order(
            1,
            UUID(int=7),
            _AT,
            date(2026, 1, 2),
            time(3, 4),
            Size.LARGE,
            Level.LOW,
            b"\xff",
            [Line("a", Decimal("9.50"))],
        ),
        (
            b'{"id":1,"key":"00000000-0000-0000-0000-000000000007","at":"2026-11-29T10:00:00.000005+00:00",'
            b'"day":"2026-01-02","hour":"03:04:00","size":"l","level":1,"raw":"/w==",'
            b'"lines":[{"sku":"a","price":"9.50"}],"note":null}'
        ),
    ),
    (Struct, Struct(2, Line("b", Decimal(1))), b'{"type":"struct","lineCount":2,"line":{"sku":"b","price":"1"}}'),
    (Attrs, Attrs("c", Decimal("1.0")), b'{"name":"c","price":"1.0"}'),
    (Model, _MODEL, '{"fullName":"Ö","at":"2026-11-29T10:00:00.000005Z","price":"0.10"}'.encode()),
    (Checked, Checked(3), b'{"n":3}'),
    (Holder, Holder(_MODEL), '{"model":{"fullName":"Ö","at":"2026-11-29T10:00:00.000005Z","price":"0.10"}}'.encode()),
    (list[Attrs], [Attrs("d", Decimal(2))], b'[{"name":"d","price":"2"}]'),
    (dict[str, Model], {}, b"{}"),
    (datetime, _AT, b'"2026-11-29T10:00:00.000005+00:00"'),
    (Decimal, Decimal("3.10"), b'"3.10"'),
    (UUID, UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
    (Size, Size.SMALL, b'"s"'),
    (int, 5, b"5"),
    (bytes, b"\x00\x01", b"\x00\x01"),
]


def test_values_of_every_kind_go_in_and_come_out(clients: Clients, shared: ServerProcess, name: str) -> None:
    """What is stored is JSON that others read, or the bytes themselves."""
    client = clients(shared.grpc_target)
    client.append_many(name, [value for _, value, _ in VALUES])
    for seq, (of, value, stored) in enumerate(VALUES, 1):
        (record,) = client.read(name, seq - 1, end_seq=seq, of=of)
        assert (record.seq, record.data, record.binary) == (seq, stored, of is bytes)
        assert record.value == value
        assert type(record.value) is type(value)
        assert record.value is record.value, "it is decoded once"
        (plain,) = client.read(name, seq - 1, end_seq=seq)
        assert plain == record
        assert plain.decode(of) == value
        assert plain.decode(JsonCodec(of)) == value


def test_what_has_no_json_form_is_still_refused() -> None:
    for value in ({1, 2}, Line("a", {1}), Struct(1, Line("a", object())), float("nan"), Line("a", float("nan"))):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="the value has no JSON form"):
            encode(value)


def test_a_producer_a_watch_and_a_worker_take_types(clients: Clients, shared: ServerProcess, name: str) -> None:
    with TopicsClient(shared.grpc_target) as client, client.producer(of=Line) as producer:
        producer.append(name, Line("a", Decimal(1)))
        producer.append(name, RawJson(b'{"sku":"b","price":2}'))
    client = clients(shared.grpc_target)
    with client.watch(name, of=Line) as watch:
        assert [next(iter(watch)).value, next(iter(watch)).value] == [Line("a", Decimal(1)), Line("b", Decimal(2))]
    with TopicsClient(shared.grpc_target) as other:
        other.put_topic(f"{name}.q", TopicConfig(type="queue"))
        other.append_many(f"{name}.q", [Line("x", Decimal(1)), {"sku": 5}, Line("y", Decimal(2))])
        done, failed = list[Line](), list[BaseException]()

        def handle(job: Job[Line]) -> None:
            done.append(job.value)

        options: Any = {"until_empty": True, "install_signals": False, "concurrency": 1}
        worker = other.worker(f"{name}.q", handle, of=Line, on_error=lambda _, error: failed.append(error), **options)
        worker.run()
        assert done == [Line("x", Decimal(1)), Line("y", Decimal(2))]
        (error,) = failed
        assert isinstance(error, DecodeError)
        assert isinstance(error.record, Job)
        assert str(error) == f"undecodable: {name}.q, seq 2: Expected `str`, got `int` - at `$.sku`"
        assert (worker.statistics().acked, worker.statistics().retried) == (2, 1)


async def test_an_async_handler_gets_values_too(shared: ServerProcess, name: str) -> None:
    done = list[Line]()

    async def handle(job: Job[Line]) -> None:
        done.append(job.value)

    async with AsyncTopicsClient(shared.grpc_target) as client:
        await client.put_topic(name, TopicConfig(type="queue"))
        await client.append(name, Line("x", Decimal(1)))
        await client.worker(name, handle, of=Line, until_empty=True, install_signals=False).run()
        assert done == [Line("x", Decimal(1))]
        await client.append(name, Line("y", Decimal(2)))
        (job,) = await client.claim(name, "me")
        assert job.decode(Line) == Line("y", Decimal(2))


# ---------------------------------------------------------------- what can't be decoded


@pytest.fixture
def mixed(shared: ServerProcess, name: str) -> str:
    with TopicsClient(shared.grpc_target) as client:
        client.append_many(name, [Line("a", Decimal(1)), {"sku": "b"}, b"raw", Line("d", Decimal(4))])
    return name


_WRONG = [
    "Object missing required field `price`",
    "it is 3 bytes, no JSON",
]


@pytest.mark.parametrize("what", ["read", "watch"])
@pytest.mark.parametrize("batches", [False, True])
def test_what_can_not_be_decoded_raises_where_it_is(
    clients: Clients, shared: ServerProcess, mixed: str, what: str, batches: bool
) -> None:
    """Iterating again continues after it: nothing is lost or repeated."""
    client = clients(shared.grpc_target)
    stream: Any = client.read(mixed, of=Line) if what == "read" else client.watch(mixed, of=Line)
    seqs, errors = list[int](), list[DecodeError]()
    while sum((len(seqs), len(errors))) < 4:
        try:
            for group in stream.batches() if batches else stream:
                seqs += [record.seq for record in (group if batches else [group])]
                if len(seqs) == 2:
                    break
        except DecodeError as error:
            errors.append(error)
    assert seqs == [1, 4]
    assert [error.why for error in errors] == _WRONG
    assert str(errors[0]) == f"undecodable: {mixed}, seq 2: {_WRONG[0]}"
    assert errors[0].detail == {"topic": mixed, "seq": "2"}
    assert (errors[1].record.seq, errors[1].record.data) == (3, b"raw")
    twin = pickle.loads(pickle.dumps(errors[1]))
    assert (str(twin), twin.record) == (str(errors[1]), errors[1].record)


def test_a_group_in_front_of_an_error_leaves_the_cursor_there(shared: ServerProcess, mixed: str) -> None:
    with TopicsClient(shared.grpc_target) as client:
        stream = client.read(mixed, of=Line)
        assert [record.seq for record in next(iter(stream.batches()))] == [1]
        assert stream.position == 1
        with pytest.raises(DecodeError):
            next(stream)
        assert stream.position == 2


@pytest.mark.parametrize("batches", [False, True])
def test_what_can_not_be_decoded_can_be_left_out_and_told(
    clients: Clients, shared: ServerProcess, mixed: str, batches: bool
) -> None:
    told = list[DecodeError]()
    stream = clients(shared.grpc_target).read(mixed, of=Line, undecodable=told.append)
    got = [each for group in stream.batches() for each in group] if batches else list(stream)
    assert [record.value.sku for record in got] == ["a", "d"]
    assert [(error.record.seq, error.why) for error in told] == [(2, _WRONG[0]), (3, _WRONG[1])]
    assert stream.position == 4


def test_what_can_not_be_decoded_can_come_as_it_is(clients: Clients, shared: ServerProcess, mixed: str) -> None:
    records = list(clients(shared.grpc_target).read(mixed, of=Line, undecodable="yield"))
    assert [record.seq for record in records] == [1, 2, 3, 4]
    assert (records[2].data, records[2].binary) == (b"raw", True)
    for record, wrong in zip(records[1:3], _WRONG, strict=True):
        with pytest.raises(DecodeError, match=wrong):
            _ = record.value


def test_pydantic_tells_what_is_wrong_without_the_value(shared: ServerProcess, name: str) -> None:
    with TopicsClient(shared.grpc_target) as client:
        client.append(name, {"fullName": "s3cret", "at": "s3cret", "price": 1})
        with pytest.raises(DecodeError) as wrong:
            next(client.read(name, of=Model))
    assert "at `at`" in str(wrong.value)
    assert "datetime" in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert "s3cret" not in str(wrong.value)


def test_gaps_come_as_before(clients: Clients, shared: ServerProcess, name: str) -> None:
    client = clients(shared.grpc_target)
    client.put_topic(name, TopicConfig(cap_records=1))
    client.append_many(name, [Line("a", Decimal(1)), Line("b", Decimal(2))])
    gap, record = client.read(name, of=Line, gaps="yield")
    assert isinstance(gap, Gap)
    assert isinstance(record, Record)
    assert record.value == Line("b", Decimal(2))
    assert pickle.loads(pickle.dumps(record)).value == record.value


# --------------------------------------------------------------------------- other codecs


class Shout:
    """Texts as capitals in bytes."""

    def encode(self, value: str) -> tuple[bytes, bool]:
        return value.upper().encode("ascii"), True

    def decode(self, data: bytes, binary: bool) -> str:
        if not binary:
            raise ValueError("it is no shout")
        return data.decode("ascii")


def test_a_codec_of_ones_own(clients: Clients, shared: ServerProcess, name: str) -> None:
    codec: Codec[str] = Shout()
    client = clients(shared.grpc_target, codec=codec)
    client.append(name, "hey")
    client.append_many(name, [NewRecord("ho", tag="t"), RawJson(b"1")])
    with TopicsClient(shared.grpc_target) as plain, plain.producer(codec=codec) as producer:
        producer.append(name, "let")
        with pytest.raises(InvalidRequestError, match=r"the value can't be encoded: .*ascii"):
            producer.append(name, "ö")
    first, second, third, fourth = client.read(name, undecodable="yield")
    assert [first.value, second.value, second.tag, fourth.value] == ["HEY", "HO", "t", "LET"]
    assert first.binary
    with pytest.raises(DecodeError, match="it is no shout"):
        _ = third.value
    assert [record.value for record in client.read(name, 2, end_seq=3, of=int)] == [1], "what a call says wins"
    with pytest.raises(TypeError, match="one of them"):
        client.read(name, of=int, codec=codec)  # type: ignore[call-overload]


def test_without_msgspec_the_hint_names_it_and_models_still_work() -> None:
    program = """
    import sys
    sys.modules["msgspec"] = None
    from dataclasses import dataclass
    import pydantic
    from topics_client import JsonCodec

    @dataclass
    class Order:
        n: int

    class Model(pydantic.BaseModel):
        n: int

    print(JsonCodec(Model).decode(b'{"n": 1}', False))
    from topics_client.encoding import encode
    print(encode(Order(1)))
    try:
        JsonCodec(Order)
    except ModuleNotFoundError as error:
        print(error)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        "n=1",
        "(b'{\"n\":1}', False)",
        "reading records as Order takes msgspec, which is not installed: " + install_line("codecs"),
    ]
