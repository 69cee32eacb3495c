"""Cases of deletes: by seq, by tag, both."""

from protocols.cases.steps import U64, Case, delete, diff, rec, recs, seqs, write

TAGS = [rec(str(i), tag=tag) if tag is not None else rec(str(i))
        for i, tag in enumerate(("a:1", "a:2", "b", None, "a:1", "", "a*", "é:1"), 1)]  # fmt: skip

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
