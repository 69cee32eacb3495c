"""What both doors are asked, as data: cases of steps, each one request in door-neutral form and what must come back.

Requests name their fields as the JSON of /v0 does. `data` and `meta` are JSON *texts*, so that bytes can be compared.
`{t}`, `{u}`, `{v}` and `{w}` stand for names that are new in each run. `want` is a part of the answer; the rest only
has to be equal on both doors. With `until`, the step is repeated until its answer holds these fields.
"""

from dataclasses import dataclass, field
from typing import Any

U64 = (1 << 64) - 1


@dataclass(frozen=True)
class Step:
    """One request."""

    op: str
    topic: str
    request: dict[str, Any]
    want: dict[str, Any] = field(default_factory=dict)
    until: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """Steps on fresh topics; `small` runs on the server with every limit turned down."""

    name: str
    steps: tuple[Step, ...]
    small: bool = False


def _step(op: str):  # a factory of factories
    def make(topic: str = "{t}", /, *, want: Any = None, until: Any = None, **request: Any) -> Step:
        return Step(op, topic, request, want or {}, until or {})

    return make


put, get, drop = _step("put"), _step("get"), _step("drop")
write, diff, delete = _step("append"), _step("diff"), _step("delete")


def listing(*, want: Any = None, **request: Any) -> Step:
    """A step that lists topics."""
    return Step("list", "", request, want or {})


def rec(data: str, **rest: Any) -> dict[str, Any]:
    """One record to write."""
    return {"data": data, **rest}


def recs(*datas: str) -> list[dict[str, Any]]:
    """Plain records to write."""
    return [rec(data) for data in datas]


def fails(code: str, **detail: Any) -> dict[str, Any]:
    """A refusal with exactly this detail."""
    return {"error": code, "detail": detail}


def seqs(*numbers: int) -> dict[str, Any]:
    """A page with exactly these records."""
    return {"$seqs": list(numbers)}


def gap(first: int, last: int, reason: str, **rest: Any) -> dict[str, Any]:
    """A page with this tombstone."""
    rest |= {"gap_from": first, "gap_to": last, "reason": reason}
    return {"tombstone": {"missed_estimate": max(0, last - first + 1)} | rest}


DEFAULTS = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old", "durable": False,
    "durability": "disk", "priority": None, "auto_priority": True, "auto_create": True,
    "idempotency_window_ms": 120000, "dedupe_node": True, "lease_ms": 30000, "claim_jitter_ms": 0,
    "max_deliveries": 0, "dead_letter": None, "leases_durable": False,
}  # fmt: skip


def config(**changed: Any) -> dict[str, Any]:
    """An echo of the whole config."""
    return {"config": {**DEFAULTS, **changed}}


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

NODES = [rec("1", node="a"), rec("2", node="b"), rec("3"), rec("4", node="ab"), rec("5", node="A"), rec("6", node="a")]
TAGS = [rec(str(i), tag=tag) if tag is not None else rec(str(i))
        for i, tag in enumerate(("a:1", "a:2", "b", None, "a:1", "", "a*", "é:1"), 1)]  # fmt: skip

VERBATIM = [
    "null", "true", "0", "-0", "-0.0", "1.0", "1e3", "1E+2", "0.1000", str(2**70), "-" + "9" * 60 + ".5e-3",
    '""', '"x"', r'"\u00e9\/\n\ud83d\ude00\u0000"', '"日本 \U0001f600 \u2028"', "[]", "{}", '{"z":1,"a":2}',
    '{"k":1,"k":2}', '{ "b" : [ 1 ,\t2.50 ] ,\n "a" : " two  spaces " }', "[" * 100 + "]" * 100,
    '{"$seq":5,"error":{"code":1}}',
]  # fmt: skip

