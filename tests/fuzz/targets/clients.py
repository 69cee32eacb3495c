"""What people feed to the command line: lines of records and jobs, Parquet files, the text of metrics."""

import io
import tempfile
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from fuzz.target import Target

from topics_cli.lines import BadTextError, all_json, chunks, json_value
from topics_cli.parquet import parquet_rows
from topics_cli.queue.jobtext import handle_of_argument, handle_of_line
from topics_cli.recordtext import parsed
from topics_cli.top import rates

_CLI: Final = "topics_cli"
_FOLDER: Final = tempfile.TemporaryDirectory(prefix="topics-fuzz-")


def _lines(data: bytes) -> Any:
    """Lines come out as they went in, however they are cut; and each is JSON or is not."""
    found = [line for _, group in chunks(io.BytesIO(data)) for line in group]
    whole = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not whole[-1]:
        whole.pop()
    assert found == whole
    values = []
    for line in filter(None, found):
        try:
            values.append(json_value(line.strip(b" \t\r\n")))
        except BadTextError as error:
            values.append(error)
    all_json([line for line in found if line])
    return values


def _parquet(data: bytes) -> Any:
    path = Path(_FOLDER.name) / "x.parquet"
    path.write_bytes(data)
    try:
        return [list(parquet_rows(str(path), "x.parquet", as_rows=rows, tag_field=None)) for rows in (False, True)]
    except BadTextError as error:
        return error


def _table() -> bytes:
    columns = {
        "data": ["1", '"x"', "not json"],
        "tag": ["a", None, "b"],
        "meta": [None, "{}", None],
        "partition": [0, 1, 2],
    }
    written = io.BytesIO()
    pq.write_table(pa.table(columns), written)
    return written.getvalue()


TARGETS = (
    Target(
        name="lines of JSON",
        decode=_lines,
        samples=[b'{"a":1}\n[1,"\\u00e9"]\n\n "x" \n-1e5', b"\xef\xbb\xbf1\r\n2\n", b"x" * 300 + b"\n1\n"],
        growth=1000,
        covers=(f"{_CLI}.lines:json_value", f"{_CLI}.lines:_careful", f"{_CLI}.lines:all_json", f"{_CLI}.lines:chunks"),
    ),
    Target(
        name="line of a record",
        decode=parsed,
        errors=(BadTextError,),
        samples=[
            b'{"$seq":1,"$ts":5,"$tag":"t","$node":"n","$partition":2,"data":{"a":[1]},"meta":{"k":"v"}}',
            b'{"$seq":1,"$encoding":"base64","$kind":"json","data":"MQ==","$meta":"e30="}',
            b'{"gap":{"reason":"cap"}}',
        ],
        growth=1000,
        covers=(f"{_CLI}.recordtext:parsed", f"{_CLI}.recordtext:_from_base64"),
    ),
    Target(
        name="line of a job",
        decode=lambda line: handle_of_line(line, "q", "n"),
        errors=(ValueError,),
        samples=[b'{"topic":"q","$seq":5,"lease_id":"lease_ab","node":"w","data":1}'],
        growth=1000,
        covers=(f"{_CLI}.queue.jobtext:handle_of_line",),
    ),
    Target(
        name="job as an argument",
        decode=lambda text: handle_of_argument(text.decode(errors="surrogateescape"), "n"),
        errors=(ValueError,),
        samples=[b"5", b"12:lease_ab"],
        covers=(f"{_CLI}.queue.jobtext:handle_of_argument",),
    ),
    Target(
        name="text of metrics",
        decode=lambda text: rates.read(text.decode(errors="replace"), 1.0, 2),
        samples=[
            b'# HELP x\ntopics_topic_head_seq{topic="a\\"b"} 5\ntopics_uptime_ms 12.5\n',
            b'topics_group_lag_records{group="g",topic="t",partition="0"} 3\n',
            b'topics_group_lag_records{topic="t"} 3\ntopics_group_lag_records 5\n',
            b'topics_topic_head_seq{topic="a"} +Inf\n',
        ],
        growth=1000,
        covers=(f"{_CLI}.top.rates:read",),
    ),
    Target(
        name="Parquet file",
        cost=4,
        decode=_parquet,
        errors=(ValueError, OSError, pa.ArrowException),
        samples=[_table()],
        growth=2000,
        covers=(f"{_CLI}.parquet:parquet_rows",),
    ),
)
