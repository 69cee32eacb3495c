"""Records in CSV files (RFC 4180, UTF-8, with a header).

The columns are those of a Parquet file. Bytes are base64. An empty tag or node field means none; an empty string, or
one that begins with a quotation mark, is written as a JSON string.
"""

import binascii
import csv
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from topics_cli import rows
from topics_cli.lines import LONGEST_LINE, BadTextError, Source, chunks
from topics_cli.output import counted
from topics_cli.recordtext import Parsed, base64
from topics_cli.times import shown

if TYPE_CHECKING:
    from topics_client.models import Record

_SPECIAL: Final = re.compile(r"[\",\r\n]")
HEADER: Final = ",".join(rows.COLUMNS).encode() + b"\n"


def csv_lines(records: "Sequence[Record]") -> bytes:
    """Format records as rows, without the header."""
    return "".join([_line(record) for record in records]).encode()


def _line(record: "Record") -> str:
    texts = (
        f"{record.partition},{record.seq},{shown(record.ts_ms)}",
        _cell(record.tag),
        _cell(record.node),
        _quoted(record.meta_data.decode()),
        "binary" if record.binary else "json",
        base64(record.data).decode() if record.binary else _quoted(record.data.decode()),
    )
    return ",".join(texts) + "\n"


def csv_rows(source: Source, label: str, *, as_rows: bool, tag_field: str | None) -> Iterator[tuple[int, Any]]:
    """Yield the rows as records, or their BadTextError, with the line numbers where they begin.

    With a column `data`, each row is a record as written by `csv_lines`; the other columns are optional. Without it, or
    with `as_rows`, the record is the row as a JSON object of strings. Raises ValueError for an invalid header.
    """
    csv.field_size_limit(LONGEST_LINE)
    lines = _Lines(source, label)
    reader = csv.reader(lines, strict=True)
    names: list[str] = []
    while True:
        lines.begin()
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            row, lines.wrong = [], lines.wrong or BadTextError(0, _explained(error))
        line, wrong = lines.first, lines.wrong
        if not (row or wrong):  # a blank line
            continue
        if not names:
            if wrong:
                raise ValueError(f"{label}: line {line} (header): {wrong.what}")
            names = _header(row, label)
            records = not as_rows and "data" in names
            if records:
                rows.check_tag_field(tag_field, label)
            continue
        if wrong is None and len(row) != len(names):
            wrong = BadTextError(0, f"it has {counted(len(row), 'column')}, the header {len(names)}")
        if wrong is not None:
            yield line, wrong
            continue
        found = dict(zip(names, row, strict=True))
        try:
            yield line, _record(found) if records else rows.row_object(found, tag_field)
        except BadTextError as bad:
            yield line, bad


class _Lines:
    """The lines of a file for a CSV reader, which consumes one or more per row.

    `first` is the number of the row's first line. `wrong` is the error of one of its lines, after which the reader
    could not continue.
    """

    def __init__(self, source: Source, label: str) -> None:
        self.first = 0
        self.wrong: BadTextError | None = None
        self._label = label
        self._held = 0
        self._number = 0
        self._lines = (line for _, group in chunks(source) for line in group)

    def begin(self) -> None:
        """Start a row."""
        self.first, self.wrong, self._held = self._number + 1, None, 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._number += 1
        if line is None:
            self.wrong = BadTextError(0, f"it is longer than {LONGEST_LINE >> 20} MiB")
            return "\n"
        self._held += len(line)
        if self._held > LONGEST_LINE:
            raise ValueError(
                f"{self._label}: line {self.first}: the row is longer than {LONGEST_LINE >> 20} MiB; "
                "unclosed quotation mark?"
            )
        try:
            return line.decode() + "\n"
        except UnicodeDecodeError as error:
            self.wrong = BadTextError(error.start + 1, f"byte 0x{line[error.start]:02x} is not UTF-8")
            return line.decode(errors="replace") + "\n"


def _explained(error: csv.Error) -> str:
    text = str(error)
    if text.startswith("unexpected end"):
        return "it has an unclosed quotation mark"
    if text.startswith("field larger"):
        return f"a value in it is longer than {LONGEST_LINE >> 20} MiB; unclosed quotation mark?"
    if "new-line character" in text:
        return "a lone carriage return is not a line end in CSV"
    return f"it is not CSV: {text}"


def _header(row: list[str], label: str) -> list[str]:
    twice = sorted({name for name in row if row.count(name) > 1})
    if twice:
        raise ValueError(f"{label}: duplicate column {twice[0]!r} in the header")
    if len(row) == 1 and (other := next((sign for sign in ";\t|" if sign in row[0]), None)):
        raise ValueError(f"{label}: columns must be separated by commas, not by {other!r}: convert the file")
    return row


def _cell(text: str | None) -> str:
    if text is None:
        return ""
    return _quoted(json.dumps(text, ensure_ascii=False) if not text or text.startswith('"') else text)


def _quoted(text: str) -> str:
    """Quote a value; Python's own writer leaves a lone carriage return unquoted before 3.13."""
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _record(found: dict[str, str]) -> Parsed:
    row: dict[str, Any] = dict(found)
    row["kind"] = row.get("kind") or None
    for name in ("tag", "node"):
        row[name] = _uncell(row.get(name, ""), name)
    if partition := row.get("partition"):
        row["partition"] = int(partition) if partition.isascii() and partition.isdigit() else partition
    else:
        row["partition"] = None
    if row["kind"] == "binary":
        try:
            row["data"] = binascii.a2b_base64(found["data"], strict_mode=True)
        except ValueError as error:
            raise BadTextError(0, f"its data is not base64: {error}") from None
    try:
        return rows.record(row)
    except BadTextError as bad:
        raise BadTextError(0, f"its data: {bad}" if bad.column else bad.what) from None


def _uncell(text: str, name: str) -> str | None:
    if not text:
        return None
    if not text.startswith('"'):
        return text
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, str):
        raise BadTextError(0, f"its {name} begins with a quotation mark but is not a JSON string")
    return found
