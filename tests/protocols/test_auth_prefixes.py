"""Keys on a real server, over HTTP and gRPC: which topics a key reaches, and the answers about others."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from protocols.conftest import Grpc, columns, refusal

from support.http import Api, fresh, ok, path, refused
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc, topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb


def test_path_names(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    mine = http("t42").make("t42:a")
    ok(http("t42").send("GET", "/v0/topics/" + mine.replace(":", "%3A")))
    ok(http("t42").send("GET", "/v0/topics/%7442:" + mine.removeprefix("t42:")))
    rpc("t42").call("GetTopic", pb.GetTopicRequest(topic=mine))
    http("full").make("t42-a")
    for name in ("t42", "t42-a", "t4", "T42:a", "x-t42:", "t43:a", " t42:", ""):
        assert "detail" not in refused(http("t42").get(name), 403, "forbidden") if name else True
        for call, message in (
            ("GetTopic", pb.GetTopicRequest(topic=name)),
            ("PutTopic", pb.PutTopicRequest(topic=name)),
            ("DeleteTopic", pb.DeleteTopicRequest(topic=name)),
            ("Append", pb.AppendRequest(topic=name, records=columns(b"1"))),
            ("Diff", pb.DiffRequest(topic=name)),
            ("DeleteRecords", pb.DeleteRecordsRequest(topic=name, before_seq=1)),
        ):
            assert rpc("t42").refused(call, message)[:3] == ("PERMISSION_DENIED", "FORBIDDEN", {})
    for method, target in (("PUT", ""), ("DELETE", ""), ("POST", ""), ("POST", "/diff"), ("POST", "/delete"),
                           ("GET", "/xyz"), ("PATCH", "")):  # fmt: skip
        refused(http("t42").send(method, path("t43:a", target)), 403, "forbidden")
    for prefix in ("t42:", "shared."):
        ok(http("multi").write(fresh(prefix), [{"data": 1}]), 201)
    refused(http("multi").write(fresh("shared"), [{"data": 1}]), 403, "forbidden")


def test_a_config_on_a_write_that_creates_takes_admin(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    config = topic_pb2.TopicConfig(ttl_ms=5000)
    for create in (None, True, False):
        name, given = fresh(), {} if create is None else {"create": create}
        for body in ({"ttl_ms": 5000}, {}):
            error = refused(http("write").write(name, [{"data": 1}], config=body, **given), 403, "forbidden")
            assert error["detail"] == {"topic": name}
        asked = pb.AppendRequest(topic=name, records=columns(b"1"), config=config, **given)
        assert rpc("write").refused("Append", asked)[:3] == ("PERMISSION_DENIED", "FORBIDDEN", {"topic": name})
        refused(http("full").get(name), 404, "topic_not_found")
    # the config comes before the records are judged, but not before the JSON is
    refused(http("write").write(fresh(), [], config={}), 403, "forbidden")
    refused(http("write").write(fresh(), [], config=5), 400, "invalid_request")
    name = fresh()
    ok(http("write").write(name, [{"data": 1}], config=None), 201)
    ok(http("write").write(name, [{"data": 1}], config={"ttl_ms": 5000}), 200)
    rpc("write").call("Append", pb.AppendRequest(topic=name, records=columns(b"1"), config=config))
    assert http("full").state(name)["config"]["ttl_ms"] == 0
    ok(http("wa").write(fresh("t42:c"), [{"data": 1}], config={"ttl_ms": 5000}), 201)


def test_dead_letters_stay_inside_the_prefixes(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    queue = {"type": "queue", "dead_letter": "t43:dlq"}
    asked = topic_pb2.TopicConfig(type=topic_pb2.TOPIC_TYPE_QUEUE, dead_letter="t43:dlq")
    name, detail = fresh("t42:q"), {"topic": "t43:dlq"}
    assert refused(http("wa").put(name, **queue), 403, "forbidden")["detail"] == detail
    assert refused(http("wa").write(name, [{"data": 1}], config=queue), 403, "forbidden")["detail"] == detail
    refusals = [
        rpc("wa").refused("PutTopic", pb.PutTopicRequest(topic=name, config=asked)),
        rpc("wa").refused("Append", pb.AppendRequest(topic=name, records=columns(b"1"), config=asked)),
    ]
    assert [refusal[:3] for refusal in refusals] == [("PERMISSION_DENIED", "FORBIDDEN", detail)] * 2
    refused(http("full").get(name), 404, "topic_not_found")
    ok(http("wa").put(name, type="queue", dead_letter="t42:dlq"), 201)
    assert refused(http("wa").put(name, **queue), 403, "forbidden")["detail"] == detail
    ok(http("full").put(name, **queue))


def test_each_batch_of_a_stream_is_judged(rpc: Callable[..., Grpc], http: Callable[..., Api]) -> None:
    mine, other = fresh("t42:s"), fresh("t43:s")
    config = topic_pb2.TopicConfig(ttl_ms=1)
    appends = [
        pb.AppendRequest(topic=mine, records=columns(b"1")),
        pb.AppendRequest(topic=other, records=columns(b"1")),
        pb.AppendRequest(topic=fresh("t42:n"), records=columns(b"1"), config=config),
        pb.AppendRequest(topic=mine, records=columns(b"2")),
    ]
    caller = rpc("t42w")
    requests = iter([pb.AppendStreamRequest(request_id=i, append=append) for i, append in enumerate(appends)])
    responses = caller.topics.AppendStream(requests, metadata=caller.metadata, timeout=30)
    acks = [ack for response in responses for ack in response.acks]
    assert [(ack.request_id, ack.WhichOneof("outcome")) for ack in acks] == [
        (0, "appended"), (1, "error"), (2, "error"), (3, "appended"),
    ]  # fmt: skip
    assert dict(acks[1].error.detail) == {"topic": other}
    assert all(ack.error.reason == 5 for ack in acks[1:3])  # ERROR_REASON_FORBIDDEN
    assert http("full").state(mine)["head_seq"] == 2
    refused(http("full").get(other), 404, "topic_not_found")


# ------------------------------------------------------------ lists and metrics


def test_lists_show_what_the_key_may_know(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    stem = fresh("l")
    mine = sorted(f"{prefix}{stem}:{i}" for prefix in ("t42:", "shared.") for i in range(5))
    for name in mine + [f"{prefix}{stem}:{i}" for prefix in ("t41:", "t42-", "shared-", "t43:", "") for i in range(3)]:
        ok(http("full").put(name), 201)
    for page_size in (1, 2, 3, 7, 1000):
        for prefix, expected in (("shared." + stem, mine[:5]), ("t42:" + stem, mine[5:])):
            pages = http_pages(http("multi"), prefix=prefix, page_size=page_size)
            assert pages == grpc_pages(rpc("multi"), prefix=prefix, page_size=page_size)
            assert flat(pages) == expected
            assert [len(page) for page in pages[:-1]] == [page_size] * (len(pages) - 1)
            assert pages[-1]
    shown = flat(http_pages(http("multi"), page_size=3))
    assert set(mine) <= set(shown)
    assert shown == sorted(shown)
    assert all(name.startswith(("t42:", "shared.")) for name in shown)
    assert shown == flat(grpc_pages(rpc("multi"), page_size=4))
    for prefix in ("t43:", "t42-", "u", "t42:~", "sharee"):
        assert http_pages(http("multi"), prefix=prefix, page_size=10) == [[]]
    for prefix in ("t", "t4", "t42", "t42:" + stem):
        pages = http_pages(http("t42"), prefix=prefix, page_size=1000)
        assert set(mine[5:]) <= set(pages[0])
        assert all(name.startswith("t42:") for name in pages[0])
    # a cursor that points outside
    cursor = ok(http("full").send("GET", "/v0/topics", params={"prefix": f"t41:{stem}", "page_size": 1}))["next_cursor"]
    page = ok(http("t42").send("GET", "/v0/topics", params={"cursor": cursor, "page_size": 1000}))
    assert set(mine[5:]) <= {topic["topic"] for topic in page["topics"]}


def test_metrics_name_what_the_key_may_know(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    mine, other = http("full").make("t42:m"), http("full").make("t43:m")
    asked = admin_service_pb2.GetMetricsRequest()
    for key, shown in (("full", {mine, other}), ("t42", {mine}), ("read", {mine, other})):
        caller = rpc(key)
        stub = admin_service_pb2_grpc.AdminServiceStub(caller.channel)
        over_grpc = stub.GetMetrics(asked, metadata=caller.metadata, timeout=30).body.decode()
        for text in (http(key).send("GET", "/v0/metrics").text, over_grpc):
            assert {name for name in (mine, other) if f'topic_head_seq{{topic="{name}"}}' in text} == shown


def test_the_readers_of_a_topic_are_named_to_those_that_may_read_it(rpc: Callable[..., Grpc]) -> None:
    caller = rpc("t42")
    stub = admin_service_pb2_grpc.AdminServiceStub(caller.channel)
    for topic in ("", "t42:r"):
        asked = admin_service_pb2.ListBulkReadersRequest(topic=topic)
        assert not stub.ListBulkReaders(asked, metadata=caller.metadata, timeout=30).readers
    asked = admin_service_pb2.ListBulkReadersRequest(topic="t43:r")
    with pytest.raises(grpc.RpcError) as error:
        stub.ListBulkReaders(asked, metadata=caller.metadata, timeout=30)
    assert refusal(error.value)[:3] == ("PERMISSION_DENIED", "FORBIDDEN", {"topic": "t43:r"})


def flat(pages: list[list[str]]) -> list[str]:
    return [name for page in pages for name in page]


def http_pages(api: Api, **params: Any) -> list[list[str]]:
    pages = []
    while True:
        reply = api.listing(**params)
        pages.append([topic["topic"] for topic in reply["topics"]])
        if not (cursor := reply.get("next_cursor")):
            return pages
        params["cursor"] = cursor


def grpc_pages(caller: Grpc, **fields: Any) -> list[list[str]]:
    pages = []
    while True:
        reply = caller.call("ListTopics", pb.ListTopicsRequest(**fields))
        pages.append([topic.topic for topic in reply.topics])
        if not reply.next_cursor:
            return pages
        fields["cursor"] = reply.next_cursor
