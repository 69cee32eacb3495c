"""`topics append`: values, lines and files become records, to the byte, or it is said which did not and why."""

import json
import re
from pathlib import Path

import pytest

from support.http import Api, fresh, ok
from support.server import ServerProcess

from .runner import Cli

# As lines of a file; blank ones are no records.
UGLY = [
    b'{"b" : 1.0,"a":1e3, "a":[ ] }',
    b'"\\u00e9\\/ \\ud83d\\ude00 \\n"',
    '  "snow ☃ \u2028 😀"\t'.encode(),
    b"1180591620717411303424.10\r",
    b"",
    b"-0.0E+10",
    b" \r",
    b"9" * 5000,
    b"[" * 100 + b"]" * 100,
    b"null",
]
RECORDS = [line.strip() for line in UGLY if line.strip()]


def stored(topics: Cli, topic: str) -> list[bytes]:
    """The data of all records, none of which holds a line end."""
    out = topics("read", topic, "--format", "raw").out
    return out.encode().removesuffix(b"\n").split(b"\n") if out else []


def test_values_are_records(topics: Cli, api: Api) -> None:
    topic = fresh()
    ran = topics("append", topic, '{"n": 1.0}', "2", " null ", "--tag", "t", "--meta", '{"k": 1}', "--node", "here")
    assert ran.out.startswith(f"3 records appended to {topic}: seq 1 to 3 (")
    assert ran.err == ""
    records = api.read_all(topic)
    assert [record["data"] for record in records] == [{"n": 1.0}, 2, None]
    assert [(each["$tag"], each["$node"], each["meta"]) for each in records] == [("t", "here", {"k": 1})] * 3
    assert stored(topics, topic) == [b'{"n": 1.0}', b"2", b"null"]
    told = topics("append", topic, "4").out
    assert re.fullmatch(
        rf"1 record appended to {topic}: seq 4 \(1 B in [\d.]+ s, [\d,]+ records/s, [\d.]+ k?B/s\)\n", told
    )


def test_json_tells_what_happened(topics: Cli) -> None:
    topic = fresh()
    row = topics("append", topic, "1", "2", "--json").row
    assert row.pop("seconds") >= 0
    assert row.pop("records_per_s") > 0
    assert row.pop("bytes_per_s") > 0
    assert row == {
        "topic": topic, "partition": 0, "count": 2, "first_seq": 1, "last_seq": 2, "deduped": False, "skipped": 0,
        "next_line": None, "bytes": 2,
    }  # fmt: skip
    ran = topics("append", topic, "--json", stdin="3\n[\n4\n", code=1)
    assert (ran.row["count"], ran.row["last_seq"], ran.row["next_line"]) == (1, 3, 2)
    assert "standard input: line 2, column 2" in ran.err


@pytest.mark.parametrize("end", [b"\n", b"", b"\r\n"])
def test_lines_are_kept_to_the_byte(topics: Cli, end: bytes) -> None:
    topic = fresh()
    topics("append", topic, stdin=b"\xef\xbb\xbf" + b"\n".join(UGLY) + end)
    assert stored(topics, topic) == RECORDS


def test_files_one_after_the_other_and_standard_input(topics: Cli, tmp_path: Path) -> None:
    topic = fresh()
    (tmp_path / "a").write_bytes(b"1\n2")
    (tmp_path / "b").write_bytes(b"4\n")
    arguments = [arg for name in (tmp_path / "a", "-", tmp_path / "b") for arg in ("--file", name)]
    topics("append", topic, *arguments, stdin=b"3\n")
    assert stored(topics, topic) == [b"1", b"2", b"3", b"4"]


def test_fifty_thousand_lines(topics: Cli, tmp_path: Path) -> None:
    topic, file = fresh(), tmp_path / "lines"
    lines = [b'{"n": %d, "text": "%b"}' % (number, b"x" * (number % 200)) for number in range(50_000)]
    file.write_bytes(b"\n".join(lines))
    row = topics("append", topic, "--file", file, "--tag-field", "text", "--json").row
    assert (row["count"], row["first_seq"], row["last_seq"]) == (50_000, 1, 50_000)
    assert stored(topics, topic) == lines
    tagged = [json.loads(line) for line in topics("read", topic, "--json", "--tag", "xxx").out.splitlines()]
    assert [record["data"]["n"] for record in tagged] == list(range(3, 50_000, 200))


