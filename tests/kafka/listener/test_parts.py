"""Unit tests of small parts of the listener."""

import asyncio
import logging
from uuid import UUID

import pytest

from topics_kafka.handlers import zone_of
from topics_kafka.handlers.errors import admin_error_of, error_of, group_error_of
from topics_kafka.protocol import ApiKey, ErrorCode
from topics_kafka.protocol.schema import SCHEMA, Field
from topics_kafka.registry import APIS, error_codes
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_service.api.catalog import CatalogView, uuid_of
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ConfigInput
from topics_service.storage.memory import MemoryStore


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        (None, None),
        ("", None),
        ("rdkafka", None),
        ("zone_id", None),
        ("zone_id=", None),
        ("zone_id=use1-az4", "use1-az4"),
        ("zone_id=use1-az4,app=x", "use1-az4"),
        ("app=x, zone_id = use1-az4 ", "use1-az4"),
        ("my_zone_id=a", None),
        ("zone_id=a=b", "a=b"),
    ],
)
def test_the_zone_in_a_client_id(client_id: str | None, zone: str | None) -> None:
    assert zone_of(client_id) == zone


def test_errors_of_the_service() -> None:
    def codes(reason: Reason, detail: dict[str, str] | None = None) -> tuple[ErrorCode, ErrorCode, ErrorCode]:
        error = TopicsError(reason, "", detail)
        return error_of(error), group_error_of(error), admin_error_of(error)

    retried = {ErrorCode(code) for code in (5, 6, 14, 15, 16, 19, 41, 56, 89)}  # retried by every client
    for reason in Reason:
        if reason.value.retryable:
            assert set(codes(reason)) <= retried, reason
    assert codes(Reason.FORBIDDEN) == (29, 30, 29)
    assert codes(Reason.TOPIC_FULL) == (19, 19, 44)
    assert codes(Reason.THROTTLED, {"limit": "max_topics"})[2] == ErrorCode.POLICY_VIOLATION
    assert codes(Reason.NOT_A_QUEUE)[0] == ErrorCode.UNKNOWN_SERVER_ERROR


def test_error_codes_are_looked_for_where_responses_have_them() -> None:
    def has_path(fields: tuple[Field, ...], path: tuple[str, ...]) -> bool:
        found = [field for field in fields if field.name == path[0] and field.array]
        if len(path) > 1:
            return any(has_path(field.fields, path[1:]) for field in found)
        return any(inner.name == "error_code" for field in found for inner in field.fields)

    for key, api in APIS.items():
        fields = SCHEMA.apis[key].response_fields
        assert all(has_path(fields, path) for path in api.errors), api.name
        assert api.errors or any(field.name == "error_code" for field in fields), api.name


def test_error_codes_of_a_response() -> None:
    partitions = [{"error_code": 0}, {"error_code": 3}, {"error_code": 3}]
    response = {"error_code": 7, "responses": [{"partitions": partitions}, {"partitions": []}, {}]}
    assert list(error_codes(ApiKey.FETCH, response)) == [7, 3, 3]
    assert list(error_codes(ApiKey.METADATA, {"topics": None})) == []


def test_a_topic_id_is_its_ulid() -> None:
    assert uuid_of("top_00000000000000000000000001") == UUID(int=1)
    assert uuid_of("top_7zzzzzzzzzzzzzzzzzzzzzzzzz") == UUID(int=(1 << 128) - 1)


def test_topics_by_id() -> None:
    engine = Engine(MemoryStore(), SystemClock())

    def make(name: str) -> UUID:
        reply, _ = engine.put_topic(name, ConfigInput())
        return uuid_of(reply.identity.topic_id)

    before = make("before")
    engine.sync()
    catalog = CatalogView(engine)
    after = make("after")
    assert catalog.find(None, after) is None, "readers do not know of it yet"
    engine.sync()
    for uuid, name in ((before, "before"), (after, "after")):
        topic = catalog.find(None, uuid)
        assert topic is not None
        assert topic.name == name
    engine.delete_topic("before")
    again = make("before")
    engine.sync()
    assert catalog.find(None, before) is None
    assert catalog.find(None, again) is engine.catalog.find("before")
    for _ in range(2000):
        make("x")
        engine.sync()
        engine.delete_topic("x")
    assert len(engine.catalog.by_id) == len(engine.catalog.topics) == 2, "topics that are gone are forgotten"


async def test_a_flood_of_log_lines_is_one_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    limited = RateLimitedLogger(logging.getLogger("topics.test"), seconds=0.3)

    async def told(count: int) -> list[str]:
        async with asyncio.timeout(10):
            while len(caplog.records) < count:
                await asyncio.sleep(0.005)
        return [record.getMessage() for record in caplog.records]

    for number in range(25):
        limited.warning("line %d", number)
    limited.error("another %s", "kind")
    assert await told(3) == ["line 0", "another kind", "24 more like this within 0.3 s: line 24"]
    limited.warning("line %d", 25)
    assert (await told(4))[3] == "1 more like this within 0.3 s: line 25"
    async with asyncio.timeout(10):
        while limited._kinds:
            await asyncio.sleep(0.005)
    limited.warning("line %d", 26)
    assert (await told(5))[4:] == ["line 26"]
    for number in range(1000):
        limited.warning(f"{number} of its own %s", "x" * 10_000)
    assert len(limited._kinds) == 64