WRITES = [
    Case("create-and-append", (
        write(records=recs("1", "2"), want={
            "topic": "{t}", "first_seq": 1, "last_seq": 2, "seqs": [1, 2], "head_seq": 2, "count": 2, "created": True,
            "deduped": False, "$timings": ["fsync_ms", "wal_append_ms"],
        }),
        write(records=recs("3"), want={"seqs": [3], "head_seq": 3, "count": 1, "created": False}),
        write(records=recs("4", "5"), return_seqs=False, want={"first_seq": 4, "last_seq": 5, "seqs": []}),
        write(records=recs("6"), return_seqs=True, disable_backpressure=True, want={"seqs": [6]}),
        get(touch=False, want={"count": 6, "bytes": 6, "next_seq": 7}),
        diff(want={**seqs(1, 2, 3, 4, 5, 6), "lag": 0, "$timings": ["records_scanned"]}),
    )),
    Case("verbatim", (
        write(records=recs(*VERBATIM)),
        diff(want={"$datas": VERBATIM}),
        get(touch=False, want={"bytes": sum(len(text.encode()) for text in VERBATIM)}),
    )),
    *(Case(f"meta-{i}", (
        write(records=[rec("0", meta=meta)]),
        diff(want={"$metas": [meta]}),
        diff(include_meta=False, want={"$metas": [None]}),
        get(touch=False, want={"bytes": 1 + len(meta.encode())}),
    )) for i, meta in enumerate((
        "{}", '{"z":"1","a":"2"}', f'{{"big":{2**70},"o":{{"y":1.0}}}}', '{ "a" :\t1 }', '{"k":null,"é":[1]}',
        '{"k":1,"k":2}',
        "{" + ",".join(f'"k{i}":0' for i in range(64)) + "}", '{"k":"%s"}' % ("v" * (16384 - 8)),
    ))),
    *(Case(f"bad-meta-{name}", (
        write(records=[rec("0"), rec("0", meta=meta)], want={"error": "invalid_request", "detail": {}}),
        get(want={"error": "topic_not_found"}),
    )) for name, meta in (
        ("array", "[]"), ("text", '"x"'), ("number", "7"), ("true", "true"), ("open", "{"), ("trailing", "{}x"),
        ("keys", "{" + ",".join(f'"k{i}":0' for i in range(65)) + "}"), ("bytes", '{"k":"%s"}' % ("v" * (16384 - 7))),
    )),
    *(Case(f"bad-data-{i}", (
        write(records=[rec("0"), rec(data)], want={"error": "invalid_request", "detail": {}}),
        get(want={"error": "topic_not_found"}),
    )) for i,
    data in enumerate(("", "{", "nul", "1 2", "01", "+1", ".5", "NaN", "'a'", '"\t"', '"\\ud800"', "[1,]", "\ufeff1"))),
    Case("tags-and-nodes", (
        write(records=[rec("1", tag="", node=""), rec("2", tag="é\n\"\\", node="日本"), rec("3")], node="batch"),
        diff(include_tags=True, want={"$tags": ["", "é\n\"\\", None], "$nodes": ["", "日本", "batch"]}),
        diff(want={"$tags": [None, None, None]}),
    )),
    *(Case(f"limit-{field}-{len(value)}-{'ok' if fits else 'over'}", (
        write(records=[rec("1", **{field: value})], want={} if fits else {"error": "invalid_request", "detail": {}}),
        get(want={"count": 1} if fits else {"error": "topic_not_found"}),
    )) for field, value, fits in (
        ("tag", "t" * 256, True), ("tag", "t" * 257, False), ("tag", "é" * 128, True), ("tag", "é" * 129, False),
        ("node", "n" * 128, True), ("node", "n" * 129, False), ("node", "é" * 64, True), ("node", "é" * 65, False),
    )),
    Case("batch-node-counts-only-where-inherited", (
        write(records=[rec("1", node="own")], node="n" * 129, want={"created": True}),
        write(records=[rec("1", node="own"), rec("2")], node="n" * 129, want={"error": "invalid_request"}),
        get(want={"head_seq": 1}),
    )),
    Case("record-size", (
        write(records=recs('"%s"' % ("x" * (2**20 - 2))), want={"created": True}),
        write(records=recs('"%s"' % ("x" * (2**20 - 1))), want={"error": "record_too_large", "detail": {}}),
        write(records=[rec('"%s"' % ("x" * (2**20 - 10)), meta='{"k":1}')], want={"seqs": [2]}),
        write(records=[rec('"%s"' % ("x" * (2**20 - 8)), meta='{"k":1}')], want={"error": "record_too_large"}),
        get(touch=False, want={"head_seq": 2}),
    )),
    Case("first-bad-record-decides", (
        write(records=[rec('"%s"' % ("x" * 2**20)), rec("1", tag="t" * 257)], want={"error": "record_too_large"}),
        write(records=[rec("1", tag="t" * 257), rec('"%s"' % ("x" * 2**20))], want={"error": "invalid_request"}),
    )),
    Case("batch-size", (
        write(records=recs(*["1"] * 10000), return_seqs=False, want={"last_seq": 10000, "count": 10000}),
        write(records=recs(*["1"] * 10001), want={"error": "batch_too_large", "detail": {}}),
        write(records=[], want={"error": "invalid_request", "detail": {}}),
        get(touch=False, want={"head_seq": 10000, "bytes": 10000}),
    )),
    Case("idempotency", (
        write(records=recs("1", "2"), idempotency_key="k", want={"created": True, "seqs": [1, 2]}),
        write(records=recs("3"), want={"seqs": [3]}),
        write(records=recs("9"), idempotency_key="k", want={
            "deduped": True, "created": False, "seqs": [1, 2], "count": 2, "head_seq": 2, "$timings": [],
        }),
        write(records=recs("9"), idempotency_key="k", return_seqs=False, want={"deduped": True, "seqs": []}),
        write(records=[], idempotency_key="k", want={"error": "invalid_request"}),
        write(records=recs("4"), idempotency_key="", want={"deduped": False, "seqs": [4]}),
        write(records=recs("4"), idempotency_key="", want={"deduped": True, "seqs": [4]}),
        write(records=recs("5"), idempotency_key="é" * 256, want={"seqs": [5]}),
        write(records=recs("5"), idempotency_key="é" * 257, want={"error": "invalid_request", "detail": {}}),
        delete(before_seq=9),
        write(records=recs("9"), idempotency_key="k", want={"deduped": True, "seqs": [1, 2]}),
        drop(),
        write(records=recs("9"), idempotency_key="k", want={"deduped": False, "created": True, "seqs": [1]}),
    )),
    Case("idempotency-window", (
        put(config={"idempotency_window_ms": 30}),
        write(records=recs("1"), idempotency_key="k", want={"deduped": False}),
        write(records=recs("1"), idempotency_key="k", until={"deduped": False, "seqs": [2]}),
    )),
    Case("create-flags", (
        write(records=recs("1"), create=False, want=fails("topic_not_found", topic="{t}")),
        write(records=recs("1"), config={"auto_create": False}, want=fails("topic_not_found", topic="{t}")),
        write(records=recs("1"), create=False, config={"auto_create": True}, want={"error": "topic_not_found"}),
        get(want={"error": "topic_not_found"}),
        write(records=recs("1"), create=True, config={"auto_create": False}, want={"created": True}),
        write(records=recs("1"), want={"created": False, "seqs": [2]}),
        write(records=recs("1"), create=False, config={"type": "queue", "cap_records": 1}, want={"seqs": [3]}),
        get(touch=False, want={"count": 3, **config(auto_create=False)}),
    )),
    Case("refused-create-leaves-the-topic", (
        write(records=recs("1", "2"), config={"cap_records": 1, "discard": "reject"}, want=fails("record_too_large")),
        get(touch=False, want={"head_seq": 0, **config(cap_records=1, discard="reject")}),
    )),
    Case("reject", (
        put(config={"cap_records": 3, "discard": "reject"}),
        write(records=recs("1", "2"), idempotency_key="k"),
        write(records=recs("3", "4"), want=fails(
            "topic_full", topic="{t}", cap_records=3, cap_bytes=0, head_seq=2, earliest_seq=1
        )),
        write(records=recs("3"), want={"seqs": [3]}),
        write(records=recs("4"), want={"error": "topic_full"}),
        write(records=recs("1", "2"), idempotency_key="k", want={"deduped": True, "seqs": [1, 2]}),
        write(records=recs("4"), idempotency_key="failed", want={"error": "topic_full"}),
        write(records=recs(*"1234"), want={"error": "record_too_large", "detail": {}}),
        delete(before_seq=2, want={"deleted": 1}),
        write(records=recs("4"), idempotency_key="failed", want={"deduped": False, "seqs": [4]}),
        diff(want={**seqs(2, 3, 4), "tombstone": None}),
    )),
    Case("reject-bytes", (
        put(config={"cap_bytes": 10, "discard": "reject"}),
        write(records=recs('"abcdef"')),
        write(records=recs('"a"'), want=fails(
            "topic_full", topic="{t}", cap_records=0, cap_bytes=10, head_seq=1, earliest_seq=1
        )),
        write(records=recs("12"), want={"seqs": [2]}),
        write(records=recs('"abcdefghi"'), want={"error": "record_too_large"}),
        get(touch=False, want={"bytes": 10, "count": 2}),
    )),
]  # fmt: skip

