"""`topics import`: files become records, and are read back and compared. What `export` wrote: test_export.py."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.http import Api, fresh
from support.server import ServerProcess
from topics_cli.checksum import RecordChecksums
from topics_cli.sending import Batch
from topics_client import RawJson, TopicsClient
from topics_client.models import NewRecord

from .runner import Cli

WEBHOOKS = Path(__file__).parents[3] / "examples" / "webhooks.ndjson"


def test_webhooks(topics: Cli, api: Api) -> None:
    topic = fresh()
    ran = topics("import", WEBHOOKS, "--topic", topic, "--tag-field", "event")
    assert ran.out == f"appended 12 records to {topic}: seq 1 to 12\nread back 12 records, byte for byte identical\n"
    assert topics("read", topic).out.encode() == WEBHOOKS.read_bytes()
    events = [json.loads(line)["event"] for line in WEBHOOKS.read_bytes().splitlines()]
    assert [record["$tag"] for record in api.read_all(topic)] == events


def test_several_files_in_small_writes(topics: Cli, tmp_path: Path) -> None:
    topic = fresh()
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf1\r\n\r\n 2 ")
    (tmp_path / "b").write_bytes(b"[3, 4]\n")
    row = topics("import", tmp_path / "a", "--topic", topic, "-", tmp_path / "b", "--batch", 1, "--json").row
    assert (row["count"], row["first_seq"], row["last_seq"], row["different"]) == (3, 1, 3, 0)
    assert topics("read", topic).out == "1\n2\n[3, 4]\n"
    row = topics("import", tmp_path / "a", "--topic", topic, "--no-compare", "--json").row
    assert "different" not in row


def test_what_stops_it_names_the_line(topics: Cli, tmp_path: Path) -> None:
    topic, file = fresh(), tmp_path / "a"
    file.write_text("1\n2\n{]\n4\n")
    ran = topics("import", file, "--topic", topic, code=1)
    assert f"invalid_request: {file}: line 3, column 2: expecting property name" in ran.err
    assert "2 records before it were appended (seq 1 to 2), resume with --start-line 3" in ran.err
    topics("import", file, "--topic", topic, "--start-line", 4)
    assert topics("read", topic).out == "1\n2\n4\n"
    ran = topics("import", file, "--topic", topic, "--skip-invalid")
    assert "skipped" in ran.err
    assert "read back 3 records" in ran.out
    assert (
        "line 1, column 1: it is not a JSON object"
        in topics("import", file, "--with-meta", "--topic", topic, code=1).err
    )
    told = topics("import", "-", "--with-meta", "--topic", topic, code=1, stdin='{"data":1,"tga":"x"}').err
    assert 'a record has no member "tga": is "$tag" meant?' in told
    assert "nothing was appended" in told
    tagged = topics("import", "-", "--topic", topic, "--tag-field", "t", code=1, stdin=json.dumps({"t": "x" * 300}))
    assert "its t is too long for a tag" in tagged.err


def test_whole_records_of_somebody_else(topics: Cli, api: Api) -> None:
    topic = fresh()
    text = '{"data": 1, "$tag": "a"}\n{"gap": {}}\n\n{"meta":{"m": 1 },"$node":"n","$seq":77,"data":"é" }\n'
    assert "read back 2 records" in topics("import", "-", "--with-meta", "--topic", topic, stdin=text).out
    one, two = api.read_all(topic)
    assert (one["data"], one["$tag"]) == (1, "a")
    assert (two["$seq"], two["data"], two["$node"], two["meta"]) == (2, "é", "n", {"m": 1})


def test_rows_of_any_parquet_file_are_objects(topics: Cli, tmp_path: Path) -> None:
    topic, file = fresh(), tmp_path / "rows.parquet"
    at = datetime(2026, 11, 28, 14, 30, tzinfo=UTC)
    rows = [
        {"n": 1, "x": 1.5, "s": "é", "when": at, "list": [1, None], "bytes": b"\x00", "price": Decimal("1.10")},
        {"n": None, "x": float("nan"), "s": None, "when": None, "list": None, "bytes": None, "price": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), file)
    assert "read back 2 records" in topics("import", file, "--topic", topic).out
    first, second = (json.loads(line) for line in topics("read", topic).out.splitlines())
    when = "2026-11-28T14:30:00+00:00"
    assert first == {"n": 1, "x": 1.5, "s": "é", "when": when, "list": [1, None], "bytes": "AA==", "price": "1.10"}
    assert set(second.values()) == {None}


def test_columns_of_a_parquet_file_are_parts_of_records(topics: Cli, api: Api, tmp_path: Path) -> None:
    topic, file = fresh(), tmp_path / "records.parquet"
    columns = {"tag": ["a", None, None], "data": [' {"n": 1.0}', '"b"', "null"], "other": [1, 2, 3]}
    pq.write_table(pa.table(columns), file)
    topics("import", file, "--topic", topic)
    assert topics("read", topic).out == '{"n": 1.0}\n"b"\nnull\n'
    assert [record.get("$tag") for record in api.read_all(topic)] == ["a", None, None]
    topics("import", file, "--topic", topic, "--rows")
    assert json.loads(topics("read", topic, "--last", 1).out) == {"tag": None, "data": "null", "other": 3}
    pq.write_table(pa.table({"data": ["1", "x"]}), file)
    assert "row 2, column 1: expecting value" in topics("import", file, "--topic", topic, code=1).err
    pq.write_table(pa.table({"data": ["1", None]}), file)
    assert "row 2: its data is null" in topics("import", file, "--topic", topic, code=1).err
    file.write_text("no")
    (tmp_path / "a").write_text("1\n")
    ran = topics("import", tmp_path / "a", file, "--topic", topic, code=1)
    assert "; 1 record before it was appended (seq " in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("a.parquet", "--with-meta", "--format", "parquet"), 2, "--with-meta is for ndjson"),
        (("a", "--tag-field", "x", "--with-meta"), 2, "not allowed with"),
        (("/nowhere",), 1, "No such file"),
        (("-",), 1, "no records in -"),
        (("-", "-"), 2, "read once"),
        ((), 2, "FILE"),
    ],
)
def test_what_makes_no_sense(topics: Cli, arguments: tuple[object, ...], code: int, text: str) -> None:
    assert text in topics("import", *arguments, "--topic", "t", code=code).err


def test_without_a_key_or_a_server(tmp_path: Path) -> None:
    assert "unavailable" in Cli("127.0.0.1:1")("import", WEBHOOKS, "--topic", "t", code=3).err
    with ServerProcess(tmp_path, env={"TOPICS_API_KEYS": "all:rw,writer:w"}) as server:
        topics = Cli(server.grpc_target)
        assert "unauthorized" in topics("import", WEBHOOKS, "--topic", "t", code=4).err
        ran = topics("import", WEBHOOKS, "--topic", "t", code=4, env={"TOPICS_API_KEY": "writer"})
        assert ran.out == "appended 12 records to t: seq 1 to 12\n"
        assert "forbidden" in ran.err, "it can't read back"
        assert "read back 12" in topics("import", WEBHOOKS, "--topic", "t", "--key-env", "K", env={"K": "all"}).out


def test_the_comparison_finds_what_is_different_and_what_is_missing(server: ServerProcess, topics: Cli) -> None:
    topic = fresh()
    with TopicsClient(server.grpc_target) as client:
        kept = [NewRecord(RawJson(b"%d" % number)) for number in range(8)]
        client.append_many(topic, [*kept[:3], NewRecord(b"3"), NewRecord(RawJson(b"4"), tag="t"), *kept[5:]])
        client.append_many(topic, ["of another"])
        client.append_many(topic, kept[:2])
        client.delete_records(topic, before_seq=2)
        comparison = RecordChecksums(topic)
        for first_seq, numbers in ((1, range(8)), (10, range(2)), (12, range(1))):
            batch = Batch("file")
            for number in numbers:
                batch.add(b"%d" % number, number)
            comparison.appended(batch, first_seq)
        comparison.read(client)
    # Deleted: 1. Of another kind: 4. With a tag: 5. Not there: 12.
    assert (comparison.count, comparison.different, comparison.first_different) == (11, 4, 1)
