"""Subscriptions on a WebSocket: what they start with, what they give, and how they end (docs/contract.md, 9)."""

import time
from collections.abc import Callable

from support.http import Api, fresh, ok
from support.server import ServerProcess
from support.ws import WebSocket


def test_subscribed_comes_before_any_record(ws: WebSocket, api: Api) -> None:
    topic = api.make()
    api.append(topic, 1)
    for i in range(30):
        ws.send({"op": "subscribe", "request_id": i, "topic": topic})
        ws.send({"op": "publish", "request_id": "p", "topic": topic, "records": [{"data": 1}]})
    following = None
    for _ in range(30):
        while (message := ws.recv())["op"] != "subscribed":
            if message["op"] == "record" and message["from_seq"] == 0:
                assert following is not None, "records of a subscription that is not known yet"
                following = None
        following = message["request_id"]
    assert ws.wait("record")["from_seq"] == 0


def test_shapes_and_member_order(ws: WebSocket, api: Api) -> None:
    topic = fresh()
    records = [{"data": {"b": 1.0, "a": 2}, "tag": "g", "node": "n", "meta": {"k": [1]}}, {"data": None}]
    ok(api.write(topic, records), 201)
    ws.cmd("subscribe", request_id="s", topic=topic, include_tags=True)
    record, _ = ws.recv(), ws.recv()
    ts = record["records"][0]["$ts"]
    one = f'{{"$seq":1,"$ts":{ts},"$node":"n","$tag":"g","data":{{"b": 1.0, "a": 2}},"meta":{{"k": [1]}}}}'
    two = f'{{"$seq":2,"$ts":{ts},"data":null}}'
    place = '{"from_seq":0,"head_seq":2,"earliest_seq":1}'
    assert ws.texts == [
        f'{{"op":"subscribed","request_id":"s","topics":{{"{topic}":{place}}}}}',
        f'{{"op":"record","topic":"{topic}","from_seq":0,"to_seq":2,"head_seq":2,"records":[{one},{two}]}}',
        f'{{"op":"caught_up","topic":"{topic}","head_seq":2}}',
    ]
    ws.cmd("unsubscribe", request_id="u", topic=topic)
    assert ws.texts[-1] == f'{{"op":"unsubscribed","request_id":"u","topics":["{topic}"]}}'
    ws.cmd("ping", request_id="p")
    assert ws.texts[-1] == '{"op":"pong","request_id":"p"}'


def test_include_flags(server: ServerProcess, api: Api, connect: Callable[..., WebSocket]) -> None:
    topic = fresh()
    ok(api.write(topic, [{"data": 1, "tag": "g", "node": "n", "meta": {"k": 1}}]), 201)
    base = {"$seq", "$ts", "$node"}
    for flags, members in (
        ({}, base | {"data", "meta"}),
        ({"include_tags": True}, base | {"data", "meta", "$tag"}),
        ({"include_meta": False}, base | {"data"}),
        ({"include_data": False}, base | {"meta"}),
        ({"include_data": False, "include_meta": False, "include_tags": True}, base | {"$tag"}),
    ):
        ws = connect(server.base)
        ws.subscribe(topic=topic, **flags)
        assert set(ws.records(1)[0]) == members


def test_starts(server: ServerProcess, api: Api, connect: Callable[..., WebSocket]) -> None:
    a, b = api.make("a"), api.make("b")
    api.append(a, 1, 2), api.append(b, 1, 2, 3)
    at = {"head_seq": 2, "earliest_seq": 1}
    ws = connect(server.base)
    assert ws.subscribe(topic=a, tail=True) == {a: {"from_seq": 2, **at}}
    assert ws.wait("caught_up")["head_seq"] == 2
    assert ws.subscribe(topic=a, from_seq=1) == {a: {"from_seq": 1, **at}}
    assert [r["$seq"] for r in ws.records(1)] == [2]
    # The map takes precedence over a separate topic, which is added otherwise.
    topics = ws.subscribe(topic=a, from_seq=0, topics={a: {"from_seq": 2}, b: {"tail": True}})
    assert {name: place["from_seq"] for name, place in topics.items()} == {a: 2, b: 3}
    topics = ws.subscribe(topic=a, from_seq=1, topics={b: {"from_seq": 2}})
    assert {name: place["from_seq"] for name, place in topics.items()} == {a: 1, b: 2}
    assert list(topics) == sorted([a, b])
    # Beyond the head: a tombstone, and from the earliest record on.
    assert ws.subscribe(topic=a, from_seq=99)[a]["from_seq"] == 99
    lost = ws.wait("tombstone")
    assert (lost["reason"], lost["gap_from"], lost["gap_to"]) == ("recreated", 1, 2)