READS = [
    Case("empty", (
        put(config={}),
        diff(want={"records": [], "next_from_seq": 0, "head_seq": 0, "earliest_seq": 1, "caught_up": True,
                   "tombstone": None, "lag": 0, "$scanned": 0}),
        diff(from_seq=1,
            want={**gap(1, 0, "recreated", earliest_seq=1, head_seq=0), "next_from_seq": 0, "caught_up": True}),
        diff(from_seq=U64, want=gap(1, 0, "recreated")),
    )),
    Case("paging", (
        write(records=recs(*map(str, range(1, 8)))),
        diff(limit=3, want={**seqs(1, 2, 3), "next_from_seq": 3, "caught_up": False, "lag": 4, "$scanned": 3}),
        diff(from_seq=3, limit=3, want={**seqs(4, 5, 6), "caught_up": False}),
        diff(from_seq=6, limit=3, want={**seqs(7), "caught_up": True, "lag": 0}),
        diff(from_seq=7, want={**seqs(), "caught_up": True, "tombstone": None}),
        diff(from_seq=4, limit=0, want=seqs(5, 6, 7)),
        diff(from_seq=0, limit=2**32 - 1, want=seqs(*range(1, 8))),
    )),
    Case("limit-defaults", (
        write(records=recs(*["1"] * 1100), return_seqs=False),
        diff(want={"next_from_seq": 256}),
        diff(limit=0, want={"next_from_seq": 256}),
        diff(limit=1000, want={"next_from_seq": 1000}),
        diff(limit=1001, want={"next_from_seq": 1000, "caught_up": False, "lag": 100}),
    )),
    Case("byte-budget", (
        write(records=recs(*['"%s"' % ("x" * 98)] * 6)),
        diff(max_batch_bytes=1, want=seqs(1)),
        diff(max_batch_bytes=100, want=seqs(1)),
        diff(max_batch_bytes=299, want={**seqs(1, 2), "next_from_seq": 2}),
        diff(max_batch_bytes=300, want=seqs(1, 2, 3)),
        diff(max_batch_bytes=0, want=seqs(1, 2, 3, 4, 5, 6)),
        diff(max_batch_bytes=U64, want=seqs(1, 2, 3, 4, 5, 6)),
    )),
    Case("node-filter", (
        write(records=NODES),
        diff(node=["a"], want={**seqs(2, 3, 4, 5), "next_from_seq": 6, "caught_up": True, "$scanned": 6}),
        diff(node=["a", "b", "A"], want=seqs(3, 4)),
        diff(node=[], want=seqs(1, 2, 3, 4, 5, 6)),
        diff(node=[""], want=seqs(1, 2, 3, 4, 5, 6)),
        diff(node=["a"], limit=1, want={**seqs(), "next_from_seq": 1, "caught_up": False}),
        diff(node=["a"], limit=2, want={**seqs(2), "next_from_seq": 2}),
        diff(from_seq=5, node=["a"], want={**seqs(), "next_from_seq": 6, "caught_up": True, "tombstone": None}),
        put(config={"dedupe_node": False}),
        diff(node=["a"], want=seqs(1, 2, 3, 4, 5, 6)),
    )),
    Case("parts", (
        write(records=[rec("1", tag="t", node="n", meta='{"m":1}')]),
        diff(include_tags=True, want={"$tags": ["t"], "$metas": ['{"m":1}'], "$nodes": ["n"]}),
        diff(include_tags=False, include_meta=False, want={"$tags": [None], "$metas": [None], "$nodes": ["n"]}),
    )),
    Case("cap", (
        put(config={"cap_records": 3}),
        write(records=recs(*"123456"), want={"seqs": [1, 2, 3, 4, 5, 6], "head_seq": 6}),
        diff(want={**seqs(4, 5, 6), **gap(1, 3, "cap", earliest_seq=4, head_seq=6), "next_from_seq": 6}),
        diff(from_seq=2, limit=1, want={**seqs(4), **gap(3, 3, "cap"), "next_from_seq": 4, "lag": 2}),
        diff(from_seq=3, want={**seqs(4, 5, 6), "tombstone": None}),
        get(touch=False, want={"count": 3, "bytes": 3, "earliest_seq": 4}),
    )),
    Case("cap-bytes", (
        put(config={"cap_bytes": 7}),
        write(records=recs("11", "22", "33", "44")),
        get(touch=False, want={"count": 3, "bytes": 6, "earliest_seq": 2}),
        write(records=recs('"longer"'), want={"seqs": [5]}),
        get(touch=False, want={"count": 0, "bytes": 0, "earliest_seq": 6}),
        diff(want={**seqs(), **gap(1, 5, "cap"), "next_from_seq": 5, "caught_up": True}),
    )),
    Case("both-caps", (
        put(config={"cap_records": 3, "cap_bytes": 30}),
        *(write(records=recs('"12345678"')) for _ in range(5)),
        get(touch=False, want={"count": 3, "bytes": 30, "earliest_seq": 3}),
    )),
    Case("cap-counts-live-only", (
        put(config={"cap_records": 4}),
        write(records=[rec("1"), rec("2", tag="x"), rec("3", tag="x"), rec("4")]),
        delete(match=("eq", "x"), want={"deleted": 2}),
        write(records=recs("5")),
        diff(want={**seqs(1, 4, 5), "tombstone": None}),
        write(records=recs("6", "7")),
        diff(want={**seqs(4, 5, 6, 7), **gap(1, 3, "cap")}),
    )),
    Case("deleted-above-evicted", (
        put(config={"cap_records": 5}),
        write(records=recs(*"12345678")),
        delete(before_seq=7, want={"deleted": 3, "earliest_seq": 7}),
        diff(want={**seqs(7, 8), **gap(1, 6, "cap", earliest_seq=7), "earliest_seq": 7}),
    )),
    Case("deleted-is-never-evicted", (
        put(config={"cap_records": 3}),
        write(records=recs(*"123")),
        delete(before_seq=4),
        write(records=recs(*"456")),
        diff(want={**seqs(4, 5, 6), "tombstone": None}),
    )),
    Case("tightened-cap", (
        write(records=recs(*"12345")),
        put(config={"cap_records": 2}),
        get(touch=False, want={"count": 2, "earliest_seq": 4}),
        put(config={}),
        diff(want={**seqs(4, 5), **gap(1, 3, "cap")}),
    )),
    Case("ttl", (
        write(records=recs(*"123"), config={"ttl_ms": 40}),
        get(touch=False, until={"count": 0, "bytes": 0, "earliest_seq": 4, "next_seq": 4}),
        diff(want={**seqs(), **gap(1, 3, "ttl", earliest_seq=4, head_seq=3), "next_from_seq": 3, "caught_up": True}),
        diff(from_seq=3, want={"tombstone": None}),
        put(config={}),
        diff(from_seq=1, want=gap(2, 3, "ttl")),
    )),
    Case("mixed", (
        put(config={"cap_records": 2, "ttl_ms": 40}),
        write(records=recs(*"123")),
        get(touch=False, until={"count": 0}),
        diff(want=gap(1, 3, "mixed")),
        diff(from_seq=1, want=gap(2, 3, "ttl")),
    )),
    Case("recreated", (
        write(records=recs(*"12345")),
        drop(),
        write(records=recs("6", "7"), want={"created": True, "seqs": [1, 2]}),
        diff(from_seq=5, want={**seqs(1, 2), **gap(1, 2, "recreated", earliest_seq=1, head_seq=2), "next_from_seq": 2}),
        diff(from_seq=3, limit=1, want={**seqs(1), **gap(1, 2, "recreated"), "next_from_seq": 1}),
        diff(from_seq=2, want={**seqs(), "tombstone": None, "caught_up": True}),
        delete(before_seq=2),
        diff(from_seq=9, want={**seqs(2), **gap(1, 2, "recreated", earliest_seq=2)}),
    )),
    Case("wait", (
        write(records=recs("1")),
        diff(wait_ms=30000, want=seqs(1)),
        diff(from_seq=1, wait_ms=20, want={**seqs(), "caught_up": True, "tombstone": None}),
        diff(from_seq=7, wait_ms=30000, want=gap(1, 1, "recreated")),
        diff("{u}", wait_ms=30000, want={"error": "topic_not_found"}),
    )),
]  # fmt: skip

