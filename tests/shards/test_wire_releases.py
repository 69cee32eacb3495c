"""Calls between processes of two releases, as there are during a rolling upgrade."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import msgspec
import pytest
from msgspec import Struct
from shards.wire_nodes import serving

from topics_service.api.access.auth import ANONYMOUS, UNRESTRICTED, Principal
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import Batch
from topics_shards.shards import LostCallError
from topics_shards.wire.carriers import CALLERS
from topics_shards.wire.methods import RemoteMethod, UnknownArgumentError


class OldItem(Struct, kw_only=True):
    name: str


class NewItem(Struct, kw_only=True):
    name: str
    count: int = 7
    names: list[str] = []
    principal: Principal = ANONYMOUS
    batch: Batch | None = None
    error: TopicsError | None = None


class OldRow(Struct, array_like=True):
    name: str


class NewRow(Struct, array_like=True):
    name: str
    count: int = 7


class OldCarried(Struct, kw_only=True):
    """One that is not MessagePack's own, for its caller."""

    principal: Principal
    row: OldRow


class NewCarried(Struct, kw_only=True):
    principal: Principal
    row: NewRow
    other: Principal = UNRESTRICTED
    others: list[Principal] = []
    batch: Batch | None = None


class Old:
    """A shard of the older release."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def of(self, _: object) -> "Old":
        return self

    def run(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    stream = run

    async def items(self, item: OldItem, *, limit: int) -> OldItem:
        self.seen.append((item, limit))
        return item

    async def rows(self, rows: list[OldRow]) -> list[OldRow]:
        self.seen.append(rows)
        return rows

    async def carried(self, value: OldCarried) -> OldCarried:
        self.seen.append(value)
        return value

    async def stream_of(self, value: OldCarried) -> AsyncGenerator[OldCarried, None]:
        yield value


class New(Old):
    """One of the newer release, with parameters and fields at the end."""

    async def items(  # type: ignore[override]
        self, item: NewItem, *, limit: int, order: str = "up", principal: Principal = UNRESTRICTED, more: Any = None
    ) -> NewItem:
        self.seen.append((item, limit, order, principal, more))
        return item

    async def rows(self, rows: list[NewRow]) -> list[NewRow]:  # type: ignore[override]
        self.seen.append(rows)
        return rows

    async def carried(self, value: NewCarried) -> NewCarried:  # type: ignore[override]
        self.seen.append(value)
        return value

    async def stream_of(self, value: NewCarried) -> AsyncGenerator[NewCarried, None]:  # type: ignore[override]
        yield value

    async def only_new(self) -> int:
        return 1


NAMES: Final = ("items", "rows", "carried", "stream_of")


def methods(of: type[Old], *names: str) -> dict[str, RemoteMethod]:
    """Those of a release, by the names that both have for them."""
    made = {}
    for name in names or NAMES:
        made[name] = RemoteMethod(getattr(of, name), is_read=False)
        made[name].name = f"Api.{name}"
    return made


OLD, NEW = methods(Old), methods(New, *NAMES, "only_new")


def sent(caller: RemoteMethod, called: RemoteMethod, *args: Any, **kwargs: Any) -> Any:
    """The arguments as they arrive."""
    call = called.decode_call(caller.encode_call(None, args, kwargs))
    return (*call.positional, *call.named.values())


def answered(called: RemoteMethod, caller: RemoteMethod, value: Any) -> Any:
    return caller.decode_result(called.encode_result(value))


# ---------------------------------------------------------------------- one call, both ways


def test_a_call_of_an_older_release_has_the_defaults_of_this_one() -> None:
    arrived = sent(OLD["items"], NEW["items"], OldItem(name="a"), limit=3)
    assert arrived == (NewItem(name="a"), 3, "up", UNRESTRICTED, None)
    assert sent(OLD["rows"], NEW["rows"], [OldRow("a")]) == ([NewRow("a")],)
    arrived = sent(OLD["carried"], NEW["carried"], OldCarried(principal=ANONYMOUS, row=OldRow("a")))
    assert arrived == (NewCarried(principal=ANONYMOUS, row=NewRow("a")),)


def test_a_call_of_a_newer_release_without_what_is_new() -> None:
    assert sent(NEW["items"], OLD["items"], NewItem(name="a", count=9), limit=3) == (OldItem(name="a"), 3)
    assert sent(NEW["rows"], OLD["rows"], [NewRow("a", 9)]) == ([OldRow("a")],)
    value = NewCarried(principal=ANONYMOUS, row=NewRow("a", 9), others=[UNRESTRICTED], batch=Batch([b"1"]))
    assert sent(NEW["carried"], OLD["carried"], value) == (OldCarried(principal=ANONYMOUS, row=OldRow("a")),)


@pytest.mark.parametrize("argument", [{"order": "down"}, {"more": 1}, {"principal": UNRESTRICTED}])
def test_an_argument_that_an_older_release_does_not_know_is_refused_by_it(argument: dict[str, Any]) -> None:
    with pytest.raises(UnknownArgumentError, match=r"Api\.items has fewer parameters"):
        sent(NEW["items"], OLD["items"], NewItem(name="a"), limit=3, **argument)


def test_a_method_with_many_parameters() -> None:
    """MessagePack has three forms of an array, by its length."""
    items = OLD["items"]
    for count in (5, 15, 16, 70_000):
        with pytest.raises(UnknownArgumentError):
            items.decode_call(msgspec.msgpack.encode([None, (), OldItem(name="a"), 3, *range(4, count)]))
    for malformed in ({"a": 1}, [None, (), OldItem(name="a"), "3"], 7):
        with pytest.raises(msgspec.ValidationError):
            items.decode_call(msgspec.msgpack.encode(malformed))


def test_answers() -> None:
    assert answered(NEW["items"], OLD["items"], NewItem(name="a", count=9)) == OldItem(name="a")
    assert answered(OLD["items"], NEW["items"], OldItem(name="a")) == NewItem(name="a")
    assert answered(NEW["rows"], OLD["rows"], [NewRow("a", 9)]) == [OldRow("a")]
    assert answered(OLD["rows"], NEW["rows"], [OldRow("a")]) == [NewRow("a")]
    assert answered(NEW["stream_of"], OLD["stream_of"], NewCarried(principal=ANONYMOUS, row=NewRow("a", 9))) == (
        OldCarried(principal=ANONYMOUS, row=OldRow("a"))
    )
    assert answered(OLD["carried"], NEW["carried"], OldCarried(principal=ANONYMOUS, row=OldRow("a"))) == (
        NewCarried(principal=ANONYMOUS, row=NewRow("a"))
    )


def test_a_caller_with_more_to_it() -> None:
    """Principals have their own bytes, which are maps too."""
    packed = CALLERS.pack(UNRESTRICTED)
    fields = msgspec.msgpack.decode(packed)
    assert CALLERS.unpack(msgspec.msgpack.encode({**fields, "later": 1})) == UNRESTRICTED


# ---------------------------------------------------------------------- nodes of two releases


async def test_a_node_of_a_newer_release_calls_an_older_one(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(methods=list(OLD.values())) as served:
        old = served.shards[1] = Old()
        shards = served.shards_by(served.channel(), 0.2, list(NEW.values()))
        assert await shards.call(1, New.items, NewItem(name="a"), limit=3) == NewItem(name="a")
        async with asyncio.timeout(5):
            with pytest.raises(TopicsError) as unknown:
                await shards.call(1, New.only_new)
            with pytest.raises(TopicsError) as longer:
                await shards.call(1, New.items, NewItem(name="a"), limit=3, order="down")
        assert unknown.value.reason is longer.value.reason is Reason.NOT_READY
        assert old.seen == [(OldItem(name="a"), 3)]
        assert await shards.call(1, New.rows, [NewRow("b")]) == [NewRow("b")], "the connection stays"
        assert len(served.server.connections) == 1
    assert "a call from a is of a later release: Api.items has fewer parameters in this release" in caplog.text


async def test_a_node_of_an_older_release_calls_a_newer_one() -> None:
    async with serving(methods=list(NEW.values())) as served:
        new = served.shards[1] = New()
        shards = served.shards_by(served.channel(), 0.2, list(OLD.values()))
        assert await shards.call(1, Old.items, OldItem(name="a"), limit=3) == OldItem(name="a")
        assert new.seen == [(NewItem(name="a"), 3, "up", UNRESTRICTED, None)]
        carried = OldCarried(principal=ANONYMOUS, row=OldRow("a"))
        assert [item async for item in shards.stream(1, Old.stream_of, carried)] == [carried]


async def test_an_answer_that_cannot_be_read_ends_only_its_call(caplog: pytest.LogCaptureFixture) -> None:
    """A release whose answer is another one, against the rule of docs/contributing.md."""

    class Wrong(Old):
        async def rows(self, rows: list[OldRow]) -> int:  # type: ignore[override]
            return len(rows)

    served_methods = [*methods(Old, "items").values(), *methods(Wrong, "rows").values()]
    async with serving(methods=served_methods) as served:
        served.shards[1] = Wrong()
        channel = served.channel()
        shards = served.shards_by(channel, 0.2, list(OLD.values()))
        assert await shards.call(1, Old.items, OldItem(name="a"), limit=3) == OldItem(name="a")
        connection = channel.connection
        with caplog.at_level(logging.ERROR), pytest.raises(LostCallError, match=r"Api\.rows"):
            await shards.call(1, Old.rows, [OldRow("a")])
        assert channel.connection is connection, "other calls go on"
        assert await shards.call(1, Old.items, OldItem(name="a"), limit=3) == OldItem(name="a")
    assert "the answer of Api.rows from b can't be read" in caplog.text