def test_defaults_and_clamps(server: ServerProcess, api: Api, connect: Callable[..., WebSocket]) -> None:
    topic = api.make()
    ok(api.write(topic, [{"data": 0}] * 2500), 200)
    for limit, sizes in (
        (None, [1000, 1000, 500]),
        (0, [1000, 1000, 500]),
        (700, [700] * 3 + [400]),
        (1 << 70, [1000, 1000, 500]),
    ):
        ws = connect(server.base)
        ws.subscribe(topic=topic, **({} if limit is None else {"limit": limit}))
        frames = [ws.wait("record") for _ in sizes]
        assert [len(f["records"]) for f in frames] == sizes
        assert [f["from_seq"] for f in frames] == [sum(sizes[:i]) for i in range(len(sizes))]
    large = api.make()
    for _ in range(3):
        api.append(large, *["x" * 99_998] * 8)
    for maximum, sizes in ((None, [10, 10, 4]), (0, [10, 10, 4]), (350_000, [3] * 8), (1, [1] * 24), (8 << 20, [24])):
        ws = connect(server.base)
        ws.subscribe(topic=large, **({} if maximum is None else {"max_batch_bytes": maximum}))
        assert [len(ws.wait("record")["records"]) for _ in sizes] == sizes


def test_one_bad_name_rejects_all(ws: WebSocket, api: Api) -> None:
    a, b = api.make(), api.make()
    api.append(a, 1), api.append(b, 1)
    ws.subscribe(topic=a, tail=True)
    ws.refused("topic_not_found", "subscribe", topics={a: {}, b: {}, "absent": {}})
    ws.refused("topic_not_found", "subscribe", topics={a: {}, "b d": {}})
    ws.refused("invalid_request", "subscribe")
    ws.refused("invalid_request", "subscribe", topics={})
    ws.refused("invalid_request", "subscribe", topics={"a*b": {}})
    api.append(a, 2), api.append(b, 2)
    assert [r["$seq"] for r in ws.records(1)] == [2]  # the old subscription continues unchanged
    assert [m["op"] for m in ws.before_pong()] == ["caught_up"]
    topics = ws.subscribe(topics={b: {"tail": True}, "absent": {}, "b d": {}}, lenient=True)
    assert list(topics) == [b]
    assert ws.subscribe(topics={"absent": {}}, lenient=True) == {}
    api.append(b, 3)
    assert ws.records(1)[0]["data"] == 3


def test_resubscribing_replaces_options_and_cursor(ws: WebSocket, api: Api) -> None:
    a, b = api.make(), api.make()
    ws.subscribe(topics={a: {}, b: {}})
    api.append(a, 1), api.append(b, 1)
    assert {r["data"] for r in ws.records(2)} == {1}
    ws.subscribe(topic=a, from_seq=0, include_data=False)
    assert set(ws.records(1)[0]) == {"$seq", "$ts"}
    ws.before_pong()
    api.append(a, 2), api.append(b, 2)
    frames = [ws.wait("record"), ws.wait("record")]
    assert {f["topic"]: set(f["records"][0]) for f in frames} == {a: {"$seq", "$ts"}, b: {"$seq", "$ts", "data"}}
    assert "record" not in [m["op"] for m in ws.before_pong()]  # nothing comes twice


def test_filters(ws: WebSocket, api: Api) -> None:
    topic = api.make()
    rows = [("me", "a:1"), ("you", "a:2"), (None, "b"), ("me", None), ("they", "a")]
    ok(api.write(topic, [{"data": 0, "node": n, "tag": t} for n, t in rows]))
    for members, seqs in (
        ({"node": "me"}, [2, 3, 5]),
        ({"node": ["me", "you"]}, [3, 5]),
        ({"filter": ["tag", "Glob", "a:*"]}, [1, 2]),
        ({"filter": "b"}, [3]),
        ({"filter": ["tag", "Glob", "*"], "node": "me"}, [2, 3, 5]),
        ({"filter": None, "node": None}, [1, 2, 3, 4, 5]),
    ):
        ws.subscribe(topic=topic, **members)
        assert [r["$seq"] for r in ws.records(len(seqs))] == seqs
        ws.wait("caught_up")


def test_patterns(ws: WebSocket, api: Api) -> None:
    stem = fresh("p")
    one, other = f"{stem}:1", f"{stem}x"
    api.append(one, "a"), api.append(other, "b")
    assert list(ws.subscribe(topics={f"{stem}:*": {}})) == [one]
    assert ws.records(1)[0]["data"] == "a"
    api.append(f"{stem}:2", "c")
    api.append(other, "b")
    found = ws.wait("record")
    assert (found["topic"], found["from_seq"], found["records"][0]["data"]) == (f"{stem}:2", 0, "c")
    assert ws.cmd("unsubscribe", topic=f"{stem}:2")["topics"] == []  # it was not asked for by name
    assert ws.cmd("unsubscribe", topic=f"{stem}:*")["topics"] == [f"{stem}:*"]
    ws.before_pong()
    api.append(one, "d"), api.append(f"{stem}:3", "e")
    assert ws.before_pong() == []