DELETES = [
    *(Case(f"before-{before}", (
        write(records=recs("11", "22", "33")),
        delete(before_seq=before, want={
            "topic": "{t}", "deleted": gone, "count": 3 - gone, "bytes": 6 - 2 * gone, "earliest_seq": 1 + gone,
            "head_seq": 3,
        }),
        delete(before_seq=before, want={"deleted": 0}),
        diff(want={**seqs(*range(1 + gone, 4)), "tombstone": None, "next_from_seq": 3}),
        write(records=recs("4"), want={"seqs": [4]}),
    )) for before, gone in ((0, 0), (1, 0), (2, 1), (4, 3), (5, 3), (U64, 3))),
    *(Case(f"match-{i}", (
        write(records=TAGS),
        delete(match=match, **bound, want={"deleted": 8 - len(left)}),
        diff(want={**seqs(*left), "tombstone": None}),
        delete(match=match, want={} if bound else {"deleted": 0}),
    )) for i, (match, bound, left) in enumerate((
        (("eq", "a:1"), {}, [2, 3, 4, 6, 7, 8]),
        (("prefix", "a:"), {}, [3, 4, 6, 7, 8]),
        (("prefix", "a"), {}, [3, 4, 6, 8]),
        (("prefix", ""), {}, [4]),
        (("eq", ""), {}, [1, 2, 3, 4, 5, 7, 8]),
        (("eq", "a*"), {}, [1, 2, 3, 4, 5, 6, 8]),
        (("prefix", "a*"), {}, [1, 2, 3, 4, 5, 6, 8]),
        (("eq", "A:1"), {}, [1, 2, 3, 4, 5, 6, 7, 8]),
        (("prefix", "é"), {}, [1, 2, 3, 4, 5, 6, 7]),
        (("eq", "a:1"), {"before_seq": 5}, [2, 3, 4, 5, 6, 7, 8]),
        (("prefix", ""), {"before_seq": 3}, [3, 4, 5, 6, 7, 8]),
    ))),
    Case("no-selector", (
        delete(want={"error": "invalid_request", "detail": {}}),
        delete(before_seq=1, want={"error": "topic_not_found"}),
    )),
    Case("point-in-time", (
        write(records=[rec("1", tag="x")]),
        delete(match=("eq", "x"), want={"deleted": 1, "earliest_seq": 2, "count": 0}),
        write(records=[rec("2", tag="x")]),
        diff(want={**seqs(2), "tombstone": None}),
        delete(match=("prefix", "x"), before_seq=2, want={"deleted": 0}),
        delete(match=("prefix", "x"), want={"deleted": 1}),
    )),
    Case("earliest-after-deletes", (
        write(records=[rec("1", tag="a"), rec("2", tag="b"), rec("3", tag="a"), rec("4", tag="b"), rec("5", tag="c")]),
        delete(match=("eq", "b"), want={"earliest_seq": 1, "count": 3}),
        delete(match=("eq", "a"), want={"earliest_seq": 5, "count": 1}),
        delete(match=("eq", "c"), want={"earliest_seq": 6, "count": 0, "bytes": 0}),
        diff(want={**seqs(), "tombstone": None, "next_from_seq": 5}),
    )),
]  # fmt: skip

