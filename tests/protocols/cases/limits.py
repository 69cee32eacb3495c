"""Cases for the server with every limit turned down."""

from protocols.cases.steps import Case, delete, diff, drop, fails, get, put, rec, recs, seqs, write

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