def test_texts_and_bytes(topics: Cli, api: Api, tmp_path: Path) -> None:
    topic = fresh()
    topics("append", topic, "--format", "text", stdin='a "b"\\\r\n\nlast ☃'.encode())
    topics("append", topic, "--format", "text", "hello")
    assert [record["data"] for record in api.read_all(topic)] == ['a "b"\\', "", "last ☃", "hello"]
    (tmp_path / "a").write_bytes(b"\x00\n\xff")
    topics("append", topic, "--format", "binary", "--file", tmp_path / "a", "--file", "-", stdin=b"")
    whole = [record for record in api.read_all(topic) if "$encoding" in record]
    assert [(record["$encoding"], record["data"]) for record in whole] == [("base64", "AAr/"), ("base64", "")]
    bad = topics("append", topic, "--format", "text", stdin=b"fine\nba\xff\n", code=1)
    assert "line 2, column 3: byte 0xff is not UTF-8" in bad.err


def _lines(bad: bytes, at: int = 1000, count: int = 1500) -> bytes:
    return b"\n".join(bad if number == at else b"%d" % number for number in range(1, count + 1))


def test_an_invalid_line_is_named_and_all_before_it_is_safe(topics: Cli, tmp_path: Path) -> None:
    topic, file = fresh(), tmp_path / "events.ndjson"
    file.write_bytes(_lines(b'{"a": 1,, }'))
    ran = topics("append", topic, "--file", file, code=1)
    assert ran.out == ""
    assert ran.err == (
        f"topics append: invalid_request: {file}: line 1000, column 9: expecting property name enclosed in double "
        "quotes, found ','; 999 records before it were appended (seq 1 to 999), resume with --start-line 1000\n"
    )
    assert stored(topics, topic) == [b"%d" % number for number in range(1, 1000)]
    file.write_bytes(_lines(b"1000"))
    topics("append", topic, "--file", file, "--start-line", 1000)
    assert stored(topics, topic) == [b"%d" % number for number in range(1, 1501)]


def test_invalid_lines_can_be_skipped(topics: Cli) -> None:
    topic = fresh()
    ran = topics("append", topic, "--skip-invalid", "--json", stdin=_lines(b"NaN") + b"\n{'a'}\n" * 10)
    assert (ran.row["count"], ran.row["skipped"]) == (1499, 11)
    told = ran.err.splitlines()
    assert told[0].endswith("skipped invalid_request: standard input: line 1000, column 1: JSON has no NaN")
    assert (len(told), told[-1]) == (6, "topics append: skipped 11 in total")


def test_an_invalid_line_of_the_second_file(topics: Cli, tmp_path: Path) -> None:
    topic, files = fresh(), [tmp_path / name for name in "abc"]
    for file, text in zip(files, ("1\n2\n", "3\n[\n", "5\n"), strict=True):
        file.write_text(text)
    ran = topics("append", topic, *(arg for file in files for arg in ("--file", file)), code=1)
    assert "3 records before it were appended (seq 1 to 3)" in ran.err
    assert f"resume with --start-line 2 and {files[1]} {files[2]}" in ran.err
    assert stored(topics, topic) == [b"1", b"2", b"3"]


def test_no_value_is_sent_beside_one_that_is_no_json(topics: Cli, api: Api) -> None:
    topic = fresh()
    ran = topics("append", topic, "1", "hello", code=1)
    assert "value 2, column 1: expecting value, found 'h' (a string needs --format text" in ran.err
    assert ran.err.endswith("nothing was appended\n")
    assert api.get(topic).status_code == 404


def test_a_record_of_a_mebibyte_and_one_above(topics: Cli) -> None:
    topic = fresh()
    largest = b'"' + b"x" * ((1 << 20) - 2) + b'"'
    text = b"\n".join([b"1", largest, b"2", b'"y' + largest[1:], b"3", b'"' + b"z" * (17 << 20) + b'"', b"4"])
    ran = topics("append", topic, stdin=text, code=1)
    assert "record_too_large" in ran.err
    assert "standard input: line 4; 3 records before it were appended (seq 1 to 3), resume with" in ran.err
    assert stored(topics, topic) == [b"1", largest, b"2"]
    ran = topics(
        "append",
        topic,
        "--start-line",
        4,
        stdin=text,
        code=1,
    )
    assert "nothing was appended" in ran.err
    ran = topics("append", topic, "--start-line", 5, stdin=text, code=1)
    assert "line 6: it is longer than 16 MiB; 1 record before it was appended (seq 4)" in ran.err
    row = topics("append", topic, "--start-line", 4, "--skip-invalid", "--json", stdin=text).row
    assert (row["count"], row["skipped"]) == (2, 2)
    assert stored(topics, topic) == [b"1", largest, b"2", b"3", b"3", b"4"]


