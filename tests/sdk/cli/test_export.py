"""`topics export`, and `topics import` of what it wrote: everything comes back to the byte."""

import os
import re
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from resource import RLIMIT_FSIZE, setrlimit

import pyarrow.parquet as pq
import pytest

from support.http import Api, fresh, ok
from support.server import ServerProcess
from support.waiting import poll

from .runner import Cli

_SECONDS = 60.0


@pytest.fixture(scope="module")
def ugly(topics: Cli, api: Api) -> str:
    """A topic of records that are hard to write down."""
    topic = api.make()
    for body in (
        b'{"records":[{"data":{"b" : 1.0,"a":1e3, "a":[ ] },"tag":"","meta":{ "k" : 1.0 }}]}',
        b'{"records":[{"data":{\n\t"b":\r\n []},"tag":"a\\"\\n","meta":{\n}}]}',
        b'{"records":[{"data":"\\u00e9\\/","node":"n\\u2028"}]}',
        '{"records":[{"data":"snow ☃ \u2028"}]}'.encode(),
        b'{"records":[{"data":%b}]}' % (b"9" * 5000),
        b'{"records":[{"data":null}]}',
    ):
        ok(api.send("POST", f"/v0/topics/{topic}", body), 200, 201)
    topics("append", topic, "--format", "binary", "--tag", "bytes", stdin=b"\x00\n\xff")
    topics("append", topic, "--format", "binary", stdin=b"")
    return topic


def whole(topics: Cli, topic: str, directory: Path) -> list[bytes]:
    """All records to the byte, but for their times."""
    file = directory / f"whole-{topic}"
    topics("export", topic, file, "--with-meta", "--force")
    return [re.sub(rb'"\$ts":\d+,', b"", line) for line in file.read_bytes().split(b"\n")]


def test_whole_records_come_back_to_the_byte(topics: Cli, ugly: str, tmp_path: Path) -> None:
    topic, file = fresh(), tmp_path / "a.ndjson"
    told = topics("export", ugly, file, "--with-meta")
    assert told.out.startswith(f"exported 8 records of {ugly} to {file}: seq 1 to 8; continue with --from-seq 8 (")
    assert told.err == ""
    assert topics("import", file, "--with-meta", "--topic", topic).out == (
        f"appended 8 records to {topic}: seq 1 to 8\nread back 8 records, byte for byte identical\n"
    )
    assert whole(topics, topic, tmp_path) == whole(topics, ugly, tmp_path)
    assert not list(tmp_path.glob("*.part"))


def test_parquet_comes_back_to_the_byte(topics: Cli, ugly: str, tmp_path: Path) -> None:
    topic, file = fresh(), tmp_path / "a.parquet"
    topics("export", ugly, file)
    topics("import", file, "--topic", topic)
    assert whole(topics, topic, tmp_path) == whole(topics, ugly, tmp_path)
    table = pq.read_table(file)
    assert table.column_names == ["partition", "seq", "ts", "tag", "node", "meta", "kind", "data"]
    rows = table.to_pylist()
    assert [row["seq"] for row in rows] == list(range(1, 9))
    assert [row["kind"] for row in rows] == ["json"] * 6 + ["binary"] * 2
    assert [row["tag"] for row in rows][:3] == ["", 'a"\n', None]
    assert rows[0]["data"] == b'{"b" : 1.0,"a":1e3, "a":[ ] }'
    assert rows[0]["meta"] == '{ "k" : 1.0 }'
    assert abs((datetime.now(UTC) - rows[0]["ts"]).total_seconds()) < 600


def test_plain_lines_say_what_they_do_not_keep(topics: Cli, ugly: str, tmp_path: Path) -> None:
    file = tmp_path / "plain"
    told = topics("export", ugly, file)
    assert "3 records are not preserved byte for byte" in told.err
    lines = file.read_bytes().splitlines()
    assert lines[1] == b'{ \t"b":   []}'
    assert lines[-2:] == [b'{"$base64":"AAr/"}', b'{"$base64":""}']
    topic = fresh()
    topics("import", file, "--topic", topic)
    assert topics("read", topic).out == topics("read", ugly).out


