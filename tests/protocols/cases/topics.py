"""Cases of topics: what a config echoes, which are refused; put, get, delete and list."""

from typing import Any

from protocols.cases.steps import U64, Case, config, delete, diff, drop, fails, get, listing, put, recs, write


def _configured(name: str, given: dict[str, Any], **echoed: Any) -> Case:
    want = config(**{**given, **echoed})
    return Case(
        f"config-{name}",
        (
            put(config=given, want={"created": True, **want}),
            get(touch=False, want=want),
            put(config=given, want={"created": False, **want}),
            put(config={}, want=config(type=given.get("type", "log"))),
            write("{u}", records=recs("1"), config=given, want={"created": True}),
            get("{u}", touch=False, want=want),
        ),
    )


def _bad_config(name: str, code: str = "invalid_request", /, **given: Any) -> Case:
    return Case(
        f"bad-config-{name}",
        (
            put(config=given, want={"error": code}),
            write(records=recs("1"), config=given, want={"error": code}),
            get(want=fails("topic_not_found", topic="{t}")),
            put("{u}", config={"cap_records": 7}),
            put("{u}", config=given, want={"error": code}),
            get("{u}", touch=False, want=config(cap_records=7)),
        ),
    )


CONFIGS = [
    _configured("defaults", {}),
    *(_configured(f"type-{kind}", {"type": kind}) for kind in ("log", "queue")),
    *(_configured(f"{name}-{value}", {name: value}) for name in ("ttl_ms", "cap_records", "cap_bytes")
      for value in (0, 1 << 62, U64)),
    *(_configured(f"{name}-{value}", {name: value}) for name in ("idempotency_window_ms", "max_deliveries")
      for value in (0, 1, U64)),
    *(_configured(f"discard-{value}", {"discard": value}) for value in ("old", "reject")),
    *(_configured(f"durability-{value}", {"durability": value}, durable=value == "fsync")
      for value in ("ephemeral", "memory", "disk", "fsync")),
    _configured("durable", {"durable": True}, durability="fsync"),
    _configured("not-durable", {"durable": False}, durability="disk"),
    _configured("durable-disk", {"durable": True, "durability": "disk"}, durable=False),
    _configured("not-durable-fsync", {"durable": False, "durability": "fsync"}, durable=True),
    _configured("durable-ephemeral", {"durable": True, "durability": "ephemeral"}, durable=False),
    *(_configured(f"priority-{given}", {"priority": given}, priority=kept)
      for given, kept in ((0, 0), (-1000, -1000), (1001, 1000), (-1001, -1000), (2**31 - 1, 1000), (-(2**31), -1000))),
    *(_configured(name, {name: value}) for name, value in
      (("auto_priority", False), ("auto_create", True), ("dedupe_node", False), ("leases_durable", True))),
    *(_configured(f"lease-{given}", {"lease_ms": given}, lease_ms=kept)
      for given,
      kept in ((0, 100), (99, 100), (100, 100), (86400000, 86400000), (86400001, 86400000), (U64, 86400000))),
    *(_configured(f"jitter-{given}", {"claim_jitter_ms": given}, claim_jitter_ms=kept)
      for given, kept in ((0, 0), (5000, 5000), (5001, 5000), (U64, 5000))),
    _configured("queue", {"type": "queue", "dead_letter": "some.where:else", "max_deliveries": 3, "lease_ms": 500}),
    _configured("dead-letter-on-log", {"dead_letter": "dlq"}),
    _bad_config("type", type="stack"),
    _bad_config("discard", discard="new"),
    _bad_config("durability", durability="tape"),
    _bad_config("dead-letter-empty", dead_letter=""),
    _bad_config("dead-letter-name", dead_letter="a b"),
]  # fmt: skip

