"""GET /v0/watch/{wid} on a real server: what comes out of the stream, byte by byte and in which order."""

import re
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import httpx
import pytest
from protocols.test_watch_sse import filled, follow, watch

from support.http import Api, ok, path, refused
from support.push import EndedError, Event, WatchStream, cursors, event_id
from support.server import ServerProcess
from support.waiting import poll


def told(events: list[Event]) -> list[Any]:
    """Events in short."""
    short: list[Any] = []
    for event in events:
        data = event.data
        match event.event:
            case "record":
                short.append((data["topic"], [record["$seq"] for record in data["records"]]))
            case "tombstone":
                short.append((data["topic"], data["reason"], data["gap_from"], data["gap_to"]))
            case name:
                short.append((data["topic"], name))
    return short


# -------------------------------------------------------------------------- opening


def test_the_head_and_the_first_events(server: ServerProcess, api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": {"u": 1}, "node": "n", "meta": {"k": "v"}}, {"data": None}]))
    with follow(server, api, {name: {}}) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["x-accel-buffering"] == "no"
        assert stream.headers["connection"] == "keep-alive"
        assert stream.headers["transfer-encoding"] == "chunked"
        assert "content-encoding" not in stream.headers
        assert stream.next().text == "retry: 2000"
        ts = api.read(name)["records"][0]["$ts"]
        one = f'{{"$seq":1,"$ts":{ts},"$node":"n","data":{{"u": 1}},"meta":{{"k": "v"}}}}'
        two = f'{{"$seq":2,"$ts":{ts},"data":null}}'
        place = f"id: {event_id({name: 2})}"
        assert stream.next().text == (
            f"{place}\nevent: record\n"
            f'data: {{"topic":"{name}","records":[{one},{two}],"from_seq":0,"to_seq":2,"head_seq":2}}'
        )
        assert stream.next().text == f'{place}\nevent: caught-up\ndata: {{"topic":"{name}","head_seq":2}}'


def test_no_gzip(server: ServerProcess, api: Api) -> None:
    url = ok(watch(api, {filled(api, 1): {}}))["stream_url"]
    with WatchStream(server.http_port, url, headers={"Accept-Encoding": "gzip"}) as stream:
        assert "content-encoding" not in stream.headers
        stream.records(1)


def test_http_1_0_ends_with_the_connection(server: ServerProcess, api: Api) -> None:
    name = filled(api, 1)
    url = ok(watch(api, {name: {}}))["stream_url"]
    with WatchStream(server.http_port, url, version="1.0") as stream:
        assert stream.headers["connection"] == "close"
        assert "transfer-encoding" not in stream.headers
        stream.records(1)
        ok(api.drop(name))
        assert stream.event("topic-deleted")
        stream.ends()


def test_http_2(server: ServerProcess, api: Api) -> None:
    name = filled(api, 2)
    url = ok(watch(api, {name: {}}))["stream_url"]
    with httpx.Client(
        base_url=server.base, http1=False, http2=True, timeout=30, trust_env=False, verify=False
    ) as client:
        with client.stream("GET", url, headers={"accept": "text/event-stream"}) as response:
            assert (response.status_code, response.http_version) == (200, "HTTP/2")
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert "connection" not in response.headers
            text, appended = "", False
            for piece in response.iter_text():
                text += piece
                if "event: caught-up" in text and not appended:
                    api.append(name, 3)
                    appended = True
                if text.count("event: caught-up") == 2:
                    break
        assert re.findall(r"^(?:event|retry): .*$", text, re.MULTILINE) == [
            "retry: 2000", "event: record", "event: caught-up", "event: record", "event: caught-up"
        ]  # fmt: skip
        assert client.get("/v0/health").status_code == 200  # the connection continues
    poll(lambda: connections(api) == 0)


@pytest.mark.parametrize("accept", ["", "*/*", "text/event-stream", "text/html, TEXT/Event-Stream;q=0.9", "a, */*;q=0"])
def test_accept_passes(server: ServerProcess, api: Api, topic: str, accept: str) -> None:
    with WatchStream(server.http_port, ok(watch(api, {topic: {}}))["stream_url"], accept=accept) as stream:
        assert stream.status == 200


@pytest.mark.parametrize("accept", ["application/json", "text/*", "text/event"])
def test_accept_is_refused(server: ServerProcess, api: Api, topic: str, accept: str) -> None:
    for url in (ok(watch(api, {topic: {}}))["stream_url"], "/v0/watch/wid_unknown"):
        with WatchStream(server.http_port, url, accept=accept) as stream:
            assert (stream.status, stream.refusal()["code"]) == (406, "not_acceptable")


@pytest.mark.parametrize("wid", ["wid_AAAAAAAAAAAAAAAAAAAAAA", "x", "wid_", "%00", "wid_%ff"])
def test_unknown_sessions(server: ServerProcess, wid: str) -> None:
    with WatchStream(server.http_port, f"/v0/watch/{wid}") as stream:
        assert (stream.status, stream.refusal()["code"]) in [(404, "not_found"), (400, "invalid_request")]
        assert stream.headers["content-type"] == "application/json"


def test_an_empty_accept_passes(server: ServerProcess, api: Api, topic: str) -> None:
    url = ok(watch(api, {topic: {}}))["stream_url"]
    with WatchStream(server.http_port, url, accept="", headers={"Accept": " "}) as stream:
        assert stream.status == 200


def test_no_route_below_a_session(api: Api, topic: str) -> None:
    url = ok(watch(api, {topic: {}}))["stream_url"]
    refused(api.client.get(url + "/more"), 404, "not_found")
    refused(api.client.get(url + "/"), 404, "not_found")
    refused(api.client.post(url), 405, "method_not_allowed")


def test_head_ends_with_the_headers(server: ServerProcess, api: Api) -> None:
    name = filled(api, 2)
    url = ok(watch(api, {name: {}}))["stream_url"]
    for _ in range(2):
        response = api.client.head(url, headers={"accept": "text/event-stream"})
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert api.client.head("/v0/watch/wid_unknown").status_code == 404
    poll(lambda: connections(api) == 0)
    with WatchStream(server.http_port, url) as stream:  # nothing was taken
        assert told(stream.events(2)) == [(name, [1, 2]), (name, "caught-up")]


# --------------------------------------------------------------------------- frames


def test_topics_come_in_name_order_each_with_its_place_in_every_id(server: ServerProcess, api: Api) -> None:
    one, two, three = filled(api, 2), filled(api, 0), filled(api, 1)
    with follow(server, api, {three: {}, one: {}, two: {}}) as stream:
        seen = stream.events(5)
        assert told(seen) == [
            (one, [1, 2]), (one, "caught-up"), (two, "caught-up"), (three, [1]), (three, "caught-up")
        ]  # fmt: skip
        places = [cursors(event) for event in seen]
        assert places == [{one: 2, two: 0, three: 0}] * 3 + [{one: 2, two: 0, three: 1}] * 2
        api.append(two, "x")
        seen = stream.events(2)
        assert told(seen) == [(two, [1]), (two, "caught-up")]
        assert cursors(seen[0]) == {one: 2, two: 1, three: 1}


def test_data_comes_as_it_was_written_on_one_line(server: ServerProcess, api: Api) -> None:
    name = api.make()
    raw = '{"z":"line1\\nline2", "a":1180591620717411303424,\n"f":1.0,\r\n"u":"é"}'
    ok(api.send("POST", path(name), f'{{"records":[{{"data":{raw},"meta":{{"m":\n1}}}}]}}'.encode()))
    with follow(server, api, {name: {}}) as stream:
        text = stream.event("record").text
        assert text.count("\n") == 2
        assert f'"data":{raw.replace(chr(10), " ").replace(chr(13), " ")},"meta":{{"m": 1}}}}' in text


def test_live_records_and_caught_up_after_each_backlog(server: ServerProcess, api: Api) -> None:
    name = api.make()
    with follow(server, api, {name: {}}) as stream:
        assert told(stream.events(1)) == [(name, "caught-up")]
        for seq in range(1, 6):
            api.append(name, seq)
            seen = stream.events(2)
            assert told(seen) == [(name, [seq]), (name, "caught-up")]
            data = seen[0].data
            assert (data["from_seq"], data["to_seq"], data["head_seq"]) == (seq - 1, seq, seq)
            assert list(data) == ["topic", "records", "from_seq", "to_seq", "head_seq"]
            assert seen[1].data == {"topic": name, "head_seq": seq}


def test_to_seq_goes_beyond_filtered_records(server: ServerProcess, api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": 1}, {"data": 2, "node": "me"}]))
    with follow(server, api, {name: {}}, node="me") as stream:
        event = stream.event("record")
        assert (told([event]), event.data["to_seq"], cursors(event)) == ([(name, [1])], 2, {name: 2})


def test_a_stale_cursor_on_connect(server: ServerProcess, api: Api) -> None:
    name = filled(api, 5, cap_records=2)
    with follow(server, api, {name: {"from_seq": 1}}) as stream:
        event = stream.event("tombstone")
        assert list(event.data.items()) == [
            ("topic", name), ("reason", "from_seq_too_old"), ("gap_from", 2), ("gap_to", 3), ("earliest_seq", 4),
            ("head_seq", 5),
        ]  # fmt: skip
        assert cursors(event) == {name: 3}
        record = stream.event("record")
        # The cursor before the read is the one from before the gap.
        assert (told([record]), record.data["from_seq"]) == ([(name, [4, 5])], 1)


def test_gaps_while_connected_have_their_own_reason(server: ServerProcess, api: Api) -> None:
    name = filled(api, 1, cap_records=3)
    with follow(server, api, {name: {}}, limit=1) as stream:
        assert told(stream.events(2)) == [(name, [1]), (name, "caught-up")]
        ok(api.write(name, [{"data": i} for i in range(8)]))
        assert told(stream.events(2)) == [(name, "cap", 2, 6), (name, [7])]


def test_other_reasons_keep_their_name_on_connect(server: ServerProcess, api: Api) -> None:
    name = filled(api, 2)
    with follow(server, api, {name: {"from_seq": 9}}) as stream:
        event = stream.event("tombstone")
        assert told([event]) == [(name, "recreated", 1, 2)]
        assert cursors(event) == {name: 0}
        assert told(stream.events(1)) == [(name, [1, 2])]


def test_expired_records_on_connect(server: ServerProcess, api: Api) -> None:
    name = filled(api, 2, ttl_ms=1)
    poll(lambda: api.state(name)["count"] == 0)
    with follow(server, api, {name: {}}) as stream:
        assert told(stream.events(2)) == [(name, "from_seq_too_old", 1, 2), (name, "caught-up")]


def test_deleted_records_are_passed_in_silence(server: ServerProcess, api: Api) -> None:
    name = filled(api, 5)
    api.rm(name, before_seq=4)
    with follow(server, api, {name: {}}) as stream:
        assert told(stream.events(2)) == [(name, [4, 5]), (name, "caught-up")]
        api.rm(name, before_seq=9)
        api.append(name, 6)
        assert told(stream.events(2)) == [(name, [6]), (name, "caught-up")]


def test_a_strong_watcher_sees_what_is_synced(server: ServerProcess, api: Api) -> None:
    name = filled(api, 2)
    with follow(server, api, {name: {}}, consistency="strong") as stream:
        assert [record["$seq"] for record in stream.records(2)] == [1, 2]
        api.append(name, 3)
        assert stream.records(1)[0]["$seq"] == 3


def test_following_counts_as_reading(server: ServerProcess, api: Api) -> None:
    name = filled(api, 1)
    assert api.state(name)["effective_priority"] == 0
    with follow(server, api, {name: {}}) as stream:
        stream.event("caught-up")
        assert api.state(name)["effective_priority"] > 400


def test_writers_at_once_and_everything_in_order(server: ServerProcess, api: Api) -> None:
    name = api.make()
    streams = [follow(server, api, {name: {}}) for _ in range(5)]
    for _ in range(100):
        ok(api.write(name, [{"data": 1}, {"data": 2}]))
    for stream in streams:
        assert [record["$seq"] for record in stream.records(200)] == list(range(1, 201))
        stream.close()


# ------------------------------------------------------------------------ heartbeats


def test_heartbeats(server: ServerProcess, api: Api) -> None:
    """The interval is clamped to a second, and real events take the place of the comment."""
    name = api.make()
    with follow(server, api, {name: {}}, heartbeat_ms=1) as stream:
        stream.event("caught-up")
        beats = []
        for _ in range(3):
            beat = stream.next()
            assert re.fullmatch(r": hb \d{13}", beat.text)
            beats.append(int(beat.text[5:]))
            assert abs(beats[-1] - time.time() * 1000) < 10_000
        assert all(800 < later - earlier < 10_000 for earlier, later in pairwise(beats))


# --------------------------------------------------------------------------- topics


def test_a_deleted_topic_ends_alone_and_at_once(server: ServerProcess, api: Api) -> None:
    gone, stays = filled(api, 3), filled(api, 1)
    with follow(server, api, {gone: {}, stays: {}}) as stream:
        stream.events(4)
        began = time.monotonic()
        ok(api.drop(gone))
        event = stream.events(1)[0]
        assert time.monotonic() - began < 10
        assert (event.event, event.data) == ("topic-deleted", {"topic": gone, "head_seq": 3, "reason": "deleted"})
        assert cursors(event) == {gone: 3, stays: 1}
        api.append(stays, 2)
        assert cursors(stream.event("record")) == {gone: 3, stays: 2}
        ok(api.put(gone), 201)
        api.append(gone, "another one")
        api.append(stays, 3)
        assert told(stream.events(2)) == [(stays, "caught-up"), (stays, [3])]
        ok(api.drop(stays))
        stream.event("topic-deleted")
        stream.ends()


def test_a_topic_made_again_between_two_streams(server: ServerProcess, api: Api) -> None:
    name = filled(api, 3)
    url = ok(watch(api, {name: {}}))["stream_url"]
    with WatchStream(server.http_port, url) as stream:
        stream.event("caught-up")
    ok(api.drop(name))
    ok(api.put(name), 201)
    for i in range(4):
        api.append(name, i)
    with WatchStream(server.http_port, url) as stream:
        assert told(stream.events(2)) == [(name, "recreated", 1, 4), (name, [1, 2, 3, 4])]


# --------------------------------------------------------------------------- resume


def test_a_session_goes_on_where_it_was(server: ServerProcess, api: Api) -> None:
    name = filled(api, 3)
    url = ok(watch(api, {name: {}}))["stream_url"]
    with WatchStream(server.http_port, url) as stream:
        assert told(stream.events(2)) == [(name, [1, 2, 3]), (name, "caught-up")]
    api.append(name, 4)
    with WatchStream(server.http_port, url) as stream:
        assert stream.next().text == "retry: 2000"
        assert told(stream.events(2)) == [(name, [4]), (name, "caught-up")]


@pytest.mark.parametrize("way", ["header", "query"])
def test_an_id_takes_each_topic_back_and_none_forward(server: ServerProcess, api: Api, way: str) -> None:
    one, two = filled(api, 3), filled(api, 3)
    url = ok(watch(api, {one: {}, two: {"from_seq": 1}}))["stream_url"]

    def resume(place: str) -> WatchStream:
        if way == "query":
            return WatchStream(server.http_port, f"{url}?cursor={place}")
        return WatchStream(server.http_port, url, headers={"Last-Event-ID": place})

    with resume(event_id({two: 99})) as stream:
        stream.event("caught-up", where=lambda data: data["topic"] == two)
    with resume(event_id({one: 1, two: 99, "ghost": 0})) as stream:
        assert told(stream.events(3)) == [(one, [2, 3]), (one, "caught-up"), (two, "caught-up")]
    with resume(event_id({one: 3, two: 0})) as stream:  # before where it was first opened
        assert told(stream.events(3)) == [(one, "caught-up"), (two, [1, 2, 3]), (two, "caught-up")]


def test_every_id_of_a_stream_is_a_place_to_go_on_from(server: ServerProcess, api: Api) -> None:
    name = filled(api, 4)
    url = ok(watch(api, {name: {}}, limit=1))["stream_url"]
    with WatchStream(server.http_port, url) as stream:
        ids = [event.id for event in stream.events(5)]
    for at, place in enumerate(ids):
        with WatchStream(server.http_port, url, headers={"Last-Event-ID": place}) as stream:
            assert told(stream.events(1)) == [(name, [at + 2]) if at < 3 else (name, "caught-up")]


@pytest.mark.parametrize(
    "place",
    ["garbage!", "AAAA", "5", "", "=", "e30", event_id({"x": 1}) + "==", event_id([1]), event_id({"%s": -1}),
     event_id({"%s": 1.0}), event_id({"%s": "1"}), event_id({"%s": True}), event_id({"%s": 1 << 64}), "é", "W3t9XQ"],
)  # fmt: skip
def test_ids_that_are_none_mean_nothing(server: ServerProcess, api: Api, place: str) -> None:
    name = filled(api, 2)
    url = ok(watch(api, {name: {"from_seq": 1}}))["stream_url"]
    place = place.replace("%s", name)
    with WatchStream(server.http_port, url, headers={"Last-Event-ID": place}) as stream:
        assert told(stream.events(1)) == [(name, [2])]


def test_a_tombstone_is_not_repeated_behind_its_id(server: ServerProcess, api: Api) -> None:
    name = filled(api, 5, cap_records=2)
    url = ok(watch(api, {name: {}}))["stream_url"]
    with WatchStream(server.http_port, url) as stream:
        lost = stream.event("tombstone")
    with WatchStream(server.http_port, url, headers={"Last-Event-ID": lost.id}) as stream:
        assert told(stream.events(2)) == [(name, [4, 5]), (name, "caught-up")]


def test_two_streams_of_one_session(server: ServerProcess, api: Api) -> None:
    """Both are served; the newer one moves the session."""
    name = filled(api, 1)
    url = ok(watch(api, {name: {}}))["stream_url"]
    with WatchStream(server.http_port, url) as first, WatchStream(server.http_port, url) as second:
        first.event("caught-up")
        second.event("caught-up")
        api.append(name, 2)
        assert told(first.events(2)) == told(second.events(2)) == [(name, [2]), (name, "caught-up")]


# -------------------------------------------------------------------------- the end


def test_shutdown_is_told(start: Callable[..., ServerProcess]) -> None:
    server = start()
    with Api(server.base) as api:
        idle, busy = api.make(), filled(api, 1)
        streams = [follow(server, api, {name: {}}) for name in (idle, busy)]
        for stream in streams:
            stream.event("caught-up")
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 8
        for stream in streams:
            event = stream.next()
            assert (event.event, event.id) == ("error", "")
            assert list(event.data) == ["code", "error"]
            assert event.data["code"] == 503
            with pytest.raises(EndedError):
                stream.next()
            stream.close()


def test_a_session_does_not_outlive_the_server(start: Callable[..., ServerProcess]) -> None:
    server = start()
    with Api(server.base) as api:
        name = filled(api, 1)
        url = ok(watch(api, {name: {}}))["stream_url"]
    assert server.stop() == 0
    server.start()
    with WatchStream(server.http_port, url) as stream:
        assert (stream.status, stream.refusal()["code"]) == (404, "not_found")


def connections(api: Api) -> int:
    metrics = api.client.get("/v0/metrics", headers={"accept": "application/json"})
    return int(ok(metrics)["sse_connections"])
