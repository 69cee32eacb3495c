"""Formats of files in both directions: what `topics export` wrote, `topics import` takes back; a file of another format
is reported with its name.
"""

import gzip
import io
import json
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.http import Api, fresh, ok
from topics_cli import formats
from topics_cli.csvtext import HEADER, csv_lines, csv_rows
from topics_cli.lines import BadTextError
from topics_cli.parquet import ParquetRecords, parquet_rows
from topics_cli.recordtext import Parsed, parsed, whole_line
from topics_cli.server import UsageError
from topics_client.models import Record

from .runner import Cli

_TEXTS = st.none() | st.text(max_size=6) | st.sampled_from(["", '"', '"a', 'a"', "a,b", "\r", "\n", "\0", "é\u2028"])
_JSONS = st.sampled_from([b"null", b'{\r\n"a" : 1.0,"a":[ ]}', '"é\u2028,"'.encode(), b"9" * 40]) | st.text().map(
    lambda text: json.dumps(text, ensure_ascii=False).encode()
)
_METAS = st.sampled_from([b"", b"{}", b'{ "a" : 1.0, "b": "x,y"}', b'{\n"a":\r1}'])
_RECORDS = st.lists(
    st.builds(
        Record, st.just("t"), st.integers(0, 3), st.just(7), st.just(5), _JSONS, st.just(False), _TEXTS, _TEXTS, _METAS
    )
    | st.builds(
        Record,
        st.just("t"),
        st.just(0),
        st.just(7),
        st.just(5),
        st.binary(max_size=9),
        st.just(True),
        _TEXTS,
        _TEXTS,
        _METAS,
    ),
    min_size=1,
    max_size=6,
)


def _source(data: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]


def _of_csv(records: list[Record]) -> list[Parsed]:
    rows = csv_rows(_source(HEADER + csv_lines(records)), "file", as_rows=False, tag_field=None)
    return [row for _, row in rows]


def _of_parquet(records: list[Record]) -> list[Parsed]:
    file = io.BytesIO()
    writer = ParquetRecords(file)
    writer.write(records)
    writer.close()
    return [row for _, row in parquet_rows(io.BytesIO(file.getvalue()), "file", as_rows=False, tag_field=None)]


def _of_lines(records: list[Record]) -> list[Parsed | None]:
    return [parsed(whole_line(record, partition=True, exact=True)) for record in records]


@pytest.mark.parametrize("back", [_of_csv, _of_parquet, _of_lines])
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_RECORDS)
def test_whatever_a_record_has_comes_back(back: object, records: list[Record]) -> None:
    assert callable(back)
    for found, record in zip(back(records), records, strict=True):
        assert isinstance(found, Parsed), found
        assert found == Parsed(record.data, record.binary, record.tag, record.node, record.meta_data, record.partition)


@pytest.fixture(scope="module")
def ugly(topics: Cli, api: Api) -> str:
    """A topic of records that are hard to write down."""
    topic = api.make()
    for body in (
        b'{"records":[{"data":{"b" : 1.0,"a":1e3, "a":[ ] },"tag":"","meta":{ "k" : 1.0 }}]}',
        b'{"records":[{"data":{\n\t"b":\r\n []},"tag":"a\\"\\n","meta":{\n}}]}',
        b'{"records":[{"data":"\\u00e9,\\/","node":"n\\u2028"}]}',
    ):
        ok(api.send("POST", f"/v0/topics/{topic}", body), 200, 201)
    topics("append", topic, "--format", "binary", "--tag", "bytes", stdin=b"\x00\n\xff")
    return topic


def whole(topics: Cli, topic: str) -> bytes:
    """All records to the byte, but for their times."""
    return re.sub(r'"\$ts":\d+,', "", topics("export", topic, "-", "--with-meta").out).encode()