def test_what_only_the_server_refuses_is_found_to_the_line(topics: Cli) -> None:
    topic = fresh()
    deep = b"[" * 990 + b"]" * 990  # more than the server takes, and less than what Python does
    ran = topics("append", topic, stdin=_lines(deep, at=700), code=1)
    assert "nested too deeply" in ran.err
    assert "699 records before it were appended (seq 1 to 699), resume with --start-line 700" in ran.err
    assert len(stored(topics, topic)) == 699


def test_a_topic_that_is_full(topics: Cli, api: Api) -> None:
    topic = api.make(cap_records=1000, discard="reject")
    ran = topics("append", topic, "--batch", 300, stdin=_lines(b"1000"), code=1)
    assert ran.err.startswith("topics append: topic_full: ")
    assert "line 1001; 1,000 records before it were appended (seq 1 to 1000), resume with --start-line 1001" in ran.err
    assert stored(topics, topic) == [b"%d" % number for number in range(1, 1001)]


def test_a_key_is_for_one_write_that_is_made_once(topics: Cli) -> None:
    topic = fresh()
    first = topics("append", topic, "--key", "k", stdin="1\n2\n")
    assert "2 records appended" in first.out
    again = topics("append", topic, "--key", "k", stdin="1\n2\n")
    assert again.out.startswith(f"2 records already in {topic}: seq 1 to 2")
    assert stored(topics, topic) == [b"1", b"2"]
    many = topics("append", topic, "--key", "m", stdin="1\n" * 10_001, code=1)
    assert "--key applies to a single write" in many.err
    bad = topics("append", topic, "--key", "m", stdin="1\n[\n", code=1)
    assert "line 2" in bad.err
    assert bad.err.endswith("nothing was appended\n")
    assert len(stored(topics, topic)) == 2


def test_jobs_with_a_delay_and_a_priority(topics: Cli, api: Api) -> None:
    queue = api.make(type="queue")
    topics("append", queue, '"slow"', "--delay-ms", "1h")
    topics("append", queue, '"low"')
    topics("append", queue, '"high"', "--priority", 9)
    claimed = ok(api.send("POST", f"/v0/topics/{queue}/claim", {"node": "w", "max": 9}))["claimed"]
    assert [job["data"] for job in claimed] == ["high", "low"] or {job["data"] for job in claimed} == {"high", "low"}
    assert "invalid_request" in topics("append", fresh(), "1", "--priority", 3, code=1).err


def test_partitions_and_topics_that_are_not_there(topics: Cli) -> None:
    topic = fresh()
    assert "topic_not_found" in topics("append", topic, "1", "--no-create", code=5).err
    topics("create", topic, "--partitions", 2)
    topics("append", topic, "1", "--partition", 1)
    assert topics("read", topic).out == ""
    assert topics("read", topic, "--partition", 1).out == "1\n"
    assert "partition_not_found" in topics("append", topic, "1", "--partition", 2, code=5).err
    assert "invalid_request" in topics("append", "a/b", "1", code=1).err


@pytest.mark.parametrize(
    "arguments",
    [
        ("1", "--file", "x"),
        ("1", "--start-line", "2"),
        ("--file", "-", "--file", "-"),
        ("1", "--meta", "[]"),
        ("1", "--meta", "{"),
        ("1", "--tag-field", "a", "--format", "text"),
        ("1", "--tag", "a", "--tag-field", "b"),
        ("--batch", "0"),
    ],
)
def test_wrong_usage(topics: Cli, arguments: tuple[str, ...]) -> None:
    topics("append", "t", *arguments, code=2)


def test_nothing_to_append(topics: Cli, tmp_path: Path) -> None:
    assert topics("append", fresh(), stdin="\n \n").out.startswith("0 records appended")
    assert "No such file" in topics("append", fresh(), "--file", tmp_path / "no", code=1).err
    assert "Is a directory" in topics("append", fresh(), "--file", tmp_path, code=1).err


def test_without_a_server_or_a_key_nothing_is_appended(tmp_path: Path) -> None:
    absent = Cli("127.0.0.1:1")("append", "t", "1", code=3)
    assert "unavailable" in absent.err
    assert "is the server running?" in absent.err
    with ServerProcess(tmp_path, env={"TOPICS_API_KEYS": "all:rw,reader:r"}) as server:
        topics = Cli(server.grpc_target)
        assert "unauthorized" in topics("append", "t", "1", code=4).err
        assert "unauthorized" in topics("append", "t", "1", code=4, env={"TOPICS_API_KEY": "nonsense"}).err
        assert "forbidden" in topics("append", "t", "1", code=4, env={"TOPICS_API_KEY": "reader"}).err
        assert "1 record appended" in topics("append", "t", "1", env={"TOPICS_API_KEY": "all"}).out
