"""Commands from JSON text; a publish is a write body with an envelope, at the same cost."""

import json
from typing import Any

import pytest

from topics_gateway import append_decoder, duplicate_keys
from topics_gateway.socket_commands import MalformedError, Ping, Subscribe, Unsubscribe, Write, read_command
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import TagMatch
from topics_service.engine.watch.frames import WatchTopic

RECORDS: list[dict[str, Any]] = [{"data": {"a": 1}, "tag": "é"}, {"data": None}]


def compact(**members: Any) -> bytes:
    return json.dumps({"op": "publish", **members}, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"request_id": "r1"},
        {"request_id": None},
        {"request_id": {"a": [1, 2], "b": "é"}},
        {"return_seqs": True},
        {"return_seqs": False},
        {"node": "n", "create": True, "idempotency_key": "k" * 50, "disable_backpressure": False},
        {"delay_ms": 5, "priority": 3, "config": {"ttl_ms": 5}},
        {"partition": 12345678},
    ],
)
@pytest.mark.parametrize("topic", ["t", "tenant:é", "x" * 300])
def test_a_compact_publish_is_not_parsed_again(more: Any, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_decoder, "refuse_duplicates", lambda *_: pytest.fail("it was looked at twice"))
    command = read_command(compact(topic=topic, records=RECORDS, **more))
    assert isinstance(command, Write)
    request = command.read(Limits())
    assert request.topic == topic
    assert list(map(bytes, request.batch.datas)) == [b'{"a":1}', b"null"]
    assert request.batch.tags == ["é".encode(), None]
    assert (request.delay_ms, request.priority) == (more.get("delay_ms", 0), more.get("priority", 0))
    assert request.partition == more.get("partition", 0)
    assert command.request_id == json.dumps(more.get("request_id"), separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize("member", ["op", "topic", "request_id", "return_seqs", "records", "node"])
def test_no_member_comes_twice(member: str) -> None:
    values = {
        "op": '"publish"',
        "topic": '"t"',
        "request_id": "1",
        "return_seqs": "true",
        "records": "[]",
        "node": '"n"',
    }
    text = ",".join(f'"{name}":{value}' for name, value in values.items())
    command = read_command(f"{{{text}}}".encode())
    assert isinstance(command, Write)
    command.read(Limits())
    command = read_command(f'{{{text},"{member}":{values[member]}}}'.encode())
    assert isinstance(command, Write)
    with pytest.raises(TopicsError, match="duplicate member"):
        command.read(Limits())
    assert duplicate_keys  # the module that finds them


def test_request_ids_are_kept_as_text() -> None:
    for text in (b'"\\u00e9"', b"1e5", b"[ 1,\n2]", b"{}", '"é"'.encode()):
        for op in (b"ping", b"subscribe", b"unsubscribe"):
            assert read_command(b'{"request_id" : %b , "op":"%b"}' % (text, op)).request_id == text


def test_subscriptions() -> None:
    command = read_command(b'{"op":"subscribe"}')
    assert isinstance(command, Subscribe)
    request = command.request
    assert (request.topics, request.limit, request.max_batch_bytes, request.heartbeat_ms) == ({}, 1000, 0, None)
    assert (request.include_tags, request.include_metas, request.include_data) == (False, True, True)
    assert not request.strong
    assert not request.lenient
    command = read_command(
        b'{"op":"subscribe","topic":"a","from_seq":5,"topics":{"b":{"tail":true},"p*":{}},"limit":7,"node":["x"],'
        b'"filter":"t","consistency":"strong","lenient":true,"include_tags":true,"include_meta":false,'
        b'"include_data":false,"max_batch_bytes":9}'
    )
    assert isinstance(command, Subscribe)
    request = command.request
    assert request.topics == {"b": WatchTopic(tail=True), "p*": WatchTopic(), "a": WatchTopic(from_seq=5)}
    assert (request.limit, request.max_batch_bytes, request.nodes) == (7, 9, (b"x",))
    assert request.filter == TagMatch("Eq", b"t")
    assert request.strong
    assert request.lenient
    assert (request.include_tags, request.include_metas, request.include_data) == (True, False, False)


def test_others() -> None:
    assert isinstance(read_command(b'{"op":"ping"}'), Ping)
    command = read_command(b'{"op":"unsubscribe","topic":"a","topics":["b","a"]}')
    assert isinstance(command, Unsubscribe)
    assert command.topics == ["a", "b", "a"]
    with pytest.raises(MalformedError, match="the command"):
        read_command(b"\xff")
