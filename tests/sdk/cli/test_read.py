"""`topics read`: which records it prints, and how."""

import json
import subprocess
import time

import pytest

from support.http import Api, fresh, ok
from support.server import ServerProcess

from .runner import Cli


@pytest.fixture(scope="module")
def numbers(api: Api) -> str:
    """A topic of 1 to 20, tagged odd and even:2, even:4, …"""
    topic = api.make()
    records = [{"data": number, "tag": "odd" if number % 2 else f"even:{number}"} for number in range(1, 21)]
    ok(api.write(topic, records), 200, 201)
    return topic


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], range(1, 21)),
        (["--from-start"], range(1, 21)),
        (["--from-seq", 17], range(18, 21)),
        (["--from-seq", 5, "--to-seq", 7], range(6, 8)),
        (["--from-seq", 20], []),
        (["--to-seq", 2], [1, 2]),
        (["--last", 3], [18, 19, 20]),
        (["--last", 0], []),
        (["--last", 3, "--limit", 2], [18, 19]),
        (["--limit", 4], [1, 2, 3, 4]),
        (["--limit", 0], []),
        (["--limit", 100], range(1, 21)),
        (["--from-time", "1h"], range(1, 21)),
        (["--from-time", "2100-01-01"], []),
        (["--from-time", "0"], range(1, 21)),
        (["--tag", "odd", "--limit", 3], [1, 3, 5]),
        (["--tag-prefix", "even:1"], [10, 12, 14, 16, 18]),
        (["--tag", "no"], []),
    ],
)
def test_which_records(topics: Cli, numbers: str, arguments: list[object], expected: list[int]) -> None:
    assert [int(line) for line in topics("read", numbers, *arguments).out.splitlines()] == list(expected)


def test_from_a_time_in_between(topics: Cli, api: Api) -> None:
    topic = api.make()
    topics("append", topic, "1")
    (row,) = topics("read", topic, "--json").rows
    while time.time_ns() // 1_000_000 <= row["$ts"] + 1:
        pass
    topics("append", topic, "2")
    assert topics("read", topic, "--from-time", row["$ts"] + 1).out == "2\n"
    assert topics("read", topic, "--from-time", row["$ts"]).out == "1\n2\n"


def test_formats(topics: Cli, api: Api) -> None:
    topic = api.make()
    text = b'{"a" : 1.0,\n\t"b":\r\n []}'
    topics("append", topic, stdin='"\u009b\u2028"')
    body = b'{"records":[{"data":%b,"tag":"a\\tb","meta":{"m":1}}]}' % text
    ok(api.send("POST", f"/v0/topics/{topic}", body), 200, 201)
    topics("append", topic, "--format", "binary", stdin=b"\x00\n\xff")
    assert topics("read", topic).out == '"\u009b\u2028"\n{"a" : 1.0, \t"b":   []}\n{"$base64":"AAr/"}\n'
    with topics.start("read", topic, "--format", "raw", "--last", 2, stdout=subprocess.PIPE) as command:
        raw, _ = command.communicate(timeout=60)
    assert raw == text + b"\n\x00\n\xff\n"
    lines = topics("read", topic, "--json").out
    assert topics("read", topic, "--format", "json").out == lines
    assert [json.loads(line) for line in lines[:-1].split("\n")] == api.read(topic, include_tags=True)["records"]
    first, second, third = topics("read", topic, "--format", "record").out[:-1].split("\n")
    assert first.startswith("1\t2")
    assert first.endswith('Z\t-\t"\\x9b\\u2028"'), "nothing that moves the cursor of a terminal"
    assert '\ta\\tb\t{"a" : 1.0, \\t"b":   []}' in second
    assert third.endswith('\t-\t{"$base64":"AAr/"}')


def test_gaps_are_told_apart_from_records(topics: Cli, api: Api) -> None:
    topic = api.make(cap_records=3)
    api.append(topic, *range(1, 11))
    ran = topics("read", topic)
    assert ran.out == "8\n9\n10\n"
    assert ran.err == "topics read: seq 1 to 7 are gone (cap)\n"
    gap, *records = topics("read", topic, "--json").rows
    assert (gap["gap"]["gap_from"], gap["gap"]["gap_to"], gap["gap"]["topic"]) == (1, 7, topic)
    assert [record["$seq"] for record in records] == [8, 9, 10]
    failed = topics("read", topic, "--gaps", "fail", code=1)
    assert failed.out == ""
    assert "seq 1 to 7 are gone" in failed.err
    assert "continue after it with --from-seq 7" in failed.err
    assert topics("read", topic, "--gaps", "fail", "--from-seq", 7).out == "8\n9\n10\n"
    assert "\x1b[31m" in topics("read", topic, "--color", "always").err


def test_a_reader_that_has_seen_enough_ends_it_in_silence(topics: Cli, api: Api) -> None:
    topic = api.make()
    topics("append", topic, stdin=b'{"text":"some hundred kilobytes of them"}\n' * 20_000)
    pipe = subprocess.PIPE
    with topics.start("read", topic, stdout=pipe, stderr=pipe) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.readline() == b'{"text":"some hundred kilobytes of them"}\n'
        command.stdout.close()
        err = command.stderr.read()
        assert command.wait(60) == 141
    assert err == b""


def test_a_server_that_dies_in_the_middle_is_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ServerProcess(tmp_path_factory.mktemp("server"), same_ports=True) as server:
        topics = Cli(server.grpc_target)
        line = b'"' + b"x" * 1000 + b'"\n'
        topics("append", "t", stdin=line * 20_000)
        pipe = subprocess.PIPE
        with topics.start("read", "t", stdout=pipe, stderr=pipe) as command:
            assert command.stdout is not None
            assert command.stderr is not None
            start = command.stdout.read(1)  # more than all buffers hold is to come
            server.kill()
            server.start()
            out, err = command.stdout.read(), command.stderr.read()
            assert command.wait(60) == 0, err
        assert start + out == line * 20_000
        assert err.count(b"\n") == 1
        assert b"waiting up to 60 s for the server" in err


def test_a_topic_of_several_partitions(topics: Cli) -> None:
    topic = fresh()
    topics("create", topic, "--partitions", 2)
    topics("append", topic, "1")
    topics("append", topic, "2", "--partition", 1)
    ran = topics("read", topic)
    assert (ran.out, ran.err) == ("1\n", "topics read: reading partition 0 of 2; use --partition N for another\n")
    for partition in (0, 1):
        ran = topics("read", topic, "--partition", partition)
        assert (ran.out, ran.err) == (f"{partition + 1}\n", "")


def test_what_is_not_there_and_what_makes_no_sense(topics: Cli, numbers: str) -> None:
    assert "topic_not_found" in topics("read", "nope", code=5).err
    assert "partition_not_found" in topics("read", numbers, "--partition", 1, code=5).err
    assert "unavailable" in Cli("127.0.0.1:1")("read", numbers, code=3).err
    for wrong in (
        ["--from-seq", 1, "--last", 1],
        ["--tag", "a", "--tag-prefix", "b"],
        ["--json", "--format", "raw"],
        ["--from-time", "yesterday"],
        ["--from-seq", -1],
        ["--limit", "x"],
    ):
        topics("read", numbers, *wrong, code=2)
    assert json.loads(topics("read", numbers, "--json", "--limit", 1, "--format", "json").out)["data"] == 1
