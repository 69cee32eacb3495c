"""POST /v0/watch on a real server: the subscription, and every way to get it wrong."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from support.http import NOT_INTEGERS, Api, fresh, member, ok, refused
from support.push import WatchStream, cursors, event_id
from support.server import ServerProcess

FROM_START: dict[str, Any] = {}


def watch(api: Api, topics: Any, params: Any = None, **body: Any) -> httpx.Response:
    return api.send("POST", "/v0/watch", {"topics": topics, **body}, params=params)


def follow(server: ServerProcess, api: Api, topics: Any, **body: Any) -> WatchStream:
    """The open stream of a new session."""
    return WatchStream(server.http_port, ok(watch(api, topics, **body))["stream_url"])


def filled(api: Api, count: int, **config: Any) -> str:
    name = api.make("w", **config)
    for i in range(count):
        api.append(name, i + 1)
    return name


# ------------------------------------------------------------------------ the reply


def test_the_reply(api: Api) -> None:
    name, other = filled(api, 5), api.make("w")
    api.rm(name, before_seq=3)
    body = ok(watch(api, {other: {"from_seq": 7}, name: {"from_seq": 4}}))
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", body["wid"])
    assert list(body) == ["wid", "stream_url", "session_ttl_ms", "topics", "performance"]
    assert (body["stream_url"], body["session_ttl_ms"]) == (f"/v0/watch/{body['wid']}", 300_000)
    assert list(body["topics"].items()) == sorted(
        {
            name: {"from_seq": 4, "head_seq": 5, "earliest_seq": 3},
            other: {"from_seq": 7, "head_seq": 0, "earliest_seq": 1},  # beyond the head is taken as it is
        }.items()
    )
    assert body["performance"]["server_total_ms"] > 0


def test_wids_differ(api: Api, topic: str) -> None:
    assert len({ok(watch(api, {topic: {}}))["wid"] for _ in range(50)}) == 50


def test_tail_starts_at_the_head_and_ignores_from_seq(api: Api) -> None:
    name = filled(api, 4)
    assert ok(watch(api, {name: {"from_seq": 1, "tail": True}}))["topics"][name]["from_seq"] == 4
    assert ok(watch(api, {name: {"from_seq": 1, "tail": False}}))["topics"][name]["from_seq"] == 1


def test_unknown_members_are_ignored(api: Api, topic: str) -> None:
    assert ok(watch(api, {topic: {"from": "tail", "x": None}}, more=1))["topics"][topic]["from_seq"] == 0


def test_members_at_their_bounds(api: Api, topic: str) -> None:
    big = (1 << 64) - 1
    for body in ({"limit": 0}, {"limit": 1 << 70}, {"max_batch_bytes": 0}, {"max_batch_bytes": 1 << 70},
                 {"heartbeat_ms": 0}, {"heartbeat_ms": big}, {"node": None}, {"node": []}, {"node": ["a", "b"]},
                 {"consistency": "strong"}, {"consistency": "eventual"}, {"cursor": None}, {"filter": None},
                 {"filter": "x"}, {"filter": ["tag", "Glob", "x*"]}):  # fmt: skip
        ok(watch(api, {topic: {}}, **body))
    assert ok(watch(api, {topic: {"from_seq": big}}))["topics"][topic]["from_seq"] == big


# ------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("topics", ["{}", "[]", "null", '"w"', "5", "true"])
def test_topics_must_be_an_object_that_names_some(api: Api, topics: str) -> None:
    refused(api.send("POST", "/v0/watch", member("topics", topics)), 400, "invalid_request")


def test_topics_must_be_there(api: Api) -> None:
    refused(api.send("POST", "/v0/watch", "{}"), 400, "invalid_request")


@pytest.mark.parametrize("options", ["null", "5", "[]", '"tail"', "true"])
def test_each_topic_has_an_object(api: Api, topic: str, options: str) -> None:
    refused(api.send("POST", "/v0/watch", member("topics", member(topic, options))), 400, "invalid_request")


@pytest.mark.parametrize("value", NOT_INTEGERS)
def test_from_seq_is_a_strict_integer(api: Api, topic: str, value: str) -> None:
    body = member("topics", member(topic, member("from_seq", value)))
    refused(api.send("POST", "/v0/watch", body), 400, "invalid_request")


@pytest.mark.parametrize("name", ["limit", "max_batch_bytes", "heartbeat_ms"])
@pytest.mark.parametrize("value", [value for value in NOT_INTEGERS if value != str(1 << 64)])
def test_amounts_are_strict_integers(api: Api, topic: str, name: str, value: str) -> None:
    body = f'{{"topics":{{"{topic}":{{}}}},"{name}":{value}}}'
    refused(api.send("POST", "/v0/watch", body), 400, "invalid_request")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("include_data", "include_meta", "include_tags")
          for value in ("null", "1", '"true"', "[]")),
        *(("consistency", value) for value in ("null", '"weak"', '"STRONG"', "1", "[]", '""')),
        *(("node", value) for value in ("5", "[5]", "{}", "true", "[null]")),
        *(("cursor", value) for value in ("5", "{}", '""', '"garbage!"', '"e30="', '"NQ"', '"eyJhIjoiMSJ9"')),
        *(("filter", value) for value in ("5", '["tag"]', '["node","Eq","x"]', '["tag","Glob","x"]')),
    ],
)  # fmt: skip
def test_other_members_are_strict_too(api: Api, topic: str, name: str, value: str) -> None:
    body = f'{{"topics":{{"{topic}":{{}}}},"{name}":{value}}}'
    refused(api.send("POST", "/v0/watch", body), 400, "invalid_request")


def test_tail_is_a_boolean(api: Api, topic: str) -> None:
    for value in ("yes", 1, None):
        refused(watch(api, {topic: {"tail": value}}), 400, "invalid_request")


@pytest.mark.parametrize(
    "body",
    ['{"topics":{%s:{}},"topics":{%s:{}}}', '{"topics":{%s:{},%s:{}}}', '{"topics":{%s:{"tail":true,"tail":true}}}',
     '{"topics":{%s:{}},"limit":1,"limit":1}'],
)  # fmt: skip
def test_duplicates_are_refused(api: Api, topic: str, body: str) -> None:
    refused(api.send("POST", "/v0/watch", body.replace("%s", f'"{topic}"')), 400, "invalid_request")


def test_at_most_256_topics(api: Api) -> None:
    names = [api.make("many") for _ in range(256)]
    body = ok(watch(api, dict.fromkeys(names, FROM_START)))
    assert list(body["topics"]) == sorted(names)
    for topics in ([*names, "absent"], [f"absent-{i}" for i in range(257)]):
        refused(watch(api, dict.fromkeys(topics, FROM_START)), 400, "invalid_request")
        refused(watch(api, dict.fromkeys(topics, FROM_START), {"lenient": "true"}), 400, "invalid_request")


def test_a_stream_of_256_topics(server: ServerProcess, api: Api) -> None:
    names = sorted(api.make("many") for _ in range(256))
    for name in (names[0], names[200], names[255]):
        api.append(name, name)
    with follow(server, api, dict.fromkeys(reversed(names), FROM_START)) as stream:
        seen = stream.events(256 + 3)
        assert [event.data["topic"] for event in seen if event.event == "caught-up"] == names
        assert [event.data["topic"] for event in seen if event.event == "record"] == [names[0], names[200], names[255]]
        assert max(len(event.id) for event in seen) <= 1024


def long_names(api: Api, count: int, length: int = 255) -> list[str]:
    names = [(fresh(f"n{i:03}-") + "x" * length)[:length] for i in range(count)]
    for name in names:
        api.put(name)
        api.append(name, 1, 2)
    return names


@pytest.mark.parametrize("count", [64, 65])
def test_the_id_of_every_event_can_come_back(server: ServerProcess, api: Api, count: int) -> None:
    """As Last-Event-ID, as `cursor` of the GET and of a new session: each says where that very event stood."""
    names = long_names(api, count)
    wid = ok(watch(api, dict.fromkeys(names, FROM_START), limit=1))["wid"]
    place = dict.fromkeys(names, 0)
    with WatchStream(server.http_port, f"/v0/watch/{wid}") as stream:
        seen = stream.events(3 * count)
    places = []
    for event in seen:
        place[event.data["topic"]] = event.data.get("to_seq", event.data["head_seq"])
        places.append(place.copy())
        assert event.id.startswith("place_") == (count > 64)
        assert count > 64 or cursors(event) == place
    assert max(len(event.id) for event in seen) <= (1024 if count > 64 else 27 << 10)
    with (
        httpx.Client(http1=False, http2=True, base_url=server.base) as two,
        two.stream("GET", f"/v0/watch/{wid}", headers={"Last-Event-ID": seen[-1].id}) as opened,
    ):
        assert (opened.status_code, opened.http_version) == (200, "HTTP/2")
    for at in (0, count // 2, count + 5, 3 * count - 1):
        expected = sorted((name, seq) for name, seq in places[at].items() if seq < 2)
        for headers, query in (({"Last-Event-ID": seen[at].id}, ""), ({}, f"?cursor={seen[at].id}")):
            with WatchStream(server.http_port, f"/v0/watch/{wid}{query}", headers=headers) as stream:
                assert stream.status == 200
                found = stream.events(count + sum(2 - seq for _, seq in expected))
            first: dict[str, int] = {}
            for event in found:
                if event.event == "record":
                    first.setdefault(event.data["topic"], event.data["from_seq"])
            assert sorted(first.items()) == expected, (at, headers, query)
        again = ok(watch(api, dict.fromkeys(names, FROM_START), cursor=seen[at].id))["topics"]
        assert {name: start["from_seq"] for name, start in again.items()} == places[at]


def test_a_token_that_is_forgotten_takes_nothing_back(server: ServerProcess, api: Api) -> None:
    names = long_names(api, 65, 20)
    token = "place_" + "x" * 16 + "_3"
    session = ok(watch(api, dict.fromkeys(names, FROM_START)))
    with WatchStream(server.http_port, session["stream_url"]) as stream:
        stream.events(130)
    with WatchStream(server.http_port, session["stream_url"], headers={"Last-Event-ID": token}) as stream:
        assert {event.event for event in stream.events(64)} == {"caught-up"}
    topics = ok(watch(api, {names[0]: {"from_seq": 1}}, cursor=token))["topics"]
    assert topics[names[0]]["from_seq"] == 1


def test_unknown_topics_are_refused_unless_lenient(api: Api, topic: str) -> None:
    absent = fresh("absent")
    for body in ({topic: {}, absent: {}}, {"no such name!": {}}, {"": {}}):
        error = refused(watch(api, body), 404, "topic_not_found")
        assert error["detail"]["topic"] in body
    assert list(ok(watch(api, {topic: {}, absent: {}}, {"lenient": "true"}))["topics"]) == [topic]
    refused(watch(api, {absent: {}}, {"lenient": "yes"}), 404, "topic_not_found")
    refused(api.get(absent), 404, "topic_not_found")


def test_a_lenient_watch_of_nothing_opens_and_ends(server: ServerProcess, api: Api) -> None:
    body = ok(watch(api, {fresh("absent"): {}}, {"lenient": "1"}))
    assert body["topics"] == {}
    with WatchStream(server.http_port, body["stream_url"]) as stream:
        assert stream.status == 200
        assert stream.next().text == "retry: 2000"
        stream.ends()


def test_what_is_wrong_comes_in_order(api: Api, http: Callable[[str | None], Api]) -> None:
    """415, then 400 for the body and the number of topics, then 403, then 404."""
    many = dict.fromkeys((f"x-{i}" for i in range(257)), FROM_START)
    keyed = http("t42")
    refused(keyed.client.post("/v0/watch", content=b"{"), 415, "unsupported_media_type")
    refused(keyed.send("POST", "/v0/watch", "{"), 400, "invalid_request")
    refused(watch(keyed, many), 400, "invalid_request")
    refused(watch(keyed, {"x": {}}, limit="x"), 400, "invalid_request")
    assert refused(watch(keyed, {"t42:absent": {}, "x": {}}), 403, "forbidden")["detail"] == {"topic": "x"}
    refused(watch(keyed, {"t42:absent": {}, "x": {}}, {"lenient": "true"}), 403, "forbidden")
    refused(watch(keyed, {"t42:absent": {}}), 404, "topic_not_found")
    refused(watch(http("write"), {"x": {}}), 403, "forbidden")
    refused(watch(http(None), {"x": {}}), 401, "unauthorized")
    refused(keyed.client.post("/v0/watch?token=sekret-t42", content=b"{}", headers={"authorization": ""}), 401,
            "unauthorized")  # fmt: skip
    refused(api.send("POST", "/v0/watch", b""), 400, "invalid_request")
    refused(api.client.post("/v0/watch"), 415, "unsupported_media_type")
    refused(api.client.get("/v0/watch"), 405, "method_not_allowed")


def test_sessions_are_capped(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_MAX_WATCH_SESSIONS=2)
    with Api(server.base) as api:
        name = api.make()
        for _ in range(2):
            ok(watch(api, {name: {}}))
        response = watch(api, {name: {}})
        error = refused(response, 429, "throttled")
        assert error["detail"] == {"limit": "max_watch_sessions", "max": 2}
        assert response.headers["retry-after"] == "1"
        # Faults of the request itself are reported first.
        refused(watch(api, {"absent": {}}), 404, "topic_not_found")


# ------------------------------------------------------------------ what it selects


def test_cursor_positions_the_topics_that_it_names(server: ServerProcess, api: Api) -> None:
    one, two, three = filled(api, 5), filled(api, 5), filled(api, 5)
    given = event_id({one: 3, two: 4, "ghost": 1})
    body = ok(watch(api, {one: {}, two: {"tail": True}, three: {"from_seq": 1}}, cursor=given))
    assert [body["topics"][name]["from_seq"] for name in (one, two, three)] == [3, 4, 1]
    with WatchStream(server.http_port, body["stream_url"]) as stream:
        assert [record["$seq"] for record in stream.records(2, one)] == [4, 5]


def test_nodes_and_filter_select_records(server: ServerProcess, api: Api) -> None:
    name = api.make()
    records = [{"data": 1, "node": "me", "tag": "a"}, {"data": 2, "node": "you", "tag": "a"}, {"data": 3, "tag": "ab"},
               {"data": 4}, {"data": 5, "node": "me"}]  # fmt: skip
    ok(api.write(name, records))
    for body, expected in (
        ({"node": "me"}, [2, 3, 4]),
        ({"node": ["me", "you"]}, [3, 4]),
        ({"filter": "a"}, [1, 2]),
        ({"filter": ["tag", "Glob", "a*"], "node": "you"}, [1, 3]),
        ({"node": []}, [1, 2, 3, 4, 5]),
    ):
        with follow(server, api, {name: {}}, **body) as stream:
            found = [record["data"] for record in stream.records(len(expected))]
            caught_up = stream.event("caught-up")
            assert (found, cursors(caught_up)) == (expected, {name: 5}), body
    # A batch of nothing but own records is no event, but is behind us.
    with follow(server, api, {name: {"from_seq": 4}}, node="me") as stream:
        assert stream.events(1)[0].event == "caught-up"


def test_a_prefix_follows_what_comes(server: ServerProcess, api: Api) -> None:
    stem = fresh("pre")
    first = f"{stem}:b"
    ok(api.put(first), 201)
    api.append(first, 1)
    with follow(server, api, {f"{stem}:*": {}}) as stream:
        assert cursors(stream.event("caught-up")) == {first: 1}
        second = f"{stem}:a"
        ok(api.put(second), 201)
        api.append(second, 2)
        event = stream.event("record", where=lambda data: data["topic"] == second)
        assert cursors(event) == {first: 1, second: 1}  # sorted, though it came later: `cursors` looks


def test_what_records_show(server: ServerProcess, api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": [1], "tag": "t", "node": "n", "meta": {"k": 1}}, {"data": None}]))
    full = {"$seq", "$ts", "$node", "data", "meta"}
    for body, members in (
        ({}, full),
        ({"include_tags": True}, full | {"$tag"}),
        ({"include_meta": False}, full - {"meta"}),
        ({"include_data": False}, full - {"data"}),
        ({"include_data": False, "include_meta": False, "include_tags": True}, full - {"data", "meta"} | {"$tag"}),
    ):
        with follow(server, api, {name: {}}, **body) as stream:
            one, two = stream.records(2)
            assert set(one) == members, body
            assert set(two) == {"$seq", "$ts", "data"} & members


def test_limits_of_a_frame(server: ServerProcess, api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": "x" * 98} for _ in range(300)]))
    for body, sizes in (
        ({}, [256, 44]),
        ({"limit": 100}, [100, 100, 100]),
        ({"limit": 1}, [1, 1]),
        ({"limit": 5000}, [300]),
        ({"limit": 1000, "max_batch_bytes": 20_000}, [200, 100]),
        ({"limit": 1000, "max_batch_bytes": 1}, [1, 1]),
        ({"limit": 1000, "max_batch_bytes": 0}, [300]),
    ):
        with follow(server, api, {name: {}}, **body) as stream:
            found = [len(event.data["records"]) for event in stream.events(len(sizes))]
            assert found == sizes, body