@pytest.mark.parametrize("name", ["a.csv", "A.CSV.ZST", "a.jsonl.gz", "a.parquet"])
def test_a_file_comes_back_to_the_byte(topics: Cli, ugly: str, tmp_path: Path, name: str) -> None:
    topic, options = fresh(), ["--with-meta"] if "jsonl" in name else []
    topics("export", ugly, tmp_path / name, *options)
    head = (tmp_path / name).read_bytes()[:4]
    assert (
        head
        == {
            "a.csv": b"part",
            "A.CSV.ZST": b"\x28\xb5\x2f\xfd",
            "a.jsonl.gz": b"\x1f\x8b\x08\x00",
            "a.parquet": b"PAR1",
        }[name]
    )
    assert "read back 4 records" in topics("import", tmp_path / name, *options, "--topic", topic).out
    assert whole(topics, topic) == whole(topics, ugly)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("chosen", ["csv.gz", "parquet"])
def test_pipes_take_every_format(topics: Cli, ugly: str, chosen: str) -> None:
    topic = fresh()
    with topics.start(
        "export", ugly, "-", "--format", chosen, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as out:
        data, _ = out.communicate(timeout=60)
    # gzip and Parquet are found by what they begin with; CSV has to be said.
    options = ["--format", "csv"] if "csv" in chosen else []
    assert "read back 4 records" in topics("import", "-", *options, "--topic", topic, stdin=data).out
    assert whole(topics, topic) == whole(topics, ugly)


def test_whole_records_that_are_taken_for_data_are_told(topics: Cli) -> None:
    line = '{"$seq":1,"$ts":1700000000123,"data":1}\n'
    ran = topics("import", "-", "--topic", fresh(), "--no-compare", stdin=line)
    assert ran.err.startswith("standard input looks like whole records")
    assert topics("import", "-", "--with-meta", "--topic", fresh(), "--no-compare", stdin=line).err == ""


def test_rows_of_any_csv_file_are_objects(topics: Cli, tmp_path: Path) -> None:
    topic, file = fresh(), tmp_path / "rows.csv"
    file.write_bytes(b'\xef\xbb\xbfname,"the city",n\r\n"Ann, B.","a\r\n""b""",1\r\n\r\nBob,,2')
    assert "read back 2 records" in topics("import", file, "--topic", topic, "--tag-field", "n").out
    assert topics("read", topic, "--json").rows[0]["$tag"] == "1"
    assert topics("read", topic).rows == [
        {"name": "Ann, B.", "the city": 'a\r\n"b"', "n": "1"},
        {"name": "Bob", "the city": "", "n": "2"},
    ]


def test_a_bad_row_is_named_by_its_line_and_the_rest_goes_on_or_not(topics: Cli, tmp_path: Path) -> None:
    topic, file = fresh(), tmp_path / "rows.csv"
    file.write_bytes(b'a,b\n1,"2\n3"\n4\n5,\xff\n6,7\n')
    ran = topics("import", file, "--topic", topic, code=1)
    assert f"{file}: line 4: it has 1 column, the header 2; 1 record before it was appended" in ran.err
    assert "resume with --start-line 4" in ran.err
    ran = topics("import", file, "--topic", topic, "--start-line", 4, "--skip-invalid")
    assert "line 5, column 3: byte 0xff is not UTF-8" in ran.err
    assert topics("read", topic).rows == [{"a": "1", "b": "2\n3"}, {"a": "6", "b": "7"}]


_PARQUET = io.BytesIO()
pq.write_table(pa.table({"n": [1]}), _PARQUET)


@pytest.mark.parametrize(
    ("name", "data", "code", "text"),
    [
        ("a.ndjson", _PARQUET.getvalue(), 1, "looks like Parquet, not NDJSON: --format parquet reads it"),
        ("a.csv", _PARQUET.getvalue(), 1, "looks like Parquet, not CSV: --format parquet reads it"),
        ("a.parquet", b'{"n":1}\n', 1, "isn't Parquet: it does not begin with PAR1"),
        ("a.parquet", gzip.compress(b"1", mtime=0), 2, "Parquet inside gzip isn't supported"),
        ("a.parquet.gz", b"", 2, "Parquet inside gzip isn't supported, as Parquet compresses its columns"),
        ("a.parquet", _PARQUET.getvalue()[:-9], 1, "truncated or damaged"),
        ("a.csv.gz", b"a,b\n1,2\n", 1, "is named like gzip but isn't: it may be plain text"),
        ("a.ndjson.gz", zstd.compress(b"1\n"), 1, "is named like gzip but isn't: it looks like Zstandard"),
        ("a.ndjson.gz", gzip.compress(b"1\n" * 10_000, mtime=0)[:-9], 1, "its gzip data is truncated"),
        ("a.csv.zst", zstd.compress(b"1\n" * 10_000)[:-2], 1, "its Zstandard data is truncated"),
        ("a.gz", gzip.compress(gzip.compress(b"1", mtime=0)), 1, "is compressed twice: gunzip it first"),
        ("a", b"PK\x03\x04....", 1, "looks like a zip archive or a spreadsheet, not NDJSON"),
        ("a", '{"n":1}'.encode("utf-16"), 1, "looks like UTF-16 text, not NDJSON: iconv -t UTF-8 converts it"),
        ("a", b"n,m\n1,2\n", 1, "line 1, column 1: expecting value, found 'n' (--format csv reads CSV)"),
        ("a.json", b'[\n{"n":1}\n]', 1, "column 2: expecting value, but it ends here (a document of several lines"),
        ("a.bz2", b"", 2, "bz2 isn't supported: unpack it first"),
        ("a.xlsx", b"", 2, "xlsx isn't supported: convert it to NDJSON, CSV or Parquet"),
        ("a.csv", b"a;b\n1;2\n", 1, "columns must be separated by commas, not by ';'"),
        ("a.csv", b"a,a\n1,2\n", 1, "duplicate column 'a' in the header"),
        ("a.csv", b'a,b\n1,"2\n', 1, "line 2: it has an unclosed quotation mark"),
        ("a.csv", b"data,partition\n1,x\n", 1, "line 2: its partition is not a whole number"),
        ("a.csv", b"data,kind\n1,text\n", 1, "line 2: its kind is 'text', neither json nor binary"),
        ("a.csv", b"data\nx\n", 1, "line 2: its data: column 1: expecting value, found 'x'"),
    ],
)  # fmt: skip
def test_what_is_of_another_format_is_told_by_its_name(
    tmp_path: Path, name: str, data: bytes, code: int, text: str
) -> None:
    """In this process, since only the messages matter: the commands that read it are tested above."""
    file = tmp_path / name
    file.write_bytes(data)
    from topics_cli.inputs import FileInputs

    with pytest.raises(ValueError, match=re.escape(text)) as told:
        for _ in FileInputs([str(file)], chosen=None, whole=False, as_rows=False).batches():
            pass
    assert isinstance(told.value, UsageError) == (code == 2)


def test_the_commands_tell_it_as_they_tell_everything(topics: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(_PARQUET.getvalue())
    assert "nothing was appended" in topics("import", file, "--topic", "t", code=1).err
    assert "xlsx isn't supported" in topics("export", "t", tmp_path / "a.xlsx", code=2).err
    for how in ("ndjson", "text"):
        ran = topics("append", "t", "--file", file, "--format", how, code=1)
        assert "looks like Parquet" in ran.err
        assert "topics import reads files of other formats" in ran.err


def test_a_row_that_never_ends_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from topics_cli import csvtext

    monkeypatch.setattr(csvtext, "LONGEST_LINE", 100)
    line, bad = next(csv_rows(_source(b'a\n"' + b"x\n" * 100), "file", as_rows=False, tag_field=None))
    assert (line, str(bad).partition(";")[2]) == (2, " unclosed quotation mark?")
    rows = csv_rows(_source(b"a\n" + b'"xxx\nxxx",' * 100), "file", as_rows=False, tag_field=None)
    with pytest.raises(ValueError, match=r"line 2: the row is longer than .* unclosed quotation mark\?"):
        list(rows)


def test_a_long_line_leaves_the_rows_behind_it() -> None:
    from topics_cli import lines

    long = b"x" * (lines.LONGEST_LINE + 1)
    (_, bad), (line, good) = csv_rows(_source(b"a\n" + long + b"\n1\n"), "file", as_rows=True, tag_field=None)
    assert isinstance(bad, BadTextError)
    assert (line, good.data) == (3, b'{"a":"1"}')


def test_text_that_begins_like_a_format_is_text() -> None:
    for head in (b"PAR1,PAR2\n", b"PAR1\r\n", b"BZhang,x", b"ORCID,name", b"Object"):
        assert formats.looks_like(head) is None
    assert formats.looks_like(b"PAR1\x15\x04") == "parquet"
