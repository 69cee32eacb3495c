"""Cases of writes: bytes, limits, idempotency, creation, full topics."""

from protocols.cases.steps import Case, config, delete, diff, drop, fails, get, put, rec, recs, seqs, write

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