def test_strong(ws: WebSocket, api: Api) -> None:
    topic = api.make(durability="disk")
    ws.subscribe(topic=topic, consistency="strong")
    api.append(topic, 1)
    assert ws.records(1)[0]["data"] == 1  # after the fsync that it asks for
    ws.subscribe(topic=topic, consistency="eventual")
    assert ws.records(1)[0]["data"] == 1


def test_unsubscribe(ws: WebSocket, api: Api) -> None:
    a, b, c = api.make(), api.make(), api.make()
    ws.subscribe(topics={a: {}, b: {}, c: {}})
    assert ws.cmd("unsubscribe", topic=a, topics=[b, "absent", b])["topics"] == [a, b]
    assert ws.cmd("unsubscribe", topics={a: {}})["topics"] == []
    ws.refused("invalid_request", "unsubscribe")
    ws.before_pong()
    for topic in (a, b, c):
        api.append(topic, 1)
    assert ws.wait("record")["topic"] == c
    assert ws.cmd("unsubscribe", topic=c)["topics"] == [c]
    api.append(c, 2)
    assert "record" not in [m["op"] for m in ws.before_pong()]
    ws.subscribe(topic=c)
    assert [r["data"] for r in ws.records(2)] == [1, 2]


def test_more_topics_than_a_watch_has(server: ServerProcess, api: Api, connect: Callable[..., WebSocket]) -> None:
    stem = fresh("many")
    names = [f"{stem}:{i:04}" for i in range(600)]
    ws = connect(server.base)
    for name in names:
        ws.send({"op": "publish", "topic": name, "records": [{"data": 1}]})
    for _ in names:
        assert ws.recv()["op"] == "ack"
    topics = ws.subscribe(topics={name: {} for name in names})
    assert list(topics) == names
    assert sorted(ws.wait("record")["topic"] for _ in names) == names
    ws.refused("invalid_request", "subscribe", topics={f"{stem}:{i:04}": {} for i in range(1025)})
    ws.refused("invalid_request", "subscribe", topics={f"absent:{i}": {} for i in range(425)})
    ws.refused("topic_not_found", "subscribe", topics={**{name: {} for name in names}, "absent": {}})
    api.append(names[0], 2), api.append(names[599], 2)
    assert {ws.wait("record")["topic"], ws.wait("record")["topic"]} == {names[0], names[599]}
    assert ws.cmd("unsubscribe", topics=names)["topics"] == names


def test_prefixes_are_bounded(ws: WebSocket) -> None:
    stem = fresh("few")
    assert ws.subscribe(topics={f"{stem}:{i}*": {} for i in range(64)}) == {}
    ws.refused("invalid_request", "subscribe", topic=f"{stem}:x*")
    ws.refused("topic_not_found", "subscribe", topic=f"{stem}:x")
    assert ws.subscribe(topic=f"{stem}:7*") == {}
    assert ws.cmd("unsubscribe", topic=f"{stem}:7*")["topics"] == [f"{stem}:7*"]
    assert ws.subscribe(topic=f"{stem}:x*") == {}


def test_tombstones_have_their_true_reason(ws: WebSocket, api: Api) -> None:
    capped = api.make(cap_records=2)
    for i in range(5):
        api.append(capped, i)
    ws.subscribe(topic=capped)
    lost = ws.wait("tombstone")
    assert ws.texts[-1] == (
        f'{{"op":"tombstone","topic":"{capped}","reason":"cap","gap_from":1,"gap_to":3,"earliest_seq":4,"head_seq":5}}'
    )
    assert lost["reason"] == "cap"
    assert [r["$seq"] for r in ws.records(2)] == [4, 5]
    api.rm(capped, before_seq=5)
    ws.subscribe(topic=capped, from_seq=3)
    assert [r["$seq"] for r in ws.records(1)] == [5]  # deletes are not reported


def test_a_deleted_topic(ws: WebSocket, api: Api) -> None:
    topic, other = api.make(), api.make()
    api.append(topic, 1)
    ws.subscribe(topics={topic: {}, other: {}})
    ws.wait("caught_up"), ws.wait("caught_up")
    started = time.monotonic()
    ok(api.drop(topic))
    ws.wait("topic_deleted")
    assert time.monotonic() - started < 10
    assert ws.texts[-1] == f'{{"op":"topic_deleted","topic":"{topic}","head_seq":0,"reason":"deleted"}}'
    assert ws.cmd("unsubscribe", topics=[topic, other])["topics"] == [other]
    api.append(topic, "again")
    assert ws.subscribe(topic=topic) == {topic: {"from_seq": 0, "head_seq": 1, "earliest_seq": 1}}
    assert ws.records(1)[0]["data"] == "again"