def test_many_records_in_several_groups(topics: Cli, tmp_path: Path) -> None:
    topic, again = fresh(), fresh()
    lines = [b'{"n": %d}' % number for number in range(120_000)]
    topics("append", topic, stdin=b"\n".join(lines), code=0)
    row = topics("export", topic, tmp_path / "a.parquet", "--json").row
    assert (row["count"], row["first_seq"], row["last_seq"], row["gaps"]) == (120_000, 1, 120_000, 0)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 2
    topics("import", tmp_path / "a.parquet", "--topic", again)
    topics("export", again, tmp_path / "a.ndjson")
    assert (tmp_path / "a.ndjson").read_bytes() == b"\n".join(lines) + b"\n"


def test_ranges_and_standard_output(topics: Cli, api: Api) -> None:
    topic = api.make()
    topics("append", topic, *range(1, 11), "--tag", "t")
    ran = topics("export", topic, "-", "--from-seq", 3, "--to-seq", 5)
    assert ran.out == "4\n5\n"
    assert "seq 4 to 5; continue with --from-seq 5" in ran.err
    assert topics("export", topic, "-", "--last", 1, "--with-meta").out.endswith(',"$tag":"t","data":10}\n')
    assert topics("export", topic, "-", "--tag", "no").out == ""


def test_a_file_that_is_there_is_not_written_over(topics: Cli, api: Api, tmp_path: Path) -> None:
    topic, file = api.make(), tmp_path / "a"
    topics("append", topic, "1")
    file.write_text("mine")
    assert "already exists; use --force to overwrite it" in topics("export", topic, file, code=1).err
    assert file.read_text() == "mine"
    topics("export", topic, file, "--force")
    assert file.read_text() == "1\n"
    (tmp_path / "b.part").write_text("of another")
    assert "b.part already exists" in topics("export", topic, tmp_path / "b", code=1).err
    assert "No such file" in topics("export", topic, tmp_path / "no" / "a", code=1).err
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe"):
        assert "is not a regular file" in topics("export", topic, place, "--force", code=1).err
    (tmp_path / "link").symlink_to(file)
    topics("append", topic, "2")
    topics("export", topic, tmp_path / "link", "--force")
    assert ((tmp_path / "link").is_symlink(), file.read_text()) == (True, "1\n2\n")


def test_gaps_are_counted_or_end_it(topics: Cli, api: Api, tmp_path: Path) -> None:
    topic = api.make(cap_records=3)
    api.append(topic, *range(10))
    ran = topics("export", topic, tmp_path / "a")
    assert "seq 1 to 7 are gone" in ran.err
    assert "; 1 gap, up to 7 records gone" in ran.out
    row = topics("export", topic, tmp_path / "b", "--json").row
    assert (row["count"], row["gaps"], row["missed_estimate"]) == (3, 1, 7)
    failed = topics("export", topic, tmp_path / "c", "--gaps", "fail", code=1)
    assert "continue after it with --from-seq 7" in failed.err
    assert not list(tmp_path.glob("c*"))


