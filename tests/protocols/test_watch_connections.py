"""Streams of watches as connections on a real server: whose they are, how many, how they end, what they cost."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from protocols.test_watch_sse import filled, follow, watch
from protocols.test_watch_stream import connections, told

from support.http import Api, ok, request
from support.push import WatchStream
from support.server import ServerProcess
from support.waiting import poll


def descriptors(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def resident(server: ServerProcess) -> int:
    """Bytes of memory."""
    pages = Path(f"/proc/{server.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


# ----------------------------------------------------------------------------- keys


def test_only_the_creating_key_opens_a_session(keyed: ServerProcess, http: Callable[[str | None], Api]) -> None:
    http("full").put("t42:watched")
    url = ok(watch(http("t42"), {"t42:watched": {}}))["stream_url"]
    port = keyed.http_port
    for key in ("", "sekret-unknown", "sekret-full", "sekret-multi", "sekret-write"):
        with WatchStream(port, url, key=key) as stream:
            assert (stream.status, stream.refusal()["code"]) == (401, "unauthorized"), key
    # A missing session is reported first, to any caller; a wrong Accept before that.
    for key in ("", "sekret-unknown", "sekret-full", "sekret-write"):
        with WatchStream(port, "/v0/watch/wid_AAAAAAAAAAAAAAAAAAAAAA", key=key) as stream:
            assert (stream.status, stream.refusal()["code"]) == (404, "not_found"), key
        with WatchStream(port, url, key=key, accept="application/json") as stream:
            assert (stream.status, stream.refusal()["code"]) == (406, "not_acceptable"), key
    with WatchStream(port, url, key="sekret-t42") as stream:
        assert told(stream.events(1)) == [("t42:watched", "caught-up")]


@pytest.mark.parametrize(
    ("query", "opens"),
    [
        ("token=sekret-t42", True),
        ("token=sekret%2Dt4%32", True),
        ("t%6Fken=sekret-t42", True),
        ("token=%20sekret-t42+", True),  # blanks around a key are taken off in the header, too
        ("token=sekret-t42&token=sekret-unknown", True),
        ("token=sekret-unknown&token=sekret-t42", False),
        ("x&token&token=sekret-t42", False),
        ("token=", False),
        ("Token=sekret-t42", False),
        ("token=sekret-t42;x", False),
        ("token=Bearer+sekret-t42", False),
        ("cursor=x&token=sekret-t42", True),
        ("", False),
    ],
)
def test_token(keyed: ServerProcess, http: Callable[[str | None], Api], query: str, opens: bool) -> None:
    http("full").put("t42:watched")
    url = ok(watch(http("t42"), {"t42:watched": {}}))["stream_url"]
    with WatchStream(keyed.http_port, f"{url}?{query}") as stream:
        assert stream.status == (200 if opens else 401)


def test_the_header_wins_over_the_token(keyed: ServerProcess, http: Callable[[str | None], Api]) -> None:
    http("full").put("t42:watched")
    url = ok(watch(http("t42"), {"t42:watched": {}}))["stream_url"]
    for key, token, status in (("sekret-t42", "wrong", 200), ("wrong", "sekret-t42", 401)):
        with WatchStream(keyed.http_port, f"{url}?token={token}", key=key) as stream:
            assert stream.status == status


def test_token_is_for_streams_only(keyed: ServerProcess, http: Callable[[str | None], Api]) -> None:
    nobody = http(None)
    for method, path in (("GET", "/v0/topics"), ("POST", "/v0/watch"), ("GET", "/v0/metrics"), ("GET", "/v0/nothing"),
                         ("POST", "/v0/topics/t42:x/claim"), ("GET", "/v0/watch"), ("GET", "/v0/ws")):  # fmt: skip
        response = nobody.send(method, f"{path}?token=sekret-full")
        assert response.status_code == 401, path


# ----------------------------------------------------------------------------- caps


def test_streams_are_capped_and_come_back(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_MAX_SSE_CONNECTIONS=2)
    with Api(server.base) as api:
        name = filled(api, 1)
        url = ok(watch(api, {name: {}}))["stream_url"]
        held = [follow(server, api, {name: {}}) for _ in range(2)]
        with WatchStream(server.http_port, url) as refused:
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert refused.refusal()["detail"] == {"limit": "max_sse_connections", "max": 2}
        with WatchStream(server.http_port, "/v0/watch/wid_unknown") as unknown:
            assert unknown.status == 404
        held.pop().close()
        poll(lambda: connections(api) == 1)
        with WatchStream(server.http_port, url) as stream:
            assert told(stream.events(1)) == [(name, [1])]
        held.pop().close()


def test_streams_of_a_key_are_capped_and_hold_no_request_slot(start: Callable[..., ServerProcess]) -> None:
    env = {"TOPICS_API_KEYS": "one,two", "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": 2, "TOPICS_MAX_INFLIGHT_PER_KEY": 1}
    server = start(**env)
    with Api(server.base) as one, Api(server.base) as two:
        one.client.headers["authorization"] = "Bearer one"
        two.client.headers["authorization"] = "Bearer two"
        name = one.make()
        urls = [ok(watch(api, {name: {}}))["stream_url"] for api in (one, one, one, two)]
        streams = [WatchStream(server.http_port, url, key="one") for url in urls[:3]]
        assert [stream.status for stream in streams] == [200, 200, 429]
        assert streams[2].refusal()["detail"] == {"limit": "max_sse_connections_per_key", "max": 2}
        one.append(name, 1)  # its only slot is free
        streams.append(WatchStream(server.http_port, urls[3], key="two"))
        assert streams[3].records(1)
        for stream in streams:
            stream.close()
        poll(lambda: connections(one) == 0)


# -------------------------------------------------------------------- disconnecting


@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
def test_a_client_that_leaves_is_noticed_at_once(start: Callable[..., ServerProcess], way: str) -> None:
    """Also while the stream is idle, and with a request sent behind it."""
    server = start()
    with Api(server.base) as api:
        name = filled(api, 1)
        streams = [follow(server, api, {name: {}}) for _ in range(6)]
        for stream in streams:
            stream.event("caught-up")
        for stream in streams[:3]:
            stream.socket.sendall(request("GET", "/v0/health"))
        poll(lambda: connections(api) == 6)
        began = time.monotonic()
        for stream in streams:
            if way == "half-close":
                stream.socket.shutdown(socket.SHUT_WR)
                continue
            if way == "reset":
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            stream.close()
        poll(lambda: connections(api) == 0)
        assert time.monotonic() - began < 10
        for stream in streams:
            stream.close()


def test_connects_and_cancels_leave_nothing(start: Callable[..., ServerProcess]) -> None:
    server = start()
    with Api(server.base) as api:
        name = filled(api, 50)
        url = ok(watch(api, {name: {}}))["stream_url"]

        def visit(count: int) -> None:
            for i in range(count):
                stream = WatchStream(server.http_port, url, headers={"Last-Event-ID": "e30"})
                assert stream.status == 200
                if i % 2:
                    stream.event("caught-up")
                    api.append(name, i)
                stream.close()
            poll(lambda: connections(api) == 0)

        visit(300)
        files, memory = descriptors(server), resident(server)
        visit(1500)
        poll(lambda: descriptors(server) <= files + 2, 20, "file descriptors")
        assert resident(server) - memory < 8 << 20
        metrics = ok(api.client.get("/v0/metrics", headers={"accept": "application/json"}))
        assert (metrics["sse_connections"], metrics["watch_sessions"]) == (0, 1)


def test_clients_that_never_read_cost_little_and_hold_nobody_up(start: Callable[..., ServerProcess]) -> None:
    server = start()
    with Api(server.base) as api:
        name = api.make()
        silent = [
            WatchStream(server.http_port, ok(watch(api, {name: {}}))["stream_url"], buffer=8192) for _ in range(100)
        ]
        with follow(server, api, {name: {}}) as reader:
            reader.event("caught-up")
            before = resident(server)
            for _ in range(64):
                ok(api.write(name, [{"data": "x" * 1000} for _ in range(250)]))
                reader.records(250)
            # 16 MB went to each; the blocks and their renderings are kept too, once for all.
            assert resident(server) - before < 100 << 20
        assert connections(api) >= 100
        for stream in silent:
            stream.close()
        poll(lambda: connections(api) == 0)