LIMITED = [
    Case("small-batch", (
        write(records=recs("1", "2", "3"), want={"count": 3}),
        write(records=recs(*"1234"), want={"error": "batch_too_large"}),
        write(records=recs("1", "2", "3")),
        diff(limit=1000, want=seqs(1, 2, 3, 4, 5)),
        diff(want=seqs(1, 2, 3, 4, 5)),
        diff(limit=4, want=seqs(1, 2, 3, 4)),
    ), small=True),
    Case("small-record", (
        write(records=recs('"%s"' % ("x" * 598)), want={"created": True}),
        write(records=recs('"%s"' % ("x" * 599)), want={"error": "record_too_large"}),
        write(records=[rec("1", meta='{"k":"%s"}' % ("v" * 92))]),
        write(records=[rec("1", meta='{"k":"%s"}' % ("v" * 93))], want={"error": "invalid_request"}),
        write(records=[rec("1", tag="t" * 8, node="n" * 6)]),
        write(records=[rec("1", tag="t" * 9)], want={"error": "invalid_request"}),
        write(records=[rec("1", node="n" * 7)], want={"error": "invalid_request"}),
    ), small=True),
    Case("max-topics", (
        *(put(name, config={}) for name in ("{t}", "{u}", "{v}", "{w}")),
        put("{t}x", config={}, want=fails("throttled", limit="max_topics", max=4)),
        write("{t}x", records=recs("1"), want=fails("throttled", limit="max_topics", max=4)),
        write("{t}x", records=recs("1"), create=False, want={"error": "topic_not_found"}),
        put("{u}", config={"cap_records": 9}, want={"created": False}),
        drop("{u}"),
        put("{t}x", config={}, want={"created": True}),
        drop("{t}x"),
    ), small=True),
    Case("max-total-bytes", (
        *(write(name, records=recs('"%s"' % ("x" * 498))) for name in ("{t}", "{t}", "{u}")),
        write("{t}", records=recs('"%s"' % ("x" * 499)), want=fails("throttled", limit="max_total_bytes", max=2000)),
        write("{v}", records=recs('"%s"' % ("x" * 499)), want=fails("throttled", limit="max_total_bytes", max=2000)),
        get("{v}", touch=False, want={"head_seq": 0}),
        write("{t}", records=recs('"%s"' % ("x" * 498)), want={"seqs": [3]}),
        write("{t}", records=recs("1"), want={"error": "throttled"}),
        delete("{t}", before_seq=2),
        write("{t}", records=recs('"%s"' % ("x" * 498)), want={"seqs": [4]}),
        drop("{u}"),
        write("{t}", records=recs('"%s"' % ("x" * 498)), want={"seqs": [5]}),
        get("{t}", touch=False, want={"bytes": 2000}),
    ), small=True),
]  # fmt: skip

CASES = [*CONFIGS, *TOPICS, *WRITES, *READS, *DELETES, *LIMITED]