def test_every_partition_and_one(topics: Cli, tmp_path: Path) -> None:
    topic, again = fresh(), fresh()
    topics("create", topic, "--partitions", 3)
    for partition in (0, 1, 2):
        topics("append", topic, partition, partition + 10, "--partition", partition)
    for file in ("all.ndjson", "all.parquet"):
        whole = ["--with-meta"] if file.endswith("ndjson") else []
        ran = topics("export", topic, tmp_path / file, *whole)
        assert f"exported 6 records of {topic} from 3 partitions to {tmp_path / file} (" in ran.out
        again = fresh()
        assert "partition_not_found" in topics("import", tmp_path / file, *whole, "--topic", again, code=5).err
        again = fresh()
        topics("create", again, "--partitions", 3)
        told = topics("import", tmp_path / file, *whole, "--topic", again)
        read_back = "read back 6 records, byte for byte identical\n"
        assert told.out == f"appended 6 records to {again}: 3 partitions\n{read_back}"
        assert topics("read", again, "--partition", 2).out == "2\n12\n"
        topics("import", tmp_path / file, *whole, "--topic", again, "--partition", 1)
        assert topics("read", again, "--partition", 1).out == "1\n11\n0\n10\n1\n11\n2\n12\n"
    assert topics("export", topic, "-", "--partition", 1, "--from-seq", 1).out == "11\n"
    assert "add --partition N" in topics("export", topic, "-", "--from-seq", 1, code=2).err


def test_an_interrupt_and_a_dead_server_leave_a_part_and_a_place_to_go_on(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", same_ports=True) as server:
        topics = Cli(server.grpc_target)
        lines = [b'"%06d%b"' % (number, b"x" * 1000) for number in range(60_000)]
        topics("append", "t", stdin=b"\n".join(lines))
        part = tmp_path / "out.part"
        with topics.start("export", "t", tmp_path / "out", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
            poll(lambda: part.exists() and part.stat().st_size > 0, _SECONDS)
            command.send_signal(signal.SIGSTOP)
            server.kill()
            command.send_signal(signal.SIGCONT)
            assert command.stderr is not None
            first_line = command.stderr.readline()
            assert b"waiting up to 60 s for the server" in first_line
            command.send_signal(signal.SIGINT)
            assert command.wait(_SECONDS) == 130
            told = command.stderr.read().decode()
        server.start()
        assert not (tmp_path / "out").exists()
        written = part.read_bytes().splitlines()
        assert written == lines[: len(written)]
        assert (
            f"holds the first {len(written):,} records; resume with --from-seq {len(written)} into another file" in told
        )
        topics("export", "t", tmp_path / "rest", "--from-seq", len(written))
        assert (tmp_path / "rest").read_bytes().splitlines() == lines[len(written) :]


def test_a_full_disk_leaves_what_was_written_before(topics: Cli, tmp_path: Path) -> None:
    topic = fresh()
    lines = [b'"%06d%b"' % (number, b"x" * 1000) for number in range(3000)]
    topics("append", topic, stdin=b"\n".join(lines))

    def limited(file: Path) -> str:
        maximum = (1_000_000, 1_000_000)
        with topics.start(
            "export", topic, file, stderr=subprocess.PIPE, preexec_fn=lambda: setrlimit(RLIMIT_FSIZE, maximum)
        ) as command:
            _, err = command.communicate(timeout=_SECONDS)
        assert command.returncode == 1
        return str(err.decode())

    told, error = limited(tmp_path / "a").splitlines()
    assert error == f"topics export: {tmp_path / 'a'}: File too large"
    written = (tmp_path / "a.part").read_bytes().split(b"\n")[:-1]
    assert written == lines[: len(written)]
    assert (
        f"a.part holds the first {len(written)} records; resume with --from-seq {len(written)} into another file"
        in told
    )
    table = tmp_path / "rows.parquet"
    topics("append", topic, stdin=b"\n".join(b'"%b"' % os.urandom(500).hex().encode() for _ in range(4000)))
    assert limited(table) == f"topics export: {table}: File too large\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.part"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("nope", "-"), 5, "topic_not_found"),
        (("t", "x.parquet", "--with-meta"), 2, "--with-meta is for ndjson"),
        (("t",), 2, "FILE"),
    ],
)
def test_what_makes_no_sense(topics: Cli, arguments: tuple[object, ...], code: int, text: str) -> None:
    assert text in topics("export", *arguments, code=code).err


def test_without_a_server(tmp_path: Path) -> None:
    assert "unavailable" in Cli("127.0.0.1:1")("export", "t", tmp_path / "a", code=3).err
    assert not list(tmp_path.iterdir())