TOPICS = [
    *(
        Case(
            f"name-{i}",
            (
                put(name, config={}, want={"error": "invalid_request", "detail": {}}),
                write(name, records=recs("1"), want={"error": "invalid_request"}),
                write(name, records=recs("1"), create=False, want=fails("topic_not_found", topic=name)),
                get(name, want=fails("topic_not_found", topic=name)),
                diff(name, want=fails("topic_not_found", topic=name)),
                delete(name, before_seq=1, want=fails("topic_not_found", topic=name)),
                drop(name, want={"topic": name, "deleted": False, "routers_removed": []}),
            ),
        )
        for i,
        name in enumerate((".a", "-a", "_a", ":a", "a b", "a>b", "é", "x" * 256, "a\tb", "a/b", "a\n", "a\0b", "a%41"))
    ),
    Case("name-longest", (
        put("{t}" + "y" * 248, config={}, want={"created": True}),
        put("{t}" + "y" * 249, config={}, want={"error": "invalid_request"}),
    )),
    Case(
        "fresh-state",
        (
            put(config={}),
            get(touch=False, want={
                "topic": "{t}", "type": "log", "head_seq": 0, "earliest_seq": 1, "next_seq": 1, "count": 0, "bytes": 0,
                "effective_priority": 0, "last_write_ts": False, "last_read_ts": False, **config(),
            }),
            get(touch=True, want={"effective_priority": 500, "last_read_ts": True}),
            get(want={"effective_priority": 500, "last_read_ts": True}),
        ),
    ),
    Case(
        "recency",
        (
            write(records=recs("1")),
            get(touch=False, want={"effective_priority": 0, "last_write_ts": True, "last_read_ts": False}),
            listing(prefix="{t}", want={"topics": [{"effective_priority": 0}]}),
            listing(prefix="{t}", touch=True, want={"topics": [{"effective_priority": 500}]}),
            get(touch=False, want={"effective_priority": 500, "last_read_ts": False}),
            diff(),
            get(touch=False, want={"effective_priority": 500, "last_read_ts": True}),
            put(config={"auto_priority": False}),
            get(want={"effective_priority": 0}),
            put(config={"auto_priority": True, "priority": -7}),
            get(want={"effective_priority": -7}),
        ),
    ),
    Case("absent", tuple(
        make(want=fails("topic_not_found", topic="{t}"), **request)
        for make, request in ((get, {}), (diff, {}), (delete, {"before_seq": 1}))
    )),
    Case("drop-absent", (
        drop(want={"deleted": False, "routers_removed": []}),
        drop(if_empty=True, want={"deleted": False}),
    )),
    Case("drop-if-empty", (
        write(records=recs("1", "2")),
        drop(if_empty=True, want=fails("topic_not_empty", topic="{t}", count=2)),
        delete(before_seq=9),
        drop(if_empty=True, want={"deleted": True}),
        get(want={"error": "topic_not_found"}),
    )),
    Case("drop-if-expired", (
        write(records=recs("1"), config={"ttl_ms": 30}),
        get(touch=False, until={"count": 0}),
        drop(if_empty=True, want={"deleted": True}),
    )),
    Case("type-change", (
        put(config={"type": "queue"}),
        put(config={"type": "log"}, want=fails(
            "topic_exists_incompatible", topic="{t}", existing_type="queue", requested_type="log"
        )),
        put(config={"lease_ms": 7000}, want=config(type="queue", lease_ms=7000)),
        put("{u}", config={}),
        put("{u}", config={"type": "queue"}, want={"error": "topic_exists_incompatible"}),
    )),
    Case("own-dead-letter", (
        put(config={"type": "queue", "dead_letter": "{t}"}, want=fails("invalid_request", dead_letter="{t}")),
        put(config={"type": "log", "dead_letter": "{t}"}, want={"created": True}),
        put("{u}", config={"type": "queue"}),
        put("{u}", config={"dead_letter": "{u}"}, want=fails("invalid_request", dead_letter="{u}")),
    )),
    Case("list-pages", (
        *(put(name, config={}) for name in ("{t}:b", "{t}:a", "{t}-z", "{t}Z", "{t}.k")),
        listing(prefix="{t}", page_size=2, want={"topics": [{"topic": "{t}-z"}, {"topic": "{t}.k"}]}),
        listing(prefix="{t}", page_size=2, cursor="<next>", want={"topics": [{"topic": "{t}:a"}, {"topic": "{t}:b"}]}),
        listing(prefix="{t}", page_size=2, cursor="<next>", want={"topics": [{"topic": "{t}Z"}], "next_cursor": ""}),
        listing(prefix="{t}", page_size=0, want={"topics": [{"topic": "{t}-z"}]}),
        listing(prefix="{t}", page_size=5, want={"next_cursor": ""}),
        listing(prefix="{t}", page_size=100000, want={"next_cursor": ""}),
        listing(prefix="{t}:", want={"topics": [{"topic": "{t}:a"}, {"topic": "{t}:b"}]}),
        listing(prefix="{t}nothing", want={"topics": [], "next_cursor": ""}),
    )),
    Case("list-cursors", (
        write(records=recs("1"), config={"durable": True}),
        *(listing(prefix="{t}", cursor=cursor, want={"error": "invalid_request", "detail": {}})
          for cursor in ("!!", "e30", "eyJ", "bm9wZQ==", "eyJhZnRlciI6ImEifQ")),
        *(listing(prefix="{t}", cursor=cursor, want={"topics": [{"durable": True, "head_seq": 1, "count": 1}]})
          for cursor in ("", "e30=", "W10=", "MQ==", "bnVsbA==", "eyJhZnRlciI6NX0=", "eyJhZnRlciI6IiJ9")),
    )),
]  # fmt: skip
